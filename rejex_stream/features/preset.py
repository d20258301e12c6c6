"""Ready-made columns, so that one word describes a sensor; made for a batch of readings at once.

Every number is a sum of a fixed tree over its own window, never one carried along: a spike leaves
no trace once it is out of the window, and no cut into batches changes a bit. Readings that come one
by one go the same way without numpy (:mod:`rejex_stream.features.row_builder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rejex_stream.features.row_builder import Block, NewestRows, parts_of, reach_of
from rejex_stream.types import FloatArray

__all__ = ["AT_ONCE", "FILLING", "MISSING", "PRESETS", "PresetName", "RecentRows", "blocks_of"]

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

    Examples
    --------
    >>> blocks_of("sensor", 11)
    (('raw', None), ('difference', 1), ('deviation', 24), ('mean', 10), ('std', 24))
    >>> len(blocks_of("lags", 1)), len(blocks_of("lags", 8)), len(blocks_of("lags", 50))
    (32, 8, 2)
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


class RecentRows:
    """Rows of one sensor, made of its newest readings.

    Parameters
    ----------
    blocks
        What :func:`blocks_of` returns.
    n_channels
        d.
    carry_forward_events
        For how many readings in a row the last value stands in for a missing one.
    picked
        Which d values of a reading are looked at; without it, a reading has d.

    Notes
    -----
    O(d log span) a reading; keeps the readings that the longest span reaches back to.

    Examples
    --------
    >>> rows = RecentRows((("raw", None), ("difference", 1)), 1, 0)
    >>> found, which = rows.extract([(1.0,), (float("nan"),), (3.0,), (6.0,)])
    >>> found.tolist(), which       # row of each reading; -1: filling, -2: missing
    ([[3.0, 2.0], [6.0, 3.0]], [-1, -2, 0, 1])
    """

    __slots__ = ("_age", "_blocks", "_carry", "_last", "_newest", "_parts", "_past", "_picked",
                 "_reach")  # fmt: skip

    def __init__(
        self,
        blocks: Sequence[Block],
        n_channels: int,
        carry_forward_events: int,
        picked: Sequence[int] | None = None,
    ) -> None:
        self._blocks, self._carry = tuple(blocks), carry_forward_events
        self._picked = picked
        self._parts = parts_of(blocks)
        self._reach = max(reach_of(kind, span) for kind, span in blocks)
        self._past: FloatArray = np.empty((0, n_channels))
        self._last: FloatArray = np.full(n_channels, np.nan)
        self._age = np.zeros(n_channels, dtype=np.int64)
        self._newest: NewestRows | None = None  # where it is, it knows the past, and these do not

    def extract(self, values: Sequence[Sequence[float]]) -> tuple[FloatArray, list[int]]:
        """Return the rows that readings make, and for each reading which row is its own.

        Parameters
        ----------
        values
            Shape (m, d), in order; not finite where missing. A reading with a missing value that
            is not carried forward leaves no trace.

        Returns
        -------
        rows
            Shape (k, p), k at most m; not finite where arithmetic cannot hold a number.
        which
            Of length m: index into `rows`, ``FILLING`` before the first or ``MISSING``.
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

        Parameters
        ----------
        values, total
            Shape (d,), and their sum.

        Examples
        --------
        >>> rows = RecentRows((("raw", None), ("difference", 1)), 1, 0)
        >>> rows.next_row((1.0,), 1.0), rows.extract([(1.0,)])[1], rows.next_row((3.0,), 3.0)
        (None, [-1], [3.0, 2.0])
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
        which = np.full(len(readings), FILLING, dtype=np.int64)
        present = np.isfinite(readings)
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
