"""When a batch detector is refitted, and what a fit is.

Everything is counted in rows of one stream key (events that could be scored), never in time:

* at row ``first_fit_events``, then every ``refit_every_events`` (if any), the last
  ``buffer_events`` rows are frozen and handed to an executor;
* exactly ``refit_lag_events`` rows later the result is needed, whether the fit was fast or slow;
* with ``holdout`` and ``training`` the new model speaks from that row on; with ``shadow`` it
  scores beside the old one until its own window is full, one window after the request.

So the wall clock changes latency, never a verdict. The reference scores must be exchangeable with
the scores they judge. Scores of the training rows themselves are not (a density estimator flags
12 times too many events with them), nor are scores of the previous model.

Guarded refits. A fit on the newest rows learns the anomalies that it should find. With a guard, a
row whose score lies beyond a quantile of the reference scores stays out of the buffer of training
rows. That costs no guarantee, because *the window takes all scores*: given a model, the scores of
exchangeable rows that it was not fitted on are exchangeable, however its own training rows were
chosen from the past. Were the rows that calibrate chosen by their scores (a holdout of a guarded
buffer, a window without its largest), ranks would come out too high; hence a guard goes with shadow
calibration only. It goes by rank and not by label, so that another policy finds the same state.
Where more rows than a share of the buffer were left out, that is no anomaly but a new regime, and
rows enter again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rejex_stream.detectors.table import TableScorer
from rejex_stream.engine.packed_rows import PackedRows
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.incidents.resting import PastWakeUps
from rejex_stream.protocols import BatchDetector, FitExecutor, Scorer
from rejex_stream.types import FloatArray, RestingRange

HOLDOUT_SHARE = 0.3
"""Newest share of a buffer that calibrates instead of training, where nothing else is said."""

GUARD_SHARE = 0.5
"""Share of the newest rows that a guard may keep out of training, where nothing else is said."""

Calibration: TypeAlias = Literal["shadow", "holdout", "training"]


@dataclass(frozen=True, slots=True)
class RefitSchedule:
    """Row counts at which a stream key freezes, fits and swaps its model.

    Raises
    ------
    ConfigError
        If a number cannot be, or two contradict each other.
    """

    first_fit_events: int = 1000
    """Rows before the first fit."""
    refit_every_events: int | None = 4000
    """Rows between later fits; ``None`` keeps the first model for ever (one that failed is tried
    again after `first_fit_events` more rows)."""
    refit_lag_events: int = 100
    """Rows between a request and the need for its result: what the fit may take without anybody
    waiting."""
    buffer_events: int = 2000
    """Newest rows that a fit sees."""
    calibration: Calibration = "shadow"
    """``shadow`` (the first model: ``holdout``), ``holdout``, or ``training`` (the paper's)."""
    holdout_share: float = HOLDOUT_SHARE
    """Newest share of the buffer that calibrates instead of training."""
    guard_quantile: float | None = None
    """Rows that score beyond this quantile of the window train no model; 1 lets every row in,
    ``None`` means as the detector wants it (0.95 for those made for sensors, else 1)."""
    guard_share: float = GUARD_SHARE
    """Share of the last `buffer_events` rows that may be left out; beyond, rows enter again."""

    def __post_init__(self) -> None:
        for name, least in (("first_fit_events", 4), ("buffer_events", 4), ("refit_lag_events", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} = {value} is too small: give at least {least}.")
        if self.calibration not in ("shadow", "holdout", "training"):
            raise ConfigError(
                f"calibration = {self.calibration!r} is unknown: use shadow, holdout or training."
            )
        if not 0.0 < self.holdout_share < 1.0:
            raise ConfigError(
                f"holdout_share = {self.holdout_share:g} is outside (0, 1): give e.g. 0.3."
            )
        if self.guard_quantile is not None and not 0.5 <= self.guard_quantile <= 1.0:
            raise ConfigError(
                f"guard_quantile = {self.guard_quantile:g} is outside [0.5, 1]: give e.g. 0.95, "
                "or 1 to train on every row."
            )
        if not 0.0 < self.guard_share < 1.0:
            raise ConfigError(
                f"guard_share = {self.guard_share:g} is outside (0, 1): give e.g. 0.5."
            )
        if self.is_guarded and self.calibration != "shadow":
            raise ConfigError(
                f"guard_quantile = {self.guard_quantile:g} needs calibration = 'shadow': with "
                f"{self.calibration!r} the rows that calibrate would be chosen by their scores. "
                "Use shadow, or guard_quantile = 1."
            )
        if self.refit_lag_events > self.buffer_events:
            raise ConfigError(
                f"refit_lag_events = {self.refit_lag_events} is above buffer_events = "
                f"{self.buffer_events}: rows seen while a fit runs must fit into the buffer."
            )
        every = self.refit_every_events
        if every is not None and every <= self.refit_lag_events:
            raise ConfigError(
                f"refit_every_events = {every} must be above refit_lag_events = "
                f"{self.refit_lag_events}: one fit ends before the next begins."
            )

    @classmethod
    def for_window(cls, window: int, **given: Any) -> RefitSchedule:  # noqa: ANN401 - as the fields
        """Return the schedule of a window of n: what is not given follows from n.

        The first fit comes after half a window, later ones every two windows, a fit may take a
        twentieth of a window and sees one window of rows.

        Examples
        --------
        >>> RefitSchedule.for_window(2000) == RefitSchedule()
        True
        >>> RefitSchedule.for_window(500, refit_lag_events=0).refit_every_events
        1000
        """
        return cls(
            **{
                "first_fit_events": max(4, window // 2),
                "refit_every_events": 2 * window,
                "refit_lag_events": window // 20,
                "buffer_events": max(4, window),
            }
            | given
        )

    def require(self, window: int) -> None:
        """Refuse a schedule whose shadow window could not fill between two fits.

        Raises
        ------
        ConfigError
            With the smallest `refit_every_events` that works.
        """
        every = self.refit_every_events
        if self.calibration != "shadow" or every is None:
            return
        if self.refit_lag_events > window:
            raise ConfigError(
                f"refit_lag_events = {self.refit_lag_events} is above the window of {window}: "
                "with shadow calibration the new model must be there before its window is full."
            )
        if every < window:
            raise ConfigError(
                f"refit_every_events = {every} is below the window of {window}: with "
                "shadow calibration a new model scores one whole window before it speaks. Refit "
                f"every {window} events or more, or use calibration = 'holdout'."
            )

    @property
    def is_guarded(self) -> bool:
        """Whether any row can be kept out of training."""
        return self.guard_quantile is not None and self.guard_quantile < 1.0

    def guarded_by(self, quantile: float | None) -> RefitSchedule:
        """Return the schedule with the guard that a detector wants, where none is given."""
        if quantile is None or self.guard_quantile is not None or self.calibration != "shadow":
            return self
        return replace(self, guard_quantile=quantile)

    def is_request(self, rows: int) -> bool:
        """Whether a fit may be requested once this many rows have been seen."""
        return rows == self.next_request(rows - 1)

    def next_request(self, rows: int) -> int:
        """Return the first row count above `rows` at which a fit may be requested."""
        first = self.first_fit_events
        if rows < first:
            return first
        every = self.refit_every_events or first
        return first + ((rows - first) // every + 1) * every


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted model with the scores it must be ranked among; they never travel apart."""

    scorer: Scorer  # the model
    # shape (m,), oldest first; empty where the window is filled by shadow scoring
    calibration_scores: FloatArray


@dataclass(frozen=True, slots=True)
class FitJob:
    """One fit as a value: what runs in an executor, and what a snapshot keeps of a model."""

    detector: BatchDetector  # the recipe; equal recipes give equal scores
    rows: FloatArray
    seed: int
    calibration: Calibration  # how the first reference scores are made
    holdout_share: float

    def __call__(self) -> Fitted:
        """Fit; any failure becomes a DetectorError that names the detector and the table."""
        rows, held = self.rows, self.rows[:0]
        if self.calibration == "holdout":
            # At least two rows on either side, however short the buffer.
            cut = min(max(2, round(len(rows) * (1 - self.holdout_share))), len(rows) - 2)
            rows, held = rows[:cut], rows[cut:]
        try:
            scorer = self.detector.fit(rows, seed=self.seed)
            scores, scored = scorer.score(held) if len(held) else np.empty(0), held
            if self.calibration == "training":
                own, scored = getattr(scorer, "training_scores", None), rows
                scores = scorer.score(rows) if own is None else np.asarray(own, dtype=np.float64)
            if np.shape(scores) != (len(scored),):
                raise ValueError(f"{len(scored)} rows were scored in shape {np.shape(scores)}")
        except DetectorError:
            raise
        except Exception as error:
            raise DetectorError(
                f"{self.detector.name} could not be fitted on {rows.shape[0]} rows of "
                f"{rows.shape[1]} features: {type(error).__name__}: {error}"
            ) from error
        return Fitted(scorer, np.asarray(scores, dtype=np.float64))


@dataclass(slots=True)
class ModelFit:
    """One fit on its way: its recipe, and the result once somebody needed it."""

    epoch: int
    requested_at: int
    seed: int
    calibration: Calibration
    n_rows: int  # how many of the newest of these that train it was or is fitted on
    training: PackedRows
    ticket: Hashable
    fitted: Fitted | None = None
    shadow_scores: array[float] = field(default_factory=lambda: array("d"))
    n_unscored: int = 0  # newest rows whose shadow scores are not made yet
    medians: FloatArray | None = None
    score_row: Callable[[Sequence[float]], float] | None = None  # of a fitted model that can
    resting: tuple[RestingRange, ...] = ()  # channels that it does not score, once it is fitted
    # of these, in order; empty: they never woke before it spoke
    past_wake_ups: tuple[PastWakeUps, ...] = ()

    def wait(self, executor: FitExecutor) -> Fitted:
        """Return the result; it may have to be waited for."""
        if self.fitted is None:
            self.fitted = executor.result(self.ticket)
            self.resting = getattr(self.fitted.scorer, "resting", ())
            if isinstance(scorer := self.fitted.scorer, TableScorer):  # calibrated by now
                scorer = scorer.without_training()
                self.fitted, self.score_row = replace(self.fitted, scorer=scorer), scorer.by_row()
        return self.fitted

    def rows(self) -> FloatArray:
        """Return the rows it was or is fitted on."""
        return self.training.training(self.n_rows)


class FitFailed(NamedTuple):
    """A fit that failed: the old model goes on, the next boundary tries again."""

    stream_key: str
    epoch: int
    rows_seen: int
    error: DetectorError


def derive_seed(seed: int, stream_key: str, epoch: int) -> int:
    """Return the seed of one fit: stable across processes, versions and machines."""
    text = f"{seed}\x1f{stream_key}\x1f{epoch}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) >> 1
