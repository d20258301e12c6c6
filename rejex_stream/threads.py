"""What a run changes for its process: threads of native libraries, collection, switch interval.

Native libraries get one thread: several add in an order that no repeat need have.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """Return what limits the pools of native libraries to a thread, and gives them back.

    To find the libraries of a process takes milliseconds, as long as a small fit: they are looked
    for again only after modules were imported.
    """
    limited: AbstractContextManager[object] = _found(len(sys.modules)).limit(limits=1)
    return limited


@lru_cache(maxsize=1)
def _found(n_modules: int) -> ThreadpoolController:
    del n_modules  # whose number tells whether any came
    return ThreadpoolController()


_YOUNG_OBJECTS = 250_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let the collector run only when far more is alive than a run holds between two commits.

    An event leaves tens of tuples behind and never a cycle, so reference counts free them all; at
    its usual threshold the collector walks them again and again, a sixth of the time of a run
    with a cheap detector. What waits for a commit, 20,000 outcomes and their messages, stays
    below the threshold. Cycles that libraries make are still found.
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
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
