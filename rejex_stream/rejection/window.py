"""The reference window: the last n scores, in their order of arrival and in that of their size.

Two arrays of plain doubles, 16 bytes a score. A rank is a bisection; a push moves what lies between
two places by one, which is a copy of some kilobytes and, up to n of about 20,000, faster than any
tree or list of lists in Python: there is no object to follow, so nothing to wait for where many
windows share a cache.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_window

__all__ = ["ScoreWindow", "mid_rank"]


def mid_rank(below: int, at_or_below: int) -> int:
    """Return K = floor((#< + #<=) / 2): the rank that decides a verdict, harmless under ties.

    With the paper's ``<=`` a stuck sensor would be a fully confident anomaly.
    """
    return (below + at_or_below) // 2


class ScoreWindow:
    """A first-in, first-out window of scores that answers ranks and order statistics.

    Parameters
    ----------
    capacity
        n, at least 2; pushing into a full window evicts the oldest score.
    scores
        Scores to start from, oldest first; only the last `capacity` of them stay.

    Attributes
    ----------
    ordered
        The scores in rising order, to be looked at.

    Raises
    ------
    ConfigError
        If the capacity cannot be, or a score is not finite.

    Notes
    -----
    16 bytes a score. A rank is O(log n); a push is that and a copy of at most 8 n bytes.

    Examples
    --------
    >>> window = ScoreWindow(4, [0.1, 0.4, 0.2, 0.3])
    >>> window.push(0.9)        # evicts 0.1
    0.1
    >>> window.rank(0.4)
    (2, 3)
    >>> window.order_statistic(4)
    0.9
    """

    __slots__ = ("_arrived", "_oldest", "capacity", "ordered")

    def __init__(self, capacity: int, scores: Iterable[float] = ()) -> None:
        self.capacity = check_window(capacity)
        self._arrived = array("d", [*map(_finite, scores)][-self.capacity :])
        self._oldest = 0  # a ring once it is full
        self.ordered = array("d", sorted(self._arrived))

    def __len__(self) -> int:
        return len(self._arrived)

    def __repr__(self) -> str:
        return f"ScoreWindow({len(self)} of {self.capacity} scores)"

    @property
    def is_constant(self) -> bool:
        """Whether the window holds one repeated value, so that ranks say nothing; O(1)."""
        ordered = self.ordered
        return bool(ordered) and ordered[0] == ordered[-1]

    def push(self, score: float) -> float | None:
        """Add a score; return the evicted one, or ``None`` while there is room. O(log n).

        Raises
        ------
        ConfigError
            If the score is not finite: such an event is unscorable and has no place here.
        """
        if score - score != 0.0:  # inf - inf and nan - nan are nan
            _finite(score)
        return self.enter(score, bisect_right(self.ordered, score))

    def enter(self, score: float, at_or_below: int) -> float | None:
        """Add a finite score whose rank is known already, as :meth:`push` does."""
        arrived, ordered, oldest = self._arrived, self.ordered, self._oldest
        if len(arrived) < self.capacity:
            arrived.append(score)
            ordered.insert(at_or_below, score)
            return None
        evicted = arrived[oldest]
        arrived[oldest] = score
        self._oldest = oldest + 1 if oldest + 1 < self.capacity else 0
        left = bisect_left(ordered, evicted)
        del ordered[left]
        ordered.insert(at_or_below - (left < at_or_below), score)
        return evicted

    def retract(self, evicted: Iterable[float | None]) -> None:
        """Take back the newest pushes, newest first, each with what it evicted. O(log n) each.

        Examples
        --------
        >>> window = ScoreWindow(3, [0.1, 0.4, 0.2])
        >>> evicted = [window.push(0.9), window.push(0.8)]
        >>> window.retract(reversed(evicted))
        >>> window.scores()
        [0.1, 0.4, 0.2]
        """
        arrived, ordered = self._arrived, self.ordered
        for before in evicted:
            newest = (self._oldest or len(arrived)) - 1
            del ordered[bisect_left(ordered, arrived[newest])]
            if before is None:
                arrived.pop()  # while it was growing, the newest is the last
                continue
            arrived[newest] = before
            self._oldest = newest
            ordered.insert(bisect_right(ordered, before), before)

    def rank(self, score: float) -> tuple[int, int]:
        """Return (#{window < score}, #{window <= score}) in O(log n)."""
        ordered = self.ordered
        below = bisect_left(ordered, score)
        if below == len(ordered) or ordered[below] != score:
            return below, below
        return below, bisect_right(ordered, score, below)

    def order_statistic(self, k: int) -> float:
        """Return the k-th smallest score, k in 1..len. O(1).

        Raises
        ------
        ConfigError
            If there is no such score.
        """
        if not 1 <= k <= len(self._arrived):
            raise ConfigError(
                f"There is no order statistic {k} in a window of {len(self)} scores: "
                f"give a number from 1 to {len(self)}."
            )
        return self.ordered[k - 1]

    def largest(self, k: int) -> Sequence[float]:
        """Return the k largest scores in rising order, k in 1..len. O(k)."""
        return self.ordered[-k:].tolist()

    def threshold(self, n_anomalies: int) -> float:
        """Return λ, the r-th largest score: a score at or above it is flagged. O(1)."""
        return self.order_statistic(len(self._arrived) - n_anomalies + 1)

    def tie_mass(self, n_anomalies: int) -> float:
        """Return the share of window scores equal to λ; above 0.01 quantised scores blur the label.

        O(log n).
        """
        below, at_or_below = self.rank(self.threshold(n_anomalies))
        return (at_or_below - below) / len(self._arrived)

    def scores(self) -> Sequence[float]:
        """Return the scores, oldest first. O(n)."""
        arrived, oldest = self._arrived, self._oldest
        return (arrived[oldest:] + arrived[:oldest]).tolist()

    def check_invariants(self) -> None:
        """Raise AssertionError unless both arrays tell the same story. O(n log n)."""
        assert len(self._arrived) == len(self.ordered) <= self.capacity
        assert self.ordered.tolist() == sorted(self._arrived)
        assert all(map(math.isfinite, self._arrived))
        assert self._oldest == 0 or len(self._arrived) == self.capacity > self._oldest


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ConfigError(
            f"A score of {score} cannot enter the window: only finite scores can be ranked; "
            "reject the event as unscorable."
        )
    return score
