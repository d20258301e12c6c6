"""One thread for the native libraries: several add in an order that no repeat need have."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[object]:
    """Return what limits the pools of native libraries to a thread, and gives them back.

    To find the libraries of a process takes milliseconds, as long as a small fit: they are looked
    for again only after modules were imported.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> with one_thread():
    ...     {pool["num_threads"] for pool in threadpool_info()} <= {1}
    True
    """
    limited: AbstractContextManager[object] = _found(len(sys.modules)).limit(limits=1)
    return limited


@lru_cache(maxsize=1)
def _found(n_modules: int) -> ThreadpoolController:
    del n_modules  # whose number tells whether any came
    return ThreadpoolController()
