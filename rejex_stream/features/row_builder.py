"""Rows of a preset one reading at a time, on plain floats, to the same bits as for many at once.

A call of numpy costs as much as the arithmetic of several channels. A batch shares the calls; a
reading that comes alone does not, so it is added to sums that were kept from the readings before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt
from operator import add, sub
from typing import Final, NamedTuple, TypeAlias

__all__ = ["Block", "NewestRows", "Part", "parts_of", "reach_of"]

Block: TypeAlias = tuple[str, int | None]
"""A kind of feature and its span in events, for every channel."""

_Lists: TypeAlias = dict[int, list[float]]
_ROLLING: Final = ("mean", "deviation", "std")


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
    """Return the parts of all windows that blocks want, a part before what is made of it.

    Examples
    --------
    >>> [part[:3] for part in parts_of([("std", 6)])]
    [(2, 1, 1), (4, 2, 2), (6, 2, 4)]
    """
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

    Parameters
    ----------
    blocks
        Columns of a preset, each for every channel.
    past
        The newest readings, as many as the longest column reaches back to, oldest first.

    Notes
    -----
    O(d log span) a reading. Of the two parts of a window the newer was made just now, the older
    when its own last reading came, and is kept from then.

    Examples
    --------
    >>> rows = NewestRows((("difference", 1), ("mean", 2), ("std", 2)), [[1.0, 5.0]])
    >>> rows.add([3.0, 5.0])
    [2.0, 0.0, 2.0, 5.0, 1.4142135623730951, 0.0]
    """

    __slots__ = ("_blocks", "_parts", "_reach", "_squares", "_sums")

    def __init__(self, blocks: Sequence[Block], past: Sequence[list[float]]) -> None:
        self._blocks, self._reach = blocks, len(past)
        self._parts = parts_of(blocks)
        useful = {1: self._reach}  # for how many readings the sums over a span are
        for part in self._parts:
            useful[part.older] = max(useful.get(part.older, 0), part.newer)
        # What is before the past is in no sum that a row is made of.
        nothing = [0.0] * len(past[0])
        self._sums, self._squares = (
            {span: deque([nothing] * (n + 1), n + 1) for span, n in useful.items()} for _ in "sq"
        )
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
        kept, kept_squares = self._sums, self._squares
        kept[1].append(reading)
        sums = {1: reading}
        squares = {1: kept_squares[1][0]}
        for span, a, b, ratio, weight, is_summed, is_squared in self._parts:
            older, newer = kept[a][-1 - b], sums[b]
            if is_squared:
                apart = zip(kept_squares[a][-1 - b], squares[b], older, newer, strict=False)
                squares[span] = made = [
                    p + q + (gap := x * ratio - y) * gap * weight for p, q, x, y in apart
                ]
                if span in kept_squares:
                    kept_squares[span].append(made)
            if is_summed:
                sums[span] = made = [*map(add, older, newer)]
                if span in kept:
                    kept[span].append(made)
        return sums, squares
