"""KNN, LOF and KDE on a space-partitioning tree.

A tree answers each row by itself, so batches cannot change a bit; brute force, which
scikit-learn picks from 16 columns on, multiplies matrices and can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rejex_stream.detectors.rowwise import RowByRow, row_sum
from rejex_stream.protocols import Scorer
from rejex_stream.types import FloatArray

__all__ = ["KernelDensity", "LocalOutlierFactor", "NeighbourDistance", "fit_kde", "fit_knn"]


@dataclass(frozen=True, slots=True)
class NeighbourDistance:
    """Distance to the k-th nearest training row, or the mean or median over the k nearest.

    `training_scores` leave the row itself out.
    """

    tree: Any
    k: int
    method: str
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); about O(d log n) a row at few columns, O(d n) at many."""
        distances: FloatArray = self.tree.query(X, k=self.k)[0]
        if self.method == "largest":
            return distances[:, -1].copy()
        if self.method == "mean":
            return row_sum(distances) / self.k
        return (distances[:, (self.k - 1) // 2] + distances[:, self.k // 2]) / 2


@dataclass(frozen=True, slots=True)
class LocalOutlierFactor:
    """Mean density of the neighbours over the density at the row (Breunig et al., SIGMOD 2000).

    `training_scores` leave the row itself out.
    """

    tree: Any
    k: int
    k_distances: FloatArray
    densities: FloatArray
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d)."""
        distances, neighbours = self.tree.query(X, k=self.k)
        reach = np.maximum(distances, self.k_distances[neighbours])
        density = 1.0 / (row_sum(reach) / self.k + 1e-10)
        return row_sum(self.densities[neighbours] / density[:, None]) / self.k


@dataclass(frozen=True, slots=True)
class KernelDensity:
    """Negative log density.

    `training_scores` are in sample: each row sees its own kernel, which in 10 columns makes
    them 12 times too low for the tail. Prefer another calibration than ``training``.
    """

    model: Any
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d n) a row."""
        scores: FloatArray = -self.model.score_samples(X)
        return scores


def fit_knn(make: Callable[[], Any], X: FloatArray) -> Scorer:
    """Fit PyOD's KNN on X of shape (n, d)."""
    model = make().fit(X)
    tree = model.neigh_._tree
    if tree is None:  # a metric that no tree knows: brute force
        return RowByRow(model, model.decision_scores_)
    return NeighbourDistance(tree, model.n_neighbors, model.method, model.decision_scores_)


def fit_lof(make: Callable[[], Any], X: FloatArray) -> Scorer:
    """Fit PyOD's LOF on X of shape (n, d)."""
    model = make().fit(X)
    lof = model.detector_
    if lof._tree is None:
        return RowByRow(model, model.decision_scores_)
    k = lof.n_neighbors_
    distances, neighbours = lof.kneighbors(n_neighbors=k)
    k_distances = np.ascontiguousarray(distances[:, -1])
    reach = np.maximum(distances, k_distances[neighbours])
    densities = 1.0 / (row_sum(reach) / k + 1e-10)
    return LocalOutlierFactor(lof._tree, k, k_distances, densities, model.decision_scores_)


def fit_kde(make: Callable[[], Any], X: FloatArray) -> Scorer:
    """Fit PyOD's KDE on X of shape (n, d)."""
    model = make().fit(X)
    return KernelDensity(model.kde_, model.decision_scores_)
