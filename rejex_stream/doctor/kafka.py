"""The checks of a pipeline that reads Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rejex_connectors.kafka.kafka_settings import KafkaSettings

from rejex_stream.config import Config
from rejex_stream.config.assembly import (
    kafka_decoder,
    kafka_settings,
    open_registry,
    require_own_topics,
)
from rejex_stream.decode import decode_records
from rejex_stream.decode.mapping import printable
from rejex_stream.doctor.findings import (
    Finding,
    clock_finding,
    doubt_findings,
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
        from rejex_connectors.kafka.partition_reader import admin
        from rejex_connectors.kafka.topic_admin import describe

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
        return [*topics.input, *topics.others]

    def topics(self) -> Iterator[Finding]:
        """Compare the topics with what is needed."""
        if not self._up:
            yield Finding("skipped", "the broker does not answer")
            return
        from rejex_connectors.kafka.topic_admin import check_topics, plan_topics

        plans = plan_topics(self._settings)
        every_s = self._config.state.snapshot_interval_s
        for found in check_topics(self._settings, plans, snapshot_every_s=every_s):
            message, _, fix = found.message.partition(": ")
            if found.level == "ok":
                message, fix = found.message, ""
            yield Finding(found.level, f"{found.topic} {message}", fix)
        require_own_topics(self._settings)

    def access(self) -> Iterator[Finding]:
        """Ask the broker for the rights that a worker needs, as far as looking tells."""
        if not self._up:
            yield Finding("skipped", "the broker does not answer")
            return
        from rejex_connectors.kafka.partition_reader import admin
        from rejex_connectors.kafka.refusals import grant
        from rejex_connectors.kafka.topic_admin import missing_rights

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
        nothing = "nothing that a worker does is refused"
        if unknown:
            nothing = f"nothing is refused; {len(unknown)} topic(s) that do not exist were left out"
        yield Finding("ok", nothing)

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
        if not self._up:
            yield Finding("skipped", "the broker does not answer")
            return
        if not self._schemas:
            yield Finding("skipped", "records cannot be read without the schema registry")
            return
        unread = self._unread(self._settings.topics.input)
        if unread is not None:
            yield Finding("skipped", f"{unread} may not be read")
            return
        partitions = self._input_partitions()
        if not partitions:
            yield Finding("skipped", "there is no input topic yet")
            return
        from rejex_connectors.kafka.partition_reader import newest_records

        decoder = kafka_decoder(self._config)
        newest = list(newest_records(self._settings, partitions, self._sample))
        records, decoded = decode_records(decoder, newest)
        self._readings = [item for item in decoded if isinstance(item, Reading)]
        yield from sample_findings(records, decoded, decoder, self._config.input.flags)
        yield from doubt_findings(self._config, records, decoded, decoder)
        yield from self._parted(records)

    def _parted(self, records: Sequence[Record]) -> Iterator[Finding]:
        """Say whether a sensor's records stay together: apart, they are several streams."""
        from rejex_connectors.kafka.source import keyless

        if self._config.input.order == "as_it_comes":
            return
        if not self._config.input.mapping().sensor_from:
            every = {p.topic: p.partition + 1 for p in self._input_partitions()}
            for topic, count in keyless(records, every).items():
                yield Finding(
                    "error" if count > len(records) / 2 else "warning",
                    f"{count} of {len(records)} records have no key, and {topic} has "
                    f"{every[topic]} partitions: each sensor would be parted into as many streams, "
                    "each with a model of its own",
                    f'set input.topics = ["{topic}.keyed"] and run `rejex-stream topics rekey '
                    f'CONFIG --from {topic}`; or input.order = "as_it_comes", if every sensor is '
                    "in one partition all the same",
                )
                return
        places: dict[str, set[int]] = {}
        for reading in self._readings:
            places.setdefault(reading.sensor, set()).add(reading.position.partition)
        for sensor, found in places.items():
            if len(found) > 1:
                yield Finding(
                    "error",
                    f"{printable(sensor)} stands in partitions {', '.join(map(str, sorted(found)))}"
                    ": it would be as many streams, each with a model of its own",
                    "key the records by sensor, as `rejex-stream topics rekey` does; or "
                    'input.order = "as_it_comes", if it changes its partition for good',
                )
                return

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
