"""RejEx: Perini, Davis, "Unsupervised Anomaly Detection with Rejection", NeurIPS 2023."""

from __future__ import annotations

import time

import numpy as np
from scipy.stats import betabinom

from benchmarks.paper.cell import TOLERANCE, Cell
from benchmarks.paper.costs import CASES, cost, costs, count
from benchmarks.paper.methods.outcome import ANY, Outcome
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.bounds import (
    cost_bound,
    cost_quantile,
    exact_rate_bound,
    expected_rejection_rate,
    paper_rate_bound,
)
from rejex_stream.rejection.exceed import stability

__all__ = ["run"]

_DELTA = 0.1


def run(cell: Cell) -> Outcome:
    """Count the verdicts of the facade; note everything that was known before the test fold."""
    verdicts = cell.fit["verdicts"].astype(np.int64)
    train = cell.fit["train"]
    n, m = len(train), len(verdicts)
    started = time.process_time()
    # The paper's cost: a confidence for every training row, and the constant threshold.
    ordered = np.sort(train)
    ranks = np.searchsorted(ordered, train, side="right")
    stability(ranks, n, cell.gamma)
    band = rejection_band(n, cell.gamma, TOLERANCE)
    spent = time.process_time() - started
    in_sample = float(np.isin(band.cells(ranks), (1, 2)).mean())
    test_ranks = np.searchsorted(ordered, cell.fit["test"], side="right")
    bounds = {}
    for case in CASES:
        c_fp, c_fn, c_r = costs(case, cell.gamma)
        bounds[case] = {
            "mean": cost_bound(band, c_fp, c_fn, c_r),
            "quantile": cost_quantile(band, c_fp, c_fn, c_r, _DELTA),
        }
    counts = count(verdicts, cell.fold.y_test)
    return Outcome(
        {ANY: counts},
        spent,
        {
            "band": [band.lower, band.upper, band.n, band.n_anomalies],
            "can_accept_anomaly": band.can_accept_anomaly,
            "rate_estimate": band.width / n,
            "rate_estimate_observed": in_sample,
            "rate_expected": expected_rejection_rate(band),
            "rate_bound_exact": exact_rate_bound(band, _DELTA),
            "rate_bound_exact_fold": float(
                betabinom.ppf(1 - _DELTA, m, band.width, n + 1 - band.width) / m
            ),
            "rate_bound_paper": paper_rate_bound(n, cell.gamma, TOLERANCE, _DELTA, printed=True),
            "cost_bounds": bounds,
            "costs": {case: cost(counts, costs(case, cell.gamma)) for case in CASES},
            "tie_mass": float(np.mean(train == cell.threshold)),
            "most_tied": float(np.unique(train, return_counts=True)[1].max() / n),
            "flagged": float(cell.labels.mean()),
            "mean_rank": float(test_ranks.mean() / n),
        },
    )
