"""Rows that are kept in fewer bytes are the same rows, to the bit: so are columns made again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.model import RowBuffer
from rejex_stream.engine.packed_rows import BLOCK, PackedRows, RowShape, pack, shape_of
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from tests.streams import of_rows

kinds = {
    "two bytes": st.integers(-300, 300).map(lambda whole: whole / 100),
    "four": st.integers(-(10**6), 10**6).map(lambda whole: whole / 1000),
    "floats": st.floats(width=32), "any": st.floats(), "zeros": st.sampled_from([0.0, -0.0]),
}  # fmt: skip
decimals = st.builds(
    lambda whole, digits: whole / 10**digits, st.integers(-(2**33), 2**33), st.integers(0, 8)
)
anything = st.floats() | decimals | st.floats(width=32) | st.just(-0.0)


def bits(rows):
    return np.ascontiguousarray(rows).view(np.int64).tolist()


def packed(rows):
    shape = RowShape(rows.shape[1], rows.shape[1])
    return PackedRows(shape, pack(shape, rows, bytes(len(rows))))


def nbytes_of(kept):
    if isinstance(kept, PackedRows):
        return sum(len(block.numbers) + len(block.odd_rows) for block in kept.blocks)
    return len(kept._open) + nbytes_of(PackedRows(kept._shape, kept._blocks))


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 9), st.integers(1, 4)), elements=anything)
)
def test_any_rows_come_back_bit_for_bit(rows):
    kept = packed(rows)
    assert kept.rows()[0].shape == rows.shape
    assert bits(kept.rows()[0]) == bits(rows)
    assert nbytes_of(kept) <= rows.nbytes


@given(
    st.integers(0, 6),
    arrays.arrays(np.int64, st.integers(2, 50), elements=st.integers(-(2**31) + 1, 2**31 - 1)),
)
def test_decimals_as_a_sensor_writes_them_take_half_or_a_quarter(digits, whole):
    rows = np.array([[float(f"{n}e-{digits}")] for n in whole.tolist()])
    kept = packed(rows)
    assert bits(kept.rows()[0]) == bits(rows)
    assert nbytes_of(kept) <= rows.nbytes // 2
    small = np.array([[float(f"{n % 30_000}e-{digits}")] for n in whole.tolist()])
    assert nbytes_of(packed(small)) == small.nbytes // 4


@pytest.mark.parametrize(("column", "nbytes"), [
    ([0.0, -0.0, 1.0], 12), ([1.0, 0.1, 0.25], 6), ([32_767.0, -32_767.0], 4),
    ([32_768.0, 1.0], 8), ([2.0**31 - 1, 0.0], 8), ([2.0**31, 0.0], 8),
    ([2.0**31 + 1, 0.0], 16), ([0.1, -0.0], 16), ([0.1 + 0.2, 0.5], 16), ([1e-7, 0.5], 16),
    ([2.0**-20, -0.0, 2.0**60], 12), ([1e300, 0.5], 16), ([np.nan, 0.5], 8), ([np.inf, 0.1], 16),
])  # fmt: skip
def test_what_no_whole_number_stands_for_is_kept_as_it_is(column, nbytes):
    rows = np.array(column)[:, None]
    kept = packed(rows)
    assert bits(kept.rows()[0]) == bits(rows)
    assert nbytes_of(kept) == nbytes


def test_kept_rows_hold_on_to_nothing_that_they_were_made_of():
    rows = np.array([[1 / 3, 0.5], [2 / 3, 1.5]])
    kept, before = packed(rows), rows.copy()
    rows[:] = 7.0
    assert bits(kept.rows()[0]) == bits(before)


def test_a_buffer_of_rows_that_never_came_takes_no_room_and_gives_none():
    buffer = RowBuffer(1000, RowShape(4, 4))
    assert nbytes_of(buffer) == 0
    buffer.extend([])
    buffer.extend(np.empty((0, 4)))
    buffer.retract(3)
    assert buffer.last(5).shape == buffer.packed(5).training(5).shape == (0, 4)
    assert buffer.packed(5).blocks == []
    buffer.extend([[1.0, 2.0, 3.0, 4.0]])
    assert (
        buffer.last(5).tolist() == buffer.packed(5).training(5).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    )


def check_buffer(buffer, other, plain, sure, asked, *, crashed):
    """Compare a buffer with all that ever came, and with one that got the same otherwise cut.

    `sure` are how many rows that train it has at least, and how many in all.
    """
    rows, trained = [row for row, _ in plain], [row for row, flag in plain if not flag]
    wanted, least = min(asked, sure[0]), min(asked, sure[1])
    assert bits(buffer.packed(wanted).training(wanted)) == trained[len(trained) - wanted :]
    assert bits(buffer.last(least)) == rows[len(rows) - least :]
    assert bits(other.packed(wanted).training(wanted)) == trained[len(trained) - wanted :]
    assert bits(other.last(least)) == rows[len(rows) - least :]
    state = buffer.packed(wanted).blocks
    if not crashed:  # else it has fewer of those that nobody is sure of
        assert other.packed(wanted).blocks == state
    again = PackedRows.of_state(buffer._shape, state)
    assert bits(again.training(wanted)) == trained[len(trained) - wanted :]


LEAST = 100


@st.composite
def days(draw):
    """What happens to a buffer: rows of some kind, one or many, and all that is done with them."""
    capacity, width = draw(st.integers(1, 200)), draw(st.integers(1, 3))
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from(["extend"] * 5 + ["retract", "keep", "clear", "crash"]))
        if what == "extend":
            # A few values, over and over: what is tested is where they are, and of what kind.
            columns = [draw(st.lists(kinds[draw(st.sampled_from(sorted(kinds)))], min_size=1,
                                     max_size=3)) for _ in range(width)]  # fmt: skip
            m = draw(st.integers(1, 150))
            rows = np.column_stack([np.resize(c, m) for c in columns])
            flags = draw(st.sampled_from([[0], [1], [0, 0, 1], [0] * 60 + [1]]))
            flags = np.resize(flags, m).tolist()
            steps.append((what, rows, flags))
        else:
            steps.append((what, draw(st.integers(0, 250 if what == "keep" else 90))))
    return capacity, width, steps


@pytest.mark.thorough
@settings(max_examples=60)
@given(days(), st.integers(0, 250))
def test_a_buffer_gives_back_the_newest_rows_bit_for_bit_whatever_came_before(day, asked):
    capacity, width, steps = day
    shape, plain, sure, crashed = RowShape(width, width), [], [0, 0], False
    buffer, other = (RowBuffer(capacity, shape, LEAST) for _ in range(2))
    for what, *given_ in steps:
        if what == "extend":
            rows, flags = given_
            buffer.extend(rows, flags)
            for row, flag in zip(rows.tolist(), flags, strict=True):
                other.extend([row], [flag])
            plain += zip(bits(rows), flags, strict=True)
            n_trained = flags.count(0)
            sure = [min(capacity, sure[0] + n_trained), min(LEAST, sure[1] + len(rows))]
        elif what == "retract":
            buffer.retract(given_[0])
            other.retract(given_[0])
            left = max(0, len(plain) - given_[0])
            n_trained = sum(not flag for _, flag in plain[left:])
            sure = [max(0, sure[0] - n_trained), max(0, sure[1] - given_[0])]
            del plain[left:]
        elif what == "keep":
            capacity = buffer.capacity = other.capacity = max(capacity, given_[0])
        elif what == "clear":
            buffer.clear()
            other.clear()
            plain, sure = [], [0, 0]
        else:
            other.take_over(PackedRows.of_state(shape, other.packed(capacity).blocks))
            crashed = True
        check_buffer(buffer, other, plain, sure, asked, crashed=crashed)


@pytest.mark.parametrize(
    ("digits", "bytes_a_value"), [(2, 2), (5, 4), (None, 8)], ids=["two", "five", "doubles"]
)
@pytest.mark.parametrize("cut", [1, 7, 500])
def test_a_full_buffer_of_decimals_takes_half_or_a_quarter(digits, bytes_a_value, cut):
    rows = np.random.default_rng(0).normal(20, 2, (3000, 4))
    rows = rows if digits is None else rows.round(digits)
    buffer = RowBuffer(1000, RowShape(4, 4))
    for start in range(0, len(rows), cut):
        buffer.extend(rows[start : start + cut].tolist())
    assert nbytes_of(buffer) <= (1000 + BLOCK) * 4 * bytes_a_value + BLOCK * 4 * 8
    assert bits(buffer.last(1000)) == bits(rows[-1000:])


def test_only_the_column_that_is_none_becomes_doubles_and_only_as_long_as_it_is():
    rows = np.random.default_rng(0).normal(20, 2, (1000, 4)).round(2)
    rows[700, 2] = 1 / 3
    buffer = RowBuffer(1000, RowShape(4, 4))
    buffer.extend(rows[:600])
    buffer.extend(rows[600:])
    assert bits(buffer.last(1000)) == bits(rows)
    assert nbytes_of(buffer) <= 1000 * 4 * 2 + BLOCK * (8 - 2) + BLOCK * 4 * 8


def test_rows_none_of_which_train_take_no_room_for_long():
    buffer = RowBuffer(100, RowShape(1, 1), LEAST)
    buffer.extend(np.arange(150.0)[:, None])
    buffer.extend(np.arange(5000.0)[:, None], [2] * 5000)
    assert buffer.packed(100).training(100)[:, 0].tolist() == [*range(50, 150)]
    assert sum(block.size for block in buffer.packed(100).blocks) <= 100 + LEAST + 4 * BLOCK


# ------------------------------------------------------------------------- columns made again


@st.composite
def streams(draw):
    """Rows of a stream as its sensors make them, and of each whether it trains; with what befalls
    them: gaps, values that overflow, a sensor that begins anew, rows that never come.
    """
    d = draw(st.integers(1, 3))
    spec = FeatureSpec(
        ("a", "b", "c")[:d], preset=draw(st.sampled_from(["sensor", "lags", "sensor_lags"])),
        carry_forward_events=draw(st.sampled_from([0, 2])),
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    digits = draw(st.sampled_from([2, 17]))
    partial = draw(st.booleans())
    sensors = [spec.start_recent(partial=partial) for _ in range(draw(st.sampled_from([1, 1, 2])))]
    rows, flags = [], []
    for _ in range(draw(st.integers(1, 12))):
        m = draw(st.sampled_from([1, 3, 30, 90, 200]))
        values = rng.normal(20, 2, (m, d)).round(digits)
        befalls = draw(st.sampled_from(["", "", "gaps", "one gap", "huge", "anew", "lost", "zero"]))
        if befalls == "gaps":
            values[rng.random((m, d)) < 0.2] = np.nan
        elif befalls == "one gap":
            values[rng.integers(m), rng.integers(d)] = np.nan
        elif befalls == "huge":
            values[rng.integers(m)] = rng.choice([1e200, -1e140, 1e308])
        elif befalls == "zero":
            values[:] = rng.choice([0.0, -0.0])
        at = rng.integers(len(sensors))
        if befalls == "anew":
            sensors[at] = spec.start_recent(partial=partial)
        made = made_of(sensors[at], values, len(spec.names), alone=draw(st.booleans()))
        made = made[np.all((np.abs(made) <= 1e150) | np.isnan(made), axis=1)]
        if befalls == "lost":
            continue
        rows.append(made)
        lacks = np.isnan(made).any(axis=1)
        flags += np.where(lacks, 2, rng.random(len(made)) < 0.1).tolist()
    return spec, np.concatenate(rows) if rows else np.empty((0, len(spec.names))), flags


def made_of(sensor, values, width, *, alone):
    if not alone:
        return sensor.extract(values.tolist())[0]
    rows = [sensor.extract([value])[0] for value in values.tolist()]
    return np.concatenate([np.empty((0, width)), *rows])


@pytest.mark.thorough
@given(streams(), st.integers(1, 300), st.integers(0, 200))
def test_columns_that_are_made_again_are_those_of_the_stream_bit_for_bit(stream, capacity, back):
    spec, rows, flags = stream
    shape = shape_of(spec)
    buffer, other = (RowBuffer(capacity, shape, LEAST) for _ in range(2))
    plain = [*zip(bits(rows), flags, strict=True)]
    buffer.extend(rows, flags)
    for row, flag in zip(rows.tolist(), flags, strict=True):
        other.extend([row], [flag])
    sure = [min(capacity, flags.count(0)), min(LEAST, len(rows))]
    check_buffer(buffer, other, plain, sure, 300, crashed=False)
    other.take_over(PackedRows.of_state(shape, other.packed(capacity).blocks))
    back, n_trained = min(back, len(rows)), flags[max(0, len(rows) - back) :].count(0)
    buffer.retract(back)
    other.retract(back)
    del plain[len(rows) - back :]
    sure = [max(0, sure[0] - n_trained), max(0, sure[1] - back)]
    check_buffer(buffer, other, plain, sure, 300, crashed=True)
    buffer.extend(rows, flags)
    other.extend(rows, flags)
    plain += zip(bits(rows), flags, strict=True)
    sure = [min(capacity, sure[0] + flags.count(0)), min(LEAST, sure[1] + len(rows))]
    check_buffer(buffer, other, plain, sure, 300, crashed=True)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("preset", ["sensor", "lags", "sensor_lags"])
@pytest.mark.parametrize("cut", [1, 64, 1000])
def test_only_levels_are_kept_of_columns_that_can_be_made_again(preset, partial, cut):
    spec = FeatureSpec(("a", "b"), preset=preset, carry_forward_events=0 if partial else 50)
    rng = np.random.default_rng(0)
    values, sensor = rng.normal(20, 2, (1000, 2)), spec.start_recent(partial=partial)
    values[rng.random((1000, 2)) < 0.02] = np.nan
    values[:40] = 1.0
    parts = [sensor.extract(values[i : i + cut].tolist())[0] for i in range(0, 1000, cut)]
    rows = np.concatenate(parts)
    assert np.isnan(rows).any() == partial
    buffer = RowBuffer(900, shape_of(spec))
    for i in range(0, len(rows), cut):
        part = rows[i : i + cut]
        buffer.extend(part, (2 * np.isnan(part).any(axis=1)).tolist())
    blocks = buffer.packed(800).blocks
    odd = [BLOCK * i + j for i, block in enumerate(buffer._blocks) for j in block.odd]
    assert odd == [*range(len(odd))], "the first ones, whose past nobody knows"
    assert len(odd) <= spec.start_recent().reach
    assert [block.is_past for block in blocks] == [True] + [False] * (len(blocks) - 1)
    assert bits(buffer.last(900)) == bits(rows[-900:])


@pytest.mark.parametrize("name", ["HBOS", "GMM", "KNN", "IForest", "ECOD", "Sensor"])
def test_a_model_scores_the_same_without_its_training_scores(name):
    rows = np.random.default_rng(0).normal(size=(200, 3))
    scorer = make_detector(name).fit(rows, seed=1)
    slim = scorer.without_training()
    assert slim.score(rows).tolist() == scorer.score(rows).tolist()
    assert slim.by_row()(rows[0].tolist()) == scorer.by_row()(rows[0].tolist())
    assert not np.size(getattr(slim.inner, "training_scores", ()))
    assert slim.training_scores is None


def test_what_calibrated_a_model_of_the_engine_is_not_kept_with_it():
    spec = EngineSpec(
        make_detector("HBOS"), FeatureSpec(("flow",)), RejectionPolicy(0.1, tolerance=4),
        window=100,
        schedule=RefitSchedule(first_fit_events=100, refit_every_events=None, refit_lag_events=0,
                               calibration="training"),
    )  # fmt: skip
    engine = Engine(spec, InlineExecutor())
    engine.process(of_rows([[i % 17 / 10] for i in range(150)], "a", 1))
    scorer = engine._live["a"].model._serving.fitted.scorer
    assert scorer.training_scores is None
    assert scorer.inner.training_scores.size == 0
