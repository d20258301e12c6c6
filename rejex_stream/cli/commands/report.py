"""``report``: what a pipeline over a file has judged, as one HTML file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rejex_stream.config import load_config
from rejex_stream.report import find, read_run, write_report

__all__ = ["report"]


def report(
    config: Annotated[Path, typer.Argument(help="The config of a pipeline that has run.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    newest: Annotated[
        int, typer.Option(help="At most so many events, the newest ones.", min=1)
    ] = 100_000,
) -> None:
    """Write a report of what a pipeline over a file has judged, to open in any browser.

    One file that asks nobody for anything: verdicts over the readings, scores beside the rejection
    band, the rejection rate beside theory, what is for review and why.
    """
    run = read_run(load_config(config), newest=newest)
    write_report(out, [find(run)], shlex.join(["rejex-stream", "report", str(config)]))
    print(f"report: {out.resolve().as_uri()}")
