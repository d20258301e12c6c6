"""A store, a clock and a wind farm for the tests of the review queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rejex_stream.config.reviewing import Review
from rejex_stream.review.queue.database import wall_clock_ms
from rejex_stream.review.queue.review_store import ReviewStore
from tests.review.desk import axe, desk
from tests.review.turbines import Farm, simulate

__all__ = ["axe", "desk"]  # fixtures


class Clock:
    """A wall clock that stands still until it is told to move."""

    def __init__(self, now_ms: int = 1_760_100_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new_store(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., ReviewStore]]:
    opened: list[ReviewStore] = []

    def make(name: str = "review.db", **settings: object) -> ReviewStore:
        store = ReviewStore(tmp_path / name, Review(**settings), clock_ms=clock)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture(scope="session")
def farm() -> Farm:
    return simulate()


@pytest.fixture
def wall_store(tmp_path: Path) -> Iterator[Callable[..., ReviewStore]]:
    """Like `new_store`, on the real clock (or any other), for consoles."""
    opened: list[ReviewStore] = []

    def make(
        name: str = "review.db", clock_ms: Callable[[], int] = wall_clock_ms, **settings: object
    ) -> ReviewStore:
        store = ReviewStore(tmp_path / name, Review(**settings), clock_ms=clock_ms)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()
