"""The garbage collector, told what kind of program this is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collecting"]

_YOUNG_OBJECTS = 50_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let the collector run a hundredth as often while events stream through.

    An event leaves tens of tuples behind and never a cycle, so reference counts free them all; at
    its usual threshold the collector walks them again and again, a sixth of the time of a run
    with a cheap detector. Cycles that libraries make are still found.

    Examples
    --------
    >>> before = gc.get_threshold()
    >>> with seldom_collecting():
    ...     gc.get_threshold()[0]
    50000
    >>> gc.get_threshold() == before
    True
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
