"""Writes the micro-batches of Spark exactly once, to files or to topics.

The offsets of what is written lie where a worker keeps them, in the state folder of the files or
in the consumer group, and become durable with it. A batch that Spark repeats finds its own there
and is not written again; so does a job that goes on from a worker, or a worker from a job. What is
durable, the driver shows to whoever watches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from rejex_connectors.files import FileSink
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rejex_connectors.kafka.transactional_writer import TransactionalWriter

AtCommit: TypeAlias = "Callable[[Partition, int, Sequence[Written], bool], Sequence[Message]]"
"""Given what is committed up to an offset, of that micro-batch the incidents before it, and whether
it is the last commit of what came of that partition; returns what is to be written with it."""

_TRANSACTION_MESSAGES = 5_000
"""About so many messages become durable together; more could outlast a transaction."""

_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending"),
          ("place", "ascending")]  # fmt: skip


class Written(NamedTuple):
    """A message of a micro-batch."""

    offset: int  # of the record that it is about
    output: str  # where it goes: ``verdicts``, ``review``, ``deadletter`` or ``incidents``
    value: bytes  # what was written
    headers: bytes = b""  # of a dead letter on a topic, as MessagePack; else empty
    reading: int = 0  # which one of the record


class Watcher(Protocol):
    """Who, in the driver, takes part in commits and sees what they made durable."""

    wanted: Collection[str]  # the outputs that it wants to see

    def begun(self) -> AtCommit:
        """Return what takes part in the commits of a micro-batch; it may travel to executors."""

    def durable(
        self, written: Mapping[Partition, Sequence[Written]], ends: Mapping[Partition, int]
    ) -> None:
        """See a micro-batch that is durable, and where it ends; it may be repeated.

        Messages of a partition come in its order.
        """


class FileBatches:
    """For ``foreachBatch``: one micro-batch to files, in the order of the input.

    The driver gathers the lines of a micro-batch and writes them, as the outputs are single files.
    """

    def __init__(self, sink: FileSink, watcher: Watcher) -> None:
        self._sink, self._watcher = sink, watcher
        self.counts: dict[str, int] = {}  # how many lines went to each output, by role

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        columns = ["topic", "partition", "offset", "place", "output", "value"]
        table = batch.select(*columns).toArrow().sort_by(_ORDER)
        rows: list[list[Any]] = [table.column(name).to_pylist() for name in columns]
        at_commit = self._watcher.begun()
        offsets: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        written: dict[Partition, list[Written]] = {}
        for topic, partition, offset, place, role, line in zip(*rows, strict=True):
            where = Partition(topic, partition)
            ends[where] = offset + 1
            if role in self._watcher.wanted:
                written.setdefault(where, []).append(
                    Written(offset, role, line, reading=place >> 32)
                )
            if offset < self._sink.committed(where):
                continue
            self._sink.buffer([(role, line)])
            offsets[where] = offset + 1
            self.counts[role] = self.counts.get(role, 0) + 1
        for where, next_offset in offsets.items():
            incidents = [line for line in written.get(where, ()) if line.output == "incidents"]
            at_commit(where, next_offset, incidents, True)
        if offsets:
            self._sink.commit(offsets)
        self._watcher.durable(written, ends)


class KafkaBatches:
    """For ``foreachBatch``: one micro-batch to topics, in transactions with the input's offsets.

    One task writes what comes of one partition of the input, in its order, under a name for
    transactions that is that partition's alone: a task that Spark holds for lost is fenced by its
    successor, which goes on after the offset that it finds in the consumer group.
    """

    def __init__(self, settings: KafkaSettings, tasks: int, watcher: Watcher) -> None:
        self._settings, self._tasks, self._watcher = settings, tasks, watcher
        self.counts: dict[str, int] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        settings, at_commit = self._settings, self._watcher.begun()
        wanted = frozenset(self._watcher.wanted)
        ordered = batch.repartition(self._tasks, "topic", "partition").sortWithinPartitions(
            "topic", "partition", "offset", "place"
        )
        results = ordered.rdd.mapPartitions(lambda rows: _write(settings, at_commit, wanted, rows))
        written: dict[Partition, list[Written]] = {}
        ends: dict[Partition, int] = {}
        for topic, partition, some, end in results.collect():
            where = Partition(topic, partition)
            written[where], ends[where] = [Written(*fields) for fields in some], end
        self._watcher.durable(written, ends)

    def keep(self, partition: Partition, messages: Sequence[Message]) -> None:
        """Write what is kept of a partition; from the driver, after the query."""
        from rejex_connectors.kafka.partition_reader import committed_offsets
        from rejex_connectors.kafka.transactional_writer import records_to_write

        with closing(_writer(self._settings, partition)) as writer:
            writer.write(records_to_write(messages), committed_offsets(self._settings, [partition]))


_Found: TypeAlias = "tuple[str, int, list[tuple[Any, ...]], int]"


def _write(
    settings: KafkaSettings, at_commit: AtCommit, wanted: Collection[str], rows: Iterator[Any]
) -> Iterator[_Found]:
    """Write what came of partitions; return what the driver wants to see of it."""
    # That is also what another try of the task has written, which nobody saw.
    for (topic, partition), group in groupby(rows, key=lambda row: (row.topic, row.partition)):
        where = Partition(topic, partition)
        seen, end = _write_partition(settings, at_commit, where, wanted, group)
        yield topic, partition, [tuple(row) for row in seen], end


def _write_partition(
    settings: KafkaSettings,
    at_commit: AtCommit,
    where: Partition,
    wanted: Collection[str],
    rows: Iterator[Any],
) -> tuple[list[Written], int]:
    from rejex_connectors.kafka.partition_reader import committed_offsets
    from rejex_connectors.kafka.transactional_writer import records_to_write

    topics: Mapping[str, str] = settings.topics.model_dump()
    seen: list[Written] = []
    incidents: list[Written] = []
    # The name first: taking it settles what a predecessor left open.
    with closing(_writer(settings, where)) as writer:
        done = committed_offsets(settings, [where]).get(where, 0)
        messages: list[Record] = []
        next_offset, end = done, 0
        for row in rows:
            end = row.offset + 1
            if row.offset >= next_offset and len(messages) >= _TRANSACTION_MESSAGES:
                messages += records_to_write(at_commit(where, next_offset, incidents, False))
                writer.write(messages, {where: next_offset})
                messages = []
            key, value = _bytes(row.key), _bytes(row.value)
            if row.output in wanted:
                reason = bytes(row.headers) if row.output == "deadletter" else b""
                nth = row.place >> 32
                seen.append(Written(row.offset, row.output, value or b"", reason, nth))
            if row.output == "incidents":
                incidents.append(Written(row.offset, row.output, value or b""))
            if row.offset < done:
                continue
            next_offset = end
            at = Position(topics[row.output], row.to, 0)
            headers = msgspec.msgpack.decode(row.headers, type=list[tuple[str, bytes]])
            messages.append(Record(at, key, value, tuple(headers)))
        if messages:
            messages += records_to_write(at_commit(where, next_offset, incidents, True))
            writer.write(messages, {where: next_offset})
    return seen, end


def _writer(settings: KafkaSettings, where: Partition) -> TransactionalWriter:
    from rejex_connectors.kafka.transactional_writer import TransactionalWriter

    worker = f"spark-{where}"
    return TransactionalWriter(settings, worker, "writing outcomes", group=settings.group)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
