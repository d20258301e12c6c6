"""iNNE: hyperspheres around a few training rows, many times over.

Bandaragoda et al., *Isolation-based anomaly detection using nearest-neighbor ensembles*
(Computational Intelligence 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rejex_stream.types import FloatArray

__all__ = ["NearestNeighbourEnsemble", "fit_inne"]

_DISTANCES_AT_ONCE = 1 << 18
_TINY = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True)
class NearestNeighbourEnsemble:
    """Mean isolation of a row over t ensembles of s spheres.

    Attributes
    ----------
    centres
        Shape (d, t, s).
    radii
        Squared distance of each centre to the nearest other one; shape (t, s).
    isolation
        How much smaller the neighbour's sphere is, in [0, 1]; shape (t, s).
    training_scores
        Shape (n,); in sample.
    """

    centres: FloatArray
    radii: FloatArray
    isolation: FloatArray
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d t s) a row."""
        step = max(1, _DISTANCES_AT_ONCE // self.radii.size)
        if len(X) <= step:
            return self._score(X)
        return np.concatenate([self._score(X[i : i + step]) for i in range(0, len(X), step)])

    def _score(self, X: FloatArray) -> FloatArray:
        covering = np.where(_squared_distances(X, self.centres) <= self.radii, self.radii, np.inf)
        smallest = covering.argmin(axis=2)
        ensembles = np.arange(len(self.radii))
        isolation = self.isolation[ensembles, smallest]
        uncovered = np.isinf(covering[np.arange(len(X))[:, None], ensembles, smallest])
        # Left to right over ensembles: the sum must not depend on the number of rows.
        total = np.cumsum(np.where(uncovered, 1.0, isolation), axis=1)[:, -1]
        scores: FloatArray = total / len(ensembles)
        return scores


def fit_inne(make: Callable[[], Any], X: FloatArray) -> NearestNeighbourEnsemble:
    """Fit PyOD's INNE on X of shape (n, d).

    PyOD draws the centres; radii are measured anew, by the same subtraction that scores a row.
    """
    model = make().fit(X)
    centres = np.ascontiguousarray(np.moveaxis(model._centroids, 2, 0))
    t, s = centres.shape[1:]
    radii = np.empty((t, s))
    isolation = np.empty((t, s))
    for i in range(t):
        distances = _squared_distances(model._centroids[i], centres[:, i])
        np.fill_diagonal(distances, np.inf)
        nearest = distances.argmin(axis=1)
        radii[i] = distances.min(axis=1)
        isolation[i] = 1.0 - (radii[i][nearest] + _TINY) / (radii[i] + _TINY)
    fitted = NearestNeighbourEnsemble(centres, radii, isolation, np.empty(0))
    return replace(fitted, training_scores=fitted.score(X))


def _squared_distances(X: FloatArray, centres: FloatArray) -> FloatArray:
    """Distances of X (m, d) to centres (d, ...), shape (m, ...), one column at a time."""
    shape = (len(X),) + (1,) * (centres.ndim - 1)
    total = np.zeros((len(X), *centres.shape[1:]))
    for x, centre in zip(X.T, centres, strict=True):
        gap = x.reshape(shape) - centre
        gap *= gap
        total += gap
    return total
