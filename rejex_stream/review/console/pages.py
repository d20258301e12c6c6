"""The pages: one snapshot of the store, one template."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from sqlite3 import Connection
from typing import Any
from urllib.parse import parse_qs

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from rejex_stream import __version__
from rejex_stream.encode.label_records import HumanVerdict
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.review.certificate import certificates, sentence
from rejex_stream.review.console.console import (
    COOKIE,
    Console,
    console_of,
    filter_of,
    viewer_of,
    whole_number,
)
from rejex_stream.review.console.formatting import FILTERS, seen, spark_svg
from rejex_stream.review.queue import database, label_report, label_store
from rejex_stream.review.queue.database import Refusal, Viewer, scalar, scalars
from rejex_stream.review.queue.detail import episode_detail
from rejex_stream.review.queue.labelling import LEASE_MS, people
from rejex_stream.review.queue.listing import (
    SORTS,
    QueueFilter,
    Tab,
    queue_rows,
    row_spark,
    summary,
    unblinded,
)

TAGS = ("process", "sensor fault", "planned", "regime change", "other")
# Nobody looks further down; what leaves at the top is made up for at the end.
_PAGE_ROWS = 100
_VERDICTS: tuple[tuple[HumanVerdict, str], ...] = (
    ("anomaly", "Anomaly"),
    ("normal", "Normal"),
    ("unsure", "Unsure"),
)

# What a key does, and how the list of keys says it.
KEYS: dict[str, tuple[tuple[str, ...], str]] = {
    "anomaly": (("1", "a"), "Anomaly, and go on"),
    "normal": (("2", "n"), "Normal, and go on"),
    "unsure": (("3", "m"), "Unsure, and go on"),
    "claim": (("c",), "Claim the next one; in a case: claim or release it"),
    "undo": (("z",), "Undo the last action, again and again"),
    "next": (("j", "ArrowDown"), "Next row or case"),
    "previous": (("k", "ArrowUp"), "Previous row or case"),
    "select": (("x",), "Select the row; with Shift: all rows from the last one"),
    "open": (("Enter",), "Open the row"),
    "back": (("Escape",), "Back; clear a selection or a marked range first"),
    "filter": (("/",), "Filter the list"),
    "tags": (("t",), "Go to the tags"),
    "note": (("i",), "Go to the note"),
    "refresh": (("r",), "Show what is new"),
    "pan_left": (("h", "ArrowLeft"), "Plot: earlier"),
    "pan_right": (("l", "ArrowRight"), "Plot: later"),
    "zoom_in": (("+", "="), "Plot: closer"),
    "zoom_out": (("-",), "Plot: wider"),
    "reset": (("0",), "Plot: as at the beginning"),
    "mark_start": (("[",), "Mark a part: leave out one more event at the start"),
    "mark_end": (("]",), "Mark a part: leave out one more event at the end"),
    "whole": (("e",), "Mark the whole case again"),
    "help": (("?",), "Show the keys"),
}


def environment() -> jinja2.Environment:
    """Return the templates; all that is put into them is escaped, and what hides is shown."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=seen,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    templates.globals.update(
        version=__version__,
        verdict_choices=_VERDICTS,
        tag_choices=TAGS,
        sorts=tuple(SORTS),
        keys={action: keys for action, (keys, _) in KEYS.items()},
        key_labels={action: label for action, (_, label) in KEYS.items()},
    )
    return templates


Context = dict[str, Any]
Build = Callable[[Console, Connection, Viewer, Request], Context]


def shell(console: Console, connection: Connection, viewer: Viewer) -> Context:
    store = console.store
    now = store.now_ms()
    return {
        "console": console,
        "viewer": viewer,
        "now_ms": now,
        "top": summary(connection, viewer, now),
        "settings": store.settings,
        "problems": list(console.background.problems.values()) if console.background else [],
        "page_data": {
            "keys": {action: keys for action, (keys, _) in KEYS.items()},
            "reviewer": viewer.reviewer,
            "role": viewer.role,
            "now_ms": now,
        },
    }


def render(request: Request, template: str, context: Context, status: int = 200) -> HTMLResponse:
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
                    context |= {"heading": "Not here", "message": str(refusal)}
                    return render(request, "error.html", context, 404)
            return render(request, template, context)

        return await run_in_threadpool(work)

    return handle


# ---------------------------------------------------------------------------------------- queue
_TABS: tuple[tuple[Tab, str], ...] = (
    ("ready", "Today"),
    ("mine", "Mine"),
    ("claimed", "With others"),
    ("waiting", "Waiting"),
    ("disputed", "Disputed"),
    ("done", "Done today"),
    ("all", "All"),
)


def _queue(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    view, now = filter_of(request), console.store.now_ms()
    first = whole_number(request.query_params.get("from", "")) or 0
    settings = console.store.settings
    rows = list(queue_rows(connection, view, settings, viewer, now, limit=_PAGE_ROWS, offset=first))
    top = summary(connection, viewer, now, view.words)
    total = view.count(connection, viewer, now)
    since_ms = {"done": top.since_ms}
    return {
        "view": view,
        "rows": [
            (row, spark_svg(*row_spark(connection, row), row.start_ms, row.end_ms)) for row in rows
        ],
        "shown_of": lambda pipeline: console.shown.get(pipeline, DisplayNames()),
        "total": total,
        "most_rows": _PAGE_ROWS,
        "first": first,
        "counts": top.counts,
        "tabs": [
            (
                tab,
                label,
                QueueFilter(tab, view.words, since_ms=since_ms.get(tab)).address(),
                top.counts[tab],
            )
            for tab, label in _TABS
        ],
        "any_episode": bool(scalar(connection, "SELECT 1 FROM episode LIMIT 1")),
    }


# -------------------------------------------------------------------------------------- episode
_OF_CASE = (
    *("n_events", "status", "start_ms", "end_ms", "blind", "channels", "sensor"),
    *("held_by", "held_until_ms"),
)
_OF_SCORE = ("threshold", "score_lower", "score_upper")


def _episode(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    store, now = console.store, console.store.now_ms()
    detail = episode_detail(connection, request.path_params["episode"], store.settings, viewer, now)
    view = filter_of(request)
    ids = [[one.episode_id for one in those] for those in view.questions(connection, viewer, now)]
    at = next((i for i, those in enumerate(ids) if detail.row.episode_id in those), -1)
    neighbours = {
        "previous": ids[at - 1][0] if at > 0 else "",
        "following": ids[at + 1][0] if -1 < at < len(ids) - 1 else "",
    }
    row, main = detail.row, detail.row.main
    shown = console.shown.get(row.pipeline, DisplayNames())
    # Those that speak first: what the model reacts to, then what is far from its past.
    ranked = [detail.main_channel]
    ranked += [
        row.channels.index(bar.channel) for bar in detail.bars if bar.channel in row.channels
    ]
    ranked += [*(one.column for one in detail.deviations), *range(len(row.channels))]
    sensor_words = shlex.quote(f"sensor:{row.sensor}")
    return {
        "link": shown.runbook_url(row.sensor),
        "shown": shown,
        "people": sorted(
            {*people(connection, store.settings, viewer, blind=row.blind), row.assigned} - {None}
        ),
        "of_sensor": QueueFilter("all", sensor_words, "newest").address(),
        "detail": detail,
        "row": row,
        "view": view,
        **neighbours,
        "place": (at + 1, len(ids)) if at >= 0 else None,
        "episode_data": {
            "id": row.episode_id,
            **{name: getattr(row, name) for name in _OF_CASE},
            "from_ms": detail.from_ms,
            "to_ms": detail.to_ms,
            "ranked": list(dict.fromkeys(ranked)),
            "shown": {
                name: display.model_dump()
                for name, display in shown.channels.items()
                if name in row.channels
            },
            "event_times": [line.verdict.event_time_ms for line in detail.events],
            **{name: None if row.blind else getattr(main, name) for name in _OF_SCORE},
            "lease_ms": LEASE_MS,
            "view": {"tab": view.tab, "q": view.words, "sort": view.sort},
            **neighbours,
        },
    }


# ---------------------------------------------------------------------------------------- audit
def _audit(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    query = request.query_params
    chosen = {name: query.get(name, "") for name in ("actor", "action", "subject")}
    rows = list(
        database.audit_rows(
            connection, **chosen, before_seq=whole_number(query.get("before", "")), limit=201
        )
    )
    now = console.store.now_ms()
    proven = certificates(console.store, connection)
    return {
        "lines": unblinded(connection, console.store.settings, rows[:200], viewer),
        "more": rows[199].seq if len(rows) > 200 else None,
        "chosen": chosen,
        "actors": scalars(connection, "SELECT DISTINCT actor FROM audit ORDER BY 1"),
        "actions": scalars(connection, "SELECT DISTINCT action FROM audit ORDER BY 1"),
        "places": {
            row["label_id"]: row["place"] or ("waiting" if row["sent_ms"] is None else "sent")
            for row in connection.execute(
                "SELECT label_id, place, sent_ms FROM outbox ORDER BY seq DESC LIMIT 2000"
            )
        },
        "pipelines": label_report.report(connection, now_ms=now, since_ms=now - 30 * 86_400_000),
        "proven": {name: sentence(one) for name, one in sorted(proven.items())},
        "pending": label_store.pending(connection),
    }


# ---------------------------------------------------------------------------------------- login
_SPENT = "This link has been used, or is older than a day. Ask for a new one."


def _safe_next(wanted: str) -> str:
    own = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if own and wanted.isprintable() else "/queue"


async def get_login(request: Request) -> Response:
    """Show how to get in. Opening a link only shows a button, so that previews do not use it up."""
    console = console_of(request)
    if request.state.viewer is not None:
        return RedirectResponse(_safe_next(request.query_params.get("next", "")), 303)
    link = request.query_params.get("token", "")
    owner = await run_in_threadpool(console.sessions.whose, link, "link") if link else None
    if owner is not None:
        return _login_page(request, console, owner=owner.reviewer, link=link)
    return _login_page(request, console, problem=_SPENT if link else "")


def _login_page(request: Request, console: Console, status: int = 200, **shown: str) -> Response:
    context = {"owner": "", "link": "", "problem": ""} | shown
    context |= {"mode": console.access.mode, "title": console.title}
    context["next"] = _safe_next(request.query_params.get("next", ""))
    return render(request, "login.html", context, status)


async def post_login(request: Request) -> Response:
    """Open a session for a link, which holds 256 random bits and cannot be guessed."""
    console = console_of(request)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > 8192:
            return Response(status_code=413)
    form = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
    opened = await run_in_threadpool(console.sessions.redeem, form.get("token", ""))
    if opened is None:
        return _login_page(request, console, problem=_SPENT, status=403)
    response = RedirectResponse(_safe_next(form.get("next", "")), status_code=303)
    response.set_cookie(
        COOKIE,
        opened[1],
        max_age=30 * 86_400,
        httponly=True,
        samesite="lax",
        secure=console.access.secure_cookie or request.url.scheme == "https",
        path="/",
    )
    return response


async def post_logout(request: Request) -> Response:
    console = console_of(request)
    token = request.cookies.get(COOKIE)
    if token:
        await run_in_threadpool(console.sessions.close, token)
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, path="/")
    return response


async def livez(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Answer whether the store can be locked for writing and no background work fails."""
    console = console_of(request)

    def work() -> list[str]:
        with console.store.database.write():
            pass
        return sorted(console.background.problems) if console.background else []

    failing = await run_in_threadpool(work)
    status = 503 if failing else 200
    return JSONResponse({"status": "failing" if failing else "ok", "failing": failing}, status)


routes = [
    Route("/", lambda _: RedirectResponse("/now", status_code=303)),
    Route("/queue", page("queue.html", _queue)),
    # The rows alone, to bring a list up to date in place.
    Route("/queue/rows", page("_rows.html", _queue)),
    Route("/episode/{episode}", page("episode.html", _episode)),
    Route("/audit", page("audit.html", _audit)),
    Route("/help", page("help.html", lambda *_: {})),
    Route("/login", get_login),
    Route("/login", post_login, methods=["POST"]),
    Route("/logout", post_logout, methods=["POST"]),
    Route("/livez", livez),
    Route("/readyz", readyz),
]
