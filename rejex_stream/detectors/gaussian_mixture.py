"""Gaussian mixtures, scored without a matrix product over the batch."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add, mul, sub
from typing import Any, ClassVar

import numpy as np

from rejex_stream.detectors.rowwise import affine, row_sum
from rejex_stream.types import FloatArray

__all__ = ["GaussianMixture", "fit_gmm"]


_MOST_PRODUCTS = 400  # of plain floats; more are cheaper in numpy, whatever its calls cost


@dataclass(frozen=True, slots=True)
class GaussianMixture:
    """Negative log-likelihood of a row under K Gaussians in d dimensions.

    Attributes
    ----------
    means, precisions_root
        Shapes (K, d) and (K, d, d); ``precisions_root[k]`` whitens component k.
    log_constants
        Log weight, log determinant and 2π of each component; shape (K,).
    training_scores
        Shape (n,); in sample, so too low: prefer another calibration than ``training``.
    """

    few: ClassVar[int] = 64

    means: FloatArray
    precisions_root: FloatArray
    log_constants: FloatArray
    training_scores: FloatArray
    _plain: tuple[float, list[float], list[array[float]]] | None = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        root = self.precisions_root[0]
        few = len(self.means) == 1 and np.count_nonzero(root) <= _MOST_PRODUCTS
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
        """Score one finite row as :meth:`score` does, bit for bit."""
        if self._plain is None:
            return float(self.score(np.array([row]))[0])
        constant, mean, columns = self._plain
        centred = [*map(sub, row, mean)]
        total = 0.0
        for column in columns:
            white = reduce(add, map(mul, centred, column), 0.0)
            total += white * white
        return -(constant - 0.5 * total)


def fit_gmm(make: Callable[[], Any], X: FloatArray) -> GaussianMixture:
    """Fit PyOD's GMM on X of shape (n, d)."""
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
