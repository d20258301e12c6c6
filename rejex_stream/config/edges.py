"""Settings of the edges: where readings come from, where outcomes and state go."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rejex_stream.config.fields import Section, setting
from rejex_stream.context import REVIEW_REASONS
from rejex_stream.mapping import FieldMapping, TimeUnit
from rejex_stream.types import Reason

__all__ = ["REGISTRY_FORMATS", "Input", "Output", "Run", "State", "stem"]

Kind = Literal["file", "kafka"]

REGISTRY_FORMATS = ("avro", "protobuf")
"""Formats whose records name a schema of the registry."""


class Input(Section):
    """Where readings come from, and which field of a record means what."""

    kind: Kind = setting("file", says="Read a file, or Kafka topics.")
    path: str | None = setting(
        None,
        says="The file to read, plain or .gz; - is standard input. Needed for files.",
        otherwise="none",
        example="readings.csv",
    )
    format: Literal["auto", "csv", "jsonl", "avro", "protobuf"] = setting(
        "auto",
        says="A file is CSV with a header or JSON Lines; auto goes by its name. A topic is JSON "
        "(auto or jsonl), or Avro or Protobuf with schema_registry (extra `registry`).",
    )
    delimiter: str | None = setting(
        None,
        says="What separates CSV columns.",
        otherwise="a comma, in .tsv a tab",
        min_length=1,
        max_length=1,
        example=";",
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
    channels: tuple[str, ...] | dict[str, str] = setting(
        says="The channels by name, or a table from a channel's name to its field; nested fields "
        "are written with dots.",
        example=["flow", "pressure"],
    )
    time: str | None = setting(
        None,
        says="The field with the event time.",
        otherwise="the record's own time (Kafka only)",
        example="time",
    )
    time_unit: TimeUnit = setting("ms", says="Unit of the event time; iso8601 is a text.")
    sample_interval_ms: int | None = setting(
        None,
        unit="ms",
        says="Where the lines of a file carry no time: how far apart they are.",
        otherwise="they carry one",
        ge=1,
        example=1000,
    )
    sensor: str | None = setting(
        None,
        says="The field with the sensor's name.",
        otherwise="fixed_sensor or the key",
        example="sensor",
    )
    fixed_sensor: str | None = setting(
        None,
        says="One sensor name for all records.",
        otherwise="the name of the file, where nothing else is given",
        min_length=1,
        example="turbine-7",
    )
    sensor_from_key: bool = setting(
        False,
        says="Take the sensor's name from the record's key; so it is on Kafka where nothing else "
        "is given.",
    )
    group: str | None = setting(
        None,
        says="The field with the sensor's group; a group shares one model and window.",
        otherwise="every sensor has its own",
        example="site",
    )
    groups: dict[str, str] | None = setting(
        None,
        says="A table from sensor to group, instead.",
        otherwise="every sensor has its own",
        example={"pump-1": "pumps"},
    )
    pooled: bool = setting(False, says="All sensors share one model and window.")
    max_value_bytes: int = setting(
        1 << 20, unit="bytes", says="Larger records go to the dead letters unread.", ge=1
    )

    def mapping(self) -> FieldMapping:
        """Return which field means what, as the decoders want it."""
        fixed, from_key = self.fixed_sensor, self.sensor_from_key
        if self.sensor is None and fixed is None and not from_key:
            if self.kind == "kafka":
                from_key = True
            else:
                fixed = stem(self.path)
        return FieldMapping(
            channels=self.channels,
            time=self.time,
            time_unit=self.time_unit,
            sensor=self.sensor,
            fixed_sensor=fixed,
            sensor_from_key=from_key,
            group=self.group,
            groups=self.groups,
            pooled=self.pooled,
            max_value_bytes=self.max_value_bytes,
        )


class Output(Section):
    """Where outcomes go: files beside a file, topics beside topics."""

    verdicts: str | None = setting(
        None,
        says="File or topic of all verdicts; - is standard output.",
        otherwise="verdicts.jsonl or rejex.verdicts",
        min_length=1,
        example="verdicts.jsonl",
    )
    review: str | None = setting(
        None,
        says="File or topic of events for people to look at.",
        otherwise="review.jsonl or rejex.review",
        min_length=1,
        example="review.jsonl",
    )
    deadletter: str | None = setting(
        None,
        says="File or topic of records that cannot be read, with their original bytes.",
        otherwise="deadletter.jsonl or rejex.deadletter",
        min_length=1,
        example="deadletter.jsonl",
    )
    labels: str = setting(
        "rejex.labels", says="Topic of what reviewers answered (Kafka).", min_length=1
    )
    review_reasons: tuple[Reason, ...] = setting(
        tuple(sorted(REVIEW_REASONS)),
        says="Rejected for one of these reasons, an event goes to review.",
        example=["ambiguous", "unscorable"],
    )
    context_events: int = setting(
        32,
        unit="events",
        says="Earlier events of the same sensor that travel with a review item.",
        ge=0,
        le=10_000,
    )
    evidence: bool = setting(
        True,
        says="Whether anomalies and ambiguous events say which channels speak; costs one more "
        "score a channel for each of them.",
    )
    audit_rate: float = setting(
        0.0,
        unit="share of events",
        says="Share of accepted events that go to review as well, so that the miss rate is known.",
        ge=0,
        le=1,
    )


class State(Section):
    """What survives a restart."""

    resume: bool = setting(
        True,
        says="Whether a run over a file goes on where the last one stopped; false begins anew.",
    )
    folder: str | None = setting(
        None,
        says="Folder for snapshots and positions, of this pipeline alone.",
        otherwise="the state topic (Kafka), or .rejex-NAME beside the verdicts",
        min_length=1,
        example="state",
    )
    topic: str = setting("rejex.state", says="Compacted topic for snapshots (Kafka).", min_length=1)
    snapshot_every_events: int = setting(
        50_000,
        unit="events",
        says="Events of a partition between snapshots; a restart replays at most so many.",
        ge=1,
    )
    snapshot_interval_s: float = setting(
        300.0, unit="s", says="Longest time between snapshots while events arrive.", gt=0
    )
    lost: Literal["refuse", "restart"] = setting(
        "refuse",
        says="What to do when the state cannot be rebuilt: stop and say why, or warm up again.",
    )
    max_live_streams: int | None = setting(
        None,
        unit="streams",
        says="Streams held ready per partition; those silent for longest are kept packed.",
        otherwise="all",
        ge=1,
        example=10_000,
    )


class Run(Section):
    """The loop: how often, how much, how long; nothing here changes a verdict."""

    commit_interval_s: float = setting(
        0.5,
        unit="s",
        says="Outcomes are gathered for so long, then made durable at once with the offsets.",
        ge=0,
        le=60,
    )
    commit_every_events: int = setting(
        20_000, unit="events", says="Or so many of them, whichever comes first.", ge=1
    )
    max_poll_records: int = setting(
        5_000, unit="records", says="Records taken from the input at once.", ge=1
    )
    invalid_limit: float = setting(
        0.5,
        unit="share of records",
        says="The run stops when more than this share of the newest records cannot be read; "
        "1 never stops.",
        gt=0,
        le=1,
    )
    invalid_window_events: int = setting(
        1_000, unit="records", says="How many newest records that is.", ge=1
    )
    retry_for_s: float = setting(
        600.0,
        unit="s",
        says="How long a broker may be away before the run gives up.",
        ge=0,
    )


def stem(path: str | None) -> str:
    """Return the sensor name that a file's name gives: without folder and endings."""
    if path is None or path == "-":
        return "stdin"
    name = Path(path).name
    return name.split(".")[0] or name
