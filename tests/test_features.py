"""Features against what a window computed from scratch says."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec, MissingChannelError

SPEC = FeatureSpec(
    ("x", "y"),
    (
        Feature("raw", "x"), Feature("lag", "x", events=3), Feature("difference", "y", events=2),
        Feature("mean", "x", events=4), Feature("std", "x", events=4),
        Feature("min", "x", events=4), Feature("max", "y", events=4),
        Feature("mean", "x", seconds=5.0), Feature("std", "y", seconds=5.0),
        Feature("max", "x", seconds=5.0), Feature("hour_of_day"), Feature("day_of_week"),
    ),
)  # fmt: skip
value = st.floats(-1e6, 1e6)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(-500, 3000), value, value), min_size=1, max_size=60))
def test_rows_equal_a_window_computed_from_scratch(events):
    sensor = SPEC.start()
    now, past = 0, []
    for step_ms, x, y in events:
        now += step_ms  # may step back
        row = sensor.extract(now, (x, y))
        held = max([now, *(t for t, _, _ in past)])
        past.append((held, x, y))
        recent = [(a, b) for t, a, b in past if t > held - 5000]
        if len(past) < 4 or held - past[0][0] < 5000 or len(recent) < 2:
            assert row is None
            continue
        xs, ys = np.array([p[1] for p in past[-4:]]), np.array([p[2] for p in past[-4:]])
        wanted = [
            x, past[-4][1], y - past[-3][2], xs.mean(), xs.std(ddof=1), xs.min(), ys.max(),
            np.mean([a for a, _ in recent]), np.std([b for _, b in recent], ddof=1),
            max(a for a, _ in recent),
        ]  # fmt: skip
        assert row[:10] == pytest.approx(wanted, rel=1e-6, abs=1e-3)
        day = 2 * math.pi * (held % 86_400_000) / 86_400_000
        assert row[10:12] == pytest.approx([math.sin(day), math.cos(day)], abs=1e-9)
    assert len(SPEC.names) == 14 == len(set(SPEC.names))


def test_a_spike_leaves_no_trace_once_it_left_the_window():
    spec = FeatureSpec(("x",), (Feature("std", "x", events=5), Feature("mean", "x", events=5)))
    sensor = spec.start()
    rng = np.random.default_rng(0)
    values = [*rng.random(20), 1e12, *rng.random(20)]
    rows = [sensor.extract(i, (v,)) for i, v in enumerate(values)]
    assert rows[-1] == pytest.approx([np.std(values[-5:], ddof=1), np.mean(values[-5:])], rel=1e-9)


def test_a_large_offset_does_not_eat_the_spread():
    sensor = FeatureSpec(("x",), (Feature("std", "x", events=50),)).start()
    values = 1e9 + np.random.default_rng(0).random(500)
    for i, v in enumerate(values):
        row = sensor.extract(i, (float(v),))
        if row is not None:
            assert row[0] == pytest.approx(values[i - 49 : i + 1].std(ddof=1), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), value, value), min_size=2, max_size=50), st.data())
def test_a_snapshot_goes_on_bit_for_bit(events, data):
    at = data.draw(st.integers(0, len(events)))
    one, other, now = SPEC.start(), SPEC.start(), 0
    for i, (step_ms, x, y) in enumerate(events):
        now += step_ms
        if i == at:
            plain = msgspec.msgpack.decode(msgspec.msgpack.encode(one.snapshot()))
            other.restore(plain)
        row = one.extract(now, (x, y))
        if i >= at:
            assert other.extract(now, (x, y)) == row


def test_missing_channels_are_carried_forward_up_to_the_limit():
    sensor = FeatureSpec(("x", "y"), carry_forward_events=2).start()
    gap = math.nan
    with pytest.raises(MissingChannelError):
        sensor.extract(0, (gap, 1.0))  # nothing to carry yet
    assert sensor.extract(1, (1.0, 2.0)) == [1.0, 2.0]
    assert sensor.extract(2, (gap, 3.0)) == [1.0, 3.0]
    assert sensor.extract(3, (math.inf, 4.0)) == [1.0, 4.0]
    with pytest.raises(MissingChannelError):
        sensor.extract(4, (gap, 5.0))
    assert sensor.extract(5, (6.0, 5.0)) == [6.0, 5.0]
    assert sensor.extract(6, (gap, 5.0)) == [6.0, 5.0]


def test_values_whose_sum_overflows_are_still_values():
    sensor = FeatureSpec(("x", "y")).start()
    assert sensor.extract(0, (1.7e308, 1.7e308)) == [1.7e308, 1.7e308]


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Feature("median", "x"), "unknown: use one of raw, lag"),
    (lambda: Feature("lag", "x"), "goes by events"), (lambda: Feature("mean", "x"), "exactly one"),
    (lambda: Feature("mean", "x", events=3, seconds=2), "exactly one"),
    (lambda: Feature("std", "x", events=1), "at least 2"),
    (lambda: Feature("lag", "x", events=0), "at least 1"),
    (lambda: Feature("mean", "x", seconds=-1), "positive number"),
    (lambda: Feature("raw"), "needs a channel"),
    (lambda: Feature("raw", "x", events=2), "takes no span"),
    (lambda: Feature("hour_of_day", "x"), "takes no channel"),
    (lambda: FeatureSpec(()), "no channels"), (lambda: FeatureSpec(("x", "x")), "named twice"),
    (lambda: FeatureSpec(("x",), (Feature("raw", "z"),)), "unknown channel 'z'"),
    (lambda: FeatureSpec(("x",), (Feature("raw", "x"),) * 2), "named twice"),
    (lambda: FeatureSpec(("x",), carry_forward_events=-1), "give 0 or a larger"),
])  # fmt: skip
def test_features_that_cannot_be_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
