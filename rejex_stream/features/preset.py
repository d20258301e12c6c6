"""Ready-made columns, so that one word describes a sensor; made for a batch of readings at once.

Every number is a sum of a fixed tree over its own window, never one carried along: a spike leaves
no trace once it is out of the window, and no cut into batches changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from rejex_stream.types import FloatArray

__all__ = ["AT_ONCE", "FILLING", "MISSING", "PRESETS", "PresetName", "RecentRows", "blocks_of"]

Block: TypeAlias = tuple[str, int | None]
"""A kind of feature and its span in events, for every channel."""

PresetName: TypeAlias = Literal["raw", "sensor", "lags", "sensor_lags", "sensor_seasonal"]
PRESETS: Final[tuple[str, ...]] = get_args(PresetName)
AT_ONCE: Final = ("sensor", "lags", "sensor_lags", "sensor_seasonal")
"""Presets whose rows are made for a batch at once."""

FEW_CHANNELS: Final = 10
_LONG, _MIDDLE, _SHORT = 24, 10, 6
_MAX_COLUMNS = 64  # of lags: a covariance of a window's rows must be worth estimating
_MAX_LAGS, _MIN_LAGS = 32, 2
FILLING, MISSING = -1, -2
NOISE_OF = _LONG - 1  # readings, which every state of a sensor with such columns keeps
_SD = 1 / (0.6745 * math.sqrt(20))  # of noise, by the median size of its third differences


def blocks_of(preset: str, n_channels: int) -> tuple[Block, ...]:
    """Return the columns of a preset, each a block of one column a channel.

    ``sensor``: level, difference, level minus its mean over 24 events, mean over 10, standard
    deviation over 24, and with at most ten channels that over 6 and the mean over 24. ``lags``:
    level and its past, as many events (2 to 32) as make 64 columns. ``sensor_lags``: both.
    ``sensor_seasonal``: ``sensor``, and the phases of the calendar beside it. ``raw``: level.
    """
    level: Block = ("raw", None)
    if preset not in AT_ONCE:
        return (level,)
    shape: tuple[Block, ...] = (level,)
    if preset != "lags":
        shape += (("difference", 1), ("deviation", _LONG), ("mean", _MIDDLE), ("std", _LONG))
        if n_channels <= FEW_CHANNELS:
            shape += (("std", _SHORT), ("mean", _LONG))
    if preset in ("lags", "sensor_lags"):
        length = max(_MIN_LAGS, min(_MAX_LAGS, _MAX_COLUMNS // n_channels))
        shape += tuple(("lag", k) for k in range(1, length))
    return shape


def reach_of(kind: str, span: int | None) -> int:
    """Return how many readings before the current one a column looks at."""
    if span is None:
        return 0
    return span if kind in ("lag", "difference", "siblings") else span - 1


def _rolled(window: FloatArray, count: int) -> dict[tuple[str, int], FloatArray]:
    """Return means and standard deviations over the spans that end at the last readings.

    With S and Q the sum of a part and of its squares around its mean, for a older and b newer
    readings, Q = Q_a + Q_b + w (r S_a - S_b)², where r = b / a and w = a / (b (a + b)). Nothing is
    subtracted that is not a difference by itself, so no digits are lost (T. Chan, G. Golub, R.
    LeVeque: *Updating formulae and a pairwise algorithm for computing sample variances*, 1979).
    """
    step, d, begin = window.strides[0], window.shape[1], len(window) - count - _LONG + 1
    shape, strides = (count, _LONG, d), (step, *window.strides)
    x = np.ndarray(shape, np.float64, window, begin * step, strides)

    def join(older: FloatArray, newer: FloatArray, ratio: float, weight: float) -> FloatArray:
        both = older + newer
        gap = (older[0] if ratio == 1.0 else older[0] * ratio) - newer[0]
        gap *= gap
        gap *= weight
        squares = both[1]
        squares += gap
        return both

    twos = np.empty((2, count, _LONG // 2, d))
    older, newer, gap = x[:, ::2], x[:, 1::2], twos[1]
    np.add(older, newer, out=twos[0])
    np.subtract(older, newer, out=gap)
    gap *= gap
    gap *= 0.5
    fours = join(twos[:, :, ::2], twos[:, :, 1::2], 1.0, 0.25)
    eights = join(fours[:, :, ::2], fours[:, :, 1::2], 1.0, 0.125)
    newest = join(eights[:, :, 1], eights[:, :, 2], 1.0, 0.0625)
    whole, squares = join(eights[:, :, 0], newest, 2.0, 8 / (16 * 24))
    short = join(twos[:, :, 9], fours[:, :, 5], 2.0, 2 / (4 * 6))[1]
    return {
        ("mean", _LONG): whole / _LONG,
        ("mean", _MIDDLE): (twos[0, :, 7] + eights[0, :, 2]) / _MIDDLE,
        ("std", _LONG): np.sqrt(squares / (_LONG - 1)),
        ("std", _SHORT): np.sqrt(short / (_SHORT - 1)),
    }


def noise_of(past: FloatArray) -> list[float]:
    """Return the standard deviation of each channel's noise, of readings of shape (m, d)."""
    with np.errstate(all="ignore"):
        for _ in range(3):  # np.diff does the same in many more calls
            past = past[1:] - past[:-1]
        sizes = np.abs(past)
        sizes.sort(axis=0)  # nan last: there a reading is missing, or beyond all that is finite
        middle: FloatArray = _SD * (sizes[len(sizes) // 2] + 0.0 * sizes[-1])
    return list(map(float, middle))


class RecentRows:
    """Rows of one sensor, made of its newest readings.

    Notes
    -----
    O(d log span) a reading; keeps the readings that the longest span reaches back to.
    """

    __slots__ = ("_age", "_blocks", "_carry", "_last", "_partial", "_past", "_picked",
                 "_young", "reach")  # fmt: skip

    def __init__(
        self, blocks: Sequence[Block], n_channels: int, carry_forward_events: int,
        picked: Sequence[int] | None = None, *, partial: bool = False,
    ) -> None:  # fmt: skip
        self._blocks, self._carry = tuple(blocks), carry_forward_events
        self._picked, self._partial = picked, partial
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
        if n_past == self.reach and present.all():  # mostly
            self._last, self._age = readings[-1].tolist(), self._young
            with np.errstate(all="ignore"):
                window = np.concatenate((self._past, readings))
                rows, self._past = self._rows(window, len(readings))
            return rows, [*range(len(rows))]
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
        with np.errstate(all="ignore"):  # what overflows is unscorable, and said so by the caller
            if present.all():
                return self._rows(np.concatenate((past, levels)), len(levels))
            alike = dict[bytes, list[int]]()
            for channel in range(d):  # those that are there at the same readings go together
                alike.setdefault(present[:, channel].tobytes(), []).append(channel)
            rows, after = np.full((len(levels), n * d), np.nan), past.copy()
            for channels in alike.values():
                at = np.flatnonzero(present[:, channels[0]])
                if not len(at):
                    continue
                window = np.concatenate((past[:, channels], levels[at][:, channels]))
                made, after[:, channels] = self._rows(window, len(at))
                rows[at[:, None], [j * d + c for j in range(n) for c in channels]] = made
        return rows, after

    def _rows(self, window: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
        """Return the rows of the last readings of a window, and what the next ones look back at."""
        first = len(window) - count
        blocks, now = list[FloatArray](), window[first:]
        rolled = _rolled(window, count) if ("std", _LONG) in self._blocks else {}
        for kind, span in self._blocks:
            if span is None:
                blocks.append(now)
            elif kind == "lag":
                blocks.append(window[first - span : first - span + count])
            elif kind == "difference":
                blocks.append(now - window[first - span : first - span + count])
            elif kind == "deviation":
                blocks.append(now - rolled["mean", span])
            else:
                blocks.append(rolled[kind, span])
        rows: FloatArray = np.concatenate(blocks, axis=1)
        rows[np.isnan(rows)] = np.inf  # what overflows is not what is missing
        return rows, window[len(window) - self.reach :].copy()

    def noise(self) -> list[float]:
        """Return the standard deviation of each channel's noise; nan where it is not known."""
        if len(self._past) < NOISE_OF:
            return [math.nan] * len(self._young)
        return noise_of(self._past[-NOISE_OF:])

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
