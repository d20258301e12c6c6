"""The ranks of a block of scores, known before the first of them is pushed.

A score's rank counts the window as it stood when the block began, and what entered and left since:
the first by one binary search for all, the others by comparing a short block with itself.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rejex_stream.rejection.window import ScoreWindow
from rejex_stream.types import FloatArray

__all__ = ["SHORTEST", "WindowAhead"]

SHORTEST = 48
"""Setting out costs more than it saves for fewer scores."""
_BLOCK = 128  # of which 2 x 128 places fit a byte, and counts up to 127 a signed one
_EARLIER = np.tri(_BLOCK, k=-1, dtype=np.int8)  # whether score j came before score i


class WindowAhead:
    """A full :class:`~rejex_stream.rejection.window.ScoreWindow` about to take known scores.

    It answers as the window would that takes one after the other, bit for bit; the window takes
    them when :meth:`settle` is called, in one go.

    Parameters
    ----------
    window
        Full; not to be changed by anybody else meanwhile.
    scores
        Finite; what :meth:`push` is going to be called with, in that order.
    top
        How many of the largest scores will be asked for, mostly; more takes longer.

    Attributes
    ----------
    ranks
        What ``window.rank(score)`` is before each push.

    Notes
    -----
    For m scores O(m (log n + b) + n m / b log n) in a few calls of numpy, b = 128. Of the window,
    only its upper end is kept up to date: there lie the order statistics that a verdict shows.

    Examples
    --------
    >>> window = ScoreWindow(4, [0.1, 0.4, 0.2, 0.3])
    >>> ahead = WindowAhead(window, [0.9, 0.25], top=2)
    >>> ahead.ranks
    [(4, 4), (1, 1)]
    >>> ahead.push(0.9), ahead.order_statistic(4)
    (0.1, 0.9)
    >>> ahead.settle()
    >>> window.scores()
    [0.4, 0.2, 0.3, 0.9]
    """

    __slots__ = (
        "_at", "_left", "_scores", "_settled", "_tail", "_tails", "_window", "capacity", "ranks",
    )  # fmt: skip

    def __init__(self, window: ScoreWindow, scores: Sequence[float], top: int) -> None:
        self._window, self.capacity = window, window.capacity
        n, m = window.capacity, len(scores)
        self._scores = np.concatenate((window.in_order(), scores)) + 0.0
        self._left: list[float] = self._scores[:m].tolist()
        self._at = self._settled = 0
        self._tails: list[list[float]] = []
        self.ranks: list[tuple[int, int]] = []
        for start in range(0, m, _BLOCK):
            base = np.sort(self._scores[start : start + n])
            entered = self._scores[n + start : n + start + _BLOCK]
            left = self._scores[start : start + len(entered)]
            self.ranks += _ranks(base, entered, left)
            self._tails.append(base[-min(n, top + len(entered)) :].tolist())
        self._tail = self._tails[0]

    def __len__(self) -> int:
        return self.capacity

    def push(self, score: float) -> float:
        """Add the next score; return the evicted one."""
        at = self._at
        if at % _BLOCK == 0:
            self._tail = self._tails[at // _BLOCK]
        evicted = self._left[at]
        self._at = at + 1
        tail = self._tail  # the largest of the window, however many
        if tail and evicted >= tail[0]:
            del tail[bisect_left(tail, evicted)]
        if tail and score >= tail[0]:
            insort(tail, score + 0.0)
        return evicted

    def order_statistic(self, k: int) -> float:
        """Return the k-th smallest score, k in 1..n."""
        from_top = self.capacity + 1 - k
        if from_top <= len(self._tail):
            return self._tail[-from_top]
        return self._caught_up().order_statistic(k)

    def largest(self, k: int) -> Sequence[float]:
        """Return the k largest scores in rising order, k in 1..n."""
        return self._tail[-k:] if k <= len(self._tail) else self._caught_up().largest(k)

    def rank(self, score: float) -> tuple[int, int]:
        """Return (#{window < score}, #{window <= score})."""
        return self._caught_up().rank(score)

    def _caught_up(self) -> ScoreWindow:
        """Return the window, which has taken what was pushed."""
        if self._settled < self._at:
            n = self.capacity
            self._window.push_all(self._scores[n + self._settled : n + self._at])
            self._settled = self._at
        return self._window

    def settle(self) -> None:
        """Let the window take what was pushed."""
        self._caught_up()


def _ranks(base: FloatArray, entered: FloatArray, left: FloatArray) -> list[tuple[int, int]]:
    """Return what is below and at or below each score when it enters and `left` leave, in turns.

    `base` are the sorted scores before, of which `left`, of as many as `entered`, are the oldest.
    """
    places = np.sort(np.concatenate((entered, left)))
    i, j = places.searchsorted(entered).astype(np.uint8), places.searchsorted(left).astype(np.uint8)
    earlier = _EARLIER[: len(i), : len(i)]

    def moved(compare: np.ufunc) -> npt.NDArray[np.int8]:
        """Return for each score how many more of those below it have entered than left."""
        came = compare(i, i[:, None]).view(np.int8)
        came -= compare(j, i[:, None]).view(np.int8)
        came *= earlier
        more: npt.NDArray[np.int8] = np.add.reduce(came, axis=1, dtype=np.int8)
        return more

    below = base.searchsorted(entered) + moved(np.less)
    at_or_below = base.searchsorted(entered, "right") + moved(np.less_equal)
    return [*zip(below.tolist(), at_or_below.tolist(), strict=True)]
