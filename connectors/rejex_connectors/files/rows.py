"""Cutting a stream of bytes into rows: lines, or CSV rows with newlines in quotes."""

from __future__ import annotations

import csv
from collections import deque

__all__ = ["CsvRows", "LineRows"]

MAX_ROW_BYTES = 16 << 20
"""A longer row is cut off here: no decoder takes it, and it must not fill the memory."""

MAX_OPEN_BYTES = 64 << 10
"""How far a quote may stay open before it is taken for a stray one."""


class _Lines:
    """Cuts at newlines and nothing else; an endless line is kept only as far as allowed."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.tail = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        first, newline, rest = chunk.partition(b"\n")
        self._keep(first)
        if not newline:
            return []
        lines = [bytes(self.tail), *rest.split(b"\n")]
        self.tail.clear()
        self._keep(lines.pop())
        return lines

    def finish(self) -> list[bytes]:
        lines = [bytes(self.tail)]
        self.tail.clear()
        return lines

    def _keep(self, part: bytes) -> None:
        # One byte more than allowed marks the row as too long.
        room = self._max_bytes + 1 - len(self.tail)
        self.tail += part[: max(0, room)]


def _rows(lines: list[bytes]) -> list[bytes]:
    return [
        line[:-1] if line.endswith(b"\r") else line for line in lines if line and not line.isspace()
    ]


class LineRows:
    r"""Cuts at newlines (``\n`` or ``\r\n``); blank lines are no rows.

    Examples
    --------
    >>> rows = LineRows()
    >>> rows.feed(b'{"a": 1}\r\n\n{"a"')
    [b'{"a": 1}']
    >>> rows.feed(b': 2}'), rows.finish()
    ([], [b'{"a": 2}'])
    """

    def __init__(self, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        self._lines = _Lines(max_row_bytes)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the rows that are complete now. O(bytes)."""
        return _rows(self._lines.feed(chunk))

    def finish(self) -> list[bytes]:
        """Return what is left at the end of the input."""
        return _rows(self._lines.finish())


class CsvRows:
    r"""Cuts CSV into rows: a newline inside quotes belongs to its row.

    A quote that is still open after 64 KiB, or at the end, is taken for a stray one: its line is a
    row of its own (a broken one), and reading goes on with the next line.

    Examples
    --------
    >>> CsvRows(",").feed(b'a,"one\ntwo"\nb,3\n')
    [b'a,"one\ntwo"', b'b,3']
    """

    def __init__(self, delimiter: str, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        self._delimiter = delimiter
        self._lines = _Lines(max_row_bytes)
        self._open: list[bytes] = []
        self._open_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the rows that are complete now. O(bytes)."""
        lines = self._lines.feed(chunk)
        if self._open or any(b'"' in line for line in lines):
            lines = self._join(lines)
        return _rows(lines)

    def finish(self) -> list[bytes]:
        """Return what is left at the end of the input."""
        rows = self._join(self._lines.finish())
        while self._open:
            first, *rest = self._open
            self._open = []
            rows += [first, *self._join(rest)]
        return _rows(rows)

    def _join(self, lines: list[bytes]) -> list[bytes]:
        rows: list[bytes] = []
        queue = deque(lines)
        while queue:
            line = queue.popleft()
            if not self._open:
                if b'"' in line and self._leaves_open(line):
                    self._open, self._open_bytes = [line], len(line)
                else:
                    rows.append(line)
                continue
            self._open.append(line)
            self._open_bytes += len(line)
            if line.count(b'"') % 2:
                rows.append(b"\n".join(self._open))
                self._open = []
            elif self._open_bytes > MAX_OPEN_BYTES:
                first, *rest = self._open
                self._open = []
                rows.append(first)
                queue.extendleft(reversed(rest))
        return rows

    def _leaves_open(self, line: bytes) -> bool:
        # By the parser that will read the row: quotes only count where a cell begins with one.
        reader = csv.reader(
            [line.decode("latin-1")],
            delimiter=self._delimiter,
            skipinitialspace=self._delimiter != " ",
            strict=True,
        )
        try:
            next(reader)
        except csv.Error as error:
            return "unexpected end of data" in str(error)
        return False
