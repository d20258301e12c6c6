"""Whatever a record holds, it becomes a verdict or a dead letter, and the next record is read.

The batches are written by hand, as no client library would, and sent to a real broker.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka.record.memory_records import MemoryRecords
from kafka_harness import Kafka, Workers, run_here
from raw_batches import CODECS, Raw, batch, produce
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.topic_to_topic import DeadLetter, list_dead_letters
from rejex_connectors.kafka.unpacking import TOO_LARGE, Unread
from test_kafka_delivery import CLIENTS, CONFLUENT

from rejex_stream.types import Partition
from tests.soak_results import record
from tests.waiting import until

pytestmark = pytest.mark.kafka

WIDE = {"input": {"max.message.bytes": "12000000"}}
BOMB_BYTES = 400_000_000
MEMORY = 250_000_000
"""Bytes that a worker of these tests may allocate, beside what it has when it starts."""


def good(number: int) -> Raw:
    return Raw(b"s", json.dumps({"sensor": "s", "t": number, "v": number}).encode())


def unpack(
    kafka: Kafka, folder: Path, settings: KafkaSettings, ends: Sequence[int], *batches: bytes
) -> list[DeadLetter]:
    """Send batches, and let a worker with little memory read them; returns the dead letters."""
    (topic,) = settings.topics.input
    produce(kafka.bootstrap, topic, 0, *batches)
    with Workers(folder) as workers:
        for end in ends:
            worker = workers.start(settings, memory=MEMORY)
            here = {Partition(topic, 0): end}
            until(lambda: kafka.committed(settings) == here, lambda: worker.output)  # noqa: B023
            if end != ends[-1]:
                worker.kill()  # so that the next one replays it
                produce(kafka.bootstrap, topic, 0, batch([good(4)]))
        assert worker.terminate() == 0
    return list(list_dead_letters(settings))


def judged(kafka: Kafka, settings: KafkaSettings) -> list[int]:
    found = kafka.read(settings, settings.topics.verdicts)[0]
    return [int(dict(r.headers)["ce_id"].rsplit(b"-", 1)[1].split(b"@")[0]) for r in found]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_header_whose_name_is_not_text_costs_nothing_but_the_headers(
    kafka: Kafka, client: str, codec: str
) -> None:
    """What we write is packed so, too: nobody chooses the codec of a topic that another fills."""
    options = {"compression.type": codec.removeprefix("raw ")}
    settings = kafka.settings(partitions=1, client=client, options=options)
    (topic,) = settings.topics.input
    odd = [(b"\xff\xfe", b"1"), (b"traceparent", b"00-1")]
    records = [good(0), good(1)._replace(headers=odd), Raw(b"k", b"?", odd), good(3)]
    produce(kafka.bootstrap, topic, 0, batch(records, codec))
    run_here(settings, {Partition(topic, 0): 4})
    assert judged(kafka, settings) == [0, 1, 3]
    (letter,) = list_dead_letters(settings)
    assert letter.original.position.offset == 2
    assert (letter.original.key, letter.original.value) == (b"k", b"?")
    assert letter.original.headers == (("rejex.unreadable.headers", b"a name is not UTF-8"),)


@pytest.mark.parametrize(("reader", "codec"), [
    pytest.param("kafka-python", "gzip", marks=pytest.mark.long), ("kafka-python", "snappy"),
    pytest.param("kafka-python", "lz4", marks=pytest.mark.long), ("kafka-python", "zstd"),
    pytest.param("confluent", "zstd", marks=CONFLUENT),
])  # fmt: skip
def test_a_record_that_unpacks_to_hundreds_of_megabytes_is_a_dead_letter(
    kafka: Kafka, tmp_path: Path, reader: str, codec: str
) -> None:
    """librdkafka refuses zstd above receive.message.max.bytes, and tries the batch for ever."""
    settings = kafka.settings(partitions=1, client=reader, config=WIDE)
    size = 200_000_000 if "snappy" in codec else BOMB_BYTES  # snappy packs to a 20th at best
    bomb, ends = Raw(b"k", bytes(size)), (4, 5) if reader == "confluent" else (4,)
    packed = batch([good(0), bomb, good(2)], codec), batch([good(3)])
    (letter,) = unpack(kafka, tmp_path, settings, ends, *packed)
    assert judged(kafka, settings) == [0, 2, *range(3, ends[-1])]
    assert (letter.original.position.offset, letter.reason) == (1, TOO_LARGE)
    record(
        f"a bomb of {codec} ({reader})",
        size=f"one record of {size:,} bytes among five, packed to less than 12 MB",
        done_to_it=f"a worker that may take {MEMORY / 1e6:,.0f} MB reads it",
        outcome="a dead letter that says so; every other record has its verdict",
        marks="kafka",
    )


def test_a_block_of_snappy_without_pieces_costs_its_batch(kafka: Kafka, tmp_path: Path) -> None:
    settings = kafka.settings(partitions=1, config=WIDE)
    packed = batch([good(0), Raw(b"k", bytes(200_000_000)), good(2)], "raw snappy")
    letters = unpack(kafka, tmp_path, settings, (4,), packed, batch([good(3)], "raw snappy"))
    assert judged(kafka, settings) == [3]
    assert [letter.original.position.offset for letter in letters] == [0, 1, 2]
    assert {letter.stage for letter in letters} == {"read"}
    assert "a block of snappy says it is 2000000" in letters[0].reason


def test_a_poll_of_many_records_that_unpack_to_much_is_bounded_in_bytes(
    kafka: Kafka, tmp_path: Path
) -> None:
    settings = kafka.settings(partitions=1, config=WIDE)
    large = [Raw(b"k", bytes(20_000_000)) for _ in range(30)]
    packed = batch([good(0), *large, good(31)], "gzip")
    letters = unpack(kafka, tmp_path, settings, (32,), packed)
    assert judged(kafka, settings) == [0, 31], [letter.reason for letter in letters]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "raw snappy", "lz4", "zstd"])
def test_what_cannot_be_unpacked_costs_its_own_batch_only(codec: str) -> None:
    """The broker looks at what it is sent; so this is about what happened to it there."""
    cut = batch([good(0), good(1), good(2)], codec, bend=lambda packed: packed[:-9])
    short = batch([good(0), good(1)], bend=lambda records: records[:-9])
    odd = batch([good(0), good(1)], bend=lambda records: b"\xff" * 12 + records)
    for content, n in ((cut, 3), (short, 2), (odd, 2)):
        log = MemoryRecords(content + batch([good(7)], codec))
        first, second = list(log.next_batch()), list(log.next_batch())
        assert [record.offset for record in first] == list(range(n))
        assert isinstance(first[-1].headers, Unread)
        assert "cannot be unpacked from here on" in first[-1].headers.reason
        assert [record.value for record in second] == [good(7).value]


def test_a_machine_that_is_short_of_memory_condemns_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("gzip.GzipFile.read", short)
    with pytest.raises(MemoryError):
        list(MemoryRecords(batch([good(0)], "gzip")).next_batch())
