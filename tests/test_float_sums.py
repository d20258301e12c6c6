"""Sums of floats do not depend on the Python: `sum` is compensated from 3.12 on, not before."""

import builtins
import math
import sys

import numpy as np
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_verdict
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.features.columns import LARGEST
from rejex_stream.monitor import MonitorBank, MonitorConfig
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from tests.streams import of_rows

N = 120
whole = builtins.sum


def plain(values, /, start=0):
    """`sum` as before 3.12: from left to right."""
    for value in values:
        start = start + value
    return start


def compensated(values, /, start=0):
    """`sum` as from 3.12 on, where all are floats: Neumaier's."""
    values = list(values)
    if start != 0 or not values or not all(type(value) is float for value in values):
        return whole(values, start)
    total = carry = 0.0
    for x in values:
        new = total + x
        carry += (total - new) + x if abs(total) >= abs(x) else (x - new) + total
        total = new
    return total + carry if math.isfinite(carry) else total


def outcomes(detector, features):
    """Verdicts as bytes, the engine's state and that of the monitors, by singles and blocks."""
    policy = RejectionPolicy(0.1, rate=0.1)
    spec = EngineSpec(make_detector(detector), features, policy, window=N)
    rng = np.random.default_rng(4)
    X = 1e3 * rng.standard_normal((8 * N, 3)) + rng.choice([1e-3, 1e6], size=(8 * N, 1))
    readings = of_rows(X, step_ms=60_000)
    engine, verdicts = Engine(spec, InlineExecutor()), []
    for i in range(0, 3 * N):
        verdicts += engine.process([readings[i]])
    for i in range(3 * N, len(readings), 50):
        verdicts += engine.process(readings[i : i + 50])
    bank = MonitorBank(MonitorConfig(window=N, contamination=0.1, tolerance=4))
    bank.observe(verdicts)
    return [encode_verdict(v) for v in verdicts], bank.snapshot()


def test_the_two_sums_differ_and_one_of_them_is_that_of_this_python():
    values = [0.1] * 10
    ours = compensated if sys.version_info >= (3, 12) else plain
    assert ours(values) == whole(values)
    assert plain(values) != compensated(values) == 1.0


def test_a_row_at_the_end_of_what_can_be_scored_is_judged_alike(monkeypatch):
    """Squares of such a row add up to the limit, or to the double after it."""
    rng, near = np.random.default_rng(0), list[tuple[float, ...]]()
    while len(near) < 5:
        row = rng.uniform(0.3, 0.7, size=6)
        row = tuple((row * 1e150 / math.sqrt(plain(row * row))).tolist())
        squares = [x * x for x in row]
        if (plain(squares) <= LARGEST**2) != (compensated(squares) <= LARGEST**2):
            near.append(row)
    spec = EngineSpec(
        make_detector("HBOS"), FeatureSpec(tuple("abcdef")), RejectionPolicy(0.1, rate=0.1),
        window=N,
    )  # fmt: skip
    found = []
    for one in (plain, compensated):
        monkeypatch.setattr(builtins, "sum", one)
        engine = Engine(spec, InlineExecutor())
        found.append([engine.process([row])[0].reason for row in of_rows(near, step_ms=1)])
        monkeypatch.undo()
    assert found[0] == found[1]
    assert found[0] == [
        "warm_up" if plain(x * x for x in row) <= LARGEST**2 else "unscorable" for row in near
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("detector", "features"), [
    ("Sensor", FeatureSpec(("a", "b", "c"), preset="sensor")),
    ("SensorEnsemble", FeatureSpec(("a", "b", "c"), preset="sensor_lags")),
    ("HBOS", FeatureSpec(("a", "b", "c"), (Feature("mean", "a", 7), Feature("std", "b", 5)))),
    ("GMM", FeatureSpec(("a", "b", "c"))),
])  # fmt: skip
def test_outcomes_are_the_same_bytes_whichever_sum_a_python_has(monkeypatch, detector, features):
    found = []
    for one in (plain, compensated):
        monkeypatch.setattr(builtins, "sum", one)
        found.append(outcomes(detector, features))
        monkeypatch.undo()
    assert found[0] == found[1]
