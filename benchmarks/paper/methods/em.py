"""Em: excess mass (Goix 2016)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import Outcome
from benchmarks.paper.methods.recipe import reject_by_metric
from benchmarks.paper.metrics import excess_mass

__all__ = ["run"]


def run(cell: Cell) -> Outcome:
    """Reject where the accepted examples have more excess mass than the rejected ones."""
    part = cell.volume
    pairs = list(zip(part["scores"], part["uniform"], strict=True))

    def metric(chosen: npt.NDArray[np.bool_], _: float) -> float:
        return float(np.mean([excess_mass(scores[chosen], uniform) for scores, uniform in pairs]))

    return reject_by_metric(cell, metric, part.cpu_s)
