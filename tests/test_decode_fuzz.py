"""Thousands of mutated payloads a format: a reading or a dead letter each, in bounded time."""

from __future__ import annotations

import io
import json
import random
import time

import fastavro
import pytest

from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.protobuf import protobuf_reader
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Invalid, Position, Reading, Record

AT = Position("input", 3, 14)
HEADER = b"\0\0\0\0\1"
MAPPING = FieldMapping({"temp": "temp", "vib": "more.vib"}, sensor="sensor", time="ts")
NASTY = (
    b"\xff" * 10, b"\xff" * 9 + b"\x7f", b"\xfe\xff\xff\xff\x0f", b"\0" * 64, b"[" * 70,
    b'{"a":' * 70, b'"' * 9, b"\\", b"\\ud800", b"9" * 5000, b"-1e999", b"NaN", b"null",
    b"\xed\xa0\x80", b"\n", b",", b'"sensor":', b"\x0b" * 200,
    b"\x0c" * 200, b"\x12\x80\x80\x80\x80\x08",
)  # fmt: skip

AVRO = {
    "type": "record", "name": "Reading", "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temp", "type": ["null", "double", {
            "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}]},
        {"name": "more", "type": {"type": "map", "values": ["null", "float"]}},
        {"name": "rows", "type": {"type": "array", "items": {"type": "array", "items": "boolean"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
    ],
}  # fmt: skip
PROTO = """syntax = "proto2";
message Reading {
  optional string sensor = 1; optional int64 ts = 2; optional double temp = 3;
  map<string, double> more = 4; repeated Reading again = 5; optional group Old = 6 {
    optional bytes raw = 7; }
}"""


class Registry:
    def __init__(self, schema):
        self._schema = schema

    def schema(self, _):
        return self._schema


def from_avro():
    payload = io.BytesIO()
    value = {
        "sensor": "m-1", "ts": 1_700_000_000_000, "temp": 2.5, "more": {"vib": 1.5, "x": None},
        "rows": [[True, False], []], "kind": "b", "raw": b"abc",
    }  # fmt: skip
    fastavro.schemaless_writer(payload, AVRO, value)
    registry = Registry(RegisteredSchema("AVRO", json.dumps(AVRO), {}))
    return RegistryDecoder(MAPPING, registry, "AVRO", avro_reader), HEADER + payload.getvalue()


def from_protobuf():
    registry = Registry(RegisteredSchema("PROTOBUF", PROTO, {}))
    vib = b"\x22\x0e\x0a\x03vib\x11" + b"\0" * 6 + b"\xf8\x3f"
    again = b"\x2a\x05\x0a\x03abc" * 3 + b"\x33\x3a\x01x\x34"
    payload = b"\x0a\x03m-1\x10\x80\xd0\x95\xff\xbc\x31\x19" + b"\0" * 6 + b"\x04\x40" + vib + again
    decoder = RegistryDecoder(MAPPING, registry, "PROTOBUF", protobuf_reader)
    return decoder, HEADER + b"\0" + payload


def from_json():
    value = {
        "sensor": "m-1", "ts": 5, "temp": 2.5, "more": {"vib": 1.5}, "x": [[1, "é" * 40], None],
    }  # fmt: skip
    return JsonDecoder(MAPPING), json.dumps(value).encode()


def from_csv():
    mapping = FieldMapping(["temp", "vib"], sensor="sensor", time="ts", time_unit="iso8601")
    row = b'm-1,2024-01-01T00:00:00Z,2.5,"1.5","a ""b"""'
    return CsvDecoder(mapping, ("sensor", "ts", "temp", "vib", "note")), row


def mutated(chance, whole):
    value = bytearray(whole)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(value))
        match chance.randrange(6):
            case 0 if at < len(value):
                value[at] = chance.randrange(256)
            case 1:
                del value[at : at + chance.randint(1, 8)]
            case 2:
                value[at:at] = chance.choice(NASTY)
            case 3:
                value[at:at] = value[at : at + 20] * chance.randint(1, 40)
            case 4:
                del value[at:]
            case _:
                value[at:at] = chance.randbytes(chance.randint(1, 9))
    return bytes(value)


@pytest.mark.parametrize("make", [from_avro, from_protobuf, from_json, from_csv])
def test_whatever_a_payload_holds_it_is_a_reading_or_a_dead_letter(make):
    decoder, whole = make()
    chance = random.Random(20_260_101)
    fixed = len(HEADER) if whole.startswith(HEADER) else 0
    assert isinstance(decoder.decode(Record(AT, None, whole, (), 5)), Reading)
    begun, seen = time.process_time(), {Reading: 0, Invalid: 0}
    for _ in range(5_000):
        value = whole[:fixed] + mutated(chance, whole[fixed:])
        outcome = decoder.decode(Record(AT, None, value, (), 5))
        seen[type(outcome)] += 1
        assert outcome.position == AT
        if isinstance(outcome, Invalid):
            assert outcome.reason.isprintable()
            assert len(outcome.reason) < 400
    assert time.process_time() - begun < 15
    assert min(seen.values()) > 100, seen  # else the mutations were too weak or too strong


READABLE = b'{"sensor":"a","ts":1,"temp":2.5,"more":{"vib":1}}'
TOGETHER = (
    # What is broken alone, and as many values as records together.
    (READABLE + b" " + READABLE, b" "),
    (READABLE + b"\n" + READABLE, b""),
    (READABLE[:-1] + b',"x":[{}', b"{}]}", READABLE + READABLE),
    (READABLE[:-1] + b",", READABLE[1:], READABLE + b"\n" + READABLE),
    (READABLE[:-1] + b',"x":"}', b'{"}', READABLE + READABLE),
    (b" " + READABLE, READABLE + b"\n", None),
    (READABLE.replace(b",", b",\n"),),
    (READABLE.replace(b"2.5", b"null"), READABLE.replace(b"1}", b"NaN}")),
    (READABLE.replace(b"{", b'{"x":' + b"[" * 65 + b"]" * 65 + b",", 1),),
    (READABLE.replace(b"{", b'{"x":' + b"[" * 60 + b"]" * 60 + b",", 1),) * 9,
    (READABLE.replace(b'"a"', b'"' + b"a" * 257 + b'"'),),
    (READABLE.replace(b'"a"', b'"a\\u001fb"'),),
    (READABLE.replace(b"1,", b"9e15,"), READABLE.replace(b'"ts":1,', b"")),
    (READABLE.replace(b'{"vib":1}', b"null"), READABLE.replace(b'{"vib":1}', b"5")),
    (READABLE.replace(b"a", b"\xff"), READABLE.replace(b"a", "é".encode())),
    (b"[" + READABLE + b"]", b"null", b"x"),
)


@pytest.mark.parametrize("together", TOGETHER)
def test_records_decoded_at_once_become_what_each_becomes_alone(together):
    decoder, _ = from_json()
    values = [READABLE, *together, READABLE, *reversed(together), *[READABLE] * 200, *together]
    records = [Record(AT._replace(offset=i), None, v, (), 5) for i, v in enumerate(values)]
    alone = [decoder.decode(record) for record in records]
    assert repr(decoder.decode_all(records)) == repr(alone)  # nan is not itself
    for record, one in zip(records, alone, strict=True):
        assert repr(decoder.decode_all([record])) == repr([one])


def test_records_decoded_at_once_become_what_each_becomes_alone_whatever_they_hold():
    decoder, whole = from_json()
    chance = random.Random(20_260_102)
    for _ in range(1_000):
        values = [whole if chance.random() < 0.8 else mutated(chance, whole) for _ in range(9)]
        records = [Record(AT, None, value, (), 5) for value in values]
        alone = [decoder.decode(record) for record in records]
        assert repr(decoder.decode_all(records)) == repr(alone)


def test_a_name_that_is_met_again_is_checked_again_where_too_many_were(monkeypatch):
    monkeypatch.setattr("rejex_stream.decode.mapping._MAX_NAMES", 3)
    decoder = JsonDecoder(FieldMapping(["v"], sensor="s", groups={f"s{i}": "g" for i in range(7)}))
    values = [b'{"s":"s%d","v":1}' % (i % 7) for i in range(50)]
    found = decoder.decode_all([Record(AT, None, value, (), 5) for value in values])
    assert [(r.sensor, r.stream_key) for r in found] == [(f"s{i % 7}", "g") for i in range(50)]
    assert len(decoder._trees.names) <= 3
    assert isinstance(decoder.decode(Record(AT, None, b'{"s":"","v":1}', (), 5)), Invalid)


@pytest.mark.parametrize("make", [from_avro, from_json, from_csv, from_protobuf])
def test_a_stack_that_is_nearly_full_is_no_crash(make):
    """Parsers are recursive: how deep they get depends on who called."""
    decoder, whole = make()
    if make is from_json:
        whole = whole[:-1] + b', "deep": ' + b"[" * 60 + b"]" * 60 + b"}"
    at_hand = Record(AT, None, whole, (), 5)
    assert isinstance(decoder.decode(at_hand), Reading)
    asked, outcomes = [], []

    def dig(left):
        if left:
            dig(left - 1)
            return
        try:
            has_room(20)
        except RecursionError:
            return
        asked.append(left)
        outcomes.append(decoder.decode(at_hand))

    def has_room(frames):
        if frames:
            has_room(frames - 1)

    for depth in range(700, 1000):
        try:
            dig(depth)
        except RecursionError:
            assert len(asked) == len(outcomes), "it came out of the decoder"
            break
    reasons = {found.reason for found in outcomes if isinstance(found, Invalid)}
    assert len(outcomes) > 100
    assert all("RecursionError" in reason or "is broken" in reason for reason in reasons)
    assert bool(reasons) == (make is from_json), "only there the payload is deep"
