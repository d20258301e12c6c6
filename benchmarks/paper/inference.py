"""Tests over data sets (Demšar, JMLR 2006) and bootstrap intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import f as f_law
from scipy.stats import friedmanchisquare, norm, rankdata

__all__ = ["Friedman", "block_bootstrap", "critical_difference", "friedman", "ranks"]

Array = npt.NDArray[np.float64]


class Friedman(NamedTuple):
    """Friedman's statistic and p-value, and those of Iman and Davenport's less timid form."""

    chi2: float
    p: float
    f: float
    p_f: float


def ranks(costs: Array) -> Array:
    """Rank each row of (experiments, methods), 1 = cheapest; equal costs share the mean rank.

    Examples
    --------
    >>> ranks(np.array([[0.1, 0.3, 0.1]])).tolist()
    [[1.5, 3.0, 1.5]]
    """
    # Costs are sums of few floats: what differs in the last bit is equal.
    result: Array = rankdata(np.round(costs, 12), axis=1)
    return result


def friedman(costs: Array) -> Friedman:
    """Test whether all columns of (experiments, methods) are alike."""
    n, k = costs.shape
    if n < 2 or np.all(costs == costs[:, :1]):
        return Friedman(0.0, 1.0, 0.0, 1.0)
    chi2, p = friedmanchisquare(*np.round(costs, 12).T)
    spread = n * (k - 1) - chi2
    f = np.inf if spread <= 0 else (n - 1) * chi2 / spread
    return Friedman(float(chi2), float(p), float(f), float(f_law.sf(f, k - 1, (k - 1) * (n - 1))))


def critical_difference(k: int, n: int, alpha: float = 0.05) -> float:
    """Return Bonferroni-Dunn's critical difference of mean ranks: k methods, n experiments.

    Examples
    --------
    Demšar's table has 2.690 for k = 8:

    >>> round(critical_difference(8, 6 * 100) / (8 * 9 / 3600) ** 0.5, 3)
    2.69
    """
    q = norm.isf(alpha / (2 * (k - 1)))
    return float(q * np.sqrt(k * (k + 1) / (6 * n)))


def block_bootstrap(
    values: Array, *, draws: int = 4000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Return an interval for the mean of `values` (blocks,): whole data sets are redrawn.

    Folds and detectors of one data set are no independent experiments; what is averaged within a
    data set beforehand stays together.
    """
    values = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
