"""Rolling counts of rejected events, over the last n and over the displayed window.

The limits of the counts are whole numbers that are worked out a few times a window, so an event
costs two additions and three comparisons.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from rejex_stream.monitor.cells import CellTable
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.practical import collapse_limit, doubling_limits

__all__ = ["CountsState", "Regime", "RollingCounts"]

_IS_REJECT = (0, 1, 1, 0, 0)
_EMPTY = 4  # a slot of the ring that no event has filled yet
_MIXED_RECHECK = 64


class Regime(Enum):
    """What the counts say about the rejection rate."""

    USUAL = "usual"
    DOUBLED = "doubled"
    COLLAPSED = "collapsed"


class CountsState(msgspec.Struct):
    """The ring of rank cells and what was derived from it; size set by the configuration."""

    ring: bytes
    at: int
    events: int
    in_window: int
    in_rolling: int
    expected_rate: float
    mixed_until: int
    limits: tuple[int, int, int, int]
    regime: Regime
    usual_inflation: float | None

    def __post_init__(self) -> None:
        """Refuse a ring that could not be one."""
        if not 0 <= self.at < len(self.ring) or max(self.ring) > _EMPTY or self.events < 0:
            raise ValueError("the ring of rank cells is out of order")


class RollingCounts:
    """Counts the rejected events of the last n and of the last `rolling` ranked events.

    Parameters
    ----------
    config
        Lengths of the two windows, and L.

    Attributes
    ----------
    events
        Ranked events so far.
    in_window, in_rolling
        Rejected among the last ``window``, and the last ``rolling``.
    expected_rate
        R; where the law changes (a filling window, a pipeline of different streams) its average,
        with a memory of a window.
    regime
        What the counts say at the moment.
    low, high, deep
        The regime stays while low <= in_window <= high and in_rolling >= deep.

    Examples
    --------
    >>> from rejex_stream.monitor.cells import cell_table
    >>> counts = RollingCounts(MonitorConfig(window=1000, contamination=0.05, tolerance=32))
    >>> table = cell_table(1000, 50, 882, 987)
    >>> counts.switch(None, table)
    >>> for event in range(2_000):
    ...     outside = counts.update(table, 1 if event % 4 == 0 else 0)
    ...     if counts.events == counts.recheck:
    ...         counts.set_limits(table, inflation=None)
    >>> outside, counts.in_window, counts.high
    (True, 250, 211)
    >>> counts.judge(table, inflation=None)
    <Regime.DOUBLED: 'doubled'>
    """

    __slots__ = (
        "_at",
        "_config",
        "_mixed_until",
        "_ring",
        "_usual_inflation",
        "_window",
        "deep",
        "events",
        "expected_rate",
        "high",
        "in_rolling",
        "in_window",
        "low",
        "recheck",
        "regime",
    )

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._window = config.window
        self.reset()

    def reset(self) -> None:
        """Forget everything, as at a model swap."""
        self._ring = bytearray([_EMPTY]) * self._config.rolling
        self._at = self.in_window = self.in_rolling = 0
        self.events = 0
        self.expected_rate = 0.0
        self._mixed_until = 0
        self._usual_inflation: float | None = None
        self.regime = Regime.USUAL
        self.low, self.high, self.deep = 0, self._window, 0
        self.recheck = self._window

    def update(self, table: CellTable, cell: int) -> bool:
        """Count one event by its verdict's cell; return whether a count is outside its limits."""
        ring, at = self._ring, self._at
        is_reject = _IS_REJECT[cell]
        # A negative index wraps, which is just what a ring needs.
        self.in_window = count = self.in_window + is_reject - _IS_REJECT[ring[at - self._window]]
        self.in_rolling += is_reject - _IS_REJECT[ring[at]]
        ring[at] = cell
        at += 1
        self._at = at if at < len(ring) else 0
        self.events += 1
        if self.events < self._mixed_until:
            self.expected_rate += (table.rejection_rate - self.expected_rate) / self._window
        return count > self.high or count < self.low or self.in_rolling < self.deep

    def switch(self, old: CellTable | None, new: CellTable) -> None:
        """Note a change of law: R is then averaged until one law has filled a whole window."""
        if old is None or not self.events:
            self.expected_rate = new.rejection_rate
        elif not new.same_law(old):
            self._mixed_until = self.events + self._window
            self.recheck = min(self.recheck, max(self._window, self.events + _MIXED_RECHECK))

    def judge(self, table: CellTable, inflation: float | None) -> Regime:
        """Return the regime the counts are in now, with limits worked out anew.

        Parameters
        ----------
        table
            The law of the last event.
        inflation
            VIF; without one no collapse can be told.
        """
        if self.regime is not Regime.USUAL:
            inside = self.low <= self.in_window <= self.high
            self.regime = self.regime if inside else Regime.USUAL
        elif self.in_window > self.high:
            self.regime = Regime.DOUBLED
        elif self.in_window < self.low or self.in_rolling < self.deep:
            self.regime = Regime.COLLAPSED
        self.set_limits(table, inflation)
        return self.regime

    def set_limits(self, table: CellTable, inflation: float | None) -> None:
        """Work the limits out anew, in O(log n); called a few times a window."""
        window, rolling = self._window, self._config.rolling
        if self.events < self._mixed_until:
            self.recheck = self.events + _MIXED_RECHECK
        else:
            self.recheck = self.events + max(1, window // 4)
            self.expected_rate = table.rejection_rate
        rate, nats = self.expected_rate, math.log(self._config.false_alarm_events)
        high, calm = doubling_limits(rate, window, nats)
        self.low, self.high, self.deep = 0, high, 0
        # A collapse inflates the block variance itself, with the lag it is measured at: what counts
        # is the last figure from before.
        if self.in_window >= rate * window / 2:
            self._usual_inflation = inflation
        inflation = self._usual_inflation
        if self.regime is Regime.DOUBLED:
            self.low, self.high = calm + 1, window
        elif self.regime is Regime.COLLAPSED:
            self.high = math.floor(rate * window / 2)
        elif inflation is not None:
            self.low = collapse_limit(rate, window, inflation, nats) + 1
            if self.events >= rolling:
                self.deep = collapse_limit(rate, rolling, inflation, nats) + 1

    @property
    def cells(self) -> bytes:
        """Rank cells of the verdicts in the rolling window, oldest first, one byte each."""
        ring = bytes(self._ring[self._at :] + self._ring[: self._at])
        return ring if self.events >= len(ring) else ring[len(ring) - self.events :]

    @property
    def state(self) -> CountsState:
        """All that has to be kept."""
        return CountsState(
            ring=bytes(self._ring),
            at=self._at,
            events=self.events,
            in_window=self.in_window,
            in_rolling=self.in_rolling,
            expected_rate=self.expected_rate,
            mixed_until=self._mixed_until,
            limits=(self.low, self.high, self.deep, self.recheck),
            regime=self.regime,
            usual_inflation=self._usual_inflation,
        )

    def restore(self, state: CountsState) -> None:
        """Go on from a state."""
        self._ring, self._at = bytearray(state.ring), state.at
        self.events = state.events
        self.in_window, self.in_rolling = state.in_window, state.in_rolling
        self.expected_rate, self._mixed_until = state.expected_rate, state.mixed_until
        self.low, self.high, self.deep, self.recheck = state.limits
        self.regime = state.regime
        self._usual_inflation = state.usual_inflation
