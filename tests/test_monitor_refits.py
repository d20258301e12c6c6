"""Monitors and refits: what goes on over a swap, on verdicts made here and by the engine."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right

import numpy as np
import pytest

from rejex_stream.config import parse_config
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig, StreamMonitor
from rejex_stream.monitor.drift import DriftDetector
from rejex_stream.monitor.score_level import SCALE, LevelScale
from rejex_stream.monitor.stream_monitor import StuckRun
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading
from tests.monitor_streams import CONFIG, N, observe_all, scores, stream
from tests.test_defaults import LEAST

EVERY = 2 * N  # the refit interval that the engine ships with


def refitted(values, seed=0, agreement=1.0):
    """Verdicts on values[N:]: a model with a scale of its own every 2 N events."""
    rng = np.random.default_rng(seed)
    noise = math.sqrt(1 / agreement - 1)
    verdicts = []
    for epoch, start in enumerate(range(N, len(values), EVERY)):
        rows = values[start - N : start + EVERY]
        own = rows + noise * rng.standard_normal(len(rows))
        own = rng.normal(0, 5) + rng.uniform(0.5, 2) * own
        verdicts += stream(own, first=start - N, epoch=epoch)
    return verdicts


# ------------------------------------------------------------------------------------- levels
def levels_of(values, window, swaps=(), models=()):
    """Levels of values that are scored by the model of their stretch; ranks as an engine's."""
    scale, levels, model = LevelScale(window), [], lambda x: x
    for i, value in enumerate(values):
        if i in swaps:
            scale.swap()
            model = models[swaps.index(i)]
        past = sorted(model(x) for x in values[max(0, i - window) : i])
        score = model(value)
        below = bisect_left(past, score)
        ties = bisect_right(past, score) - below
        levels.append(scale.place(score, below, ties, len(past)))
        assert len(scale.rows) <= window
    return levels


def test_the_scale_begins_with_a_window_at_even_distances_and_keeps_the_order_of_scores():
    values = [0.3, 0.1, 0.3, 0.4, *np.random.default_rng(1).normal(0.3, 0.1, 200).tolist()]
    levels = levels_of(values, 4)
    assert levels[:3] == [None] * 3
    assert levels[3] == SCALE * 7 // 8
    later = sorted(zip(values[4:], levels[4:], strict=True))
    assert [level for _, level in later] == sorted(level for _, level in later)
    known = dict(zip(values[4:], levels[4:], strict=True))
    assert all(0 <= level < SCALE for level in known.values())
    scale = LevelScale(4)
    for value in values[:4]:
        scale.place(value, 0, 0, 4)
    assert [row / SCALE for row in scale.rows] == [0.5, 0.125, 0.5, 0.875]  # ties share a middle
    assert scale.place(0.3, 0, 0, 4) == SCALE // 2
    assert scale.place(0.35, 0, 0, 4) / SCALE == pytest.approx(0.6875)
    assert scale.place(-1e308, 0, 0, 4) == SCALE // 16
    assert scale.place(1e308, 0, 0, 4) == SCALE * 15 // 16


def test_levels_outlive_models_of_other_scales():
    """Nine models that order rows alike: levels are what the first alone would have said."""
    values = np.random.default_rng(2).standard_normal(2_000).tolist()
    swaps = list(range(200, 2_000, 200))
    models = [lambda x, k=k: 40.0 * k + (1.0 + k) * x for k in range(9)]
    plain, swapped = levels_of(values, 100), levels_of(values, 100, swaps, models)
    apart = [(a - b) / SCALE for a, b in zip(plain[99:], swapped[99:], strict=True)]
    assert max(map(abs, apart)) < 0.1  # in the gaps of a window of 100
    assert abs(statistics.fmean(apart)) < 0.01


def test_after_a_swap_a_rank_lies_between_the_levels_of_its_neighbours():
    scale = LevelScale(8)
    for value in range(8):
        scale.place(float(value), 0, 0, 8)
    levels = sorted(scale.rows)
    scale.swap()
    assert scale.place(70.0, 3, 0, 8) == (levels[2] + levels[3]) // 2
    ordered = sorted(scale.rows)  # the oldest, lowest row has left
    assert scale.place(80.0, 3, 3, 8) == (ordered[3] + ordered[5]) // 2  # tied with three
    # A quarter of the window is known: from here on scores tell.
    assert scale.place(80.0, 0, 0, 8) == (ordered[3] + ordered[5]) // 2


def test_a_shorter_window_is_followed_and_a_row_never_seen_ends_the_scale():
    scale = LevelScale(40)
    for value in range(40):
        scale.place(float(value), 0, 0, 40)
    scale.swap()
    newest = list(scale.rows)[-5:]
    assert scale.place(0.0, 0, 0, 5) == newest[0] // 2
    assert len(scale.rows) == 6
    assert scale.place(0.0, 0, 0, 7) is None
    assert not scale.rows


# ------------------------------------------------------------------------------------- drift
def drift_of(verdicts, config=CONFIG):
    """Return (event, alarm) of the drift alarms, and the monitor."""
    monitor = StreamMonitor(config, "s")
    alarms = observe_all(monitor, verdicts)
    return [(i, alarm) for i, alarm in alarms if alarm.kind is AlarmKind.DRIFT], monitor


@pytest.mark.thorough
def test_a_ramp_is_found_over_refits_within_one_and_a_half_times_the_delay_without():
    """One sd over 10 windows; medians of 9 runs. A reset at every swap never found any."""
    n = 1_000
    band = RejectionPolicy(0.05, tolerance=32).band(n)
    config = MonitorConfig(window=n, contamination=0.05, tolerance=32)
    delays = {}
    for refits in (False, True):
        found = []
        for seed in range(9):
            values = np.random.default_rng(seed).standard_normal(26 * n)
            values[16 * n :] += np.minimum(1.0, np.arange(10 * n) / (10 * n))
            detector, late = DriftDetector(config), math.inf
            for i, v in enumerate(stream(values, n=n, band=band)):
                if refits and i and i % (2 * n) == 0:
                    detector.swap()
                score = v.score * (1 + i // (2 * n)) if refits else v.score
                if detector.update(score, v.rank, 0, n) is not None:
                    late = i - 15 * n
                    break
            found.append(late)
        assert min(found) > 0
        delays[refits] = statistics.median(found)
    assert delays[True] <= 1.5 * delays[False]


@pytest.mark.thorough
@pytest.mark.parametrize("agreement", [1.0, 0.5])
def test_no_number_of_refits_is_taken_for_drift(agreement):
    for seed in range(3):
        values = scores("iid", 40 * EVERY, seed)
        alarms, monitor = drift_of(refitted(values, seed, agreement))
        assert alarms == []
        assert monitor.status().drift == "watching"


def test_a_swap_keeps_the_reference_and_widens_the_margin_by_what_it_makes_uncertain():
    drift = DriftDetector(CONFIG)
    rng = np.random.default_rng(4)
    for x in rng.standard_normal(6 * N):
        drift.update(x, 0, 0, N)
    assert drift.status == "watching"
    before = drift.state
    half_a_cell = 0.5 / 250
    error = math.sqrt(1 / 12 / (5 * N / before.inflation))
    assert drift.margin == pytest.approx(2.5 * error + half_a_cell, rel=0.02)
    drift.swap()
    # 2 (1 - c) VIF / (12 n) with c = 0.65: 3.5 times the variance of a mean of 5 n
    assert drift.margin == pytest.approx(2.5 * error * math.sqrt(4.5) + half_a_cell, rel=0.02)
    assert drift.state.quantiles == before.quantiles
    assert drift.state.capital == before.capital


def test_what_swaps_make_uncertain_is_forgotten_in_eight_windows_and_does_not_add_up():
    _, monitor = drift_of(refitted(scores("iid", 60 * EVERY, 4), 4))
    drift = monitor._drift
    kept = math.exp(-2 * 2 / 8)  # of a variance, from swap to swap; half of that time has passed
    assert drift.state.swaps == pytest.approx(math.sqrt(kept) / (1 - kept), rel=0.05)
    assert 0 < abs(drift.state.baseline - 0.5) < 0.05
    for score in np.random.default_rng(5).standard_normal(25 * N).tolist():  # no swap any more
        drift.update(score, 0, 0, N)
    assert drift.state.swaps < 0.01
    settled = drift.state.baseline
    for score in np.random.default_rng(6).standard_normal(5 * N).tolist():
        drift.update(score, 0, 0, N)
    assert drift.state.baseline == settled


def test_a_reference_that_said_too_little_is_taken_again_after_a_swap():
    drift = DriftDetector(CONFIG)
    rng = np.random.default_rng(1)
    for x in np.cumsum(rng.standard_normal(6 * N)):
        drift.update(x, 0, 0, N)
    assert drift.status == "too autocorrelated to tell"
    walk = drift.inflation
    for _ in range(3):
        drift.swap()
        for x in rng.standard_normal(6 * N):
            drift.update(x, int(rng.integers(0, N)), 0, N)
    assert drift.inflation < walk / 4  # a mean of old and new, so that one lucky one is not enough
    swaps = math.ceil(math.log2(walk))
    for _ in range(swaps):
        drift.swap()
        for x in rng.standard_normal(6 * N):
            drift.update(x, int(rng.integers(0, N)), 0, N)
    assert drift.status == "watching"


def test_the_first_window_belongs_to_the_reference():
    drift = DriftDetector(CONFIG)
    for x in np.random.default_rng(2).standard_normal(5 * N):
        assert drift.status == "collecting"
        drift.update(x, 0, 0, N)
    assert drift.status == "watching"


def test_swaps_within_the_reference_count_by_the_share_before_them():
    drift = DriftDetector(CONFIG)
    for i, x in enumerate(np.random.default_rng(2).standard_normal(5 * N)):
        if i in (2 * N, 4 * N):
            drift.swap()
        drift.update(x, int(N * 0.5), 0, N)
    assert drift.state.swaps == pytest.approx(0.4**2 + 0.8**2)


@pytest.mark.thorough
def test_a_detector_whose_models_see_a_slow_ramp_raises_drift_in_the_engine():
    """The shipped schedule end to end: eight sd in forty windows were silence before."""
    n = 200
    spec = EngineSpec(
        make_detector("HBOS"), FeatureSpec(("x",)), RejectionPolicy(0.1, tolerance=8), window=n
    )
    values = np.random.default_rng(6).standard_normal(60 * n)
    values[20 * n :] += 8 * np.arange(40 * n) / (40 * n)
    engine = Engine(spec, InlineExecutor())
    verdicts = engine.process(
        [
            Reading("s", "s", 1_000 * i, (float(x),), Position("t", 0, i))
            for i, x in enumerate(values)
        ]
    )
    alarms = [a for a in MonitorBank(CONFIG).observe(verdicts) if a.kind is AlarmKind.DRIFT]
    assert alarms[0].seq > 20 * n
    assert alarms[0].model_epoch > 10


def test_a_monitor_cut_anywhere_around_a_swap_goes_on_as_if_nothing_had_happened():
    verdicts = refitted(scores("iid", 20 * N, 9), 9, 0.8)
    whole = StreamMonitor(CONFIG, "s")
    expected = observe_all(whole, verdicts)
    for cut in (N - 1, N, EVERY - 1, EVERY, EVERY + 1, EVERY + N // 4, 5 * EVERY + 7):
        first, second = StreamMonitor(CONFIG, "s"), StreamMonitor(CONFIG, "s")
        alarms = observe_all(first, verdicts[:cut])
        second.restore(first.snapshot())
        assert second.snapshot() == first.snapshot()
        alarms += [(cut + i, alarm) for i, alarm in observe_all(second, verdicts[cut:])]
        assert alarms == expected
        assert second.snapshot() == whole.snapshot()


def test_state_stays_bounded_over_refits():
    monitor, largest = StreamMonitor(CONFIG, "s"), 0
    for v in refitted(scores("iid", 40 * N, 1)):
        monitor.observe(v)
        if v.seq % 50 == 0:
            largest = max(largest, len(monitor.snapshot()))
    assert largest < 4 * 5 * N + 20 * N + CONFIG.rolling + 10_000


# ------------------------------------------------------------------------------------- stuck
def test_a_sensor_stuck_with_a_billionth_of_noise_is_stuck():
    rng = np.random.default_rng(3)
    values = scores("iid", 3_000, 3)
    values[2_000:] = values[2_000] + 1e-9 * rng.standard_normal(1_000)
    alarms = observe_all(StreamMonitor(CONFIG, "s"), stream(values))
    stuck = [(i, alarm) for i, alarm in alarms if alarm.kind is AlarmKind.STUCK]
    assert stuck[0][0] == 2_000 - N + CONFIG.stuck_events - 1


def test_what_moves_a_thousandth_of_its_usual_step_is_not_stuck():
    run, rng = StuckRun(), np.random.default_rng(3)
    lengths = [run.update(x, 0, 100) for x in rng.standard_normal(500)]
    lengths += [run.update(5 + 1e-3 * x, 0, 100) for x in rng.standard_normal(500)]
    assert max(lengths) == 1


def test_the_usual_step_is_not_unlearnt_while_stuck_nor_raised_by_spikes():
    run, rng = StuckRun(), np.random.default_rng(3)
    for x in rng.standard_normal(200):
        run.update(x, 0, 100)
    usual = run.usual_step
    assert usual == pytest.approx(2 / math.sqrt(math.pi), rel=0.5)
    for x in rng.standard_normal(5_000):
        run.update(1e-9 * x, 0, 100)
    assert run.length == 5_000
    run.update(1e300, 0, 100)
    assert run.usual_step < 1.2 * max(usual, 1)


def test_creeping_is_not_stuck_and_does_not_unlearn_the_usual_step():
    run, rng = StuckRun(), np.random.default_rng(3)
    for x in rng.standard_normal(200):
        run.update(x, 0, 100)
    usual, at = run.usual_step, 0.0
    for _ in range(5_000):
        at += 3e-7 * usual
        assert run.update(at, 0, 100) < 200
    assert run.usual_step > usual / 2


def test_a_run_goes_on_over_a_swap():
    run = StuckRun()
    for score in (0.1, 0.4, 0.4, 0.4):
        run.update(score, 0, 100)
    run.swap()
    assert [run.update(score, 0, 100) for score in (7.0, 7.0, 7.5)] == [4, 5, 1]


# ----------------------------------------------------------------------- what can never start
def config_with(**given):
    return MonitorConfig(**({"window": N, "contamination": 0.1, "tolerance": 8} | given))


@pytest.mark.parametrize(
    ("config", "every", "named"),
    [
        (config_with(), N - 1, "refit_every_events = 199"),
        (config_with(window=19, drift_reference_events=99), None, "drift_reference_events = 99"),
        (config_with(window=9, contamination=0.3), None, "window of 9"),
    ],
)
def test_a_monitor_that_could_never_start_is_refused_with_its_value_and_mend(config, every, named):
    with pytest.raises(ConfigError) as caught:
        config.require(every)
    assert named in str(caught.value)
    config.replace(enabled=False).require(every)


def test_settings_at_the_limit_start():
    config_with().require(N)
    config_with(drift_reference_events=0).require(N - 1)
    config_with(window=10, contamination=0.3).require(None)  # five windows are fewer than 100
    assert config_with(window=10).drift_reference == 100


def test_validate_refuses_refits_that_come_before_a_scale():
    text = (
        LEAST
        + """window = 1000
[refit]
calibration = "holdout"
refit_every_events = 500
"""
    )
    config, problems = parse_config(text)
    assert config is None
    assert "refit_every_events = 500 is below the window of 1000" in str(problems[0])
    assert parse_config(text + "[monitor]\ndrift_reference_events = 0")[0] is not None
