"""Everything the console's handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from rejex_stream.config.reviewing import Shown
from rejex_stream.review.console.auth import Access, Sessions
from rejex_stream.review.console.background import Background
from rejex_stream.review.context_loader import Wider
from rejex_stream.review.queue.listing import SORTS, TABS, QueueFilter, Tab, Viewer
from rejex_stream.review.queue.store import ReviewStore

__all__ = ["Console", "console_of", "filter_of", "off_loop", "viewer_of", "whole_number"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Console:
    """The running console.

    Attributes
    ----------
    shown
        How channels and sensors are shown, by name of pipeline.
    inputs
        Where more readings are found, by name of pipeline.
    lacks
        What cannot be shown, and why: a sentence each.
    title
        Shown in the corner, e.g. the pipeline's name.
    """

    store: ReviewStore
    access: Access
    background: Background | None = None
    shown: dict[str, Shown] = field(default_factory=dict)
    inputs: dict[str, Wider] = field(default_factory=dict)
    lacks: Sequence[str] = ()
    title: str = "rejex-stream"
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


def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
    """Run blocking work in a thread."""
    return run_in_threadpool(work, *args, **kwargs)
