"""Em and Mv, read otherwise: Goix's own functions, called on the accepted and on the rejected rows.

Each side then has a box of its own, around its own rows, and volumes are absolute, not shares of a
common box. The paper does not say which reading it took; the report has the two side by side.
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

__all__ = ["run_em", "run_mv"]

Array = npt.NDArray[np.float64]

POINTS = 300
"""Uniform points in each box; a search asks for some 100 boxes a space."""
_NARROWEST = 1e-3
"""Least width of a box, of the width of all rows: a box without volume has no excess mass."""


def run_em(cell: Cell) -> Outcome:
    """Reject where the accepted rows have more excess mass in their box than the rejected ones."""
    return _run(cell, lambda scores, uniform, box: excess_mass(scores, uniform) / box)


def run_mv(cell: Cell) -> Outcome:
    """Reject where the accepted rows fill less volume in their box than the rejected ones."""
    return _run(cell, lambda scores, uniform, box: -mass_volume(scores, uniform) * box)


def _run(cell: Cell, measure: Callable[[Array, Array, float], float]) -> Outcome:
    started = time.process_time()
    rng = np.random.default_rng(cell.seed + 2)
    # The same points of the unit cube for every box: neighbouring thresholds then compare.
    sides = [
        (space, scores, rng.random((POINTS, space.rows.shape[1])), np.ptp(space.points, axis=0))
        for space, scores in zip(cell.spaces, cell.volume["scores"], strict=True)
    ]

    def metric(chosen: npt.NDArray[np.bool_], _: float) -> float:
        values = []
        for space, scores, unit, widest in sides:
            rows = space.rows[chosen]
            low = rows.min(axis=0)
            width = np.maximum(np.ptp(rows, axis=0), _NARROWEST * widest)
            uniform = cell.space_scorer(space).score(low + unit * width)
            values.append(measure(scores[chosen], uniform, float(np.prod(width))))
        return float(np.mean(values))

    cpu_s = cell.volume.cpu_s + time.process_time() - started
    return reject_by_metric(cell, metric, cpu_s)
