"""Outcomes and offsets, written together, both or neither; and how both ends are opened."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

from rejex_connectors.kafka.clients import Consumer, Message, Producer
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.kafka.refusals import SeatTakenError
from rejex_connectors.kafka.source import KafkaSource
from rejex_connectors.kafka.topic_admin import written_up_to
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Outcome, Partition

_log = logging.getLogger(__name__)
_Part: TypeAlias = Callable[[], Iterable[Message]]


class _All:
    """Messages, made as they are sent, so that no copy of a whole commit lies there."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(part() for part in self._parts)


class KafkaSink:
    """Writes outcomes and offsets in one transaction; see :class:`~.protocols.Sink`."""

    def __init__(
        self,
        source: KafkaSource,
        producer: Producer,
        open_producer: Callable[[], Producer],
        messages: OutcomeMessages,
    ) -> None:
        self._source = source
        self._producer: Producer | None = producer
        self._open_producer = open_producer
        self._messages = messages
        self._written: dict[Partition, list[_Part]] = {}
        source.settle_transaction = self._settle

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Buffer; nothing is encoded or sent before :meth:`commit`."""
        if outcomes:
            where = Partition(*outcomes[0].record.position[:2])
            parts = self._written.setdefault(where, [])
            parts.append(partial(self._messages.of, list(outcomes)))

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Make what was written durable, with the offsets, in one transaction.

        Partitions that we lost are left out. What was written for a partition that `next_offsets`
        does not name waits for its commit.
        """
        owned = self._source.owned
        for partition in [p for p in self._written if p not in owned]:
            del self._written[partition]
        offsets = {p: offset for p, offset in next_offsets.items() if p in owned}
        self._publish(offsets, [part for p in offsets for part in self._written.pop(p, [])])

    def _publish(self, offsets: Mapping[Partition, int], written: Sequence[_Part]) -> None:
        if not offsets:
            return
        if self._producer is None:
            raise ConnectorError("Kafka: the last commit failed and was not aborted yet")
        try:
            self._producer.publish(_All(written), offsets, self._source.consumer)
        except SeatTakenError as error:
            self._drop_producer()
            self._source.reseat(error)
            raise ConnectorError(f"nothing was committed: {error}", retriable=True) from error
        except BaseException:
            self._drop_producer()
            raise
        self._source.owned.update(offsets)

    def partitions(self, topic: str) -> int:
        if self._producer is None:
            self._producer = self._open_producer()
        return self._producer.partitions(topic)

    def buffer_state(self, partition: Partition, messages: list[Message]) -> None:
        """Write state with the next commit of its partition, or before its offset."""
        self._written.setdefault(partition, []).append(messages.__iter__)

    def write_snapshot(
        self, partition: Partition, next_offset: int, pieces: list[Message]
    ) -> bool | None:
        """Write a snapshot: at once if its offset is committed, else with the next commit.

        Returns whether it is durable by now; ``None`` where it is not and will not be written,
        since the partition is not ours.
        """
        committed = self._source.owned.get(partition)
        if committed is None:
            return None
        if next_offset <= committed and not self._written.get(partition):
            self._publish({partition: committed}, [pieces.__iter__])
            return True
        self.buffer_state(partition, pieces)
        return False

    def abort(self) -> None:
        """Forget what was written since the last commit; the transaction is given up."""
        self._written.clear()
        self._drop_producer()

    def _settle(self) -> bool:
        """Take the worker's name again where need be: that settles our last transaction."""
        if self._producer is not None:
            return True
        try:
            self._producer = self._open_producer()
        except ConnectorError as error:
            if not error.retriable:
                raise
            _log.warning("cannot write to Kafka yet: %s", error)
            return False
        return True

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def close(self) -> None:
        self._drop_producer()


def connect(settings: KafkaSettings) -> tuple[KafkaSource, KafkaSink]:
    """Join the group and take the worker's name for transactions."""
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
    if settings.delivery == "exactly_once":  # else a crash leaves some beyond what is committed
        source.written_up_to = partial(written_up_to, settings)
    return source, KafkaSink(source, producer, open_producer, messages)


def open_clients(
    settings: KafkaSettings, worker: str
) -> tuple[Callable[[], Consumer], Callable[[], Producer]]:
    """Return how to make a consumer and a producer with the library that was asked for."""
    if settings.client != "kafka-python":
        try:
            from rejex_connectors.kafka.confluent_client import FastConsumer, FastProducer
        except ImportError:
            needing = {"client": "confluent", "group_protocol": "consumer"}
            names = [name for name, value in needing.items() if getattr(settings, name) == value]
            if names:
                raise ConnectorError(
                    f"kafka.{names[0]} = {needing[names[0]]!r} needs the extra: pip install "
                    "'rejex-stream[confluent]'"
                ) from None
        else:
            return partial(FastConsumer, settings), partial(FastProducer, settings, worker)
    from rejex_connectors.kafka.kafka_python_client import PythonConsumer, PythonProducer

    return partial(PythonConsumer, settings), partial(PythonProducer, settings, worker)
