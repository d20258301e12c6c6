"""Bytes to readings: what each hostile record becomes."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.decode import CsvDecoder, JsonDecoder, parse_csv_header
from rejex_stream.decode.mapping import (
    ABSENT,
    FieldMapping,
    Quality,
    Unreadable,
    printable,
    to_epoch_ms,
)
from rejex_stream.errors import ConfigError
from rejex_stream.types import Invalid, Position, Reading, Record

AT = Position("input", 3, 14)
PLAIN = FieldMapping(["temp", "vib"], sensor="sensor", time="ts")
NESTED = FieldMapping(
    {"temp": "motor.temp", "vib": r"motor.vib\.rms"}, sensor="meta.id", time="ts", time_unit="s"
)


def record(value, **fields):
    if isinstance(value, dict | list):
        value = json.dumps(value).encode()
    return Record(AT, fields.pop("key", None), value, **fields)


def decode(value, mapping=PLAIN, **fields):
    return JsonDecoder(mapping).decode(record(value, **fields))


def good(**changes):
    return {"sensor": "turbine-1", "ts": 1_700_000_000_123, "temp": 71.5, "vib": 2} | changes


def assert_invalid(outcome, *words, stage=None, longest=250):
    assert isinstance(outcome, Invalid), outcome
    assert outcome.position == AT
    for word in words:
        assert word in outcome.reason
    assert outcome.reason.isprintable()
    assert len(outcome.reason) < longest
    assert stage in (None, outcome.stage)


# ------------------------------------------------------------------------------- good records
def test_a_plain_record_becomes_a_reading_with_its_position():
    reading = decode(good())
    assert reading == Reading("turbine-1", "turbine-1", 1_700_000_000_123, (71.5, 2.0), AT)
    assert [type(value) for value in reading.values] == [float, float]


def test_dots_reach_into_nested_objects_and_escaped_dots_stay_in_the_name():
    value = {"meta": {"id": "t1"}, "ts": 1.5, "motor": {"temp": 3, "vib.rms": 4}}
    assert decode(value, NESTED) == Reading("t1", "t1", 1500, (3.0, 4.0), AT)


def test_a_missing_parent_object_makes_its_channels_missing():
    for motor in ({}, {"motor": None}):
        reading = decode({"meta": {"id": "t1"}, "ts": 1, **motor}, NESTED)
        assert all(map(math.isnan, reading.values))


def test_a_parent_that_is_not_an_object_is_invalid():
    assert_invalid(decode({"meta": {"id": "a"}, "ts": 1, "motor": 5}, NESTED), "motor", "5")


@pytest.mark.parametrize(
    "token", ["null", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400, "9" * 5000]
)
def test_what_is_no_finite_number_is_a_missing_channel(token):
    reading = decode(b'{"sensor": "a", "ts": 1, "vib": 2, "temp": ' + token.encode() + b"}")
    assert math.isnan(reading.values[0])
    assert reading.values[1] == 2.0


@pytest.mark.parametrize(
    "token", ["-999", "-999.0", "-99900e-2", '"-999"', '"-999.0"', "9223372036854775807"]
)
@pytest.mark.parametrize("more", [{}, {"flags": ["vib"]}, {"partial": True}, {"mode": "mode"}])
def test_a_number_that_stands_for_no_value_is_what_null_is(token, more):
    missing = ["Bad", "-999", "9223372036854775807"]
    decoder = JsonDecoder(
        FieldMapping(["temp", "vib"], sensor="sensor", time="ts", missing=missing, **more)
    )
    text = '{"sensor": "a", "ts": 1, "mode": "on", "temp": %s, "vib": %s}'
    pairs = [(token, "0"), ("null", "0"), ("-998.9", token), ("-998.9", "null")]
    records = [record((text % pair).encode()) for pair in pairs]
    alone = [decoder.decode(one) for one in records]
    assert repr(alone[::2]) == repr(alone[1::2])
    assert repr([one.values for one in alone[::2]]) == "[(nan, 0.0), (-998.9, nan)]"
    for block in (records, [one for one in records if b'"-' not in one.value]):
        assert repr(decoder.decode_all(block * 9)) == repr([decoder.decode(r) for r in block] * 9)


@pytest.mark.parametrize("more", [{}, {"flags": ["vib"]}, {"partial": True}, {"mode": "mode"}])
def test_what_stands_for_no_value_in_one_channel_is_one_in_the_other(more):
    given = {"sensor": "sensor", "time": "ts", "missing_of": {"vib": [-999, 3276.7]}}
    mapping = FieldMapping(["temp", "vib"], **given, **more)
    cells = [("-999", "-999"), ("3276.7", "3276.699951171875"), ("3276.7", "0")]
    trees = '{"sensor": "a", "ts": 1, "mode": "on", "temp": %s, "vib": %s}'
    header = ("sensor", "ts", "mode", "temp", "vib")
    for decoder, text in (
        (JsonDecoder(mapping), trees),
        (CsvDecoder(replace(mapping, partial=False), header), "a,1,on,%s,%s"),
    ):
        found = decoder.decode_all([record((text % pair).encode()) for pair in cells])
        assert (
            repr([one.values for one in found]) == "[(-999.0, nan), (3276.7, nan), (3276.7, 0.0)]"
        )


def test_a_boolean_is_no_number_that_stands_for_no_value():
    mapping = FieldMapping(["temp", "vib"], sensor="sensor", time="ts", missing=["1", "0"])
    assert_invalid(decode(good(temp=True), mapping), "'temp'", "expected a number, got True")


def test_an_absent_channel_is_missing():
    reading = decode(b'{"sensor": "a", "ts": 1, "vib": 2}')
    assert math.isnan(reading.values[0])


def test_what_a_partial_record_does_not_name_is_unchanged_and_null_is_missing():
    mapping = FieldMapping(
        {"temp": "temp", "vib": "motor.vib"}, sensor="sensor", time="ts", partial=True
    )
    for tree, unchanged in (
        ({"temp": 1.5}, [False, True]),
        ({"motor": None}, [True, True]),
        ({"temp": None, "motor": {"vib": None}}, [False, False]),
        ({"temp": None, "motor": {}}, [False, True]),
    ):
        found = decode({"sensor": "a", "ts": 1} | tree, mapping).values
        assert [value is ABSENT for value in found] == unchanged


def test_a_large_integer_is_rounded_to_the_nearest_float():
    assert decode(good(temp=2**53 + 1)).values[0] == float(2**53)
    assert decode(good(temp=10**30)).values[0] == 1e30


def test_sensor_names_may_be_numbers_and_any_script():
    assert decode(good(sensor=17)).sensor == "17"
    assert decode(good(sensor="泵-3")).sensor == "泵-3"


def test_the_sensor_can_be_fixed_or_come_from_the_record_key():
    fixed = FieldMapping(["temp"], fixed_sensor="meter", time="ts")
    assert decode(good(), fixed).sensor == "meter"
    keyed = FieldMapping(["temp"], sensor_from="key", time="ts")
    assert decode(good(), keyed, key=b"t9").sensor == "t9"
    assert_invalid(decode(good(), keyed), "sensor", "nothing")
    assert_invalid(decode(good(), keyed, key=b"\xff"), "sensor", "UTF-8")
    assert_invalid(decode(good(), keyed, key=b""), "sensor")


def test_the_stream_key_is_the_sensor_a_group_or_global():
    base = {"channels": ["temp"], "sensor": "sensor", "time": "ts"}
    value = good(site="north")
    assert decode(value, FieldMapping(**base)).stream_key == "turbine-1"
    assert decode(value, FieldMapping(**base, group="site")).stream_key == "north"
    table = FieldMapping(**base, groups={"turbine-1": "big"})
    assert decode(value, table).stream_key == "big"
    assert_invalid(decode(good(sensor="new"), table), "'new'", "groups", stage="validate")
    assert decode(value, FieldMapping(**base, pooled=True)).stream_key == "global"
    assert_invalid(decode(good(), FieldMapping(**base, group="site")), "group", "nothing")


def test_names_that_were_met_before_are_the_same_objects_again():
    """Of a thousand sensors each look-up then compares no text."""
    decoder = JsonDecoder(PLAIN)
    first, second = decoder.decode(record(good())), decoder.decode(record(good()))
    assert first.sensor is second.sensor
    assert first.stream_key is second.stream_key


def test_without_a_time_field_the_record_timestamp_counts():
    mapping = FieldMapping(["temp"], sensor="sensor")
    assert decode(good(), mapping, timestamp_ms=77).event_time_ms == 77
    assert_invalid(decode(good(), mapping), "time", "timestamp")
    assert_invalid(decode(good(), mapping, timestamp_ms=2**63), "1 to 9999")


def test_names_that_json_escapes_are_names_like_others():
    names = ['the "hot" one', "tab\there"]
    mapping = FieldMapping(names, sensor='"id"', time="ts")
    reading = decode({'"id"': "a", "ts": 5} | dict(zip(names, (0.5, 1.5), strict=True)), mapping)
    assert reading.values == (0.5, 1.5)
    assert (reading.sensor, reading.event_time_ms) == ("a", 5)


def test_one_field_may_play_two_roles():
    mapping = FieldMapping(["ts"], sensor="sensor", group="sensor", time="ts")
    assert decode(good(ts=5), mapping) == Reading("turbine-1", "turbine-1", 5, (5.0,), AT)


# -------------------------------------------------------------------------------- bad records
@pytest.mark.parametrize(("value", "words"), [
    (b"", ["empty"]), (b"\xff\xfe{}", ["UTF-8", "byte 0"]),
    (b'{"sensor": "a", "ts": 1, "ignored": "\xff"}', ["UTF-8"]),
    (b'{"sensor": "a", "ts"', ["not JSON"]), (b"[1, 2]", ["object", "a list of 2"]),
    (b"3", ["object"]), (b"null", ["object", "nothing"]), (b'{"a": 1} {"b": 2}', ["not JSON"]),
    (b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", ["64 levels"]),
    (b'{"a": ' + b'{"b":' * 10_000, ["64 levels"]),
])  # fmt: skip
def test_bytes_that_are_not_a_json_object_are_invalid_at_decode(value, words):
    assert_invalid(decode(value), *words, stage="decode")


def test_a_record_above_the_size_limit_is_invalid_before_it_is_parsed():
    mapping = FieldMapping(["temp"], fixed_sensor="a", time="ts", max_value_bytes=100)
    assert_invalid(decode(b"x" * 101, mapping), "101 bytes", "max_value_bytes = 100")
    assert_invalid(decode(b" " * 10_000_000), "10000000 bytes")


def test_brackets_inside_texts_and_flat_lists_are_not_nesting():
    assert isinstance(decode(good(note="[" * 500)), Reading)
    assert isinstance(decode(good(more=[[] for _ in range(500)])), Reading)
    assert isinstance(decode(good(note='\\"' + "[" * 500)), Reading)


def test_no_text_makes_the_search_for_nesting_slow():
    begun = time.process_time()
    for ending in (b"", b"\\", b'"'):
        assert_invalid(decode(b"[" * 65 + b'"' + b'\\"' * 500_000 + ending))
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("found", "quoted"),
    [("hot", "'hot'"), (True, "True"), ([1, 2], "a list of 2"), ({"v": 1}, "an object")],
)
def test_a_channel_of_the_wrong_type_is_invalid_and_named(found, quoted):
    outcome = decode(good(temp=found))
    assert_invalid(outcome, "channel 'temp'", "expected a number", quoted, stage="validate")


def test_quoted_values_are_cut_and_control_characters_escaped():
    outcome = decode(good(temp="\x1b[31m\n\u202e" + "y" * 100_000))
    assert_invalid(outcome, r"\x1b[31m\n\u202e", "…")
    assert len(outcome.reason) < 150


@pytest.mark.parametrize(
    "sensor", [None, "", "x" * 257, True, 1.5, ["a"], {"a": 1}, "\ud800"], ids=repr
)
def test_a_sensor_without_a_usable_name_is_invalid(sensor):
    assert_invalid(decode(good(sensor=sensor)), "sensor", stage="validate")


def test_a_name_of_256_characters_is_still_a_name():
    assert decode(good(sensor="x" * 256)).sensor == "x" * 256


@pytest.mark.parametrize(
    "time", [None, "noon", True, [], 2**63, -(2**63), 10**30, 1e300, float("nan"), float("inf")]
)
def test_a_time_that_cannot_be_read_is_invalid(time):
    assert_invalid(decode(good(ts=time)), "time", stage="validate")


# --------------------------------------------------------------------------------------- time
@pytest.mark.parametrize(("value", "unit", "expected"), [
    ("2024-02-29T12:00:00Z", "iso8601", 1709208000000),
    ("2024-02-29T12:00:00.123456789+01:00", "iso8601", 1709204400123),
    ("2024-02-29 12:00:00", "iso8601", 1709208000000), ("2024-02-29", "iso8601", 1709164800000),
    ("1969-12-31T23:59:59.999Z", "iso8601", -1),
    ("0001-01-01T00:00:00Z", "iso8601", -62135596800000), (1700000000.123, "s", 1700000000123),
    (1700000000, "s", 1700000000000), ("1700000000.5", "s", 1700000000500),
    (1700000000123, "ms", 1700000000123), (1700000000123.9, "ms", 1700000000123),
    (1700000000123999, "us", 1700000000123), (1700000000123999999, "ns", 1700000000123),
    ("1700000000123999999", "ns", 1700000000123), (-1, "us", -1), (1970, "year", 0),
    (2000.5, "year", 962487036000),
])  # fmt: skip
def test_times_are_read_in_their_unit(value, unit, expected):
    assert to_epoch_ms(value, unit) == expected


@pytest.mark.parametrize(("value", "unit"), [
    ("2024-02-30", "iso8601"), ("", "iso8601"), ("9999-12-31T23:59:59-23:59", "iso8601"),
    (5, "iso8601"), ("1_000", "ms"), ("٣", "ms"), ("nan", "s"), ("", "ms"), ("9" * 5000, "ms"),
])  # fmt: skip
def test_times_that_do_not_exist_are_refused(value, unit):
    with pytest.raises(Unreadable, match="time"):
        to_epoch_ms(value, unit)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_millisecond_survives_each_unit(epoch_ms):
    assert to_epoch_ms(epoch_ms, "ms") == epoch_ms
    assert to_epoch_ms(str(epoch_ms * 1000), "us") == epoch_ms
    assert to_epoch_ms(epoch_ms * 1_000_000, "ns") == epoch_ms


# ---------------------------------------------------------------------------------------- CSV
HEADER = ("ts", "sensor", "temp", "vib")


def decode_row(row, mapping=PLAIN, header=HEADER, delimiter=","):
    return CsvDecoder(mapping, header, delimiter).decode(record(row))


def test_a_csv_row_becomes_a_reading():
    assert decode_row(b"5,pump_1,1.5,-2e3") == Reading("pump_1", "pump_1", 5, (1.5, -2000.0), AT)


def test_csv_quotes_delimiters_and_newlines_in_quotes_are_understood():
    reading = decode_row(b'5;"a;""b""\nc";1;2', delimiter=";")
    assert reading.sensor == 'a;"b"\nc'


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NULL", "n/a", "inf", "-inf", "1e999"])
def test_csv_cells_without_a_finite_number_are_missing(cell):
    reading = decode_row(f"5,a,{cell},2".encode())
    assert math.isnan(reading.values[0])
    assert reading.values[1] == 2.0


@pytest.mark.parametrize("cell", ["hot", "1_000", "٣", "0x10", "1;2", "--1", "1.2.3"])
def test_csv_cells_that_are_not_numbers_are_invalid_and_named(cell):
    assert_invalid(decode_row(f"5,a,2,{cell}".encode()), "channel 'vib'", "number")


@pytest.mark.parametrize(("row", "words"), [
    (b"", ["empty"]), (b"5,a,1", ["4 cells", "got 3"]), (b"5,a,1,2,3", ["4 cells", "got 5"]),
    (b'5,"a,1,2', ["not CSV"]), (b'5,"a"b,1,2', ["not CSV"]), (b"5,\xff,1,2", ["UTF-8"]),
    (b"5," + b"a" * (1 << 20) + b",1,2", ["bytes"]),
])  # fmt: skip
def test_broken_rows_are_invalid_at_decode(row, words):
    assert_invalid(decode_row(row), *words, stage="decode")


@pytest.mark.parametrize("row", [b",a,1,2", b"noon,a,1,2", b"5,,1,2", b"1_0,a,1,2"])
def test_rows_without_a_usable_time_or_sensor_are_invalid_at_validate(row):
    assert_invalid(decode_row(row), stage="validate")


def test_a_column_that_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'temp'"):
        CsvDecoder(FieldMapping(["tmep"], fixed_sensor="a", time="ts"), HEADER)
    with pytest.raises(ConfigError, match="the columns are ts, sensor"):
        CsvDecoder(FieldMapping(["qqqqqq"], fixed_sensor="a", time="ts"), HEADER)
    with pytest.raises(ConfigError, match="2 times"):
        CsvDecoder(FieldMapping(["a"], fixed_sensor="a", time="ts"), ("ts", "a", "a"))


def test_a_header_is_split_and_its_byte_order_mark_dropped():
    assert parse_csv_header(b"\xef\xbb\xbf time ,a") == ("time", "a")
    with pytest.raises(ConfigError, match="header"):
        parse_csv_header(b"a,\xff")
    with pytest.raises(ConfigError, match="header"):
        parse_csv_header(b'a,"b')
    with pytest.raises(ConfigError, match="delimiter"):
        CsvDecoder(PLAIN, HEADER, "ab")


# ------------------------------------------------------------------------------------- config
@pytest.mark.parametrize(("arguments", "words"), [
    ({"channels": []}, "channels"), ({"channels": "temp"}, "channels"),
    ({"channels": ["a", "a"]}, "twice"), ({"channels": ["a"], "time_unit": "minutes"}, "iso8601"),
    ({"channels": ["a"], "fixed_sensor": None}, "exactly one"),
    ({"channels": ["a"], "sensor": "b"}, "exactly one"),
    ({"channels": ["a"], "fixed_sensor": ""}, "fixed_sensor"),
    ({"channels": ["a"], "pooled": True, "group": "b"}, "at most one"),
    ({"channels": ["a"], "max_value_bytes": 0}, "max_value_bytes"),
])  # fmt: skip
def test_a_mapping_that_contradicts_itself_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        FieldMapping(**({"fixed_sensor": "m"} | arguments))


@pytest.mark.parametrize("channels", [["a", "a.b"], ["a.b", "a"], ["a..b"], [".a"], ["ts.x"]])
def test_fields_that_cannot_stand_in_one_object_are_refused(channels):
    with pytest.raises(ConfigError):
        JsonDecoder(FieldMapping(channels, fixed_sensor="m", time="ts"))


# ----------------------------------------------------------------------------------- the laws
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["2024-01-01T00:00:00Z", "5", "a"]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["temp", "id", "vib.rms", "x"]) | st.text(max_size=3),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)
objects = st.dictionaries(
    st.sampled_from(["sensor", "ts", "temp", "vib", "motor", "meta", "site", "other"]),
    json_values,
    max_size=8,
)
MAPPINGS = [
    PLAIN, NESTED, FieldMapping(["temp"], fixed_sensor="m", time="ts", time_unit="iso8601"),
    FieldMapping(["temp", "vib"], sensor_from="key", group="site"),
    FieldMapping(["ts"], sensor="sensor", time="ts", groups={"a": "b"}),
]  # fmt: skip


DECODERS = [JsonDecoder(mapping) for mapping in MAPPINGS]


def assert_reading_or_invalid(outcome):
    if isinstance(outcome, Invalid):
        assert_invalid(outcome)
        return
    assert isinstance(outcome, Reading)
    assert 0 < len(outcome.sensor) <= 256
    outcome.sensor.encode()
    assert not any(map(math.isinf, outcome.values))
    assert all(type(value) is float for value in outcome.values)
    assert -62_135_596_800_000 <= outcome.event_time_ms <= 253_402_300_799_999


@pytest.mark.thorough
@given(st.binary(max_size=200) | objects.map(lambda tree: json.dumps(tree).encode()))
@settings(max_examples=150, deadline=None)
def test_any_bytes_become_a_reading_or_an_invalid(value):
    for decoder in DECODERS:
        outcome = decoder.decode(record(value, key=value[:9], timestamp_ms=1))
        assert_reading_or_invalid(outcome)


@given(st.binary(max_size=80) | st.text("0123456789.,\"'\r\n;eE-+_nainf ").map(str.encode))
@settings(max_examples=150, deadline=None)
def test_any_row_becomes_a_reading_or_an_invalid(row):
    assert_reading_or_invalid(decode_row(row))
    single = FieldMapping(["temp"], fixed_sensor="m")
    decoder = CsvDecoder(single, ("temp",), ";")
    assert_reading_or_invalid(decoder.decode(record(row, timestamp_ms=1)))


@pytest.mark.thorough
@given(objects, st.sampled_from(DECODERS))
@settings(max_examples=150, deadline=None)
def test_a_record_that_only_the_library_of_python_parses_is_read_the_same(tree, decoder):
    tree = {"unmapped": 0} | good() | tree
    found = [
        decoder.decode(record(tree | {"unmapped": value}, key=b"k", timestamp_ms=5))
        for value in (0, math.nan, "\ud800")
    ]
    assert repr(found[0]) == repr(found[1]) == repr(found[2])


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.none() | FLOATS | st.integers(-(2**80), 2**80)


@given(st.lists(NUMBERS | st.sampled_from([10**30, 10**400, math.inf, -0.0]), min_size=2))
def test_numbers_are_floats_and_what_is_none_is_missing(values):
    names = [f"c{i}" for i in range(len(values))]
    tree = {"sensor": "a", "ts": 1} | dict(zip(names, values, strict=True))
    found = decode(tree, FieldMapping(names, sensor="sensor", time="ts"))
    is_missing = [v is None or abs(v) in (10**400, math.inf) for v in values]
    wanted = [math.nan if no else float(v) for v, no in zip(values, is_missing, strict=True)]
    assert repr(found.values) == repr(tuple(wanted))


@given(st.text(max_size=300) | st.binary(max_size=300) | json_values)
def test_quoted_values_are_short_and_printable(value):
    quoted = printable(value)
    assert len(quoted) <= 80
    assert quoted.isprintable()


@pytest.mark.parametrize(("good", "cells", "expected"), [
    (("good", 192, True), ("Good", "bad"), (1.5, math.nan)),
    (("good", 192, True), ("192", "24"), (1.5, math.nan)),
    (("good", 192, True), ("TRUE", "false"), (1.5, math.nan)),
    (("good", 192, True), ("", "1"), (1.5, math.nan)), ((0,), ("0", "0.0"), (1.5, 2.5)),
    (("A",), ("a", "0"), (1.5, math.nan)),
])  # fmt: skip
def test_a_value_of_a_table_is_good_as_the_column_beside_it_says(good, cells, expected):
    mapping = FieldMapping(["temp", "flow"], fixed_sensor="s", quality=Quality("{channel}_q", good))
    decoder = CsvDecoder(mapping, ["temp", "flow", "flow_q", "temp_q"])
    row = f"1.5,2.5,{cells[1]},{cells[0]}".encode()
    found = decoder.decode(Record(Position("t", 0, 0), None, row, timestamp_ms=5))
    assert repr(found.values) == repr(expected)


def test_a_bad_value_may_be_no_number_and_a_channel_may_have_no_quality():
    mapping = FieldMapping(["temp", "flow"], fixed_sensor="s", quality=Quality({"temp": "q"}))
    decoder = CsvDecoder(mapping, ["temp", "q", "flow"])
    found = decoder.decode(Record(Position("t", 0, 0), None, b"??,Bad,2.5", timestamp_ms=5))
    assert repr(found.values) == repr((math.nan, 2.5))
    with pytest.raises(ConfigError, match="'flow_q' is not in the header"):
        CsvDecoder(
            FieldMapping(["flow"], fixed_sensor="s", quality=Quality("{channel}_q")), ["flow"]
        )


def test_several_fields_make_the_name_of_a_sensor_and_no_two_sensors_share_one():
    mapping = FieldMapping(["v"], sensor=["site", "pump.id"], time="t")
    as_json = JsonDecoder(mapping)
    as_csv = CsvDecoder(
        FieldMapping(["v"], sensor=["site", "pump"], time="t"), ["t", "site", "v", "pump"]
    )
    names = []
    for site, pump in (("a", "b/c"), ("a/b", "c"), ("a", 7), ("ä", "100%")):
        tree = {"t": 5, "site": site, "pump": {"id": pump}, "v": 1.5}
        one = Record(Position("t", 0, 0), None, json.dumps(tree).encode())
        found = as_json.decode(one)
        assert found.values == (1.5,)
        assert [*as_json.decode_all([one] * 9)] == [found] * 9
        row = Record(Position("t", 0, 0), None, f"5,{site},1.5,{pump}".encode())
        assert as_csv.decode(row) == found
        names.append(found.sensor)
    assert names == ["a/b%2Fc", "a%2Fb/c", "a/7", "ä/100%25"]
    for tree, said in (
        ({"t": 5, "site": "a", "v": 1}, "sensor: expected a name, got nothing"),
        ({"t": 5, "site": "a", "pump": {"id": ""}, "v": 1}, "expected 1 to"),
        ({"t": 5, "site": "a" * 200, "pump": {"id": "b" * 200}, "v": 1}, "expected 1 to"),
    ):
        found = as_json.decode(Record(Position("t", 0, 0), None, json.dumps(tree).encode()))
        assert said in found.reason
    alone = FieldMapping(["v"], sensor=["site"], time="t")
    assert JsonDecoder(alone).decode(one).sensor == "ä"
    with pytest.raises(ConfigError, match="sensor is an empty list"):
        FieldMapping(["v"], sensor=[])
