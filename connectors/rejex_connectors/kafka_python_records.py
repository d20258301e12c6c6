"""Has kafka-python 3.0 deliver our own records, a batch at a time.

The library makes three objects of every record and decodes each number with a call; that costs as
much as judging an event. Here a batch goes straight from its bytes to
:class:`~rejex_stream.types.Record`. Which batches are delivered at all (checksums, aborted
transactions, control batches) is decided by the library's own methods.

The minor of kafka-python is pinned; look at this module with every new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka import IsolationLevel, KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from rejex_stream.types import Position, Record

__all__ = ["deliver_records", "records_of"]


def deliver_records(consumer: KafkaConsumer) -> KafkaConsumer:
    """Have ``poll`` of this consumer return lists of :class:`Record`; returns the consumer."""
    consumer._fetcher.PartitionRecords = _FetchedRecords
    return consumer


class _FetchedRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # untyped
    """What one fetch brought of one partition."""

    next_fetch_offset: int

    def _maybe_skip_record(self, record: Record) -> bool:
        return bool(record.position.offset < self.fetch_offset)

    def take(self, n: int | None = None) -> list[Record]:
        """Return the next records, at most `n`, and stand behind the last."""
        records: list[Record] = super().take(n)
        if records:  # within a batch; at its end we stand behind what compaction has removed, too
            after = records[-1].position.offset + 1
            self.next_fetch_offset = max(self.next_fetch_offset, after)
        return records

    def _unpack_records(
        self, tp: TopicPartition, records: MemoryRecords, *deserializers: object
    ) -> Iterator[Record]:
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(
                    f"the batch at offset {batch.base_offset} of {tp.topic}-{tp.partition} failed "
                    "its checksum"
                )
            if batch.magic < 2:  # in logs of ten years ago
                yield from (
                    Record(
                        Position(tp[0], tp[1], old.offset), old.key, old.value, (), old.timestamp
                    )
                    for old in batch
                )
                continue
            self.leader_epoch = batch.leader_epoch
            if not self._is_left_out(batch):
                yield from records_of(batch, *tp)
            self.next_fetch_offset = batch.next_offset
        self.drain()

    def _is_left_out(self, batch: DefaultRecordBatch) -> bool:
        """Whether the batch belongs to an aborted transaction, or only marks the end of one."""
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


def records_of(  # noqa: C901, PLR0912, PLR0915 - one straight line, run for every event
    batch: DefaultRecordBatch, topic: str, partition: int
) -> list[Record]:
    """Decode a batch of format 2, which every producer has written since Kafka 0.11. O(bytes).

    Raises
    ------
    CorruptRecordError
        If its bytes are no records.
    """
    iter(batch)  # decompresses
    data, at = bytes(batch._buffer), batch._pos
    base, first_ms = batch.base_offset, batch.first_timestamp
    appended_ms = batch.max_timestamp if batch.timestamp_type == batch.LOG_APPEND_TIME else None
    new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
    records: list[Record] = []
    add = records.append
    try:
        for _ in range(batch.records_count):
            # Numbers are zigzag varints; nearly all of one or two bytes.
            number = data[at]
            at += 1
            if number > 0x7F:
                number, at = _longer(data, number, at)
            end = at + (number >> 1)

            at += 1  # attributes: none are defined
            number = data[at]
            at += 1
            if number > 0x7F:
                number, at = _longer(data, number, at)
            time_ms = first_ms + ((number >> 1) ^ -(number & 1))

            number = data[at]
            at += 1
            if number > 0x7F:
                number, at = _longer(data, number, at)
            position = new(Position, (topic, partition, base + (number >> 1)))

            number = data[at]
            at += 1
            if number > 0x7F:
                number, at = _longer(data, number, at)
            key = None
            if not number & 1:  # else -1
                key = data[at : at + (number >> 1)]
                at += number >> 1

            number = data[at]
            at += 1
            if number > 0x7F:
                number, at = _longer(data, number, at)
            value = None
            if not number & 1:
                value = data[at : at + (number >> 1)]
                at += number >> 1

            headers: tuple[tuple[str, bytes | None], ...] = ()
            if data[at]:
                headers, at = _headers(data, at)
            else:
                at += 1
            if at != end:
                raise CorruptRecordError(f"a record ends {at - end} bytes late at {position}")
            if appended_ms is not None:
                time_ms = appended_ms
            add(new(Record, (position, key, value, headers, time_ms)))
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"a record of {topic}-{partition} is broken: {error}") from None
    if at != len(data):
        raise CorruptRecordError(f"{len(data) - at} bytes after the last record")
    return records


def _longer(data: bytes, number: int, at: int) -> tuple[int, int]:
    """Return a number of several bytes, of which the first was read, and where it ends."""
    number &= 0x7F
    shift = 7
    while (byte := data[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    number, at = _longer(data, data[at], at + 1) if data[at] > 0x7F else (data[at], at + 1)
    return (number >> 1) ^ -(number & 1), at


def _headers(data: bytes, at: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = _number(data, at)
    headers: list[Any] = []
    for _ in range(count):
        length, at = _number(data, at)
        name = data[at : at + length].decode()
        length, at = _number(data, at + length)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[at : at + length]))
            at += length
    return tuple(headers), at
