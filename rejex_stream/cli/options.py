"""What somebody may know about a table or a feed: options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from rejex_stream.tables import Asked

__all__ = [
    "Channel",
    "Contamination",
    "Decimal",
    "Delimiter",
    "Detector",
    "Encoding",
    "Flag",
    "Header",
    "KnownLabel",
    "Rate",
    "Sensor",
    "Sheet",
    "SkipRows",
    "Tag",
    "Thousands",
    "Time",
    "TimeFormat",
    "TimeZone",
    "Tolerance",
    "Window",
    "asked_of",
]

Contamination = Annotated[
    float, typer.Option("--contamination", "-c", help="γ, the expected share of anomalies.")
]
Tolerance = Annotated[
    float | None, typer.Option("--tolerance", "-T", help="T, instead of a budget.")
]
Rate = Annotated[
    float | None, typer.Option(help="Share of events that may be rejected.  [default: γ]")
]
Window = Annotated[int | None, typer.Option("--window", "-n", help="n.  [default: by the length]")]
Detector = Annotated[str, typer.Option(help="Name of the detector.")]
Time = Annotated[str | None, typer.Option(help="Column of the time.  [default: guessed]")]
Sensor = Annotated[
    str | None, typer.Option(help="Column of the sensor; - for none.  [default: guessed]")
]
Tag = Annotated[
    str | None,
    typer.Option(help="Column of the quantity, where a row has one value.  [default: guessed]"),
]
Channel = Annotated[
    list[str] | None, typer.Option(help="A channel; several times.  [default: guessed]")
]
Flag = Annotated[
    list[str] | None,
    typer.Option(help="A channel to keep out of the score; several times.  [default: guessed]"),
]
KnownLabel = Annotated[
    str | None, typer.Option(help="Column of the known truth.  [default: guessed]")
]
Delimiter = Annotated[str | None, typer.Option(help="Between the columns.  [default: guessed]")]
Encoding = Annotated[str | None, typer.Option(help="Such as cp1252 or utf-16.  [default: guessed]")]
Decimal = Annotated[str | None, typer.Option(help="Decimal mark, . or ,  [default: guessed]")]
Thousands = Annotated[
    str | None, typer.Option(help="Mark between three digits.  [default: guessed]")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Does the first row name the columns?"),
]
SkipRows = Annotated[
    int | None, typer.Option(min=0, help="Rows above the table.  [default: guessed]")
]
Sheet = Annotated[str | None, typer.Option(help="Of an Excel workbook.  [default: the first]")]
TimeFormat = Annotated[
    str | None, typer.Option(help="Such as '%d.%m.%Y %H:%M'.  [default: guessed]")
]
TimeZone = Annotated[
    str | None, typer.Option(help="Of times without one: Europe/Berlin.  [default: UTC]")
]


def asked_of(given: dict[str, object]) -> Asked:
    """Return what was asked of a table, from a command's parameters by name."""
    known = {name: given[name] for name in Asked.__slots__ if name in given}
    listed = {"channels": given.get("channel") or (), "flags": given.get("flag")}
    return Asked(**known, **listed)  # type: ignore[arg-type]
