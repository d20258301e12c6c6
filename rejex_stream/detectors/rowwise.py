"""Scores whose bits cannot depend on the other rows of a batch.

``X.sum(axis=1)`` and ``X @ W`` pick their order of additions by the *shape* of the whole
batch, so the same row may score differently in a batch of 1 and of 500. The sums and counts here
are elementwise, or a running sum, whose order is its definition. Where PyOD itself must score,
it gets a batch at once if rows are provably apart, else one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rejex_stream.errors import DetectorError
from rejex_stream.types import FloatArray

_SMALL_EVENTS = 16
_SMALL_EDGES = 64
_SMALL_PRODUCTS = 1 << 19


def row_sum(A: FloatArray) -> FloatArray:
    """Sum each row of A of shape (m, k) from left to right; returns shape (m,)."""
    total: FloatArray
    if len(A) > 1 and A.strides[0] < A.strides[1]:  # along the slow axis, one column after another
        total = np.add.reduce(A, axis=1)
    else:
        total = A.cumsum(axis=1)[:, -1]
    return total


def affine(X: FloatArray, W: FloatArray, offset: FloatArray) -> FloatArray:
    """Return ``X @ W + offset`` for X (m, d) and W (d, k), adding one column of X at a time."""
    # Few rows: the same additions in the same order, in one call; along the fast axis of memory,
    # and along no other, numpy would add in pairs.
    if len(X) <= _SMALL_EVENTS and len(X) * W.size <= _SMALL_PRODUCTS:
        terms = np.empty((len(X), len(W) + 1, W.shape[1]))
        terms[:, 0] = offset
        np.multiply(X[:, :, None], W, out=terms[:, 1:])
        if W.shape[1] == 1:
            return row_sum(terms[:, :, 0])[:, None]
        added: FloatArray = np.add.reduce(terms, axis=1)
        return added
    total = np.repeat(offset[:, None], len(X), axis=1)  # rows of X along the fast axis
    product = np.empty_like(total)
    for column, weights in zip(X.T.copy(), W[:, :, None], strict=True):
        np.multiply(weights, column, out=product)
        total += product
    return total.T


def one_by_one(function: Callable[[float], float], X: FloatArray) -> FloatArray:
    """Return a function of each value: vectorised, it has other bits beside other values."""
    return np.fromiter(map(function, X.ravel().tolist()), np.float64, X.size).reshape(X.shape)


def count_below(edges: FloatArray, X: FloatArray) -> npt.NDArray[np.intp]:
    """Count, per column j, the sorted ``edges[j]`` below ``X[:, j]``; (d, b), (m, d) -> (m, d).

    O(log b) a value, or one broadcast comparison where rows and edges are few.
    """
    if len(X) <= _SMALL_EVENTS and edges.shape[1] <= _SMALL_EDGES:
        below: npt.NDArray[np.intp] = (edges < X[:, :, None]).sum(axis=2)
        return below
    counts = np.empty(X.shape, dtype=np.intp)
    for j, column in enumerate(edges):
        counts[:, j] = np.searchsorted(column, X[:, j], side="left")
    return counts


# --------------------------------------------------------------------------- PyOD's own
@dataclass(frozen=True, slots=True)
class RowByRow:
    """Scores by a library: rows by one call each, slow and safe, or all at once where `apart`."""

    model: Any
    training_scores: FloatArray
    apart: bool = False  # the library handles each row of a batch by itself

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d)."""
        if self.apart:
            return np.asarray(self.model.decision_function(X))
        scores = np.empty(len(X))
        for i in range(len(X)):
            # A copy, so that no detector gets hold of the caller's memory.
            scores[i] = np.ravel(self.model.decision_function(X[i : i + 1].copy()))[0]
        return scores


def fit_apart(make: Callable[[], Any], X: FloatArray) -> RowByRow:
    """Fit a PyOD class that sums kernels one row at a time: OCSVM by libsvm, KDE by a tree."""
    model = make().fit(X)
    return RowByRow(model, model.decision_scores_, apart=True)


def fit_row_by_row(make: Callable[[], Any], X: FloatArray) -> RowByRow:
    """Fit any PyOD class on X of shape (n, d)."""
    model = make().fit(X)
    scorer = RowByRow(model, np.ravel(model.decision_scores_))
    probe = X[:3]
    try:
        first, second = scorer.score(probe), scorer.score(probe)
    except Exception as error:
        raise DetectorError(
            f"{type(model).__name__} cannot score a single row ({error}), so it cannot work on a "
            f"stream; choose another detector."
        ) from error
    if not np.array_equal(first, second, equal_nan=True):
        raise DetectorError(
            f"{type(model).__name__} gave one row two scores ({first[0]!r}, {second[0]!r}); "
            f"a verdict must be repeatable: choose another detector."
        )
    return scorer
