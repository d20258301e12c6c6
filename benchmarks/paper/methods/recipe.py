"""The recipe of the five metric-based baselines.

Scores → probabilities (Kriegel) → margin → the threshold on the margin at which the metric of the
accepted examples exceeds that of the rejected ones by most, in 50 calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.methods.outcome import ANY, Outcome, judge
from benchmarks.paper.search import maximise

__all__ = ["reject_by_metric", "threshold_range"]

_FEWEST = 2
"""Examples that either side must have for a metric to mean anything."""


def threshold_range(margin: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the thresholds that leave at least two examples on either side, or ``None``.

    An example is rejected iff its margin is at or below the threshold.
    """
    ordered = np.sort(margin)
    low = float(ordered[_FEWEST - 1])
    # The accepted ones lie strictly above the threshold.
    high = float(np.nextafter(ordered[-_FEWEST], -np.inf))
    return (low, high) if low < high else None


def reject_by_metric(
    cell: Cell,
    metric: Callable[[npt.NDArray[np.bool_], float], float],
    cpu_s: float,
    limits: tuple[float, float] | None = None,
) -> Outcome:
    """Search the threshold and reject the test examples below it.

    Parameters
    ----------
    cell
        The cell.
    metric
        Of (which metric rows, the threshold they were split at); high is good.
    cpu_s
        What the parts of the metric have cost already.
    limits
        Where thresholds are searched; without, where either side keeps two examples.
    """
    started = time.process_time()
    margin = cell.metric_margin
    limits = limits or threshold_range(margin)
    if limits is None:  # all margins are one number: nothing to choose
        nothing = np.zeros(len(cell.labels), dtype=bool)
        return Outcome({ANY: judge(cell, cell.labels, nothing)}, cpu_s, {"threshold": None})

    def objective(threshold: float) -> float:
        accepted = margin > threshold
        return metric(accepted, threshold) - metric(~accepted, threshold)

    threshold, value = maximise(objective, *limits, seed=cell.seed)
    reject = cell.unifier.margin(cell.fit["test"]) <= threshold
    spent = cpu_s + time.process_time() - started
    notes = {"threshold": threshold, "objective": value}
    return Outcome({ANY: judge(cell, cell.labels, reject)}, spent, notes)
