"""Variance inflation: how much less than n independent events n events of this stream say.

Sensors are autocorrelated, so what is counted comes in clusters, and a sum over a block varies more
than one of independent events. The variance inflation factor (VIF) is that ratio; n / VIF is the
effective sample size. A cluster shorter than a block hides in it, one longer than a block is cut,
so up to six block lengths are measured (n/40, but at least 20 events, to n), and the largest factor
counts. One of them, three of the shortest, fits no whole number of times into n: a season that
falls in step with the other blocks does not escape it.

Blocks are compared with what the theory expects of them, not with their own mean, so a window that
is frozen, and therefore rejects a little more or less than planned for ever, inflates the factor as
well. Measurements count only after a lag of one window: a change must not raise the factor while it
is being judged. A heuristic, checked by simulation (benchmarks/monitors.py), not a theorem.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from operator import add, truediv

import msgspec

_UNITS = 40
_MIN_UNIT = 20  # events: closing blocks of fewer costs more than counting them says
_LAG_WINDOWS = 1
_MEMORY_WINDOWS = 20
_MIN_WINDOWS = 2
_MIN_WINDOWS_LONGEST = 3  # a window has one block of length n, and two of them say too little


def unit_of(window: int) -> int:
    """Return the events of the shortest block in a window of n."""
    return min(window, max(_MIN_UNIT, window // _UNITS))


class InflationState(msgspec.Struct):
    """Block sums of the open window, and the block variances of the last ones; constant size.

    `totals` are deviations, then their variances; `marks` what these were at the end of the last
    whole block of each length.
    """

    totals: list[float]
    marks: list[list[float]]
    squares: list[float]
    units: int = 0
    history: bytes = b""

    def __post_init__(self) -> None:
        """Refuse blocks that could not be blocks."""
        if (
            any(len(mark) != len(self.totals) for mark in self.marks)
            or 2 * len(self.squares) != len(self.totals) * len(self.marks)
            or not 0 <= self.units < _UNITS
            or len(self.history) % (8 * max(1, len(self.squares)))
        ):
            raise ValueError("the blocks are out of order")


class Inflation:
    """Measures the variance inflation factor of `kinds` sums, of which the largest counts.

    O(1) a unit (:func:`unit_of`), constant memory: 21 windows of six numbers a kind.

    Examples
    --------
    >>> measured = Inflation(1000, kinds=1)
    >>> measured.factor is None                      # three windows first
    True
    >>> for unit in range(320):
    ...     in_cluster = unit % 40 < 4               # the right rate, all in one cluster
    ...     _ = measured.close([25 * in_cluster - 2.5], [25 * 0.1 * 0.9])
    >>> measured.factor > 10
    True
    """

    __slots__ = ("_blocks", "_kinds", "_record", "_scales", "_units", "factor", "state")

    def __init__(self, window: int, kinds: int) -> None:
        self._kinds = kinds
        self._units = units = min(_UNITS, window // unit_of(window))
        scales = {1, 2, 3, units // 5, units // 2, units}
        self._scales = tuple(sorted(scale for scale in scales if 1 <= scale <= units))
        self._blocks = [units // scale for scale in self._scales for _ in range(kinds)]
        self._record = struct.Struct(f"<{len(self._blocks)}d")
        self._begin(b"")
        self.factor: float | None = None
        """VIF >= 1, or ``None`` while there is too little history to tell."""

    def _begin(self, history: bytes) -> None:
        nothing = [0.0] * (2 * self._kinds)
        self.state = InflationState(
            totals=nothing,
            marks=[nothing] * len(self._scales),
            squares=[0.0] * len(self._blocks),
            history=history,
        )

    def close(self, deviations: Sequence[float], variances: Sequence[float]) -> bool:
        """End a unit whose sums were so far from expected; return whether a window ended too."""
        state, kinds = self.state, self._kinds
        state.units = units = state.units + 1
        state.totals = now = list(map(add, state.totals, (*deviations, *variances)))
        squares, marks = state.squares, state.marks
        for s, scale in enumerate(self._scales):
            if units % scale:
                continue
            mark = marks[s]
            for k in range(kinds):
                variance = now[kinds + k] - mark[kinds + k]
                if variance > 0.0:
                    apart = now[k] - mark[k]
                    squares[kinds * s + k] += apart * apart / variance
            marks[s] = now
        if units < self._units:
            return False
        means = map(truediv, squares, self._blocks)
        size = self._record.size * (_MEMORY_WINDOWS + _LAG_WINDOWS)
        self._begin((state.history + self._record.pack(*means))[-size:])
        self._measure()
        return True

    def restore(self, state: InflationState) -> None:
        """Go on from a state."""
        self.state = state
        self._measure()

    def _measure(self) -> None:
        windows = list(self._record.iter_unpack(self.state.history))[:-_LAG_WINDOWS]
        if len(windows) < _MIN_WINDOWS:
            self.factor = None
            return
        usable = len(self._scales) - (len(windows) < _MIN_WINDOWS_LONGEST)
        sums = list(map(math.fsum, zip(*windows, strict=True)))[: self._kinds * usable]
        self.factor = max([len(windows), *sums]) / len(windows)
