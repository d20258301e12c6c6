"""Settings of the input: where readings come from, and which field of a record means what."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Literal

from rejex_stream.decode.mapping import FieldMapping, Numbers, Quality, TimeUnit
from rejex_stream.decode.paths import origin_of
from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.encode.schemas import TOPICS
from rejex_stream.settings import Section, setting

Kind = Literal["file", "kafka"]

REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose records name a schema of the registry."""

ALL_SENSORS = "*"
"""As ``input.group``: no field, but all sensors in one group."""


class QualityFlags(Section):
    """Which values of the input are good."""

    field: str | dict[str, str] = setting(example="{channel}_q")
    """The field that says so, {channel} in the place of a channel's name; or a table from channel
    to field."""
    good: tuple[str | bool | float, ...] = setting(("good", 192, True), example=["Good", 192, True])
    """What stands there beside a good value, texts in any case; where nothing stands, it is
    good."""


class Input(Section):
    """Where readings come from, and which field of a record means what."""

    kind: Kind = setting("file", says="Read a file, or Kafka topics.")
    path: str | None = setting(None, example="readings.csv")
    """The file to read, plain or .gz; - is standard input. Needed for files."""
    format: Literal["auto", "csv", "jsonl", "excel", "parquet", "avro", "protobuf"] = setting(
        "auto"
    )
    """A file is CSV with a header, JSON Lines, Excel (.xlsx, extra `excel`) or Parquet (extra
    `parquet`); auto goes by its name. A topic is JSON (auto or jsonl), or Avro or Protobuf with
    schema_registry (extra `registry`)."""
    sheet: str | None = setting(None, otherwise="the first", min_length=1, example="Readings")
    """The sheet of an Excel workbook."""
    skip_rows: int = setting(0, ge=0)
    """How many rows of a file stand above the table, a title or remarks; empty lines do not
    count."""
    delimiter: str | None = setting(
        None, otherwise="a comma, in .tsv a tab", min_length=1, max_length=1, example=";"
    )
    """What separates CSV columns; a space stands for any number of them."""
    encoding: str | None = setting(
        None, otherwise="UTF-8, or UTF-16 where its byte order mark says so", example="cp1252"
    )
    """Encoding of the text in the file, such as cp1252, latin-1 or utf-16."""
    columns: tuple[str, ...] = setting(
        (), otherwise="those of the header", example=["time", "flow", "pressure"]
    )
    """Names of all columns of a table whose first row is no header, but data."""
    follow: bool = setting(False)
    """Wait for more at the end of the file, as for a log that grows."""
    topics: tuple[str, ...] = setting((), otherwise="none", example=["sensor.readings"])
    """The Kafka topics to read, keyed by sensor."""
    control: str | None = setting(
        None,
        otherwise=f"control.jsonl beside the verdicts, or {TOPICS['control']}",
        min_length=1,
        example="control.jsonl",
    )
    """File or topic of commands, what people tell the pipeline; a topic of one partition."""
    partitioning: Literal["check", "trust"] = setting("check")
    """check: records without a key in a topic of several partitions end a run, as a sensor in
    several partitions is several streams, and so does a review budget of groups; trust: the
    producer keeps every sensor and group in one partition by other means."""
    select: str | None = setting(
        None,
        otherwise="a record is one reading",
        min_length=1,
        example=".machine as $m | .readings[] + {machine: $m}",
    )
    """A jq program (extra `select`) that makes of a record zero or more flat objects, each a
    reading: of arrays, pairs of names and values, envelopes, text in JSON. What gives none is
    ignored."""
    channels: tuple[str, ...] | dict[str, str] = setting(example=["flow", "pressure"])
    """The channels by name, or a table from a channel's name to its field; nested fields are
    written with dots."""
    flags: tuple[str, ...] = setting((), otherwise="none", example=["valve_open"])
    """Channels that are no measurement, such as switches and commands: no feature is made of them,
    so they are out of the score, and the reviewer sees them beside the others."""
    time: str | tuple[str, ...] | None = setting(
        None, otherwise="the record's own time (Kafka only)", example="time"
    )
    """The field with the event time, or several that make it: a day and a time of day, read with a
    space between."""
    time_unit: TimeUnit = setting("ms")
    """Unit of the event time; iso8601 is a text; excel and matlab count days, labview seconds since
    1904, filetime and dotnet steps of 100 ns."""
    time_format: str | None = setting(
        None, otherwise="by time_unit", min_length=1, example="%d.%m.%Y %H:%M:%S"
    )
    """How the event time is written, in the signs of strptime; takes the place of time_unit."""
    time_zone: str | None = setting(None, otherwise="UTC", min_length=1, example="Europe/Berlin")
    """Where times without a zone were read off the clock, by name or offset. Of the hour that comes
    twice a year the first is meant; a time in the hour that is skipped is not readable."""
    numbers: Numbers = setting("typed")
    """text: a text that is a number counts as one ("88.4" in JSON); cells of CSV are texts in any
    case."""
    decimal: Literal[".", ","] = setting(".", says="Decimal mark of numbers that are texts.")
    thousands: Literal[",", ".", " ", "'"] | None = setting(None, example=",")
    """Mark between groups of three digits, in numbers that are texts."""
    missing: tuple[str, ...] = setting((), otherwise="no others", example=["---", "Bad", "-999"])
    """Texts that stand where a value is missing, in any case, and numbers, such as -999; * is any
    text that does not begin as a number does. Empty, nan, na, n/a, null and none do anyway."""
    units: tuple[str, ...] = setting((), otherwise="nothing", example=["°C", "%"])
    """What may stand behind a number that is a text, and is left out."""
    sample_interval_ms: int | None = setting(None, unit="ms", ge=1, example=600_000)
    """How far apart the readings of a sensor usually are: settings that count events may be given
    as times then. Where lines of a file carry no time, it is their clock."""
    sensor: str | tuple[str, ...] | None = setting(
        None, otherwise="fixed_sensor or the key", example="sensor"
    )
    """The field with the sensor's name, or several fields that make it, a/b; on Kafka also key,
    key.FIELD (of a key of JSON), header:NAME, or key:PATTERN or topic:PATTERN, a regular expression
    whose groups are the name."""
    tag: str | None = setting(None, otherwise="every row holds all channels", example="tag")
    """In a table with one value a row: the field that names the quantity. Each quantity of a sensor
    is a series of its own, sensor/tag; or, where channels is a table from tags to one field,
    these are joined to rows with all of them. On Kafka also key:PATTERN, topic:PATTERN or
    header:NAME."""
    fixed_sensor: str | None = setting(
        None,
        otherwise="the name of the file, where nothing else is given",
        min_length=1,
        example="turbine-7",
    )
    """One sensor name for all records."""
    quality: QualityFlags | None = setting(None, otherwise="every value is")
    """Which values are good, by a field beside each; what is not good is missing."""
    partial: Literal["missing", "hold_last"] = setting("missing")
    """What a channel is that a record does not name: missing; or unchanged (hold_last), as where
    only changes are reported. null is missing in any case."""
    max_age_s: float | None = setting(None, unit="s", otherwise="for good", gt=0, example=600)
    """How long the last value of a channel stands for it, in event time, where rows are joined or
    absent fields are unchanged; older, it is missing."""
    step_s: float | None = setting(
        None, unit="s", gt=0, otherwise="1 where records have a tag, else nothing is joined"
    )
    """Where rows are joined, of records with a tag, or where partial is hold_last of records with
    some of the channels: a row ends when all channels have come, or with the first value so much
    later than its first."""
    reorder_s: float = setting(0.0, unit="s", ge=0)
    """How long events wait for earlier ones, in event time by the partition's trusted clock; 0:
    they are judged as they come."""
    group: str | dict[str, str] | None = setting(
        None, otherwise="every sensor has its own", example="site"
    )
    """The field with the sensor's group, or a table from sensor to group; a group shares one model
    and window. *: all sensors are one group."""
    siblings: str | dict[str, str] | None = setting(
        None, otherwise="a sensor is judged by itself", min_length=1, example="(.+)/turbine-.+"
    )
    """Sensors under one wind or on one main, each judged beside the others as well: a regular
    expression of a sensor's name whose groups are equal in siblings, or a table from sensor to
    group. *: all are siblings. They have to be in one partition."""
    mode: str | None = setting(None, otherwise="modes are not told apart", example="mode")
    """The field with the operating mode (off, start-up, idle, load): each has a window, a model and
    an incident of its own, and begins with a warm-up. A name, a whole number or a boolean."""

    def reorder_rules(self, counters: Collection[str] = ()) -> ReorderRules:
        step_s = self.step_s if self.partial == "hold_last" else None
        if self.mapping().joined:
            step_s = self.step_s or 1.0
        return ReorderRules(
            step_ms=None if step_s is None else round(1000 * step_s),
            hold=self.partial == "hold_last",
            max_age_ms=None if self.max_age_s is None else round(1000 * self.max_age_s),
            reorder_ms=round(1000 * self.reorder_s),
            counters=tuple(at for at, name in enumerate(self.channels) if name in counters),
        )

    def siblings_said(self) -> str | tuple[tuple[str, str], ...]:
        said = self.siblings or ""
        return said if isinstance(said, str) else tuple(sorted(said.items()))

    def mapping(self) -> FieldMapping:
        sensor, fixed, beside = self.sensor, self.fixed_sensor, None
        tag, tag_beside = self.tag, None
        if self.kind == "kafka":
            named = sensor if sensor or fixed else "key"
            if isinstance(named, str) and named and origin_of(named):
                sensor, beside = None, named
            if tag and ":" in tag and origin_of(tag):
                tag, tag_beside = None, tag
        elif sensor is None and fixed is None:
            fixed = stem(self.path)
        # The same names twice, and no more: a mapping is made of guessed tables too, stands below
        # the config, and is whole, where a file may leave out who measured.
        names = {field.name for field in fields(FieldMapping)} & set(type(self).model_fields)
        quality = self.quality and Quality(self.quality.field, self.quality.good)
        group = self.group
        own = {
            "group": group if isinstance(group, str) and group != ALL_SENSORS else None,
            "groups": group if isinstance(group, dict) else None,
            "pooled": group == ALL_SENSORS,
            "sensor": sensor,
            "fixed_sensor": fixed,
            "sensor_from": beside,
            "tag": tag,
            "tag_from": tag_beside,
            "quality": quality,
            "partial": self.partial == "hold_last",
        }
        return FieldMapping(**{name: getattr(self, name) for name in names} | own)


def stem(path: str | None) -> str:
    """Return the sensor name that a file's name gives: without folder and endings."""
    if path is None or path == "-":
        return "stdin"
    name = Path(path).name
    return name.split(".")[0] or name
