"""The review queue on Kafka: review and verdict topics in, the labels topic out.

Where to go on reading is kept in the store, with what was read; the group's committed offsets are
not used. Labels are sent at least once with deterministic ids, keyed by episode.
"""

from __future__ import annotations

import dataclasses
import heapq
import uuid
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, cast

from rejex_stream.build import kafka_settings
from rejex_stream.config import Config
from rejex_stream.contract import LABEL_TYPE
from rejex_stream.errors import ConnectorError
from rejex_stream.review.feeds import FeedKind, SourceFeed, Stop, Tap, own_partition
from rejex_stream.review.ingest import IntakeCounts
from rejex_stream.review.labels import LabelRecord, decode_label
from rejex_stream.review.outbox import OutboxRow
from rejex_stream.review.store import ReviewStore
from rejex_stream.types import Partition, Position

if TYPE_CHECKING:
    from rejex_connectors.kafka_client import Consumer, Producer
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["KafkaLabels", "TopicFeed", "open_feed", "read_label_topic"]

_BATCH = 500
_SETTLE_S = 10.0
"""How long to wait for transactions that are being decided."""


def open_feed(config: Config, kind: FeedKind) -> SourceFeed:
    """Return a feed that follows the review topic or the verdicts topic of a pipeline."""
    from rejex_connectors.kafka import KafkaSource
    from rejex_connectors.kafka_client import open_clients

    settings = kafka_settings(config)
    topic = _topic(settings, kind)
    others = dataclasses.replace(
        settings.topics, input=(topic,), review="_", verdicts="__", state=None
    )
    settings = dataclasses.replace(
        settings,
        topics=others,
        # Of this process alone: a group that two stores share would give each a half.
        group=f"{settings.group}-console-{kind}-{uuid.uuid4().hex[:8]}",
        instance_id=None,
        delivery="at_least_once",
        start="earliest",
    )

    def open_source() -> KafkaSource:
        _partitions(settings, topic)  # a topic that is not there delivers nothing, for ever
        open_consumer, _ = open_clients(settings, f"console-{kind}")
        return KafkaSource(open_consumer(), settings, open_consumer)

    return SourceFeed(open_source, kind, config.pipeline.name)


def _topic(settings: KafkaSettings, kind: FeedKind) -> str:
    return settings.topics.review if kind == "review" else settings.topics.verdicts


class TopicFeed:
    """What a topic holds now, taken once: for imports and rebuilds.

    Parameters
    ----------
    config
        Names broker and topic.
    kind
        Which topic.
    """

    def __init__(self, config: Config, kind: FeedKind) -> None:
        self._settings = kafka_settings(config)
        self.kind = kind
        self.pipeline = config.pipeline.name

    def pump(self, store: ReviewStore, *, tap: Tap = None, stop: Stop = None) -> IntakeCounts:
        """Take everything up to the ends of the topic's partitions; returns what became of it.

        Raises
        ------
        ConfigError
            If the topic does not exist.
        ConnectorError
            If the broker does not answer, or refuses.
        """
        from rejex_connectors.kafka_reading import read_partition

        total = IntakeCounts()
        for partition in _partitions(self._settings, _topic(self._settings, self.kind)):
            known = own_partition(partition)
            records = read_partition(
                self._settings, partition, store.next_offset(known), settle_s=_SETTLE_S
            )
            while batch := list(islice(records, _BATCH)):
                lines = [record.value for record in batch if record.value is not None]
                total += store.take(
                    self.kind,
                    lines,
                    {known: batch[-1].position.offset + 1},
                    pipeline=self.pipeline,
                )
                if tap is not None:
                    tap(lines)
                if stop is not None and stop():
                    return total
        return total

    def close(self) -> None:
        """Nothing is held open between two calls."""


def read_label_topic(config: Config) -> Iterator[LabelRecord]:
    """Yield the records of a pipeline's labels topic, each once; those of one episode in order.

    Raises
    ------
    ConfigError
        If the topic does not exist.
    ConnectorError
        If the broker does not answer, or a record is no label.
    """
    settings = kafka_settings(config)
    partitions = _partitions(settings, settings.topics.labels)
    seen: set[str] = set()
    # An episode keeps its partition unless partitions were added meanwhile: then time decides.
    for record in heapq.merge(
        *(_labels_in(settings, partition) for partition in partitions),
        key=lambda record: record.created_ms,
    ):
        if record.label_id not in seen:
            seen.add(record.label_id)
            yield record


def _labels_in(settings: KafkaSettings, partition: Partition) -> Iterator[LabelRecord]:
    from rejex_connectors.kafka_reading import read_partition

    for record in read_partition(settings, partition, settle_s=_SETTLE_S):
        if record.value is None:
            continue
        try:
            yield decode_label(record.value)
        except ConnectorError as error:
            raise ConnectorError(f"Record {record.position}: {error}") from error


def _partitions(settings: KafkaSettings, topic: str) -> list[Partition]:
    from rejex_connectors.kafka_client import missing_topic
    from rejex_connectors.kafka_reading import partitions_of

    found = partitions_of(settings, topic)
    if not found:
        raise missing_topic(settings, topic)
    return found


class KafkaLabels:
    """Publishes labels to the labels topic; a :class:`~rejex_stream.review.outbox.LabelSink`.

    Parameters
    ----------
    config
        Names broker and topic.

    Notes
    -----
    A label goes to the partition that the CRC of its episode names, so all records about one
    stretch of time keep their order.
    """

    def __init__(self, config: Config) -> None:
        from rejex_connectors.cloudevents import EventHeaders
        from rejex_connectors.kafka_client import open_clients

        settings = dataclasses.replace(kafka_settings(config), delivery="at_least_once")
        _, self._open_producer = open_clients(settings, "console-labels")
        self._settings: KafkaSettings = settings
        self._producer: Producer | None = None
        self._headers = EventHeaders(LABEL_TYPE, settings.pipeline, settings.pipeline_version)

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Send the rows and wait until the broker has them."""
        from rejex_connectors.kafka_client import Message

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
        except ConnectorError:
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
        """Let go of the broker."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
