"""River's detectors by name: each with the feeding it needs to work on raw sensor columns.

A name stands for River's detector *and* what River's manual asks to put before it. Given as an
object or by dotted name, a model is taken exactly as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from river import anomaly, linear_model, neighbors, optim

from rejex_stream.detectors.river.detector import RiverDetector, river_detector
from rejex_stream.detectors.river.fourier import FourierFeatures
from rejex_stream.errors import ConfigError

__all__ = ["NAMED", "make"]


def half_space_trees(
    n_trees: int = 10, height: int = 8, window_size: int = 250, seed: int | None = None
) -> anomaly.HalfSpaceTrees:
    """River's HST; limits are [0, 1], onto which the scale ``unit`` maps each column.

    A tree of height 8 takes 110 KB and 3 µs an event: 25 of them find a little more than 10.
    """
    return anomaly.HalfSpaceTrees(n_trees, height, window_size, seed=seed)


def one_class_svm(
    nu: float = 0.1,
    learning_rate: float = 0.05,
    gamma: float | None = None,
    n_components: int = 100,
    seed: int | None = None,
) -> Any:  # noqa: ANN401 - a River pipeline
    """River's linear one-class SVM on random Fourier features of the whole row.

    On raw columns a linear one separates nothing: normal rows lie on both sides of the origin.
    """
    svm = anomaly.OneClassSVM(nu=nu, optimizer=optim.SGD(learning_rate), intercept_lr=learning_rate)
    return FourierFeatures(gamma, n_components, seed) | svm


def local_outlier_factor(
    n_neighbors: int = 10, window_size: int = 250
) -> anomaly.LocalOutlierFactor:
    """River's LOF over the last `window_size` rows; a score costs O(n_neighbors * window_size)."""
    engine = neighbors.LazySearch(window_size=window_size)
    return anomaly.LocalOutlierFactor(n_neighbors, engine)


def predictive(n_std: float = 3.0, learning_rate: float = 0.01) -> Any:  # noqa: ANN401
    """River's predictive detector: a linear model foretells each column from all the others.

    It is given the other columns of the row and every column of the row before.
    """
    model = linear_model.LinearRegression(optim.SGD(learning_rate))
    return anomaly.PredictiveAnomalyDetection(model, n_std=n_std)


@dataclass(frozen=True, slots=True)
class Named:
    """A model's factory and the recipe's defaults around it."""

    factory: Callable[..., Any]
    recipe: dict[str, Any] = field(default_factory=dict)


# A warm-up that is not in the model's own parameters was read off stationary data: it ends where
# the upper decile of the scores stops moving. LODA's histograms go on settling; a linear predictor
# needs a few times the time constant of its slowest direction.
NAMED: Final[dict[str, Named]] = {
    "GaussianScorer": Named(anomaly.GaussianScorer, {"scale": "robust"}),
    "HalfSpaceTrees": Named(half_space_trees, {"scale": "unit"}),
    "LODA": Named(anomaly.LODA, {"scale": "robust", "warm_up_events": 1000}),
    "LocalOutlierFactor": Named(local_outlier_factor, {"scale": "robust"}),
    "OneClassSVM": Named(one_class_svm, {"scale": "robust", "sign": -1.0}),
    "PredictiveAnomalyDetection": Named(predictive, {"scale": "robust", "warm_up_events": 1000}),
    "StandardAbsoluteDeviation": Named(anomaly.StandardAbsoluteDeviation, {"scale": "robust"}),
}

_OPTIONS: Final = ("scale", "scale_events", "warm_up_events")


def make(name: str, params: dict[str, Any]) -> RiverDetector:
    """Make the recipe of a registry name.

    Raises
    ------
    ConfigError
        A parameter is unknown, or its value cannot work.
    """
    named = NAMED[name]
    accepted = list(inspect.signature(named.factory).parameters)
    for key in params:
        if key not in accepted and key not in _OPTIONS:
            raise ConfigError(
                f"river:{name} has no parameter {key!r}; it accepts: "
                f"{', '.join([*accepted, *_OPTIONS])}."
            )
    options = {key: params[key] for key in _OPTIONS if key in params}
    try:
        model = named.factory(**{key: params[key] for key in params if key not in _OPTIONS})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"river:{name} refuses its parameters {params!r}: {error}") from error
    return river_detector(f"river:{name}", model, **(named.recipe | options))
