"""Answers that teach: the layer is exact, the trial keeps its promise, the duel its rules."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import ConfigError
from rejex_stream.learning import (
    Asked,
    ChampionChallenger,
    LabelKernel,
    Learner,
    LearningSpec,
    SequentialTest,
)
from rejex_stream.learning.sequential_test import error_adjusted_gains, max_gain_with_errors
from rejex_stream.rejection.band import nested_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import Label, Position, Verdict

MANY = settings(max_examples=50, deadline=None)
GAMMA, N = 0.1, 50
CELL = st.floats(-3, 3).map(lambda x: round(x, 2))


# ----------------------------------------------------------------------------------- the layer
def naive(events, answers, gamma, window):
    """Return q of every event in the window, and of a new one, straight from the formulas.

    `answers` are (row, anomalous, number of its event, how many events there were).
    """

    def corrected(row, severity, since, own):
        hits = mass = 0.0
        for taught, anomalous, at, seen in answers:
            if at == own:
                continue
            reference = [r for r, _ in events[max(0, seen - window) : seen]]
            squares = sorted(sum((a - b) ** 2 for a, b in zip(r, taught, strict=True))
                             for r in reference)  # fmt: skip
            reach = max(squares[min(int(len(squares) ** 0.5), len(squares) - 1)], 1e-12)
            weight = 2 ** -(sum((a - b) ** 2 for a, b in zip(row, taught, strict=True)) / reach)
            mass += weight
            hits += weight * anomalous
        prior = gamma / (gamma + 10**-severity)
        return (prior + hits) / (1 + mass)

    return corrected


@MANY
@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=8, max_size=30),
    severities=st.lists(st.floats(0, 5), min_size=30, max_size=30),
    answers=st.lists(st.tuples(st.integers(0, 29), st.booleans(), st.integers(2, 30)), max_size=6),
)
def test_the_layer_is_what_its_formulas_say(rows, severities, answers):
    window, events = 12, list(zip(rows, severities, strict=False))
    kernel = LabelKernel(np.ones(2), GAMMA, window)
    given_ = [
        (rows[at], anomalous, at, seen)
        for at, anomalous, seen in sorted(answers, key=lambda one: one[2])
        if at < seen <= len(rows)
    ]
    waiting = list(given_)
    for i, (row, severity) in enumerate(events):
        q, rank = kernel.push(row, severity)
        so_far = [one for one in given_ if one not in waiting]
        corrected = naive(events, so_far, GAMMA, window)
        assert q == pytest.approx(corrected(row, severity, i, None), rel=1e-9)
        others = [corrected(*events[j], j, j) for j in range(max(0, i - window), i)]
        close = sum(abs(other - q) < 1e-9 for other in others)
        below = sum(other < q for other in others)
        assert abs(rank - below) <= close
        while waiting and waiting[0][3] == i + 1:
            taught, anomalous, at, _ = waiting.pop(0)
            kernel.teach(taught, anomalous=anomalous, at=at)


def test_far_from_every_answer_events_are_ordered_as_the_detector_orders_them():
    kernel = LabelKernel(np.ones(1), GAMMA, N)
    rng = np.random.default_rng(0)
    for x in rng.normal(size=N):
        kernel.push([x], 0.3)
    kernel.teach([0.0], anomalous=False, at=0)
    qs = [kernel.corrected([1e6], severity) for severity in (0.0, 0.5, 1.0, 3.0, 299.0)]
    assert qs == sorted(qs)
    assert kernel.corrected([1e6], 1.0) == kernel.prior(1.0) == pytest.approx(0.5)


def test_an_answer_moves_its_neighbours_in_the_window_and_not_itself():
    kernel = LabelKernel(np.ones(1), GAMMA, 10)
    for i in range(10):
        kernel.push([float(i)], 0.3)
    before = kernel.scores()
    kernel.teach([9.0], anomalous=True, at=9)
    after = kernel.scores()
    assert after[9] == before[9]
    assert after[8] > before[8]


def test_only_the_newest_answers_teach():
    kernel = LabelKernel(np.ones(1), GAMMA, 5, most=2)
    for i in range(5):
        kernel.push([float(i)], 0.3)
    for anomalous in (True, False, False):
        kernel.teach([0.0], anomalous=anomalous, at=0)
    assert kernel.n_answers == 2
    assert kernel.corrected([0.0], 0.3) < kernel.prior(0.3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": [0.0]}, "positive number for each column"),
        ({"scale": [float("nan")]}, "positive number"),
        ({"contamination": 0.5}, "a share in"),
        ({"window": 1}, "at least 2 events"),
        ({"most": 0}, "at least 2 events and 1 answer"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(change, said):
    arguments = {"scale": [1.0], "contamination": GAMMA, "window": N} | change
    with pytest.raises(ConfigError, match=said):
        LabelKernel(**arguments)


# ----------------------------------------------------------------------------------- the trial
def taken_over(gains, rng, rate=0.2, alpha=0.05):
    """Return whether the challenger takes over at a moment at which it has not been cheaper."""
    trial, total = SequentialTest(rate, alpha=alpha), 0.0
    for gain in gains:
        total += gain
        if rng.random() < rate and trial.update(gain, rate):
            return total <= 0.0
    return False


def nothing_in_it(rng):
    yield from rng.choice([-1.0, 1.0], size=600)


def first_better_then_worse(_rng):
    yield from [1.0] * 15 + [-1.0] * 15
    yield from [1.0, -1.0] * 250


def barely_worse(rng):
    yield from np.where(rng.random(600) < 0.5, 0.05, -0.0501)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nothing_in_it, first_better_then_worse, barely_worse])
def test_whoever_was_not_cheaper_hardly_ever_takes_over(kind):
    runs = [
        taken_over(kind(np.random.default_rng([seed, 1])), np.random.default_rng([seed, 2]))
        for seed in range(400)
    ]
    assert np.mean(runs) <= 0.05


@pytest.mark.thorough
def test_nor_against_somebody_who_sees_every_coin_and_stops_when_he_likes():
    """The stream gives gains only while the total allows it, and presses on when the bets win."""
    wrong = 0
    for seed in range(400):
        rng, trial, total = np.random.default_rng(seed), SequentialTest(0.5), 0.0
        for _ in range(400):
            gain = 1.0 if total <= -1.0 else -0.01 if trial.evidence > 2.0 else -1.0
            total += gain
            if rng.random() < 0.5 and trial.update(gain, 0.5):
                wrong += total <= 0.0
                break
    assert wrong / 400 <= 0.05


@pytest.mark.thorough
def test_unequal_probabilities_keep_the_promise_too():
    wrong = 0
    for seed in range(400):
        rng, trial, total = np.random.default_rng(seed), SequentialTest(0.1), 0.0
        for t in range(500):
            gain, rate = (-0.22, 0.1) if t % 2 else (0.2, 0.9)
            total += gain
            if rng.random() < rate and trial.update(gain, rate):
                wrong += total <= 0.0
                break
    assert wrong / 400 <= 0.05


def test_who_is_cheaper_takes_over_and_goes_back_when_it_is_no_longer():
    rng, trial, changes = np.random.default_rng(0), SequentialTest(0.2), []
    for t in range(6_000):
        gain = 1.0 if rng.random() < (0.75 if t < 3_000 else 0.25) else -1.0
        if rng.random() < 0.2 and trial.update(gain, 0.2):
            changes.append((t, trial.challenger_speaks))
    assert [who for _, who in changes] == [True, False]
    assert changes[0][0] < 1_000
    assert 3_000 < changes[1][0] < 4_000


def test_every_further_try_needs_more():
    trial = SequentialTest(0.2)
    first = trial.limit
    trial.command(challenger_speaks=True)
    assert trial.limit == 20.0
    trial.command(challenger_speaks=False)
    assert (first, trial.limit) == (40.0, 120.0)


def test_errors_of_answers_delay_nobody_who_goes_back():
    """The gains against a challenger are booked as answered: no error stretches their bound."""
    most = max_gain_with_errors(1.0, 0.3)
    losses = []
    for back in (None, 1.0):
        trial = SequentialTest(0.2, most, max_gain_reverse=back)
        trial.command(challenger_speaks=True)
        losses.append(next(n for n in range(1, 100) if trial.update(-1.0, 0.2)))
    assert losses == [13, 8]
    with pytest.raises(ConfigError, match="max_gain_reverse is 2"):
        SequentialTest(0.2, 1.0, max_gain_reverse=2.0)
    trial = SequentialTest(0.2, most, max_gain_reverse=1.0)
    trial.update(-most, 0.2)
    trial.command(challenger_speaks=True)
    with pytest.raises(ConfigError, match="expected at most 1"):
        trial.update(-most, 0.2)


@pytest.mark.thorough
def test_a_challenger_that_costs_no_more_is_seldom_sent_back():
    """By Ville's inequality for the e-CUSUM: not before twenty events in the mean, here of 400."""
    rng, back = np.random.default_rng(2), 0
    for _ in range(300):
        trial = SequentialTest(1.0, max_gain_with_errors(1.0, 0.3), max_gain_reverse=1.0)
        trial.command(challenger_speaks=True)
        back += any(trial.update(gain, 1.0) for gain in rng.choice([-1.0, 1.0], 40, p=[0.3, 0.7]))
    assert back / 300 <= 0.05


def test_what_would_break_the_promise_is_refused():
    trial = SequentialTest(0.2)
    for gain, drawn in ((1.1, 0.2), (-1.1, 0.2), (0.5, 0.1), (float("nan"), 0.2), (0.5, 1.1)):
        with pytest.raises(ConfigError, match="expected at most"):
            trial.update(gain, drawn)
    assert trial.evidence == 1.0
    for arguments in ({"rate": 0.0}, {"rate": 0.2, "alpha": 1.0}, {"rate": 0.2, "max_gain": 0.0}):
        with pytest.raises(ConfigError, match="expected"):
            SequentialTest(**arguments)


# ------------------------------------------------------------------------------------ the duel
def duel(rate=0.5, coin=None, **more):
    policy = RejectionPolicy(GAMMA, tolerance=2.0)
    rng = np.random.default_rng(5)
    heads = rng.random(100_000) < rate
    kernel = LabelKernel(np.ones(1), GAMMA, N)
    return ChampionChallenger(
        policy, kernel, SequentialTest(rate), coin or (lambda at: bool(heads[at.offset])), **more
    )


def verdict(i, label, severity=0.5, **more):
    return Verdict(Position("t", 0, i), "s", "s", i, i, label, severity=severity, **more)


def play(the_duel, events, answers, first=0):
    """Judge events, giving the answers that are due before each; return what was said."""
    said = []
    for i, (row, label, severity) in enumerate(events):
        for position, anomalous in answers.get(i, ()):
            the_duel.answer(Position("t", 0, position), anomalous=anomalous)
        said.append(the_duel.judge(verdict(first + i, label, severity), [row]))
    return said


def test_nothing_is_said_otherwise_before_the_challenger_takes_over():
    rng = np.random.default_rng(1)
    labels = rng.choice([Label.NORMAL, Label.ANOMALY, Label.REJECTED], size=400, p=[0.8, 0.1, 0.1])
    rows, rare = rng.normal(size=400), rng.exponential(0.4, size=400)
    events = list(zip(rows, map(Label, labels), rare, strict=True))
    said = play(duel(), events, {})
    assert [one.label for one in said] == [one for _, one, _ in events]
    assert any(one.champion is not one.challenger for one in said)


@pytest.mark.parametrize("width", [0, 3])
def test_under_a_held_budget_the_challenger_is_labelled_by_the_band_that_the_credit_allows(width):
    policy = RejectionPolicy(GAMMA, rate=0.2, burst=5)
    own, allowed = policy.band(N), nested_band(N, GAMMA, width)
    contest = ChampionChallenger(
        policy, LabelKernel(np.ones(1), GAMMA, N), SequentialTest(0.5), lambda at: False
    )
    contest.command(challenger_speaks=True)
    rng, met = np.random.default_rng(3), set()
    bands = {"policy_lower": own.lower, "policy_upper": own.upper}
    bands |= {"band_lower": allowed.lower, "band_upper": allowed.upper}
    for i in range(3 * N):
        event = verdict(i, Label.NORMAL, float(rng.exponential()), window_len=N, **bands)
        window = LabelKernel(np.ones(1), GAMMA, N)
        window.restore(contest.kernel.state())
        rank = window.push([0.0], event.severity)[1]
        judged = contest.judge(event, [0.0])
        if i >= N:
            assert judged.label is allowed.label(rank)
            is_own = own.label(rank) is Label.REJECTED
            assert judged.withheld == (is_own and judged.label is not Label.REJECTED)
            met.add((judged.label, judged.withheld))
        else:
            assert (judged.label, judged.withheld) == (Label.NORMAL, False)
    assert any(withheld for _, withheld in met)
    assert (Label.REJECTED, False) in met or not width
    short = verdict(3 * N, Label.NORMAL, window_len=N - 1, **bands)
    assert contest.judge(short, [0.0]).challenger is Label.NORMAL


def test_what_is_rejected_teaches_and_what_is_drawn_only_measures():
    heads, tails = duel(coin=lambda _: True), duel(coin=lambda _: False)
    for one, asked in ((heads, Asked.MEASURE), (tails, Asked.TEACH)):
        for i in range(N):
            one.judge(verdict(i, Label.NORMAL, 0.1 + i / 1000), [float(i)])
        judged = one.judge(verdict(N, Label.REJECTED, 0.0), [100.0])
        assert judged.challenger is Label.NORMAL
        assert judged.asked is asked
        assert one.answer(Position("t", 0, N), anomalous=False)
        assert one.kernel.n_answers == (asked is Asked.TEACH)
        assert (one.trial.evidence > 1.0) is (asked is Asked.MEASURE)


def test_held_and_planned_events_and_those_without_a_rank_are_passed_over():
    one = duel()
    for more in ({"held": True}, {"planned": True}, {"severity": None}):
        judged = one.judge(verdict(0, Label.REJECTED, **more), [0.0])
        assert judged.label is Label.REJECTED
        assert judged.asked is None
    assert len(one.kernel) == 0


def filled(**more):
    """Return a duel whose next events differ: the champion flags them, the challenger does not."""
    one = duel(coin=lambda _: True, **more)
    for i in range(N):
        one.judge(verdict(i, Label.NORMAL, 1.0), [float(i)])
    return one


def test_answers_settle_in_the_order_of_the_events():
    one = filled()
    for i in (N, N + 1):
        assert one.judge(verdict(i, Label.ANOMALY, 0.0), [0.0]).asked is Asked.MEASURE
    assert one.answer(Position("t", 0, N + 1), anomalous=False)
    assert one.trial.evidence == 1.0  # the first is not answered yet
    assert one.answer(Position("t", 0, N), anomalous=False)
    assert one.trial.evidence > 1.2
    assert not one.answer(Position("t", 0, N), anomalous=True)


def test_what_nobody_is_sure_of_or_answers_counts_against_whom_it_is_to_prove():
    for unsure in (True, False):
        one = filled(patience=5)
        one.judge(verdict(N, Label.ANOMALY, 0.0), [0.0])
        if unsure:
            one.answer(Position("t", 0, N), anomalous=None)
        else:
            for i in range(6):
                one.judge(verdict(N + 1 + i, Label.NORMAL, 0.5), [0.0])
            assert not one.answer(Position("t", 0, N), anomalous=False)
        assert one.trial.evidence < 1.0


@pytest.mark.parametrize("who", ["a person", "the evidence"])
def test_evidence_from_before_another_speaks_counts_no_more(who):
    """Else the next trial begins with bets on differences that were drawn under the last one."""
    one, places = filled(), [Position("t", 0, i) for i in range(N, N + 40)]
    for at in places:
        assert one.judge(verdict(at.offset, Label.ANOMALY, 0.0), [0.0]).asked is Asked.MEASURE
    if who == "a person":
        one.command(challenger_speaks=True)
    else:  # the first is answered last, and they wait for it; the later ones are for the champion
        for at in (*places[1:], places[0]):
            one.answer(at, anomalous=at.offset >= N + 20)
    assert one.trial.challenger_speaks
    assert one.trial.evidence == 1.0
    assert not any(one.answer(at, anomalous=True) for at in places)
    assert one.trial.evidence == 1.0


def test_held_and_planned_events_do_not_belong_to_the_first_window():
    policy = RejectionPolicy(GAMMA, tolerance=2.0)
    learner = Learner(LearningSpec(), policy, N)
    for i, more in enumerate(({"held": True}, {"planned": True}, {"severity": None}, {})):
        learner.judge(verdict(i, Label.NORMAL, **more), [1.0])
    assert learner.missing == N - 1


def test_an_answer_that_comes_too_late_teaches_nothing():
    one = duel(coin=lambda _: False, patience=5)
    for i in range(N):
        one.judge(verdict(i, Label.REJECTED if i == 0 else Label.NORMAL), [float(i)])
    assert not one.answer(Position("t", 0, 0), anomalous=True)
    assert one.kernel.n_answers == 0


@pytest.mark.parametrize("cut", [60, 333])
def test_it_goes_on_from_its_state_with_the_same_bits(cut):
    rng = np.random.default_rng(2)
    labels = rng.choice([Label.NORMAL, Label.ANOMALY, Label.REJECTED], size=500, p=[0.7, 0.1, 0.2])
    rows, rare = rng.normal(size=500), rng.exponential(0.4, size=500)
    events = list(zip(rows, map(Label, labels), rare, strict=True))
    answers = {i + 20: [(i, bool(events[i][0] > 1))] for i in range(470)}
    first, before, after = duel(), duel(), duel()
    said = play(first, events, answers)
    again = play(before, events[:cut], answers)
    state = before.state()
    play(before, events[cut:], {i - cut: a for i, a in answers.items()})  # a copy does not move
    after.restore(state)
    again += play(after, events[cut:], {i - cut: a for i, a in answers.items()}, cut)
    assert said == again
    assert first.kernel.scores().tobytes() == after.kernel.scores().tobytes()
    assert first.trial.state() == after.trial.state()
    assert first.trial.evidence != 1.0
    assert first.kernel.n_answers > 0


@pytest.mark.thorough
def test_labels_that_are_true_take_over_and_shuffled_ones_do_not():
    rng = np.random.default_rng(3)
    faulty = rng.random(4_000) < GAMMA
    # Faults lie in a cluster that the detector finds ordinary; rare normals it calls anomalies.
    rows = np.where(faulty, 5.0, 0.0) + rng.normal(size=4_000) * 0.3
    severities = rng.exponential(0.43, size=4_000)

    def takes_over(truth):
        one, untaught = duel(rate=0.3), LabelKernel(np.ones(1), GAMMA, N)
        band = RejectionPolicy(GAMMA, tolerance=2.0).band(N)
        for i, (x, s) in enumerate(zip(rows, severities, strict=True)):
            if i >= 30:
                one.answer(Position("t", 0, i - 30), anomalous=bool(truth[i - 30]))
            label = band.label(untaught.push([x], s)[1])
            one.judge(verdict(i, label, s), [x])
        return one.trial.challenger_speaks

    assert takes_over(faulty)
    shuffled = [takes_over(np.random.default_rng(seed).permutation(faulty)) for seed in range(3)]
    assert not any(shuffled)


def test_costs_that_the_trial_cannot_bound_are_refused():
    for costs in ({"c_fn": 2.0}, {"c_r": -0.1}):
        with pytest.raises(ConfigError, match="between 0 and the trial's largest"):
            duel(**costs)


# ---------------------------------------------------------------------- where answers are wrong
def takeovers(noise, wrong, *, truth, runs=300, answers=400):
    """How many of so many challengers take over by answers of which a share is wrong."""
    rng = random.Random(17)
    gains = (-1.0, 5.0)  # the challenger calls an anomaly what the champion calls normal
    booked = error_adjusted_gains(*gains, wrong)
    found = 0
    for _ in range(runs):
        trial = SequentialTest(rate=1.0, max_gain=max_gain_with_errors(5.0, wrong))
        for _ in range(answers):
            anomalous = (rng.random() < truth) != (rng.random() < noise)
            if trial.update(booked[anomalous], 1.0):
                found += 1
                break
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2, 0.3])
def test_false_answers_let_no_challenger_take_over_that_only_gives_false_alarms(noise):
    assert takeovers(noise, 0.3, truth=0.0) <= 15
    # An answer believed is a fifth wrong, and more than a quarter of them take over.
    assert takeovers(0.2, 0.0, truth=0.0, runs=100) > 15


def test_a_challenger_that_finds_faults_takes_over_though_a_tenth_of_the_answers_is_wrong():
    assert takeovers(0.1, 0.1, truth=0.8, runs=50) > 40


@given(
    st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 0.49), st.floats(0, 1), st.booleans()
)  # fmt: skip
def test_what_is_booked_is_the_gain_at_most(if_normal, if_anomalous, wrong, part, truth):
    """Whatever is true, and however often up to that share the answer is another."""
    booked, error = error_adjusted_gains(if_normal, if_anomalous, wrong), wrong * part
    mean = (1 - error) * booked[truth] + error * booked[not truth]
    assert mean <= (if_normal, if_anomalous)[truth] + 1e-9
    assert max(map(abs, booked)) <= max_gain_with_errors(1.0, wrong)
