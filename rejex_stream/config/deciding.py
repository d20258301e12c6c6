"""Settings that decide a verdict: features, detector, rejection, refits."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Literal

from rejex_stream.detectors import DEFAULT
from rejex_stream.encode.schemas import PIPELINE, PIPELINE_VERSION
from rejex_stream.engine.refit import Calibration, RefitSchedule
from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle, Feature, FeatureKind, FeatureSpec, PresetName
from rejex_stream.incidents import Plan
from rejex_stream.rejection.policy import MIN_BURST, WINDOW, BudgetOwner, RejectionPolicy
from rejex_stream.settings import Section, setting


class Pipeline(Section):
    """Who decides."""

    name: str = setting(
        PIPELINE, min_length=1, pattern=r"^[A-Za-z0-9._-]+$", example="turbine-north"
    )
    """Name of the pipeline, in metrics, in ids of what it writes, and for its consumers. A config
    file that gives none gives its own, without the ending."""
    version: str = setting(
        PIPELINE_VERSION, min_length=1, pattern=r"^[A-Za-z0-9._-]+$", example="2"
    )
    """Version of the pipeline; a new one gives the same event a new id downstream."""
    seed: int = setting(0, says="Root of every random number: equal seeds, equal verdicts.", ge=0)


class Column(Section):
    """One feature, `[[features.columns]]`."""

    kind: FeatureKind = setting(example="mean")
    """raw, lag, difference, rolling mean, deviation from it, std, min or max, or a phase of the
    calendar."""
    channel: str = setting("", says="The channel it is made of; empty for the calendar.")
    events: int | None = setting(None, unit="events", says="Span in events.", ge=1, example=24)
    seconds: float | None = setting(None, unit="s", gt=0, example=3600)
    """Span in event time, instead."""


class Features(Section):
    """What the detector sees of a reading."""

    preset: PresetName | None = setting(
        None,
        otherwise="those of columns; without any, what the detector is made for, mostly raw",
        example="sensor",
    )
    """Ready-made features. raw: every channel as it is; sensor: also its difference, how far it is
    from its mean over 24 events, its mean over 10 and its spread; lags: also its last 2 to 32
    values; sensor_lags: both; sensor_seasonal: sensor and the phases of day, week and month."""
    columns: tuple[Column, ...] = setting(
        (), otherwise="those of preset", example=[{"kind": "lag", "channel": "flow", "events": 1}]
    )
    """The features, in order; a table each. Instead of a preset."""
    carry_forward_events: int = setting(0, unit="events", ge=0)
    """For how many events in a row the last value stands in for a missing channel. After that
    Sensor and SensorEnsemble score what is there; for other detectors the event is rejected as
    unscorable."""

    def spec(
        self,
        channels: tuple[str, ...],
        flags: tuple[str, ...] = (),
        sides: tuple[tuple[str, str], ...] = (),
        angles: tuple[Circle, ...] = (),
        siblings: str | tuple[tuple[str, str], ...] = "",
    ) -> FeatureSpec:
        columns = tuple(Feature(c.kind, c.channel, c.events, c.seconds) for c in self.columns)
        carry = self.carry_forward_events
        return FeatureSpec(channels, columns, carry, self.preset, flags, sides, angles, siblings)


class Detector(Section):
    """The model that scores."""

    name: str = setting(DEFAULT, min_length=1, example="HalfSpaceTrees")
    """A detector by name, or the dotted name of a PyOD class or a River object. Sensor is a
    distance on features made for sensors; SensorEnsemble finds more and takes longer."""
    params: dict[str, Any] = setting(dict, otherwise="the library's", example={"n_estimators": 200})
    """Parameters of the detector, as its library names them."""


class ReviewBudget(Section):
    """How many events people can look at; the tolerance follows from it."""

    rate: float | None = setting(None, unit="share of events", gt=0, lt=1, example=0.05)
    """Share of events that may be rejected."""
    reviews_per_day: float | None = setting(None, unit="events/day", gt=0, example=200)
    """Rejected events that people can look at in a day; needs events_per_day."""
    events_per_day: float | None = setting(None, unit="events/day", gt=0, example=86400)
    """Events that arrive in a day, over all sensors."""

    burst: int | Literal["none"] | None = setting(
        None,
        unit="events",
        otherwise="a day's budget where the day is known, at least 50",
        example=72,
    )
    """How many events of a stream may be rejected at once, beyond the rate: it holds on any stream
    then. "none": the rate is expected, and not held where scores drift."""
    per_day: float | None = setting(
        None, unit="events/day", otherwise="the rate is held, event by event", gt=0, example=48
    )
    """Rejected events a day of each stream, by event time, to be held instead of the rate; the rate
    goes on giving the band its width."""
    owner: BudgetOwner = setting("stream")
    """Whose budget it is, where it is held: of each stream; of a group, the streams whose names are
    the same up to the last slash, such as all quantities of a sensor (input.tag); or of a
    partition, all streams of a file or of a partition of a topic."""

    @property
    def held_burst(self) -> int | None:
        """The burst, chosen where it is not given; ``None`` where the rate is not held.

        Examples
        --------
        >>> [ReviewBudget(rate=0.02, **more).held_burst
        ...     for more in ({}, {"per_day": 99.5}, {"burst": 7}, {"burst": "none"})]
        [50, 100, 7, None]
        """
        if self.burst == "none":
            return None
        day = self.per_day or self.reviews_per_day or 0
        return max(MIN_BURST, math.ceil(day)) if self.burst is None else self.burst

    @property
    def share(self) -> float:
        per_day, arriving = self.reviews_per_day, self.events_per_day
        if self.rate is not None:
            if per_day is not None or arriving is not None:
                raise ConfigError(
                    "rate and reviews_per_day are both given: keep rate, or keep reviews_per_day "
                    "with events_per_day."
                )
            return self.rate
        if per_day is None or arriving is None:
            raise ConfigError(
                "the budget is incomplete: give rate, or both reviews_per_day and events_per_day."
            )
        if per_day >= arriving:
            raise ConfigError(
                f"reviews_per_day = {per_day:g} covers all events_per_day = {arriving:g}: people "
                "can look at everything; give a smaller budget or use a tolerance."
            )
        return per_day / arriving


class Costs(Section):
    """What mistakes cost, in any one unit."""

    c_fp: float = setting(1.0, unit="cost", says="Cost of a false alarm.", ge=0)
    c_fn: float = setting(1.0, unit="cost", says="Cost of a missed anomaly.", ge=0)
    c_r: float | None = setting(
        None, unit="cost", otherwise="no cost is computed", ge=0, example=0.02
    )
    """Cost of a rejected event; at most min((1 - γ) c_fp, γ c_fn)."""


class Rejection(Section):
    """When to abstain."""

    contamination: float = setting(unit="share of events", gt=0, lt=0.5, example=0.02)
    """γ, the expected share of anomalies."""
    tolerance: float | None = setting(
        None, otherwise="from the review budget", gt=math.log(2), example=32
    )
    """T: a label is accepted only if its flip has probability below exp(-T); the paper's is 32.
    Give this or a review budget."""
    review_budget: ReviewBudget | None = setting(
        None, otherwise="a tolerance is given", example={"rate": 0.05}
    )
    """How much people can review, instead of a tolerance."""
    window: int = setting(WINDOW, unit="events", ge=2, example=2000)
    """n, the reference scores of a full window, per stream."""
    costs: Costs = setting(Costs, says="What mistakes cost.")

    def policy(self) -> RejectionPolicy:
        budget = self.review_budget
        if (self.tolerance is None) == (budget is None):
            given = "both are" if budget is not None else "neither is"
            raise ConfigError(
                f"{given} given of tolerance and review_budget: give exactly one, tolerance = 32 "
                "(the paper's) or review_budget = { rate = 0.05 }."
            )
        return RejectionPolicy(
            self.contamination,
            tolerance=self.tolerance,
            rate=None if budget is None else budget.share,
            burst=None if budget is None else budget.held_burst,
            per_day=None if budget is None else budget.per_day,
            owner="stream" if budget is None else budget.owner,
        )


class Refit(Section):
    """When a batch detector is fitted again; a River detector learns with every event."""

    first_fit_events: int | None = setting(
        None, unit="events", otherwise="half a window", ge=4, example=1000
    )
    """Events of a stream before its first fit."""
    refit_every_events: int | None = setting(
        None, unit="events", otherwise="two windows", ge=0, example=4000
    )
    """Events between later fits; 0 keeps the first model for ever."""
    refit_lag_events: int | None = setting(
        None, unit="events", otherwise="a twentieth of a window", ge=0, example=100
    )
    """Events between asking for a fit and needing it; verdicts never depend on how long the fit
    took."""
    buffer_events: int | None = setting(
        None, unit="events", otherwise="one window", ge=4, example=2000
    )
    """Newest events that a fit sees."""
    calibration: Calibration = setting("shadow")
    """Where the reference scores of a new model come from: live events it scores in the shadow, a
    holdout of the buffer, or its own training rows (the paper's; rarely honest)."""
    guard_quantile: float | None = setting(
        None,
        unit="quantile of scores",
        otherwise="0.95 for Sensor and its kin, 1 for others",
        ge=0.5,
        le=1,
        example=0.95,
    )
    """Events that score beyond it train no later model, so that faults are not learnt; 1 trains on
    every event. Needs shadow calibration."""
    executor: Literal["auto", "process", "thread", "inline"] = setting("auto")
    """Where fits run; it changes speed, never a verdict. auto: in a process beside a live topic, in
    a thread over a file."""

    def schedule(self, window: int) -> RefitSchedule:
        given = self.model_dump(exclude={"executor"}, exclude_none=True)
        if self.refit_every_events == 0:
            given["refit_every_events"] = None
        return RefitSchedule.for_window(window, **given)


_EVERY_MS = {"day": 86_400_000, "week": 7 * 86_400_000}


class Calendar(Section):
    """A time in which work is planned, `[[calendar]]`."""

    begin: datetime = setting(example="2026-03-01T06:00:00Z")
    """When work begins, by event time, UTC where no offset is given: events from then on are judged
    and marked as planned, and nothing is learnt from them."""
    end: datetime = setting(example="2026-03-01T08:30:00Z")
    """When it ends; an event at that time is not planned any more."""
    every: Literal["day", "week"] | None = setting(None, otherwise="once", example="week")
    """How often it comes again."""
    streams: tuple[str, ...] = setting((), otherwise="all", example=["pump-1"])
    """Keys of the streams that it is for."""

    def plan(self) -> Plan:
        begin, end = _ms(self.begin), _ms(self.end)
        every = None if self.every is None else _EVERY_MS[self.every]
        if not begin < end <= begin + (every or end):
            raise ConfigError(
                f"calendar: work from {self.begin} to {self.end}"
                + (f" every {self.every}" if self.every else "")
                + " covers no time, or more than there is: give an end after the beginning."
            )
        return Plan(begin, end, every, self.streams)


def _ms(moment: datetime) -> int:
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
