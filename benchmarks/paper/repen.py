"""REPEN: a representation in which a random distance tells outliers apart.

G. Pang, L. Cao, L. Chen, H. Liu, "Learning Representations of Ultrahigh-dimensional Data for
Random Distance-based Outlier Detection", KDD 2018. One layer of 20 rectified linear units is
trained on triplets (inlier, inlier, outlier) with the hinge loss

    max(0, margin + |f(q) - f(p)|² - |f(q) - f(o)|²),    margin = 1000,

on columns scaled to [0, 1]; a row's score is its mean distance to the nearest of 8 random rows,
over 50 draws (LeSiNN, Pang, Ting, Albrecht 2015), in that representation. Inliers and outliers
are given by labels. The gradient is short enough to write down, so no deep learning library is
needed; a test compares it with finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

__all__ = ["Repen", "fit_repen", "lesinn", "triplet_loss"]

Array = npt.NDArray[np.float64]

_UNITS = 20
_MARGIN = 1000.0
_BATCH = 256
_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Repen:
    """A trained representation with the rows that scores are measured from."""

    low: Array
    spread: Array
    weights: Array
    draws: Array

    def represent(self, X: Array) -> Array:
        """Map rows (m, d) to (m, 20)."""
        scaled = (X - self.low) / self.spread
        result: Array = np.maximum(scaled @ self.weights, 0.0)
        return result

    def score(self, X: Array) -> Array:
        """Score rows (m, d), high = anomalous."""
        return lesinn(self.represent(X), self.draws)


def lesinn(Z: Array, draws: Array) -> Array:
    """Return the mean distance of rows Z (m, k) to the nearest of each draw (draws, 8, k)."""
    total = np.zeros(len(Z))
    for draw in draws:
        total += cdist(Z, draw).min(axis=1)
    return total / len(draws)


def triplet_loss(weights: Array, q: Array, p: Array, o: Array) -> tuple[float, Array]:
    """Return the mean hinge loss of triplets of scaled rows (b, d), and its gradient (d, 20)."""
    Hq, Hp, Ho = q @ weights, p @ weights, o @ weights
    Zq, Zp, Zo = (np.maximum(H, 0.0) for H in (Hq, Hp, Ho))
    hinge = _MARGIN + ((Zq - Zp) ** 2).sum(axis=1) - ((Zq - Zo) ** 2).sum(axis=1)
    active = (hinge > 0)[:, None] / len(q)
    dZq, dZp, dZo = 2 * (Zo - Zp) * active, -2 * (Zq - Zp) * active, 2 * (Zq - Zo) * active
    gradient = q.T @ (dZq * (Hq > 0)) + p.T @ (dZp * (Hp > 0)) + o.T @ (dZo * (Ho > 0))
    return float(np.maximum(hinge, 0.0).mean()), gradient


def fit_repen(X: Array, outlier: npt.NDArray[np.bool_], *, steps: int, seed: int) -> Repen:
    """Train on rows X (n, d), those marked in `outlier` (n,) being the outliers.

    As in the paper, queries are drawn in favour of rows that look normal and outliers in favour
    of rows that look anomalous to LeSiNN on the scaled rows.
    """
    rng = np.random.default_rng(seed)
    low = X.min(axis=0)
    spread = np.ptp(X, axis=0)
    spread[spread == 0] = 1.0
    S = (X - low) / spread
    inliers, outliers = np.flatnonzero(~outlier), np.flatnonzero(outlier)
    if len(inliers) < 2 or len(outliers) < 1:
        raise ValueError(
            f"{len(inliers)} inliers and {len(outliers)} outliers: give at least 2 and 1."
        )
    looks = lesinn(S, S[_draws(rng, len(S))])
    normal = looks[inliers].max() - looks[inliers] + 1e-12
    odd = looks[outliers] + 1e-12
    weights = rng.normal(size=(S.shape[1], _UNITS)) * np.sqrt(2.0 / (S.shape[1] + _UNITS))
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, steps + 1):
        q = rng.choice(inliers, _BATCH, p=normal / normal.sum())
        p = rng.choice(inliers, _BATCH)
        o = rng.choice(outliers, _BATCH, p=odd / odd.sum())
        _, gradient = triplet_loss(weights, S[q], S[p], S[o])
        mean = 0.9 * mean + 0.1 * gradient  # Adam (Kingma, Ba 2015)
        square = 0.999 * square + 0.001 * gradient**2
        rate = _RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights -= rate * mean / (np.sqrt(square) + 1e-8)
    trained = Repen(low, spread, weights, np.empty(0))
    return Repen(low, spread, weights, trained.represent(X)[_draws(rng, len(X))])


def _draws(rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    """50 draws of 8 rows (fewer where there are fewer), shape (50, 8)."""
    size = min(8, n)
    return np.stack([rng.choice(n, size, replace=False) for _ in range(50)])
