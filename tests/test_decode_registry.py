"""Avro and Protobuf records of a schema registry: what each becomes, hostile ones too."""

from __future__ import annotations

import importlib
import io
import json
import math
import struct
import time
from base64 import b64encode
from decimal import Context, Decimal
from functools import partial
from pathlib import Path

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.config import load_config, parse_config
from rejex_stream.config.assembly import kafka_decoder
from rejex_stream.decode import DecidingDecoder, JsonDecoder, decode_records
from rejex_stream.decode.avro import avro_json, avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.protobuf import descriptors, protobuf_json, protobuf_reader
from rejex_stream.decode.registry_decoder import UNKNOWN_S, MisfitError, RegistryDecoder
from rejex_stream.decode.select import RegistrySelectingDecoder, Selector
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Reading
from tests import test_decode
from tests.test_decode import AT, record

assert_invalid = partial(test_decode.assert_invalid, longest=400)
PLAIN = FieldMapping(["temp", "vib"], sensor="sensor", time="ts")
NOW = 1_700_000_000_123


class Registry:
    """Schemas by id, and how often it was asked; while `down` it does not answer."""

    def __init__(self, **schemas):
        self.schemas = {int(name[1:]): schema for name, schema in schemas.items()}
        self.asked = []
        self.down = False

    def schema(self, schema_id):
        self.asked.append(schema_id)
        if self.down:
            raise ConnectorError("the registry is away", retriable=True)
        return self.schemas.get(schema_id)


# ---------------------------------------------------------------------------------------- Avro
def avro_schema(*fields, references=None, **more):
    named = [{"name": name, "type": type_} for name, type_ in fields]
    text = {"type": "record", "name": "Reading", "fields": named} | more
    inner = {name: json.dumps(schema) for name, schema in (references or {}).items()}
    return RegisteredSchema("AVRO", json.dumps(text), inner)


FLAT = avro_schema(
    ("sensor", "string"), ("ts", "long"), ("temp", ["null", "double"]), ("vib", "float")
)


def avro(schema, value, schema_id=1):
    named = {}
    for text in schema.references.values():
        fastavro.parse_schema(json.loads(text), named_schemas=named)
    parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, parsed, value)
    return b"\0" + schema_id.to_bytes(4) + payload.getvalue()


def good(**changes):
    return {"sensor": "turbine-1", "ts": NOW, "temp": 71.5, "vib": 2.0} | changes


def avro_decoder(schema, mapping=PLAIN):
    return RegistryDecoder(mapping, Registry(_1=schema), "AVRO", avro_reader)


def decode_avro(value, schema=FLAT, mapping=PLAIN, **fields):
    return avro_decoder(schema, mapping).decode(record(avro(schema, value), **fields))


def test_an_avro_record_becomes_the_reading_that_json_gives():
    for value in (good(), good(temp=None), good(temp=math.inf), good(temp=math.nan)):
        as_json = JsonDecoder(PLAIN).decode(record(json.dumps(value).encode()))
        found = decode_avro(value)
        assert repr(found) == repr(as_json)
        assert [type(number) for number in found.values] == [float, float]


def test_a_number_that_stands_for_no_value_is_missing_though_it_has_four_bytes():
    mapping = FieldMapping(["temp", "vib"], sensor="sensor", time="ts", missing=["-999.9"])
    found = decode_avro(good(temp=-999.9, vib=-999.9), mapping=mapping)
    assert repr(found) == repr(decode_avro(good(temp=None, vib=math.nan), mapping=mapping))
    assert decode_avro(good(temp=-999.8), mapping=mapping).values == (-999.8, 2.0)


def test_avro_fields_reach_into_records_maps_and_references():
    motor = {"type": "record", "name": "Motor", "fields": [{"name": "temp", "type": "int"}]}
    schema = avro_schema(
        ("sensor", "string"), ("ts", "long"), ("motor", ["null", "Motor"]),
        ("more", {"type": "map", "values": "double"}), references={"Motor": motor},
    )  # fmt: skip
    mapping = FieldMapping(
        {"temp": "motor.temp", "vib": "more.vib", "gone": "no.such"}, sensor="sensor", time="ts"
    )
    value = {"sensor": "t", "ts": 5, "motor": {"temp": 7}, "more": {"vib": 1.5}}
    found = decode_avro(value, schema, mapping)
    assert found.values[:2] == (7.0, 1.5)
    assert math.isnan(found.values[2])
    absent = decode_avro(value | {"motor": None, "more": {}}, schema, mapping)
    assert all(math.isnan(number) for number in absent.values)
    deep = FieldMapping({"temp": "ts.deep"}, sensor="sensor")
    outcome = decode_avro(value, schema, deep, timestamp_ms=5)
    assert_invalid(outcome, "ts: expected a record or a map, got 5", stage="validate")


@pytest.mark.parametrize(
    ("logical", "raw"), [("millis", NOW), ("micros", NOW * 1000 + 9), ("nanos", NOW * 10**6 + 9)]
)
@pytest.mark.parametrize("nullable", [False, True])
def test_a_declared_timestamp_has_the_unit_of_the_schema(logical, raw, nullable):
    kind = {"type": "long", "logicalType": f"timestamp-{logical}"}
    schema = avro_schema(
        ("sensor", "string"), ("ts", ["null", kind] if nullable else kind), ("temp", "double")
    )
    plain = avro_schema(
        ("sensor", "string"), ("ts", ["null", "long"] if nullable else "long"), ("temp", "double")
    )
    mapping = FieldMapping(["temp"], sensor="sensor", time="ts", time_unit="s")
    value = avro(plain, {"sensor": "s", "ts": raw, "temp": 1.0})
    assert avro_decoder(schema, mapping).decode(record(value)).event_time_ms == NOW


def test_a_decimal_is_a_number_and_other_logical_types_are_what_they_are_stored_as():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    schema = avro_schema(("sensor", {"type": "string", "logicalType": "uuid"}), ("temp", decimal))
    value = {"sensor": "6f1f6d2e-1de2-4a3b-8a6e-3c2b8f6f2b7e", "temp": Decimal("12.25")}
    found = decode_avro(value, schema, FieldMapping(["temp"], sensor="sensor"), timestamp_ms=5)
    assert found == Reading(value["sensor"], value["sensor"], 5, (12.25,), AT)


def test_what_is_no_number_in_avro_is_refused_as_in_json():
    schema = avro_schema(("sensor", "string"), ("ts", "long"), ("temp", "boolean"), ("vib", "int"))
    assert_invalid(
        decode_avro(good(temp=True, vib=1), schema), "'temp'", "expected a number", stage="validate"
    )
    assert_invalid(decode_avro(good(sensor="")), "sensor", stage="validate")
    assert_invalid(decode_avro(good(ts=10**18)), "outside the years", stage="validate")


def test_a_payload_that_does_not_fit_its_schema_says_so():
    whole = avro(FLAT, good())
    decoder = avro_decoder(FLAT)
    for length in range(5, len(whole)):
        outcome = decoder.decode(record(whole[:length]))
        assert_invalid(outcome, "does not fit schema id 1", "too early", stage="decode")
    outcome = decoder.decode(record(whole + b"xy"))
    assert_invalid(outcome, "schema id 1", "2 byte(s) are left over", stage="decode")
    outcome = decoder.decode(record(whole[:5] + b"\x04\xff\xff" + whole[15:]))
    assert_invalid(outcome, "UnicodeDecodeError", stage="decode")


def test_a_schema_that_contains_itself_is_refused_before_it_overruns_the_stack():
    schema = avro_schema(("temp", "double"), ("next", ["null", "Reading"]))
    deep = b"\0\0\0\0\1" + (b"\0" * 8 + b"\x02") * 100_000
    outcome = avro_decoder(schema, FieldMapping(["temp"], fixed_sensor="s")).decode(record(deep))
    assert_invalid(outcome, "schema id 1 cannot be used", "contains itself", stage="decode")


def within_cpu(seconds, act):
    """Return what `act` does; a bound on processor time, far above what it takes."""
    begun = time.process_time()
    found = act()
    assert time.process_time() - begun < seconds
    return found


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def zigzag(number):
    number = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def test_a_decimal_of_900_kb_costs_what_its_bytes_cost():
    """fastavro alone takes minutes for it."""
    value = HEADER + b"\x02s" + zigzag(900_000) + b"\x7f" * 900_000
    schema = avro_schema(("sensor", "string"), ("temp", DECIMAL))
    decoder = avro_decoder(schema, FieldMapping(["temp"], sensor="sensor"))
    outcome = within_cpu(5, lambda: decoder.decode(record(value, timestamp_ms=5)))
    words = "channel 'temp': expected a number, got 'a decimal of 900000 bytes'"
    assert_invalid(outcome, words, stage="validate")
    beside = avro_schema(("sensor", "string"), ("ignored", DECIMAL), ("temp", "double"))
    decoder = avro_decoder(beside, FieldMapping(["temp"], sensor="sensor"))
    value += struct.pack("<d", 2.5)
    found = within_cpu(5, lambda: decoder.decode(record(value, timestamp_ms=5)))
    assert found == Reading("s", "s", 5, (2.5,), AT)


@given(st.integers(-(10**30), 10**30), st.integers(0, 30), st.booleans())
def test_a_decimal_is_the_float_that_is_nearest(unscaled, scale, fixed):
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 31, "scale": scale}
    if fixed:
        kind |= {"type": "fixed", "name": "F", "size": 20}
    decimal = Decimal(unscaled).scaleb(-scale, Context(prec=31))
    schema = avro_schema(("temp", ["null", kind]))
    mapping = FieldMapping(["temp"], fixed_sensor="s")
    assert decode_avro({"temp": decimal}, schema, mapping, timestamp_ms=5).values == (
        float(decimal),
    )


def test_decimals_of_a_union_have_each_their_own_scale():
    tenths = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 3}
    schema = avro_schema(("temp", ["null", DECIMAL, tenths | {"scale": 1}]))
    decoder = avro_decoder(schema, FieldMapping(["temp"], fixed_sensor="s"))
    values = [
        decoder.decode(record(HEADER + payload, timestamp_ms=5)).values
        for payload in (b"\2\4\1\x2c", b"\4\1\x2c")
    ]
    assert values == [(3.0,), (30.0,)]


def test_a_decimal_too_large_for_a_float_is_missing_as_in_json():
    schema = avro_schema(("temp", DECIMAL | {"precision": 2000, "scale": 0}))
    value = HEADER + zigzag(500) + b"\x7f" * 500
    decoder = avro_decoder(schema, FieldMapping(["temp"], fixed_sensor="s"))
    assert repr(decoder.decode(record(value, timestamp_ms=5)).values) == "(nan,)"


def nested(levels, inner, wrap):
    for i in range(levels):
        inner = wrap(i, inner)
    return inner


def chain(length):
    """Records by name, each holding the next twice: 2 ** length values of no byte."""
    types = [{"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}]
    for i in range(1, length):
        fields = [{"name": name, "type": f"R{i - 1}"} for name in "ab"]
        types.append({"type": "record", "name": f"R{i}", "fields": fields})
    return {kind["name"]: kind for kind in types}, f"R{length - 1}"


NULLS = {"type": "array", "items": "null"}
EMPTY = {"type": "record", "name": "Empty", "fields": []}
HUGE = zigzag(10**12)


@pytest.mark.parametrize(("kind", "references", "payload", "words"), [
    (NULLS, {}, HUGE, "its array holds values that take hardly a byte"),
    ({"type": "array", "items": EMPTY}, {}, HUGE, "its array holds values"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, {}, HUGE, "array"),
    ({"type": "map", "values": {
        "type": "record", "name": "N", "fields": [
            {"name": f"n{i}", "type": "null"} for i in range(100)]}},
     {}, HUGE, "its map holds values that take hardly a byte"),
    ("R29", chain(30)[0], b"", "steps without a byte, more than 65536"),
    ("R99", nested(100, {}, lambda i, known: known | {f"R{i}": {
        "type": "record", "name": f"R{i}",
        "fields": [{"name": "x", "type": f"R{i - 1}" if i else "int"}]}}),
     b"\0", "nested more than 64 levels deep"),
    (nested(70, "int", lambda _, inner: {"type": "array", "items": inner}), {},
     b"\2" * 70 + b"\0" * 70, "nested more than 64 levels deep"),
    (nested(1000, "int", lambda _, inner: {"type": "array", "items": inner}), {},
     b"\2" * 1000, "nested more than 128 levels deep"),
    (nested(300, "int", lambda _, inner: [inner]), {}, b"\0" * 300, "nested more than 128"),
    ({"type": "fixed", "name": "F", "size": "x"}, {}, b"", "not an Avro schema"),
    (DECIMAL | {"scale": 10**9}, {}, b"\2\1", "a decimal has a scale from 0 to 1000"),
    ("x.Gone", {}, b"\0", "it refers to 'x.Gone', which the registry does not give"),
])  # fmt: skip
def test_a_schema_that_lets_a_short_record_take_for_ever_is_refused(
    kind, references, payload, words
):
    head = '{"type": "record", "name": "Reading", "fields": [{"name": "temp", "type": '
    text = head + dumped(kind) + "}]}"
    inner = {name: json.dumps(schema) for name, schema in references.items()}
    schema = RegisteredSchema("AVRO", text, inner)
    decoder = avro_decoder(schema, FieldMapping(["temp"], fixed_sensor="s"))
    outcome = within_cpu(5, lambda: decoder.decode(record(HEADER + payload, timestamp_ms=5)))
    assert_invalid(outcome, "schema id 1 cannot be used", words, stage="decode")


def dumped(kind):
    """json.dumps, which is recursive, for what is nested deeply in one way."""
    if isinstance(kind, list) and len(kind) == 1:
        before, after = "[", "]"
    elif isinstance(kind, dict) and kind["type"] == "array":
        before, after = '{"type": "array", "items": ', "}"
    else:
        return json.dumps(kind)
    levels = 0
    while isinstance(kind, list) or (isinstance(kind, dict) and kind["type"] == "array"):
        kind = kind[0] if isinstance(kind, list) else kind["items"]
        levels += 1
    return before * levels + json.dumps(kind) + after * levels


def test_the_work_of_a_payload_that_ends_early_counts_before_the_bytes_that_never_come():
    """A thousand records of 100 nulls each, then bytes that would have paid for them."""
    many, last = chain(16)
    schema = avro_schema(
        ("temp", last), ("paid", {"type": "fixed", "name": "F", "size": 1 << 20}), references=many,
    )  # fmt: skip
    decoder = avro_decoder(schema, FieldMapping(["paid"], fixed_sensor="s"))
    assert_invalid(decoder.decode(record(HEADER)), "steps without a byte", stage="decode")


def test_schemas_as_people_write_them_are_not_refused():
    motor = {"type": "record", "name": "Motor", "fields": [
        {"name": f"c{i}", "type": ["null", "double"], "default": None} for i in range(300)
    ]}  # fmt: skip
    deep = nested(20, "double", lambda i, inner: {
        "type": "record", "name": f"L{i}", "fields": [{"name": "in", "type": inner}]
    })  # fmt: skip
    sample = {"type": "record", "name": "Sample", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": ["null", "boolean", DECIMAL]},
    ]}  # fmt: skip
    schema = avro_schema(
        ("temp", "double"), ("a", {"type": "array", "items": motor}), ("b", deep),
        ("c", {"type": "map", "values": ["null", sample]}),
        ("d", {"type": "array", "items": {"type": "array", "items": "boolean"}}),
        ("e", {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["x"]}}),
        ("f", {"type": "array", "items": ["null", "Motor"]}),
    )  # fmt: skip
    b = 1.5
    for _ in range(20):
        b = {"in": b}
    value = {
        "temp": 2.5, "a": [{}, {"c3": 1.0}], "b": b, "c": {"k": {"at": 1, "value": True}},
        "d": [[True], []], "e": ["x"], "f": [None],
    }  # fmt: skip
    mapping = FieldMapping({"temp": "temp", "in": "b." + ".".join(["in"] * 20)}, fixed_sensor="s")
    assert decode_avro(value, schema, mapping, timestamp_ms=5).values == (2.5, 1.5)


def test_a_schema_longer_than_a_registry_would_take_is_refused():
    schema = RegisteredSchema("AVRO", FLAT.text + " " * (1 << 20), {})
    outcome = avro_decoder(schema).decode(record(avro(FLAT, good())))
    assert_invalid(outcome, "characters, more than 1048576", stage="decode")


@pytest.mark.parametrize(
    "text", ["", "{", '"long"', "[]", '{"type": "enum"}', '{"type": "record", "name": "R"}', "7"]
)
def test_a_schema_that_is_none_makes_its_records_invalid(text):
    decoder = avro_decoder(RegisteredSchema("AVRO", text, {}))
    assert_invalid(decoder.decode(record(avro(FLAT, good()))), "cannot be used", stage="decode")


# ------------------------------------------------------------------------------------ Protobuf
PROTO = """
syntax = "proto3";
package plant;
import "common.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { message Inner { double temp = 1; string sensor = 2; } }
message Reading {
  string sensor = 1;
  int64 ts = 2;
  optional double temp = 3;
  double vib = 4;
  google.protobuf.DoubleValue load = 5;
  common.Motor motor = 6;
  map<string, float> more = 7;
  repeated double list = 8;
  google.protobuf.Timestamp at = 9;
}
"""
COMMON = 'syntax = "proto3"; package common; message Motor { double temp = 1; }'
PLANT = RegisteredSchema("PROTOBUF", PROTO, {"common.proto": COMMON})
HEADER = b"\0\0\0\0\1"
SECOND = b"\x02\x02"  # one index: the second message of the file


@pytest.fixture(scope="module")
def plant():
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors(PLANT)).file:
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"plant.{name}"))
        for name in ("Reading", "Other.Inner")
    }


@pytest.mark.parametrize("described", [("plant",), ("common",), ("plant", "common")])
def test_a_schema_may_be_kept_as_its_descriptor_in_base64(plant, described):
    """So Confluent's Python producer registers it, and some registries hand it out as it came."""
    found = descriptor_pb2.FileDescriptorSet.FromString(descriptors(PLANT)).file
    (common,) = (file for file in found if file.name == "common.proto")
    text = b64encode(found[-1].SerializeToString()).decode() if "plant" in described else PROTO
    motor = b64encode(common.SerializeToString()).decode() if "common" in described else COMMON
    schema = RegisteredSchema("PROTOBUF", text, {"common.proto": motor})
    decoder = proto_decoder(FieldMapping(["vib"], sensor="sensor", time="ts"), schema)
    payload = plant["Reading"](sensor="s", ts=5, vib=2.5).SerializeToString()
    found = decoder.decode(record(HEADER + SECOND + payload))
    assert found == Reading("s", "s", 5, (2.5,), AT)


def proto_decoder(mapping=PLAIN, schema=PLANT):
    return RegistryDecoder(mapping, Registry(_1=schema), "PROTOBUF", protobuf_reader)


def test_a_protobuf_record_becomes_the_reading_that_json_gives(plant):
    decoder = proto_decoder()
    for value in (good(), good(temp=math.inf), good(temp=math.nan)):
        as_json = JsonDecoder(PLAIN).decode(record(json.dumps(value).encode()))
        payload = plant["Reading"](**value).SerializeToString()
        assert repr(decoder.decode(record(HEADER + SECOND + payload))) == repr(as_json)


def test_protobuf_tells_zero_from_missing_where_the_schema_does(plant):
    mapping = FieldMapping(
        ["temp", "vib", "load"] , fixed_sensor="s", time="at", time_unit="s"
    )  # fmt: skip
    decoder = proto_decoder(mapping)
    message = plant["Reading"]()
    message.at.FromMilliseconds(NOW)
    found = decoder.decode(record(HEADER + SECOND + message.SerializeToString()))
    assert found.event_time_ms == NOW
    assert repr(found.values) == repr((math.nan, 0.0, math.nan))
    message.temp = message.load.value = 0.0
    found = decoder.decode(record(HEADER + SECOND + message.SerializeToString()))
    assert found.values == (0.0, 0.0, 0.0)


@pytest.mark.thorough
def test_protobuf_fields_reach_into_messages_and_maps(plant):
    mapping = FieldMapping(
        {"temp": "motor.temp", "vib": "more.vib", "gone": "no.such"}, fixed_sensor="s", time="ts"
    )
    decoder = proto_decoder(mapping)
    message = plant["Reading"](ts=5, motor={"temp": 7}, more={"vib": 1.5})
    found = decoder.decode(record(HEADER + SECOND + message.SerializeToString()))
    assert repr(found.values) == repr((7.0, 1.5, math.nan))
    for field, words in (
        ("list", "a list of 2"), ("more", "an object with 1"), ("motor", "an object with 1"),
        ("vib.deep", "expected a message or a map"),
    ):  # fmt: skip
        message = plant["Reading"](ts=5, motor={"temp": 7}, more={"vib": 1.5}, list=[1, 2])
        odd = proto_decoder(FieldMapping({"temp": field}, fixed_sensor="s", time="ts"))
        outcome = odd.decode(record(HEADER + SECOND + message.SerializeToString()))
        assert_invalid(outcome, words, stage="validate")


def test_maps_are_read_by_the_texts_of_their_keys():
    maps = "map<int32, double> numbered = 1; map<string, double> named = 2;"
    schema = RegisteredSchema("PROTOBUF", f'syntax = "proto3"; message R {{ {maps} }}', {})
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors(schema)).file:
        pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("R"))
    payload = make(numbered={1: 1.0}, named={"1": 6.0, "true": 7.0}).SerializeToString()
    mapping = FieldMapping(["named.1", "named.true", "named.x", "numbered.1"], fixed_sensor="s")
    decoder = proto_decoder(mapping, schema)
    found = decoder.decode(record(HEADER + b"\0" + payload, timestamp_ms=5))
    assert repr(found.values) == repr((6.0, 7.0, math.nan, 1.0))


def test_an_enum_is_a_number_in_a_channel_and_a_name_in_json():
    text = 'syntax = "proto3"; enum K { A = 0; B = 2; } message R { K k = 1; }'
    schema = RegisteredSchema("PROTOBUF", text, {})
    value = record(HEADER + b"\0\x08\x02", timestamp_ms=5)
    mapping = FieldMapping(["k"], fixed_sensor="s")
    assert proto_decoder(mapping, schema).decode(value).values == (2.0,)
    assert json.loads(protobuf_json(schema, mapping)(value)) == {"k": "B"}


def test_text_that_is_no_utf8_is_invalid_in_proto2_as_well():
    schema = RegisteredSchema(
        "PROTOBUF", 'syntax = "proto2"; message R { optional string s = 1; }', {}
    )
    decoder = proto_decoder(FieldMapping(["x"], sensor="s"), schema)
    outcome = decoder.decode(record(HEADER + b"\0\x0a\x02\xff\xff", timestamp_ms=5))
    assert_invalid(outcome, "expected a name", stage="validate")


@pytest.mark.parametrize("name", ["", ".", "a\0b", "x" * 300, "/etc/x.proto", "common.proto/x"])
def test_references_that_can_be_no_file_are_refused(name):
    schema = RegisteredSchema("PROTOBUF", PROTO, {"common.proto": COMMON, name: COMMON})
    outcome = proto_decoder(schema=schema).decode(record(HEADER + SECOND))
    assert_invalid(outcome, "schema id 1 cannot be used", stage="decode")


def test_a_disk_without_room_for_protoc_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    decoder = proto_decoder()
    with pytest.raises(ConnectorError, match="protoc cannot be run: No such file") as caught:
        decoder.decode(record(HEADER + SECOND))
    assert caught.value.retriable
    monkeypatch.undo()
    outcome = decoder.decode(record(HEADER + SECOND))
    assert_invalid(outcome, "sensor: expected 1 to", stage="validate")


def test_message_indexes_choose_the_message(plant):
    decoder = proto_decoder(FieldMapping(["temp"], sensor="sensor"))
    inner = plant["Other.Inner"](temp=3.5, sensor="x").SerializeToString()
    found = decoder.decode(record(HEADER + b"\x04\x00\x00" + inner, timestamp_ms=5))
    assert found == Reading("x", "x", 5, (3.5,), AT)
    # A zero is short for the first message, which has neither sensor nor channel.
    first = decoder.decode(record(HEADER + b"\x00", timestamp_ms=5))
    assert_invalid(first, "sensor: expected a name, got nothing", stage="validate")


@pytest.mark.parametrize(("tail", "words"), [
    (b"", "message indexes are broken"), (b"\x02", "message indexes are broken"),
    (b"\x01", "message indexes are broken"), (b"\xff" * 9, "message indexes are broken"),
    (b"\xfe\xff\xff\xff\x0f", "message indexes are broken"), (b"\x02\x08", "no message at [4]"),
    (b"\x02\x01", "no message at [-1]"), (b"\x04\x02\x06", "no message at [1, 3]"),
    (SECOND + b"\xff\xff", "broken, or of another message"),
    (SECOND + b"\x0a\x02\xff\xff", "broken, or of another message"),
])  # fmt: skip
def test_a_protobuf_payload_that_does_not_fit_says_so(tail, words):
    outcome = proto_decoder().decode(record(HEADER + tail))
    assert_invalid(outcome, "does not fit schema id 1", words, stage="decode")


@pytest.mark.parametrize(("schema", "words"), [
    (RegisteredSchema("PROTOBUF", "message {", {}), "protoc says"),
    (RegisteredSchema("PROTOBUF", PROTO, {}), "common.proto"),
    (RegisteredSchema("PROTOBUF", PROTO, {"../common.proto": COMMON}), "outside"),
])  # fmt: skip
def test_a_protobuf_schema_that_is_none_makes_its_records_invalid(schema, words):
    outcome = proto_decoder(schema=schema).decode(record(HEADER + SECOND))
    assert_invalid(outcome, "schema id 1 cannot be used", words, stage="decode")


# --------------------------------------------------------------------------- the registry's part
@pytest.mark.parametrize(("value", "words", "stage"), [
    (None, "tombstone", "ignored"), (b"", "empty", "decode"),
    (b'{"sensor": 1}', "it looks like JSON", "decode"), (b"\x01\0\0\0\1x", "got 0x01", "decode"),
    (b"\0\0\0", "ends within the schema's id, after 3 bytes", "decode"),
    (b"\0\xff\xff\xff\xffx", "schema id 4294967295 is not in the registry", "decode"),
    (b"\0\0\0\0\x01" + b"x" * (1 << 20), "more than max_value_bytes", "decode"),
])  # fmt: skip
def test_a_record_that_can_have_no_schema_asks_nobody(value, words, stage):
    registry = Registry(_1=FLAT)
    decoder = RegistryDecoder(PLAIN, registry, "AVRO", avro_reader)
    assert_invalid(decoder.decode(record(value)), words, stage=stage)
    assert registry.asked == []


def test_a_schema_is_asked_for_once_and_an_unknown_id_not_all_the_time():
    now = [0.0]
    registry = Registry(_1=FLAT)
    decoder = RegistryDecoder(PLAIN, registry, "AVRO", avro_reader, clock=lambda: now[0])
    for _ in range(3):
        assert isinstance(decoder.decode(record(avro(FLAT, good()))), Reading)
        outcome = decoder.decode(record(avro(FLAT, good(), schema_id=77)))
        assert_invalid(outcome, "schema id 77 is not in the registry", stage="decode")
    assert registry.asked == [1, 77]
    registry.schemas[77] = FLAT
    now[0] = UNKNOWN_S
    assert isinstance(decoder.decode(record(avro(FLAT, good(), schema_id=77))), Reading)
    assert registry.asked == [1, 77, 77]


def test_while_the_registry_is_away_nothing_is_taken_for_broken():
    registry = Registry(_1=FLAT, _2=FLAT)
    decoder = RegistryDecoder(PLAIN, registry, "AVRO", avro_reader)
    assert isinstance(decoder.decode(record(avro(FLAT, good()))), Reading)
    registry.down = True
    for _ in range(2):
        with pytest.raises(ConnectorError) as caught:
            decoder.decode(record(avro(FLAT, good(), schema_id=2)))
        assert caught.value.retriable
    assert isinstance(decoder.decode(record(avro(FLAT, good()))), Reading), "known schemas go on"
    registry.down = False
    assert isinstance(decoder.decode(record(avro(FLAT, good(), schema_id=2))), Reading)


def test_a_schema_of_another_kind_is_named():
    registry = Registry(_1=PLANT, _2=RegisteredSchema("JSON", "{}", {}))
    decoder = RegistryDecoder(PLAIN, registry, "AVRO", avro_reader)
    for schema_id, kind in ((1, "PROTOBUF"), (2, "JSON")):
        outcome = decoder.decode(record(avro(FLAT, good(), schema_id)))
        words = f"schema id {schema_id} is {kind}, but input.format is 'avro'"
        assert_invalid(outcome, words, stage="decode")


# -------------------------------------------------------------------------------------- config
CONFIG = """
[input]
kind = "kafka"
topics = ["readings"]
format = "avro"
channels = ["temp"]
[rejection]
contamination = 0.02
tolerance = 8
[schema_registry]
url = "http://localhost:8081"
"""


def test_the_formats_of_a_registry_are_checked_against_the_other_settings():
    assert parse_config(CONFIG)[1] == ()
    example = load_config(Path(__file__).parent.parent / "examples" / "avro.toml")
    assert kafka_decoder(example).channels == ("level", "flow")
    for before, after, words in (
        ('format = "avro"', "", "input.format is 'auto'"),
        ('format = "avro"', 'format = "csv"', "csv is for kind = 'file'"),
        ('url = "http://localhost:8081"', "", "url is missing"),
        ('url = "http://localhost:8081"', 'url = "localhost"', "schema_registry.url"),
        ("8081\"", '8081"\nusername = "ada"', "go together"),
        ("8081\"", '8081"\npassword = "s3cret"', "go together"),
        ("http://", "http://ada:s3cret@", "without a login in it"),
        ('kind = "kafka"\ntopics = ["readings"]', 'path = "a.csv"\ntime = "t"',
         "avro is for kind = 'kafka'"),
    ):  # fmt: skip
        assert before in CONFIG
        said = " ".join(map(str, parse_config(CONFIG.replace(before, after))[1]))
        assert words in said
        assert "s3cret" not in said


@pytest.mark.parametrize(("kind", "missing"), [("avro", "fastavro"), ("protobuf", "grpc_tools")])
def test_a_missing_extra_is_named(monkeypatch, kind, missing):
    config, _ = parse_config(CONFIG.replace('"avro"', f'"{kind}"'))
    assert kafka_decoder(config).channels == ("temp",)
    real = importlib.import_module

    def without(name, package=None):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    monkeypatch.setattr("rejex_stream.config.assembly.edges.import_module", without)
    with pytest.raises(ConfigError, match=rf"needs {missing}.*rejex-stream\[registry\]"):
        kafka_decoder(config)


# ------------------------------------------------------------------- as JSON, for input.select
READINGS = ".machine as $m | .readings[] | . + {machine: $m}"
SELECTED = FieldMapping(["temp", "vib"], sensor="machine", time="t")


def selecting(schema, kind, compile_schema, program=READINGS, mapping=SELECTED):
    pytest.importorskip("jq")
    registry = RegistryDecoder(mapping, Registry(_1=schema), kind, compile_schema)
    return RegistrySelectingDecoder(Selector(program), JsonDecoder(mapping), registry)


BURST = avro_schema(
    ("machine", "string"),
    ("readings", {"type": "array", "items": {"type": "record", "name": "One", "fields": [
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temp", "type": ["null", DECIMAL]}, {"name": "vib", "type": "double"},
    ]}}),
    ("raw", {"type": "fixed", "name": "Raw", "size": 2}),
    ("state", {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}),
)  # fmt: skip
BURST_VALUE = {
    "machine": "m",
    "readings": [
        {"t": 5, "temp": Decimal("12.25"), "vib": 1.5},
        {"t": 6, "temp": None, "vib": math.nan},
    ],
    "raw": b"\0\xff",
    "state": "ON",
}


def test_a_program_makes_readings_of_an_avro_record():
    decoder = selecting(BURST, "AVRO", avro_json)
    value = avro(BURST, BURST_VALUE)
    records, found = decode_records(decoder, [record(value), record(None)])
    assert repr([(one.sensor, one.event_time_ms, one.values) for one in found[:2]]) == repr(
        [("m", 5, (12.25, 1.5)), ("m", 6, (math.nan, math.nan))]
    )
    assert [str(one.position) for one in records] == ["input-3-14", "input-3-14.1", "input-3-14"]
    assert found[2].silent
    assert records[1].value != value
    said = 'if .raw == "AP8=" and .state == "ON" then {t: 1, temp: 1, vib: 1, machine: "x"} else 1'
    (one,) = decode_records(selecting(BURST, "AVRO", avro_json, f"{said} end"), [record(value)])[1]
    assert one.sensor == "x"


@pytest.mark.parametrize("cut", [0, 3, 5, 9, 30])
def test_an_avro_record_that_cannot_be_read_is_no_json(cut):
    (found,) = decode_records(
        selecting(BURST, "AVRO", avro_json), [record(avro(BURST, BURST_VALUE)[:cut])]
    )[1]
    assert_invalid(found, stage="decode")


def test_a_decimal_beyond_the_bounds_is_a_text_in_json_and_costs_nothing():
    decoder = selecting(BURST, "AVRO", avro_json)
    tail = b"\2m\2\12\2" + zigzag(900_000) + b"\x7f" * 900_000 + bytes(8) + b"\0\0\0\0"
    with_long = record(b"\0\0\0\0\1" + tail)
    (found,) = within_cpu(2, lambda: decode_records(decoder, [with_long]))[1]
    assert_invalid(found, "expected a number, got 'a decimal of 900000 bytes'", stage="validate")


def test_a_program_makes_readings_of_a_protobuf_record(plant):
    program = "{machine: .sensor, t: .at, temp: .motor.temp, vib: .list[]}"
    mapping = FieldMapping(["temp", "vib"], sensor="machine", time="t", time_unit="iso8601")
    decoder = selecting(PLANT, "PROTOBUF", protobuf_json, program, mapping)
    message = plant["Reading"](sensor="s", list=[1.5, math.nan])
    message.motor.temp = 7.0
    message.at.FromMilliseconds(NOW)
    value = HEADER + SECOND + message.SerializeToString()
    found = decode_records(decoder, [record(value)])[1]
    assert repr([(one.event_time_ms, one.values) for one in found]) == repr(
        [(NOW, (7.0, 1.5)), (NOW, (7.0, math.nan))]
    )
    assert_invalid(decode_records(decoder, [record(value[:-1])])[1][0], "is broken", stage="decode")


def test_protobuf_as_json_has_numbers_names_and_nothing_for_what_is_missing(plant):
    message = plant["Reading"](sensor="s", ts=2**53 + 1, vib=0.0)
    message.more["a"] = 1.5
    message.load.value = 0.0
    make = protobuf_json(PLANT, PLAIN)
    found = make(record(HEADER + SECOND + message.SerializeToString()))
    assert json.loads(found) == {
        "sensor": "s", "ts": 2**53 + 1, "vib": 0.0, "load": 0.0, "more": {"a": 1.5}, "list": []
    }  # fmt: skip


def test_what_a_program_reads_by_is_decided_once_a_partition():
    decoder = selecting(BURST, "AVRO", avro_json)
    value = avro(BURST, BURST_VALUE)
    assert isinstance(decoder, DecidingDecoder)
    alone = decoder.of_partition(None, decided_until=0)
    before = decoder.of_partition(alone.decisions(), decided_until=15)
    (unknown,) = decode_records(before, [record(value)])[1]
    assert_invalid(unknown, "was not in the registry when this was first read", stage="decode")
    assert len(decode_records(alone, [record(value)])[1]) == 2
    again = decoder.of_partition(alone.decisions(), decided_until=14)
    decoder._registry._schemas._registry.down = True
    assert len(decode_records(again, [record(value)])[1]) == 2
    fresh = selecting(BURST, "AVRO", avro_json)
    fresh._registry._schemas._registry.down = True
    with pytest.raises(ConnectorError, match="away"):
        decode_records(fresh, [record(value)])


def test_a_registrys_records_have_a_program_and_what_only_json_has_is_led_to_it():
    pytest.importorskip("jq")
    with_program = CONFIG.replace('format = "avro"', 'format = "avro"\nselect = "."\ntag = "name"')
    config, problems = parse_config(with_program)
    assert problems == ()
    assert isinstance(kafka_decoder(config), RegistrySelectingDecoder)
    for line in ('tag = "name"', 'partial = "hold_last"', 'quality = {field = "{channel}_q"}'):
        said = parse_config(CONFIG.replace('format = "avro"', f'format = "avro"\n{line}'))[1]
        assert "give select = '.'" in " ".join(map(str, said)), line


@pytest.mark.thorough
def test_a_short_protobuf_record_makes_no_endless_json():
    fields = " ".join(f"double f{i} = {i};" for i in range(1, 1001))
    text = f'syntax = "proto3"; message One {{ {fields} }} message All {{ repeated One ones = 1; }}'
    make = protobuf_json(RegisteredSchema("PROTOBUF", text, {}), PLAIN)
    value = HEADER + b"\2\2" + b"\x0a\0"
    assert len(json.loads(make(record(value)))["ones"][0]) == 1000
    with pytest.raises(MisfitError, match="more than 1048576 fields"):
        within_cpu(20, lambda: make(record(value + b"\x0a\0" * 400_000)))


def test_several_fields_of_a_schema_make_the_name_of_a_sensor(plant):
    mapping = FieldMapping(["vib"], sensor=["sensor", "ts"], time="ts")
    assert decode_avro(good(ts=7), mapping=mapping).sensor == "turbine-1/7"
    value = HEADER + SECOND + plant["Reading"](sensor="s", ts=7, vib=1.5).SerializeToString()
    assert proto_decoder(mapping).decode(record(value)).sensor == "s/7"
