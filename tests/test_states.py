"""States that nobody names are found by held-back rows, and what lies between them is seen."""

import math

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor import states
from rejex_stream.detectors.sensor.ensemble import Members, WithStates
from rejex_stream.detectors.sensor.states import find_states, fit_states
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.plan.suggest import suggest
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables.inspection import open_table
from tests.streams import of_rows, played

TEN_MINUTES, DAY = 600_000, 144
N = 5 * DAY


def pump(days, seed=0, *, at=None):
    """Current every ten minutes: 6 A for six hours a day, which begin anywhere, .02 A else."""
    rng, on = np.random.default_rng(seed), np.zeros(days * DAY, np.bool_)
    for day, row in enumerate(rng.integers(20, 100, days)):
        begin = day * DAY + int(row)
        on[begin : begin + 36] = True
    if at is not None:
        on[at - 6 : at + 30] = True
    n = len(on)
    return np.where(on, 6 + rng.normal(0, 0.05, n), 0.02 + rng.normal(0, 0.002, n))


def on_off(lengths, levels, *, spread=0.1, seed=0):
    """One stretch after the other, each of so many rows about a level."""
    rng = np.random.default_rng(seed)
    level = np.repeat(np.array(levels, dtype=np.float64), lengths)
    return level + spread * rng.normal(size=len(level))


def autoregressive(phi, n=2000, seed=0):
    rng, x = np.random.default_rng(seed), np.zeros(n)
    for i in range(1, n):
        x[i] = phi * x[i - 1] + math.sqrt(1 - phi * phi) * rng.normal()
    return x


def table(x):
    return np.asarray(x, dtype=np.float64).reshape(len(x), -1)


def rows(values, preset):
    spec = FeatureSpec(("amps",), preset=preset)
    state = spec.start()
    made = [state.extract(TEN_MINUTES * i, (float(v),)) for i, v in enumerate(values)]
    return spec, np.array([row for row in made if row is not None])


def fitted(values, name="StateSensor", preset="sensor"):
    spec, X = rows(values, preset)
    return make_detector(name).for_features(spec).fit(X, seed=0), X


@pytest.mark.parametrize("seed", range(3))
def test_what_lies_between_two_states_is_told(seed):
    delay, _ = told("StateSensor", seed)
    assert delay <= 6


def test_without_its_states_it_is_not(monkeypatch):
    monkeypatch.setattr(states, "find_states", lambda X: 1)
    delay, normal = told("StateSensor", seed=0)
    assert delay > 24 or normal > 0.5


def test_where_a_season_is_looked_for_states_are_as_well():
    detector, X = fitted(pump(6), "SeasonalSensor", "sensor_seasonal")
    between = X[60:61].copy()
    between[0, 0] = 4.5
    assert detector.score(between)[0] > 2 * detector.score(X).max()


def told(name, seed):
    """After how many rows a current that is 30 deviations too low is told; how many are normal."""
    at = 11 * DAY + 60
    values = pump(14, seed, at=at)
    values[at : at + 24] -= 1.5
    spec = EngineSpec(
        make_detector(name), FeatureSpec(("amps",)), RejectionPolicy(0.05, rate=0.05), window=N,
        alarms=Alarms(),
    )  # fmt: skip
    readings = of_rows(values[:, None], step_ms=TEN_MINUTES)
    verdicts, changes = played(lambda: Engine(spec, InlineExecutor(), idle={}), readings, 97)
    opened = {one.opened_seq for one in changes if one.opened_seq >= at}
    normal = np.mean([verdict.label == "normal" for verdict in verdicts[at : at + 24]])
    return min(opened, default=10**6) - at, normal


@pytest.mark.parametrize(("values", "count"), [
    (pump(5), 2),
    (on_off([200, 300] * 4, [0, 9] * 4), 2),
    (on_off([150, 150, 200] * 4, [0, 5, 9] * 4), 3),
    (on_off([100, 120, 140, 160] * 4, [0, 20, 5, 9] * 4), 4),
    (on_off([500, 800, 700], [0, 9, 0]), 1),  # once alone: it may be the fault
    (9.0 * (np.random.default_rng(0).random(2000) < 0.3) + autoregressive(0.5), 1),  # never stays
    (autoregressive(0.97), 1),
    (autoregressive(0.997), 1),
    (np.cumsum(np.random.default_rng(0).normal(size=2000)), 1),
    (np.sin(np.arange(2000) / 50), 1),
    (np.random.default_rng(0).exponential(size=2000), 1),
    (np.random.default_rng(0).standard_t(3, 2000), 1),
    (np.full(2000, 7.0), 1),
    (pump(1)[:60], 1),
])  # fmt: skip
def test_states_are_found_where_they_are_and_nowhere_else(values, count):
    assert find_states(table(values)) == count


@pytest.mark.thorough
def test_one_channel_of_ten_that_switches_is_enough_and_units_change_nothing():
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=(2000, 9)), on_off([200, 300] * 4, [0, 9] * 4)])
    assert find_states(X) == 2
    assert find_states(X * np.geomspace(1e-6, 1e6, 10) + 50.0) == 2


def test_every_second_stretch_of_the_blocks_may_be_a_night():
    # Half a day on, half a day off: every other one of ten blocks would hold one state alone.
    assert find_states(table(on_off([200] * 10, [0, 9] * 5))) == 2


def test_of_more_rows_every_third_is_looked_at():
    assert find_states(table(pump(36))) == 2


def test_without_states_it_is_left_out_and_the_order_of_scores_is_that_of_sensor():
    values = autoregressive(0.5, 720)
    (detector, X), (alone, _) = fitted(values), fitted(values, "Sensor")
    assert isinstance(detector.inner, Members)
    assert len(detector.inner.scorers) == 1
    ours, theirs = detector.score(X), alone.score(X)
    assert (np.diff(ours[np.argsort(theirs)]) >= 0).all()


def test_a_row_is_as_rare_as_its_state_or_all_others_say():
    detector, X = fitted(pump(5))
    joint = detector.inner
    assert isinstance(joint, WithStates)
    between, wild = X[60:61].copy(), X[60:61].copy()
    between[0, 0] = 4.5
    wild[0, 1] += 50.0  # a difference that no level shows
    for row, is_of_states in ((between, True), (wild, False)):
        others = float(joint.tail(joint.others.score(row))[0])
        own = float(joint.tail_of_states(joint.states.score(row))[0])
        assert (own > others) == is_of_states
        assert max(own, others) > 5 > min(own, others)
        assert detector.score(row)[0] == pytest.approx(math.log1p(max(own, others)))


def test_rows_are_as_rare_as_rows_of_states_that_are_not_fitted_on_them():
    detector, X = fitted(pump(5))
    rarity = detector.inner.tail_of_states(detector.inner.states.score(X))
    assert np.mean(rarity) == pytest.approx(1 / math.log(10), abs=0.1)


def by_day(spread, *, days=6, seed=0):
    """Current of a pump that is on from eight to two, that many rows early or late."""
    rng, x = np.random.default_rng(seed), np.zeros(days * DAY)
    for day in range(days):
        begin = day * DAY + 48 + int(rng.normal(0, spread))
        x[begin : begin + 36 + int(rng.normal(0, spread))] = 6.0
    return x + rng.normal(0, 0.05, len(x))


@pytest.mark.parametrize(("spread", "is_season"), [(0, True), (4, False)])
def test_a_machine_that_is_early_or_late_has_states_and_no_season(spread, is_season):
    detector, _ = fitted(by_day(spread), "SeasonalSensor", "sensor_seasonal")
    assert isinstance(detector.inner, WithStates)
    assert len(detector.inner.others.scorers) == 1 + is_season


def test_what_swings_by_the_day_glides_from_one_state_to_the_other(monkeypatch):
    hour = np.arange(6 * DAY) / 6 % 24
    sun = np.clip(np.sin((hour - 6) / 12 * np.pi), 0, None) * 50.0
    sun[sun > 0] += np.random.default_rng(0).normal(0, 2, int((sun > 0).sum()))
    assert find_states(table(sun)) == 1
    monkeypatch.setattr(states, "_switches", lambda *given: True)
    assert find_states(table(sun)) > 1


def test_a_tank_has_no_level_and_a_machine_that_is_on_for_half_a_day_has_two():
    tank = np.cumsum(np.random.default_rng(0).normal(size=2000))
    x = np.column_stack([tank, on_off([500] * 4, [0, 9] * 2)])
    spec = FeatureSpec(("tank", "on"), preset="sensor")
    state = spec.start()
    made = [state.extract(i, tuple(row)) for i, row in enumerate(x.tolist())]
    X = np.array([row for row in made if row is not None])
    recipe = make_detector("States").for_features(spec)
    assert recipe.levels(X).tolist() == [1]


def test_half_of_the_rows_may_lack_a_state():
    x = table(on_off([100, 300, 300, 100, 900], [9, 0, 0, 9, 0]))
    unseen = states.unseen_by_states(x, 2)
    assert np.median(unseen) < 1 < 3 * np.mean(unseen[:100])
    assert unseen.max() < 100, "no row is absurd by the others of its state"


def test_scores_do_not_depend_on_the_batch_nor_on_the_fit():
    detector, X = fitted(pump(5))
    again, _ = fitted(pump(5))
    together = detector.score(X[:200])
    assert [float(detector.score(X[i : i + 1])[0]) for i in range(200)] == together.tolist()
    assert [float(detector.by_row()(X[i].tolist())) for i in range(200)] == together.tolist()
    assert again.score(X[:200]).tolist() == together.tolist()


def test_by_the_row_it_is_the_nearest_and_an_unmoved_state_has_a_width():
    x = table(on_off([200, 300] * 4, [0, 9] * 4))
    x[x < 4] = 0.0
    found = fit_states(x, 2)
    assert [found.score(row[None])[0] for row in x[:3]] == found.score(x[:3]).tolist()
    still, far = found.score(np.array([[0.0], [0.5]]))
    assert still < 1
    assert far > 100


def two_channels():
    rng = np.random.default_rng(0)
    x = on_off([200, 300] * 4, [0, 9] * 4)
    return np.column_stack([x + rng.normal(size=2000), x + 0.1 * rng.normal(size=2000)])


def test_a_row_that_lacks_a_channel_is_scored_by_the_other():
    X = two_channels()
    detector = make_detector("States").for_features(FeatureSpec(("a", "b"))).fit(X, seed=0)
    partial = np.array([[np.nan, 4.5], [np.nan, 9.0]])
    between, usual = detector.score(partial)
    assert between > 100
    assert usual < 10
    groups = [np.array([0]), np.array([1])]
    without = detector.score_without(np.array([[0.0, 4.5]]), groups)[0]
    assert without[0] > 100
    assert without[1] < 10


def test_what_is_expected_is_that_of_the_nearest_state():
    rng = np.random.default_rng(1)
    load = on_off([200, 300] * 4, [0, 30] * 4) + rng.normal(size=2000)
    X = np.column_stack([load, np.where(load > 15, -load, load) + 0.1 * rng.normal(size=2000)])
    found = fit_states(X, 2)
    expected = found.given_others(np.array([[29.0, -29.2], [1.0, 1.2]]), [np.array([1])])
    assert expected[:, 0, 0] == pytest.approx([-29, 1], abs=0.3)


def test_flags_and_channels_at_rest_are_apart():
    x = on_off([200, 300] * 4, [0, 9] * 4)
    X = np.column_stack([np.random.default_rng(0).normal(size=2000), x > 4])
    recipe = make_detector("States").for_features(FeatureSpec(("a", "on")))
    assert recipe.of_rows(X) is None
    assert recipe.of_rows(np.column_stack([X[:, 0], x])).n_states == 2


@pytest.mark.parametrize(("levels", "detector"), [
    (table(pump(5)), "StateSensor"), (table(autoregressive(0.9)), "Sensor"),
    (np.column_stack([autoregressive(0.9), on_off([200, 300] * 4, [0, 9] * 4) > 4]), "Sensor"),
    (np.full((2000, 1), np.nan), "Sensor"), (None, "Sensor"),
])  # fmt: skip
def test_a_table_whose_first_rows_show_states_is_judged_by_them(levels, detector):
    choice = suggest(4_000, 1, ("amps",), levels=levels)
    assert choice.detector == detector
    assert any(note.startswith("states") for note in choice.notes) is (detector != "Sensor")
    given = suggest(4_000, 1, ("amps",), levels=levels, detector="HBOS")
    assert given.detector == "HBOS"


@pytest.mark.parametrize(("values", "detector"), [
    (pump(12), "StateSensor"), (autoregressive(0.9, 12 * DAY), "Sensor"),
])  # fmt: skip
def test_so_it_is_by_the_rows_of_a_file(tmp_path, values, detector):
    lines = ["time,amps", *(f"{TEN_MINUTES * i},{v:.4f}" for i, v in enumerate(values))]
    path = tmp_path / "pump.csv"
    path.write_text("\n".join(lines) + "\n")
    assert open_table(path).suggested().detector == detector


def test_channels_at_rest_are_named_by_the_rows_of_a_file(tmp_path):
    rows = enumerate(autoregressive(0.9, 2200))
    lines = ["time,amps,gas", *(f"{60 * i},{v:.4f},{i * 7 % 11 * (i > 2100)}" for i, v in rows)]
    path = tmp_path / "pump.csv"
    path.write_text("\n".join(lines) + "\n")
    said = [one for one in open_table(path).said if one.startswith("at rest")]
    assert len(said) == 1
    assert said[0].startswith("at rest: 'gas', of at most two values in the first 2,000 rows")
