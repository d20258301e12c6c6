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
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from rejex_stream.rejection.batch_ranks import WindowAhead
from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.types import FloatArray

__all__ = ["LARGEST_SEVERITY", "Tail", "severity", "severity_table"]

LARGEST_SEVERITY = 1e6
"""Where severities end; beyond it lie scores that have left the scale of the window altogether."""
_LN_10 = math.log(10.0)
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
    return _beyond(n, score - largest, _LN_10 * _mean_excess(window, n, largest))


class Tail:
    """The same among scores that stand still, and in order between them: O(log n) a score.

    All scores between two of them, a < b, have the p-value of b, and whoever orders events by it
    has them tied. Here they are in order: the severity of b, less `_SHADE` · (b - score) / (b - a)
    of the step from a to b.

    Parameters
    ----------
    scores
        Finite, at least two, not all the same; in any order.

    Examples
    --------
    >>> tail = Tail([i / 1000 for i in range(1, 1001)])
    >>> [round(tail(score), 1) for score in (0.5, 1.0, 1.001, 1.1)]
    [0.3, 2.7, 3.0, 5.7]
    >>> tail(0.5002) < tail(0.5008) < tail(0.501)       # one p-value, and still an order
    True
    """

    __slots__ = ("_of_ranks", "_scale", "ordered")

    def __init__(self, scores: Sequence[float]) -> None:
        window = ScoreWindow(len(scores), scores)
        n = len(window)
        self.ordered = array("d", window.largest(n))  # 8 bytes each
        self._of_ranks = severity_table(n)
        self._scale = _LN_10 * _mean_excess(window, n, self.ordered[-1])

    @classmethod
    def of(cls, scores: Sequence[float]) -> Tail | None:
        """Return it; ``None`` where they say nothing of how rare a score is."""
        return cls(scores) if len(scores) > 1 and min(scores) < max(scores) else None

    def __call__(self, score: float) -> float:
        """Return the severity of a finite score."""
        ordered = self.ordered
        below = bisect_left(ordered, score)
        if below == len(ordered):
            return _beyond(below, score - ordered[-1], self._scale)
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
        n, of_ranks = len(ordered), _severity_array(len(ordered))
        below = ordered.searchsorted(x)
        at = np.minimum(below, n - 1)
        rare, b = of_ranks[at], ordered[at]
        with np.errstate(all="ignore"):  # as above: what is no number is not used
            short = (b - x) / (b - ordered[at - 1])
            shaded = rare - _SHADE * short * (rare - of_ranks[at - 1])
        found: list[float] = np.where((short <= 1.0) & (below > 0), shaded, rare).tolist()
        for i in np.flatnonzero(below == n).tolist():
            found[i] = _beyond(n, scores[i] - self.ordered[-1], self._scale)
        return found


def _beyond(n: int, excess: float, scale: float) -> float:
    if scale == 0.0:  # lost: a few of the smallest floats lie apart
        return LARGEST_SEVERITY
    return min(math.log10(n + 1) + excess / scale, LARGEST_SEVERITY)


@lru_cache(maxsize=64)
def severity_table(n: int) -> tuple[float, ...]:
    """Return the severity for every number of smaller scores, 0..n - 1. O(n) once per n."""
    return tuple(_of_rank(below, n) for below in range(n))


@lru_cache(maxsize=64)
def _severity_array(n: int) -> FloatArray:
    return np.array(severity_table(n))


def _of_rank(below: int, n: int) -> float:
    return math.log10((n + 1) / (n - below + 1))


def _mean_excess(window: ScoreWindow | WindowAhead, n: int, largest: float) -> float:
    """Return the mean of the largest scores above the one before them.

    Of the sqrt(n) largest, or as many more as are tied at the top: else a quantised sensor would
    have a tail without length.
    """
    k = max(math.isqrt(n), n - window.rank(largest)[0])
    least = window.order_statistic(n - k)
    # Divided before the sum, for scores near the ends of the floats.
    return math.fsum([(score - least) / k for score in window.largest(k)])


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
