"""The demo's feeds once more, through real topics: the verdicts must be those of the files."""

from __future__ import annotations

import csv
import json
import re
import threading
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rejex_stream.build import kafka_settings, run_pipeline
from rejex_stream.config import Config, load_config
from rejex_stream.config.problems import toml
from rejex_stream.demo.feeds import WATER_SENSOR
from rejex_stream.demo.pipelines import Pipeline
from rejex_stream.demo.play import read_lines
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.progress import RunEvent
from rejex_stream.types import Outcome, Partition, Position, Verdict

__all__ = ["Comparison", "play_through_kafka"]

_PARTITIONS = 2
_TURBINE = re.compile(rb'"turbine": "([^"]*)"')


class Comparison(NamedTuple):
    """What the topics hold beside what the files hold.

    Attributes
    ----------
    topic
        Where the verdicts are.
    n_verdicts
        How many of them.
    differing
        Verdicts that are not those of the files, as (sensor, ordinal within the sensor).
    """

    topic: str
    n_verdicts: int
    differing: tuple[tuple[str, int], ...]


def play_through_kafka(pipeline: Pipeline, bootstrap: str) -> Comparison:
    """Produce the feed to a new topic, run the pipeline on it, and compare the verdicts.

    Topics are new ones for each call and stay on the broker, to be looked at. The config is left
    beside that of the files as ``kafka.toml``.

    Parameters
    ----------
    pipeline
        Has already run on its files.
    bootstrap
        Broker address, host:port.

    Raises
    ------
    ConnectorError
        If the broker cannot be reached or refuses.
    """
    from rejex_connectors.kafka_topics import create_topics, plan_topics

    config = _config(pipeline, bootstrap)
    settings = kafka_settings(config)
    create_topics(settings, plan_topics(settings, partitions=_PARTITIONS))
    produced = _produce(pipeline, config, bootstrap)
    stop = threading.Event()
    run_pipeline(
        config,
        observers=[_StopAfter(produced, stop)],
        on_alarm=lambda partition, alarm: None,  # the run on files has raised the same ones
        stop=stop,
    )
    return _compare(pipeline, config)


def _config(pipeline: Pipeline, bootstrap: str) -> Config:
    """Write the config of the same pipeline with topics for files."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(
        pipeline.config_path.read_text(encoding="utf-8")
    )
    name = f"rejex-demo-{pipeline.name}-{uuid.uuid4().hex[:6]}"
    tables["pipeline"]["name"] = name
    source = tables["input"]
    del source["path"]
    source.pop("fixed_sensor", None)
    source.setdefault("sensor", "sensor")
    source |= {"kind": "kafka", "topics": [f"{name}.readings"]}
    outputs = ("verdicts", "review", "labels", "deadletter")
    tables["output"] = {output: f"{name}.{output}" for output in outputs}
    tables["state"] = {"topic": f"{name}.state"}
    tables["kafka"] = {"bootstrap_servers": bootstrap}
    path = pipeline.folder / "kafka.toml"
    path.write_text(_dump(tables), encoding="utf-8")
    return load_config(path)


def _dump(tables: dict[str, dict[str, Any]]) -> str:
    parts = []
    for section, values in tables.items():
        lines = [f"{key} = {toml(value)}" for key, value in values.items()]
        parts.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _produce(pipeline: Pipeline, config: Config, bootstrap: str) -> int:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    (topic,) = config.input.topics
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=20, metrics_enabled=False
        )
        sent = [
            producer.send(topic, key=key, value=value)
            for key, value in _messages(pipeline.feed.path)
        ]
        producer.flush(60)
        for future in sent:
            future.get(10)
        producer.close()
    except KafkaError as error:
        raise ConnectorError(
            f"The demo's feed could not be produced to {topic!r} at {bootstrap}: {error}. Check "
            "the address, and that topics may be written there."
        ) from error
    return len(sent)


def _messages(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read the feed as (key, value): JSON keyed by the sensor, so that a sensor keeps its order."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                fields = {"sensor": WATER_SENSOR, **row, "flow_l_s": float(row["flow_l_s"])}
                yield WATER_SENSOR.encode(), json.dumps(fields).encode()
        return
    for line in read_lines(path):
        found = _TURBINE.search(line)
        yield (found[1] if found else b""), line


class _StopAfter:
    """Ends a run, which on a topic would go on for ever, once it has seen all records."""

    def __init__(self, records: int, stop: threading.Event) -> None:
        self._records = records
        self._stop = stop
        self._seen: set[Position] = set()

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        self._seen.update(outcome.record.position for outcome in outcomes)
        if len(self._seen) >= self._records:
            self._stop.set()

    def event(self, event: RunEvent) -> None:
        """Only outcomes count."""


def _compare(pipeline: Pipeline, config: Config) -> Comparison:
    from rejex_connectors.kafka_python import read_partition

    settings = kafka_settings(config)
    topic = settings.topics.verdicts
    from_topics = [
        decode_verdict(record.value)
        for partition in range(_PARTITIONS)
        for record in read_partition(settings, Partition(topic, partition))
        if record.value is not None
    ]
    from_files = _by_event(decode_verdict(line) for line in read_lines(pipeline.verdicts_path))
    again = _by_event(from_topics)
    differing = sorted(
        key for key in from_files.keys() | again.keys() if from_files.get(key) != again.get(key)
    )
    return Comparison(topic, len(from_topics), tuple(differing))


def _by_event(verdicts: Iterator[Verdict] | Sequence[Verdict]) -> dict[tuple[str, int], Verdict]:
    """Key verdicts by what does not depend on the kind of input."""
    nowhere = Position("", 0, 0)
    return {
        (verdict.sensor, verdict.seq): msgspec.structs.replace(verdict, position=nowhere)
        for verdict in verdicts
    }
