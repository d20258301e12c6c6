"""Costs of a test fold: the paper's four cost functions, measured per example.

The paper's definition of the cost is written with conditional rates, P(Ŷ=1 | Y=0); its proof,
its bound and its experiments use joint ones, P(Ŷ=1, Y=0). The joint reading is the one with a
bound and the one that "cost per example" names, and it is used throughout:

    cost = (c_fp * FP + c_fn * FN + c_r * R) / m   over the m examples of the test fold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CASES", "Costs", "Counts", "conditional_cost", "cost", "costs", "count"]

CASES = ("1-1", "10-1", "1-10", "5-5")
"""The paper's (c_fp, c_fn): Q1 first, then the three of Q2."""


class Costs(NamedTuple):
    """Cost of a false positive, a false negative and a rejection."""

    fp: float
    fn: float
    r: float


class Counts(NamedTuple):
    """A test fold by truth and verdict; floats where a method is an expectation."""

    tn: float
    fp: float
    fn: float
    tp: float
    rejected_normal: float
    rejected_anomaly: float

    @property
    def n(self) -> float:
        """All examples."""
        return float(sum(self))

    @property
    def rejected(self) -> float:
        """Rejected examples of either truth."""
        return self.rejected_normal + self.rejected_anomaly


def costs(case: str, gamma: float) -> Costs:
    """Return the costs of a case of :data:`CASES`, with the paper's cost of rejection.

    Examples
    --------
    >>> costs("10-1", 0.1)
    Costs(fp=10.0, fn=1.0, r=0.1)
    """
    if case not in CASES:
        raise ValueError(f"case = {case!r} is unknown: use one of {', '.join(CASES)}.")
    fp, fn = (float(part) for part in case.split("-"))
    r = gamma if case == "5-5" else min(fp * (1 - gamma), fn * gamma)
    return Costs(fp, fn, r)


def count(verdicts: npt.ArrayLike, y: npt.ArrayLike) -> Counts:
    """Count verdicts (0, 1, -1) against the truth.

    Examples
    --------
    >>> count([0, 1, 0, 1, -1, -1], [0, 0, 1, 1, 0, 1])
    Counts(tn=1, fp=1, fn=1, tp=1, rejected_normal=1, rejected_anomaly=1)
    """
    verdicts, y = np.asarray(verdicts), np.asarray(y)
    cells = ((0, 0), (1, 0), (0, 1), (1, 1), (-1, 0), (-1, 1))
    return Counts(*(int(np.count_nonzero((verdicts == v) & (y == t))) for v, t in cells))


def cost(counts: Counts, prices: Costs) -> float:
    """Return the joint cost per example.

    Examples
    --------
    >>> cost(Counts(6, 1, 1, 0, 2, 0), Costs(1, 10, 0.5))
    1.2
    """
    total = prices.fp * counts.fp + prices.fn * counts.fn + prices.r * counts.rejected
    return total / counts.n


def conditional_cost(counts: Counts, prices: Costs) -> float:
    """Return the cost as the paper's definition prints it, with rates given the truth."""
    normal = counts.tn + counts.fp + counts.rejected_normal
    anomalous = counts.fn + counts.tp + counts.rejected_anomaly
    return (
        prices.r * counts.rejected / counts.n
        + (prices.fp * counts.fp / normal if normal else 0.0)
        + (prices.fn * counts.fn / anomalous if anomalous else 0.0)
    )
