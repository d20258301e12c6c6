"""What arrives in a day, what people can look at, and how often one exceeds the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, betaincinv

from rejex_stream.errors import ConfigError

__all__ = [
    "Team",
    "events_together",
    "frozen_overrun",
    "reviews_needed",
    "safe_rate",
    "sliding_overrun",
]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """How much arrives, and how much people can look at.

    Attributes
    ----------
    sensors, events_per_s
        How many sensors, and how many events each sends a second.
    reviewers, minutes_per_day, handling_s
        How many people, for how many minutes a day each, and seconds per review.
    events_per_episode
        Rejected events that one review settles at once, as measured by a replay; 1 counts every
        rejected event as a review of its own.
    streams
        Windows that are kept: one per sensor unless sensors are pooled.

    Raises
    ------
    ConfigError
        If a number is not positive.
    """

    sensors: int
    events_per_s: float
    reviewers: float = 1.0
    minutes_per_day: float = 60.0
    handling_s: float = 45.0
    events_per_episode: float = 1.0
    streams: int | None = None

    def __post_init__(self) -> None:
        for name in ("sensors", "events_per_s", "reviewers", "minutes_per_day", "handling_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value:g} cannot be used: give a positive number.")
        if not 1 <= self.events_per_episode < math.inf:
            raise ConfigError(
                f"events_per_episode = {self.events_per_episode:g} is below 1: an episode has at "
                "least one event."
            )
        if self.streams is not None and not 1 <= self.streams <= self.sensors:
            raise ConfigError(
                f"streams = {self.streams} cannot be used: give 1 (all pooled) up to the number "
                f"of sensors, {self.sensors}."
            )

    @property
    def events_per_day(self) -> float:
        """Events over all sensors."""
        return self.sensors * self.events_per_s * 86_400

    @property
    def reviews_per_day(self) -> int:
        """Reviews that fit into the working day."""
        return math.floor(self.reviewers * self.minutes_per_day * 60 / self.handling_s)

    @property
    def events_per_stream_day(self) -> float:
        """Events a day that fill one window."""
        return self.events_per_day / (self.streams or self.sensors)


def safe_rate(
    events: float, capacity: int, *, overrun: float = 0.01, events_per_episode: float = 1.0
) -> float:
    """Return the largest rejection rate with P(more reviews than `capacity`) <= `overrun`.

    For P(Bin(events, rate) > capacity), inverted exactly. That is conservative for a sliding
    window, whose rate corrects itself; for a frozen one see :func:`frozen_overrun`. Where rejected
    events come in episodes, it is the episodes that are counted.

    Examples
    --------
    >>> round(safe_rate(1000, 10), 5), round(safe_rate(100_000, 200), 5)
    (0.00478, 0.0017)
    """
    trials = events / events_per_episode
    if capacity >= trials:
        return 1.0
    if capacity < 1:
        return 0.0
    return float(betaincinv(capacity + 1, trials - capacity, overrun))


def frozen_overrun(
    events: float, capacity: int, width: int, window: int, *, streams: int = 1
) -> float:
    """Return P(more than `capacity` rejected events) for windows that do not slide.

    A frozen window has a rejection rate of its own, Beta(w, n + 1 - w), so the count is
    Beta-binomial: wider than binomial by a factor 1 + events / n. `streams` windows average out.

    Examples
    --------
    >>> frozen, sliding = frozen_overrun(10_000, 120, 20, 2000), frozen_overrun(
    ...     10_000, 120, 20 * 10**6, 2000 * 10**6)
    >>> round(frozen, 2), round(sliding, 2)
    (0.19, 0.02)
    """
    if capacity >= events:
        return 0.0
    a, b = streams * width, streams * (window + 1 - width)
    rates = betaincinv(a, b, (_NODES + 1) / 2)
    return float((_WEIGHTS / 2) @ betainc(capacity + 1, events - capacity, rates))


def sliding_overrun(events: float, capacity: int, rate: float) -> float:
    """Return P(more than `capacity` rejected events) at a rate, for windows that slide.

    Examples
    --------
    >>> round(sliding_overrun(1000, 10, 0.00478), 3)
    0.01
    """
    if capacity >= events:
        return 0.0
    return float(betainc(capacity + 1, events - capacity, rate))


def reviews_needed(events: float, rate: float, overrun: float) -> int:
    """Return the smallest capacity that P(Bin(events, rate) > capacity) <= overrun allows."""
    low, high = 0, math.ceil(events)
    while low < high:
        middle = (low + high) // 2
        if sliding_overrun(events, middle, rate) <= overrun:
            high = middle
        else:
            low = middle + 1
    return low


def events_together(events: float, capacity: int, rate: float, overrun: float) -> int:
    """Return the smallest episode, in rejected events, that makes `rate` safe."""
    low, high = 1, math.ceil(events / capacity)
    while low < high:
        middle = (low + high) // 2
        safe = safe_rate(events, capacity, overrun=overrun, events_per_episode=middle)
        low, high = (low, middle) if safe >= rate else (middle + 1, high)
    return low
