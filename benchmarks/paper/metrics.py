"""What the metric-based baselines measure of a set of scores; high scores are anomalous.

Excess mass and mass volume: N. Goix, "How to Evaluate the Quality of Unsupervised Anomaly
Detection Algorithms?", 2016. Ranking stability: L. Perini, C. Galvin, V. Vercruyssen, "A Ranking
Stability Measure for Quantifying the Robustness of Anomaly Detection Methods", 2020.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.stats import beta

__all__ = [
    "excess_mass",
    "instability_weights",
    "mass_volume",
    "mean_ranks",
    "point_instability",
    "spearman",
]

Array = npt.NDArray[np.float64]


def _level_sets(scores: Array, uniform: Array) -> tuple[Array, Array]:
    """Mass of rows and share of the volume at or below each distinct score, ascending."""
    levels, counts = np.unique(scores, return_counts=True)
    mass = np.cumsum(counts) / len(scores)
    volume = np.searchsorted(np.sort(uniform), levels, side="right") / len(uniform)
    return mass, volume


def excess_mass(
    scores: Array, uniform: Array, *, least: float = 0.9, t_end: float = 100.0
) -> float:
    """Return the area under the excess mass curve, in [0, t_end]; high is good.

    EM(t) = max over level sets of (mass - t * volume), the volume of the box being 1. The area is
    taken from t = 0 to where EM falls to `least` (Goix's t_max = 0.9), exactly: the curve is the
    upper envelope of lines. A detector whose level sets hold no volume stops at `t_end`, which is
    also the end of Goix's grid.

    Parameters
    ----------
    scores
        Of rows, shape (n,).
    uniform
        Of points drawn uniformly from the box around the data, shape (m,).

    Examples
    --------
    Half of the box holds all the mass: EM(t) = 1 - t / 2 falls to 0.9 at t = 0.2.

    >>> excess_mass(np.zeros(5), np.array([0.0, 1.0])).__round__(6)
    0.19
    """
    mass, volume = _level_sets(np.asarray(scores, float), np.asarray(uniform, float))
    area, t = 0.0, 0.0
    at = int(np.argmax(mass - 1e-12 * volume))  # the whole set, at its smallest volume
    while True:
        # The line that is on top next is the one that overtakes the current one first.
        inside = volume < volume[at]
        t_next, following = t_end, -1
        if inside.any():
            crossing = (mass[at] - mass[inside]) / (volume[at] - volume[inside])
            first = int(np.argmin(crossing))
            if crossing[first] < t_end:
                t_next, following = float(crossing[first]), int(np.flatnonzero(inside)[first])
        falls = (mass[at] - least) / volume[at] if volume[at] > 0 else np.inf
        stop = min(t_next, max(falls, t))
        area += (stop - t) * (mass[at] - volume[at] * (stop + t) / 2)
        if following < 0 or stop < t_next:
            return float(area)
        at, t = following, t_next


def mass_volume(scores: Array, uniform: Array, *, first: float = 0.9, last: float = 0.999) -> float:
    """Return the area under the mass volume curve between two masses; low is good.

    MV(α) is the volume of the smallest level set that holds mass α, the box having volume 1.

    Examples
    --------
    >>> mass_volume(np.zeros(5), np.array([0.0, 1.0])).__round__(6)
    0.0495
    """
    mass, volume = _level_sets(np.asarray(scores, float), np.asarray(uniform, float))
    edges = np.concatenate(([0.0], mass))
    width = np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], first), 0.0, None)
    return float(width @ volume)


def instability_weights(gamma: float, psi: float = 0.8) -> tuple[float, float]:
    """Return (a, b) of the Beta law that weights ranks.

    Its mode stands at 1 - γ, and the share `psi` of its mass lies above 1 - 2γ: rank changes near
    the decision threshold count most.
    """

    def a_of(b: float) -> float:
        return ((1 - gamma) * b + 2 * gamma - 1) / gamma

    def gap(log_b: float) -> float:
        b = 1 + np.exp(log_b)
        return float(beta.cdf(1 - 2 * gamma, a_of(b), b)) - (1 - psi)

    low, high = -20.0, 12.0
    if gap(low) <= 0:  # so much contamination that the flat law already has this mass up there
        return 1.0, 1.0
    b = 1 + float(np.exp(brentq(gap, low, high)))
    return a_of(b), b


def point_instability(ranks: Array, gamma: float) -> Array:
    """Return the instability of each point in [0, 1] from its ranks under re-drawn training sets.

    Parameters
    ----------
    ranks
        Shape (m, draws), 1..m, low = normal.
    gamma
        Contamination.

    Notes
    -----
    (Beta mass between a point's lowest and highest rank) * (standard deviation of its ranks),
    relative to that of random ranks and cut at 1. A set's stability is 1 - the mean.
    """
    m = len(ranks)
    ranks = ranks / m
    a, b = instability_weights(gamma)
    mass = beta.cdf(ranks.max(axis=1), a, b) - beta.cdf(ranks.min(axis=1), a, b)
    random = np.sqrt((m + 1) * (m - 1) / (12 * m**2))
    result: Array = np.minimum(1.0, mass * ranks.std(axis=1) / random)
    return result


def mean_ranks(a: Array) -> Array:
    """Return ranks 1..n, tied values sharing their mean rank; ten times faster than SciPy's.

    Examples
    --------
    >>> mean_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    order = np.argsort(a, kind="stable")
    ordered = a[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    ends = np.append(starts[1:], len(a))
    ranks = np.empty(len(a))
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return ranks


def spearman(a: Array, b: Array) -> float:
    """Return Spearman's correlation with mean ranks for ties; 0 where one side is constant.

    Examples
    --------
    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.5
    """
    if len(a) < 2:
        return 0.0
    x, y = mean_ranks(a), mean_ranks(b)
    x -= x.mean()
    y -= y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm > 0 else 0.0
