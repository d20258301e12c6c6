"""River's models: what they are made of, how rows reach them, and the one of our own among them.

River calls its univariate detectors *supervised*: ``score_one(x, y)`` judges the value y. Here each
column gets its own model and the highest score speaks for the row.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Protocol

import numpy as np
from river import anomaly, base, compose, proba, time_series

from rejex_stream.types import FloatArray

_CLIP = 10.0


def is_a(model: Any, kind: type | tuple[type, ...]) -> bool:  # noqa: ANN401
    """Tell what a model is itself; River's own ``isinstance`` speaks for what it wraps."""
    return issubclass(type(model), kind)


def parts(model: Any) -> Iterator[Any]:  # noqa: ANN401
    """Walk the model and every estimator and function it is made of."""
    yield model
    if is_a(model, compose.Pipeline):
        inner = list(model.steps.values())
    elif is_a(model, compose.TransformerUnion):
        inner = list(model.transformers.values())
    elif is_a(model, base.Base):
        inner = [getattr(model, name, None) for name in _parameters(model.__class__)]
    else:
        return
    for part in inner:
        if is_a(part, base.Base) or isinstance(part, FunctionType):
            yield from parts(part)


@functools.cache
def _parameters(cls: Any) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(inspect.signature(cls).parameters)


def last_step(model: Any) -> Any:  # noqa: ANN401
    """Return the model itself, or the last step of a pipeline."""
    return list(model.steps.values())[-1] if is_a(model, compose.Pipeline) else model


def ends_in_a_detector(model: Any) -> bool:  # noqa: ANN401
    """Tell whether a model gives an anomaly score."""
    kinds = (base.AnomalyDetector, base.SupervisedAnomalyDetector, base.AnomalyFilter)
    return is_a(model, base.Estimator) and is_a(last_step(model), kinds)


def judges_one_value(model: Any) -> bool:  # noqa: ANN401
    """Tell whether the detector at the end judges one value y (River: supervised)."""
    last = last_step(model)
    while is_a(last, base.AnomalyFilter):
        last = last.anomaly_detector
    return is_a(last, base.SupervisedAnomalyDetector)


def own_warm_up_events(model: Any) -> int:  # noqa: ANN401
    """Events before the model's own scores mean something, as its parameters say."""
    events = 0
    for part in parts(model):
        if is_a(part, anomaly.HalfSpaceTrees):
            events = max(events, part.window_size)
        elif is_a(part, anomaly.GaussianScorer):
            events = max(events, part.grace_period)
        elif is_a(part, anomaly.PredictiveAnomalyDetection):
            events = max(events, part.warmup_period)
        elif is_a(part, anomaly.OneClassSVM):
            # Its weights forget with the time constant 1 / (learning rate * l2): wait for 2.5.
            forgetting = part.optimizer.learning_rate * part.l2
            events = max(events, math.ceil(2.5 / max(forgetting, 1e-4)))
    return events


def make(model: Any) -> list[tuple[type, dict[str, str]]]:  # noqa: ANN401
    """List the parts' classes and plain parameters, but seeds: what learning never changes."""
    return [
        (
            type(part),
            {
                name: repr(value)
                for name in _parameters(part.__class__)
                if name != "seed"
                and type(value := getattr(part, name, None)) in (int, float, bool, str, type(None))
            },
        )
        for part in parts(model)
        if is_a(part, base.Base)
    ]


def seeded(model: Any, seed: int) -> Any:  # noqa: ANN401
    """Clone a model as new, seeded wherever it leaves a seed open."""
    clone = model.clone(_open_seeds(model._get_params(), seed % 2**32))
    _seed_generators(clone, seed)
    return clone


def _seed_generators(model: Any, seed: int) -> None:  # noqa: ANN401
    """Seed what a model builds within itself and offers no parameter for."""
    for part in parts(model):
        for value in vars(part).values() if hasattr(part, "__dict__") else ():
            drawn: Any = getattr(value, "obj", value)  # River's rolling windows wrap an obj
            if is_a(drawn, proba.base.Distribution) and drawn.seed is None:
                drawn._rng.seed(seed)


def _open_seeds(params: dict[str, Any], seed: int) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in params.items():
        if name == "seed" and value is None:
            changed[name] = seed
        elif isinstance(value, dict) and (inner := _open_seeds(value, seed)):
            changed[name] = inner  # a step of a pipeline
        elif _is_model(value) and (inner := _open_seeds(value[1], seed)):
            changed[name] = (value[0], inner)
    return changed


def _is_model(value: Any) -> bool:  # noqa: ANN401
    """Tell River's way of writing down a model within a model: (class, its parameters)."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and inspect.isclass(value[0])
        and isinstance(value[1], dict)
    )


# ------------------------------------------------------------------------------------------ feeds
class Feed(Protocol):
    """Scores and learns rows of shape (d,) with River models.

    Its state is its models and the `previous` row, of shape (0,) where none is needed.
    """

    models: list[Any]
    previous: FloatArray

    def score(self, x: FloatArray) -> float:
        """Score one row without changing a model."""

    def learn(self, x: FloatArray) -> None:
        """Learn one row."""


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


class FourierFeatures(base.Transformer):
    """Map a row to ``sqrt(2/D) cos(w·x + b)`` for D random (w, b)."""

    def __init__(
        self, gamma: float | None = None, n_components: int = 100, seed: int | None = None
    ) -> None:
        self.gamma = gamma
        self.n_components = n_components
        self.seed = seed
        self._columns: tuple[Any, ...] | None = None
        self._directions: FloatArray = np.empty((0, 0))
        self._offsets: FloatArray = np.empty(0)

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """Map one row; the directions follow from seed and columns, so nothing is learnt."""
        columns = tuple(x)
        if columns != self._columns:
            self._draw(columns)
        z = np.fromiter(x.values(), dtype=np.float64, count=len(x))
        phase = (z[:, None] * self._directions).sum(axis=0) + self._offsets
        values = np.cos(phase) * np.sqrt(2.0 / self.n_components)
        return dict(enumerate(values.tolist()))

    def _draw(self, columns: tuple[Any, ...]) -> None:
        rng = np.random.default_rng(self.seed)
        gamma = 0.5 / len(columns) if self.gamma is None else self.gamma
        shape = (len(columns), self.n_components)
        self._directions = rng.normal(size=shape) * np.sqrt(2.0 * gamma)
        self._offsets = rng.uniform(0.0, 2.0 * np.pi, self.n_components)
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        # Directions are drawn again: they are not state.
        return {"gamma": self.gamma, "n_components": self.n_components, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
