"""Run a library's fit without letting it leak: randomness, threads, warnings.

PyOD's detectors draw from numpy's global generator, set ``PYTHONHASHSEED``, warn about what the
user cannot change, and sum in an order that depends on the number of threads. All of that is
process-wide, so contained fits of one process run one after another; for fits side by side use
processes.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

__all__ = ["contained"]

_CHATTY = r"(pyod|sklearn|scipy|numba|torch)(\.|$)"
_lock = threading.RLock()


def _fresh_lock() -> None:
    # A forked child would inherit a lock that the parent's fit thread holds, for ever.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


@contextmanager
def contained(seed: int) -> Iterator[None]:
    """Seed every global generator, use one thread, keep quiet; put all back on the way out.

    Examples
    --------
    >>> with contained(7):
    ...     a = random.random()
    >>> with contained(7):
    ...     a == random.random()
    True
    """
    torch = sys.modules.get("torch")
    with _lock, warnings.catch_warnings(), np.errstate(all="ignore"), threadpool_limits(1):
        warnings.filterwarnings("ignore", module=_CHATTY)
        numpy_state = np.random.get_state()  # noqa: NPY002 - PyOD draws from the global one
        python_state = random.getstate()
        hash_seed = os.environ.get("PYTHONHASHSEED")
        torch_state = None if torch is None else _seed_torch(torch, seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            if torch is not None and torch_state is not None:
                torch.random.set_rng_state(torch_state[0])
                torch.set_num_threads(torch_state[1])
            if hash_seed is None:
                os.environ.pop("PYTHONHASHSEED", None)
            else:
                os.environ["PYTHONHASHSEED"] = hash_seed


def _seed_torch(torch: Any, seed: int) -> tuple[Any, int]:  # noqa: ANN401 - the torch module
    state = torch.random.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return state
