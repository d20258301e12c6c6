"""The report on streams: Markdown, CSV and PNG from the rows alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper import rows as rows_file
from benchmarks.paper.costs import CASES
from benchmarks.paper.inference import block_bootstrap
from benchmarks.paper.tabulate import Table
from benchmarks.streams.figures import draw
from benchmarks.streams.prequential import CONTAMINATION, DETECTORS, RATE

__all__ = ["CLASSES", "by_class", "write_report"]

Row = dict[str, Any]
Section = Iterator[str | Table]
CLASSES = ((-1.0, 0.3), (0.3, 0.9), (0.9, 0.99), (0.99, 1.01))
"""Lag-1 autocorrelation of the ranks of normal events: [low, high)."""
_TRIVIAL = ("random", "|Δx|", "max |z|")
_POLICIES = ("NoReject", "as shipped", "Random", "Margin", "Oracle")


def write_report(folder: Path, to: Path) -> Path:
    """Write ``report.md``, its tables and figures; returns the path of the report."""
    everything = rows_file.read(folder / "rows.jsonl")
    rows = [row for row in everything if "absent" not in row]
    if not rows:
        raise SystemExit(f"{folder} holds no rows: run `python -m benchmarks.streams run` first.")
    to.mkdir(parents=True, exist_ok=True)
    figures = draw(rows, to)
    parts = ["# RejEx on labelled sensor streams\n"]
    for title, content in (
        ("What this covers", _coverage(rows, [r for r in everything if "absent" in r])),
        ("Where it is poor, and where rejecting does not pay", _poor(rows)),
        ("What an operator sees", _operator(rows)),
        ("Cost", _cost(rows)),
        ("Ranking of events", _ranking(rows)),
        ("Rejection rate: expected and measured", _rate(rows)),
    ):
        parts.append(f"## {title}\n")
        for piece in content:
            if isinstance(piece, Table):
                piece.write(to)
                parts.append(piece.markdown())
            else:
                parts.append(piece)
    parts += [f"![{name}]({name})\n" for name in figures]
    path = to / "report.md"
    path.write_text("\n".join(parts), "utf-8")
    return path


def sources(rows: list[Row]) -> list[str]:
    """Return the sources in alphabetical order."""
    return sorted({row["source"] for row in rows})


def pick(rows: list[Row], source: str | None = None, detector: str | None = None) -> list[Row]:
    """Return the rows of a source, a detector, or both."""
    return [
        row
        for row in rows
        if source in (None, row["source"]) and detector in (None, row["detector"])
    ]


def _coverage(rows: list[Row], absent: list[Row]) -> Section:
    table = Table(
        "sources",
        ["source", "streams", "events evaluated", "channels", "interval, s", "labelled segments",
         "share of anomalies", "sensor-days"],
    )  # fmt: skip
    for source in sources(rows):
        one = {row["dataset"]: row for row in pick(rows, source)}
        group = list(one.values())
        events = sum(row["events"] for row in group)
        days = sum(row["days"] or 0 for row in group)
        interval = {row["interval_s"] for row in group}
        table.add(
            source, len(group), f"{events:,}", _span([row["channels"] for row in group]),
            "not known" if None in interval else _span(sorted(interval)),
            sum(row["policies"]["as shipped"]["events"] for row in group),
            sum(row["anomalies"] for row in group) / events,
            f"{days:,.1f}" if days else "–",
        )  # fmt: skip
    streams = len({row["dataset"] for row in rows})
    yield (
        f"{streams} streams, {len(rows)} runs of the engine as shipped, detectors "
        f"{', '.join(d for d in DETECTORS if pick(rows, detector=d))}. Before the first event and "
        f"for every stream: γ = {CONTAMINATION}, a review budget of {RATE:.0%} of the events, "
        "mid-ranks, refits every 4,000 events with shadow calibration. Evaluated from the end of "
        "the warm-up (the train part, or the first quarter, 200 to 2,000 events, labels unseen) to "
        "the end, score before learning, no point adjustment, no threshold chosen afterwards. The "
        "true share of anomalies is often far from γ: nobody knows it beforehand.\n"
    )
    yield table
    if absent:
        reasons = sorted({f"{r['dataset']} / {r['detector']}: {r['absent']}" for r in absent})
        yield "Runs that failed: " + "; ".join(reasons) + ".\n"
    else:
        yield "No run failed.\n"


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"


def _mean(rows: list[Row], value: Callable[[Row], float | None]) -> float:
    values = [v for row in rows if (v := value(row)) is not None]
    return float(np.mean(values)) if values else float("nan")


def _poor(rows: list[Row]) -> Section:
    table = Table(
        "poor",
        ["source", "detector", "VUS-PR", "best trivial", "cost as shipped", "NoReject",
         "Random, same rate", "rate measured / expected", "poor because"],
    )  # fmt: skip
    fine = []
    for source in sources(rows):
        for detector in DETECTORS:
            group = pick(rows, source, detector)
            if not group:
                continue
            ranked = [row for row in group if row["ranking"]]
            vus = _mean(ranked, lambda row: row["ranking"]["detector"]["vus_pr"])
            trivial = max(
                (_mean(ranked, lambda row, k=k: row["ranking"][k]["vus_pr"]) for k in _TRIVIAL),  # type: ignore[misc]
                default=float("nan"),
            )
            cost = {p: _mean(group, lambda row, p=p: row["policies"][p]["cost"]["1-1"])  # type: ignore[misc]
                    for p in _POLICIES}  # fmt: skip
            expected = _mean(group, lambda row: row["rate"]["expected"])
            ratio = _mean(group, lambda row: row["rate"]["measured"]) / expected
            reasons = []
            if ranked and vus <= trivial:
                reasons.append("a trivial score ranks better")
            if cost["as shipped"] >= cost["NoReject"]:
                reasons.append("rejecting does not pay")
            if cost["as shipped"] >= cost["Random"]:
                reasons.append("random rejection is as good")
            if not 0.5 <= ratio <= 2:
                reasons.append("the rate is off by more than 2x")
            if not reasons:
                fine.append(f"{source} / {detector}")
                continue
            table.add(
                source, detector, vus, trivial, cost["as shipped"], cost["NoReject"],
                cost["Random"], f"{ratio:.2f}", "; ".join(reasons),
            )  # fmt: skip
    total = len(table.rows) + len(fine)
    yield (
        f"Of {total} pairs of source and detector, {len(table.rows)} are poor in at least one of "
        "four ways (cost (1, 1, γ), means over streams). None of the four: "
        + (", ".join(fine) or "no pair")
        + ".\n"
    )
    yield table


def _operator(rows: list[Row]) -> Section:
    table = Table(
        "operator",
        ["source", "detector", "coverage", "rejections / day", "event recall",
         "with review", "NoReject", "false alarms / day", "NoReject's", "median delay, events"],
    )  # fmt: skip
    for source in sources(rows):
        for detector in DETECTORS:
            group = pick(rows, source, detector)
            if not group:
                continue
            shipped = [row["policies"]["as shipped"] for row in group]
            without = [row["policies"]["NoReject"] for row in group]
            days = sum(row["days"] or 0 for row in group)
            events = sum(numbers["events"] for numbers in shipped)
            delays = [delay for numbers in shipped for delay in numbers["delays"]]
            rejected = sum(row["rejection_rate"] * row["events"] for row in group)

            def share(key: str, of: list[Row], events: int = events) -> str:
                return f"{sum(n[key] for n in of) / events:.2f}" if events else "–"

            def per_day(count: float, days: float = days, group: list[Row] = group) -> str:
                if days:
                    return f"{count / days:,.1f}"
                return f"{1000 * count / sum(row['events'] for row in group):.1f} / 1,000 ev."

            table.add(
                source, detector, f"{1 - _mean(group, lambda row: row['rejection_rate']):.3f}",
                per_day(rejected), share("alarmed", shipped), share("alarmed_or_reviewed", shipped),
                share("alarmed", without), per_day(sum(n["false_alarms"] for n in shipped)),
                per_day(sum(n["false_alarms"] for n in without)),
                f"{np.median(delays):.0f}" if delays else "–",
            )  # fmt: skip
    yield (
        "A segment counts as found if an accepted anomaly falls into it; *with review*, if an "
        "accepted anomaly or a rejected event does. A false alarm is a run of accepted anomalies "
        "that touches no labelled segment. Where the interval is not known, per 1,000 events. "
        "Chance is not zero: at one flagged event in twenty, long segments are hit by luck.\n"
    )
    yield table


def _cost(rows: list[Row]) -> Section:
    yield (
        "Cost per event, (c_fp, c_fn, c_r) = (1, 1, γ), mean over streams. Random, Margin and "
        "Oracle reject as many ranked events as the engine did; Margin and Oracle choose with the "
        "whole stream in view. Events without a rank are rejected by all but NoReject. T = 32 is "
        "the paper's tolerance on the same ranks; below 340 reference scores it must reject "
        "everything. The other cost functions are in the CSV files.\n"
    )
    for case in CASES:
        yield _cost_table(rows, case)
    summary = Table(
        "cost_summary",
        ["detector",
         *[f"{case}: as shipped minus {p}" for case in CASES for p in ("NoReject", "Random")]],
    )  # fmt: skip
    for detector in DETECTORS:
        group = pick(rows, detector=detector)
        if not group:
            continue
        cells = []
        for case in CASES:
            for other in ("NoReject", "Random"):
                gap = _per_source(group, case, other)
                low, high = _interval(group, case, other)
                cells.append(f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]")
        summary.add(detector, *cells)
    yield (
        "All cost functions, every source counting once; intervals from redrawing the streams "
        "within their sources (95 %). Below zero, rejecting pays.\n"
    )
    yield summary


def _cost_table(rows: list[Row], case: str) -> Table:
    policies = (*_POLICIES, "T = 32")
    table = Table(f"cost_{case}", ["source", "detector", *policies], printed=case == "1-1")
    for source in sources(rows):
        for detector in DETECTORS:
            group = pick(rows, source, detector)
            if group:
                costs = [
                    _mean(group, lambda row, p=policy: row["policies"][p]["cost"][case])  # type: ignore[misc]
                    for policy in policies
                ]
                table.add(source, detector, *costs)
    return table


def _gaps(group: list[Row], case: str, other: str) -> dict[str, list[float]]:
    gaps = defaultdict(list)
    for row in group:
        costs = {p: row["policies"][p]["cost"][case] for p in ("as shipped", other)}
        gaps[row["source"]].append(costs["as shipped"] - costs[other])
    return gaps


def _per_source(group: list[Row], case: str, other: str) -> float:
    return float(np.mean([np.mean(values) for values in _gaps(group, case, other).values()]))


def _interval(group: list[Row], case: str, other: str) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = np.zeros(2000)
    gaps = _gaps(group, case, other)
    for values in gaps.values():
        v = np.array(values)
        draws += v[rng.integers(0, len(v), size=(2000, len(v)))].mean(axis=1)
    low, high = np.quantile(draws / len(gaps), [0.025, 0.975])
    return float(low), float(high)


def _ranking(rows: list[Row]) -> Section:
    for metric, title in (("vus_pr", "VUS-PR"), ("auc_pr", "AUC-PR")):
        yield (
            f"{title}, mean over the streams that have anomalies; bold is the best of a row. "
            "`|Δx|` and `max |z|` need one line and no detector.\n"
        )
        yield _ranking_table(rows, metric)


def _ranking_table(rows: list[Row], metric: str) -> Table:
    table = Table(metric, ["source", *DETECTORS, *_TRIVIAL])
    for source in sources(rows):
        group = [row for row in pick(rows, source) if row["ranking"]]
        if not group:
            continue
        one = list({row["dataset"]: row for row in group}.values())
        cells = [
            _mean(pick(group, detector=d), lambda row: row["ranking"]["detector"][metric])
            for d in DETECTORS
        ]
        cells += [_mean(one, lambda row, k=k: row["ranking"][k][metric]) for k in _TRIVIAL]  # type: ignore[misc]
        best = max(cell for cell in cells if np.isfinite(cell))
        table.add(source, *[f"**{c:.3f}**" if c == best else f"{c:.3f}" for c in cells])
    return table


def by_class(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield (name, rows) of each class of autocorrelation."""
    for low, high in CLASSES:
        name = f"< {high:g}" if low < 0 else f"{low:g} to {min(high, 1):g}"
        yield (
            name,
            [
                row
                for row in rows
                if row["autocorrelation"] is not None and low <= row["autocorrelation"] < high
            ],
        )


def _rate(rows: list[Row]) -> Section:
    table = Table(
        "rate",
        ["autocorrelation of normal ranks", "runs", "expected", "measured",
         "measured, normal events", "95 % over runs", "mean absolute gap",
         "within a factor 2", "flagged, normal (γ = .05)"],
    )  # fmt: skip
    for name, members in by_class(rows):
        group = [row for row in members if row["rate"]["measured_normal"] is not None]
        if not group:
            continue
        measured = np.array([row["rate"]["measured_normal"] for row in group])
        expected = np.array([row["rate"]["expected"] for row in group])
        low, high = block_bootstrap(measured)
        table.add(
            name, len(group), float(expected.mean()),
            _mean(group, lambda row: row["rate"]["measured"]), float(measured.mean()),
            f"{low:.3f} to {high:.3f}", float(np.abs(measured - expected).mean()),
            f"{np.mean((measured >= expected / 2) & (measured <= 2 * expected)):.0%}",
            _mean(group, lambda row: row["rate"]["flagged_normal"]),
        )  # fmt: skip
    yield (
        "The expectation w / (n + 1) is exact for exchangeable scores. Streams are not: they "
        "drift, and their normal events follow one another. Per run of a detector on a stream, "
        "ranked events only.\n"
    )
    yield table
