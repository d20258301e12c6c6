"""Numbers and times as the world writes them, each with a setting that reads it."""

import json
import math
import struct
import tomllib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejex_connectors.files.source import CsvRows

from rejex_stream.config import parse_config
from rejex_stream.config.assembly import file_decoder, open_source, records_of
from rejex_stream.decode import CsvDecoder, JsonDecoder, parse_csv_header
from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping, Unreadable, to_epoch_ms
from rejex_stream.decode.protobuf import protobuf_reader
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.decode.written import is_repeated, number_reader, zone_of
from rejex_stream.errors import ConfigError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.settings import toml
from rejex_stream.types import Invalid, Position, Reading, Record


def record(value):
    return Record(Position("t", 0, 0), None, value.encode())


# ------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(("decimal", "thousands", "text", "value"), [
    (".", None, "1.5", 1.5),
    (",", None, "1,5", 1.5),
    (",", ".", "-1.234.567,25", -1234567.25),
    (".", ",", "1,234", 1234.0),
    (".", "'", "1’234'567.5", 1234567.5),
    (",", " ", "1\u00a0234\u202f567,5", 1234567.5),
    (",", None, "-,5e3", -500.0),
    (",", ".", "12345", 12345.0),
    (".", ",", "1,5", None),  # never fifteen
    (".", ",", "1234,567", None),
    (".", ",", "1,,234", None),
    (",", ".", "1.5", None),
    (",", None, "1.5", None),
    (",", ".", "1.012,5-", -1012.5),  # of SAP
    (".", None, "+   20.10", 20.1),  # of data recorders
    (".", None, "1.5D+03", 1500.0),  # of Fortran
    (".", None, "-5-", None),
    (".", None, "-", None),
    (".", None, "1_000", None),
    (".", None, "٣", None),
    (".", None, "1,5", None),
])  # fmt: skip
def test_marks_are_read_strictly(decimal, thousands, text, value):
    assert number_reader(decimal, thousands)(text) == value


@pytest.mark.parametrize("text", ["", " ", "n/a", "NaN", "-inf", "1e999"])
def test_what_is_missing_is_nan_in_every_dialect(text):
    assert math.isnan(number_reader(",", ".")(text))


@pytest.mark.parametrize(("decimal", "thousands"), [(";", None), (".", "."), (".", "_")])
def test_marks_that_cannot_be_are_refused(decimal, thousands):
    with pytest.raises(ConfigError, match="expected"):
        number_reader(decimal, thousands)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_every_dialect(value):
    text = repr(value)
    assert number_reader()(text) == value
    assert number_reader(",")(text.replace(".", ",")) == value


def test_a_cell_of_the_other_dialect_is_a_dead_letter_with_a_sentence():
    mapping = FieldMapping(["v"], fixed_sensor="s", time="t", time_unit="s", decimal=",")
    decoder = CsvDecoder(mapping, ("t", "v"), ";")
    assert decoder.decode(record("1;2,5")).values == (2.5,)
    assert decoder.decode(record("1;2.5")).reason == "channel 'v': expected a number, got '2.5'"


def test_a_number_or_a_byte_of_another_dialect_leads_to_the_setting():
    mapping = FieldMapping(["v"], fixed_sensor="s", time="t", time_unit="s")
    decoder = CsvDecoder(mapping, ("t", "v"), ";")
    said = decoder.decode(record("1;2,5")).reason
    assert said.endswith("got '2,5'; how it is written is input.decimal and input.thousands")
    assert decoder.decode(record("1;wet")).reason.endswith("got 'wet'")
    broken = Record(Position("t", 0, 0), None, "1;ü".encode("latin-1"))
    assert "another encoding is input.encoding" in decoder.decode(broken).reason


def test_numbers_that_json_writes_as_texts_are_read_on_request():
    value = '{"t": "5", "v": "88.84", "w": 3}'
    strict = JsonDecoder(FieldMapping(["v", "w"], fixed_sensor="s", time="t"))
    assert isinstance(strict.decode(record(value)), Invalid)
    mapping = FieldMapping(["v", "w"], fixed_sensor="s", time="t", numbers="text")
    assert JsonDecoder(mapping).decode(record(value))[2:4] == (5, (88.84, 3.0))
    found = JsonDecoder(mapping).decode(record('{"t": 5, "v": "warm", "w": "n/a"}'))
    assert found.reason == "channel 'v': expected a number, got 'warm'"
    german = FieldMapping(["v"], fixed_sensor="s", time="t", numbers="text", decimal=",")
    assert JsonDecoder(german).decode(record('{"t": 5, "v": "88,84"}')).values == (88.84,)


# --------------------------------------------------------------------------------- times
@pytest.mark.parametrize(("text", "written", "zone", "expected"), [
    ("06.01.2014 00:00", "%d.%m.%Y %H:%M", None, "2014-01-06T00:00+00:00"),
    ("06.01.2014 00:00", "%d.%m.%Y %H:%M", "Europe/Berlin", "2014-01-06T00:00+01:00"),
    ("1/6/2014 9:05:03 PM", "%m/%d/%Y %I:%M:%S %p", "-05:00", "2014-01-06T21:05:03-05:00"),
    ("2014-07-06 12:00", None, "Europe/Berlin", "2014-07-06T12:00+02:00"),
    ("2014-07-06 12:00Z", None, "Europe/Berlin", "2014-07-06T12:00+00:00"),
    ("06.01.2014 00:00 +0300", "%d.%m.%Y %H:%M %z", "Asia/Tokyo", "2014-01-06T00:00+03:00"),
    ("27.10.2024 02:30", "%d.%m.%Y %H:%M", "Europe/Berlin", "2024-10-27T02:30+02:00"),
])  # fmt: skip
def test_times_are_read_as_written_where_they_were_written(text, written, zone, expected):
    found = to_epoch_ms(text, "iso8601", format=written, zone=zone)
    assert datetime.fromtimestamp(found / 1000, UTC) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(("text", "written", "said"), [
    ("31.03.2024 02:30", "%d.%m.%Y %H:%M", "does not exist in Europe/Berlin"),
    ("13/31/2024", "%m/%d/%Y", "expected a text such as '11/23/2031', got '13/31/2024'"),
    (5, "%m/%d/%Y", "expected a text such as"),
])  # fmt: skip
def test_a_time_that_is_none_is_said(text, written, said):
    with pytest.raises(Unreadable, match=said):
        to_epoch_ms(text, "ms", format=written, zone="Europe/Berlin")


def test_the_hours_a_clock_repeats_and_skips_are_known():
    zone = zone_of("Europe/Berlin")
    assert is_repeated(datetime(2024, 10, 27, 2, 59), zone)
    assert not is_repeated(datetime(2024, 10, 27, 3, 0), zone)
    assert not is_repeated(datetime(2024, 3, 31, 2, 30), zone)
    assert not is_repeated(datetime(2024, 10, 27, 2, 59), zone_of("+01:00"))
    # A clock that knows no summer time is an offset, and skips nothing.
    assert to_epoch_ms("2024-03-31 02:30", "iso8601", zone="+01:00") == 1711848600000


@pytest.mark.parametrize("json_time", [False, True])
def test_json_and_csv_read_the_same_times(json_time):
    mapping = FieldMapping(
        ["v"], fixed_sensor="s", time="t", time_format="%d.%m.%Y %H:%M", time_zone="Europe/Berlin"
    )
    if json_time:
        found = JsonDecoder(mapping).decode(record('{"t": "06.01.2014 01:00", "v": 1}'))
    else:
        found = CsvDecoder(mapping, ("t", "v")).decode(record("06.01.2014 01:00,1"))
    assert found.event_time_ms == 1388966400000


@pytest.mark.parametrize(
    ("time", "said"),
    [(("t", "v"), "several fields make a text: give time_format"), ((), "time is an empty list")],
)
def test_fields_that_make_no_time_are_refused(time, said):
    with pytest.raises(ConfigError, match=said):
        FieldMapping(["v"], fixed_sensor="s", time=time)


PARTS = {"time": ("day", "at"), "time_format": "%d.%m.%Y %H:%M", "time_zone": "+01:00"}


def test_a_time_in_two_fields_is_one_in_every_format():
    mapping = FieldMapping(["v"], fixed_sensor="s", **PARTS)
    table = CsvDecoder(mapping, ("day", "at", "v"))
    assert table.decode(record("06.01.2014,01:00,1")).event_time_ms == 1388966400000
    assert table.decode(record("06.01.2014 00:00:00,1:00,1")).event_time_ms == 1388966400000
    for row in ("06.01.2014,,1", ",01:00,1"):
        assert "a text such as '23.11.2031 13:45', got nothing" in table.decode(record(row)).reason
    lines = JsonDecoder(mapping)
    good = lines.decode(record('{"day": "06.01.2014", "at": "01:00", "v": 1}'))
    assert good.event_time_ms == 1388966400000
    assert "got nothing" in lines.decode(record('{"day": "06.01.2014", "v": 1}')).reason
    parts = replace(mapping, time=["y", "m", "d"], time_format="%Y %m %d")
    found = JsonDecoder(parts).decode(record('{"y": 2014, "m": 1, "d": 6, "v": 1}'))
    assert found.event_time_ms == 1388962800000


@pytest.mark.parametrize(("kind", "text", "reader", "body"), [
    ("AVRO", json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "day", "type": "string"}, {"name": "at", "type": "string"},
        {"name": "v", "type": "double"}]}), avro_reader,
     b"\x1406.01.2014\x0a01:00" + struct.pack("<d", 2.5)),
    ("PROTOBUF",
     'syntax = "proto3"; message R { string day = 1; string at = 2; double v = 3; }',
     protobuf_reader,
     b"\x00\x0a\x0a06.01.2014\x12\x0501:00\x19" + struct.pack("<d", 2.5)),
])  # fmt: skip
def test_schemas_have_a_time_in_two_fields_too(kind, text, reader, body):
    class Registry:
        def schema(self, schema_id):
            return RegisteredSchema(kind, text, {})

    mapping = FieldMapping(["v"], fixed_sensor="s", **PARTS)
    decoder = RegistryDecoder(mapping, Registry(), kind, reader)
    found = decoder.decode(Record(Position("t", 0, 7), None, b"\x00\x00\x00\x00\x05" + body))
    assert found[2:4] == (1388966400000, (2.5,))


def test_quotes_after_a_space_blanks_and_delimiters_at_the_end_are_read():
    mapping = FieldMapping(["v"], sensor="who", time="t", thousands=",")
    header = parse_csv_header(b'"t", "who", "v"')
    assert header == ("t", "who", "v")
    decoder = CsvDecoder(mapping, header)
    found = decoder.decode(record('5, "P, 1", "2,000"'))
    assert (found.sensor, found.values) == ("P, 1", (2000.0,))
    assert decoder.decode(record("5, P1 ,7,, ")).sensor == "P1"
    assert "expected 3 cells as in the header, got 5" in decoder.decode(record("5,P1,7,,x")).reason
    assert "got 2" in decoder.decode(record("5,P1")).reason
    blanks = CsvDecoder(mapping, parse_csv_header(b" t   who  v ", " "), " ")
    assert blanks.decode(record("  5  P1      7 "))[1:4] == ("P1", 5, (7.0,))


def test_a_line_break_in_quotes_after_a_space_belongs_to_its_row():
    assert CsvRows(",").feed(b'a, "one\ntwo"\nb,3\n') == [b'a, "one\ntwo"', b"b,3"]


@pytest.mark.parametrize("numbers", ["typed", "text"])
def test_texts_in_the_place_of_a_value_are_missing_where_they_are_named(numbers):
    mapping = FieldMapping(
        ["a", "b"], fixed_sensor="s", time="t", missing=["---", "Bad"], numbers=numbers
    )
    for found in (
        CsvDecoder(mapping, ("t", "a", "b")).decode(record("5, --- ,bad")),
        JsonDecoder(mapping).decode(record('{"t": 5, "a": "---", "b": "BAD"}')),
    ):
        assert all(math.isnan(value) for value in found.values)
    odd = JsonDecoder(mapping).decode(record('{"t": 5, "a": "worse", "b": 1}'))
    assert "expected a number, got 'worse'" in odd.reason
    text = JsonDecoder(mapping).decode(record('{"t": 5, "a": "1.5", "b": 1}'))
    assert isinstance(text, Reading) is (numbers == "text")


# ---------------------------------------------------------------------------- long layout
def test_each_quantity_of_a_sensor_is_a_series_of_its_own():
    mapping = FieldMapping(["value"], sensor="pump", tag="tag", time="t")
    decoder = CsvDecoder(mapping, ("t", "pump", "tag", "value"))
    reading = decoder.decode(record("5,P1,temp,20.5"))
    assert (reading.sensor, reading.stream_key, reading.values) == ("P1/temp", "P1/temp", (20.5,))
    assert "tag: expected" in decoder.decode(record("5,P1,,20.5")).reason
    same = JsonDecoder(mapping).decode(record('{"t":5,"pump":"P1","tag":"temp","value":20.5}'))
    assert same == reading


# ------------------------------------------------------------------------------- configs
CONFIG = """
[input]
path = "t.csv"
channels = ["v"]
time = "t"
{more}
[rejection]
contamination = 0.05
tolerance = 8
"""


@pytest.mark.parametrize(("more", "said"), [
    ('encoding = "klingon"', "encoding is 'klingon': expected the name of a text encoding"),
    ('encoding = "base64"', "encoding is 'base64'"),
    ('time_zone = "Mars/Base"', "time_zone is 'Mars/Base': expected a name such as"),
    ('time_format = "%H:%M"', "expected the signs of strptime for a whole date"),
    ('time_format = "dd.mm.yyyy"', "expected the signs of strptime for a whole date"),
    ('decimal = ","\nthousands = ","', "expected two marks"),
    ('columns = ["t", "w"]', "column 'v' is not in the header"),
])  # fmt: skip
def test_a_dialect_that_cannot_be_is_refused_before_anything_is_read(more, said):
    config, problems = parse_config(CONFIG.format(more=more))
    assert config is None
    assert said in "\n".join(map(str, problems))


def test_a_config_reads_a_file_without_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1;2,5\n2;3,5\n;\n")
    more = 'columns = ["t", "v"]\ndelimiter = ";"\ndecimal = ","\ntime_unit = "s"'
    config, problems = parse_config(CONFIG.format(more=more).replace("t.csv", str(path)))
    assert config is not None, problems
    source = open_source(config)
    decoder = file_decoder(config, source)
    found = [decoder.decode(one) for one in records_of(source)]
    assert [one[2:4] for one in found[:2]] == [(1000, (2.5,)), (2000, (3.5,))]
    assert found[2].reason == "the row holds no value, only delimiters"


@pytest.mark.parametrize(("header", "said"), [
    ("t;v", "the one column 't;v'; if that is several, give .* input.delimiter"),
    ("1700000000,2.5", "if these are values, name the columns with input.columns"),
    ("t,w,x", "the columns are t, w, x"),
])  # fmt: skip
def test_a_column_that_is_not_there_is_said_with_what_there_is(tmp_path, header, said):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n1;2\n")
    config, _ = parse_config(CONFIG.format(more="").replace("t.csv", str(path)))
    source = open_source(config)
    with pytest.raises(ConfigError, match=said):
        file_decoder(config, source)
    source.close()


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text()), max_size=3))
def test_any_text_is_written_as_toml_and_comes_back(value):
    written = toml(value)
    assert written.isprintable()
    assert tomllib.loads(f"value = {written}")["value"] == value


def test_json_numbers_as_texts_by_config(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"t": "1", "v": "88.84"}) + "\n")
    text = CONFIG.format(more='numbers = "text"\ntime_unit = "s"').replace("t.csv", str(path))
    config, problems = parse_config(text)
    assert config is not None, problems
    source = open_source(config)
    (found,) = [file_decoder(config, source).decode(one) for one in records_of(source)]
    assert found.values == (88.84,)
