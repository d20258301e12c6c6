"""The model of one stream key over its life: which scorer speaks for which row.

A batch model is fitted, refitted and swapped at fixed row counts
(:mod:`rejex_stream.engine.refit`); an incremental one
(:mod:`rejex_stream.engine.incremental_model`)
scores a row, then learns it. Both turn rows into segments of scores; a segment has one model, so it
may be scored in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rejex_stream.detectors.smoothing import Ewma
from rejex_stream.detectors.table import TableScorer
from rejex_stream.engine.incremental_model import IncrementalModel
from rejex_stream.engine.refit import Calibration, FitJob, Fitted, RefitSchedule, derive_seed
from rejex_stream.engine.rows import (
    Count,
    Guard,
    GuardState,
    HeldState,
    Judged,
    KeptRows,
    RowBuffer,
    Rows,
    Segment,
    held_state,
)
from rejex_stream.engine.snapshot import pack_array, unpack_array
from rejex_stream.engine.spec import EngineSpec
from rejex_stream.errors import WAY_OUT, CheckpointError, DetectorError
from rejex_stream.features.columns import LARGEST
from rejex_stream.incidents import Turn, Watch
from rejex_stream.incidents.thresholds import is_mixed
from rejex_stream.protocols import BatchDetector, FitExecutor, Scorer
from rejex_stream.rejection.judge import Judge
from rejex_stream.types import FloatArray, IncidentState, Status

__all__ = ["BatchModel", "FitFailed", "new_model"]


_MOSTLY_SUSPECT = 64  # rows under suspicion that there is room for anyway


class FitFailed(NamedTuple):
    """A fit that failed: the old model goes on, the next boundary tries again."""

    stream_key: str
    epoch: int
    rows_seen: int
    error: DetectorError


class _Recipe(msgspec.Struct, forbid_unknown_fields=True):
    """A model as a snapshot has it."""

    epoch: Count
    requested_at: Count
    seed: int
    calibration: Calibration
    rows: list[Any]


class _Recipes(msgspec.Struct, forbid_unknown_fields=True):
    serving: _Recipe | None
    pending: _Recipe | None
    shadow: _Recipe | None


class _BatchState(msgspec.Struct, forbid_unknown_fields=True):
    rows_seen: Count
    next_epoch: Count
    rows: list[Any]
    shadow_scores: list[Any] | None
    guard: GuardState | None = None
    held: HeldState | None = None
    recent_scores: list[Any] | None = None
    extreme: list[Count] = []


@dataclass(slots=True)
class _Model:
    """One fit on its way: its recipe, and the result once somebody needed it."""

    epoch: int
    requested_at: int
    seed: int
    calibration: Calibration
    kept: FloatArray | KeptRows
    ticket: Hashable
    fitted: Fitted | None = None
    shadow_scores: list[float] = field(default_factory=list)
    medians: FloatArray | None = None

    def is_there(self, executor: FitExecutor) -> bool:
        return self.fitted is not None or executor.done(self.ticket)

    def wait(self, executor: FitExecutor) -> Fitted:
        if self.fitted is None:
            self.fitted = executor.result(self.ticket)
            if isinstance(scorer := self.fitted.scorer, TableScorer):  # calibrated by now
                self.fitted = replace(self.fitted, scorer=scorer.without_training())
            if not isinstance(self.kept, KeptRows):
                self.kept = KeptRows(self.kept)  # the fit needs them no more
        return self.fitted

    def rows(self) -> FloatArray:
        kept = self.kept  # once: a snapshot may be encoding on a thread of its own
        return kept.rows() if isinstance(kept, KeptRows) else kept

    def recipe(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "requested_at": self.requested_at,
            "seed": self.seed,
            "calibration": self.calibration,
            "rows": pack_array(self.rows()),
        }


class BatchModel:
    """A batch detector that is refitted in the background and swapped at fixed rows.

    Parameters
    ----------
    detector, schedule, seed
        The recipe and when to follow it.
    stream_key, n_features, window
        Whose model; columns of a row; reference scores of a full window.
    tested
        Columns by which the rows of a first model are told apart.
    executor
        Where fits run.
    on_failure
        Told of every fit that failed.
    watch
        Knows whether the reference stands still.
    """

    def __init__(
        self,
        detector: BatchDetector,
        schedule: RefitSchedule,
        seed: int,
        *,
        stream_key: str,
        n_features: int,
        tested: Sequence[int],
        window: int,
        executor: FitExecutor,
        on_failure: Callable[[FitFailed], None],
        watch: Watch,
    ) -> None:
        self._detector, self._schedule, self._seed = detector, schedule, seed
        self._stream_key, self._tested = stream_key, list(tested)
        self._ewma = Ewma(getattr(detector, "ewma_events", 1))
        # So many rows make as many scores as there are in a window: a mean wants those before it.
        self._filled_by = window + self._ewma.reach
        self._executor, self._on_failure = executor, on_failure
        self._watch = watch
        self._rows = RowBuffer(
            schedule.buffer_events + min(_MOSTLY_SUSPECT, watch.look_back), n_features
        )
        self._guard = Guard(schedule, n_features, watch.look_back) if schedule.is_guarded else None
        self._held = RowBuffer(schedule.buffer_events, n_features)
        self._origin = 0  # of the counts that the schedule goes by
        self.is_adopting = False
        self._token = object()  # tickets of two engines on one executor never meet
        self.rows_seen = 0
        self._due = 0  # at what row count something happens next; 0: not looked yet
        self._next_epoch = 0
        self._serving: _Model | None = None
        self._pending: _Model | None = None
        self._shadow: _Model | None = None
        self._extreme: list[int] = []  # row numbers, while a model is on its way
        self.recipe_version = 0
        """Grows whenever the part of the state that holds training rows changes."""

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

        It has to be judged and given to :meth:`learn` before the next: a swap replaces the judge's
        window, and a turn decides what becomes of the rows.
        """
        held = self._watch.still and not self.is_adopting
        stop, begun = len(rows), self._serving is not None
        if not (held or planned):
            if self.rows_seen >= self._due:
                self._settle(judge)
                self._due = self._boundary(judge)
            stop = min(stop, start + self._due - self.rows_seen)
        X = rows[start:stop]
        if stop - start > 1:
            X = np.array(X, dtype=np.float64)
        if self._serving is None:
            held = held and not planned
            return Segment(start, stop, X, None, -1, held=held, learns=not (held or planned))
        own = self._scores(self._serving, X)
        guarded = self._guard is not None and not (held or planned or self.is_adopting)
        return Segment(
            start,
            stop,
            X,
            self._ewma.means(own) if self._ewma.reach else own,
            self._serving.epoch,
            own,
            self._schedule.guard_quantile if guarded else None,
            None if begun else self._of_first(self._serving.rows()),
            held and not planned,
            not (held or planned),
        )

    def _of_first(self, rows: FloatArray) -> Status | None:
        """Return what there is to say of the rows of a first model."""
        if is_mixed(rows[:, self._tested]):
            return Status.WARM_UP_MIXED
        lacks_level = getattr(self._detector, "lacks_level", None)
        return Status.NO_LEVEL if lacks_level is not None and lacks_level(rows) else None

    def learn(self, segment: Segment, judged: Judged, judge: Judge) -> None:
        """Take in what was judged of a segment, and ask for a fit where one is due."""
        count = judged.stop - segment.start
        if self._ewma.reach and segment.scores is not None:
            self._ewma.remember(segment.own[:count])
        X = segment.rows[:count]
        if segment.held:
            self._held.extend(X)
        elif segment.learns:
            self._take(X, judged)
        else:
            return
        if judged.turn is not None:
            self._make(judged.turn, judge)
        elif (
            segment.learns
            and self.rows_seen >= self._due
            and self._wants_a_model()
            and self._schedule.is_request(self.rows_seen - self._origin)
        ):
            self._request()

    def _take(self, X: Rows, judged: Judged) -> None:
        """Let rows into the buffer, and the shadow score them."""
        if self._shadow is not None:
            self._shadow.shadow_scores.extend(self._scores(self._shadow, X))
        if judged.extreme and (self._shadow or self._pending):
            self._extreme += [self.rows_seen + i for i in judged.extreme]
        suspects = self._watch.since if judged.turn is None else judged.turn.onset
        if len(suspects) > _MOSTLY_SUSPECT:
            self._rows.keep(self._schedule.buffer_events + self._watch.look_back)
        self._rows.extend(X if self._guard is None else self._guard.admit(X, judged.outliers))
        self.rows_seen += len(X)

    def _make(self, turn: Turn, judge: Judge) -> None:
        """Do with the rows what a turn of the last event asks for."""
        self._due = 0
        if turn.onset:
            judge.retract([s.evicted for s in reversed(turn.onset) if s.entered])
            self._retract(len(turn.onset))
        elif turn.state is IncidentState.ADOPTING:
            self.adopt(judge)
        elif turn.state is IncidentState.CLOSED:
            self._held.clear()

    def _retract(self, count: int) -> None:
        """Go back by so many rows, and hold them back; fits asked for since will be again."""
        if self._guard is None:
            self._held.extend(self._rows.last(count))
            self._rows.retract(count)
        else:
            self._held.extend(self._guard.newest.last(count))
            self._rows.retract(self._guard.retract(count))
        self.rows_seen -= count
        self._extreme = [row for row in self._extreme if row < self.rows_seen]
        for model in (self._pending, self._shadow):
            if model is not None and model.requested_at > self.rows_seen:
                self._give_up(model)
        if self._shadow is not None:
            del self._shadow.shadow_scores[self.rows_seen - self._shadow.requested_at :]

    def _give_up(self, model: _Model) -> None:
        if model.fitted is None:
            self._executor.cancel(model.ticket)
        self._pending = None if model is self._pending else self._pending
        self._shadow = None if model is self._shadow else self._shadow
        self.recipe_version += 1

    def adopt(self, judge: Judge) -> None:
        """Make a reference of the rows held back: a fit is asked for once they are enough.

        They become the buffer, and the schedule counts from them; the model that speaks goes on
        until another is there.
        """
        for model in (self._pending, self._shadow):
            if model is not None:
                self._give_up(model)
        self._due = 0
        rows = self._held.last(self._schedule.buffer_events)
        self._extreme.clear()
        self._held.clear()
        self._rows.clear()
        self._rows.extend(rows)
        if self._guard is not None:
            self._guard.clear()
            self._guard.admit(rows, ())
        self.rows_seen += len(rows)
        self._origin = self.rows_seen - min(len(rows), self._schedule.first_fit_events - 1)
        self.is_adopting = True

    def rows_ready(self) -> int:
        """Return how many rows, at least, can be scored before a fit has to be waited for.

        Asks the executor for no fit but those that the next row needs.
        """
        for model in (self._serving, self._shadow):
            if model is not None and not model.is_there(self._executor):
                return 0
        lag, pending = self._schedule.refit_lag_events, self._pending
        if self._watch.still and not self.is_adopting:
            # The counts stand still; what is adopted then needs a fit in a lag from the next row.
            return self._watch.least_events_held() + 1
        if pending is not None:
            left = pending.requested_at + lag - self.rows_seen
            if left > 0 or not pending.is_there(self._executor):
                return left
        return (
            self._schedule.next_request(self.rows_seen - self._origin)
            + lag
            - (self.rows_seen - self._origin)
        )

    @property
    def weight(self) -> float:
        """What a row's own score counts for in the score that is judged."""
        return self._ewma.weight

    def score(self, X: Rows) -> FloatArray:
        """Score other rows with the model that speaks now, shape (m, d) to (m,)."""
        assert self._serving is not None  # asked about rows it has scored
        scorer = self._scorer(self._serving)
        if type(X) is list and isinstance(scorer, TableScorer):  # few: no call of numpy each
            return np.array(scorer.score_few(X))
        return scorer.score(np.asarray(X))

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

    def _scores(self, model: _Model, X: Rows) -> list[float]:
        """Score rows; one on plain floats where the model can, which costs no call of numpy."""
        scorer = self._scorer(model) if model.fitted is None else model.fitted.scorer
        if len(X) == 1 and type(X) is list and isinstance(scorer, TableScorer):
            return [scorer.score_row(X[0])]
        scores: list[float] = scorer.score(np.asarray(X)).tolist()
        return scores

    def _scorer(self, model: _Model) -> Scorer:
        try:
            return model.wait(self._executor).scorer
        except DetectorError as error:  # it was fitted once, or it would not be here
            raise CheckpointError(
                f"A model of stream {self._stream_key!r} cannot be fitted again from its snapshot "
                f"({error}): {WAY_OUT}."
            ) from error

    def _wants_a_model(self) -> bool:
        """Whether fits go on: without refits, only until one has succeeded."""
        refits = self._schedule.refit_every_events is not None
        needed = self._serving is None or self.is_adopting
        return refits or (needed and self._pending is None)

    def _boundary(self, judge: Judge) -> int:
        """Return the row count at which something happens next."""
        seen, origin = self.rows_seen, self._origin
        boundary = self._schedule.next_request(seen - origin) + origin
        if self._watch.active:
            boundary = min(boundary, self._watch.next_look(seen))
        if self._pending is not None:
            needed = self._pending.requested_at + self._schedule.refit_lag_events
            boundary = needed if seen < needed < boundary else boundary
        if self._shadow is not None:
            full = self._shadow.requested_at + self._filled_by
            boundary = full if seen < full < boundary else boundary
        return boundary

    def _settle(self, judge: Judge) -> None:
        """Do what is due before the next row: swap a full shadow, install a fit that is needed."""
        self._swap(judge)
        if not self.is_adopting:
            self._watch.look(self.rows_seen, judge.window)
        pending = self._pending
        lag = self._schedule.refit_lag_events
        if pending is not None and self.rows_seen == pending.requested_at + lag:
            self._pending = None
            self._install(pending, judge)
            self._swap(judge)  # a lag as long as the window fills the shadow at once

    def _swap(self, judge: Judge) -> None:
        shadow = self._shadow
        if shadow is not None and self.rows_seen == shadow.requested_at + self._filled_by:
            self._calibrate(judge, shadow, shadow.shadow_scores)
            shadow.shadow_scores = []
            self._serving, self._shadow = shadow, None
            self.recipe_version += 1

    def _calibrate(self, judge: Judge, model: _Model, scores: list[float]) -> None:
        """Let the judge go by a model's scores of the newest rows.

        What was extreme is left out of what severity goes by, unless it is more than the guard's
        share: that is no fault but another regime.
        """
        first = self.rows_seen - len(scores)
        extreme = {row - first for row in self._extreme if row >= model.requested_at}
        since = self.rows_seen if self._pending is None else self._pending.requested_at
        self._extreme = [row for row in self._extreme if row >= since]
        means = self._ewma.begin(scores)
        if len(extreme) > self._schedule.guard_share * len(scores):
            extreme = set()
        if extreme and self._ewma.reach:
            finite = [i for i, score in enumerate(scores) if score - score == 0.0]
            places = finite[self._ewma.reach :]
            extreme = {at for at, i in enumerate(places) if i in extreme}
        judge.calibrate(means, extreme)

    def _install(self, model: _Model, judge: Judge) -> None:
        try:
            fitted = model.wait(self._executor)
        except DetectorError as error:
            self._on_failure(FitFailed(self._stream_key, model.epoch, self.rows_seen, error))
            return
        # The rows seen while the fit ran are out of sample too.
        newest = self._rows if self._guard is None else self._guard.newest
        missed = newest.last(self.rows_seen - model.requested_at)
        caught_up = fitted.scorer.score(missed).tolist() if len(missed) else []
        self.recipe_version += 1
        if model.calibration == "shadow":
            asked = model.requested_at
            self._extreme = [row for row in self._extreme if row >= asked]
            model.shadow_scores = caught_up
            self._shadow = model
            return
        self.is_adopting = False
        calibrating: list[float] = fitted.calibration_scores.tolist()
        self._calibrate(judge, model, [*calibrating, *caught_up])
        model.fitted = Fitted(fitted.scorer, np.empty(0))
        self._serving, self._shadow = model, None

    def _request(self) -> None:
        calibration = self._schedule.calibration
        if calibration == "shadow" and (self._serving is None or self.is_adopting):
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
        return _Model(epoch, requested_at, job.seed, job.calibration, job.rows, ticket)

    def forget_held(self) -> None:
        """Drop the rows held back: nothing is held any more."""
        self._held.clear()
        self.is_adopting = False

    def close(self) -> None:
        """Give up fits nobody will ask for."""
        for model in (self._serving, self._pending, self._shadow):
            if model is not None and model.fitted is None:
                self._executor.cancel(model.ticket)

    def state(self) -> Callable[[], dict[str, Any]]:
        """Take what changes with every row as it is now; encoded when called, on any thread."""
        rows_seen, next_epoch = self.rows_seen, self._next_epoch
        look_back = len(self._watch.since)
        rows = self._rows.last(self._schedule.buffer_events + look_back)
        shadow = None if self._shadow is None else self._shadow.shadow_scores.copy()
        guard = {} if self._guard is None else {"guard": self._guard.state(look_back)}
        held = self._held.last(self._schedule.buffer_events)
        origin, adopting = self._origin, self.is_adopting
        extreme = {"extreme": self._extreme.copy()} if self._extreme else {}
        recent = self._ewma.recent if self._ewma.reach else None  # never changed in place
        return lambda: (
            {
                "rows_seen": rows_seen,
                "next_epoch": next_epoch,
                "rows": pack_array(rows),
                "shadow_scores": None if shadow is None else pack_array(np.array(shadow)),
            }
            | guard
            | extreme
            | held_state(held, origin, is_adopting=adopting)
            | ({} if recent is None else {"recent_scores": pack_array(np.array(recent))})
        )

    def recipes(self) -> Callable[[], dict[str, Any]]:
        """Take what changes only with :attr:`recipe_version`: training rows and seeds."""
        parts = (("serving", self._serving), ("pending", self._pending), ("shadow", self._shadow))
        # What of a model goes into its recipe never changes.
        return lambda: {name: None if model is None else model.recipe() for name, model in parts}

    def restore(self, state: dict[str, Any], recipes: dict[str, Any]) -> None:
        """Take over a state: models are fitted again from rows and seed, in the executor.

        Raises
        ------
        ValueError, msgspec.ValidationError
            If this model can never have been in that state.
        """
        kept = msgspec.convert(state, _BatchState)
        found = msgspec.convert(recipes, _Recipes)
        self.rows_seen, self._next_epoch = kept.rows_seen, kept.next_epoch
        if kept.held is not None:
            self._origin, self.is_adopting = kept.held.origin, kept.held.is_adopting
            self._held.extend(self._checked_rows(kept.held.rows, None))
        rows = self._checked_rows(kept.rows, kept.rows_seen)
        self._rows.keep(len(rows))
        self._rows.extend(rows)
        if (self._guard is None) is not (kept.guard is None):
            raise ValueError("a guard that the schedule has not" if kept.guard else "no guard")
        if self._guard is not None and kept.guard is not None:
            self._guard.restore(
                kept.guard.left_out, self._checked_rows(kept.guard.newest, kept.rows_seen)
            )
        self._ewma.recent = self._checked_recent(kept.recent_scores)
        lag = self._schedule.refit_lag_events
        jobs = [
            self._job(found.serving, kept.rows_seen),
            self._job(found.pending, lag),
            self._job(found.shadow, self._filled_by),
        ]
        scores: list[float] = []
        if found.shadow is not None:
            scores = unpack_array(kept.shadow_scores or []).tolist()
            if len(scores) != self.rows_seen - found.shadow.requested_at:
                raise ValueError(f"{len(scores)} scores of a shadow model")
        # Nothing is fitted before all is known to be whole.
        self._serving, self._pending, self._shadow = (
            None if job is None else self._submit(*job) for job in jobs
        )
        if self._shadow is not None:
            self._shadow.shadow_scores = scores
        if any(row >= kept.rows_seen for row in kept.extreme):
            raise ValueError(f"rows beyond the {kept.rows_seen} that were seen are crowded out")
        self._extreme = kept.extreme

    def _checked_rows(
        self,
        packed: Any,  # noqa: ANN401 - plain values
        seen: int | None,
    ) -> FloatArray:
        """Return the newest rows of so many that were seen; ``None``: of some."""
        rows = unpack_array(packed)
        buffer = self._schedule.buffer_events
        most = buffer if seen is None else min(seen, buffer + self._watch.look_back)
        # A guard keeps some out, and a buffer that was made of an incident begins anew.
        some = seen is None or self._guard is not None or self._origin > 0
        enough = some or len(rows) >= min(seen or 0, buffer)
        if not (rows.shape[1:] == (self._rows.width,) and len(rows) <= most and enough):
            raise ValueError(f"rows of shape {rows.shape} after {seen} rows")
        if not (abs(rows) <= LARGEST).all():
            raise ValueError("rows that no event can give")
        return rows

    def _checked_recent(self, packed: Any) -> list[float]:  # noqa: ANN401 - plain values
        """Return the scores that the next mean looks back at."""
        recent = np.empty(0) if packed is None else unpack_array(packed)
        if recent.ndim != 1 or len(recent) > self._ewma.reach or not np.isfinite(recent).all():
            raise ValueError(f"recent scores of shape {recent.shape}")
        scores: list[float] = recent.tolist()
        return scores

    def _job(self, recipe: _Recipe | None, longest: int) -> tuple[int, int, FitJob] | None:
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
        rows = self._checked_rows(recipe.rows, asked)
        share = self._schedule.holdout_share
        job = FitJob(self._detector, rows, recipe.seed, recipe.calibration, share)
        return recipe.epoch, asked, job


def new_model(
    spec: EngineSpec,
    stream_key: str,
    watch: Watch,
    executor: FitExecutor,
    on_failure: Callable[[FitFailed], None],
) -> BatchModel | IncrementalModel:
    """Return the model of a stream that begins, of either kind."""
    names = spec.features.names
    if not isinstance(spec.detector, BatchDetector):
        seed = derive_seed(spec.seed, stream_key, 0)
        return IncrementalModel(
            spec.detector,
            names,
            seed,
            tested=spec.features.levels,
            window=spec.window,
            watch=watch,
        )
    return BatchModel(
        spec.detector,
        spec.schedule,
        spec.seed,
        stream_key=stream_key,
        n_features=len(names),
        tested=spec.features.levels,
        window=spec.window,
        executor=executor,
        on_failure=on_failure,
        watch=watch,
    )
