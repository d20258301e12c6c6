"""What a River model is made of, and a fresh, seeded copy of it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from river import anomaly, base, compose, proba

__all__ = [
    "ends_in_a_detector",
    "is_a",
    "judges_one_value",
    "last_step",
    "make",
    "own_modules",
    "own_warm_up_events",
    "parts",
    "seeded",
]


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
        names = _parameters(model)
        inner = [getattr(model, name, None) for name in names]
    else:
        return
    for part in inner:
        if is_a(part, base.Base) or isinstance(part, FunctionType):
            yield from parts(part)


def _parameters(model: Any) -> tuple[str, ...]:  # noqa: ANN401
    cls: Any = type(model)
    return _parameters_of(cls)


@functools.cache
def _parameters_of(cls: type) -> tuple[str, ...]:
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


def own_modules(model: Any) -> set[str]:  # noqa: ANN401
    """Modules, other than River's, whose classes and functions the model is made of."""
    modules = set()
    for part in parts(model):
        module = part.__module__ if isinstance(part, FunctionType) else type(part).__module__
        if module.partition(".")[0] not in {"river", "rejex_stream", "builtins"}:
            modules.add(module)
    return modules


def make(model: Any) -> list[tuple[type, dict[str, str]]]:  # noqa: ANN401
    """List the parts' classes and plain parameters, but seeds: what learning never changes."""
    return [
        (
            type(part),
            {
                name: repr(value)
                for name in _parameters(part)
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
