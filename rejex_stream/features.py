"""From a reading with channels to a row of features: lags, differences, rolling statistics, time.

State is one :class:`SensorFeatures` per sensor, even where sensors share a model: the lag of one
pump is never the value of another. Time is the event's own; an event that steps back in time is
taken in order of arrival, with the clock held at the latest time seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from rejex_stream.columns import Calendar, Column, Lag, Raw, Rolling, Row
from rejex_stream.errors import ConfigError

__all__ = ["Feature", "FeatureKind", "FeatureSpec", "SensorFeatures"]

FeatureKind: TypeAlias = Literal[
    "raw", "lag", "difference", "mean", "std", "min", "max", "hour_of_day", "day_of_week"
]
_KINDS: tuple[str, ...] = get_args(FeatureKind)
_ROLLING = ("mean", "std", "min", "max")
_CALENDAR = {"hour_of_day": 86_400_000, "day_of_week": 7 * 86_400_000}


@dataclass(frozen=True, slots=True)
class Feature:
    """One named feature of a channel, or of the time of day or week.

    Parameters
    ----------
    kind
        ``raw``; ``lag`` and ``difference`` (over `events`); ``mean``, ``std``, ``min``, ``max``
        (over the last `events`, or the last `seconds` of event time, the current event included);
        ``hour_of_day`` and ``day_of_week`` (sine and cosine of the UTC phase, so two columns).
    channel
        Which channel; empty for the calendar.
    events, seconds
        The span; exactly one of them for rolling statistics, `events` for lag and difference.

    Raises
    ------
    ConfigError
        If the kind is unknown or the span does not fit it.

    Examples
    --------
    >>> Feature("mean", "flow", events=24).names
    ('flow_mean_24',)
    >>> Feature("std", "flow", seconds=3600).names
    ('flow_std_3600s',)
    >>> Feature("hour_of_day").names
    ('hour_of_day_sin', 'hour_of_day_cos')
    """

    kind: FeatureKind
    channel: str = ""
    events: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        where = f"feature {self.kind!r}" + (f" of channel {self.channel!r}" if self.channel else "")
        if self.kind not in _KINDS:
            raise ConfigError(f"{where} is unknown: use one of {', '.join(_KINDS)}.")
        if self.kind in _CALENDAR:
            if self.channel or self.events is not None or self.seconds is not None:
                raise ConfigError(f"{where} takes no channel and no span: remove them.")
            return
        if not self.channel:
            raise ConfigError(f"{where} needs a channel: name one.")
        if self.kind == "raw":
            if self.events is not None or self.seconds is not None:
                raise ConfigError(f"{where} takes no span: remove events and seconds.")
            return
        if self.kind in _ROLLING:
            if (self.events is None) == (self.seconds is None):
                raise ConfigError(f"{where} needs either events or seconds: give exactly one.")
        elif self.events is None or self.seconds is not None:
            raise ConfigError(f"{where} goes by events: give events, not seconds.")
        least = 2 if self.kind == "std" else 1
        if self.events is not None and self.events < least:
            raise ConfigError(f"{where} has events = {self.events}: give at least {least}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ConfigError(f"{where} has seconds = {self.seconds}: give a positive number.")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns this feature fills."""
        if self.kind in _CALENDAR:
            return (f"{self.kind}_sin", f"{self.kind}_cos")
        if self.kind == "raw":
            return (self.channel,)
        span = f"{self.events}" if self.events is not None else f"{self.seconds:g}s"
        return (f"{self.channel}_{self.kind}_{span}",)


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """Which features are made of which channels; every sensor gets its own state for it.

    Parameters
    ----------
    channels
        Names of the channels, in the order of ``Reading.values``.
    features
        In the order of the columns; empty means every channel raw.
    carry_forward_events
        For how many events in a row the last value stands in for a missing one. Beyond it the
        event cannot be scored.

    Examples
    --------
    >>> columns = Feature("raw", "flow"), Feature("lag", "flow", 1)
    >>> spec = FeatureSpec(("flow", "pressure"), columns)
    >>> spec.names
    ('flow', 'flow_lag_1')
    >>> sensor = spec.start()
    >>> sensor.extract(0, (1.0, 5.0)) is None      # no lag yet
    True
    >>> sensor.extract(1000, (2.0, 5.0))
    [2.0, 1.0]
    """

    channels: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    carry_forward_events: int = 0

    def __post_init__(self) -> None:
        if not self.channels:
            raise ConfigError("There are no channels: name at least one.")
        if len(set(self.channels)) < len(self.channels):
            raise ConfigError(f"A channel is named twice in {list(self.channels)}: name each once.")
        if self.carry_forward_events < 0:
            raise ConfigError(
                f"carry_forward_events = {self.carry_forward_events}: give 0 or a larger number."
            )
        unknown = [f.channel for f in self.features if f.channel not in (*self.channels, "")]
        if unknown:
            raise ConfigError(
                f"A feature names the unknown channel {unknown[0]!r}: use one of "
                f"{', '.join(self.channels)}."
            )
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"A feature is named twice in {list(self.names)}: name each once.")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a row, in order."""
        if not self.features:
            return self.channels
        return tuple(name for feature in self.features for name in feature.names)

    @property
    def channels_of_columns(self) -> tuple[str, ...]:
        """For each column the channel it comes from; empty for the calendar."""
        if not self.features:
            return self.channels
        return tuple(feature.channel for feature in self.features for _ in feature.names)

    def start(self) -> SensorFeatures:
        """Return the empty state of one sensor."""
        return SensorFeatures(self)


class SensorFeatures:
    """The feature state of one sensor; fed every scorable reading in order.

    A reading with a missing channel that cannot be carried forward leaves no trace in lags and
    windows, so one gap spoils one event and not the events after it.
    """

    __slots__ = ("_age", "_columns", "_last", "_latest_ms", "_only_raw", "_spec")

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._last: tuple[float, ...] | None = None
        self._age: list[int] = [0] * len(spec.channels)
        self._latest_ms: int | None = None
        self._only_raw = not spec.features or (
            tuple(f.channel for f in spec.features if f.kind == "raw") == spec.channels
            and all(f.kind == "raw" for f in spec.features)
        )
        self._columns: list[Column] = [
            _column(feature, spec.channels) for feature in spec.features if not self._only_raw
        ]

    def extract(self, event_time_ms: int, values: Sequence[float]) -> Row | None:
        """Return the row of features, or ``None`` while a lag or a rolling window is filling.

        Parameters
        ----------
        event_time_ms
            UTC milliseconds.
        values
            Shape (n_channels,); ``nan`` where missing.

        Raises
        ------
        MissingChannelError
            If a channel is missing for longer than is carried forward.
        """
        total = sum(values)
        if total - total != 0.0:  # something is nan or infinite, or the sum overflowed
            values = self._carried(values)
        elif self._spec.carry_forward_events:
            self._age = [0] * len(self._age)
        self._last = tuple(values)
        if self._only_raw:
            return list(values)
        if self._latest_ms is None or event_time_ms > self._latest_ms:
            self._latest_ms = event_time_ms
        now_ms = self._latest_ms
        row: Row = []
        ready = True
        for column in self._columns:
            ready = column.update(now_ms, values, row) and ready
        return row if ready else None

    def _carried(self, values: Sequence[float]) -> tuple[float, ...]:
        limit, last = self._spec.carry_forward_events, self._last
        filled, age = list(values), self._age.copy()
        for i, value in enumerate(values):
            if math.isfinite(value):
                age[i] = 0
                continue
            age[i] += 1
            if last is None or age[i] > limit:
                self._age = age
                raise MissingChannelError(self._spec.channels[i])
            filled[i] = last[i]
        self._age = age
        return tuple(filled)

    def snapshot(self) -> list[Any]:
        """Return the state as plain values for :meth:`restore`."""
        last = None if self._last is None else list(self._last)
        return [last, self._age, self._latest_ms, [column.state() for column in self._columns]]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over the state of :meth:`snapshot`, made under the same spec."""
        last, age, self._latest_ms, columns = snapshot
        self._last, self._age = None if last is None else tuple(last), list(age)
        for column, state in zip(self._columns, columns, strict=True):
            column.restore(state)


class MissingChannelError(Exception):
    """A channel is missing for too long; stays inside the core, where it becomes a verdict."""


def _column(feature: Feature, channels: tuple[str, ...]) -> Column:
    if feature.kind in _CALENDAR:
        return Calendar(_CALENDAR[feature.kind])
    channel = channels.index(feature.channel)
    if feature.kind == "raw":
        return Raw(channel)
    if feature.kind in _ROLLING:
        span_ms = None if feature.seconds is None else feature.seconds * 1000
        return Rolling(channel, feature.kind, feature.events, span_ms)
    assert feature.events is not None  # checked by Feature
    return Lag(channel, feature.events, difference=feature.kind == "difference")
