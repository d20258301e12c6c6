"""Settings that decide a verdict: features, detector, rejection, refits."""

from __future__ import annotations

from typing import Any, Literal

from rejex_stream.config.fields import Section, setting
from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureKind, FeatureSpec
from rejex_stream.policy import RejectionPolicy
from rejex_stream.refit import Calibration, RefitSchedule

__all__ = ["Column", "Costs", "Detector", "Features", "Pipeline", "Refit", "Rejection"]


class Pipeline(Section):
    """Who decides."""

    name: str = setting(
        "rejex-stream",
        says="Name of the pipeline, in metrics, in ids of what it writes, and for its consumers.",
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        example="turbine-north",
    )
    version: str = setting(
        "1",
        says="Version of the pipeline; a new one gives the same event a new id downstream.",
        min_length=1,
        pattern=r"^[A-Za-z0-9._-]+$",
        example="2",
    )
    seed: int = setting(0, says="Root of every random number: equal seeds, equal verdicts.", ge=0)


class Column(Section):
    """One feature, `[[features.columns]]`."""

    kind: FeatureKind = setting(
        says="raw, lag, difference, rolling mean, std, min or max, or a phase of the calendar.",
        example="mean",
    )
    channel: str = setting("", says="The channel it is made of; empty for the calendar.")
    events: int | None = setting(
        None, unit="events", says="Span in events.", otherwise="none", ge=1, example=24
    )
    seconds: float | None = setting(
        None, unit="s", says="Span in event time, instead.", otherwise="none", gt=0, example=3600
    )


class Features(Section):
    """What the detector sees of a reading."""

    columns: tuple[Column, ...] = setting(
        (),
        says="The features, in order; a table each.",
        otherwise="every channel raw",
        example=[{"kind": "lag", "channel": "flow", "events": 1}],
    )
    carry_forward_events: int = setting(
        0,
        unit="events",
        says="For how many events in a row the last value stands in for a missing channel; "
        "after that the event is rejected as unscorable.",
        ge=0,
    )

    def spec(self, channels: tuple[str, ...]) -> FeatureSpec:
        """Return the core's recipe."""
        columns = tuple(Feature(c.kind, c.channel, c.events, c.seconds) for c in self.columns)
        return FeatureSpec(channels, columns, self.carry_forward_events)


class Detector(Section):
    """The model that scores."""

    name: str = setting(
        "IForest",
        says="A detector by name, or the dotted name of a PyOD class or a River object.",
        min_length=1,
        example="HalfSpaceTrees",
    )
    params: dict[str, Any] = setting(
        dict,
        says="Parameters of the detector, as its library names them.",
        otherwise="the library's",
        example={"n_estimators": 200},
    )


class ReviewBudget(Section):
    """How many events people can look at; the tolerance follows from it."""

    rate: float | None = setting(
        None,
        unit="share of events",
        says="Share of events that may be rejected.",
        otherwise="none",
        gt=0,
        lt=1,
        example=0.05,
    )
    reviews_per_day: float | None = setting(
        None,
        unit="events/day",
        says="Rejected events that people can look at in a day; needs events_per_day.",
        otherwise="none",
        gt=0,
        example=200,
    )
    events_per_day: float | None = setting(
        None,
        unit="events/day",
        says="Events that arrive in a day, over all sensors.",
        otherwise="none",
        gt=0,
        example=86400,
    )

    @property
    def share(self) -> float:
        """The share of events that may be rejected."""
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
        None,
        unit="cost",
        says="Cost of a rejected event; at most min((1 - γ) c_fp, γ c_fn).",
        otherwise="no cost is computed",
        ge=0,
        example=0.02,
    )


class Rejection(Section):
    """When to abstain."""

    contamination: float = setting(
        unit="share of events",
        says="γ, the expected share of anomalies.",
        gt=0,
        lt=0.5,
        example=0.02,
    )
    tolerance: float | None = setting(
        None,
        says="T: a label is accepted only if its flip has probability below exp(-T); the paper's "
        "is 32. Give this or a review budget.",
        otherwise="from the review budget",
        gt=0.6931471805599453,
        example=32,
    )
    review_budget: ReviewBudget | None = setting(
        None,
        says="How much people can review, instead of a tolerance.",
        otherwise="a tolerance is given",
        example={"rate": 0.05},
    )
    window: int = setting(
        2000,
        unit="events",
        says="n, the reference scores of a full window, per stream.",
        ge=2,
        example=2000,
    )
    ties: Literal["mid", "paper"] = setting(
        "mid", says="How tied scores rank: by mid-rank, or as in the paper (for parity runs only)."
    )
    delta: float = setting(
        0.1,
        unit="probability",
        says="δ, with which the bounds on the rejection rate may fail.",
        gt=0,
        lt=1,
    )
    costs: Costs = setting(Costs, says="What mistakes cost.")

    def policy(self) -> RejectionPolicy:
        """Return γ with a tolerance or a rate, as the core wants it."""
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
            ties=self.ties,
        )


class Refit(Section):
    """When a batch detector is fitted anew; a River detector learns with every event."""

    first_fit_events: int | None = setting(
        None,
        unit="events",
        says="Events of a stream before its first fit.",
        otherwise="half a window",
        ge=4,
        example=1000,
    )
    refit_every_events: int | None = setting(
        None,
        unit="events",
        says="Events between later fits; 0 keeps the first model for ever.",
        otherwise="two windows",
        ge=0,
        example=4000,
    )
    refit_lag_events: int | None = setting(
        None,
        unit="events",
        says="Events between asking for a fit and needing it; verdicts never depend on how long "
        "the fit took.",
        otherwise="a twentieth of a window",
        ge=0,
        example=100,
    )
    buffer_events: int | None = setting(
        None,
        unit="events",
        says="Newest events that a fit sees.",
        otherwise="one window",
        ge=4,
        example=2000,
    )
    calibration: Calibration = setting(
        "shadow",
        says="Where the reference scores of a new model come from: live events it scores in the "
        "shadow, a holdout of the buffer, or its own training rows (the paper's; rarely honest).",
    )
    holdout_share: float = setting(
        0.3,
        unit="share of buffer",
        says="Newest share of the buffer that calibrates instead of training.",
        gt=0,
        lt=1,
    )
    executor: Literal["auto", "process", "thread", "inline"] = setting(
        "auto",
        says="Where fits run; it changes speed, never a verdict. auto: in a process beside a live "
        "topic, in a thread over a file.",
    )
    workers: int = setting(1, unit="fits", says="Fits that run at once.", ge=1, le=64)

    def schedule(self, window: int) -> RefitSchedule:
        """Return the core's schedule for a window of n."""
        every = self.refit_every_events
        return RefitSchedule(
            first_fit_events=_or(self.first_fit_events, max(4, window // 2)),
            refit_every_events=None if every == 0 else _or(every, 2 * window),
            refit_lag_events=_or(self.refit_lag_events, window // 20),
            buffer_events=_or(self.buffer_events, max(4, window)),
            calibration=self.calibration,
            holdout_share=self.holdout_share,
        )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
