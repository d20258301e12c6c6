"""PyOD detectors scored by PyOD: a batch at once where rows are provably apart, else row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rejex_stream.errors import DetectorError
from rejex_stream.types import FloatArray

__all__ = ["RowByRow", "RowsApart", "fit_ocsvm", "fit_row_by_row"]


@dataclass(frozen=True, slots=True)
class RowsApart:
    """Score a batch in one call, for a library that handles each row by itself."""

    model: Any
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d)."""
        scores: FloatArray = self.model.decision_function(X)
        return scores


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Score each row by its own call: slow, and safe whatever the library does with a batch."""

    model: Any
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d)."""
        scores = np.empty(len(X))
        for i in range(len(X)):
            # A copy, so that no detector gets hold of the caller's memory.
            scores[i] = np.ravel(self.model.decision_function(X[i : i + 1].copy()))[0]
        return scores


def fit_ocsvm(make: Callable[[], Any], X: FloatArray) -> RowsApart:
    """Fit PyOD's OCSVM on X of shape (n, d); libsvm sums the kernels of one row at a time."""
    model = make().fit(X)
    return RowsApart(model, model.decision_scores_)


def fit_row_by_row(make: Callable[[], Any], X: FloatArray) -> RowByRow:
    """Fit any PyOD class on X of shape (n, d).

    Raises
    ------
    DetectorError
        Where a single row cannot be scored, or scores differently the second time.
    """
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
