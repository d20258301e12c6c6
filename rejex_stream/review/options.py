"""Options that several review commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "STORE",
    "ConfigOption",
    "GapEventsOption",
    "GapOption",
    "ReviewOption",
    "StoreOption",
    "VerdictsOption",
]

StoreOption = Annotated[
    Path, typer.Option("--store", help="The review store, one file on a local disk.")
]
ConfigOption = Annotated[
    list[Path] | None,
    typer.Option("--config", help="Config of a pipeline to follow; may be given several times."),
]
ReviewOption = Annotated[
    list[Path] | None, typer.Option("--review", help="File of review items, JSON Lines.")
]
VerdictsOption = Annotated[
    list[Path] | None, typer.Option("--verdicts", help="File of all verdicts, JSON Lines.")
]
GapOption = Annotated[
    float, typer.Option(help="Rejected events this many seconds apart are one episode.", min=0)
]
GapEventsOption = Annotated[
    int, typer.Option(help="Or with so few other events between them.", min=0)
]
STORE = Path("review.db")
