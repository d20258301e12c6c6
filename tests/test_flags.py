"""Flags: channels that no score is made of, and that the reviewer sees all the same."""

import json
import math
import random
from dataclasses import replace

import pytest

from rejex_stream.cli import main
from rejex_stream.config import load_config, parse_config
from rejex_stream.config.assembly import engine_spec
from rejex_stream.decode import CsvDecoder, JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors import make_detector
from rejex_stream.doctor import sample_findings
from rejex_stream.encode import decode_reviewed, decode_verdict
from rejex_stream.engine import Engine
from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables.draft import opened
from rejex_stream.tables.guess import Asked, guess_table
from rejex_stream.tables.inspection import open_table
from rejex_stream.tables.json_fields import infer_feed
from rejex_stream.types import Position, Reading, Record, ReviewItem
from tests.streams import Distance, played, readings, spec

FEED = readings()
VALVE = (0.0, 1.0, math.nan, math.inf, 7.0)
CHANNELS = ("x", "valve", "y")


def with_valve(feed):
    """The same readings, each with a command between its channels that is often missing."""
    rng = random.Random(5)
    return [r._replace(values=(r.values[0], rng.choice(VALVE), r.values[1])) for r in feed]


def over(features, detector):
    return replace(spec(detector or Distance(), evidence=True), features=features)


SHAPES = {
    "raw": ("raw", None), "seasonal": ("sensor_seasonal", None), "at once": ("sensor", None),
    "the detector's own": (None, make_detector("Sensor")),
    "ensemble": (None, make_detector("SensorEnsemble")),
    "row by row": (None, make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=60)),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_verdicts_are_those_of_a_pipeline_that_never_saw_the_flag(name):
    preset, detector = SHAPES[name]
    plain, flagged = (
        over(FeatureSpec(channels, (), 1, preset, flags), detector)
        for channels, flags in ((("x", "y"), ()), (CHANNELS, ("valve",)))
    )
    wanted = Engine(plain, InlineExecutor()).process(FEED)
    make, rng = lambda: Engine(flagged, InlineExecutor()), random.Random(1)
    found, _ = played(make, with_valve(FEED), lambda: rng.randint(1, 60), lambda: True)
    assert found == wanted
    assert {verdict.label for verdict in found} >= {"anomaly", "normal"}


def test_explicit_columns_of_other_channels_need_no_flag_either():
    columns = Feature("raw", "y"), Feature("difference", "x", events=1)
    sensor = FeatureSpec(CHANNELS, columns, flags=("valve",)).start()
    assert sensor.extract(0, (1.0, math.nan, 5.0)) is None
    assert sensor.extract(1, (3.0, math.nan, 6.0)) == [6.0, 2.0]


@pytest.mark.parametrize(("flags", "columns", "said"), [
    (("vlave",), (), "The flag 'vlave' is no channel: use some of x, valve, y."),
    (("x", "x"), (), "A flag is named twice in ['x', 'x']: name each once."),
    (("x", "y", "valve"), (), "All channels are flags (x, y, valve), so nothing is left"),
    (("x",), (Feature("lag", "x", 2),), "Feature 'lag' is made of 'x', and a flag is kept"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(flags, columns, said):
    with pytest.raises(ConfigError, match=r"^[^.]*\.$") as caught:
        FeatureSpec(CHANNELS, columns, flags=flags)
    assert said in str(caught.value)


CONFIG = """[input]
path = "t.csv"
time = "t"
channels = ["x", "valve", "y"]
flags = {flags}
[rejection]
contamination = 0.05
tolerance = 8
"""


def test_a_config_names_them():
    config, problems = parse_config(CONFIG.format(flags='["valve"]'))
    assert not problems
    assert engine_spec(config).features.measured == ("x", "y")


@pytest.mark.parametrize("flags", ['["vlave"]', '["x", "y", "valve"]', '["x", "x"]'])
def test_a_config_that_names_them_wrongly_has_one_problem(flags):
    config, problems = parse_config(CONFIG.format(flags=flags))
    assert config is None
    assert [problem.key for problem in problems] == ["input.flags"]


def test_a_column_of_a_flag_is_a_problem_of_the_features():
    more = '[features]\ncolumns = [{ kind = "raw", channel = "valve" }]\n'
    _, problems = parse_config(CONFIG.format(flags='["valve"]') + more)
    assert [problem.key for problem in problems] == ["features"]


def test_state_is_kept_where_no_flag_is_named_and_not_where_flags_change():
    none = spec()
    assert none.state_parts["flags"] == "()"
    named = replace(none, features=replace(none.features, flags=("y",)))
    assert named.state_parts["flags"] == "('y',)"
    assert none.state_parts != named.state_parts


# ------------------------------------------------------------------------------- what is guessed
HEADER = ["time", "flow", "open", "mode"]


def table(n=1500, *, open_=lambda i: i // 40 % 2, mode=lambda i: 2 if i % 90 < 30 else 5):
    rng = random.Random(2)
    return [[str(1_700_000_000 + 60 * i), f"{rng.gauss(9, 1):.3f}", str(open_(i)), str(mode(i))]
            for i in range(n)]  # fmt: skip


def written(path, rows):
    path.write_text("\n".join(",".join(row) for row in [HEADER, *rows]) + "\n")
    return path


def test_channels_of_two_values_are_flags_and_gaps_are_no_value():
    rows = table(open_=lambda i: "" if i % 7 == 0 else i // 40 % 2)
    guess = guess_table(HEADER, rows)
    assert guess.channels == ("flow", "open", "mode")
    assert guess.flags == ("open", "mode")


def test_nothing_is_a_flag_where_nothing_would_be_left_or_little_was_seen():
    rows = [row[:1] + row[2:] for row in table()]
    assert guess_table(["time", "open", "mode"], rows).flags == ()
    assert guess_table(HEADER, table(19)).flags == ()
    assert guess_table(HEADER, table(300)[25:44]).flags == ()
    assert guess_table(HEADER, table(300)[25:45]).flags == ("open", "mode")


def test_what_somebody_says_goes_before_the_guess():
    assert guess_table(HEADER, table(), Asked(flags=["flow"])).flags == ("flow",)
    assert guess_table(HEADER, table(), Asked(flags=["-"])).flags == ()
    constant = table(mode=lambda _: 3)
    assert guess_table(HEADER, constant).channels == ("flow", "open")
    named = guess_table(HEADER, constant, Asked(flags=["mode"]))
    assert (named.channels, named.flags) == (("flow", "open", "mode"), ("mode",))
    with pytest.raises(ConfigError, match="there is no column 'mdoe'"):
        guess_table(HEADER, table(), Asked(flags=["mdoe"]))


@pytest.mark.thorough
def test_a_third_value_far_down_the_table_withdraws_the_guess(tmp_path):
    rows = table(6000, open_=lambda i: 0.5 if i == 5900 else i // 40 % 2)
    path = written(tmp_path / "t.csv", rows)
    assert guess_table(HEADER, rows[:5000]).flags == ("open", "mode")
    assert open_table(path).guess.flags == ("mode",)
    assert open_table(path, Asked(flags=["open"])).guess.flags == ("open",)


@pytest.mark.thorough
def test_a_switch_in_words_is_a_flag_and_another_word_costs_no_row(tmp_path):
    """A pump's ON and OFF were left out as if they might name who measured; asked for as a flag,
    no row could be read."""
    words = {0: "OFF", 1: "ON", 2: "FAULT"}
    rows = table(6000, open_=lambda i: words[2 if i == 5900 else i // 40 % 2])
    assert guess_table(HEADER, rows[:5000]).flags == ("open", "mode")
    path = written(tmp_path / "t.csv", rows)
    found = open_table(path)
    assert (found.guess.channels, found.guess.flags) == (("flow", "open", "mode"), ("open", "mode"))
    decoder, records, _ = opened(found.settings(), found.told())
    values = [decoder.decode(record).values[1] for record in records]
    assert values[39:41] == [0.0, 1.0]
    assert [i for i, value in enumerate(values) if math.isnan(value)] == [5900]
    assert open_table(path, Asked(flags=["open"])).guess.flags == ("open",)
    undone = open_table(path, Asked(flags=["-"])).guess
    assert (undone.channels, undone.aside["open"]) == (
        ("flow", "mode"), "not numbers, such as 'OFF'",
    )  # fmt: skip


@pytest.mark.parametrize("missing", [[], ["*"], ["off"], ["0"]])
def test_a_switch_is_read_before_what_stands_for_no_value(missing):
    """Beside a channel with texts, any of which is no value, ON and OFF were no values either."""
    sent = ["ON", "1", "FAULT", "", *(["0"] if missing == ["0"] else ["off", "0"])]
    expected = [1.0, 1.0, math.nan, math.nan, *([math.nan] if missing == ["0"] else [0.0, 0.0])]
    mapping = FieldMapping(["pump"], sensor="s", flags=["pump"], missing=missing, time="t")
    decoder, rows = CsvDecoder(mapping, ["s", "t", "pump"]), [f"a,0,{word}" for word in sent]
    assert read(decoder, rows) == pytest.approx(expected, nan_ok=True)
    rows = [json.dumps({"s": "a", "t": 0, "pump": word}) for word in sent]
    assert read(JsonDecoder(mapping), rows) == pytest.approx(expected, nan_ok=True)


def read(decoder, rows):
    """The value of the one channel of each row."""
    records = [Record(Position("t", 0, i), None, row.encode()) for i, row in enumerate(rows)]
    return [decoder.decode(record).values[0] for record in records]


def test_switches_alone_are_nothing_to_measure():
    rows = [[row[0], "ON" if i % 3 else "OFF"] for i, row in enumerate(table(100))]
    with pytest.raises(ConfigError, match="'open': not numbers, such as 'OFF'"):
        guess_table(["time", "open"], rows)


def test_of_a_feed_too():
    records = [
        Record(Position("t", 0, i), None, json.dumps(
            {"ts": int(t), "data": {"flow": float(x), "open": int(v), "mode": int(p)}}).encode())
        for i, (t, x, v, p) in enumerate(table(300))
    ]  # fmt: skip
    feed = infer_feed(records)
    assert feed.settings()["flags"] == ["open", "mode"]
    assert any(line.startswith("flags: open, mode, of at most") for line in feed.said)
    assert feed.suggested().spec.features.measured == ("flow",)
    asked = infer_feed(records, Asked(flags=["data.mode"]))
    assert asked.settings()["flags"] == ["mode"]


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["init", "score"])
def test_the_config_names_what_was_guessed_and_the_reviewer_sees_it(
    tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "t.csv", table())
    words = ["--to", "t.toml"] if command == "init" else ["--save-config", "t.toml"]
    words += ["--verdicts", "scored.jsonl"] if command == "score" else []
    assert main([command, "t.csv", *words]) == 0
    assert "flags: open, mode, of at most two values" in capsys.readouterr().err
    config = load_config(tmp_path / "t.toml")
    assert config.input.flags == ("open", "mode")
    assert engine_spec(config).features.measured == ("flow",)
    assert main(["run", "t.toml"]) == 0
    lines = (tmp_path / config.output.verdicts).read_bytes().splitlines()
    verdicts = [decode_verdict(line) for line in lines]
    if command == "score":
        scored = [decode_verdict(v) for v in (tmp_path / "scored.jsonl").read_bytes().splitlines()]
        assert [v.score for v in scored] == [v.score for v in verdicts]
    explained = [v for v in verdicts if v.evidence is not None]
    assert explained
    assert all([c.channel for c in v.evidence.channels] == ["flow"] for v in explained)
    lines = (tmp_path / config.output.review).read_bytes().splitlines()
    items = [item for item in map(decode_reviewed, lines) if isinstance(item, ReviewItem)]
    assert items
    for item in items:
        assert item.channels == ("flow", "open", "mode")
        assert item.values[2] in {2.0, 5.0}
        assert all(point.values[1] in {0.0, 1.0} for point in item.context)


@pytest.mark.thorough
def test_the_guess_can_be_undone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "t.csv", table())
    assert main(["init", "t.csv", "--flag", "-", "--to", "none.toml"]) == 0
    assert load_config(tmp_path / "none.toml").input.flags == ()
    assert main(["init", "t.csv", "--flag", "mode", "--to", "mode.toml"]) == 0
    assert load_config(tmp_path / "mode.toml").input.flags == ("mode",)
    capsys.readouterr()
    every = [word for name in HEADER[1:] for word in ("--flag", name)]
    assert main(["score", "t.csv", *every]) != 0
    assert "All channels are flags (flow, open, mode)" in capsys.readouterr().err


# ------------------------------------------------------------------------------- where they count
@pytest.mark.parametrize(("values", "level", "said"), [
    ((1.0, math.nan), "warning", "the reviewer will not see it"),
    ((math.nan, 1.0), "error", "no event can be scored without"),
    ((math.nan, math.nan), "error", "no event can be scored without"),
])  # fmt: skip
def test_the_doctor_knows_that_an_event_without_a_flag_is_judged(values, level, said):
    class Decoder:
        channels = ("flow", "valve")

    reading = Reading("p", "p", 0, values, Position("t", 0, 0))
    found = list(sample_findings([], [reading], Decoder(), ("valve",)))[-1]
    assert (found.level, said in found.fix) == (level, True)
    lost = "'valve'" if level == "warning" else "'flow'"
    assert found.message.startswith(f"missing everywhere: {lost}")


def test_a_label_that_is_named_a_flag_is_one():
    header = ["time", "flow", "label", "mode"]
    assert guess_table(header, table()).label == "label"
    guess = guess_table(header, table(), Asked(flags=["label"]))
    assert (guess.label, guess.flags) == (None, ("label",))


@pytest.mark.thorough
def test_a_sample_without_a_flag_is_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = table(600, open_=lambda i: "" if i % 3 == 0 else i // 40 % 2)
    written(tmp_path / "t.csv", rows)
    assert main(["init", "t.csv"]) == 0
    written(tmp_path / "t.csv", [[*row[:2], "", row[3]] for row in rows])
    capsys.readouterr()
    assert main(["doctor", "t.toml"]) == 0
    assert "the reviewer will not see it" in " ".join(capsys.readouterr().out.split())
