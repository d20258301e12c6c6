"""Hostile records on a real broker: each ends as a verdict or a dead letter, nothing sticks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka_harness import Kafka, Workers, assert_exactly, next_offsets, run_here
from rejex_connectors.kafka.topic_to_topic import list_dead_letters
from test_kafka_delivery import CLIENTS

from rejex_stream.types import Position, Record
from tests.waiting import until

pytestmark = pytest.mark.kafka


def event(sensor: object = "s", t: object = 1_700_000_000_000, v: object = 1.0) -> bytes:
    return json.dumps({"sensor": sensor, "t": t, "v": v}).encode()


POISON = {
    "invalid UTF-8": b'{"sensor": "\xff\xfe", "t": 1, "v": 1}', "truncated": event()[:-5],
    "nested": b"[" * 100_000, "nested objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "text for a number": event(v="high"), "a list for a number": event(v=[1]),
    "text for a time": event(t="yesterday"), "a time without end": event(t=10**400),
    "10 MB": b'{"sensor": "s", "pad": "' + b"x" * 10_000_000 + b'"}', "empty": b"",
    "no sensor": b'{"t": 1, "v": 1}', "an empty sensor": event(sensor=""),
    "a sensor of 1 MB": event(sensor="s" * 1_000_000), "not JSON": b"\x00\x01\x02",
    "a bare number": b"7",
}  # fmt: skip
GOOD = {
    "a far future": event(t=253_402_300_799_000), "a step backwards": event(t=1),
    "a missing value": event(v=None), "control characters": event(sensor="a\x00\x1b[31m\n"),
    "bidi text": event(sensor="\u202egnp.exe"),
}  # fmt: skip


def test_every_hostile_record_has_an_end_and_the_partition_goes_on(kafka: Kafka) -> None:
    settings_ = kafka.settings(partitions=1, config={"input": {"max.message.bytes": "12000000"}})
    (topic,) = settings_.topics.input
    values = [event(), *POISON.values(), *GOOD.values(), *[event(v=7.0)] * 20, event()]
    headers = (("traceparent", b"00-1"), ("binary", b"\xff\x00"), ("twice", b"1"), ("twice", b"2"))
    records = [
        Record(Position(topic, 0, i), b"key-%d" % i, value, headers)
        for i, value in enumerate(values)
    ]
    kafka.fill(settings_, records)
    run_here(settings_, next_offsets(records))
    assert_exactly(kafka, settings_, records)

    letters = list(list_dead_letters(settings_))
    assert [letter.original.position.offset for letter in letters] == list(
        range(1, 1 + len(POISON))
    )
    n_cut = 0
    for letter, (name, value) in zip(letters, POISON.items(), strict=True):
        offset = letter.original.position.offset
        assert letter.original.key == b"key-%d" % offset, name
        assert letter.original.headers == headers, name
        assert letter.reason, name
        kept = letter.original.value
        assert kept is not None
        assert kept == value or (len(value) > 1_000_000 and value.startswith(kept)), name
        n_cut += kept != value
    assert n_cut == 2


# ------------------------------------------------------------------------------------ fuzzing
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {}, optional={"sensor": JSON, "t": JSON, "v": JSON, "extra": JSON}
).map(lambda fields: json.dumps(fields).encode())


@pytest.mark.parametrize("client", CLIENTS)
def test_an_operator_steps_over_a_record_that_kills_and_the_state_is_kept(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings_ = kafka.settings(partitions=1, client=client)
    (topic,) = settings_.topics.input
    values = [event(v=13.0 if i == 60 else float(i % 7)) for i in range(100)]
    records = [Record(Position(topic, 0, i), b"s", value) for i, value in enumerate(values)]
    kafka.fill(settings_, records)
    options: dict[str, Any] = {"engine": {"kind": "chain", "deadly": 13.0}, "max_poll_records": 20}
    with Workers(tmp_path) as workers:
        for _ in range(2):
            worker = workers.start(settings_, **options)
            until(lambda: not worker.alive, worker.output)  # noqa: B023
        worker = workers.start(settings_, select="select(.v != 13)", **options)
        until(lambda: kafka.committed(settings_) == next_offsets(records), worker.output)
        assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings_, records, select="select(.v != 13)")


FINE = st.builds(event, st.sampled_from("ab"), st.integers(0, 10**13), st.none() | st.floats())
VALUES = st.none() | st.binary(max_size=60) | FIELDS | FINE | FIELDS.map(lambda raw: raw[:-2])


def test_ten_thousand_fuzzed_records_all_have_an_end(kafka: Kafka) -> None:
    examples: list[bytes | None] = []

    @settings(
        max_examples=80, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(VALUES, min_size=10, max_size=20))
    def gather(values: list[bytes | None]) -> None:
        examples.extend(values)

    gather()
    draw = random.Random(0)
    while len(examples) < 10_000:  # and bent copies of them
        value = bytearray(draw.choice(examples) or b"{}")
        for _ in range(draw.randrange(1, 4)):
            value[draw.randrange(len(value))] = draw.randrange(256)
        examples.append(bytes(value))
    settings_ = kafka.settings(partitions=2)
    (topic,) = settings_.topics.input
    ends = [0, 0]
    records = []
    for value in examples:
        partition = draw.randrange(2)
        records.append(Record(Position(topic, partition, ends[partition]), b"k", value))
        ends[partition] += 1
    kafka.fill(settings_, records)
    run_here(settings_, next_offsets(records))
    verdicts = kafka.count(settings_, settings_.topics.verdicts)
    letters = kafka.count(settings_, settings_.topics.deadletter)
    ignored = sum(record.value is None for record in records)  # tombstones
    assert verdicts + letters + ignored == len(records)
    assert min(verdicts, letters) > 50, "both kinds were met"
