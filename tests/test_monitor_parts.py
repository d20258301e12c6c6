"""The parts of the monitors against brute force."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare
from scipy.stats import t as student
from sortedcontainers import SortedList

from rejex_stream.monitor import Alternative, MonitorConfig
from rejex_stream.monitor.bank import StreamMonitor, StuckRun
from rejex_stream.monitor.config import CONFIDENCE
from rejex_stream.monitor.health import HealthDetector
from rejex_stream.monitor.rate import (
    Regime,
    RejectionRate,
    batch_means,
    collapse_limit,
    doubling_limits,
    rate_limits,
    sliding_variance,
)
from rejex_stream.monitor.theory import (
    ALTERNATIVES,
    mean_theory,
    randomised_rank,
    rank_law,
    theory_of,
)
from rejex_stream.rejection import rejection_band
from rejex_stream.types import Label, Position
from tests.monitor_streams import BAND, CONFIG, N, verdict

LAW = rank_law(N, BAND.n_anomalies, BAND.lower, BAND.upper)


# ------------------------------------------------------------------------------------- cells
@pytest.mark.parametrize(
    ("n", "contamination", "tolerance"),
    [(200, 0.1, 8), (1000, 0.05, 32), (50, 0.1, 32), (40, 0.3, 0.7), (999, 0.02, 64)],
)
def test_cells_hold_exactly_the_ranks_of_their_verdicts(n, contamination, tolerance):
    band = rejection_band(n, contamination, tolerance)
    law = rank_law(n, band.n_anomalies, band.lower, band.upper)
    counts = [0, 0, 0, 0]
    for rank in range(n + 1):
        cell = law.cell(rank)
        counts[cell] += 1
        assert (band.label(rank) is Label.REJECTED) == (cell in (1, 2))
        assert (rank > n - band.n_anomalies) == (cell in (2, 3))
        assert (band.label(rank) is Label.ANOMALY) == (cell == 3)
    assert law.null == tuple(count / (n + 1) for count in counts)
    assert math.isclose(law.rejection_rate, band.width / (n + 1))
    assert math.isclose(law.flagged_rate, band.n_anomalies / (n + 1))


@pytest.mark.parametrize(("n", "r", "lower", "upper"), [(1000, 50, 882, 987), (40, 12, 0, 40)])
def test_alternatives_are_laws_with_the_factor_they_name(n, r, lower, upper):
    law = rank_law(n, r, lower, upper)
    for j, (_, cells, factor) in enumerate(ALTERNATIVES):
        bent = [p * math.exp(law.log_ratios[cell][j]) for cell, p in enumerate(law.null)]
        assert math.isclose(sum(bent), 1.0)
        inside = sum(law.null[cell] for cell in cells)
        raised = sum(bent[cell] for cell in cells)
        if 0 < inside < 1:
            assert math.isclose(raised, min(factor * inside, (1 + inside) / 2))


@settings(max_examples=150, deadline=None)
@given(*(st.integers(-3, 60) for _ in range(3)), st.integers(1, 50), st.integers(-10, 70))
def test_no_combination_of_integers_breaks_a_law(r, lower, upper, n, rank):
    law = rank_law(n, r, lower, upper)
    assert math.isclose(sum(law.null), 1.0)
    assert min(law.null) >= 0.0
    assert law.cell(rank) in range(4)
    assert all(math.isfinite(x) for row in law.log_ratios for x in row)


@settings(max_examples=100, deadline=None)
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
def brute_force_inflation(cells, n, law):
    """Straight from the definition: blocks of n/40 (20 events) to n; lag one window; 20 windows."""
    unit = max(20, n // 40)
    parts = min(40, n // unit)
    length = unit * parts
    windows = [cells[i : i + length] for i in range(0, len(cells) - length + 1, length)][:-1]
    windows = windows[-20:]
    if len(windows) < 2:
        return None
    factor = 1.0
    for wanted, rate in (((1, 2), law.rejection_rate), ((2, 3), law.flagged_rate)):
        for units in sorted({1, 2, 3, parts // 5, parts // 2, parts} & {*range(1, parts + 1)}):
            if units == parts and len(windows) < 3:
                continue
            size = unit * units
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
            cells.append(rng.choices(range(4), LAW.null)[0])
    return cells


@pytest.mark.parametrize("clumsiness", [0.0, 0.7])
def test_inflation_is_the_block_variance_by_definition(clumsiness):
    cells = random_cells(30 * N, 4, clumsiness)
    health = HealthDetector(CONFIG)
    for i, cell in enumerate(cells, 1):
        health.update(LAW, cell)
        if i % 997 == 0 or i % N == 0:
            expected = brute_force_inflation(cells[:i], N, LAW)
            assert health.inflation == (None if expected is None else pytest.approx(expected))
    assert (health.inflation > 3) == (clumsiness > 0)


def test_a_window_of_one_block_has_the_factor_1_until_it_is_measured():
    cells = random_cells(400, 4, 0.7)
    health = HealthDetector(CONFIG.replace(window=24))
    for i, cell in enumerate(cells, 1):
        health.update(LAW, cell)
        if i % 24 == 0:
            expected = brute_force_inflation(cells[:i], 24, LAW)
            assert health.inflation == (None if expected is None else pytest.approx(expected))
    assert health.inflation > 1


@pytest.mark.parametrize("clumsiness", [0.0, 0.5])
def test_evidence_is_the_tempered_shiryaev_roberts_sum(clumsiness):
    cells = random_cells(8 * N, 6, clumsiness)
    cells += [1 if i % 5 == 0 else 0 for i in range(N // 2)]  # evidence for more rejects
    health = HealthDetector(CONFIG)
    evidence = [0.0] * len(ALTERNATIVES)
    factor = None
    for i, cell in enumerate(cells):
        if i % N == 0:
            factor = brute_force_inflation(cells[:i], N, LAW)
        if factor is not None:
            ratios = LAW.log_ratios[cell]
            evidence = [
                (e + 1) * math.exp(x / factor) for e, x in zip(evidence, ratios, strict=True)
            ]
        fired = health.update(LAW, cell)
        assert fired is None
        if cell and factor is not None:  # a run of normal events may still be waiting
            mean = math.fsum(evidence) / len(evidence)
            assert health.log_evidence == pytest.approx(math.log(mean), abs=1e-9)
    assert health.log_evidence > 2


def test_the_alarm_comes_when_the_mean_reaches_l_and_evidence_starts_anew():
    config = MonitorConfig(window=N, contamination=0.1, tolerance=8, false_alarm_events=1_000)
    health = HealthDetector(config)
    for cell in random_cells(5 * N, 8):
        health.update(LAW, cell)
    before = -math.inf
    for _ in range(200):
        fired = health.update(LAW, 3)
        if fired is not None:
            break
        before = health.log_evidence
    assert ALTERNATIVES[fired][0] is Alternative.MORE_ANOMALIES
    assert before < math.log(1_000) <= health.fired_log_evidence
    assert (health.crossings, health.log_evidence) == (1, -math.inf)


def test_a_doubling_takes_longer_where_events_say_less():
    calm, clumsy = HealthDetector(CONFIG), HealthDetector(CONFIG)
    for a, b in zip(random_cells(9 * N, 1), random_cells(9 * N, 1, 0.8), strict=True):
        calm.update(LAW, a)
        clumsy.update(LAW, b)
    assert calm.doubling_delay(LAW) * 2 < clumsy.doubling_delay(LAW) < math.inf
    assert calm.can_tell(LAW)


# ------------------------------------------------------------------------------ theory display
def test_evidence_is_dropped_where_a_window_is_worth_too_little_to_judge():
    health = HealthDetector(CONFIG)
    for cell in random_cells(5 * N, 3):
        health.update(LAW, cell)
    assert health.log_evidence > -math.inf
    for cell in ([1] * N + [0] * 6 * N) * 10:  # the rate that was planned, in clusters
        health.update(LAW, cell)
    assert health.inflation * 10 > N
    assert health.log_evidence == -math.inf
    assert not health.can_tell(LAW)
    assert not any(health.update(LAW, 3) is not None for _ in range(N // 2))


@pytest.mark.parametrize("events", [1, 40, 150, 200, 333, 900])
def test_a_sliding_windows_count_varies_as_its_weights_and_its_edges_say(events):
    """The sum of the squared weights of independent events, straight from the definition."""
    weights = Counter()
    for t in range(events):
        weights[t] += 1.0
        for past in range(1, N + 1):
            weights[t - past] -= 1.0 / N
    rate = LAW.rejection_rate
    linear = rate * (1 - rate) * math.fsum(weight**2 for weight in weights.values())
    gaps = sum(
        math.sqrt(2 / math.pi) * math.sqrt(edge / N * (1 - edge / N) / N)
        for edge in (BAND.lower, BAND.upper + 1)
    )
    missed = events / 2 - N / 3 if events >= N else events**2 / (6 * N)
    assert sliding_variance(LAW, events) == pytest.approx(linear + gaps * missed, rel=0.01, abs=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("events", [N // 2, N, 4 * N, 10 * N])
def test_the_rate_of_independent_scores_in_a_sliding_window_varies_that_much(events):
    values = np.random.default_rng(5).standard_normal(300_000 + N)
    window, rejects = SortedList(values[:N].tolist()), []
    for old, new in zip(values.tolist(), values[N:].tolist(), strict=False):
        rejects.append(BAND.lower <= window.bisect_left(new) <= BAND.upper)
        window.remove(old)
        window.add(new)
    counts = np.array(rejects[: len(rejects) // events * events]).reshape(-1, events).sum(axis=1)
    error = math.sqrt(2 / len(counts))  # of a variance, relative
    assert counts.var() == pytest.approx(sliding_variance(LAW, events), rel=3 * error + 0.05)


def test_limits_of_the_rate_by_definition():
    limits = rate_limits(0.1, 800, law=LAW, inflation=3.0, confidence=0.95, streams=2)
    variance = 2 * sliding_variance(LAW, 400) * 3
    width = student.ppf(0.975, 19) * math.sqrt(variance) / 800
    assert (limits.lower, limits.upper) == pytest.approx((max(0, 0.1 - width), 0.1 + width))
    assert rate_limits(0.0, 9, law=LAW, inflation=1, confidence=0.9).lower == 0
    assert rate_limits(1.0, 9, law=LAW, inflation=1, confidence=0.9).upper == 1


def test_the_status_shows_batch_means_until_the_inflation_is_known():
    rng = np.random.default_rng(8)
    monitor = StreamMonitor(CONFIG, "s")
    verdicts = [verdict(int(k), i) for i, k in enumerate(rng.integers(0, N + 1, 4_000))]
    for v in verdicts[: 2 * N]:
        monitor.observe(v)
    early = monitor.status()
    assert early.inflation is None
    means = batch_means(monitor.ranks.rate.cells, CONFIDENCE)
    assert (early.lower, early.upper) == (means.lower, means.upper)
    for v in verdicts[2 * N :]:
        monitor.observe(v)
    late = monitor.status()
    limits = rate_limits(
        late.rejection_rate, late.rolling_events, law=LAW, inflation=late.inflation,
        confidence=CONFIDENCE,
    )  # fmt: skip
    assert (late.lower, late.upper) == (limits.lower, limits.upper)


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
    theory = theory_of(LAW, CONFIG)
    assert theory.expected_rate == BAND.width / (N + 1)
    assert theory.expected_rate < theory.frozen_bound < theory.paper_bound
    assert theory.expected_anomaly_rate == (N - BAND.upper) / (N + 1)


def test_the_pipeline_theory_is_the_mean_over_events():
    one, other = theory_of(LAW, CONFIG), theory_of(rank_law(1000, 50, 882, 987), CONFIG)
    mean = mean_theory([(one, 300), (other, 100)])
    assert mean.frozen_bound == pytest.approx((3 * one.frozen_bound + other.frozen_bound) / 4)
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
    config = MonitorConfig(window=50, contamination=0.1, tolerance=4)
    rolling = config.rolling
    counts = RejectionRate(config)
    counts.switch(None, LAW)
    cells = random_cells(4_200, 3)
    for i, cell in enumerate(cells, 1):
        counts.update(LAW, cell)
        if i % 50:
            continue
        rejected = [c in (1, 2) for c in cells[:i]]
        assert counts.in_window == sum(rejected[-50:])
        assert counts.in_rolling == sum(rejected[-rolling:])
        assert counts.cells == bytes(cells[max(0, i - rolling) : i])


def test_the_expected_rate_follows_a_filling_window_and_then_is_exact():
    counts = RejectionRate(CONFIG)
    old = None
    for n in itertools.chain(range(100, N), itertools.repeat(N, 2 * N)):
        band = rejection_band(n, 0.1, 8)
        law = rank_law(n, band.n_anomalies, band.lower, band.upper)
        if law is not old:
            counts.switch(old, law)
            old = law
        counts.update(law, 0)
        if counts.events >= counts.recheck:
            counts.set_limits(law, None)
    assert counts.expected_rate == LAW.rejection_rate


@pytest.mark.parametrize(("at", "recheck"), [(500, 1_000), (1_010, 1_074), (1_200, 1_250)])
def test_a_change_of_law_brings_new_limits_within_64_events_but_none_before_a_window(at, recheck):
    counts = RejectionRate(CONFIG.replace(window=1_000))
    old, new = (rank_law(1_000, 50, lower, 987) for lower in (882, 900))
    counts.switch(None, old)
    for _ in range(at):
        counts.update(old, 0)
        if counts.events == counts.recheck:
            counts.set_limits(old, None)
    counts.switch(old, new)
    assert counts.recheck == recheck


def test_the_limits_of_the_counts_are_those_of_the_expected_rate():
    counts, nats = RejectionRate(CONFIG), math.log(CONFIG.false_alarm_events)
    counts.switch(None, LAW)
    for cell in random_cells(20 * N, 3):
        counts.update(LAW, cell)
    counts.set_limits(LAW, 1.5)
    high, calm = doubling_limits(LAW.rejection_rate, N, nats)
    low = collapse_limit(LAW.rejection_rate, N, 1.5, nats) + 1
    deep = collapse_limit(LAW.rejection_rate, CONFIG.rolling, 1.5, nats) + 1
    assert (counts.low, counts.high, counts.deep) == (low, high, deep)
    counts.regime = Regime.DOUBLED
    counts.set_limits(LAW, 1.5)
    assert (counts.low, counts.high) == (calm + 1, N)


def test_a_run_counts_only_if_its_value_was_rare():
    run = StuckRun()
    assert [run.update(1.0, ties, 100) for ties in (0, 1, 2)] == [1, 2, 3]
    assert [run.update(0.0, ties, 100) for ties in (60, 61)] == [0, 0]
    assert run.update(2.0, 0, 100) == 1


def test_health_restored_before_its_first_ranked_event_goes_on_as_if_it_had_never_been_saved():
    quiet, restored = HealthDetector(CONFIG), HealthDetector(CONFIG)
    restored.restore(restored.state, None)
    for _ in range(3):
        assert quiet.update(LAW, 0) is None is restored.update(LAW, 0)
        assert restored.state == quiet.state
