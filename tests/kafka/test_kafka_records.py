"""Records straight from a batch's bytes: what the library would deliver, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import IsolationLevel, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import FetchResponse
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from rejex_connectors.kafka_python_records import _FetchedRecords, records_of

from rejex_stream.types import Position, Record

TP = TopicPartition("in", 3)
CREATED_MS = 1_700_000_000_042
GZIP, TRANSACTIONAL, CONTROL, APPEND_TIME = 1, 0x10, 0x20, 0x08

bytes_of = st.binary(max_size=40) | st.sampled_from([63, 64, 8191, 8192]).map(bytes)
records = st.tuples(
    st.integers(-(2**33), 2**33),  # time since the first
    st.none() | bytes_of,
    st.none() | bytes_of,
    st.lists(st.tuples(st.text(max_size=9), st.none() | bytes_of), max_size=4),
)


def batch(
    written: list[Any],
    *,
    first: int = 0,
    offsets: list[int] | None = None,
    codec: int = 0,
    producer: int = -1,
    attributes: int = 0,
) -> bytes:
    """What a broker sends: the library's own bytes, with the offset that the broker puts in."""
    builder = DefaultRecordBatchBuilder(2, codec, False, producer, 0, 0, 10**9)
    for n, (delta_ms, key, value, headers) in enumerate(written):
        offset = n if offsets is None else offsets[n]
        builder.append(offset, CREATED_MS + delta_ms, key, value, headers)
    data = bytearray(builder.build())
    data[0:8] = first.to_bytes(8, "big")
    if attributes:
        data[22] |= attributes
        reset_checksum(data)
    return bytes(data)


def reset_checksum(data: bytearray) -> None:
    from kafka.record.util import calc_crc32c

    data[17:21] = calc_crc32c(memoryview(data)[21:]).to_bytes(4, "big")


def taken(kind: Any, data: bytes, sizes: list[int], **options: Any) -> tuple[list[Any], list[int]]:
    """What a consumer gets of a fetch in several polls, and where it stands after each."""
    part = kind(options.pop("start", 0), TP, MemoryRecords(data), **options)
    found, stands = [], []
    for size in [*sizes, None]:
        if not part:
            break
        found += part.take(size)
        stands.append(part.next_fetch_offset)
    return found, stands


def ours_and_theirs(data: bytes, sizes: list[int], **options: Any) -> list[Record]:
    ours, our_stands = taken(_FetchedRecords, data, sizes, **dict(options))
    theirs, their_stands = taken(Fetcher.PartitionRecords, data, sizes, **dict(options))
    assert ours == [
        Record(Position(*TP, r.offset), r.key, r.value, tuple(r.headers), r.timestamp)
        for r in theirs
    ]
    assert our_stands[-1:] == their_stands[-1:]
    assert all(type(record) is Record for record in ours)
    return ours


@settings(deadline=None)
@given(
    st.lists(st.lists(records, min_size=1, max_size=12), max_size=4),
    st.lists(st.integers(1, 9), max_size=5),
    st.integers(0, 20),
    st.sampled_from([0, GZIP]),
    st.sampled_from([0, APPEND_TIME]),
)
def test_records_are_those_of_the_library(
    written: list[list[Any]], sizes: list[int], start: int, codec: int, attributes: int
) -> None:
    data, first = b"", 5
    for one in written:
        data += batch(one, first=first, codec=codec, attributes=attributes)
        first += len(one) + 2  # as if the last two had been compacted away
    ours_and_theirs(data, sizes, start=start)


def plain(n: int, text: bytes = b"x") -> list[Any]:
    return [(0, None, text + b"%d" % i, []) for i in range(n)]


def test_gaps_left_by_compaction_are_passed_over() -> None:
    data = batch(plain(3), first=10, offsets=[0, 4, 9]) + batch(plain(2), first=20)
    assert [r.position.offset for r in ours_and_theirs(data, [2, 2])] == [10, 14, 19, 20, 21]


def test_aborted_transactions_and_their_marks_are_left_out() -> None:
    abort = [(0, b"\0\0\0\0", b"\0\0\0\0\0\0", [])]
    commit = [(0, b"\0\0\0\1", b"\0\0\0\0\0\0", [])]
    data = (
        batch(plain(3, b"lost"), first=0, producer=7, attributes=TRANSACTIONAL)
        + batch(plain(2, b"kept"), first=3, producer=8, attributes=TRANSACTIONAL)
        + batch(abort, first=5, producer=7, attributes=TRANSACTIONAL | CONTROL)
        + batch(plain(1, b"later"), first=6, producer=7, attributes=TRANSACTIONAL)
        + batch(commit, first=7, producer=7, attributes=TRANSACTIONAL | CONTROL)
    )
    aborted = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction(
        producer_id=7, first_offset=0
    )
    for sizes in ([], [1], [2, 1, 1]):
        found = ours_and_theirs(
            data,
            sizes,
            isolation_level=IsolationLevel.READ_COMMITTED,
            aborted_transactions=[aborted],
        )
        assert [record.value for record in found] == [b"kept0", b"kept1", b"later0"]
    everything = ours_and_theirs(data, [])
    assert len(everything) == 6


def test_logs_of_ten_years_ago_are_read() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 10**6)
    for offset in range(4):
        builder.append(offset, CREATED_MS, b"k", b"v%d" % offset)
    found = ours_and_theirs(bytes(builder.build()), [3])
    assert [record.value for record in found] == [b"v0", b"v1", b"v2", b"v3"]


def test_a_batch_that_fails_its_checksum_is_refused_where_it_stands() -> None:
    good, bad = batch(plain(2)), bytearray(batch(plain(2), first=2))
    bad[-1] ^= 1
    part = _FetchedRecords(0, TP, MemoryRecords(good + bytes(bad)))
    assert len(part.take(10)) == 2  # what came before it counts
    with pytest.raises(CorruptRecordError, match=r"offset 2 of in-3 failed its checksum"):
        part.take(10)


@settings(deadline=None)
@given(st.integers(61, 200), st.integers(0, 255), st.integers(0, 139))
def test_broken_bytes_are_never_records_of_another_length(at: int, byte: int, cut: int) -> None:
    data = bytearray(batch([(0, b"key", b"value" * 9, [("name", b"said")])] * 2))
    whole = records_of(DefaultRecordBatch(bytes(data)), *TP)
    data[at % len(data)] = byte if at % len(data) >= 61 else data[at % len(data)]
    if cut > 61:
        del data[cut:]
    try:
        found = records_of(DefaultRecordBatch(bytes(data)), *TP)
    except CorruptRecordError:
        return
    assert len(found) == len(whole)
