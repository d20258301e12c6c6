"""River detectors as recipes that start empty, score a row, then learn it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from river import anomaly, compose, linear_model, neighbors, optim

from rejex_stream.detectors.pyod import check_names
from rejex_stream.detectors.river.model_state import (
    read,
    read_array,
    seal,
    unseal,
    write,
    write_array,
)
from rejex_stream.detectors.river.models import (
    AllColumns,
    EachColumn,
    Feed,
    FourierFeatures,
    ends_in_a_detector,
    is_a,
    judges_one_value,
    last_step,
    make,
    own_warm_up_events,
    seeded,
)
from rejex_stream.detectors.scaling import FrozenScale, check_scale
from rejex_stream.errors import CheckpointError, ConfigError, DetectorError
from rejex_stream.types import FloatArray

MIN_WARM_UP_EVENTS: Final = 100
SCALE_EVENTS: Final = 250
REHEARSAL_EVENTS: Final = 60
MAX_NAMES: Final = 500  # that a rehearsal learns from a model that asks for columns by name


@dataclass(slots=True)
class RiverScorer:
    """A River model at work on one stream."""

    name: str
    columns: tuple[str, ...]
    scale: FrozenScale
    feed: Feed

    def score_one(self, x: FloatArray) -> float:
        """Score one row of shape (d,), high = anomalous; 0.0 while the scale is not measured.

        A row that is not finite, or that River's arithmetic cannot take, scores ``nan``.
        """
        x = self._checked(x)
        if not np.isfinite(x).all():
            return float("nan")
        if not self.scale.is_ready:
            return 0.0
        try:
            return float(self.feed.score(self.scale.apply(x)))
        except ArithmeticError:
            return float("nan")

    def learn_one(self, x: FloatArray) -> None:
        """Learn one row of shape (d,); a row that is not finite is not learnt."""
        x = self._checked(x)
        if not np.isfinite(x).all():
            return
        for row in self.scale.admit(x):
            try:
                self.feed.learn(row)
            except ArithmeticError:  # a number too wild for River: as if it were not there
                continue

    def state(self) -> bytes:
        """Everything the model knows; O(size of the model)."""
        return seal(
            {
                "name": self.name,
                "columns": self.columns,
                "scale": {name: write_array(a) for name, a in self.scale.state().items()},
                "previous": write_array(self.feed.previous),
                "models": write(self.feed.models),
            }
        )

    def _checked(self, x: FloatArray) -> FloatArray:
        x = np.asarray(x, dtype=np.float64)
        if x.shape != (len(self.columns),):
            raise DetectorError(
                f"{self.name} was started for {len(self.columns)} columns and got a row of shape "
                f"{x.shape}; give an array of shape ({len(self.columns)},)."
            )
        return x


@dataclass(frozen=True, slots=True, eq=False)
class RiverDetector:
    """A recipe: a River model that has seen nothing, and how to feed it."""

    name: str  # E.g. ``river:HalfSpaceTrees``
    model: Any  # the prototype; it is cloned and seeded at each start, and never learns
    warm_up_events: int  # how many first scores mean nothing
    # ``none``, ``standard``, ``robust`` or ``unit``: columns are put on one scale, measured on the
    # first `scale_events` rows and then frozen
    scale: str = "none"
    scale_events: int = SCALE_EVENTS
    sign: float = 1.0  # -1 where River's score is high for normal rows

    def start(self, feature_names: Sequence[str], *, seed: int) -> RiverScorer:
        """Make an empty model for rows with these columns; equal seeds give equal scores."""
        columns = tuple(feature_names)
        if not columns or len(set(columns)) < len(columns):
            raise DetectorError(
                f"{self.name} needs column names that differ, got {', '.join(columns) or 'none'}."
            )
        return self._empty(columns, seed)

    def _empty(self, columns: tuple[str, ...], seed: int) -> RiverScorer:
        feed: Feed
        if judges_one_value(self.model):
            models = [seeded(self.model, seed + j) for j in range(len(columns))]
            feed = EachColumn(columns, models, np.zeros(len(columns)))
        else:
            feed = AllColumns(columns, [seeded(self.model, seed)], self.sign)
        scale = FrozenScale(self.scale, self.scale_events)
        return RiverScorer(self.name, columns, scale, feed)

    def restore(self, feature_names: Sequence[str], state: bytes) -> RiverScorer:
        """Bring a model back from :meth:`RiverScorer.state`."""
        match payload := unseal(state):
            case {
                "name": str(name), "columns": [*columns], "scale": dict(scale),
                "previous": previous, "models": models,
            } if len(payload) == 5 and all(type(column) is str for column in columns):  # fmt: skip
                pass
            case _:
                raise CheckpointError(f"This is not the state of {self.name}; start without it.")
        if name != self.name:
            raise CheckpointError(
                f"This is not the state of {self.name}, but of {name[:200]}; start without it, or "
                f"configure the detector that wrote it."
            )
        if columns != list(feature_names):
            raise CheckpointError(
                f"The state of {self.name} is for the columns {', '.join(columns)}, the "
                f"features are {', '.join(feature_names)}; configure the former."
            )
        _try_out(self._read(columns, models, scale, previous), self.name)
        return self._read(columns, models, scale, previous)

    def _read(
        self,
        columns: Sequence[str],
        models: Any,  # noqa: ANN401
        scale: dict[str, Any],
        previous: Any,  # noqa: ANN401
    ) -> RiverScorer:
        scorer = self._empty(tuple(columns), seed=0)
        restored = read(models)
        makes = list(map(make, scorer.feed.models))
        if type(restored) is not list or list(map(make, restored)) != makes:
            raise CheckpointError(
                f"The state of {self.name} holds a model of another make; configure the one that "
                f"wrote it, or start without it."
            )
        scorer.feed.models[:] = restored
        scorer.feed.previous = read_array(previous, scorer.feed.previous.shape)
        arrays = {name: read_array(array) for name, array in scale.items()}
        if not all(a.dtype == np.float64 and np.isfinite(a).all() for a in arrays.values()):
            raise CheckpointError(f"The scale of the state of {self.name} is not made of numbers.")
        scorer.scale.restore(arrays, len(columns))
        return scorer


def _try_out(scorer: RiverScorer, name: str) -> None:
    """Require of a copy that was read that it scores and learns, whatever its numbers say."""
    d = len(scorer.columns)
    for row in np.linspace([-1.0, 0.0, 1.0], [0.5, -0.5, 2.0], d, axis=1):
        try:
            float(scorer.feed.score(row))
            scorer.feed.learn(row)
        except ArithmeticError:
            continue
        except Exception as error:
            raise CheckpointError(
                f"The state of {name} makes a model that cannot score a row ({error!r}); start "
                f"without it, or from another snapshot."
            ) from error


def _rehearse(recipe: RiverDetector, columns: tuple[str, ...] = ("a", "b")) -> None:
    """Require of a copy of the model that it learns a few rows and comes back from a snapshot."""
    # A model that asks for columns by name is given them: their names are learnt from its errors.
    scorer = recipe._empty(columns, seed=1)
    before = list(map(make, scorer.feed.models))
    write(scorer.feed.models)  # what can never be written is refused by name, before any row fails
    rows = np.random.default_rng(0).normal(size=(REHEARSAL_EVENTS, len(columns)))
    for i, row in enumerate(rows):
        try:
            scorer.feed.score(row)
            scorer.feed.learn(row)
        except ArithmeticError:
            continue
        except Exception as error:
            missing = error.args[0] if isinstance(error, KeyError) and error.args else None
            if isinstance(missing, str) and missing not in columns and len(columns) < MAX_NAMES:
                _rehearse(recipe, (*columns, missing))
                return
            raise DetectorError(
                f"{recipe.name} fails on row {i + 1} of a rehearsal on ordinary rows: {error!r}; "
                f"give a model that takes rows of plain numbers from the first on."
            ) from error
    plain = write(scorer.feed.models)
    try:
        again = read(plain)
    except CheckpointError as error:
        raise DetectorError(
            f"{recipe.name} cannot be brought back from a snapshot: {error}"
        ) from error
    if not list(map(make, again)) == list(map(make, scorer.feed.models)) == before:
        raise DetectorError(
            f"{recipe.name} changes its own parameters as it learns, so a snapshot could not be "
            f"told from another model's; keep what is learnt in other attributes."
        )


def river_detector(
    name: str,
    model: Any,  # noqa: ANN401 - River is untyped here
    /,
    *,
    warm_up_events: int | None = None,
    scale: str = "none",
    scale_events: int = SCALE_EVENTS,
    sign: float = 1.0,
) -> RiverDetector:
    """Make a recipe from an unfed River anomaly detector, or a pipeline that ends in one.

    Parameters
    ----------
    name
        For metrics and snapshots.
    model
        Cloned, never changed. A univariate detector gets one model a column.
    warm_up_events
        ``None``: what the model and the scale need, at least 100.
    scale, scale_events, sign
        See :class:`RiverDetector`.

    Examples
    --------
    >>> from river import anomaly, preprocessing
    >>> pipeline = preprocessing.StandardScaler() | anomaly.HalfSpaceTrees(seed=1)
    >>> river_detector("river:mine", pipeline).warm_up_events
    250
    """
    if not ends_in_a_detector(model):
        raise DetectorError(
            f"{name} is {type(model).__name__}, which gives no anomaly score; end the pipeline in "
            f"one of river.anomaly's detectors."
        )
    if is_a(model, compose.Pipeline) and judges_one_value(model):
        raise DetectorError(
            f"{name} ends in {type(last_step(model)).__name__}, which judges one value that "
            f"River's pipelines cannot pass on; give the detector by itself."
        )
    check_scale(scale)
    if scale_events < 2:
        raise ConfigError(f"scale_events = {scale_events} is too few to measure a scale; use 250.")
    waits = scale_events if scale != "none" else 0
    if warm_up_events is None:
        warm_up_events = max(waits, MIN_WARM_UP_EVENTS, own_warm_up_events(model))
    elif warm_up_events < waits:
        raise ConfigError(
            f"warm_up_events = {warm_up_events} is below scale_events = {scale_events}: there is "
            f"no score before there is a scale."
        )
    recipe = RiverDetector(name, model.clone(), warm_up_events, scale, scale_events, sign)
    _rehearse(recipe)
    return recipe


# ------------------------------------------------------------------------------------------ names
# A name stands for River's detector *and* what River's manual asks to put before it. Given as an
# object or by dotted name, a model is taken exactly as it is.
def half_space_trees(
    n_trees: int = 10, height: int = 8, window_size: int = 250, seed: int | None = None
) -> anomaly.HalfSpaceTrees:
    """River's HST; limits are [0, 1], onto which the scale ``unit`` maps each column.

    A tree of height 8 takes 110 KB and 3 µs an event: 25 of them find a little more than 10.
    """
    return anomaly.HalfSpaceTrees(n_trees, height, window_size, seed=seed)


def one_class_svm(
    nu: float = 0.1, learning_rate: float = 0.05, gamma: float | None = None,
    n_components: int = 100, seed: int | None = None,
) -> Any:  # noqa: ANN401 - a River pipeline  # fmt: skip
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


# A warm-up that is not in the model's own parameters was read off stationary data: it ends where
# the upper decile of the scores stops moving. LODA's histograms go on settling; a linear predictor
# needs a few times the time constant of its slowest direction.
NAMED: Final[dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "GaussianScorer": (anomaly.GaussianScorer, {"scale": "robust"}),
    "HalfSpaceTrees": (half_space_trees, {"scale": "unit"}),
    "LODA": (anomaly.LODA, {"scale": "robust", "warm_up_events": 1000}),
    "LocalOutlierFactor": (local_outlier_factor, {"scale": "robust"}),
    "OneClassSVM": (one_class_svm, {"scale": "robust", "sign": -1.0}),
    "PredictiveAnomalyDetection": (predictive, {"scale": "robust", "warm_up_events": 1000}),
    "StandardAbsoluteDeviation": (anomaly.StandardAbsoluteDeviation, {"scale": "robust"}),
}

_OPTIONS: Final = ("scale", "scale_events", "warm_up_events")


def named_detector(name: str, params: dict[str, Any]) -> RiverDetector:
    """Make the recipe of a registry name."""
    factory, recipe = NAMED[name]
    accepted = list(inspect.signature(factory).parameters)
    check_names(f"river:{name}", params, [*accepted, *_OPTIONS])
    options = {key: params[key] for key in _OPTIONS if key in params}
    try:
        model = factory(**{key: params[key] for key in params if key not in _OPTIONS})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"river:{name} refuses its parameters {params!r}: {error}") from error
    return river_detector(f"river:{name}", model, **(recipe | options))
