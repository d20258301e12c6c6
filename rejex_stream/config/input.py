"""Settings of the input: where readings come from, and which field of a record means what."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Literal

from rejex_stream.decode.mapping import FieldMapping, Numbers, Quality, TimeUnit
from rejex_stream.decode.paths import origin_of
from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.encode.schemas import TOPICS
from rejex_stream.settings import Section, setting

__all__ = ["ALL_SENSORS", "REGISTRY_FORMATS", "Input", "stem"]

Kind = Literal["file", "kafka"]

REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose records name a schema of the registry."""

ALL_SENSORS = "*"
"""As ``input.group``: no field, but all sensors in one group."""


class QualityFlags(Section):
    """Which values of the input are good."""

    field: str | dict[str, str] = setting(
        says="The field that says so, {channel} in the place of a channel's name; or a table from "
        "channel to field.",
        example="{channel}_q",
    )
    good: tuple[str | bool | float, ...] = setting(
        ("good", 192, True),
        says="What stands there beside a good value, texts in any case; where nothing stands, it "
        "is good.",
        example=["Good", 192, True],
    )


class Input(Section):
    """Where readings come from, and which field of a record means what."""

    kind: Kind = setting("file", says="Read a file, or Kafka topics.")
    path: str | None = setting(
        None,
        says="The file to read, plain or .gz; - is standard input. Needed for files.",
        example="readings.csv",
    )
    format: Literal["auto", "csv", "jsonl", "excel", "parquet", "avro", "protobuf"] = setting(
        "auto",
        says="A file is CSV with a header, JSON Lines, Excel (.xlsx, extra `excel`) or Parquet "
        "(extra `parquet`); auto goes by its name. A topic is JSON (auto or jsonl), or Avro or "
        "Protobuf with schema_registry (extra `registry`).",
    )
    sheet: str | None = setting(
        None,
        says="The sheet of an Excel workbook.",
        otherwise="the first",
        min_length=1,
        example="Readings",
    )
    skip_rows: int = setting(
        0,
        says="How many rows of a file stand above the table, a title or remarks; empty lines do "
        "not count.",
        ge=0,
    )
    delimiter: str | None = setting(
        None,
        says="What separates CSV columns; a space stands for any number of them.",
        otherwise="a comma, in .tsv a tab",
        min_length=1,
        max_length=1,
        example=";",
    )
    encoding: str | None = setting(
        None,
        says="Encoding of the text in the file, such as cp1252, latin-1 or utf-16.",
        otherwise="UTF-8, or UTF-16 where its byte order mark says so",
        example="cp1252",
    )
    columns: tuple[str, ...] = setting(
        (),
        says="Names of all columns of a table whose first row is no header, but data.",
        otherwise="those of the header",
        example=["time", "flow", "pressure"],
    )
    follow: bool = setting(
        False, says="Wait for more at the end of the file, as for a log that grows."
    )
    topics: tuple[str, ...] = setting(
        (),
        says="The Kafka topics to read, keyed by sensor.",
        otherwise="none",
        example=["sensor.readings"],
    )
    control: str | None = setting(
        None,
        says="File or topic of commands, what people tell the pipeline; a topic of one partition.",
        otherwise=f"control.jsonl beside the verdicts, or {TOPICS['control']}",
        min_length=1,
        example="control.jsonl",
    )
    partitioning: Literal["check", "trust"] = setting(
        "check",
        says="check: records without a key in a topic of several partitions end a run, as a "
        "sensor in several partitions is several streams, and so does a review budget of groups; "
        "trust: the producer keeps every sensor and group in one partition by other means.",
    )
    select: str | None = setting(
        None,
        says="A jq program (extra `select`) that makes of a record zero or more flat objects, each "
        "a reading: of arrays, pairs of names and values, envelopes, text in JSON. What gives none "
        "is ignored.",
        otherwise="a record is one reading",
        min_length=1,
        example=".machine as $m | .readings[] + {machine: $m}",
    )
    channels: tuple[str, ...] | dict[str, str] = setting(
        says="The channels by name, or a table from a channel's name to its field; nested fields "
        "are written with dots.",
        example=["flow", "pressure"],
    )
    flags: tuple[str, ...] = setting(
        (),
        says="Channels that are no measurement, such as switches and commands: no feature is made "
        "of them, so they are out of the score, and the reviewer sees them beside the others.",
        otherwise="none",
        example=["valve_open"],
    )
    time: str | tuple[str, ...] | None = setting(
        None,
        says="The field with the event time, or several that make it: a day and a time of day, "
        "read with a space between.",
        otherwise="the record's own time (Kafka only)",
        example="time",
    )
    time_unit: TimeUnit = setting(
        "ms",
        says="Unit of the event time; iso8601 is a text; excel and matlab count days, labview "
        "seconds since 1904, filetime and dotnet steps of 100 ns.",
    )
    time_format: str | None = setting(
        None,
        says="How the event time is written, in the signs of strptime; takes the place of "
        "time_unit.",
        otherwise="by time_unit",
        min_length=1,
        example="%d.%m.%Y %H:%M:%S",
    )
    time_zone: str | None = setting(
        None,
        says="Where times without a zone were read off the clock, by name or offset. Of the hour "
        "that comes twice a year the first is meant; a time in the hour that is skipped is not "
        "readable.",
        otherwise="UTC",
        min_length=1,
        example="Europe/Berlin",
    )
    numbers: Numbers = setting(
        "typed",
        says='text: a text that is a number counts as one ("88.4" in JSON); cells of CSV are '
        "texts in any case.",
    )
    decimal: Literal[".", ","] = setting(".", says="Decimal mark of numbers that are texts.")
    thousands: Literal[",", ".", " ", "'"] | None = setting(
        None, says="Mark between groups of three digits, in numbers that are texts.", example=","
    )
    missing: tuple[str, ...] = setting(
        (),
        says="Texts that stand where a value is missing, in any case, and numbers, such as -999; "
        "* is any text that does not begin as a number does. Empty, nan, na, n/a, null and none "
        "do anyway.",
        otherwise="no others",
        example=["---", "Bad", "-999"],
    )
    units: tuple[str, ...] = setting(
        (),
        says="What may stand behind a number that is a text, and is left out.",
        otherwise="nothing",
        example=["°C", "%"],
    )
    sample_interval_ms: int | None = setting(
        None,
        unit="ms",
        says="How far apart the readings of a sensor usually are: settings that count events may "
        "be given as times then. Where lines of a file carry no time, it is their clock.",
        ge=1,
        example=600_000,
    )
    sensor: str | tuple[str, ...] | None = setting(
        None,
        says="The field with the sensor's name, or several fields that make it, a/b; on Kafka also "
        "key, key.FIELD (of a key of JSON), header:NAME, or topic:PATTERN, a regular expression "
        "whose groups are the name.",
        otherwise="fixed_sensor or the key",
        example="sensor",
    )
    tag: str | None = setting(
        None,
        says="In a table with one value a row: the field that names the quantity. Each quantity of "
        "a sensor is a series of its own, sensor/tag; or, where channels is a table from several "
        "tags to one field, they are joined to rows with all of them.",
        otherwise="every row holds all channels",
        example="tag",
    )
    fixed_sensor: str | None = setting(
        None,
        says="One sensor name for all records.",
        otherwise="the name of the file, where nothing else is given",
        min_length=1,
        example="turbine-7",
    )
    quality: QualityFlags | None = setting(
        None,
        says="Which values are good, by a field beside each; what is not good is missing.",
        otherwise="every value is",
    )
    partial: Literal["missing", "hold_last"] = setting(
        "missing",
        says="What a channel is that a record does not name: missing; or unchanged (hold_last), as "
        "where only changes are reported. null is missing in any case.",
    )
    max_age_s: float | None = setting(
        None,
        unit="s",
        says="How long the last value of a channel stands for it, in event time, where rows are "
        "joined or absent fields are unchanged; older, it is missing.",
        otherwise="for good",
        gt=0,
        example=600,
    )
    step_s: float = setting(
        1.0,
        unit="s",
        says="Where rows are joined of records with a tag: a row ends when all channels have come, "
        "or with the first value so much later than its first.",
        gt=0,
    )
    reorder_s: float = setting(
        0.0,
        unit="s",
        says="How long events wait for earlier ones, in event time by the partition's trusted "
        "clock; 0: they are judged as they come.",
        ge=0,
    )
    group: str | dict[str, str] | None = setting(
        None,
        says="The field with the sensor's group, or a table from sensor to group; a group shares "
        "one model and window. *: all sensors are one group.",
        otherwise="every sensor has its own",
        example="site",
    )
    mode: str | None = setting(
        None,
        says="The field with the operating mode (off, start-up, idle, load): each has a window, a "
        "model and an incident of its own, and begins with a warm-up. A name, a whole number or a "
        "boolean.",
        otherwise="modes are not told apart",
        example="mode",
    )

    def reorder_rules(self) -> ReorderRules:
        """Return what becomes of readings before they are judged."""
        return ReorderRules(
            step_ms=round(1000 * self.step_s) if self.mapping().joined else None,
            hold=self.partial == "hold_last",
            max_age_ms=None if self.max_age_s is None else round(1000 * self.max_age_s),
            reorder_ms=round(1000 * self.reorder_s),
        )

    def mapping(self) -> FieldMapping:
        """Return which field means what, as the decoders want it."""
        sensor, fixed, beside = self.sensor, self.fixed_sensor, None
        if self.kind == "kafka":
            named = sensor if sensor or fixed else "key"
            if isinstance(named, str) and named and origin_of(named):
                sensor, beside = None, named
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
