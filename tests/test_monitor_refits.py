"""Monitors and refits: what goes on over a swap, on verdicts made here and by the engine."""

import itertools
import math
import statistics

import msgspec
import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import AlarmKind, MonitorBank, MonitorConfig, StreamMonitor
from rejex_stream.monitor.bank import StuckRun
from rejex_stream.monitor.drift import DriftDetector
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from tests.monitor_streams import BAND, CONFIG, N, observe_all, scores, stream
from tests.streams import of_rows

EVERY = 2 * N  # the refit interval that the engine ships with


def added(drift, excess):
    """Count one event as its stream does; return in which direction the level drifted, if so."""
    drift.excess += excess
    drift.left -= 1
    return None if drift.left else drift.close_block()


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


# ------------------------------------------------------------------------------------- drift
def drift_of(verdicts, config=CONFIG):
    """Return (event, alarm) of the drift alarms, and the monitor."""
    monitor = StreamMonitor(config, "s")
    alarms = observe_all(monitor, verdicts)
    return [(i, alarm) for i, alarm in alarms if alarm.kind is AlarmKind.DRIFT], monitor


@pytest.mark.thorough
def test_a_ramp_is_found_over_refits_within_two_and_a_half_times_the_delay_without():
    """One sd over 10 windows; medians of 9 runs."""
    n = 1_000
    config = MonitorConfig(window=n, contamination=0.05, tolerance=32)
    delays: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(9):
        values = np.random.default_rng(seed).standard_normal(27 * n)
        values[17 * n :] += np.minimum(1.0, np.arange(10 * n) / (10 * n))
        ranks = [v.rank for v in stream(values, n=n, band=BAND)]
        for refits, found in delays.items():
            detector, late = DriftDetector(config), math.inf
            for i, rank in enumerate(ranks):
                if refits and i and i % (2 * n) == 0:
                    detector.swap()
                if added(detector, rank / n - 0.5) is not None:
                    late = i - 16 * n
                    break
            found.append(late)
        assert min(delays[False][-1], delays[True][-1]) > 0
    without = statistics.median(delays[False])
    assert without < 4 * n
    assert statistics.median(delays[True]) <= 2.5 * without


@pytest.mark.thorough
@pytest.mark.parametrize("agreement", [1.0, 0.5])
def test_no_number_of_refits_is_taken_for_drift(agreement):
    for seed in range(3):
        values = scores("iid", 40 * EVERY, seed)
        alarms, monitor = drift_of(refitted(values, seed, agreement))
        assert alarms == []
        assert monitor.status().drift == "watching"


def shares(values):
    """What each rank is above the middle."""
    return [v.rank / N - 0.5 for v in stream(values)]


def by_definition(verdicts):
    """The sum, and its variance, straight from the definition: blocks of 20, a memory of 8 windows.

    Of the fourth window on, since the third is the second whose block variances count.
    """
    level, unsettled, epoch, found = 0.0, 1.0, verdicts[0].model_epoch, []
    for start in range(0, len(verdicts) - 19, 20):
        block = verdicts[start : start + 20]
        for v in block:
            unsettled += 0.7 * (v.model_epoch != epoch)
            epoch = v.model_epoch
        if start + 20 < 3 * N:
            unsettled = 1.0
            continue
        level = level * math.exp(-20 / (8 * N)) + sum(
            (v.rank - v.ties // 2 + v.ties / 2) / N - 0.5 for v in block
        )
        unsettled *= math.exp(-2 * 20 / (8 * N))
        found.append((level, N / 36 * (1 + unsettled) + 8 / 24))
    return found


@pytest.mark.parametrize("kind", ["iid", "rounded"])
def test_evidence_is_the_square_of_the_moving_sum_beside_its_variance(kind):
    verdicts = refitted(scores(kind, 13 * EVERY + 10, 3), 3, 0.7)
    monitor = StreamMonitor(CONFIG, "s")
    assert not drift_of(verdicts)[0], "else the sum began again"
    expected = iter(by_definition(verdicts))
    for i, v in enumerate(verdicts, 1):
        monitor.observe(v)
        if i % 20 == 0 and i >= 3 * N:
            level, variance = next(expected)
            factor = monitor._drift._inflation.factor
            assert monitor.status().drift_log_evidence == pytest.approx(
                level**2 / (2 * variance * factor)
            )
    assert next(expected, None) is None


@pytest.mark.thorough
def test_the_variance_is_that_of_independent_scores():
    """300 runs of 12 windows: D / sd has the variance 1 from where it began on, or less."""
    for windows in (5, 8, 12):
        squares = []
        for seed in range(300):
            values = np.random.default_rng([seed, windows]).standard_normal((windows + 1) * N)
            level, variance = by_definition(stream(values))[-1]
            squares.append(level**2 / variance)
        assert 0.75 < statistics.fmean(squares) < 1.15


def test_a_swap_makes_the_sum_less_sure_and_that_is_forgotten():
    drift, without = DriftDetector(CONFIG), DriftDetector(CONFIG)
    feed = iter(shares(scores("iid", 40 * N, 4)))

    def both(events):
        for x in itertools.islice(feed, events):
            assert added(drift, x) is added(without, x) is None
        return drift.log_evidence / without.log_evidence

    assert both(10 * N) == 1.0
    drift.swap()
    assert 0.5 < both(20) < 0.75
    assert 0.97 < both(20 * N) < 1.0


def test_too_autocorrelated_streams_are_not_judged_and_later_they_are():
    drift = DriftDetector(CONFIG)
    for block in range(20 * N // 20):
        for _ in range(20):
            assert added(drift, 0.49 if block // 20 % 2 else -0.49) is None
    assert drift.status == "too autocorrelated to tell"
    assert drift.log_evidence == 0.0
    for x in shares(scores("iid", 60 * N, 1)):
        assert added(drift, x) is None
    assert drift.status == "watching"


def test_drift_collects_for_three_windows():
    drift = DriftDetector(CONFIG)
    for x in shares(scores("iid", 4 * N, 2)):
        assert drift.status == "collecting"
        added(drift, x)
    assert drift.status == "watching"


def test_held_events_and_those_without_a_rank_enter_no_sum():
    """A fault that is held is ranked in a window that stands still: its ranks are no drift."""
    verdicts = stream(scores("iid", 8 * N, 4))
    gaps = [msgspec.structs.replace(v, held=True, rank=N) for v in verdicts[5 * N :]]
    plain, gapped = StreamMonitor(CONFIG, "s"), StreamMonitor(CONFIG, "s")
    observe_all(plain, verdicts[: 5 * N])
    observe_all(gapped, verdicts[: 5 * N])
    observe_all(gapped, gaps)
    assert gapped._drift.state == plain._drift.state
    assert gapped.ranks.state == plain.ranks.state


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
    verdicts = engine.process(of_rows(values[:, None]))
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
    assert largest < CONFIG.rolling + 10_000


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
def test_a_window_in_which_nothing_could_be_told_is_refused_with_its_value_and_mend():
    config = MonitorConfig(window=9, contamination=0.3, tolerance=8)
    with pytest.raises(ConfigError, match="window of 9"):
        config.require()
    config.replace(enabled=False).require()
    config.replace(window=10).require()
