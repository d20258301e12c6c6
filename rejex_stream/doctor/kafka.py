"""The checks of a pipeline that reads Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rejex_connectors.kafka_settings import KafkaSettings

from rejex_stream.build import kafka_decoder, kafka_settings, open_registry
from rejex_stream.config import Config
from rejex_stream.doctor.findings import (
    Finding,
    clock_finding,
    duration,
    folder_finding,
    sample_findings,
)
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Partition, Reading, Record

__all__ = ["checks"]

_NO_SCHEMA = 2**31 - 1


def checks(config: Config, sample: int) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Return the checks by name, in order; they share what they learn of the broker."""
    broker = _Broker(config, kafka_settings(config), sample)
    registry = [("registry", broker.registry)] if config.schema_registry.url is not None else []
    return [
        ("broker", broker.reachable),
        ("topics", broker.topics),
        ("access", broker.access),
        *registry,
        ("sample", broker.sample),
        ("clock", broker.clock),
        ("snapshots", broker.snapshots),
    ]


class _Broker:
    """The checks, in the order in which each builds upon the one before."""

    def __init__(self, config: Config, settings: KafkaSettings, sample: int) -> None:
        # A doctor asks once and goes; it must not wait as long as a worker would.
        self._config, self._settings, self._sample = config, settings, sample
        self._described: dict[str, Any] = {}
        self._missing: set[tuple[str, str]] = set()
        self._up = False
        self._schemas = config.schema_registry.url is None
        self._readings: list[Reading] = []

    def reachable(self) -> Iterator[Finding]:
        """Ask the broker for its topics."""
        from rejex_connectors.kafka_python import admin
        from rejex_connectors.kafka_topics import describe

        settings = self._settings
        try:
            client = admin(settings)
        except ConnectorError as error:
            yield Finding("error", str(error), "check [kafka]: the address, TLS and login")
            return
        try:
            self._described = describe(client, settings, self._wanted())
        finally:
            client.close()
        self._up = True
        yield Finding("ok", f"{settings.bootstrap_servers} answers")

    def _wanted(self) -> list[str]:
        topics = self._settings.topics
        names = [*topics.input, topics.verdicts, topics.review, topics.labels, topics.deadletter]
        return names + ([topics.state] if topics.state is not None else [])

    def _unreachable(self) -> bool:
        return not self._up

    def topics(self) -> Iterator[Finding]:
        """Compare the topics with what is needed."""
        if self._unreachable():
            yield Finding("skipped", "the broker does not answer")
            return
        from rejex_connectors.kafka_topics import check_topics, plan_topics

        plans = plan_topics(self._settings)
        every_s = self._config.state.snapshot_interval_s
        for found in check_topics(self._settings, plans, snapshot_every_s=every_s):
            message, _, fix = found.message.partition(": ")
            if found.level == "ok":
                message, fix = found.message, ""
            yield Finding(found.level, f"{found.topic} {message}", fix)

    def access(self) -> Iterator[Finding]:
        """Ask the broker for every right that a worker needs."""
        if self._unreachable():
            yield Finding("skipped", "the broker does not answer")
            return
        from rejex_connectors.kafka_access import grant, missing_rights
        from rejex_connectors.kafka_python import admin

        client = admin(self._settings)
        try:
            for right in missing_rights(client, self._settings, self._described):
                self._missing.add((right.name, right.operation))
                yield Finding("error", f"{right} is not allowed", grant(right, self._settings))
        finally:
            client.close()
        if self._missing:
            return
        unknown = [name for name in self._wanted() if name not in self._described]
        told = "everything a worker does is allowed"
        if unknown:
            told = f"nothing is refused; {len(unknown)} topic(s) that do not exist were left out"
        yield Finding("ok", told)

    def _unread(self, names: Iterable[str]) -> str | None:
        """Return the first topic that may not be read."""
        return next((name for name in names if (name, "READ") in self._missing), None)

    def registry(self) -> Iterator[Finding]:
        """Ask the schema registry for a schema, as the decoder will, but for one it cannot have."""
        try:
            kafka_decoder(self._config)
            open_registry(self._config).schema(_NO_SCHEMA)
        except (ConfigError, ConnectorError) as error:
            yield Finding("error", str(error), "check input.format and [schema_registry]")
            return
        self._schemas = True
        yield Finding("ok", f"{self._config.schema_registry.url} answers")

    def sample(self) -> Iterator[Finding]:
        """Read the newest records of the input and decode them."""
        if self._unreachable():
            yield Finding("skipped", "the broker does not answer")
            return
        if not self._schemas:
            yield Finding("skipped", "records cannot be read without the schema registry")
            return
        unread = self._unread(self._settings.topics.input)
        if unread is not None:
            yield Finding("skipped", f"{unread} may not be read")
            return
        if not self._input_partitions():
            yield Finding("skipped", "there is no input topic yet")
            return
        records = list(self._newest())
        decoder = kafka_decoder(self._config)
        decoded = [decoder.decode(record) for record in records]
        self._readings = [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(decoded)

    def _newest(self) -> Iterator[Record]:
        from rejex_connectors.kafka_python import read_partition

        settings, left = self._settings, self._sample
        ends = _ends(settings, self._input_partitions())
        for partition, (first, end) in ends.items():
            if end > first and left > 0:
                start = max(first, end - max(1, self._sample // max(1, len(ends))))
                for record in read_partition(settings, partition, start):
                    yield record
                    left -= 1

    def _input_partitions(self) -> list[Partition]:
        return [
            Partition(name, index)
            for name in self._settings.topics.input
            for index in range(len(self._described.get(name, {}).get("partitions", ())))
        ]

    def clock(self) -> Iterator[Finding]:
        """Compare event times with our clock."""
        if not self._readings:
            yield Finding("skipped", "no record was read")
            return
        yield clock_finding(self._readings, time.time())

    def snapshots(self) -> Iterator[Finding]:
        """Say how old the newest snapshot is, and whether one can be written."""
        folder = self._config.state.folder
        if folder is not None:
            yield folder_finding(Path(folder), "folder", "state.folder")
            return
        name = self._settings.topics.state
        known = self._described.get(name or "", {}).get("partitions")
        if self._unreachable() or name is None or not known or self._unread([name]):
            yield Finding("skipped", "there is no state topic that can be read")
            return
        from rejex_connectors.kafka_python import read_partition

        partitions = [Partition(name, index) for index in range(len(known))]
        newest = 0
        for partition, (first, end) in _ends(self._settings, partitions).items():
            for record in read_partition(self._settings, partition, max(first, end - 4)):
                newest = max(newest, record.timestamp_ms or 0)
        if not newest:
            yield Finding("ok", "none yet: the first run begins anew")
            return
        yield Finding("ok", f"the newest is {duration(time.time() - newest / 1000)} old")


def _ends(settings: KafkaSettings, partitions: list[Partition]) -> dict[Partition, tuple[int, int]]:
    """Return first offset and end of each partition, from a client outside any group."""
    from rejex_connectors.kafka_client import open_clients

    # In a group of its own: joining the pipeline's would set off a rebalance.
    watcher = replace(
        settings, client="kafka-python", instance_id=None, group=f"{settings.group}-doctor"
    )
    open_consumer, _ = open_clients(watcher, "doctor")
    consumer = open_consumer()
    try:
        return {partition: consumer.bounds(partition) for partition in partitions}
    finally:
        consumer.close()
