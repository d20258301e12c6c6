"""An input that is not what the config says: most of it unreadable, or nothing of it scorable."""

import json
import math

import pytest

from rejex_stream.cli import main
from rejex_stream.config import parse_config
from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.protobuf import protobuf_reader
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.doctor import examine
from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError
from rejex_stream.incidents import limited
from rejex_stream.monitor import AlarmKind
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.rejection.judge import rejected
from rejex_stream.run.loop import UnscorableStreak
from rejex_stream.run.run_events import NothingScorable
from rejex_stream.tables.column_checks import check_readings
from rejex_stream.types import LimitExcess, Outcome, Partition, Position, Reading, Reason, Record
from tests import test_runtime as runtime
from tests.doubles import ListSink, ListSource
from tests.streams import spec
from tests.test_runtime import Watching

ONE = Partition("input", 0)
DECODER = JsonDecoder(FieldMapping(["x", "y"], fixed_sensor="m", time="t"))
BROKEN = b"rubbish"


def good(i, x="x"):
    return json.dumps({"t": i, x: i % 7, "y": i % 5}).encode()


def play(feed, sink=None, *, decoder=DECODER, source=ListSource, committed=None, **knobs):
    watching, sink = Watching(), sink or ListSink()
    runtime.play(
        source(feed, committed=committed or sink.offsets), sink, decoder=decoder,
        engine=lambda partition, fits: Engine(spec(), fits), observers=[watching],
        knobs={"max_poll_records": 100} | knobs,
    )  # fmt: skip
    return watching.of(NothingScorable)


def test_what_cannot_be_scored_counts_though_a_channel_is_beyond_a_limit():
    streak = UnscorableStreak(DECODER)
    for i in range(100):
        assert streak.alarm is None
        record = Record(Position("input", 0, i), None, good(i, "z"))
        reading = Reading("m", "m", i, (math.nan, 9.0), record.position)
        verdict = rejected(reading, i, Reason.UNSCORABLE)
        beyond = limited(verdict, (LimitExcess("y", 9.0, 5.0),))
        streak.update([Outcome(record, beyond)])
    assert streak.alarm is not None
    streak.update([Outcome(record, limited(rejected(reading, 0, Reason.WARM_UP), ()))])
    assert streak.alarm is None, "any other reason ends the row"


# -------------------------------------------------------------------------------- unreadable
def test_a_short_input_of_rubbish_fails_with_counts_of_reasons_and_a_sample():
    feed = [*[BROKEN] * 300, *[b'{"t": 1, "x": "a%d"}' % i for i in range(100)],
            *[b'{"t": "z%d"}' % i for i in range(10)], b"\xff", b"[1]"]  # fmt: skip
    sink = ListSink()
    with pytest.raises(ConnectorError) as caught:
        play(feed, sink)
    assert str(caught.value) == (
        "100% of the last 412 records could not be read (the limit is 50%): 300 × not JSON: "
        "Expecting value at character …, 100 × channel 'x': expected a number, 10 × time: expected "
        "a number of ms, 2 × other reasons. The newest is input-0-411: expected a JSON object, got "
        "a list of 1. Compare the field mapping with the input; everything up to here is committed"
    )
    assert not caught.value.retriable
    assert sink.offsets == {ONE: 412}


def test_the_run_stops_as_soon_as_the_first_window_is_lost_whatever_comes():
    feed = [good(i) if i % 10 == 0 else BROKEN for i in range(5000)]
    sink = ListSink()
    with pytest.raises(ConnectorError, match=r"90% of the last \d+ records"):
        play(feed, sink, max_poll_records=20)
    assert 556 <= len(sink.outcomes) <= 600  # 501 of them unreadable
    assert sink.offsets == {ONE: len(sink.outcomes)}


@pytest.mark.parametrize(("feed", "knobs"), [
    ([*[good(i) for i in range(50)], *[BROKEN] * 50], {}),  # half is not more than half
    ([BROKEN] * 9, {}),  # what was appended since the last run, say
    ([BROKEN] * 500, {"invalid_limit": 1.0}),
    ([*[good(i) for i in range(2000)], *[BROKEN] * 500], {}),
    ([*[BROKEN] * 499, *[good(i) for i in range(600)]], {}),
])  # fmt: skip
def test_what_is_within_the_limit_ends_well(feed, knobs):
    sink = ListSink()
    play(feed, sink, **knobs)
    assert sink.offsets == {ONE: len(feed)}


def test_the_end_of_a_long_input_is_judged_by_its_newest_window():
    feed = [*[good(i) for i in range(2000)], *[BROKEN] * 501]
    with pytest.raises(ConnectorError, match="50% of the last 1000 records"):
        play(feed)


# -------------------------------------------------------------------------------- unscorable
def test_a_renamed_channel_is_told_after_a_hundred_events_and_fails_at_the_end():
    sink, feed = ListSink(), [good(i, x="X") for i in range(250)]
    with pytest.raises(ConnectorError) as caught:
        play(feed, sink)
    lacking = "channel 'x' (field 'x') is missing; the record has t, X, y: did you mean 'X'?"
    assert f"the last 250 events could not be scored: in input-0-249 {lacking}" in str(caught.value)
    assert "input.channels" in str(caught.value)
    assert sink.offsets == {ONE: 250}, "and all of it is committed"


def test_it_is_told_once_a_streak_and_again_after_what_could_be_scored():
    def renamed(start, stop):
        return [good(i, x="X") for i in range(start, stop)]

    feed = [*renamed(0, 350), good(350), *renamed(351, 460), good(460), *renamed(461, 560), good(9)]
    told = play(feed, max_poll_records=1)
    assert {event.partition for event in told} == {ONE}
    assert [event.alarm and event.alarm.message[:63] for event in told] == [
        "the last 100 events could not be scored: in input-0-99 channel ",
        None,  # over
        "the last 100 events could not be scored: in input-0-451 channel",  # 351 is carried forward
        None,
    ]
    first = told[0].alarm
    assert (first.kind, first.stream_key, first.position) == (
        AlarmKind.NOTHING_SCORABLE, None, Position("input", 0, 99),
    )  # fmt: skip
    assert (first.evidence, first.threshold, first.unit) == (100, 100, "events")


def test_dead_letters_between_them_neither_count_nor_end_a_streak():
    feed = [x for i in range(100) for x in (good(i, x="X"), BROKEN)]
    with pytest.raises(ConnectorError, match="the last 100 events could not be scored"):
        play(feed, invalid_limit=1.0)


@pytest.mark.parametrize(
    "feed",
    [[good(i, x="X") for i in range(9)], [good(0), *[good(i, x="X") for i in range(99)]], []],
)
def test_gaps_and_short_ends_are_no_reason_to_fail(feed):
    assert play(feed) == []


def test_values_too_large_to_be_scored_are_named():
    feed = [b'{"t": 1, "x": 1e200, "y": 1}'] * 20
    with pytest.raises(ConnectorError, match=r"no channel is missing; the values are \(1e\+200, 1"):
        play(feed)


def test_a_decoder_that_cannot_say_what_is_lacking_is_no_hindrance():
    class Own:
        channels = DECODER.channels

        def decode(self, record):
            return DECODER.decode(record)

    with pytest.raises(ConnectorError, match=r"the last 20 events could not be scored$"):
        play([good(i, x="X") for i in range(20)], decoder=Own())


# ------------------------------------------------------------------------ what a record lacks
def record(value):
    return Record(Position("t", 0, 7), None, value)


def test_every_format_says_what_a_record_lacks():
    mapping = FieldMapping({"temp": "motor.temp", "vib": "vib"}, fixed_sensor="m", time="t")
    decoder = JsonDecoder(mapping)
    nested = record(b'{"t": 1, "motor": {"Temp": 2, "a.b": null}, "vib": 1}')
    assert decoder.lacking(nested) == (
        "channel 'temp' (field 'motor.temp') is missing; the record has t, motor.Temp, "
        r"motor.a\\.b, vib: did you mean 'motor.Temp'?"
    )
    assert decoder.lacking(record(b'{"t": 1}')) == (
        "channel 'temp' (field 'motor.temp'), channel 'vib' (field 'vib') are missing; the record "
        "has t"
    )
    assert decoder.lacking(record(b"{")).startswith("the record cannot be read: not JSON")
    assert decoder.lacking(record(None)).startswith("the record cannot be read: the record has no")
    hostile = json.dumps({"t": 1, "\x1b[31m" * 99: 1} | {f"f{i}": 1 for i in range(40)}).encode()
    assert decoder.lacking(record(hostile)).isprintable()
    assert len(decoder.lacking(record(hostile))) < 400

    table = CsvDecoder(FieldMapping(["x"], fixed_sensor="m", time="t"), ("t", "x", "X"))
    assert "is missing; the record has t, x, X" in table.lacking(record(b"1,,2"))


@pytest.mark.parametrize(("kind", "text", "reader"), [
    ("AVRO", json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "t", "type": "long"}, {"name": "Flow", "type": "double"}]}), avro_reader),
    ("PROTOBUF", 'syntax = "proto3"; message R { int64 t = 1; double Flow = 2; }',
     protobuf_reader),
])  # fmt: skip
def test_schemas_say_it_too(kind, text, reader):
    class Registry:
        def schema(self, schema_id):
            return RegisteredSchema(kind, text, {})

    mapping = FieldMapping(["flow"], fixed_sensor="m", time="t")
    decoder = RegistryDecoder(mapping, Registry(), kind, reader)
    body = b"\x02" + bytes(8) if kind == "AVRO" else b"\x00\x08\x01"
    told = decoder.lacking(record(b"\x00\x00\x00\x00\x05" + body))
    assert told == (
        "channel 'flow' (field 'flow') is missing; the record has t, Flow: did you mean 'Flow'?"
    )


# ----------------------------------------------------------------------------- for the user
CONFIG = """
[pipeline]
name = "pump"
[input]
path = "feed.jsonl"
channels = ["flow"]
time = "t"
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 8
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pump.toml").write_text(CONFIG)
    return tmp_path


def test_a_run_over_files_says_it_and_exits_with_1(place, capsys):
    (place / "feed.jsonl").write_text("".join(f'{{"t": {i}, "Flow": 1}}\n' for i in range(300)))
    assert main(["run", "pump.toml"]) == 1
    told = capsys.readouterr().err
    assert told.count('"level": "error"') == 1
    assert " ".join(told.split()).count("channel 'flow' (field 'flow') is missing") == 2
    (written,) = place.glob("*verdicts*")
    assert len(written.read_text().splitlines()) == 300


def test_the_doctor_names_the_field(place):
    (place / "feed.jsonl").write_text('{"t": 1, "Flow": 1}\n' * 9)
    (check,) = [c for c in examine(place / "pump.toml") if "everywhere" in c.message]
    assert check.level == "error"
    assert check.message.startswith("missing everywhere: 'flow'; in ")
    assert check.message.endswith("the record has t, Flow: did you mean 'Flow'?")


def test_of_several_channels_each_that_was_renamed_is_asked_for():
    decoder = JsonDecoder(FieldMapping(["temp", "press", "temp2"], fixed_sensor="m", time="t"))
    now = {"t": 1, "temperature_c": 3.5, "pressure": 2.5, "temp2": 1.5}
    said = decoder.lacking(Record(Position("input", 0, 0), b"m", json.dumps(now).encode()))
    assert said.endswith("did you mean 'temperature_c' and 'pressure'?"), "temp2 is taken"
    other = {"t": 1, "xyz": 3.5, "press": 2.5, "temp2": 1.5}
    said = decoder.lacking(Record(Position("input", 0, 0), b"m", json.dumps(other).encode()))
    assert "did you mean" not in said


def test_a_channel_that_no_row_has_is_said_where_records_hold_one_value_each():
    text = (
        '[input]\nkind = "kafka"\ntopics = ["p"]\nsensor = "m"\ntag = "k"\n'
        'channels = {temp = "v", press = "v"}\nstep_s = 1.0\n'
        '[rejection]\ncontamination = 0.05\ntolerance = 4\n[kafka]\nbootstrap_servers = "b:9"\n'
    )
    config, problems = parse_config(text)
    assert config is not None, problems
    rows = [Reading("m", "m", i, (math.nan, i % 7), Position("p", 0, i)) for i in range(40)]
    (one,) = (found for found in check_readings(config, rows) if found.kind == "sparse")
    assert one.column == "temp"
    assert "'temp' has no value in 40 rows" in one.seen
    mapping = config.input.mapping()
    record = Record(Position("p", 0, 0), b"m", b'{"m": "m", "k": "press", "v": 1.0}', (), 5)
    assert "the tag names one channel" in JsonDecoder(mapping).lacking(record)
