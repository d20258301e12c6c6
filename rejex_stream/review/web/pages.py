"""The pages: one snapshot of the store, one template."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rejex_stream import __version__
from rejex_stream.review import preferences
from rejex_stream.review.detail import episode_detail
from rejex_stream.review.labels import HumanVerdict
from rejex_stream.review.preferences import DEFAULT_KEYS, KEY_LABELS
from rejex_stream.review.queue import SORTS, QueueFilter, Tab, Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.storage import Connection
from rejex_stream.review.views import EpisodeRow, queue_rows, row_spark, summary
from rejex_stream.review.web.console import Console, console_of, filter_of, off_loop, viewer_of
from rejex_stream.review.web.words import CELL_STATES, FILTERS, spark_svg

__all__ = ["TAGS", "environment", "page", "render", "routes"]

TAGS = ("process", "sensor fault", "planned", "regime change", "other")
# Nobody looks further down; what leaves at the top is made up for at the end.
_PAGE_ROWS = 200
_VERDICTS: tuple[tuple[HumanVerdict, str], ...] = (
    ("anomaly", "Anomaly"),
    ("normal", "Normal"),
    ("unsure", "Unsure"),
)


def environment() -> jinja2.Environment:
    """Return the templates; everything that is put into them is escaped."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent.parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS)
    found.globals.update(
        version=__version__,
        verdict_choices=_VERDICTS,
        tag_choices=TAGS,
        sorts=tuple(SORTS),
        cell_states=CELL_STATES,
    )
    return found


Context = dict[str, Any]
Build = Callable[[Console, Connection, Viewer, Request], Context]


def shell(console: Console, connection: Connection, viewer: Viewer) -> Context:
    """Return what every page shows around its content."""
    store = console.store
    now = store.now_ms()
    own = preferences.load(connection, viewer.reviewer)
    keys = own.effective_keys
    return {
        "console": console,
        "viewer": viewer,
        "now_ms": now,
        "top": summary(connection, store.settings, viewer, now),
        "settings": store.settings,
        "own": own,
        "keys": keys,
        "key_labels": KEY_LABELS,
        "problems": list(console.upkeep.problems.values()) if console.upkeep else [],
        "page_data": {
            "keys": keys if own.keys_on else {},
            "reviewer": viewer.reviewer,
            "role": viewer.role,
            "clock": own.clock,
            "now_ms": now,
        },
    }


def render(request: Request, template: str, context: Context, status: int = 200) -> HTMLResponse:
    """Return a page."""
    templates: jinja2.Environment = request.app.state.templates
    return HTMLResponse(templates.get_template(template).render(context), status_code=status)


def page(template: str, build: Build) -> Callable[[Request], Any]:
    """Make a handler: build the context from one snapshot of the store, then render."""

    @wraps(build)
    async def handle(request: Request) -> Response:
        console, viewer = console_of(request), viewer_of(request)

        def work() -> HTMLResponse:
            with console.store.database.read() as connection:
                context = shell(console, connection, viewer)
                context["screen"] = template.partition(".")[0]
                try:
                    context |= build(console, connection, viewer, request)
                except Refusal as refusal:
                    return render(
                        request,
                        "error.html",
                        context | {"heading": "Not here", "message": str(refusal)},
                        404,
                    )
            return render(request, template, context)

        return await off_loop(work)

    return handle


# ---------------------------------------------------------------------------------------- queue
def _with_sparks(connection: Connection, rows: list[EpisodeRow]) -> list[tuple[EpisodeRow, Any]]:
    found = []
    for row in rows:
        t, v, low, high = row_spark(connection, row)
        found.append((row, spark_svg(t, v, low, high, row.start_ms, row.end_ms)))
    return found


def _tabs(view: QueueFilter, since_ms: int) -> list[tuple[Tab, str, QueueFilter]]:
    named: tuple[tuple[Tab, str], ...] = (
        ("ready", "Ready"),
        ("mine", "Mine"),
        ("claimed", "With others"),
        ("waiting", "Waiting"),
        ("disputed", "Disputed"),
        ("done", "Done today"),
        ("all", "All"),
    )
    return [
        (tab, label, QueueFilter(tab, view.words, since_ms=since_ms if tab == "done" else None))
        for tab, label in named
    ]


def _queue(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    view, now = filter_of(request), console.store.now_ms()
    rows = list(queue_rows(connection, view, console.store.settings, viewer, now, limit=_PAGE_ROWS))
    found = summary(connection, console.store.settings, viewer, now, view.words)
    total = view.count(connection, viewer, now)
    any_episode = connection.execute("SELECT 1 FROM episode LIMIT 1").fetchone() is not None
    return {
        "view": view,
        "rows": _with_sparks(connection, rows),
        "total": total,
        "most_rows": _PAGE_ROWS,
        "counts": found.counts,
        "tabs": [
            (tab, label, address.address(), found.counts[tab])
            for tab, label, address in _tabs(view, found.since_ms)
        ],
        "any_episode": any_episode,
    }


async def get_rows(request: Request) -> Response:
    """Return the rows of a view as a fragment, to bring a list up to date in place."""
    console, viewer = console_of(request), viewer_of(request)

    def work() -> HTMLResponse:
        with console.store.database.read() as connection:
            context = shell(console, connection, viewer) | _queue(
                console, connection, viewer, request
            )
        return render(request, "_rows.html", context)

    return await off_loop(work)


# -------------------------------------------------------------------------------------- episode
def _episode(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    store, now = console.store, console.store.now_ms()
    detail = episode_detail(connection, request.path_params["episode"], store.settings, viewer, now)
    view = filter_of(request)
    ids = [row[0] for row in view.ids(connection, viewer, now)]
    at = ids.index(detail.row.episode_id) if detail.row.episode_id in ids else -1
    row, main = detail.row, detail.row.main
    similar = [
        (case, _case_spark(connection, case, detail.main_channel)) for case in detail.similar
    ]
    return {
        "detail": detail,
        "row": row,
        "view": view,
        "similar": similar,
        "previous": ids[at - 1] if at > 0 else "",
        "following": ids[at + 1] if -1 < at < len(ids) - 1 else "",
        "place": (at + 1, len(ids)) if at >= 0 else None,
        "episode_data": {
            "id": row.episode_id,
            "n_events": row.n_events,
            "status": row.status,
            "start_ms": row.start_ms,
            "end_ms": row.end_ms,
            "from_ms": detail.from_ms,
            "to_ms": detail.to_ms,
            "blind": row.blind,
            "channels": row.channels,
            "main_channel": detail.main_channel,
            "event_times": [line.item.verdict.event_time_ms for line in detail.events],
            "threshold": None if row.blind else main.threshold,
            "score_lower": None if row.blind else main.score_lower,
            "score_upper": None if row.blind else main.score_upper,
            "held_by": row.held_by,
            "held_until_ms": row.held_until_ms,
            "lease_ms": store.settings.lease_ms,
            "view": {"tab": view.tab, "q": view.words, "sort": view.sort},
            "previous": ids[at - 1] if at > 0 else "",
            "following": ids[at + 1] if -1 < at < len(ids) - 1 else "",
            "similar": [
                {
                    "id": case.episode_id,
                    "sensor_id": case.sensor_id,
                    "start_ms": case.start_ms,
                    "end_ms": case.end_ms,
                    "verdict": case.verdict,
                }
                for case in detail.similar
            ],
        },
    }


def _case_spark(connection: Connection, case: Any, channel: int) -> Any:  # noqa: ANN401
    from rejex_stream.review import series
    from rejex_stream.review.views import around

    low, high = around(connection, case.sensor_id, case.start_ms, case.end_ms, before=40, after=25)
    t, v = series.spark(connection, case.sensor_id, channel, low, high)
    return spark_svg(t, v, low, high, case.start_ms, case.end_ms)


# ----------------------------------------------------------------------------------------- help
def _help(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    return {
        "default_keys": DEFAULT_KEYS,
        "own_json": msgspec.to_builtins(preferences.load(connection, viewer.reviewer)),
    }


async def home(request: Request) -> Response:
    """Go to the queue."""
    return RedirectResponse("/queue", status_code=303)


routes = [
    Route("/", home),
    Route("/queue", page("queue.html", _queue)),
    Route("/queue/rows", get_rows),
    Route("/episode/{episode}", page("episode.html", _episode)),
    Route("/help", page("help.html", _help)),
]
