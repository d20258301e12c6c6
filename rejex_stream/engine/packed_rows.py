"""Rows kept for long, in fewer bytes and bit for bit.

A row begins with the levels of its channels, and ends with phases of the calendar and with what
siblings say. Where all between is made of these levels and of those before
(:mod:`rejex_stream.features.preset`), both are kept and the rest is made again; a row that does not
come back so (it follows a gap, or one of another sensor) is kept whole beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.features import FeatureSpec
from rejex_stream.features.preset import blocks_of
from rejex_stream.types import FloatArray

BLOCK = 64
"""Rows of a block: the fewer, the fewer wait as doubles, and the more each costs besides."""
_DIGITS = 7  # none to six behind the point
_KINDS = [np.dtype(kind) for kind in ("<i2", "<i4", "<f4", "<f8")]
_PAST = bytes([3])  # of a row that is there for what is made of those after it
_FLOAT, _DOUBLE = 2 * _DIGITS, 3 * _DIGITS  # codes: a kind times digits


class RowShape(NamedTuple):
    """What rows are made of."""

    width: int  # columns of a row, of which so many are kept: the first and the last
    n_levels: int
    # of what is kept, shape (m, n_levels), the rows; ``None``: all of them is kept
    make: Callable[[FloatArray], FloatArray] | None = None
    reach: int = 0  # how many readings before its own its columns look at
    n_last: int = 0

    def kept(self, rows: FloatArray) -> FloatArray:
        """Return what is kept of rows of shape (m, width)."""
        return np.delete(rows, np.s_[self.n_levels - self.n_last : self.width - self.n_last], 1)

    def made(self, levels: FloatArray) -> FloatArray:
        """Return the rows of levels, those of a block by this and by the block before it."""
        if self.make is None or not np.isnan(levels).any():
            return levels if self.make is None else self.make(levels)  # no row looks back further
        starts = range(0, len(levels), BLOCK)
        made = [self.make(levels[max(0, i - BLOCK) : i + BLOCK]) for i in starts]
        return np.concatenate([made[0], *(rows[BLOCK:] for rows in made[1:])])


@lru_cache(maxsize=16)
def shape_of(features: FeatureSpec) -> RowShape:
    """Return the shape of the rows of features."""
    width, d, reach = len(features.names), len(features.measured), features.reach
    if not features.is_at_once:
        return RowShape(width, width, reach=reach)
    recent = features.start_recent()
    start = np.full((recent.reach, d), np.nan)
    n_last = width - d * len(blocks_of(features.preset or "raw", d))

    def make(kept: FloatArray) -> FloatArray:
        return np.hstack((recent.made_of(start, kept[:, :d])[0], kept[:, d:]))

    return RowShape(width, d + n_last, make, reach, n_last)


class Block(NamedTuple):
    """Rows that came one after the other."""

    codes: bytes  # of each level by which numbers it is kept: kind and digits
    numbers: bytes
    size: int
    # of each row whether it trains, 0, does not, or is there for those after it; empty: all do
    left_out: bytes
    odd: bytes  # which rows are not made of levels, and these
    odd_rows: bytes

    @property
    def n_trained(self) -> int:
        """How many of the rows train."""
        return self.left_out.count(0) if self.left_out else self.size

    @property
    def is_past(self) -> bool:
        """Whether it is there only for what rows of the next block look back at."""
        return self.left_out[:1] == _PAST

    @property
    def levels(self) -> FloatArray:
        """The levels, shape (size, n_levels)."""
        return _numbers_of(self.codes).read(self.numbers, self.size)

    def as_past(self) -> Block:
        """Return what rows of the next block look back at."""
        return Block(self.codes, self.numbers, self.size, _PAST * self.size, b"", b"")


class PackedRows(NamedTuple):
    """Blocks in a row.

    What sensors write is decimals, and a decimal is a whole number over a power of ten: dividing
    gives the very double back that was read, since both are rounded to the nearest. So a column of
    decimals is kept as whole numbers of two or four bytes, one of floats of four bytes as such, any
    other as it is (Afroozeh, Kuffó and Boncz: ALP, Adaptive Lossless Floating-Point Compression,
    SIGMOD 2023).
    """

    shape: RowShape
    blocks: Sequence[Block]

    def rows(self) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
        """Return the rows, shape (m, width), and of each whether it was left out of training."""
        if not self.blocks:
            return np.empty((0, self.shape.width)), np.empty(0, np.uint8)
        rows = self.shape.made(np.concatenate([block.levels for block in self.blocks]))
        for i, block in enumerate(self.blocks):
            if block.odd:
                at = BLOCK * i + np.frombuffer(block.odd, np.uint8).astype(np.intp)
                rows[at] = np.frombuffer(block.odd_rows).reshape(-1, self.shape.width)
        flags = b"".join(block.left_out or bytes(block.size) for block in self.blocks)
        left_out = np.frombuffer(flags, np.uint8)
        there = left_out != _PAST[0]
        return rows[there], left_out[there]

    def training(self, count: int) -> FloatArray:
        """Return the newest rows that train."""
        rows, left_out = self.rows()
        found: FloatArray = rows[left_out == 0]
        return found[max(0, len(found) - count) :]

    @classmethod
    def of_state(cls, shape: RowShape, state: Any) -> PackedRows:  # noqa: ANN401 - plain values
        """Return those of a state; raises a ValueError where there are none such."""
        blocks = msgspec.convert(state, list[Block])
        for i, block in enumerate(blocks):
            if not (
                0 < block.size <= BLOCK
                and (block.size == BLOCK or i + 1 == len(blocks))
                and len(block.codes) == shape.n_levels
                and max(block.codes) <= _DOUBLE
                and len(block.numbers) == block.size * _numbers_of(block.codes).row_bytes
                and len(block.left_out) in (0, block.size)
                and max(block.left_out, default=0) <= _PAST[0]
                and len(block.odd_rows) == 8 * shape.width * len(block.odd)
                and max(block.odd, default=0) < block.size
            ):
                raise ValueError(f"a block of {block.size} rows that cannot be")
        return cls(shape, blocks)


def pack(
    shape: RowShape, rows: FloatArray, left_out: bytes, before: Block | None = None
) -> list[Block]:
    """Return rows of shape (m, width) as blocks, all but the last full, that follow on one."""
    levels, like = shape.kept(rows), b"" if before is None else before.codes
    odd = np.zeros(len(rows), np.bool_)
    if shape.make is not None:
        past = levels[:0] if before is None else before.levels
        made = shape.made(np.concatenate((past, levels)))[len(past) :]
        np.any(made.view(np.int64) != rows.view(np.int64), axis=1, out=odd)
    blocks = []
    for start in range(0, len(rows), BLOCK):
        part, flags = levels[start : start + BLOCK], left_out[start : start + BLOCK]
        like, numbers = _written(part, like)
        which = np.flatnonzero(odd[start : start + BLOCK])
        flags, odd_rows = flags if any(flags) else b"", rows[start + which].tobytes()
        blocks.append(Block(like, numbers, len(part), flags, bytes(which.tolist()), odd_rows))
    return blocks


def _written(levels: FloatArray, like: bytes) -> tuple[bytes, bytes]:
    """Return codes and numbers of levels of shape (m, d): those of before, where they do."""
    with np.errstate(all="ignore"):
        if not like:
            like = bytes(map(_code_of, levels.T))
        numbers, wrong = _numbers_of(like).written(levels)
        if wrong:
            like = bytes(_code_of(x) if j in wrong else like[j] for j, x in enumerate(levels.T))
            numbers, _ = _numbers_of(like).written(levels)
    return like, numbers


class _Numbers:
    def __init__(self, codes: bytes) -> None:
        kinds = [code // _DIGITS for code in codes]
        self.groups: list[tuple[npt.NDArray[np.intp], np.dtype[Any], FloatArray]] = []
        for kind in dict.fromkeys(kinds):
            at = [j for j, found in enumerate(kinds) if found == kind]
            scales = np.array([10.0 ** (codes[j] % _DIGITS) for j in at])
            self.groups.append((np.array(at), _KINDS[kind], scales))
        self.row_bytes = sum(kind.itemsize * len(at) for at, kind, _ in self.groups)

    def written(self, levels: FloatArray) -> tuple[bytes, list[int]]:
        """Return the numbers, and which columns they do not give back or would be fewer of."""
        written, wrong = [], list[int]()
        for at, kind, scales in self.groups:
            part = levels if len(at) == levels.shape[1] else levels[:, at]
            if kind == _KINDS[-1]:
                numbers = part
                # Six digits are whole millionths; what is none of them at first is no decimal.
                right = np.rint(part[0] * 1e6) / 1e6 != part[0]
            else:
                numbers = (part if kind == _KINDS[-2] else np.rint(part * scales)).astype(kind)
                right = _bits_equal(numbers / scales, part).all(axis=0)
            written.append(numbers.tobytes())
            if not right.all():
                wrong += at[~right].tolist()
        return b"".join(written), wrong

    def read(self, numbers: bytes, size: int) -> FloatArray:
        levels, begin = np.empty((size, sum(len(at) for at, _, _ in self.groups))), 0
        for at, kind, scales in self.groups:
            part = np.frombuffer(numbers, kind, size * len(at), begin).reshape(size, len(at))
            levels[:, at] = part if kind == _KINDS[-1] else part / scales
            begin += part.nbytes
        return levels


_numbers_of = lru_cache(maxsize=1024)(_Numbers)


def _code_of(column: FloatArray) -> int:
    largest = float(np.abs(column).max())
    for digits in range(_DIGITS):
        scale = 10.0**digits
        if not largest * scale <= np.iinfo(np.int32).max:  # nor where it is nan
            break
        if round(float(column[0]) * scale) / scale != column[0]:
            continue  # mostly told by one value
        whole = np.rint(column * scale).astype(np.int32)
        if _bits_equal(whole / scale, column).all():  # -0.0 is not 0.0
            return digits if largest * scale <= np.iinfo(np.int16).max else _DIGITS + digits
    # as a sensor of four bytes a value measures
    half = column.astype(np.float32).astype(np.float64)
    return _FLOAT if _bits_equal(half, column).all() else _DOUBLE


def _bits_equal(A: FloatArray, B: FloatArray) -> npt.NDArray[np.bool_]:
    equal: npt.NDArray[np.bool_] = A.view(np.int64) == B.view(np.int64)
    return equal
