"""SS-Repen: REPEN trained on the detector's labels, its threshold set on a validation part.

The paper's steps: pseudo-labels from the detector; 20 % of the training rows held out; REPEN on the
rest; confidence = margin of REPEN's probabilities; the threshold that costs least on the held-out
part, the pseudo-labels being the truth. REPEN is then the classifier whose labels are accepted or
rejected: with the detector's own labels every pseudo-label would be right, and never rejecting
always best. (``detector_labels`` counts the other reading: the detector's label, REPEN's margin.)
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.paper.cell import Cell
from benchmarks.paper.costs import CASES, Counts, costs
from benchmarks.paper.methods.best_threshold import best_threshold
from benchmarks.paper.methods.outcome import Outcome, judge
from benchmarks.paper.repen import fit_repen
from benchmarks.paper.unify import Unifier
from rejex_stream.rejection import anomaly_count

__all__ = ["run"]


def run(cell: Cell) -> Outcome:
    """Train, search and count, for each of the cost cases."""
    started = time.process_time()
    pseudo = cell.train_labels
    rng = np.random.default_rng(cell.seed)
    held = np.zeros(len(pseudo), dtype=bool)
    for label in (0, 1):  # both parts get both labels
        of_label = np.flatnonzero(pseudo == label)
        held[rng.permutation(of_label)[: round(0.2 * len(of_label))]] = True
    X = cell.fold.X_train
    model = fit_repen(X[~held], pseudo[~held] == 1, steps=cell.effort.repen_steps, seed=cell.seed)
    train, valid = model.score(X[~held]), model.score(X[held])
    test = model.score(cell.fold.X_test)
    unify = Unifier.fit(train)
    r = max(1, anomaly_count(len(train), cell.gamma))
    threshold = np.sort(train)[-r]
    valid_labels = (valid >= threshold).astype(np.int64)
    test_labels = (test >= threshold).astype(np.int64)
    counts: dict[str, Counts] = {}
    other: dict[str, Counts] = {}
    chosen: dict[str, float | None] = {}
    for case in CASES:
        # A margin of exactly 1 is saturated: no threshold below 1 rejects it.
        t = best_threshold(
            unify.margin(valid),
            valid_labels,
            pseudo[held],
            costs(case, cell.gamma),
            most=float(np.nextafter(1.0, 0.0)),
        )
        reject = unify.margin(test) <= t
        counts[case] = judge(cell, test_labels, reject)
        other[case] = judge(cell, cell.labels, reject)
        chosen[case] = t if np.isfinite(t) else None
    spent = time.process_time() - started
    return Outcome(counts, spent, {"threshold": chosen, "detector_labels": other})
