"""The review queue on Kafka: review and verdict topics in, the labels topic out.

Where to go on reading is kept in the store, with what was read; the group's committed offsets are
not used. Labels are sent at least once with deterministic ids, keyed by episode.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rejex_stream.build import kafka_settings
from rejex_stream.config import Config
from rejex_stream.contract import LABEL_TYPE
from rejex_stream.errors import ConnectorError
from rejex_stream.review.feeds import FeedKind, SourceFeed
from rejex_stream.review.labels import decode_label
from rejex_stream.review.outbox import OutboxRow
from rejex_stream.types import Position

if TYPE_CHECKING:
    from rejex_connectors.kafka_client import Consumer, Producer
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["KafkaLabels", "open_feed"]


def open_feed(config: Config, kind: FeedKind) -> SourceFeed:
    """Return a feed of the review topic or the verdicts topic of a pipeline.

    Raises
    ------
    ConnectorError
        If the broker cannot be reached.
    """
    from rejex_connectors.kafka import KafkaSource
    from rejex_connectors.kafka_client import open_clients

    settings = kafka_settings(config)
    topic = settings.topics.review if kind == "review" else settings.topics.verdicts
    others = dataclasses.replace(
        settings.topics, input=(topic,), review="_", verdicts="__", state=None
    )
    settings = dataclasses.replace(
        settings,
        topics=others,
        group=f"{settings.group}-console-{kind}",
        instance_id=None,
        delivery="at_least_once",
        start="earliest",
    )
    open_consumer, _ = open_clients(settings, f"console-{kind}")
    source = KafkaSource(open_consumer(), settings, open_consumer)
    return SourceFeed(source, kind, config.pipeline.name)


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
