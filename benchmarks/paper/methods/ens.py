"""Ens: agreement with an ensemble as pseudo ground truth (Rayana, Akoglu 2016; Zimek et al. 2014).

The pseudo ground truth is the mean rank that the detector and all others give an example; the
metric is the rank correlation of the detector's scores with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import Outcome
from benchmarks.paper.methods.recipe import reject_by_metric
from benchmarks.paper.metrics import mean_ranks, spearman

__all__ = ["run"]


def run(cell: Cell) -> Outcome:
    """Reject where the ensemble confirms the accepted examples more than the rejected ones."""
    rows = cell.metric_rows
    own = cell.fit["train"][rows]
    ranks = [mean_ranks(peer.fit["train"][rows]) for peer in (cell, *cell.others)]
    truth = np.mean(ranks, axis=0)

    def metric(chosen: npt.NDArray[np.bool_], _: float) -> float:
        return spearman(own[chosen], truth[chosen])

    return reject_by_metric(cell, metric, cell.ensemble_cpu_s)
