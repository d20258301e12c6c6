"""A share of an executor: one engine's fits among those of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from rejex_stream.protocols import FitExecutor

__all__ = ["ScopedExecutor"]


class ScopedExecutor:
    """A view of an executor that several engines share: keys cannot clash, and all end at once.

    Parameters
    ----------
    executor
        The shared one.
    scope
        Stands before every key.

    Attributes
    ----------
    wait_s
        How long :meth:`result` has waited for fits that were not done, in all.
    waits, longest_wait_s
        How often, and how long at worst.

    Examples
    --------
    >>> from rejex_stream.executors import InlineExecutor
    >>> shared = InlineExecutor()
    >>> left, right = ScopedExecutor(shared, "left"), ScopedExecutor(shared, "right")
    >>> left.submit("a", lambda: 1)
    >>> right.submit("a", lambda: 2)
    >>> left.cancel_all()
    >>> left.done("a"), right.result("a")
    (False, 2)
    """

    def __init__(
        self,
        executor: FitExecutor,
        scope: Hashable,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._scope = scope
        self._clock = clock
        self._keys: set[Hashable] = set()
        self.wait_s = 0.0
        self.waits = 0
        self.longest_wait_s = 0.0

    def submit(self, key: Hashable, fit: Callable[[], Any]) -> None:
        """Start `fit` under `key` within the scope."""
        self._keys.add(key)
        self._executor.submit((self._scope, key), fit)

    def done(self, key: Hashable) -> bool:
        """Whether the result of `key` can be taken without waiting."""
        return key in self._keys and self._executor.done((self._scope, key))

    def result(self, key: Hashable) -> Any:  # noqa: ANN401 - whatever the fit returned
        """Take the result of `key`, and measure the wait if it was not done. Once only."""
        self._keys.discard(key)
        if self._executor.done((self._scope, key)):
            return self._executor.result((self._scope, key))
        begun = self._clock()
        try:
            return self._executor.result((self._scope, key))
        finally:
            waited = self._clock() - begun
            self.wait_s += waited
            self.waits += 1
            self.longest_wait_s = max(self.longest_wait_s, waited)

    def cancel(self, key: Hashable) -> None:
        """Forget `key`."""
        self._keys.discard(key)
        self._executor.cancel((self._scope, key))

    def cancel_all(self) -> None:
        """Forget every key of this scope."""
        for key in list(self._keys):
            self.cancel(key)
