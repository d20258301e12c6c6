"""The settings of the monitors, checked once."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rejex_stream.arguments import check_contamination, check_delta, check_tolerance, check_window
from rejex_stream.errors import ConfigError

__all__ = ["MonitorConfig"]

_ROLLING_EVENTS = 3_600  # an hour at 1 Hz: batch means need batches longer than the correlation
_REFERENCE_WINDOWS = 5


class MonitorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the monitors of one pipeline are told; immutable.

    Attributes
    ----------
    window
        n, the configured number of reference scores. Unit of the monitors: the practical alarms
        look at the last n events, autocorrelation is measured over n/40 to n events.
    contamination, tolerance
        γ and T of the pipeline.
    false_alarm_events
        L: the statistical alarms give about one false alarm per L events, in 100..1e12.
    delta
        Probability with which the bounds on the rejection rate may fail.
    confidence
        Of the two-sided batch-means limits of the rolling rejection rate.
    rolling_events
        Length of the displayed rolling window; ``None`` means ``max(3600, window)``.
    review_budget_per_day
        Rejected events that people can look at in a day of event time (UTC); ``None``: no alarm.
    stuck_events
        Equal scores in a row after which a sensor counts as stuck; 0 switches the alarm off.
    drift_reference_events
        Frozen scores that slow drift is measured against; ``None`` means 5 windows, 0: off. It
        should cover at least one whole season, else the season itself is drift.
    adwin
        Also run River's ADWIN on the scores. A heuristic: see :mod:`rejex_stream.monitor.adwin`.
    adwin_delta
        ADWIN's own confidence value.
    ties
        How the pipeline ranks tied scores: mid-ranks, or ``paper`` for ``#{<= s}``.

    Examples
    --------
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> config.rolling, config.drift_reference
    (3600, 5000)
    >>> MonitorConfig(window=1000, contamination=0.05, tolerance=32, false_alarm_events=5)
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: false_alarm_events = 5 is outside 100..1e12: give the mean \
number of events between two false alarms, e.g. 1e6.
    """

    window: int
    contamination: float
    tolerance: float
    false_alarm_events: float = 1e6
    delta: float = 0.1
    confidence: float = 0.99
    rolling_events: int | None = None
    review_budget_per_day: float | None = None
    stuck_events: int = 200
    drift_reference_events: int | None = None
    adwin: bool = False
    adwin_delta: float = 0.002
    ties: Literal["mid", "paper"] = "mid"

    def __post_init__(self) -> None:
        """Refuse what cannot work, with value, limit and mend."""
        check_window(self.window)
        check_contamination(self.contamination)
        check_tolerance(self.tolerance)
        check_delta(self.delta)
        _require(
            100 <= self.false_alarm_events <= 1e12,
            f"false_alarm_events = {self.false_alarm_events:g} is outside 100..1e12: give the mean "
            "number of events between two false alarms, e.g. 1e6.",
        )
        _require(
            0 < self.confidence < 1,
            f"confidence = {self.confidence:g} is outside (0, 1): give e.g. 0.99.",
        )
        _require(
            self.rolling_events is None or self.rolling_events >= self.window,
            f"rolling_events = {self.rolling_events} is shorter than the window of {self.window} "
            "events: give at least the window, or leave it out.",
        )
        budget = self.review_budget_per_day
        _require(
            budget is None or (budget > 0 and math.isfinite(budget)),
            f"review_budget_per_day = {budget} cannot be used: give a positive number of events a "
            "day, or leave it out.",
        )
        _require(
            self.stuck_events >= 0,
            f"stuck_events = {self.stuck_events} is negative: give a number of events, or 0 to "
            "switch the alarm off.",
        )
        reference = self.drift_reference_events
        _require(
            reference is None or reference == 0 or reference >= self.window,
            f"drift_reference_events = {reference} is shorter than the window of {self.window} "
            "events, which absorbs drift itself: give 5 windows or more, or 0 to switch it off.",
        )
        _require(
            0 < self.adwin_delta < 1,
            f"adwin_delta = {self.adwin_delta:g} is outside (0, 1): give e.g. 0.002.",
        )
        _require(
            self.ties in {"mid", "paper"},
            f"ties = {self.ties!r} is unknown: give 'mid' or 'paper', as the pipeline ranks.",
        )

    @property
    def rolling(self) -> int:
        """Length of the displayed rolling window in events."""
        return self.rolling_events or max(_ROLLING_EVENTS, self.window)

    @property
    def drift_reference(self) -> int:
        """Length of the frozen reference in scores; 0 where slow drift is not watched."""
        if self.drift_reference_events is None:
            return _REFERENCE_WINDOWS * self.window
        return self.drift_reference_events


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
