"""Variance inflation: how much less than n independent events n events of this stream say.

Sensors are autocorrelated, so rejected events come in clusters, and the count over a block varies
more than a binomial one. The variance inflation factor (VIF) is that ratio; n / VIF is the
effective sample size. A cluster shorter than a block hides in it, one longer than a block is cut,
so up to six block lengths are measured (n/40, but at least 20 events, to n) for rejected and for
flagged events, and the largest factor counts. One of them, three of the shortest, fits no whole
number of times into n: a season that falls in step with the other blocks does not escape it.

Blocks are compared with what the theory expects of them, not with their own mean, so a window that
is frozen, and therefore rejects a little more or less than planned for ever, inflates the factor as
well. Measurements count only after a lag of one window: a change must not raise the factor while it
is being judged.
"""

from __future__ import annotations

import math
import struct

import msgspec

from rejex_stream.monitor.theory import RankLaw

__all__ = ["Inflation", "InflationState"]

_UNITS = 40
_LEAST_UNIT = 20  # events: closing blocks of fewer costs more than counting them says
_LAG_WINDOWS = 1
_MEMORY_WINDOWS = 20
_MIN_WINDOWS = 2
_MIN_WINDOWS_LONGEST = 3  # a window has one block of length n, and two of them say too little
_Mark = tuple[float, float, float, float]
_NO_MARK: _Mark = (0.0, 0.0, 0.0, 0.0)


class InflationState(msgspec.Struct):
    """Counts of the open window, and the block variances of the last ones; constant size.

    Pairs are of rejected and of flagged events. `marks` holds, for each block length, the deviation
    (2) and its variance (2) at the end of the last whole block.
    """

    unit: int
    left: int
    since: int
    units: int = 0
    counts: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    expected: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    variance: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0])
    marks: list[_Mark] = msgspec.field(default_factory=list)
    squares: list[float] = msgspec.field(default_factory=list)
    history: bytes = b""

    def __post_init__(self) -> None:
        """Refuse blocks that could not be blocks."""
        pairs = (self.counts, self.expected, self.variance)
        if (
            any(len(values) != 2 for values in pairs)
            or len(self.squares) != 2 * len(self.marks)
            or not 1 <= self.left <= self.since <= self.unit
            or not 0 <= self.units < _UNITS
            or len(self.history) % (8 * max(1, len(self.squares)))
        ):
            raise ValueError("the blocks are out of order")


class Inflation:
    """Measures the variance inflation factor of one stream, or of the whole pipeline.

    Parameters
    ----------
    window
        n, the configured window in events.
    streams
        How many streams interleave: the blocks of a pipeline are as many times longer, so that
        they span the same stretch of each.

    Notes
    -----
    A heuristic, checked by simulation (benchmarks/monitors.py), not a theorem. O(1) an event,
    constant memory: 21 windows of twelve numbers.

    Examples
    --------
    >>> from rejex_stream.monitor.theory import rank_law
    >>> law = rank_law(1000, 50, 882, 987)
    >>> measured = Inflation(1000)
    >>> measured.factor is None                      # three windows first
    True
    >>> for event in range(8_000):
    ...     cell = 1 if event % 1000 < 106 else 0    # the right rate, all in one cluster
    ...     measured.count(law, cell)
    >>> measured.factor > 10
    True
    """

    __slots__ = ("_record", "_scales", "_unit", "_units", "factor", "state")

    def __init__(self, window: int, streams: int = 1) -> None:
        self._unit = min(window, max(_LEAST_UNIT, window // _UNITS))
        self._units = units = min(_UNITS, window // self._unit)
        scales = {1, 2, 3, units // 5, units // 2, units}
        self._scales = tuple(sorted(scale for scale in scales if 1 <= scale <= units))
        self._record = struct.Struct(f"<{2 * len(self._scales)}d")
        self.state = self._begin(streams, b"")
        self.factor: float | None = None
        """VIF >= 1, or ``None`` while there is too little history to tell."""

    def _begin(self, streams: int, history: bytes) -> InflationState:
        unit, scales = self._unit * max(1, streams), len(self._scales)
        return InflationState(
            unit=unit, left=unit, since=unit, marks=[_NO_MARK] * scales,
            squares=[0.0] * 2 * scales, history=history,
        )  # fmt: skip

    def count(self, law: RankLaw, cell: int) -> None:
        """Count one event; the hot path of the health detector does this in runs."""
        if cell:
            self.state.counts[0] += cell < 3
            self.state.counts[1] += cell > 1
        self.advance(law, 1)

    def advance(self, law: RankLaw, events: int, streams: int = 1) -> bool:
        """Let `events` <= ``state.left`` events pass; return whether the factor was measured anew.

        The cells of these events must have been counted in ``state.counts`` before.
        """
        state = self.state
        state.left = left = state.left - events
        if left:
            return False
        self.settle(law)
        return self._close_unit(streams)

    def settle(self, law: RankLaw) -> None:
        """Book the expectation of the events since the last call, which all had this law."""
        state = self.state
        events = state.since - state.left
        state.since = state.left
        rejected, flagged = law.rejection_rate, law.flagged_rate
        expected, variance = state.expected, state.variance
        expected[0] += events * rejected
        expected[1] += events * flagged
        variance[0] += events * rejected * (1.0 - rejected)
        variance[1] += events * flagged * (1.0 - flagged)

    def restore(self, state: InflationState) -> None:
        """Go on from a state."""
        self.state = state
        self._measure()

    def _close_unit(self, streams: int) -> bool:
        state = self.state
        state.units = units = state.units + 1
        state.left = state.since = state.unit
        (rejected, flagged), (e0, e1), (v0, v1) = state.counts, state.expected, state.variance
        d0, d1 = rejected - e0, flagged - e1
        squares, marks = state.squares, state.marks
        now = (d0, d1, v0, v1)
        for s, scale in enumerate(self._scales):
            if units % scale:
                continue
            m0, m1, w0, w1 = marks[s]
            if v0 > w0:
                squares[2 * s] += (d0 - m0) ** 2 / (v0 - w0)
            if v1 > w1:
                squares[2 * s + 1] += (d1 - m1) ** 2 / (v1 - w1)
            marks[s] = now
        if units < self._units:
            return False
        means = (square / (units // self._scales[j // 2]) for j, square in enumerate(squares))
        kept = self._record.size * (_MEMORY_WINDOWS + _LAG_WINDOWS)
        history = (state.history + self._record.pack(*means))[-kept:]
        self.state = self._begin(streams, history)
        return self._measure()

    def _measure(self) -> bool:
        windows = list(self._record.iter_unpack(self.state.history))[:-_LAG_WINDOWS]
        if len(windows) < _MIN_WINDOWS:
            self.factor = None
            return False
        usable = len(self._scales) - (len(windows) < _MIN_WINDOWS_LONGEST)
        means = (math.fsum(column) / len(windows) for column in zip(*windows, strict=True))
        self.factor = max([1.0, *list(means)[: 2 * usable]])
        return True
