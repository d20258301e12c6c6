"""Slow drift: a conformal jumper martingale against a frozen reference, over any number of models.

A sliding window absorbs slow drift by design, so ranks within it cannot show it. Here the levels of
5 windows of events are frozen, and later ones are ranked among *them*. Levels, not scores: models
come and go every two windows, and a score means nothing to the next one
(:mod:`rejex_stream.monitor.score_level` says how a level is carried over a swap).

1. *Collect*. The reference keeps its time order until it is full; then it is cut into 250 cells of
   equal mass, and its own autocorrelation is measured (block variances, as in
   :mod:`rejex_stream.monitor.inflation`). A change that comes later cannot disturb that figure.
2. *Watch*. Each level's mid p-value p has mean 1/2 under exchangeability. Means of p over groups
   of 4 VIF events (at least 8) are nearly independent, and are bet on: the factor is
   1 + e x - |e| m, with x = mean p - baseline, stakes e in {0, ±0.85, ±1.7} and a margin m of 2.5
   standard errors of the baseline. Capital jumps between the stakes at rate 0.01 a group; a
   Shiryaev-Roberts sum over starting points makes it a detector, which raises its alarm at L.
3. *Swap*. The reference stays. That the new model orders the rows of the window in another way than
   the old one makes levels uncertain by the error of a mean of n: with rank correlation c between
   the two models its variance is 2 (1 - c) VIF / (12 n). The margin allows for c = 0.65: seven
   detectors on rows of normal numbers had .8 to .99 (KNN and LOF in one dimension .5 and less).
   Such errors would add up without end, so until they are settled the baseline, 1/2 at first,
   follows the stream with a memory of 8 windows: what takes much longer than that is not called
   drift while models are refitted. Without refits the baseline never moves.
4. *Re-snapshot*. After an alarm a new reference is collected: for that long the monitor is blind,
   and says so.

Why levels, and not raw rows that each new model scores again: a monitor reads verdicts alone, so it
works on a file of them as in a run, costs no scoring (5 windows of rows a swap would cost more than
all other scores between two swaps) and holds numbers instead of rows, whatever the number of
features. The price is the wider margin. Levels are a function of the verdicts in order, so the same
whatever the batches, and all of it travels in snapshots.

What carries the guarantee: for exchangeable scores and a baseline that lies within the margin
(about 99 % of them), the expected statistic grows by at most one an event: about one false alarm
per L events. For autocorrelated scores, and over swaps, that is a heuristic, checked by simulation.
Models that rank live rows among scores of their training rows (``calibration = "training"``) shift
all levels at every swap: no guarantee holds there. If the reference is worth fewer than 100
independent scores, nothing is watched: *too autocorrelated to tell*, until a reference taken after
a later swap says more. A season longer than the reference is drift, as far as the reference can
know.

References
----------
.. [1] V. Vovk et al.: Retrain or not retrain: conformal test martingales for change-point
   detection. COPA 2021.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.monitor.alarm import Alternative
from rejex_stream.monitor.config import LEAST_REFERENCE, MonitorConfig
from rejex_stream.monitor.score_level import LevelScale, LevelState

__all__ = ["DriftDetector", "DriftState"]

_CELLS = 250
_STAKES = (-1.7, -0.85, 0.0, 0.85, 1.7)  # 1.7 (1/2 + margin) < 1: capital stays positive
_JUMP = 0.01
_GROUP_VIFS = 4
_MIN_GROUP = 8
_MARGIN_SD = 2.5
_MOST = 0.98 / 1.7
_AGREEMENT = 0.65  # rank correlation of two models in a row that the margin allows for
_MEMORY_WINDOWS = 8
_SETTLED = 0.01  # swaps: what is left of one after eighteen windows
_BLOCKS_PER_WINDOW = (20, 5, 2, 1)
_MOST_WAITING = 32


class DriftState(msgspec.Struct):
    """The scale, the reference (in time order while it is collected, then its quantiles), capital.

    Levels and quantiles are little-endian whole numbers of 4 bytes. Constant size: 4 bytes a row of
    the window, and as many an event of the reference while it is collected, 1 kB later.
    """

    scale: LevelState
    collecting: bytes
    quantiles: bytes
    group: int
    error: float
    step: float
    swaps: float
    inflation: float
    tells: bool
    baseline: float
    capital: list[float]
    seen: int
    cells: int

    def __post_init__(self) -> None:
        """Refuse a reference that could not be one."""
        numbers = (self.error, self.step, self.swaps, self.baseline, *self.capital)
        if (
            len(self.collecting) % 4
            or len(self.quantiles) not in {0, 4 * (_CELLS - 1)}
            or len(self.capital) != len(_STAKES)
            or (self.group > 0) != bool(self.quantiles)
            or not 0 <= self.seen < max(1, self.group)
            or not 0.0 <= min(numbers) <= max(numbers) < math.inf
        ):
            raise ValueError("the drift reference is out of order")


class DriftDetector:
    """Watches one stream's scores for slow drift.

    Parameters
    ----------
    config
        Length of the reference, n and L.

    Notes
    -----
    O(log cells) an event; about 2 ms once, when the reference is full. Nothing can be said between
    two bets, so scores wait until the next one is due, 32 at most, and are placed together: what
    is asked for meanwhile is answered as if each had been placed at once.

    Examples
    --------
    >>> import random
    >>> rng = random.Random(1)
    >>> drift = DriftDetector(MonitorConfig(window=200, contamination=0.1, tolerance=8))
    >>> any(drift.update(rng.gauss(0, 1), 0, 0, 200) for _ in range(20_000)), drift.status
    (False, 'watching')
    >>> ramp = (drift.update(rng.gauss(t / 1000, 1), 0, 0, 200) for t in range(5_000))
    >>> str(next(alarm for alarm in ramp if alarm))
    'higher_scores'
    """

    __slots__ = (
        "_baseline",
        "_capital",
        "_cells",
        "_collecting",
        "_due",
        "_error",
        "_group",
        "_inflation",
        "_limit",
        "_quantiles",
        "_scale",
        "_seen",
        "_step",
        "_swaps",
        "_tells",
        "_waiting",
        "_window",
        "margin",
        "reference_events",
    )

    def __init__(self, config: MonitorConfig) -> None:
        self.reference_events = config.drift_reference
        self._window = config.window
        self._limit = config.false_alarm_events
        self._scale = LevelScale(config.window)
        self._waiting: list[float] = []
        self._inflation = 0.0  # not measured yet
        self._collect()

    def _collect(self) -> None:
        """Begin a new reference."""
        self._collecting, self._quantiles = array("I"), array("I")
        self._group = 0
        self._error = self._step = self._swaps = self.margin = 0.0
        self._tells = True
        self._baseline = 0.5
        self._seen = 0
        self._cells = 0
        self._capital = [0.0] * len(_STAKES)
        self._due = 0  # so many scores are placed together; 0: each needs its rank

    def update(self, score: float, below: int, ties: int, rows: int) -> Alternative | None:
        """Count one finite score; return in which direction levels drifted, if they did.

        Parameters
        ----------
        score, below, ties, rows
            As :meth:`LevelScale.place` is told.
        """
        if self._due:
            self._waiting.append(score)
            return None if len(self._waiting) < self._due else self._place()
        if not self.reference_events:
            return None
        scale = self._scale
        began = bool(scale.rows)
        level = scale.place(score, below, ties, rows)
        if level is None:
            return None
        if not began:  # the first window belongs to the reference
            self._collecting.extend(list(scale.rows)[:-1])
        return self._count([level])

    def _place(self) -> Alternative | None:
        """Place the scores that wait: an alarm comes of them only where the last one was due."""
        waiting, self._waiting = self._waiting, []
        return self._count(self._scale.place_by_score(waiting)) if waiting else None

    def _count(self, levels: Collection[int]) -> Alternative | None:
        """Count levels, the last of which completes a group or the reference at most."""
        moved = None
        if self._group:
            quantiles, cells = self._quantiles, self._cells
            end = len(quantiles)
            for level in levels:
                cell = bisect_left(quantiles, level)
                # Twice the mid cell: under ties it may lie anywhere in a run of equal quantiles.
                if cell < end and quantiles[cell] == level:
                    cells += cell + bisect_right(quantiles, level, cell)
                else:
                    cells += cell + cell
            self._cells = cells
            self._seen += len(levels)
            if self._seen == self._group:
                moved = self._bet()
        elif self._tells:
            self._collecting.extend(levels)
            if len(self._collecting) >= self.reference_events:
                self._freeze()
        self._due = self._next_due()
        return moved

    def _next_due(self) -> int:
        """Return after how many scores there is something to say, or enough to do."""
        if not self._scale.scores_tell:
            return 0
        if self._group:
            return min(self._group - self._seen, _MOST_WAITING)
        if self._tells:
            return max(1, min(self.reference_events - len(self._collecting), _MOST_WAITING))
        return _MOST_WAITING

    def swap(self) -> None:
        """Note that another model speaks from the next event on."""
        self._place()
        self._scale.swap()
        self._due = self._next_due()
        if not self._group:
            if not self._tells:
                self._collect()  # it may say more by now
            # Those before the swap are that share of the reference.
            self._swaps += (len(self._collecting) / max(1, self.reference_events)) ** 2
            return
        self._swaps += 1.0
        self.margin = self._margin_now()

    def follow(self, score: float, below: int, ties: int, rows: int) -> None:
        """Take note of a row that entered the window and is not judged."""
        if self.reference_events:
            self._place()
            self._scale.place(score, below, ties, rows)
            self._due = self._next_due()

    def lose(self) -> None:
        """Begin anew: after an alarm, and where a row entered the window without a rank."""
        self._inflation = 0.0
        self._waiting = []
        self._collect()
        self._scale.lose()

    def _bet(self) -> Alternative | None:
        group, margin = self._group, self.margin
        p = (self._cells / (2 * group) + 0.5) / (len(self._quantiles) + 1)
        # Within the limits capital stays positive; without a swap no mean of p leaves them.
        most = max(0.0, _MOST - margin)
        x = min(max(p - self._baseline, -most), most)
        self._cells = self._seen = 0
        # One unit enters per event, so that the expected sum is the number of events.
        if self._swaps > _SETTLED:
            kept = math.exp(-group / (_MEMORY_WINDOWS * self._window))
            self._baseline += (1.0 - kept) * (p - self._baseline)
            self._swaps *= kept * kept
            self.margin = self._margin_now()
        enter = (_JUMP * math.fsum(self._capital) + group) / len(_STAKES)
        self._capital = capital = [
            ((1.0 - _JUMP) * c + enter) * (1.0 + stake * x - abs(stake) * margin)
            for c, stake in zip(self._capital, _STAKES, strict=True)
        ]
        if math.fsum(capital) < self._limit:
            return None
        up = capital[3] + capital[4] >= capital[0] + capital[1]
        self.lose()
        return Alternative.HIGHER_SCORES if up else Alternative.LOWER_SCORES

    def _freeze(self) -> None:
        levels = np.array(self._collecting, dtype=np.int64)
        ranks = np.arange(1, _CELLS) * (levels.size + 1) // _CELLS
        cuts = np.sort(levels)[np.maximum(ranks, 1) - 1]
        low, high = np.searchsorted(cuts, levels, "left"), np.searchsorted(cuts, levels, "right")
        doubled = low + high  # whole numbers, so that every machine computes the same reference
        factor = _block_inflation(doubled, self._window)
        # One that says too little is followed by others: what counts is their mean, at least.
        self._inflation = max(factor, (factor + (self._inflation or factor)) / 2)
        effective = levels.size / self._inflation
        del self._collecting[:]
        self._tells = effective >= LEAST_REFERENCE
        if not self._tells:
            return
        self._quantiles = array("I", cuts.tolist())
        self._group = max(_MIN_GROUP, math.ceil(_GROUP_VIFS * self._inflation))
        variance = _variance(doubled) / (2 * _CELLS) ** 2
        self._error = variance / effective
        self._step = 2.0 * (1.0 - _AGREEMENT) * variance * self._inflation / self._window
        self.margin = self._margin_now()

    def _margin_now(self) -> float:
        # The cells are a little coarser than the ranks: half a cell more.
        return _MARGIN_SD * math.sqrt(self._error + self._swaps * self._step) + 0.5 / _CELLS

    @property
    def inflation(self) -> float | None:
        """The reference's own variance inflation, >= 1; ``None`` before it was measured."""
        return self._inflation or None

    @property
    def status(self) -> Literal["off", "collecting", "watching", "too autocorrelated to tell"]:
        """What the monitor does at the moment."""
        if not self.reference_events:
            return "off"
        if self._group:
            return "watching"
        return "too autocorrelated to tell" if self._inflation else "collecting"

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the SR statistic; the alarm comes at log L."""
        total = math.fsum(self._capital)
        return math.log(total) if total > 0.0 else -math.inf

    @property
    def state(self) -> DriftState:
        """All that has to be kept."""
        self._place()
        return DriftState(
            scale=self._scale.state,
            collecting=np.array(self._collecting, "<u4").tobytes(),
            quantiles=np.array(self._quantiles, "<u4").tobytes(),
            group=self._group,
            error=self._error,
            step=self._step,
            swaps=self._swaps,
            inflation=self._inflation,
            tells=self._tells,
            baseline=self._baseline,
            capital=list(self._capital),
            seen=self._seen,
            cells=self._cells,
        )

    def restore(self, state: DriftState) -> None:
        """Go on from a state."""
        self.lose()
        self._scale.restore(state.scale)
        self._collecting.extend(np.frombuffer(state.collecting, "<u4").tolist())
        self._quantiles.extend(np.frombuffer(state.quantiles, "<u4").tolist())
        self._group, self._error, self._step = state.group, state.error, state.step
        self._swaps, self._inflation, self._tells = state.swaps, state.inflation, state.tells
        self._baseline = state.baseline
        self._capital = list(state.capital)
        self._seen, self._cells = state.seen, state.cells
        self.margin = self._margin_now() if self._group else 0.0
        self._due = self._next_due() if self.reference_events else 0


def _block_inflation(values: npt.NDArray[np.int64], window: int) -> float:
    """Return the largest ratio of a block sum's variance to that of independent values, >= 1."""
    variance = _variance(values)
    if variance == 0.0:
        return 1.0
    factor = 1.0
    for blocks_per_window in _BLOCKS_PER_WINDOW:
        length = max(1, window // blocks_per_window)
        count = values.size // length
        if count >= 4:
            sums = values[: count * length].reshape(count, length).sum(axis=1)
            factor = max(factor, _variance(sums) * count / (count - 1) / (length * variance))
    return factor


def _variance(values: npt.NDArray[np.int64]) -> float:
    total = int(values.sum())
    squares = int((values * values).sum())
    return (values.size * squares - total * total) / values.size**2
