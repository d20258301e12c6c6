"""HBOS and LODA: histograms of the columns, and of random projections."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from rejex_stream.detectors.rowwise import affine, count_below, row_sum
from rejex_stream.types import FloatArray

__all__ = ["ColumnHistograms", "ProjectedHistograms", "fit_hbos", "fit_loda"]


@dataclass(frozen=True, slots=True)
class ColumnHistograms:
    """Sum over columns of the negative log2 height of the bin (Goldstein and Dengel, KI 2012).

    Attributes
    ----------
    edges
        Bin edges of each column, padded with +inf; shape (d, b + 1).
    reach
        Lowest and highest value that still counts as in the outer bins; shape (2, d).
    log_heights
        Per column: [below the first edge, bin 1, ..., bin b, above the last]; shape (d, b + 2).
    rarest
        Lowest log height of each column; shape (d,).
    training_scores
        Shape (n,); in sample.
    """

    few: ClassVar[int] = 64

    edges: FloatArray
    reach: FloatArray
    log_heights: FloatArray
    rarest: FloatArray
    training_scores: FloatArray
    _columns: list[tuple[float, float, float, array[float], array[float]]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        plain = (*self.reach.tolist(), self.rarest.tolist())
        arrays = ([array("d", row) for row in each] for each in (self.edges, self.log_heights))
        object.__setattr__(self, "_columns", [*zip(*plain, *arrays, strict=True)])

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d log b) a row."""
        bins = count_below(self.edges, X)
        heights = self.log_heights[np.arange(X.shape[1]), bins]
        lowest, highest = self.reach
        outside = np.less(X, lowest) | np.greater(X, highest)
        return -row_sum(np.where(outside, self.rarest, heights))

    def score_row(self, row: Sequence[float]) -> float:
        """Score one finite row as :meth:`score` does, bit for bit."""
        found = [
            heights[bisect_left(edges, x)] if lowest <= x <= highest else rarest
            for x, (lowest, highest, rarest, edges, heights) in zip(row, self._columns, strict=True)
        ]
        return -reduce(add, found)


@dataclass(frozen=True, slots=True)
class ProjectedHistograms:
    """Mean negative log frequency over random sparse projections (Pevný, Machine Learning 2016).

    Attributes
    ----------
    projections
        Shape (d, cuts).
    edges
        Inner bin edges of each cut, padded with +inf; shape (cuts, b - 1).
    surprise
        Negative log frequency of each bin, weighted; shape (cuts, b).
    training_scores
        Shape (n,); in sample.
    """

    projections: FloatArray
    edges: FloatArray
    surprise: FloatArray
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(cuts (d + log b)) a row."""
        cuts = len(self.edges)
        bins = count_below(self.edges, affine(X, self.projections, np.zeros(cuts)))
        return row_sum(self.surprise[np.arange(cuts), bins]) / cuts


def fit_hbos(make: Callable[[], Any], X: FloatArray) -> ColumnHistograms:
    """Fit HBOS on X of shape (n, d), with PyOD's parameters and meaning.

    PyOD's own ``fit`` is not called: it stalls for seconds to compile one loop, in each process.
    """
    from pyod.utils.utility import get_optimal_n_bins

    model = make()
    automatic = isinstance(model.n_bins, str) and model.n_bins.lower() == "auto"
    columns = []
    for x in X.T:
        bins = get_optimal_n_bins(x) if automatic else model.n_bins
        heights, edges = np.histogram(x, bins=bins, density=True)
        columns.append((np.log2(heights + model.alpha), edges))
    width = max(len(edges) for _, edges in columns)
    d = X.shape[1]
    all_edges = np.full((d, width), np.inf)
    log_heights = np.zeros((d, width + 1))
    reach = np.empty((2, d))
    for j, (heights, edges) in enumerate(columns):
        all_edges[j, : len(edges)] = edges
        log_heights[j, : len(edges) + 1] = np.concatenate([heights[:1], heights, heights[-1:]])
        reach[:, j] = (
            edges[0] - model.tol * (edges[1] - edges[0]),
            edges[-1] + model.tol * (edges[-1] - edges[-2]),
        )
    rarest = np.array([heights.min() for heights, _ in columns])
    fitted = ColumnHistograms(all_edges, reach, log_heights, rarest, np.empty(0))
    return replace(fitted, training_scores=fitted.score(X))


def fit_loda(make: Callable[[], Any], X: FloatArray) -> ProjectedHistograms:
    """Fit PyOD's LODA on X of shape (n, d)."""
    model = make().fit(X)
    cuts = model.n_random_cuts
    width = max(len(histogram) for histogram in model.histograms_)
    edges = np.full((cuts, width - 1), np.inf)
    surprise = np.zeros((cuts, width))
    for i, (histogram, limits) in enumerate(zip(model.histograms_, model.limits_, strict=True)):
        # PyOD looks a value up among the first b - 1 limits, the outer left one included.
        edges[i, : len(histogram) - 1] = limits[: len(histogram) - 1]
        surprise[i, : len(histogram)] = -np.log(histogram) * model.weights[i]
    fitted = ProjectedHistograms(
        np.ascontiguousarray(model.projections_.T), edges, surprise, np.empty(0)
    )
    return replace(fitted, training_scores=fitted.score(X))
