"""The Mahalanobis distance by a shrunk covariance, for rows whose columns differ in unit.

O. Ledoit, M. Wolf: *A well-conditioned estimator for large-dimensional covariance matrices*.
Journal of Multivariate Analysis 88, 2004; scikit-learn's implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rejex_stream.detectors.rowwise import affine, row_sum
from rejex_stream.types import FloatArray

__all__ = ["Distance", "SoftScale", "fit_distance", "fit_scale"]

_LINEAR = 30.0
"""Deviations up to which a column counts in full; beyond, its logarithm is added, so that one wild
column orders events and drowns nothing."""
_FLOOR = 1e-9
"""Least eigenvalue, as a share of the largest."""


@dataclass(frozen=True, slots=True)
class SoftScale:
    """Standard scores that grow like a logarithm where they are absurd.

    Attributes
    ----------
    centre, spread
        Mean and standard deviation of each column; shape (d,).
    """

    centre: FloatArray
    spread: FloatArray

    def apply(self, X: FloatArray) -> FloatArray:
        """Scale finite rows X of shape (m, d)."""
        Z: FloatArray = X - self.centre
        Z /= self.spread
        size = np.abs(Z)
        if np.maximum.reduce(size, axis=None, initial=0.0) > _LINEAR:
            beyond = np.log1p(np.maximum(size - _LINEAR, 0.0))
            Z = np.sign(Z) * (np.minimum(size, _LINEAR) + np.minimum(beyond, _LINEAR))
        return Z


@dataclass(frozen=True, slots=True)
class Distance:
    """Squared distance from the mean of the training rows.

    Attributes
    ----------
    scale
        Puts columns on one scale.
    mean
        Mean of the scaled rows; shape (d,).
    root
        Whitens a scaled row; shape (d, d).
    """

    scale: SoftScale
    mean: FloatArray
    root: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d²) a row."""
        centred = self.scale.apply(X)
        centred -= self.mean
        white = affine(centred, self.root, np.zeros(self.root.shape[1]))
        white *= white
        return row_sum(white)

    def score_row(self, row: FloatArray) -> float:
        """Score one finite row of shape (d,) as :meth:`score` does, bit for bit: fewer calls."""
        z = self.scale.apply(row)
        z -= self.mean
        # Along the slow axis numpy adds one row after the other, as `affine` does.
        white = np.add.reduce(z[:, None] * self.root, axis=0)
        white *= white
        return float(np.add.accumulate(white)[-1])


def fit_scale(X: FloatArray) -> SoftScale:
    """Measure the scale of finite rows X of shape (n, d)."""
    middle = np.median(X, axis=0)
    gap = X - middle
    reach = np.abs(gap).max(axis=0)
    shares = gap / np.where(reach > 0, reach, 1.0)  # within ±1, so that no square overflows
    spread = reach * shares.std(axis=0)
    # A column that never moved has no scale: leave its unit alone.
    return SoftScale(middle + reach * shares.mean(axis=0), np.where(spread > 0, spread, 1.0))


def fit_distance(X: FloatArray) -> Distance:
    """Fit on finite rows X of shape (n, d); O(n d² + d³).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 1)) @ np.ones((1, 2)) + 0.1 * rng.normal(size=(500, 2))
    >>> along, across = fit_distance(X).score(np.array([[2.0, 2.0], [1.0, -1.0]]))
    >>> bool(along < 10 < 90 < across)
    True
    """
    from sklearn.covariance import ledoit_wolf  # sklearn is imported when it is used

    scale = fit_scale(X)
    Z = scale.apply(X)
    mean = Z.mean(axis=0)
    covariance = ledoit_wolf(Z - mean, assume_centered=True)[0]
    values, vectors = np.linalg.eigh(covariance)
    if values[-1] <= 0:  # no column moved at all
        values, vectors = np.ones_like(values), np.eye(len(values))
    root = vectors / np.sqrt(np.maximum(values, _FLOOR * values[-1]))
    return Distance(scale, mean, np.ascontiguousarray(root))
