"""The report on streams: Markdown, CSV and PNG from the rows alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper import rows as rows_file
from benchmarks.paper.costs import CASES
from benchmarks.paper.inference import block_bootstrap
from benchmarks.paper.tabulate import Table
from benchmarks.streams.evaluate import SEVERITIES
from benchmarks.streams.figures import draw
from benchmarks.streams.prequential import CONTAMINATION, DETECTORS, RATE
from benchmarks.streams.rivals import NAMES, able
from benchmarks.streams.run import TRAIN, TRIVIAL

__all__ = ["CLASSES", "by_class", "write_report"]

Row = dict[str, Any]
Section = Iterator[str | Table]
CLASSES = ((-1.0, 0.3), (0.3, 0.9), (0.9, 0.99), (0.99, 1.01))
"""Lag-1 autocorrelation of the ranks of normal events: [low, high)."""
_POLICIES = ("NoReject", "as shipped", "Random", "Margin", "Oracle")


def write_report(folder: Path, to: Path) -> Path:
    """Write ``report.md``, its tables and figures; returns the path of the report."""
    everything = rows_file.read(folder / "rows.jsonl")
    there = [row for row in everything if "absent" not in row]
    rows = _whole([row for row in there if row["method"] == "engine"])
    others = [row for row in there if row["method"] == "score"]
    forests = [row for row in others if row["detector"] not in TRIVIAL]
    setup = json.loads((folder / "setup.json").read_text("utf-8")) if rows else {}
    if not rows:
        raise SystemExit(f"{folder} holds no rows: run `python -m benchmarks.streams run` first.")
    to.mkdir(parents=True, exist_ok=True)
    figures = draw(rows, to)
    parts = ["# RejEx on labelled sensor streams\n"]
    for title, content in (
        ("What this covers", _coverage(rows, [r for r in everything if "absent" in r], setup)),
        ("Where it is poor, and where rejecting does not pay", _poor(rows, forests)),
        ("Ranking of events", _ranking(rows, forests)),
        ("Severity: as rare as it says?", _severity(rows)),
        ("What an operator sees", _operator(rows)),
        ("Faults that last", _lasting(rows, others)),
        ("Cost", _cost(rows)),
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


def _whole(rows: list[Row]) -> list[Row]:
    """Return the rows of streams that every detector of the run has seen: means then compare."""
    detectors = {row["detector"] for row in rows}
    seen: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        seen[row["dataset"]].add(row["detector"])
    return [row for row in rows if seen[row["dataset"]] == detectors]


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


def _coverage(rows: list[Row], absent: list[Row], setup: Row) -> Section:
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
        f"{streams} streams, {len(rows)} runs of the engine as shipped, at most {TRAIN:,} rows of "
        f"a warm-up and {max(row['events'] for row in rows):,} rows after it, detectors "
        f"{', '.join(d for d in DETECTORS if pick(rows, detector=d))}. Before the first event and "
        f"for every stream: γ = {CONTAMINATION}, a review budget of {RATE:.0%} of the events, "
        "mid-ranks, refits every 4,000 events with shadow calibration. Evaluated from the end of "
        "the warm-up (the train part, or the first quarter, 200 to 2,000 events, labels unseen) to "
        "the end, score before learning, no point adjustment, no threshold chosen afterwards. The "
        "true share of anomalies is often far from γ: nobody knows it beforehand.\n"
    )
    yield table
    yield (
        f"All rows were made by one state of the code ({setup['code']}, a hash of what decides "
        f"them; others cannot be added), cut at {setup['evaluated rows']:,} evaluated events, with "
        f"Python {setup['python']} and "
        + ", ".join(f"{name} {version}" for name, version in setup["versions"].items())
        + ".\n"
    )
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


def _poor(rows: list[Row], others: list[Row]) -> Section:
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
                (_mean(ranked, lambda row, k=k: row["ranking"][k]["vus_pr"]) for k in TRIVIAL),  # type: ignore[misc]
                default=float("nan"),
            )
            cost = {p: _mean(group, lambda row, p=p: row["policies"][p]["cost"]["1-1"])  # type: ignore[misc]
                    for p in _POLICIES}  # fmt: skip
            expected = _mean(group, lambda row: row["rate"]["expected"])
            ratio = _mean(group, lambda row: row["rate"]["measured"]) / expected
            reasons = []
            if ranked and vus <= trivial:
                reasons.append("a trivial score ranks better")
            reasons += [f"{name} ranks better" for name in _better(ranked, vus, others)]
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
        "five ways (cost (1, 1, γ), means over streams; a random cut forest counts where it has "
        "seen every stream of the source). None of the five: "
        + (", ".join(fine) or "no pair")
        + ".\n"
    )
    yield table


def _better(ranked: list[Row], vus: float, others: list[Row]) -> list[str]:
    """Return the forests that rank the same streams better."""
    found = []
    for name in NAMES:
        same = {row["dataset"] for row in ranked}
        theirs = [row for row in pick(others, detector=name) if row["dataset"] in same]
        whole = theirs and {row["dataset"] for row in theirs} == same
        if whole and _metric(theirs, "detector") >= vus:
            found.append(name)
    return found


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


def _ranking(rows: list[Row], others: list[Row]) -> Section:
    yield (
        "Detectors are ordered by the severity that each verdict carries, trivial scores and "
        "random cut forests by their value. `|Δx|` and `max |z|` need one line and no detector. "
        "First the whole, every stream and then every source counting once; differences to "
        "`max |z|` are over the streams that a score has seen; *sources won* are those whose mean "
        "VUS-PR is above its. Recall is that of labelled segments where runs of false alarms are "
        "one in 1,000 events. *Raw* orders a detector by its score under the model that speaks, "
        "instead of the severity that its calibration gives it.\n"
    )
    yield _summary(rows, others)
    for metric, title in (("vus_pr", "VUS-PR"), ("recall", "Recall"), ("auc_pr", "AUC-PR")):
        yield (
            f"{title}, mean over the streams that have anomalies; bold is the best of a row, "
            "– where a score has not seen all of a source's streams.\n"
        )
        yield _ranking_table(rows, others, metric)
    if not others:
        yield (
            "No random cut forest was run: "
            + "; ".join(f"{name}: {able(name) or 'not asked for'}" for name in NAMES)
            + ".\n"
        )


def _summary(rows: list[Row], others: list[Row]) -> Table:
    ranked = [row for row in rows if row["ranking"]]
    one = list({row["dataset"]: row for row in ranked}.values())
    groups: dict[str, tuple[str, list[Row]]] = {
        d: ("detector", group)
        for d in (*DETECTORS, *NAMES)
        if (group := [row for row in pick(rows + others, detector=d) if row["ranking"]])
    }
    groups |= {
        f"{d}, raw": ("raw score", group) for d, (_, group) in groups.items() if d in DETECTORS
    }
    groups |= {trivial: (trivial, one) for trivial in TRIVIAL}
    table = Table(
        "ranking",
        ["score", "streams", "VUS-PR, streams", "minus max |z|", "VUS-PR, sources",
         "minus max |z| ", "sources won", "recall, streams", "recall, sources"],
    )  # fmt: skip
    for name, (key, group) in groups.items():
        means = {s: _metric(pick(group, s), key) for s in sources(group)}
        rival = {s: _metric(pick(group, s), "max |z|") for s in means}
        recall = [_metric(pick(group, s), key, "recall") for s in means]
        by_source = float(np.mean(list(means.values())))
        gap = by_source - float(np.mean(list(rival.values())))
        vus = _metric(group, key)
        table.add(
            name, len(group), vus, f"{vus - _metric(group, 'max |z|'):+.3f}", by_source,
            f"{gap:+.3f}", f"{sum(means[s] > rival[s] for s in means)} of {len(means)}",
            _metric(group, key, "recall"), float(np.mean(recall)),
        )  # fmt: skip
    return table


def _metric(rows: list[Row], key: str, metric: str = "vus_pr") -> float:
    return _mean(rows, lambda row: row["ranking"][key][metric])


def _ranking_table(rows: list[Row], others: list[Row], metric: str) -> Table:
    names = [d for d in (*DETECTORS, *NAMES) if pick(rows + others, detector=d)]
    table = Table(metric, ["source", *names, *TRIVIAL])
    for source in sources(rows):
        one = {row["dataset"]: row for row in pick(rows, source) if row["ranking"]}
        if not one:
            continue
        cells = []
        for name in names:
            group = [row for row in pick(rows + others, source, name) if row["ranking"]]
            whole = len(group) == len(one)
            cells.append(_metric(group, "detector", metric) if whole else float("nan"))
        cells += [_metric(list(one.values()), trivial, metric) for trivial in TRIVIAL]
        best = max(cell for cell in cells if np.isfinite(cell))
        shown = ["–" if np.isnan(c) else f"**{c:.3f}**" if c == best else f"{c:.3f}" for c in cells]
        table.add(source, *shown)
    return table


def _severity(rows: list[Row]) -> Section:
    yield (
        "A severity of x should come 10^-x times among normal events. How often it came, as a "
        "multiple of that: 1 is as it says, 10 ten times as often. Ranked normal events, none of "
        "them held; *all* of them together, and the *median* over the sources, for a few streams "
        "that drift away from what their model was calibrated with hold most of the severe ones.\n"
    )
    table = Table(
        "severity",
        ["detector", "models", "normal events", *(f"{x}, {w}" for x in SEVERITIES
         for w in ("all", "median"))],
    )  # fmt: skip
    for detector in DETECTORS:
        group = pick(rows, detector=detector)
        for models in ("first", "later"):
            counts = [
                np.sum([row["severity"][models] for row in pick(group, source)], axis=0)
                for source in sources(group)
            ]
            counts = [count for count in counts if count[0]]
            if not counts:
                continue
            everything, *severe = np.sum(counts, axis=0)
            cells = []
            for i, (x, many) in enumerate(zip(SEVERITIES, severe, strict=True), 1):
                cells.append(f"{10**x * many / everything:.2g}")
                cells.append(f"{10**x * np.median([c[i] / c[0] for c in counts]):.2g}")
            table.add(detector, models, f"{everything:,}", *cells)
    yield table


def _lasting(rows: list[Row], others: list[Row]) -> Section:
    table = Table(
        "lasting",
        ["score", "faults that last", "events of them", "flagged", "flagged or rejected",
         "normal events flagged"],
    )  # fmt: skip
    groups = {d: pick(rows + others, detector=d) for d in (*DETECTORS, *NAMES, *TRIVIAL)}
    groups = {name: group for name, group in groups.items() if group}
    for name, group in groups.items():
        table.add(name, *_late(group))
    yield (
        "A labelled fault lasts here if it is longer than ⌊nγ⌋ events of the full window: so many "
        "fill all places of anomalies in it, and from then on the fault is its own reference. Of "
        "the events *after* those first ones, the share that is still flagged, or flagged or "
        "rejected, all streams together; scores without an engine are held against the 1 - γ "
        "quantile of their warm-up, which never forgets and pays with the last column.\n"
    )
    yield table
    by_source = Table("lasting_sources", ["source", "faults that last", *groups])
    for source in sources(rows):
        cells = [pick(group, source) for group in groups.values()]
        faults = sum(row["lasting"]["faults"] for row in cells[0])
        if faults:
            by_source.add(source, faults, *[_late(cell)[3] if cell else "–" for cell in cells])
    yield "Flagged or rejected, by source; – where a score has seen none of its streams.\n"
    yield by_source


def _late(group: list[Row]) -> tuple[int, str, str, str, float]:
    def total(key: str) -> int:
        return sum(row["lasting"][key] for row in group)

    events = total("events")
    share = [f"{count / events:.3f}" if events else "–"
             for count in (total("flagged"), total("flagged") + total("rejected"))]  # fmt: skip
    normal = _mean(group, lambda row: row["rate"]["flagged_normal"])
    return total("faults"), f"{events:,}", share[0], share[1], normal


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
         "within a factor 2", "flagged, normal (γ = .05)", "in constant windows", "held"],
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
            _mean(group, lambda row: row["constant_rate"]),
            _mean(group, lambda row: row["held_rate"]),
        )  # fmt: skip
    yield (
        "The expectation w / (n + 1) is exact for exchangeable scores. Streams are not: they "
        "drift, and their normal events follow one another. Per run of a detector on a stream, "
        "ranked events only, and none that is held; a window of one repeated score is a state of "
        "the sensor. Both are counted apart (last columns, shares of all events).\n"
    )
    yield table
