"""The client contracts on top of confluent-kafka (librdkafka)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck

from rejex_connectors.kafka_client import (
    Consumer,
    Edge,
    Gained,
    Lost,
    Producer,
    no_member,
    seat_taken,
    within,
)
from rejex_connectors.kafka_confluent_errors import explain
from rejex_connectors.kafka_confluent_joining import Ownerless
from rejex_connectors.kafka_confluent_options import ASK_S, client_options, committable
from rejex_connectors.kafka_confluent_producer import FastProducer
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["open_clients"]

_log = logging.getLogger(__name__)


def open_clients(
    settings: KafkaSettings, worker: str
) -> tuple[Callable[[], Consumer], Callable[[], Producer]]:
    """Return how to make a consumer and a producer."""
    return lambda: FastConsumer(settings), lambda: FastProducer(settings, worker)


class FastConsumer:
    """A consumer group member. A partition joins the assignment of the library when it starts."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._noted: list[Gained | Lost] = []
        self._running: set[Partition] = set()
        self._member: str | None = None
        self._ownerless: Ownerless | None = None
        try:
            self._consumer: Any = ck.Consumer(
                {
                    **client_options(settings),
                    "group.id": settings.group,
                    **({"group.instance.id": settings.instance_id} if settings.instance_id else {}),
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",  # a gap must be an error, never a silent jump
                    "session.timeout.ms": settings.session_timeout_ms,
                    "heartbeat.interval.ms": max(100, settings.session_timeout_ms // 5),
                    "max.poll.interval.ms": settings.max_poll_interval_ms,
                    "fetch.max.bytes": settings.fetch_max_bytes,
                    "queued.max.messages.kbytes": max(1024, settings.fetch_max_bytes // 1024),
                    "fetch.wait.max.ms": 100,
                    "partition.assignment.strategy": "cooperative-sticky",
                }
            )
        except ck.KafkaException as error:
            raise explain(error.args[0], settings, "connecting") from error
        self._subscribe()

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            list(self._settings.topics.input),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _on_assign(self, consumer: ck.Consumer, given: list[ck.TopicPartition]) -> None:
        """Note what was given; with nothing assigned in the library, nothing is fetched yet."""
        consumer.incremental_assign([])
        if self._member is None and self._settings.instance_id is not None:
            self._ownerless = Ownerless(self._settings)
        self._member = consumer.memberid()
        self._noted += [Gained(Partition(tp.topic, tp.partition)) for tp in given]

    def _on_revoke(self, consumer: ck.Consumer, taken: list[ck.TopicPartition]) -> None:
        """Note what was taken, or lost without notice."""
        lost = [Partition(tp.topic, tp.partition) for tp in taken]
        fetched = [ck.TopicPartition(*p) for p in lost if p in self._running]
        consumer.incremental_unassign(fetched)
        self._running.difference_update(lost)
        self._noted += [Lost(partition) for partition in lost]

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of running partitions; waits for the first one only."""
        try:
            if self._ownerless is not None:
                self._look_for_ownerless(self._ownerless)
            first = self._consumer.poll(timeout_s)
            found: list[Any] = [] if first is None else [first]
            if first is not None and max_records > 1:
                found += self._consumer.consume(min(max_records - 1, 1_000_000), 0.0)
        except ck.KafkaException as error:
            raise explain(error.args[0], self._settings, "reading") from error
        records: list[Record] = []
        running = self._running
        new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
        for m in found:
            problem = m.error()
            if problem is not None:
                self._complain(problem)
                continue
            topic, partition = m.topic(), m.partition()
            if (topic, partition) in running:
                position = new(Position, (topic, partition, m.offset()))
                headers = tuple(m.headers() or ())
                told = (position, m.key(), m.value(), headers, m.timestamp()[1])
                records.append(new(Record, told))
        return records

    def _look_for_ownerless(self, ownerless: Ownerless) -> None:
        """Have the group deal again where it forgot partitions: leave it, and come back."""
        if ownerless.found():
            self._consumer.unsubscribe()
            self._subscribe()
        if ownerless.over:
            self._ownerless = None

    def _complain(self, error: ck.KafkaError) -> None:
        """Raise what needs the caller; the library retries the rest by itself."""
        code = error.code()
        if "static consumer fenced" in error.str().lower():  # the code is that of any fatal error
            raise seat_taken(self._settings)
        if code == ck.KafkaError._MAX_POLL_EXCEEDED:
            _log.warning("%s", no_member(self._settings))
            return  # on_lost tells the rest
        explained = explain(error, self._settings, "reading")
        if not explained.retriable:
            raise explained
        _log.info("%s", explained)

    def changes(self) -> list[Gained | Lost]:
        """Return what the callbacks noted."""
        noted, self._noted = self._noted, []
        return noted

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        """Ask the group coordinator; it answers once open transactions are decided."""
        try:
            (found,) = self._consumer.committed([ck.TopicPartition(*partition)], timeout=timeout_s)
        except ck.KafkaException as error:
            raise explain(
                error.args[0], self._settings, f"asking where {partition} stands"
            ) from error
        if found.error is not None:
            raise explain(found.error, self._settings, f"asking where {partition} stands")
        return None if found.offset < 0 else int(found.offset)

    def edge(self, partition: Partition, which: Edge, timeout_s: float) -> int:
        """Ask the partition's leader."""
        return self._bounds(partition, timeout_s)[which == "latest"]

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Ask the partition's leader."""
        return self._bounds(partition, ASK_S)

    def ask(self, partition: Partition, timeout_s: float) -> None:
        """Ask where the partition begins and ends."""
        self._bounds(partition, timeout_s)

    def _bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        doing = f"asking how far {partition.topic}-{partition.partition} goes"
        try:
            tp = ck.TopicPartition(*partition)
            found = self._consumer.get_watermark_offsets(tp, timeout_s)
        except ck.KafkaException as error:
            raise explain(error.args[0], self._settings, doing) from error
        if found is None:
            raise ConnectorError(f"Kafka did not answer in time: {doing}", retriable=True)
        return int(found[0]), int(found[1])

    def end(self, partition: Partition) -> int | None:
        """Return the high watermark of the last fetch."""
        if partition not in self._running:
            return None
        found = self._consumer.get_watermark_offsets(ck.TopicPartition(*partition), cached=True)
        return None if found is None or found[1] < 0 else int(found[1])

    def start(self, partition: Partition, offset: int) -> None:
        """Begin to fetch at `offset`."""
        self.stop(partition)
        self._consumer.incremental_assign([ck.TopicPartition(*partition, offset)])
        self._running.add(partition)

    def stop(self, partition: Partition) -> None:
        """Fetch no more."""
        if partition in self._running:
            self._running.discard(partition)
            self._consumer.incremental_unassign([ck.TopicPartition(*partition)])

    def membership(self) -> Any:  # noqa: ANN401 - opaque
        """Return the group metadata, unless we are not who was given the partitions.

        The broker takes a commit without a member as one of a simple consumer and accepts it,
        so a worker that was thrown out must notice here.
        """
        metadata = self._consumer.consumer_group_metadata()
        member = self._consumer.memberid()
        if not member or member != self._member:
            raise no_member(self._settings)
        return metadata

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Commit for the at-least-once mode."""
        try:
            within(timeout_s, "committing offsets", self._commit, committable(offsets))
        except ck.KafkaException as error:
            raise explain(error.args[0], self._settings, "committing offsets") from error

    def _commit(self, offsets: list[ck.TopicPartition]) -> None:
        for done in self._consumer.commit(offsets=offsets, asynchronous=False):
            if done.error is not None:
                raise ck.KafkaException(done.error)

    def close(self) -> None:
        """Leave the group (a static member keeps its seat until its session ends)."""
        with contextlib.suppress(ck.KafkaException, ConnectorError, RuntimeError):
            within(4.0, "leaving the group", self._consumer.close)
