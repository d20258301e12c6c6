"""How results are shown: tables for people, JSON for programs; untrusted text stays text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from rejex_stream.logs import escaped

__all__ = [
    "As",
    "AsOption",
    "console",
    "days",
    "number",
    "print_facts",
    "print_json",
    "print_table",
    "share",
]


class As(StrEnum):
    """Form of a result on standard output."""

    TABLE = "table"
    JSON = "json"


AsOption = Annotated[As, typer.Option("--output", help="Form of the result on standard output.")]


def console(*, stderr: bool = False) -> Console:
    """Return a console that honours NO_COLOR, and neither wraps nor cuts what goes to a file."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def print_json(result: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """Print a result as JSON; NaN and infinity become null."""
    plain = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(result)))
    print(json.dumps(plain, indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    left: Sequence[int] = (0,),
    stderr: bool = False,
) -> None:
    """Print a table; numbers stand right, the columns `left` left."""
    out = console(stderr=stderr)
    if title:
        out.print(escaped(title), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify = "left" if index in left else "right"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(escaped(cell) for cell in row))
    out.print(table)


def print_facts(facts: Sequence[tuple[str, str]], *, title: str = "", stderr: bool = False) -> None:
    """Print what is known, a line each."""
    out = console(stderr=stderr)
    if title:
        out.print(escaped(title), soft_wrap=True)
    table = Table(box=None, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(escaped(name), escaped(value))
    out.print(table)


def share(value: float | None, digits: int = 3) -> str:
    """Return a share as per cent.

    Examples
    --------
    >>> share(0.105894), share(0.00012), share(None)
    ('10.6 %', '0.012 %', '-')
    """
    return "-" if value is None else f"{number(100 * value, digits)} %"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with thousands separated and so many digits that mean something.

    Examples
    --------
    >>> number(1234567.8), number(0.0123456), number(17), number(None)
    ('1,234,568', '0.0123', '17', '-')
    """
    if value is None:
        return "-"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.12f}".rstrip("0").rstrip(".") if "e" in text else text


def days(value: float) -> str:
    """Return a length of time in the unit that fits.

    Examples
    --------
    >>> days(400), days(2.5), days(0.02), days(0.0001)
    ('1.1 years', '2.5 days', '29 min', '8.6 s')
    """
    seconds = value * 86_400
    for unit, length in (("years", 31_557_600), ("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{number(seconds / length, 2)} {unit}"
    return f"{number(seconds, 2)} s"
