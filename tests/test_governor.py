"""The review budget holds on any stream: against adversaries, by event time, with clocks back."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine
from rejex_stream.engine.engine import Decision
from rejex_stream.errors import ConfigError
from rejex_stream.monitor import MonitorBank, MonitorConfig
from rejex_stream.rejection.band import (
    anomaly_count,
    max_tolerance,
    nested_band,
    rejection_band,
    widest_band,
)
from rejex_stream.rejection.exceed import stability
from rejex_stream.rejection.judge import Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import DAY_MS, TokenBucket, base_width
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.trusted_clock import TrustedClock
from rejex_stream.types import OutcomeCounts, Position, Reading, is_ranked
from tests.streams import judged_alone, readings, spec

MANY = settings(max_examples=25, deadline=None)


# ------------------------------------------------------------------------- the nested order
@pytest.mark.parametrize("gamma", [0.005, 0.02, 0.05, 0.29, 0.45, 0.499])
@pytest.mark.parametrize("n", [3, 7, 40, 203, 1000, 3000])
def test_some_label_is_out_of_reach_from_the_tolerance_at_which_an_end_of_the_window_flips(
    n, gamma
):
    if anomaly_count(n, gamma) < 1:
        return
    ends = stability(np.array([0, n]), n, gamma)
    flips = -np.minimum(ends.log_p_anomaly, ends.log_p_normal)
    assert max_tolerance(n, gamma) == pytest.approx(flips.min(), rel=1e-12)


def test_full_credit_has_twice_the_band_or_the_widest_that_leaves_both_labels():
    is_twice = set()
    for n, gamma, rate in product(
        (254, 1000, 2500), (0.005, 0.05, 0.29, 0.45, 0.499), (0.004, 0.05, 0.3, 0.7, 0.95)
    ):
        policy = RejectionPolicy(gamma, rate=rate, burst=50)
        twice, widest = 2 * policy.band(n).width, widest_band(n, gamma)
        assert base_width(policy, n) == min(twice, widest)
        is_twice.add(twice < widest)
    assert is_twice == {True, False}


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(n=st.integers(2, 400), gamma=st.sampled_from([0.005, 0.02, 0.05, 0.1, 0.29, 0.45, 0.499]))
def test_nested_bands_hold_the_ranks_that_flip_most_easily(n, gamma):
    if anomaly_count(n, gamma) < 1:
        return
    at = stability(np.arange(n + 1), n, gamma)
    flips = -np.minimum(at.log_p_anomaly, at.log_p_normal)
    bands = [nested_band(n, gamma, width) for width in range(n + 2)]
    inner = bands[0]
    assert inner.width == 0
    for width, band in enumerate(bands[1:], 1):
        assert band.upper - band.lower + 1 == width
        outside = min(flips[: band.lower].min(initial=np.inf),
                      flips[band.upper + 1 :].min(initial=np.inf))  # fmt: skip
        assert flips[band.lower : band.upper + 1].max() <= outside + 1e-12
        assert inner.width == 0 or band.lower <= inner.lower <= inner.upper <= band.upper
        again = rejection_band(n, gamma, band.tolerance)
        assert (again.lower, again.upper) == (band.lower, band.upper)
        inner = band
    reachable = [band.can_accept_anomaly and band.can_accept_normal for band in bands]
    assert widest_band(n, gamma) == max(w for w, both in enumerate(reachable) if both)


def test_a_band_of_impossible_width_is_refused():
    with pytest.raises(ConfigError, match="102 ranks cannot be at window n = 100: give 0 to 101"):
        nested_band(100, 0.1, 102)


# ------------------------------------------------------------------------------ the theorem
def overspent(rejected, allowed):
    """The largest excess of rejections over what is allowed, over all stretches of events.

    ``allowed[i]`` is what event i adds to the budget of a stretch that holds it.
    """
    worst = now = Fraction(0)
    for spent, earned in zip(rejected, allowed, strict=True):
        now = max(now, Fraction(0)) + spent - earned
        worst = max(worst, now)
    return worst


class Adversary:
    """Sees everything, window and credit, and sends the score that hurts most, or waits.

    `greed` is how full the credit has to be for it to send on the threshold; else it sends what is
    certain, to have the budget earn.
    """

    def __init__(self, judge, greed, rng):
        self.judge, self.greed, self.rng, self.waits = judge, greed, rng, False

    def score(self):
        window, bucket = self.judge.window, self.judge._bucket
        n = len(window)
        if n < 2:
            return self.rng.random()
        if bucket.credit < bucket.cost_per_rejection:
            self.waits = True
        elif bucket.credit >= self.greed * bucket.capacity:
            self.waits = False
        if self.waits:
            return self.rng.random()
        # The rank that enters first: rejected as long as a single rank is.
        rank = nested_band(n, self.judge._policy.contamination, 1).lower
        return self.rng.uniform(window.order_statistic(rank), window.order_statistic(rank + 1))


budgets = st.builds(
    lambda gamma, rate, burst: RejectionPolicy(gamma, rate=rate, burst=burst),
    st.sampled_from([0.08, 0.1, 0.2]),
    st.floats(0.02, 0.08).map(lambda x: round(x, 3)),
    st.integers(1, 30),
)


def play(policy, events, greed, seed, clock=lambda i: i):
    judge, rng = Judge(policy, 200), np.random.default_rng(seed)
    judge.replace_window(rng.random(150))  # it fills on the way
    adversary, said = Adversary(judge, greed, rng), []
    for i in range(events):
        reading = Reading("s", "s", clock(i), (0.0,), Position("t", 0, i))
        verdicts = [None]
        judge.judge([reading], [0], [adversary.score()], verdicts, seq=i, epoch=0)
        said += verdicts
    return said


@pytest.mark.thorough
@MANY
@given(policy=budgets, greed=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_no_stretch_of_any_stream_has_more_than_rate_times_length_plus_burst(policy, greed, seed):
    said = [v for v in play(policy, 1_200, greed, seed) if is_ranked(v)]
    rejected = [v.label == "rejected" for v in said]
    assert overspent(rejected, [Fraction(repr(policy.rate))] * len(said)) <= policy.burst
    # Not for want of trying: the adversary gets all that the theorem leaves to it.
    assert sum(rejected) >= 0.5 * policy.rate * len(said)


@pytest.mark.thorough
@MANY
@given(
    policy=budgets,
    per_day=st.floats(10, 5000).map(lambda x: round(x, 2)),
    seed=st.integers(0, 10**6),
)
def test_by_event_time_it_holds_too_and_by_the_time_that_is_believed(policy, per_day, seed):
    policy = RejectionPolicy(
        policy.contamination, rate=policy.rate, burst=policy.burst, per_day=per_day
    )
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.integers(-90_000, 120_000, size=1_000))
    times[rng.random(1_000) < 0.01] = 4_102_444_800_000  # the year 2100, now and then
    times = times.tolist()
    said = play(policy, len(times), 0.0, seed, times.__getitem__)
    ranked = [i for i, v in enumerate(said) if is_ranked(v)]
    rejected, advances, clock = [], [], TrustedClock()
    for i in ranked:
        rejected.append(said[i].label == "rejected")
        before, now = clock.now_ms, clock.advance("s", times[i])
        advances.append(Fraction(repr(per_day)) * (0 if before is None else now - before) / DAY_MS)
    assert overspent(rejected, advances) <= policy.burst
    assert sum(rejected) >= policy.burst / 2


@pytest.mark.parametrize("shared", [False, True])
def test_one_record_of_the_year_2100_ends_no_budget(shared):
    policy = RejectionPolicy(0.05, rate=0.05, burst=5, per_day=24.0)
    honest, deceived = (TokenBucket(policy, is_shared=shared) for _ in range(2))
    for i in range(2_000):
        sensor = f"s{i % 20}" if shared else "s0"
        if i == 100:
            deceived.allow(1000, sensor, 4_102_444_800_000)
        if i == 200:  # and no crash makes it believed
            state, deceived = deceived.state(), TokenBucket(policy, is_shared=shared)
            deceived.restore(state)
        for bucket in honest, deceived:
            if bucket.allow(1000, sensor, 1_700_000_000_000 + 3_600_000 * i).width:
                bucket.spend()
    assert honest.latest_ms > 1_700_000_000_000 + 3_600_000 * 1_900
    assert abs(deceived.latest_ms - honest.latest_ms) <= 3_600_000
    assert abs(deceived.credit - honest.credit) <= 2 * honest.cost_per_rejection


def test_a_liar_who_speaks_first_ends_no_budget_that_others_share_and_its_way_back_earns_nothing():
    policy = RejectionPolicy(0.05, rate=0.05, burst=5, per_day=24.0, owner="partition")
    bucket = TokenBucket(policy, is_shared=True)
    for i in range(20):
        bucket.allow(1000, "liar", 4_102_444_800_000 + i)
    for _ in range(5):
        bucket.spend()
    start = 1_700_000_000_000
    bucket.allow(1000, "a", start)
    bucket.allow(1000, "b", start)
    assert (bucket.credit, bucket.latest_ms) == (0, start)
    spent = 0
    for i in range(1, 241):  # ten days
        if bucket.allow(1000, "ab"[i % 2], start + 3_600_000 * i).width:
            bucket.spend()
            spent += 1
    assert 230 <= spent <= 240


def test_a_hundred_thousand_events_on_the_threshold_get_the_rate_and_not_more():
    policy = RejectionPolicy(0.05, rate=0.05, burst=72)
    bucket, rejected = TokenBucket(policy), 0
    for _ in range(100_000):
        if bucket.allow(1000, "s", 0).width:
            bucket.spend()
            rejected += 1
    assert 5_000 <= rejected <= 5_072


@pytest.mark.thorough
def test_exchangeable_scores_are_rejected_at_the_rate_and_ranks_stay_uniform():
    policy = RejectionPolicy(0.05, rate=0.05, burst=72)
    rng = np.random.default_rng(3)
    judge = Judge(policy, 500)
    judge.replace_window(rng.random(500))
    verdicts = judged_alone(judge, rng.random(60_000).tolist())
    rate = np.mean([v.label == "rejected" for v in verdicts])
    assert rate == pytest.approx(0.05, abs=0.0015)  # ρ, to B / L
    ranks = np.bincount([v.rank for v in verdicts], minlength=501)
    expected = len(verdicts) / 501
    assert ((ranks - expected) ** 2 / expected).sum() == pytest.approx(500, abs=150)
    given_width = [(v.band_upper - v.band_lower + 1) / 501 for v in verdicts]
    assert np.mean(given_width) == pytest.approx(rate, abs=0.003)  # P(reject | past) = w / (n + 1)


# ------------------------------------------------------------------------- beside the engine
def test_a_budget_changed_in_mid_stream_takes_the_credit_along_in_events():
    judge = Judge(RejectionPolicy(0.1, rate=0.05, burst=10), 100)
    judge._bucket.credit = 7 * 20 + 3  # 7.15 events
    judge.set_policy(RejectionPolicy(0.1, rate=0.001, burst=40))
    assert judge._bucket.credit == 7_150
    judge.set_policy(RejectionPolicy(0.1, rate=0.05, burst=2))
    assert judge._bucket.credit == judge._bucket.capacity == 40
    judge.set_policy(RejectionPolicy(0.1, tolerance=4))
    assert judge.state()["credit"] is None
    judge.set_policy(RejectionPolicy(0.1, rate=0.05, burst=2))
    assert judge._bucket.credit == 40


def test_a_constant_window_neither_earns_nor_pays():
    judge = Judge(RejectionPolicy(0.1, rate=0.05, burst=10), 100)
    judge.replace_window([1.0] * 100)
    judge._bucket.credit = 77
    verdicts = judged_alone(judge, [1.0] * 50)
    assert {v.reason for v in verdicts} == {"constant_window"}
    assert judge._bucket.credit == 77


def test_a_credit_stays_where_a_rate_becomes_a_day_and_back():
    """One keeps a clock and the other none."""
    by_rate = RejectionPolicy(0.05, rate=0.05, burst=5)
    by_day = RejectionPolicy(0.05, rate=0.05, burst=5, per_day=24.0)
    for old, new in ((by_rate, by_day), (by_day, by_rate)):
        before, after = TokenBucket(old), TokenBucket(new)
        for at in range(2):
            before.allow(1000, "a", at)
            before.spend()
        after.restore(before.state())
        assert (
            after.credit // after.cost_per_rejection
            == before.credit // before.cost_per_rejection
            == 3
        )
        assert after.allow(1000, "a", 2).width > 0


def test_an_engine_restored_under_another_budget_goes_on():
    feed = readings(400)
    engine = Engine(spec(rate=0.15, burst=3), InlineExecutor())
    engine.process(feed[:300])
    other = Engine(spec(rate=0.1), InlineExecutor())
    said = other.restore(engine.snapshot())
    assert said.now.since(said.was) == "rate 0.15 -> 0.1, burst 3 -> None"
    assert other.process(feed[300:])[-1].policy_lower is None
    other.decide(Decision(RejectionPolicy(0.2, rate=0.1, burst=5), evidence=False))
    assert other.process(feed[:1])[-1].policy_lower is not None


@pytest.mark.thorough
def test_monitors_watch_the_policy_s_own_band_whatever_the_budget_allowed():
    feed = readings(6_000, keys=("a",), missing=0, seed=4)
    seen = {}
    for burst in (None, 2):
        engine = Engine(
            spec(make_detector("HBOS"), rate=0.15, burst=burst, every=2000), InlineExecutor()
        )
        bank = MonitorBank(MonitorConfig(window=60, contamination=0.2, tolerance=3))
        said = engine.process(feed)
        bank.observe(said)
        counts = OutcomeCounts()
        counts.add_verdicts(said)
        seen[burst] = said, bank.status(), counts
    (free, free_status, _), (held, held_status, counts) = seen[None], seen[2]
    assert held_status == free_status
    assert counts.n_withheld == sum(v.withheld for v in held)
    assert counts.n_ambiguous == sum(v.reason == "ambiguous" for v in held)
    assert sum(v.withheld for v in held) > 50
    for ours, theirs in zip(held, free, strict=True):
        assert (ours.policy_lower, ours.policy_upper) == (theirs.band_lower, theirs.band_upper)
        assert ours.rank == theirs.rank
        if ours.withheld:
            assert (ours.label != "rejected", theirs.label) == (True, "rejected")


@pytest.mark.parametrize(("call", "words"), [
    (lambda: RejectionPolicy(0.1, tolerance=4, burst=5), "burst = 5 belongs to a budget"),
    (lambda: RejectionPolicy(0.1, rate=0.1, burst=0), "burst = 0 cannot be used"),
    (lambda: RejectionPolicy(0.1, rate=0.1, burst=2.5), "burst = 2.5 cannot be used"),
    (lambda: RejectionPolicy(0.1, rate=0.1, per_day=5), "only with a burst"),
    (lambda: RejectionPolicy(0.1, rate=0.1, burst=5, per_day=-1), "per_day = -1 cannot be"),
])  # fmt: skip
def test_budgets_that_cannot_be_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
