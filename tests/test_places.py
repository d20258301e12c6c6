"""Places for the extreme: earlier faults cannot hold the places of later ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.rejection.judge import EXTREME, Judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.window import Tail
from rejex_stream.types import Label, Reason
from tests.streams import check_window, judged_alone

N = 200
POLICIES = [
    RejectionPolicy(0.05, rate=0.02), RejectionPolicy(0.05, rate=0.02, burst=5),
    RejectionPolicy(0.2, tolerance=3.0, ties="paper"), RejectionPolicy(0.1, tolerance=0.6932),
]  # fmt: skip


def a_judge(policy=POLICIES[0], seed=0, n=N):
    judge = Judge(policy, N)
    judge.calibrate(np.random.default_rng(seed).exponential(size=n).tolist())
    return judge


# What an adversary sends: ordinary, just below, just above and at the border, far beyond, tied.
_MOVES = st.lists(
    st.one_of(
        st.floats(0.0, 3.0),
        st.floats(8.0, 40.0),
        st.sampled_from([math.nan, 1e9, 30.0, 30.0 + 1e-9, 1e300]),
    ),
    min_size=1,
    max_size=80,
)


@pytest.mark.thorough
@settings(max_examples=60)
@given(st.sampled_from(POLICIES), st.lists(_MOVES, max_size=12), st.integers(0, 3), st.data())
def test_in_a_full_window_what_is_extreme_is_an_anomaly_whatever_came_before(
    policy, blocks, seed, data
):
    judge, seq, border = a_judge(policy, seed), 0, None
    for moves in blocks:
        block = moves + data.draw(st.lists(st.floats(20.0, 50.0), max_size=60))
        for verdict in judged_alone(judge, block, seq):
            if verdict.reason in (Reason.CONSTANT_WINDOW, Reason.UNSCORABLE):
                continue
            assert verdict.window_len == N
            if verdict.severity is not None and verdict.severity >= EXTREME:
                assert verdict.label is Label.ANOMALY, verdict
                border = min(verdict.score, border or math.inf)
        seq += len(block)
    check_window(judge.window)
    if border is not None:
        n_extreme = sum(score >= border for score in judge.window.scores())
        flagged = N + 1 - policy.band(N).edges[2]
        assert n_extreme <= max(1, flagged // 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fault_that_comes_again_is_found_again_and_again(policy):
    judge, draw, seq = a_judge(policy), np.random.default_rng(5), 0
    for _ in range(20):
        fault = judged_alone(judge, (30.0 + draw.random(60)).tolist(), seq)
        assert {verdict.label for verdict in fault} == {Label.ANOMALY}
        judged_alone(judge, draw.exponential(size=100).tolist(), seq + 60)
        seq += 160


def test_ordinary_scores_all_enter_and_extreme_ones_up_to_their_places():
    judge = a_judge()
    places = (N + 1 - POLICIES[0].band(N).edges[2]) // 2
    assert places >= 2
    judged_alone(judge, [0.5] * 7 + [100.0 + i for i in range(10 * places)])
    assert judge.window.scores()[-7 - places :] == [*[0.5] * 7, *[100.0 + i for i in range(places)]]


def test_where_places_are_left_again_they_are_taken():
    judge = a_judge()
    places = (N + 1 - POLICIES[0].band(N).edges[2]) // 2
    judged_alone(judge, [50.0] * (places + 3))
    judged_alone(judge, [0.1] * N, 100)  # all of those have left
    judged_alone(judge, [60.0] * (places + 3), 500)
    assert sum(score == 60.0 for score in judge.window.scores()) == places


@pytest.mark.parametrize("n", [100, N])
@pytest.mark.parametrize("cut", [1, 3, 60, 128, 300])
def test_blocks_of_any_length_find_the_same_places(n, cut):
    draw = np.random.default_rng(2)
    scores = draw.exponential(size=900)
    scores[draw.random(900) < 0.1] += 40.0
    whole, single, seq, found = a_judge(n=n), a_judge(n=n), 0, []
    wanted = judged_alone(whole, scores.tolist())
    for start in range(0, len(scores), cut):
        found += judged_alone(single, scores[start : start + cut].tolist(), seq)
        seq += len(scores[start : start + cut])
    assert found == wanted
    assert single.window.scores() == whole.window.scores()


def test_a_window_that_fills_keeps_places_free_too():
    judge = a_judge(n=100)
    assert len(judge.window) == 100
    fault = judged_alone(judge, [50.0] * 80)
    assert {verdict.label for verdict in fault} == {Label.ANOMALY}
    assert len(judge.window) < 110


def test_without_scores_that_stand_still_every_score_enters():
    judge = Judge(POLICIES[0], N)
    judge.replace_window(np.random.default_rng(0).exponential(size=N).tolist())
    assert judge.tail is None
    judged_alone(judge, [50.0] * 60)
    assert judge.window.scores()[-60:] == [50.0] * 60


def test_what_is_extreme_in_a_window_is_counted_as_severities_say():
    for seed in range(20):
        scores = np.random.default_rng(seed).normal(size=30 + 100 * seed) * 10.0 ** (seed - 10)
        tail = Tail(scores.tolist())
        judge = Judge(POLICIES[0], N)
        judge.tail = tail
        held = [*scores.tolist(), *(scores[:seed] * 30.0).tolist()]
        judge.replace_window(held)
        extreme = sum(tail(score) >= EXTREME for score in held[-N:])
        assert judge._n_extreme() == extreme
        assert extreme > 0 or seed < 2


def test_a_fault_while_the_window_fills_keeps_no_length_that_says_nothing():
    policy = RejectionPolicy(0.02, rate=0.03)
    mute = [n for n in range(policy.first_window, N) if not policy.band(n).can_accept_both]
    assert mute
    for n in mute[:3]:
        judge = a_judge(policy, n=20)
        judged_alone(judge, [50.0] * 10)  # takes the places of severe scores
        judged_alone(judge, [1.0] * (n - len(judge.window)), 10)
        assert len(judge.window) == n
        reasons = [verdict.reason for verdict in judged_alone(judge, [50.0] * 40, n)]
        assert reasons[0] is Reason.WARM_UP
        assert reasons[-1] is not Reason.WARM_UP, n


@pytest.mark.parametrize("n", [60, 90, 120])
def test_a_filling_window_has_places_for_half_of_what_its_own_band_flags(n):
    policy = POLICIES[2]
    judge = a_judge(policy, n=n)
    flagged = n + 1 - policy.band(n).edges[2]
    assert judge._extreme_capacity(n) == flagged // 2 < (N + 1 - policy.band(N).edges[2]) // 2
    for score in (50.0 + i for i in range(3 * flagged)):
        judged_alone(judge, [score])
    extreme, now = judge._n_extreme(), len(judge.window)
    assert extreme == judge._extreme_capacity(now) == now - n


def test_what_calibrates_is_the_newest_of_each_kind():
    """Severities go by the newest ordinary scores, the window holds the newest of all."""
    draw, judge = np.random.default_rng(4), Judge(POLICIES[0], N)
    scores = draw.exponential(size=2 * N).tolist()
    extreme = {*range(5, 2 * N, 40)}
    for i in extreme:
        scores[i] = 0.5 + i / 1000
    judge.calibrate(scores, extreme)
    ordinary = [score for i, score in enumerate(scores) if i not in extreme]
    assert list(judge.tail.ordered) == sorted(ordinary[-N:])
    assert judge.window.scores() == scores[-N:]
