"""A fitted model with a guard around it: shapes are checked, rows that are not finite score nan.

Where a model has `score_without`, a row that lacks some columns (nan) is scored by the others.

A call of numpy costs as much as the arithmetic of a small model, so a model that has `score_row`
scores a row that comes alone by the same additions in the same order, on plain floats or in fewer
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass, replace

import numpy as np

from rejex_stream.detectors.scaling import Scale
from rejex_stream.errors import DetectorError
from rejex_stream.protocols import Scorer
from rejex_stream.types import ColumnGroups, FloatArray, RestingRange

_NOTHING = (np.empty(0, dtype=np.intp),)


@dataclass(frozen=True, slots=True)
class TableScorer:
    """A fitted detector; a row that is not finite scores ``nan``, but where parts of rows do."""

    name: str
    n_columns: int
    scale: Scale | None
    inner: Scorer
    # shape (n,), on the scale of :meth:`score`; leave-one-out for KNN, LOF, ECOD and COPOD, in
    # sample (too low) for the others; ``None`` where they are those of :meth:`score`, or nobody
    # asks for them any more (:meth:`without_training`)
    training_scores: FloatArray | None = None
    # channels that rested in the training rows, and are out of the score
    resting: tuple[RestingRange, ...] = ()

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d), high = anomalous; a row's score is its own, bit for bit."""
        X = np.ascontiguousarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_columns:
            raise DetectorError(
                f"{self.name} was fitted on {self.n_columns} columns and got rows of shape "
                f"{X.shape}; give an array of shape (m, {self.n_columns})."
            )
        if len(X) == 0:
            return np.empty(0)
        with np.errstate(all="ignore"):
            if self.scale is not None:
                X = self.scale.apply(X)
            finite = np.isfinite(X)
            if finite.all():
                return self.inner.score(X)
            scores = np.full(len(X), np.nan)
            readable = finite.all(axis=1)
            if readable.any():
                scores[readable] = self.inner.score(np.ascontiguousarray(X[readable]))
            partial = np.flatnonzero(~readable & finite.any(axis=1) & ~np.isinf(X).any(axis=1))
            if len(partial) and (by_others := self.score_without(X[partial], _NOTHING)) is not None:
                scores[partial] = by_others[:, 0]
            return scores

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Score rows X of shape (m, d), some with nan, by all columns but those of each group.

        Shape (m, g); ``None`` where the model cannot.
        """
        without = getattr(self.inner, "score_without", None)
        if without is None or self.scale is not None:
            return None
        with np.errstate(all="ignore"):
            if not np.isnan(X).any():
                scores: FloatArray | None = without(X, groups)
                return scores
            parts = [without(row, groups) for row in X[:, None]]
            return None if parts[0] is None else np.concatenate(parts)

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Return what all other columns make one expect of the first of each group of columns.

        Value, ends of its likely range, and 1 where the hour says so and no other column, shape
        (m, g, 4); nan where unknown or no better than what is usual. ``None`` where the model
        cannot.
        """
        own = getattr(self.inner, "given_others", None)
        return None if own is None or self.scale is not None else own(X, groups)

    def by_row(self) -> Callable[[Sequence[float]], float]:
        """Return what scores one finite row as :meth:`score` does, bit for bit."""
        own: Callable[[Sequence[float]], float] | None = getattr(self.inner, "score_row", None)
        if own is None or self.scale is not None:
            return lambda row: float(self.score(np.array([row]))[0])
        return own

    def without_training(self) -> TableScorer:
        """Return the same model without its training scores: 8 bytes a row, if not twice."""
        inner = self.inner
        if is_dataclass(inner) and hasattr(inner, "training_scores"):
            inner = copy(inner)  # with what it has made of its fields
            object.__setattr__(inner, "training_scores", np.empty(0))
        return replace(self, inner=inner, training_scores=None)


def training_table(name: str, X: FloatArray, min_rows: int = 1) -> FloatArray:
    """Return a copy of the training rows X of shape (n, d)."""
    X = np.array(X, dtype=np.float64, order="C")  # trees keep a view: never the caller's rows
    if X.ndim != 2 or 0 in X.shape:
        raise DetectorError(f"{name} needs rows of shape (n, d), got shape {X.shape}.")
    if len(X) < min_rows:
        raise DetectorError(f"{name} cannot be fitted on {len(X)} rows: give at least {min_rows}.")
    if not (finite := np.isfinite(X).all(axis=1)).all():
        raise DetectorError(
            f"{name} cannot be fitted: {np.count_nonzero(~finite)} of {len(X)} rows hold a value "
            f"that is not finite; leave such rows out."
        )
    return X
