"""Where a score stands, on a scale that outlives the model that gave it.

A score means nothing to the next model. What two models share are the rows: at a swap the new one
ranks each event among the same rows of the window that the old one has scored. So levels are
carried from row to row. After a swap an event that ranks between two rows of the window gets the
middle of their levels, one above all of them the middle between the largest and the end of the
scale; as soon as a quarter of a window is known in this way, the model's own scores tell the level
of every other. Shares of low and of high levels among the last n rows thus stay what they were.

The scale begins with one window of one model's scores, at even distances. Levels are whole numbers
of 32 bits: 4 bytes a row, and the same on every machine.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["SCALE", "LevelScale", "LevelState"]

SCALE = 1 << 32
"""End of the scale: levels lie within 0 and this."""

_QUARTER = 4  # of a window is placed by rank after a swap


class LevelState(msgspec.Struct):
    """Levels of the window's rows, and scores with their levels; little-endian, 8 or 4 bytes each.

    `met` is true while the pairs are still too few to speak for other scores.
    """

    rows: bytes
    scores: bytes
    levels: bytes
    met: bool

    def __post_init__(self) -> None:
        """Refuse pairs that could not be some."""
        known, new = len(self.scores) // 8, len(self.levels) // 4
        if len(self.rows) % 4 or len(self.scores) % 8 or len(self.levels) % 4 or known < new:
            raise ValueError("the levels are out of order")
        if (known != new or not (known or self.met)) and (new or self.rows):
            raise ValueError("the levels are out of order")


class LevelScale:
    """Gives the events of one stream their levels.

    Parameters
    ----------
    window
        n, the most rows a window has.

    Attributes
    ----------
    rows
        Levels of the window's rows, oldest first; empty until the scale has begun.

    Notes
    -----
    O(log n) an event; up to n numbers are moved for each of the n/4 after a swap. 20 bytes a row.

    Examples
    --------
    >>> scale = LevelScale(4)
    >>> [scale.place(score, 0, 0, 4) for score in (0.3, 0.1, 0.2)]  # the first window
    [None, None, None]
    >>> scale.place(0.4, 3, 0, 4) / SCALE, [level / SCALE for level in scale.rows]
    (0.875, [0.625, 0.125, 0.375, 0.875])
    >>> scale.place(0.35, 3, 0, 4) / SCALE           # between 0.625 and 0.875
    0.7499999997671694
    >>> scale.swap()
    >>> scale.place(-71.0, 4, 0, 4) / SCALE          # above all rows, by a model of other scores
    0.9375
    """

    __slots__ = ("_levels", "_met", "_scores", "_sorted", "_window", "rows")

    def __init__(self, window: int) -> None:
        self._window = window
        self.lose()

    def lose(self) -> None:
        """Begin anew: with the next event, or since a row entered the window unseen."""
        self.rows: deque[int] = deque()
        self._sorted: list[int] = []  # rows in order, between a swap and the end of its quarter
        # Scores of the first window in time order, else in their own; with their levels.
        self._scores, self._levels = array("d"), array("I")
        self._met = False

    def swap(self) -> None:
        """Note that another model gives the next score."""
        self._scores, self._levels = array("d"), array("I")
        self._met = bool(self.rows)
        self._sorted = sorted(self.rows)

    def place(self, score: float, below: int, ties: int, rows: int) -> int | None:
        """Return the level of the next row of the window; ``None`` while the scale begins.

        Parameters
        ----------
        score
            By the model that speaks.
        below, ties
            Rows of the window with a smaller, and with the same score; of use after a swap.
        rows
            Length of the window that the event is ranked in.
        """
        known = self.rows
        if not known:
            return self._begin(score)
        if self._met:
            if not 1 <= rows <= len(known):  # unheard of: these rows were never seen
                self.lose()
                return self._begin(score)
            return self._by_rank(score, below, ties, rows)
        return self.place_by_score((score,))[0]

    def _begin(self, score: float) -> int | None:
        scores = self._scores
        scores.append(score)
        if len(scores) < self._window:
            return None
        as_came, unit = np.array(scores), 2 * len(scores)
        ordered = np.sort(as_came, kind="stable")
        places = ordered.searchsorted(as_came, "left") + ordered.searchsorted(as_came, "right")
        levels = places * SCALE // unit  # equal ones share the middle of their places
        self.rows = deque(levels.tolist())
        self._scores = array("d", ordered.tobytes())
        self._levels = array("I", _packed(np.sort(levels)))
        return self.rows[-1]

    def _by_rank(self, score: float, below: int, ties: int, rows: int) -> int:
        known, ordered = self.rows, self._sorted
        while len(known) > rows:
            del ordered[bisect_left(ordered, known.popleft())]
        low, high = (below, below + ties - 1) if ties > 0 else (below - 1, below)
        a = ordered[min(low, rows - 1)] if low >= 0 else 0
        b = ordered[max(high, 0)] if high < rows else SCALE
        level = (a + b) >> 1
        known.append(level)
        insort(ordered, level)
        if len(known) > self._window:
            del ordered[bisect_left(ordered, known.popleft())]
        insort(self._scores, score)
        insort(self._levels, level)
        if _QUARTER * len(self._scores) >= self._window:
            self._met, self._sorted = False, []
        return level

    @property
    def scores_tell(self) -> bool:
        """Whether the model's own scores tell the level of every other."""
        return bool(self.rows) and not self._met

    def place_by_score(self, new: Iterable[float]) -> list[int]:
        """Return the levels of the next rows, where :attr:`scores_tell`. O(log n) each."""
        scores, levels, found = self._scores, self._levels, list[int]()
        end = len(scores)
        for score in new:
            at = bisect_left(scores, score)
            if at == end:
                level = (levels[-1] + SCALE) >> 1
            elif (high := scores[at]) == score:
                level = (levels[at] + levels[bisect_right(scores, score, at) - 1]) >> 1
            elif not at:
                level = levels[0] >> 1
            else:
                low, a, b = scores[at - 1], levels[at - 1], levels[at]
                share = (score - low) / (high - low)  # nan where that is beyond all numbers
                level = a + int((b - a) * share) if 0.0 <= share <= 1.0 else (a + b) >> 1
            found.append(level)
        known = self.rows
        known.extend(found)
        for _ in range(len(known) - self._window):
            known.popleft()
        return found

    @property
    def state(self) -> LevelState:
        """All that has to be kept."""
        return LevelState(
            rows=_packed(self.rows),
            scores=np.array(self._scores, "<f8").tobytes(),
            levels=_packed(self._levels),
            met=self._met,
        )

    def restore(self, state: LevelState) -> None:
        """Go on from a state."""
        self.rows = deque(np.frombuffer(state.rows, "<u4").tolist())
        self._scores = array("d", np.frombuffer(state.scores, "<f8").tolist())
        self._levels = array("I", np.frombuffer(state.levels, "<u4").tolist())
        self._met = state.met
        self._sorted = sorted(self.rows) if state.met else []


def _packed(levels: Sequence[int] | npt.NDArray[np.int64]) -> bytes:
    return np.array(levels, "<u4").tobytes()
