"""Other readings of what the paper leaves open, and whether they move RejEx's place."""

from __future__ import annotations

import numpy as np

from benchmarks.paper.methods import PAPER, READINGS
from benchmarks.paper.results import Results
from benchmarks.paper.sections import Section, interval, place
from benchmarks.paper.tabulate import Table

__all__ = ["readings"]

_FIVE = ("Mv", "Em", "Stability", "Udr", "Ens")


def readings(results: Results) -> Section:
    """Rank RejEx again with Em and Mv read otherwise, and with the five at its own rate."""
    some = results.having(READINGS)
    if not some.rows:
        yield "This run has none: `--methods` left them out.\n"
        return
    names = [name for name in some.detectors if name != "AE"]
    table = Table(
        "readings",
        ["RejEx among", "places of RejEx, all detectors", "best or second", "rejection rate",
         "cost", "RejEx's cost minus this"],
    )  # fmt: skip
    fields = {
        "the eight, as above": list(PAPER),
        "the eight, Em and Mv with a box for each side": [
            f"{name}, own box" if name in ("Em", "Mv") else name for name in PAPER
        ],
        "RejEx, SS-Repen, NoReject, and the five at RejEx's rate (one method then)": [
            *(name for name in PAPER if name not in _FIVE),
            "Unified margin",
        ],
    }
    for text, methods in fields.items():
        places = [place(some, "1-1", name, methods) for name in names]
        rivals = [m for m in methods if m.split(",")[0] in ("Em", "Mv", "Unified margin")]
        table.add(
            text,
            " ".join(str(p) for p in places),
            f"{sum(p <= 2 for p in places)} of {len(places)}",
            "; ".join(f"{m}: {_mean(some, m, rate=True):.3f}" for m in rivals),
            "; ".join(f"{m}: {_mean(some, m):.3f}" for m in rivals),
            "; ".join(f"{m}: {_gap(some, m)}" for m in rivals),
        )
    folds = {(dataset, fold) for dataset, _, fold in some.rows}
    yield (
        f"Costs (1, 1, γ), on the {len(folds)} folds of {len(some.datasets)} data sets that have "
        f"these rows; detectors in the order {', '.join(names)}. A box for each side is what "
        "calling Goix's functions on the accepted and on the rejected rows does; volumes are then "
        "absolute. The five metric-based baselines have one and the same confidence and differ in "
        "the threshold alone, so at one rejection rate they are one method.\n"
    )
    yield table


def _mean(results: Results, method: str, rate: bool = False) -> float:
    def value(by):  # type: ignore[no-untyped-def]
        return results.rate(by, method) if rate else results.cost(by, method, "1-1")

    return float(np.mean(results.per_dataset(value)))


def _gap(results: Results, method: str) -> str:
    return interval(
        results.per_dataset(
            lambda by: results.cost(by, "RejEx", "1-1") - results.cost(by, method, "1-1")
        )
    )
