"""What the console's handlers share: who asks, of which view, and how JSON is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rejex_stream.config.reviewing import Shown
from rejex_stream.review.console.access import Access, Sessions
from rejex_stream.review.console.background import Background
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.queue.audit import Refusal, RefusalCode, Viewer
from rejex_stream.review.queue.listing import SORTS, TABS, QueueFilter, Tab
from rejex_stream.review.queue.review_store import ReviewStore

_MOST_BODY_BYTES = 512 * 1024
_STATUS: dict[RefusalCode, int] = {
    "leased": 409,
    "changed": 409,
    "forbidden": 403,
    "unknown": 404,
    "nothing": 404,
    "bad_request": 422,
}
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(slots=True)
class Console:
    """The running console."""

    store: ReviewStore
    access: Access
    background: Background | None = None
    # how channels and sensors are shown, by name of pipeline
    shown: dict[str, Shown] = field(default_factory=dict)
    # where more readings are found, by name of pipeline
    inputs: dict[str, ContextLoader] = field(default_factory=dict)
    lacks: Sequence[str] = ()  # what cannot be shown, and why: a sentence each
    title: str = "rejex-stream"  # shown in the corner, e.g. the pipeline's name
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.store)


def console_of(request: Request) -> Console:
    """Return the console a request came to."""
    console: Console = request.app.state.console
    return console


def viewer_of(request: Request) -> Viewer:
    """Return who sent a request; the guard has seen to it that it is known."""
    viewer: Viewer = request.state.viewer
    return viewer


def filter_of(request: Request) -> QueueFilter:
    """Return the view in the address; what cannot be read is left at its default."""
    query = request.query_params
    tab: Tab = next((name for name in TABS if name == query.get("tab")), "ready")
    sort = query.get("sort", "")
    since = query.get("since", "")
    return QueueFilter(
        tab,
        query.get("q", "")[:200],
        sort if sort in SORTS else "",
        int(since) if since.isdecimal() and len(since) < 16 else None,
    )


def whole_number(text: str) -> int:
    """Return a whole number of an address; 0 of anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


# --------------------------------------------------------------------------- making handlers
@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API, and whose it is."""

    request: Request
    console: Console
    viewer: Viewer

    @property
    def store(self) -> ReviewStore:
        """The store it is about."""
        return self.console.store

    def place(self, name: str) -> str:
        """Return a part of the address."""
        return str(self.request.path_params[name])


Handler = Callable[[Request], Awaitable[Response]]


def answers(work: Callable[[Call], object]) -> Handler:
    """Make a handler of what needs no body: JSON of what `work` returns, or its refusal."""

    @wraps(work)
    async def handle(request: Request) -> Response:
        return await _answer(request, work)

    return handle


def takes(kind: type[S]) -> Callable[[Callable[[Call, S], object]], Handler]:
    """Make a handler that also reads a body."""

    def decorate(work: Callable[[Call, S], object]) -> Handler:
        @wraps(work)
        async def handle(request: Request) -> Response:
            return await _answer(request, work, kind)

        return handle

    return decorate


async def _answer(request: Request, work: Callable[..., object], *kinds: type[S]) -> Response:
    """Run blocking work in a thread; numbers that are not finite become null."""
    try:
        given = [await read_body(request, kind) for kind in kinds]
        call = Call(request, console_of(request), viewer_of(request))
        found = await run_in_threadpool(work, call, *given)
    except Refusal as refusal:
        content = {"code": refusal.code, "message": str(refusal), "episode": refusal.episode_id}
        return as_json(content, _STATUS[refusal.code])
    except ClientDisconnect:
        return Response(status_code=499)
    return found if isinstance(found, Response) else as_json(found)


def as_json(content: object, status: int = 200) -> Response:
    """Return JSON; numbers that are not finite become null."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


async def read_body(request: Request, kind: type[S]) -> S:
    """Return what a request holds."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BODY_BYTES:
            raise Refusal("bad_request", "The request is larger than 512 kB.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise Refusal("bad_request", f"The request cannot be read: {str(error)[:200]}.") from error
