"""The parts of the monitors against brute force."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare
from scipy.stats import t as student

from rejex_stream.monitor import Alternative, MonitorConfig
from rejex_stream.monitor.budget import BudgetEvidence, DayBudget
from rejex_stream.monitor.cells import ALTERNATIVES, cell_table, randomised_rank
from rejex_stream.monitor.counts import RollingCounts
from rejex_stream.monitor.drift import DriftDetector
from rejex_stream.monitor.health import HealthDetector
from rejex_stream.monitor.inflation import Inflation
from rejex_stream.monitor.practical import StuckRun, collapse_limit, doubling_limits
from rejex_stream.monitor.theory import batch_means, mean_theory, theory_of
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position
from tests.monitor_streams import BAND, CONFIG, N

TABLE = cell_table(N, BAND.n_anomalies, BAND.lower, BAND.upper)


# ------------------------------------------------------------------------------------- cells
@pytest.mark.parametrize(
    ("n", "contamination", "tolerance"),
    [(200, 0.1, 8), (1000, 0.05, 32), (50, 0.1, 32), (40, 0.3, 0.7), (999, 0.02, 64)],
)
def test_cells_hold_exactly_the_ranks_of_their_verdicts(n, contamination, tolerance):
    band = rejection_band(n, contamination, tolerance)
    table = cell_table(n, band.n_anomalies, band.lower, band.upper)
    counts = [0, 0, 0, 0]
    for rank in range(n + 1):
        cell = table.cell(rank)
        counts[cell] += 1
        assert (band.label(rank) is Label.REJECTED) == (cell in (1, 2))
        assert (rank > n - band.n_anomalies) == (cell in (2, 3))
        assert (band.label(rank) is Label.ANOMALY) == (cell == 3)
    assert table.null == tuple(count / (n + 1) for count in counts)
    assert math.isclose(table.rejection_rate, band.width / (n + 1))
    assert math.isclose(table.flagged_rate, band.n_anomalies / (n + 1))


@pytest.mark.parametrize(("n", "r", "lower", "upper"), [(1000, 50, 882, 987), (40, 12, 0, 40)])
def test_alternatives_are_laws_with_the_factor_they_name(n, r, lower, upper):
    table = cell_table(n, r, lower, upper)
    for j, (_, cells, factor) in enumerate(ALTERNATIVES):
        law = [p * math.exp(table.log_ratios[cell][j]) for cell, p in enumerate(table.null)]
        assert math.isclose(sum(law), 1.0)
        inside = sum(table.null[cell] for cell in cells)
        raised = sum(law[cell] for cell in cells)
        if 0 < inside < 1:
            assert math.isclose(raised, min(factor * inside, (1 + inside) / 2))


@settings(max_examples=300, deadline=None)
@given(*(st.integers(-3, 60) for _ in range(3)), st.integers(1, 50), st.integers(-10, 70))
def test_no_combination_of_integers_breaks_a_table(r, lower, upper, n, rank):
    table = cell_table(n, r, lower, upper)
    assert math.isclose(sum(table.null), 1.0)
    assert min(table.null) >= 0.0
    assert table.cell(rank) in range(4)
    assert all(math.isfinite(x) for row in table.log_ratios for x in row)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100), st.integers(0, 100), st.text(), st.integers(), st.integers())
def test_randomised_ranks_stay_among_the_ties_and_repeat(below, ties, topic, partition, offset):
    position = Position(topic, partition, offset)
    drawn = randomised_rank(below, ties, position)
    assert below <= drawn <= below + ties
    assert drawn == randomised_rank(below, ties, Position(topic, partition, offset))


def test_randomised_ranks_of_tied_scores_are_uniform():
    # Scores with six values: mid-ranks pile up, randomised ranks must not.
    rng = np.random.default_rng(5)
    n, events = 40, 20_000
    values = np.minimum(rng.geometric(0.5, n + events), 6)
    windows = np.lib.stride_tricks.sliding_window_view(values, n)[:-1]
    below = (windows < values[n:, None]).sum(axis=1)
    ties = (windows == values[n:, None]).sum(axis=1)
    drawn = [
        randomised_rank(lt, eq, Position("t", 3, offset))
        for offset, (lt, eq) in enumerate(zip(below.tolist(), ties.tolist(), strict=True))
    ]
    assert chisquare(np.bincount(drawn, minlength=n + 1)).pvalue > 0.001


# --------------------------------------------------------------------------- health, inflation
def cells_of(text):
    return [int(c) for c in text]


def brute_force_inflation(cells, n, table):
    """Straight from the definition: blocks of n/40 to n; lag one window; 20 windows."""
    length = n // 40 * 40
    windows = [cells[i : i + length] for i in range(0, len(cells) - length + 1, length)][:-1]
    windows = windows[-20:]
    if len(windows) < 2:
        return None
    factor = 1.0
    for wanted, rate in (((1, 2), table.rejection_rate), ((2, 3), table.flagged_rate)):
        for units in (1, 2, 3, 8, 20, 40):
            if units == 40 and len(windows) < 3:
                continue
            size = length // 40 * units
            squares = [
                (sum(cell in wanted for cell in window[i : i + size]) - size * rate) ** 2
                / (size * rate * (1 - rate))
                for window in windows
                for i in range(0, length - size + 1, size)
            ]
            factor = max(factor, sum(squares) / len(squares))
    return factor


def random_cells(size, seed, clumsiness=0.0):
    """Cells with the null law; with probability `clumsiness` the last one repeats."""
    rng = random.Random(seed)
    cells = []
    for _ in range(size):
        if cells and rng.random() < clumsiness:
            cells.append(cells[-1])
        else:
            cells.append(rng.choices(range(4), TABLE.null)[0])
    return cells


@pytest.mark.parametrize("clumsiness", [0.0, 0.7])
def test_inflation_is_the_block_variance_by_definition(clumsiness):
    cells = random_cells(30 * N, 4, clumsiness)
    inflation = Inflation(N)
    for i, cell in enumerate(cells, 1):
        inflation.count(TABLE, cell)
        if i % 997 == 0 or i % N == 0:
            expected = brute_force_inflation(cells[:i], N, TABLE)
            assert inflation.factor == (None if expected is None else pytest.approx(expected))
    assert (inflation.factor > 3) == (clumsiness > 0)


@pytest.mark.parametrize("clumsiness", [0.0, 0.5])
def test_evidence_is_the_tempered_shiryaev_roberts_sum(clumsiness):
    cells = random_cells(8 * N, 6, clumsiness)
    cells += [1 if i % 5 == 0 else 0 for i in range(N // 2)]  # evidence for more rejects
    health = HealthDetector(CONFIG)
    evidence = [0.0] * len(ALTERNATIVES)
    factor = None
    for i, cell in enumerate(cells):
        if i % N == 0:
            factor = brute_force_inflation(cells[:i], N, TABLE)
        if factor is not None:
            ratios = TABLE.log_ratios[cell]
            evidence = [
                (e + 1) * math.exp(x / factor) for e, x in zip(evidence, ratios, strict=True)
            ]
        fired = health.update(TABLE, cell)
        assert fired is None
        if cell and factor is not None:  # a run of normal events may still be waiting
            mean = math.fsum(evidence) / len(evidence)
            assert health.log_evidence == pytest.approx(math.log(mean), abs=1e-9)
    assert health.log_evidence > 2


def test_the_alarm_comes_when_the_mean_reaches_l_and_evidence_starts_anew():
    config = MonitorConfig(window=N, contamination=0.1, tolerance=8, false_alarm_events=1_000)
    health = HealthDetector(config)
    for cell in random_cells(5 * N, 8):
        health.update(TABLE, cell)
    before = -math.inf
    for _ in range(200):
        fired = health.update(TABLE, 3)
        if fired is not None:
            break
        before = health.log_evidence
    assert ALTERNATIVES[fired][0] is Alternative.MORE_ANOMALIES
    assert before < math.log(1_000) <= health.fired_log_evidence
    assert (health.crossings, health.log_evidence) == (1, -math.inf)


def test_a_window_worth_fewer_than_ten_events_is_not_judged():
    health = HealthDetector(CONFIG)
    for block in range(40):
        for _ in range(N):
            health.update(TABLE, 1 if block % 5 == 0 else 0)
    assert health.inflation > N / 10
    assert health.log_evidence == -math.inf
    assert not health.can_tell(TABLE)
    assert not any(health.update(TABLE, 3) is not None for _ in range(N // 2))


def test_a_doubling_takes_longer_where_events_say_less():
    calm, clumsy = HealthDetector(CONFIG), HealthDetector(CONFIG)
    for a, b in zip(random_cells(9 * N, 1), random_cells(9 * N, 1, 0.8), strict=True):
        calm.update(TABLE, a)
        clumsy.update(TABLE, b)
    assert calm.doubling_delay(TABLE) * 2 < clumsy.doubling_delay(TABLE) < math.inf
    assert calm.can_tell(TABLE)


# ------------------------------------------------------------------------------ theory display
def test_limits_are_batch_means_by_definition():
    rng = np.random.default_rng(2)
    # Long clusters, so that the spread of the batches counts and not the binomial floor.
    cells = np.repeat(rng.random(60) < 0.3, 50).astype(np.uint8)
    means = cells.reshape(30, -1).mean(axis=1)
    width = student.ppf(0.975, 29) * means.std(ddof=1) / math.sqrt(30)
    limits = batch_means(cells.tobytes(), 0.95)
    assert limits.lower == pytest.approx(means.mean() - width)
    assert limits.upper == pytest.approx(means.mean() + width)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400).map(lambda blob: bytes(b % 4 for b in blob)))
def test_limits_hold_the_rate_and_stay_rates(cells):
    limits = batch_means(cells, 0.99)
    assert (limits is None) == (len(cells) < 60)
    if limits is not None:
        used = cells[len(cells) % 30 :]
        rate = (used.count(1) + used.count(2)) / len(used)
        assert 0.0 <= limits.lower <= rate <= limits.upper <= 1.0
        assert limits.upper > 0.0


def test_bounds_are_those_of_the_guarantees():
    theory = theory_of(TABLE, CONFIG)
    assert theory.expected_rate == BAND.width / (N + 1)
    assert theory.expected_rate < theory.exact_bound < theory.paper_bound
    assert theory.expected_anomaly_rate == (N - BAND.upper) / (N + 1)
    low_tolerance = MonitorConfig(window=N, contamination=0.1, tolerance=1.0)
    assert theory_of(TABLE, low_tolerance).paper_bound_printed is None  # no real t1


def test_the_pipeline_theory_is_the_mean_over_events():
    one, other = theory_of(TABLE, CONFIG), theory_of(cell_table(1000, 50, 882, 987), CONFIG)
    mean = mean_theory([(one, 300), (other, 100)])
    assert mean.exact_bound == pytest.approx((3 * one.exact_bound + other.exact_bound) / 4)
    assert mean_theory([(one, 0)]) is None


# ---------------------------------------------------------------------------- practical alarms
@pytest.mark.parametrize("rate", [0.001, 0.0136, 0.1059, 0.4, 0.7])
def test_a_doubling_by_chance_is_rarer_than_one_in_a_million(rate):
    high, calm = doubling_limits(rate, 1000, math.log(1e6))
    assert binom.sf(high, 1000, rate) < 1e-6
    assert high >= min(1000, math.floor(2 * rate * 1000))
    assert rate * 1000 <= calm + 1 <= high
    if rate > 0.1:
        assert high == min(1000, math.floor(2 * rate * 1000))


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.3])
def test_a_collapse_is_no_accident_of_a_quarter_of_the_rate(rate):
    limit = collapse_limit(rate, 3600, 1.0, math.log(1e6))
    assert limit >= 0
    assert binom.cdf(limit, 3600, rate / 4) <= 1e-6
    assert collapse_limit(rate, 3600, 100.0, math.log(1e6)) == -1
    assert collapse_limit(0.0, 3600, 1.0, 10.0) == -1


def test_rolling_counts_equal_slices():
    config = MonitorConfig(window=50, contamination=0.1, tolerance=4, rolling_events=120)
    counts = RollingCounts(config)
    counts.switch(None, TABLE)
    cells = random_cells(700, 3)
    for i, cell in enumerate(cells, 1):
        counts.update(TABLE, cell)
        rejected = [c in (1, 2) for c in cells[:i]]
        assert counts.in_window == sum(rejected[-50:])
        assert counts.in_rolling == sum(rejected[-120:])
        assert counts.cells == bytes(cells[max(0, i - 120) : i])


def test_the_expected_rate_follows_a_filling_window_and_then_is_exact():
    counts = RollingCounts(CONFIG)
    old = None
    for n in itertools.chain(range(100, N), itertools.repeat(N, 2 * N)):
        band = rejection_band(n, 0.1, 8)
        table = cell_table(n, band.n_anomalies, band.lower, band.upper)
        if table is not old:
            counts.switch(old, table)
            old = table
        counts.update(table, 0)
        if counts.events >= counts.recheck:
            counts.set_limits(table, None)
    assert counts.expected_rate == TABLE.rejection_rate


def test_a_run_counts_only_if_its_value_was_rare():
    run = StuckRun()
    assert [run.update(1.0, ties, 100) for ties in (0, 1, 2)] == [1, 2, 3]
    assert [run.update(0.0, ties, 100) for ties in (60, 61)] == [0, 0]
    assert run.update(2.0, 0, 100) == 1


# ------------------------------------------------------------------------------------- budget
DAY = 86_400_000


def test_the_projection_of_an_even_day_is_its_total():
    budget = DayBudget()
    for second in range(0, 2 * 86_400, 60):
        budget.update(second * 1_000, second % 600 == 0)
    assert budget.day == 1
    assert budget.projected == pytest.approx(144, rel=0.01)


def test_one_broken_clock_does_not_turn_the_calendar():
    budget = DayBudget()
    turned = [
        minute
        for minute in range(600)
        if budget.update(minute * 60_000 + (DAY * 9_000 if minute % 4 == 3 else 0), True)
    ]
    assert turned == [0]
    assert (budget.day, budget.count) == (0, 600)  # people have to look at all of them


def test_a_calendar_that_began_wrong_is_mended():
    budget = DayBudget()
    turned = [
        minute
        for minute in range(60)
        if budget.update(minute * 60_000 + (DAY * 9_000 if minute == 0 else 0), True)
    ]
    assert turned == [0, 5]
    assert (budget.day, budget.count) == (0, 59)


def budget_alarms(per_day, rate, days, seed, mean_cluster=1, inflation=1.0):
    """Days on which a rate of rejected events, in clusters or not, exceeds the evidence anew."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(rate * days / mean_cluster)
    sizes = rng.geometric(1 / mean_cluster, n)
    times = np.sort(np.repeat(rng.uniform(0, days * DAY, n), sizes)).astype(int).tolist()
    evidence, active, raised = BudgetEvidence(), False, []
    for time_ms in times:
        active = active and not evidence.is_gone(time_ms, per_day, inflation)
        if evidence.update(time_ms, per_day, inflation) and not active:
            active = True
            raised.append(time_ms / DAY)
    return raised


@pytest.mark.parametrize("per_day", [0.1, 1, 4, 16, 100])
def test_a_rate_that_is_the_budget_raises_an_alarm_in_a_hundred_days_or_less_often(per_day):
    days = int(3_000 * max(1, 1 / per_day))
    found = len(budget_alarms(per_day, per_day, days, seed=3))
    assert found <= 45  # 30 at most expected, and Poisson's 99.5 % above
    assert len(budget_alarms(per_day, per_day / 2, days, seed=4)) <= 1


@pytest.mark.parametrize(("per_day", "within_days"), [(1, 25), (16, 2), (100, 0.4), (1000, 0.1)])
def test_a_rate_of_twice_the_budget_is_found(per_day, within_days):
    days = math.ceil(20 * within_days)
    delays = [budget_alarms(per_day, 2 * per_day, days, seed)[0] for seed in range(9)]
    assert statistics.median(delays) <= within_days


def test_clusters_are_told_from_a_rate_by_the_variance_inflation():
    """Clusters of ten: the variance of a count is nineteen times that of independent events."""
    plain = budget_alarms(100, 100, 1000, seed=5, mean_cluster=10)
    tempered = budget_alarms(100, 100, 1000, seed=5, mean_cluster=10, inflation=19.0)
    assert len(plain) > 1_000
    assert len(tempered) <= 30  # about twice the ten of independent events: the tails are heavier
    assert budget_alarms(100, 200, 100, seed=6, mean_cluster=10, inflation=19.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), max_size=100), st.floats(1e-9, 1e12))
def test_no_clock_breaks_the_evidence(times, per_day):
    evidence = BudgetEvidence()
    for time_ms in times:
        evidence.update(time_ms, per_day, 1.0)
        assert all(0.0 <= value <= 500.0 for value in evidence.values)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.booleans()), max_size=200))
def test_no_clock_breaks_the_budget(events):
    budget = DayBudget()
    for time_ms, rejected in events:
        budget.update(time_ms, rejected)
        assert 0 <= budget.count <= budget.projected
        assert math.isfinite(budget.projected)


# -------------------------------------------------------------------------------------- drift
def test_the_drift_reference_may_be_constant_or_tied():
    drift = DriftDetector(CONFIG)
    for _ in range(1_000):
        assert drift.update(1.0) is None
    assert drift.status == "watching"
    alarms = [drift.update(2.0) for _ in range(300)]
    assert Alternative.HIGHER_SCORES in alarms
    assert drift.status == "collecting"  # the reference is taken anew


def test_drift_keeps_quiet_where_the_reference_says_too_little():
    drift = DriftDetector(CONFIG)
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.standard_normal(5_000)).tolist()
    assert not any(drift.update(score) for score in walk)
    assert drift.status == "too autocorrelated to tell"


def test_monitors_do_not_load_river_unless_asked():
    code = "import sys, rejex_stream.monitor; sys.exit('river' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
