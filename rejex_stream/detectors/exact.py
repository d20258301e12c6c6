"""Sums and counts whose bits cannot depend on the other rows of a batch.

``X.sum(axis=1)`` and ``X @ W`` pick their order of additions by the *shape* of the whole
batch, so the same row may score differently in a batch of 1 and of 500. What stands here is
elementwise, or a running sum, whose order is its definition.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rejex_stream.types import FloatArray

__all__ = ["affine", "count_below", "row_sum"]

_SMALL_EVENTS = 16
_SMALL_EDGES = 64


def row_sum(A: FloatArray) -> FloatArray:
    """Sum each row of A of shape (m, k) from left to right; returns shape (m,).

    Examples
    --------
    >>> row_sum(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [3.0, 7.0]
    """
    total: FloatArray = np.cumsum(A, axis=1)[:, -1]
    return total


def affine(X: FloatArray, W: FloatArray, offset: FloatArray) -> FloatArray:
    """Return ``X @ W + offset`` for X (m, d) and W (d, k), adding one column of X at a time.

    Examples
    --------
    >>> affine(np.ones((1, 2)), np.array([[1.0], [2.0]]), np.array([10.0])).tolist()
    [[13.0]]
    """
    total = np.repeat(offset[None, :], len(X), axis=0)
    for column, weights in zip(X.T, W, strict=True):
        total += column[:, None] * weights
    return total


def count_below(edges: FloatArray, X: FloatArray) -> npt.NDArray[np.intp]:
    """Count, per column j, the sorted ``edges[j]`` below ``X[:, j]``; (d, b), (m, d) -> (m, d).

    O(log b) a value, or one broadcast comparison where rows and edges are few.

    Examples
    --------
    >>> count_below(np.array([[0.0, 1.0, 2.0]]), np.array([[1.0], [5.0]])).tolist()
    [[1], [3]]
    """
    if len(X) <= _SMALL_EVENTS and edges.shape[1] <= _SMALL_EDGES:
        below: npt.NDArray[np.intp] = (edges < X[:, :, None]).sum(axis=2)
        return below
    counts = np.empty(X.shape, dtype=np.intp)
    for j, column in enumerate(edges):
        counts[:, j] = np.searchsorted(column, X[:, j], side="left")
    return counts
