"""The reference window: the last n scores, ranked in O(log n)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

import numpy as np
from sortedcontainers import SortedList

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_window
from rejex_stream.types import FloatArray

__all__ = ["ScoreWindow", "mid_rank"]

_ONE_PART = 8192
"""Up to so many scores the sorted list is one part: moving 64 kB costs less than minding parts."""


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
    Two containers of plain numbers, a ring and a sorted list whose parts are arrays: about 17 bytes
    a score, and numpy sees either without a copy. Zero has one sign in it.

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

    __slots__ = ("_maxes", "_oldest", "_parts", "_ring", "_sorted", "capacity")

    def __init__(self, capacity: int, scores: Iterable[float] = ()) -> None:
        self.capacity = check_window(capacity)
        self._ring = array("d", [_finite(score) + 0.0 for score in scores][-self.capacity :])
        self._oldest = 0  # where it stands in a full ring
        self._sorted: SortedList = SortedList()
        if self.capacity <= _ONE_PART:
            self._sorted._reset(_ONE_PART)  # a part is cut where it has twice as many
        self._sorted.update(self._ring)
        # Its parts may be any sequence that bisect and insort can change.
        self._parts, self._maxes = self._sorted._lists, self._sorted._maxes
        self._parts[:] = [array("d", part) for part in self._parts]

    def __reduce__(self) -> tuple[type[ScoreWindow], tuple[int, Sequence[float]]]:
        # A copy of a sorted list has parts of its own.
        return ScoreWindow, (self.capacity, self.scores())

    def __len__(self) -> int:
        return len(self._ring)

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
        score += 0.0  # 0.0 of -0.0
        ring, oldest, parts = self._ring, self._oldest, self._parts
        if len(ring) < self.capacity:
            ring.append(score)
            self._sorted.add(score)
            if len(ring) == 1:  # a list of its own making
                parts[0] = array("d", parts[0])
            return None
        evicted = ring[oldest]
        ring[oldest] = score
        oldest += 1
        self._oldest = oldest if oldest < self.capacity else 0
        if len(parts) == 1:  # as many as before: nothing else of a sorted list changes
            part = parts[0]
            del part[bisect_left(part, evicted)]
            insort(part, score)
            self._maxes[0] = part[-1]
        else:
            self._sorted.remove(evicted)
            self._sorted.add(score)
        return evicted

    def push_all(self, scores: FloatArray) -> None:
        """Push finite scores of shape (m,) into a full window, at once. O(n log n)."""
        newest = np.concatenate((self.in_order(), scores + 0.0))[-self.capacity :]
        np.frombuffer(self._ring)[:] = newest
        self._oldest, newest = 0, np.sort(newest)
        start = 0
        for part in self._parts:  # as long as before, so nothing else changes but their ends
            stop = start + len(part)
            np.frombuffer(part)[:] = newest[start:stop]
            start = stop
        self._maxes[:] = [part[-1] for part in self._parts]

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
        for before in evicted:
            if before is None:
                self._ring, self._oldest = array("d", self.in_order()), 0
                self._sorted.remove(self._ring.pop())
                continue
            self._oldest = (self._oldest or self.capacity) - 1
            self._sorted.remove(self._ring[self._oldest])
            self._ring[self._oldest] = before
            self._sorted.add(before)

    def rank(self, score: float) -> tuple[int, int]:
        """Return (#{window < score}, #{window <= score}) in O(log n)."""
        parts, at = self._parts, 0
        if len(parts) != 1:
            at = bisect_left(self._maxes, score)
            if at == len(parts):
                return len(self._ring), len(self._ring)
        part = parts[at]
        i = bisect_left(part, score)
        below = self._sorted._loc(at, i) if at else i
        if i == len(part) or part[i] != score:
            return below, below
        if at + 1 < len(parts):
            return below, self._sorted.bisect_right(score)
        return below, below - i + bisect_right(part, score, i)

    def order_statistic(self, k: int) -> float:
        """Return the k-th smallest score, k in 1..len. O(log n).

        Raises
        ------
        ConfigError
            If there is no such score.
        """
        if not 1 <= k <= len(self._ring):
            raise ConfigError(
                f"There is no order statistic {k} in a window of {len(self)} scores: "
                f"give a number from 1 to {len(self)}."
            )
        parts = self._parts
        value: float = parts[0][k - 1] if len(parts) == 1 else self._sorted[k - 1]
        return value

    def largest(self, k: int) -> Sequence[float]:
        """Return the k largest scores in rising order, k in 1..len. O(k + log n)."""
        return list(self._sorted[-k:])

    def threshold(self, n_anomalies: int) -> float:
        """Return λ, the r-th largest score: a score at or above it is flagged. O(log n)."""
        return self.order_statistic(len(self._ring) - n_anomalies + 1)

    def tie_mass(self, n_anomalies: int) -> float:
        """Return the share of window scores equal to λ; above 0.01 quantised scores blur the label.

        O(log n).
        """
        below, at_or_below = self.rank(self.threshold(n_anomalies))
        return (at_or_below - below) / len(self._ring)

    def scores(self) -> Sequence[float]:
        """Return the scores, oldest first. O(n)."""
        scores: list[float] = self.in_order().tolist()
        return scores

    def in_order(self) -> FloatArray:
        """Return the same as an array of shape (len,), a copy."""
        ring: FloatArray = np.frombuffer(self._ring)
        return np.concatenate((ring[self._oldest :], ring[: self._oldest]))

    def check_invariants(self) -> None:
        """Raise AssertionError unless both containers tell the same story. O(n log n)."""
        self._sorted._check()
        assert len(self._ring) == len(self._sorted) <= self.capacity
        assert list(self._sorted) == sorted(self._ring)
        assert all(map(math.isfinite, self._ring))
        # Plain numbers are what keeps the memory at 17 bytes a score.
        assert all(type(part) is array for part in self._parts)
        assert self._parts is self._sorted._lists
        assert len(self._parts) <= 1 or self.capacity > _ONE_PART


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ConfigError(
            f"A score of {score} cannot enter the window: only finite scores can be ranked; "
            "reject the event as unscorable."
        )
    return score
