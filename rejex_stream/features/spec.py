"""From a reading with channels to a row of features: lags, differences, rolling statistics, time.

State is one :class:`SensorFeatures` per sensor, even where sensors share a model: the lag of one
pump is never the value of another. Time is the event's own; an event that steps back in time is
taken in order of arrival, with the clock held at the latest time seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np

from rejex_stream.errors import ConfigError
from rejex_stream.features.columns import (
    CALENDAR,
    Angle,
    AngleLag,
    AngleRolling,
    Calendar,
    Column,
    Lag,
    Raw,
    Rolling,
    Row,
    short_way,
)
from rejex_stream.features.preset import (
    AT_ONCE,
    NOISE_OF,
    PRESETS,
    PresetName,
    RecentRows,
    blocks_of,
    noise_of,
    reach_of,
)

FeatureKind: TypeAlias = Literal[
    "raw", "lag", "difference", "deviation", "mean", "std", "min", "max", "hour_of_day",
    "day_of_week", "days_to_month_end",
]  # fmt: skip
_Kept: TypeAlias = tuple[list[float], list[int], int | None, list[Any]]
SIDES: Final = ("low", "high")
BESIDE: Final[str] = "siblings"
"""The kind of what a sensor read before and its siblings then, and both smoothed."""
_KINDS: tuple[str, ...] = (*get_args(FeatureKind), BESIDE)
_ROLLING = ("deviation", "mean", "std", "min", "max")
_ON_CIRCLE = ("raw", "lag", "mean")  # of an angle these are a sine and a cosine
_NOT_ON_CIRCLE = ("min", "max")


def group_of(siblings: str | tuple[tuple[str, str], ...]) -> Callable[[str], str | None]:
    """Return what says of a sensor with whom it is a sibling; ``None``: with nobody."""
    if not isinstance(siblings, str):
        return dict(siblings).get
    pattern = re.compile("(?s).*" if siblings == "*" else siblings)

    def by_name(sensor: str) -> str | None:
        found = pattern.fullmatch(sensor)
        return found and ("/".join(found.groups("")) or siblings)

    return by_name


class Circle(NamedTuple):
    """A channel that is an angle."""

    channel: str
    period: float = 360.0  # a whole turn
    # the angle that this one is turned after, as a nacelle is after the wind; empty: none
    follows: str = ""


@dataclass(frozen=True, slots=True)
class Feature:
    """One named feature of a channel, or of the time of day or week.

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
    """``raw``; ``lag`` and ``difference`` (over `events`); ``mean``, ``std``, ``min``, ``max`` and
    ``deviation``, the value minus that mean (over the last `events`, or the last `seconds` of event
    time, the current event included); ``hour_of_day``, ``day_of_week`` and ``days_to_month_end``
    (sine and cosine of the UTC phase, so two columns)."""
    channel: str = ""
    """Which channel; empty for the calendar."""
    events: int | None = None
    seconds: float | None = None
    """The span; exactly one of them for rolling statistics, `events` for lag and difference."""
    period: float | None = None
    """Of an angle, a whole turn: ``raw``, ``lag`` and ``mean`` are sine and cosine, so two columns,
    and the others go the short way round."""
    behind: str = ""
    """An angle: the feature is one of the short way from it to this channel, which is no angle."""

    def __post_init__(self) -> None:
        where = f"feature {self.kind!r}" + (f" of channel {self.channel!r}" if self.channel else "")
        if self.kind not in _KINDS:
            raise ConfigError(f"{where} is unknown: use one of {', '.join(_KINDS)}.")
        if self.kind in CALENDAR:
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
        min_events = 2 if self.kind == "std" else 1
        if self.events is not None and self.events < min_events:
            raise ConfigError(f"{where} has events = {self.events}: give at least {min_events}.")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ConfigError(f"{where} has seconds = {self.seconds}: give a positive number.")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns this feature fills."""
        if self.kind in CALENDAR:
            return (f"{self.kind}_sin", f"{self.kind}_cos")
        if self.kind == BESIDE:
            before, siblings = f"{self.channel}_before", f"{self.channel}_siblings"
            return (before, siblings, f"{before}_smooth", f"{siblings}_smooth")
        name = f"{self.channel}_behind_{self.behind}" if self.behind else self.channel
        if self.kind != "raw":
            span = f"{self.events}" if self.events is not None else f"{self.seconds:g}s"
            name = f"{name}_{self.kind}_{span}"
        return (f"{name}_sin", f"{name}_cos") if self.is_on_circle else (name,)

    @property
    def is_on_circle(self) -> bool:
        """Whether it is the sine and cosine of an angle."""
        return self.period is not None and not self.behind and self.kind in _ON_CIRCLE


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """Which features are made of which channels; every sensor gets its own state for it.

    Raises
    ------
    ConfigError
        If no channel is left to measure, a name is unknown or given twice, or a feature is made of
        a flag: then it would be in the distance, and out of it.

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
    >>> FeatureSpec(("flow", "valve"), preset="raw", flags=("valve",)).names
    ('flow',)
    """

    channels: tuple[str, ...]
    """Names of the channels, in the order of ``Reading.values``."""
    features: tuple[Feature, ...] = ()
    """In the order of the columns; empty means those of `preset`."""
    carry_forward_events: int = 0
    """For how many events in a row the last value stands in for a missing one. Beyond it the event
    cannot be scored."""
    preset: PresetName | None = None
    """Ready-made columns: ``raw``, ``sensor``, ``lags``, ``sensor_lags``
    (:func:`~rejex_stream.features.preset.blocks_of`) or ``sensor_seasonal`` (``sensor``, and the
    phases of day, week and month). Without features and preset it is the detector's own, or
    ``raw``."""
    flags: tuple[str, ...] = ()
    """Channels that no column is made of: switches, commands, constants. They stay in the reading
    for whoever reviews it, and an event without one is judged all the same."""
    sides: tuple[tuple[str, str], ...] = ()
    """Channels of which one side alone counts, each with it: ``low`` for drops, ``high`` for rises.
    The detector has to know sides, as ``Sensor`` does."""
    angles: tuple[Circle, ...] = ()
    """Channels that go round. Their columns are sines and cosines, and differences the short way
    round; one that follows another has, in a preset, columns of how far it is behind as well. Rows
    are made one by one, and a reading without one of its channels has none."""
    siblings: str | tuple[tuple[str, str], ...] = ""
    """Which sensors are siblings: ``*``, all; a regular expression of a sensor's name, whose groups
    are equal in siblings; or pairs of a sensor and its group. Rows have four columns more a
    channel: what it read before, the median of its siblings then, and both smoothed."""

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise ConfigError(f"preset = {self.preset!r} is unknown: use {', '.join(PRESETS)}.")
        if self.preset is not None and self.features:
            raise ConfigError(
                f"preset = {self.preset!r} and columns are both given: keep one of them."
            )
        if not self.channels:
            raise ConfigError("There are no channels: name at least one.")
        if len(set(self.channels)) < len(self.channels):
            raise ConfigError(f"A channel is named twice in {list(self.channels)}: name each once.")
        if self.carry_forward_events < 0:
            raise ConfigError(
                f"carry_forward_events = {self.carry_forward_events}: give 0 or a larger number."
            )
        self._check_flags()
        for name, side in self.sides:
            if name not in self.measured or side not in SIDES:
                raise ConfigError(
                    f"side = {side!r} of channel {name!r}: give {' or '.join(SIDES)} of one of "
                    f"{', '.join(self.measured)}, which are measured."
                )
        self._check_angles()
        self._check_siblings()
        unknown = [f.channel for f in self.features if f.channel not in (*self.channels, "")]
        if unknown:
            raise ConfigError(
                f"A feature names the unknown channel {unknown[0]!r}: use one of "
                f"{', '.join(self.channels)}."
            )
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"A feature is named twice in {list(self.names)}: name each once.")

    def _check_flags(self) -> None:
        for name in self.flags:
            if name not in self.channels:
                raise ConfigError(
                    f"The flag {name!r} is no channel: use some of {', '.join(self.channels)}."
                )
        if len(set(self.flags)) < len(self.flags):
            raise ConfigError(f"A flag is named twice in {list(self.flags)}: name each once.")
        if len(self.flags) == len(self.channels):
            raise ConfigError(
                f"All channels are flags ({', '.join(self.flags)}), so nothing is left to measure: "
                "leave at least one channel out of the flags."
            )
        for feature in self.features:
            if feature.channel in self.flags:
                raise ConfigError(
                    f"Feature {feature.kind!r} is made of {feature.channel!r}, and a flag is kept "
                    "out of the features: remove the column, or the channel from the flags."
                )

    def _check_angles(self) -> None:
        named = [name for name, _, _ in self.angles]
        for name, period, follows in self.angles:
            where = f'kind = "angle" of channel {name!r}'
            if name not in self.measured or named.count(name) > 1:
                raise ConfigError(
                    f"{where}: give it once, of one of {', '.join(self.measured)}, which are "
                    "measured; a flag is not."
                )
            if not 0 < period < math.inf:
                raise ConfigError(f"{where}: its period is {period}: give a positive number.")
            if any(name == sided for sided, _ in self.sides):
                raise ConfigError(f"{where}: an angle has no lower side: leave side out.")
            if not follows:
                continue
            leader = next(
                (circle for circle in self.angles if circle.channel == follows != name), None
            )
            if leader is None or leader.period != period:
                raise ConfigError(
                    f"{where}: follows = {follows!r} is no other angle of the same period: name "
                    "one, or leave follows out."
                )
        for feature in self.features:
            if feature.channel in named and feature.kind in _NOT_ON_CIRCLE:
                raise ConfigError(
                    f"Feature {feature.kind!r} is made of {feature.channel!r}, and an angle has "
                    "no largest value: remove the column, or the kind of the channel."
                )

    def _check_siblings(self) -> None:
        if any(feature.kind == BESIDE for feature in self.features):
            raise ConfigError("Columns of siblings are not given: set `siblings` instead.")
        try:
            group_of(self.siblings)
        except re.error as error:
            said = f"siblings = {self.siblings!r} is no regular expression: {error}."
            raise ConfigError(said) from None

    @property
    def compared(self) -> tuple[str, ...]:
        """The channels that are judged beside siblings: a column, and no angle and no side."""
        if not self.siblings:
            return ()
        apart = {*(name for name, _, _ in self.angles), *(name for name, _ in self.sides)}
        if self.features:
            apart |= {*self.measured} - {f.channel for f in self.features if f.kind == "raw"}
        return tuple(name for name in self.measured if name not in apart)

    @property
    def measured(self) -> tuple[str, ...]:
        """The channels that columns may be made of: all but the flags."""
        return tuple(name for name in self.channels if name not in self.flags)

    @property
    def columns(self) -> tuple[Feature, ...]:
        """The features that rows are made of, whether given or of the preset."""
        periods = {name: period for name, period, _ in self.angles}
        beside = tuple(Feature(BESIDE, name, 1) for name in self.compared)  # type: ignore[arg-type]
        if self.features:
            given = tuple(
                replace(feature, period=periods[feature.channel])
                if feature.channel in periods
                else feature
                for feature in self.features
            )
            return given + beside
        measured = self.measured
        shape = blocks_of(self.preset or "raw", len(measured))
        made = tuple(
            Feature(kind, channel, events, period=periods.get(channel))  # type: ignore[arg-type]
            for kind, events in shape  # kinds of a preset
            for channel in measured
        )
        made += tuple(
            Feature(kind, name, events, period=period, behind=leader)  # type: ignore[arg-type]
            for name, period, leader in self.angles
            if leader
            for kind, events in shape
        )
        if self.preset == "sensor_seasonal":
            made += tuple(map(Feature, CALENDAR))  # type: ignore[arg-type]
        return made + beside

    @property
    def reach(self) -> int:
        """How many readings before its own, at most, the columns look at that count readings."""
        return max(reach_of(column.kind, column.events) for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a row, in order."""
        return tuple(name for feature in self.columns for name in feature.names)

    @property
    def channels_of_columns(self) -> tuple[str, ...]:
        """For each column the channel it comes from; empty for the calendar."""
        return tuple(feature.channel for feature in self.columns for _ in feature.names)

    @property
    def levels(self) -> tuple[int, ...]:
        """The columns that are channels as they are; without any, all but the calendar's."""
        kinds = [feature.kind for feature in self.columns for _ in feature.names]
        raw = tuple(i for i, kind in enumerate(kinds) if kind == "raw")
        return raw or tuple(i for i, kind in enumerate(kinds) if kind not in CALENDAR)

    @property
    def level_of_channel(self) -> dict[int, int]:
        """For channels that have one as it is, by number, which column is it."""
        kinds = [feature.kind for feature in self.columns for _ in feature.names]
        numbered = enumerate(zip(kinds, self.channels_of_columns, strict=True))
        return {self.channels.index(name): j for j, (kind, name) in numbered if kind == "raw"}

    @property
    def is_at_once(self) -> bool:
        """Whether rows are made for a batch of readings at once, by :meth:`start_recent`."""
        return self.preset in AT_ONCE and not self.angles

    def start(self) -> SensorFeatures:
        """Return the empty state of one sensor, whose rows are made one by one."""
        return SensorFeatures(self)

    def start_recent(self, *, partial: bool = False) -> RecentRows:
        """Return the empty state of one sensor, whose rows are made for a batch at once.

        With `partial`, a reading with some channels missing has a row too.
        """
        d, carry = len(self.measured), self.carry_forward_events
        shape = blocks_of(self.preset or "raw", d)
        return RecentRows(shape, d, carry, self._picked(), partial=partial)

    def _picked(self) -> tuple[int, ...] | None:
        if not self.flags:
            return None
        return tuple(i for i, name in enumerate(self.channels) if name not in self.flags)


class SensorFeatures:
    """The feature state of one sensor; fed every scorable reading in order.

    A reading with a missing channel that cannot be carried forward leaves no trace in lags and
    windows, so one gap spoils one event and not the events after it.
    """

    __slots__ = ("_age", "_behind", "_carry", "_channels", "_columns", "_last", "_latest_ms",
                 "_only_raw", "_picked")  # fmt: skip

    def __init__(self, spec: FeatureSpec) -> None:
        self._channels, self._picked = spec.measured, spec._picked()
        self._carry = spec.carry_forward_events
        self._last: Sequence[float] = [math.nan] * len(self._channels)
        self._age: list[int] = [0] * len(self._channels)
        self._latest_ms: int | None = None
        columns = [feature for feature in spec.columns if feature.kind != BESIDE]
        self._only_raw = tuple(f.channel for f in columns) == self._channels and all(
            f.kind == "raw" and f.period is None for f in columns
        )
        places = {name: at for at, name in enumerate(self._channels)}
        # What lies behind which angle, and the period: values beside those of the channels.
        self._behind = [
            (places[name], places[leader], period) for name, period, leader in spec.angles if leader
        ]
        pairs = [(name, leader) for name, _, leader in spec.angles if leader]
        self._columns: list[Column] = [
            _column(feature, self._channels, pairs) for feature in columns if not self._only_raw
        ]

    def extract(
        self, event_time_ms: int, values: Sequence[float], total: float | None = None
    ) -> Row | None:
        """Return the row of features, or ``None`` while a lag or a rolling window is filling.

        `values` are nan where missing; `total` is their sum, where somebody has it already. Raises
        a :class:`MissingChannelError` where one is missing for longer than is carried forward.
        """
        if self._picked is not None:
            values, total = [values[i] for i in self._picked], None
        if total is None:
            total = sum(values)
        if total - total != 0.0:  # something is nan or infinite, or the sum overflowed
            values = self._carried(values)
        else:
            if self._carry:
                self._age = [0] * len(self._age)
            self._last = values
        if self._only_raw:
            return list(values)
        if self._latest_ms is None or event_time_ms > self._latest_ms:
            self._latest_ms = event_time_ms
        now_ms = self._latest_ms
        if self._behind:
            beside = [short_way(values[a] - values[b], period) for a, b, period in self._behind]
            values = [*values, *beside]
        row, ready = list[float](), True
        for column in self._columns:
            ready = column.update(now_ms, values, row) and ready
        return row if ready else None

    def noise(self) -> list[float]:
        """Return the standard deviation of each channel's noise; nan where it is not known.

        It is known by a column over the last 24 events or more; where there is none, of no channel.
        """
        long = [c for c in self._columns if isinstance(c, Rolling) and len(c.points) >= NOISE_OF]
        past = np.full((NOISE_OF, len(self._channels)), math.nan)
        for one in long:
            if one.channel < past.shape[1]:
                past[:, one.channel] = one.levels()[-NOISE_OF:]
        return noise_of(past) if long else []

    def _carried(self, values: Sequence[float]) -> Sequence[float]:
        """Fill gaps with the newest values; what is there is known even where another is not."""
        # ``nan`` stays where a channel has never been heard of.
        present = [math.isfinite(value) for value in values]
        self._age = [0 if ok else age + 1 for ok, age in zip(present, self._age, strict=True)]
        self._last = [
            new if ok else old for ok, new, old in zip(present, values, self._last, strict=True)
        ]
        for i, (age, value) in enumerate(zip(self._age, self._last, strict=True)):
            if age > self._carry or math.isnan(value):
                raise MissingChannelError(self._channels[i])
        return self._last

    def snapshot(self) -> list[Any]:
        """Return the state as plain values for :meth:`restore`."""
        columns = [column.state() for column in self._columns]
        return [list(self._last), self._age, self._latest_ms, columns]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over the state of :meth:`snapshot`, made under the same spec."""
        last, age, latest_ms, columns = msgspec.convert(snapshot, _Kept)
        if not len(last) == len(age) == len(self._channels):
            raise ValueError(f"{len(last)} values of {len(self._channels)} channels")
        self._last, self._age, self._latest_ms = last, age, latest_ms
        for column, state in zip(self._columns, columns, strict=True):
            column.restore(state)


class MissingChannelError(Exception):
    """A channel is missing for too long; stays inside the core, where it becomes a verdict."""


def _column(
    feature: Feature, channels: tuple[str, ...], pairs: Sequence[tuple[str, str]]
) -> Column:
    if feature.kind in CALENDAR:
        return Calendar(feature.kind)
    if feature.behind:
        channel = len(channels) + pairs.index((feature.channel, feature.behind))
        period = None
    else:
        channel, period = channels.index(feature.channel), feature.period
    if feature.kind == "raw":
        return Raw(channel) if period is None else Angle(channel, period)
    events = feature.events
    if feature.kind in _ROLLING:
        span_ms = None if feature.seconds is None else feature.seconds * 1000
        if period is None:
            return Rolling(channel, feature.kind, events, span_ms)
        return AngleRolling(channel, feature.kind, events, span_ms, period)
    assert events is not None  # checked by Feature
    is_difference = feature.kind == "difference"
    if period is None:
        return Lag(channel, events, difference=is_difference)
    return AngleLag(channel, events, period, difference=is_difference)
