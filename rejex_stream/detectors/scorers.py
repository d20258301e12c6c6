"""How PyOD's fast detectors score a row, so that no batch changes a bit.

PyOD fits; what scores here are the fitted numbers and arithmetic of our own, row by row. Where
PyOD takes about a millisecond to score a row alone it does so itself
(:mod:`rejex_stream.detectors.rowwise`). Here are:

* Histograms of the columns: Goldstein and Dengel (KI 2012).
* Forests as flat arrays, all trees walked at once, level by level, for scikit-learn spends 7-12 ms
  on a row: Liu, Ting, Zhou, *Isolation Forest* (ICDM 2008). Spheres around a few training rows,
  many times over: Bandaragoda et al., *Isolation-based anomaly detection using nearest-neighbor
  ensembles* (Computational Intelligence 2018).
* The nearest neighbours on a space-partitioning tree, which answers each row by itself; brute
  force, which scikit-learn picks from 16 columns on, multiplies matrices and does not.
* ECOD and COPOD (Li et al., TKDE 2022 and ICDM 2020) against the training rows alone. PyOD ranks a
  row among these *plus the batch it arrives in*. Here it is ranked among the n training rows and
  itself: exactly PyOD's score of a batch of one, except that the signs of the skewness are those of
  the training rows. A training row counts itself once already, so PyOD's training scores are the
  leave-one-out form of the same number, and ``calibration = "training"`` is honest.
* Gaussian mixtures without a matrix product over the batch.

`training_scores` have shape (n,) everywhere: leave-one-out for KNN, LOF, ECOD and COPOD, in sample
(too low: prefer another calibration than ``training``) for the others. KDE's are 12 times too low
in 10 columns, where each row sees its own kernel.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import repeat
from operator import add, mul, sub
from typing import Any

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.rowwise import RowByRow, affine, count_below, fit_row_by_row, row_sum
from rejex_stream.errors import DetectorError
from rejex_stream.protocols import Scorer
from rejex_stream.types import FloatArray

Make = Callable[[], Any]
"""Makes the PyOD object with the recipe's parameters, which is then fitted."""

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_NODES_AT_ONCE = 1 << 17
_DISTANCES_AT_ONCE = 1 << 18
_TINY = float(np.finfo(float).eps)
_VALUES_AT_ONCE, _TRIED = 1 << 16, 64
_MAX_PRODUCTS = 400  # of plain floats; more are cheaper in numpy, whatever its calls cost


# -------------------------------------------------------------------------------------------- HBOS
@dataclass(frozen=True, slots=True)
class ColumnHistograms:
    """Sum over columns of the negative log2 height of the bin (Goldstein and Dengel, KI 2012)."""

    edges: FloatArray  # bin edges of each column, padded with +inf; shape (d, b + 1)
    # lowest and highest value that still counts as in the outer bins; shape (2, d)
    reach: FloatArray
    # per column: [below the first edge, bin 1, ..., bin b, above the last]; shape (d, b + 2)
    log_heights: FloatArray
    rarest: FloatArray  # lowest log height of each column; shape (d,)
    training_scores: FloatArray
    # The same column by column: edges, of which the reach makes two, and, as far from the first of
    # all, the height below each. What lies scattered costs many sensors more than the search.
    _edges: array[float] = field(init=False, repr=False, compare=False)
    _heights: array[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        below, highest = np.nextafter(self.reach[0], -np.inf)[:, None], self.reach[1][:, None]
        rarest, end = self.rarest[:, None], np.full_like(highest, np.inf)
        edges = np.sort(np.hstack((below, self.edges, highest, end)))
        before = edges[:, :-1]
        bins = (self.edges[:, None] <= before[:, :, None]).sum(axis=2)
        inside = (below <= before) & (before < highest)
        heights = np.where(inside, np.take_along_axis(self.log_heights, bins, axis=1), rarest)
        object.__setattr__(self, "_edges", array("d", edges.tobytes()))
        object.__setattr__(self, "_heights", array("d", np.hstack((rarest, heights)).tobytes()))

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d log b) a row."""
        bins = count_below(self.edges, X)
        heights = self.log_heights[np.arange(X.shape[1]), bins]
        lowest, highest = self.reach
        outside = np.less(X, lowest) | np.greater(X, highest)
        return -row_sum(np.where(outside, self.rarest, heights))

    def score_row(self, row: Sequence[float]) -> float:
        edges, size = self._edges, len(self._edges)
        width = size // len(row)
        at, ends = range(0, size, width), range(width - 1, size, width)
        bins = map(bisect_left, repeat(edges), row, at, ends)
        return -reduce(add, map(self._heights.__getitem__, bins))


def fit_hbos(make: Make, X: FloatArray) -> ColumnHistograms:
    """Fit HBOS on X of shape (n, d), with PyOD's parameters and meaning.

    PyOD's own ``fit`` is not called: it stalls for seconds to compile one loop, in each process.
    """
    from pyod.utils.utility import get_optimal_n_bins

    model = make()
    automatic = isinstance(model.n_bins, str) and model.n_bins.lower() == "auto"
    columns = []
    for x in X.T:
        n_bins = get_optimal_n_bins(x) if automatic else model.n_bins
        heights, edges = np.histogram(x, n_bins, density=True)
        columns.append((np.log2(heights + model.alpha), edges))
    width = max(len(edges) for _, edges in columns)
    d = X.shape[1]
    all_edges = np.full((d, width), np.inf)
    log_heights = np.zeros((d, width + 1))
    reach = np.empty((2, d))
    for j, (heights, edges) in enumerate(columns):
        all_edges[j, : len(edges)] = edges
        log_heights[j, : len(edges) + 1] = np.concatenate([heights[:1], heights, heights[-1:]])
        first, last = edges[1] - edges[0], edges[-1] - edges[-2]
        reach[:, j] = edges[0] - model.tol * first, edges[-1] + model.tol * last
    rarest = np.array([heights.min() for heights, _ in columns])
    fitted = ColumnHistograms(all_edges, reach, log_heights, rarest, np.empty(0))
    object.__setattr__(fitted, "training_scores", fitted.score(X))
    return fitted


# ----------------------------------------------------------------------------------- IForest, INNE
def _in_pieces(score: Callable[[FloatArray], FloatArray], X: FloatArray, size: int) -> FloatArray:
    size = max(1, size)
    if len(X) <= size:
        return score(X)
    return np.concatenate([score(X[i : i + size]) for i in range(0, len(X), size)])


@dataclass(frozen=True, slots=True)
class IsolationForest:
    """Isolation score in (0, 1]: PyOD's, without the offset that depends on the fit."""

    roots: npt.NDArray[np.intp]  # node number of each root; shape (trees,)
    # per node; the right child is ``left + 1``; a leaf has threshold +inf and is its own left
    # child, so that walking on stays there
    feature: npt.NDArray[np.intp]
    threshold: FloatArray
    left: npt.NDArray[np.intp]
    path_length: FloatArray  # per leaf: depth plus what the rows left in it would still need
    levels: int  # depth of the deepest tree
    normaliser: float  # expected total path length over all trees
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(trees * levels) a row."""
        return _in_pieces(self._score, X, _NODES_AT_ONCE // len(self.roots))

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


def fit_iforest(make: Make, X: FloatArray) -> IsolationForest:
    """Fit PyOD's IForest on X (n, d)."""
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
        roots=np.array(roots, dtype=np.intp), feature=np.concatenate(features),
        threshold=np.concatenate(thresholds), left=np.concatenate(lefts),
        path_length=np.concatenate(lengths), levels=levels, normaliser=normaliser or 1.0,
        training_scores=np.empty(0),
    )  # fmt: skip
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
        np.where(leaf, 0, tree.feature[order]), np.where(leaf, np.inf, tree.threshold[order]),
        np.array(left, dtype=np.intp), np.array(depth, dtype=np.float64),
        tree.n_node_samples[order],
    )  # fmt: skip


def _mean_path_length(n_rows: npt.NDArray[Any]) -> FloatArray:
    """Mean depth of a failed search in a binary search tree of `n_rows` (Liu et al., eq. 1)."""
    n = np.maximum(n_rows, 3).astype(np.float64)
    long = 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n
    length: FloatArray = np.where(n_rows <= 1, 0.0, np.where(n_rows == 2, 1.0, long))
    return length


@dataclass(frozen=True, slots=True)
class NearestNeighbourEnsemble:
    """Mean isolation of a row over t ensembles of s spheres."""

    centres: FloatArray  # shape (d, t, s)
    radii: FloatArray  # squared distance of each centre to the nearest other one; shape (t, s)
    isolation: FloatArray  # how much smaller the neighbour's sphere is, in [0, 1]; shape (t, s)
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d t s) a row."""
        return _in_pieces(self._score, X, _DISTANCES_AT_ONCE // self.radii.size)

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


def fit_inne(make: Make, X: FloatArray) -> NearestNeighbourEnsemble:
    """Fit PyOD's INNE on X of shape (n, d).

    PyOD draws the centres; radii are measured again, by the same subtraction that scores a row.
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
    shape = (len(X),) + (1,) * (centres.ndim - 1)
    total = np.zeros((len(X), *centres.shape[1:]))
    for x, centre in zip(X.T, centres, strict=True):
        gap = x.reshape(shape) - centre
        gap *= gap
        total += gap
    return total


# --------------------------------------------------------------------------------------------- KNN
@dataclass(frozen=True, slots=True)
class NeighbourDistance:
    """Distance to the k-th nearest training row, or the mean or median over the k nearest."""

    tree: Any
    k: int
    method: str
    training_scores: FloatArray
    columns: FloatArray | None = None  # of training rows, (d, n), if to look at all is quicker

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); about O(d log n) a row at few columns, O(d n) at many."""
        if len(X) > 1 or self.columns is None:
            distances: FloatArray = self.tree.query(X, k=self.k)[0]
        else:
            distances = nearest(X, self.columns, self.k)
        if self.method == "largest":
            return distances[:, -1].copy()
        if self.method == "mean":
            return row_sum(distances) / self.k
        return (distances[:, (self.k - 1) // 2] + distances[:, self.k // 2]) / 2


def nearest(x: FloatArray, columns: FloatArray, k: int) -> FloatArray:
    """Return what a tree says of one row x of shape (1, d), bit for bit: to ask it costs more."""
    gap = columns - x.T
    gap *= gap
    # Along the slow axis numpy adds one row after the other, as the tree adds columns.
    squares = np.partition(np.add.reduce(gap), k - 1)[None, :k]
    found: FloatArray = np.sqrt(np.sort(squares))
    return found


def fit_knn(make: Make, X: FloatArray) -> Scorer:
    """Fit PyOD's KNN on X (n, d)."""
    model = make().fit(X)
    tree = model.neigh_._tree
    if tree is None:  # a metric that no tree knows: brute force
        return RowByRow(model, model.decision_scores_)
    made = NeighbourDistance(tree, model.n_neighbors, model.method, model.decision_scores_)
    if X.size > _VALUES_AT_ONCE or model.neigh_.effective_metric_ != "euclidean":
        return made
    columns, some = X.T.copy(), X[:: max(1, len(X) // _TRIED)]
    own = np.concatenate([nearest(row[None], columns, made.k) for row in some])
    # A compiler may have the tree add otherwise.
    is_same = np.array_equal(own, tree.query(some, k=made.k)[0])
    return replace(made, columns=columns) if is_same else made


# ------------------------------------------------------------------------------------- ECOD, COPOD
@dataclass(frozen=True, slots=True)
class EcdfTails:
    """Sum over columns of the surprise of the more surprising tail."""

    columns: FloatArray  # sorted training values, shape (d, n)
    # -1 where the left tail is the long one, +1 for the right one, 0 for neither; shape (d,)
    skew_sign: FloatArray
    joint: bool  # COPOD: the mean of both tails joins the comparison; ECOD: each tail
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d log n) a row."""
        return self.of_others(X, self.columns.shape[1])

    def of_others(self, X: FloatArray, n: int) -> FloatArray:
        """Score rows among n others, be it that they are training rows themselves."""
        itself = self.columns.shape[1] - n
        surprise = -np.log(np.arange(1, n + 2) / (n + 1))  # [k]: k others and the row itself
        left, right = np.empty((2, *X.shape))
        for j, column in enumerate(self.columns):
            left[:, j] = surprise[np.searchsorted(column, X[:, j], side="right") - itself]
            right[:, j] = surprise[n - np.searchsorted(column, X[:, j], side="left")]
        skewed = left * (self.skew_sign <= 0) + right * (self.skew_sign >= 0)
        both = (left + right) / 2 if self.joint else np.maximum(left, right)
        return row_sum(np.maximum(skewed, both))


def fit_tails(_make: Any, X: FloatArray, *, joint: bool) -> EcdfTails:  # noqa: ANN401 - of PyOD
    """Fit ECOD, or COPOD where tails are joint, on X of shape (n, d)."""
    columns = np.ascontiguousarray(np.sort(X, axis=0).T)
    fitted = EcdfTails(columns, _skew_sign(X), joint, np.empty(0))
    return replace(fitted, training_scores=fitted.of_others(X, len(X) - 1))


def _skew_sign(X: FloatArray) -> FloatArray:
    """Sign of the third central moment; 0 where a column does not vary beyond rounding."""
    mean = X.mean(axis=0)
    gap = X - mean
    rounding = np.finfo(np.float64).eps * mean
    varies = (gap**2).mean(axis=0) > rounding**2
    sign: FloatArray = np.where(varies, np.sign((gap**3).mean(axis=0)), 0.0)
    return sign


# --------------------------------------------------------------------------------------------- GMM
@dataclass(frozen=True, slots=True)
class GaussianMixture:
    """Negative log-likelihood of a row under K Gaussians in d dimensions."""

    means: FloatArray  # shapes (K, d) and (K, d, d); ``precisions_root[k]`` whitens component k
    precisions_root: FloatArray
    log_constants: FloatArray  # log weight, log determinant and 2π of each component; shape (K,)
    training_scores: FloatArray
    _plain: tuple[float, list[float], list[array[float]]] | None = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        root = self.precisions_root[0]
        few = len(self.means) == 1 and np.count_nonzero(root) <= _MAX_PRODUCTS
        # What is behind the last number that is not 0 adds nothing.
        columns = [array("d", np.trim_zeros(column, "b")) for column in root.T]
        plain = (float(self.log_constants[0]), self.means[0].tolist(), columns) if few else None
        object.__setattr__(self, "_plain", plain)

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(K d²) a row."""
        log_terms = np.empty((len(X), len(self.means)))
        zero = np.zeros(X.shape[1])
        for k, (mean, root) in enumerate(zip(self.means, self.precisions_root, strict=True)):
            white = affine(X - mean, root, zero)
            log_terms[:, k] = self.log_constants[k] - 0.5 * row_sum(white * white)
        if log_terms.shape[1] == 1:
            return -log_terms[:, 0]
        top: FloatArray = log_terms.max(axis=1)
        return -(top + np.log(row_sum(np.exp(log_terms - top[:, None]))))

    def score_row(self, row: Sequence[float]) -> float:
        if self._plain is None:
            return float(self.score(np.array([row]))[0])
        constant, mean, columns = self._plain
        centred = [*map(sub, row, mean)]
        total = 0.0
        for column in columns:
            white = reduce(add, map(mul, centred, column), 0.0)
            total += white * white
        return -(constant - 0.5 * total)


def fit_gmm(make: Make, X: FloatArray) -> GaussianMixture:
    """Fit PyOD's GMM on X (n, d)."""
    model = make().fit(X)
    mixture = model.detector_
    K, d = mixture.means_.shape
    roots = _square_roots(mixture.precisions_cholesky_, mixture.covariance_type, K, d)
    diagonals = np.diagonal(roots, axis1=1, axis2=2)
    constants = (
        np.log(mixture.weights_) + np.log(diagonals).sum(axis=1) - 0.5 * d * np.log(2 * np.pi)
    )
    return GaussianMixture(mixture.means_, roots, constants, np.asarray(model.decision_scores_))


def _square_roots(roots: FloatArray, covariance_type: str, K: int, d: int) -> FloatArray:
    """Bring scikit-learn's four forms to the one of ``full``, shape (K, d, d)."""
    if covariance_type == "full":
        return roots
    if covariance_type == "tied":
        return np.repeat(roots[None], K, axis=0)
    diagonal = roots if covariance_type == "diag" else np.repeat(roots[:, None], d, axis=1)
    full: FloatArray = diagonal[:, :, None] * np.eye(d)
    return full


# ---------------------------------------------------------------------------------------------- AE
def fit_autoencoder(make: Make, X: FloatArray) -> RowByRow:
    """Fit PyOD's AutoEncoder on X of shape (n, d)."""

    def made() -> Any:  # noqa: ANN401 - PyOD is untyped
        model = make()
        if len(X) < model.batch_size:
            raise DetectorError(
                f"An autoencoder with batch_size = {model.batch_size} learns nothing from "
                f"{len(X)} rows; fit on more rows or lower batch_size."
            )
        return model

    return fit_row_by_row(made, X)
