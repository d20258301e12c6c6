"""Cutting a stream of bytes into rows: lines, or CSV rows with newlines in quotes."""

from __future__ import annotations

import csv
import re
from collections import deque

__all__ = ["CsvRows", "LineRows"]

MAX_ROW_BYTES = 16 << 20
"""A longer row is cut off here: no decoder takes it, and it must not fill the memory."""

MAX_OPEN_BYTES = 64 << 10
"""How far a quote may stay open before it is taken for a stray one."""

_FIRST_END = re.compile(rb'"|\r\n|\r|\n')
_JSON_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*("|\Z)|[{}\[\]]', re.DOTALL)


class _Lines:
    """Cuts at newlines, or at returns where the first line ends with one alone."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._at_returns: bool | None = None
        self._undecided = False  # the last byte so far is a return, the first of all line ends
        self.tail = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._at_returns is None and chunk:
            chunk = self._decided(chunk)
        if self._at_returns:
            chunk = chunk.replace(b"\r", b"\n")
        first, newline, rest = chunk.partition(b"\n")
        self._keep(first)
        if not newline:
            return []
        lines = [bytes(self.tail), *rest.split(b"\n")]
        self.tail.clear()
        self._keep(lines.pop())
        return lines

    def _decided(self, chunk: bytes) -> bytes:
        """See how the first line ends, however the bytes arrive; where quotes are, by newlines."""
        if self._undecided:
            chunk, self._undecided = b"\r" + chunk, False
        match = _FIRST_END.search(chunk)
        if match is None:
            return chunk
        if match[0] == b"\r" and match.end() == len(chunk):
            self._undecided = True
            return chunk[:-1]
        self._at_returns = match[0] == b"\r"
        return chunk

    def finish(self) -> list[bytes]:
        if self._undecided:
            self._keep(b"\r")
        lines = [bytes(self.tail)]
        self.tail.clear()
        return lines

    def _keep(self, part: bytes) -> None:
        # One byte more than allowed marks the row as too long.
        room = self._max_bytes + 1 - len(self.tail)
        self.tail += part[: max(0, room)]


def _rows(lines: list[bytes]) -> list[bytes]:
    rows = [
        line[:-1] if line.endswith(b"\r") else line for line in lines if line and not line.isspace()
    ]
    if any(b"\0" in row for row in rows):  # a power loss: what was there before and after is read
        rows = [row.strip(b"\0\r") or b"\0" if b"\0" in row else row for row in rows]
    return rows


class LineRows:
    r"""Cuts at newlines (``\n`` or ``\r\n``), or an array of JSON between its elements.

    Blank lines are no rows.

    Examples
    --------
    >>> rows = LineRows()
    >>> rows.feed(b'{"a": 1}\r\n\n{"a"')
    [b'{"a": 1}']
    >>> rows.feed(b': 2}'), rows.finish()
    ([], [b'{"a": 2}'])
    >>> LineRows().feed(b'[{"a": 1},\n {"a": [2, 3]}]')
    [b'{"a": 1}', b'{"a": [2, 3]}']
    """

    def __init__(self, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        self._max_row_bytes = max_row_bytes
        self._lines = _Lines(max_row_bytes)
        self._array: _Elements | None = None
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the rows that are complete now. O(bytes)."""
        if not self._begun and chunk.strip():
            self._begun = True
            if chunk.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                self._array = _Elements(self._max_row_bytes)
        if self._array is not None:
            return self._array.feed(chunk)
        return _rows(self._lines.feed(chunk))

    def finish(self) -> list[bytes]:
        """Return what is left at the end of the input."""
        return _rows(self._lines.finish()) if self._array is None else self._array.finish()


class _Elements:
    """Cuts the elements out of one array of JSON, which are objects or arrays."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tail, self._opened = b"", False

    def feed(self, chunk: bytes) -> list[bytes]:
        data, rows = self._tail + chunk, []
        depth = begin = done = 0
        for match in _JSON_MARKS.finditer(data):
            mark = match[0]
            if mark.startswith(b'"'):
                if match[1] != b'"':  # its end is still to come
                    break
            elif not self._opened:
                self._opened, done = True, match.end()
            elif mark in b"{[":
                begin = match.start() if depth == 0 else begin
                depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    rows.append(data[begin : match.end()])
                    done = match.end()
        self._tail = data[done:]
        if len(self._tail) > self._max_bytes:
            rows += self.finish()
        return rows

    def finish(self) -> list[bytes]:
        rest, self._tail = self._tail[: self._max_bytes + 1], b""
        return [rest] if b"{" in rest else []


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
