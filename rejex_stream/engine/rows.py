"""Rows on their way through a model: in segments, remembered, left out or held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rejex_stream.engine.checkpoint import pack_array
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.incidents import Turn
from rejex_stream.types import FloatArray

__all__ = [
    "Count",
    "Guard",
    "GuardState",
    "HeldState",
    "KeptRows",
    "RowBuffer",
    "Rows",
    "Segment",
    "held_state",
]

Rows: TypeAlias = list[list[float]] | FloatArray
"""Rows of features, shape (m, d)."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

_Numbers: TypeAlias = FloatArray | NDArray[np.int16] | NDArray[np.int32]
_DIGITS = 7  # none to six behind the point


@dataclass(slots=True)
class Segment:
    """Rows ``start:stop`` of a call and their scores; ``scores`` is ``None`` before a model.

    Where there is a `quantile`, whoever judges fills `outliers` with the numbers, within the
    segment, of the rows that score beyond it. Where its last event made a `turn`, whoever judges
    says which, and puts `stop` behind it: the rest is judged by what the turn left. It is `mixed`
    where it is the first of a model whose rows were of two kinds.
    """

    start: int
    stop: int
    scores: Sequence[float] | None
    epoch: int
    quantile: float | None
    outliers: Sequence[int] = ()
    turn: Turn | None = None
    mixed: bool = False


class HeldState(msgspec.Struct, forbid_unknown_fields=True):
    """What a model knows of incidents: rows held back, and where its counts began anew."""

    origin: Count
    is_adopting: bool
    rows: list[Any]


class GuardState(msgspec.Struct, forbid_unknown_fields=True):
    """What a guard remembers."""

    left_out: bytes
    newest: list[Any]


class KeptRows:
    """Rows that are kept for long and seldom looked at: the same bits in fewer bytes.

    What sensors write is decimals, and a decimal is a whole number over a power of ten: dividing
    gives the very double back that was read, since both are rounded to the nearest. So a column of
    decimals is kept as whole numbers of two or four bytes, any other as it is (Afroozeh, Kuffó and
    Boncz: ALP, Adaptive Lossless Floating-Point Compression, SIGMOD 2023).

    Parameters
    ----------
    rows
        Shape (m, d), finite. O(m d).

    Examples
    --------
    >>> rows = np.array([[20.53, 1 / 3], [-0.5, 2 / 3]])
    >>> kept = KeptRows(rows)
    >>> kept.nbytes, bool((kept.rows() == rows).all())
    (20, True)
    """

    __slots__ = ("_columns",)

    def __init__(self, rows: FloatArray) -> None:
        self._columns = [_as_decimals(column) for column in np.array(rows.T, order="C")]

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return sum(column.nbytes for column, _ in self._columns)

    def rows(self) -> FloatArray:
        """Return the rows. O(m d)."""
        return np.column_stack([column / scale for column, scale in self._columns])


def _as_decimals(column: FloatArray) -> tuple[_Numbers, float]:
    """Return numbers, and what to divide them by for the column."""
    largest = float(np.abs(column).max(initial=0.0))
    for digits in range(_DIGITS if len(column) else 0):
        scale = 10.0**digits
        if largest * scale > np.iinfo(np.int32).max:
            break
        if round(float(column[0]) * scale) / scale != column[0]:
            continue  # mostly told by one value
        whole = np.rint(column * scale)
        small = largest * scale <= np.iinfo(np.int16).max
        kept: _Numbers = whole.astype(np.int16) if small else whole.astype(np.int32)
        if ((kept / scale).view(np.int64) == column.view(np.int64)).all():  # -0.0 is not 0.0
            return kept, scale
    return column.copy(), 1.0


class RowBuffer:
    """The newest rows, in a ring that grows to its capacity as rows come."""

    __slots__ = ("_capacity", "_next", "_pack", "_ring", "_size")

    def __init__(self, capacity: int, n_features: int) -> None:
        self._capacity = capacity
        self._ring: FloatArray = np.empty((0, n_features))
        self._next = self._size = 0
        self._pack = Struct(f"{n_features}d").pack_into

    @property
    def width(self) -> int:
        """Features of a row."""
        return int(self._ring.shape[1])

    def extend(self, rows: Rows) -> None:
        """Take rows in; the oldest ones leave where there is no room."""
        if len(rows) == 1 and self._size == self._capacity:
            bytes_before = self._next * self._ring.strides[0]
            self._pack(self._ring.data, bytes_before, *rows[0])  # cheaper than making an array
            self._next = (self._next + 1) % self._size
            return
        if not len(rows):
            return
        rows = np.asarray(rows)[-self._capacity :]
        while self._size + len(rows) > len(self._ring) < self._capacity:
            longer = max(64, 2 * len(self._ring))
            grown = np.empty((min(self._capacity, longer), self._ring.shape[1]))
            grown[: self._size] = self._ring[: self._size]  # a ring that can grow never wrapped
            self._ring, self._next = grown, self._size
        at = (self._next + np.arange(len(rows))) % len(self._ring)
        self._ring[at] = rows
        self._next = (self._next + len(rows)) % len(self._ring)
        self._size = min(self._size + len(rows), len(self._ring))

    def keep(self, count: int) -> None:
        """Keep at least so many of the rows that are here or come."""
        if count > self._capacity:
            self._ring, self._next, self._capacity = self.last(self._size), 0, count

    def last(self, count: int) -> FloatArray:
        """Return a copy of the newest rows, oldest first."""
        count = min(count, self._size)
        at = (self._next - count + np.arange(count)) % max(1, len(self._ring))
        return self._ring[at]

    def retract(self, count: int) -> None:
        """Forget the newest rows: older ones, as far as the ring reaches, are the newest again."""
        count = min(count, self._size)
        self._size -= count
        self._next = (self._next - count) % max(1, len(self._ring))

    def clear(self) -> None:
        """Forget all rows."""
        self._next = self._size = 0

    def __len__(self) -> int:
        return self._size


class Guard:
    """Keeps rows out of training that score beyond a quantile, unless they are too many."""

    __slots__ = ("_before", "_capacity", "_lag", "_left_out", "_most", "_n_left_out", "newest")

    def __init__(self, schedule: RefitSchedule, n_features: int, look_back: int) -> None:
        self._capacity = schedule.buffer_events
        self._most = schedule.guard_share * schedule.buffer_events
        self._left_out: deque[bool] = deque(maxlen=schedule.buffer_events)
        self._before: deque[bool] = deque(maxlen=look_back)  # of rows older than those
        self._n_left_out, self._lag = 0, max(1, schedule.refit_lag_events)
        self.newest = RowBuffer(self._lag + look_back, n_features)
        """All rows since a fit was asked for, kept out or not."""

    def admit(self, X: Rows, outliers: Sequence[int]) -> FloatArray:
        """Return which of the rows X of shape (m, d), some of them outliers, train later models."""
        beyond = set(outliers)
        keep = np.ones(len(X), dtype=np.bool_)
        flags = self._left_out
        for i in range(len(X)):
            if len(flags) == self._capacity:
                self._n_left_out -= flags[0]
                self._before.append(flags[0])
            leave = i in beyond and self._n_left_out < self._most
            flags.append(leave)
            self._n_left_out += leave
            keep[i] = not leave
        self.newest.extend(X)
        return np.asarray(X)[keep]

    def retract(self, count: int) -> int:
        """Forget the newest rows; return how many of them were let in."""
        flags, admitted = self._left_out, 0
        for _ in range(count):
            left_out = flags.pop()
            admitted += not left_out
            self._n_left_out -= left_out
            if self._before:
                flags.appendleft(self._before.pop())
                self._n_left_out += flags[0]
        self.newest.retract(count)
        return admitted

    def clear(self) -> None:
        """Forget all rows."""
        self._left_out.clear()
        self._before.clear()
        self.newest.clear()
        self._n_left_out = 0

    def state(self, look_back: int) -> dict[str, Any]:
        """Return everything it knows as plain values, to go back by so many rows at most."""
        before = list(self._before)[len(self._before) - min(look_back, len(self._before)) :]
        newest = pack_array(self.newest.last(self._lag + look_back))
        return {"left_out": bytes([*before, *self._left_out]), "newest": newest}

    def restore(self, left_out: bytes, newest: FloatArray) -> None:
        """Take over a state.

        Raises
        ------
        ValueError
            If no guard can have been in that state.
        """
        older = max(0, len(left_out) - self._capacity)
        if older > (self._before.maxlen or 0) or not {*left_out} <= {0, 1}:
            raise ValueError(f"{len(left_out)} rows in or out of training")
        self._before.extend(map(bool, left_out[:older]))
        self._left_out.extend(map(bool, left_out[older:]))
        self._n_left_out = sum(self._left_out)
        self.newest.extend(newest)


def held_state(rows: FloatArray, origin: int, *, is_adopting: bool) -> dict[str, Any]:
    """Return what belongs to incidents as a part of a state; nothing where there were none."""
    if not (len(rows) or origin or is_adopting):
        return {}  # as it was written before there were incidents
    return {"held": {"origin": origin, "is_adopting": is_adopting, "rows": pack_array(rows)}}
