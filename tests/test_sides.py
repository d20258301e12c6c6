"""Channels of which one side counts: a leak is a drop, and a rise of the pressure is no fault."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rejex_stream.cli import main
from rejex_stream.config import parse_config
from rejex_stream.config.assembly import Judging
from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor import distance
from rejex_stream.detectors.sensor.recipes import Layout
from rejex_stream.detectors.sensor.sides import Sided, region_of
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import CheckpointError
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, ChannelLimits, Hold
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Label, Reason
from tests.streams import of_rows, played

CHANNELS = ("pressure", "flow", "power")
LOW = (("pressure", "low"),)


def plant(n, seed=0, slow=0.97):
    """A pump: the load wanders, the flow follows it, pressure falls a little with it."""
    rng = np.random.default_rng(seed)
    load = np.zeros(n)
    for t in range(1, n):
        load[t] = slow * load[t - 1] + math.sqrt(1 - slow**2) * rng.normal()
    return np.column_stack(
        [
            5.0 - 0.1 * load + 0.05 * rng.normal(size=n),
            100.0 + 10.0 * load + rng.normal(size=n),
            20.0 + 2.0 * load + 0.2 * rng.normal(size=n),
        ]
    )


def features(asked=LOW, **given):
    return FeatureSpec(CHANNELS, preset="sensor", sides=asked, **given)


def rows_of(values, spec):
    return spec.start_recent(partial=True).extract(np.asarray(values).tolist())[0]


def fitted(asked=LOW, n=1500, seed=0):
    spec = features(asked)
    detector = make_detector("Sensor").for_features(spec)
    return detector.fit(rows_of(plant(n, seed), spec), seed=0)


@pytest.fixture(scope="module")
def one():
    return fitted()


@pytest.fixture(scope="module")
def plain():
    return fitted(())


def scored(model, values):
    rows = rows_of(values, features())
    return np.concatenate([np.full(len(values) - len(rows), np.nan), model.score(rows)])


@pytest.fixture(scope="module")
def usual(one, plain):
    """What one row in a thousand exceeds, with a side and without."""
    values = plant(6000, 3)
    return [np.nanquantile(scored(model, values), 0.999) for model in (one, plain)]


SHAPES = {
    "spike": np.ones(1), "step": np.ones(40), "ramp": np.linspace(0.05, 1, 40),
    "pulses": np.tile([1.0, 0.0, 0.0], 13),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.5, 2.0, 50.0])
def test_a_rise_alone_is_nothing_and_a_drop_is_seen_as_early_as_without(
    one, plain, usual, shape, size
):
    found = {}
    for seed in range(12):
        values = plant(240, 100 + seed)
        for sign in (1, -1):
            moved = values.copy()
            moved[120 : 120 + len(SHAPES[shape]), 0] += sign * size * SHAPES[shape]
            for name, model, limit in zip(("sided", "both"), (one, plain), usual, strict=True):
                flagged = scored(model, moved)[120:200] > limit
                first = int(flagged.argmax()) if flagged.any() else 99
                found.setdefault((name, sign), []).append((flagged.mean(), first))
    share = {key: np.mean([mean for mean, _ in of]) for key, of in found.items()}
    assert share["both", 1] > 0.05  # it is far from usual, if only for an event
    assert share["sided", 1] < 0.02  # and nobody asks, nor when it is over
    assert share["sided", -1] > 0.9 * share["both", -1]
    late = [a[1] - b[1] for a, b in zip(found["sided", -1], found["both", -1], strict=True)]
    assert np.mean(late) <= 0.25


# ------------------------------------------------------------------------------ what is proved
def regions(which, sign=1):
    spec = features(())
    layout = Layout.of(spec)
    own = [j for j, c in enumerate(layout.channels) if c == which]
    return region_of(layout.kinds, own, sign)


amounts = st.lists(st.floats(0.0, 4.0), min_size=6, max_size=6)


@pytest.fixture(scope="module")
def distances():
    """A plain distance with one channel sided, and rows that it knows."""
    X = rows_of(plant(1500), features(()))
    made = distance.fit_distance(X)
    return made, X, [Sided(made, (regions(0, sign),)) for sign in (1, -1)]


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1400), amounts, amounts, st.sampled_from([0, 1]), st.floats(0.01, 5.0))
def test_where_a_channel_goes_on_its_ignored_side_the_score_never_rises(
    distances, at, before, more, which, scale
):
    made, X, both_ways = distances
    sided, (region,) = both_ways[which], both_ways[which].regions
    spread = made.scale.spread[region.columns].max()
    levels = region.other < 0  # a spread that is high speaks for either side
    push = region.shifts @ (np.array(more) * levels * spread * scale)
    row = X[at] + region.shifts @ ((np.array(before) - 2.0) * spread)
    was, now = sided.score(row[None])[0], sided.score((row + push)[None])[0]
    put = sided._side_tests[0].is_off_side(np.array([row, row + push]))
    assert put[0] <= put[1]  # once aside, always
    if put[1]:
        assert now <= was * (1 + 1e-6) + 1e-6
    linear = np.abs((row - made.scale.centre) / made.scale.spread).max() < 30
    if linear:  # and never above what it is without sides
        assert was <= made.score(row[None])[0] * (1 + 1e-6) + 1e-6


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1400), amounts, st.floats(0.01, 1e6))
@example(at=0, more=[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], scale=1.0)  # a spread alone: a tie
@example(at=3, more=[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], scale=1000.0)
@example(at=5, more=[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], scale=0.01)
@example(at=8, more=[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], scale=1e6)
def test_a_rise_from_where_it_is_expected_scores_as_if_it_were_not_there_to_the_bit(
    one, at, more, scale
):
    X = rows_of(plant(1500), features(()))[at : at + 1]
    sided = one.inner.inner
    gone, others, weights = sided._expected(b"\x01")
    plain = sided.inner.plain
    Z = plain.scale.apply(X) - plain.mean
    usual = X.copy()
    usual[:, gone] = (Z[:, others] @ weights + plain.mean[gone]) * plain.scale.spread[
        gone
    ] + plain.scale.centre[gone]
    push = regions(0).shifts @ (np.array(more) * scale)
    if push.any():
        pushed = one.score(usual + push)
        assert pushed == one.score(usual + 2 * push)  # however far
        assert pushed[0] == pytest.approx(sided.inner.score(usual)[0], rel=1e-6)


def test_the_other_side_mirrors_it():
    spec, high = features(), features((("pressure", "high"),))
    X = rows_of(plant(1500), spec)
    turned = X.copy()
    cols = [j for j, name in enumerate(spec.channels_of_columns) if name == "pressure"]
    turned[:, cols] *= -1
    stds = [j for j, f in enumerate(spec.columns) if f.kind == "std" and f.channel == "pressure"]
    turned[:, stds] *= -1
    low = make_detector("Sensor").for_features(spec).fit(X, seed=0)
    other = make_detector("Sensor").for_features(high).fit(turned, seed=0)
    assert other.score(turned) == pytest.approx(low.score(X), rel=1e-5)


def test_shifts_are_what_readings_do_to_the_columns():
    spec = features(())
    layout, rng = Layout.of(spec), np.random.default_rng(0)
    region = regions(1)
    assert region.shifts.shape[1] == 6  # now, before, 2 to 9 and 10 to 23 events ago; both spreads
    values = plant(60)
    raised = values.copy()
    raised[-24:, 1] += rng.exponential(5.0, 24)
    change = (rows_of(raised, spec) - rows_of(values, spec))[-1]
    made, *_ = np.linalg.lstsq(region.shifts, change, rcond=None)
    assert region.shifts @ made == pytest.approx(change)
    assert (made[region.other < 0] >= -1e-9).all()
    assert [
        layout.kinds[j][0] for j in np.flatnonzero(region.shifts[:, region.other > 0].any(axis=1))
    ]
    assert {layout.channels[j] for j in region.columns} == {1}


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [LOW, (("power", "high"), ("pressure", "low")), (
    ("flow", "low"), ("power", "low"), ("pressure", "low"))])  # fmt: skip
def test_no_cut_of_a_batch_changes_a_bit(asked):
    model = fitted(asked)
    rows = rows_of(plant(700, 5), features())
    rows[300:340, 0] += 3.0
    whole = model.score(rows)
    for cut in (1, 7, 16, 17, 300):
        parts = [model.score(rows[i : i + cut]) for i in range(0, 340, cut)]
        assert np.array_equal(np.concatenate(parts)[:340], whole[:340])
    assert [*map(model.by_row(), rows[:340].tolist())] == whole[:340].tolist()
    assert np.array_equal(pickle.loads(pickle.dumps(model)).score(rows), whole)


def test_without_a_side_nothing_is_another():
    spec, bare = features(()), FeatureSpec(CHANNELS, preset="sensor")
    assert spec == bare
    made = [EngineSpec(make_detector("Sensor"), f, RejectionPolicy(0.05, tolerance=8), window=400)
            for f in (spec, features())]  # fmt: skip
    both, low = (one.state_parts for one in made)
    assert both["sides"] == "()"
    assert {**low, "sides": "()"} == both


# ------------------------------------------------------------------------- together with others
def test_several_channels_may_have_different_sides():
    model = fitted((("power", "high"), ("pressure", "low")))
    limit = np.nanquantile(scored(model, plant(6000, 3)), 0.999)
    found = {}
    for name, column, size in (("pressure", 0, 1.0), ("flow", 1, 30.0), ("power", 2, 6.0)):
        for sign in (1, -1):
            values = plant(200, 9)
            values[120:160, column] += sign * size
            found[name, sign] = (scored(model, values)[120:160] > limit).mean()
    assert found["pressure", 1] < 0.1 > found["power", -1]
    assert min(found["pressure", -1], found["power", 1]) > 0.9
    assert found["flow", -1] > 0.9


def test_both_rise_with_the_load_and_none_of_it_is_a_drop():
    asked = (("flow", "low"), ("power", "low"))
    model = fitted(asked)
    limit = np.nanquantile(scored(model, plant(6000, 3)), 0.999)
    values = plant(200, 9)
    values[120:160] += np.array([-0.2, 20.0, 4.0])  # as a higher load does
    assert (scored(model, values)[125:160] > limit).mean() < 0.3
    values[120:160, 1] -= 30.0  # now the flow is lost
    assert (scored(model, values)[120:160] > limit).mean() > 0.9


def test_where_another_channel_is_missing_a_rise_is_nothing_still(one, plain, usual):
    values = plant(200, 9)
    values[110:, 2] = math.nan
    ordinary = scored(one, values)[115:]
    raised, fallen = values.copy(), values.copy()
    raised[120:160, 0] += 2.0
    fallen[120:160, 0] -= 2.0
    assert (ordinary > usual[0]).mean() < 0.05
    assert (scored(plain, raised)[120:160] > usual[1]).mean() > 0.9
    assert (scored(one, raised)[120:] > usual[0]).mean() < 0.05
    assert (scored(one, fallen)[120:160] > usual[0]).mean() > 0.9
    values[115:, 1] = math.nan  # the sided one is alone
    values[120:160, 0] += 2.0
    assert (scored(one, values)[120:] > usual[0]).mean() < 0.05


def test_what_freezes_is_a_fault_on_either_side(one, usual):
    values = plant(260, 9)
    values[120:, 0] = values[119, 0] + 0.2
    assert (scored(one, values)[150:] > usual[0]).mean() > 0.8


def test_rises_in_the_training_rows_do_not_hide_a_drop(usual):
    spec = features()
    values = plant(2000)
    for start in range(100, 2000, 250):
        values[start : start + 25, 0] += 3.0
    detector = make_detector("Sensor").for_features(spec)
    model = detector.fit(rows_of(values, spec), seed=0)
    limit = np.nanquantile(scored(model, plant(6000, 3)), 0.999)
    assert limit < 1.3 * usual[0]
    values = plant(200, 9)
    values[120:160, 0] -= 1.0
    assert (scored(model, values)[120:160] > limit).mean() > 0.9


def test_a_channel_without_a_level_has_the_side_of_its_changes():
    rng = np.random.default_rng(0)
    spec = FeatureSpec(("stock", "other"), preset="sensor", sides=(("stock", "low"),))
    walk = np.column_stack([np.cumsum(rng.normal(size=3000)), rng.normal(size=3000)])
    detector = make_detector("Sensor").for_features(spec)
    rows = rows_of(walk, spec)
    assert detector.lacks_level(rows[:2000])
    model = detector.fit(rows[:2000], seed=0)
    limit = np.quantile(model.score(rows[2000:]), 0.999)
    for sign, wanted in ((1, False), (-1, True)):
        moved = walk[2400:2500].copy()
        moved[60:, 0] += sign * 15.0
        assert bool(model.score(rows_of(moved, spec))[60 - 23] > limit) is wanted


# ------------------------------------------------------------------------------------ the engine
def spec_of(asked=LOW, limits=(), hold=Hold()):  # noqa: B008 - it is immutable
    return EngineSpec(
        make_detector("Sensor"), FeatureSpec(CHANNELS, sides=asked),
        RejectionPolicy(0.02, tolerance=4), window=400,
        schedule=RefitSchedule(first_fit_events=300, refit_every_events=600),
        hold=hold, alarms=Alarms(), limits=limits,
    )  # fmt: skip


def readings_of(values, start=0):
    return of_rows(values, "pump", 60_000, first=start)


def leak_and_closed_valve(n=2600):
    """The valve behind the pump is closed for an hour, later a pipe leaks."""
    values = plant(n, 1)
    values[1800:1860, 0] += 1.5
    values[2300:2360, 0] -= 0.8
    return readings_of(values)


@pytest.mark.thorough
def test_a_leak_is_an_anomaly_with_an_incident_and_a_closed_valve_is_none():
    told = {}
    for asked in (LOW, ()):
        engine = Engine(spec_of(asked), InlineExecutor())
        verdicts = engine.process(leak_and_closed_valve())
        labels = np.array([verdict.label is Label.ANOMALY for verdict in verdicts])
        opened = {incident.onset_seq for incident in engine.take_incidents()}
        told[asked] = labels[1800:1900].mean(), labels[2300:2360].mean(), opened
    valve, leak, opened = told[LOW]
    assert valve < 0.05
    assert leak > 0.9
    assert len(opened) == 1
    assert 2290 < min(opened) <= 2305
    assert told[()][0] > 0.5  # without a side the valve is one, too


@pytest.mark.thorough
def test_the_laws_hold_over_cuts_snapshots_and_gaps():
    readings = leak_and_closed_valve()
    for i in range(900, 1300, 7):
        x = readings[i].values
        readings[i] = readings[i]._replace(values=(x[0], math.nan, x[2]))
    asked = (("power", "high"), ("pressure", "low"))
    whole = Engine(spec_of(asked), InlineExecutor())
    wanted = [*whole.process(readings)]
    sizes = iter((1, 350, 3, 600, 1, 1, 500, 77, 800, 267))
    found, _ = played(
        lambda: Engine(spec_of(asked), InlineExecutor()), readings, lambda: next(sizes),
        lambda: True,
    )  # fmt: skip
    assert found == wanted
    with pytest.raises(CheckpointError, match="sides"):
        Engine(spec_of(LOW), InlineExecutor()).restore(whole.snapshot())


@pytest.mark.thorough
def test_a_limit_counts_on_either_side():
    engine = Engine(spec_of(limits=(ChannelLimits("pressure", None, 6.0),)), InlineExecutor())
    verdicts = engine.process(leak_and_closed_valve())
    at = [verdict.seq for verdict in verdicts if verdict.reason is Reason.LIMIT]
    assert set(at) <= set(range(1800, 1860))
    assert len(at) > 50
    by_score = [verdict.limited.label for verdict in verdicts if verdict.limited]
    assert by_score.count(Label.ANOMALY) <= 1


@pytest.mark.thorough
def test_evidence_names_no_channel_on_the_side_that_nobody_asks_about():
    values = plant(2600, 1)
    values[2300:2330, 0] += 1.5
    values[2300:2330, 1] += 40.0
    verdicts = Engine(spec_of(hold=Hold(enabled=False)), InlineExecutor()).process(
        readings_of(values)
    )
    said = [v.evidence for v in verdicts[2300:2330] if v.evidence is not None]
    assert len(said) > 20
    for evidence in said[:5]:
        shares = {one.channel: one.contribution for one in evidence.channels}
        assert max(shares, key=shares.__getitem__) != "pressure"


# ------------------------------------------------------------------------------------ the config
CONFIG = """
[input]
path = "pump.csv"
time = "t"
channels = ["pressure", "flow", "valve"]
flags = ["valve"]
[rejection]
contamination = 0.03
tolerance = 8
[channels.pressure]
side = "low"
"""


def problems(text):
    return " ".join(str(problem) for problem in parse_config(text)[1])


def test_a_config_says_the_side():
    config, wrong = parse_config(CONFIG)
    assert not wrong
    assert Judging(config).spec.features.sides == LOW
    both, _ = parse_config(CONFIG.replace('"low"', '"both"'))
    assert Judging(both).spec.features.sides == ()


@pytest.mark.parametrize(("more", "says"), [
    ('[detector]\nname = "KNN"', 'pyod:KNN tells no sides apart: take detector.name = "Sensor"'),
    ('[detector]\nname = "SensorEnsemble"', "rejex:SensorEnsemble tells no sides apart"),
    ('[features]\npreset = "lags"', "know 32 of its readings apart: at most 8 can be"),
    ('[channels.valve]\nside = "high"', "side = 'high' of channel 'valve'"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused(more, says):
    assert says in problems(CONFIG + more)


def test_validate_says_it_in_one_sentence(tmp_path, capsys):
    (tmp_path / "pump.csv").write_text("t,pressure,flow,valve\n")
    (tmp_path / "pump.toml").write_text(CONFIG + '[detector]\nname = "KNN"\n')
    assert main(["validate", str(tmp_path / "pump.toml"), "--output", "json"]) != 0
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert "channels.pressure.side = 'low', but pyod:KNN tells no sides apart" in said
