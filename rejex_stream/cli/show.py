"""How results are shown: tables for people, JSON for programs; untrusted text stays text."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from rejex_stream.operate.logs import escaped
from rejex_stream.plan.promises import Plan

__all__ = [
    "As",
    "AsOption",
    "console",
    "held_rows",
    "legible",
    "number",
    "print_facts",
    "print_json",
    "print_table",
    "share",
]


_NARROW = 80
_PLAIN = {
    "γ": "gamma", "δ": "delta", "≤": "<=", "≥": ">=", "–": "-", "−": "-", "─": "-", "…": "...",
    "→": "->", "×": "x", "·": ".", "±": "+-", "’": "'", "\u00a0": " ", "\u202f": " ",
}  # fmt: skip


def legible(stream: TextIO) -> None:
    """Have a stream whose encoding lacks our signs write them in letters instead of failing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error("rejex-plain", _in_letters)
        reconfigure(errors="rejex-plain")


def _is_utf(stream: object) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def _in_letters(error: UnicodeError) -> tuple[str, int]:
    """Spell out what cannot be encoded; other signs as Python escapes them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    encoding = error.encoding
    letters = (_PLAIN.get(c) or c.encode(encoding, "backslashreplace").decode() for c in lost)
    return "".join(letters), error.end


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
    columns = [_shown(column, out) for column in columns]
    if title:
        out.print(_shown(title, out), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify = "left" if index in left else "right"
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(_shown(cell, out) for cell in row))
    if out.width < _NARROW and Measurement.get(out, out.options, table).maximum >= out.width:
        _print_blocks(out, columns, rows)
        return
    out.print(table)


def _print_blocks(out: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block of lines: on a narrow terminal columns would be letters wide."""
    for row in rows:
        block = Table(box=None, show_header=False, pad_edge=False)
        for _ in range(2):
            block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            if cell:
                block.add_row(column, _shown(cell, out))
        out.print(block)
        out.print()


def _shown(text: str, out: Console) -> str:
    """Return untrusted text as this terminal can show it; before widths are measured."""
    text = escaped(text)
    if _is_utf(out.file):
        return text
    return "".join(_PLAIN.get(char, char) for char in text)


def print_facts(facts: Sequence[tuple[str, str]], *, title: str = "", stderr: bool = False) -> None:
    """Print what is known, a line each."""
    out = console(stderr=stderr)
    if title:
        out.print(_shown(title, out), soft_wrap=True)
    table = Table(box=None, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(_shown(name, out), _shown(value, out))
    out.print(table)


def share(value: float | None, digits: int = 3) -> str:
    """Return a share as per cent."""
    return "-" if value is None else f"{number(100 * value, digits)} %"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with thousands separated and so many digits that mean something."""
    if value is None:
        return "-"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.12f}".rstrip("0").rstrip(".") if "e" in text else text


def held_rows(choice: Plan) -> list[tuple[str, str]]:
    """Return how the rate is held, as lines for people; none where it is only expected."""
    held = None if choice.promise is None else choice.promise.held
    if held is None:
        return []
    over = (
        "of any L ranked events of a stream"
        if held.per_day is None
        else "while the latest event time advances τ"
    )
    earned = f"{choice.rate:g} L" if held.per_day is None else f"{held.per_day:g} a day · τ"
    return [
        ("held on any stream", f"at most {earned} + {held.burst:,} are rejected {over}"),
        (
            "T, as the credit goes",
            f"{number(held.most_tolerance)} where it is full, {number(choice.tolerance)} at half, "
            "nothing is rejected without",
        ),
        ("overruns of that budget", "none, by construction; what has no credit is `withheld`"),
    ]
