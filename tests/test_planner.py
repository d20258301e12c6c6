"""The planner: promises and what is measured beside them, against formulas and simulations."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rejex_stream.cli import main
from rejex_stream.errors import ConfigError
from rejex_stream.plan.gamma import Answered, cheaper_neighbours, compare_gammas
from rejex_stream.plan.measured import Measurement
from rejex_stream.plan.promises import (
    BESIDE_BUDGET,
    Costs,
    People,
    budget_sentence,
    fleet,
    plan,
    plan_table,
)
from rejex_stream.plan.simulated import simulate
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.band import nested_band
from rejex_stream.rejection.bounds import cost_bound, cost_quantile
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import Label, Position, Reason, Verdict
from tests.pump import pump_toml

ROOT = Path(__file__).parents[1]


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


def test_a_refused_plan_names_a_window_that_works(capsys):
    """--window 20 was told 50, which is refused; n = 2,400 works, and no window was named."""
    assert main(["plan", "-c", "0.02", "--rate", "0.02", "--window", "20"]) == 1
    assert "use a window of 150." in capsys.readouterr().out
    assert main(["plan", "-c", "0.02", "--rate", "0.02", "--window", "150"]) == 0
    assert main(["plan", "-c", "0.0021", "--rate", "0.0031", "-n", "1200"]) == 1
    assert "use a window of 1,429, or a rate" in capsys.readouterr().out
    assert main(["plan", "-c", "0.0021", "--rate", "0.0031", "-n", "1429"]) == 0


def test_a_table_is_refused_at_once_where_no_window_has_the_rate(capsys):
    """100,000 bands were tried, for minutes."""
    table = str(ROOT / "examples" / "readings.csv")
    assert main(["score", table, "--contamination", ".0015", "--rate", ".074"]) == 2
    assert "use a rate of 0.0015, with which" in capsys.readouterr().err


# ---------------------------------------------------------------------------------- measured
@pytest.mark.thorough
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_the_measured_rate_of_independent_rejections_is_theirs(rate):
    rng = np.random.default_rng(3)
    measurement = Measurement()
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
    assert measured.rejection_rate == pytest.approx(rate, rel=0.1)
    assert measured.lower < rate < measured.upper
    assert measured.inflation < 2


# ------------------------------------------------------------------------------ simulated days
def test_a_simulation_says_what_one_sensor_gets_and_keeps_the_budget():
    policy = RejectionPolicy(0.05, rate=0.05, burst=20)
    found = {one.stream: one for one in simulate(policy, 300, per_day=288, days=20)}
    assert [*found] == ["independent", "AR(.97)", "AR(.999)"]
    for one in found.values():
        assert one.worst_day <= 0.05 * 288 + 20
        assert one.rejected_a_day * 20 <= 0.05 * 288 * 20 + 20
        assert one.worst_day >= one.rejected_a_day > 0.6 * 0.05 * 288
        assert 0 < one.withheld < 1
        assert 0 < one.false_alarms_a_day < one.flagged_a_day
    assert found["independent"].flagged_a_day == pytest.approx(0.05 * 288, rel=0.3)
    assert found == {one.stream: one for one in simulate(policy, 300, per_day=288, days=20)}


def test_plan_prints_it_with_the_promise(capsys):
    words = "plan --contamination 0.1 -n 200 --rate 0.1 --burst 9 --readings-per-day 48 --simulate"
    assert main([*words.split(), "--output", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["plan"]["promise"]["held"]["burst"] == 9
    assert all(one["worst_day"] <= 0.1 * 48 + 9 for one in found["simulated"])
    assert main(words.split()) == 0
    assert "worst day" in capsys.readouterr().out
    assert main(["plan", "--contamination", "0.01", "-n", "100", "-T", "32", "--simulate"]) == 1


# ------------------------------------------------------------------------- one sentence of a budget
@pytest.mark.parametrize("page", ["README.md", "docs/explanation/theory.md"])
def test_what_a_budget_promises_is_one_sentence_wherever_it_stands(page):
    text = " ".join((ROOT / page).read_text().split())
    assert budget_sentence() in text
    assert BESIDE_BUDGET in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 0.02, "burst": 50, "owner": "group"}, "ranked events of a group, in all"),
        ({"rate": 0.02, "burst": 50, "owner": "partition"}, "events of a partition"),
        ({"rate": 0.02, "burst": 9, "per_day": 30}, "at most 30 · τ + 9 are rejected while"),
    ],
)
def test_a_plan_says_whose_budget_it_is_and_by_what_it_is_earned(given, said):
    assert said in plan(0.05, 2000, **given).promise.held.promise


# ---------------------------------------------------------------------------------- a fleet
def planned(capsys, *words, status=0):
    assert main(["plan", *map(str, words)]) == status
    return capsys.readouterr().out


FLEET = ("-c", 0.02, "--rate", 0.02, "-n", 2000, "--sensors", 1000, "--people", 3)


def test_a_thousand_sensors_and_three_people_are_no_impossibility(capsys):
    """It was: a window that fills in 3,115 days, or 54 people."""
    (found,) = json.loads(planned(capsys, *FLEET, "--output", "json"))
    assert not found["measured"]
    assert found["asked_per_day"] == 90
    assert found["minutes_per_day"] == 180
    assert found["cases_per_day"] == pytest.approx(1_440_000 * 0.02 * 0.98**5, rel=0.02)
    assert found["never_asked_per_day"] == found["cases_per_day"] - 90
    assert 0 < found["cost_per_day"] < found["cost_of_all"] < found["cases_per_day"]
    enough = found["people_for_all"]
    for people, never in ((enough, 0), (enough - 1, 1)):
        (found,) = json.loads(planned(capsys, *FLEET[:-1], people, "--output", "json"))
        assert (found["never_asked_per_day"] > 0) == never
        assert (found["cost_per_day"] > 0) == never
    said = planned(capsys, *FLEET)
    assert "Estimated for independent readings" in said
    assert "impossible" not in said
    assert "impossible" in planned(capsys, "-n", 32, "-T", 32, *FLEET[6:], status=1)


def test_only_what_an_answer_saves_least_is_never_asked():
    worths, rng = [0.1] * 50 + [0.9] * 50, np.random.default_rng(0)
    found = fleet(rng.permutation(worths).tolist(), 200.0, People(2, hours=1, minutes=1))
    assert (found.asked_per_day, found.cost_of_all) == (120, pytest.approx(100))
    assert found.cost_per_day == pytest.approx(80 * 0.1)
    assert fleet([], 0.0, People(1)).people_for_all == 0
    with pytest.raises(ConfigError, match="above zero"):
        People(0)


def test_what_a_history_asks_is_counted_as_the_queue_makes_cases(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    rows = (f"{1_700_000_000 + 600 * i},{x:.4f}" for i, x in enumerate(rng.normal(size=1500)))
    (tmp_path / "feed.csv").write_text("t,flow\n" + "\n".join(rows) + "\n")
    (tmp_path / "pump.toml").write_text(pump_toml(source='fixed_sensor = "p"'))
    assert main(["run", "pump.toml"]) == 0
    assert main(["review", "ingest", "--config", "pump.toml"]) == 0
    capsys.readouterr()
    with closing(sqlite3.connect("review.db")) as store:
        cases = store.execute("SELECT count(*) FROM episode WHERE incident IS NULL").fetchone()[0]
        cases += store.execute("SELECT count(*) FROM incident").fetchone()[0]
    words = ("--replay", "pump.toml", "--people", 1)
    (found,) = json.loads(planned(capsys, *words, "--output", "json"))
    assert found["measured"]
    assert found["cases_per_day"] == pytest.approx(cases / (1499 * 600 / 86_400))
    (many,) = json.loads(planned(capsys, *words, "--sensors", 50, "--output", "json"))
    assert many["cases_per_day"] == pytest.approx(50 * found["cases_per_day"])
    assert "Measured: " in planned(capsys, *words)
    assert not list(tmp_path.glob("rejex-plan-*"))
    planned(capsys, "--replay", "pump.toml", status=2)
    planned(capsys, "--people", 3, status=2)


# ------------------------------------------------------------------------------------- which γ
GAMMAS = (0.01, 0.02, 0.04, 0.08, 0.16)


@pytest.mark.parametrize(
    ("share", "c_fn", "regrets"),
    [(0.02, 10.0, (1.42, 1.07, 1.00, 1.65, 3.5)), (0.005, 1.0, (1.0, 5.4, 17, 43, 95))],
)
def test_regrets_of_gammas_are_those_of_an_independent_calculation(share, c_fn, regrets):
    """By quadrature written by somebody else: n = 2,000, a rate of .02, c_r = .005, d = 3 sd."""
    found = compare_gammas(GAMMAS, 2_000, Costs(c_fn=c_fn, c_r=0.005), rate=0.02, shares=(share,))
    assert [one.regrets[0] for one in found] == pytest.approx(regrets, rel=0.1)


def test_the_cost_of_a_gamma_is_what_a_window_pays():
    """Drawn: windows of normal and anomalous scores, and the next event among them."""
    rng, n, share = np.random.default_rng(4), 400, 0.05
    costs, band = Costs(c_fn=4.0, c_r=0.1), RejectionPolicy(0.05, rate=0.1).band(400)
    paid = 0.0
    for _ in range(20_000):
        kinds = rng.random(n + 1) < share
        scores = rng.standard_normal(n + 1) + 3.0 * kinds
        label = band.label(int((scores[:n] < scores[n]).sum()))
        if label is Label.REJECTED:
            paid += costs.c_r
        else:
            paid += (1.0 if label is Label.ANOMALY else 4.0) * (
                (label is Label.ANOMALY) != kinds[n]
            )
    (found,) = compare_gammas([0.05], n, costs, rate=0.1, shares=(share,))
    assert found.costs[0] == pytest.approx(paid / 20_000, rel=0.06)


def test_plan_says_which_gamma_has_the_least_regret(capsys):
    words = ["plan", "--contamination", "0.02", "--rate", "0.02", "--gammas", "--c-fn", "10"]
    assert main([*words, "--c-r", "0.005", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["contamination"] for one in found] == [0.01, 0.02, 0.04, 0.08], "0.005 is refused"
    best = min(found, key=lambda one: one["worst"])
    assert main([*words, "--c-r", "0.005"]) == 0
    out = capsys.readouterr().out
    assert f"γ = {best['contamination']:g} has the least regret" in out
    assert "28.8" in out, "flagged a day of 1,440"
    assert main(["plan", "--gammas", "--rate", "0.02", "--rate", "0.05"]) == 2
    assert main(["plan", "--gammas", "--rate", "0.02", "--window", "10"]) == 2


def answered(truth, *, cases=200, seed=0):
    """Answers about ranks of a window of 1,000 with r = 50: above `truth` ranks are anomalies."""
    rng = np.random.default_rng(seed)
    ranks = rng.integers(800, 1_001, cases).tolist()
    return [
        Answered(str(k), rank, 1_000, 50, 20, 5.0, rank > truth) for k, rank in enumerate(ranks)
    ]


def test_fifty_answers_say_which_neighbour_is_cheaper():
    costs = Costs()
    assert cheaper_neighbours(answered(900)[:49], 1_000, costs) == ()
    half, twice = cheaper_neighbours(answered(900), 1_000, costs)
    assert (half.contamination, twice.contamination) == pytest.approx((0.025, 0.1))
    assert half.instead_of == pytest.approx(0.05)
    assert twice.low > 0 > half.high, "a tenth are anomalies: twice as large a γ is cheaper"
    half, twice = cheaper_neighbours(answered(975), 1_000, costs)
    assert half.low > 0 > twice.high
    exact = sum(5.0 * (_pays(0.05, one) - _pays(0.025, one)) for one in answered(975)) / 1_000
    assert half.saved == pytest.approx(exact)


def _pays(gamma, one):
    label = nested_band(1_000, gamma, 20).label(one.rank)
    return 0.0 if label is Label.REJECTED else float((label is Label.ANOMALY) != one.anomalous)


@pytest.mark.thorough
def test_its_interval_holds_what_all_answers_would_say():
    """Of 10,000 events one in ten is answered, in cases of four; the truth is all of them."""
    rng, held = np.random.default_rng(1), 0
    ranks = np.repeat(rng.integers(850, 1_001, 2_500), 4)
    wrong = rng.random(10_000) < 0.2
    every = [
        Answered(str(k // 4), int(rank), 1_000, 50, 20, 1.0, bool((rank > 930) != slip))
        for k, (rank, slip) in enumerate(zip(ranks, wrong, strict=True))
    ]
    truth = cheaper_neighbours(every, 10_000, Costs())[1].saved
    for _ in range(200):
        drawn = rng.random(2_500) < 0.1
        asked = [one._replace(weight=10.0) for one in every if drawn[int(one.case)]]
        found = cheaper_neighbours(asked, 10_000, Costs())[1]
        held += found.low <= truth <= found.high
    assert held >= 180
