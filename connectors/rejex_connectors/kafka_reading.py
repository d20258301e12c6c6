"""Outside the consumer group: an admin client, and reading one partition from end to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import errors as ke

import rejex_connectors.kafka_python_sockets  # noqa: F401 - mends leaks on import
from rejex_connectors.kafka_python_errors import connecting, explain
from rejex_connectors.kafka_python_records import deliver_records
from rejex_connectors.kafka_security import kafka_python_options
from rejex_stream.types import Partition, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["admin", "client_options", "partitions_of", "read_partition"]


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return what every client of the library is told: where, as whom, and how to log in."""
    return {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": settings.instance_id or settings.pipeline,
        "bootstrap_timeout_ms": 4_000,
        "reconnect_backoff_max_ms": 1_000,
        **kafka_python_options(settings.security),
        **dict(settings.client_options),
    }


def admin(settings: KafkaSettings) -> KafkaAdminClient:
    """Open an admin client; the caller closes it."""
    with connecting(settings):
        return KafkaAdminClient(**client_options(settings), request_timeout_ms=15_000)


def partitions_of(settings: KafkaSettings, topic: str) -> list[Partition]:
    """Return the partitions of a topic; none if it does not exist.

    Raises
    ------
    ConnectorError
        If the broker does not answer, or refuses.
    """
    client = admin(settings)
    try:
        if topic not in client.list_topics():
            return []
        count = len(client.describe_topics([topic])[0]["partitions"])
    except ke.KafkaError as error:
        raise explain(error, settings, f"looking at {topic}") from error
    finally:
        client.close()
    return [Partition(topic, number) for number in range(count)]


def read_partition(
    settings: KafkaSettings,
    partition: Partition,
    start: int | None = None,
    stop: int | None = None,
    *,
    settle_s: float = 0.0,
) -> Iterator[Record]:
    """Read committed records of one partition in order, outside any group, up to its end now.

    Parameters
    ----------
    start, stop
        First offset, and the one after the last; from the first to the end by default.
    settle_s
        Wait at most so long for transactions that are being decided: the broker confirms a commit
        a moment before readers can see it.
    """
    tp = TopicPartition(*partition)
    options = {
        **client_options(settings),
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "fetch_max_bytes": settings.fetch_max_bytes,
        "max_partition_fetch_bytes": settings.fetch_max_bytes // 4,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
    with connecting(settings):
        written = _end(KafkaConsumer(**options), tp, settings) if settle_s else 0
        consumer = deliver_records(KafkaConsumer(**options, isolation_level="read_committed"))
    try:
        consumer.assign([tp])
        first = consumer.beginning_offsets([tp])[tp]
        end = consumer.end_offsets([tp])[tp]
        deadline = time.monotonic() + settle_s
        while end < written and time.monotonic() < deadline:
            time.sleep(0.02)
            end = consumer.end_offsets([tp])[tp]
        consumer.seek(tp, first if start is None else max(first, start))
        end = end if stop is None else min(end, stop)
        while consumer.position(tp) < end:
            for found in consumer.poll(timeout_ms=500).values():
                for record in found:
                    if record.position.offset >= end:
                        return
                    yield record
    except ke.KafkaError as error:
        name = f"{partition.topic}-{partition.partition}"
        raise explain(error, settings, f"reading {name}") from error
    finally:
        consumer.close(autocommit=False)


def _end(consumer: KafkaConsumer, tp: TopicPartition, settings: KafkaSettings) -> int:
    """Return the end of what was written, committed or not; closes the consumer."""
    try:
        return int(consumer.end_offsets([tp])[tp])
    except ke.KafkaError as error:
        raise explain(error, settings, f"asking how far {tp.topic} goes") from error
    finally:
        consumer.close(autocommit=False)


logging.getLogger("kafka").addHandler(logging.NullHandler())
