"""The live screen: what the monitors say, as it changes, over one stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from sqlite3 import Connection
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rejex_stream.monitor import MonitorStatus
from rejex_stream.review.console import rates
from rejex_stream.review.console.api import answer, json_api
from rejex_stream.review.console.auth import COOKIE
from rejex_stream.review.console.console import (
    Console,
    console_of,
    off_loop,
    viewer_of,
    whole_number,
)
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.console.rates import PipelineWatch, RateSample, samples, samples_after
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.series import HOUR_MS, MINUTE_MS

__all__ = ["routes"]

_ENOUGH_SAMPLES = 40
_LINES = 50
_HOURS = {"1": 1, "6": 6, "24": 24, "168": 168, "all": 24 * 366 * 10}
_BEAT_S = 15.0
# A browser opens six at most over HTTP/1.1; each costs the process about 2 MB and a read a tick.
_STREAMS_PER_SESSION = 8
_STREAMS_IN_ALL = 100


def _chosen(console: Console, request: Request) -> tuple[PipelineWatch | None, str]:
    query = request.query_params
    watch = console.watches.get(query.get("pipeline", "")) or next(
        iter(console.watches.values()), None
    )
    stream = query.get("stream", "")[:500]
    return watch, stream if watch is None or not stream else watch.key_of(stream)


def _hours(connection: Connection, watch: PipelineWatch, stream: str, request: Request) -> str:
    """Return the stretch asked for, or the shortest of a day or more that shows a course."""
    asked = request.query_params.get("hours", "")
    if asked in _HOURS:
        return asked
    for hours in ("24", "168"):
        found = connection.execute(
            "SELECT count(*) FROM rate WHERE pipeline = ? AND stream_key = ? AND t_ms >= ?",
            (watch.pipeline, stream, _since(connection, watch, hours)),
        ).fetchone()[0]
        if found >= _ENOUGH_SAMPLES:
            return hours
    return "all"


def _since(connection: Connection, watch: PipelineWatch, hours: str) -> int:
    last = rates.last_event_ms(connection, watch.pipeline)
    if last is None:
        return 0
    start = last - _HOURS[hours] * HOUR_MS
    # By the hour there are counts that are quickly added up.
    return start - start % (MINUTE_MS if hours in ("1", "6") else HOUR_MS)


def status_json(status: MonitorStatus | None) -> dict[str, Any] | None:
    """Return what the screen shows of a status; infinities become null."""
    if status is None:
        return None
    delay = status.doubling_delay_events
    return {
        "state": rates.state_word(status),
        "events": status.events,
        "rolling_events": status.rolling_events,
        **rates.figures(status),
        "contamination": status.contamination,
        "inflation": status.inflation,
        "health": status.health,
        "doubling_delay_events": delay if math.isfinite(delay) else None,
        "unranked": status.warm_up_events
        + status.unscorable_events
        + status.constant_window_events,
        "alarms": [
            {"kind": alarm.kind, "message": alarm.message, "t_ms": alarm.event_time_ms}
            for alarm in status.active_alarms
        ],
    }


def _picture(
    connection: Connection, watch: PipelineWatch, stream: str, hours: str
) -> dict[str, Any]:
    since = _since(connection, watch, hours)
    newest = connection.execute("SELECT coalesce(max(rate_seq), 0) FROM rate").fetchone()[0]
    return {
        "pipeline": watch.pipeline,
        "stream": stream,
        "hours": hours,
        "seq": newest,
        "samples": samples(connection, watch.pipeline, stream, since),
        "mix": msgspec.to_builtins(rates.mix(connection, watch.pipeline, since, stream_key=stream)),
        **_said(connection, watch, stream, since),
    }


def _said(connection: Connection, watch: PipelineWatch, stream: str, since: int) -> dict[str, Any]:
    """Return status and marks: what an open page has not heard of otherwise."""
    return {
        "marks": [
            {"t_ms": row["t_ms"], "kind": row["kind"], "text": row["text"]}
            for row in connection.execute(
                "SELECT * FROM mark WHERE pipeline = ? AND stream_key = ? AND t_ms >= ? "
                "ORDER BY t_ms DESC LIMIT 200",
                (watch.pipeline, stream, since),
            )
        ],
        "status": status_json(watch.status(stream)),
    }


def _lines(
    console: Console, connection: Connection, viewer: Viewer, request: Request, hours: str
) -> Context:
    watch, _ = _chosen(console, request)
    if watch is None:
        return {"watch": None, "lines": [], "streams_in_all": 0, "first_line": 0}
    begin = whole_number(request.query_params.get("from", ""))
    since = _since(connection, watch, hours)
    lines, in_all = rates.stream_lines(
        connection, watch, viewer, since, console.store.now_ms(), limit=_LINES, offset=begin
    )
    return {"lines": lines, "streams_in_all": in_all, "first_line": begin, "lines_a_page": _LINES}


def _streams(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    """Return the list alone, as an open page asks for it every few seconds."""
    watch, stream = _chosen(console, request)
    hours = "24" if watch is None else _hours(connection, watch, stream, request)
    found = _lines(console, connection, viewer, request, hours)
    return {"watch": watch, "stream": stream, "hours": hours, **found}


def _live(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    watch, stream = _chosen(console, request)
    if watch is None:
        return {"watch": None, "watches": {}, "live_data": {}}
    hours = _hours(connection, watch, stream, request)
    picture = _picture(connection, watch, stream, hours)
    found = _lines(console, connection, viewer, request, hours)
    return {
        "watch": watch,
        "watches": console.watches,
        "stream": stream,
        "hours": hours,
        "hour_choices": (
            ("1", "1 hour"),
            ("6", "6 hours"),
            ("24", "24 hours"),
            ("168", "7 days"),
            ("all", "everything"),
        ),
        "picture": picture,
        **found,
        "live_data": msgspec.to_builtins(picture) | {"first_line": found["first_line"]},
    }


@json_api
async def get_live(request: Request) -> Response:
    """Return the picture of one stream, or of the pipeline; ``parts=said``: what was said alone."""
    console = console_of(request)

    def work() -> dict[str, Any]:
        watch, stream = _chosen(console, request)
        if watch is None:
            return {}
        with console.store.database.read() as connection:
            hours = _hours(connection, watch, stream, request)
            if request.query_params.get("parts") == "said":
                since = _since(connection, watch, hours)
                return _said(connection, watch, stream, since)
            return _picture(connection, watch, stream, hours)

    return answer(await off_loop(work))


class _EventStream(StreamingResponse):
    """A stream of server-sent events that is counted while it is open."""

    def __init__(self, console: Console, session: str, messages: AsyncIterator[bytes]) -> None:
        self._watching, self._session = console.watching, session
        super().__init__(
            messages,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until nobody listens."""
        self._watching[self._session] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watching[self._session] -= 1
            if not self._watching[self._session]:
                del self._watching[self._session]


def _session_of(request: Request) -> str:
    """Return whose streams are counted together: a login's, else a person's at an address."""
    peer = request.client.host if request.client else ""
    return request.cookies.get(COOKIE) or f"{viewer_of(request).reviewer} {peer}"


async def get_stream(request: Request) -> Response:
    """Send new samples as they come, at most two messages a second, until the page is hidden."""
    console, session = console_of(request), _session_of(request)
    if (
        console.watching[session] >= _STREAMS_PER_SESSION
        or console.watching.total() >= _STREAMS_IN_ALL
    ):
        return JSONResponse(
            {
                "code": "too_many_streams",
                "message": f"At most {_STREAMS_PER_SESSION} live screens at a time for a session, "
                f"{_STREAMS_IN_ALL} in all: close one.",
            },
            status_code=429,
            headers={"retry-after": "30"},
        )
    watch, stream = _chosen(console, request)
    given = request.headers.get("last-event-id") or request.query_params.get("seq", "0")
    seq = int(given) if given.isdecimal() and len(given) < 18 else 0

    async def messages() -> AsyncIterator[bytes]:
        nonlocal seq
        yield b"retry: 1500\n\n"
        idle_s = 0.0
        while not console.stop.is_set():
            found = await off_loop(_news, console, watch, stream, seq) if watch else None
            if found is not None:
                seq, body = found
                yield b"id: %d\nevent: rate\ndata: %b\n\n" % (seq, msgspec.json.encode(body))
                idle_s = 0.0
            elif idle_s >= _BEAT_S:
                yield b": still here\n\n"
                idle_s = 0.0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(console.stop.wait(), console.tick_s)
            idle_s += console.tick_s
        yield b"event: bye\ndata: {}\n\n"

    return _EventStream(console, session, messages())


def _news(
    console: Console, watch: PipelineWatch, stream: str, seq: int
) -> tuple[int, dict[str, Any]] | None:
    with console.store.database.read() as connection:
        found: list[tuple[int, RateSample]] = samples_after(connection, watch.pipeline, stream, seq)
    if not found:
        return None
    return found[-1][0], {
        "samples": [sample for _, sample in found],
        "status": status_json(watch.status(stream)),
    }


routes = [
    Route("/live", page("live.html", _live)),
    Route("/live/streams", page("_streams.html", _streams)),
    Route("/api/live", get_live),
    Route("/api/live/stream", get_stream),
]
