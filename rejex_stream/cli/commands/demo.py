"""``demo``: both feeds of the demo, run, summed up and reported."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.cli.show import console, outcome_rows, print_table
from rejex_stream.demo.datasets import CREDIT, FOLDER, play, prepare
from rejex_stream.readable import percent
from rejex_stream.report import Findings, analyse_run, write_report
from rejex_stream.types import IncidentState


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
    for feed in feeds:
        with screen.status(f"{feed.title}: {feed.n_records:,} records"):
            play(feed)
    findings = [analyse_run(feed.run()) for feed in feeds]
    report = out / "report.html"
    elsewhere = [] if out == FOLDER else ["--out", str(out)]
    command = shlex.join(["rejex-stream", "demo", *elsewhere])
    write_report(report, findings, command, credit=CREDIT)
    facts = [_facts(of_feed) for of_feed in findings]
    names = dict.fromkeys(name for of_feed in facts for name in of_feed)
    rows = [(name, *(of_feed.get(name, "0") for of_feed in facts)) for name in names]
    print_table(["", *(feed.title for feed in feeds)], rows)
    events, seconds = sum(of_feed.counts.n_events for of_feed in findings), time.monotonic() - begun
    screen.print(f"{events:,} records, {seconds:.0f} s. Everything lies in {out}{os.sep}")
    for feed, of_feed in zip(feeds, findings, strict=True):
        for incident in of_feed.run.incidents:
            if incident.state is not IncidentState.CLOSED:
                words = ["rejex-stream", "control", "fault", str(feed.config_path), incident.id]
                print(f"to say what is wrong with {incident.stream_key}: {shlex.join(words)}")
                print("  (or new-normal in place of fault; the next run applies it)")
    configs = [word for feed in feeds for word in ("--config", str(feed.config_path))]
    console_command = ["review", "serve", "--store", str(out / "review.db"), *configs]
    print(f"to decide what was rejected: {shlex.join(['rejex-stream', *console_command])}")
    print(f"report: {report.resolve().as_uri()}")


def _facts(findings: Findings) -> dict[str, str]:
    theory, budget = findings.theory, findings.run.budget
    rows = dict(outcome_rows(findings.counts))
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
