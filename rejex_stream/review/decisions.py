"""Verdicts by people: checked first, then written to every target or to none.

A request that is repeated (a retried POST) returns what it returned the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rejex_stream.review import auditlog, episodes
from rejex_stream.review.actions import Done, counted, remember, repeated
from rejex_stream.review.labels import HumanVerdict, LabelRecord, active_labels, label_id
from rejex_stream.review.leases import held_by_other
from rejex_stream.review.queue import Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.standing import publish, records_of, refresh_status, resolution_of
from rejex_stream.review.storage import Connection, Row
from rejex_stream.types import Position

__all__ = ["Decision", "Target", "decide"]


class Target(NamedTuple):
    """One episode as the reviewer saw it; if it changed meanwhile, that matters."""

    episode_id: str
    n_events: int
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict for one or several episodes, with what the reviewer said about it.

    Attributes
    ----------
    request_id
        Made by the reviewer's screen once per keypress; also names the batch.
    targets
        Exactly these episodes, by id.
    span_ms
        First and last event time of the part meant, both included; one target only.
    """

    request_id: str
    verdict: HumanVerdict
    targets: tuple[Target, ...]
    span_ms: tuple[int, int] | None = None
    tags: tuple[str, ...] = ()
    fault_code: str = ""
    note: str = ""


def _record(  # noqa: PLR0917
    connection: Connection,
    episode: str,
    decision: Decision,
    viewer: Viewer,
    now_ms: int,
    ordinal: int,
) -> LabelRecord:
    row = connection.execute(
        "SELECT e.*, s.stream_key, s.sensor FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE episode_id = ?",
        (episode,),
    ).fetchone()
    standing = active_labels(records_of(connection, episode))
    people = [label for label in standing if label.source == "human"]
    own = [label for label in people if label.reviewer == viewer.reviewer]
    role: Literal["first", "second", "adjudication"] = "second" if people and not own else "first"
    if row["status"] == "disputed" and viewer.role in ("lead", "admin"):
        role = "adjudication"
    elif own:
        role = own[-1].role if own[-1].role != "adjudication" else "adjudication"
    events = connection.execute(
        "SELECT topic, partition, offset FROM event WHERE episode_id = ? "
        "ORDER BY event_time_ms, event_id",
        (episode,),
    )
    return LabelRecord(
        label_id=label_id(decision.request_id, str(ordinal), episode),
        episode_id=episode,
        root_id=row["root_id"],
        stream_key=row["stream_key"],
        sensor=row["sensor"],
        events=tuple(Position(*tuple(event)) for event in events),
        verdict=decision.verdict,
        why=row["why"],
        role=role,
        reviewer=viewer.reviewer,
        created_ms=now_ms,
        from_ms=row["start_ms"],
        to_ms=row["end_ms"],
        tags=decision.tags,
        fault_code=decision.fault_code,
        note=decision.note,
        supersedes=own[-1].label_id if own else None,
        batch_id=decision.request_id,
    )


def _checked(connection: Connection, target: Target, viewer: Viewer, now_ms: int) -> Row:
    """Return the episode row if this reviewer may decide it as they saw it."""
    row: Row | None = connection.execute(
        "SELECT * FROM episode WHERE episode_id = ?", (target.episode_id,)
    ).fetchone()
    if row is None or row["status"] == "empty":
        raise Refusal("unknown", f"There is no episode {target.episode_id}.", target.episode_id)
    if held_by_other(row, viewer.reviewer, now_ms):
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {target.episode_id}; nothing was written.",
            target.episode_id,
        )
    if row["status"] != target.status:
        found = resolution_of(connection, target.episode_id)
        who = " and ".join(found.reviewers) or "Somebody"
        said = f" as {found.verdict}" if found.verdict else ""
        raise Refusal(
            "changed",
            f"{who} decided {target.episode_id}{said} meanwhile; nothing was written.",
            target.episode_id,
        )
    if row["status"] == "disputed" and viewer.role not in ("lead", "admin"):
        parties = resolution_of(connection, target.episode_id).reviewers
        if viewer.reviewer not in parties:
            raise Refusal(
                "forbidden",
                f"{' and '.join(parties)} disagree about {target.episode_id}: "
                "they or a lead settle it.",
                target.episode_id,
            )
    if row["n_events"] < target.n_events:
        raise Refusal(
            "changed",
            f"{target.episode_id} was split meanwhile; nothing was written.",
            target.episode_id,
        )
    return row


def _events_meant(
    connection: Connection, target: Target, span_ms: tuple[int, int] | None
) -> tuple[list[int], int]:
    """Return the events a verdict speaks about (those the reviewer saw), and how many there are."""
    # event_id is the order of arrival: what came after the reviewer looked is not judged.
    rows = connection.execute(
        "SELECT event_id, event_time_ms FROM event WHERE episode_id = ? ORDER BY event_id",
        (target.episode_id,),
    ).fetchall()
    seen = rows[: target.n_events]
    if span_ms is not None:
        low, high = min(span_ms), max(span_ms)
        seen = [row for row in seen if low <= row["event_time_ms"] <= high]
        if not seen:
            raise Refusal(
                "bad_request",
                "No event of the episode lies in the marked range: mark one that holds some, or "
                "press e for the whole episode.",
                target.episode_id,
            )
    return [row["event_id"] for row in seen], len(rows)


def decide(
    connection: Connection,
    decision: Decision,
    viewer: Viewer,
    settings: ReviewSettings,
    now_ms: int,
) -> Done:
    """Give a verdict to every target, or refuse and write nothing.

    Where the marked range, or what the reviewer saw of a growing episode, is only a part, that part
    becomes an episode of its own and the rest stays open.

    Raises
    ------
    Refusal
        ``leased``, ``changed``, ``unknown``, ``forbidden`` or ``bad_request``.
    """
    before_now = repeated(connection, decision.request_id, viewer)
    if before_now is not None:
        return before_now
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")
    if not decision.targets or (decision.span_ms is not None and len(decision.targets) != 1):
        raise Refusal(
            "bad_request", "Name at least one episode; a marked range goes with exactly one."
        )
    rows = [_checked(connection, target, viewer, now_ms) for target in decision.targets]
    meant = [_events_meant(connection, t, decision.span_ms) for t in decision.targets]
    changed, parts, label_ids, n_events = [], [], [], 0
    for ordinal, (target, row, (events, total)) in enumerate(
        zip(decision.targets, rows, meant, strict=True)
    ):
        episode = target.episode_id
        if len(events) < total:
            episode = episodes.split(connection, target.episode_id, events)
            parts.append((episode, target.episode_id))
        record = _record(connection, episode, decision, viewer, now_ms, ordinal)
        held = row["lease_owner"] == viewer.reviewer and row["lease_until_ms"] > now_ms
        publish(
            connection,
            record,
            handle_ms=now_ms - row["lease_since_ms"] if held else None,
            sent=False,
        )
        refresh_status(connection, episode, settings, now_ms)
        if episode != target.episode_id:
            refresh_status(connection, target.episode_id, settings, now_ms)
        auditlog.append(
            connection,
            at_ms=now_ms,
            actor=viewer.reviewer,
            action="adjudicate" if record.role == "adjudication" else "label",
            subject=episode,
            detail=_label_detail(record, target.episode_id),
        )
        changed.append(episode)
        label_ids.append(record.label_id)
        n_events += len(events)
    done = Done(
        "label",
        f"{counted(len(changed), 'episode')} ({counted(n_events, 'event')}) "
        f"marked {decision.verdict}",
        tuple(changed),
        n_events,
    )
    remember(
        connection,
        decision.request_id,
        viewer,
        done,
        now_ms=now_ms,
        payload={"labels": label_ids, "parts": parts},
    )
    return done


def _label_detail(record: LabelRecord, asked: str) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "label_id": record.label_id,
        "verdict": record.verdict,
        "events": len(record.events),
        "role": record.role,
    }
    for name in ("note", "fault_code", "supersedes"):
        if getattr(record, name):
            detail[name] = getattr(record, name)
    if record.tags:
        detail["tags"] = list(record.tags)
    if record.episode_id != asked:
        detail["split_from"] = asked
    return detail
