"""Rows on their way through a model: in segments, remembered, left out or held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.snapshot import pack_array
from rejex_stream.incidents import Turn
from rejex_stream.types import FloatArray, Status

__all__ = [
    "Count",
    "Guard",
    "GuardState",
    "HeldState",
    "Judged",
    "KeptRows",
    "RowBuffer",
    "Rows",
    "Segment",
    "held_state",
]

Rows: TypeAlias = list[list[float]] | FloatArray
"""Rows of features, shape (m, d)."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

_Numbers: TypeAlias = FloatArray | NDArray[np.float32] | NDArray[np.int16] | NDArray[np.int32]
_DIGITS = 7  # none to six behind the point
_OPEN = 64  # rows of a buffer that are not packed yet


class Segment(NamedTuple):
    """Rows ``start:stop`` of a call, as one model scores them.

    Attributes
    ----------
    start, stop
        Which of the call's rows.
    rows
        They, shape (stop - start, d).
    scores
        What they are judged by; ``None`` before a model.
    epoch
        Of the model; -1 before the first.
    own
        Their scores before the mean of a few was taken.
    quantile
        Beyond which a row trains no later model, where one is kept from that.
    status
        What is said with its first event of the rows that the first model learnt from.
    held
        Whether its rows are held back, as those of an incident are.
    learns
        Whether its rows are learnt once they are judged.
    """

    start: int
    stop: int
    rows: Rows
    scores: Sequence[float] | None
    epoch: int
    own: Sequence[float] = ()
    quantile: float | None = None
    status: Status | None = None
    held: bool = False
    learns: bool = True


class Judged(NamedTuple):
    """What became of a segment: what a model needs to know to learn from it.

    Attributes
    ----------
    stop
        The rows before it were judged; what comes then is scored anew.
    outliers
        Rows that score beyond the segment's quantile, by their place in it.
    extreme
        Rows that were extreme by the model's own scores, by their place in it.
    turn
        What the last of them made of an incident, if anything.
    """

    stop: int
    outliers: Sequence[int] = ()
    extreme: Sequence[int] = ()
    turn: Turn | None = None


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
    decimals is kept as whole numbers of two or four bytes, one of floats of four bytes as such, any
    other as it is (Afroozeh, Kuffó and Boncz: ALP, Adaptive Lossless Floating-Point Compression,
    SIGMOD 2023).

    Parameters
    ----------
    rows
        Shape (m, d), of any doubles. O(m d).

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
        return np.column_stack([column / np.float64(scale) for column, scale in self._columns])


def _as_decimals(column: FloatArray) -> tuple[_Numbers, float]:
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


class _Columns:
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


class RowBuffer:
    """The newest rows, in a ring that grows to its capacity as rows come.

    The newest few are doubles; the others are kept as :class:`KeptRows` keeps them, and go there
    many at once, so that it costs a row next to nothing. A column that turns out to be of a wider
    kind is looked at anew with all that the ring holds of it, so not often; doubles it stays.
    """

    __slots__ = (
        "_capacity", "_groups", "_kept", "_kinds", "_most_open", "_n_open", "_next",
        "_open", "_pack", "_row_bytes", "_size", "width",
    )  # fmt: skip

    def __init__(self, capacity: int, n_features: int) -> None:
        self._capacity, self.width = capacity, n_features
        self._open = bytearray()  # of doubles, row after row
        self._groups: list[_Columns] = []
        self._kinds: list[tuple[np.dtype[Any], float]] = []
        self._n_open = self._most_open = self._kept = self._next = self._size = 0
        self._pack, self._row_bytes = Struct(f"{n_features}d").pack_into, 8 * n_features

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return len(self._open) + sum(int(group.ring.nbytes) for group in self._groups)

    def extend(self, rows: Rows) -> None:
        """Take rows in; the oldest ones leave where there is no room."""
        count, at = len(rows), self._n_open
        if count == 1 and at < self._most_open:
            self._pack(self._open, at * self._row_bytes, *rows[0])  # cheaper than an array
            self._n_open = at + 1
        elif count:
            if not self._open:
                self._most_open = min(_OPEN, self._capacity)
                self._open = bytearray(self._most_open * self._row_bytes)
            newest = self._newest()
            if at + count <= self._most_open:
                newest[at : at + count] = rows
                self._n_open = at + count
            else:
                self._n_open = 0
                self._put(np.concatenate((newest[:at], rows))[-self._capacity :])
        size = self._size + count
        self._size = size if size < self._capacity else self._capacity

    def _newest(self) -> FloatArray:
        """Return the rows that are not packed, and room for others: no copy."""
        return np.frombuffer(self._open).reshape(-1, self.width)

    def _put(self, rows: FloatArray) -> None:
        """Put at most as many rows into the ring as it may have."""
        with np.errstate(all="ignore"):
            if not self._groups:
                self._make_groups([_as_decimals(column) for column in rows.T.copy()], rows[:0])
            made = [group.of(rows) for group in self._groups]
            if not all(right.all() for _, right in made):
                self._look_again(rows, [right for _, right in made])
                made = [group.of(rows) for group in self._groups]
        wanted, room = min(self._capacity, self._kept + len(rows)), self._room
        if wanted > room:  # a ring that can grow never wrapped
            self._next, room = self._kept, min(self._capacity, max(wanted, 2 * room))
        first = min(len(rows), room - self._next)
        for group, (numbers, _) in zip(self._groups, made, strict=True):
            if len(group.ring) < room:
                grown = np.empty((room, len(group.at)), group.kind)
                grown[: self._kept] = group.ring[: self._kept]
                group.ring = grown
            group.ring[self._next : self._next + first] = numbers[:first]
            group.ring[: len(rows) - first] = numbers[first:]
        self._next = (self._next + len(rows)) % room
        self._kept = wanted

    @property
    def _room(self) -> int:
        return len(self._groups[0].ring) if self._groups else 0

    def _look_again(self, rows: FloatArray, right: Sequence[NDArray[np.bool_]]) -> None:
        """Keep in another way the columns that would not give these rows back."""
        old = self._of_ring(self._kept)
        for group, fits in zip(self._groups, right, strict=True):
            for j in group.at[~fits].tolist():
                numbers, scale = _as_decimals(np.concatenate((old[:, j], rows[:, j])))
                self._kinds[j] = numbers.dtype, scale
        self._make_groups(self._kinds, old)

    def _make_groups(self, columns: Sequence[tuple[Any, float]], rows: FloatArray) -> None:
        """Begin the ring anew with rows, in numbers of these kinds and scales."""
        kinds = [(getattr(numbers, "dtype", numbers), scale) for numbers, scale in columns]
        self._kinds, self._groups = kinds, []
        for kind in dict.fromkeys(kind for kind, _ in kinds):
            at = [j for j, (found, _) in enumerate(kinds) if found == kind]
            group = _Columns(at, kind, [kinds[j][1] for j in at])
            group.ring = group.of(rows)[0].copy()
            self._groups.append(group)
        self._next = self._kept = len(rows)

    def _of_ring(self, count: int) -> FloatArray:
        """Return a copy of the newest rows of the ring."""
        rows = np.empty((count, self.width))
        at = (self._next - count + np.arange(count)) % max(1, self._room)
        for group in self._groups:
            rows[:, group.at] = group.ring[at] / group.scales
        return rows

    def keep(self, count: int) -> None:
        """Keep at least so many of the rows that are here or come."""
        if count > self._capacity:
            rows = self.last(self._size)
            self.clear()
            self._capacity = count
            self.extend(rows)

    def last(self, count: int) -> FloatArray:
        """Return a copy of the newest rows, oldest first."""
        count = min(count, self._size)
        newest = self._newest()[max(0, self._n_open - count) : self._n_open]
        return np.concatenate((self._of_ring(count - len(newest)), newest))

    def retract(self, count: int) -> None:
        """Forget the newest rows: older ones, as far as the ring reaches, are the newest again."""
        count = min(count, self._size)
        self._size -= count
        of_ring = max(0, count - self._n_open)
        self._n_open -= count - of_ring
        self._kept -= of_ring
        self._next = (self._next - of_ring) % max(1, self._room)

    def clear(self) -> None:
        """Forget all rows."""
        self._n_open = self._kept = self._next = self._size = 0

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

    def admit(self, X: Rows, outliers: Sequence[int]) -> Rows:
        """Return which of the rows X of shape (m, d), some of them outliers, train later models."""
        beyond, out = set(outliers), []
        flags = self._left_out
        for i in range(len(X)):
            if len(flags) == self._capacity:
                self._n_left_out -= flags[0]
                self._before.append(flags[0])
            leave = i in beyond and self._n_left_out < self._most
            flags.append(leave)
            if leave:
                self._n_left_out += 1
                out.append(i)
        self.newest.extend(X)
        return np.delete(np.asarray(X), out, axis=0) if out else X

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
