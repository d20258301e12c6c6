"""Whole batches for kafka-python: byte for byte what the library writes, and as safe."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka_harness import Kafka
from rejex_connectors.kafka import connect
from rejex_connectors.kafka_client import Message
from rejex_connectors.kafka_python import PythonProducer
from rejex_connectors.kafka_python_batches import Batches, fill, varint

from rejex_stream.errors import ConnectorError

NOW_MS = 1_700_000_000_042
HEADERS = [("ce_type", b"io.rejex.verdict.v1"), ("ce_id", b"in-0-7@1")]

bytes_of = (
    st.binary(max_size=40) | st.integers(60, 70).map(bytes) | st.integers(8180, 8200).map(bytes)
)
messages = st.builds(
    Message,
    st.just("t"),
    st.just(0),
    st.none() | bytes_of,
    st.none() | bytes_of,
    st.lists(st.tuples(st.text(max_size=9), bytes_of), max_size=4),
)


def builder(size: int) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(2, 0, True, 77, 3, 11, size)


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=30), st.integers(61, 40_000))
def test_a_batch_is_byte_for_byte_that_of_the_library(sent: list[Message], size: int) -> None:
    theirs, n = builder(size), 0
    for message in sent:
        _, _, key, value, headers = message
        if theirs.append(n, NOW_MS, key, value, headers) is None:
            break  # full
        n += 1
    ours = builder(size)
    assert fill(ours, sent, 0, NOW_MS) == n
    assert bytes(ours.build()) == bytes(theirs.build())


def test_a_batch_begins_where_the_last_one_ended() -> None:
    sent = [Message("t", 0, b"%d" % i, b"x" * 50, HEADERS) for i in range(5000)]
    found, first = [], 0
    while first < len(sent):
        batch = builder(20_000)
        first += fill(batch, sent, first, NOW_MS)
        assert batch.size() <= 20_000
        found += [int(record.key) for record in DefaultRecordBatch(bytes(batch.build()))]
    assert found == list(range(5000))


@pytest.mark.parametrize("value", [0, 63, 64, 8191, 8192, 2**20, 2**31 - 1])
def test_numbers_are_written_as_the_library_writes_them(value: int) -> None:
    from kafka.record.util import encode_varint

    theirs = bytearray()
    encode_varint(value, theirs.append)
    assert varint(value) == bytes(theirs)


def of(topic: str, n: int, size: int = 200) -> list[Message]:
    """`n` messages for each of two partitions, in turn."""
    return [Message(topic, i % 2, b"k", b"%05d" % i + b"x" * size, HEADERS) for i in range(2 * n)]


@pytest.mark.kafka
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_what_was_sent_is_read_in_order(kafka: Kafka, compression: str | None) -> None:
    settings = kafka.settings(partitions=2, batch_bytes=8_192, compression=compression)
    source, sink = connect(settings)
    sent = of(settings.topics.verdicts, 12_000)  # more than are handed over at once
    sink._producer.publish(sent, {}, source.consumer)
    sink.close()
    source.close()
    found = kafka.read(settings, settings.topics.verdicts)
    for partition, records in found.items():
        mine = [message for message in sent if message.partition == partition]
        assert [record.value for record in records] == [message.value for message in mine]
        assert {record.headers for record in records} == {tuple(HEADERS)}
        assert all(abs(time.time() * 1000 - r.timestamp_ms) < 600_000 for r in records)


@pytest.mark.kafka
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_topic_that_takes_less_than_it_should_is_named_at_once(
    kafka: Kafka, delivery: str
) -> None:
    settings = kafka.settings(partitions=2, delivery=delivery)
    kafka.set_limit(settings.topics.verdicts, 20_000)
    source, sink = connect(settings)
    began = time.monotonic()
    with pytest.raises(ConnectorError, match=r"raise the topic's max\.message\.bytes") as refused:
        sink._producer.publish(of(settings.topics.verdicts, 500), {}, source.consumer)
    assert not refused.value.retriable
    assert time.monotonic() - began < 5
    sink.close()
    source.close()
    if delivery == "exactly_once":
        assert kafka.count(settings, settings.topics.verdicts) == 0


@pytest.mark.kafka
def test_nothing_is_sent_outside_a_transaction_or_after_the_end(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=2)
    producer = PythonProducer(settings, "a")
    batches = Batches(producer._producer)
    with pytest.raises(KafkaError, match="Cannot call send in state READY"):
        batches.send(of(settings.topics.verdicts, 10))
    producer._producer.begin_transaction()
    assert batches.send([]) == []
    producer.close()
    with pytest.raises(KafkaError):
        batches.send(of(settings.topics.verdicts, 10))
    assert kafka.count(settings, settings.topics.verdicts) == 0
