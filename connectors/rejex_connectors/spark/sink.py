"""Writes the micro-batches of Spark exactly once, to files or to topics.

The offsets of what is written lie where a worker keeps them, in the state folder of the files or
in the consumer group, and become durable with it. A batch that Spark repeats finds its own there
and is not written again; so does a job that goes on from a worker, or a worker from a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from rejex_connectors.files import FileSink
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rejex_connectors.kafka.settings import KafkaSettings

__all__ = ["FileBatches", "KafkaBatches"]

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

    Attributes
    ----------
    counts
        How many lines went to each output, by role.
    """

    def __init__(self, sink: FileSink) -> None:
        self._sink = sink
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
    """

    def __init__(self, settings: KafkaSettings, tasks: int) -> None:
        self._settings, self._tasks = settings, tasks
        self.counts: dict[str, int] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write what is not written yet.

        Raises
        ------
        ConnectorError
            In a task, if the broker refuses; Spark tries the task again, and then ends.
        """
        settings = self._settings
        ordered = batch.repartition(self._tasks, "topic", "partition").sortWithinPartitions(
            "topic", "partition", "offset", "place"
        )
        ordered.foreachPartition(lambda rows: _write(settings, rows))


def _write(settings: KafkaSettings, rows: Iterator[Any]) -> None:
    for (topic, partition), found in groupby(rows, key=lambda row: (row.topic, row.partition)):
        _write_partition(settings, Partition(topic, partition), found)


def _write_partition(settings: KafkaSettings, where: Partition, rows: Iterator[Any]) -> None:
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
            writer.write(messages, {where: next_offset})
    finally:
        writer.close()


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
