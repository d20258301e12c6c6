"""Planned work in the console: what the calendar says, what was planned here, and taken back.

A plan is a command like any answer: it is stored once, leaves for the control log, and is replied
to by the pipeline. What `control plan` gave elsewhere is read from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from rejex_stream.incidents.calendar import Plan
from rejex_stream.review.incidents.incident_store import (
    answers_to,
    command_id,
    store_command,
    stored_command,
    withdraw_command,
)
from rejex_stream.review.queue import database
from rejex_stream.review.queue.database import Name, Refusal, Viewer, require_reviewer
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Command, CommandKind

_MOST_MS = 31 * 86_400_000


class PlanRequest(msgspec.Struct, frozen=True):
    """When work is planned, in event time, and why; without a stream it is for all of them."""

    request_id: Name
    pipeline: Annotated[str, Meta(max_length=1000)]
    from_ms: int
    until_ms: int
    why: Annotated[str, Meta(min_length=1, max_length=4000)]
    stream: Annotated[str, Meta(max_length=1000)] = ""


class PlannedWork(NamedTuple):
    """One time in which work is planned, the next one where it comes again."""

    pipeline: str
    streams: tuple[str, ...]  # none: all
    from_ms: int
    until_ms: int
    by: str = ""  # nobody: the config's calendar
    why: str = ""
    command: str = ""  # takes it back
    state: str = ""  # what the pipeline said to it, where that is not that it holds
    every_ms: int | None = None
    is_now: bool = False


def planned_work(
    connection: Connection, calendars: Mapping[str, Sequence[Plan]], newest_ms: Mapping[str, int]
) -> list[PlannedWork]:
    """Return what is not over, by the newest event of each pipeline; the earliest first."""
    works = [
        _next(name, plan, newest_ms.get(name, 0))
        for name, plans in calendars.items() for plan in plans
    ]  # fmt: skip
    cancelled = set[str | None]()
    for answer in answers_to(connection, ""):  # the newest first: what takes back comes before
        command = answer.command
        if answer.withdrawn or answer.accepted is False:
            continue
        if command.kind is CommandKind.CANCEL:
            cancelled.add(command.cancels)
        elif command.id not in cancelled:
            works.append(_given(command, answer.pipeline, answer.replies != ()))
    works = [work for work in works if work.until_ms > newest_ms.get(work.pipeline, 0)]
    works = [w._replace(is_now=w.from_ms <= newest_ms.get(w.pipeline, 0)) for w in works]
    return sorted(works, key=lambda work: (work.from_ms, work.pipeline, work.command))


def _next(pipeline: str, plan: Plan, now_ms: int) -> PlannedWork:
    again = 0
    if plan.every_ms is not None:
        again = max(0, -((plan.until_ms - now_ms - 1) // plan.every_ms)) * plan.every_ms
    start, end = plan.from_ms + again, plan.until_ms + again
    return PlannedWork(pipeline, plan.streams, start, end, every_ms=plan.every_ms)


def _given(command: Command, pipeline: str, is_known: bool) -> PlannedWork:
    assert command.from_ms is not None  # a sound plan says both
    assert command.until_ms is not None
    streams = () if command.stream_key is None else (command.stream_key,)
    state = "" if is_known else "the pipeline has not replied yet"
    return PlannedWork(
        pipeline, streams, command.from_ms, command.until_ms,
        command.by, command.note, command.id, state,
    )  # fmt: skip


def plan_work(
    store: ReviewStore, request: PlanRequest, viewer: Viewer, pipelines: Iterable[str]
) -> Command:
    """Store a plan, which leaves for the control log as answers do; once a request."""
    require_reviewer(viewer)
    if request.pipeline not in pipelines:
        raise Refusal("unknown", "The console does not know where this pipeline reads commands.")
    if not 0 < request.until_ms - request.from_ms <= _MOST_MS:
        raise Refusal(
            "bad_request",
            "Planned work ends after it begins, at most 31 days later: what takes longer, or comes "
            "again, belongs into the config, as [[calendar]].",
        )
    id_ = command_id(viewer, request.request_id)
    with store.acting(viewer) as act:
        known = stored_command(act.connection, id_)
        if known is not None:
            return known
        stream = "SELECT 1 FROM sensor WHERE pipeline = ? AND stream_key = ?"
        if request.stream and not database.scalar(
            act.connection, stream, (request.pipeline, request.stream)
        ):
            raise Refusal("unknown", f"There is no stream {request.stream!r} of this pipeline.")
        times = {"from_ms": request.from_ms, "until_ms": request.until_ms}
        command = store_command(
            act, CommandKind.PLANNED, id_, request.pipeline,
            note=request.why.strip(), stream_key=request.stream or None, **times,
        )  # fmt: skip
        act.record("plan", id_, why=command.note, stream=request.stream, **times)
        return command


def cancel_work(store: ReviewStore, request_id: str, command: str, viewer: Viewer) -> None:
    """Take a plan back: it never leaves, or another command ends it."""
    require_reviewer(viewer)
    id_ = command_id(viewer, request_id)
    with store.acting(viewer) as act:
        plan = stored_command(act.connection, command)
        if plan is None or plan.kind is not CommandKind.PLANNED:
            raise Refusal("unknown", "There is no such plan.")
        row = act.connection.execute(
            "SELECT pipeline, leaving_ms FROM answer WHERE command = ?", (command,)
        ).fetchone()
        if row["leaving_ms"] is None:
            withdraw_command(act, command, command)
        elif stored_command(act.connection, id_) is None:
            store_command(
                act, CommandKind.CANCEL, id_, row["pipeline"],
                cancels=command, stream_key=plan.stream_key,
            )  # fmt: skip
            act.record("cancel", command)
