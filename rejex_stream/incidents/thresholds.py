"""How much evidence opens an incident, how much ends it, and whether a first model may be trusted.

The evidence is a CUSUM of severities under the window, S <- max(0, S + min(severity,
log10(n + 1)) - 0.75) [1]_; docs/explanation/incidents.md says why, and what else a hold asks for.
The variance inflation V of the reference, in its own order, is the larger of an AR(1) estimate,
corrected for the bias of a short series [2]_, and of the variances of means of n/40, n/20 and n/10
scores. The evidence for the end is the CUSUM of the other side, of so many ordinary events as are
worth ten independent ones, half a window at most.

A fault that begins or ends within a warm-up is learnt: no score shows it afterwards. It shows in
the rows. :func:`is_mixed` asks of each channel whether a stretch of the rows differs from the
others: the range of the cumulative sums of deviations from the mean [3]_, which sees one step as
well as a stretch that comes and goes. Deviations are in robust units and cut at ten of them, so a
heavy tail is no stretch; both stretches lose their own mean before V is measured, or a step would
hide behind the autocorrelation it makes. With V, sqrt(n V) is the scale of the sums, and the range
has Kuiper's law for long series. V is measured too small where n is worth few independent events,
so the limit is 2.6 (7e-5 by Kuiper's law) + 30 V / n, and nothing is said where n < 10 V. How often
it says so where nothing is wrong is measured (``python -m benchmarks.warmup``), not proved. A
season of about the length of the warm-up, or longer, is such a stretch too, and so are modes that
change a few times.

References
----------
.. [1] E. S. Page: Continuous Inspection Schemes. Biometrika, 1954.
.. [2] F. Marriott, J. Pope: Bias in the Estimation of Autocorrelations. Biometrika, 1954.
.. [3] N. Kuiper: Tests concerning random points on a circle. Indagationes Mathematicae, 1960.
.. [4] W. Woodward, H. Gray: Global Warming and the Problem of Testing for Trend in Time Series
   Data. Journal of Climate, 1993.
"""

from __future__ import annotations

import math

import numpy as np

from rejex_stream.types import FloatArray

ORDINARY = 0.75
"""Severities above it are evidence, those below it are evidence to the contrary."""
_LEAST_SCORES = 50  # of which an inflation can be measured
_LEAST_WORTH = 10
_BLOCKS = (40, 20, 10)  # to a window
_RISES = 2.33  # standard errors
_RARER = 1.0  # what begins is rarer by a factor of ten than what was before
DRIFT = ORDINARY - 1 / math.log(10)  # what an ordinary event adds to the contrary, on average


def inflation(scores: FloatArray) -> float | None:
    """Return the variance inflation of scores in their order, >= 1; ``None`` of too few to tell.

    Of their severities among themselves, so the scale of the scores is of no account.
    O(n log n).
    """
    if len(scores) < _LEAST_SCORES:
        return None
    x = _severities(scores)
    variance = float(x @ x) / len(x)
    return _inflation(x, variance) if variance > 0.0 else None


def rises(scores: FloatArray) -> bool:
    """Whether scores rise in their order, by more than one in a hundred series would by chance.

    Of their severities among themselves the slope, in standard errors that count the inflation of
    what the line leaves [4]_. O(n log n).
    """
    n = len(scores)
    if n < _LEAST_SCORES:
        return False
    x, t = _severities(scores), np.arange(n) - (n - 1) / 2
    squares = float(t @ t)
    slope = float(x @ t) / squares
    x -= slope * t
    variance = float(x @ x) / n
    if variance <= 0.0:
        return slope > 0.0
    return slope * math.sqrt(squares / (variance * _inflation(x, variance))) > _RISES


def _severities(scores: FloatArray) -> FloatArray:
    n = len(scores)
    order = np.argsort(scores)
    ordered, place = scores[order], np.arange(n)
    first = np.concatenate(([True], ordered[1:] > ordered[:-1]))  # of scores that are tied
    x = np.empty(n)
    x[order] = np.log10((n + 1) / (n - np.maximum.accumulate(np.where(first, place, 0))))
    x -= x.mean()
    return x


def mean_severity(scores: FloatArray, others: FloatArray) -> float:
    """Return the mean of the severities that other scores have among scores. O(n log n)."""
    n = len(scores)
    above = n - np.searchsorted(np.sort(scores), others)
    return float(np.log10((n + 1) / (above + 1)).mean())


def n_before(severities: FloatArray) -> int:
    """Return how many of the first are of the state before, if two means fit them best. O(n).

    Evidence begins with whatever is a bit unusual, which need not be what it ends with.
    """
    n, count = len(severities), np.arange(1, len(severities))
    sums = np.cumsum(severities)
    rise = (sums[-1] - sums[:-1]) / (n - count) - sums[:-1] / count
    gain = np.where(rise >= _RARER, count * (n - count) * rise * rise, 0.0)
    return int(np.argmax(gain)) + 1 if gain.any() else 0


def limit_of(inflated: float | None, n: int) -> float:
    """Return the evidence that opens an incident; infinite where nothing is judged."""
    if inflated is None or n < _LEAST_WORTH * inflated:
        return math.inf
    return 2.5 + 5.0 * inflated


_LIMIT, _LIMIT_BY_WORTH = 2.6, 30.0
_LEAST_ROWS = 100
_CUT = 10.0
_MAD = 0.6745  # of a normal sample, to its standard deviation
_SHORTEST = 50  # part of the rows that a stretch, or what is outside of it, is at least


def is_mixed(rows: FloatArray) -> bool:
    """Whether a stretch of rows differs from the others in some column, shape (n, d).

    O(n d).
    """
    return any(spread(column) > 1.0 for column in rows.T)


def spread(column: FloatArray) -> float:
    """Return how far the cumulative sums of a column spread, in units of the limit; 0: unknown."""
    n = len(column)
    if n < _LEAST_ROWS:
        return 0.0
    centred = column - np.median(column)
    scale = float(np.median(np.abs(centred))) / _MAD or float(np.abs(centred).mean())
    if not 0.0 < scale < math.inf:
        return 0.0
    x = np.clip(centred / scale, -_CUT, _CUT)
    x -= x.mean()
    sums = np.concatenate(([0.0], np.cumsum(x)))
    begin, end = sorted((int(sums.argmin()), int(sums.argmax())))
    if not n / _SHORTEST <= end - begin <= n - n / _SHORTEST:
        return 0.0
    left = x.copy()
    left[begin:end] -= x[begin:end].mean()
    outside = np.r_[:begin, end:n]
    left[outside] -= x[outside].mean()
    variance = float(left @ left) / n
    if variance <= 0.0:
        return math.inf  # two values, each in one stretch
    inflated = _inflation(left, variance)
    if n < _LEAST_WORTH * inflated:
        return 0.0
    limit = _LIMIT + _LIMIT_BY_WORTH * inflated / n
    return float(np.ptp(sums)) / math.sqrt(n * inflated * variance) / limit


def _inflation(x: FloatArray, variance: float) -> float:
    """Return how much more the sums of x vary than those of independent ones, >= 1."""
    n = len(x)
    r = float(x[1:] @ x[:-1]) / n / variance
    r = min(r + (1 + 4 * r) / n, 1 - 1 / n)
    found = [1.0, (1 + r) / (1 - r)]
    total = np.concatenate(([0.0], np.cumsum(x)))
    for blocks in _BLOCKS:
        length = n // blocks
        if length > 1:
            sums = np.diff(total[: blocks * length + 1 : length])
            found.append(float(sums @ sums) / (blocks * length * variance) * (1 + 1 / blocks))
    return max(found)
