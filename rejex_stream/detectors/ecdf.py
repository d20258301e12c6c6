"""ECOD and COPOD against the training rows alone.

PyOD ranks a row among the training rows *plus the batch it arrives in*, so a verdict would
depend on its neighbours. Here a row is ranked among the n training rows and itself: exactly
PyOD's score of a batch of one, except that the signs of the skewness are those of the training
rows. A training row counts itself once already, so PyOD's training scores are the leave-one-out
form of the same number, and ``calibration = "training"`` is honest.

Li et al., *ECOD* (TKDE 2022) and *COPOD* (ICDM 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rejex_stream.detectors.rowwise import row_sum
from rejex_stream.types import FloatArray

__all__ = ["EcdfTails", "fit_copod", "fit_ecod"]


@dataclass(frozen=True, slots=True)
class EcdfTails:
    """Sum over columns of the surprise of the more surprising tail.

    Attributes
    ----------
    columns
        Sorted training values, shape (d, n).
    skew_sign
        -1 where the left tail is the long one, +1 for the right one, 0 for neither; shape (d,).
    joint
        COPOD: the mean of both tails joins the comparison; ECOD: each tail.
    training_scores
        Shape (n,).
    """

    columns: FloatArray
    skew_sign: FloatArray
    joint: bool
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); O(d log n) a row."""
        n = self.columns.shape[1]
        surprise = _surprise(n + 1)
        left = np.empty(X.shape)
        right = np.empty(X.shape)
        for j, column in enumerate(self.columns):
            x = X[:, j]
            left[:, j] = surprise[np.searchsorted(column, x, side="right")]
            right[:, j] = surprise[n - np.searchsorted(column, x, side="left")]
        return _combine(left, right, self.skew_sign, self.joint)


def fit_ecod(_make: Any, X: FloatArray) -> EcdfTails:  # noqa: ANN401 - ECOD needs no PyOD object
    """Fit ECOD on X of shape (n, d)."""
    return _fit(X, joint=False)


def fit_copod(_make: Any, X: FloatArray) -> EcdfTails:  # noqa: ANN401 - COPOD needs none either
    """Fit COPOD on X of shape (n, d)."""
    return _fit(X, joint=True)


def _fit(X: FloatArray, *, joint: bool) -> EcdfTails:
    n = len(X)
    columns = np.ascontiguousarray(np.sort(X, axis=0).T)
    skew_sign = _skew_sign(X)
    surprise = _surprise(n)
    left = np.empty(X.shape)
    right = np.empty(X.shape)
    for j, column in enumerate(columns):
        left[:, j] = surprise[np.searchsorted(column, X[:, j], side="right") - 1]
        right[:, j] = surprise[n - np.searchsorted(column, X[:, j], side="left") - 1]
    return EcdfTails(columns, skew_sign, joint, _combine(left, right, skew_sign, joint))


def _skew_sign(X: FloatArray) -> FloatArray:
    """Sign of the third central moment; 0 where a column does not vary beyond rounding."""
    mean = X.mean(axis=0)
    gap = X - mean
    rounding = np.finfo(np.float64).eps * mean
    varies = (gap**2).mean(axis=0) > rounding**2
    sign: FloatArray = np.where(varies, np.sign((gap**3).mean(axis=0)), 0.0)
    return sign


def _surprise(n: int) -> FloatArray:
    """``surprise[k] = -log((k + 1) / n)``: k others and the row itself out of n."""
    table: FloatArray = -np.log(np.arange(1, n + 1) / n)
    return table


def _combine(left: FloatArray, right: FloatArray, skew_sign: FloatArray, joint: bool) -> FloatArray:
    skewed = left * (skew_sign <= 0) + right * (skew_sign >= 0)
    both = (left + right) / 2 if joint else np.maximum(left, right)
    return row_sum(np.maximum(skewed, both))
