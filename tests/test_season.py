"""A season is found by held-back rows, and a fault that only the hour shows is seen."""

import json
import math
from datetime import date, datetime, timedelta

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.detectors.sensor import season as module
from rejex_stream.detectors.sensor.ensemble import Ensemble, Members, _joint
from rejex_stream.detectors.sensor.season import Part, Season, SeasonalResidual
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.plan.suggest import suggest
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.tables.guess import Asked
from rejex_stream.tables.inspection import open_table
from rejex_stream.tables.json_fields import open_file
from tests.streams import of_rows, played

TEN_MINUTES, DAY, MS_A_DAY = 600_000, 144, 86_400_000
N = 5 * DAY


def flow(days, leak_at=None, *, swing=15.0, seed=0):
    """A flow that swings by the day, every ten minutes; a leak of 12 that stays, from a day on."""
    rng, n = np.random.default_rng(seed), days * DAY
    x = 60 + swing * np.sin(2 * np.pi * np.arange(n) / DAY) + 2 * rng.standard_normal(n)
    if leak_at is not None:
        x[leak_at * DAY :] += 12
    return x


def rows(values, step_ms=TEN_MINUTES):
    spec = FeatureSpec(("flow",), preset="sensor_seasonal")
    state = spec.start()
    made = [state.extract(step_ms * i, (float(v),)) for i, v in enumerate(values)]
    return spec, np.array([row for row in made if row is not None])


def fitted(values, name="SeasonalSensor"):
    spec, X = rows(values)
    return make_detector(name).for_features(spec).fit(X, seed=0), X


def judged(name, values, seed=0):
    spec = EngineSpec(
        make_detector(name), FeatureSpec(("flow",)), RejectionPolicy(0.05, rate=0.05), N,
        RefitSchedule.for_window(N, first_fit_events=N), alarms=Alarms(), seed=seed,
    )  # fmt: skip
    readings = of_rows(values[:, None], step_ms=TEN_MINUTES)
    return played(lambda: Engine(spec, InlineExecutor(), idle={}), readings, 97)


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


def season(values, step_ms=TEN_MINUTES):
    spec, X = rows(values, step_ms=step_ms)
    found = SeasonalResidual().for_features(spec).of_rows(X)
    return None if found is None else found.season


@pytest.mark.parametrize(("shape", "part"), [
    (lambda h: 15 * np.sin(2 * np.pi * h / 24), Part("day", 12)),
    (lambda h: 60.0 * ((h >= 2) & (h < 3)), Part("day", 0)),
    (lambda h: 60.0 * ((h >= 2) & (h < 2.5)), Part("day", 0)),  # in half of the rows: nothing
])  # fmt: skip
def test_a_smooth_day_and_a_nightly_job_are_told_apart(shape, part):
    h = np.arange(6 * DAY) / 6 % 24
    noise = np.random.default_rng(1).standard_normal(6 * DAY)
    assert season(10 + shape(h) + noise) == Season((part,))


def test_what_a_wild_row_or_a_trend_leaves_is_no_season():
    values = flow(5, swing=0.0) + np.linspace(0, 30, 5 * DAY)
    values[100] = 1e6
    assert season(values) is None


@pytest.mark.parametrize("seed", range(6))
def test_what_wanders_has_no_season(seed):
    walk = np.cumsum(np.random.default_rng(seed).standard_normal(14 * DAY))
    assert season(walk) is None


def test_rows_of_half_a_day_show_no_day():
    assert season(flow(1)[: DAY // 2]) is None


def test_a_week_needs_three():
    day = np.arange(23 + 28)  # the first rows fill the windows of columns
    values = np.where(day % 7 >= 5, 0.6, 1.0) + 0.01 * np.sin(day)
    assert season(values, MS_A_DAY) is not None
    assert season(values[:-8], MS_A_DAY) is None


def spread_by_night(days, seed=0):
    """A sun that is clouded by day, and 0 by night."""
    rng, n = np.random.default_rng(seed), days * DAY
    sun = np.clip(np.sin((np.arange(n) / DAY % 1 - 0.25) * 2 * np.pi), 0, None)
    return 60 * sun * rng.uniform(0.3, 1.0, n)


def nightly(days, missing_at=None, seed=0):
    """A job that loads a machine from two to three; in the night of one day it does not run."""
    rng, n = np.random.default_rng(seed), days * DAY
    hour = np.arange(n) / 6 % 24
    job = 60.0 * ((hour >= 2) & (hour < 3))
    if missing_at is not None:
        job[missing_at * DAY : missing_at * DAY + DAY] = 0
    return 10 + 2 * rng.standard_normal(n) + job


def monthly(days, seed=0):
    """Rows a day: more than twice as many on a month's last, fewer on week-ends."""
    rng, first = np.random.default_rng(seed), date(1970, 1, 1)
    dates = [first + timedelta(i) for i in range(days)]
    last = np.array([(one + timedelta(1)).day == 1 for one in dates])
    end = np.array([one.weekday() > 4 for one in dates])
    values = (1000 + rng.normal(0, 30, days)) * np.where(last, 2.2, 1) * np.where(end, 0.6, 1)
    return np.round(values), last


def night_of(verdicts, day):
    return verdicts[day * DAY + 6 : day * DAY + 30]  # one to five


def test_a_sun_that_stands_still_by_night_is_no_normal_night():
    values = spread_by_night(13)
    values[11 * DAY + DAY // 2 : 12 * DAY + 36] = 40.0
    verdicts, incidents = judged("SeasonalSensor", values)
    assert all(one.label == "anomaly" for one in night_of(verdicts, 12))
    assert any(11 * DAY + DAY // 2 <= one.opened_seq < 12 * DAY + 36 for one in incidents)
    healthy = [one for day in range(9, 12) for one in night_of(verdicts, day)]
    assert sum(one.label == "anomaly" for one in healthy) < 0.1 * len(healthy)


@pytest.mark.thorough
def test_the_spread_joins_where_the_nights_are_quiet_alone(monkeypatch):
    assert season(spread_by_night(6)).spread == Part("day", 6)
    assert season(spread_by_night(3)).spread is None  # two turns, and most of a third
    assert season(flow(6)).spread is None
    detector, X = fitted(spread_by_night(6))
    night = np.copy(X[3 * DAY + 12 - 23])
    night[0] = 15.0
    own = detector.inner.tails[1](detector.inner.scorers[1].score(night[None]))
    monkeypatch.setattr(module, "_SPREADS", ())
    detector, X = fitted(spread_by_night(6))
    other = detector.inner.tails[1](detector.inner.scorers[1].score(night[None]))
    assert own > 6
    assert other < 3


def test_a_job_that_does_not_run_is_told():
    verdicts, incidents = judged("SeasonalSensor", nightly(13, missing_at=12))
    job = verdicts[12 * DAY + 12 : 12 * DAY + 18]
    assert [one.label for one in job] == ["anomaly"] * 6
    assert any(0 <= one.opened_seq - 12 * DAY - 12 < 9 for one in incidents)


def test_without_sharp_edges_a_job_that_does_not_run_is_not_told(monkeypatch):
    monkeypatch.setattr(module, "_MEANS", (Part("day", 12),))
    _, incidents = judged("SeasonalSensor", nightly(13, missing_at=12))
    assert not any(0 <= one.opened_seq - 12 * DAY - 12 < 9 for one in incidents)


def test_month_ends_are_found_in_a_year_of_days_and_twice_as_much_is_so_on_any_weekday():
    values, _ = monthly(400)
    found = season(values, MS_A_DAY)
    assert found.means[1] == Part("month", 0)
    assert found.means[0].clock == "week"
    assert found.logs == (0,)
    assert all(one.clock != "month" for one in season(values[:150], MS_A_DAY).means)


@pytest.mark.parametrize("without", [None, "month", "by hour"])
def test_month_ends_are_usual_after_a_few_months(monkeypatch, without):
    if without == "month":
        monkeypatch.setitem(module._LEAST_TURNS, "month", math.inf)
    elif without == "by hour":
        monkeypatch.setattr(module.ByHour, "of_rows", lambda self, X: self.member)
    values, last = monthly(1500)
    spec, X = rows(values, step_ms=MS_A_DAY)
    detector = make_detector("SeasonalSensor").for_features(spec).fit(X[:700], seed=0)
    scores, ends = detector.score(X[700:]), last[-len(X) :][700:]
    usual = scores[ends] < np.quantile(scores[~ends], 0.9)
    assert (usual.mean() > 0.6) == (without is None)


def test_what_is_missing_leaves_the_score_of_the_others():
    rng = np.random.default_rng(3)
    spec = FeatureSpec(("flow", "level"), preset="sensor_seasonal")
    state, values = spec.start(), np.column_stack((flow(6), rng.standard_normal(6 * DAY)))
    X = np.array([
        row for i, value in enumerate(values.tolist())
        if (row := state.extract(TEN_MINUTES * i, value)) is not None
    ])  # fmt: skip
    recipe = make_detector("SeasonalSensor").for_features(spec)
    detector = recipe.fit(X, seed=0)
    assert recipe.allow_nan
    wrong, of_level = X[-1].copy(), np.array(spec.channels_of_columns) == "level"
    wrong[of_level] = np.nan
    wrong[0] += 12
    usual = X[-1].copy()
    usual[of_level] = np.nan
    assert detector.score(wrong[None]) > 1.5
    assert detector.score(usual[None]) < 1.0


def test_a_verdict_says_what_was_expected_at_this_hour():
    spec = EngineSpec(
        make_detector("SeasonalSensor"), FeatureSpec(("flow",)), RejectionPolicy(0.05, rate=0.05),
        window=N, alarms=Alarms(), evidence=True,
    )  # fmt: skip
    engine, values = Engine(spec, InlineExecutor(), idle={}), flow(11)
    at = 10 * DAY + 100
    values[at:] += 12
    verdicts = engine.process(of_rows(values[: at + 1, None], step_ms=TEN_MINUTES))
    said = verdicts[-1].expected("flow")
    assert verdicts[-1].label == "anomaly"
    true = 60 + 15 * math.sin(2 * math.pi * at / DAY)
    assert (said.by, said.read) == ("hour", values[at])
    assert said.value == pytest.approx(true, abs=1.5)
    assert (said.high - said.low) / 2 == pytest.approx(4, abs=1)
    now, usual = said.as_reading("flow").describe()
    assert now.startswith("flow ")
    assert usual.startswith("expected ")
    assert usual.endswith(" at this hour")


def test_scores_do_not_depend_on_the_batch():
    detector, X = fitted(flow(4))
    together = detector.score(X[:200])
    assert [float(detector.score(X[i : i + 1])[0]) for i in range(200)] == together.tolist()
    assert [float(detector.by_row()(X[i].tolist())) for i in range(200)] == together.tolist()


@pytest.mark.parametrize(("step_ms", "n_rows", "detector", "window"), [
    (60_000, 20_000, "SeasonalSensor", 7_200), (60_000, 17_000, "Sensor", 2_000),
    (TEN_MINUTES, 3_000, "SeasonalSensor", 750), (TEN_MINUTES, 1_500, "Sensor", 370),
    (1_000, 500_000, "Sensor", 2_000), (86_400_000, 3_000, "SeasonalSensor", 750),
    (86_400_000 * 2, 3_000, "Sensor", 750), (None, 20_000, "Sensor", 2_000),
])  # fmt: skip
def test_a_table_of_many_days_is_judged_by_the_hour(step_ms, n_rows, detector, window):
    choice = suggest(n_rows, 1, ("flow",), step_ms=step_ms)
    assert (choice.detector, choice.spec.window) == (detector, window)
    assert suggest(n_rows, 1, ("flow",), step_ms=step_ms, detector="HBOS").detector == "HBOS"


def test_a_member_for_a_season_that_is_alone_scores_without_one():
    spec, X = rows(flow(5, swing=0.0))
    alone = Ensemble((SeasonalResidual(),)).for_features(spec)
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


@pytest.mark.parametrize(("shape", "days", "gaps", "detector"), [
    ("row", 15, 0, "SeasonalSensor"), ("row", 15, 4, "StateSensor"), ("row", 12, 0, "StateSensor"),
    ("tag", 15, 0, "SeasonalSensor"), ("alone", 15, 0, "SeasonalSensor"),
    ("whole", 12, 0, "StateSensor"),
])  # fmt: skip
def test_records_of_json_are_judged_by_the_hour_and_by_states_as_a_table_is(
    tmp_path, shape, days, gaps, detector
):
    lines = []
    for i, value in enumerate(flow(days).tolist()):
        at = (datetime(2026, 6, 1) + timedelta(minutes=10 * i)).isoformat() + "Z"
        on = i // 36 % 4 == 0  # a pump, six hours of twenty-four
        level = None if gaps and i % gaps == 0 else round(3 + (i * 7919 % 101) / 100 + 50 * on, 2)
        values = {"flow": round(value * (1 + on), 2), "level": level}
        if shape in {"row", "whole"}:
            numbers = {k: round(10 * v) for k, v in values.items()} if shape == "whole" else values
            lines.append({"time": at, **numbers})
        elif shape == "tag":
            lines += [{"time": at, "tag": k, "value": v} for k, v in values.items() if v]
        else:
            lines += [{"time": at, k: v} for k, v in values.items() if v]
    path = tmp_path / "flow.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert open_file(path, Asked()).suggested().detector == detector


def test_one_member_that_is_sure_suffices_and_members_that_agree_add_up():
    tails = [np.array([0.2, 1.5, 0.0]), np.array([8.0, 1.5, 0.2])]
    alone, together, usual = _joint(tails, 2)
    assert alone == pytest.approx(math.log1p(8.0 - math.log10(2)))
    assert together == pytest.approx(math.log1p(1.5))
    assert usual == pytest.approx(math.log1p(0.2) / 2)
    assert _joint(tails[:1], 1).tolist() == np.log1p(tails[0]).tolist()
