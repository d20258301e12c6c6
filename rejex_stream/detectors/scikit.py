"""scikit-learn's detectors as recipes: novelty detectors, and pipelines that end in one.

Their scores are high for normal rows and are turned round. Which of them handle a row by itself,
whatever batch it comes in, is known for those named here; the others are scored row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from rejex_stream.detectors.pyod import check_constant, contained
from rejex_stream.detectors.rowwise import RowByRow
from rejex_stream.detectors.scaling import check_scale, measure_scale
from rejex_stream.detectors.table import TableScorer, training_table
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.types import FloatArray

ROWS_APART: Final = frozenset({"IsolationForest", "OneClassSVM"})
"""Trees are walked, and kernels summed, for one row at a time: a batch is one call."""


@dataclass(frozen=True, slots=True, eq=False)
class ScikitDetector:
    """A recipe: a scikit-learn detector that has learnt nothing."""

    name: str  # E.g. ``sklearn:IsolationForest``
    # all its parameters, those of a pipeline's steps too, as sorted (name, value) pairs; by them a
    # snapshot knows whose state it holds
    params: tuple[tuple[str, Any], ...]
    model: Any = field(repr=False)  # the prototype; it is cloned and seeded at each fit
    scale: str = "none"  # ``none``, ``standard`` or ``robust``, as for PyOD's

    def fit(self, X: FloatArray, *, seed: int) -> TableScorer:
        """Fit on finite rows X of shape (n, d); equal X and seed give equal scores."""
        X = training_table(self.name, X)
        scale = measure_scale(self.scale, X)
        scaled = X if scale is None else scale.apply(X)
        model = clone(self.model)
        # A seed that the user gave stays; where none is given, every fit has its own.
        unseeded = {
            key: seed % 2**32
            for key, value in model.get_params(deep=True).items()
            if key.rpartition("__")[2] == "random_state" and value is None
        }
        try:
            with contained(seed % 2**32):
                model.set_params(**unseeded).fit(scaled)
                apart = type(model).__name__ in ROWS_APART
                scorer = RowByRow(_Turned(model), np.empty(0), apart)
                scorer = replace(scorer, training_scores=scorer.score(scaled))
        except Exception as error:
            raise DetectorError(
                f"{self.name} could not be fitted on {X.shape[0]} rows of {X.shape[1]} columns: "
                f"{error}"
            ) from error
        return TableScorer(self.name, X.shape[1], scale, scorer, scorer.training_scores)


@dataclass(frozen=True, slots=True)
class _Turned:
    """PyOD's side of scikit-learn's scores: high = anomalous."""

    model: Any

    def decision_function(self, X: FloatArray) -> FloatArray:
        scores: FloatArray = -np.asarray(self.model.score_samples(X), dtype=np.float64)
        return scores


def scikit_detector(model: Any, scale: str = "none", **unknown: Any) -> ScikitDetector:  # noqa: ANN401
    """Make a recipe from a scikit-learn detector, or a pipeline that ends in one.

    Raises
    ------
    DetectorError
        The object cannot score rows that it was not fitted on.
    ConfigError
        A parameter is unknown, or its value cannot work.

    Examples
    --------
    >>> from sklearn.ensemble import IsolationForest
    >>> scikit_detector(IsolationForest(n_estimators=50)).name
    'sklearn:IsolationForest'
    """
    name = f"sklearn:{type(model).__name__}"
    if unknown:
        raise ConfigError(f"{name} has no parameter {', '.join(unknown)}: those are River's.")
    check_scale(scale)
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    if not hasattr(type(last), "score_samples"):
        raise DetectorError(
            f"{name} gives no anomaly score: give a detector with score_samples, e.g. "
            "IsolationForest, or a pipeline that ends in one."
        )
    if getattr(last, "novelty", True) is False:
        raise DetectorError(
            f"{name} scores no row but those it was fitted on: give it novelty=True."
        )
    params = model.get_params(deep=True).items()
    plain = sorted((key, _plain(value)) for key, value in params)
    for key, value in plain:
        check_constant(name, key, value)
    return ScikitDetector(name, tuple(plain), clone(model), scale)


def _plain(value: Any) -> Any:  # noqa: ANN401
    if hasattr(value, "get_params"):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value
