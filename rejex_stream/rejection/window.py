"""Reference scores: how a score ranks among them, and how rare it is where ranks end.

:class:`ScoreWindow` ranks among the last n scores, in O(log n).

The rank decides the verdict and stops at n: 5 and 20 standard deviations beyond the largest
reference score are the same rank. Severity is -log10 of the tail probability of the score under
the reference scores, so 3 is one event in 1,000. A verdict's severity goes by the scores that its
model was calibrated with (:class:`Tail`): they stand still until the next model, so that a fault
which fills the window makes the rest of it no less severe. Up to the largest of them it is the
conformal p-value (#{s_i >= s} + 1) / (n + 1) [1]_, which is exact: exchangeable scores reach a
severity of x with a probability of at most 10^-x, whatever ties there are. All scores between two
of them have one p-value; a :class:`Tail` puts them in order by a millionth of the step up to it,
downwards, so that the promise stands. Beyond the largest a generalised Pareto tail goes on from
there (peaks over threshold [2]_), whose mean is the mean excess of the largest scores above a high
quantile, and whose shape is 0 (exponential) unless probability-weighted moments [3]_ of the
largest tenth say that it is heavier. That is a model, not a promise.

References
----------
.. [1] V. Vovk, A. Gammerman, G. Shafer: Algorithmic Learning in a Random World. 2005.
.. [2] J. Pickands: Statistical Inference Using Extreme Order Statistics. Annals of Statistics 1975.
.. [3] J. Hosking, J. Wallis: Parameter and Quantile Estimation for the Generalized Pareto
   Distribution. Technometrics 29, 1987.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from sortedcontainers import SortedList

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_window
from rejex_stream.types import FloatArray

_ONE_PART = 8192
"""Up to so many scores the sorted list is one part: moving 64 kB costs less than minding parts."""
LARGEST_SEVERITY = 1e6
"""Where severities end; beyond it lie scores that have left the scale of the window altogether."""
_LN_10 = math.log(10.0)
_BLOCKS = (16, 8)  # into which scores are cut to see how many come together
_CLUSTER_STEP = 4  # parts of one: what is told apart of a cluster's size, so that tables are shared
_SHAPE_PART, _FEWEST, _MOST_SHAPE = 10, 40, 0.9
_UNSURE = 1.5
_SHADE = 1e-6
"""Share of a step of the p-value by which scores on it differ: enough for an order, and for nothing
that anybody counts."""
STRONG = 50
"""What is strong begins here, on the scale of :func:`grade`."""
_WORDS = (25, "slight"), (STRONG, "distinct"), (75, "strong"), (101, "extreme")


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
        Scores to start from, oldest first, all finite; only the last `capacity` of them stay.

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
        """Add a finite score; return the evicted one, ``None`` while there is room. O(log n)."""
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
        """Return the k-th smallest score, k in 1..len. O(log n)."""
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

    def scores(self) -> Sequence[float]:
        """Return the scores, oldest first. O(n)."""
        scores: list[float] = self.in_order().tolist()
        return scores

    def in_order(self) -> FloatArray:
        """Return the same as an array of shape (len,), a copy."""
        ring: FloatArray = np.frombuffer(self._ring)
        return np.concatenate((ring[self._oldest :], ring[: self._oldest]))


def _finite(score: float) -> float:
    if not math.isfinite(score):
        raise ConfigError(
            f"A score of {score} cannot enter the window: only finite scores can be ranked; "
            "reject the event as unscorable."
        )
    return score


def severity(window: ScoreWindow, score: float, below: int) -> float:
    """Return -log10 of the tail probability of a score that is not in the window yet.

    O(1) but where the score is beyond all others: O(sqrt(n)) there, which exchangeable scores are
    once in n + 1 events. Nothing is kept from event to event, so it is the same for every cut of
    the input.
    """
    n = len(window)
    if below < n:
        return math.log10((n + 1) / (n - below + 1))
    largest = window.order_statistic(n)
    excess = score - largest
    scale = _LN_10 * min(2 * _excess(window, n, largest)[1], sys.float_info.max)
    if scale == 0.0:  # lost: a few of the smallest floats lie apart
        return LARGEST_SEVERITY
    return min(math.log10(n + 1) + excess / scale, LARGEST_SEVERITY)


class Tail:
    """The same among scores that stand still, and in order between them: O(log n) a score.

    All scores between two of them, a < b, have the p-value of b, and whoever orders events by it
    has them tied. Here they are in order: the severity of b, less `_SHADE` · (b - score) / (b - a)
    of the step from a to b.

    Scores that are not independent have their extremes in clusters: a reference holds fewer of them
    than it has extremes, and its largest is too low. So the largest has a p-value of c / (n + 1),
    and the k-th largest of (k - 1 + c) / (n + 1), with c the mean number of a stretch's scores that
    exceed the largest of another one (:func:`cluster_size`), and between two of them the logarithm
    is a straight line. With c = 1 the p-value is the conformal one, as above; with c >= 2 it is
    never less, so exchangeable scores keep the promise whatever c is.

    Beyond the largest a generalised Pareto tail goes on. Its mean was measured on sqrt(n) / c = m
    clusters in effect, and a prediction allows for that: of m exponential excesses a further one
    exceeds x with a probability of (1 + x / (m mean))^-m, so that where it falls to e^-3 the scale
    is 1 + 1.5 / m times the mean. (The power itself would order scores of two models by what is
    not known of either.)
    """

    __slots__ = (
        "_array", "_shade", "_shape", "_sigma", "_start", "cluster", "ordered",
    )  # fmt: skip

    def __init__(self, scores: Sequence[float], cluster: float | None = None) -> None:
        window = ScoreWindow(len(scores), scores)
        n = len(window)
        self.ordered = array("d", window.largest(n))  # 8 bytes each
        self.cluster = c = cluster_size(scores) if cluster is None else cluster
        self._array = clustered_table(n, c)
        self._shade = _SHADE if c == 1.0 else 1.0
        self._start = math.log10((n + 1) / min(c, n + 1))
        k, half = _excess(window, n, self.ordered[-1])
        self._shape = xi = _shape(self.ordered, c)
        reach = self.ordered[-1] / 2 - self.ordered[n - k - 1] / 2
        half = (1 - xi) * half * (1 + _UNSURE * c / k) + xi * reach
        self._sigma = min(2 * half, sys.float_info.max)

    @classmethod
    def of(cls, scores: Sequence[float], cluster: float | None = None) -> Tail | None:
        """Return it; ``None`` where they say nothing of how rare a score is."""
        return cls(scores, cluster) if len(scores) > 1 and min(scores) < max(scores) else None

    def __call__(self, score: float) -> float:
        """Return the severity of a finite score."""
        ordered = self.ordered
        below = bisect_left(ordered, score)
        if below == len(ordered):
            return self._gpd_severity(score)
        rare = self._array[below]
        if not below:
            return rare
        a, b = ordered[below - 1], ordered[below]
        short = (b - score) / (b - a)
        if short <= 1.0:  # and no rounding goes below the step before
            least = self._array[below - 1]
            return max(least, rare - self._shade * short * (rare - least))
        return rare  # nan: the difference is beyond all numbers

    def _gpd_severity(self, score: float) -> float:
        if self._sigma == 0.0:  # lost: a few of the smallest floats lie apart
            return LARGEST_SEVERITY
        nats = (score - self.ordered[-1]) / self._sigma
        if self._shape:
            nats = math.log1p(self._shape * nats) / self._shape
        return min(self._start + nats / _LN_10, LARGEST_SEVERITY)


def cluster_size(scores: Sequence[float]) -> float:
    """Return how many scores of a stretch exceed the largest of another one, on average, >= 1.

    One for independent scores; the mean size of a cluster of extremes, the reciprocal of their
    extremal index, for others. Measured on all pairs of sixteenths and of eighths, so at the height
    of extremes that n scores meet: clusters of a normal process shorten the higher one looks. In
    quarters, and never between 1 and 2 (see :class:`Tail`). O(n log n).
    """
    x = np.asarray(scores, dtype=np.float64)
    found = []
    for blocks in _BLOCKS:
        length = len(x) // blocks
        if length < 2:
            return 1.0
        part = x[: blocks * length]
        largest = part.reshape(blocks, length).max(axis=1)
        above = blocks * len(part) - int(np.sort(part).searchsorted(largest, "right").sum())
        found.append(above / (blocks * (blocks - 1)))
    size = sum(found) / len(found)
    if size < 2.0:
        return 1.0 if size < 1.5 else 2.0
    return round(_CLUSTER_STEP * size) / _CLUSTER_STEP


def _shape(ordered: array[float], cluster: float) -> float:
    """Return the shape of the upper tail by probability-weighted moments, 0 where it may be 0."""
    # Less two standard errors of as many clusters as there are: few tails are heavy, and a shape
    # that is there by chance orders scores of two models by chance.
    n = len(ordered)
    k = max(n // _SHAPE_PART, _FEWEST)
    if n <= k + 1:
        return 0.0
    top = np.frombuffer(ordered)[n - k - 1 :] / 2
    excess = top[1:] - top[0]
    if not excess[-1] > 0.0:  # all tied
        return 0.0
    excess /= excess[-1]
    mean = math.fsum(excess) / k
    upper = 2 * math.fsum(excess * np.arange(k - 1, -1, -1)) / (k * (k - 1))
    if not upper < mean:
        return 0.0
    found = 2.0 - mean / (mean - upper) - 2.0 * math.sqrt(cluster / k)
    return min(max(0.0, found), _MOST_SHAPE)


@lru_cache(maxsize=256)
def clustered_table(n: int, cluster: float) -> array[float]:
    """Return the severity for every number of smaller scores, 0..n - 1.

    `cluster` is the mean size of a cluster of extremes. O(n) once.
    """
    more = 1.0 if cluster == 1.0 else cluster - 1.0
    return array("d", [math.log10((n + 1) / min(n + 1, n - rank + more)) for rank in range(n)])


def _excess(window: ScoreWindow, n: int, largest: float) -> tuple[int, float]:
    """Return how many the largest scores are, and half their mean above the one before them."""
    # The sqrt(n) largest, or as many more as are tied at the top: else a quantised sensor would
    # have a tail without length.
    k = max(math.isqrt(n), n - window.rank(largest)[0])
    least = window.order_statistic(n - k)
    # In halves, and divided before the sum, for scores near the ends of the floats.
    return k, math.fsum([(score / 2 - least / 2) / k for score in window.largest(k)])


def joint_severity(severity: float, anomalies: int) -> float:
    """Return the severity of a group of events whose worst one has this severity.

    One more for every ten times as many anomalies: a convention, far less than as many independent
    ones are worth.
    """
    return severity + math.log10(max(1, anomalies))


def grade(severity: float, anomalies: int = 1) -> tuple[int, str]:
    """Return a severity for people: from 0 to 100, ten for each power of ten, with a word."""
    points = min(100, max(0, round(10 * joint_severity(severity, anomalies))))
    return points, next(word for below, word in _WORDS if points < below)
