"""When somebody is told: long before there is evidence enough to hold the reference.

The statistic is an exponentially weighted mean of severities, A <- A + (min(severity, 4) - A) / 10
[1]_: a fault that lasts raises it, however slowly it came, and a single spike does not. How high it
may be by chance differs from stream to stream, by what its scores are correlated with. So the
stream itself says it: the largest A of every block of n/40 events (20 at least) is kept, of the
last 256 blocks in which nothing was told. The limit is the height that one such block exceeds as
seldom as the blocks of a month hold `per_sensor_month` false alarms, by the Gumbel law of block
maxima [2]_ through their median and their .9 quantile, so that faults which nobody was told of move
it little. What crosses the limit within one block is one alarm, which is what an extremal index
would correct for.

The limit lies between 0.85 and 3.5: faults at which every score is beyond all others are told
whatever a wild past says. Before 20 blocks of a full window nobody is told. What a month is goes by
event time, by the median of the blocks' durations, so that a gap in the input makes nobody deaf.

References
----------
.. [1] S. W. Roberts: Control Chart Tests Based on Geometric Moving Averages. Technometrics, 1959.
.. [2] S. Coles: An Introduction to Statistical Modeling of Extreme Values. Springer, 2001.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, Any

import msgspec

__all__ = ["CALM", "Alarm"]

CALM = 0.75
"""Below it the statistic is ordinary: exchangeable scores have a mean severity of 0.43."""
_WEIGHT, _MOST = 0.1, 4.0
_BLOCKS, _FEWEST, _SHORTEST, _PER_WINDOW = 256, 20, 20, 40
_LOWEST, _HIGHEST = 0.85, 3.5
_MONTH_MS = 30 * 86_400_000
_Number = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class _State(msgspec.Struct, forbid_unknown_fields=True):
    level: _Number
    top: _Number
    events: Annotated[int, msgspec.Meta(ge=0)]
    begun_ms: int
    blocks: list[tuple[_Number, int]]


class Alarm:
    """The statistic of one stream, and the limit that the stream itself sets.

    Parameters
    ----------
    window
        n of a full window.
    per_month
        False alarms a month that somebody is willing to see.

    Attributes
    ----------
    level
        The statistic.
    limit
        From here on somebody is told; infinite while too little was seen.

    Examples
    --------
    >>> rng, alarm = __import__("random").Random(0), Alarm(800, 1.0)
    >>> for i in range(4000):
    ...     alarm.see(rng.expovariate(2.3), 60_000 * i)
    >>> 0.9 < alarm.limit < 2.0
    True
    >>> for i in range(4000, 4030):
    ...     alarm.see(3.0, 60_000 * i)
    >>> alarm.level > alarm.limit
    True
    """

    __slots__ = ("_begun_ms", "_blocks", "_events", "_length", "_per_month", "_top", "level",
                 "limit")  # fmt: skip

    def __init__(self, window: int, per_month: float) -> None:
        self._length, self._per_month = max(_SHORTEST, window // _PER_WINDOW), per_month
        self._blocks: deque[tuple[float, int]] = deque(maxlen=_BLOCKS)
        self.level, self.limit = 0.0, math.inf
        self._top, self._events, self._begun_ms = 0.0, 0, 0

    def see(self, severity: float, time_ms: int, *, told: bool = False) -> None:
        """Weigh the severity of an event; of one that somebody is told of, no limit is made. O(1).

        Where a block ends, O(m log m) of its 256 maxima.
        """
        self.level += _WEIGHT * (min(severity, _MOST) - self.level)
        if told:
            self._events = 0
            return
        if not self._events:
            self._begun_ms, self._top = time_ms, 0.0
        self._events += 1
        self._top = max(self._top, self.level)
        if self._events >= self._length:
            self._blocks.append((self._top, time_ms - self._begun_ms))
            self._events = 0
            self._look()

    def calm(self) -> None:
        """Begin anew: what was told is over."""
        self.level, self._events = 0.0, 0

    def _look(self) -> None:
        count = len(self._blocks)
        if count < _FEWEST:
            return
        last = sorted(length for _, length in self._blocks)[count // 2]
        a_month = _MONTH_MS / max(1, last * self._length / (self._length - 1))
        rare = min(0.5, self._per_month / a_month)  # of blocks
        tops = sorted(top for top, _ in self._blocks)
        half, tenth = tops[count // 2], tops[count - 1 - count // 10]
        scale = (tenth - half) / (_gumbel(0.1) - _gumbel(0.5))
        limit = half + scale * (_gumbel(rare) - _gumbel(0.5))
        self.limit = min(max(limit, _LOWEST), _HIGHEST)

    def state(self) -> dict[str, Any]:
        """Return everything it knows as plain values."""
        blocks = list(self._blocks)
        known = _State(self.level, self._top, self._events, self._begun_ms, blocks)
        plain: dict[str, Any] = msgspec.to_builtins(known)
        return plain

    def restore(self, state: Any) -> None:  # noqa: ANN401 - plain values
        """Go on from a state.

        Raises
        ------
        msgspec.ValidationError
            If it is none.
        """
        known = msgspec.convert(state, _State)
        self.level, self._top, self._events = known.level, known.top, known.events
        self._begun_ms = known.begun_ms
        self._blocks.extend(known.blocks)
        self._look()


def _gumbel(rare: float) -> float:
    """Return the height that a standard Gumbel variable exceeds with a probability."""
    return -math.log(-math.log1p(-rare))
