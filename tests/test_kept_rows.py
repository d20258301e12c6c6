"""Rows that are kept in fewer bytes are the same rows, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.model import RowBuffer
from rejex_stream.engine.packed_rows import PackedRows
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

kinds = {
    "two bytes": st.integers(-300, 300).map(lambda whole: whole / 100),
    "four": st.integers(-(10**6), 10**6).map(lambda whole: whole / 1000),
    "floats": st.floats(width=32),
    "any": st.floats(),
    "zeros": st.sampled_from([0.0, -0.0]),
}
decimals = st.builds(
    lambda whole, digits: whole / 10**digits, st.integers(-(2**33), 2**33), st.integers(0, 8)
)
anything = st.floats() | decimals | st.floats(width=32) | st.just(-0.0)


def bits(rows):
    return np.ascontiguousarray(rows).view(np.int64).tolist()


def nbytes_of(kept):
    """Return the bytes of the numbers of packed rows, or of a buffer."""
    if isinstance(kept, PackedRows):
        return sum(column.nbytes for column, _ in kept._columns)
    return len(kept._open) + sum(group.ring.nbytes for group in kept._groups)


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 9), st.integers(1, 4)), elements=anything)
)
def test_any_rows_come_back_bit_for_bit(rows):
    kept = PackedRows(rows)
    assert kept.rows().shape == rows.shape
    assert bits(kept.rows()) == bits(rows)
    assert nbytes_of(kept) <= rows.nbytes


@given(
    st.integers(0, 6),
    arrays.arrays(np.int64, st.integers(2, 50), elements=st.integers(-(2**31) + 1, 2**31 - 1)),
)
def test_decimals_as_a_sensor_writes_them_take_half_or_a_quarter(digits, whole):
    rows = np.array([[float(f"{n}e-{digits}")] for n in whole.tolist()])
    kept = PackedRows(rows)
    assert bits(kept.rows()) == bits(rows)
    assert nbytes_of(kept) <= rows.nbytes // 2
    small = np.array([[float(f"{n % 30_000}e-{digits}")] for n in whole.tolist()])
    assert nbytes_of(PackedRows(small)) == small.nbytes // 4


@pytest.mark.parametrize(
    ("column", "nbytes"),
    [
        ([0.0, -0.0, 1.0], 12),
        ([1.0, 0.1, 0.25], 6),
        ([32_767.0, -32_767.0], 4),
        ([32_768.0, 1.0], 8),
        ([2.0**31 - 1, 0.0], 8),
        ([2.0**31, 0.0], 8),
        ([2.0**31 + 1, 0.0], 16),
        ([0.1, -0.0], 16),
        ([0.1 + 0.2, 0.5], 16),
        ([1e-7, 0.5], 16),
        ([2.0**-20, -0.0, 2.0**60], 12),
        ([1e300, 0.5], 16),
        ([np.nan, 0.5], 8),
        ([np.inf, 0.1], 16),
    ],
)
def test_what_no_whole_number_stands_for_is_kept_as_it_is(column, nbytes):
    rows = np.array(column)[:, None]
    kept = PackedRows(rows)
    assert bits(kept.rows()) == bits(rows)
    assert nbytes_of(kept) == nbytes


def test_kept_rows_hold_on_to_nothing_that_they_were_made_of():
    rows = np.array([[1 / 3, 0.5], [2 / 3, 1.5]])
    kept, before = PackedRows(rows), rows.copy()
    rows[:] = 7.0
    assert bits(kept.rows()) == bits(before)


def test_a_buffer_of_rows_that_never_came_takes_no_room_and_gives_none():
    buffer = RowBuffer(1000, 4)
    assert nbytes_of(buffer) == 0
    buffer.extend([])
    buffer.extend(np.empty((0, 4)))
    buffer.retract(3)
    assert buffer.last(5).shape == (0, 4)
    assert buffer.width == 4
    buffer.extend([[1.0, 2.0, 3.0, 4.0]])
    assert buffer.last(5).tolist() == [[1.0, 2.0, 3.0, 4.0]]


@st.composite
def days(draw):
    """What happens to a buffer: rows of some kind, one or many, and all that is done with them."""
    capacity, width = draw(st.integers(1, 200)), draw(st.integers(1, 3))
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        what = draw(st.sampled_from(["extend"] * 4 + ["one by one", "retract", "keep", "clear"]))
        if what in ("extend", "one by one"):
            # A few values, over and over: what is tested is where they are, and of what kind.
            columns = [draw(st.lists(kinds[draw(st.sampled_from(sorted(kinds)))], min_size=1,
                                     max_size=3)) for _ in range(width)]  # fmt: skip
            m = draw(st.integers(1, 150))
            steps.append((what, np.column_stack([np.resize(c, m) for c in columns])))
        else:
            steps.append((what, draw(st.integers(0, 250 if what == "keep" else 90))))
    return capacity, width, steps


@pytest.mark.thorough
@given(days(), st.integers(0, 250))
def test_a_buffer_gives_back_the_newest_rows_bit_for_bit_whatever_came_before(day, asked):
    capacity, width, steps = day
    buffer, plain = RowBuffer(capacity, width), []
    for what, given_ in steps:
        if what == "extend":
            buffer.extend(given_)
            plain = [*plain, *bits(given_)][-capacity:]
        elif what == "one by one":
            for row in given_.tolist():
                buffer.extend([row])
            plain = [*plain, *bits(given_)][-capacity:]
        elif what == "retract":
            buffer.retract(given_)
            plain = plain[: max(0, len(plain) - given_)]
        elif what == "keep":
            buffer.keep(given_)
            capacity = max(capacity, given_)
        else:
            buffer.clear()
            plain = []
        assert len(buffer) == len(plain)
        assert bits(buffer.last(asked)) == plain[len(plain) - min(asked, len(plain)) :]
    assert bits(buffer.last(10_000)) == plain


def test_a_ring_that_grows_after_rows_were_taken_back_has_no_gap():
    rows = np.arange(300.0)[:, None]
    buffer = RowBuffer(200, 1)
    buffer.extend(rows[:100])
    buffer.retract(50)
    buffer.extend(rows[50:130])
    assert buffer.last(200)[:, 0].tolist() == rows[:130, 0].tolist()


@pytest.mark.parametrize(
    ("digits", "bytes_a_value"), [(2, 2), (5, 4), (None, 8)], ids=["two", "five", "doubles"]
)
@pytest.mark.parametrize("cut", [1, 7, 500])
def test_a_full_buffer_of_decimals_takes_half_or_a_quarter(digits, bytes_a_value, cut):
    rows = np.random.default_rng(0).normal(20, 2, (3000, 4))
    rows = rows if digits is None else rows.round(digits)
    buffer = RowBuffer(1000, 4)
    for start in range(0, len(rows), cut):
        buffer.extend(rows[start : start + cut].tolist())
    assert nbytes_of(buffer) <= 1000 * 4 * bytes_a_value + 64 * 4 * 8
    assert bits(buffer.last(1000)) == bits(rows[-1000:])


def test_only_the_column_that_is_none_stays_doubles():
    rows = np.random.default_rng(0).normal(20, 2, (1000, 4)).round(2)
    rows[700, 2] = 1 / 3
    buffer = RowBuffer(1000, 4)
    buffer.extend(rows[:600])
    buffer.extend(rows[600:])
    assert bits(buffer.last(1000)) == bits(rows)
    assert nbytes_of(buffer) <= 1000 * (3 * 2 + 8) + 64 * 4 * 8


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
    engine.process([Reading("a", "a", i, (i % 17 / 10,), Position("t", 0, i)) for i in range(150)])
    scorer = engine._live["a"].model._serving.fitted.scorer
    assert scorer.training_scores is None
    assert scorer.inner.training_scores.size == 0
