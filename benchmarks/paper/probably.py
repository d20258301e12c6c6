"""The likely explanation of the paper's Em, and where RejEx is no better than blind rejection."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper.costs import CASES
from benchmarks.paper.methods import PROBABLE
from benchmarks.paper.results import Results, paper_numbers
from benchmarks.paper.sections import TITLES, Section, interval
from benchmarks.paper.tabulate import Table

__all__ = ["NEEDED", "probably", "write_probably"]

NEEDED = ("RejEx", "NoReject", "Em", "Mv", "Random", *PROBABLE)
"""Methods that an experiment must have: `run --methods` with these is enough."""
_READ_AS = {"Em as probably run": "Em", "Mv as probably run": "Mv"}


def write_probably(folder: Path, to: Path) -> Path:
    """Write ``probably.md`` and its tables from the rows of these methods alone."""
    results = Results.load(folder, methods=NEEDED)
    if not results.rows:
        raise SystemExit(
            f"{folder} holds no experiment with {', '.join(NEEDED)}: run `python -m "
            "benchmarks.paper run --methods …` with these first."
        )
    to.mkdir(parents=True, exist_ok=True)
    versions = ", ".join(f"{name} {version}" for name, version in results.setup["versions"].items())
    folds = {(dataset, fold) for dataset, _, fold in results.rows}
    parts = [
        "# The paper's Em, probably; and blind rejection\n",
        f"{len(results.rows)} experiments (data set, detector, fold) on {len(folds)} folds of "
        f"{len(results.datasets)} data sets, detectors {', '.join(results.detectors)}; effort "
        f"`{results.setup['effort']['name']}`, {versions}, Python {results.setup['python']}. A "
        "run of its own, beside [the report](report.md) and not mixed with it.\n",
        "## Em as probably run\n",
        *_written(probably(results), to),
        "## Is RejEx better than rejecting at random, at the same rate?\n",
        *_written(blind(results), to),
    ]
    path = to / "probably.md"
    path.write_text("\n".join(parts), "utf-8")
    return path


def _written(section: Section, to: Path) -> list[str]:
    parts = []
    for piece in section:
        if isinstance(piece, Table):
            piece.write(to)
            parts.append(piece.markdown())
        else:
            parts.append(piece)
    return parts


def probably(results: Results) -> Section:
    """Put Em and Mv as probably run beside our reading and the paper's."""
    table = Table(
        "probably",
        ["method", "rejection rate", "cost", "of NoReject's cost", "the paper's, of NoReject's",
         "RejEx's cost minus this"],
    )  # fmt: skip
    printed = paper_numbers()["cost"]["1-1"]
    none = results.per_dataset(lambda by: results.cost(by, "NoReject", "1-1")).mean()
    own = results.per_dataset(lambda by: results.cost(by, "RejEx", "1-1"))
    for method in ("NoReject", "RejEx", "Em", "Em as probably run", "Mv", "Mv as probably run"):
        paid = results.per_dataset(lambda by, m=method: results.cost(by, m, "1-1"))  # type: ignore[misc]
        rate = results.per_dataset(lambda by, m=method: results.rate(by, m))  # type: ignore[misc]
        named = _READ_AS.get(method, method)
        theirs = np.mean([printed[d][named][0] for d in results.detectors])
        paper_none = np.mean([printed[d]["NoReject"][0] for d in results.detectors])
        table.add(
            method, float(rate.mean()), float(paid.mean()), f"{paid.mean() / none:.2f}",
            f"{theirs / paper_none:.2f}", "–" if method == "RejEx" else interval(own - paid),
        )  # fmt: skip
    yield (
        "Costs (1, 1, γ). *As probably run* is the public code for excess mass and mass volume "
        "(package `emmv`), fed with PyOD's `decision_function`: high for anomalies, where the "
        "formula wants high for what is normal; with a box of its own around each side and "
        "thresholds searched in [0, 1]. That is a likely explanation where its cost, as a share of "
        "NoReject's, is the paper's, and no proof: how the paper measured it is not published.\n"
    )
    yield table


def blind(results: Results) -> Section:
    """Compare RejEx with random rejection at its own rate, at every cost function."""
    table = Table(
        "blind", ["costs", "RejEx minus Random", "sets where no better", "pairs where no better"]
    )
    pairs = {(dataset, detector) for dataset, detector, _ in results.rows}
    worst: list[str] = []
    for case in CASES:
        gap = results.per_dataset(
            lambda by, c=case: results.cost(by, "RejEx", c) - results.cost(by, "Random", c)  # type: ignore[misc]
        )
        lost = sum(_pair_gap(results, *pair, case) >= -1e-12 for pair in pairs)
        table.add(
            TITLES[case], interval(gap), f"{int(np.sum(gap >= -1e-12))} of {len(gap)}",
            f"{lost} of {len(pairs)}",
        )  # fmt: skip
        if case == "1-10":
            worst = [
                f"{results.name(dataset)} ({value:+.3f})"
                for dataset, value in zip(results.datasets, gap, strict=True)
                if value >= -1e-12
            ]
    yield (
        "Random rejects as many, drawn blindly: what it costs more is what the confidence is "
        "worth. Below zero RejEx is cheaper; pairs are of data set and detector, over their "
        "folds. At (1, 10) a missed anomaly costs so much more than a false alarm that the band "
        "around the threshold holds events whose alarm was worth keeping; there it may be no "
        "better than chance.\n"
    )
    yield table
    sets = ", ".join(worst) or "no set"
    yield f"At (1, 10) RejEx is no better than random rejection on average on: {sets}.\n"


def _pair_gap(results: Results, dataset: str, detector: str, case: str) -> float:
    some = results.experiments(detector, dataset)
    return float(
        np.mean([results.cost(by, "RejEx", case) - results.cost(by, "Random", case) for by in some])
    )
