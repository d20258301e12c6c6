"""Oracle: ExCeeD's confidence, its threshold chosen with the training labels."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.paper.cell import Cell
from benchmarks.paper.confidence import flip_tolerance
from benchmarks.paper.costs import CASES, Counts, costs
from benchmarks.paper.methods.best_threshold import best_threshold
from benchmarks.paper.methods.outcome import Outcome, judge

__all__ = ["run", "run_free"]

_MOST = 36.0
"""The largest T whose 1 - 2 exp(-T) is well apart from 1.0 in floats."""


def run(cell: Cell) -> Outcome:
    """As the paper's, over thresholds below 1: a saturated confidence cannot be rejected."""
    return _run(cell, _MOST)


def run_free(cell: Cell) -> Outcome:
    """Over all tolerances, that of rejecting everything included."""
    return _run(cell, np.inf)


def _run(cell: Cell, most: float) -> Outcome:
    started = time.process_time()
    reference = np.sort(cell.fit["train"])
    train = flip_tolerance(cell.fit["train"], reference, cell.gamma)
    test = flip_tolerance(cell.fit["test"], reference, cell.gamma)
    counts: dict[str, Counts] = {}
    chosen: dict[str, float | None] = {}
    for case in CASES:
        t = best_threshold(
            train, cell.train_labels, cell.fold.y_train, costs(case, cell.gamma), most=most
        )
        counts[case] = judge(cell, cell.labels, test <= t)
        chosen[case] = t if np.isfinite(t) else None
    return Outcome(counts, time.process_time() - started, {"tolerance": chosen})
