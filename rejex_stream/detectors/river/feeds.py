"""How rows reach a River model: all columns at once, or one model for each column.

River calls its univariate detectors *supervised*: ``score_one(x, y)`` judges the value y. Here
each column gets its own model and the highest score speaks for the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from river import anomaly, time_series

from rejex_stream.detectors.river.components import is_a
from rejex_stream.types import FloatArray

__all__ = ["AllColumns", "EachColumn", "Feed"]

_CLIP = 10.0


class Feed(Protocol):
    """Scores and learns rows of shape (d,) with River models.

    Its state is its models and the `previous` row, of shape (0,) where none is needed.
    """

    models: list[Any]
    previous: FloatArray

    def score(self, x: FloatArray) -> float:
        """Score one row without changing a model."""
        ...

    def learn(self, x: FloatArray) -> None:
        """Learn one row."""
        ...


@dataclass(slots=True)
class AllColumns:
    """One model that sees the whole row; `sign` is -1 where its score is high for normal rows."""

    columns: Sequence[str]
    models: list[Any]
    sign: float = 1.0
    previous: FloatArray = field(default_factory=lambda: np.empty(0))

    def score(self, x: FloatArray) -> float:
        """Score one row of shape (d,)."""
        return self.sign * float(self.models[0].score_one(self._row(x)))

    def learn(self, x: FloatArray) -> None:
        """Learn one row of shape (d,)."""
        self.models[0].learn_one(self._row(x))

    def _row(self, x: FloatArray) -> dict[str, float]:
        return dict(zip(self.columns, x.tolist(), strict=True))


@dataclass(slots=True)
class EachColumn:
    """One model a column; the row scores as its worst column.

    A predictive model is given, for column j, the other columns of this row and all columns of
    the row before it, so that it notices both a jump and a broken correlation.
    """

    columns: Sequence[str]
    models: list[Any]
    previous: FloatArray

    def score(self, x: FloatArray) -> float:
        """Score one row of shape (d,)."""
        return max(
            _deviation(model, self._regressors(x, j), float(x[j]))
            for j, model in enumerate(self.models)
        )

    def learn(self, x: FloatArray) -> None:
        """Learn one row of shape (d,)."""
        for j, model in enumerate(self.models):
            regressors, y = self._regressors(x, j), float(x[j])
            if _predicts(model):
                # River updates the error statistics in score_one, so learning includes it.
                model.score_one(regressors, y)
            model.learn_one(regressors, y)
        self.previous = x.copy()

    def _regressors(self, x: FloatArray, j: int) -> dict[str, float] | None:
        if not _takes_regressors(self.models[j]):
            return None
        # A gradient step grows with the square of its input: bound it.
        now, before = np.clip([x, self.previous], -_CLIP, _CLIP).tolist()
        row = {f"{name} before": value for name, value in zip(self.columns, before, strict=True)}
        row |= zip(self.columns, now, strict=True)
        del row[self.columns[j]]
        return row


def _predicts(model: Any) -> bool:  # noqa: ANN401
    return is_a(model, anomaly.PredictiveAnomalyDetection)


def _takes_regressors(model: Any) -> bool:  # noqa: ANN401
    return _predicts(model) and not is_a(model.predictive_model, time_series.base.Forecaster)


def _deviation(model: Any, regressors: dict[str, float] | None, y: float) -> float:  # noqa: ANN401
    if not _predicts(model):
        return float(model.score_one(regressors, y))
    # River's score_one learns the error it scores, and calls every error above its threshold 1.0;
    # ranks need the ratio itself, and scoring must change nothing.
    if _takes_regressors(model):
        predicted = model.predictive_model.predict_one(regressors)
    else:
        predicted = model.predictive_model.forecast(model.horizon)[0]
    error = float((predicted - y) ** 2)
    spread = math.sqrt(model.dynamic_se_variance.get())
    threshold = model.dynamic_mae.get() + model.n_std * spread
    return error / threshold if threshold > 0 else error
