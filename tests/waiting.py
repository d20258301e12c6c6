"""The one way in which tests wait, and the one way in which they let time pass.

A machine may be as slow as it likes: a test waits until what it is about has happened. The limits
are there so that what never happens ends with a sentence; nothing is measured with them.
"""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE_S", "pass_time", "until"]

T = TypeVar("T")

# Waiting costs nothing where the machine is quick.
PATIENCE_S = 120.0


def until(
    condition: Callable[[], T], what: str | Callable[[], object] = "it", *,
    timeout_s: float = PATIENCE_S, every_s: float = 0.02,
) -> T:  # fmt: skip
    """Wait for `condition()` to become true, and return it; `what` is told if it does not."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > end:
            told = what() if callable(what) else what
            raise AssertionError(f"waited {timeout_s:.0f} s in vain: {told}")
        time.sleep(every_s)
    return found


def pass_time(seconds: float, because: str) -> None:
    """Let time pass that a test itself spends, such as an outage; never to wait for an effect."""
    assert because
    time.sleep(seconds)
