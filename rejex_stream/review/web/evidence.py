"""The numbers behind the plots, and the records as they came."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rejex_stream.review import series
from rejex_stream.review.detail import raw_record
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.series import Series
from rejex_stream.review.views import around, is_blind
from rejex_stream.review.web.api import answer, json_api
from rejex_stream.review.web.console import console_of, off_loop, viewer_of

__all__ = ["RAW_SHOWN_BYTES", "routes"]

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
            {"name": name, **_line(*line)}
            for name, line in zip(found.channels, found.values, strict=True)
        ],
        "score": _line(*found.score) if with_score else None,
        "marked": found.marked if with_score else [],
        "resolution_ms": found.resolution_ms,
    }


def _stretch(request: Request) -> tuple[int, int, int]:
    try:
        low, high = int(request.query_params["from"]), int(request.query_params["to"])
        pixels = int(request.query_params.get("px", "1000"))
    except (KeyError, ValueError) as error:
        raise Refusal("bad_request", "Give from, to (UTC milliseconds) and px.") from error
    if not 0 <= high - low <= _WIDEST_MS or not 10 <= pixels <= 10_000:
        raise Refusal("bad_request", "from must lie before to, within 400 days; px in 10..10000.")
    return low, high, 2 * pixels


@json_api
async def get_series(request: Request) -> Response:
    """Return the series of an episode's sensor (the score too, unless it must be hidden)."""
    console, viewer = console_of(request), viewer_of(request)
    low, high, most = _stretch(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT e.*, s.channels FROM episode e JOIN sensor s USING (sensor_id) "
                "WHERE episode_id = ?",
                (request.path_params["episode"],),
            ).fetchone()
            if row is None:
                raise Refusal("unknown", "There is no such episode.")
            found = series.read(
                connection, row["sensor_id"], json.loads(row["channels"]), low, high, most=most
            )
            stretch = around(connection, row["sensor_id"], row["start_ms"], row["end_ms"])
        return {"around": stretch} | series_json(
            found, with_score=not is_blind(console.store.settings, row, viewer)
        )

    return answer(await off_loop(work))


@json_api
async def get_sensor_series(request: Request) -> Response:
    """Return the readings of any sensor, for a plot beside another one."""
    console = console_of(request)
    low, high, most = _stretch(request)

    def work() -> dict[str, Any]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT sensor, channels FROM sensor WHERE sensor_id = ?",
                (int(request.path_params["sensor_id"]),),
            ).fetchone()
            if row is None:
                raise Refusal("unknown", "There is no such sensor.")
            found = series.read(
                connection,
                int(request.path_params["sensor_id"]),
                json.loads(row["channels"]),
                low,
                high,
                most=most,
            )
        return {"sensor": row["sensor"], **series_json(found, with_score=False)}

    return answer(await off_loop(work))


@json_api
async def get_raw(request: Request) -> Response:
    """Return a record as it came: its first 16 kB as text, or all of it as a download."""
    console, viewer = console_of(request), viewer_of(request)

    def work() -> tuple[str, bytes]:
        with console.store.database.read() as connection:
            row = connection.execute(
                "SELECT e.* FROM episode e JOIN event v USING (episode_id) WHERE event_id = ?",
                (int(request.path_params["event_id"]),),
            ).fetchone()
            if row is not None and is_blind(console.store.settings, row, viewer):
                raise Refusal("forbidden", "Hidden until you have decided (blind review).")
            return raw_record(connection, int(request.path_params["event_id"]))

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
    Route("/api/episodes/{episode}/series", get_series),
    Route("/api/sensors/{sensor_id:int}/series", get_sensor_series),
    Route("/api/events/{event_id:int}/raw", get_raw),
]
