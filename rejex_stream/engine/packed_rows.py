"""Rows kept for long, in fewer bytes and bit for bit: columns of decimals as whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rejex_stream.types import FloatArray

__all__ = ["Columns", "PackedRows", "as_decimals"]

_Numbers: TypeAlias = FloatArray | NDArray[np.float32] | NDArray[np.int16] | NDArray[np.int32]
_DIGITS = 7  # none to six behind the point


class PackedRows:
    """Rows that are kept for long and seldom looked at: the same bits in fewer bytes.

    What sensors write is decimals, and a decimal is a whole number over a power of ten: dividing
    gives the very double back that was read, since both are rounded to the nearest. So a column of
    decimals is kept as whole numbers of two or four bytes, one of floats of four bytes as such, any
    other as it is (Afroozeh, Kuffó and Boncz: ALP, Adaptive Lossless Floating-Point Compression,
    SIGMOD 2023).
    """

    __slots__ = ("_columns",)

    def __init__(self, rows: FloatArray) -> None:
        self._columns = [as_decimals(column) for column in np.array(rows.T, order="C")]

    def rows(self) -> FloatArray:
        """Return the rows. O(m d)."""
        return np.column_stack([column / np.float64(scale) for column, scale in self._columns])


def as_decimals(column: FloatArray) -> tuple[_Numbers, float]:
    """Return numbers, and what to divide them by for the column."""
    largest = float(np.abs(column).max(initial=0.0))
    for digits in range(_DIGITS if len(column) else 0):
        scale = 10.0**digits
        if not largest * scale <= np.iinfo(np.int32).max:  # nor where it is nan
            break
        if round(float(column[0]) * scale) / scale != column[0]:
            continue  # mostly told by one value
        whole = np.rint(column * scale)
        small = largest * scale <= np.iinfo(np.int16).max
        kept: _Numbers = whole.astype(np.int16) if small else whole.astype(np.int32)
        if _bits_equal(kept / np.float64(scale), column).all():  # -0.0 is not 0.0
            return kept, scale
    with np.errstate(all="ignore"):
        half = column.astype(np.float32)  # as a sensor of four bytes a value measures
        if _bits_equal(half.astype(np.float64), column).all():
            return half, 1.0
    return column.copy(), 1.0


def _bits_equal(A: FloatArray, B: FloatArray) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = A.view(np.int64) == B.view(np.int64)
    return equal


class Columns:
    """Columns of one kind of numbers, side by side in a ring."""

    __slots__ = ("at", "kind", "ring", "scales")

    def __init__(self, at: Sequence[int], kind: np.dtype[Any], scales: Sequence[float]) -> None:
        self.at, self.kind = np.array(at), kind
        self.scales: FloatArray = np.array(scales)
        self.ring: Any = np.empty((0, len(at)), kind)

    def of(self, rows: FloatArray) -> tuple[Any, NDArray[np.bool_]]:
        """Return its numbers for rows of shape (m, d), and by column whether they give them back.

        A number that does is the right one, so what a cast makes of numbers too large is harmless.
        """
        part = rows if len(self.at) == rows.shape[1] else rows.take(self.at, axis=1)
        if self.kind == np.float64:
            return part, np.ones(len(self.at), np.bool_)
        numbers = (part if self.kind == np.float32 else np.rint(part * self.scales)).astype(
            self.kind
        )
        right: NDArray[np.bool_] = np.all(_bits_equal(numbers / self.scales, part), axis=0)
        return numbers, right
