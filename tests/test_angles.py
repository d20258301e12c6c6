"""Channels that go round: north is no jump, and a nacelle that stands off the wind is told."""

import json
import math

import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.config import parse_config
from rejex_stream.config.assembly import Judging
from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor.recipes import Layout
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.features import Circle, Feature, FeatureSpec
from rejex_stream.features.columns import short_way
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.readable import ChannelReading
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables.angles import find_angles, followed
from rejex_stream.tables.columns import Sample
from rejex_stream.tables.inspection import open_table
from rejex_stream.types import Label
from tests.streams import of_rows, played

CHANNELS = ("wind", "nacelle", "power")
ANGLES = (Circle("wind"), Circle("nacelle", follows="wind"))


def plant(n=6000, seed=0, fault=None):
    """A wind that wanders over north, a nacelle three events behind it, and power."""
    rng = np.random.default_rng(seed)
    wind = np.cumsum(rng.normal(0, 4, n)) % 360
    nacelle, power = np.roll(wind, 3), 800 + rng.normal(0, 40, n)
    if fault is not None:
        nacelle[fault : fault + 72] += 25
    return np.round(np.column_stack([wind, nacelle % 360, power]), 1)


def readings_of(values):
    return of_rows(values, "T1", 600_000)


def spec_of(angles=ANGLES, detector="Sensor", **given):
    return EngineSpec(
        make_detector(detector), FeatureSpec(CHANNELS, angles=angles, **given),
        RejectionPolicy(0.05, tolerance=4), window=1000,
        schedule=RefitSchedule(first_fit_events=600, refit_every_events=1000),
        hold=Hold(), alarms=Alarms(),
    )  # fmt: skip


def rows_of(spec, values, step_ms=600_000):
    sensor = spec.start()
    rows = [sensor.extract(step_ms * i, row) for i, row in enumerate(np.asarray(values).tolist())]
    return np.array([row for row in rows if row is not None])


def column(spec, values, name):
    return rows_of(spec, values)[:, spec.names.index(name)]


# ------------------------------------------------------------------------------------ the columns
def test_a_turn_of_all_angles_turns_sines_and_cosines_and_changes_nothing_else():
    spec = FeatureSpec(CHANNELS, preset="sensor", angles=ANGLES)
    values = plant(300)
    turned = np.add(values, (77, 77, 0))
    before, after = rows_of(spec, values), rows_of(spec, turned % (360, 360, math.inf))
    circle = np.array([name.endswith(("_sin", "_cos")) for name in spec.names])
    np.testing.assert_allclose(before[:, ~circle], after[:, ~circle], atol=1e-9)
    place = dict(zip(spec.names, before.T, strict=True))
    elsewhere = dict(zip(spec.names, after.T, strict=True))
    angle = np.radians(77)
    for name in ("wind", "nacelle", "wind_mean_10", "nacelle_mean_24"):
        sine, cosine = place[f"{name}_sin"], place[f"{name}_cos"]
        expected = sine * np.cos(angle) + cosine * np.sin(angle)
        np.testing.assert_allclose(elsewhere[f"{name}_sin"], expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["difference", "deviation", "std"])
def test_what_stays_away_from_north_is_what_it_was_as_a_number(kind):
    rng = np.random.default_rng(1)
    values = 180 + np.cumsum(rng.normal(0, 1, (60, 1)), axis=0)
    one = Feature(kind, "wind", events=5)
    plain = rows_of(FeatureSpec(("wind",), (one,)), values)
    angle = rows_of(FeatureSpec(("wind",), (one,), angles=(Circle("wind"),)), values)
    np.testing.assert_allclose(angle, plain, atol=1e-9)
    over = rows_of(FeatureSpec(("wind",), (one,), angles=(Circle("wind"),)), (values + 180) % 360)
    np.testing.assert_allclose(over, plain, atol=1e-9)


def test_spans_in_seconds_and_lags_go_round_as_well():
    columns = Feature("std", "a", seconds=5), Feature("lag", "a", 2), Feature("mean", "a", 2)
    spec = FeatureSpec(("a",), columns, angles=(Circle("a", 2 * math.pi),))
    assert spec.names == ("a_std_5s", "a_lag_2_sin", "a_lag_2_cos", "a_mean_2_sin", "a_mean_2_cos")
    rows = rows_of(spec, [[x % (2 * math.pi)] for x in np.arange(-0.5, 0.5, 0.1)], step_ms=1000)
    np.testing.assert_allclose(rows[:, 0], np.std(0.1 * np.arange(5), ddof=1), atol=1e-12)
    np.testing.assert_allclose(rows[-1, 1:3], (math.sin(0.2), math.cos(0.2)), atol=1e-12)


def test_how_far_one_is_behind_another_is_one_column_of_the_follower():
    spec = FeatureSpec(CHANNELS, preset="sensor", angles=ANGLES)
    behind = column(spec, [(1.0, 359.0, 0.0)] * 30, "nacelle_behind_wind")
    assert set(behind.tolist()) == {-2.0}
    at = spec.names.index("nacelle_behind_wind")
    assert spec.channels_of_columns[at] == "nacelle"
    assert short_way(350.0, 360.0) == -10.0


# -------------------------------------------------------------------------------------- the layout
def test_the_layout_knows_levels_spreads_and_what_steps_are_made_of():
    spec = FeatureSpec(CHANNELS, preset="sensor", angles=ANGLES)
    layout = Layout.of(spec)
    names = np.array(spec.names)
    spreads = {name for name in names if "_std_" in name}
    assert {*names[list(layout.spreads)]} == spreads
    levels = {*names[list(layout.levels)]}
    assert {"wind_sin", "wind_cos", "nacelle_behind_wind", "power"} <= levels
    # a change, and what the angle was before it: of the sines and cosines none
    before = layout.steps(np.arange(len(names))).before
    touched = {*names[np.any(before != 0, axis=1)]}
    assert not [name for name in touched if name.endswith(("_sin", "_cos"))]
    assert {"wind_deviation_24", "nacelle_behind_wind", "power"} <= touched


def test_the_sine_of_an_angle_rests_nowhere():
    spec = FeatureSpec(("wind", "door"), preset="sensor", angles=(Circle("wind"),))
    values = np.column_stack([np.full(700, 350.0), np.zeros(700)])
    rows = rows_of(spec, values)
    layout = Layout.of(spec)
    assert [one.channel for one in layout.resting(rows)] == [1]
    measured = {*np.array(spec.names)[layout.measured(rows, "apart")]}
    assert {name.split("_")[0] for name in measured} == {"wind"}


def test_an_angle_that_stood_still_is_an_anomaly_once_it_moves():
    values = plant(2400)
    values[:, 0] = 350.0
    values[2200:, 0] = 80.0
    engine = Engine(spec_of((Circle("wind"),)), InlineExecutor())
    verdicts = engine.process(readings_of(values))
    assert all(verdict.label is Label.ANOMALY for verdict in verdicts[2200:2210])


# ---------------------------------------------------------------------------------------- the laws
@pytest.mark.thorough
@pytest.mark.parametrize("detector", ["Sensor", "SensorEnsemble", "SeasonalSensor"])
def test_no_cut_and_no_restart_changes_a_verdict(detector):
    readings = readings_of(plant(2600))
    for i in range(1200, 1300, 7):
        wind, _, power = readings[i].values
        readings[i] = readings[i]._replace(values=(wind, math.nan, power))
    make = lambda: Engine(spec_of(detector=detector), InlineExecutor())  # noqa: E731
    wanted = [*make().process(readings)]
    assert {verdict.label for verdict in wanted[1500:]} >= {Label.NORMAL, Label.ANOMALY}
    sizes = iter((1, 350, 3, 600, 1, 1, 500, 77, 800, 267))
    found, _ = played(make, readings, lambda: next(sizes), lambda: True)
    assert found == wanted


def test_another_circle_is_another_state():
    engine = Engine(spec_of(), InlineExecutor())
    engine.process(readings_of(plant(100)))
    with pytest.raises(CheckpointError, match="angles"):
        Engine(spec_of(ANGLES[:1]), InlineExecutor()).restore(engine.snapshot())


# --------------------------------------------------------------------------------------- the cases
def judged(values, angles):
    engine = Engine(spec_of(angles), InlineExecutor())
    verdicts = engine.process(readings_of(values))
    return verdicts, engine.take_incidents()


def near_north(values):
    over = np.flatnonzero(np.any(np.abs(np.diff(values[:, :2], axis=0)) > 180, axis=1)) + 1
    near = np.zeros(len(values), bool)
    for at in over:
        near[at : at + 28] = True
    return near


@pytest.mark.thorough
def test_north_is_no_anomaly_and_without_the_kind_it_is():
    values = plant(8000, 4)
    near, share = near_north(values)[1200:], {}
    for angles in (ANGLES, ()):
        verdicts, _ = judged(values, angles)
        odd = np.array([verdict.label is Label.ANOMALY for verdict in verdicts[1200:]])
        share[angles] = odd[near].mean()
    assert near.sum() > 1000
    assert share[ANGLES] <= 2 * 0.05  # of what is asked
    assert share[()] >= 4 * 0.05


@pytest.mark.thorough
def test_a_nacelle_off_the_wind_is_told_by_name_and_without_the_kind_it_is_not():
    values = plant(6000, 1, fault=5000)
    told = {}
    for angles in (ANGLES, ()):
        _, incidents = judged(values, angles)
        told[angles] = [one for one in incidents if 5000 <= one.opened_seq < 5018]
    assert told[ANGLES][0].speaking[0].channel == "nacelle"
    assert not told[()]


# -------------------------------------------------------------------------------------- the config
CONFIG = """
[pipeline]
name = "farm"
[input]
path = "farm.csv"
time = "t"
channels = ["wind", "nacelle", "power", "door"]
flags = ["door"]
[rejection]
contamination = 0.05
window = 600
tolerance = 8
"""
WIND = '[channels.wind]\nkind = "angle"\n'


def test_a_config_says_what_goes_round():
    more = '[channels.nacelle]\nkind = "angle"\nfollows = "wind"\n'
    config, wrong = parse_config(CONFIG + WIND + more)
    assert not wrong
    angles = Judging(config).spec.features.angles
    assert {*angles} == {*ANGLES}


@pytest.mark.parametrize(("more", "says"), [
    ('[channels.wind]\nkind = "compass"', "channels.wind.kind"),
    (WIND + "period = 0", "channels.wind.period"), (WIND + "period = -360", "channels.wind.period"),
    ("[channels.wind]\nperiod = 360", "period is of angles"),
    ('[channels.wind]\nfollows = "nacelle"', "follows is of angles"),
    (WIND + 'follows = "power"', "follows = 'power' is no other angle"),
    (WIND + 'follows = "wind"', "follows = 'wind' is no other angle"),
    (WIND + 'side = "low"', "an angle has no lower side"),
    ('[channels.door]\nkind = "angle"', "a flag is not"),
    (
        WIND + '[[features.columns]]\nkind = "max"\nchannel = "wind"\nevents = 5',
        "an angle has no largest value",
    ),
])  # fmt: skip
def test_what_cannot_be_an_angle_is_refused(more, says):
    _, problems = parse_config(CONFIG + more)
    assert says in " ".join(map(str, problems))


@pytest.mark.parametrize("period", [0.0, -1.0, math.inf, math.nan])
def test_a_period_is_a_positive_number(period):
    with pytest.raises(ConfigError, match="period"):
        FeatureSpec(CHANNELS, angles=(Circle("wind", period),))


def test_people_are_told_what_an_angle_reads_and_no_range_that_north_cuts_in_two():
    known = parse_config(CONFIG + WIND)[0].channels
    for names, usual in (
        (DisplayNames("farm", None, known), ""),
        (DisplayNames(), "within its usual"),
    ):
        now, said = names.describe_reading(ChannelReading("wind", 180.0, (2.0, 358.0)))
        assert now == "wind 180"
        assert usual in said
        assert bool(said) == bool(usual)
    told = DisplayNames("farm", None, known)
    assert told.usual_of(ChannelReading("power", 1.0, (2.0, 3.0))) == (2.0, 3.0)


# ---------------------------------------------------------------------------------------- the guess
def angles_of(**columns):
    sample = Sample(numbers={name: list(map(float, x)) for name, x in columns.items()})
    return find_angles(sample, list(columns))


def test_what_goes_round_is_found_by_its_values_alone():
    wind, nacelle, power = plant(4000).T
    assert angles_of(x=wind, y=nacelle, z=power) == ["x", "y"]
    assert angles_of(x=(wind + 180) % 360 - 180) == ["x"]


def test_what_only_lies_within_a_circle_is_no_angle():
    rng = np.random.default_rng(0)
    on = rng.random(4000) < 0.5
    machine = np.where(on, 350 - np.abs(rng.normal(0, 40, 4000)), 0).clip(0)
    load = 180 + 165 * np.sin(np.arange(4000) / 300)
    stops = np.where(np.arange(4000) % 100 < 8, 0, load)
    slows = np.where(np.arange(4000) % 100 < 8, 30 + rng.normal(0, 1, 4000), load)
    rough = np.clip(180 + load - load.mean() + rng.normal(0, 6, 4000), 5, 355)
    trips = np.where((rough > 340) & (np.arange(4000) % 7 == 0), 0, rough)
    slow = 180 + 170 * np.sin(np.arange(4000) / 300)  # it turns back
    wide = plant(4000)[:, 0] * 1.1
    assert angles_of(stops=stops, slows=slows, trips=trips) == []
    assert angles_of(machine=machine, slow=slow, noise=rng.uniform(0, 360, 4000), wide=wide) == []
    assert angles_of(wind_dir=slow) == []


def test_a_direction_by_name_may_scatter():
    assert angles_of(wind_dir=np.random.default_rng(0).uniform(0, 360, 400)) == ["wind_dir"]


def test_who_follows_whom_is_found():
    wind, nacelle, _ = plant(4000).T
    other = plant(4000, 9)[:, 0]
    columns = {"other": other, "nacelle": nacelle, "wind": wind}
    sample = Sample(numbers={name: x.tolist() for name, x in columns.items()})
    assert followed(sample, list(columns)) == (
        Circle("other"), Circle("nacelle", follows="wind"), Circle("wind"),
    )  # fmt: skip


def table(folder, values, names="wind_dir,nacelle,kw"):
    rows = (
        ",".join(map(str, (1_780_272_000_000 + 600_000 * i, *row)))
        for i, row in enumerate(values.tolist())
    )
    path = folder / "farm.csv"
    path.write_text("\n".join((f"time,{names}", *rows)) + "\n")
    return path


@pytest.mark.thorough
def test_init_proposes_it_and_says_what_changes_it(tmp_path, capsys):
    path = table(tmp_path, plant(3000))
    assert main(["init", str(path), "--to", str(tmp_path / "c.toml")]) == 0
    said = capsys.readouterr().err
    assert "angles: wind_dir, nacelle (which follows wind_dir)" in said
    assert "--angle - that none is" in said
    config, _ = parse_config((tmp_path / "c.toml").read_text())
    found = Judging(config).spec.features.angles
    assert {*found} == {Circle("wind_dir"), Circle("nacelle", follows="wind_dir")}
    assert main(["init", str(path), "--angle", "-", "--to", str(tmp_path / "d.toml")]) == 0
    assert "[channels" not in (tmp_path / "d.toml").read_text()


@pytest.mark.thorough
def test_score_judges_as_the_config_that_it_writes(tmp_path, capsys):
    path = table(tmp_path, plant(3000))
    where = tmp_path / "c.toml"
    assert main(["score", str(path), "--output", "json", "--save-config", str(where)]) == 0
    assert "angle" in where.read_text()
    capsys.readouterr()
    config, _ = parse_config(where.read_text())
    assert Judging(config).spec.features.angles


def test_what_leaves_the_circle_later_is_no_angle_and_nothing_follows_it(tmp_path):
    values = plant(6000)
    values[5500, 0] = 361.0
    assert open_table(table(tmp_path, values)).guess.angles == (Circle("nacelle"),)


@pytest.mark.thorough
def test_a_feed_of_json_is_guessed_as_a_table_is(tmp_path, capsys):
    rows = plant(3000).tolist()
    lines = (
        json.dumps({"time": 1_780_272_000_000 + 600_000 * i, "m": {"wind_dir": a, "kw": c}})
        for i, (a, _, c) in enumerate(rows)
    )
    (tmp_path / "farm.jsonl").write_text("\n".join(lines) + "\n")
    to = tmp_path / "c.toml"
    assert main(["init", str(tmp_path / "farm.jsonl"), "--to", str(to)]) == 0
    assert "angles: wind_dir" in capsys.readouterr().err
    config, _ = parse_config(to.read_text())
    (one,) = Judging(config).spec.features.angles
    assert one.channel in to.read_text()
