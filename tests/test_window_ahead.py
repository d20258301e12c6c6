"""A block of scores, ranked before the first of them is pushed, against pushing one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.rejection.window import ScoreWindow, WindowAhead
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading
from tests.streams import check_window

_SCORES = st.one_of(st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.5]), st.floats(-1e300, 1e300))


@given(
    st.lists(_SCORES, min_size=2, max_size=40),
    st.lists(_SCORES, min_size=1, max_size=300),
    st.integers(1, 60),
    st.data(),
)
def test_a_window_ahead_answers_as_one_that_takes_scores_one_by_one(before, scores, top, data):
    n = len(before)
    window, single = ScoreWindow(n, before), ScoreWindow(n, before)
    ahead = WindowAhead(window, scores, top=top)
    pushed = data.draw(st.integers(0, len(scores)))
    asked = data.draw(st.sets(st.integers(0, len(scores)), max_size=5))
    for i, score in enumerate(scores[:pushed]):
        assert ahead.ranks[i] == single.rank(score)
        assert repr(ahead.push(score)) == repr(single.push(score))
        for k in (1, (n + 1) // 2, n) if i in asked else ():
            assert repr(ahead.order_statistic(k)) == repr(single.order_statistic(k))
            assert repr(list(ahead.largest(k))) == repr(list(single.largest(k)))
            assert ahead.rank(score) == single.rank(score)
    ahead.settle()
    check_window(window)
    assert repr(window.scores()) == repr(single.scores())
    assert window.rank(0.0) == single.rank(0.0)
    assert [window.push(s) for s in scores] == [single.push(s) for s in scores]


@pytest.mark.parametrize("ties", [False, True])
def test_blocks_of_any_length_are_ranked_as_one_by_one(ties):
    draw = np.random.default_rng(3)
    x = draw.normal(size=2600)
    scores = (np.round(x, 1) if ties else x).tolist()
    window, single = ScoreWindow(2000, scores[:2000]), ScoreWindow(2000, scores[:2000])
    ahead = WindowAhead(window, scores[2000:], top=150)
    for i, score in enumerate(scores[2000:]):
        assert ahead.ranks[i] == single.rank(score)
        assert ahead.push(score) == single.push(score)
        for k in (1851, 1950, 2000):
            assert ahead.order_statistic(k) == single.order_statistic(k)
    ahead.settle()
    check_window(window)
    assert window.scores() == single.scores()


def _engine(detector: str, **policy: object) -> Engine:
    guarded = detector == "Sensor"
    schedule = RefitSchedule(
        first_fit_events=300, refit_every_events=700, refit_lag_events=50, buffer_events=300,
        calibration="shadow" if guarded else "holdout", guard_quantile=0.95 if guarded else None,
    )  # fmt: skip
    features = FeatureSpec(("a", "b"), carry_forward_events=2)
    band = RejectionPolicy(0.1, **(policy or {"tolerance": 4}))
    spec = EngineSpec(
        make_detector(detector), features, band, window=200, schedule=schedule, evidence=False
    )
    return Engine(spec, InlineExecutor())


def _readings(events: int) -> list[Reading]:
    """A sensor that faults and recovers, sticks, misses values and repeats itself."""
    draw = np.random.default_rng(11)
    x = draw.normal(size=(events, 2)).round(2)
    x[997:1100] += 9.0  # a fit is asked for between its onset and its discovery
    x[1500:1640] += 9.0
    x[2100:2340] = x[2100]
    x[draw.random(events) < 0.01, 0] = np.nan
    x[700] = 1e160
    return [
        Reading("p", "p", 1000 * i, tuple(row), Position("t", 0, i))
        for i, row in enumerate(x.tolist())
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("detector", "policy"),
    [
        ("HBOS", {}),
        ("GMM", {"rate": 0.1, "burst": 20}),
        ("GMM", {"tolerance": 4, "ties": "paper"}),
        ("Sensor", {}),
    ],
)
def test_blocks_give_the_bytes_of_single_events(detector, policy):
    readings = _readings(3200)
    single = _engine(detector, **policy)
    expected = [verdict for reading in readings for verdict in single.process([reading])]
    told = single.take_incidents()
    draw = np.random.default_rng(5)
    for longest in (60, 400, 3200):
        engine, found, start = _engine(detector, **policy), [], 0
        while start < len(readings):
            stop = start + int(draw.integers(1, longest + 1))
            found += engine.process(readings[start:stop])
            start = stop
        for one, other in zip(expected, found, strict=True):
            assert repr(one) == repr(other)
        assert engine.take_incidents() == told
        assert engine.snapshot() == single.snapshot()
    if detector != "Sensor":
        assert told, "nothing stopped a block halfway"


def test_a_turn_leaves_the_model_where_a_restored_one_begins():
    readings, whole, engine = _readings(3200)[:1800], _engine("HBOS"), _engine("HBOS")
    whole.process(readings[:990])
    engine.process(readings[:990])
    for i, reading in enumerate(readings[990:1030], start=990):
        fresh = _engine("HBOS")
        fresh.restore(engine.snapshot())
        engine = fresh
        assert repr(whole.process([reading])) == repr(engine.process([reading])), i
    opened = [incident.opened_seq for incident in whole.take_incidents()]
    assert opened, "no fit was taken back"
    assert repr(whole.process(readings[1030:])) == repr(engine.process(readings[1030:]))
    assert whole.snapshot() == engine.snapshot()
