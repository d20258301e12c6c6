"""The model of one stream key over its life: which scorer speaks for which row.

A batch model is fitted, refitted and swapped at fixed row counts
(:mod:`rejex_stream.engine.refit`); an incremental one
(:mod:`rejex_stream.engine.incremental_model`)
scores a row, then learns it. Both turn rows into segments of scores; a segment has one model, so it
may be scored in one call.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np

from rejex_stream.detectors.table import TableScorer
from rejex_stream.engine.packed_rows import BLOCK, Block, PackedRows, RowShape, pack, shape_of
from rejex_stream.engine.refit import (
    Calibration,
    FitFailed,
    FitJob,
    Fitted,
    ModelFit,
    RefitSchedule,
    derive_seed,
)
from rejex_stream.engine.snapshot import pack_array, unpack_array
from rejex_stream.engine.spec import EngineSpec
from rejex_stream.errors import WAY_OUT, CheckpointError, DetectorError
from rejex_stream.features.columns import LARGEST
from rejex_stream.incidents import IncidentTracker, Transition
from rejex_stream.incidents.levels import ChannelLevel, levels_before
from rejex_stream.incidents.resting import PastWakeUps
from rejex_stream.incidents.thresholds import is_mixed
from rejex_stream.protocols import BatchDetector, FitExecutor, Scorer
from rejex_stream.rejection.judge import Judge
from rejex_stream.types import ColumnGroups, FloatArray, IncidentState, RestingRange, Status

_MOSTLY_SUSPECT = 64  # rows under suspicion that there is room for anyway


class _Recipe(msgspec.Struct, forbid_unknown_fields=True):
    epoch: Count
    requested_at: Count
    seed: int
    calibration: Calibration
    n_rows: Count
    rows: Any
    past_wake_ups: tuple[PastWakeUps, ...]


class _Recipes(msgspec.Struct, forbid_unknown_fields=True):
    serving: _Recipe | None
    pending: _Recipe | None
    shadow: _Recipe | None
    resting: tuple[RestingRange, ...]  # of the one that serves


class _BatchState(msgspec.Struct, forbid_unknown_fields=True):
    rows_seen: Count
    next_epoch: Count
    rows: Any
    shadow_scores: list[Any] | None
    guard: bytes | None
    held: HeldState
    extreme: list[Count]


class BatchModel:
    """A batch detector that is refitted in the background and swapped at fixed rows."""

    __slots__ = (
        "_detector", "_due", "_executor", "_extreme", "_fit_due", "_guard", "_held",
        "_level_columns", "_levels", "_most_unscored", "_next_epoch", "_on_failure", "_origin",
        "_pending", "_quantile", "_rows", "_schedule", "_seed", "_serving", "_shadow", "_shape",
        "_stream_key", "_tested", "_token", "_tracker", "_window", "allow_nan", "fast_path_until",
        "recipe_version", "rows_seen", "successor",
    )  # fmt: skip

    def __init__(
        self,
        spec: EngineSpec,
        stream_key: str,
        tracker: IncidentTracker,
        executor: FitExecutor,
        on_failure: Callable[[FitFailed], None],
    ) -> None:
        self._detector = detector = cast("BatchDetector", spec.detector)
        self._schedule = schedule = spec.schedule
        self._seed, self._stream_key = spec.seed, stream_key
        self._tested = list(spec.features.levels)  # columns that tell the first rows apart
        self._levels = spec.features.level_of_channel
        channels, on_circle = spec.features.channels, {name for name, *_ in spec.features.angles}
        self._level_columns = {
            channels[i]: (i, column)
            for i, column in self._levels.items()
            if channels[i] not in on_circle
        }
        self._window = spec.window
        self.allow_nan = schedule.is_guarded and getattr(detector, "allow_nan", False)
        """Whether rows that lack some columns are scored; they train nothing."""
        self._executor, self._on_failure = executor, on_failure
        self._tracker = tracker
        tracker.history = self
        self._shape = shape = shape_of(spec.features)
        lag, look_back = max(1, schedule.refit_lag_events), tracker.look_back
        self._guard = Guard(schedule, look_back) if schedule.is_guarded else None
        self._quantile = None if self._guard is None else schedule.guard_quantile
        # How many rows, kept out of training or not, have to be there, and how many of them a
        # shadow may leave for later.
        least = 0 if self._guard is None else lag + look_back
        most_suspect = min(_MOSTLY_SUSPECT, look_back)
        self._rows = RowBuffer(schedule.buffer_events + most_suspect, shape, least)
        self._most_unscored = min(BLOCK, schedule.buffer_events if self._guard is None else lag)
        self._held = RowBuffer(schedule.buffer_events + shape.reach, shape)
        self._origin = 0  # of the counts that the schedule goes by
        self._token = object()  # tickets of two engines on one executor never meet
        self.rows_seen = 0
        self._due = 0  # at what row count something happens next; 0: not looked yet
        self.fast_path_until = 0  # before which row count nothing comes before scores; 0: it may
        self._fit_due = 0  # and a fit may be asked for; 0 as well
        self._next_epoch = 0
        self._serving: ModelFit | None = None
        self._pending: ModelFit | None = None
        self._shadow: ModelFit | None = None
        self._extreme: list[int] = []  # row numbers, while a model is on its way
        self.recipe_version = 0
        """Grows whenever the part of the state that holds training rows changes."""
        self.successor: BatchModel | None = None
        """That of the interim reference, where there is one: it has the rows held back."""

    def next_segment(
        self,
        rows: Rows,
        start: int,
        judge: Judge,
        *,
        explained: bool = False,
        planned: bool = False,
    ) -> Segment:
        """Score rows from `start` on, up to where a model is requested, installed or swapped.

        It has to be judged and given to :meth:`after_judging` before the next: a swap replaces the
        judge's window, and a transition decides what becomes of the rows.
        """
        held = self._tracker.frozen
        stop, begun = len(rows), self._serving is not None
        if not (held or planned):
            was_frozen = self._tracker.frozen
            if self.rows_seen >= self._due:
                self.apply_due(judge)
            held = self._tracker.frozen and not was_frozen
            stop = stop if held else min(stop, start + self._due - self.rows_seen)
        if held and not planned:
            stop = min(stop, start + self._most_held())
        X = rows[start:stop]
        if stop - start > 1:
            X = np.array(X, dtype=np.float64)
        if self._serving is None:
            held = held and not planned
            return Segment(start, stop, X, None, -1, held=held, is_training=not (held or planned))
        guarded = self._guard is not None and not (held or planned)
        self.fast_path_until = self._due if self._tracker.reach is None else 0
        return Segment(
            start,
            stop,
            X,
            self._scores(self._serving, X),
            self._serving.epoch,
            self._schedule.guard_quantile if guarded else None,
            None if begun else self._of_first(self._serving.rows()),
            held and not planned,
            not (held or planned),
            () if planned else self._serving.resting,
            self._serving.past_wake_ups,
        )

    def _most_held(self) -> int:
        """Return after how many rows held, at most, the interim reference may be another."""
        successor = self.successor
        if successor is None:
            return max(1, self._enough_held - len(self._held))
        if successor.has_model and successor._tracker.frozen:
            return max(1, successor._tracker.min_events_held())
        return max(1, successor._due - successor.rows_seen)

    @property
    def _enough_held(self) -> int:
        """With the row after so many an interim reference is asked for."""
        enough = min(self._schedule.first_fit_events, self._schedule.buffer_events)
        return enough + self._shape.reach - 1

    @property
    def has_enough_held(self) -> bool:
        """Whether there are rows enough for an interim reference."""
        return self.successor is None and len(self._held) >= self._enough_held

    def begin_interim(self, successor: BatchModel) -> None:
        """Let the model of an interim reference begin with the rows held back."""
        successor.rows_seen, successor._next_epoch = self.rows_seen, self._next_epoch
        successor._begin_with(self._since_onset())
        self.successor = successor
        self.recipe_version += 1

    def drop_interim(self) -> None:
        """Go on without the interim reference."""
        if self.successor is not None:
            self.recipe_version += self.successor.recipe_version + 1
            self.successor.close()
            self.successor = None

    def hold_newest(self) -> None:
        """Hold back the newest rows of the interim reference, so that another is made of them.

        Where it is held itself, those since then.
        """
        assert self.successor is not None  # whose rows they are
        rows = self.successor._held if len(self.successor._held) else self.successor._rows
        self._held.extend(rows.last(self._schedule.buffer_events + self._shape.reach))

    def speak_for(self, other: BatchModel) -> None:
        """Speak for a stream from its next row on, in the place of a model that stands still."""
        self._due = self._fit_due = self.fast_path_until = 0
        self.recipe_version += 1
        other.successor = None

    def ranks_next(self, judge: Judge) -> bool:
        """Whether there is a model for the next row; what is due before it is done."""
        if self.rows_seen >= self._due and not (self._tracker.frozen and self.has_model):
            self.apply_due(judge)
        return self.has_model

    @property
    def has_model(self) -> bool:
        """Whether rows have scores."""
        return self._serving is not None

    @property
    def resting(self) -> tuple[RestingRange, ...]:
        """The channels that are judged by their range alone."""
        return () if self._serving is None else self._serving.resting

    def _past_wake_ups(self, model: ModelFit, rows: FloatArray) -> tuple[PastWakeUps, ...]:
        """Return what channels at rest did in the rows that a model was fitted on, and in others.

        Of those that its first half was not fitted on nobody is told.
        """
        if not model.resting:
            return ()
        X = np.concatenate((model.rows(), rows))
        return tuple(
            PastWakeUps.among(X[:, self._levels[own.channel]], own) for own in model.resting
        )

    def _of_first(self, rows: FloatArray) -> Status | None:
        if is_mixed(rows[:, self._tested]):
            return Status.WARM_UP_MIXED
        lacks_level = getattr(self._detector, "lacks_level", None)
        return Status.NO_LEVEL if lacks_level is not None and lacks_level(rows) else None

    def after_judging(self, segment: Segment, judged: SegmentResult, judge: Judge) -> None:
        """Take in what was judged of a segment."""
        count = judged.stop - segment.start
        X = segment.rows[:count]
        if segment.held:
            if self.successor is None:
                self._held.extend(X)
            if judged.transition is not None:
                self._apply_transition(judged.transition, judge)
        elif segment.is_training:
            self.absorb(X, judged, judge)

    def absorb(self, X: Rows, judged: SegmentResult, judge: Judge) -> None:
        """Let rows that were judged into the buffer, have the shadow score them, ask for a fit."""
        count, shadow = len(X), self._shadow
        if shadow is not None and count > 1:
            self._catch_up(shadow)
            shadow.shadow_scores.extend(self._scores(shadow, X))
        if judged.extreme and (self._shadow or self._pending):
            self._extreme += [self.rows_seen + i for i in judged.extreme]
        transition = judged.transition
        suspects = self._tracker.suspect_events if transition is None else transition.onset
        if len(suspects) > _MOSTLY_SUSPECT:
            self._rows.capacity = self._schedule.buffer_events + self._tracker.look_back
        if self._guard is not None:
            partial = _partial_in(X) if self.allow_nan else ()
            self._rows.extend(X, self._guard.admit(count, judged.outliers, partial))
        else:
            self._rows.extend(X)
        self.rows_seen += count
        if shadow is not None and count == 1:
            shadow.n_unscored += 1
            due = shadow.n_unscored >= self._most_unscored or self._rows.n_open == BLOCK
            if due or shadow.fitted is None:
                self._catch_up(shadow)
        if transition is not None:
            self._apply_transition(transition, judge)
        elif self.rows_seen >= self._due:
            self.maybe_request_fit()

    def maybe_request_fit(self) -> None:
        """Ask for a fit, where one is due with the last row."""
        wanted = self._schedule.refit_every_events is not None or (
            self._serving is None and self._pending is None
        )
        if wanted and self._schedule.is_request(self.rows_seen - self._origin):
            self._request()

    def _catch_up(self, shadow: ModelFit) -> None:
        """Let a shadow score the rows that came alone: many at once cost a fraction each."""
        if shadow.n_unscored:
            rows = self._rows.last(shadow.n_unscored)
            shadow.n_unscored = 0
            shadow.shadow_scores.extend(self._scores(shadow, rows))

    def _apply_transition(self, transition: Transition, judge: Judge) -> None:
        self._due = self._fit_due = self.fast_path_until = 0
        if transition.onset:
            judge.retract([s.evicted for s in reversed(transition.onset) if s.entered])
            self._retract(len(transition.onset), transition.n_before)
        elif transition.state is IncidentState.CLOSED:
            self._held.clear()

    def _retract(self, count: int, n_before: int) -> None:
        """Go back by so many rows, and hold all but the first back; fits since are asked again."""
        if self._shadow is not None:
            self._catch_up(self._shadow)
        self._held.extend(self._rows.last(count - n_before))
        self._rows.retract(count)
        if self._guard is not None:
            self._guard.retract(count)
        self.rows_seen -= count
        self._extreme = [row for row in self._extreme if row < self.rows_seen]
        for model in (self._pending, self._shadow):
            if model is not None and model.requested_at > self.rows_seen:
                self._give_up(model)
        if self._shadow is not None:
            del self._shadow.shadow_scores[self.rows_seen - self._shadow.requested_at :]

    def _give_up(self, model: ModelFit) -> None:
        if model.fitted is None:
            self._executor.cancel(model.ticket)
        self._pending = None if model is self._pending else self._pending
        self._shadow = None if model is self._shadow else self._shadow
        self.recipe_version += 1

    def _since_onset(self) -> FloatArray:
        """Take the rows held back, without the first, whose columns look at readings before them.

        These are of neither state, and a few of them make a model as wide as the step between.
        """
        reach = self._shape.reach
        rows = self._held.last(self._schedule.buffer_events + reach)[reach:]
        self._held.clear()
        return rows

    def _begin_with(self, rows: FloatArray) -> None:
        """Let the buffer begin with rows of an incident, from which the schedule counts."""
        rows = np.delete(rows, _partial_in(rows), axis=0)
        self._rows.extend(rows)
        if self._guard is not None:
            self._guard.admit(len(rows), ())
        self.rows_seen += len(rows)
        self._origin = self.rows_seen - min(len(rows), self._schedule.first_fit_events - 1)

    def rows_ready(self) -> int:
        """Return how many rows, at least, can be scored before a fit has to be waited for.

        Asks the executor for no fit but those that the next row needs.
        """
        for model in (self._serving, self._shadow):
            if not (model is None or model.fitted or self._executor.done(model.ticket)):
                return 0
        lag, pending = self._schedule.refit_lag_events, self._pending
        if self._tracker.frozen:  # row counts are, too
            ready = self._tracker.min_events_held() + 1
            if self.successor is not None:
                return min(ready, self.successor.rows_ready())
            return min(ready, max(1, self._enough_held - len(self._held)) + lag)
        if pending is not None:
            left = pending.requested_at + lag - self.rows_seen
            if left > 0 or not (pending.fitted or self._executor.done(pending.ticket)):
                return left
        return self._next_fit() + lag - self.rows_seen

    def _next_fit(self) -> int:
        if self.rows_seen >= self._fit_due:
            since = self.rows_seen - self._origin
            self._fit_due = self._schedule.next_request(since) + self._origin
        return self._fit_due

    def score(self, X: FloatArray) -> FloatArray:
        """Score other rows with the model that speaks now, shape (m, d) to (m,)."""
        assert self._serving is not None  # asked about rows it has scored
        return self._scorer(self._serving).score(X)

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Score rows as if each group of columns were unknown, (m, g); ``None``: it cannot."""
        assert self._serving is not None
        scorer = self._scorer(self._serving)
        return scorer.score_without(X, groups) if isinstance(scorer, TableScorer) else None

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Return what one expects of each group, (m, g, 4); ``None``: it cannot."""
        assert self._serving is not None
        scorer = self._scorer(self._serving)
        return scorer.given_others(X, groups) if isinstance(scorer, TableScorer) else None

    def medians(self) -> FloatArray:
        """Return the medians of the rows the model was fitted on, shape (d,)."""
        assert self._serving is not None
        if self._serving.medians is None:
            self._serving.medians = np.median(self._serving.rows(), axis=0)
        return self._serving.medians

    def age_events(self) -> int:
        """Return how many rows have been seen since the model's training rows were frozen."""
        assert self._serving is not None
        return self.rows_seen - self._serving.requested_at

    def _scores(self, model: ModelFit, X: Rows) -> list[float]:
        scorer = self._scorer(model) if model.fitted is None else model.fitted.scorer
        if model.score_row is not None and len(X) == 1:  # numpy's calls cost more than one score
            row: list[float] = X[0] if isinstance(X, list) else X[0].tolist()
            if math.isfinite(sum(row)):
                return [model.score_row(row)]
        scores: list[float] = self._checked(scorer.score(np.asarray(X)), len(X)).tolist()
        return scores

    def _checked(self, scores: Any, count: int) -> FloatArray:  # noqa: ANN401 - of a detector
        try:
            found = np.asarray(scores, dtype=np.float64)
        except (TypeError, ValueError):
            found = np.empty(0)
        if found.shape != (count,):
            raise DetectorError(
                f"{self._detector.name} scored {count} rows of stream {self._stream_key!r} with "
                f"{type(scores).__name__} of shape {np.shape(scores)}: expected a float a row."
            )
        return found

    def _scorer(self, model: ModelFit) -> Scorer:
        try:
            return model.wait(self._executor).scorer
        except DetectorError as error:  # it was fitted once, or it would not be here
            raise CheckpointError(
                f"A model of stream {self._stream_key!r} cannot be fitted again from its snapshot "
                f"({error}): {WAY_OUT}."
            ) from error

    def _boundary(self, judge: Judge) -> int:
        seen, boundary = self.rows_seen, self._next_fit()
        boundary = min(boundary, self.last_mark() + self._tracker.look_back)
        if self._tracker.active:
            boundary = min(boundary, self._tracker.next_measurement(seen))
        if self._pending is not None:
            needed = self._pending.requested_at + self._schedule.refit_lag_events
            boundary = needed if seen < needed < boundary else boundary
        if self._shadow is not None:
            full = self._shadow.requested_at + self._window
            boundary = full if seen < full < boundary else boundary
        return boundary

    def apply_due(self, judge: Judge) -> None:
        """Do what is due before the next row: swap a full shadow, install a fit that is needed."""
        if self.rows_seen == self.last_mark() and self._hold_moved(judge):
            return
        self._swap(judge)
        asked = math.inf if self._serving is None else self._serving.requested_at
        full = self.rows_seen >= asked + self._window
        self._tracker.maybe_remeasure(self.rows_seen, judge.window, is_due=full)
        pending = self._pending
        lag = self._schedule.refit_lag_events
        if pending is not None and self.rows_seen == pending.requested_at + lag:
            self._pending = None
            self._install(pending, judge)
            self._swap(judge)  # a lag as long as the window fills the shadow at once
        self._due = self._boundary(judge)
        if self.fast_path_until:
            self.fast_path_until = self._due

    def last_mark(self) -> int:
        """Return the last row count at which a segment ended, wherever calls are cut."""
        return self.rows_seen // self._tracker.look_back * self._tracker.look_back

    def levels_before(self, mark: int, length: int) -> list[ChannelLevel]:
        """Return the levels of channels before the row of that count, by means of so many rows."""
        rows = self._rows.last(self._schedule.buffer_events)
        begin = self.rows_seen - len(rows)
        # Rows that are there however far a call goes beyond the last mark.
        first = self.last_mark() + self._tracker.look_back - self._schedule.buffer_events
        return levels_before(
            rows[max(0, first - begin) : max(0, mark - begin)], self._level_columns, length
        )

    def _hold_moved(self, judge: Judge) -> bool:
        """Hold an incident whose channels stay at another level, without what came since."""
        serving, levels, length = self._serving, self._tracker.levels, self._tracker.recover_events
        if serving is None or not levels:
            return False
        means = self._rows.last(length).mean(axis=0).tolist()
        since = {one.channel: means[self._level_columns[one.channel][1]] for one in levels}
        count = self._tracker.hold_moved(self.rows_seen, serving.requested_at, judge.window, since)
        if not count:
            return False
        judge.retract([None] * count)
        self._held.extend(self._rows.last(count))
        for model in (self._pending, self._shadow):
            if model is not None and model.requested_at > self.rows_seen - count:
                self._give_up(model)
        self._due = self._fit_due = self.fast_path_until = 0
        return True

    def _swap(self, judge: Judge) -> None:
        shadow = self._shadow
        if shadow is not None and self.rows_seen == shadow.requested_at + self._window:
            self._catch_up(shadow)
            self._calibrate(judge, shadow, shadow.shadow_scores.tolist())
            del shadow.shadow_scores[:]
            self._serving, self._shadow = shadow, None
            self.recipe_version += 1

    def _calibrate(self, judge: Judge, model: ModelFit, scores: list[float]) -> None:
        # What was extreme is left out of what severity goes by, unless it is more than the guard's
        # share: that is no fault but another regime.
        first = self.rows_seen - len(scores)
        extreme = {row - first for row in self._extreme if row >= model.requested_at}
        since = self.rows_seen if self._pending is None else self._pending.requested_at
        self._extreme = [row for row in self._extreme if row >= since]
        if len(extreme) > self._schedule.guard_share * len(scores):
            extreme = set()
        judge.calibrate(scores, extreme)

    def _install(self, model: ModelFit, judge: Judge) -> None:
        try:
            fitted = model.wait(self._executor)
        except DetectorError as error:
            self._on_failure(FitFailed(self._stream_key, model.epoch, self.rows_seen, error))
            return
        # The rows seen while the fit ran are out of sample too.
        missed = self._rows.last(self.rows_seen - model.requested_at)
        caught_up = list[float]()
        if len(missed):
            caught_up = self._checked(fitted.scorer.score(missed), len(missed)).tolist()
        self.recipe_version += 1
        if model.calibration == "shadow":
            asked = model.requested_at
            self._extreme = [row for row in self._extreme if row >= asked]
            model.shadow_scores = array("d", caught_up)
            self._shadow = model
            return
        calibrating: list[float] = fitted.calibration_scores.tolist()
        self._calibrate(judge, model, [*calibrating, *caught_up])
        model.fitted = Fitted(fitted.scorer, np.empty(0))
        model.past_wake_ups = self._past_wake_ups(model, missed)
        self._serving, self._shadow = model, None

    def _request(self) -> None:
        calibration = self._schedule.calibration
        if calibration == "shadow" and self._serving is None:
            calibration = "holdout"
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        rows = self._rows.packed(self._schedule.buffer_events)
        job = FitJob(
            self._detector,
            rows.training(self._schedule.buffer_events),
            derive_seed(self._seed, self._stream_key, epoch),
            calibration,
            self._schedule.holdout_share,
        )
        self._pending = self._submit(epoch, self.rows_seen, job, rows)
        self.recipe_version += 1

    def _submit(self, epoch: int, requested_at: int, job: FitJob, rows: PackedRows) -> ModelFit:
        ticket = (self._token, epoch)
        self._executor.submit(ticket, job)
        n_rows = len(job.rows)
        return ModelFit(epoch, requested_at, job.seed, job.calibration, n_rows, rows, ticket)

    def forget_held(self) -> None:
        """Drop the rows held back: nothing is held any more."""
        self._held.clear()
        self.drop_interim()

    def close(self) -> None:
        """Give up fits nobody will ask for."""
        self._tracker.history = None
        for model in (self._serving, self._pending, self._shadow):
            if model is not None and model.fitted is None:
                self._executor.cancel(model.ticket)
        if self.successor is not None:
            self.successor.close()

    def state(self) -> Callable[[], dict[str, Any]]:
        """Take what changes with every row as it is now; encoded when called, on any thread."""
        rows_seen, next_epoch = self.rows_seen, self._next_epoch
        look_back = len(self._tracker.suspect_events)
        rows = self._rows.packed(self._schedule.buffer_events + look_back)
        if self._shadow is not None:
            self._catch_up(self._shadow)
        shadow = None if self._shadow is None else self._shadow.shadow_scores[:]
        guard = None if self._guard is None else self._guard.state(look_back)
        held = self._held.packed(self._schedule.buffer_events)
        origin, extreme = self._origin, self._extreme.copy()
        return lambda: {
            "rows_seen": rows_seen,
            "next_epoch": next_epoch,
            "rows": rows.blocks,
            "shadow_scores": None if shadow is None else pack_array(np.array(shadow)),
            "guard": guard,
            "held": {"origin": origin, "rows": held.blocks},
            "extreme": extreme,
        }

    def recipes(self) -> Callable[[], dict[str, Any]]:
        """Take what changes only with :attr:`recipe_version`: training rows and seeds."""
        parts = {"serving": self._serving, "pending": self._pending, "shadow": self._shadow}
        resting = self.resting
        # What of a model goes into its recipe never changes.
        return lambda: {
            "resting": resting,
            **{
                name: None
                if model is None
                else {
                    "epoch": model.epoch,
                    "requested_at": model.requested_at,
                    "seed": model.seed,
                    "calibration": model.calibration,
                    "n_rows": model.n_rows,
                    "rows": model.training.blocks,
                    "past_wake_ups": model.past_wake_ups,
                }
                for name, model in parts.items()
            },
        }

    def restore(self, state: dict[str, Any], recipes: dict[str, Any]) -> None:
        """Take over a state: models are fitted again from rows and seed, in the executor."""
        kept = msgspec.convert(state, _BatchState)
        found = msgspec.convert(recipes, _Recipes)
        self.rows_seen, self._next_epoch = kept.rows_seen, kept.next_epoch
        self._origin = kept.held.origin
        held, _ = self._checked_rows(kept.held.rows, None, partial=self.allow_nan)
        self._held.take_over(held)
        rows, _ = self._checked_rows(kept.rows, kept.rows_seen)
        self._rows.take_over(rows)
        if (self._guard is None) is not (kept.guard is None):
            raise ValueError("a guard that the schedule has not" if kept.guard else "no guard")
        if self._guard is not None and kept.guard is not None:
            self._guard.restore(kept.guard)
        lag = self._schedule.refit_lag_events
        jobs = [
            self._job(found.serving, kept.rows_seen),
            self._job(found.pending, lag),
            self._job(found.shadow, self._window),
        ]
        scores = array("d")
        if found.shadow is not None:
            scores.extend(unpack_array(kept.shadow_scores or []).tolist())
            if len(scores) != self.rows_seen - found.shadow.requested_at:
                raise ValueError(f"{len(scores)} scores of a shadow model")
        # Nothing is fitted before all is known to be whole.
        self._serving, self._pending, self._shadow = (
            None if job is None else self._submit(*job) for job in jobs
        )
        if self._shadow is not None:
            self._shadow.shadow_scores = scores
        if self._serving is not None and found.serving is not None:
            self._serving.past_wake_ups = found.serving.past_wake_ups
            self._serving.resting = found.resting
        if any(row >= kept.rows_seen for row in kept.extreme):
            raise ValueError(f"rows beyond the {kept.rows_seen} that were seen are crowded out")
        self._extreme = kept.extreme

    def _checked_rows(
        self,
        packed: Any,  # noqa: ANN401 - plain values
        seen: int | None,
        *,
        partial: bool = False,
    ) -> tuple[PackedRows, FloatArray]:
        """Return the newest rows of so many seen, and those that train; ``None``: of some."""
        found = PackedRows.of_state(self._shape, packed)
        rows, left_out = found.rows()
        training: FloatArray = rows[left_out == 0]
        buffer = self._schedule.buffer_events
        most = buffer + self._shape.reach
        most = most if seen is None else min(seen, buffer + self._tracker.look_back)
        # A guard keeps some out, and a buffer that was made of an incident begins again.
        some = seen is None or self._guard is not None or self._origin > 0
        enough = some or len(training) >= min(seen or 0, buffer)
        if not (len(training) < most + BLOCK and enough):
            raise ValueError(f"{len(training)} rows that train after {seen} rows")
        if self._guard is None and left_out.any():
            raise ValueError("rows left out that nobody guards")
        lacking = np.isnan(rows) & (partial | (self.allow_nan & (left_out == 2)))[:, None]
        if not ((abs(rows) <= LARGEST) | lacking).all():
            raise ValueError("rows that no event can give")
        return found, training

    def _job(
        self, recipe: _Recipe | None, longest: int
    ) -> tuple[int, int, FitJob, PackedRows] | None:
        """Return epoch, rows seen and fit of a recipe that is at most so many rows old."""
        if recipe is None:
            return None
        asked = recipe.requested_at
        if not (
            0 <= self.rows_seen - asked <= longest
            and (asked <= self._origin or self._schedule.is_request(asked - self._origin))
            and recipe.epoch < self._next_epoch
            and recipe.seed == derive_seed(self._seed, self._stream_key, recipe.epoch)
        ):
            raise ValueError(f"a model of epoch {recipe.epoch} that was asked for at row {asked}")
        packed, rows = self._checked_rows(recipe.rows, asked)
        if not 0 < recipe.n_rows <= min(len(rows), self._schedule.buffer_events):
            raise ValueError(f"a model of {recipe.n_rows} of {len(rows)} rows")
        share, rows = self._schedule.holdout_share, rows[-recipe.n_rows :]
        job = FitJob(self._detector, rows, recipe.seed, recipe.calibration, share)
        return recipe.epoch, asked, job, packed


Rows: TypeAlias = list[list[float]] | FloatArray
"""Rows of features, shape (m, d)."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Segment(NamedTuple):
    """Rows ``start:stop`` of a call, as one model scores them."""

    start: int  # which of the call's rows
    stop: int
    rows: Rows  # they, shape (stop - start, d)
    scores: Sequence[float] | None  # what they are judged by; ``None`` before a model
    epoch: int  # of the model; -1 before the first
    # beyond which a row trains no later model, where one is kept from that
    quantile: float | None = None
    # of the first event: what the warm-up test found in the rows of the first model
    status: Status | None = None
    held: bool = False  # whether its rows are held back, as those of an incident are
    is_training: bool = True  # whether its rows are learnt once they are judged
    resting: tuple[RestingRange, ...] = ()  # channels that its model does not score
    past_wake_ups: tuple[PastWakeUps, ...] = ()  # of these, or nothing


class SegmentResult(NamedTuple):
    """What became of a segment: what a model needs to know to learn from it."""

    stop: int  # the rows before it were judged; what comes then is scored again
    # rows that score beyond the segment's quantile, by their place in it
    outliers: Sequence[int] = ()
    # rows that were extreme by the model's own scores, by their place in it
    extreme: Sequence[int] = ()
    transition: Transition | None = None  # what the last of them made of an incident, if anything


class HeldState(msgspec.Struct, forbid_unknown_fields=True):
    """What a model knows of incidents: rows held back, and where its counts began again."""

    origin: Count
    rows: list[Any]


class RowBuffer:
    """The newest rows: as many as there is capacity for of those that train, and all between.

    The newest few are doubles, the others packed in blocks of so many rows, wherever a call is cut.
    """

    __slots__ = (
        "_blocks", "_least", "_left_out", "_open", "_pack", "_row_bytes", "_shape", "capacity",
        "n_open",
    )  # fmt: skip

    def __init__(self, capacity: int, shape: RowShape, least: int = 0) -> None:
        self.capacity, self._shape = capacity, shape
        self._least = least  # of rows, whether they train or not
        self._open = bytearray()  # of doubles, row after row
        self._left_out = bytearray(BLOCK)  # which of them do not train
        self._pack, self._row_bytes = Struct(f"{shape.width}d").pack_into, 8 * shape.width
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._blocks: list[Block] = []
        self.n_open = 0
        """Rows that are not packed; the next one has them packed where they are a block."""

    def __len__(self) -> int:
        return sum(block.size for block in self._blocks if not block.is_past) + self.n_open

    def extend(self, rows: Rows, left_out: Sequence[int] = ()) -> None:
        """Take rows in, of which some do not train; the oldest leave where there is no room."""
        count, at = len(rows), self.n_open
        if count == 1 and at < BLOCK and self._open:
            self._pack(self._open, at * self._row_bytes, *rows[0])  # cheaper than an array
            self._left_out[at] = left_out[0] if left_out else 0
            self.n_open = at + 1
        elif count:
            if not self._open:
                self._open = bytearray(BLOCK * self._row_bytes)
            whole = np.concatenate((self._newest(), rows))
            flags = self._left_out[:at] + (bytearray(left_out) or bytearray(count))
            self.n_open = n_open = (len(whole) - 1) % BLOCK + 1
            done = len(whole) - n_open
            self._newest()[:], self._left_out[:n_open] = whole[done:], flags[done:]
            if done:
                before = self._blocks[-1] if self._blocks else None
                self._blocks += pack(self._shape, whole[:done], bytes(flags[:done]), before)
                self._make_room()

    def _newest(self) -> FloatArray:
        return np.frombuffer(self._open).reshape(-1, self._shape.width)[: self.n_open]

    def _make_room(self) -> None:
        """Let blocks go that are not wanted any more: the oldest, and those of which none train."""
        blocks, wanted = self._blocks, self._wanted(self.capacity, 0)
        for i in range(len(blocks) - 1 - self._least // BLOCK):
            if i < len(blocks) - wanted or not blocks[i].n_trained:
                blocks[i] = blocks[i].as_past()
        bare = self._shape.make is None
        self._blocks = [
            block
            for block, after in pairwise([*blocks, blocks[-1]])
            if not (block.is_past and (bare or after.is_past))
        ]

    def _wanted(self, count: int, n_open: int) -> int:
        """Return how many blocks, at least, hold so many rows that train, with those not packed."""
        count -= self._left_out.count(0, 0, n_open)
        rows, wanted = n_open, 0
        for block in reversed(self._blocks):
            if count <= 0 and rows >= self._least:
                break
            count, rows, wanted = count - block.n_trained, rows + block.size, wanted + 1
        return wanted

    def packed(self, count: int) -> PackedRows:
        """Return the newest rows, of which so many train, in as few blocks as hold them."""
        blocks, first = self._blocks, len(self._blocks) - self._wanted(count, self.n_open)
        found = blocks[first:]
        if first and self._shape.make is not None:
            found = [blocks[first - 1].as_past(), *found]
        newest, flags = self._newest(), bytes(self._left_out[: self.n_open])
        last = pack(self._shape, newest, flags, blocks[-1] if blocks else None)
        return PackedRows(self._shape, [*found, *last])

    def take_over(self, packed: PackedRows) -> None:
        """Begin with rows that were packed before."""
        self._blocks, self.n_open = [*packed.blocks], 0
        if self._blocks:
            self._unpack(len(self._blocks) - 1, BLOCK)

    def _unpack(self, i: int, count: int) -> None:
        """Have the blocks end before one of them, so many rows of which are the newest ones."""
        around = [*(block.as_past() for block in self._blocks[:i][-1:]), self._blocks[i]]
        rows, left_out = PackedRows(self._shape, around).rows()
        self._open = bytearray(BLOCK * self._row_bytes)
        self.n_open = n_open = min(count, len(rows))
        self._newest()[:], self._left_out[:n_open] = rows[:n_open], bytes(left_out[:n_open])
        del self._blocks[i:]

    def last(self, count: int) -> FloatArray:
        """Return a copy of the newest rows, oldest first, whether they train or not."""
        here = count <= self.n_open
        rows = self._newest().copy() if here else self.packed(count).rows()[0]
        return rows[max(0, len(rows) - count) :]

    def retract(self, count: int) -> None:
        """Forget the newest rows: older ones, as far as they are kept, are the newest again."""
        left = max(0, BLOCK * len(self._blocks) + self.n_open - count)
        if count <= self.n_open or not self._blocks:
            self.n_open = max(0, self.n_open - count)
        else:
            self._unpack(left // BLOCK, left % BLOCK)


def _partial_in(X: Rows) -> list[int]:
    """Return which rows lack columns; those that came alone, as lists, are whole."""
    if isinstance(X, list) or not np.isnan(X).any():
        return []
    found: list[int] = np.flatnonzero(np.isnan(X).any(axis=1)).tolist()
    return found


class Guard:
    """Keeps rows out of training that score beyond a quantile, unless they are too many."""

    __slots__ = ("_capacity", "_flags", "_longest", "_most")

    def __init__(self, schedule: RefitSchedule, look_back: int) -> None:
        self._capacity = schedule.buffer_events
        self._longest = schedule.buffer_events + look_back
        self._most = schedule.guard_share * schedule.buffer_events
        # of each row whether it is let in, 0, or left out: an outlier, 1, or one that lacks columns
        self._flags = bytearray()

    def admit(
        self, count: int, outliers: Sequence[int], partial: Sequence[int] = ()
    ) -> Sequence[int]:
        """Return of the next rows which train later models: 0 those that do.

        No more outliers of a buffer are left out than the share; those that lack columns all are.
        """
        flags, begin = self._flags, len(self._flags)
        flags += bytes(count)
        for i in partial:
            flags[begin + i] = 2
        for at in [begin + i for i in outliers if i not in partial]:
            if flags.count(1, max(0, at + 1 - self._capacity), at) < self._most:
                flags[at] = 1
        admitted = flags[begin:]
        del flags[: -self._longest]
        return admitted

    def retract(self, count: int) -> None:
        """Forget the newest rows."""
        del self._flags[max(0, len(self._flags) - count) :]

    def clear(self) -> None:
        """Forget all rows."""
        self._flags.clear()

    def state(self, look_back: int) -> bytes:
        """Return everything it knows, to go back by so many rows at most."""
        return bytes(self._flags[-self._capacity - look_back :])

    def restore(self, left_out: bytes) -> None:
        """Take over a state."""
        if len(left_out) > self._longest or not {*left_out} <= {0, 1, 2}:
            raise ValueError(f"{len(left_out)} rows in or out of training")
        self._flags[:] = left_out
