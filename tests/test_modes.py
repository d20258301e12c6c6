"""Operating modes: each has a reference of its own, and verdicts speak of the sensor."""

import dataclasses
import io
import itertools
import json
import random

import fastavro
import msgspec
import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.detectors import make_detector
from rejex_stream.encode import decode_verdict
from rejex_stream.engine import Engine
from rejex_stream.engine.sensor_registry import Limits, SensorRegistry
from rejex_stream.errors import ConfigError
from rejex_stream.incidents import Hold, Plan
from rejex_stream.monitor import MonitorBank, MonitorConfig
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.rejection.token_bucket import Credits
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.types import (
    Command,
    CommandKind,
    Invalid,
    Partition,
    Position,
    Reading,
    Reason,
    Record,
    in_mode,
    of_mode,
)
from tests.doubles import DelayedExecutor
from tests.streams import played, readings, spec

HBOS = make_detector("HBOS", n_bins=6)
HST = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
MODES = ["off", "idle", "load"]
DETECTORS = pytest.mark.parametrize("detector", [HBOS, HST], ids=["HBOS", "HST"])


def moded(n, seed=0, **options):
    """Return readings that change their mode now and then."""
    draw, mode = random.Random(seed), "off"
    found = []
    for reading in readings(n, **options):
        if draw.random() < 0.05:
            mode = draw.choice(MODES)
        found.append(reading._replace(stream_key=in_mode(reading.stream_key, mode)))
    return found


def of_modes(detector, **knobs):
    return spec(detector, hold=Hold(adopt_after_events=0), modes=True, **knobs)


def make(detector, **knobs):
    return Engine(of_modes(detector, **knobs), InlineExecutor())


@DETECTORS
def test_each_mode_is_judged_as_if_it_were_alone(detector):
    feed = moded(900)
    found = make(detector).process(feed)
    for key in {reading.stream_key for reading in feed}:
        at = [i for i, reading in enumerate(feed) if reading.stream_key == key]
        wanted = make(detector).process([feed[i] for i in at])
        assert [found[i] for i in at] == wanted
        assert {(v.stream_key, v.mode) for v in wanted} == {of_mode(key)}
    assert {v.stream_key for v in found} == {of_mode(r.stream_key)[0] for r in feed}


def test_a_mode_that_was_never_seen_is_a_warm_up_and_no_alarm():
    feed = [r._replace(stream_key=in_mode(r.stream_key, "load")) for r in readings(600)]
    odd = [
        r._replace(stream_key=in_mode(r.stream_key, "start-up"), values=(1e3, *r.values[1:]))
        for r in readings(20)
    ]
    engine = make(HBOS)
    engine.process(feed)
    assert {(v.mode, v.reason) for v in engine.process(odd)} == {("start-up", Reason.WARM_UP)}
    assert not [i for i in engine.take_incidents() if i.mode == "start-up"]


@DETECTORS
@pytest.mark.parametrize("budget", [{}, {"rate": 0.1, "burst": 1}], ids=["rate", "budget"])
def test_the_laws_hold_with_modes(detector, budget):
    feed, draw = moded(700, missing=0.05), random.Random(5)
    recipe = of_modes(detector, **budget)
    wanted = Engine(recipe, InlineExecutor()).process(feed)
    executors = itertools.chain([DelayedExecutor(delays=[0, 3, 1])], iter(InlineExecutor, None))
    found, _ = played(
        lambda: Engine(recipe, next(executors)), feed,
        lambda: draw.choice([1, 7, 40]), lambda: draw.random() < 0.3,
    )  # fmt: skip
    assert found == wanted
    assert not budget or detector is HST or any(verdict.withheld for verdict in wanted)


# ------------------------------------------------------------------------ what people say
HELD = of_modes(None, window=100, every=200)


def stepped(n=1500, at=900):
    """Return one sensor in two modes, of which `load` is off by ten sd from somewhere on."""
    draw, found = random.Random(2), []
    for i, reading in enumerate(readings(n, keys=("a",), missing=0)):
        mode = "idle" if i % 3 == 0 else "load"
        shift = 10.0 if mode == "load" and i >= at else 0.0
        values = tuple(draw.gauss(shift, 1.0) for _ in reading.values)
        key = in_mode("a", mode)
        found.append(reading._replace(stream_key=key, sensor="a", values=values))
    return found


def test_an_incident_holds_its_mode_and_the_others_go_on():
    engine = Engine(HELD, InlineExecutor())
    verdicts = engine.process(stepped())
    changes = engine.take_incidents()
    assert {(c.stream_key, c.mode) for c in changes} == {("a", "load")}
    after = [v for v in verdicts if v.event_time_ms > changes[0].opened_ms]
    assert {v.mode for v in after if v.held} == {"load"}
    assert {v.held for v in after if v.mode == "idle"} == {False}


def test_an_answer_by_the_sensor_reaches_the_mode_that_is_held():
    engine = Engine(HELD, InlineExecutor())
    engine.process(stepped())
    engine.take_incidents()
    (opened,) = engine.open_incidents()
    said = Command(
        id="c", kind=CommandKind.FAULT, stream_key="a", incident=opened.id, version=opened.version
    )
    assert len(engine.streams_of(said)) == 2
    kept = engine.snapshot()
    assert engine.command(said).accepted
    again = Engine(HELD, InlineExecutor())
    again.restore(kept)
    assert again.open_incidents() == [opened]
    assert again.command(said).accepted
    feed = [r._replace(event_time_ms=10**7 + i) for i, r in enumerate(stepped(300, at=0))]
    assert engine.process(feed) == again.process(feed)
    assert engine.open_incidents() == again.open_incidents()
    assert engine.take_incidents()[0].state == "fault"


@pytest.mark.parametrize("restored", [False, True])
def test_what_is_planned_of_a_sensor_holds_in_all_its_modes_also_in_those_to_come(restored):
    engine = Engine(of_modes(HBOS), InlineExecutor())
    engine.process(stepped(30))
    say = Command(id="p", kind=CommandKind.PLANNED, stream_key="a", from_ms=10**7, until_ms=10**8)
    assert engine.command(say).accepted
    if restored:
        kept, engine = engine.snapshot(), Engine(of_modes(HBOS), InlineExecutor())
        engine.restore(kept)
    last = readings(9, keys=("a",))
    feed = [
        r._replace(stream_key=in_mode("a", mode), event_time_ms=10**7 + i)
        for i, (r, mode) in enumerate(zip(last, ["idle", "load", "off"] * 3, strict=True))
    ]
    assert {v.planned for v in engine.process(feed)} == {True}
    take_back = Command(id="x", kind=CommandKind.CANCEL, stream_key="a", cancels="p")
    assert engine.command(take_back).accepted
    assert {v.planned for v in engine.process(feed)} == {False}


def test_what_is_muted_of_a_sensor_is_muted_in_a_mode_to_come():
    engine = Engine(of_modes(HBOS), InlineExecutor())
    engine.process(stepped(30))
    say = Command(
        id="m", kind=CommandKind.MUTE, stream_key="a", box={"x": (-9.0, 9.0)}, by="ada", note="n",
        from_ms=0, until_ms=10**8,
    )  # fmt: skip
    assert engine.command(say).accepted
    at = len(stepped(30))
    feed = [
        reading._replace(
            stream_key=in_mode("a", "off"), sensor="a", event_time_ms=10**7 + i,
            position=Position("t", 0, at + i),
        )
        for i, reading in enumerate(readings(400, keys=("a",), missing=0))
    ]  # fmt: skip
    verdicts = [v for v in engine.process(feed) if v.severity is not None]
    assert {v.mode for v in verdicts} == {"off"}
    assert {v.muted for v in verdicts} == {"m", msgspec.UNSET}
    inside = [-9.0 <= feed[v.position.offset - at].values[0] <= 9.0 for v in verdicts]
    assert [v.muted == "m" for v in verdicts] == inside


def test_a_calendar_names_the_sensor():
    spec_ = of_modes(HBOS)
    plan = Plan(from_ms=0, until_ms=10**9, streams=("a",))
    engine = Engine(dataclasses.replace(spec_, calendar=(plan,)), InlineExecutor())
    found = engine.process(moded(60))
    assert {(v.stream_key, v.planned) for v in found} == {("a", True), ("b", False)}


# ---------------------------------------------------------------------------- who is known
def test_a_mode_that_rests_is_not_forgotten_while_its_sensor_speaks():
    lives = SensorRegistry(Limits(forget_after_ms=1000))
    told = [("a", "load", 0), ("b", "load", 900), ("a", "idle", 900), ("a", "idle", 1500)]
    told += [("b", "load", 1500), ("b", "load", 5000), ("c", "load", 5000)]
    events = [
        Reading(in_mode(name, mode), name, at, (), Position("t", 0, at)) for name, mode, at in told
    ]
    assert not lives.admit(events[:5]).gone.streams
    heard = lives.admit(events, 5)
    assert set(heard.gone.streams) == {in_mode("a", "load"), in_mode("a", "idle")}
    assert set(heard.gone.sensors) == {"a"}


def test_modes_count_against_max_keys_so_that_a_field_of_many_values_is_bounded():
    lives = SensorRegistry(Limits(max_keys=2))
    events = [Reading(in_mode("a", str(i)), "a", i, (), Position("t", 0, i)) for i in range(4)]
    assert lives.admit(events).over_limit == [2, 3]


def test_an_event_of_a_mode_too_many_speaks_of_its_sensor():
    at = Partition("t", 0)
    mapping = FieldMapping(["x", "y"], sensor="s", time="t", mode="m")
    state = PartitionState(
        at, decoder=JsonDecoder(mapping), engine=Engine(HELD, InlineExecutor()),
        context=ReviewItems(("x", "y")), limits=Limits(max_keys=1),
    )  # fmt: skip
    lines = [b'{"s": "a", "t": 1, "x": 1.5, "y": 2.5, "m": "%b"}' % m for m in (b"idle", b"load")]
    found = state.process([Record(Position("t", 0, i), None, x) for i, x in enumerate(lines)])
    assert [(o.verdict.stream_key, o.verdict.mode) for o in found] == [("a", "idle"), ("a", "load")]
    assert found[1].verdict.reason is Reason.TOO_MANY_SENSORS


def test_budgets_of_a_group_are_those_of_the_sensor_whatever_the_mode_is_called():
    credits = Credits(RejectionPolicy(0.1, rate=0.1, burst=4, owner="group"))
    assert credits.of(in_mode("g/a", "x/y")) is credits.of("g/b")


def test_monitors_never_mix_the_scores_of_modes():
    feed = moded(900)
    bank = MonitorBank(MonitorConfig(window=60, contamination=0.2, tolerance=3.0))
    bank.observe(make(HBOS).process(feed))
    assert set(bank) == {reading.stream_key for reading in feed}


# --------------------------------------------------------------------------------- reading
@pytest.mark.parametrize(
    ("written", "mode"), [('"load"', "load"), ("3", "3"), ("true", "true"), ('" idle "', "idle")]
)
def test_a_mode_is_a_name_a_whole_number_or_a_boolean(written, mode):
    decoder = JsonDecoder(FieldMapping(["v"], sensor="s", time="t", mode="m.state"))
    line = b'{"s": "a", "t": 1, "v": 2.5, "m": {"state": %b}}' % written.encode()
    reading = decoder.decode(Record(Position("t", 0, 0), None, line))
    assert (of_mode(reading.stream_key), reading.sensor) == (("a", mode), "a")


@pytest.mark.parametrize("written", ["null", "2.5", '""', '"a\\u001fb"', "[1]"])
def test_what_is_no_mode_is_a_dead_letter_that_says_why(written):
    decoder = JsonDecoder(FieldMapping(["v"], sensor="s", time="t", mode="m"))
    line = b'{"s": "a", "t": 1, "v": 2.5, "m": %b}' % written.encode()
    item = decoder.decode(Record(Position("t", 0, 0), None, line))
    assert isinstance(item, Invalid)
    assert item.stage == "validate"
    assert "mode" in item.reason


def test_a_column_of_a_table_is_a_mode():
    mapping = FieldMapping(["v"], sensor="s", time="t", mode="m")
    decoder = CsvDecoder(mapping, ("t", "s", "m", "v"))
    reading = decoder.decode(Record(Position("t", 0, 0), None, b"5,a,idle,2.5"))
    assert reading == Reading(in_mode("a", "idle"), "a", 5, (2.5,), Position("t", 0, 0))


MARKED = "pump\x1fidle"
BY_NAME = {
    "sensor": FieldMapping(["v"], sensor="s", time="t"),
    "key": FieldMapping(["v"], sensor_from="key", time="t"),
    "group": FieldMapping(["v"], fixed_sensor="m", group="s", time="t"),
    "tag": FieldMapping(["v"], sensor="m", tag="s", time="t"),
    "mode": FieldMapping(["v"], sensor="m", mode="s", time="t"),
}
SCHEMA = {"type": "record", "name": "R", "fields": [
    {"name": "s", "type": "string"}, {"name": "m", "type": "string"}, {"name": "t", "type": "long"},
    {"name": "v", "type": "double"},
]}  # fmt: skip


class OneSchema:
    def schema(self, _):
        return RegisteredSchema("AVRO", json.dumps(SCHEMA), {})


def as_json(mapping, tree):
    return JsonDecoder(mapping), json.dumps(tree).encode()


def as_csv(mapping, tree):
    return CsvDecoder(mapping, tuple(tree)), ",".join(map(str, tree.values())).encode()


def as_avro(mapping, tree):
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, SCHEMA, tree)
    decoder = RegistryDecoder(mapping, OneSchema(), "AVRO", avro_reader)
    return decoder, b"\0\0\0\0\1" + payload.getvalue()


@pytest.mark.parametrize("encode", [as_json, as_csv, as_avro])
@pytest.mark.parametrize("what", BY_NAME)
def test_a_name_with_the_mark_of_modes_is_a_dead_letter_that_says_so(encode, what):
    if encode is as_avro and what == "tag":
        pytest.skip("tags are of tables")
    for name in (MARKED, "plain"):
        decoder, value = encode(BY_NAME[what], {"s": name, "m": "m", "t": 1, "v": 2.5})
        key = name.encode() if what == "key" else b"k"
        item = decoder.decode(Record(Position("t", 0, 0), key, value))
        if name == "plain":
            assert isinstance(item, Reading)
        else:
            assert isinstance(item, Invalid)
            assert item.stage == "validate"
            assert "'pump\\x1fidle' has the character U+001F in it" in item.reason


@pytest.mark.parametrize(
    ("given", "words"),
    [({"fixed_sensor": MARKED}, "fixed_sensor"),
     ({"sensor": "s", "groups": {"a": "b", "c": MARKED}}, "groups")],
)  # fmt: skip
def test_a_config_with_the_mark_of_modes_in_a_name_is_refused(given, words):
    with pytest.raises(ConfigError, match=rf"^{words} .*U\+001F"):
        FieldMapping(["v"], **given)


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("modes", [False, True])
def test_the_engine_takes_the_mark_before_a_mode_and_nowhere_else(n, modes):
    engine = Engine(dataclasses.replace(of_modes(HBOS), modes=modes), InlineExecutor())
    fine = readings(n, keys=("a",))
    moded = [r._replace(stream_key=in_mode("a", "idle")) for r in fine]
    wrong = [r._replace(sensor=MARKED) for r in fine]
    wrong_key = [r._replace(stream_key=in_mode(MARKED if modes else "a", "idle")) for r in fine]
    for each in (wrong, wrong_key):
        with pytest.raises(ConfigError, match=r"expected no U\+001F"):
            engine.process(each)
    assert len(engine.process(moded if modes else fine)) == n


# ------------------------------------------------------------------------------ end to end
def table(path, n=900):
    draw, lines = random.Random(1), ["t,pump,state,flow,temp"]
    for i in range(n):
        mode = ("idle", "load")[i // 40 % 2]
        level = 0.0 if mode == "idle" else 50.0
        a, b = (level + draw.gauss(0, 1) for _ in range(2))
        lines.append(f"{1_700_000_000 + i},p-{i % 2},{mode},{a:.3f},{b:.3f}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.thorough
def test_a_named_mode_is_judged_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pumps.csv"
    table(path)
    config = tmp_path / "pumps.toml"
    words = ["--mode", "state", "--window", "60", "--contamination", "0.1"]
    assert main(["score", str(path), *words, "--save-config", str(config)]) == 0
    assert load_config(config).input.mode == "state"
    assert main(["run", str(config)]) == 0
    (out,) = tmp_path.glob("*verdicts.jsonl")
    verdicts = [decode_verdict(line) for line in out.read_bytes().splitlines()]
    assert {(v.stream_key, v.mode) for v in verdicts} == {
        (pump, mode) for pump in ("p-0", "p-1") for mode in ("idle", "load")
    }
    assert {v.label for v in verdicts} == {"normal", "anomaly", "rejected"}


CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "pumps.csv"
time = "t"
time_unit = "s"
sensor = "pump"
mode = "state"
channels = ["flow", "temp"]
[detector]
name = "HBOS"
[rejection]
contamination = {contamination}
tolerance = 4
window = 60
[state]
folder = "{name}-state"
[output]
verdicts = "{name}.jsonl"
"""


@pytest.mark.thorough
def test_state_commands_and_replay_know_modes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def rejex(*words):
        assert main([*words]) == 0
        return capsys.readouterr().out

    for name, contamination in (("one", 0.1), ("plain", 0.1), ("other", 0.2)):
        text = CONFIG.format(contamination=contamination, name=name)
        (tmp_path / f"{name}.toml").write_text(text)
    whole = tmp_path / "whole.csv"
    table(whole, 1_600)
    lines = whole.read_text().splitlines(keepends=True)
    (tmp_path / "pumps.csv").write_text("".join(lines[:600]))
    rejex("run", "one.toml")
    (row,) = json.loads(rejex("state", "list", "one.toml", "--output", "json"))["partitions"]
    (shown,) = json.loads(rejex("state", "show", "one.toml", "--output", "json"))
    assert row["sensors"] == 2, "whatever their modes"
    assert set(shown["silent_for_longest"]) == {"p-0", "p-1"}
    assert set(shown["largest_streams"]) == {
        f"{pump} ({mode})" for pump in ("p-0", "p-1") for mode in ("idle", "load")
    }
    assert "p-0 (idle)" in rejex("state", "show", "one.toml")
    rejex("state", "drop", "one.toml", "--all")
    (tmp_path / "pumps.csv").write_text("".join(lines))
    rejex("run", "one.toml")
    rejex("run", "plain.toml")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    same = json.loads(rejex("replay", "one.toml", "--output", "json"))
    assert {one["events"] for one in same["counts"]} == {1_600}
    assert same["changed"] == 0
    found = json.loads(rejex("replay", "one.toml", "--config", "other.toml", "--output", "json"))
    rejex("run", "other.toml")
    was, now = (
        [decode_verdict(x) for x in (tmp_path / f"{name}.jsonl").read_bytes().splitlines()]
        for name in ("one", "other")
    )
    assert found["changed"] == sum(a.label != b.label for a, b in zip(was, now, strict=True)) > 0
