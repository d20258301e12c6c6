"""Where review items and verdicts come from, files and topics; and the topic that labels go to.

Every input remembers where to go on in the same transaction that stores what was read; a group's
committed offsets are not used. Labels are sent at least once, with deterministic ids.
"""

from __future__ import annotations

import heapq
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

from rejex_connectors.kafka.clients import Consumer, Message, Producer
from rejex_connectors.kafka.kafka_settings import KafkaSettings

from rejex_stream.config import Config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode.label_records import LabelRecord, decode_label
from rejex_stream.encode.schemas import LABEL_TYPE
from rejex_stream.errors import ConnectorError
from rejex_stream.review.queue.ingest import IngestCounts, Span
from rejex_stream.review.queue.label_store import OutboxRow, each_once
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Partition, Position

if TYPE_CHECKING:
    from rejex_connectors.kafka.partition_reader import PartitionReader

FeedKind: TypeAlias = Literal["review", "verdicts", "incidents", "control"]
FEED_KINDS: tuple[FeedKind, ...] = ("review", "verdicts", "incidents", "control")
Stop: TypeAlias = Callable[[], bool] | None
_CHUNK_BYTES = 1 << 20
_MAX_RECORDS = 500
_LONGEST_LINE_BYTES = 64 << 20
_LOOK_EVERY_S = 30.0


class Feed(Protocol):
    """Where one log of a pipeline comes from; remembers in the store how far it was read."""

    kind: FeedKind
    pipeline: str

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        """Store what is new; `stop` is asked often."""

    def close(self) -> None:
        return


class FileFeed(Feed):
    """A JSON Lines file that may still grow; every call of :meth:`pump` takes what is new."""

    def __init__(self, path: Path, kind: FeedKind, pipeline: str = "") -> None:
        self.path = path
        self.kind = kind
        self.pipeline = pipeline
        # The place in the file is kept under the file's name, apart from the topics inside.
        self._partition = Partition(f"file:{kind}:{path.resolve()}", 0)

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        total = IngestCounts()
        while stop is None or not stop():
            known = store.begin(self._partition)
            lines, span = self._read(known)
            if span.first < known:
                store.restart_input(self._partition)  # shorter than what was read of it
            if not lines and span.first == span.next_offset:
                return total
            total += store.ingest(self.kind, lines, {self._partition: span}, pipeline=self.pipeline)
        return total

    def _read(self, offset: int) -> tuple[list[bytes], Span]:
        try:
            size = self.path.stat().st_size
            if size < offset:  # a new file under the old name; known events are recognised
                offset = 0
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read(_CHUNK_BYTES)
                while data and b"\n" not in data:
                    more = file.read(_CHUNK_BYTES)
                    if not more:
                        break
                    data += more
                    if len(data) > _LONGEST_LINE_BYTES:
                        raise ConnectorError(
                            f"A line of {str(self.path)!r} is longer than 64 MiB: "
                            f"give a file of {self.kind} as JSON Lines."
                        )
        except FileNotFoundError:
            return [], Span(offset, offset)
        except OSError as error:
            raise ConnectorError(
                f"{str(self.path)!r} cannot be read ({error.strerror}): check the path.",
                retriable=True,
            ) from error
        end = data.rfind(b"\n") + 1
        lines = [line for line in data[:end].split(b"\n") if line.strip()]
        return lines, Span(offset, offset + end)


_SETTLE_S = 10.0  # how long one who reads once waits for transactions that are being decided


class TopicFeed(Feed):
    """One topic that a pipeline writes; every call of :meth:`pump` takes what is new."""

    def __init__(
        self,
        topic: str,
        kind: FeedKind,
        reader: PartitionReader,
        log_of: Callable[[Partition], bytes],
        *,
        pipeline: str = "",
        settle_s: float = 0.0,
    ) -> None:
        self.kind = kind
        self.pipeline = pipeline
        self._topic, self._reader, self._log_of = topic, reader, log_of
        self._settle_s = settle_s
        self._look_at = 0.0  # when it is looked whether the topic is still the same log

    @classmethod
    def of(cls, config: Config, kind: FeedKind, *, follow: bool) -> TopicFeed:
        """Return a feed of what a pipeline writes of a kind, read once or to be followed."""
        from rejex_connectors.kafka.partition_reader import PartitionReader, topic_ids

        settings = kafka_settings(config)
        return cls(
            str(getattr(settings.topics, kind)),
            kind,
            PartitionReader(settings),
            topic_ids(settings),
            pipeline=config.pipeline.name,
            settle_s=0.0 if follow else _SETTLE_S,
        )

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        """Store everything up to the ends of the topic's partitions; returns the counts."""
        total, now = IngestCounts(), time.monotonic()
        partitions = self._reader.partitions(self._topic)
        if not partitions:
            raise ConnectorError(
                f"topic {self._topic!r} does not exist: run `rejex-stream topics create`.",
                retriable=True,
            )
        is_due = now >= self._look_at
        if is_due:
            self._look_at = now + _LOOK_EVERY_S
        for partition, (earliest, end) in self._reader.bounds(partitions).items():
            own = Partition(f"source:{partition.topic}", partition.partition)  # in the store
            log = self._log_of(partition).decode() if is_due else ""
            read_to = store.begin(own, earliest, log)
            if read_to >= end and not self._settle_s:
                continue
            records = self._reader.read(partition, read_to, settle_s=self._settle_s)
            while batch := list(islice(records, _MAX_RECORDS)):
                lines = [record.value for record in batch if record.value is not None]
                span = Span(read_to, batch[-1].position.offset + 1)
                total += store.ingest(self.kind, lines, {own: span}, pipeline=self.pipeline)
                read_to = span.next_offset
                if stop is not None and stop():
                    return total
        return total

    def close(self) -> None:
        self._reader.close()


def read_label_topic(config: Config) -> Iterator[LabelRecord]:
    """Yield the records of a pipeline's labels topic, each once; those of one episode in order."""
    from rejex_connectors.kafka.partition_reader import partitions_of

    settings = kafka_settings(config)
    partitions = partitions_of(settings, settings.topics.labels, needed=True)
    # An episode keeps its partition unless partitions were added meanwhile: then time decides.
    yield from each_once(
        heapq.merge(
            *(_labels_in(settings, partition) for partition in partitions),
            key=lambda record: record.created_ms,
        )
    )


def _labels_in(settings: KafkaSettings, partition: Partition) -> Iterator[LabelRecord]:
    from rejex_connectors.kafka.partition_reader import read_partition

    for record in read_partition(settings, partition, settle_s=_SETTLE_S):
        if record.value is None:
            continue
        try:
            yield decode_label(record.value)
        except ConnectorError as error:
            raise ConnectorError(f"Record {record.position}: {error}") from error


class KafkaLabels:
    """Publishes labels to the labels topic.

    A label goes to the partition that the CRC of its episode names, so all records about one
    stretch of time keep their order.
    """

    def __init__(self, config: Config) -> None:
        from rejex_connectors.kafka.messages import EventHeaders
        from rejex_connectors.kafka.sink import open_clients

        settings = kafka_settings(config).replace(delivery="at_least_once")
        _, self._open_producer = open_clients(settings, "console-labels")
        self._settings = settings
        self._producer: Producer | None = None
        self._headers = EventHeaders(LABEL_TYPE, settings.pipeline, settings.pipeline_version)

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        topic = self._settings.topics.labels
        try:
            if self._producer is None:
                self._producer = self._open_producer()
            partitions = self._producer.partitions(topic)
            places, messages = [], []
            for row in rows:
                partition = zlib.crc32(row.key) % partitions
                places.append(f"{topic}-{partition}")
                messages.append(
                    Message(topic, partition, row.key, row.value, self._headers_of(row))
                )
            # Nothing is consumed with what is sent: there are no offsets, and so no consumer.
            self._producer.publish(messages, {}, cast(Consumer, None))
        except BaseException:
            self.close()  # spent after any failure; the labels wait in the store
            raise
        return places

    def _headers_of(self, row: OutboxRow) -> list[tuple[str, bytes]]:
        record = decode_label(row.value)
        headers = self._headers.of(Position(record.root_id, 0, 0), record.sensor, record.created_ms)
        return [
            (name, row.label_id.encode() if name == "ce_id" else value) for name, value in headers
        ]

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
