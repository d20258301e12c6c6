"""A table with its verdicts: the input's own columns and order, and what was said of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from rejex_stream.decode.csv import split_row
from rejex_stream.tables.inspection import Table
from rejex_stream.types import Invalid, Record, Verdict

__all__ = ["ScoredCsv"]

_COLUMNS = ("label", "severity", "rank", "reason")


class ScoredCsv:
    """Writes each row as it stood in the input, with label, severity, rank and reason behind it.

    A row that could not be read is there too, without a label, its reason a sentence. A column
    that the table has already gets ``rejex_`` before its name. The text is UTF-8; what blanks
    have parted is parted by commas.
    """

    def __init__(self, table: Table, out: IO[bytes]) -> None:
        self._table, self._out = table, out
        self._delimiter = "," if table.delimiter == " " else table.delimiter
        self._pending: list[Record] = []
        taken = set(table.header)
        names = [f"rejex_{name}" if name in taken else name for name in _COLUMNS]
        self._write([self._line([*table.header, *names])])

    def passing(self, records: Iterator[Record]) -> Iterator[Record]:
        """Take note of the rows on their way to the engine."""
        for record in records:
            self._pending.append(record)
            yield record

    def add(self, verdicts: Sequence[Verdict], invalid: Mapping[int, Invalid]) -> None:
        """Write the rows that passed since the last call. O(bytes)."""
        by_offset = {verdict.position.offset: verdict for verdict in verdicts}
        lines = []
        for record in self._pending:
            offset = record.position.offset
            found = _cells(by_offset.get(offset), invalid.get(offset), self._table)
            row = (record.value or b"").decode("utf-8", "replace")
            cells = self._table.cells(record)
            if len(split_row(row, self._delimiter, strict=False)) != len(cells):
                row = self._line(cells)  # without delimiters at its end, or between blanks
            padding = self._delimiter * max(0, len(self._table.header) - len(cells))
            lines.append(f"{row}{padding}{self._delimiter}{self._line(found)}")
        self._pending.clear()
        self._write(lines)

    def _line(self, cells: Sequence[str]) -> str:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="").writerow(cells)
        return text.getvalue()

    def _write(self, lines: Sequence[str]) -> None:
        self._out.write("".join(f"{line}\n" for line in lines).encode())


def _cells(verdict: Verdict | None, invalid: Invalid | None, table: Table) -> list[str]:
    if verdict is None:
        return ["", "", "", "unreadable" if invalid is None else invalid.reason]
    severity = "" if verdict.severity is None else f"{verdict.severity:.2f}"
    rank = "" if verdict.rank is None else f"{verdict.rank:g}"
    decimal = table.guess.marks.decimal
    numbers = [text.replace(".", decimal) for text in (severity, rank)]
    return [str(verdict.label), *numbers, str(verdict.reason or "")]
