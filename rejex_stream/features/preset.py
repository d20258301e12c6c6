"""Ready-made columns, so that one word describes a sensor; made for a batch of readings at once.

Every number is a sum of a fixed tree over its own window, never one carried along: a spike leaves
no trace once it is out of the window, and no cut into batches changes a bit. Readings that come one
by one go the same way without numpy (:class:`NewestRows`): a call of numpy costs as much as the
arithmetic of several channels, so such a reading is added to sums kept from those before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt
from operator import add, sub
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rejex_stream.types import FloatArray

__all__ = ["AT_ONCE", "FILLING", "MISSING", "PRESETS", "PresetName", "RecentRows", "blocks_of"]

Block: TypeAlias = tuple[str, int | None]
"""A kind of feature and its span in events, for every channel."""

_Lists: TypeAlias = dict[int, list[float]]
_ROLLING: Final = ("mean", "deviation", "std")

PresetName: TypeAlias = Literal["raw", "sensor", "lags", "sensor_lags", "seasonal"]
PRESETS: Final[tuple[str, ...]] = get_args(PresetName)
AT_ONCE: Final = ("sensor", "lags", "sensor_lags")
"""Presets whose rows are made for a batch at once."""

FEW_CHANNELS: Final = 10
_LONG, _MIDDLE, _SHORT = 24, 10, 6
_MOST_COLUMNS = 64  # of lags: a covariance of a window's rows must be worth estimating
_LONGEST, _LEAST = 32, 2
FILLING, MISSING = -1, -2
_CALLS, _ALONE, _STAY = 8, 64, 200
"""A reading costs as much as that many channels and its own; up to so much is done one by one, or
where the sums for it are kept already, for to make them anew costs more than what is saved."""


def blocks_of(preset: str, n_channels: int) -> tuple[Block, ...]:
    """Return the columns of a preset, each a block of one column a channel.

    ``sensor``: level, difference, level minus its mean over 24 events, mean over 10, standard
    deviation over 24, and with at most ten channels that over 6 and the mean over 24. ``lags``:
    level and its past, as many events (2 to 32) as make 64 columns. ``sensor_lags``: both.
    ``raw``: level.
    """
    level: Block = ("raw", None)
    if preset not in AT_ONCE:
        return (level,)
    shape: tuple[Block, ...] = (level,)
    if preset != "lags":
        shape += (("difference", 1), ("deviation", _LONG), ("mean", _MIDDLE), ("std", _LONG))
        if n_channels <= FEW_CHANNELS:
            shape += (("std", _SHORT), ("mean", _LONG))
    if preset != "sensor":
        length = max(_LEAST, min(_LONGEST, _MOST_COLUMNS // n_channels))
        shape += tuple(("lag", k) for k in range(1, length))
    return shape


class Part(NamedTuple):
    """How the sums over a span come of those over its two parts, the newer 2^k readings long.

    With S and Q the sum of a part and of its squares around its mean, for a older and b newer
    readings, Q = Q_a + Q_b + w (r S_a - S_b)², where r = b / a and w = a / (b (a + b)). Nothing is
    subtracted that is not a difference by itself, so no digits are lost (T. Chan, G. Golub, R.
    LeVeque: *Updating formulae and a pairwise algorithm for computing sample variances*, 1979).
    """

    span: int
    older: int
    newer: int
    ratio: float
    weight: float
    is_summed: bool
    is_squared: bool


def parts_of(blocks: Iterable[Block]) -> list[Part]:
    """Return the parts of all windows that blocks want, a part before what is made of it."""
    summed, squared = {1}, {1}
    for kind, span in blocks:
        if kind in _ROLLING and span is not None:
            (squared if kind == "std" else summed).add(span)
    for span in range(max(summed | squared), 1, -1):
        halves = _halves(span)
        if span in summed:
            summed.update(halves)
        if span in squared:
            squared.update(halves)
            summed.update(halves)
    made = []
    for span in sorted((summed | squared) - {1}):
        a, b = _halves(span)
        made.append(Part(span, a, b, b / a, a / (b * span), span in summed, span in squared))
    return made


def _halves(span: int) -> tuple[int, int]:
    newer = 1 << ((span - 1).bit_length() - 1)
    return span - newer, newer


def reach_of(kind: str, span: int | None) -> int:
    """Return how many readings before the current one a column looks at."""
    if span is None:
        return 0
    return span if kind in ("lag", "difference") else span - 1


class NewestRows:
    """The sums that end at the newest readings, and the row they make.

    Notes
    -----
    O(d log span) a reading. Of the two parts of a window the newer was made just now, the older
    when its own last reading came, and is kept from then.
    """

    __slots__ = ("_blocks", "_reach", "_squares", "_steps", "_sums")

    def __init__(self, blocks: Sequence[Block], past: Sequence[list[float]]) -> None:
        self._blocks, self._reach = blocks, len(past)
        parts = parts_of(blocks)
        useful = {1: self._reach}  # for how many readings the sums over a span are
        for part in parts:
            useful[part.older] = max(useful.get(part.older, 0), part.newer)
        # What is before the past is in no sum that a row is made of.
        nothing = [0.0] * len(past[0])
        self._sums, self._squares = (
            {span: deque([nothing] * (n + 1), n + 1) for span, n in useful.items()} for _ in "sq"
        )
        # With each part the sums of its older half, and where its own are kept, if they are.
        self._steps = [
            (part, self._sums[part.older], self._squares[part.older],
             self._sums.get(part.span), self._squares.get(part.span))
            for part in parts
        ]  # fmt: skip
        for reading in past:
            self._add(reading)

    def past(self) -> list[list[float]]:
        """Return the readings that the next row looks back at, oldest first."""
        return list(self._sums[1])[-self._reach :]

    def add(self, reading: list[float]) -> list[float]:
        """Return the row of the next reading, shape (d,), whose values are finite floats."""
        sums, squares = self._add(reading)
        earlier = self._sums[1]
        row: list[float] = []
        for kind, span in self._blocks:
            if span is None:
                row += reading
            elif kind == "lag":
                row += earlier[-1 - span]
            elif kind == "difference":
                row += map(sub, reading, earlier[-1 - span])
            elif kind == "mean":
                row += [total / span for total in sums[span]]
            elif kind == "deviation":
                row += [x - s / span for x, s in zip(reading, sums[span], strict=False)]
            else:
                count = span - 1
                row += [sqrt(square / count) for square in squares[span]]
        return row

    def _add(self, reading: list[float]) -> tuple[_Lists, _Lists]:
        """Return by span the sums up to a reading, and of squares around their mean."""
        self._sums[1].append(reading)
        sums = {1: reading}
        squares = {1: self._squares[1][0]}
        for part, kept, kept_squares, own, own_squares in self._steps:
            span, _, b, ratio, weight, is_summed, is_squared = part
            older, newer = kept[-1 - b], sums[b]
            if is_squared:
                apart = zip(kept_squares[-1 - b], squares[b], older, newer, strict=False)
                squares[span] = made = [
                    p + q + (gap := x * ratio - y) * gap * weight for p, q, x, y in apart
                ]
                if own_squares is not None:
                    own_squares.append(made)
            if is_summed:
                sums[span] = made = [*map(add, older, newer)]
                if own is not None:
                    own.append(made)
        return sums, squares


class RecentRows:
    """Rows of one sensor, made of its newest readings.

    Notes
    -----
    O(d log span) a reading; keeps the readings that the longest span reaches back to.
    """

    __slots__ = ("_age", "_blocks", "_carry", "_last", "_newest", "_partial", "_parts", "_past",
                 "_picked", "_reach")  # fmt: skip

    def __init__(
        self,
        blocks: Sequence[Block],
        n_channels: int,
        carry_forward_events: int,
        picked: Sequence[int] | None = None,
        *,
        partial: bool = False,
    ) -> None:
        self._blocks, self._carry = tuple(blocks), carry_forward_events
        self._picked, self._partial = picked, partial
        self._parts = parts_of(blocks)
        self._reach = max(reach_of(kind, span) for kind, span in blocks)
        self._past: FloatArray = np.empty((0, n_channels))
        self._last: FloatArray = np.full(n_channels, np.nan)
        self._age = np.zeros(n_channels, dtype=np.int64)
        self._newest: NewestRows | None = None  # where it is, it knows the past, and these do not

    def extract(self, values: Sequence[Sequence[float]]) -> tuple[FloatArray, list[int]]:
        """Return the rows that readings make, and for each reading which row is its own.

        `values` of shape (m, d), in order, are not finite where missing; a reading with a missing
        value that is not carried forward leaves no trace. The rows, of shape (k, p) with k <= m,
        are infinite or nan where arithmetic cannot hold a number; an index is ``FILLING`` before
        the first row, or ``MISSING``. With `partial`, once the windows are full: what is missing
        leaves no trace in the windows of its own channel, whose columns are nan, and the others go
        on; only where nothing is there is a reading ``MISSING``.
        """
        if self._picked is not None:
            values = [[reading[i] for i in self._picked] for reading in values]
        if self._is_cheaper_alone(len(values)) and self._goes_alone(sum(map(sum, values))):
            assert self._newest is not None  # or none would
            add = self._newest.add
            found = [add([*map(float, reading)]) for reading in values]
            return np.array(found), [*range(len(found))]
        self._put_down()
        self._newest = None
        return self._at_once(values)

    def next_row(self, values: Sequence[float], total: float) -> list[float] | None:
        """Return the row of one reading as plain floats, bit for bit that of :meth:`extract`.

        ``None``, and nothing has happened, where that is to be asked. O(d log span).
        """
        if self._picked is not None:
            values = [values[i] for i in self._picked]
            total = sum(values)
        if not (self._is_cheaper_alone(1) and self._goes_alone(total)):
            return None
        assert self._newest is not None  # or it would not
        return self._newest.add([*map(float, values)])

    def _is_cheaper_alone(self, count: int) -> bool:
        """Whether so many readings cost less one by one."""
        cost: int = count * (_CALLS + self._past.shape[1])
        return cost <= (_ALONE if self._newest is None else _STAY)

    def _goes_alone(self, total: float) -> bool:
        """Whether readings with such a sum have a row each, one by one."""
        if total - total != 0.0:  # something is missing, or the sum overflowed
            return False
        if self._newest is None:
            if len(self._past) < max(1, self._reach):
                return False
            self._newest = NewestRows(self._blocks, self._past.tolist())
        return True

    def _put_down(self) -> None:
        """Note the past in arrays, where it was gone through one by one."""
        if self._newest is not None:
            self._past = np.array(self._newest.past())
            self._last = self._past[-1]
            self._age[:] = 0

    def _at_once(self, values: Sequence[Sequence[float]]) -> tuple[FloatArray, list[int]]:
        readings = np.array(values, dtype=np.float64)
        present = np.isfinite(readings)
        if not self._partial or present.all():
            return self._whole(readings, present)
        # A reading at a time until the windows are full, wherever a batch is cut.
        done, rows, found = 0, list[FloatArray](), list[int]()
        while done < len(readings) and len(self._past) < self._reach:
            row, which = self._whole(readings[done : done + 1], present[done : done + 1])
            found += [sum(map(len, rows)) if one == 0 else one for one in which]
            rows.append(row)
            done += 1
        if done < len(readings):
            row, which = self._parts_of_readings(readings[done:], present[done:])
            before = sum(map(len, rows))
            found += [before + one if one >= 0 else one for one in which]
            rows.append(row)
        return np.concatenate(rows), found

    def _parts_of_readings(
        self, readings: FloatArray, present: npt.NDArray[np.bool_]
    ) -> tuple[FloatArray, list[int]]:
        """Make rows in which the windows of each channel hold what was there of it."""
        for i, (reading, there) in enumerate(zip(readings, present, strict=True)):
            self._age = np.where(there, 0, self._age + 1)
            self._last = np.where(there, reading, self._last)
            present[i] = self._age <= self._carry
            readings[i] = self._last
        some = np.asarray(present.any(axis=1))
        readings, present, d = readings[some], present[some], readings.shape[1]
        which = np.full(len(some), MISSING)
        which[some] = np.arange(len(readings))
        rows = np.full((len(readings), len(self._blocks) * d), np.nan)
        past, alike = self._past.copy(), dict[bytes, list[int]]()
        for channel in range(d):  # those that are there at the same readings go together
            alike.setdefault(present[:, channel].tobytes(), []).append(channel)
        with np.errstate(all="ignore"):
            for channels in alike.values():
                at = np.flatnonzero(present[:, channels[0]])
                if not len(at):
                    continue
                window = np.concatenate((past[:, channels], readings[at][:, channels]))
                made = self._rows(window, len(at))
                made[np.isnan(made)] = np.inf  # what overflows is not what is missing
                columns = [j * d + c for j in range(len(self._blocks)) for c in channels]
                rows[at[:, None], columns] = made
                past[:, channels] = window[len(window) - self._reach :]
        self._past = past
        return rows, which.tolist()

    def _whole(
        self, readings: FloatArray, present: npt.NDArray[np.bool_]
    ) -> tuple[FloatArray, list[int]]:
        which = np.full(len(readings), FILLING, dtype=np.int64)
        if present.all():
            self._last = readings[-1]
            self._age[:] = 0
        else:
            readable = self._carried(readings, present)
            which[~readable] = MISSING
            readings = readings[readable]
        window = np.concatenate((self._past, readings))
        count = max(0, len(window) - self._reach)
        read = np.flatnonzero(which != MISSING)
        which[read[len(read) - count :]] = np.arange(count)
        if self._reach:
            self._past = window[-self._reach :].copy()
        found = which.tolist()
        if not count:
            return np.empty((0, len(self._blocks) * window.shape[1])), found
        with np.errstate(all="ignore"):  # what overflows is unscorable, and said so by the caller
            return self._rows(window, count), found

    def _carried(
        self, readings: FloatArray, present: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Fill gaps in place with the newest values; returns which readings are whole."""
        readable = np.ones(len(readings), dtype=np.bool_)
        for i, (reading, there) in enumerate(zip(readings, present, strict=True)):
            self._age = np.where(there, 0, self._age + 1)
            self._last = np.where(there, reading, self._last)
            readings[i] = self._last
            readable[i] = (self._age <= self._carry).all() and not np.isnan(self._last).any()
        return readable

    def _rows(self, window: FloatArray, count: int) -> FloatArray:
        reach, d = self._reach, window.shape[1]
        rows = np.empty((count, len(self._blocks) * d))
        sums, squares = self._windows(window)
        now = window[reach:]
        for j, (kind, span) in enumerate(self._blocks):
            block = rows[:, j * d : (j + 1) * d]
            if span is None:
                block[:] = now
            elif kind == "lag":
                block[:] = window[reach - span : reach - span + count]
            elif kind == "difference":
                np.subtract(now, window[reach - span : reach - span + count], out=block)
            elif kind == "std":
                np.sqrt(squares[span][-count:] / (span - 1), out=block)
            else:
                np.divide(sums[span][-count:], span, out=block)
                if kind == "deviation":
                    np.subtract(now, block, out=block)
        return rows

    def _windows(self, window: FloatArray) -> tuple[dict[int, FloatArray], dict[int, FloatArray]]:
        """Return by span the sums of so many consecutive readings, and of squares around the mean.

        Entry i ends at reading i + span - 1.
        """
        sums, squares = {1: window}, {1: np.zeros_like(window)}
        for span, a, b, ratio, weight, is_summed, is_squared in self._parts:
            count = len(window) - span + 1
            older, newer = sums[a][:count], sums[b][a:]
            if is_squared:
                gap = older * ratio
                gap -= newer
                gap *= gap
                gap *= weight
                squares[span] = squares[a][:count] + squares[b][a:]
                squares[span] += gap
            if is_summed:
                sums[span] = older + newer
        return sums, squares

    def snapshot(self) -> list[Any]:
        """Return the state as plain values for :meth:`restore`."""
        self._put_down()
        return [self._last.tolist(), self._age.tolist(), self._past.tolist()]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over the state of :meth:`snapshot`, made of the same columns."""
        last, age, past = snapshot
        self._newest = None
        d = self._past.shape[1]
        self._last = np.array(last, dtype=np.float64)
        self._age = np.array(age, dtype=np.int64)
        self._past = np.array(past, dtype=np.float64).reshape(-1, d)
