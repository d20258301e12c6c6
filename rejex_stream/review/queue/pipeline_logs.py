"""Where review items and verdicts come from, files and topics; and the topic that labels go to.

Every input remembers where to go on in the same transaction that stores what was read; a group's
committed offsets are not used. Labels are sent at least once, with deterministic ids.
"""

from __future__ import annotations

import heapq
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, cast

from rejex_stream.config import Config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode.label_records import LabelRecord, decode_label
from rejex_stream.encode.schemas import LABEL_TYPE
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Revoked, Source
from rejex_stream.review.queue.database import StoreError
from rejex_stream.review.queue.ingest import IngestCounts, Span
from rejex_stream.review.queue.label_store import OutboxRow, each_once
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka.clients import Consumer, Producer
    from rejex_connectors.kafka.kafka_settings import KafkaSettings

FeedKind: TypeAlias = Literal["review", "verdicts", "incidents"]
FEED_KINDS: tuple[FeedKind, ...] = ("review", "verdicts", "incidents")
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
        """Close the input; by default a feed holds nothing open between two calls."""
        return


class _Chunk(NamedTuple):
    lines: list[bytes]
    span: Span


class FileFeed(Feed):
    """A JSON Lines file that may still grow; every call of :meth:`pump` takes what is new."""

    def __init__(self, path: Path, kind: FeedKind, pipeline: str = "") -> None:
        self.path = path
        self.kind = kind
        self.pipeline = pipeline
        # The place in the file is kept under the file's name, apart from the topics inside.
        self._partition = Partition(f"file:{kind}:{path.resolve()}", 0)

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        """Store every complete line that is new; returns the counts."""
        total = IngestCounts()
        while stop is None or not stop():
            known = store.begin(self._partition)
            chunk = self._read(known)
            if chunk.span.first < known:
                store.restart_input(self._partition)  # shorter than what was read of it
            if not chunk.lines and chunk.span.first == chunk.span.next_offset:
                return total
            total += store.ingest(
                self.kind, chunk.lines, {self._partition: chunk.span}, pipeline=self.pipeline
            )
        return total

    def _read(self, offset: int) -> _Chunk:
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
            return _Chunk([], Span(offset, offset))
        except OSError as error:
            raise ConnectorError(
                f"{str(self.path)!r} cannot be read ({error.strerror}): check the path.",
                retriable=True,
            ) from error
        end = data.rfind(b"\n") + 1
        lines = [line for line in data[:end].split(b"\n") if line.strip()]
        return _Chunk(lines, Span(offset, offset + end))


class _Batch(NamedTuple):
    spans: dict[Partition, Span]
    lines: list[bytes]


class SourceFeed(Feed):
    """Any :class:`~rejex_stream.protocols.Source`, such as the review topic."""

    def __init__(
        self,
        open_source: Callable[[], Source],
        kind: FeedKind,
        pipeline: str = "",
        log_of: Callable[[Partition], bytes] = lambda _: b"",
    ) -> None:
        self._open_source, self._log_of = open_source, log_of
        self._logs: dict[Partition, bytes] = {}
        self._source: Source | None = None
        self._read_to: dict[Partition, int] = {}
        self._look_at = 0.0
        self._waiting: _Batch | None = None
        self._changes: list[Assigned | Revoked] = []
        self.kind = kind
        self.pipeline = pipeline

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        """Store what the source has; returns at the first empty poll, or when `stop` is true."""
        if self._source is None:
            self._source = self._open_source()
        try:
            return self._pump(self._source, store, stop)
        except StoreError:
            raise  # the source is sound, and what it gave waits here
        except BaseException:
            self.close()  # whatever it was: the next source begins where the store stopped
            raise

    def _pump(self, source: Source, store: ReviewStore, stop: Stop) -> IngestCounts:
        total = IngestCounts()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY_S
            if any(self._log_of(partition) != log for partition, log in self._logs.items()):
                self.close()  # the next source begins where the new log does
                return total
        while stop is None or not stop():
            if self._waiting is None:
                records = source.poll(_MAX_RECORDS, 0.2)
                self._changes += source.changes()
                self._waiting = self._read(records)
            spans, lines = self._waiting
            if spans:
                total += store.ingest(self.kind, lines, spans, pipeline=self.pipeline)
            while self._changes:
                self._follow(source, store, self._changes[0])
                del self._changes[0]
            self._waiting = None
            if not spans:
                return total
        return total

    def _follow(self, source: Source, store: ReviewStore, change: Assigned | Revoked) -> None:
        self._read_to.pop(change.partition, None)
        self._logs.pop(change.partition, None)
        if isinstance(change, Assigned):
            log = self._logs[change.partition] = self._log_of(change.partition)
            begun = store.begin(own_partition(change.partition), change.earliest, log.decode())
            self._read_to[change.partition] = begun
            source.seek(change.partition, begun)

    def _read(self, records: Sequence[Record]) -> _Batch:
        spans: dict[Partition, Span] = {}
        lines: list[bytes] = []
        for record in records:
            topic, number, offset, _ = record.position
            partition = Partition(topic, number)
            own = own_partition(partition)
            # A source in order has passed over nothing that can be read: not since its last
            # record, nor since its position was set. Recorded before it is stored, so that a
            # batch that was not is missed by the store when the next one comes.
            first = spans[own].first if own in spans else self._read_to[partition]
            spans[own] = Span(first, offset + 1)
            self._read_to[partition] = offset + 1
            if record.value is not None:
                lines.append(record.value)
        return _Batch(spans, lines)

    def close(self) -> None:
        """Close the source."""
        source, self._source = self._source, None
        self._read_to.clear()
        self._logs.clear()
        self._changes.clear()
        self._waiting = None
        if source is not None:
            source.close()


def own_partition(partition: Partition) -> Partition:
    """Return the name under which the store keeps how far a topic's partition was read."""
    return Partition(f"source:{partition.topic}", partition.partition)


_SETTLE_S = 10.0
"""How long to wait for transactions that are being decided."""


def open_feed(config: Config, kind: FeedKind) -> SourceFeed:
    """Return a feed that follows one topic that a pipeline writes."""
    from rejex_connectors.kafka.partition_reader import partitions_of, topic_ids
    from rejex_connectors.kafka.sink import open_clients
    from rejex_connectors.kafka.source import KafkaSource

    settings = kafka_settings(config)
    topic = str(getattr(settings.topics, kind))
    others = settings.topics.replace(
        input=(topic,), review="_", verdicts="__", incidents="___", state=None
    )
    settings = settings.replace(
        topics=others,
        # Of this process alone: a group that two stores share would give each a half.
        group=f"{settings.group}-console-{kind}-{uuid.uuid4().hex[:8]}",
        instance_id=None,
        delivery="at_least_once",
        start="earliest",
    )

    def open_source() -> KafkaSource:
        partitions_of(settings, topic, needed=True)  # without it nothing comes, for ever
        open_consumer, _ = open_clients(settings, f"console-{kind}")
        return KafkaSource(open_consumer(), settings, open_consumer)

    return SourceFeed(open_source, kind, config.pipeline.name, topic_ids(settings))


class TopicFeed(Feed):
    """What a topic holds now, taken once: for imports and rebuilds."""

    def __init__(self, config: Config, kind: FeedKind) -> None:
        self._settings = kafka_settings(config)
        self.kind = kind
        self.pipeline = config.pipeline.name

    def pump(self, store: ReviewStore, *, stop: Stop = None) -> IngestCounts:
        """Store everything up to the ends of the topic's partitions; returns the counts."""
        from rejex_connectors.kafka.partition_reader import (
            bounds_of,
            partitions_of,
            read_partition,
            topic_ids,
        )

        total, log_of = IngestCounts(), topic_ids(self._settings)
        topic = getattr(self._settings.topics, self.kind)
        partitions = partitions_of(self._settings, topic, needed=True)
        for partition, (earliest, _) in bounds_of(self._settings, partitions).items():
            own = own_partition(partition)
            read_to = store.begin(own, earliest, log_of(partition).decode())
            records = read_partition(self._settings, partition, read_to, settle_s=_SETTLE_S)
            while batch := list(islice(records, _MAX_RECORDS)):
                lines = [record.value for record in batch if record.value is not None]
                span = Span(read_to, batch[-1].position.offset + 1)
                total += store.ingest(self.kind, lines, {own: span}, pipeline=self.pipeline)
                read_to = span.next_offset
                if stop is not None and stop():
                    return total
        return total


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

    Notes
    -----
    A label goes to the partition that the CRC of its episode names, so all records about one
    stretch of time keep their order.
    """

    def __init__(self, config: Config) -> None:
        from rejex_connectors.kafka.messages import EventHeaders
        from rejex_connectors.kafka.sink import open_clients

        settings = kafka_settings(config).replace(delivery="at_least_once")
        _, self._open_producer = open_clients(settings, "console-labels")
        self._settings: KafkaSettings = settings
        self._producer: Producer | None = None
        self._headers = EventHeaders(LABEL_TYPE, settings.pipeline, settings.pipeline_version)

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Send the rows and wait until the broker has them."""
        from rejex_connectors.kafka.clients import Message

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
            self._producer.publish(messages, {}, cast("Consumer", None))
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
        """Close the connection to the broker."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
