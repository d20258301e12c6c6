"""The settings of the monitors, checked once."""

from __future__ import annotations

from typing import Literal

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_number, check_window
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.settings import Section, setting

CONFIDENCE = 0.99
"""Of the limits around the rolling rejection rate."""
_ROLLING_EVENTS = 3_600  # an hour at 1 Hz
_MIN_HEALTH_WINDOW = 10


class Monitor(Section):
    """The watch over the rejection rate; it never changes a verdict."""

    enabled: bool = setting(True, says="Whether to watch.")
    false_alarm_events: float = setting(1e6, unit="events", ge=100, le=1e12)
    """Statistical alarms give about one false alarm in so many events."""
    stuck_events: int = setting(200, unit="events", ge=0)
    """Equal scores in a row that count as stuck, unless it is usual for a stream; 0: off."""


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

    Examples
    --------
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> config.rolling
    3600
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
        """Refuse what cannot work, with value, limit and fix."""
        check_window(self.window)
        check_number("contamination", self.contamination)
        check_number("tolerance", self.tolerance)
        check_number("delta", self.delta)

    def require(self) -> None:
        """Refuse a window in which a monitor that is switched on could never tell anything."""
        if self.enabled and self.window < _MIN_HEALTH_WINDOW:
            raise ConfigError(
                f"The window of {self.window} events is too short to watch: health needs one worth "
                f"{_MIN_HEALTH_WINDOW} independent events. Give a longer window, or enabled = "
                "false under [monitor]."
            )

    @property
    def rolling(self) -> int:
        """Length of the displayed rolling window in events."""
        return max(_ROLLING_EVENTS, self.window)
