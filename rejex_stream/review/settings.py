"""Every knob of the review queue, with its unit, default and reason."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from rejex_stream.errors import ConfigError

__all__ = ["MINUTE_MS", "Blind", "Fallback", "ReviewSettings"]

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

Blind: TypeAlias = Literal["off", "second", "always"]
Fallback: TypeAlias = Literal["none", "model", "anomaly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewSettings:
    """How rejected events become work, and what happens to work nobody does.

    Attributes
    ----------
    gap_ms, gap_events
        Rejected events of one sensor belong to one episode while they are at most this far apart,
        in event time or in events between them; either is enough, so slow and fast feeds both work.
    max_duration_ms, max_events
        An episode that reaches either is continued by a new one; white noise would otherwise chain
        a whole day into a single episode.
    settle_ms
        An episode becomes ready this long after its last event, so that the series after it can be
        seen. Counted in event time; data older than that is ready at once.
    lease_ms
        How long a claim lasts without a sign of life from the reviewer's screen.
    sla_ms
        The age from which an episode counts as late.
    max_age_ms, fallback
        Unreviewed episodes of this age expire into the fallback: no verdict, the model's own raw
        label, or anomaly. Such labels carry ``source = "expired"``, never a person's name.
    double_review_ratio
        Share of episodes that get a second, independent reviewer; drawn by hash of the episode id.
    blind
        When the model's leaning, other people's labels and similar cases stay hidden until the
        reviewer has decided: never, for second opinions and audits, or always.
    priority_sensors
        Prefixes of sensors that come first and do not wait to settle.
    delta
        Probability with which the bounds shown may fail.
    points_per_sensor
        How many readings a sensor keeps at full resolution; older ones remain as minute extremes.

    Examples
    --------
    >>> ReviewSettings(double_review_ratio=0.1).lease_ms
    600000
    >>> ReviewSettings(double_review_ratio=7)
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: double_review_ratio = 7 is outside 0..1: give a share, \
e.g. 0.01 for 1 %.
    """

    gap_ms: int = MINUTE_MS
    gap_events: int = 5
    max_duration_ms: int = 24 * HOUR_MS
    max_events: int = 500
    settle_ms: int = 20 * SECOND_MS
    lease_ms: int = 10 * MINUTE_MS
    sla_ms: int = 4 * HOUR_MS
    max_age_ms: int = 7 * 24 * HOUR_MS
    fallback: Fallback = "none"
    double_review_ratio: float = 0.0
    blind: Blind = "second"
    priority_sensors: tuple[str, ...] = ()
    delta: float = 0.05
    points_per_sensor: int = 100_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_ratio") and not 0.0 <= value <= 1.0:
                raise ConfigError(
                    f"{field.name} = {value!r} is outside 0..1: give a share, e.g. 0.01 for 1 %."
                )
            if field.name.endswith("_ms") and value < 0:
                raise ConfigError(
                    f"{field.name} = {value!r} is negative: give a duration in milliseconds."
                )
        for name in ("max_events", "lease_ms", "points_per_sensor"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be at least 1.")
        if self.fallback not in ("none", "model", "anomaly"):
            raise ConfigError(
                f"fallback = {self.fallback!r} is unknown: give 'none', 'model' or 'anomaly'."
            )
        if self.blind not in ("off", "second", "always"):
            raise ConfigError(
                f"blind = {self.blind!r} is unknown: give 'off', 'second' or 'always'."
            )
