"""How much evidence opens an incident, and how much ends it: tempered by what events are worth.

The evidence is a CUSUM of severities under the window [1]_, S <- max(0, S + min(severity,
log10(n + 1)) - 0.75). An exchangeable score has a severity of x or more with a probability of
10^-x, so an event adds -0.32 on average, and none adds more than log10(n + 1) - 0.75: what lies
beyond all reference scores is extrapolated, and no single spike opens an incident.

Autocorrelated scores come in clusters. The variance inflation V of the reference, in its own order,
is the larger of an AR(1) estimate, corrected for the bias of a short series [2]_, and of the
variances of means of n/40, n/20 and n/10 scores. The limit is 2.5 + 5 V: fitted to at most 8
incidents in 10^6 events of null streams (``python -m benchmarks.incidents``); measured, not proved.
A single V is a guess, and where it is too small by chance an incident opens by chance: what counts
is no less than the mean of those measured before. Where a window is worth fewer than ten
independent events, n < 10 V, or none was full yet, nothing is judged.

The evidence for the end is the CUSUM of the other side, of so many ordinary events as are worth ten
independent ones, half a window at most.

References
----------
.. [1] E. S. Page: Continuous Inspection Schemes. Biometrika, 1954.
.. [2] F. Marriott, J. Pope: Bias in the Estimation of Autocorrelations. Biometrika, 1954.
"""

from __future__ import annotations

import math

import numpy as np

from rejex_stream.types import FloatArray

__all__ = ["ORDINARY", "inflation", "limit_of", "recovery_of"]

ORDINARY = 0.75
"""Severities above it are evidence, those below it are evidence to the contrary."""
_LEAST_SCORES = 50  # of which an inflation can be measured
_LEAST_WORTH = 10
_BLOCKS = (40, 20, 10)  # to a window
_RECOVERY_WORTH = 10
_DRIFT = ORDINARY - 1 / math.log(10)  # what an ordinary event adds to the contrary, on average


def inflation(scores: FloatArray) -> float | None:
    """Return the variance inflation of scores in their order, >= 1; ``None`` of too few to tell.

    Of their severities among themselves, so the scale of the scores is of no account.
    O(n log n).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> inflation(rng.standard_normal(2000)) < 2
    True
    >>> inflation(np.cumsum(rng.standard_normal(2000))) > 200
    True
    """
    n = len(scores)
    if n < _LEAST_SCORES:
        return None
    order = np.argsort(scores)
    ordered, place = scores[order], np.arange(n)
    first = np.concatenate(([True], ordered[1:] > ordered[:-1]))  # of scores that are tied
    x = np.empty(n)
    x[order] = np.log10((n + 1) / (n - np.maximum.accumulate(np.where(first, place, 0))))
    x -= x.mean()
    variance = float(x @ x) / n
    if variance <= 0.0:
        return None
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


def limit_of(inflated: float | None, n: int) -> float:
    """Return the evidence that opens an incident; infinite where nothing is judged.

    Examples
    --------
    >>> limit_of(1.0, 2000), round(limit_of(20.0, 2000)), limit_of(300.0, 2000)
    (7.5, 102, inf)
    """
    if inflated is None or n < _LEAST_WORTH * inflated:
        return math.inf
    return 2.5 + 5.0 * inflated


def recovery_of(inflated: float | None, events: int, window: int) -> float:
    """Return the evidence to the contrary that ends an incident: of about so many ordinary events.

    Examples
    --------
    >>> [round(recovery_of(v, 50, 2000)) for v in (1.0, 20.0, 150.0)]
    [16, 63, 316]
    """
    worth = _RECOVERY_WORTH * (inflated or 1.0)
    return max(events, min(worth, window / 2)) * _DRIFT
