"""``demo``: both feeds of the demo, run, summed up and reported."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import console, outcome_rows, print_table
from rejex_stream.demo.datasets import CREDIT, FOLDER, Feed, Played, play, prepare
from rejex_stream.readable import percent, utc
from rejex_stream.report import Findings, find, write_report
from rejex_stream.report.judged_run import FaultFindings
from rejex_stream.report.page import after
from rejex_stream.types import IncidentState

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
    events, seconds = sum(result.counts.n_events for result in findings), time.monotonic() - begun
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
        [
            (name, *(facts.get(name, "0") for facts in described))
            for name in dict.fromkeys(name for facts in described for name in facts)
        ],
    )
    columns = ["known fault", "sensor", "outcome", "events"]
    columns += ["anomaly", "rejected", "normal", "first sign"]
    rows = [_fault(fault) for findings in all_findings for fault in findings.faults]
    print_table(columns, rows, left=(0, 1, 2, 7))


def _print_incidents(played: Sequence[tuple[Feed, Played]]) -> None:
    """Print what was held, and what to type where somebody has to say what it is."""
    incidents = [(feed, incident) for feed, run in played for incident in run.incidents.values()]
    columns = ["incident", "sensor", "since", "state", "answered"]
    columns += ["events", "anomaly", "rejected"]
    rows = [
        (
            incident.id,
            incident.stream_key,
            f"{utc(incident.onset_ms):%Y-%m-%d %H:%M}",
            incident.ended or incident.state,
            "yes" if incident.answer else "",
            f"{incident.n_events:,}",
            f"{incident.n_anomalies:,}",
            f"{incident.n_rejected:,}",
        )
        for _, incident in incidents
    ]
    print_table(columns, rows, left=(0, 1, 2, 3, 4))
    for feed, incident in incidents:
        if incident.state is not IncidentState.CLOSED:
            words = ["rejex-stream", "control", "fault", str(feed.config_path), incident.id]
            print(f"to say what is wrong with {incident.stream_key}: {shlex.join(words)}")
            print("  (or new-normal in place of fault; the next run applies it)")


def _facts(findings: Findings) -> dict[str, str]:
    counts, theory, budget = findings.counts, findings.theory, findings.run.budget
    rows = dict(outcome_rows(counts))
    if theory is not None:
        rows |= {
            "expected rate R": percent(theory.expected_rate),
            "frozen-window bound": percent(theory.frozen_bound),
        }
    planned = "" if budget is None else f" ({budget * findings.events_per_day:.3g} planned)"
    caught = (str(findings.outcomes(outcome)) for outcome in ("caught", "review", "missed"))
    return rows | {
        "reviews a day and sensor": f"{findings.n_ambiguous / findings.days:.1f}{planned}",
        "known faults caught, to review, missed": ", ".join(caught),
    }


def _fault(result: FaultFindings) -> tuple[str, ...]:
    return (
        result.fault.title,
        result.fault.sensor,
        _OUTCOMES[result.outcome],
        str(result.n_events),
        str(result.n_anomaly),
        str(result.n_rejected + result.n_unscorable),
        str(result.n_normal),
        after(result.notice_after_s),
    )
