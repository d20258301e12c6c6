"""Gives kafka-python 3.0 a commit's messages batch by batch.

``KafkaProducer.send`` takes one message: it checks, measures, locks and makes a future for each,
which is most of what a verdict costs. A commit knows all its messages before the first is sent, so
they can be laid out in the library's own batches directly, byte for byte as ``send`` would.
Everything after that (sequence numbers, the transaction, retries, acknowledgements) is the
library's.

The minor of kafka-python is pinned; look at this module with every new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka import KafkaProducer, TopicPartition
from kafka import errors as ke
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from rejex_connectors.kafka_client import Message

__all__ = ["Batches", "fill"]

MAGIC = 2
"""Format of record batches since Kafka 0.11."""

_NAMES_KEPT = 256


class Batches:
    """Sends many messages of a producer at once."""

    def __init__(self, producer: KafkaProducer) -> None:
        self._accumulator = producer._accumulator
        self._transactions = producer._transaction_manager
        self._sender = producer._sender
        self._producer = producer
        options = self._accumulator.config
        self._compression, self._size = options["compression_attrs"], options["batch_size"]
        self._largest: int = producer.config["max_request_size"]

    def send(self, messages: Sequence[Message]) -> list[FutureRecordMetadata]:
        """Hand over `messages`, in order within each partition; returns a future per batch.

        It fails where any message of the batch does. O(bytes).

        Raises
        ------
        kafka.errors.KafkaError
            If the transaction is broken, or a topic unknown.
        """
        of_each: dict[tuple[str, int], list[Message]] = {}
        for message in messages:
            of_each.setdefault(message[:2], []).append(message)
        futures: list[FutureRecordMetadata] = []
        for (topic, partition), of_one in of_each.items():
            self._producer.partitions_for(topic)  # waits for the topic's metadata
            futures += self._append(TopicPartition(topic, partition), of_one)
        self._sender.wakeup()
        return futures

    def _append(self, tp: TopicPartition, messages: list[Message]) -> list[FutureRecordMetadata]:
        if self._transactions is not None and self._transactions.is_transactional():
            self._transactions.maybe_add_partition_to_transaction(tp)
        accumulator, done = self._accumulator, 0
        futures: list[FutureRecordMetadata] = []
        accumulator._appends_in_progress.increment()  # a forced close waits for us
        try:
            while done < len(messages):
                now_ms = int(time.time() * 1000)
                records = MemoryRecordsBuilder(MAGIC, self._compression, self._size)
                n = fill(records._builder, messages, done, now_ms)
                size = records.size_in_bytes()
                if size > max(self._size, self._largest):
                    raise ke.MessageSizeTooLargeError(f"a record of {size} bytes")
                records.skip(n)
                done += n
                batch = ProducerBatch(tp, records)
                future = _WholeBatch(batch.produce_future, 0, now_ms, None, -1, -1, -1)
                batch._record_futures.append(future)
                with accumulator._tp_lock(tp):
                    if accumulator._closed:
                        raise ke.IllegalStateError("the producer is closed")
                    accumulator._batches[tp].append(batch)
                    accumulator._incomplete.add(batch)
                futures.append(future)
        finally:
            accumulator._appends_in_progress.decrement()
        return futures


class _WholeBatch(FutureRecordMetadata):  # type: ignore[misc]  # untyped
    """Stands for all records of a batch: where one is refused, all are."""

    _produce_future: Any

    def rebind(self, new_produce_future: object, new_batch_index: int) -> None:
        """Fail where the broker found the batch too large and the library would split it.

        A topic that takes less than ``kafka.max_message_bytes`` is to be mended, not served.
        """
        before, self._produce_future = self._produce_future, new_produce_future
        if not self.is_done:
            self.failure(ke.MessageSizeTooLargeError("a batch"))
        before._latch.set()  # whoever waits for the batch as it was


def fill(
    builder: DefaultRecordBatchBuilder, messages: Sequence[Message], first: int, timestamp_ms: int
) -> int:
    """Append messages from `first` on to an empty builder while they fit; returns how many.

    The first is always taken. Equal to ``builder.append`` of each, byte for byte.
    """
    buffer: bytearray = builder._buffer
    limit, size = builder._batch_size, len(buffer)
    short, names = _SHORT, _names
    n_short = len(short)
    parts: list[bytes] = []
    add = parts.append
    n = 0
    for at in range(first, len(messages)):
        _, _, key, value, headers = messages[at]
        # Attributes 0, 0 ms after the first record, the n-th of the batch.
        pieces = [b"\0\0", short[n] if n < n_short else varint(n)]
        for what in (key, value):
            if what is None:
                pieces.append(_NULL)
            else:
                length = len(what)
                pieces += (short[length] if length < n_short else varint(length), what)
        pieces.append(varint(len(headers)))
        for name, said in headers:
            length = len(said)
            pieces += (
                names.get(name) or _name(name),
                short[length] if length < n_short else varint(length),
                said,
            )
        body = b"".join(pieces)
        length = len(body)
        prefix = short[length] if length < n_short else varint(length)
        size += len(prefix) + length
        if n and size > limit:
            break
        add(prefix)
        add(body)
        n += 1
    buffer += b"".join(parts)
    builder._first_timestamp = builder._max_timestamp = timestamp_ms
    builder._last_offset, builder._num_records = n - 1, n
    return n


def varint(value: int) -> bytes:
    """Return a non-negative number as Kafka's signed (zigzag) varint."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = tuple(map(varint, range(2048)))
_NULL = b"\x01"
_names: dict[str, bytes] = {}


def _name(name: str) -> bytes:
    """Return a header's name with its length; a pipeline's few names are remembered."""
    raw = name.encode()
    encoded = varint(len(raw)) + raw
    if len(_names) < _NAMES_KEPT:
        _names[name] = encoded
    return encoded
