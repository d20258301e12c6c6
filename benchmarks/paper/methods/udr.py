"""Udr: consistency across detectors.

S. Duan et al., "Unsupervised Model Selection for Variational Disentangled Representation
Learning", ICLR 2020. Udr prefers the hyperparameter whose models agree across seeds. The paper's
analogy is [hyperparameter, seed] ~ [threshold, detector]: at a threshold, every detector splits the
examples by its own margin, and the metric is the median, over the other detectors, of the rank
correlation between its scores and ours on the examples that both put on the same side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import Outcome
from benchmarks.paper.methods.recipe import reject_by_metric
from benchmarks.paper.metrics import spearman

__all__ = ["run"]


def run(cell: Cell) -> Outcome:
    """Reject where the detectors agree more on the accepted examples than on the rejected ones."""
    rows = cell.metric_rows
    own = cell.fit["train"][rows]
    scores = [peer.fit["train"][rows] for peer in cell.others]
    margins = [peer.metric_margin for peer in cell.others]
    margin = cell.metric_margin

    def metric(chosen: npt.NDArray[np.bool_], threshold: float) -> float:
        accepting = bool((margin[chosen] > threshold).any())
        agreement = []
        for theirs, their_margin in zip(scores, margins, strict=True):
            both = chosen & ((their_margin > threshold) == accepting)
            agreement.append(spearman(own[both], theirs[both]))
        return float(np.median(agreement))

    return reject_by_metric(cell, metric, cell.ensemble_cpu_s)
