"""The producer's contract on top of confluent-kafka (librdkafka)."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck

from rejex_connectors.kafka_client import (
    Consumer,
    Message,
    fenced,
    missing_topic,
    took_too_long,
    transactional_id,
    within,
)
from rejex_connectors.kafka_confluent_errors import REFUSED, RIVAL, explain
from rejex_connectors.kafka_confluent_options import ASK_S, client_options, committable
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["FastProducer"]

LATE_S = 2.0
"""How long a call may outstay the deadline it was given, in seconds."""


class FastProducer:
    """An idempotent producer; with ``exactly_once`` a transactional one."""

    def __init__(self, settings: KafkaSettings, worker: str) -> None:
        self._settings = settings
        self._transactional = settings.delivery == "exactly_once"
        self._failed: list[ck.KafkaError] = []
        self._partitions: dict[str, int] = {}
        refused: list[ck.KafkaError] = []
        options = client_options(settings) | {
            "error_cb": lambda error: refused.append(error) if error.code() in REFUSED else None,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "compression.type": settings.compression or "none",
            "message.max.bytes": settings.max_message_bytes + 1024,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 262_144,
            "message.timeout.ms": min(settings.commit_timeout_ms, settings.transaction_timeout_ms),
            # The failures are all we ask for: a call for every message would cost as much again.
            "delivery.report.only.error": True,
            "on_delivery": _keep_in(self._failed),
        }
        if self._transactional:
            options["transactional.id"] = transactional_id(settings, worker)
            options["transaction.timeout.ms"] = settings.transaction_timeout_ms
        try:
            self._producer: Any = ck.Producer(options)
            if self._transactional:
                self._producer.init_transactions(settings.commit_timeout_ms / 1000)
        except ck.KafkaException as error:
            if hasattr(self, "_producer"):
                with contextlib.suppress(ck.KafkaException):  # a fatal one is raised again
                    self._producer.poll(0.0)  # calls error_cb
                self._producer = None  # its threads end with it
            # Where it could not connect, the library says no more than that time ran out.
            raise explain(next(iter(refused), error.args[0]), settings, "connecting") from None

    def partitions(self, topic: str) -> int:
        """Look into the cluster's metadata, fetched once."""
        if not self._partitions:
            self._partitions = {
                name: len(found.partitions) for name, found in self._topics(topic, None).items()
            }
        if not self._partitions.get(topic):
            # All topics are those that we may know of: asked by name, it is missing or refused.
            refused = self._topics(topic, topic)[topic].error
            if refused is not None and refused.code() in REFUSED:
                raise explain(refused, self._settings, f"looking for topic {topic!r}")
            raise missing_topic(self._settings, topic)
        return self._partitions[topic]

    def _topics(self, wanted: str, asked: str | None) -> dict[str, Any]:
        try:
            topics: dict[str, Any] = self._producer.list_topics(asked, timeout=ASK_S).topics
        except ck.KafkaException as error:
            doing = f"looking for topic {wanted!r}"
            raise explain(error.args[0], self._settings, doing) from error
        return topics

    def publish(
        self, messages: Sequence[Message], offsets: Mapping[Partition, int], consumer: Consumer
    ) -> None:
        """Write, check, commit."""
        began = time.monotonic()
        deadline = began + self._settings.commit_timeout_ms / 1000
        # Taken first: whoever takes our partitions from here on makes this token stale.
        membership = consumer.membership() if offsets else None
        try:
            if not self._transactional:
                self._send(messages, deadline)
                self._flush(deadline)
                if offsets:
                    consumer.commit(offsets, deadline - time.monotonic())
                return
            self._producer.begin_transaction()
            self._send(messages, deadline)
            if offsets:
                # The library was seen to outstay its own deadline after a broker came back.
                within(
                    _left(deadline) + LATE_S,
                    "adding offsets to the transaction",
                    self._producer.send_offsets_to_transaction,
                    committable(offsets),
                    membership,
                    _left(deadline),
                )
            # Flushes first, and fails if any message failed.
            self._producer.commit_transaction(_left(deadline))
            self._check()
        except ck.KafkaException as error:
            raise self._explain(error.args[0], time.monotonic() - began) from error

    def _send(self, messages: Sequence[Message], deadline: float) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for topic, partition, key, value, headers in messages:
            while True:
                try:
                    produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:  # full: wait for acknowledgements
                    if time.monotonic() > deadline:
                        raise ConnectorError(
                            "Kafka: too many messages unacknowledged", retriable=True
                        ) from None
                    poll(0.05)

    def _flush(self, deadline: float) -> None:
        left = self._producer.flush(_left(deadline))
        if left:
            raise ConnectorError(f"Kafka: {left} messages were not acknowledged", retriable=True)
        self._check()

    def _check(self) -> None:
        self._producer.poll(0)
        if self._failed:
            raise ck.KafkaException(self._failed[0])

    def _explain(self, error: ck.KafkaError, elapsed_s: float) -> ConnectorError:
        """Tell a rival with our name from a transaction that simply took too long."""
        if self._failed and not error.fatal():
            error = self._failed[0]  # the reason, where this is only the consequence
        if error.code() in RIVAL:
            late = elapsed_s * 1000 >= self._settings.transaction_timeout_ms
            return took_too_long(self._settings, elapsed_s) if late else fenced(self._settings)
        return explain(error, self._settings, "writing outcomes")

    def close(self) -> None:
        """Stop at once; what is not committed is aborted by whoever takes the name next."""
        self._producer.purge()
        with (
            contextlib.suppress(ck.KafkaException, ConnectorError),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # it cannot abort where the broker is gone
            within(4.0, "closing the producer", self._producer.close, 0.5)


def _keep_in(failed: list[ck.KafkaError]) -> Callable[[ck.KafkaError | None, object], None]:
    """Return a callback that does not hold its producer: a cycle would keep its threads alive."""
    return lambda error, _: failed.append(error) if error is not None else None


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
