"""The reference window: the last n scores, ranked in O(log n)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from sortedcontainers import SortedList

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

    Raises
    ------
    ConfigError
        If the capacity cannot be, or a score is not finite.

    Notes
    -----
    One float object is shared by the two containers: about 40 bytes a score.

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

    __slots__ = ("_add", "_bisect_left", "_bisect_right", "_fifo", "_remove", "_sorted", "capacity")

    def __init__(self, capacity: int, scores: Iterable[float] = ()) -> None:
        self.capacity = check_window(capacity)
        self._fifo: deque[float] = deque(map(_finite, scores), maxlen=self.capacity)
        self._sorted: SortedList = SortedList(self._fifo)
        self._bisect_left = self._sorted.bisect_left
        self._bisect_right = self._sorted.bisect_right
        self._add = self._sorted.add
        self._remove = self._sorted.remove

    def __len__(self) -> int:
        return len(self._fifo)

    def __repr__(self) -> str:
        return f"ScoreWindow({len(self)} of {self.capacity} scores)"

    @property
    def is_constant(self) -> bool:
        """Whether the window holds one repeated value, so that ranks say nothing; O(1)."""
        ordered = self._sorted
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
        fifo = self._fifo
        evicted = None
        if len(fifo) == self.capacity:
            evicted = fifo[0]  # the bounded deque drops it by itself
            self._remove(evicted)
        fifo.append(score)
        self._add(score)
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
        fifo = self._fifo
        for before in evicted:
            self._remove(fifo.pop())
            if before is not None:
                fifo.appendleft(before)
                self._add(before)

    def rank(self, score: float) -> tuple[int, int]:
        """Return (#{window < score}, #{window <= score}) in O(log n)."""
        return self._bisect_left(score), self._bisect_right(score)

    def order_statistic(self, k: int) -> float:
        """Return the k-th smallest score, k in 1..len. O(log n).

        Raises
        ------
        ConfigError
            If there is no such score.
        """
        if not 1 <= k <= len(self._fifo):
            raise ConfigError(
                f"There is no order statistic {k} in a window of {len(self)} scores: "
                f"give a number from 1 to {len(self)}."
            )
        value: float = self._sorted[k - 1]
        return value

    def largest(self, k: int) -> Sequence[float]:
        """Return the k largest scores in rising order, k in 1..len. O(k + log n)."""
        return list(self._sorted[-k:])

    def threshold(self, n_anomalies: int) -> float:
        """Return λ, the r-th largest score: a score at or above it is flagged. O(log n)."""
        return self.order_statistic(len(self._fifo) - n_anomalies + 1)

    def tie_mass(self, n_anomalies: int) -> float:
        """Return the share of window scores equal to λ; above 0.01 quantised scores blur the label.

        O(log n).
        """
        below, at_or_below = self.rank(self.threshold(n_anomalies))
        return (at_or_below - below) / len(self._fifo)

    def scores(self) -> Sequence[float]:
        """Return the scores, oldest first. O(n)."""
        return list(self._fifo)

    def check_invariants(self) -> None:
        """Raise AssertionError unless both containers tell the same story. O(n log n)."""
        assert len(self._fifo) == len(self._sorted) <= self.capacity
        assert list(self._sorted) == sorted(self._fifo)
        assert all(map(math.isfinite, self._fifo))
        # A shared object per score is what keeps the memory at 40 bytes a score.
        assert {id(s) for s in self._fifo} >= {id(s) for s in self._sorted} or len(
            set(self._fifo)
        ) < len(self._fifo)


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ConfigError(
            f"A score of {score} cannot enter the window: only finite scores can be ranked; "
            "reject the event as unscorable."
        )
    return score
