"""The scaler of the benchmark goes by the chart's rule."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.kafka.scaler import FASTER, LAG_THRESHOLD, RULES, Rule, Scaler

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "rejex-stream"


def test_it_goes_by_the_figures_of_the_chart():
    found = (CHART / "templates" / "operators.yaml").read_text()
    says = {
        name: int(re.search(rf"{name}: (\d+)", found)[1])
        for name in ("stabilizationWindowSeconds", "value", "periodSeconds")
    }
    assert says["value"] == 1
    rule = RULES[0]
    assert rule.steady_s * FASTER == says["stabilizationWindowSeconds"]
    assert rule.every_s * FASTER == says["periodSeconds"]
    assert f"lagThreshold: {LAG_THRESHOLD}" in (CHART / "values.yaml").read_text()


def sizes(rule, lags):
    scaler = Scaler(rule)
    return [scaler.size(lag, at) for at, lag in lags]


def test_more_at_once_and_fewer_one_by_one_when_nothing_else_was_wanted_for_long():
    rule = Rule("", steady_s=30, every_s=15)
    lags = [(0, 0), (1, 9_000), (2, 90_000), (3, 0), (32, 0), (33, 0), (47, 0), (48, 0), (63, 0)]
    assert sizes(rule, lags) == [1, 2, 4, 4, 4, 3, 3, 2, 1]


def test_without_it_the_size_follows_the_lag_both_ways():
    assert sizes(Rule("", 0, 0), [(0, 19_999), (1, 1), (2, 19_999)]) == [4, 1, 4]


def test_so_near_to_what_is_wanted_nothing_changes():
    assert sizes(Rule("", 0, 0), [(0, 5_400), (1, 5_600)]) == [1, 2]
