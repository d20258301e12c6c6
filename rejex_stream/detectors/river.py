"""River detectors as recipes that start empty, score a row, then learn it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from river import compose

from rejex_stream.detectors import riverstate
from rejex_stream.detectors.channels import AllColumns, EachColumn, Feed
from rejex_stream.detectors.rivermodel import (
    ends_in_a_detector,
    is_a,
    judges_one_value,
    last_step,
    own_modules,
    own_warm_up_events,
    seeded,
    shape,
)
from rejex_stream.detectors.scaling import FrozenScale, check_scale
from rejex_stream.errors import CheckpointError, ConfigError, DetectorError
from rejex_stream.types import FloatArray

__all__ = ["RiverDetector", "RiverScorer", "river_detector"]

LEAST_WARM_UP_EVENTS: Final = 100
SCALE_EVENTS: Final = 250


@dataclass(slots=True)
class RiverScorer:
    """A River model at work on one stream."""

    name: str
    columns: tuple[str, ...]
    scale: FrozenScale
    feed: Feed
    trusted_modules: tuple[str, ...]

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
        everything = {
            "name": self.name,
            "columns": list(self.columns),
            "scale": self.scale.state(),
            "feed": self.feed.state(),
        }
        return riverstate.encode(everything, trusted_modules=self.trusted_modules)

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
    """A recipe: a River model that has seen nothing, and how to feed it.

    Attributes
    ----------
    name
        E.g. ``river:HalfSpaceTrees``.
    model
        The prototype; it is cloned and seeded at each start, and never learns.
    warm_up_events
        How many first scores mean nothing.
    scale, scale_events
        ``none``, ``standard``, ``robust`` or ``unit``: columns are put on one scale, measured on
        the first `scale_events` rows and then frozen.
    sign
        -1 where River's score is high for normal rows.
    trusted_modules
        The user's modules whose classes may be in a snapshot.
    """

    name: str
    model: Any
    warm_up_events: int
    scale: str = "none"
    scale_events: int = SCALE_EVENTS
    sign: float = 1.0
    trusted_modules: tuple[str, ...] = ()

    def start(self, feature_names: Sequence[str], *, seed: int) -> RiverScorer:
        """Make an empty model for rows with these columns; equal seeds give equal scores.

        Raises
        ------
        DetectorError
            The model holds something that a snapshot could not bring back.
        """
        columns = tuple(feature_names)
        if not columns or len(set(columns)) < len(columns):
            raise DetectorError(
                f"{self.name} needs column names that differ, got {', '.join(columns) or 'none'}."
            )
        scorer = self._empty(columns, seed)
        scorer.state()  # what cannot be snapshotted fails here, not at the first snapshot
        return scorer

    def _empty(self, columns: tuple[str, ...], seed: int) -> RiverScorer:
        feed: Feed
        if judges_one_value(self.model):
            models = [seeded(self.model, seed + j) for j in range(len(columns))]
            feed = EachColumn(columns, models, np.zeros(len(columns)))
        else:
            feed = AllColumns(columns, [seeded(self.model, seed)], self.sign)
        scale = FrozenScale(self.scale, self.scale_events)
        return RiverScorer(self.name, columns, scale, feed, self.trusted_modules)

    def restore(self, feature_names: Sequence[str], state: bytes) -> RiverScorer:
        """Bring a model back from :meth:`RiverScorer.state`.

        Raises
        ------
        CheckpointError
            The state is foreign, damaged, or of another detector or other columns.
        """
        told = riverstate.decode(state, trusted_modules=self.trusted_modules)
        if not isinstance(told, dict) or told.get("name") != self.name:
            raise CheckpointError(
                f"This is not the state of {self.name}; start without it, or configure "
                f"the detector that wrote it."
            )
        if told["columns"] != list(feature_names):
            raise CheckpointError(
                f"The state of {self.name} is for the columns {', '.join(told['columns'])}, the "
                f"features are {', '.join(feature_names)}; configure the former."
            )
        # The very strings that the models hold, so that the next state has the same bytes.
        scorer = self._empty(tuple(told["columns"]), seed=0)
        makes = [shape(model) for model in told["feed"]["models"]]
        if makes != [shape(model) for model in scorer.feed.models]:
            raise CheckpointError(f"The state of {self.name} holds a model of another make.")
        scorer.scale.restore(told["scale"])
        scorer.feed.restore(told["feed"])
        return scorer


def river_detector(
    name: str,
    model: Any,  # noqa: ANN401 - River is untyped here
    /,
    *,
    warm_up_events: int | None = None,
    scale: str = "none",
    scale_events: int = SCALE_EVENTS,
    sign: float = 1.0,
    trusted_modules: Sequence[str] = (),
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
    scale, scale_events, sign, trusted_modules
        See :class:`RiverDetector`. Modules of the user's own classes and functions within `model`
        are trusted without being named.

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
        warm_up_events = max(waits, LEAST_WARM_UP_EVENTS, own_warm_up_events(model))
    elif warm_up_events < waits:
        raise ConfigError(
            f"warm_up_events = {warm_up_events} is below scale_events = {scale_events}: there is "
            f"no score before there is a scale."
        )
    trusted = sorted({*trusted_modules, *own_modules(model)})
    return RiverDetector(
        name, model.clone(), warm_up_events, scale, scale_events, sign, tuple(trusted)
    )
