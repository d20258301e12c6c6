"""Ready-made columns, so that one word describes a sensor; made for a batch of readings at once.

Every number is a sum of a fixed tree over its own window, never one carried along: a spike leaves
no trace once it is out of the window, and no cut into batches changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rejex_stream.types import FloatArray

__all__ = ["AT_ONCE", "FILLING", "MISSING", "PRESETS", "PresetName", "RecentRows", "blocks_of"]

Block: TypeAlias = tuple[str, int | None]
"""A kind of feature and its span in events, for every channel."""

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


class RecentRows:
    """Rows of one sensor, made of its newest readings.

    Notes
    -----
    O(d log span) a reading; keeps the readings that the longest span reaches back to.
    """

    __slots__ = ("_age", "_blocks", "_carry", "_last", "_partial", "_parts", "_past", "_picked",
                 "_young", "reach")  # fmt: skip

    def __init__(
        self, blocks: Sequence[Block], n_channels: int, carry_forward_events: int,
        picked: Sequence[int] | None = None, *, partial: bool = False,
    ) -> None:  # fmt: skip
        self._blocks, self._carry = tuple(blocks), carry_forward_events
        self._picked, self._partial = picked, partial
        self._parts = parts_of(blocks)
        self.reach = max(reach_of(kind, span) for kind, span in blocks)
        self._past: FloatArray = np.empty((0, n_channels))
        self._last: Sequence[float] | FloatArray = [math.nan] * n_channels
        self._young = (0,) * n_channels
        self._age: Sequence[int] | npt.NDArray[np.int64] = self._young

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
        readings, n_past = np.array(values, dtype=np.float64), len(self._past)
        present = np.isfinite(readings)
        enter = np.asarray(present.all(axis=1))
        if enter.all():
            self._last, self._age = readings[-1].tolist(), self._young
        else:
            for i, (reading, there) in enumerate(zip(readings, present, strict=True)):
                self._age = np.where(there, 0, np.add(self._age, 1))
                self._last = np.where(there, reading, self._last)
                present[i] = (self._age <= self._carry) & ~np.isnan(self._last)
                readings[i] = np.where(present[i], self._last, np.nan)
            enter = np.asarray(present.all(axis=1))
            if self._partial:  # once the windows are full, wherever a batch is cut
                is_full = n_past + np.cumsum(enter) - enter >= self.reach
                enter |= is_full & present.any(axis=1)
            readings = readings[enter]
        empty = np.full((self.reach - n_past, readings.shape[1]), np.nan)
        rows, past = self.made_of(np.concatenate((empty, self._past)), readings)
        filling = min(len(empty), len(readings))
        self._past = past[len(empty) - filling :]
        which = np.full(len(enter), MISSING)
        which[enter] = np.maximum(np.arange(-filling, len(readings) - filling), FILLING)
        return rows[filling:], which.tolist()

    def made_of(self, past: FloatArray, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the rows of levels of shape (m, d), nan where missing, and the levels after them.

        `past` of shape (reach, d) are those before. The state is not looked at: rows can be made
        again, bit for bit.
        """
        present, d, n = ~np.isnan(levels), levels.shape[1], len(self._blocks)
        alike = dict[bytes, list[int]]()
        for channel in range(d):  # those that are there at the same readings go together
            alike.setdefault(present[:, channel].tobytes(), []).append(channel)
        rows, after = np.full((len(levels), n * d), np.nan), past.copy()
        with np.errstate(all="ignore"):  # what overflows is unscorable, and said so by the caller
            for channels in alike.values():
                at = np.flatnonzero(present[:, channels[0]])
                if not len(at):
                    continue
                window = np.concatenate((past[:, channels], levels[at][:, channels]))
                made = self._rows(window, len(at))
                made[np.isnan(made)] = np.inf  # what overflows is not what is missing
                after[:, channels] = window[len(window) - self.reach :]
                if len(channels) == d and len(at) == len(levels):
                    return made, after
                columns = [j * d + c for j in range(n) for c in channels]
                rows[at[:, None], columns] = made
        return rows, after

    def _rows(self, window: FloatArray, count: int) -> FloatArray:
        reach, d = self.reach, window.shape[1]
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
        """Return by span the sums of so many readings in a row, and of squares around the mean."""
        # Entry i ends at reading i + span - 1.
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
        return [[*map(float, self._last)], [*map(int, self._age)], self._past.tolist()]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over the state of :meth:`snapshot`, made of the same columns."""
        last, age, past = snapshot
        d = self._past.shape[1]
        self._last = np.array(last, dtype=np.float64).tolist()
        self._age = np.array(age, dtype=np.int64).tolist()
        self._past = np.array(past, dtype=np.float64).reshape(-1, d)
