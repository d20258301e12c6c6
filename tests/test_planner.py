"""The planner: what a choice promises, against formulas."""

from pathlib import Path

import pytest

from rejex_stream.cli import main
from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import BESIDE_BUDGET, Costs, budget_sentence, plan, plan_table
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.bounds import cost_bound, cost_quantile

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


# ------------------------------------------------------------------------- one sentence of a budget
@pytest.mark.parametrize("page", ["README.md", "docs/explanation/theory.md"])
def test_what_a_budget_promises_is_one_sentence_wherever_it_stands(page):
    text = " ".join((ROOT / page).read_text().split())
    assert budget_sentence() in text
    assert BESIDE_BUDGET in text


@pytest.mark.parametrize(("given", "said"), [
    ({"rate": 0.02, "burst": 50, "owner": "group"}, "ranked events of a group, in all"),
    ({"rate": 0.02, "burst": 50, "owner": "partition"}, "events of a partition"),
    ({"rate": 0.02, "burst": 9, "per_day": 30}, "at most 30 · τ + 9 are rejected while"),
])  # fmt: skip
def test_a_plan_says_whose_budget_it_is_and_by_what_it_is_earned(given, said):
    assert said in plan(0.05, 2000, **given).promise.held.promise
