"""What commands share: how results are shown, tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from rejex_stream import readable
from rejex_stream.operate.logs import escaped
from rejex_stream.plan.promises import BESIDE_BUDGET, Plan
from rejex_stream.types import Label, OutcomeCounts

ConfigFile = Annotated[Path, typer.Argument(help="The config, a TOML file.")]


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
    columns = [escaped(column) for column in columns]
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
    """Print name and value, a line each."""
    out = console(stderr=stderr)
    if title:
        out.print(escaped(title), soft_wrap=True)
    table = Table(box=None, show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(escaped(name), escaped(value))
    out.print(table)


number = partial(readable.number, digits=3)


def share(value: float | None) -> str:
    return "–" if value is None else f"{number(100 * value)} %"


_COUNTED = ("limited", "withheld", "held", "invalid", "ignored", "reviews", "incidents")


def outcome_facts(counts: OutcomeCounts) -> dict[str, object]:
    """Return counts of outcomes as plain values, the same in every command."""
    return {
        "events": counts.n_events,
        "labels": {str(label): counts.labels[label] for label in Label},
        "reasons": {str(reason): count for reason, count in sorted(counts.reasons.items())},
        "ranked": counts.n_ranked,
        "rejection_rate": counts.rejection_rate,
        **{name: getattr(counts, f"n_{name}") for name in _COUNTED},
    }


def outcome_rows(
    counts: OutcomeCounts, expected_rate: float | None = None
) -> list[tuple[str, str]]:
    """Return counts of outcomes as rows to print, the same in every command."""
    total = max(1, counts.labels.total())
    rows = []
    for label in Label:
        rows.append(
            (str(label), f"{counts.labels[label]:,}  {share(counts.labels[label] / total)}")
        )
        if label is Label.ANOMALY and counts.n_limited:
            rows.append(("  beyond a limit", f"{counts.n_limited:,}"))
    rows += [(f"  {name}", f"{count:,}") for name, count in sorted(counts.reasons.items()) if count]
    rows.append(("rejection rate, ranked", share(counts.rejection_rate)))
    if expected_rate is not None:
        rows.append(("  expected in a full window", share(expected_rate)))
    happened = (
        ("  withheld", counts.n_withheld, " without credit of the budget"),
        ("for review", counts.n_reviews, ""),
        ("dead letters", counts.n_invalid, ""),
        ("ignored", counts.n_ignored, " records: no reading, or part of a later row"),
        ("incidents", counts.n_incidents, " opened"),
        ("held, planned", counts.n_held, " events, which have no rank"),
    )
    return rows + [(name, f"{count:,}{more}") for name, count, more in happened if count]


def held_rows(choice: Plan) -> list[tuple[str, str]]:
    """Return how the rate is held as rows to print; empty where it is only expected."""
    held = None if choice.promise is None else choice.promise.held
    if held is None:
        return []
    return [
        ("held on any stream", held.promise),
        ("beside it", BESIDE_BUDGET),
        (
            "T, as the credit goes",
            f"{number(held.max_tolerance)} where it is full, {number(choice.tolerance)} at half, "
            "nothing is rejected without",
        ),
        ("overruns of that budget", "none, by construction; what has no credit is `withheld`"),
    ]
