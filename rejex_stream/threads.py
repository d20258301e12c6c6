"""Threads of one process, told how eagerly to share it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quick_switching"]

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
