"""Scores as probabilities, by Gaussian scaling (Kriegel et al., SDM 2011)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erf

__all__ = ["Unifier"]


@dataclass(frozen=True, slots=True)
class Unifier:
    """P(anomaly | s) = max(0, erf((s - mean) / (sd sqrt 2))), as PyOD's ``method="unify"``.

    Without the regularisation and the logarithms that Kriegel et al. offer for some detectors,
    since PyOD has none. Everything below the mean of the training scores is certainly normal.

    Examples
    --------
    >>> unify = Unifier.fit([0.0, 2.0])
    >>> unify.probability([1.0, 2.0]).round(4).tolist()
    [0.0, 0.6827]
    >>> unify.margin([1.0, 2.0]).round(4).tolist()
    [1.0, 0.3654]
    """

    mean: float
    sd: float

    @classmethod
    def fit(cls, scores: npt.ArrayLike) -> Unifier:
        """Take mean and standard deviation of the training scores."""
        scores = np.asarray(scores, dtype=np.float64)
        return cls(float(scores.mean()), float(scores.std()))

    def probability(self, scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return P(anomaly) for scores of shape (m,)."""
        scores = np.asarray(scores, dtype=np.float64)
        if self.sd == 0:
            return np.where(scores > self.mean, 1.0, 0.0)
        result: npt.NDArray[np.float64] = np.maximum(
            0.0, erf((scores - self.mean) / (self.sd * np.sqrt(2.0)))
        )
        return result

    def margin(self, scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the confidence |P(1) - P(0)| in [0, 1]."""
        return np.abs(2.0 * self.probability(scores) - 1.0)
