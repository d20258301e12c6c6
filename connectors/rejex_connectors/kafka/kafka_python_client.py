"""The client contracts on top of kafka-python 3."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as ke
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState

from rejex_connectors.kafka import clients, refusals
from rejex_connectors.kafka import kafka_python_patches as patches
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import (
    check_topics,
    client_options,
    connecting,
    explain,
    explaining,
    missing_of,
    records_of,
    root_cause,
)
from rejex_connectors.kafka.transactional_writer import to_commit
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Record

SLICE_S = 0.05
"""The library's polls come back with records and nothing else; what the group said meanwhile is
looked for as often."""
LOOK_UP_S = 10.0
_UNASSIGNED = (KeyError, ValueError, ke.IllegalStateError)
"""Of a partition that is ours no more the library says one of these, by the call."""
IN_FLIGHT = 20_000
"""Messages sent and not yet acknowledged; the library itself accepts them without bound."""


class _Seat(NamedTuple):
    member_id: str
    generation: int


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the library insists
    """Notes what changed. It runs on the library's IO thread: it must not block or commit."""

    def __init__(self, owner: PythonConsumer) -> None:
        self._owner = owner

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Note what was taken; also called for partitions lost without notice."""
        for tp in sorted(revoked):
            self._owner.noted.put(clients.Lost(Partition(*tp)))

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Note what was given; it stays paused, at a position that nobody reads."""
        for tp in sorted(assigned):
            self._owner.hold(tp)
            self._owner.noted.put(clients.Gained(Partition(*tp)))


class PythonConsumer:
    """A consumer group member."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.noted: SimpleQueue[clients.Gained | clients.Lost] = SimpleQueue()
        self._held: set[Partition] = set()
        self._running: set[TopicPartition] = set()
        self._seat: _Seat | None = None
        with connecting(settings):
            self._consumer = KafkaConsumer(
                **{"metadata_max_age_ms": 30_000} | client_options(settings, "consumer"),
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
                partition_assignment_strategy=[CooperativeStickyAssignor],
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
            # A leader of the group that does not know a topic yet gives nothing of it to anybody,
            # and may not hear of it again: known before we join.
            for topic in settings.topics.input:
                doing = f"looking {topic} up"
                clients.within(LOOK_UP_S, doing, self._consumer.partitions_for_topic, topic)
        self._consumer.subscribe(list(settings.topics.input), listener=_Listener(self))

    def hold(self, tp: TopicPartition) -> None:
        """Pause a new partition. The made-up position keeps the library from asking for one."""
        self._running.discard(tp)
        self._consumer.pause(tp)
        self._consumer.seek(tp, 0)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        if patches.is_fenced(self._consumer):
            raise refusals.seat_taken(self._settings)
        with explaining(self._settings, "reading"):
            batch = self._poll_in_slices(max_records, time.monotonic() + timeout_s)
        if not batch and (refused := patches.refused_topics(self._consumer)):
            raise refusals.not_allowed(
                self._settings, [refusals.Right("topic", name, "READ") for name in refused]
            )
        records: list[Record] = []
        for tp, messages in batch.items():
            if tp in self._running:
                records += records_of(tp.topic, tp.partition, messages)
        return records

    def _poll_in_slices(self, max_records: int, until: float) -> dict[TopicPartition, list[Any]]:
        while True:
            wait_s = min(SLICE_S, max(0.0, until - time.monotonic()))
            batch: dict[TopicPartition, list[Any]] = self._consumer.poll(
                timeout_ms=int(wait_s * 1000), max_records=max_records
            )
            if batch or not self.noted.empty() or wait_s < SLICE_S:
                return batch

    def changes(self) -> list[clients.Gained | clients.Lost]:
        """Return what the listener noted, and what changed hands behind its back."""
        changes: list[clients.Gained | clients.Lost] = []
        with contextlib.suppress(Empty):
            while True:
                changes.append(self.noted.get_nowait())
        for change in changes:
            if isinstance(change, clients.Lost):
                self._held.discard(change.partition)
                self._running.discard(TopicPartition(*change.partition))
            else:
                self._held.add(change.partition)
                self.stop(change.partition)  # given while we started what it was before
        if self._has_been_away():
            changes += self._give_up()
        return changes

    def _has_been_away(self) -> bool:
        """Whether the group dealt without us since the last call; keeps the seat we have now."""
        # The library lets a worker that was away keep what it held, and tells nobody: frozen over a
        # rebalance, say, it comes back under a new id, or under its own a few rounds later. Others
        # may have had our partitions meanwhile, and gone on from where we stand.
        metadata = self._consumer.group_metadata()
        if metadata.generation_id < 0:
            return False
        # Partitions may be given while the next round is under way: that is a seat all the same.
        if self._seat is not None and metadata.state is not MemberState.STABLE:
            return False
        before, self._seat = self._seat, _Seat(metadata.member_id, metadata.generation_id)
        if before is None:
            patches.take_rounds(self._consumer)
            return False
        rounds = [before, *itertools.starmap(_Seat, patches.take_rounds(self._consumer))]
        return any(
            later.member_id != earlier.member_id or later.generation > earlier.generation + 1
            for earlier, later in itertools.pairwise(rounds)
        )

    def _give_up(self) -> list[clients.Gained | clients.Lost]:
        """Lose every partition; those that are ours again are gained like any other."""
        assigned = self._consumer.assignment()
        changes: list[clients.Gained | clients.Lost] = []
        for partition in sorted(self._held):
            changes.append(clients.Lost(partition))
            tp = TopicPartition(*partition)
            if tp in assigned:
                self.stop(partition)
                changes.append(clients.Gained(partition))
            else:
                self._held.discard(partition)
                self._running.discard(tp)
        return changes

    def joined(self) -> bool:
        return self._consumer.group_metadata().state is MemberState.STABLE

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        tp = TopicPartition(*partition)
        with explaining(self._settings, f"asking where {partition} stands"):
            answer = self._consumer.committed(tp, timeout_ms=timeout_s * 1000)
        return None if answer is None or answer < 0 else int(answer)

    def edge(self, partition: Partition, which: clients.Edge, timeout_s: float) -> int:
        # Not by seeking there and asking for the position: a round of the group moves that.
        tp = TopicPartition(*partition)
        doing = f"asking for the {which} offset of {partition}"
        consumer = self._consumer
        offsets = consumer.beginning_offsets if which == "earliest" else consumer.end_offsets
        with explaining(self._settings, doing):
            check_topics(consumer, self._settings, [tp])
            return int(offsets([tp], timeout_ms=timeout_s * 1000)[tp])

    def take_stuck(self) -> Mapping[Partition, int]:
        """Return nothing: what this library cannot read, it was fixed to read."""
        return {}

    def end(self, partition: Partition) -> int | None:
        tp = TopicPartition(*partition)
        with contextlib.suppress(*_UNASSIGNED):
            return self._consumer.highwater(tp) if tp in self._running else None
        return None

    def start(self, partition: Partition, offset: int) -> None:
        """Seek and resume; nothing happens where the partition is gone meanwhile."""
        tp = TopicPartition(*partition)
        with contextlib.suppress(*_UNASSIGNED):  # unassigned since; changes() will say so
            self._consumer.seek(tp, offset)
            self._consumer.resume(tp)
            self._running.add(tp)

    def stop(self, partition: Partition) -> None:
        with contextlib.suppress(*_UNASSIGNED):
            self.hold(TopicPartition(*partition))

    def membership(self) -> Any:
        """Return the group metadata, unless it would fence nothing.

        The broker takes a commit without a generation as one of a simple consumer and accepts it,
        and it takes one of a worker that is back under a new id, whoever had the partitions
        meanwhile: a worker that was thrown out must notice here.
        """
        metadata = self._consumer.group_metadata()
        if metadata.generation_id < 0 or metadata.member_id != getattr(self._seat, "member_id", ""):
            raise refusals.no_member(self._settings)
        return metadata

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        with explaining(self._settings, "committing offsets"):
            self._consumer.commit(to_commit(offsets), timeout_ms=timeout_s * 1000)

    def close(self) -> None:
        """Leave the group (a static member keeps its seat until its session ends)."""
        with contextlib.suppress(ke.KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=2_000)


class PythonProducer:
    """An idempotent producer; with ``exactly_once`` a transactional one."""

    def __init__(self, settings: KafkaSettings, worker: str) -> None:
        self._settings = settings
        self._transactional = settings.delivery == "exactly_once"
        options = client_options(settings, "producer")
        if self._transactional:
            options["transactional_id"] = clients.transactional_id(settings, worker)
            options["transaction_timeout_ms"] = settings.transaction_timeout_ms
        with connecting(settings):
            self._producer = KafkaProducer(
                **options,
                acks="all",
                enable_idempotence=True,
                linger_ms=settings.linger_ms,
                batch_size=min(settings.batch_bytes, settings.max_message_bytes),
                compression_type=None if settings.compression == "none" else settings.compression,
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

    def partitions(self, topic: str) -> int:
        try:
            return len(self._producer.partitions_for(topic))
        except ke.KafkaError as error:
            # It waits as long for a broker that is away as for a topic that is not there.
            if isinstance(error, ke.KafkaTimeoutError) and missing_of(self._settings, {topic}):
                raise refusals.missing_topic(self._settings, topic) from None
            raise explain(
                error, self._settings, f"looking for topic {topic!r}", operation="WRITE"
            ) from error

    def publish(
        self,
        messages: Iterable[clients.Message],
        offsets: Mapping[Partition, int],
        consumer: clients.Consumer,
    ) -> None:
        began = time.monotonic()
        deadline = began + self._settings.commit_timeout_ms / 1000
        try:
            if not self._transactional:
                self._send(messages, deadline)
                if offsets:
                    consumer.membership()
                    consumer.commit(offsets, deadline - time.monotonic())
                return
            producer = self._producer
            # Taken first: whoever takes our partitions from here on makes this token stale.
            membership = consumer.membership() if offsets else None
            producer.begin_transaction()
            self._send(messages, deadline)
            if offsets:
                clients.within(
                    deadline - time.monotonic(),
                    "adding offsets to the transaction",
                    producer.send_offsets_to_transaction,
                    to_commit(offsets),
                    membership,
                )
            doing, left_s = "committing the transaction", deadline - time.monotonic()
            clients.within(left_s, doing, producer.commit_transaction)
        except ke.KafkaError as error:
            if patches.is_refused_offset(error):
                raise refusals.unread_input(self._settings, offsets) from error
            if isinstance(root_cause(error), ke.KafkaTimeoutError) and (
                missing := missing_of(self._settings, {message.topic for message in messages})
            ):
                raise refusals.deleted_topics(self._settings, missing) from error
            raise self._explain(error, time.monotonic() - began) from error

    def _send(self, messages: Iterable[clients.Message], deadline: float) -> None:
        """Send all and wait for all; a failed send does not fail a transaction by itself."""
        waiting: deque[Any] = deque()
        send = self._producer.send
        for topic, partition, key, value, headers in messages:
            try:
                waiting.append(send(topic, value, key, headers, partition))
            except ke.IllegalStateError:
                for future in waiting:  # the transaction is broken: a message before says why
                    if future.failed():
                        raise future.exception from None
                raise
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().get(timeout=max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ke.UnknownError):  # its batch raises below
            self._producer.flush(timeout=max(0.0, deadline - time.monotonic()))
        for future in waiting:
            if not future.is_done or future.failed():
                future.get(timeout=max(0.0, deadline - time.monotonic()))

    def _explain(self, error: Exception, elapsed_s: float) -> ConnectorError:
        """Tell a rival with our name from a transaction that simply took too long."""
        root = root_cause(error)
        if isinstance(root, ke.ProducerFencedError | ke.InvalidProducerEpochError):
            return refusals.fenced(self._settings, elapsed_s)
        return explain(error, self._settings, "writing outcomes", operation="WRITE")

    def close(self) -> None:
        """Stop at once; what is not committed is aborted by whoever takes the name next."""
        with contextlib.suppress(ke.KafkaError):
            self._producer.close(timeout=0)
        patches.end_thread(self._producer)
