"""γ asked of the data: the beliefs are met, the criteria hold, no label is looked at."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import beta

from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.plan import gamma
from rejex_stream.plan.gamma import Contamination, contamination, contamination_of_scores, rows_of
from rejex_stream.types import Position, Reading
from tests.test_cli import in_process


def apart(n=190, anomalies=10, seed=0):
    """Rows of which the last few lie apart."""
    rng = np.random.default_rng(seed)
    return np.vstack([rng.normal(size=(n, 3)), rng.normal(6, 1, size=(anomalies, 3))])


# ------------------------------------------------------------------------------- the posterior
@pytest.fixture(scope="module")
def found():
    return contamination(apart())


def test_an_anomaly_that_lies_apart_is_counted(found):
    assert found.refusal is None
    assert found.low <= 0.05 <= found.high
    assert 0 < found.low < found.median < found.high < gamma.MOST
    assert found.rows == 200
    assert found.detectors == ("KNN", "LOF", "IForest", "OCSVM", "HBOS", "LODA", "COPOD")


def test_the_seed_decides_every_bit_and_units_and_columns_that_stand_still_none(found):
    other = np.column_stack([4096 * apart(), np.full(200, 3.0)])
    assert contamination(other) == found
    assert contamination(apart(), seed=1) != found


def test_the_probabilities_that_exactly_the_first_are_anomalous_by_hand():
    found = gamma._exactly_the_first(np.array([0.9, 0.5, 0.2]))
    assert found.tolist() == pytest.approx([0.9 * 0.5, 0.9 * 0.5 * 0.8, 0.9 * 0.5 * 0.2])
    # What is left of one is that none is.
    p = np.random.default_rng(0).random((20, 9))
    assert gamma._exactly_the_first(p).sum(axis=1) == pytest.approx(p[:, 0])


@pytest.mark.parametrize("seed", range(4))
def test_both_beliefs_are_met(seed):
    rng = np.random.default_rng(seed)
    how = np.sort(rng.normal(size=12))[::-1]
    alpha = np.concatenate([rng.uniform(2, 9, size=3), rng.uniform(30, 90, size=9)])
    delta, tau = gamma._beliefs(how, alpha)
    p = expit(-(tau + delta * how))
    assert 1 - p[0] == pytest.approx(gamma.P_ZERO)
    held = np.cumsum(alpha)
    above = [beta.sf(gamma.HIGH, a, held[-1] - a) for a in held[:-1]] + [1.0]
    joint = [math.prod(p[: k + 1]) * (1 - p[k + 1] if k < 11 else 1) for k in range(12)]
    assert np.dot(above, joint) == pytest.approx(gamma.P_HIGH)
    assert (np.diff(p) < 0).all()  # the more anomalous, the more probably an anomaly


def test_beliefs_that_cannot_be_met_are_none():
    how = np.array([2.0, 0.0, -1.0])
    assert gamma._beliefs(how, np.array([300.0, 400.0, 300.0])) is None  # 30 % are the first group
    assert gamma._beliefs(how, np.array([30.0, 400.0, 570.0])) is not None
    assert gamma._beliefs(how - 3, np.array([30.0, 400.0, 570.0])) is None  # nothing is high


def test_how_anomalous_a_component_is_comes_from_its_mean_and_deviation():
    mixture = SimpleNamespace(
        degrees_of_freedom_=[1e6],
        mean_precision_=[1e6],
        means_=np.array([[3.0, 1.0]]),
        covariances_=np.array([[[4.0, 0.5], [0.5, 0.25]]]),
    )
    drawn = gamma._anomalousness(mixture, 0, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx((3 / (1 + 2) + 1 / (1 + 0.5)) / 2, abs=0.01)
    mixture.degrees_of_freedom_ = mixture.mean_precision_ = [6.0]
    assert gamma._anomalousness(mixture, 0, np.random.default_rng(0)).std() > 10 * drawn.std()


# --------------------------------------------------------------------------------- cannot tell
def test_too_few_rows_say_nothing():
    found = contamination(apart(80))
    assert (
        found.refusal
        == "cannot tell: 90 rows are fewer than the 100 that a mixture of scores needs."
    )
    assert (found.median, found.low, found.high) == (None, None, None)
    assert contamination(np.empty((0, 2))).refusal.startswith("cannot tell: 0 rows")


def test_rows_that_never_change_say_nothing():
    assert "0 of the detectors can tell" in contamination(np.ones((200, 2))).refusal
    assert "1 of the detectors" in contamination(apart(), detectors=["HBOS"]).refusal


def test_detectors_without_a_common_order_say_nothing():
    noise = np.random.default_rng(0).normal(size=(300, 5))
    found = contamination_of_scores(noise, "abcde")
    assert "do not see the same order" in found.refusal
    assert found.agreement == pytest.approx(1 / 5, abs=0.1)
    same = contamination_of_scores(np.repeat(noise[:90, :1], 2, axis=1), "ab")
    assert "90 rows" in same.refusal


def test_a_large_group_apart_is_no_count_of_anomalies():
    rng = np.random.default_rng(2)
    score = np.concatenate([rng.normal(0, 0.05, 140), rng.normal(50, 0.05, 60)])
    scores = score[:, None] + rng.normal(0, 0.01, size=(200, 3))
    found = contamination_of_scores(scores, "abc")
    assert found.refusal is not None
    assert "one group of more than 15%" in found.refusal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0, 2.0],), r"X has the shape \(2,\)"),
        (([[1.0, math.nan]],), "not finite"),
        ((np.ones((200, 2)), {"level": 1.0}), r"level = 1.0: give the probability"),
    ],
)
def test_what_is_no_table_is_a_sentence(arguments, said):
    with pytest.raises(ConfigError, match=said):
        contamination(arguments[0], **(arguments[1] if len(arguments) > 1 else {}))


def test_the_interval_has_equal_tails_and_another_start_another_seed(monkeypatch):
    asked = []

    def posterior(_logs, seed):
        asked.append(seed)
        return None if len(asked) % 2 else np.arange(1001) / 10_000

    monkeypatch.setattr(gamma, "_posterior", posterior)
    scores = np.arange(200.0)[:, None] + np.zeros(2)
    found = [contamination_of_scores(scores, ("a", "b"), level=0.8, seed=s) for s in (0, 7)]
    for one in found:
        assert (one.low, one.median, one.high) == pytest.approx((0.01, 0.05, 0.09))
    assert len(set(asked)) == 4


@pytest.mark.thorough
def test_of_more_rows_evenly_many_are_taken():
    X = apart()[np.random.default_rng(1).permutation(200)]
    assert contamination(X, most_rows=100, detectors=("KNN", "HBOS")) == contamination(
        X[::2], detectors=("KNN", "HBOS")
    )


# ------------------------------------------------------------------- how wrong a median may be
def test_the_interval_of_a_new_data_set_is_the_median_as_wrong_as_it_was_in_known_ones():
    found = [Contamination(m, m / 2, 2 * m, 0.9, 200, ("a", "b")) for m in (0.001, 0.05, 0.2)]
    for one in found:
        least, most = one.interval
        assert 0 < least < one.low < one.median < one.high < most < 1
        assert (logit(least) - logit(one.median), logit(most) - logit(one.median)) == pytest.approx(
            gamma.WRONG_BY
        )
    lows, highs = zip(*(one.interval for one in found), strict=True)
    assert (sorted(lows), sorted(highs)) == (list(lows), list(highs))
    assert Contamination(0.0, 0.0, 0.1, 0.9, 200, ("a", "b")).interval == (0.0, 1.0)
    with pytest.raises(ConfigError, match="no interval: cannot tell: 90 rows"):
        _ = contamination(apart(80)).interval


def test_the_errors_in_the_product_are_those_of_the_committed_benchmark():
    path = Path(__file__).parents[1] / "benchmarks/results/contamination.json"
    every = json.loads(path.read_text("utf-8"))["tables"][-1]["rows"]
    known = [r for r in every if r[0].startswith("ADBench/") and not isinstance(r[3], str)]
    wrong = [logit(r[2]) - logit(r[3]) for r in known]
    assert len(wrong) == gamma.KNOWN_SETS
    assert (
        math.floor(100 * min(wrong)) / 100,
        math.ceil(100 * max(wrong)) / 100,
    ) == gamma.WRONG_BY


# ------------------------------------------------------------------------------------- history
def readings(values, sensor="p"):
    return [
        Reading(sensor, sensor, 1000 * i, tuple(row), Position("t", 0, i))
        for i, row in enumerate(values)
    ]


def test_a_history_is_thinned_evenly_however_long_it_is():
    spec = FeatureSpec(("flow",))
    for n in (5, 20, 21, 1000):
        rows, count = rows_of(readings([[i] for i in range(n)]), spec, 10)
        assert count == n
        assert min(n, 10) <= len(rows) <= 20
        steps = set(np.diff(rows[:, 0]))
        assert len(steps) == 1
        assert n - rows[-1, 0] <= min(steps)
        assert rows[0, 0] == 0


def test_each_sensor_has_its_own_past_and_what_cannot_be_scored_is_left_out():
    spec = FeatureSpec(("flow",), preset="sensor")
    a, b = readings([[i] for i in range(40)], "a"), readings([[1000 + i] for i in range(40)], "b")
    mixed = [one for pair in zip(a, b, strict=True) for one in pair]
    rows, count = rows_of(mixed, spec)
    assert count == len(rows) == 2 * (40 - 23)
    assert set(rows[:, spec.names.index("flow_difference_1")]) == {1.0}
    gap = readings([[1.0], [math.nan], [3.0]])
    assert rows_of(gap, FeatureSpec(("flow",)))[0].tolist() == [[1.0], [3.0]]


def test_switches_are_left_out():
    values = [[i % 7, i % 2] for i in range(30)]
    rows, _ = rows_of(readings(values), FeatureSpec(("flow", "valve")))
    assert rows.shape == (30, 1)


# ------------------------------------------------------------------------------------- command
@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / "pump.csv"
    lines = ["time,flow,pressure"]
    for i in range(250):
        extra = 9.0 if i % 25 == 13 else 0.0
        flow, pressure = rng.normal(size=2) + extra
        lines.append(f"{60 * i},{flow:.3f},{pressure:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def config_of(file, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        '[pipeline]\nname = "p"\n[input]\nkind = "file"\n'
        f'path = "{file}"\nchannels = ["flow", "pressure"]\ntime = "time"\ntime_unit = "s"\n'
        '[detector]\nname = "HBOS"\n'
        "[rejection]\ncontamination = 0.2\ntolerance = 4\nwindow = 200\n"
        f'[output]\nverdicts = "{tmp_path}/v.jsonl"\n'
    )
    return path


def test_plan_asks_a_file_and_plans_with_the_median(capsys, file):
    status, out, _ = in_process(capsys, "plan", "--from", file, "-n", "500", "--output", "json")
    assert status == 0
    said = json.loads(out)
    found = said["asked"]["contamination"]
    assert found["low"] < found["median"] < found["high"]
    assert {row["contamination"] for row in said["plan"]} == {float(f"{found['median']:.2g}")}
    assert (said["asked"]["rows"], found["rows"]) == (227, 227)


def test_plan_asks_the_history_of_a_config_and_puts_its_own_beside(capsys, file, tmp_path):
    config = config_of(file, tmp_path)
    status, out, _ = in_process(capsys, "plan", "--config", config, "--history", "-n", "500")
    assert status == 0
    assert "rows looked at" in out
    assert "250 of 250" in out  # HBOS has no columns of its own: the channels as they are
    assert "in the config" in out
    assert "20 %, inside the interval" in out  # and outside of what the model alone allows
    assert "Planned with γ = " in out
    assert "flagged kept" in out


def test_plan_that_cannot_tell_says_why_and_plans_nothing(capsys, file, tmp_path):
    short = tmp_path / "short.csv"
    short.write_text("\n".join(file.read_text().splitlines()[:60]) + "\n")
    status, out, _ = in_process(capsys, "plan", "--from", short)
    assert status == 1
    assert "Cannot tell: 36 rows are fewer than the 100" in out
    assert "Give --contamination." in out
    assert "flagged kept" not in out
    status, out, _ = in_process(capsys, "plan", "--from", short, "--output", "json")
    assert status == 1
    assert json.loads(out)["plan"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--history"], "--from FILE, or --config and --history"),
        (["--from", "a.csv", "--config", "c.toml"], "γ is asked of one history"),
        (["--from", "a.csv", "-c", "0.02"], "leave --contamination out"),
        (["--from", "a.csv", "--replay", "a.csv"], "--replay for later"),
        (["--config", "c.toml"], "or with --history"),
    ],
)
def test_what_does_not_go_together_is_a_sentence(capsys, arguments, said):
    status, out, err = in_process(capsys, "plan", *arguments)
    assert (status, out) == (2, "")
    assert said in err
