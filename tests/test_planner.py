"""The planner: promises, teams, episodes; each number against a formula or a simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from rejex_stream.errors import ConfigError
from rejex_stream.plan.capacity import (
    Team,
    frozen_overrun,
    held_rate,
    plan_for_team,
    safe_rate,
    sliding_overrun,
)
from rejex_stream.plan.measured import Measurement
from rejex_stream.plan.promises import Costs, EpisodeRule, episodes_per_day, plan, plan_table
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.costs import cost_bound, cost_quantile
from rejex_stream.types import Label, Position, Reason, Verdict


# ------------------------------------------------------------------------------------ a plan
@pytest.mark.parametrize(
    ("n", "contamination", "tolerance", "rate", "bound", "per_day"),
    [  # window, γ, T, expected rate, the paper's h at δ = .05, rejected a day at 1 Hz
        (1_000, 0.05, 32, 0.106, 0.254, 9_158),
        (1_000, 0.05, 4, 0.029, 0.145, 2_506),
        (20_000, 0.05, 32, 0.0235, 0.074, 2_030),
        (20_000, 0.05, 4, 0.0065, 0.032, 557),
        (100_000, 0.01, 32, 0.0048, 0.030, 415),
        (100_000, 0.01, 4, 0.0013, 0.014, 113),
    ],
)
def test_the_printed_table_of_review_loads_is_reproduced(
    n, contamination, tolerance, rate, bound, per_day
):
    promise = plan(contamination, n, tolerance, delta=0.05, events_per_day=86_400).promise
    assert promise.expected_rate == pytest.approx(rate, rel=0.02)
    assert promise.paper_bound_printed == pytest.approx(bound, rel=0.05)
    assert promise.rejected_per_day == pytest.approx(per_day, rel=0.002)


def test_the_shares_of_a_plan_add_up():
    for choice in plan_table(0.05, [500, 1000, 5000], [1, 4, 8, 32]):
        promise = choice.promise
        total = promise.normal_rate + promise.expected_rate + promise.anomaly_rate
        assert total == pytest.approx(1)
        assert 0 <= promise.kept_share <= 1
        assert promise.exact_bound > promise.expected_rate


def test_an_unreachable_label_is_a_refusal_with_the_way_out_and_not_an_error():
    impossible = plan(0.01, 1000, 32)
    assert "no score can ever be called an anomaly" in impossible.refusal
    assert "at least 1,700" in impossible.refusal
    assert plan(0.01, 2000, 32).refusal is None
    nothing = plan(0.001, 500, 32)
    assert nothing.promise is None
    assert nothing.refusal
    assert plan(0.05, 100, rate=0.001).promise is None


def test_costs_are_those_of_the_library():
    choice = plan(0.05, 2000, 8, costs=Costs(2, 3, 0.04), delta=0.2)
    band = rejection_band(2000, 0.05, 8)
    assert choice.promise.cost_bound == cost_bound(band, 2, 3, 0.04)
    assert choice.promise.cost_quantile == cost_quantile(band, 2, 3, 0.04, 0.2)
    with pytest.raises(ConfigError, match="above its limit"):
        plan(0.05, 2000, 8, costs=Costs(1, 1, 0.5))


@pytest.mark.parametrize("arguments", [(0.7, 1000, 8), (0.05, 1, 8), (0.05, 1000, 0.1)])
def test_arguments_that_cannot_be_are_errors(arguments):
    with pytest.raises(ConfigError):
        plan(*arguments)


# ------------------------------------------------------------------------------------ a team
@pytest.mark.parametrize(
    ("events", "capacity", "expected"),
    [(1e3, 10, 0.00478), (1e3, 50, 0.0361), (1e4, 50, 0.00359), (1e4, 200, 0.0170)],
)
def test_the_safe_rate_inverts_the_binomial_law(events, capacity, expected):
    rate = safe_rate(events, capacity)
    assert rate == pytest.approx(expected, rel=0.01)
    assert binom.sf(capacity, int(events), rate) == pytest.approx(0.01, rel=1e-6)


def test_the_safe_rate_has_its_ends():
    assert safe_rate(100, 100) == 1.0
    assert safe_rate(100, 0) == 0.0


@pytest.mark.parametrize(
    ("events", "capacity", "width", "n"), [(1000, 130, 106, 1000), (500, 20, 5, 300)]
)
def test_a_frozen_window_overruns_as_the_beta_binomial_law_says(events, capacity, width, n):
    exact = betabinom.sf(capacity, events, width, n + 1 - width)
    assert frozen_overrun(events, capacity, width, n) == pytest.approx(exact, rel=1e-3)


def test_what_a_team_is_told_to_take_really_fits():
    team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10)
    answer = plan_for_team(team, 0.05)
    chosen = answer.rows[answer.recommended]
    promise = chosen.plan.promise
    assert chosen.plan.refusal is None
    assert chosen.plan.tolerance >= 4
    assert chosen.minutes_per_day < 2 * 60
    width = promise.upper - promise.lower + 1
    over = binom.sf(answer.reviews_per_day, int(answer.events_per_day), width / 5001)
    assert chosen.overrun == pytest.approx(over, rel=1e-6)
    assert over <= 0.01
    assert chosen.fill_days == pytest.approx(5000 / 8640)
    smaller = [row for row in answer.rows if row.plan.window < chosen.plan.window]
    assert smaller
    assert all(row.plan.refusal for row in smaller)


def test_the_sliding_window_overruns_no_more_often_than_promised():
    """Simulated days of iid scores against a window that slides with them."""
    n, events, days = 200, 2000, 400
    rate = safe_rate(events, 120, overrun=0.05)
    choice = plan(0.1, n, rate=rate).promise
    rng = np.random.default_rng(7)
    over = 0
    for _ in range(days):
        scores = rng.random(n + events)
        windows = np.lib.stride_tricks.sliding_window_view(scores, n)[:events]
        ranks = (windows <= scores[n:, None]).sum(axis=1)
        over += ((ranks >= choice.lower) & (ranks <= choice.upper)).sum() > 120
    assert over <= 0.05 * days


def test_a_day_overruns_in_episodes_where_a_review_is_an_episode():
    team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10,
                events_per_episode=10.0)  # fmt: skip
    row = plan_for_team(team, 0.05, windows=[5000]).rows[0]
    rate, episodes = row.plan.promise.expected_rate, team.events_per_day / 10
    assert row.overrun == pytest.approx(sliding_overrun(episodes, team.reviews_per_day, rate))


def test_frozen_windows_need_a_smaller_rate():
    team = Team(sensors=1, events_per_s=0.1, minutes_per_day=60, handling_s=10)
    sliding = plan_for_team(team, 0.05, windows=[5000], least_tolerance=1)
    frozen = plan_for_team(team, 0.05, windows=[5000], least_tolerance=1, frozen=True)
    rate = [answer.rows[0].plan.promise.expected_rate for answer in (sliding, frozen)]
    assert rate[1] < rate[0]
    assert frozen.rows[0].overrun <= 0.01


def test_a_team_that_cannot_keep_up_is_refused_and_each_way_out_works():
    team = Team(sensors=200, events_per_s=1, reviewers=2, minutes_per_day=60, handling_s=45)
    answer = plan_for_team(team, 0.05)
    assert answer.recommended is None
    assert answer.refusal
    needed = int(answer.nearest[0].split(": ")[1].split(" reviews")[0].replace(",", ""))
    bigger = Team(sensors=200, events_per_s=1, reviewers=1, minutes_per_day=needed, handling_s=60)
    assert plan_for_team(bigger, 0.05).recommended is not None
    together = answer.nearest[1].split("every ")[1].split(" rejected")[0].replace(",", "")
    grouped = Team(
        sensors=200, events_per_s=1, reviewers=2, handling_s=45, events_per_episode=float(together)
    )
    assert plan_for_team(grouped, 0.05).recommended is not None


def test_a_larger_window_is_offered_where_one_helps():
    team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10)
    answer = plan_for_team(team, 0.05, windows=[500, 1000])
    assert answer.recommended is None
    offered = next(line for line in answer.nearest if line.startswith("a window of"))
    n = int(offered.split("of ")[1].split(" events")[0].replace(",", ""))
    assert plan_for_team(team, 0.05, windows=[n]).recommended == 0


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("team", "gamma", "windows", "window", "tolerance"),
    [
        # Time for every event, as with the demo's turbines; for most; for nearly all in one window
        # in which T = 32 leaves no anomaly.
        (Team(sensors=6, events_per_s=1 / 600, reviewers=2, minutes_per_day=480),
         0.05, [500, 5000], 500, 32),
        (Team(sensors=5, events_per_s=0.1, minutes_per_day=1200, handling_s=8),
         0.05, [500, 5000], 500, 32),
        (Team(sensors=1, events_per_s=0.001), 0.01, [1000], 1000, 16),
    ],
)  # fmt: skip
def test_where_everything_fits_a_plan_is_recommended_and_time_is_left(
    team, gamma, windows, window, tolerance, frozen
):
    answer = plan_for_team(team, gamma, windows=windows, frozen=frozen)
    assert answer.refusal is None
    assert answer.nearest == ()
    row = answer.rows[answer.recommended]
    assert (row.plan.window, row.plan.tolerance) == (window, tolerance)
    expected = plan(gamma, window, tolerance).promise.expected_rate * team.events_per_day
    assert row.reviews_per_day == pytest.approx(expected)
    assert row.reviews_per_day < team.reviews_per_day
    assert row.overrun <= answer.overrun
    assert row.time_left
    assert "Everything fits, and time is left" in answer.spare
    assert f"of the {team.reviews_per_day:,} reviews a day" in answer.spare


def test_time_that_is_short_leaves_nothing():
    team = Team(sensors=5, events_per_s=0.1, reviewers=2, minutes_per_day=60, handling_s=10)
    answer = plan_for_team(team, 0.05)
    assert answer.spare is None
    assert not answer.rows[answer.recommended].time_left


def test_windows_too_small_for_both_labels_are_not_blamed_on_the_team():
    team = Team(sensors=1, events_per_s=0.0001)
    answer = plan_for_team(team, 0.05, windows=[20, 50])
    assert answer.recommended is None
    assert "no window up to 50 can give both labels" in answer.refusal
    n = int(answer.nearest[0].split("of ")[1].split(" events")[0])
    assert plan_for_team(team, 0.05, windows=[n]).recommended == 0
    assert plan_for_team(team, 0.05, windows=[n - 1]).recommended is None


def test_a_day_too_short_for_one_review_is_named():
    answer = plan_for_team(Team(sensors=1, events_per_s=1, handling_s=7200), 0.05)
    assert answer.refusal.startswith("Not one review fits into the day: it takes 7,200 s")
    needed = int(answer.nearest[0].split(": ")[1].split(" reviews")[0].replace(",", ""))
    longer = Team(sensors=1, events_per_s=1, handling_s=7200, minutes_per_day=needed * 120)
    assert plan_for_team(longer, 0.05).recommended is not None


@pytest.mark.parametrize(
    "fields", [{"sensors": 0}, {"events_per_s": math.nan}, {"handling_s": -1}, {"streams": 9},
               {"events_per_episode": 0.5}],
)  # fmt: skip
def test_a_team_that_cannot_be_is_an_error(fields):
    with pytest.raises(ConfigError):
        Team(**({"sensors": 3, "events_per_s": 1.0} | fields))


# ---------------------------------------------------------------------------------- episodes
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "rule"),
    [
        (0.01, EpisodeRule()),
        (0.1, EpisodeRule(gap_s=30)),
        (0.3, EpisodeRule(gap_s=0, gap_events=5, max_events=20)),
        (0.5, EpisodeRule(gap_s=0, gap_events=5, max_events=20)),  # uncut, half as many
        (0.02, EpisodeRule(gap_s=0, gap_events=1)),
    ],
)
def test_independent_rejections_form_as_many_episodes_as_predicted(rate, rule):
    rng = np.random.default_rng(3)
    measurement = Measurement(rule)
    measurement.add(
        Verdict(
            position=Position("t", 0, i), stream_key="a", sensor="a", event_time_ms=i * 1000,
            seq=i, label=Label.REJECTED if rejected else Label.NORMAL,
            reason=Reason.AMBIGUOUS if rejected else None, score=0.0,
            rank=90 if rejected else 10, window_len=100, n_anomalies=10, band_lower=85,
            band_upper=97)
        for i, rejected in enumerate(rng.random(86_400) < rate)
    )  # fmt: skip
    measured = measurement.measured()
    predicted = episodes_per_day(rate, 86_400, 1, rule)
    assert measured.episodes == pytest.approx(predicted, rel=0.1)
    assert measured.rejection_rate == pytest.approx(rate, rel=0.1)
    assert measured.lower < rate < measured.upper
    assert measured.inflation < 2


def test_no_rejection_is_no_episode():
    assert episodes_per_day(0, 1000, 1) == 0
    assert episodes_per_day(1, 1000, 1) == pytest.approx(2)


def test_a_budget_of_many_sensors_that_no_day_can_overrun():
    team = Team(sensors=40, events_per_s=0.1, reviewers=4, minutes_per_day=60, handling_s=5)
    own, shared = plan_for_team(team, 0.05, windows=[1000], burst=20).held
    assert (own.owner, own.owners, own.at_once) == ("stream", 40, 800)
    assert (shared.owner, shared.owners, shared.at_once) == ("partition", 1, 20)
    for held in (own, shared):
        assert held.rate * team.events_per_day + held.at_once == pytest.approx(
            team.reviews_per_day * team.events_per_episode
        )
    grouped = replace(team, streams=2, events_per_episode=3.0)
    assert held_rate(grouped, "stream", 20).at_once == 40
    assert held_rate(grouped, "stream", 20).rate > own.rate
    assert held_rate(team, "stream", 100).rate is None
    assert held_rate(Team(sensors=1, events_per_s=0.0001), "stream", 5).rate == 1.0
    with pytest.raises(ConfigError, match="burst = 0 cannot be used"):
        held_rate(team, "stream", 0)
