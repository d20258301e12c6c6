"""Slow drift: a control chart of ranks by exponentially weighted moving sums.

A sliding window learns slow drift by design, and still the ranks in it show it. Of a rank's share
above the middle, x = rank / n - 1/2, all but the ends cancels in a long sum: an event that comes
now raises it by as much as the n events after it, compared with it, lower it again. What is left
is n/2 times how far the level of the scores has moved since the sum began, in units of probability,
with little noise around it. So no reference has to be kept, and none is lost when a model comes
whose scores are on another scale: each ranks its own.

1. *Sum.* Blocks of n/40 events, at least 20, enter a sum D with a memory of 8 windows: what takes
   much longer than that is not called drift.
2. *Limits.* For exchangeable scores Var D = n/36 for the newest window, as much again for where
   the sum began, which is forgotten with it, and 8/24 for ranks among n rather than all; times the
   measured variance inflation of the ranks (:mod:`rejex_stream.monitor.inflation`).
3. *Swap.* That a new model orders the rows of the window in another way than the old one adds
   2 (1 - c) n/36 at once, with rank correlation c = 0.65 between two models (seven detectors on
   rows of normal numbers had .8 to .99; KNN and LOF in one dimension .5 and less), and is
   forgotten likewise.
4. *Alarm.* Evidence is D² / (2 Var D) in nats, and log L the limit: a normal D is beyond it with
   probability 2 / L at most, at any event. Then the sum begins again.

What carries the guarantee: for exchangeable scores D is nearly normal, hence about one false alarm
in L events. Under autocorrelation, and over swaps, that is a heuristic, checked by simulation
(benchmarks/results/monitors.md). Models that rank live rows among scores of their training rows
(``calibration = "training"``) shift all ranks at every swap: no guarantee holds there. Where a
window is worth fewer than ten independent events nothing is judged: *too autocorrelated to tell*.
A season much longer than the window is drift, as far as eight windows can know; so is whatever is
ranked again and again and does not enter the window: nothing cancels it.

References
----------
.. [1] S. W. Roberts: Control chart tests based on geometric moving averages. Technometrics 1, 1959.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rejex_stream.monitor.alarm import Alternative
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.inflation import Inflation, InflationState, unit_of

_MEMORY_WINDOWS = 8
_AGREEMENT = 0.65  # rank correlation of two models in a row
_MIN_EFFECTIVE = 10  # a window worth fewer independent events measures no VIF to rely on


class DriftState(msgspec.Struct):
    """The sum and what is not settled of its variance, the open block, and the block variances."""

    level: float
    unsettled: float
    excess: float
    left: int
    inflation: InflationState

    def __post_init__(self) -> None:
        """Refuse sums that could not be some."""
        numbers = (self.level, self.unsettled, self.excess)
        if not all(map(math.isfinite, numbers)) or self.unsettled < 0.0 or self.left < 1:
            raise ValueError("the sum of ranks is out of order")


class DriftDetector:
    """Watches one stream's ranks for slow drift.

    The caller adds each rank's share above the middle to `excess`, counts `left` down, and closes
    the block where that comes to 0: an addition and a comparison an event.

    Examples
    --------
    >>> import bisect, random
    >>> rng, drift = random.Random(1), DriftDetector(MonitorConfig(window=200, contamination=0.1,
    ...     tolerance=8))
    >>> window = [rng.gauss(0, 1) for _ in range(200)]
    >>> def added(score):
    ...     drift.excess += bisect.bisect(sorted(window), score) / 200 - 0.5
    ...     window[:] = [*window[1:], score]
    ...     drift.left -= 1
    ...     return None if drift.left else drift.close_block()
    >>> any(added(rng.gauss(0, 1)) for _ in range(4_000)), drift.status
    (False, 'watching')
    >>> ramp = (added(rng.gauss(t / 1000, 1)) for t in range(2_000))
    >>> str(next(alarm for alarm in ramp if alarm))
    'higher_scores'
    """

    __slots__ = ("_inflation", "_level", "_limit", "_memory", "_unit", "_unsettled", "_window",
                 "excess", "left")  # fmt: skip

    def __init__(self, config: MonitorConfig) -> None:
        self._window = config.window
        self._limit = math.log(config.false_alarm_events)
        self._unit = unit_of(config.window)
        self._memory = math.exp(-self._unit / (_MEMORY_WINDOWS * config.window))
        self._inflation = Inflation(config.window, kinds=1)
        self.excess, self.left = 0.0, self._unit
        self._begin()

    def _begin(self) -> None:
        self._level, self._unsettled = 0.0, 1.0

    def close_block(self) -> Alternative | None:
        """Take the block's sum in; return in which direction the level drifted, if it did."""
        excess, self.excess, self.left = self.excess, 0.0, self._unit
        self._inflation.close((excess,), (self._unit / 12,))
        if self.status != "watching":
            self._begin()
            return None
        self._level = self._level * self._memory + excess
        self._unsettled *= self._memory * self._memory
        if self.log_evidence < self._limit:
            return None
        moved = Alternative.HIGHER_SCORES if self._level > 0 else Alternative.LOWER_SCORES
        self._begin()
        return moved

    def swap(self) -> None:
        """Note that another model gives the next rank."""
        self._unsettled += 2.0 * (1.0 - _AGREEMENT)

    @property
    def log_evidence(self) -> float:
        """D² / (2 Var D) in nats; the alarm comes at log L."""
        variance = self._window / 36 * (1.0 + self._unsettled) + _MEMORY_WINDOWS / 24
        return self._level * self._level / (2.0 * variance * (self._inflation.factor or 1.0))

    @property
    def status(self) -> Literal["collecting", "watching", "too autocorrelated to tell"]:
        """What the monitor does at the moment."""
        if (factor := self._inflation.factor) is None:
            return "collecting"
        if factor * _MIN_EFFECTIVE > self._window:
            return "too autocorrelated to tell"
        return "watching"

    @property
    def state(self) -> DriftState:
        """All that has to be kept."""
        return DriftState(
            self._level, self._unsettled, self.excess, self.left, self._inflation.state
        )

    def restore(self, state: DriftState) -> None:
        """Go on from a state."""
        self._level, self._unsettled = state.level, state.unsettled
        self.excess, self.left = state.excess, state.left
        self._inflation.restore(state.inflation)
