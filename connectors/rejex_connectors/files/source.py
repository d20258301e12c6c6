"""One file, or standard input, as a source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rejex_connectors.files.bytes import END, NEW_FILE, ByteInput, Mark, ToUtf8, compression_of
from rejex_connectors.files.commit_state import InputState, read_commit, read_input
from rejex_connectors.files.rows import MAX_ROW_BYTES, CsvRows, LineRows
from rejex_connectors.files.workbooks import WORKBOOKS, TableInput, Workbook
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import Assigned, Revoked
from rejex_stream.types import Partition, Position, Record

__all__ = ["FileSource"]

_PACKED = re.compile(r"\.(gz|bz2|xz|zip)$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FORMATS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


class FileSource:
    r"""Delivers the records of one file, or of standard input; see :class:`~.protocols.Source`.

    Parameters
    ----------
    path
        A file, plain, .gz, .bz2, .xz or a .zip of one file, or ``-`` for standard input.
    format
        ``jsonl``, ``csv``, ``excel`` or ``parquet``; by default after the name's ending. Records of
        the last two are rows of CSV with commas.
    delimiter
        Between CSV cells; by default a comma, in ``.tsv`` a tab.
    topic
        Name of the input in positions; by default the file's name, or ``stdin``.
    follow
        Wait for more at the end, as ``tail -F`` does: a last line without its newline waits for
        the rest; a file that is cut or replaced under its path is read from its beginning, its
        records counted on. Those of the file before cannot be replayed after that.
    state_dir
        The folder of the :class:`~.sink.FileSink`: where to go on, and whether it is still
        the same file.
    sample_interval_ms
        Gives records a timestamp, their ordinal times this, for feeds that carry no time.
    encoding
        Of the text; by default UTF-8, or UTF-16 where its byte order mark says so. Records are
        UTF-8 in any case.
    has_header
        Whether the first row of a table names the columns; if not, it is a record.
    skip_rows
        How many rows of a table stand above that, a title or a remark; blank lines are no rows.
    sheet
        Of a workbook; by default the first.

    Raises
    ------
    ConfigError
        If the arguments contradict each other.
    ConnectorError
        If the file cannot be opened, or the state folder is damaged.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "flow.csv")
    >>> _ = path.write_text("t,flow\n1,2.5\n2,2.6\n")
    >>> source = FileSource(path)
    >>> source.header
    b't,flow'
    >>> (assigned,) = source.changes()
    >>> source.seek(assigned.partition, 0)
    >>> [record.value for record in source.poll(10, timeout_s=0)]
    [b'1,2.5', b'2,2.6']
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: Literal["jsonl", "csv", "excel", "parquet"] | None = None,
        delimiter: str | None = None,
        topic: str | None = None,
        follow: bool = False,
        state_dir: str | Path | None = None,
        sample_interval_ms: int | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        encoding: str | None = None,
        has_header: bool = True,
        skip_rows: int = 0,
        sheet: str | None = None,
    ) -> None:
        self._path = str(path)
        name = Path(self._path).name
        suffix = Path(_PACKED.sub("", name)).suffix.lower()
        self._format = format or _FORMATS.get(suffix) or WORKBOOKS.get(suffix)
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
            mend = "unpack it" if compression else "write it as CSV"
            raise ConfigError(f"{self._path} is {why} and cannot be followed: {mend}")
        self._delimiter = delimiter or ("\t" if suffix == ".tsv" else ",")
        if workbook is not None:
            self._delimiter, encoding = ",", "utf-8"
        self._follow = follow
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._interval_ms = sample_interval_ms
        self._max_row_bytes = max_row_bytes
        self._encoding = encoding
        self._has_header = has_header and self._format != "jsonl"
        self._skip_rows = 0 if self._format == "jsonl" else skip_rows
        self.partition = Partition(topic or ("stdin" if self._path == "-" else name), 0)
        self._header: bytes | None = None
        self._announce = True
        self._reading = False
        self._failed: ConnectorError | None = None
        self._input: ByteInput | TableInput = (
            ByteInput(self._path, follow=follow, compression=compression)
            if workbook is None
            else TableInput(self._path, workbook, sheet, skip_rows)
        )
        self._begin(self._known_first_offset())

    # ----------------------------------------------------------------------------- the contract
    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return the next records, waiting at most `timeout_s` if there are none."""
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
        topic, interval_ms = self.partition.topic, self._interval_ms
        return [
            Record(
                Position(topic, 0, offset),
                None,
                row,
                (),
                None if interval_ms is None else offset * interval_ms,
            )
            for offset, row in enumerate(rows, first)
        ]

    def changes(self) -> Sequence[Assigned | Revoked]:
        """Report the one partition, once."""
        if not self._announce:
            return ()
        self._announce = False
        commit = None if self._state_dir is None else read_commit(self._state_dir)
        committed = None if commit is None else commit.next_offsets.get(self.partition)
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
                    "another state folder"
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
        """Deliver nothing until the next seek."""
        self._reading = False

    def note_waiting(self, partition: Partition, *, waits: bool) -> None:
        """Do nothing: no end of a process is held against a record."""

    def rewind(self) -> None:
        """Report the partition anew; it is delivered after the next seek."""
        self._announce, self._reading = True, False

    @property
    def exhausted(self) -> bool:
        """Whether a file that is not followed was read to its end."""
        return self._ended and self._reading and self._at == len(self._rows) and not self._failed

    def close(self) -> None:
        """Let go of the file."""
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
            LineRows(self._max_row_bytes)
            if self._format == "jsonl"
            else CsvRows(self._delimiter, self._max_row_bytes)
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
    def _known_first_offset(self) -> int:
        if self._state_dir is None:
            return 0
        known = read_input(self._state_dir, self.partition.topic)
        return 0 if known is None else known.first_offset

    def _recognise(self, first_row: bytes) -> None:
        """Compare the first record with the one that was there when the state was made."""
        if self._state_dir is None:
            return
        beginning = hashlib.sha256(first_row).hexdigest()
        known = read_input(self._state_dir, self.partition.topic)
        if known is None or known.first_offset != self._first_offset:
            self._state_dir.mkdir(parents=True, exist_ok=True)
            InputState(beginning, self._first_offset).write(self._state_dir, self.partition.topic)
        elif known.beginning != beginning:
            raise ConnectorError(
                f"{self._path} is not the file that was read before: its first record differs. "
                f"Bring that file back, or start over with a state folder other than "
                f"{self._state_dir}"
            )
