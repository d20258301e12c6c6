"""``doctor``: a config against the world."""

from __future__ import annotations

from typing import Annotated

import typer

from rejex_stream.cli.options import ConfigFile
from rejex_stream.cli.show import As, AsOption, console, print_json
from rejex_stream.doctor import Check, examine
from rejex_stream.operate.logs import escaped

__all__ = ["doctor"]

_MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR", "skipped": "-"}
_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red", "skipped": "dim"}


def doctor(
    config: ConfigFile,
    sample: Annotated[int, typer.Option(min=1, help="How many records to read.")] = 200,
    output: AsOption = As.TABLE,
) -> None:
    """Look whether everything is there that a pipeline needs, and say how to mend what is not.

    Changes nothing. Exit status 1 if a check fails.
    """
    found: list[Check] = []
    for check in examine(config, sample=sample):
        found.append(check)
        if output is As.TABLE:
            _print(check)
    if output is As.JSON:
        print_json(found)
    errors = sum(check.level == "error" for check in found)
    if output is As.TABLE:
        warnings = sum(check.level == "warning" for check in found)
        print(f"{len(found)} findings: {errors} error(s), {warnings} warning(s).")
    if errors:
        raise typer.Exit(1)


def _print(check: Check) -> None:
    out = console()
    mark = f"{_MARKS[check.level]:<8}"
    out.print(f"{check.number:>2} {check.name:<13} ", end="")
    out.print(mark, style=_STYLES[check.level], end="")
    out.print(escaped(check.message), soft_wrap=True)
    if check.fix:
        out.print(f"   {'':<13}         → {escaped(check.fix)}", soft_wrap=True)
