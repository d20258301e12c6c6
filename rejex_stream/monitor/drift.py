"""Slow drift: a conformal jumper martingale against a frozen reference of one model's scores.

A sliding window absorbs slow drift by design, so ranks within it cannot show it. Here the first
5 windows of a model's scores are frozen, and later scores are ranked among *them*.

1. *Collect*. The reference keeps its time order until it is full; then it is cut into 250 cells of
   equal mass, and its own autocorrelation is measured (block variances, as in
   :mod:`rejex_stream.monitor.inflation`). A change that comes later cannot disturb that figure.
2. *Watch*. Each score's mid p-value p has mean 1/2 under exchangeability. Means of p over groups
   of 4 VIF events (at least 8) are nearly independent, and are bet on: the factor is
   1 + e x - |e| m, with x = mean p - 1/2, stakes e in {0, ±0.85, ±1.7} and a margin m of 2.5
   standard errors of the reference's own mean, so that a small reference is not taken for drift
   however long the stream runs. Capital jumps between the stakes at rate 0.01 a group; a
   Shiryaev-Roberts sum over starting points makes it a detector, which raises its alarm at L.
3. *Re-snapshot*. After an alarm, and at every model swap, a new reference is collected: for that
   long the monitor is blind, and says so.

What carries the guarantee: for exchangeable scores and a reference whose mean lies within the
margin (about 99 % of references), the expected statistic grows by at most one an event: about one
false alarm per L events. For autocorrelated scores that is a heuristic, checked by simulation. If
the reference is worth fewer than 100 independent scores, nothing is watched: *too autocorrelated
to tell*. A season longer than the reference is drift, as far as the reference can know.

References
----------
.. [1] V. Vovk et al.: Retrain or not retrain: conformal test martingales for change-point
   detection. COPA 2021.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.monitor.alarm import Alternative
from rejex_stream.monitor.config import MonitorConfig

__all__ = ["DriftDetector", "DriftState"]

_CELLS = 250
_STAKES = (-1.7, -0.85, 0.0, 0.85, 1.7)  # 1.7 (1/2 + margin) < 1: capital stays positive
_JUMP = 0.01
_GROUP_VIFS = 4
_MIN_GROUP = 8
_MARGIN_SD = 2.5
_MIN_EFFECTIVE = 100
_BLOCKS_PER_WINDOW = (20, 5, 2, 1)


class DriftState(msgspec.Struct):
    """The reference (in time order while it is collected, then its quantiles), and the capital.

    Scores and quantiles are little-endian doubles. Constant size: 8 bytes a score while
    collecting, 2 kB later.
    """

    collecting: bytes
    quantiles: bytes
    group: int
    margin: float
    inflation: float
    capital: list[float]
    seen: int
    cells: int

    def __post_init__(self) -> None:
        """Refuse a reference that could not be one."""
        if (
            len(self.collecting) % 8
            or len(self.quantiles) not in {0, 8 * (_CELLS - 1)}
            or len(self.capital) != len(_STAKES)
            or (self.group > 0) != bool(self.quantiles)
            or not 0 <= self.seen < max(1, self.group)
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
    O(log cells) an event; about 2 ms once, when the reference is full.

    Examples
    --------
    >>> import random
    >>> rng = random.Random(1)
    >>> drift = DriftDetector(MonitorConfig(window=200, contamination=0.1, tolerance=8))
    >>> any(drift.update(rng.gauss(0, 1)) for _ in range(20_000)), drift.status
    (False, 'watching')
    >>> ramp = (drift.update(rng.gauss(t / 1000, 1)) for t in range(5_000))
    >>> str(next(alarm for alarm in ramp if alarm))
    'higher_scores'
    """

    __slots__ = (
        "_capital",
        "_cells",
        "_collecting",
        "_group",
        "_limit",
        "_margin",
        "_quantiles",
        "_seen",
        "_window",
        "inflation",
        "reference_events",
    )

    def __init__(self, config: MonitorConfig) -> None:
        self.reference_events = config.drift_reference
        self._window = config.window
        self._limit = config.false_alarm_events
        self.reset()

    def reset(self) -> None:
        """Begin a new reference, as at a model swap."""
        self._collecting = array("d")
        self._quantiles: list[float] = []
        self._group = 0
        self._margin = 0.0
        self.inflation: float | None = None
        self._seen = 0
        self._cells = 0
        self._capital = [0.0] * len(_STAKES)

    def update(self, score: float) -> Alternative | None:
        """Count one finite score; return in which direction the scores drifted, if they did."""
        group = self._group
        if group:
            quantiles = self._quantiles
            cell = bisect_left(quantiles, score)
            # Twice the mid cell: under ties the score may lie anywhere in a run of equal quantiles.
            if cell < len(quantiles) and quantiles[cell] == score:
                self._cells += cell + bisect_right(quantiles, score, cell)
            else:
                self._cells += cell + cell
            self._seen += 1
            return self._bet() if self._seen == group else None
        if not self.reference_events or self.inflation is not None:
            return None  # switched off, or too autocorrelated to tell
        self._collecting.append(score)
        if len(self._collecting) >= self.reference_events:
            self._freeze()
        return None

    def _bet(self) -> Alternative | None:
        group = self._group
        x = (self._cells / (2 * group) + 0.5) / (len(self._quantiles) + 1) - 0.5
        self._cells = self._seen = 0
        # One unit enters per event, so that the expected sum is the number of events.
        enter = (_JUMP * sum(self._capital) + group) / len(_STAKES)
        self._capital = capital = [
            ((1.0 - _JUMP) * c + enter) * (1.0 + stake * x - abs(stake) * self._margin)
            for c, stake in zip(self._capital, _STAKES, strict=True)
        ]
        if sum(capital) < self._limit:
            return None
        up = capital[3] + capital[4] >= capital[0] + capital[1]
        self.reset()
        return Alternative.HIGHER_SCORES if up else Alternative.LOWER_SCORES

    def _freeze(self) -> None:
        scores = np.frombuffer(self._collecting, dtype=np.float64)
        ranks = np.arange(1, _CELLS) * (scores.size + 1) // _CELLS
        cuts = np.sort(scores)[np.maximum(ranks, 1) - 1]
        low, high = np.searchsorted(cuts, scores, "left"), np.searchsorted(cuts, scores, "right")
        doubled = low + high  # whole numbers, so that every machine computes the same reference
        self.inflation = _block_inflation(doubled, self._window)
        effective = scores.size / self.inflation
        self._collecting = array("d")
        if effective < _MIN_EFFECTIVE:
            return
        self._quantiles = cuts.tolist()
        self._group = max(_MIN_GROUP, math.ceil(_GROUP_VIFS * self.inflation))
        # The cells are a little coarser than the ranks: half a cell more.
        spread = math.sqrt(_variance(doubled)) / (2 * _CELLS)
        self._margin = _MARGIN_SD * spread / math.sqrt(effective) + 0.5 / _CELLS

    @property
    def status(self) -> Literal["off", "collecting", "watching", "too autocorrelated to tell"]:
        """What the monitor does at the moment."""
        if not self.reference_events:
            return "off"
        if self._group:
            return "watching"
        return "collecting" if self.inflation is None else "too autocorrelated to tell"

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the SR statistic; the alarm comes at log L."""
        total = sum(self._capital)
        return math.log(total) if total > 0.0 else -math.inf

    @property
    def state(self) -> DriftState:
        """All that has to be kept."""
        return DriftState(
            collecting=_to_bytes(self._collecting),
            quantiles=_to_bytes(array("d", self._quantiles)),
            group=self._group,
            margin=self._margin,
            inflation=self.inflation or 0.0,
            capital=list(self._capital),
            seen=self._seen,
            cells=self._cells,
        )

    def restore(self, state: DriftState) -> None:
        """Go on from a state."""
        self._collecting = _from_bytes(state.collecting)
        self._quantiles = _from_bytes(state.quantiles).tolist()
        self._group, self._margin = state.group, state.margin
        self.inflation = state.inflation or None
        self._capital = list(state.capital)
        self._seen, self._cells = state.seen, state.cells


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


def _to_bytes(values: array[float]) -> bytes:
    return np.frombuffer(values, dtype=np.float64).astype("<f8").tobytes() if values else b""


def _from_bytes(blob: bytes) -> array[float]:
    return array("d", np.frombuffer(blob, dtype="<f8").astype(np.float64).tobytes())
