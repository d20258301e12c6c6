"""Presets: rows made for a batch at once are those of the single columns, however it is cut."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec, MissingChannelError
from rejex_stream.features.preset import FILLING, MISSING, RecentRows, blocks_of
from tests.test_any_float import any_value

AT_ONCE = ("sensor", "lags", "sensor_lags")


def names(channels):
    return tuple(f"c{i}" for i in range(channels))


def feed(events, channels, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(events, channels)).cumsum(axis=0)
    X[rng.random(X.shape) < missing] = math.nan
    return [tuple(x) for x in X.tolist()]


def rows_of(spec, readings, cuts=(), *, crash=True, partial=False):
    def start():
        return spec.start_recent(partial=partial)

    sensor, found, edges = start(), [], [0, *cuts, len(readings)]
    for a, b in pairwise(edges):
        if a == b:
            continue
        rows, which = sensor.extract(readings[a:b])
        found += [int(w) if w < 0 else rows[w].tolist() for w in which]
        if crash:  # between any two batches
            sensor, kept = start(), sensor.snapshot()
            sensor.restore(kept)
    return found


@pytest.mark.parametrize("preset", AT_ONCE)
@pytest.mark.parametrize("channels", [1, 3, 12])
def test_a_row_made_at_once_is_the_row_of_its_columns_one_by_one(preset, channels):
    spec = FeatureSpec(names(channels), preset=preset, carry_forward_events=2)
    single = FeatureSpec(spec.channels, spec.columns, carry_forward_events=2).start()
    readings = feed(120, channels, missing=0.2)
    for i, found in enumerate(rows_of(spec, readings)):
        try:
            wanted = single.extract(i, readings[i])
        except MissingChannelError:
            wanted = MISSING
        if wanted is None:
            assert found == FILLING
        else:
            assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_cut_and_no_crash_changes_a_bit(data):
    channels = data.draw(st.sampled_from([1, 2, 11]))
    preset = data.draw(st.sampled_from(AT_ONCE))
    carry = data.draw(st.sampled_from([0, 1]))
    spec = FeatureSpec(names(channels), preset=preset, carry_forward_events=carry)
    readings = feed(90, channels, seed=data.draw(st.integers(0, 99)), missing=0.05)
    if data.draw(st.booleans()):
        readings[50:54] = [(1.7e308, *[math.nan] * (channels - 1))] * 4
    cuts = sorted(data.draw(st.lists(st.integers(0, 90), max_size=6)))
    for crash, partial in product((True, False), (True, False)):
        how = {"crash": crash, "partial": partial}
        wanted = repr(rows_of(spec, readings, partial=partial))  # nan is not nan
        assert repr(rows_of(spec, readings, cuts, **how)) == wanted
        assert repr(rows_of(spec, readings, range(1, 90), **how)) == wanted


@pytest.mark.parametrize("preset", AT_ONCE)
@pytest.mark.parametrize("carry", [0, 2])
def test_what_is_missing_blinds_the_columns_of_its_own_channel_alone(preset, carry):
    spec = FeatureSpec(names(3), preset=preset, carry_forward_events=carry)
    whole = feed(50, 3)  # until all windows are full
    readings = whole + feed(200, 3, seed=1, missing=0.3)
    found = rows_of(spec, readings, partial=True)
    blocks = blocks_of(preset, 3)
    for channel in range(3):  # as a sensor of this channel alone, where it is there
        last, seen = math.inf, []
        for reading in readings:
            last = 0 if math.isfinite(reading[channel]) else last + 1
            seen.append(reading[channel] if last == 0 else seen[-1] if last <= carry else math.nan)
        there = [i for i, value in enumerate(seen) if math.isfinite(value)]
        alone = RecentRows(blocks, 1, 0)
        own, which = alone.extract([(seen[i],) for i in there])
        made = dict(zip(there, which, strict=True))
        for i, row in enumerate(found[50:], 50):
            if row == MISSING:
                assert i not in made
                continue
            wanted = own[made[i]].tolist() if i in made else [math.nan] * len(blocks)
            assert np.array_equal(row[channel::3], wanted, equal_nan=True)
    assert sum(row == MISSING for row in found) == sum(
        all(map(math.isnan, reading)) for reading in readings
    ) * (carry == 0)


def test_until_the_windows_are_full_what_lacks_a_channel_leaves_no_trace():
    spec = FeatureSpec(names(2), preset="sensor")
    holes = [(math.nan, 1.0)] * 30
    assert rows_of(spec, [*holes, *feed(22, 2), *holes], partial=True) == [
        *[MISSING] * 30, *[FILLING] * 22, *[MISSING] * 30
    ]  # fmt: skip
    assert rows_of(spec, [*feed(23, 2), *holes], partial=True)[-1] != MISSING


def test_a_number_that_arithmetic_cannot_hold_is_not_taken_for_one_that_is_missing():
    spec = FeatureSpec(names(2), preset="sensor")
    readings = [*feed(40, 2), *[(1.7e308, math.nan)] * 4]
    for row in rows_of(spec, readings, partial=True)[40:]:
        assert not any(map(math.isnan, row[0::2]))
        assert all(map(math.isnan, row[1::2]))
        assert math.inf in row


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(st.lists(any_value, min_size=40, max_size=60))
def test_any_float_leaves_no_trace_and_raises_nothing(values):
    spec = FeatureSpec(("x",), preset="sensor")
    after = [math.sin(i) for i in range(30)]
    found = rows_of(spec, [(v,) for v in [*values, *after]])
    assert found[-1] == rows_of(spec, [(v,) for v in after])[-1]


def test_a_difference_of_two_huge_values_is_not_finite_and_not_an_error():
    rows = rows_of(FeatureSpec(("x",), preset="sensor"), [(1e308,), (-1e308,)] * 20)
    assert not np.isfinite(rows[-1]).all()


@pytest.mark.parametrize(("channels", "blocks"), [(10, 7), (11, 5)])
def test_fewer_columns_are_made_where_channels_are_many(channels, blocks):
    assert len(blocks_of("sensor", channels)) == blocks
    assert len(FeatureSpec(names(channels), preset="sensor").names) == blocks * channels


def test_seasonal_rows_hold_the_phases_of_day_week_and_month():
    spec = FeatureSpec(("flow",), preset="sensor_seasonal")
    calendar = [Feature(kind) for kind in ("hour_of_day", "day_of_week", "days_to_month_end")]
    plain = FeatureSpec(("flow",), preset="sensor").names
    assert spec.names == plain + tuple(name for one in calendar for name in one.names)
    assert spec.is_at_once


def test_a_deviation_is_what_the_value_is_away_from_its_mean():
    sensor = FeatureSpec(("x",), (Feature("deviation", "x", events=4),)).start()
    rows = [sensor.extract(i, (float(x),)) for i, x in enumerate([1, 2, 3, 10, 2])]
    assert rows[:3] == [None] * 3
    assert rows[3:] == [[6.0], [-2.25]]


def test_a_preset_and_columns_contradict_each_other():
    with pytest.raises(ConfigError, match="preset = 'sensor' and columns are both given"):
        FeatureSpec(("x",), (Feature("raw", "x"),), preset="sensor")
    with pytest.raises(ConfigError, match="preset = 'sensors' is unknown: use raw, sensor"):
        FeatureSpec(("x",), preset="sensors")
