"""Guarded refits: faults are not learnt, a new regime is, and no rank is biased by it."""

import math

import numpy as np
import pytest
from msgspec import structs

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.model import Guard
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Hold
from rejex_stream.rejection.judge import Judge, rejected
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Label, Position, Reading, Reason
from tests.streams import of_rows

N = 200
RAW = FeatureSpec(("x",), preset="raw")


def pipeline(guard=None, share=0.5, tolerance=4.0, n=N, **more):
    schedule = RefitSchedule.for_window(
        n, refit_lag_events=5, guard_quantile=guard, guard_share=share, **more
    )
    policy = RejectionPolicy(0.05, tolerance=tolerance)
    hold = Hold(enabled=False)  # it would keep all of it out
    return EngineSpec(make_detector("Sensor"), RAW, policy, n, schedule, evidence=False, hold=hold)


def judged(spec, values):
    engine = Engine(spec, InlineExecutor())
    return engine, engine.process(of_rows([[value] for value in values], step_ms=1))


def trained_on(engine):
    """The newest rows that the next fit would see."""
    model = engine._stream("s").model
    size = model._schedule.buffer_events
    return model._rows.packed(size).training(size)[:, 0]


def noise(n, seed=0):
    return np.random.default_rng(seed).normal(size=n)


def test_a_fault_trains_no_later_model():
    values = noise(6 * N)
    for start in (300, 520, 740):  # so that no window holds more of them than beyond .95
        values[start : start + 8] = 9.0
    found = {}
    for guard in (0.95, 1.0):
        engine, verdicts = judged(pipeline(guard), values[:760])
        found[guard] = np.count_nonzero(trained_on(engine) == 9.0)
        assert sum(v.label is Label.ANOMALY for v in verdicts[300:308]) >= 5
    assert found[0.95] == 0
    assert found[1.0] == 8


def test_the_detectors_for_sensors_are_guarded_and_others_are_not():
    for name, guarded in (("Sensor", True), ("SensorEnsemble", True), ("KNN", False)):
        spec = EngineSpec(make_detector(name), RAW, RejectionPolicy(0.05, tolerance=4))
        assert spec.schedule.is_guarded is guarded
    assert pipeline().schedule.guard_quantile == 0.95
    assert not pipeline(1.0).schedule.is_guarded
    assert not pipeline(calibration="holdout").schedule.is_guarded


@pytest.mark.thorough
def test_a_new_regime_is_learnt():
    # Every value is a record, so that each of them is beyond every quantile of its window.
    climbing = np.concatenate([noise(2 * N), 10 + np.arange(4 * N) / 10.0])
    engine, _ = judged(pipeline(0.95, share=0.25), climbing)
    rows = trained_on(engine)
    assert np.mean(rows > 10) > 0.5
    engine, _ = judged(pipeline(0.95, share=0.999), climbing)
    assert np.mean(trained_on(engine) > 10) < 0.1
    stepped = np.concatenate([noise(3 * N), 50 + noise(3 * N, seed=1)])
    engine, verdicts = judged(pipeline(0.95), stepped)
    assert np.mean(trained_on(engine) > 25) > 0.8  # long before that: the window took all scores
    # From the next model on: until then what is extreme has no place in the window.
    assert np.mean([v.label is Label.NORMAL for v in verdicts[-N // 4 :]]) > 0.9


def test_no_more_than_the_share_of_any_buffer_of_rows_is_left_out():
    schedule = RefitSchedule(
        first_fit_events=4, buffer_events=8, refit_lag_events=0, guard_quantile=0.95,
        guard_share=0.5,
    )  # fmt: skip
    guard, kept = Guard(schedule, 0), []
    for _ in range(40):
        kept += guard.admit(1, [0])
        state, guard = guard.state(0), Guard(schedule, 0)  # a crash after every row
        guard.restore(state)
    assert {sum(kept[i : i + 8]) for i in range(33)} == {4}
    assert [*guard.admit(8, [])] == [0] * 8
    assert [*guard.admit(8, [1, 3], [5])] == [0, 1, 0, 1, 0, 2, 0, 0]


@pytest.mark.parametrize("back", range(1, 6))
def test_rows_that_are_taken_back_were_never_there(back):
    """Which rows are left out goes by those of the last buffer: after a step back as before it."""
    schedule = RefitSchedule(
        first_fit_events=4, buffer_events=8, refit_lag_events=2, guard_quantile=0.95,
        guard_share=0.5,
    )  # fmt: skip
    rng = np.random.default_rng(back)
    for _ in range(50):
        beyond = rng.random(60) < 0.6
        stepped, straight = Guard(schedule, 5), Guard(schedule, 5)

        def let_in(guard, start, stop, beyond=beyond):
            outliers = np.flatnonzero(beyond[start:stop]).tolist()
            return [*guard.admit(stop - start, outliers)]

        let_in(straight, 0, 20)
        let_in(stepped, 0, 20)
        let_in(stepped, 20, 20 + back)
        state, stepped = stepped.state(5), Guard(schedule, 5)  # a crash before the step back
        stepped.restore(state)
        stepped.retract(back)
        for at in range(40, 60):
            assert let_in(stepped, at, at + 1) == let_in(straight, at, at + 1)
        assert stepped.state(0) == straight.state(0)


def test_what_is_beyond_a_quantile_has_more_than_that_share_of_its_window_below():
    judge = Judge(RejectionPolicy(0.1, tolerance=4.0), 200)
    reading = Reading("s", "s", 0, (0.0,), Position("t", 0, 0))
    bare = rejected(reading, 0, Reason.UNSCORABLE)
    said = [
        structs.replace(bare, rank=rank, ties=0, window_len=n)
        for rank, n in ((190, 200), (191, 200), (200, 200), (10, 10), (20, 20), (19, 20))
    ]
    assert judge.outlier_positions(0.95, range(6), said) == [1, 2, 4]
    assert judge.outlier_positions(0.95, [0], [bare]) == []


def test_the_window_takes_all_scores_so_that_ranks_stay_exchangeable():
    # Independent values: flagged and rejected happen as often as for a model that never changes.
    events = 60 * N
    spec = pipeline(0.95)
    _, verdicts = judged(spec, noise(events, seed=2))
    ranked = [v for v in verdicts if v.rank is not None and v.window_len == N]
    band = spec.band
    for share, cells in (
        ([v.rank > N - band.n_anomalies for v in ranked], band.n_anomalies),
        ([v.reason is Reason.AMBIGUOUS for v in ranked], band.width),
    ):
        wanted = cells / (N + 1)
        # A window is shared by the next n events: what is independent are len / n windows.
        spread = math.sqrt(wanted * (1 - wanted) * (1 / len(ranked) + 1 / len(ranked)))
        assert np.mean(share) == pytest.approx(wanted, abs=5 * spread)


def test_another_policy_finds_the_same_models():
    values = noise(5 * N, seed=3)
    values[::37] += 5.0
    engines = [
        judged(spec, np.round(values, 1))[0]
        for spec in (pipeline(tolerance=4.0), pipeline(tolerance=1.5))
    ]
    paper = EngineSpec(
        make_detector("Sensor"), RAW, RejectionPolicy(0.05, tolerance=4.0, ties="paper"), N,
        pipeline().schedule, evidence=False, hold=Hold(enabled=False),
    )  # fmt: skip
    engines.append(judged(paper, np.round(values, 1))[0])
    views = [engine.view("s") for engine in engines]
    kept = [(view.state(), view.model()) for view in views]
    assert kept[0] == kept[1] == kept[2]


def test_where_scores_choose_what_calibrates_there_is_no_guard():
    with pytest.raises(ConfigError, match=r"guard_quantile = .* needs calibration = 'shadow'"):
        RefitSchedule(guard_quantile=0.95, calibration="holdout")
    assert not RefitSchedule(guard_quantile=1.0, calibration="training").is_guarded


@pytest.mark.parametrize(("given", "says"), [
    ({"guard_quantile": 0.4}, r"guard_quantile = 0.4 is outside \[0.5, 1\]: give e.g. 0.95"),
    ({"guard_quantile": math.nan}, r"guard_quantile = nan is outside"),
    ({"guard_share": 0.0}, r"guard_share = 0 is outside \(0, 1\): give e.g. 0.5"),
])  # fmt: skip
def test_a_guard_that_cannot_be_is_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        RefitSchedule(**given)
