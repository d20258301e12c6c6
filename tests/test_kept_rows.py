"""Rows that are kept in fewer bytes are the same rows, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rejex_stream.engine.rows import KeptRows, RowBuffer

decimals = st.builds(
    lambda whole, digits: whole / 10**digits, st.integers(-(2**33), 2**33), st.integers(0, 8)
)
anything = st.floats(allow_nan=False, allow_infinity=False) | decimals | st.just(-0.0)


def bits(rows):
    return np.ascontiguousarray(rows).view(np.int64).tolist()


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 9), st.integers(1, 4)), elements=anything)
)
def test_any_rows_come_back_bit_for_bit(rows):
    kept = KeptRows(rows)
    assert kept.rows().shape == rows.shape
    assert bits(kept.rows()) == bits(rows)
    assert kept.nbytes <= rows.nbytes


@given(
    st.integers(0, 6),
    arrays.arrays(np.int64, st.integers(2, 50), elements=st.integers(-(2**31) + 1, 2**31 - 1)),
)
def test_decimals_as_a_sensor_writes_them_take_half_or_a_quarter(digits, whole):
    rows = np.array([[float(f"{n}e-{digits}")] for n in whole.tolist()])
    kept = KeptRows(rows)
    assert bits(kept.rows()) == bits(rows)
    assert kept.nbytes <= rows.nbytes // 2
    small = np.array([[float(f"{n % 30_000}e-{digits}")] for n in whole.tolist()])
    assert KeptRows(small).nbytes == small.nbytes // 4


@pytest.mark.parametrize(
    ("column", "nbytes"),
    [
        ([0.0, -0.0, 1.0], 24),
        ([1.0, 0.1, 0.25], 6),
        ([32_767.0, -32_767.0], 4),
        ([32_768.0, 1.0], 8),
        ([2.0**31 - 1, 0.0], 8),
        ([2.0**31, 0.0], 16),
        ([0.1 + 0.2, 0.5], 16),
        ([1e-7, 0.5], 16),
    ],
)
def test_what_no_whole_number_stands_for_is_kept_as_it_is(column, nbytes):
    rows = np.array(column)[:, None]
    kept = KeptRows(rows)
    assert bits(kept.rows()) == bits(rows)
    assert kept.nbytes == nbytes


def test_kept_rows_hold_on_to_nothing_that_they_were_made_of():
    rows = np.array([[1 / 3, 0.5], [2 / 3, 1.5]])
    kept, before = KeptRows(rows), rows.copy()
    rows[:] = 7.0
    assert bits(kept.rows()) == bits(before)


def test_a_buffer_of_rows_that_never_came_takes_no_room_and_gives_none():
    buffer = RowBuffer(1000, 4)
    assert buffer._ring.nbytes == 0
    buffer.extend([])
    buffer.extend(np.empty((0, 4)))
    buffer.retract(3)
    assert buffer.last(5).shape == (0, 4)
    assert buffer.width == 4
    buffer.extend([[1.0, 2.0, 3.0, 4.0]])
    assert buffer.last(5).tolist() == [[1.0, 2.0, 3.0, 4.0]]
