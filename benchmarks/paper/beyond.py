"""Beyond the paper: which tolerance, which reference, which ranks; what the confidence adds."""

from __future__ import annotations

import numpy as np

from benchmarks.paper.costs import CASES
from benchmarks.paper.methods import BEYOND
from benchmarks.paper.results import Results
from benchmarks.paper.sections import Section, interval, rejection_is_cheap
from benchmarks.paper.tabulate import Table

__all__ = ["beyond"]


def beyond(results: Results) -> Section:
    """Compare every choice with the paper's RejEx, paired by experiment."""
    table = Table(
        "beyond",
        ["method", "rate", "expected rate", *[f"cost {case}, minus RejEx's" for case in CASES],
         "sets where cheaper (1-1)"],
    )  # fmt: skip
    for method in ("RejEx", "NoReject", "Oracle", *BEYOND):
        rate = results.per_dataset(lambda by, m=method: results.rate(by, m))  # type: ignore[misc]
        expected = "–"
        if "rate_expected" in next(iter(results.rows.values()))[method]["notes"]:
            expected = f"{_expected(results, method):.3f}"
        cells, better = [], "–"
        for case in CASES:
            own = _cost(results, "RejEx", case)
            other = _cost(results, method, case)
            if method == "RejEx":
                cells.append(f"({own.mean():.4f})")
                continue
            cells.append(interval(other - own))
            if case == "1-1":
                better = f"{int(np.sum(other < own - 1e-12))} of {len(own)}"
        table.add(method, float(rate.mean()), expected, *cells, better)
    yield (
        "Difference of the mean cost to RejEx as published (T = 32, training scores, `<=` ranks), "
        "with 95 % intervals from redrawing whole data sets; below zero is cheaper.\n"
    )
    yield table
    yield from _findings(results)
    yield "### What a rejection costs\n"
    yield from rejection_is_cheap(results)
    yield (
        "With c_r = γ, rejecting *everything* costs γ per example, exactly as much as calling "
        "everything normal. On the paper's 34 sets that is 0.108 on average: less than its RejEx "
        "(0.121), than its Oracle (0.121), and at (10, 1) and (5, 5) a fifth of it. The orderings "
        "of methods above are the paper's question; that none of them is cheaper than not using a "
        "detector at all at these prices is arithmetic that a user must know. A price that lets "
        "everything be rejected needs a limit on rejections beside it: the review budget.\n"
    )
    yield "### Risk and coverage\n"
    yield from _coverage(results)


def _cost(results: Results, method: str, case: str) -> np.ndarray:
    return results.per_dataset(lambda by: results.cost(by, method, case))


def _expected(results: Results, method: str) -> float:
    return float(results.per_dataset(lambda by: by[method]["notes"]["rate_expected"]).mean())


def _findings(results: Results) -> Section:
    def gap(a: str, b: str, case: str = "1-1") -> str:
        values = results.per_dataset(
            lambda by: results.cost(by, a, case) - results.cost(by, b, case)
        )
        return interval(values)

    yield "\n".join(
        (
            "Choice by choice, cost (1, 1, γ):",
            "",
            "- confidence or blind luck, at one rate: RejEx minus Random "
            f"{gap('RejEx', 'Random')};",
            "- ranks or scores, at one rate: RejEx minus Score margin "
            f"{gap('RejEx', 'Score margin')};",
            f"- mid-ranks or `<=`: {gap('RejEx mid', 'RejEx')};",
            f"- held-out or training reference at T = 32: {gap('RejEx holdout mid', 'RejEx mid')} "
            "(a third of the reference makes the band wider), and at one budget: "
            f"{gap('RejEx holdout budget mid', 'RejEx budget mid')};",
            f"- review budget of rate γ or T = 32: {gap('RejEx budget mid', 'RejEx mid')}.",
            "",
            "How far the measured rate is from its exact expectation (mean absolute gap per "
            "experiment): "
            + ", ".join(
                f"{method} {_rate_error(results, method):.3f}"
                for method in ("RejEx", "RejEx mid", "RejEx holdout", "RejEx holdout mid",
                               "RejEx budget mid", "RejEx holdout budget mid")
            )
            + ".\n",
        )
    )  # fmt: skip


def _rate_error(results: Results, method: str) -> float:
    return float(
        results.per_dataset(
            lambda by: abs(results.rate(by, method) - by[method]["notes"]["rate_expected"])
        ).mean()
    )


def _coverage(results: Results) -> Section:
    table = Table(
        "coverage",
        ["accepted by", "area under risk-coverage", "risk at 95 %", "at 90 %", "at 80 %"],
    )
    names = {
        "rejex": "stability (RejEx)",
        "margin": "distance of the score from λ",
        "random": "nothing (random)",
        "best": "the truth (no wrong label accepted before a right one)",
    }
    coverages = np.linspace(0, 1, 41)
    for key, text in names.items():
        curve = mean_curve(results, key)
        at = [float(np.interp(c, coverages, curve)) for c in (0.95, 0.9, 0.8)]
        table.add(text, float(np.trapezoid(curve, coverages)), *at)
    yield "Share of wrong labels among the accepted, mean over data sets.\n"
    yield table


def mean_curve(results: Results, key: str, detector: str | None = None) -> np.ndarray:
    """Return the risk at 41 coverages, averaged within data sets, then over them."""
    return np.array(
        [
            results.per_dataset(
                lambda by, i=i: by["Score margin"]["notes"]["curves"][key][i],  # type: ignore[misc]
                detector,
            ).mean()
            for i in range(41)
        ]
    )
