"""Which library it is, and both ends of a pipeline through it."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from functools import partial

from rejex_connectors.kafka.clients import Consumer, Producer
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.kafka.settings import KafkaSettings
from rejex_connectors.kafka.sink import KafkaSink
from rejex_connectors.kafka.source import KafkaSource
from rejex_stream.errors import ConnectorError

__all__ = ["connect", "open_clients"]


def connect(settings: KafkaSettings) -> tuple[KafkaSource, KafkaSink]:
    """Join the group and take the worker's name for transactions.

    Raises
    ------
    ConnectorError
        Retriable when the broker does not answer; not when it refuses us. What it does not allow
        is said by the first request that needs it.
    ConfigError
        When an output topic does not exist.
    """
    worker = settings.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    open_consumer, open_producer = open_clients(settings, worker)
    # The producer first: taking the name settles what a dead predecessor left open.
    producer = open_producer()
    try:
        messages = OutcomeMessages(settings, producer.partitions)
        consumer = open_consumer()
    except BaseException:
        producer.close()
        raise
    source = KafkaSource(consumer, settings, open_consumer)
    return source, KafkaSink(source, producer, open_producer, messages)


def open_clients(
    settings: KafkaSettings, worker: str
) -> tuple[Callable[[], Consumer], Callable[[], Producer]]:
    """Return how to make a consumer and a producer with the library that was asked for.

    Parameters
    ----------
    worker
        Name of this process in the group; transactions are fenced by it.

    Raises
    ------
    ConnectorError
        When the library is not installed.
    """
    if settings.client != "kafka-python":
        try:
            from rejex_connectors.kafka.confluent_client import FastConsumer, FastProducer
        except ImportError:
            told = {"client": "confluent", "group_protocol": "consumer"}
            asked = [name for name, value in told.items() if getattr(settings, name) == value]
            if asked:
                raise ConnectorError(
                    f"kafka.{asked[0]} = {told[asked[0]]!r} needs the extra: pip install "
                    "'rejex-stream[confluent]'"
                ) from None
        else:
            return partial(FastConsumer, settings), partial(FastProducer, settings, worker)
    from rejex_connectors.kafka.kafka_python_client import PythonConsumer, PythonProducer

    return partial(PythonConsumer, settings), partial(PythonProducer, settings, worker)
