"""The report: Markdown, CSV and PNG from the rows alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.paper.beyond import beyond
from benchmarks.paper.figures import draw
from benchmarks.paper.readings import readings
from benchmarks.paper.results import Results, paper_numbers
from benchmarks.paper.sections import Section, bars, q1, q2, q3, q5
from benchmarks.paper.tabulate import Table
from benchmarks.paper.theory import q4

__all__ = ["write_report"]


def write_report(folder: Path, to: Path) -> Path:
    """Write ``report.md``, its tables and figures; returns the path of the report."""
    results = Results.load(folder)
    if not results.rows:
        raise SystemExit(
            f"{folder} holds no experiment with all of the paper's methods yet: "
            "run `python -m benchmarks.paper run` first."
        )
    to.mkdir(parents=True, exist_ok=True)
    figures = set(draw(results, to))
    parts = ["# RejEx: the paper's experiments, run again\n"]

    def section(title: str, content: Section, figure: str = "", caption: str = "") -> None:
        parts.append(f"## {title}\n")
        for piece in content:
            if isinstance(piece, Table):
                piece.write(to)
                parts.append(piece.markdown())
            else:
                parts.append(piece)
        if figure in figures:
            parts.append(f"![{caption}]({figure})\n")

    section("What this covers", coverage(results))
    section("What was promised", bars(results))
    section("Q1: RejEx against the baselines", q1(results), "q1.png", "cost and rank per detector")
    section("Other readings", readings(results))
    section("Q2: other costs", q2(results), "q2.png", "cost per detector, three cost functions")
    section("Q3: CPU time", q3(results))
    section("Q4: estimates and bounds", q4(results), "q4.png", "measured against bounds, per set")
    section("Q5: Oracle", q5(results))
    section("Beyond the paper", beyond(results), "beyond.png", "differences with intervals")
    if "coverage.png" in figures:
        parts.append("![risk and coverage](coverage.png)\n")
    path = to / "report.md"
    path.write_text("\n".join(parts), "utf-8")
    return path


def coverage(results: Results) -> Section:
    """Say exactly which cells are here, and why the others are not."""
    setup, effort = results.setup, results.setup["effort"]
    rows = paper_numbers()["datasets"]
    folds = Counter(key[0] for key in {(d, f) for d, _, f in results.rows})
    table = Table("datasets", ["data set", "rows", "columns", "γ", "folds here", "detectors here"])
    for dataset in results.datasets:
        by = results.experiments(dataset=dataset)[0]["RejEx"]
        detectors = {name for d, name, _ in results.rows if d == dataset}
        table.add(
            by["name"], by["n"] + by["m"], by["d"], f"{by['gamma']:.4f}", folds[dataset],
            len(detectors),
        )  # fmt: skip
    gammas = [results.experiments(dataset=d)[0]["RejEx"]["gamma"] for d in results.datasets]
    missing = [row[0] for row in rows if row[1] not in folds]
    yield (
        f"{len(results.rows)} whole experiments (data set, detector, fold), each with all eight "
        f"methods: {len(results.datasets)} of the paper's 34 data sets, {len(results.detectors)} "
        f"of its 12 detectors ({', '.join(results.detectors)}), up to {setup['folds']} folds. "
        f"{results.incomplete} begun experiments are left out. Means count every data set once, "
        f"however many of its folds are here. Mean γ here {sum(gammas) / len(gammas):.4f}, in the "
        f"paper {sum(r[4] for r in rows) / 34:.4f}: levels of cost differ with it, so compare "
        "differences, ratios and orders with the numbers in brackets, not levels.\n"
    )
    yield table
    yield f"Not here: {', '.join(missing)}.\n"
    there = set(results.detectors)
    no = [d for d in paper_numbers()["cost"]["1-1"] if d not in there]
    if no:
        why = " AE needs PyTorch; this run did not have it." if "AE" in no else ""
        yield f"Detectors that are absent: {', '.join(no)}.{why}\n"
    if results.absent:
        reasons = Counter((row["detector"], row["method"], row["absent"]) for row in results.absent)
        yield (
            "Cells that failed: "
            + "; ".join(
                f"{detector} / {method}: {why} ({count}x)"
                for (detector, method, why), count in reasons.items()
            )
            + ".\n"
        )
    else:
        yield "No cell failed.\n"
    yield (
        f"Effort `{effort['name']}`: {effort['subspaces']} subspaces of 5 features and "
        f"{effort['volume_points']} points for volumes, {effort['refits']} refits for the ranking "
        f"stability, metrics on at most {effort['metric_rows']} rows, {effort['repen_steps']} "
        "batches for REPEN. Versions: "
        + ", ".join(f"{name} {version}" for name, version in setup["versions"].items())
        + f", Python {setup['python']}.\n"
    )
