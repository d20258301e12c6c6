"""Isolation: forests as flat arrays, and nearest-neighbour ensembles of spheres.

scikit-learn spends 7-12 ms on a row in validation and thread set-up, whatever its size. Here
all trees are walked at once, level by level, over (rows, trees) arrays of node numbers.
Liu, Ting, Zhou, *Isolation Forest* (ICDM 2008).
iNNE lays hyperspheres around a few training rows, many times over: Bandaragoda et al.,
*Isolation-based anomaly detection using nearest-neighbor ensembles* (Computational Intelligence
2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.rowwise import row_sum
from rejex_stream.types import FloatArray

__all__ = ["IsolationForest", "NearestNeighbourEnsemble", "fit_iforest", "fit_inne"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_NODES_AT_ONCE = 1 << 17
_DISTANCES_AT_ONCE = 1 << 18
_TINY = float(np.finfo(float).eps)


# ------------------------------------------------------------------------------- forest
@dataclass(frozen=True, slots=True)
class IsolationForest:
    """Isolation score in (0, 1]: PyOD's, without the offset that depends on the fit.

    Attributes
    ----------
    roots
        Node number of each root; shape (trees,).
    feature, threshold, left
        Per node; the right child is ``left + 1``; a leaf has threshold +inf and is its own left
        child, so that walking on stays there.
    path_length
        Per leaf: depth plus what the rows left in it would still need.
    levels
        Depth of the deepest tree.
    normaliser
        Expected total path length over all trees.
    training_scores
        Shape (n,); in sample.
    """

    roots: npt.NDArray[np.intp]
    feature: npt.NDArray[np.intp]
    threshold: FloatArray
    left: npt.NDArray[np.intp]
    path_length: FloatArray
    levels: int
    normaliser: float
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(trees * levels) a row."""
        step = max(1, _NODES_AT_ONCE // len(self.roots))
        if len(X) <= step:
            return self._score(X)
        return np.concatenate([self._score(X[i : i + step]) for i in range(0, len(X), step)])

    def _score(self, X: FloatArray) -> FloatArray:
        # scikit-learn grows and walks its trees on float32 values.
        clipped = np.clip(X, -_FLOAT32_MAX, _FLOAT32_MAX)
        values = clipped.astype(np.float32).astype(np.float64).ravel()
        first = np.arange(0, values.size, X.shape[1])[:, None]
        node = np.repeat(self.roots[None, :], len(X), axis=0)
        for _ in range(self.levels):
            goes_right = values[self.feature[node] + first] > self.threshold[node]
            node = self.left[node] + goes_right
        scores: FloatArray = 2.0 ** (-row_sum(self.path_length[node]) / self.normaliser)
        return scores


def fit_iforest(make: Callable[[], Any], X: FloatArray) -> IsolationForest:
    """Fit PyOD's IForest on X of shape (n, d)."""
    forest = make().fit(X).detector_
    roots, features, thresholds, lefts, lengths = [], [], [], [], []
    n_nodes = levels = 0
    for tree, columns in zip(forest.estimators_, forest.estimators_features_, strict=True):
        feature, threshold, left, depth, n_rows = _breadth_first(tree.tree_)
        roots.append(n_nodes)
        features.append(np.asarray(columns)[feature])
        thresholds.append(threshold)
        lefts.append(left + n_nodes)
        lengths.append(depth + _mean_path_length(n_rows))
        n_nodes += len(left)
        levels = max(levels, int(depth.max()))
    normaliser = len(roots) * float(_mean_path_length(np.array([forest.max_samples_]))[0])
    flat = IsolationForest(
        roots=np.array(roots, dtype=np.intp),
        feature=np.concatenate(features),
        threshold=np.concatenate(thresholds),
        left=np.concatenate(lefts),
        path_length=np.concatenate(lengths),
        levels=levels,
        normaliser=normaliser or 1.0,
        training_scores=np.empty(0),
    )
    return replace(flat, training_scores=flat.score(X))


def _breadth_first(tree: Any) -> tuple[npt.NDArray[Any], ...]:  # noqa: ANN401 - sklearn's Tree
    """Renumber the nodes so that siblings are neighbours; features, thresholds, left, ..."""
    order = [0]
    depth = [0]
    left: list[int] = []
    is_leaf = tree.children_left < 0
    for node in order:  # grows while it is read
        if is_leaf[node]:
            left.append(len(left))
            continue
        left.append(len(order))
        order += [tree.children_left[node], tree.children_right[node]]
        depth += [depth[len(left) - 1] + 1] * 2
    leaf = is_leaf[order]
    return (
        np.where(leaf, 0, tree.feature[order]),
        np.where(leaf, np.inf, tree.threshold[order]),
        np.array(left, dtype=np.intp),
        np.array(depth, dtype=np.float64),
        tree.n_node_samples[order],
    )


def _mean_path_length(n_rows: npt.NDArray[Any]) -> FloatArray:
    """Mean depth of a failed search in a binary search tree of `n_rows` (Liu et al., eq. 1)."""
    n = np.maximum(n_rows, 3).astype(np.float64)
    long = 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n
    length: FloatArray = np.where(n_rows <= 1, 0.0, np.where(n_rows == 2, 1.0, long))
    return length


# --------------------------------------------------------------------------------- iNNE
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
