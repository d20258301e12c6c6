"""Ready-made columns, so that one word describes a sensor; made for a batch of readings at once.

Every number is a sum of a fixed tree over its own window, never one carried along: a spike leaves
no trace once it is out of the window, and no cut into batches changes a bit. Readings that come one
by one go the same way without numpy (:class:`NewestRows`): a call of numpy costs as much as the
arithmetic of several channels, so such a reading is added to sums kept from those before.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, cycle
from math import sqrt
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
_RING = 32  # readings: as many as the longest span reaches back to, and the newest
FILLING, MISSING = -1, -2
_CALLS, _ALONE, _STAY = 8, 64, 200
"""A reading costs as much as that many channels and its own; up to so much is done one by one, or
where the sums for it are kept already, for to make them again costs more than what is saved."""


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


def _places_from(at: int) -> tuple[int, ...]:
    """Return where a channel finds what in its rings, and where it goes on (`NewestRows`)."""
    looked = (
        (0, (0, 1)), (1, (0, 2, 4, 8)), (2, (0, 2, 4)), (3, (0, 4)), (4, (0, 4)), (5, (0, 8, 16)),
        (6, (0, 8, 16)),
    )  # fmt: skip
    places = [_RING * ring + (at - ago) % _RING for ring, agos in looked for ago in agos]
    return (*places, (at + 1) % _RING)


_PLACES = [_places_from(at) for at in range(_RING)]


class NewestRows:
    """The sums that end at the newest readings of each channel, and the row they make.

    The tree of :class:`Part` for the presets' own spans, written out on plain floats. A channel
    goes by the readings that it is in: without one, its windows stay and its columns are nan.

    Notes
    -----
    O(d log span) a reading. Of the two parts of a window the newer was made just now, the older
    when its own last reading came, and is kept from then in a ring.
    """

    __slots__ = ("_n_lags", "_next", "_reach", "_rings", "_rolls")

    def __init__(self, blocks: Sequence[Block], past: Sequence[list[float]]) -> None:
        self._reach = len(past)
        self._rolls = ("std", _LONG) in blocks
        self._n_lags = sum(kind == "lag" for kind, _ in blocks)
        # What is before the past is in no sum that a row is made of.
        nothing = bytes(8 * _RING * (7 if self._rolls else 1))
        self._rings = [array("d", nothing) for _ in past[0]]
        self._next = [0] * len(self._rings)  # where in its rings a channel goes on
        for reading in past:
            self.add(reading)

    def past(self) -> list[list[float]]:
        """Return the readings of each channel that its next row looks back at, oldest first."""
        by_channel = [self._before(c)[_RING - self._reach :] for c in range(len(self._rings))]
        return [list(reading) for reading in zip(*by_channel, strict=True)]

    def _before(self, channel: int) -> array[float]:
        """Return the newest readings of a channel, oldest first."""
        ring, at = self._rings[channel], self._next[channel]
        return ring[at:_RING] + ring[:at]

    def add(self, reading: Sequence[float]) -> list[float]:
        """Return the row of the next reading, shape (d,): finite floats, or nan where missing."""
        row, after, n = [*reading], self._next, self._n_lags
        lags = []
        if n:  # nan is not nan
            lags = [
                self._before(c)[: -1 - n : -1] if x == x else [math.nan] * n  # noqa: PLR0124
                for c, x in enumerate(reading)
            ]
        if self._rolls:
            row += self._rolled(reading)
        else:
            for c, x in enumerate(reading):
                if x == x:  # noqa: PLR0124
                    self._rings[c][after[c]] = x
                    after[c] = (after[c] + 1) % _RING
        row += chain.from_iterable(zip(*lags, strict=True))
        return row

    def _rolled(self, reading: Sequence[float]) -> list[float]:
        """Return what rolls: differences, deviations, means and standard deviations."""
        after = self._next
        columns = [list[float]() for _ in range(6)]
        changes, apart, middle, spread, short, mean = columns
        for c, (x, ring) in enumerate(zip(reading, self._rings, strict=True)):
            if x != x:  # noqa: PLR0124
                for column in columns:
                    column.append(math.nan)
                continue
            (
                now, ago1, s2, s2_ago2, s2_ago4, s2_ago8, q2, q2_ago2, q2_ago4, s4, s4_ago4,
                q4, q4_ago4, s8, s8_ago8, s8_ago16, q8, q8_ago8, q8_ago16, after[c],
            ) = _PLACES[after[c]]  # fmt: skip
            before = ring[ago1]
            ring[now] = x
            ring[s2] = sum2 = before + x
            gap = before - x
            ring[q2] = square2 = gap * gap * 0.5
            older = ring[s2_ago2]
            gap = older - sum2
            ring[s4] = sum4 = older + sum2
            ring[q4] = square4 = ring[q2_ago2] + square2 + gap * gap * 0.25
            older = ring[s4_ago4]
            gap = older - sum4
            ring[s8] = sum8 = older + sum4
            ring[q8] = square8 = ring[q4_ago4] + square4 + gap * gap * 0.125
            older = ring[s8_ago8]
            gap = older - sum8
            sum16, square16 = older + sum8, ring[q8_ago8] + square8 + gap * gap * 0.0625
            older = ring[s8_ago16]
            gap = older * 2.0 - sum16
            mean24 = (older + sum16) / 24
            changes.append(x - before)
            apart.append(x - mean24)
            middle.append((ring[s2_ago8] + sum8) / 10)
            spread.append(sqrt((ring[q8_ago16] + square16 + gap * gap * (8 / (16 * 24))) / 23))
            gap = ring[s2_ago4] * 2.0 - sum4
            short.append(sqrt((ring[q2_ago4] + square4 + gap * gap * (2 / (4 * 6))) / 5))
            mean.append(mean24)
        rolled = [*changes, *apart, *middle, *spread]
        return rolled + short + mean if len(reading) <= FEW_CHANNELS else rolled


class RecentRows:
    """Rows of one sensor, made of its newest readings.

    Notes
    -----
    O(d log span) a reading; keeps the readings that the longest span reaches back to.
    """

    __slots__ = ("_age", "_blocks", "_carry", "_last", "_newest", "_partial", "_parts", "_past",
                 "_picked", "_young", "reach")  # fmt: skip

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
        total = sum(map(sum, values)) if self._is_cheaper_alone(len(values)) else math.nan
        if total - total == 0.0 and (newest := self._begun()) is not None:
            self._is_whole(values[-1])
            add = newest.add
            found = np.array([add([*map(float, reading)]) for reading in values])
            found[np.isnan(found)] = np.inf  # what overflows is not what is missing
            return found, [*range(len(found))]
        self._put_down()
        self._newest = None
        return self._at_once(values)

    def next_row(self, values: Sequence[float], total: float) -> list[float] | None:
        """Return the row of one reading as plain floats, bit for bit that of :meth:`extract`.

        It is ``[inf]`` where the reading is ``MISSING``. ``None``, and nothing has happened, where
        :meth:`extract` is to be asked. O(d log span).
        """
        if self._picked is not None:
            values = [values[i] for i in self._picked]
            total = sum(values)
        if not self._is_cheaper_alone(1) or (newest := self._begun()) is None:
            return None
        if total - total == 0.0:
            self._is_whole(values)
            return newest.add([*map(float, values)])
        # Something is missing, or the sum overflowed.
        there = [*map(math.isfinite, values)]
        age = [0 if ok else old + 1 for ok, old in zip(there, self._age, strict=True)]
        last = [new if ok else old for ok, new, old in zip(there, values, self._last, strict=True)]
        self._age, self._last = age, last
        filled = [
            float(x) if old <= self._carry else math.nan for x, old in zip(last, age, strict=True)
        ]
        missing = [*map(math.isnan, filled)]
        if all(missing) if self._partial else any(missing):
            return [math.inf]
        return [
            math.inf if x != x and not lacks else x  # noqa: PLR0124 - what overflows is not missing
            for x, lacks in zip(newest.add(filled), cycle(missing), strict=False)
        ]

    @property
    def lacks(self) -> bool:
        """Whether the newest reading may have lacked something, so that nan says what."""
        return self._age is not self._young

    def _is_whole(self, reading: Sequence[float]) -> None:
        """Note that a reading lacks nothing."""
        self._last, self._age = reading, self._young

    def _is_cheaper_alone(self, count: int) -> bool:
        """Whether so many readings cost less one by one."""
        cost: int = count * (_CALLS + self._past.shape[1])
        return cost <= (_ALONE if self._newest is None else _STAY)

    def _begun(self) -> NewestRows | None:
        """Return what makes rows one by one, once the windows are full."""
        if self._newest is None and len(self._past) >= max(1, self.reach):
            self._newest = NewestRows(self._blocks, self._past.tolist())
        return self._newest

    def _put_down(self) -> None:
        """Note the past in arrays, where it was gone through one by one."""
        if self._newest is not None:
            self._past = np.array(self._newest.past())

    def _at_once(self, values: Sequence[Sequence[float]]) -> tuple[FloatArray, list[int]]:
        readings, n_past = np.array(values, dtype=np.float64), len(self._past)
        present = np.isfinite(readings)
        enter = np.asarray(present.all(axis=1))
        if enter.all():
            self._is_whole(readings[-1].tolist())
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
        self._put_down()
        return [[*map(float, self._last)], [*map(int, self._age)], self._past.tolist()]

    def restore(self, snapshot: list[Any]) -> None:
        """Take over the state of :meth:`snapshot`, made of the same columns."""
        last, age, past = snapshot
        self._newest = None
        d = self._past.shape[1]
        self._last = np.array(last, dtype=np.float64).tolist()
        self._age = np.array(age, dtype=np.int64).tolist()
        self._past = np.array(past, dtype=np.float64).reshape(-1, d)
