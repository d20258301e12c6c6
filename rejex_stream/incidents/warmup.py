"""Whether the rows that a first model learns from are of one kind, or a fault begins among them.

A fault that begins or ends within a warm-up is learnt: no score shows it afterwards. It shows in
the rows. The test asks of each channel whether a stretch of the rows differs from the others: the
range of the cumulative sums of deviations from the mean [1]_, which sees one step as well as a
stretch that comes and goes. Deviations are in robust units and cut at ten of them, so a heavy tail
is no stretch; both stretches lose their own mean before the variance inflation V is measured, or a
step would hide behind the autocorrelation it makes. With V, sqrt(n V) is the scale of the sums, and
the range has Kuiper's law for long series.

V is measured too small where n is worth few independent events, so the limit is 2.6 (7e-5 by
Kuiper's law) + 30 V / n, and nothing is said where n < 10 V. How often it says so where nothing is
wrong is measured (``python -m benchmarks.warmup``), not proved. A season of about the length of the
warm-up, or longer, is such a stretch too, and so are modes that change a few times.

References
----------
.. [1] N. Kuiper: Tests concerning random points on a circle. Indagationes Mathematicae, 1960.
"""

from __future__ import annotations

import math

import numpy as np

from rejex_stream.types import FloatArray

__all__ = ["is_mixed", "spread"]

_LIMIT, _LIMIT_BY_WORTH = 2.6, 30.0
_LEAST_WORTH = 10
_LEAST_ROWS = 100
_CUT = 10.0
_MAD = 0.6745  # of a normal sample, to its standard deviation
_BLOCKS = (40, 20, 10)
_SHORTEST = 50  # part of the rows that a stretch, or what is outside of it, is at least


def is_mixed(rows: FloatArray) -> bool:
    """Whether a stretch of rows differs from the others in some column, shape (n, d).

    O(n d).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.standard_normal((1000, 2))
    >>> is_mixed(rows)
    False
    >>> rows[600:, 1] += 3
    >>> is_mixed(rows)
    True
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
    for blocks in _BLOCKS:
        length = n // blocks
        if length > 1:
            sums = x[: blocks * length].reshape(blocks, length).sum(axis=1)
            found.append(float(sums @ sums) / (blocks * length * variance) * (1 + 1 / blocks))
    return max(found)
