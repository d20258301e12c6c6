"""When somebody is told of a stream: an EWMA chart of severities, with a limit of its own making.

The statistic is an exponentially weighted mean of severities, A <- A + (min(severity, 4) -
A) / 10 [1]_. Its limit, by the law of block maxima [2]_ and while a stream is young by a prediction
limit for exponential tails [3]_, and the weight of what was told in vain are derived in
docs/explanation/incidents.md. What a month is goes by the median of the blocks' durations: no gap
in the input, and no wrong clock, silences anything.

References
----------
.. [1] S. W. Roberts: Control Chart Tests Based on Geometric Moving Averages. Technometrics, 1959.
.. [2] S. Coles: An Introduction to Statistical Modeling of Extreme Values. Springer, 2001.
.. [3] J. F. Lawless: Statistical Models and Methods for Lifetime Data. Wiley, 2003.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
import numpy as np

RESET_LEVEL = 0.75
"""Below it the statistic is ordinary: exchangeable scores have a mean severity of 0.43."""
_WEIGHT, _MOST_SEVERITY = 0.1, 4.0
_BLOCKS, _FEWEST, _SHORTEST, _PER_WINDOW = 256, 20, 20, 40
_LOWEST, _HIGHEST, _EARLY = 0.85, 3.5, 3.9
_TWICE = 2
_MAX_WEIGHT, _MIN_RISE_MS, _MIN_RISE_EVENTS = 16.0, 60_000, 600
_MONTH_MS, _AGES_MS = 30 * 86_400_000, 2**62  # the time between two clocks that are wrong ends
Mass = Annotated[float, msgspec.Meta(ge=0.0, le=1e300)]
_Number = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _ChartState(msgspec.Struct, forbid_unknown_fields=True):
    level: _Number
    top: _Number
    events: _Count
    begun_ms: int
    n_early: Annotated[int, msgspec.Meta(ge=0, le=_BLOCKS)]
    mass: Mass
    rise_ms: int
    n_rise: _Count
    nuisances: list[Mass]
    previous_nuisances: list[Mass]
    rise_nuisance: Mass
    blocks_left: _Count
    blocks: list[tuple[_Number, Annotated[int, msgspec.Meta(ge=-_AGES_MS, le=_AGES_MS)]]]


class EwmaChart:
    """The statistic of one stream (`level`), and the `limit` that the stream itself sets.

    `mass` is what the severities of the present rise add up to: how much more than an ordinary
    stretch it is, however it is spread over height and time. It began at `rise_ms`, `n_rise` events
    ago.
    """

    __slots__ = (
        "_begun_ms", "_block_durations_ms", "_block_length", "_block_maxima", "_blocks_left",
        "_blocks_per_alarm", "_events", "_n_early", "_nuisances", "_per_month",
        "_previous_nuisances", "_rise_nuisance", "_top", "level", "limit", "mass", "n_rise",
        "rise_ms",
    )  # fmt: skip

    def __init__(self, window: int, per_month: float) -> None:
        self._block_length, self._per_month = max(_SHORTEST, window // _PER_WINDOW), per_month
        self._block_maxima, self._block_durations_ms = array("d"), array("q")  # of the last blocks
        self.level, self.limit, self.mass = 0.0, _EARLY, 0.0
        self.rise_ms, self.n_rise = 0, 0
        self._top, self._events, self._begun_ms, self._n_early = 0.0, 0, 0, 0
        self._nuisances: list[float] = []  # the two heaviest
        self._previous_nuisances: list[float] = []
        self._rise_nuisance = 0.0  # which of them the present rise is
        self._blocks_per_alarm, self._blocks_left = 0.0, 0

    def update(
        self, severity: float, time_ms: int, *, told: bool = False, full: bool = True
    ) -> None:
        """Weigh the severity of an event; of one that somebody is told of, no limit is made. O(1).

        Where a block ends, O(m log m) of its 256 maxima. Those of a window that was not `full` yet
        leave as others come.
        """
        level = self.level + _WEIGHT * (min(severity, _MOST_SEVERITY) - self.level)
        if level >= RESET_LEVEL:  # only then: the native core takes all other events
            if self.level < RESET_LEVEL:
                self.mass, self.rise_ms, self.n_rise = 0.0, time_ms, 0
                self._rise_nuisance = 0.0
            self.mass = mass_after(self.mass, severity)
            self.n_rise += 1
        self.level = level
        if told or not (full or self._n_early == len(self._block_maxima)):
            self._events = 0
            return
        if not self._events:
            self._begun_ms, self._top = time_ms, 0.0
        self._events += 1
        self._top = max(self._top, self.level)
        if self._events >= self._block_length:
            self._block_maxima.append(self._top)
            self._block_durations_ms.append(min(max(time_ms - self._begun_ms, -_AGES_MS), _AGES_MS))
            surplus = max(full and self._n_early > 0, len(self._block_maxima) - _BLOCKS)
            del self._block_maxima[:surplus], self._block_durations_ms[:surplus]
            self._n_early = min(
                len(self._block_maxima), max(0, self._n_early + (-1 if full else 1))
            )
            self._events = 0
            self._blocks_left -= 1
            if self._blocks_left < 0:
                self._previous_nuisances, self._nuisances = self._nuisances, []
                self._blocks_left = math.ceil(self._blocks_per_alarm)
            self._set_limit()

    def is_due(self, time_ms: int) -> bool:
        """Whether the present rise is high, long and heavy enough to tell somebody of it. O(1)."""
        if self.level < self.limit:
            return False
        if self.is_nuisance(self.mass):
            self.remember(self.mass)
            return False
        return time_ms - self.rise_ms >= _MIN_RISE_MS or self.n_rise >= _MIN_RISE_EVENTS

    def is_nuisance(self, mass: float) -> bool:
        """Whether as much was told in vain, or would have been, not long ago, and not once only."""
        nuisances = self._nuisances + self._previous_nuisances
        return len(nuisances) > 1 and mass <= max(nuisances)

    def remember(self, mass: float) -> None:
        """Remember what the present rise weighs, which was told in vain. O(1)."""
        if self._rise_nuisance in self._nuisances:
            self._nuisances.remove(self._rise_nuisance)
        self._nuisances = sorted([*self._nuisances, mass])[-2:]
        self._rise_nuisance = mass

    def reset(self) -> None:
        """Begin again: what was told is over."""
        self.level, self.mass, self._events, self._rise_nuisance = 0.0, 0.0, 0, 0.0

    def _set_limit(self) -> None:
        count = len(self._block_maxima)
        if count < 2:
            return
        tops, durations_ms = np.array(self._block_maxima), np.array(self._block_durations_ms)
        tops.sort()  # in its place: a seventh of what `sorted` costs
        durations_ms.sort()
        last = int(durations_ms[count // 2])
        a_month = _MONTH_MS / max(1, last * self._block_length / (self._block_length - 1))
        self._blocks_per_alarm = a_month / self._per_month  # blocks
        if count < _FEWEST or self._n_early:
            limit = _predicted(tops.tolist(), min(0.5, 1 / self._blocks_per_alarm))
        else:
            rare = min(0.5, _TWICE / self._blocks_per_alarm)
            half, tenth = float(tops[count // 2]), float(tops[count - 1 - count // 10])
            scale = (tenth - half) / (_gumbel(0.1) - _gumbel(0.5))
            limit = half + scale * (_gumbel(rare) - _gumbel(0.5))
        self.limit = min(max(limit, _LOWEST), _EARLY if self._n_early else _HIGHEST)

    def state(self) -> dict[str, Any]:
        """Return everything it knows as plain values."""
        known = _ChartState(
            self.level, self._top, self._events, self._begun_ms, self._n_early, self.mass,
            self.rise_ms, self.n_rise, self._nuisances, self._previous_nuisances,
            self._rise_nuisance, self._blocks_left,
            [*zip(self._block_maxima, self._block_durations_ms, strict=True)],
        )  # fmt: skip
        return cast("dict[str, Any]", msgspec.to_builtins(known))

    def restore(self, state: Any) -> None:  # noqa: ANN401 - plain values
        """Go on from a state."""
        known = msgspec.convert(state, _ChartState)
        self.level, self._top, self._events = known.level, known.top, known.events
        self._begun_ms, self._n_early = known.begun_ms, known.n_early
        self.mass, self.rise_ms, self.n_rise = known.mass, known.rise_ms, known.n_rise
        self._nuisances, self._previous_nuisances = known.nuisances, known.previous_nuisances
        self._rise_nuisance, self._blocks_left = known.rise_nuisance, known.blocks_left
        self._block_maxima = array("d", [top for top, _ in known.blocks[-_BLOCKS:]])
        self._block_durations_ms = array("q", [length for _, length in known.blocks[-_BLOCKS:]])
        self._set_limit()


def mass_after(mass: float, severity: float) -> float:
    """Return the mass of a rise after one more event."""
    return max(0.0, mass + min(severity, _MAX_WEIGHT) - RESET_LEVEL)


def _predicted(tops: Sequence[float], rare: float) -> float:
    """Return the height that one more exceeds with a probability, by the upper half of them."""
    count = len(tops)
    largest = count // 2
    below = tops[-largest - 1]
    total = sum(tops[-largest:]) - largest * below
    return below + total * (math.pow((largest + 1) / (count + 1) / rare, 1 / largest) - 1)


def _gumbel(rare: float) -> float:
    return -math.log(-math.log1p(-rare))
