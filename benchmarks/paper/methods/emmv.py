"""Em and Mv as they were probably run: public code for them, fed with scores of the other sign.

Goix's formulas want scores that are high for what is normal. The public package ``emmv`` (and
Goix's own code) takes a model's ``decision_function``, which has that sign in scikit-learn, and the
opposite one in PyOD, with which the paper's detectors were run. The level sets are then those of
the most *anomalous* rows. The package draws a box around whatever rows it is given, in all columns,
and averages EM over volumes up to 100 boxes, MV over masses .9 to .999; thresholds on a confidence
lie in [0, 1]. A side with fewer than two rows has nothing to measure and counts zero.

Likely, not proven: the paper's code for these two baselines is not public.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import Outcome
from benchmarks.paper.methods.recipe import reject_by_metric
from benchmarks.paper.metrics import excess_mass, mass_volume

__all__ = ["POINTS", "run_em", "run_mv"]

Array = npt.NDArray[np.float64]

POINTS = 1000
"""Uniform points in each box (the package: 10,000); two boxes a threshold."""
_BOXES, _MASSES = 100.0, 0.099


def run_em(cell: Cell) -> Outcome:
    """Reject where the accepted rows have more mean excess mass, of upside-down level sets."""
    return _run(cell, lambda up, uniform, box: excess_mass(up, uniform, least=0.0) / _BOXES)


def run_mv(cell: Cell) -> Outcome:
    """Reject where the accepted rows have less mean mass volume, of upside-down level sets."""
    return _run(cell, lambda up, uniform, box: -mass_volume(up, uniform) * box / _MASSES)


def _run(cell: Cell, measure: Callable[[Array, Array, float], float]) -> Outcome:
    started = time.process_time()
    rows = cell.fold.X_train[cell.metric_rows]
    scores = cell.fit["train"][cell.metric_rows]
    unit = np.random.default_rng(cell.seed + 3).random((POINTS, rows.shape[1]))

    def metric(chosen: npt.NDArray[np.bool_], _: float) -> float:
        if np.count_nonzero(chosen) < 2:
            return 0.0
        low, width = rows[chosen].min(axis=0), np.ptp(rows[chosen], axis=0)
        uniform = cell.scorer.score(low + unit * width)
        # Our level sets hold what is low; theirs, given PyOD's scores, what is high.
        return measure(-scores[chosen], -uniform, float(np.prod(width)))

    return reject_by_metric(cell, metric, time.process_time() - started, (0.0, 1.0))
