"""What a run changes for its process, and puts back: garbage collection, switch interval."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "quick_switching",
    "seldom_collecting",
]

_YOUNG_OBJECTS = 250_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let the collector run only when far more is alive than a run holds between two commits.

    An event leaves tens of tuples behind and never a cycle, so reference counts free them all; at
    its usual threshold the collector walks them again and again, a sixth of the time of a run
    with a cheap detector. What waits for a commit, 20,000 outcomes and their messages, stays
    below the threshold. Cycles that libraries make are still found.

    Examples
    --------
    >>> before = gc.get_threshold()
    >>> with seldom_collecting():
    ...     gc.get_threshold()[0]
    250000
    >>> gc.get_threshold() == before
    True
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_SWITCH_S = 0.001


@contextmanager
def quick_switching() -> Iterator[None]:
    """Let threads that wait for an answer go on soon after it is there.

    While records are judged, a commit is under way on other threads, which do little but wait for
    the broker. With every answer they wait for the interpreter as well, 5 ms by default and several
    times a commit, which would so end after the judging.

    Examples
    --------
    >>> before = sys.getswitchinterval()
    >>> with quick_switching():
    ...     sys.getswitchinterval()
    0.001
    >>> sys.getswitchinterval() == before
    True
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
