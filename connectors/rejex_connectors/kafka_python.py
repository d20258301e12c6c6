"""The client contracts on top of kafka-python 3."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaConsumer,
    KafkaProducer,
    OffsetAndMetadata,
    TopicPartition,
)
from kafka import errors as ke

from rejex_connectors.kafka_client import (
    Consumer,
    Edge,
    Gained,
    Lost,
    Message,
    Producer,
    fenced,
    missing_topic,
    no_member,
    took_too_long,
    transactional_id,
    within,
)
from rejex_connectors.kafka_python_batches import Batches
from rejex_connectors.kafka_python_errors import connecting, explain, root_cause
from rejex_connectors.kafka_python_joining import Assignor, ask_again
from rejex_connectors.kafka_python_records import deliver_records
from rejex_connectors.kafka_reading import admin, client_options, read_partition
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["admin", "client_options", "open_clients", "read_partition"]

AT_ONCE = 4_000
"""Messages handed over at once: the first travel while the next are laid out."""
IN_FLIGHT = 5
"""So many times as many may wait for their acknowledgement; the library sets no bound."""


def open_clients(
    settings: KafkaSettings, worker: str
) -> tuple[Callable[[], Consumer], Callable[[], Producer]]:
    """Return how to make a consumer and a producer."""
    return lambda: PythonConsumer(settings), lambda: PythonProducer(settings, worker)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library insists
    """Notes what changed. It runs on the library's IO thread: it must not block or commit."""

    def __init__(self, owner: PythonConsumer) -> None:
        self._owner = owner

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Note what was taken; also called for partitions lost without notice."""
        self._owner.noted += [Lost(Partition(*tp)) for tp in sorted(revoked)]

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Note what was given; it stays paused, at a position that nobody reads."""
        for tp in sorted(assigned):
            self._owner.hold(tp)
            self._owner.noted.append(Gained(Partition(*tp)))


class PythonConsumer:
    """A consumer group member."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.noted: list[Gained | Lost] = []
        self._running: set[TopicPartition] = set()
        self._to_ask_again = settings.instance_id is not None
        with connecting(settings):
            consumer = KafkaConsumer(
                **client_options(settings),
                group_id=settings.group,
                group_instance_id=settings.instance_id,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="none",  # a gap must be an error, never a silent jump
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=max(100, settings.session_timeout_ms // 5),
                max_poll_interval_ms=settings.max_poll_interval_ms,
                fetch_max_bytes=settings.fetch_max_bytes,
                # One fetch at a time: while it waits for an empty partition, the full ones do too.
                fetch_max_wait_ms=100,
                partition_assignment_strategy=[Assignor],
                allow_auto_create_topics=False,
                metadata_max_age_ms=30_000,
                metrics_enabled=False,
            )
        self._consumer = deliver_records(consumer)
        self._consumer.subscribe(list(settings.topics.input), listener=_Listener(self))

    def hold(self, tp: TopicPartition) -> None:
        """Pause a new partition. The made-up position keeps the library from asking for one."""
        self._running.discard(tp)
        self._consumer.pause(tp)
        self._consumer.seek(tp, 0)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of running partitions."""
        try:
            batch = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        except ke.KafkaError as error:
            raise explain(error, self._settings, "reading") from error
        if self._to_ask_again:
            self._to_ask_again = not ask_again(self._consumer)
        records: list[Record] = []
        for tp, found in batch.items():
            if tp in self._running:
                records += found
        return records

    def changes(self) -> list[Gained | Lost]:
        """Return what the listener noted."""
        noted, self.noted = self.noted, []
        for change in noted:
            if isinstance(change, Lost):
                self._running.discard(TopicPartition(*change.partition))
        return noted

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        """Ask the group coordinator; it answers once open transactions are decided."""
        tp = TopicPartition(*partition)
        try:
            offset: int | None = self._consumer.committed(tp, timeout_ms=timeout_s * 1000)
        except ke.KafkaError as error:
            raise explain(error, self._settings, f"asking where {partition} stands") from error
        return None if offset is None or offset < 0 else offset

    def edge(self, partition: Partition, which: Edge, timeout_s: float) -> int:
        """Ask the partition's leader; unlike the other questions this one has a deadline."""
        tp = TopicPartition(*partition)
        doing = f"asking for the {which} offset of {partition.topic}-{partition.partition}"
        try:
            seek = self._consumer.seek_to_beginning
            (seek if which == "earliest" else self._consumer.seek_to_end)(tp)
            offset = self._consumer.position(tp, timeout_ms=timeout_s * 1000)
        except (ke.KafkaError, ValueError) as error:  # ValueError: it is not ours any more
            raise explain(error, self._settings, doing) from error
        if offset is None:
            raise ConnectorError(f"Kafka did not answer in time: {doing}", retriable=True)
        return int(offset)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Ask the partition's leader."""
        tp = TopicPartition(*partition)
        try:
            first = self._consumer.beginning_offsets([tp])[tp]
            end = self._consumer.end_offsets([tp])[tp]
        except ke.KafkaError as error:
            raise explain(error, self._settings, f"asking how far {partition} goes") from error
        return int(first), int(end)

    def ask(self, partition: Partition, timeout_s: float) -> None:
        """Ask where the partition ends."""
        tp = TopicPartition(*partition)
        try:
            self._consumer.end_offsets([tp], timeout_ms=timeout_s * 1000)
        except ke.KafkaError as error:
            doing = f"asking how far {partition.topic}-{partition.partition} goes"
            raise explain(error, self._settings, doing) from error

    def end(self, partition: Partition) -> int | None:
        """Return the high watermark of the last fetch."""
        tp = TopicPartition(*partition)
        return self._consumer.highwater(tp) if tp in self._running else None

    def start(self, partition: Partition, offset: int) -> None:
        """Seek and resume; nothing happens where the partition is gone meanwhile."""
        tp = TopicPartition(*partition)
        with contextlib.suppress(ValueError):  # unassigned since; changes() will say so
            self._consumer.seek(tp, offset)
            self._consumer.resume(tp)
            self._running.add(tp)

    def stop(self, partition: Partition) -> None:
        """Pause, and forget the position."""
        with contextlib.suppress(ValueError):
            self.hold(TopicPartition(*partition))

    def membership(self) -> Any:  # noqa: ANN401 - ConsumerGroupMetadata has no type
        """Return the group metadata, unless it would fence nothing.

        The broker takes a commit without a generation as one of a simple consumer and accepts it,
        so a worker that was thrown out must notice here.
        """
        metadata = self._consumer.group_metadata()
        if metadata.generation_id < 0 or not metadata.member_id:
            raise no_member(self._settings)
        return metadata

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Commit for the at-least-once mode."""
        try:
            self._consumer.commit(_offsets(offsets), timeout_ms=timeout_s * 1000)
        except ke.KafkaError as error:
            raise explain(error, self._settings, "committing offsets") from error

    def close(self) -> None:
        """Leave the group (a static member keeps its seat until its session ends)."""
        with contextlib.suppress(ke.KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=2_000)


class PythonProducer:
    """An idempotent producer; with ``exactly_once`` a transactional one."""

    def __init__(self, settings: KafkaSettings, worker: str) -> None:
        self._settings = settings
        self._transactional = settings.delivery == "exactly_once"
        options = client_options(settings)
        if self._transactional:
            options["transactional_id"] = transactional_id(settings, worker)
            options["transaction_timeout_ms"] = settings.transaction_timeout_ms
        with connecting(settings):
            self._producer = KafkaProducer(
                **options,
                acks="all",
                enable_idempotence=True,
                linger_ms=settings.linger_ms,
                batch_size=min(settings.batch_bytes, settings.max_message_bytes),
                compression_type=settings.compression,
                # The library's own estimate adds a little for the batch.
                max_request_size=settings.max_message_bytes + 1024,
                delivery_timeout_ms=settings.commit_timeout_ms,
                request_timeout_ms=min(10_000, settings.commit_timeout_ms - settings.linger_ms),
                max_block_ms=settings.commit_timeout_ms,
                metrics_enabled=False,
            )
        try:
            if self._transactional:
                self._producer.init_transactions()
        except ke.KafkaError as error:
            self.close()
            raise explain(error, settings, "connecting") from error
        self._batches = Batches(self._producer)

    def partitions(self, topic: str) -> int:
        """Ask for the partitions; waits for metadata."""
        try:
            return len(self._producer.partitions_for(topic))
        except ke.KafkaTimeoutError:
            raise missing_topic(self._settings, topic) from None
        except ke.KafkaError as error:
            raise explain(error, self._settings, f"looking for topic {topic!r}") from error

    def publish(
        self, messages: Sequence[Message], offsets: Mapping[Partition, int], consumer: Consumer
    ) -> None:
        """Write, check every acknowledgement, commit."""
        began = time.monotonic()
        deadline = began + self._settings.commit_timeout_ms / 1000
        try:
            if self._transactional:
                self._publish_in_transaction(messages, offsets, consumer, deadline)
            else:
                self._send(messages, deadline)
                if offsets:
                    consumer.membership()
                    consumer.commit(offsets, deadline - time.monotonic())
        except ke.KafkaError as error:
            raise self._explain(error, time.monotonic() - began) from error

    def _publish_in_transaction(
        self,
        messages: Sequence[Message],
        offsets: Mapping[Partition, int],
        consumer: Consumer,
        deadline: float,
    ) -> None:
        producer = self._producer
        # Taken first: whoever takes our partitions from here on makes this token stale.
        membership = consumer.membership() if offsets else None
        producer.begin_transaction()
        self._send(messages, deadline)
        if offsets:
            within(
                deadline - time.monotonic(),
                "adding offsets to the transaction",
                producer.send_offsets_to_transaction,
                _offsets(offsets),
                membership,
            )
        within(
            deadline - time.monotonic(), "committing the transaction", producer.commit_transaction
        )

    def _send(self, messages: Sequence[Message], deadline: float) -> None:
        """Send all and wait for all; a failed send does not fail a transaction by itself."""
        waiting: deque[list[Any]] = deque()
        for first in range(0, len(messages), AT_ONCE):
            waiting.append(self._batches.send(messages[first : first + AT_ONCE]))
            if len(waiting) > IN_FLIGHT:
                _wait_for(waiting.popleft(), deadline)
        with contextlib.suppress(ke.UnknownError):  # of a batch that is told about below
            self._producer.flush(timeout=max(0.0, deadline - time.monotonic()))
        for futures in waiting:
            _wait_for(futures, deadline)

    def _explain(self, error: Exception, elapsed_s: float) -> ConnectorError:
        """Tell a rival with our name from a transaction that simply took too long."""
        root = root_cause(error)
        taken = isinstance(root, ke.ProducerFencedError | ke.InvalidProducerEpochError)
        if taken:
            late = elapsed_s * 1000 >= self._settings.transaction_timeout_ms
            return took_too_long(self._settings, elapsed_s) if late else fenced(self._settings)
        return explain(error, self._settings, "writing outcomes")

    def close(self) -> None:
        """Stop at once; what is not committed is aborted by whoever takes the name next."""
        with contextlib.suppress(ke.KafkaError):
            self._producer.close(timeout=0)
        # close() flushes first and gives up there when the broker is gone: the thread must end.
        self._producer._sender.force_close()


def _wait_for(futures: Sequence[Any], deadline: float) -> None:
    """Wait until the broker has acknowledged; raises what went wrong."""
    for future in futures:
        future.get(timeout=max(0.0, deadline - time.monotonic()))


def _offsets(offsets: Mapping[Partition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
