"""Writes the micro-batches of Spark exactly once, to files or to topics.

The offsets of what is written lie where a worker keeps them, in the state folder of the files or
in the consumer group, and become durable with it. A batch that Spark repeats finds its own there
and is not written again; so does a job that goes on from a worker, or a worker from a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rejex_connectors.files import FileSink
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rejex_connectors.kafka.clients import Message
    from rejex_connectors.kafka.settings import KafkaSettings

__all__ = ["FileBatches", "KafkaBatches"]

AtCommit: TypeAlias = "Callable[[Partition, int], Sequence[Message]]"

_TRANSACTION_MESSAGES = 5_000
"""About so many messages become durable together; more could outlast a transaction."""

_ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending"),
          ("place", "ascending")]  # fmt: skip


class FileBatches:
    """For ``foreachBatch``: one micro-batch to files, in the order of the input.

    The driver gathers the lines of a micro-batch and writes them, as the outputs are single files.

    Parameters
    ----------
    sink
        With a state folder.
    at_commit
        Called before each commit, with the partition and its offset; keeps what is decided there.

    Attributes
    ----------
    counts
        How many lines went to each output, by role.
    """

    def __init__(self, sink: FileSink, at_commit: AtCommit = lambda *_: ()) -> None:
        self._sink, self._at_commit = sink, at_commit
        self.counts: dict[str, int] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write what is not written yet.

        Raises
        ------
        ConnectorError
            If the file system refuses; Spark then ends, and repeats the batch when it goes on.
        """
        columns = ["topic", "partition", "offset", "place", "output", "value"]
        table = batch.select(*columns).toArrow().sort_by(_ORDER)
        rows: list[list[Any]] = [table.column(name).to_pylist() for name in columns]
        offsets: dict[Partition, int] = {}
        for topic, partition, offset, _, role, line in zip(*rows, strict=True):
            where = Partition(topic, partition)
            if offset < self._sink.committed(where):
                continue
            self._sink.keep([(role, line)])
            offsets[where] = offset + 1
            self.counts[role] = self.counts.get(role, 0) + 1
        for where, next_offset in offsets.items():
            self._at_commit(where, next_offset)
        if offsets:
            self._sink.commit(offsets)


class KafkaBatches:
    """For ``foreachBatch``: one micro-batch to topics, in transactions with the input's offsets.

    One task writes what comes of one partition of the input, in its order, under a name for
    transactions that is that partition's alone: a task that Spark holds for lost is fenced by its
    successor, which goes on after the offset that it finds in the consumer group.

    Parameters
    ----------
    settings
        The broker, the group and the topics; travels to the executors.
    tasks
        How many tasks write at once.
    at_commit
        Called where what came of a partition ends, with its offset; returns what is to be written
        in that transaction. Travels to the executors.
    """

    def __init__(
        self, settings: KafkaSettings, tasks: int, at_commit: AtCommit = lambda *_: ()
    ) -> None:
        self._settings, self._tasks, self._at_commit = settings, tasks, at_commit
        self.counts: dict[str, int] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write what is not written yet.

        Raises
        ------
        ConnectorError
            In a task, if the broker refuses; Spark tries the task again, and then ends.
        """
        settings, at_commit = self._settings, self._at_commit
        ordered = batch.repartition(self._tasks, "topic", "partition").sortWithinPartitions(
            "topic", "partition", "offset", "place"
        )
        ordered.foreachPartition(lambda rows: _write(settings, at_commit, rows))


def _write(settings: KafkaSettings, at_commit: AtCommit, rows: Iterator[Any]) -> None:
    for (topic, partition), found in groupby(rows, key=lambda row: (row.topic, row.partition)):
        _write_partition(settings, at_commit, Partition(topic, partition), found)


def _write_partition(
    settings: KafkaSettings, at_commit: AtCommit, where: Partition, rows: Iterator[Any]
) -> None:
    from rejex_connectors.kafka.moving.once import OnceWriter
    from rejex_connectors.kafka.reading import committed_offsets

    name = f"{settings.group}-spark-{where.topic}-{where.partition}"
    # The name first: taking it settles what a predecessor left open.
    writer = OnceWriter(settings, settings.group, "writing outcomes", name)
    topics: Mapping[str, str] = settings.topics.model_dump()
    try:
        done = committed_offsets(settings, [where]).get(where, 0)
        messages: list[Record] = []
        next_offset = done
        for row in rows:
            if row.offset < done:
                continue
            if row.offset >= next_offset and len(messages) >= _TRANSACTION_MESSAGES:
                writer.write(messages, {where: next_offset})
                messages = []
            next_offset = row.offset + 1
            at = Position(topics[row.output], row.to, 0)
            headers = msgspec.msgpack.decode(row.headers, type=list[tuple[str, bytes]])
            messages.append(Record(at, _bytes(row.key), _bytes(row.value), tuple(headers)))
        if messages:
            messages += [
                Record(Position(m.topic, m.partition, 0), m.key, m.value, tuple(m.headers))
                for m in at_commit(where, next_offset)
            ]
            writer.write(messages, {where: next_offset})
    finally:
        writer.close()


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
