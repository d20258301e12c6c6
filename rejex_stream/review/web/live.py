"""The live screen: what the monitors say, as it changes, over one stream of server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rejex_stream.monitor import MonitorStatus
from rejex_stream.review import rates
from rejex_stream.review.queue import Viewer
from rejex_stream.review.storage import Connection
from rejex_stream.review.watching import PipelineWatch, RateSample, samples, samples_after
from rejex_stream.review.web.api import answer, json_api
from rejex_stream.review.web.console import Console, console_of, off_loop, viewer_of
from rejex_stream.review.web.pages import Context, page

__all__ = ["routes"]

_ENOUGH_SAMPLES = 40
_HOURS = {"1": 1, "6": 6, "24": 24, "168": 168, "all": 24 * 366 * 10}
_BEAT_S = 15.0


def _chosen(console: Console, request: Request) -> tuple[PipelineWatch | None, str]:
    query = request.query_params
    watch = console.watches.get(query.get("pipeline", "")) or next(
        iter(console.watches.values()), None
    )
    return watch, query.get("stream", "")[:500]


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
    start = last - _HOURS[hours] * 3_600_000
    return start - start % 60_000


def status_json(status: MonitorStatus | None) -> dict[str, Any] | None:
    """Return what the screen shows of a status; infinities become null."""
    if status is None:
        return None
    theory = status.theory
    delay = status.doubling_delay_events
    return {
        "state": rates.state_word(status),
        "events": status.events,
        "rolling_events": status.rolling_events,
        "rate": status.rejection_rate,
        "anomaly_rate": status.anomaly_rate,
        "contamination": status.contamination,
        "expected": None if theory is None else theory.expected_rate,
        "exact_bound": None if theory is None else theory.exact_bound,
        "paper_bound": None if theory is None else theory.paper_bound,
        "lower": status.lower,
        "upper": status.upper,
        "effective_events": status.effective_events,
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
        "marks": [
            {"t_ms": row["t_ms"], "kind": row["kind"], "text": row["text"]}
            for row in connection.execute(
                "SELECT * FROM mark WHERE pipeline = ? AND stream_key = ? AND t_ms >= ? "
                "ORDER BY t_ms DESC LIMIT 200",
                (watch.pipeline, stream, since),
            )
        ],
        "status": status_json(watch.status(stream)),
        "mix": msgspec.to_builtins(rates.mix(connection, watch.pipeline, since, stream_key=stream)),
    }


def _live(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    watch, stream = _chosen(console, request)
    if watch is None:
        return {"watch": None, "watches": {}, "live_data": {}}
    hours = _hours(connection, watch, stream, request)
    since = _since(connection, watch, hours)
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
        "picture": _picture(connection, watch, stream, hours),
        "lines": rates.stream_lines(connection, watch, viewer, since, console.store.now_ms()),
        "live_data": msgspec.to_builtins(_picture(connection, watch, stream, hours)),
    }


@json_api
async def get_live(request: Request) -> Response:
    """Return the picture of one stream, or of the pipeline."""
    console = console_of(request)

    def work() -> dict[str, Any]:
        watch, stream = _chosen(console, request)
        if watch is None:
            return {}
        with console.store.database.read() as connection:
            hours = _hours(connection, watch, stream, request)
            return _picture(connection, watch, stream, hours)

    return answer(await off_loop(work))


async def get_lines(request: Request) -> Response:
    """Return the list of streams as a fragment."""
    console, viewer = console_of(request), viewer_of(request)

    def work() -> Response:
        from rejex_stream.review.web.pages import render, shell

        with console.store.database.read() as connection:
            context = shell(console, connection, viewer) | _live(
                console, connection, viewer, request
            )
        return render(request, "_streams.html", context)

    return await off_loop(work)


async def get_stream(request: Request) -> Response:
    """Send new samples as they come, at most two messages a second, until the page is hidden."""
    console = console_of(request)
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

    return StreamingResponse(
        messages(),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


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
    Route("/live/streams", get_lines),
    Route("/api/live", get_live),
    Route("/api/live/stream", get_stream),
]
