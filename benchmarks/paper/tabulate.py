"""Tables as Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Table"]


class Table:
    """A table that is printed in the report and written as CSV beside it.

    Parameters
    ----------
    name
        Of the CSV file.
    header
        Titles of the columns.
    printed
        Whether the report shows it, or has it as CSV only.
    """

    def __init__(self, name: str, header: Sequence[str], *, printed: bool = True) -> None:
        self.name = name
        self.printed = printed
        self.header = list(header)
        self.rows: list[list[str]] = []

    def add(self, *cells: object) -> None:
        """Add a row; floats get three decimals."""
        self.rows.append(
            [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        )

    def markdown(self) -> str:
        """Return the table as Markdown, numbers to the right; nothing if it is not printed."""
        if not self.printed:
            return ""
        header, *rows = [
            [cell.replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)
        ]
        lines = ["| " + " | ".join(header) + " |"]
        lines.append("|" + "|".join([" :-- ", *[" --: "] * (len(self.header) - 1)]) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write the CSV file."""
        with (folder / f"{self.name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.header)
            writer.writerows([cell.replace("**", "") for cell in row] for row in self.rows)
