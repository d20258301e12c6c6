"""``demo``: both feeds of the demo, run, summed up and reported."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import console, print_table
from rejex_stream.demo.datasets import CREDIT, FOLDER, Feed, Played, play, prepare
from rejex_stream.readable import percent, utc
from rejex_stream.report import Findings, find, write_report
from rejex_stream.report.judged_run import FaultFindings
from rejex_stream.report.page import after
from rejex_stream.types import IncidentState, Label, Reason

__all__ = ["demo"]

_OUTCOMES = {"caught": "✓ caught", "review": "○ to review", "missed": "✕ missed"}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for feeds, configs and results.")] = FOLDER,
) -> None:
    """Run a real water meter and a simulated wind farm through the whole product.

    Writes both feeds as files, runs them as `rejex-stream run` would, says what came of it, and
    leaves a report to open in a browser. Takes less than a minute, and needs no network.
    """
    begun = time.monotonic()
    screen = console(stderr=True)
    with screen.status("Writing the feeds"):
        feeds = prepare(out)
    played = []
    for feed in feeds:
        with screen.status(f"{feed.title}: {feed.n_records:,} records"):
            played.append((feed, play(feed)))
    findings = [find(feed.run()) for feed in feeds]
    report = out / "report.html"
    elsewhere = [] if out == FOLDER else ["--out", str(out)]
    command = shlex.join(["rejex-stream", "demo", *elsewhere])
    write_report(report, findings, command, credit=CREDIT)
    _print_summary(findings)
    _print_incidents(played)
    events, seconds = sum(found.counts.n_events for found in findings), time.monotonic() - begun
    screen.print(f"{events:,} records, {seconds:.0f} s. Everything lies in {out}{os.sep}")
    configs = [word for feed in feeds for word in ("--config", str(feed.config_path))]
    console_command = ["review", "serve", "--store", str(out / "review.db"), *configs]
    print(f"to decide what was rejected: {shlex.join(['rejex-stream', *console_command])}")
    print(f"report: {report.resolve().as_uri()}")


def _print_summary(all_findings: Sequence[Findings]) -> None:
    """Print two tables: what was said, beside theory and plan; and what became of each fault."""
    described = [_facts(findings) for findings in all_findings]
    print_table(
        ["", *(findings.run.title for findings in all_findings)],
        [(name, *(facts[name] for facts in described)) for name in described[0]],
    )
    columns = ["known fault", "sensor", "outcome", "events"]
    columns += ["anomaly", "rejected", "normal", "first sign"]
    rows = [_fault(found) for findings in all_findings for found in findings.faults]
    print_table(columns, rows, left=(0, 1, 2, 7))


def _print_incidents(played: Sequence[tuple[Feed, Played]]) -> None:
    """Print what was held, and what to type where somebody has to say what it is."""
    found = [(feed, incident) for feed, run in played for incident in run.incidents.values()]
    if not found:
        return
    columns = ["incident", "sensor", "since", "state", "answered"]
    columns += ["events", "anomaly", "rejected"]
    rows = [
        (
            one.id,
            one.stream_key,
            f"{utc(one.onset_ms):%Y-%m-%d %H:%M}",
            one.ended or one.state,
            "yes" if one.answer else "",
            f"{one.n_events:,}",
            f"{one.n_anomalies:,}",
            f"{one.n_rejected:,}",
        )
        for _, one in found
    ]
    print_table(columns, rows, left=(0, 1, 2, 3, 4))
    for feed, one in found:
        if one.state is not IncidentState.CLOSED:
            words = ["rejex-stream", "control", "fault", str(feed.config_path), one.id]
            print(f"to say what is wrong with {one.stream_key}: {shlex.join(words)}")
            print("  (or new-normal in place of fault; the next run applies it)")


def _facts(findings: Findings) -> dict[str, str]:
    counts, theory = findings.counts, findings.theory
    per_day, days = findings.events_per_day, findings.days
    budget = findings.run.budget
    allowed = "" if theory is None else f" ({theory.expected_anomaly_rate * per_day:.2f} by theory)"
    planned = "" if budget is None else f" ({budget * per_day:.3g} planned)"
    return {
        "records": f"{counts.n_events:,}",
        "normal": f"{counts.labels[Label.NORMAL]:,}",
        "anomaly": f"{counts.labels[Label.ANOMALY]:,}",
        "rejected: ambiguous": f"{counts.reasons[Reason.AMBIGUOUS]:,}",
        "rejected: no score": f"{findings.n_unscored:,}",
        "rejected: warm-up": f"{counts.reasons[Reason.WARM_UP]:,}",
        "dead letters": f"{len(findings.run.dead_letters):,}",
        "rejection rate, all ranked events": percent(counts.rejection_rate or 0.0),
        "rejection rate, latest window": percent(findings.rolling_rate),
        "expected rate R": "–" if theory is None else percent(theory.expected_rate),
        "frozen-window bound": "–" if theory is None else percent(theory.frozen_bound),
        "paper's bound": "–"
        if theory is None or theory.paper_bound is None
        else percent(theory.paper_bound),
        "reviews a day and sensor": f"{findings.n_ambiguous / days:.1f}{planned}",
        "false alarms a day and sensor": f"{findings.false_alarms / days:.2f}{allowed}",
        "known faults caught, to review, missed": ", ".join(
            str(findings.outcomes(outcome)) for outcome in ("caught", "review", "missed")
        ),
    }


def _fault(found: FaultFindings) -> tuple[str, ...]:
    return (
        found.fault.title,
        found.fault.sensor,
        _OUTCOMES[found.outcome],
        str(found.n_events),
        str(found.n_anomaly),
        str(found.n_rejected + found.n_unscorable),
        str(found.n_normal),
        after(found.notice_after_s),
    )
