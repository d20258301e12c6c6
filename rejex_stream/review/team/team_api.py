"""What the pages' scripts call to share work: JSON in and out, as in `console.api`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rejex_stream.review.console.api import Name, ViewIn, answer, json_api, read_body
from rejex_stream.review.console.console import console_of, off_loop, viewer_of
from rejex_stream.review.queue.listing import TABS, QueueFilter, Tab
from rejex_stream.review.team import sharing

__all__ = ["routes"]


class AssignIn(msgspec.Struct):
    """Giving episodes to somebody, or with nobody named to everybody."""

    episodes: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]
    to: Annotated[str, Meta(max_length=200)] = ""


class CommentIn(msgspec.Struct):
    """Something to say about an episode."""

    request_id: Name
    text: Annotated[str, Meta(max_length=10_000)]


class SavedIn(ViewIn):
    """A filter and its name."""

    name: Name = ""


class ForgetIn(msgspec.Struct):
    """The name of a saved filter."""

    name: Name


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
async def post_view(request: Request) -> Response:
    """Keep a filter under a name."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, SavedIn)
    tab: Tab = next((one for one in TABS if one == wanted.tab), "ready")
    view = QueueFilter(tab, wanted.q, wanted.sort, grouped=wanted.group)
    saved = sharing.SavedView(wanted.name, view.address().partition("?")[2])

    def work() -> dict[str, str]:
        with console.store.database.write() as connection:
            sharing.save_view(connection, viewer.reviewer, saved)
        return {"name": saved.name, "address": view.address()}

    return answer(await off_loop(work))


@json_api
async def post_forget_view(request: Request) -> Response:
    """Remove a saved filter."""
    console, viewer = console_of(request), viewer_of(request)
    wanted = await read_body(request, ForgetIn)

    def work() -> dict[str, str]:
        with console.store.database.write() as connection:
            sharing.forget_view(connection, viewer.reviewer, wanted.name)
        return {"name": wanted.name}

    return answer(await off_loop(work))


routes = [
    Route("/api/episodes/{episode}/comment", post_comment, methods=["POST"]),
    Route("/api/assign", post_assign, methods=["POST"]),
    Route("/api/views", post_view, methods=["POST"]),
    Route("/api/views/forget", post_forget_view, methods=["POST"]),
]
