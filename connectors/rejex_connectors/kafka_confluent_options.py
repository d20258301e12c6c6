"""What consumer, producer and questions to the cluster tell librdkafka alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck

from rejex_connectors.kafka_security import librdkafka_options
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["ASK_S", "client_options", "committable"]

ASK_S = 5.0
"""Deadline for one question to the cluster, in seconds."""

_log = logging.getLogger(__name__)


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return how to connect, and whom to tell of errors."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": settings.instance_id or settings.pipeline,
        "reconnect.backoff.max.ms": 1_000,
        "allow.auto.create.topics": False,
        "error_cb": lambda error: _log.info("%s", error.str()),
        "log_level": 3,
        "logger": _log,
        **librdkafka_options(settings.security),
        **dict(settings.client_options),
    }


def committable(offsets: Mapping[Partition, int]) -> list[ck.TopicPartition]:
    """Return offsets as the library takes them."""
    return [ck.TopicPartition(*p, offset) for p, offset in offsets.items()]
