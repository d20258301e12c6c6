"""Every finite float, through every feature and detector, to a verdict."""

import math
import random
import statistics

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.features.columns import LARGEST
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Reason
from tests.streams import EVERY_KIND, Distance, of_rows

DBL_MAX = 1.7976931348623157e308
scales = st.sampled_from([0, -323, -170, -162, -155, -80, -8, 8, 80, 149, 150, 153, 154, 160, 308])
any_value = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.builds(lambda digits, scale: digits * 10.0**scale, st.floats(-1.7, 1.7), scales),
    st.sampled_from([0.0, 1.0, DBL_MAX, -DBL_MAX, LARGEST, 1.1e154, 5e-324, 2.3e-308, 0.1]),
)


def rolling(values, events):
    kinds = tuple(Feature(kind, "x", events=events) for kind in ("mean", "std", "min", "max"))
    sensor = FeatureSpec(("x",), kinds).start()
    return [sensor.extract(i, (value,)) for i, value in enumerate(values)]


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.lists(any_value, min_size=2, max_size=40), st.integers(2, 9))
@example([10.0**e for e in range(140, -160, -4)], 6)
@example([10.0**-e for e in range(60)] + [0.0] * 4, 40)
@example([1.0, 1e160, 1.0, 2.0, 3.0, 1.0, 2.0], 3)
@example([DBL_MAX, DBL_MAX, -DBL_MAX, 0.5, 0.25, 0.125], 2)
@example([1e-170, 2e-170, 0.0, 5e-324, 0.0, 5e-324, 5e-324], 2)
@example([1e9 + 0.5, 1e9 + 0.25, 1e9, 1e9, 1e9, 1e9 + 1e-6], 3)
def test_rolling_statistics_are_right_for_every_float(values, events):
    for i, row in enumerate(rolling(values, events)):
        window = values[max(0, i + 1 - events) : i + 1]
        if len(window) < events:
            assert row is None
            continue
        mean, std, least, most = row
        assert (least, most) == (min(window), max(window))
        if max(map(abs, window)) > LARGEST:  # the event is unscorable, the window not calm
            assert mean == std == math.inf
            continue
        true = statistics.stdev(window)
        assert math.isclose(std, true, rel_tol=1e-9, abs_tol=5e-324), (std, true, window)
        rounding = 1e-9 * true + 4e-16 * max(map(abs, window)) + 5e-324
        assert abs(mean - statistics.mean(window)) <= rounding


@pytest.mark.thorough
def test_a_long_life_of_spikes_and_stuck_values_leaves_no_rounding_behind():
    rng, values = random.Random(0), []
    while len(values) < 4000:
        level = 10.0 ** rng.uniform(-100, 149)
        values += [level * rng.gauss(0, 1)] * rng.choice([1, 1, 1, 3, 60])
    for i, row in enumerate(rolling(values, 25)):
        if row is not None:
            true = statistics.stdev(values[i - 24 : i + 1])
            assert math.isclose(row[1], true, rel_tol=1e-9), i


DETECTORS = {
    "Distance": Distance(),
    **{name: make_detector(name) for name in ("HBOS", "KNN", "LOF", "KDE", "ECOD", "OCSVM")},
    "GMM": make_detector("GMM", n_components=2),
    "IForest": make_detector("IForest", n_estimators=3),
    "HalfSpaceTrees": make_detector("HalfSpaceTrees", n_trees=2, height=3, window_size=10),
    "GaussianScorer": make_detector("GaussianScorer", grace_period=10),
    "OneClassSVM": make_detector("OneClassSVM"),
}
SLOW = {"KNN", "LOF", "KDE", "OCSVM", "GMM", "IForest"}  # the quick tests leave them out
CASES = [
    pytest.param(name, features, marks=mark if name in SLOW else ())
    for features, mark in (((), pytest.mark.long), (EVERY_KIND, pytest.mark.thorough))
    for name in DETECTORS
]


@pytest.mark.parametrize(("name", "features"), CASES)
def test_every_float_gets_a_verdict(name, features):
    pipeline = EngineSpec(
        DETECTORS[name], FeatureSpec(("x", "y"), features, carry_forward_events=1),
        RejectionPolicy(0.2, tolerance=1.0), window=20,
        schedule=RefitSchedule(20, refit_every_events=31, refit_lag_events=3, buffer_events=30),
    )  # fmt: skip

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 10**6), st.lists(st.tuples(any_value, any_value), min_size=1))
    def judged(seed, wild):
        rng = random.Random(seed)
        values = [(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in range(150)]
        for pair in wild:
            values.insert(rng.randrange(len(values)), pair)
        events = of_rows(values, "k", 3000)
        verdicts = Engine(pipeline, InlineExecutor()).process(events)
        assert [v.position for v in verdicts] == [r.position for r in events]
        for verdict, pair in zip(verdicts, values, strict=True):
            if max(map(abs, pair)) > LARGEST and verdict.reason is not Reason.WARM_UP:
                assert verdict.reason is Reason.UNSCORABLE
            assert verdict.score is None or math.isfinite(verdict.score)

    judged()


def test_near_the_end_of_what_is_scored_an_event_alone_is_judged_as_one_of_many():
    pipeline = EngineSpec(
        make_detector("Sensor"), FeatureSpec(("x", "y")), RejectionPolicy(0.2, tolerance=1.0),
        window=20, schedule=RefitSchedule(60, refit_every_events=None, refit_lag_events=0),
    )  # fmt: skip
    rng = random.Random(0)

    def calm():
        return [(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in range(90)]

    most, beyond = 0.9 * LARGEST, math.nextafter(LARGEST, math.inf)
    wild = [[(most, most)], [(beyond, 0.0)], [(most, 0.0), (-most, 0.0)], [(LARGEST, LARGEST)]]
    values = calm() + [pair for pairs in wild for pair in (*pairs, *calm())]
    events = of_rows(values, "k", 3000)
    whole = Engine(pipeline, InlineExecutor()).process(events)
    one_by_one = Engine(pipeline, InlineExecutor())
    assert [one_by_one.process([event])[0] for event in events] == whole
    reasons = [v.reason for v, pair in zip(whole, values, strict=True) if pair[0] >= most]
    assert {Reason.UNSCORABLE} < {*reasons}
