"""How rare a score is, as a number that goes on where ranks end.

The rank decides the verdict and stops at n: 5 and 20 standard deviations beyond the largest
reference score are the same rank. Severity is -log10 of the tail probability of the score under
the reference scores, so 3 is one event in 1,000. Up to the largest of them it is the conformal
p-value (#{s_i >= s} + 1) / (n + 1), which is exact: exchangeable scores reach a severity of x with
a probability of at most 10^-x, whatever ties there are. Beyond, an exponential tail goes on from
there, whose mean is the mean excess of the largest scores above a high quantile (peaks over
threshold). That is a model, not a promise: right for tails that fall exponentially, too small for
lighter ones (normal), too large for heavier ones (powers).

References
----------
.. [1] V. Vovk, A. Gammerman, G. Shafer: Algorithmic Learning in a Random World. 2005. The p-value.
.. [2] J. Pickands: Statistical Inference Using Extreme Order Statistics. Annals of Statistics 1975.
   Excesses over a high threshold; here with shape 0, the exponential.
"""

from __future__ import annotations

import math
from functools import lru_cache

from rejex_stream.rejection.window import ScoreWindow

__all__ = ["LARGEST_SEVERITY", "severity", "severity_table"]

LARGEST_SEVERITY = 1e6
"""Where severities end; beyond it lie scores that have left the scale of the window altogether."""
_LN_10 = math.log(10.0)


def severity(window: ScoreWindow, score: float, below: int) -> float:
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
    beyond, scale = score - largest, _LN_10 * _mean_excess(window, n, largest)
    if scale == 0.0:  # lost: a few of the smallest floats lie apart
        return LARGEST_SEVERITY
    return min(math.log10(n + 1) + beyond / scale, LARGEST_SEVERITY)


@lru_cache(maxsize=64)
def severity_table(n: int) -> tuple[float, ...]:
    """Return the severity for every number of smaller scores, 0..n - 1. O(n) once per n."""
    return tuple(_of_rank(below, n) for below in range(n))


def _of_rank(below: int, n: int) -> float:
    return math.log10((n + 1) / (n - below + 1))


def _mean_excess(window: ScoreWindow, n: int, largest: float) -> float:
    """Return the mean of the largest scores above the one before them.

    Of the sqrt(n) largest, or as many more as are tied at the top: else a quantised sensor would
    have a tail without length.
    """
    k = max(math.isqrt(n), n - window.rank(largest)[0])
    least = window.order_statistic(n - k)
    # Divided before the sum, for scores near the ends of the floats.
    return math.fsum([(score - least) / k for score in window.largest(k)])
