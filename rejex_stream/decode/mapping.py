"""Which field of a record means what, and what each value is allowed to be.

A :class:`FieldMapping` is shared by every wire format; the format's own work (bytes to fields) is
in :mod:`rejex_stream.decode`. Data errors are values: what cannot be read becomes an
:class:`~rejex_stream.types.Invalid` that names the field and quotes the value, printably.

What the values mean
--------------------
* A channel that is absent, ``null``, NaN, infinite, too large for a float, or one of ``missing`` or
  of its own ``missing_of``, is *missing* (``nan``): sensors send such things for "over range" and
  "no contact", and the engine has its own limit on how long a channel may be missing.
* A channel that holds text, a boolean, a list or an object is a broken record: ``Invalid``. With
  ``numbers="text"`` a text that is a number counts as one; cells of CSV are always texts. A flag
  may be a boolean, or ON and OFF.
* Integers beyond 2**53 are rounded to the nearest float.
* A time without a zone is read in ``time_zone``, else as UTC; fractions of a millisecond are
  dropped. Of an hour that comes twice the first is meant; one that is skipped is ``Invalid``.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from rejex_stream.decode.paths import origin_of
from rejex_stream.decode.written import (
    Skipped,
    canonical_time,
    in_zone,
    joined,
    missing_numbers,
    number_reader,
    zone_of,
)
from rejex_stream.errors import ConfigError
from rejex_stream.types import (
    MODE_MARK,
    Invalid,
    Reading,
    Record,
    SelectedRecord,
    UnreadRecord,
    in_mode,
    nan_of_unit,
    unit_change,
)

TimeUnit: TypeAlias = Literal[
    "iso8601", "s", "ms", "us", "ns", "min", "h", "d", "excel", "matlab", "labview", "filetime",
    "dotnet", "jd", "mjd", "gps", "s2000", "year",
]  # fmt: skip
Numbers: TypeAlias = Literal["typed", "text"]

GLOBAL_KEY = "global"
"""The one stream key of a mapping with ``pooled=True``."""

MAX_SENSOR_CHARS = 256
MAX_VALUE_BYTES = 1 << 20
MIN_EPOCH_MS = -62_135_596_800_000  # 0001-01-01T00:00:00Z
MAX_EPOCH_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
_MARKED = "the character U+001F in it, which no name may have: it stands before an operating mode"
_SHOWN = 12  # channels or fields in a sentence
SWITCHES = dict.fromkeys(("on", "true", "t", "yes", "y", "open", "opened", "run", "running"), 1.0)
SWITCHES |= dict.fromkeys(("off", "false", "f", "no", "n", "closed", "close", "stop"), 0.0)
SWITCHES |= {"active": 1.0, "1": 1.0, "stopped": 0.0, "inactive": 0.0, "0": 0.0}
"""Words of a flag, in lower case, and what they are as numbers."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Other clocks: units a day, and what they show at the beginning of 1970. Days of spreadsheets
# since 1899-12-30, of MATLAB since year 0, seconds of LabVIEW since 1904, 100 ns of Windows since
# 1601 and of .NET since year 1; days of astronomers, seconds of GPS (with its leap seconds since
# 2017) and since 2000; and longer units since 1970.
_CLOCKS: dict[str, tuple[float, float]] = {
    "min": (1_440, 0),
    "h": (24, 0),
    "d": (1, 0),
    "jd": (1, 2_440_587.5),
    "mjd": (1, 40_587),
    "gps": (86_400, -315_964_782),
    "s2000": (86_400, -946_684_800),
    "year": (1 / 365.2425, 1970),  # and its fraction, as R writes time series
    "excel": (1, 25_569),
    "matlab": (1, 719_529),
    "labview": (86_400, 2_082_844_800),
    "filetime": (864_000_000_000, 116_444_736_000_000_000),
    "dotnet": (864_000_000_000, 621_355_968_000_000_000),
}


_MAX_NAMES = 1 << 16
_log = logging.getLogger(__name__)

ABSENT = float("nan")
"""In the place of a value that did not come, and is unchanged by that; known by its identity."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Which values are good, or in the unit that they had: what is not counts as missing.

    Nothing at all beside a value is good: protocols leave it out where all is well.
    """

    field: str | Mapping[str, str]  # `{channel}` stands for a name; or from channel to field
    good: Sequence[str | bool | float] = ("good", 192, True)  # texts in any case
    units: Mapping[str, str] | None = None  # of channels, each one of the good

    def __post_init__(self) -> None:
        if isinstance(self.field, str) and "{channel}" not in self.field:
            raise ConfigError(
                f"quality.field is {printable(self.field)}: expected {{channel}} in it, in the "
                "place of a channel's name, or a table from channel to field"
            )

    def fields_of(self, channels: Sequence[str]) -> tuple[str, ...]:
        """Return the field of each channel that has one; of others an empty text."""
        if isinstance(self.field, str):
            return tuple(self.field.replace("{channel}", name) for name in channels)
        return tuple(self.field.get(name, "") for name in channels)

    def only_good(
        self, values: Sequence[object], qualities: Sequence[object],
        channels: Sequence[str] = (), *, texts: bool = False,
    ) -> list[object]:  # fmt: skip
        """Return values, ``None`` where one is not good; `texts` of a table may be numbers.

        Of `channels` with a unit only that is good, and another is kept as a nan that knows both.
        """
        units = [(self.units or {}).get(name) for name in channels] or [None] * len(values)
        return [
            value
            if quality is None
            or value is ABSENT
            or (unit == quality if unit else self._is_good(quality))
            or (texts and not unit and self._is_good(_as_json(str(quality))))
            else _in_place_of(printable(quality, 40), unit or tuple(self.good), unit)
            for value, quality, unit in zip(values, qualities, units, strict=True)
        ]

    def _is_good(self, found: object) -> bool:
        if isinstance(found, str):
            found = found.strip().lower()
            return any(isinstance(x, str | bool) and str(x).lower() == found for x in self.good)
        # True is no 1 here, nor 1 True.
        return any(type(one) is bool and one is found for one in self.good) or (
            not isinstance(found, bool)
            and any(type(one) is not bool and one == found for one in self.good)
        )


def _in_place_of(found: str, good: Sequence[object], unit: str | None) -> float | None:
    """Return what stands for a value that is not good, by what stands beside it."""
    _note_bad(found, (unit,) if unit else good)
    return nan_of_unit(unit, found[1:-1]) if unit else None


@lru_cache(maxsize=1_024)
def _note_bad(found: str, good: Sequence[object]) -> None:
    """Say once of what stands beside a value that it is not good."""
    known = ", ".join(map(printable, good))
    _log.info("beside a value stands %s, and not %s: such values are missing", found, known)


def _as_json(text: str) -> object:
    try:
        return {"true": True, "false": False}.get(text.lower()) or float(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class FieldMapping:
    r"""Where time, sensor, group and channels stand in a record; contradictions are refused.

    A field of nested JSON is written with dots (``motor.temp``), a dot that belongs to a name as
    ``\.``; CSV columns are taken by their exact name.
    """

    # Names in the order of `Reading.values`; or from each name to its field.
    channels: Sequence[str] | Mapping[str, str]
    # Several fields make one text, a day and a time of day; None: the record's own timestamp.
    time: str | Sequence[str] | None = None
    time_unit: TimeUnit = "ms"
    # Exactly one of three: a field; one name for all; or what `origin_of` reads beside the value.
    # Several fields make one name, a/b.
    sensor: str | Sequence[str] | None = None
    fixed_sensor: str | None = None
    sensor_from: str | None = None
    # At most one of three: a field; a table from sensor to group; one global key. Events of a
    # group share a model.
    group: str | None = None
    groups: Mapping[str, str] | None = None
    pooled: bool = False
    max_value_bytes: int = MAX_VALUE_BYTES
    time_format: str | None = None  # of strptime; in the place of `time_unit`
    time_zone: str | None = None  # of times without one: `Europe/Berlin`, `+01:00`
    mode: str | None = None  # each operating mode of a stream has a reference of its own
    # Which quantity a row of one value holds: `sensor/tag` is a series of its own; or, where
    # several channels have one field, the channel, and the others are ABSENT.
    tag: str | None = None
    tag_from: str | None = None  # in its place, what `origin_of` reads beside the value
    numbers: Numbers = "typed"  # `text`: texts that are numbers are numbers too
    decimal: str = "."
    thousands: str | None = None
    missing: Sequence[str] = ()  # texts and numbers that stand for no value: `---`, `-999`
    missing_of: Mapping[str, Collection[float]] | None = None  # and numbers of one channel
    units: Sequence[str] = ()  # what may stand behind a number that is a text
    flags: Sequence[str] = ()  # channels that may also be booleans, or ON and OFF
    quality: Quality | None = None
    partial: bool = False  # a field that is absent is ABSENT, not missing

    def __post_init__(self) -> None:
        names = self.channel_names
        if isinstance(self.channels, str) or not names:
            raise ConfigError(
                f"channels is {self.channels!r}: expected a list with at least one name"
            )
        if len(set(names)) != len(names):
            raise ConfigError(f"channels {names!r} name one channel twice: keep each name once")
        self._check_time()
        given = (self.missing_of or {}).items()  # made once, of four bytes as well
        none = {name: missing_numbers(map(str, own)) for name, own in given}
        object.__setattr__(self, "missing_of", none or None)
        named = (self.sensor, self.fixed_sensor, self.sensor_from)
        if named.count(None) != 2:
            raise ConfigError(
                "say where the sensor's name comes from by exactly one of `sensor` (a field), "
                "`fixed_sensor` (a name) and `sensor_from` (the key, a header or the topic)"
            )
        for name in ("sensor_from", "tag_from"):
            spec = getattr(self, name)
            if spec is not None and _origin(spec) is None:
                raise ConfigError(
                    f"{name} is {printable(spec)}: expected key, key.FIELD, key:PATTERN, "
                    "header:NAME or topic:PATTERN"
                )
        if self.fixed_sensor is not None and not 0 < len(self.fixed_sensor) <= MAX_SENSOR_CHARS:
            raise ConfigError(
                f"fixed_sensor is {printable(self.fixed_sensor)}: "
                f"expected 1 to {MAX_SENSOR_CHARS} characters"
            )
        if self.sensor is not None and not self.sensor_fields:
            raise ConfigError("sensor is an empty list: expected a field, or leave it out")
        if MODE_MARK in (self.fixed_sensor or ""):
            raise ConfigError(f"fixed_sensor is {printable(self.fixed_sensor)}: it has {_MARKED}")
        for group in (self.groups or {}).values():
            if MODE_MARK in group:
                raise ConfigError(f"groups has the group {printable(group)}: it has {_MARKED}")
        if sum((self.group is not None, self.groups is not None, self.pooled)) > 1:
            raise ConfigError("choose at most one of `group`, `groups` and `pooled`")
        if self.max_value_bytes < 1:
            raise ConfigError(f"max_value_bytes is {self.max_value_bytes}: expected at least 1")
        number_reader(self.decimal, self.thousands)

    def _check_time(self) -> None:
        if self.time_unit not in get_args(TimeUnit):
            raise ConfigError(
                f"time_unit is {self.time_unit!r}: expected one of {', '.join(get_args(TimeUnit))}"
            )
        if self.time is not None and not self.time_fields:
            raise ConfigError("time is an empty list: expected a field, or leave it out")
        if len(self.time_fields) > 1 and not self.time_is_text:
            raise ConfigError(
                f"time is {list(self.time_fields)!r}, and several fields make a text: give "
                "time_format for them with a space between, or time_unit = 'iso8601'"
            )
        if self.time_zone is not None:
            zone_of(self.time_zone)
        if self.time_format is not None:
            _require_format(self.time_format)

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(self.channels)

    @property
    def channel_fields(self) -> tuple[str, ...]:
        if isinstance(self.channels, Mapping):
            return tuple(self.channels.values())
        return tuple(self.channels)

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that is looked up in a record, once."""
        alone = (*self.sensor_fields, self.tag, self.group, self.mode)
        wanted = (*self.time_fields, *alone, *self.channel_fields, *self.quality_fields)
        return tuple(dict.fromkeys(field for field in wanted if field is not None))

    @property
    def quality_fields(self) -> tuple[str, ...]:
        """The field that says of each channel whether its value is good, if there are any."""
        return () if self.quality is None else self.quality.fields_of(self.channel_names)

    @property
    def tagged(self) -> bool:
        """Whether a record names the quantity of its value."""
        return self.tag is not None or self.tag_from is not None

    @property
    def joined(self) -> bool:
        """Whether records with one value each become rows with all channels."""
        if not self.tagged or len(set(self.channel_fields)) > 1:
            return self.tagged and len(set(self.channel_fields)) < len(self.channel_names)
        (field,), names = set(self.channel_fields), self.channel_names
        return len(names) > 1 or names[0] != field.rpartition(".")[2]

    @property
    def time_fields(self) -> tuple[str, ...]:
        if self.time is None:
            return ()
        return (self.time,) if isinstance(self.time, str) else tuple(self.time)

    @property
    def sensor_fields(self) -> tuple[str, ...]:
        if self.sensor is None:
            return ()
        return (self.sensor,) if isinstance(self.sensor, str) else tuple(self.sensor)

    def getters(
        self, of: Callable[[str], Callable[[Any], object]]
    ) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
        """Make what fetches the sensor and the time of a record, as :meth:`reading` wants them."""
        sensor, time = [*map(of, self.sensor_fields)], [*map(of, self.time_fields)]
        return (
            sensor[0] if len(sensor) == 1 else lambda record: [get(record) for get in sensor],
            time[0] if isinstance(self.time, str) else lambda record: [get(record) for get in time],
        )

    @property
    def time_is_text(self) -> bool:
        return self.time_format is not None or self.time_unit == "iso8601"

    def refuse(self, record: Record) -> Invalid:
        """Say why a tombstone, which is ignored, an empty or a huge record is not worth parsing."""
        value = record.value
        if value is None:
            return Invalid(record.position, "ignored", "the record has no value (a tombstone)")
        size = f"has {len(value)} bytes, more than max_value_bytes = {self.max_value_bytes}"
        return Invalid(record.position, "decode", f"the record {size if value else 'is empty'}")

    def lacking(self, reading: Reading | Invalid, fields: Mapping[str, object]) -> str:
        """Say which channels a record lacks and what it has, for whoever looks at the mapping."""
        if isinstance(reading, Invalid):
            return f"the record cannot be read: {reading.reason}"
        pairs = zip(self.channel_names, self.channel_fields, reading.values, strict=True)
        missing = [(name, field) for name, field, value in pairs if math.isnan(value)]
        if not missing:
            return f"no channel is missing; the values are {printable(reading.values)}"
        if self.joined:
            return "the tag names one channel, and others are in other records"
        shown = [f"channel {printable(n)} (field {printable(f)})" for n, f in missing[:_SHOWN]]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        are = f"{', '.join(shown)}{more} {'is' if len(missing) == 1 else 'are'} missing"
        flags = dict(zip(self.channel_fields, self.quality_fields, strict=False))
        came = {flags.get(field, "") for _, field in missing if fields.get(field)}
        beside = [f"{name} = {printable(fields[name])}" for name in came if fields.get(name)]
        are += f", beside {' and '.join(sorted(beside))}" if beside else ""
        known = {name.casefold(): name for name in fields if name not in self.fields}
        near = [printable(found) for _, field in missing if (found := _nearest(field, known))]
        hint = f": did you mean {' and '.join(near[:_SHOWN])}?" if near else ""
        has = ", ".join(printable(name)[1:-1] for name in [*fields][:_SHOWN]) or "no fields"
        return f"{are}; the record has {has}{', …' if len(fields) > _SHOWN else ''}{hint}"

    def failed(self, record: Record, error: Exception) -> Invalid:
        """Return what an error makes of a record; one that nobody foresaw is the record's fault."""
        if isinstance(error, NotWanted | Unreadable):
            stage = "ignored" if isinstance(error, NotWanted) else "validate"
            return Invalid(record.position, stage, str(error))
        return Invalid(record.position, "decode", f"the decoder gave up: {type(error).__name__}")

    def reading(
        self,
        record: Record,
        *,
        time: object,
        sensor: object,
        group: object,
        values: Sequence[object],
        tag: object = None,
        mode: object = None,
        qualities: Sequence[object] = (),
    ) -> Reading:
        """Make a reading of raw field values, each checked.

        `time`, `sensor`, `tag`, `group` and `mode` are ignored where the mapping has no field for
        them; `None` stands for absent, and among the values :data:`ABSENT` does.
        """
        if self.tag_from is not None:
            tag = self._beside("tag", self.tag_from, record)
        name = self.sensor_of(record, sensor, tag)
        if self.joined:
            values = self.only(_name("tag", tag), values)
        if self.quality is not None:
            values = self.quality.only_good(values, qualities, self.channel_names)
        if (floats := floats_of(tuple(values))) is None:
            came = values
            if self.numbers == "text" or self.missing:
                values = self._numbers(values)
            if self.flags:
                values = self._switches(came, values)
            floats = tuple(map(_channel_value, self.channel_names, values))
        return Reading(
            self.key_of(name, group, mode),
            name,
            self.time_of(record, time),
            self.without_missing(floats),
            record.position,
        )

    def without_missing(self, values: tuple[float, ...]) -> tuple[float, ...]:
        """Return values, nan in the place of those that stand for none. O(values)."""
        absent = _missing_numbers(tuple(self.missing)) if self.missing else None
        if absent and not absent.isdisjoint(values):
            values = tuple(math.nan if value in absent else value for value in values)
        if own := self.missing_of:
            pairs = zip(self.channels, values, strict=True)
            values = tuple(math.nan if x in own.get(name, ()) else x for name, x in pairs)
        return values

    def only(self, tag: str, values: Sequence[object]) -> list[object]:
        """Return the value of the channel that a tag names, and no other."""
        if tag not in self.channel_names:
            raise NotWanted(_no_channel(tag, tuple(self.channel_names)))
        return [
            value if name == tag else ABSENT
            for name, value in zip(self.channel_names, values, strict=True)
        ]

    def _switches(self, came: Sequence[object], values: Sequence[object]) -> list[object]:
        return [
            _switch(word, value) if name in self.flags else value
            for name, word, value in zip(self.channel_names, came, values, strict=True)
        ]

    def _numbers(self, values: Sequence[object]) -> list[object]:
        marks = self.decimal, self.thousands
        read = _number_reader(*marks, tuple(self.missing), tuple(self.units))
        texts = [read(value) if isinstance(value, str) else None for value in values]
        if self.numbers == "typed":
            texts = [text if text is not None and math.isnan(text) else None for text in texts]
        return [value if text is None else text for value, text in zip(values, texts, strict=True)]

    def sensor_of(self, record: Record, found: object, tag: object = None) -> str:
        """Say who measured, from the field, the key or the fixed name."""
        if self.sensor_from is not None:
            found = self._beside("sensor", self.sensor_from, record)
        if isinstance(found, list) and len(self.sensor_fields) > 1:
            names = [_name("sensor", part) for part in found]  # no two sensors have the same name
            found = "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names)
        name = self.fixed_sensor or _name("sensor", found)
        if not self.tagged or self.joined:
            return name
        return _name("sensor", f"{name}/{_name('tag', tag)}")

    @staticmethod
    def _beside(what: str, spec: str, record: Record) -> object:
        origin = _origin(spec)
        assert origin is not None  # or the mapping would not be
        try:
            return origin(record)
        except ValueError as error:
            raise Unreadable(f"{what}: {error}") from None

    def key_of(self, sensor: str, group: object, mode: object = None) -> str:
        """Say which stream an event belongs to, and in which mode."""
        if self.mode is None:
            return self._stream_of(sensor, group)
        if isinstance(mode, bool):
            mode = "true" if mode else "false"
        named = _name("mode", mode.strip() if isinstance(mode, str) else mode)
        return in_mode(self._stream_of(sensor, group), named)

    def _stream_of(self, sensor: str, group: object) -> str:
        if self.pooled:
            return GLOBAL_KEY
        if self.groups is not None:
            try:
                return self.groups[sensor]
            except KeyError:
                raise Unreadable(
                    f"sensor: {printable(sensor)} is not in the table of groups; add it there"
                ) from None
        if self.group is not None:
            return _name("group", group)
        return sensor

    def time_of(self, record: Record, found: object) -> int:
        """Say when it was measured, in UTC milliseconds since 1970."""
        if self.time is not None:
            if type(found) is int and self.time_unit == "ms" and self.time_format is None:
                return found if MIN_EPOCH_MS <= found <= MAX_EPOCH_MS else _in_range(found, found)
            return self.epoch_ms(found if isinstance(self.time, str) else joined(found))
        if record.timestamp_ms is None:
            raise Unreadable("time: the record carries no timestamp, and no time field is mapped")
        return _in_range(record.timestamp_ms, record.timestamp_ms)

    def epoch_ms(self, found: object) -> int:
        """Read a time as the mapping says, in UTC milliseconds since 1970."""
        if self.decimal == "," and isinstance(found, str) and not self.time_is_text:
            found = found.replace(",", ".")
        return to_epoch_ms(found, self.time_unit, format=self.time_format, zone=self.time_zone)


class NameCache(dict[str | None, tuple[str, str]]):
    """Stream key and sensor by what stands in the sensor's field, each checked once.

    For mappings in which nothing else names a stream. Who meets a name again gets the same objects.
    """

    def __init__(self, mapping: FieldMapping) -> None:
        self._mapping = mapping

    def __missing__(self, found: str | None) -> tuple[str, str]:
        sensor = self._mapping.fixed_sensor or _name("sensor", found)
        if len(self) >= _MAX_NAMES:
            self.clear()
        known = self[found] = self._mapping.key_of(sensor, None), sensor
        return known


class Decoder(Protocol):
    """Turns records into readings for one mapping."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds."""


@runtime_checkable
class DecidingDecoder(Decoder, Protocol):
    """A decoder that asks others, so that what it decided must become durable with the outcomes."""

    def of_partition(self, decisions: bytes | None, *, decided_until: int) -> DecidingDecoder:
        """Return a decoder of one partition, for which what lies before `decided_until` stands."""

    def decisions(self) -> bytes:
        """Return what was decided so far; the same object while nothing was added."""


def decode_records(
    decoder: Decoder, records: Sequence[Record]
) -> tuple[Sequence[Record], list[Reading | Invalid]]:
    """Decode records in order, at once where the decoder can.

    Returns the records, each as often as it holds readings, at least once, and what they are.
    """
    expand = getattr(decoder, "expand", None)  # decoders of one's own need none
    if expand is not None:
        records = expand(records)
    refused = [_refused(record) for record in records]
    good = records
    if refused.count(None) < len(refused):
        good = [record for record, why in zip(records, refused, strict=True) if why is None]
    found = decode_all(decoder, good)
    if good is not records:
        rest = iter(found)
        found = [next(rest) if why is None else why for why in refused]
    return records, found


def decode_all(decoder: Decoder, records: Sequence[Record]) -> list[Reading | Invalid]:
    """Return what records are, each as ``decode`` says; at once where the decoder can."""
    at_once = getattr(decoder, "decode_all", lambda records: list(map(decoder.decode, records)))
    found: list[Reading | Invalid] = at_once(records)
    return found


def _refused(record: Record) -> Invalid | None:
    if type(record) is Record:
        return None
    if isinstance(record, UnreadRecord):
        return Invalid(record.position, "read", record.reason)
    return record.invalid if isinstance(record, SelectedRecord) else None


class Unreadable(Exception):  # noqa: N818 - never leaves decoding: it becomes an Invalid
    """A field cannot be read; the message is the reason for the dead letter."""


class NotWanted(Exception):  # noqa: N818 - never leaves decoding: it becomes an Invalid
    """A record holds no reading, which is no fault; the message says why."""


def to_epoch_ms(
    value: object, unit: TimeUnit, *, format: str | None = None, zone: str | None = None
) -> int:
    """Turn a time in `unit`, or written in `format`, into UTC milliseconds since 1970."""
    if format is not None or unit == "iso8601":
        if not isinstance(value, str):
            raise _no_time(value, format)
        try:
            moment = parse_moment(value, format)
            if moment.tzinfo is None:
                moment = in_zone(moment, UTC if zone is None else zone_of(zone))
            return _in_range((moment - _EPOCH) // _MILLISECOND, value)
        except Skipped:
            raise Unreadable(
                f"time: {printable(value)} does not exist in {zone}, whose clock went over it; "
                "if this clock knows no summer time, give an offset such as +01:00 as time_zone"
            ) from None
        except (ValueError, OverflowError):
            raise _no_time(value, format) from None
    number = _number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e30:
        raise Unreadable(f"time: expected a number of {unit}, got {printable(value)}")
    if unit in _CLOCKS:
        a_day, at_1970 = _CLOCKS[unit]
        return _in_range(round((number - at_1970) * 86_400_000 / a_day), value)
    if isinstance(number, int):
        return _in_range(number * 1_000 // _UNITS_PER_S[unit], value)
    # Round to the microsecond first: 1700000000.123 s is a float just below it.
    return _in_range(round(number * (1e6 / _UNITS_PER_S[unit])) // 1_000, value)


def parse_moment(text: str, format: str | None) -> datetime:
    """Read a time as written in `format`, else as ISO 8601; ``ValueError`` if it is none."""
    try:
        return _moment(text.strip(), format)
    except ValueError:
        if (other := canonical_time(text.strip())) is None:
            raise
    text, days = other
    return _moment(text, format) + timedelta(days=days)


def _moment(text: str, format: str | None) -> datetime:
    if format is None:
        return datetime.fromisoformat(text)
    if format.endswith(" %H%M"):  # strptime takes 45 for 04:05, and it is 00:45
        day, _, clock = text.rpartition(" ")
        text = f"{day} {clock:0>4}"
    return datetime.strptime(text, format)


_origin = lru_cache(maxsize=64)(origin_of)
_missing_numbers = lru_cache(maxsize=64)(missing_numbers)
_number_reader = lru_cache(maxsize=64)(number_reader)


def _nearest(field: str, known: Mapping[str, str]) -> str | None:
    sought = field.casefold()
    longer = [name for name in known if len(sought) > 2 and (sought in name or name in sought)]
    near = difflib.get_close_matches(sought, known, n=1) or [n for n in longer if len(n) > 2]
    return known[near[0]] if near else None


@lru_cache(maxsize=1_024)
def _no_channel(tag: str, channels: tuple[str, ...]) -> str:
    near = _nearest(tag, {name.casefold(): name for name in channels})
    fix = "" if near is None else f": did you mean {printable(near)}?"
    return f"the tag {printable(tag)} is none of the channels{fix}"


@lru_cache(maxsize=64)
def _require_format(format: str) -> None:
    """Refuse a format that reads no day, or cannot read what it writes."""
    moment = datetime(2031, 11, 23, 13, 45, 56, tzinfo=UTC)
    try:
        found = datetime.strptime(moment.strftime(format), format)
        fits = found.date() == moment.date()
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"time_format is {printable(format)}: expected the signs of strptime for a whole date, "
            "such as '%d.%m.%Y %H:%M:%S' or '%m/%d/%Y %I:%M %p'"
        )


def _no_time(value: object, format: str | None) -> Unreadable:
    wanted = "an ISO 8601 text"
    if format is not None:
        now = datetime(2031, 11, 23, 13, 45, 56, tzinfo=UTC).strftime(format)
        wanted = f"a text such as {printable(now)}"
    return Unreadable(f"time: expected {wanted}, got {printable(value)}")


def printable(value: object, limit: int = 80) -> str:
    r"""Quote an untrusted value on one line: control characters escaped, at most `limit` long."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {len(value)} field(s)"
    text = repr(value[:limit] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _name(what: str, found: object) -> str:
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str):
        raise Unreadable(f"{what}: expected a name, got {printable(found)}")
    if not 0 < len(found) <= MAX_SENSOR_CHARS:
        raise Unreadable(
            f"{what}: expected 1 to {MAX_SENSOR_CHARS} characters, got {len(found)}"
            + (f" ({printable(found, 40)})" if found else "")
        )
    if MODE_MARK in found:
        raise Unreadable(f"{what}: {printable(found)} has {_MARKED}")
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:  # a lone surrogate: JSON can write it, UTF-8 cannot
            raise Unreadable(f"{what}: {printable(found)} is not valid Unicode") from None
    return found


def _switch(came: object, value: object) -> object:
    if isinstance(came, bool):
        return float(came)
    if isinstance(came, str):
        return SWITCHES.get(came.strip().lower(), math.nan if value is came else value)
    return value


def floats_of(values: tuple[Any, ...]) -> tuple[float, ...] | None:
    """Return numbers as floats and nan for ``None``; ``None`` where any needs a closer look."""
    kinds = [*map(type, values)]
    n_floats = kinds.count(float)
    if n_floats < len(kinds):
        if n_floats + kinds.count(int) < len(kinds):
            present = tuple([value for value in values if value is not None])
            if len(present) == len(values) or (some := floats_of(present)) is None:
                return None
            numbers = iter(some)
            return tuple([math.nan if value is None else next(numbers) for value in values])
        try:
            values = tuple(map(float, values))
        except OverflowError:
            return None
    return values if math.isfinite(sum(values)) else None


def _channel_value(name: str, found: object) -> float:
    if found is None:
        return math.nan
    if found is ABSENT:
        return ABSENT
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Unreadable(f"channel {printable(name)}: expected a number, got {printable(found)}")
    try:
        value = float(found)
    except OverflowError:  # an integer beyond 1.8e308
        return math.nan
    return value if math.isfinite(value) or unit_change(value) else math.nan


def _number(text: str) -> int | float | None:
    """Read a decimal number strictly: Python alone would also take ``1_000`` and ``٣``."""
    if "_" in text or not text.isascii():
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _in_range(epoch_ms: int, found: object) -> int:
    if not MIN_EPOCH_MS <= epoch_ms <= MAX_EPOCH_MS:
        raise Unreadable(f"time: {printable(found)} lies outside the years 1 to 9999")
    return epoch_ms
