"""A season is found by held-back rows, and a fault that only the hour shows is seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor.ensemble import Members
from rejex_stream.detectors.sensor.recipes import SeasonalResidual
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.plan.suggest import suggest
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables import open_table
from rejex_stream.types import Position, Reading

TEN_MINUTES, DAY = 600_000, 144
N = 5 * DAY


def flow(days, leak_at=None, *, swing=15.0, seed=0):
    """A flow that swings by the day, every ten minutes; a leak of 12 that stays, from a day on."""
    rng, n = np.random.default_rng(seed), days * DAY
    x = 60 + swing * np.sin(2 * np.pi * np.arange(n) / DAY) + 2 * rng.standard_normal(n)
    if leak_at is not None:
        x[leak_at * DAY :] += 12
    return x


def rows(values, preset="sensor_seasonal"):
    spec = FeatureSpec(("flow",), preset=preset)
    state = spec.start()
    made = [state.extract(TEN_MINUTES * i, (float(v),)) for i, v in enumerate(values)]
    return spec, np.array([row for row in made if row is not None])


def fitted(values, name="SeasonalSensor"):
    spec, X = rows(values)
    return make_detector(name).for_features(spec).fit(X, seed=0), X


def judged(name, values, seed=0):
    spec = EngineSpec(
        make_detector(name), FeatureSpec(("flow",)), RejectionPolicy(0.05, rate=0.05), window=N,
        alarms=Alarms(), seed=seed,
    )  # fmt: skip
    engine, verdicts = Engine(spec, InlineExecutor(), idle={}), []
    readings = [
        Reading("s", "s", TEN_MINUTES * i, (float(v),), Position("t", 0, i))
        for i, v in enumerate(values)
    ]
    for start in range(0, len(readings), 97):
        verdicts += engine.process(readings[start : start + 97])
    return verdicts, engine.take_incidents()


@pytest.mark.parametrize("seed", range(3))
def test_a_leak_that_hides_in_the_swing_of_the_day_is_told_and_held(seed):
    values = flow(16, leak_at=12, seed=seed)
    verdicts, incidents = judged("SeasonalSensor", values)
    leak = verdicts[12 * DAY : 13 * DAY]
    assert sum(verdict.label == "normal" for verdict in leak) < 0.05 * len(leak)
    assert sum(verdict.held for verdict in leak) > 0.9 * len(leak)
    assert any(12 * DAY <= one.opened_seq < 12 * DAY + 12 for one in incidents)


def test_without_the_hour_it_is_normal_again_at_once():
    verdicts, _ = judged("Sensor", flow(16, leak_at=12))
    leak = verdicts[12 * DAY + 24 : 13 * DAY]
    assert sum(verdict.label == "normal" for verdict in leak) > 0.5 * len(leak)


def members(detector):
    assert isinstance(detector.inner, Members)
    return len(detector.inner.scorers)


def test_without_a_season_it_is_left_out_and_the_order_of_scores_is_that_of_sensor():
    detector, X = fitted(flow(5, swing=0.0))
    alone, _ = fitted(flow(5, swing=0.0), "Sensor")
    assert members(detector) == 1
    ours, theirs = detector.score(X), alone.score(X)
    assert (np.diff(ours[np.argsort(theirs)]) >= 0).all()


def test_a_season_joins_and_both_halves_are_judged_by_the_one_that_all_rows_show():
    detector, X = fitted(flow(3))
    assert members(detector) == 2
    # Rows of either half are as rare by the other half as they say: .5 on average, in decades .43.
    tail, scorer = detector.inner.tails[1], detector.inner.scorers[1]
    assert np.mean(tail(scorer.score(X))) == pytest.approx(1 / math.log(10), abs=0.12)


@pytest.mark.parametrize(("shape", "period"), [
    (lambda h: 15 * np.sin(2 * np.pi * h / 24), "day"),
    (lambda h: 60.0 * ((h >= 2) & (h < 3)), "pulses"),
    (lambda h: 60.0 * ((h >= 2) & (h < 2.5)), "pulses"),  # in half of the rows it leaves nothing
])  # fmt: skip
def test_a_smooth_day_and_a_nightly_job_are_told_apart(shape, period):
    h = np.arange(6 * DAY) / 6 % 24
    spec, X = rows(10 + shape(h) + np.random.default_rng(1).standard_normal(6 * DAY))
    recipe = make_detector("SeasonalResidual").for_features(spec)
    assert isinstance(recipe, SeasonalResidual)
    assert recipe.with_period_of(X).period == period


def test_what_a_wild_row_or_a_trend_leaves_is_no_season():
    values = flow(5, swing=0.0) + np.linspace(0, 30, 5 * DAY)
    values[100] = 1e6
    spec, X = rows(values)
    assert make_detector("SeasonalResidual").for_features(spec).with_period_of(X) is None


def test_rows_of_half_a_day_show_no_day():
    spec, X = rows(flow(1)[: DAY // 2])
    assert make_detector("SeasonalResidual").for_features(spec).with_period_of(X) is None


def test_scores_do_not_depend_on_the_batch():
    detector, X = fitted(flow(4))
    together = detector.score(X[:200])
    assert [float(detector.score(X[i : i + 1])[0]) for i in range(200)] == together.tolist()
    assert [float(detector.by_row()(X[i].tolist())) for i in range(200)] == together.tolist()


@pytest.mark.parametrize(("step_ms", "n_rows", "detector", "window"), [
    (60_000, 20_000, "SeasonalSensor", 7_200),
    (60_000, 17_000, "Sensor", 2_000),
    (TEN_MINUTES, 3_000, "SeasonalSensor", 750),
    (TEN_MINUTES, 1_500, "Sensor", 370),
    (1_000, 500_000, "Sensor", 2_000),
    (86_400_000, 3_000, "Sensor", 750),
    (None, 20_000, "Sensor", 2_000),
])  # fmt: skip
def test_a_table_of_many_days_is_judged_by_the_hour(step_ms, n_rows, detector, window):
    choice = suggest(n_rows, 1, ("flow",), step_ms=step_ms)
    assert (choice.detector, choice.spec.window) == (detector, window)
    assert suggest(n_rows, 1, ("flow",), step_ms=step_ms, detector="HBOS").detector == "HBOS"


def test_a_member_for_a_season_that_is_alone_scores_without_one():
    spec, X = rows(flow(5, swing=0.0), preset="seasonal")
    alone = make_detector("Ensemble", members=["SeasonalResidual"]).for_features(spec)
    wild = np.copy(X[:2])
    wild[0, 0] += 50
    far, usual = alone.fit(X, seed=0).score(wild)
    assert far > 2 * usual


@pytest.mark.parametrize(("every", "detector"), [(0, "SeasonalSensor"), (4, "Sensor")])
def test_a_table_with_missing_cells_is_judged_by_what_is_there(tmp_path, every, detector):
    lines = ["time,flow,level"]
    for i, value in enumerate(flow(15).tolist()):
        hour, minute = divmod(i % DAY * 10, 60)
        at = f"2026-06-{1 + i // DAY:02d}T{hour:02d}:{minute:02d}:00Z"
        level = "" if every and i % every == 0 else f"{3 + (i * 7919 % 101) / 100:.2f}"
        lines.append(f"{at},{value:.2f},{level}")
    path = tmp_path / "flow.csv"
    path.write_text("\n".join(lines) + "\n")
    assert open_table(path).suggested().detector == detector
