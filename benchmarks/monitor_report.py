"""The Markdown page of the benchmark of the monitors."""

from __future__ import annotations

from typing import Any

from benchmarks.monitor_streams import BAND, TARGETS, UNSEEN, N


def rate_cell(row: dict[str, float | list[float]]) -> str:
    low, high = row["interval95"]  # type: ignore[misc]
    rate = row["per_million"]
    return f"{rate:.3g} ({low:.2g}-{high:.2g})" if rate < 100 else f"{rate:,.0f}"  # type: ignore[operator]


def delay_cell(row: dict[str, float | None]) -> str:
    if not row["runs"]:
        return ""
    if not row["found"]:
        return "never"
    median = "late" if row["median"] is None else f"{row['median']:,.0f}"
    return median if row["found"] == 1 else f"{median} [{row['found']:.0%}]"


def markdown(result: dict[str, Any], columns: list[str]) -> str:
    ours = {"health": "**health**", "rejection_rate": "rate > 2R"}
    lines = [
        "# Monitors: false alarms and delays",
        "",
        "Written by `benchmarks/monitors.py`. n = 1000, γ = 0.05, T = 32, so R = "
        f"{BAND.width / (N + 1):.4f} and h = {result['h']:.3f} (δ = 0.1); L = 1e6. "
        f"{result['versions']}.",
        "",
        *([result["note"], ""] if "note" in result else []),
        "## False alarms per million events",
        "",
        "Nothing is wrong in these streams. Streams of 100,000 events, start-up of the monitors "
        "included; 95 % Poisson intervals. Health counts every crossing of L, also repeated ones; "
        "rolling rates count excursions. ADWIN, PageHinkley and KSWIN as River ships them, on a "
        "part of the events (see the JSON).",
        "",
    ]
    for title, names in (
        ("The streams that the settings were chosen on", TARGETS),
        ("Streams that had no part in that", UNSEEN),
    ):
        rows = [row for row in result["null"] if row["stream"] in names]
        lines += [f"### {title}", ""]
        lines += [
            "| monitor | " + " | ".join(row["stream"] for row in rows) + " |",
            "|---|" + "---|" * len(rows),
            "| events, millions | " + " | ".join(f"{r['events'] / 1e6:g}" for r in rows) + " |",
            "| VIF, median | " + " | ".join(f"{r['median_inflation']:.1f}" for r in rows) + " |",
        ]
        for name in columns:
            cells = " | ".join(rate_cell(row["false_alarms"][name]) for row in rows)
            lines.append(f"| {ours.get(name, name)} | {cells} |")
        for kind in ("health", "drift"):
            cells = " | ".join(_share(row["status"], kind) for row in rows)
            lines.append(f"| {kind} says at the end | {cells} |")
        lines.append("")
    lines += [
        "## Delays",
        "",
        f"Median events from the change to the first alarm, and how many runs found it within "
        f"{10 * N:,} events (30,000 for the ramp over 20n) where not all did "
        '("late": fewer than half). The monitors ran for 30,000 events before. A delay is worth no '
        "more than the false alarms beside it: on AR(.9) scores ADWIN, PageHinkley and KSWIN alarm "
        "every 100 to 1000 events anyway.",
        "",
    ]
    for base in dict.fromkeys(row["base"] for row in result["delays"]):
        rows = [row for row in result["delays"] if row["base"] == base]
        lines += [
            f"### On {base} scores",
            "",
            "| change | " + " | ".join(ours.get(name, name) for name in columns) + " |",
            "|---|" + "---|" * len(columns),
        ]
        for row in rows:
            cells = " | ".join(delay_cell(row["delays"][name]) for name in columns)
            lines.append(f"| {row['change']} | {cells} |")
        lines.append("")
    lines += [
        "## Twenty streams together",
        "",
        "False alarms while nothing is wrong, then +0.5 sd in all streams at once: what the pooled "
        "health detector needs, in events of each stream. The last row is what pooling must not "
        "fall for: streams that follow the same weather.",
        "",
        "| streams | million events | health, pipeline | health, streams | pooled VIF | delay |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["pooled"]:
        delay = row["median_delay_events_per_stream"]
        lines.append(
            f"| {row['streams']} | {row['events'] / 1e6:.1f} "
            f"| {row['false_alarms'].get('pipeline health', 0)} "
            f"| {row['false_alarms'].get('streams health', 0)} "
            f"| {row['median_pooled_inflation']:.0f} "
            f"| {'' if delay is None else f'{delay:.0f}'} [{row['found']:.0%}] |"
        )
    lines += refit_lines(result["refits"]) if "refits" in result else []
    lines += limit_lines(result["limits"]) if "limits" in result else []
    lines += ["", "## Cost", "", "| | µs an event |", "|---|---|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in result["cost_us"].items()]
    lines += ["", "## Where they are blind", "", *BLIND]
    return "\n".join(lines) + "\n"


def refit_lines(part: dict[str, Any]) -> list[str]:
    names = ("health", "drift", "rejection_rate", "collapse", "stuck")
    lines = [
        "",
        "## With refits",
        "",
        "A new model every 2 n events, as shipped, with a scale of its own; each event is ranked "
        "among the new model's scores of the n rows before it. Agreement is the correlation of two "
        "models' scores of one row: at 1 they order rows alike, below it what they do not agree on "
        "is noise, drawn again for each row and model; a ramp of one sd is one of the root of the "
        "agreement beside it. (Frozen windows have the swaps they have.)",
        "",
        "### False alarms per million events",
        "",
        "| stream | agreement | million events | " + " | ".join(names) + " | drift at the end |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    for row in part["null"]:
        per_million = [row["alarms"].get(name, 0) * 1e6 / row["events"] for name in names]
        total = sum(row["drift"].values())
        words = ", ".join(f"{w} {c / total:.0%}" for w, c in row["drift"].items())
        lines.append(
            f"| {row['stream']} | {row['agreement']:g} | {row['events'] / 1e6:g} | "
            + " | ".join(f"{x:.3g}" for x in per_million)
            + f" | {words} |"
        )
    lines += [
        "",
        "### Ramps of one sd: events until drift is told",
        "",
        "| scores | ramp over | refits | runs | found | median | of that without |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in part["ramps"]:
        (without,) = (
            other["median"]
            for other in part["ramps"]
            if (other["base"], other["over_windows"]) == (row["base"], row["over_windows"])
            and other["refits"] == "none"
        )
        median = row["median"]
        ratio = f"{median / without:.2f}" if median and without else ""
        refits = "none" if row["refits"] == "none" else f"every 2 n, agreement {row['refits']}"
        lines.append(
            f"| {row['base']} | {row['over_windows']} n | {refits} | {row['runs']} "
            f"| {row['found']:.0%} | {'late' if median is None else f'{median:,.0f}'} | {ratio} |"
        )
    return lines


def limit_lines(part: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## Limits of the rolling rate",
        "",
        "How often 99 % limits around the rate of the last 3,600 events hold the stream's long-run "
        "rate, and half their width. Batch means is what was shipped before: it knows neither that "
        "a sliding window corrects itself nor how much autocorrelation was measured.",
        "",
        "| n, γ, T | scores | samples | true rate / R | batch means | width | shipped | width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in part["rows"]:
        before, after = row["batch_means"], row["shipped"]
        lines.append(
            f"| {row['window']}, {row['contamination']:g}, {row['tolerance']:g} | {row['stream']} "
            f"| {row['samples']} | {row['long_run_rate'] / row['expected_rate']:.2f} "
            f"| {before['covered']:.3f} | {before['half_width']:.4f} "
            f"| {after['covered']:.3f} | {after['half_width']:.4f} |"
        )
    return lines


def _share(status: dict[str, int], kind: str) -> str:
    words = {w.split(": ")[1]: c for w, c in status.items() if w.startswith(kind)}
    total = sum(words.values())
    return ", ".join(
        f"{word} {count / total:.0%}" for word, count in sorted(words.items(), key=lambda x: -x[1])
    )


BLIND = [
    "- **Slow drift, for whatever looks at rates**: the window learns it. Only the drift monitor's "
    "long sum of ranks shows it.",
    "- **A doubling against a sliding window** shows for about n events, then it is the new usual.",
    "- **Strong autocorrelation** (AR(.99) at n = 1000, seasons of n or 5 n): health stays quiet "
    'and says "too autocorrelated to tell", since a doubling would take more than ten windows to '
    "show; drift says so by a VIF of its own. Choose a window of 50 correlation times, or of whole "
    "seasons.",
    "- **Moderate autocorrelation** (AR(.9)): health needs a large change (+3 sd); drift finds a "
    "step of one sd within a window, and hardly a ramp.",
    "- **Drift much slower than eight windows**: the sum of ranks has forgotten where it began.",
    "- **A season much longer than the window** (20000 at n = 1000) is drift, as far as eight "
    "windows can know; it is said once, and the alarm stays active.",
    "- **A window that does not take what is ranked in it** (the frozen ones here; never the "
    "engine's, whose held events are not ranked): nothing cancels what is above the middle, and "
    "drift says so.",
    "- **Rate > 2R** is a fact about the last n events and fires on clusters: on autocorrelated "
    "streams it says what reviewers feel, not that something is wrong.",
    "- **At the start**: health and drift have no variance inflation in the first three windows.",
    "- **A change that keeps both rates** (normal scores that move among normal scores) is nothing "
    "to the health detector; drift sees it if the mean rank moves, and a change of scale keeps "
    "that too.",
]
