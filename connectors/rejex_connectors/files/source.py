"""One file, or standard input, as a source; a file of lines as a log of commands.

Bytes are cut into rows by :class:`LineRows` and :class:`CsvRows`: lines, elements of an array of
JSON, or rows of CSV with newlines in quotes.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Literal, TypeAlias

from rejex_connectors.durable import PRIVATE
from rejex_connectors.files.bytes import END, NEW_FILE, ByteInput, Mark, ToUtf8, compression_of
from rejex_connectors.files.sink import InputState, read_commit, read_input
from rejex_connectors.files.workbooks import WORKBOOKS, TableInput, Workbook
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors
from rejex_stream.protocols import Assigned, ControlRecords, Revoked
from rejex_stream.types import Partition, Position, Record

_PACKED = re.compile(r"\.(gz|bz2|xz|zip)$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Format: TypeAlias = Literal["jsonl", "csv", "excel", "parquet"]
_FORMATS: dict[str, Format] = {
    **WORKBOOKS, ".csv": "csv", ".tsv": "csv", ".txt": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
}  # fmt: skip
_named = tuple.__new__  # nearly twice as fast as calling a named tuple's class
_MAX_CONTROL_BYTES = 1 << 20  # at once; a line longer than that is none

MAX_ROW_BYTES = 16 << 20
"""A longer row is cut off here: no decoder takes it, and it must not fill the memory."""

MAX_OPEN_BYTES = 64 << 10  # how far a quote may stay open before it is taken for a stray one

_FIRST_END = re.compile(rb'"|\r\n|\r|\n')
_JSON_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*("|\Z)|[{}\[\]]', re.DOTALL)


def named_format(path: str) -> tuple[Format | None, str]:
    """Return the format that a file's name tells, if it does, and what parts its columns."""
    suffix = Path(_PACKED.sub("", Path(path).name)).suffix.lower()
    return _FORMATS.get(suffix), "\t" if suffix == ".tsv" else ","


class _Lines:
    """Cuts at newlines, or at returns where the first line ends with one alone."""

    def __init__(self) -> None:
        self._at_returns: bool | None = None
        self._quoted = False  # a quote is open in the first line
        self._undecided = False  # the last byte so far is a return, the first of all line ends
        self.tail = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._at_returns is None and chunk:
            chunk = self._decided(chunk)
        elif self._at_returns:
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
        """See how the first line ends outside of quotes, however the bytes arrive."""
        if self._undecided:
            chunk, self._undecided = b"\r" + chunk, False
        for match in _FIRST_END.finditer(chunk):
            if match[0] == b'"':
                self._quoted = not self._quoted
            elif not self._quoted and match[0] == b"\r" and match.end() == len(chunk):
                self._undecided = True
                return chunk[:-1]
            elif not self._quoted:
                self._at_returns = match[0] == b"\r"
                before, rest = chunk[: match.start()], chunk[match.start() :]
                return before + (rest.replace(b"\r", b"\n") if self._at_returns else rest)
        return chunk

    def finish(self) -> list[bytes]:
        if self._undecided:
            self._keep(b"\r")
        lines = [bytes(self.tail)]
        self.tail.clear()
        return lines

    def _keep(self, part: bytes) -> None:
        # One byte more than allowed marks the row as too long.
        room = MAX_ROW_BYTES + 1 - len(self.tail)
        self.tail += part[: max(0, room)]


def _rows(lines: list[bytes]) -> list[bytes]:
    rows = [
        line[:-1] if line.endswith(b"\r") else line for line in lines if line and not line.isspace()
    ]
    if b"\0" in b"".join(rows):  # a power loss: what was there before and after is read
        rows = [row.strip(b"\0\r") or b"\0" if b"\0" in row else row for row in rows]
    return rows


_ARRAYS, _FIRST_BYTES = (b"[{", b"[[", b"[]"), 1 << 16


class LineRows:
    r"""Cuts at newlines (``\n`` or ``\r\n``), or an array of JSON between its elements.

    Blank lines are no rows. An array that begins with a number or a text is one itself, and so is
    one that ends with its line, where another begins in the next.
    """

    def __init__(self) -> None:
        self._lines = _Lines()
        self._array: _Elements | None = None
        self._held: bytes | None = b""  # what came until it is known which of both it is

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the rows that are complete now. O(bytes)."""
        if self._held is not None:
            chunk = self._held + chunk
            self._held = None
            begun = chunk.removeprefix(b"\xef\xbb\xbf").split(None, 2)
            first = b"".join(begun)[:2]
            if first in (b"", b"["):
                self._held = chunk
                return []
            if first in _ARRAYS:
                line, _, rest = chunk[:_FIRST_BYTES].partition(b"\n")
                if not rest.strip() and len(chunk) < _FIRST_BYTES:  # nobody knows yet
                    self._held = chunk
                    return []
                if not (rest.lstrip().startswith(b"[") and line.rstrip().endswith(b"]")):
                    self._array = _Elements()
        if self._array is not None:
            return self._array.feed(chunk)
        return _rows(self._lines.feed(chunk))

    def finish(self) -> list[bytes]:
        rows, held = list[bytes](), self._held or b""
        if len(held.removeprefix(b"\xef\xbb\xbf").strip()) > 1:
            self._array = _Elements()
            rows = self._array.feed(held)
        if self._array is not None:
            return [*rows, *self._array.finish()]
        return _rows([*self._lines.feed(held), *self._lines.finish()])


class _Elements:
    """Cuts the elements out of one array of JSON, which are objects or arrays."""

    def __init__(self) -> None:
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
        if len(self._tail) > MAX_ROW_BYTES:
            rows += self.finish()
        return rows

    def finish(self) -> list[bytes]:
        rest, self._tail = self._tail[: MAX_ROW_BYTES + 1], b""
        return [rest] if b"{" in rest else []


class CsvRows:
    r"""Cuts CSV into rows: a newline inside quotes belongs to its row.

    A quote that is still open after 64 KiB, or at the end, is taken for a stray one: its line is a
    row of its own (a broken one), and reading goes on with the next line.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._lines = _Lines()
        self._open: list[bytes] = []
        self._open_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = self._lines.feed(chunk)
        if self._open or b'"' in b"".join(lines):
            lines = self._join(lines)
        return _rows(lines)

    def finish(self) -> list[bytes]:
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


class FileSource:
    """Delivers the records of one file, or of standard input; see :class:`~.protocols.Source`.

    The format is by default that of the name's ending; records of ``excel`` and ``parquet`` are
    rows of CSV with commas. With `follow` it waits for more at the end, as ``tail -F`` does: a last
    line without its newline waits for the rest; a file that is cut or replaced under its path is
    read from its beginning, its records counted on, and those of the file before cannot be replayed
    after that. `sample_interval_ms` gives records a timestamp, their ordinal times this, for feeds
    that carry no time. In the state folder, that of the :class:`~.sink.FileSink`, stands where to
    go on, and whether it is still the same file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: Format | None = None,
        delimiter: str | None = None,
        topic: str | None = None,  # in positions; by default the file's name, or `stdin`
        follow: bool = False,
        state_dir: str | Path | None = None,
        sample_interval_ms: int | None = None,
        encoding: str | None = None,
        has_header: bool = True,
        skip_rows: int = 0,  # of a table, a title or a remark above it; blank lines are none
        sheet: str | None = None,
    ) -> None:
        self._path = str(path)
        named, usual = named_format(self._path)
        self._format = format or named
        if self._format not in ("jsonl", "csv", "excel", "parquet"):
            raise ConfigError(
                f"the format of {self._path} is {self._format!r}: say format = 'jsonl', 'csv', "
                "'excel' or 'parquet'"
            )
        workbook: Workbook | None = (
            "excel" if self._format == "excel" else "parquet" if self._format == "parquet" else None
        )
        compression = None if workbook else compression_of(self._path)
        if follow and (compression or workbook):
            why = "compressed" if compression else "no text that grows"
            fix = "unpack it" if compression else "write it as CSV"
            raise ConfigError(f"{self._path} is {why} and cannot be followed: {fix}")
        self._delimiter = delimiter or usual
        if workbook is not None:
            self._delimiter, encoding = ",", "utf-8"
        self._follow = follow
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._interval_ms = sample_interval_ms
        self._encoding = encoding
        self._has_header = has_header and self._format != "jsonl"
        self._skip_rows = 0 if self._format == "jsonl" else skip_rows
        name = "stdin" if self._path == "-" else Path(self._path).name
        self.partition = Partition(topic or name, 0)
        self._header: bytes | None = None
        self._announce = True
        self._reading = False
        self._failed: ConnectorError | None = None
        self._input: ByteInput | TableInput = (
            ByteInput(self._path, follow=follow, compression=compression)
            if workbook is None
            else TableInput(self._path, workbook, sheet, skip_rows)
        )
        known = None if self._state_dir is None else read_input(self._state_dir, topic or name)
        self._begin(0 if known is None else known.first_offset)

    # ----------------------------------------------------------------------------- the contract
    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        if not self._reading:
            return ()
        if len(self._rows) - self._at < max_records:
            self._fill(max_records, timeout_s)
        rows = self._rows[self._at : self._at + max_records]
        if not rows and self._failed is not None:
            raise self._failed
        self._at += len(rows)
        first = self._next
        self._next += len(rows)
        topic, step = self.partition.topic, self._interval_ms
        offsets = range(first, self._next)
        times = repeat(None) if step is None else [offset * step for offset in offsets]
        places = map(_named, repeat(Position), zip(repeat(topic), repeat(0), offsets, repeat(0)))
        parts = zip(places, repeat(None), rows, repeat(()), times)
        return list(map(_named, repeat(Record), parts))

    def changes(self) -> Sequence[Assigned | Revoked]:
        """Report the one partition, once."""
        if not self._announce:
            return ()
        self._announce = False
        committed = None
        if self._state_dir is not None:
            committed = read_commit(self._state_dir).next_offsets.get(self.partition)
        return [Assigned(self.partition, committed, self._first_offset)]

    def seek(self, partition: Partition, offset: int) -> None:
        """Deliver from record number `offset` on. O(records before it)."""
        self._reading = True
        if offset < self._next:
            self._go_back(offset)
        while self._next < offset:
            if self._at == len(self._rows) and not self._fill(1, timeout_s=1.0):
                if not self._ended and self._failed is None and not self._input.is_file:
                    continue  # a pipe takes its time
                raise self._failed or ConnectorError(
                    f"{self._path} has {self._next} record(s), fewer than the {offset} that were "
                    "already processed: it was cut or replaced. Bring it back, or start over with "
                    "another state folder and outputs"
                )
            step = min(len(self._rows) - self._at, offset - self._next)
            self._at += step
            self._next += step

    def _go_back(self, offset: int) -> None:
        if not self._input.is_file:
            raise ConnectorError(
                f"{self._path} is a pipe past record {offset} (at {self._next}) and cannot go "
                "back: use a file"
            )
        if offset < self._first_offset:
            raise ConnectorError(
                f"record {offset} of {self._path} stood in a file that was rotated away; the first "
                f"record of this one is {self._first_offset}"
            )
        self._input.restart()
        self._begin(self._first_offset)

    def pause(self, partition: Partition) -> None:
        self._reading = False

    def rewind(self) -> None:
        """Report the partition again; it is delivered after the next seek."""
        self._announce, self._reading = True, False

    @property
    def exhausted(self) -> bool:
        return self._ended and self._reading and self._at == len(self._rows) and not self._failed

    def close(self) -> None:
        self._input.close()

    # ---------------------------------------------------------------------------- beyond it
    @property
    def header(self) -> bytes:
        """The header row of a CSV file; waits for it."""
        while self._header is None and not self._ended and self._failed is None:
            self._fill(1, timeout_s=1.0)
        if self._header is None:
            raise self._failed or ConnectorError(f"{self._path} is empty: expected a CSV header")
        return self._header

    @property
    def fraction(self) -> float | None:
        """Share of the file that was read, by bytes; ``None`` where there is no end."""
        return self._input.fraction

    # ------------------------------------------------------------------------------- reading
    def _begin(self, first_offset: int) -> None:
        """Start with the first byte of a file whose first record has that offset."""
        self._first_offset = self._next = first_offset
        self._rows: list[bytes] = []
        self._at = 0
        self._ended = False
        self._failed = None
        self._start_file()

    def _start_file(self) -> None:
        self._splitter: LineRows | CsvRows = (
            LineRows() if self._format == "jsonl" else CsvRows(self._delimiter)
        )
        self._to_utf8 = ToUtf8(self._encoding)
        self._n_file_rows = 0
        self._begun = False
        self._above = self._skip_rows

    def _fill(self, wanted: int, timeout_s: float) -> bool:
        """Read until there are `wanted` rows, or nothing more at once; whether there are any."""
        self._rows = self._rows[self._at :]
        self._at = 0
        while len(self._rows) < wanted and not self._ended and self._failed is None:
            try:
                chunk = self._input.read(0.0 if self._rows else timeout_s)
                if not chunk:
                    break
                self._take(chunk)
            except ConnectorError as error:  # raised when the rows before it are delivered
                self._failed = error
        return bool(self._rows)

    def _take(self, chunk: bytes | Mark) -> None:
        if isinstance(chunk, bytes):
            self._add(self._splitter.feed(self._to_utf8.feed(chunk)))
            return
        self._add(self._splitter.feed(self._to_utf8.finish()) + self._splitter.finish())
        if chunk is END:
            self._ended = True
        elif chunk is NEW_FILE:
            self._first_offset = self._next + len(self._rows) - self._at
            self._start_file()

    def _add(self, rows: list[bytes]) -> None:
        if rows and not self._begun:
            self._begun = True
            rows[0] = rows[0].removeprefix(_BYTE_ORDER_MARK)
        if self._above:
            above = min(self._above, len(rows))
            self._above -= above
            rows = rows[above:]
        if not rows:
            return
        first_of_file = self._n_file_rows
        self._n_file_rows += len(rows)
        if first_of_file == 0 and self._has_header:
            self._take_header(rows.pop(0))
        n_header = int(self._has_header)
        if first_of_file <= n_header and rows:
            self._recognise(rows[0])
        self._rows += rows

    def _take_header(self, row: bytes) -> None:
        if self._header is not None and row != self._header:
            raise ConnectorError(
                f"the header of {self._path} changed from {self._header!r} to {row!r}: start a "
                "pipeline of its own for the new columns"
            )
        self._header = row

    # ------------------------------------------------------------------------- the same file?
    def _recognise(self, first_row: bytes) -> None:
        """Compare the first record with the one that was there when the state was made."""
        if self._state_dir is None:
            return
        beginning = hashlib.sha256(first_row).hexdigest()
        known = read_input(self._state_dir, self.partition.topic)
        if known is None or known.first_offset != self._first_offset:
            self._state_dir.mkdir(parents=True, exist_ok=True)
            InputState(
                topic=self.partition.topic, beginning=beginning, first_offset=self._first_offset
            ).write(self._state_dir)
        elif known.beginning != beginning:
            raise ConnectorError(
                f"{self._path} is not the file that was read before: its first record differs. "
                f"Bring that file back, or start over with outputs and a state folder other than "
                f"{self._state_dir}"
            )


class FileControl:
    """Reads commands from a file of lines; see :class:`~rejex_stream.protocols.ControlLog`.

    The offset of a line is that of its first byte. A last line without its end waits for the rest.
    A file that is not there holds no commands; a log is known by its first line.
    """

    def __init__(self, path: str | Path, inputs: Iterable[str]) -> None:
        self._path = Path(path)
        self.inputs = tuple(inputs)

    def read(self, start: int) -> ControlRecords:
        """Return the whole lines from byte `start` on, up to 1 MiB of them."""
        with explaining_os_errors(f"{self._path} cannot be read"), suppress(FileNotFoundError):
            if self._path.stat().st_size != start:
                with self._path.open("rb") as file:
                    head = file.readline(_MAX_CONTROL_BYTES)
                    log = hashlib.blake2b(head).digest() if head.endswith(b"\n") else b""
                    file.seek(start)
                    return self._lines(file.read(_MAX_CONTROL_BYTES), start, log)
        return ControlRecords([], start)

    def _lines(self, chunk: bytes, start: int, log: bytes) -> ControlRecords:
        whole = chunk.rfind(b"\n") + 1
        if not whole and len(chunk) == _MAX_CONTROL_BYTES:
            whole = len(chunk)  # refused piece by piece: nobody would wait for its end
        records, at = [], start
        for line in chunk[:whole].splitlines(keepends=True):
            if line.strip():
                position = Position(self._path.name, 0, at)
                records.append(Record(position, None, line.rstrip(b"\r\n")))
            at += len(line)
        return ControlRecords(records, at, log)

    def close(self) -> None:
        """Nothing is held open between two reads."""


def append_line(path: Path, line: bytes) -> None:
    """Append one line and make it durable; what was left without an end before gets one."""
    with explaining_os_errors(f"{path} cannot be written"):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(handle, "rb+", buffering=0):
            size = os.fstat(handle).st_size
            broken = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (b"\n" if broken else b"") + line + b"\n")
            os.fsync(handle)
