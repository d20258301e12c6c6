"""Yardsticks: no detector, no confidence, or the plainest one, at RejEx's own rejection rate."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.confidence import flip_tolerance
from benchmarks.paper.costs import Counts, count
from benchmarks.paper.methods.outcome import ANY, Outcome, judge

__all__ = ["always_normal", "curves", "margin", "random", "reject_all", "unified_margin"]

_COVERAGES = np.linspace(0.0, 1.0, 41)


def always_normal(cell: Cell) -> Outcome:
    """Call everything normal: costs γ c_fn without looking."""
    return Outcome({ANY: count(np.zeros(len(cell.labels)), cell.fold.y_test)}, 0.0)


def reject_all(cell: Cell) -> Outcome:
    """Reject everything: costs c_r, which the paper sets to γ."""
    return Outcome({ANY: count(np.full(len(cell.labels), -1), cell.fold.y_test)}, 0.0)


def random(cell: Cell) -> Outcome:
    """Reject as many as RejEx, drawn blindly: the expected counts."""
    rate = float(np.mean(cell.fit["verdicts"] == -1))
    kept = count(cell.labels, cell.fold.y_test)
    tn, fp, fn, tp = (value * (1 - rate) for value in kept[:4])
    normal = kept.tn + kept.fp
    counts = Counts(tn, fp, fn, tp, normal * rate, (kept.fn + kept.tp) * rate)
    return Outcome({ANY: counts}, 0.0)


def margin(cell: Cell) -> Outcome:
    """Reject as many as RejEx, those nearest to λ in score units; and the risk-coverage curves."""
    outcome = _least_confident(cell, np.abs(cell.fit["test"] - cell.threshold))
    return dataclasses.replace(outcome, notes={"curves": curves(cell)})


def unified_margin(cell: Cell) -> Outcome:
    """Reject as many as RejEx by the confidence of the metric-based five: Kriegel's margin."""
    return _least_confident(cell, cell.unifier.margin(cell.fit["test"]))


def _least_confident(cell: Cell, confidence: npt.NDArray[np.float64]) -> Outcome:
    started = time.process_time()
    rejected = int(np.sum(cell.fit["verdicts"] == -1))
    reject = np.zeros(len(confidence), dtype=bool)
    reject[np.argsort(confidence, kind="stable")[:rejected]] = True
    spent = time.process_time() - started
    return Outcome({ANY: judge(cell, cell.labels, reject)}, spent)


def curves(cell: Cell) -> dict[str, list[float | None]]:
    """Return the share of wrong labels among the accepted, at 41 coverages, per ordering.

    ``rejex`` accepts by stability (distance of the rank from the threshold, in T), ``margin`` by
    distance of the score from λ, ``random`` blindly, ``best`` all wrong labels last.
    """
    wrong = (cell.labels != cell.fold.y_test).astype(np.float64)
    by = {
        "rejex": flip_tolerance(cell.fit["test"], np.sort(cell.fit["train"]), cell.gamma),
        "margin": np.abs(cell.fit["test"] - cell.threshold),
        "best": -wrong,
    }
    m = len(wrong)
    kept = np.ceil(_COVERAGES * m).astype(int)
    result: dict[str, list[float | None]] = {"random": [float(wrong.mean())] * len(kept)}
    # Ties are broken at random, not by file order.
    tie_break = np.random.default_rng(cell.seed).permutation(m)
    for name, confidence in by.items():
        order = np.lexsort((tie_break, -confidence))
        errors = np.concatenate(([0.0], np.cumsum(wrong[order])))
        result[name] = [float(errors[k] / k) if k else 0.0 for k in kept]
    return result
