"""What the pages' scripts call, JSON in and out; every refusal says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rejex_stream.encode.labels import HumanVerdict
from rejex_stream.errors import RejexError
from rejex_stream.review.console import metrics
from rejex_stream.review.console.console import (
    Console,
    console_of,
    filter_of,
    off_loop,
    viewer_of,
    whole_number,
)
from rejex_stream.review.queue import export, series, sharing
from rejex_stream.review.queue.claims import Done, Refusal, RefusalCode
from rejex_stream.review.queue.database import position_in
from rejex_stream.review.queue.decisions import Decision, Target
from rejex_stream.review.queue.detail import raw_record
from rejex_stream.review.queue.listing import (
    TABS,
    QueueFilter,
    Tab,
    Viewer,
    is_blind,
    summary,
)
from rejex_stream.review.queue.series import Series

__all__ = [
    "RAW_SHOWN_BYTES",
    "Name",
    "ViewIn",
    "answer",
    "json_api",
    "read_body",
    "routes",
    "series_json",
    "stretch_of",
]

_MOST_BODY_BYTES = 512 * 1024
_STATUS: dict[RefusalCode, int] = {
    "leased": 409,
    "changed": 409,
    "lapsed": 409,
    "forbidden": 403,
    "not_yours": 403,
    "unknown": 404,
    "nothing": 404,
    "bad_request": 422,
}
S = TypeVar("S", bound=msgspec.Struct)

Name = Annotated[str, Meta(min_length=1, max_length=64)]


class TargetIn(msgspec.Struct):
    """An episode as the page showed it."""

    id: Name
    n_events: Annotated[int, Meta(ge=1)]
    status: Name


class ViewIn(msgspec.Struct):
    """The list the reviewer works through."""

    tab: str = "ready"
    q: Annotated[str, Meta(max_length=200)] = ""
    sort: str = ""


class LabelIn(msgspec.Struct):
    """A verdict."""

    request_id: Name
    verdict: HumanVerdict
    targets: Annotated[list[TargetIn], Meta(min_length=1, max_length=10_000)]
    span_ms: tuple[int, int] | None = None
    tags: Annotated[list[Annotated[str, Meta(max_length=40)]], Meta(max_length=10)] = []
    fault_code: Annotated[str, Meta(max_length=80)] = ""
    note: Annotated[str, Meta(max_length=4000)] = ""
    view: ViewIn | None = None


class SnoozeIn(msgspec.Struct):
    """Putting episodes off."""

    request_id: Name
    episodes: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]
    minutes: Annotated[int, Meta(ge=1, le=60 * 24 * 30)] = 30
    growth: bool = False
    view: ViewIn | None = None


class WiderIn(msgspec.Struct):
    """How far from the episode to read on."""

    step: Annotated[int, Meta(ge=1, le=200)] = 1


class UndoIn(msgspec.Struct):
    """Undo."""

    request_id: Name


class AssignIn(msgspec.Struct):
    """Giving episodes to somebody, or with nobody named to everybody."""

    episodes: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]
    to: Annotated[str, Meta(max_length=200)] = ""


class CommentIn(msgspec.Struct):
    """Something to say about an episode."""

    request_id: Name
    text: Annotated[str, Meta(max_length=10_000)]


def answer(content: object, status: int = 200) -> Response:
    """Return JSON; numbers that are not finite become null."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


Handler = Callable[[Request], Awaitable[Response]]


def json_api(handler: Handler) -> Handler:
    """Turn refusals into answers."""

    @wraps(handler)
    async def call(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return answer(
                {
                    "code": refusal.code,
                    "message": str(refusal),
                    "episode": refusal.episode_id,
                },
                _STATUS[refusal.code],
            )
        except ClientDisconnect:
            return Response(status_code=499)

    return call


async def read_body(request: Request, kind: type[S]) -> S:
    """Return what a request holds.

    Raises
    ------
    Refusal
        If it is too large, or something else.
    """
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BODY_BYTES:
            raise Refusal("bad_request", "The request is larger than 512 kB.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise Refusal("bad_request", f"The request cannot be read: {str(error)[:200]}.") from error


def _view(view: ViewIn | None) -> QueueFilter | None:
    if view is None:
        return None
    # Lists of what is done have no next: work goes on with what is ready.
    tab: Tab = next((t for t in TABS if t == view.tab and t not in ("done", "waiting")), "ready")
    return QueueFilter(tab, view.q, view.sort)


def _next(console: Console, viewer: Viewer, view: QueueFilter | None, done: list[str]) -> str:
    """Return the episode after the first of `done` in a view, before they leave it."""
    if view is None:
        return ""
    with console.store.database.read() as connection:
        ids = [row[0] for row in view.ids(connection, viewer, console.store.now_ms())]
    leaving = set(done)
    at = next((i for i, one in enumerate(ids) if one in leaving), -1)
    following = [one for one in ids[at + 1 :] + ids[: max(at, 0)] if one not in leaving]
    return following[0] if following else ""


def _told(console: Console, viewer: Viewer, done: Done, following: str = "") -> dict[str, Any]:
    with console.store.database.read() as connection:
        found = summary(connection, console.store.settings, viewer, console.store.now_ms())
    return {
        "message": done.message,
        "episodes": done.episodes,
        "events": done.events,
        "next": following,
        "counts": found.counts,
        "version": found.version,
        "undoable": found.undoable,
    }


@json_api
async def post_label(request: Request) -> Response:
    """Give a verdict."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, LabelIn)

    def work() -> dict[str, Any]:
        ids = [target.id for target in wanted.targets]
        following = _next(console, viewer, _view(wanted.view), ids)
        done = console.store.decide(
            Decision(
                request_id=wanted.request_id,
                verdict=wanted.verdict,
                targets=tuple(Target(t.id, t.n_events, t.status) for t in wanted.targets),
                span_ms=wanted.span_ms,
                tags=tuple(wanted.tags),
                fault_code=wanted.fault_code,
                note=wanted.note,
            ),
            viewer,
        )
        return _told(console, viewer, done, following)

    return answer(await off_loop(work))


@json_api
async def post_snooze(request: Request) -> Response:
    """Put episodes off."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, SnoozeIn)

    def work() -> dict[str, Any]:
        following = _next(console, viewer, _view(wanted.view), wanted.episodes)
        done = console.store.snooze(
            wanted.request_id,
            wanted.episodes,
            viewer,
            until_ms=console.store.now_ms() + wanted.minutes * 60_000,
            growth=wanted.growth,
        )
        return _told(console, viewer, done, following)

    return answer(await off_loop(work))


@json_api
async def post_undo(request: Request) -> Response:
    """Take back the last action."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, UndoIn)

    def work() -> dict[str, Any]:
        return _told(console, viewer, console.store.undo(wanted.request_id, viewer))

    return answer(await off_loop(work))


@json_api
async def post_claim_next(request: Request) -> Response:
    """Claim the first free episode of a view."""
    console, viewer = console_of(request), viewer_of(request)
    _require_reviewer(viewer)
    view = _view(await read_body(request, ViewIn)) or QueueFilter()
    lease = await off_loop(console.store.claim_next, view, viewer)
    return answer(lease._asdict())


def claim_handler(what: str) -> Handler:
    """Return the handler that claims, renews or releases an episode."""

    @json_api
    async def handle(request: Request) -> Response:
        console, viewer = console_of(request), viewer_of(request)
        _require_reviewer(viewer)
        episode = request.path_params["episode"]
        if what == "release":
            return answer({"released": await off_loop(console.store.release, episode, viewer)})
        work = console.store.renew if what == "renew" else console.store.claim
        return answer((await off_loop(work, episode, viewer))._asdict())

    return handle


def _require_reviewer(viewer: Viewer) -> None:
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not claim: ask for the role reviewer.")


@json_api
async def post_wider(request: Request) -> Response:
    """Read the input for more readings around an episode, and keep them for its plots."""
    console, viewer = console_of(request), viewer_of(request)
    _require_reviewer(viewer)
    wanted = await read_body(request, WiderIn)

    def work() -> dict[str, Any]:
        store = console.store
        with store.database.read() as connection:
            row = connection.execute(
                "SELECT v.topic, v.partition, v.offset, v.reading, s.* FROM event v JOIN episode e "
                "USING (episode_id) JOIN sensor s ON s.sensor_id = e.sensor_id "
                "WHERE e.episode_id = ? ORDER BY v.event_time_ms, v.event_id LIMIT 1",
                (request.path_params["episode"],),
            ).fetchone()
        if row is None:
            raise Refusal("unknown", "There is no such case.")
        source = console.inputs.get(row["pipeline"])
        if source is None:
            raise Refusal("nothing", "The console does not know the input of this pipeline.")
        try:
            position = position_in(row)
            found = source.around(position, row["stream_key"], row["sensor"], wanted.step)
        except RejexError as error:
            raise Refusal("nothing", str(error)) from error
        if list(found.channels) != json.loads(row["channels"]):
            raise Refusal("nothing", "The input has other channels now than this case.")
        store.add_readings(
            row["stream_key"],
            row["sensor"],
            found.channels,
            found.points,
            pipeline=row["pipeline"],
        )
        times = [t_ms for t_ms, _ in found.points]
        return {
            "readings": len(times),
            "records": found.records,
            "from_ms": min(times, default=None),
            "to_ms": max(times, default=None),
            "cut": found.cut,
        }

    return answer(await off_loop(work))


@json_api
async def post_assign(request: Request) -> Response:
    """Say whose episodes are."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, AssignIn)

    def work() -> dict[str, str]:
        store = console.store
        with store.database.write() as connection:
            message = sharing.assign(
                connection,
                store.settings,
                wanted.episodes,
                viewer,
                to=wanted.to,
                now_ms=store.now_ms(),
            )
        return {"message": message}

    return answer(await off_loop(work))


@json_api
async def post_comment(request: Request) -> Response:
    """Say something about an episode."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, CommentIn)

    def work() -> dict[str, Any]:
        now_ms = console.store.now_ms()
        with console.store.database.write() as connection:
            sharing.comment(
                connection,
                wanted.request_id,
                request.path_params["episode"],
                viewer,
                text=wanted.text,
                now_ms=now_ms,
            )
        return {"by": viewer.reviewer, "at_ms": now_ms, "text": wanted.text.strip()}

    return answer(await off_loop(work))


@json_api
async def get_summary(request: Request) -> Response:
    """Return counts and a version; 304 while nothing has changed."""
    console, viewer = console_of(request), viewer_of(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            now = console.store.now_ms()
            found = summary(
                connection, console.store.settings, viewer, now, filter_of(request).words
            )
        return {
            "counts": found.counts | {"incidents": found.incidents},
            "oldest_ms": found.oldest_ms,
            "late": found.late,
            "undoable": found.undoable,
            "version": found.version,
            "now_ms": now,
            "problems": list(console.background.problems.values()) if console.background else [],
        }

    found = await off_loop(work)
    tag = f'"{found["version"]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    response = answer(found)
    response.headers["etag"] = tag
    return response


@json_api
async def get_ids(request: Request) -> Response:
    """Return every episode of a view, for selecting them all."""
    console, viewer = console_of(request), viewer_of(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            found = filter_of(request).ids(connection, viewer, console.store.now_ms())
        return {
            "targets": [{"id": i, "n_events": n, "status": s} for i, n, s in found],
            "events": sum(n for _, n, _ in found),
        }

    return answer(await off_loop(work))


async def get_export(request: Request) -> Response:
    """Stream all labelled events as CSV or JSON Lines."""
    console = console_of(request)
    form = request.path_params["form"]
    if form not in ("csv", "jsonl"):
        return answer({"code": "unknown", "message": "Export csv or jsonl here."}, 404)
    blind = console.store.settings.blind != "off"
    found = export.rows(console.store.database, final_only=blind)
    pieces = export.as_csv(found) if form == "csv" else export.as_jsonl(found)
    return StreamingResponse(
        pieces,
        media_type="text/csv; charset=utf-8" if form == "csv" else "application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="labels.{form}"'},
    )


async def get_metrics(request: Request) -> Response:
    """Return the queue's metrics for Prometheus."""
    console = console_of(request)
    failing = console.background.failing() if console.background else {}
    text = await off_loop(metrics.exposition, console.store, failing)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


RAW_SHOWN_BYTES = 16 * 1024
_WIDEST_MS = 400 * 86_400_000


def _line(t: Any, v: Any) -> dict[str, list[Any]]:  # noqa: ANN401 - arrays
    return {
        "t": t.tolist(),
        "v": [None if np.isnan(x) else x for x in v.tolist()],
    }


def series_json(found: Series, *, with_score: bool) -> dict[str, Any]:
    """Return a series as the plots want it."""
    return {
        "channels": [
            {"name": name, **_line(*line), "missing": missing}
            for name, line, missing in zip(found.channels, found.values, found.missing, strict=True)
        ],
        "score": _line(*found.score) if with_score else None,
        "marked": found.marked if with_score else [],
        "holes": found.holes,
    }


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,16}", text):
        raise ValueError(text)
    return int(text)


def stretch_of(request: Request) -> tuple[int, int, int]:
    """Return (from, to) in UTC milliseconds and the most points of a line, as asked for.

    Raises
    ------
    Refusal
        If they are not given, or too much.
    """
    try:
        low, high = (_whole(request.query_params[name]) for name in ("from", "to"))
        pixels = _whole(request.query_params.get("px", "1000"))
    except (KeyError, ValueError) as error:
        raise Refusal("bad_request", "Give from, to (UTC milliseconds) and px.") from error
    if not 0 <= high - low <= _WIDEST_MS or not 10 <= pixels <= 10_000:
        raise Refusal("bad_request", "from must lie before to, within 400 days; px in 10..10000.")
    return low, high, 2 * pixels


@json_api
async def get_series(request: Request) -> Response:
    """Return the series of an episode's sensor (the score too, unless it must be hidden)."""
    console, viewer = console_of(request), viewer_of(request)
    low, high, most = stretch_of(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT e.*, s.channels FROM episode e JOIN sensor s USING (sensor_id) "
                "WHERE episode_id = ?",
                (request.path_params["episode"],),
            ).fetchone()
            if row is None:
                raise Refusal("unknown", "There is no such case.")
            found = series.read(
                connection, row["sensor_id"], json.loads(row["channels"]), low, high, most=most
            )
            stretch = series.around(connection, row["sensor_id"], row["start_ms"], row["end_ms"])
        return {"around": stretch} | series_json(
            found, with_score=not is_blind(console.store.settings, row, viewer)
        )

    return answer(await off_loop(work))


@json_api
async def get_sensor_series(request: Request) -> Response:
    """Return the readings of any sensor, for a plot beside another one."""
    console = console_of(request)
    low, high, most = stretch_of(request)
    sensor_id = whole_number(request.path_params["sensor_id"])

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT sensor, channels FROM sensor WHERE sensor_id = ?", (sensor_id,)
            ).fetchone()
            if row is None:
                raise Refusal("unknown", "There is no such sensor.")
            found = series.read(
                connection,
                sensor_id,
                json.loads(row["channels"]),
                low,
                high,
                most=most,
            )
        return {"sensor": row["sensor"], **series_json(found, with_score=False)}

    return answer(await off_loop(work))


@json_api
async def get_raw(request: Request) -> Response:
    """Return an episode's first record: its first 16 kB as text, or all of it as a download."""
    console, viewer = console_of(request), viewer_of(request)
    episode = request.path_params["episode"]

    def work() -> tuple[str, bytes]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT * FROM episode WHERE episode_id = ?", (episode,)
            ).fetchone()
            if row is not None and is_blind(console.store.settings, row, viewer):
                raise Refusal("forbidden", "Hidden until you have decided (blind review).")
            return raw_record(connection, episode)

    _, data = await off_loop(work)
    if "download" in request.query_params:
        return Response(
            data,
            media_type="application/octet-stream",
            headers={"content-disposition": 'attachment; filename="review-item.json"'},
        )
    return answer(
        {
            "text": data[:RAW_SHOWN_BYTES].decode("utf-8", "replace"),
            "shown": min(len(data), RAW_SHOWN_BYTES),
            "bytes": len(data),
        }
    )


routes = [
    Route("/metrics", get_metrics),
    Route("/api/export/{form}", get_export),
    Route("/api/labels", post_label, methods=["POST"]),
    Route("/api/snooze", post_snooze, methods=["POST"]),
    Route("/api/undo", post_undo, methods=["POST"]),
    Route("/api/claim-next", post_claim_next, methods=["POST"]),
    *(
        Route(f"/api/episodes/{{episode}}/{what}", claim_handler(what), methods=["POST"])
        for what in ("claim", "renew", "release")
    ),
    Route("/api/episodes/{episode}/comment", post_comment, methods=["POST"]),
    Route("/api/assign", post_assign, methods=["POST"]),
    Route("/api/episodes/{episode}/wider", post_wider, methods=["POST"]),
    Route("/api/summary", get_summary),
    Route("/api/queue/ids", get_ids),
    Route("/api/episodes/{episode}/series", get_series),
    Route("/api/sensors/{sensor_id}/series", get_sensor_series),
    Route("/api/episodes/{episode}/raw", get_raw),
]
