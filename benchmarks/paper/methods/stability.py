"""Stability: how much refits move the ranks (Perini, Galvin, Vercruyssen 2020)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import Outcome
from benchmarks.paper.methods.recipe import reject_by_metric

__all__ = ["run"]


def run(cell: Cell) -> Outcome:
    """Reject where the accepted examples have steadier ranks than the rejected ones."""
    part = cell.instability
    points = part["points"]

    def metric(chosen: npt.NDArray[np.bool_], _: float) -> float:
        return 1.0 - float(points[chosen].mean())

    return reject_by_metric(cell, metric, part.cpu_s)
