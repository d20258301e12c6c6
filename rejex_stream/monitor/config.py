"""The settings of the monitors, checked once."""

from __future__ import annotations

from typing import Literal

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import (
    check_number,
    check_window,
)
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.settings import Section, setting

__all__ = ["CONFIDENCE", "Monitor", "MonitorConfig"]

CONFIDENCE = 0.99
"""Of the limits around the rolling rejection rate."""
_ROLLING_EVENTS = 3_600  # an hour at 1 Hz
_REFERENCE_WINDOWS = 5
LEAST_REFERENCE = 100
"""Independent scores below which a reference tells nothing."""
_LEAST_HEALTH_WINDOW = 10


class Monitor(Section):
    """The watch over the rejection rate; it never changes a verdict."""

    enabled: bool = setting(True, says="Whether to watch.")
    false_alarm_events: float = setting(
        1e6,
        unit="events",
        says="Statistical alarms give about one false alarm in so many events.",
        ge=100,
        le=1e12,
    )
    stuck_events: int = setting(
        200, unit="events", says="Equal scores in a row that count as stuck; 0: off.", ge=0
    )
    drift_reference_events: int | None = setting(
        None,
        unit="events",
        says="Frozen scores that slow drift is measured against; 0: off.",
        otherwise="five windows, at least 100",
        ge=0,
        example=10_000,
    )


class MonitorConfig(Monitor):
    """What the monitors of one pipeline are told: a Monitor, and the rule that it watches.

    Attributes
    ----------
    window
        n, the configured number of reference scores. Unit of the monitors: the practical alarms
        look at the last n events, autocorrelation is measured over n/40 to n events.
    contamination, tolerance, delta
        γ, T and δ of the pipeline.
    ties
        How the pipeline ranks tied scores: mid-ranks, or ``paper`` for ``#{<= s}``.
    review_budget_per_day
        Reviews a day that people can do: exported beside the rates, watched by nothing here.

    Raises
    ------
    ConfigError
        If a value cannot be.

    Examples
    --------
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> config.rolling, config.drift_reference
    (3600, 5000)
    >>> config.replace(false_alarm_events=5)
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: MonitorConfig: false_alarm_events = 5: expected greater than \
or equal to 100 (events); Statistical alarms give about one false alarm in so many events.
    """

    window: int
    contamination: float
    tolerance: float
    delta: float = DELTA
    ties: Literal["mid", "paper"] = "mid"
    review_budget_per_day: float | None = None

    def check(self) -> None:
        """Refuse what cannot work, with value, limit and mend."""
        check_window(self.window)
        check_number("contamination", self.contamination)
        check_number("tolerance", self.tolerance)
        check_number("delta", self.delta)
        if self.drift_reference_events and self.drift_reference_events < self.window:
            raise ConfigError(
                f"drift_reference_events = {self.drift_reference_events} is shorter than the "
                f"window of {self.window} events, which absorbs drift itself: give 5 windows or "
                "more, or 0 to switch it off."
            )

    def require(self, refit_every_events: int | None) -> None:
        """Refuse settings under which a monitor that is switched on could never start.

        Parameters
        ----------
        refit_every_events
            Events that a model speaks for; ``None``: for ever.

        Raises
        ------
        ConfigError
            With the value, what it needs to be and how to switch that monitor off.

        Examples
        --------
        >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
        >>> config.require(2_000)
        >>> config.require(500)
        Traceback (most recent call last):
        rejex_stream.errors.ConfigError: refit_every_events = 500 is below the window of 1000: \
slow drift is measured on a scale that begins with one window of one model's scores, so its \
monitor would never start. Refit every 1000 events or more, or give drift_reference_events = 0.
        """
        if not self.enabled:
            return
        window, reference = self.window, self.drift_reference
        if reference and refit_every_events is not None and refit_every_events < window:
            raise ConfigError(
                f"refit_every_events = {refit_every_events} is below the window of {window}: slow "
                "drift is measured on a scale that begins with one window of one model's scores, "
                f"so its monitor would never start. Refit every {window} events or more, or give "
                "drift_reference_events = 0."
            )
        if 0 < reference < LEAST_REFERENCE:
            raise ConfigError(
                f"drift_reference_events = {reference} can never be worth the {LEAST_REFERENCE} "
                "independent scores that slow drift is told from, so its monitor would never "
                f"start: give {LEAST_REFERENCE} or more, or 0 to switch it off."
            )
        if window < _LEAST_HEALTH_WINDOW:
            raise ConfigError(
                f"The window of {window} events is too short to watch: health needs one worth "
                f"{_LEAST_HEALTH_WINDOW} independent events. Give a longer window, or enabled = "
                "false under [monitor]."
            )

    @property
    def rolling(self) -> int:
        """Length of the displayed rolling window in events."""
        return max(_ROLLING_EVENTS, self.window)

    @property
    def drift_reference(self) -> int:
        """Length of the frozen reference in scores; 0 where slow drift is not watched."""
        if self.drift_reference_events is None:
            return max(_REFERENCE_WINDOWS * self.window, LEAST_REFERENCE)
        return self.drift_reference_events
