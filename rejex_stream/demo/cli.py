"""The command ``rejex-stream demo``."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.errors import ConnectorError

__all__ = ["demo"]

_FOLDER = Path("demo-output")


def demo(  # noqa: PLR0917 - typer makes options of them
    out: Annotated[Path, typer.Option(help="Folder for feeds, configs and results.")] = _FOLDER,
    seed: Annotated[int, typer.Option(help="Seed of the simulated wind farm.", min=0)] = 0,
    detector: Annotated[
        str | None, typer.Option(help="One detector by name for both feeds, e.g. HalfSpaceTrees.")
    ] = None,
    pace: Annotated[
        float, typer.Option(help="Seconds a feed takes on a terminal; 0 is full speed.", min=0)
    ] = 8.0,
    kafka: Annotated[
        str | None, typer.Option(help="Broker host:port: run it through real topics, too.")
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Then open the review console on what was rejected.")
    ] = False,
) -> None:
    """Run a real water meter and a simulated wind farm through the whole product.

    Writes both feeds as files, runs them as `rejex-stream run` would, shows what happens, and
    leaves a report to open in a browser. Takes less than a minute, and needs no network.
    """
    from rejex_stream.cli.show import console as terminal

    begun = time.monotonic()
    screen = terminal(stderr=True)
    with screen.status("Loading libraries and writing the feeds"):
        from rejex_stream.demo.evaluate import evaluate
        from rejex_stream.demo.live import Board, LiveView
        from rejex_stream.demo.pipelines import prepare
        from rejex_stream.demo.play import play
        from rejex_stream.demo.report import write_report
        from rejex_stream.demo.summary import print_summary

        pipelines = prepare(out, seed=seed, detector=detector)
    boards = [Board(pipeline) for pipeline in pipelines]
    with LiveView(screen, boards) as view:
        for board in boards:
            summary = play(board, seconds=pace if view.is_terminal else 0.0)
            view.ended(board, summary.seconds)
    findings = [evaluate(pipeline) for pipeline in pipelines]
    report = out / "report.html"
    write_report(report, findings, _command(out, seed, detector))
    print_summary(findings)
    if kafka is not None:
        from rejex_stream.demo.through_kafka import play_through_kafka

        for pipeline in pipelines:
            compared = play_through_kafka(pipeline, kafka)
            if compared.differing:
                raise ConnectorError(
                    f"{len(compared.differing):,} verdicts of topic {compared.topic!r} are not "
                    f"those of the files, the first of them {compared.differing[0]}: please "
                    "report this."
                )
            screen.print(
                f"{pipeline.title} through Kafka: {compared.n_verdicts:,} verdicts in topic "
                f"{compared.topic}, all equal to those of the files"
            )
    events, seconds = sum(found.n_events for found in findings), time.monotonic() - begun
    screen.print(f"{events:,} records, {seconds:.0f} s. Everything lies in {out}{os.sep}")
    print(f"report: {report.resolve().as_uri()}")
    if console:
        from rejex_stream.demo.reviewing import open_console

        open_console(
            out,
            pipelines,
            on_ready=lambda address: print(
                f"review console: {address} (Ctrl-C ends it)", flush=True
            ),
        )


def _command(out: Path, seed: int, detector: str | None) -> str:
    words = ["rejex-stream", "demo"]
    if out != _FOLDER:
        words += ["--out", str(out)]
    if seed:
        words += ["--seed", str(seed)]
    if detector:
        words += ["--detector", detector]
    return shlex.join(words)
