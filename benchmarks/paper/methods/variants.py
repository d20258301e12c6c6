"""Beyond the paper: RejEx with other tolerances, references and ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from benchmarks.paper.cell import TOLERANCE, Cell
from benchmarks.paper.costs import count
from benchmarks.paper.methods.outcome import ANY, Outcome
from rejex_stream.rejection.policy import RejectionPolicy

__all__ = ["variant"]


def variant(
    *, budget: bool, holdout: bool, ties: Literal["mid", "paper"]
) -> Callable[[Cell], Outcome]:
    """Return RejEx with T = 32 or a review budget of rate γ, on one of two references."""

    def run(cell: Cell) -> Outcome:
        started = time.process_time()
        part = cell.holdout if holdout else cell.fit
        reference = np.sort(part["reference" if holdout else "train"])
        policy = RejectionPolicy(
            cell.gamma,
            tolerance=None if budget else TOLERANCE,
            rate=cell.gamma if budget else None,
            ties=ties,
        )
        band = policy.band(len(reference))
        at_or_below = np.searchsorted(reference, part["test"], side="right")
        ranks = at_or_below
        if ties == "mid":
            ranks = (np.searchsorted(reference, part["test"], side="left") + at_or_below) // 2
        verdicts = np.array([0, -1, -1, 1])[band.cells(ranks)]
        if ties == "mid" and reference[0] == reference[-1]:
            verdicts[:] = -1
        notes = {
            "tolerance": band.tolerance,
            "rate_expected": band.width / (band.n + 1),
            "can_accept_anomaly": band.can_accept_anomaly,
            "reference": band.n,
        }
        spent = time.process_time() - started
        return Outcome({ANY: count(verdicts, cell.fold.y_test)}, spent, notes)

    return run
