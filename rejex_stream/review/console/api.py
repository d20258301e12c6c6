"""What the pages' scripts call, JSON in and out; and metrics for Prometheus.

Every refusal names the fix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from sqlite3 import Connection, Row
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rejex_stream.readable import Expected
from rejex_stream.review.certificate import certificates
from rejex_stream.review.console.console import Call, answers, as_json, filter_of
from rejex_stream.review.queue import label_store, labelling, series
from rejex_stream.review.queue.database import Name, Refusal, Viewer, scalar
from rejex_stream.review.queue.labelling import Done, LabelRequest
from rejex_stream.review.queue.listing import (
    TABS,
    QueueFilter,
    Summary,
    Tab,
    case_row,
    is_blind,
    summary,
)
from rejex_stream.review.queue.review_store import ReviewStore


class ViewIn(msgspec.Struct, frozen=True):
    """The list the reviewer works through."""

    tab: str = "ready"
    q: Annotated[str, Meta(max_length=200)] = ""
    sort: str = ""


class LabelIn(LabelRequest, frozen=True, kw_only=True):
    """A verdict, and the list whose next case is wanted."""

    view: ViewIn | None = None


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


# ------------------------------------------------------------------------------ what people do
def _view(view: ViewIn) -> QueueFilter:
    # Lists of what is done have no next: work goes on with what is ready.
    tab: Tab = next((t for t in TABS if t == view.tab and t not in ("done", "waiting")), "ready")
    return QueueFilter(tab, view.q, view.sort)


def _next(call: Call, view: ViewIn | None, done: Sequence[str]) -> str:
    """Return the episode after the first of `done` in a view, before they leave it."""
    if view is None:
        return ""
    with call.store.database.read() as connection:
        asked = _view(view).questions(connection, call.viewer, call.store.now_ms())
    ids = [[one.episode_id for one in those] for those in asked]
    at = next((i for i, those in enumerate(ids) if not set(done).isdisjoint(those)), -1)
    following = [*ids[at + 1 :], *ids[: at + 1]]  # what is left of this question comes last
    return next((one for those in following for one in those if one not in done), "")


def _done(call: Call, done: Done, following: str = "") -> dict[str, Any]:
    with call.store.database.read() as connection:
        top = summary(connection, call.viewer, call.store.now_ms())
    return {
        **{name: getattr(done, name) for name in ("message", "episodes", "events")},
        "next": following,
        "counts": top.counts,
        "version": top.version,
        "undoable": top.undoable,
    }


@answers(LabelIn)
def post_label(call: Call, wanted: LabelIn) -> object:
    following = _next(call, wanted.view, [target.episode_id for target in wanted.targets])
    return _done(call, labelling.label_cases(call.store, wanted, call.viewer), following)


@answers(UndoIn)
def post_undo(call: Call, wanted: UndoIn) -> object:
    return _done(call, labelling.undo(call.store, wanted.request_id, call.viewer))


@answers(ViewIn)
def post_claim_next(call: Call, wanted: ViewIn) -> object:
    return labelling.claim_next(call.store, _view(wanted), call.viewer)


@answers()
def post_claim(call: Call) -> object:
    return labelling.claim(call.store, call.place("episode"), call.viewer)


@answers()
def post_release(call: Call) -> object:
    return {"released": labelling.release(call.store, call.place("episode"), call.viewer)}


@answers(AssignIn)
def post_assign(call: Call, wanted: AssignIn) -> object:
    return {"message": labelling.assign(call.store, wanted.episodes, call.viewer, to=wanted.to)}


@answers(CommentIn)
def post_comment(call: Call, wanted: CommentIn) -> object:
    labelling.comment(
        call.store, wanted.request_id, call.place("episode"), call.viewer, text=wanted.text
    )
    return {"by": call.viewer.reviewer, "text": wanted.text.strip()}


# -------------------------------------------------------------------------- what pages show
_LOOK_ANEW_MS = 15_000
"""Claims lapse and cases settle without anybody writing: so late the counts say it."""
_MOST_SUMMARIES = 256


def _summary(call: Call) -> Summary:
    """Return the counts, made again once anything was written or a quarter minute has passed."""
    # Every open page asks for them again and again, mostly of a store that stands still.
    store, cache = call.store, call.console.summaries
    words, now, mark = filter_of(call.request).words, store.now_ms(), store.database.mark()
    known = cache.get((call.viewer, words))
    if known is not None and known[0] == mark and 0 <= now - known[1] < _LOOK_ANEW_MS:
        return known[2]
    with store.database.read() as connection:
        fresh = summary(connection, call.viewer, now, words)
    if len(cache) >= _MOST_SUMMARIES:
        cache.clear()
    cache[call.viewer, words] = mark, now, fresh
    return fresh


@answers()
def get_summary(call: Call) -> object:
    """Return counts and a version; 304 while nothing has changed."""
    now, top = call.store.now_ms(), _summary(call)
    tag = f'"{top.version}"'
    if call.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    background = call.console.background
    response = as_json(
        {
            "counts": top.counts | {"incidents": top.incidents},
            "oldest_ms": top.oldest_ms,
            "undoable": top.undoable,
            "version": top.version,
            "now_ms": now,
            "problems": list(background.problems.values()) if background else [],
        }
    )
    response.headers["etag"] = tag
    return response


@answers()
def get_ids(call: Call) -> object:
    """Return every episode of a view, for selecting them all."""
    with call.store.database.read() as connection:
        ids = filter_of(call.request).ids(connection, call.viewer, call.store.now_ms())
    return {
        "targets": [{"id": i, "n_events": n, "status": s} for i, n, s in ids],
        "events": sum(n for _, n, _ in ids),
    }


@answers()
def get_export(call: Call) -> object:
    """Stream all labelled events as CSV or JSON Lines."""
    form = call.place("form")
    if form not in ("csv", "jsonl"):
        raise Refusal("unknown", "Export csv or jsonl here.")
    rows = label_store.export_rows(
        call.store.database, final_only=call.store.settings.blind != "off"
    )
    pieces = label_store.as_csv(rows) if form == "csv" else label_store.as_jsonl(rows)
    return StreamingResponse(
        pieces,
        media_type="text/csv; charset=utf-8" if form == "csv" else "application/x-ndjson",
        headers={"content-disposition": f'attachment; filename="labels.{form}"'},
    )


@answers()
def get_metrics(call: Call) -> object:
    background = call.console.background
    text = exposition(call.store, background.failing() if background else {})
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


_METRICS = {  # help text, and the label, if any
    "open_episodes": ("Cases that wait for a verdict.", ""),
    "oldest_age_seconds": ("How long people have been asked.", ""),
    "outbox_pending": ("Labels that wait to be sent.", ""),
    "missed_lower": ("Anomalies called normal, at least: 95 %, at every look.", "pipeline"),
    "accepted_normal_events": (
        "Events called normal or muted, of which those were missed.",
        "pipeline",
    ),
    "failing": (
        "1 while a part of the background work fails: a feed, labels, expiry, upkeep.",
        "part",
    ),
}
_WAITING = "SELECT count(*) FROM episode WHERE status IN ('open', 'needs_second', 'disputed')"


def exposition(store: ReviewStore, failing: Mapping[str, bool] | None = None) -> bytes:
    """Return all metrics in Prometheus' text format; `failing` as of the background's parts."""
    with store.database.read() as connection:
        now_ms = store.now_ms()
        # Of what people are asked: what waits for another day's capacity waits by design.
        tabs: tuple[Tab, ...] = ("ready", "claimed")
        asked = (QueueFilter(tab).oldest(connection, Viewer(""), now_ms) for tab in tabs)
        oldest_ms = min((one for one in asked if one is not None), default=now_ms)
        proven = certificates(store, connection)  # of pipelines that were audited
        samples: dict[str, Mapping[str, float]] = {
            "open_episodes": {"": scalar(connection, _WAITING)},
            "oldest_age_seconds": {"": (now_ms - oldest_ms) / 1000},
            "outbox_pending": {"": label_store.pending(connection)},
            "missed_lower": {name: one.missed_at_least for name, one in proven.items()},
            "accepted_normal_events": {name: one.accepted for name, one in proven.items()},
            "failing": failing or {},
        }
    registry = CollectorRegistry()
    for name, (text, label) in _METRICS.items():
        labels = [label] if label else []
        gauge = Gauge(f"rejex_review_{name}", text, labels, registry=registry)
        for key, value in samples[name].items():
            (gauge.labels(key) if label else gauge).set(value)
    return generate_latest(registry)


_WIDEST_MS = 400 * 86_400_000


def _line(t: Any, v: Any) -> dict[str, list[Any]]:
    return {"t": t.tolist(), "v": [None if np.isnan(x) else x for x in v.tolist()]}


def series_json(
    connection: Connection,
    sensor: Row,
    stretch: tuple[int, int, int],
    onset_ms: int,
    *,
    with_score: bool,
) -> dict[str, Any]:
    """Return the series of a sensor over a stretch (:func:`stretch_of`) as the plots want it.

    What is usual is what was before the onset. Of what a channel was expected to read: the times,
    and the ends of the range.
    """
    low, high, most = stretch
    channels = json.loads(sensor["channels"])
    drawn = series.read(connection, sensor["sensor_id"], channels, low, high, most=most)
    usual = series.usual_range(connection, sensor["sensor_id"], len(channels), onset_ms)
    expected = (
        series.expectations(connection, sensor["sensor_id"], (low, high)) if with_score else {}
    )
    lines = zip(drawn.channels, drawn.values, drawn.missing, usual, strict=True)
    return {
        "sensor": sensor["sensor"],
        "channels": [
            {
                "name": name,
                **_line(*line),
                "missing": missing,
                "usual": limits,
                "onset": onset_ms,
                "expected": _band(expected.get(name, []), most),
            }
            for name, line, missing, limits in lines
        ],
        "score": _line(*drawn.score) if with_score else None,
        "marked": drawn.marked if with_score else [],
        "holes": drawn.holes,
    }


def _band(expected: list[tuple[int, Expected]], most: int) -> list[tuple[int, float, float]]:
    """Return (time, low, high) of a range that changes with every reading, at most `most`."""
    step = max(1, -(-len(expected) // most))
    return [(t_ms, one.low, one.high) for t_ms, one in expected[::step]]


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,16}", text):
        raise ValueError(text)
    return int(text)


def stretch_of(request: Request) -> tuple[int, int, int]:
    """Return (from, to) in UTC milliseconds and the most points of a line, as asked for."""
    try:
        low, high = (_whole(request.query_params[name]) for name in ("from", "to"))
        pixels = _whole(request.query_params.get("px", "1000"))
    except (KeyError, ValueError) as error:
        raise Refusal("bad_request", "Give from, to (UTC milliseconds) and px.") from error
    if not 0 <= high - low <= _WIDEST_MS or not 10 <= pixels <= 10_000:
        raise Refusal("bad_request", "from must lie before to, within 400 days; px in 10..10000.")
    return low, high, 2 * pixels


@answers()
def get_series(call: Call) -> object:
    """Return the series of an episode's sensor (the score too, unless it must be hidden)."""
    stretch = stretch_of(call.request)
    with call.store.database.read() as connection:
        row = case_row(connection, call.place("episode"))
        blind = is_blind(call.store.settings, row, call.viewer)
        drawn = series_json(connection, row, stretch, row["start_ms"], with_score=not blind)
        around = series.around(connection, row["sensor_id"], row["start_ms"], row["end_ms"])
    return {"around": around, **drawn}


routes = [
    Route("/metrics", get_metrics),
    Route("/api/export/{form}", get_export),
    Route("/api/labels", post_label, methods=["POST"]),
    Route("/api/undo", post_undo, methods=["POST"]),
    Route("/api/claim-next", post_claim_next, methods=["POST"]),
    Route("/api/episodes/{episode}/claim", post_claim, methods=["POST"]),
    Route("/api/episodes/{episode}/release", post_release, methods=["POST"]),
    Route("/api/episodes/{episode}/comment", post_comment, methods=["POST"]),
    Route("/api/assign", post_assign, methods=["POST"]),
    Route("/api/summary", get_summary),
    Route("/api/queue/ids", get_ids),
    Route("/api/episodes/{episode}/series", get_series),
]
