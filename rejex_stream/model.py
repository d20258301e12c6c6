"""The model of one stream key over its life: which scorer speaks for which row.

A batch model is fitted, refitted and swapped at fixed row counts (:mod:`rejex_stream.refit`); an
incremental model scores a row, then learns it. Both turn rows into segments of scores; a segment
has one model, so it may be scored in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rejex_stream.checkpoint import pack_array, unpack_array
from rejex_stream.errors import DetectorError
from rejex_stream.judge import Judge
from rejex_stream.protocols import (
    BatchDetector,
    FitExecutor,
    IncrementalDetector,
    IncrementalScorer,
    Scorer,
)
from rejex_stream.refit import FitJob, Fitted, RefitSchedule, derive_seed
from rejex_stream.types import FloatArray

__all__ = ["BatchModel", "FitFailed", "IncrementalModel", "Segment"]


_KNOWN_ROWS = 256  # what an incremental model is remembered to have seen, for evidence


class Segment(NamedTuple):
    """Rows ``start:stop`` of a call and their scores; ``scores`` is ``None`` before a model."""

    start: int
    stop: int
    scores: Sequence[float] | None
    epoch: int


class FitFailed(NamedTuple):
    """A fit that failed: the old model goes on, the next boundary tries again."""

    stream_key: str
    epoch: int
    rows_seen: int
    error: DetectorError


class _RowBuffer:
    """The newest rows, in a ring that grows to its capacity as rows come."""

    __slots__ = ("_capacity", "_next", "_ring", "_size")

    def __init__(self, capacity: int, n_features: int) -> None:
        self._capacity = capacity
        self._ring: FloatArray = np.empty((min(capacity, 64), n_features))
        self._next = self._size = 0

    def extend(self, rows: FloatArray) -> None:
        rows = rows[-self._capacity :]
        while self._size + len(rows) > len(self._ring) < self._capacity:
            grown = np.empty((min(self._capacity, 2 * len(self._ring)), self._ring.shape[1]))
            grown[: self._size] = self._ring[: self._size]  # a ring that can grow never wrapped
            self._ring, self._next = grown, self._size
        at = (self._next + np.arange(len(rows))) % len(self._ring)
        self._ring[at] = rows
        self._next = (self._next + len(rows)) % len(self._ring)
        self._size = min(self._size + len(rows), len(self._ring))

    def last(self, count: int) -> FloatArray:
        """Return a copy of the newest rows, oldest first."""
        count = min(count, self._size)
        at = (self._next - count + np.arange(count)) % len(self._ring)
        return self._ring[at]

    @property
    def nbytes(self) -> int:
        return self._ring.nbytes


@dataclass(slots=True)
class _Model:
    """One fit on its way: its recipe, and the result once somebody needed it."""

    epoch: int
    requested_at: int
    job: FitJob
    ticket: Hashable
    fitted: Fitted | None = None
    shadow_scores: list[float] = field(default_factory=list)
    medians: FloatArray | None = None

    def wait(self, executor: FitExecutor) -> Fitted:
        if self.fitted is None:
            self.fitted = executor.result(self.ticket)
        return self.fitted

    def recipe(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "requested_at": self.requested_at,
            "seed": self.job.seed,
            "calibration": self.job.calibration,
            "rows": pack_array(self.job.rows),
        }


class BatchModel:
    """A batch detector that is refitted in the background and swapped at fixed rows.

    Parameters
    ----------
    detector, schedule, seed
        The recipe and when to follow it.
    stream_key, n_features, window
        Whose model; columns of a row; reference scores of a full window.
    executor
        Where fits run.
    on_failure
        Told of every fit that failed.
    """

    def __init__(
        self,
        detector: BatchDetector,
        schedule: RefitSchedule,
        seed: int,
        *,
        stream_key: str,
        n_features: int,
        window: int,
        executor: FitExecutor,
        on_failure: Callable[[FitFailed], None],
    ) -> None:
        self._detector, self._schedule, self._seed = detector, schedule, seed
        self._stream_key, self._window = stream_key, window
        self._executor, self._on_failure = executor, on_failure
        self._rows = _RowBuffer(schedule.buffer_events, n_features)
        self._token = object()  # tickets of two engines on one executor never meet
        self.rows_seen = 0
        self._next_epoch = 0
        self._serving: _Model | None = None
        self._pending: _Model | None = None
        self._shadow: _Model | None = None
        self.recipe_version = 0
        """Grows whenever the part of the state that holds training rows changes."""

    def segments(self, rows: list[list[float]], judge: Judge) -> Iterator[Segment]:
        """Score rows in order, cut where a model is requested, installed or swapped.

        The caller finishes with a segment before it asks for the next: a swap replaces the
        judge's window.
        """
        start = 0
        while start < len(rows):
            self._settle(judge)
            stop = min(len(rows), start + self._until_boundary())
            X = np.array(rows[start:stop], dtype=np.float64)
            if self._serving is None:
                yield Segment(start, stop, None, -1)
            else:
                scores = self._scorer(self._serving).score(X).tolist()
                yield Segment(start, stop, scores, self._serving.epoch)
            if self._shadow is not None:
                self._shadow.shadow_scores.extend(self._scorer(self._shadow).score(X).tolist())
            self._rows.extend(X)
            self.rows_seen += stop - start
            if self._schedule.is_request(self.rows_seen):
                self._request()
            start = stop

    def score(self, X: FloatArray) -> FloatArray:
        """Score other rows with the model that speaks now, shape (m, d) to (m,)."""
        assert self._serving is not None  # asked about rows it has scored
        return self._scorer(self._serving).score(X)

    def medians(self) -> FloatArray:
        """Return the medians of the rows the model was fitted on, shape (d,)."""
        assert self._serving is not None
        if self._serving.medians is None:
            self._serving.medians = np.median(self._serving.job.rows, axis=0)
        return self._serving.medians

    def age_events(self) -> int:
        """Return how many rows have been seen since the model's training rows were frozen."""
        assert self._serving is not None
        return self.rows_seen - self._serving.requested_at

    def _scorer(self, model: _Model) -> Scorer:
        return model.wait(self._executor).scorer

    def _until_boundary(self) -> int:
        """Rows until something happens."""
        boundaries = [self._schedule.next_request(self.rows_seen)]
        if self._pending is not None:
            boundaries.append(self._pending.requested_at + self._schedule.refit_lag_events)
        if self._shadow is not None:
            boundaries.append(self._shadow.requested_at + self._window)
        return min(boundary for boundary in boundaries if boundary > self.rows_seen) - (
            self.rows_seen
        )

    def _settle(self, judge: Judge) -> None:
        """Do what is due before the next row: swap a full shadow, install a fit that is needed."""
        shadow, pending = self._shadow, self._pending
        if shadow is not None and self.rows_seen == shadow.requested_at + self._window:
            judge.replace_window(shadow.shadow_scores)
            shadow.shadow_scores = []
            self._serving, self._shadow = shadow, None
            self.recipe_version += 1
        if pending is not None and (
            self.rows_seen == pending.requested_at + self._schedule.refit_lag_events
        ):
            self._pending = None
            self._install(pending, judge)

    def _install(self, model: _Model, judge: Judge) -> None:
        try:
            fitted = model.wait(self._executor)
        except DetectorError as error:
            self._on_failure(FitFailed(self._stream_key, model.epoch, self.rows_seen, error))
            return
        # The rows seen while the fit ran are out of sample too.
        missed = self._rows.last(self.rows_seen - model.requested_at)
        caught_up = fitted.scorer.score(missed).tolist() if len(missed) else []
        self.recipe_version += 1
        if model.job.calibration == "shadow":
            model.shadow_scores = caught_up
            self._shadow = model
            return
        judge.replace_window([*fitted.calibration_scores.tolist(), *caught_up])
        model.fitted = Fitted(fitted.scorer, np.empty(0))
        self._serving, self._shadow = model, None

    def _request(self) -> None:
        calibration = self._schedule.calibration
        if calibration == "shadow" and self._serving is None:
            calibration = "holdout"
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        job = FitJob(
            self._detector,
            self._rows.last(self._schedule.buffer_events),
            derive_seed(self._seed, self._stream_key, epoch),
            calibration,
            self._schedule.holdout_share,
        )
        self._pending = self._submit(epoch, self.rows_seen, job)
        self.recipe_version += 1

    def _submit(self, epoch: int, requested_at: int, job: FitJob) -> _Model:
        ticket = (self._token, epoch)
        self._executor.submit(ticket, job)
        return _Model(epoch, requested_at, job, ticket)

    def close(self) -> None:
        """Give up fits nobody will ask for."""
        for model in (self._serving, self._pending, self._shadow):
            if model is not None and model.fitted is None:
                self._executor.cancel(model.ticket)

    def state(self) -> dict[str, Any]:
        """Return what changes with every row."""
        return {
            "rows_seen": self.rows_seen,
            "next_epoch": self._next_epoch,
            "rows": pack_array(self._rows.last(self._schedule.buffer_events)),
            "shadow_scores": None
            if self._shadow is None
            else pack_array(np.array(self._shadow.shadow_scores)),
        }

    def recipes(self) -> dict[str, Any]:
        """Return what changes only when :attr:`recipe_version` does: training rows and seeds."""
        parts = (("serving", self._serving), ("pending", self._pending), ("shadow", self._shadow))
        return {name: None if model is None else model.recipe() for name, model in parts}

    def restore(self, state: dict[str, Any], recipes: dict[str, Any]) -> None:
        """Take over a state: models are fitted again from rows and seed, in the executor."""
        self.rows_seen, self._next_epoch = state["rows_seen"], state["next_epoch"]
        self._rows.extend(unpack_array(state["rows"]))
        self._serving = self._revive(recipes["serving"])
        self._pending = self._revive(recipes["pending"])
        self._shadow = self._revive(recipes["shadow"])
        if self._shadow is not None:
            self._shadow.shadow_scores = unpack_array(state["shadow_scores"]).tolist()

    def _revive(self, recipe: dict[str, Any] | None) -> _Model | None:
        if recipe is None:
            return None
        job = FitJob(
            self._detector,
            unpack_array(recipe["rows"]),
            recipe["seed"],
            recipe["calibration"],
            self._schedule.holdout_share,
        )
        return self._submit(recipe["epoch"], recipe["requested_at"], job)


class IncrementalModel:
    """An incremental detector: a row is scored, then learnt; its first scores are dropped.

    Parameters
    ----------
    detector, feature_names, seed
        The recipe.
    explained
        Whether somebody will ask for other scores of a row that was just judged: then rows are
        learnt one at a time, and the last of them are remembered.
    """

    def __init__(
        self,
        detector: IncrementalDetector,
        feature_names: Sequence[str],
        seed: int,
        *,
        explained: bool = False,
    ) -> None:
        self._detector, self._names = detector, feature_names
        self._scorer: IncrementalScorer = detector.start(feature_names, seed=seed)
        self._warm_up = detector.warm_up_events
        self._known = _RowBuffer(_KNOWN_ROWS, len(feature_names)) if explained else None
        self.rows_seen = 0
        self.recipe_version = 0

    def segments(self, rows: list[list[float]], judge: Judge) -> Iterator[Segment]:
        """Score and learn rows in order; the caller's judge keeps its window for ever."""
        X = np.array(rows, dtype=np.float64)
        if self._known is not None:
            yield from self._one_by_one(X, self._known)
            return
        score_one, learn_one = self._scorer.score_one, self._scorer.learn_one
        scores: list[float] = []
        for x in X:
            scores.append(score_one(x))
            learn_one(x)
        dropped = min(len(X), max(0, self._warm_up - self.rows_seen))
        self.rows_seen += len(X)
        if dropped:
            yield Segment(0, dropped, None, -1)
        if dropped < len(X):
            yield Segment(dropped, len(X), scores[dropped:], 0)

    def _one_by_one(self, X: FloatArray, known: _RowBuffer) -> Iterator[Segment]:
        """Yield every row before it is learnt, so that the model can be asked about it."""
        scorer = self._scorer
        for i, x in enumerate(X):
            score = scorer.score_one(x)
            if self.rows_seen < self._warm_up:
                yield Segment(i, i + 1, None, -1)
            else:
                yield Segment(i, i + 1, (score,), 0)
            scorer.learn_one(x)
            known.extend(X[i : i + 1])
            self.rows_seen += 1

    def score(self, X: FloatArray) -> FloatArray:
        """Score other rows with the model as it stands, shape (m, d) to (m,)."""
        return np.array([self._scorer.score_one(x) for x in X])

    def medians(self) -> FloatArray:
        """Return the medians of the last rows learnt, shape (d,)."""
        assert self._known is not None
        return np.median(self._known.last(_KNOWN_ROWS), axis=0)

    def age_events(self) -> int:
        """Return how many rows have been learnt."""
        return self.rows_seen

    def close(self) -> None:
        """Nothing runs in the background."""

    def state(self) -> dict[str, Any]:
        """Return what changes with every row."""
        return {
            "rows_seen": self.rows_seen,
            "model": self._scorer.state(),
            "known": None if self._known is None else pack_array(self._known.last(_KNOWN_ROWS)),
        }

    def recipes(self) -> dict[str, Any]:
        """Return nothing: an incremental model has no training rows."""
        return {}

    def restore(self, state: dict[str, Any], recipes: dict[str, Any]) -> None:
        """Take over a state."""
        self.rows_seen = state["rows_seen"]
        if self._known is not None:
            self._known.extend(unpack_array(state["known"]))
        self._scorer = self._detector.restore(self._names, state["model"])
