"""Records written in the transaction that commits how far it has come: a crash repeats nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition

from rejex_connectors.kafka.clients import Message, transactional_id
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import client_options, connecting, explaining
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Position, Record

_LARGEST = 64 * 1024 * 1024


class TransactionalWriter:
    """Writes under one name, which it takes from a predecessor that still has it.

    Offsets are committed in `group`, by default in one of the transactions' name.
    """

    def __init__(
        self, settings: KafkaSettings, worker: str, doing: str, *, group: str | None = None
    ) -> None:
        self._settings, self._doing = settings.replace(instance_id=worker), doing
        name = transactional_id(settings, worker)
        self._group = group or name
        with connecting(settings):
            self._producer = KafkaProducer(
                **client_options(settings, "producer"),
                transactional_id=name,
                transaction_timeout_ms=settings.transaction_timeout_ms,
                max_request_size=_LARGEST,
                metrics_enabled=False,
            )
        try:
            with explaining(self._settings, self._doing, operation="WRITE"):
                self._producer.init_transactions()
        except ConnectorError:
            self.close()
            raise

    def write(self, records: Sequence[Record], next_offsets: Mapping[Partition, int]) -> None:
        """Write records where their positions say, and how far we are, both or neither."""
        producer = self._producer
        with explaining(self._settings, self._doing, operation="WRITE"):
            producer.begin_transaction()
            sent = [
                producer.send(
                    record.position.topic,
                    key=record.key,
                    value=record.value,
                    headers=[(name, value or b"") for name, value in record.headers],
                    partition=record.position.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(self._settings.commit_timeout_ms / 1000)
            for future in sent:
                future.get(1)
            if next_offsets:
                producer.send_offsets_to_transaction(to_commit(next_offsets), self._group)
            producer.commit_transaction()

    def close(self) -> None:
        self._producer.close(timeout=2)


def to_commit(offsets: Mapping[Partition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}


def records_to_write(messages: Iterable[Message]) -> list[Record]:
    return [
        Record(Position(m.topic, m.partition, 0), m.key, m.value, tuple(m.headers))
        for m in messages
    ]
