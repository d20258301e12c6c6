"""How rare a score is, as a number that goes on where ranks end.

The rank decides the verdict and stops at n: 5 and 20 standard deviations beyond the largest
reference score are the same rank. Severity is -log10 of the tail probability of the score under
the reference scores, so 3 is one event in 1,000. A verdict's severity goes by the scores that its
model was calibrated with (:class:`Tail`): they stand still until the next model, so that a fault
which fills the window makes the rest of it no less severe. Up to the largest of them it is the
conformal p-value (#{s_i >= s} + 1) / (n + 1), which is exact: exchangeable scores reach a severity
of x with a probability of at most 10^-x, whatever ties there are. All scores between two of them
have one p-value; a :class:`Tail` puts them in order by a millionth of the step up to it, downwards,
so that the promise stands. Beyond the largest an exponential tail goes on from there, whose mean is
the mean excess of the largest scores above a high quantile (peaks over threshold). That is a model,
not a promise: right for tails that fall exponentially, too small for lighter ones (normal), too
large for heavier ones (powers).

References
----------
.. [1] V. Vovk, A. Gammerman, G. Shafer: Algorithmic Learning in a Random World. 2005. The p-value.
.. [2] J. Pickands: Statistical Inference Using Extreme Order Statistics. Annals of Statistics 1975.
   Excesses over a high threshold; here with shape 0, the exponential.
.. [3] C. Ferro, J. Segers: Inference for Clusters of Extreme Values. JRSS B 65, 2003.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rejex_stream.rejection.batch_ranks import WindowAhead
from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.types import FloatArray

__all__ = ["LARGEST_SEVERITY", "Tail", "cluster_size", "severity", "severity_table"]

LARGEST_SEVERITY = 1e6
"""Where severities end; beyond it lie scores that have left the scale of the window altogether."""
_LN_10 = math.log(10.0)
_TAIL_PART, _FEWEST = 20, 20  # of scores, where their clusters are measured
_SHADE = 1e-6
"""Share of a step of the p-value by which scores on it differ: enough for an order, and for nothing
that anybody counts."""


def severity(window: ScoreWindow | WindowAhead, score: float, below: int) -> float:
    """Return -log10 of the tail probability of a score that is not in the window yet.

    Parameters
    ----------
    window
        The reference scores, n >= 2, not all the same number.
    score
        Finite.
    below
        How many of them are smaller, as ``window.rank(score)[0]``.

    Returns
    -------
    float
        From 0 to `LARGEST_SEVERITY`, never falling with the score.

    Notes
    -----
    O(1) but where the score is beyond all others: O(sqrt(n)) there, which exchangeable scores are
    once in n + 1 events. Nothing is kept from event to event, so it is the same for every cut of
    the input.

    Examples
    --------
    >>> window = ScoreWindow(1000, [i / 1000 for i in range(999)] + [1.0])
    >>> [round(severity(window, score, window.rank(score)[0]), 2) for score in (0.5, 0.999, 1.0)]
    [0.3, 2.7, 2.7]
    >>> [round(severity(window, score, 1000), 1) for score in (1.001, 1.1, 2.0)]
    [3.0, 5.7, 30.1]
    """
    n = len(window)
    if below < n:
        return _of_rank(below, n)
    largest = window.order_statistic(n)
    excess = score - largest
    return _beyond(math.log10(n + 1), excess, _LN_10 * _mean_excess(window, n, largest))


class Tail:
    """The same among scores that stand still, and in order between them: O(log n) a score.

    All scores between two of them, a < b, have the p-value of b, and whoever orders events by it
    has them tied. Here they are in order: the severity of b, less `_SHADE` · (b - score) / (b - a)
    of the step from a to b.

    Parameters
    ----------
    scores
        Finite, at least two, not all the same; oldest first.
    cluster
        How many of the largest scores come together; without it, as :func:`cluster_size` says.

    Notes
    -----
    Scores that are not independent have their extremes in clusters: n of them hold no more news of
    the tail than n / cluster, and the largest is too low by so much. So the p-value is
    (#{s_i >= s} + c) / (n + c) with c the mean size of a cluster, the reciprocal of the extremal
    index, and that of the conformal one where c is 1.

    Examples
    --------
    >>> tail = Tail([i / 1000 for i in range(1, 1001)])
    >>> [round(tail(score), 1) for score in (0.5, 1.0, 1.001, 1.1)]
    [0.3, 2.7, 3.0, 5.7]
    >>> tail(0.5002) < tail(0.5008) < tail(0.501)       # one p-value, and still an order
    True
    """

    __slots__ = ("_array", "_of_ranks", "_scale", "_start", "cluster", "ordered")

    def __init__(self, scores: Sequence[float], cluster: int | None = None) -> None:
        window = ScoreWindow(len(scores), scores)
        n = len(window)
        self.ordered = array("d", window.largest(n))  # 8 bytes each
        self.cluster = c = cluster_size(scores) if cluster is None else cluster
        self._of_ranks, self._array = _clustered(n, c)
        self._start = math.log10((n + c) / c)
        self._scale = _LN_10 * _mean_excess(window, n, self.ordered[-1])

    @classmethod
    def of(cls, scores: Sequence[float], cluster: int | None = None) -> Tail | None:
        """Return it; ``None`` where they say nothing of how rare a score is."""
        return cls(scores, cluster) if len(scores) > 1 and min(scores) < max(scores) else None

    def __call__(self, score: float) -> float:
        """Return the severity of a finite score."""
        ordered = self.ordered
        below = bisect_left(ordered, score)
        if below == len(ordered):
            return _beyond(self._start, score - ordered[-1], self._scale)
        rare = self._of_ranks[below]
        if not below:
            return rare
        a, b = ordered[below - 1], ordered[below]
        short = (b - score) / (b - a)
        if short <= 1.0:
            return rare - _SHADE * short * (rare - self._of_ranks[below - 1])
        return rare  # nan: the difference is beyond all numbers

    def each(self, scores: Sequence[float]) -> list[float]:
        """Return the severity of every finite score, bit for bit; O(log n) each, for many.

        Examples
        --------
        >>> tail = Tail([i / 1000 for i in range(1, 1001)])
        >>> scores = [0.5, 0.5002, 1.0, 1.1]
        >>> tail.each(scores) == [tail(score) for score in scores]
        True
        """
        x, ordered = np.array(scores, dtype=np.float64), np.frombuffer(self.ordered)
        n, of_ranks = len(ordered), self._array
        below = ordered.searchsorted(x)
        at = np.minimum(below, n - 1)
        rare, b = of_ranks[at], ordered[at]
        with np.errstate(all="ignore"):  # as above: what is no number is not used
            short = (b - x) / (b - ordered[at - 1])
            shaded = rare - _SHADE * short * (rare - of_ranks[at - 1])
        found: list[float] = np.where((short <= 1.0) & (below > 0), shaded, rare).tolist()
        for i in np.flatnonzero(below == n).tolist():
            found[i] = _beyond(self._start, scores[i] - self.ordered[-1], self._scale)
        return found


def cluster_size(scores: Sequence[float]) -> int:
    """Return the mean size of a cluster of the largest scores, >= 1, by the intervals between them.

    The reciprocal of the intervals estimator of the extremal index [3]_, at the largest twentieth.
    A whole number, so that the p-values of n = 2,000 scores still meet .001. O(n).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.exponential(size=2000)
    >>> cluster_size(x), cluster_size(np.repeat(x, 4))
    (1, 4)
    """
    x = np.asarray(scores, dtype=np.float64)
    count = max(_FEWEST, len(x) // _TAIL_PART)
    if len(x) <= 2 * count:
        return 1
    at = np.flatnonzero(x >= np.partition(x, len(x) - count)[len(x) - count])
    gaps = np.diff(at).astype(np.float64)
    if gaps.max(initial=0.0) > 2.0:
        first, second = gaps - 1.0, (gaps - 1.0) * (gaps - 2.0)
    else:
        first, second = gaps, gaps * gaps
    index = 2.0 * float(first.sum()) ** 2 / (len(gaps) * max(float(second.sum()), 1.0))
    return max(1, round(1.0 / max(index, 1.0 / len(gaps))))


def _beyond(start: float, excess: float, scale: float) -> float:
    if scale == 0.0:  # lost: a few of the smallest floats lie apart
        return LARGEST_SEVERITY
    return min(start + excess / scale, LARGEST_SEVERITY)


@lru_cache(maxsize=64)
def severity_table(n: int) -> tuple[float, ...]:
    """Return the severity for every number of smaller scores, 0..n - 1. O(n) once per n."""
    return tuple(_of_rank(below, n) for below in range(n))


@lru_cache(maxsize=256)
def _clustered(n: int, cluster: int) -> tuple[tuple[float, ...], FloatArray]:
    """Return the same for scores that come in clusters, for one score and for many."""
    table = tuple(math.log10((n + cluster) / (n - below + cluster)) for below in range(n))
    return table, np.array(table)


def _of_rank(below: int, n: int) -> float:
    return math.log10((n + 1) / (n - below + 1))


def _mean_excess(window: ScoreWindow | WindowAhead, n: int, largest: float) -> float:
    """Return the mean of the largest scores above the one before them.

    Of the sqrt(n) largest, or as many more as are tied at the top: else a quantised sensor would
    have a tail without length.
    """
    k = max(math.isqrt(n), n - window.rank(largest)[0])
    least = window.order_statistic(n - k)
    # In halves, and divided before the sum, for scores near the ends of the floats.
    half = math.fsum([(score / 2 - least / 2) / k for score in window.largest(k)])
    return min(2 * half, sys.float_info.max)


_WORDS = (25, "slight"), (50, "clear"), (75, "strong"), (101, "extreme")


def grade(severity: float) -> tuple[int, str]:
    """Return a severity for people: from 0 to 100, ten for each power of ten, with a word.

    Examples
    --------
    >>> grade(2.0), grade(7.25), grade(74.0)
    ((20, 'slight'), (72, 'strong'), (100, 'extreme'))
    """
    points = min(100, max(0, round(10 * severity)))
    return points, next(word for below, word in _WORDS if points < below)
