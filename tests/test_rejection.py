"""Bands, stability, budgets: against 90-digit values, brute force and PyOD."""

import ast
import math
import random
import re
import time
from collections import Counter
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import ConfigError
from rejex_stream.rejection import band
from rejex_stream.rejection.band import (
    _band,
    anomaly_count,
    label_of,
    max_tolerance,
    min_window,
    rank_edges,
    rejection_band,
    require_reachable,
    tolerance_for_rate,
    window_for_rate,
)
from rejex_stream.rejection.exceed import stability, stability_at, stability_table
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import Label
from tests.streams import judged_alone


def test_all_golden_bands_are_met_exactly(exceed_golden):
    for n, gamma, m, tolerance, k_lo, k_hi, *_ in exceed_golden["band"]:
        band = rejection_band(n, gamma, tolerance)
        assert (band.n_anomalies, band.lower, band.upper) == (m, k_lo, k_hi), (n, gamma, tolerance)
        assert band.can_accept_normal == (k_lo > 0)
        assert band.can_accept_anomaly == (k_hi < n)


@pytest.mark.thorough
def test_all_golden_log_probabilities_are_met_to_1e_9(exceed_golden):
    for n, gamma, _m, k, log_p1, log_p0, confidence in exceed_golden["confidence"]:
        at = stability(k, n, gamma)
        assert at.log_p_anomaly == pytest.approx(float(log_p1), abs=1e-9, rel=0)
        assert at.log_p_normal == pytest.approx(float(log_p0), abs=1e-9, rel=0)
        assert at.confidence == pytest.approx(float(confidence), abs=1e-11)


def test_an_array_of_ranks_gives_what_single_ranks_give():
    ranks = np.arange(0, 501).reshape(3, 167)
    table = stability(ranks, 500, 0.07)
    assert table.log_p_anomaly.shape == (3, 167)
    for k in (0, 100, 463, 500):
        one = stability(k, 500, 0.07)
        assert isinstance(one.p_anomaly, float)
        assert one.log_p_anomaly == table.log_p_anomaly.flat[k]
        assert one.confidence == table.confidence.flat[k]
        p, confidence = stability_at(k, 500, 35)
        assert p == pytest.approx(one.p_anomaly, rel=1e-12)
        assert confidence == pytest.approx(one.confidence, abs=1e-14)
    assert stability_table(500, 0.07)[0] == tuple(table.p_anomaly.ravel())


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(2, 600),
    gamma=st.sampled_from([0.005, 0.01, 0.02, 0.05, 0.1, 0.29, 0.3333, 0.45, 0.499]),
    tolerance=st.floats(0.6932, 640.0),
)
def test_the_band_is_what_the_formula_says_rank_by_rank(n, gamma, tolerance):
    if anomaly_count(n, gamma) < 1:
        return
    at = stability(np.arange(n + 1), n, gamma)
    rejected = np.flatnonzero((at.log_p_anomaly >= -tolerance) & (at.log_p_normal >= -tolerance))
    band = rejection_band(n, gamma, tolerance)
    assert band.width == len(rejected)
    if len(rejected):
        assert (band.lower, band.upper) == (rejected[0], rejected[-1])
    labels = [band.label(rank) for rank in range(n + 1)]
    flagged = range(n - band.n_anomalies + 1, n + 1)
    for rank, label in enumerate(labels):  # the rule as the paper says it
        hard = Label.ANOMALY if rank in flagged else Label.NORMAL
        assert label == (Label.REJECTED if rank in rejected else hard)
        assert label_of(rank, rank_edges(n, band.n_anomalies, 1, 0)) == hard
    cells = band.cells(np.arange(n + 1))
    assert np.array_equal((cells == 1) | (cells == 2), np.isin(np.arange(n + 1), rejected))
    assert np.array_equal(cells >= 2, np.isin(np.arange(n + 1), flagged))
    assert labels == sorted(labels, key=[Label.NORMAL, Label.REJECTED, Label.ANOMALY].index)
    assert (Label.ANOMALY in labels) == band.can_accept_anomaly
    assert (Label.NORMAL in labels) == band.can_accept_normal


def rules_in(source):
    """Lines that compare a rank or a score with an edge of the band."""
    values = {"rank", "ranks", "score", "scores", "k"}
    edges = {"lower", "upper", "band_lower", "band_upper", "score_lower", "score_upper"}
    edges |= {"n_anomalies", "edges"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops
        ):
            names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            names |= {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)}
            if names & values and names & edges:
                yield node.lineno


@pytest.mark.thorough
def test_the_verdict_rule_has_one_home():
    for copy in (
        "band.lower <= rank <= band.upper", "rank > n - band.n_anomalies",
        "(ranks >= band.lower) & (ranks <= band.upper)",
        "verdict.rank > verdict.window_len - verdict.n_anomalies", "score < verdict.score_lower",
    ):  # fmt: skip
        assert list(rules_in(copy))
    root = Path(__file__).parents[1]
    copies = [
        f"{path.relative_to(root)}:{line}"
        for folder in ("rejex_stream", "connectors", "benchmarks", "examples")
        for path in sorted((root / folder).rglob("*.py"))
        if "lower" in (source := path.read_text(encoding="utf-8")) or "n_anomalies" in source
        for line in rules_in(source)
    ]
    assert not copies, f"ask RejectionBand or rank_edges instead: {', '.join(copies)}"


@pytest.mark.parametrize("n", [10**5, 10**6, 10**7])
@pytest.mark.parametrize("tolerance", [0.7, 4, 32, 300, 600])
@pytest.mark.parametrize("gamma", [0.001, 0.05, 0.49])
def test_large_bands_have_their_edges_where_the_tails_cross(n, tolerance, gamma):
    band = rejection_band(n, gamma, tolerance)
    for rank, inside in (
        (band.lower - 1, False), (band.lower, True), (band.upper, True), (band.upper + 1, False),
    ):  # fmt: skip
        if not 0 <= rank <= n or band.width == 0:
            continue
        at = stability(rank, n, gamma)
        assert (min(at.log_p_anomaly, at.log_p_normal) >= -tolerance) == inside


def test_a_band_costs_less_than_a_millisecond():
    # The best of several runs: what the code costs, not what the machine does meanwhile.
    for n in (1000, 10**5, 10**7):
        best = math.inf
        for _ in range(20):
            _band.cache_clear()
            start = time.process_time()
            rejection_band(n, 0.05, 32)
            best = min(best, time.process_time() - start)
        assert best < 1e-3


def test_no_tolerance_is_large_enough_to_break_the_band():
    # 1 - 2 exp(-T) is 1.0 from T = 38.13 on; implementations that form it reject everything.
    widths = [rejection_band(1000, 0.1, tolerance).width for tolerance in (36, 38, 39, 40, 64)]
    assert widths == sorted(widths)
    assert widths[-1] < 220


def test_counts_read_contamination_as_the_decimal_that_was_typed():
    assert anomaly_count(100, 0.29) == 29
    assert anomaly_count(10_000, 0.57) == 5700
    assert rejection_band(100, 0.29, 4).n_anomalies == 29


def test_fewest_anomalies_that_can_be_accepted_match_the_golden_table(exceed_golden):
    for tolerance, by_n in exceed_golden["min_m"].items():
        for n, m in ((int(n), int(m)) for n, m in by_n.items()):
            if 2 * m + 1 >= n:
                continue
            assert max_tolerance(n, (m + 0.5) / n) > float(tolerance)
            if m > 1:
                assert max_tolerance(n, (m - 0.5) / n) <= float(tolerance)


@pytest.mark.parametrize("gamma", [0.002, 0.01, 0.05, 0.29, 0.39, 0.45, 0.499])
@pytest.mark.parametrize("tolerance", [0.7, 0.75, 4, 8, 16, 32, 64, 300])
def test_min_window_is_the_smallest_that_can_say_both_labels(gamma, tolerance):
    # At γ = 0.39 and T = 0.75 it is no shortest window of its r: 5 has r = 1, as 3 and 4 have.
    n = min_window(gamma, tolerance)
    assert keeps(1.0, n, gamma, tolerance)
    assert not any(keeps(1.0, m, gamma, tolerance) for m in range(max(2, n - 400), n))


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(50, 5000),
    gamma=st.sampled_from([0.02, 0.05, 0.1, 0.29, 0.4]),
    rate=st.floats(0.02, 0.6),
)
def test_the_tolerance_for_a_rate_uses_the_whole_rate_and_no_more(n, gamma, rate):
    tolerance = tolerance_for_rate(rate, n, gamma)
    band = rejection_band(n, gamma, tolerance)
    assert band.width <= rate * (n + 1)
    # One more rank would be too many, except where two ranks flip at the very same tolerance.
    assert band.width >= math.floor(rate * (n + 1)) - 1
    assert rejection_band(n, gamma, float(f"{tolerance:.9g}")).width == band.width


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    rate=st.floats(0.01, 0.95).map(lambda x: round(x, 4)),
    gamma=st.floats(0.006, 0.494).map(lambda x: round(x, 3)),
    tolerance=st.floats(0.7, 64).map(lambda x: round(x, 2)),
)
def test_no_shorter_window_keeps_the_rate(rate, gamma, tolerance):
    n = window_for_rate(rate, gamma, tolerance)
    assert keeps(rate, n, gamma, tolerance)
    assert not any(keeps(rate, m, gamma, tolerance) for m in range(max(2, n - 100), n))


def keeps(rate, n, gamma, tolerance):
    if anomaly_count(n, gamma) < 1:
        return False
    band = rejection_band(n, gamma, tolerance)
    reachable = band.can_accept_anomaly and band.can_accept_normal
    return reachable and band.width <= Fraction(repr(rate)) * (n + 1)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: rejection_band(100, 0.0), r"contamination = 0 is outside \(0, 0\.5\)"),
    (lambda: rejection_band(100, 0.5), r"contamination = 0\.5 is outside"),
    (lambda: rejection_band(100, math.nan), "contamination is not a number"),
    (lambda: rejection_band(100, "many"), "contamination = 'many' is not a number"),
    (lambda: rejection_band([100], 0.1), r"window n = \[100\] is not a number"),
    (lambda: rejection_band(100, [0.1]), r"contamination = \[0\.1\] is not a number"),
    (lambda: rejection_band(1, 0.1), "window n = 1 cannot be used"),
    (lambda: rejection_band(10.5, 0.1), r"window n = 10\.5 cannot be used"),
    (lambda: rejection_band(50, 0.01), r"at least 1,700.*contamination of at least 0\.32"),
    (lambda: rejection_band(100, 0.1, math.log(2)), "tolerance = .* cannot be used.*0.693"),
    (lambda: rejection_band(100, 0.1, math.inf), "tolerance = inf cannot be used"),
    (lambda: stability(101, 100, 0.1), "rank = 101 is not a rank.*0 to 100"),
    (lambda: stability([1, -1], 100, 0.1), "rank = -1 is not a rank"),
    (lambda: stability(0.5, 100, 0.1), r"rank = 0\.5 is not a rank"),
    (lambda: min_window(0.1, 0.5), "tolerance = 0.5 cannot be used"),
    (lambda: tolerance_for_rate(0, 100, 0.1), r"rate = 0 is outside \(0, 1\)"),
    (lambda: tolerance_for_rate(0.001, 100, 0.1), "window of at least 999.*rate of at least"),
    (lambda: window_for_rate(1.5, 0.1, 32), r"rate = 1\.5 is outside"),
    (lambda: require_reachable(rejection_band(100, 0.1)), "window of at least 160,.*at most 16"),
    (lambda: rejection_band(10**400, 0.05), r"window n = 1\.0e\+400 cannot.*at most 1e\+15"),
    (lambda: rejection_band(100, 10**400), "contamination is beyond every float: give the"),
    (lambda: RejectionPolicy(0.1), "give exactly one"),
    (lambda: RejectionPolicy(0.1, 32, 0.1), "give exactly one"),
    (lambda: RejectionPolicy(0.05, rate=0.3).require(500), "rate of at most"),
])  # fmt: skip
def test_bad_arguments_are_refused_with_value_limit_and_mend(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def advised(call, words):
    """The number that a refusal advises after `words`; ``None`` where it does not."""
    with pytest.raises(ConfigError) as refusal:
        call()
    found = re.search(words + r" ([\d.,]*\d)", str(refusal.value))
    return found and float(found[1].replace(",", ""))


@pytest.mark.parametrize("n", [*range(2, 40), 73, 99, 1001])
def test_no_refusal_advises_what_would_be_refused(n):
    gamma = 0.9 / n if n > 2 else 0.4
    anomalies = advised(lambda: rejection_band(n, gamma, 8), "a contamination of at least")
    if anomalies is not None:
        band = rejection_band(n, anomalies, 8)
        assert band.can_accept_anomaly
        assert band.can_accept_normal
    else:  # nothing below 1/2 would do
        assert n < 20
    rate = (
        advised(lambda: tolerance_for_rate(0.9 / (n + 1), n, 0.49), "a rate of at least")
        if n > 2
        else 0.34
    )
    assert Fraction(repr(rate)) * (n + 1) >= 1


def test_a_window_of_at_least_so_many_works_however_much_longer_it_is():
    # 72 reaches both labels with r = 25, 73 and 74 do not.
    assert min_window(0.35, 64) == 72
    for n in (60, 73, 74):
        band = rejection_band(n, 0.35, 64)
        least = advised(lambda band=band: require_reachable(band), "a window of at least")
        assert least == 75
    assert all(keeps(1.0, n, 0.35, 64) for n in range(75, 2000))


@pytest.mark.parametrize("gamma", [0.02, 0.05, 0.1, 0.2, 0.29, 0.45])
@pytest.mark.parametrize(
    "kept",
    [{"rate": 0.02}, {"rate": 0.033}, {"rate": 0.05}, {"tolerance": 1.0}, {"tolerance": 3.0}],
)
def test_no_window_below_the_first_can_say_both_labels(gamma, kept):
    policy = RejectionPolicy(gamma, **kept)
    first = policy.first_window
    least = math.ceil(1 / gamma)  # r is 0 in a shorter one
    if "rate" in kept:
        least = max(least, math.ceil(1 / kept["rate"]) - 1)  # and the budget is below one rank
    assert first >= least
    said = [policy.band(n).can_accept_both for n in range(least, first + 1)]
    assert said == [False] * (first - least) + [True]


def test_a_budget_keeps_its_rate_while_the_window_fills():
    policy = RejectionPolicy(0.05, rate=0.04)
    for n in range(policy.first_window, 1200, 7):
        band = policy.band(n)
        assert band.width <= 0.04 * (n + 1)
    assert policy.band(policy.first_window).can_accept_anomaly


NUMBER = r"([\d,]+(?:\.\d+)?(?:e-\d+)?)"


@pytest.mark.thorough
@pytest.mark.parametrize("given", ["tolerance", "rate"])
def test_advice_given_works(given):
    """Every window, tolerance, rate and contamination that a refusal names, tried."""
    rng, advices = random.Random(3), Counter()
    while advices["refused"] < 150:
        n, gamma = rng.randint(2, 900), round(10 ** rng.uniform(-3.3, -0.35), rng.randint(3, 5))
        share = round(10 ** rng.uniform(-3.3, -0.05), 4)
        how = {given: round(rng.uniform(0.8, 60), 2) if given == "tolerance" else share}
        if not (0 < gamma < 0.5 and 0 < share < 1):
            continue
        try:
            RejectionPolicy(gamma, **how).require(n)
        except ConfigError as error:
            said = str(error)
        else:
            continue
        advices["refused"] += 1
        ways = re.findall(rf"a (\w+) of (?:at least |at most )?{NUMBER}", said.rpartition(": ")[2])
        assert ways or "use a larger window" in said, said
        for name, number in ways:
            value = float(number.replace(",", ""))
            if name == "window":
                RejectionPolicy(gamma, **how).require(int(value))
            elif name == "contamination":
                RejectionPolicy(value, **how).require(n)
            else:
                RejectionPolicy(gamma, **{given: value}).require(n)
            advices[name] += 1
    assert min(advices["window"], advices["contamination"], advices[given]) > 8, advices


def advice(gamma, rate, n):
    with pytest.raises(ConfigError) as refusal:
        RejectionPolicy(gamma, rate=rate).require(n)
    return str(refusal.value).rpartition(": ")[2]


def test_advice_is_the_smallest_that_works():
    assert advice(0.0021, 0.0031, 1_200) == (
        "use a window of 1,429, or a rate of at most 0.00166, or a contamination of at least "
        "0.0025."
    )
    assert advice(0.02, 0.02, 20) == "use a window of 150."  # 50 was advised, and refused
    assert advice(0.03, 0.17, 38) == "use a window of 2,467, or a contamination of at least 0.14."
    policy = RejectionPolicy(0.0021, rate=0.0031)
    assert not any(map(policy.works, range(1_201, 1_429)))
    assert not RejectionPolicy(0.0021, rate=0.00167).works(1_200)
    assert not RejectionPolicy(0.0024, rate=0.0031).works(1_200)


@pytest.mark.parametrize(("gamma", "rate"), [(0.0015, 0.074), (0.003, 0.9), (1e-9, 0.5)])
def test_a_rate_that_no_window_allows_is_refused_at_once(gamma, rate, monkeypatch):
    """100,000 bands were searched, for minutes."""
    tails = Counter()
    for name in ("log_p_anomaly", "log_p_normal"):
        monkeypatch.setattr(band, name, partial(counted, tails, getattr(band, name)))
    with pytest.raises(ConfigError, match=f"use a rate of {gamma:g}|give a smaller rate"):
        _ = RejectionPolicy(gamma, rate=rate).first_window
    assert 0 < tails["asked"] < 5_000


def counted(tails, tail, *arguments):
    tails["asked"] += 1
    return tail(*arguments)


def test_the_window_that_a_refusal_of_a_rate_names_exists():
    with pytest.raises(ConfigError, match=r"a rate of 0\.0015, with which a window of 2,000 works"):
        _ = RejectionPolicy(0.0015, rate=0.074).first_window
    RejectionPolicy(0.0015, rate=0.0015).require(2_000)


def test_the_scores_at_the_edges_of_the_band_are_those_of_the_window_of_the_moment():
    n, rng = 100, np.random.default_rng(0)
    policy = RejectionPolicy(0.1, tolerance=4)
    judge = Judge(policy, n)
    judge.calibrate(rng.normal(size=n).tolist())
    for seq, score in enumerate(rng.normal(size=300).tolist()):
        ordered = sorted(judge.window.scores())
        (verdict,) = judged_alone(judge, [score], seq)
        edges = verdict.score_lower, verdict.threshold, verdict.score_upper
        assert edges == tuple(ordered[edge - 1] for edge in policy.band(n).edges)
