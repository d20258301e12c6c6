"""Tables that are no text, Excel and Parquet, as the rows of CSV that a file of them would have.

A cell is written the same way every time: numbers in full, times in ISO 8601, switches as 1 and 0,
what is empty (or an error of a formula) as nothing. So a record has bytes, a place and a replay, as
any other has.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime
from importlib import import_module
from typing import Any, Final, Literal

from rejex_connectors.files.bytes import END, Mark
from rejex_stream.errors import ConfigError, ConnectorError, explaining_os_errors, needing_extra

Workbook = Literal["excel", "parquet"]

WORKBOOKS: Final[dict[str, Workbook]] = {
    ".xlsx": "excel", ".xlsm": "excel", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
"""Formats by the endings of names."""

_READERS = {"excel": "openpyxl", "parquet": "pyarrow"}
_ROWS = 1_000
_LOOKED_AT = 50  # rows of a sheet, to see whether a table is in it
_MAX_RATIO, _MAX_MB_IN_WHOLE, _SMALL_MB = 100, 256, 64
"""What programs write unpacks to 20 or 30 times its size. Sheets are read row by row; any other
part, texts above all, is in memory as a whole."""
_ERRORS = frozenset({"#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"})


def workbook_of(path: str) -> Workbook | None:
    """Say by a file's first bytes whether it is a workbook or Parquet, whatever its name is."""
    with suppress(OSError, zipfile.BadZipFile):
        with open(path, "rb") as file:
            begun = file.read(4)
        if begun == b"PAR1":
            return "parquet"
        if begun == b"PK\x03\x04":
            with zipfile.ZipFile(path) as parts:
                return "excel" if "xl/workbook.xml" in parts.namelist() else None
    return None


def require_reader(kind: Workbook) -> None:
    what = "an Excel workbook" if kind == "excel" else "Parquet"
    with needing_extra(kind, what, ", or save the table as CSV"):
        import_module(_READERS[kind])


def sheets_of(path: str) -> list[str]:
    with _opened(path) as book:
        names: list[str] = book.sheetnames
    return names


def sheet_to_read(path: str) -> str | None:
    """Return the first sheet that holds several columns and rows; ``None``: there is none."""
    require_reader("excel")
    with _opened(path) as book:
        for sheet in book.worksheets:
            sheet.reset_dimensions()
            rows = itertools.islice(sheet.iter_rows(values_only=True), _LOOKED_AT)
            wide = sum(sum(cell is not None for cell in row) > 1 for row in rows)
            if wide > 2:
                return str(sheet.title)
    return None


class TableInput:
    """Reads such a file from its beginning, as bytes of CSV with commas; see :class:`~.ByteInput`.

    Row by row: of Excel the texts of all cells are in memory, of Parquet a batch of rows.
    """

    is_file = True

    def __init__(
        self, path: str, kind: Workbook, sheet: str | None = None, skip_rows: int = 0
    ) -> None:
        require_reader(kind)
        self.path = path
        self._kind, self._sheet, self._skip = kind, sheet, skip_rows
        if not os.path.isfile(path):
            why = "expected a file" if os.path.exists(path) else "No such file or directory"
            raise ConnectorError(f"{path} cannot be opened: {why}") from None
        self._rows = self._begin()

    @property
    def fraction(self) -> float | None:
        """``None``: how far one is in a compressed file says little."""
        return None

    def read(self, timeout_s: float) -> bytes | Mark:
        """Return the next rows; a file always answers, whatever the timeout."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        try:
            for count, row in enumerate(self._rows, 1):
                lines.writerow(row)
                if count == _ROWS:
                    break
        except (ConfigError, ConnectorError):
            raise
        except Exception as error:  # whatever a library of formats meets in a broken file
            raise _damaged(self.path, error) from error
        return text.getvalue().encode() or END

    def restart(self) -> None:
        self._rows.close()
        self._rows = self._begin()

    def close(self) -> None:
        self._rows.close()

    def _begin(self) -> Any:  # noqa: ANN401 - a generator, to be closed
        rows = _excel(self.path, self._sheet) if self._kind == "excel" else _parquet(self.path)
        return _without_empty_ends(rows, self._skip)


def _damaged(path: str, error: Exception) -> ConnectorError:
    return ConnectorError(f"{path} cannot be read: {str(error) or type(error).__name__}")


def _require_bounded(path: str, parts: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse a small file that unpacks to more than memory holds."""
    for part in parts:
        unpacked_mb = part.file_size / 1e6
        in_whole = not part.filename.startswith("xl/worksheets/")
        ratio = part.file_size / max(1, part.compress_size)
        too_large = in_whole and unpacked_mb > _MAX_MB_IN_WHOLE
        if too_large or (unpacked_mb > _SMALL_MB and ratio > _MAX_RATIO):
            raise ConnectorError(
                f"{path} unpacks {part.filename} to {unpacked_mb:,.0f} MB, {ratio:,.0f} times its "
                "size, and is not read: save the table as CSV"
            )


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    import openpyxl

    with explaining_os_errors(f"{path} cannot be opened"):
        file = open(path, "rb")  # noqa: SIM115 - closed below
    with file:
        try:  # by its bytes: of a path, openpyxl looks at the ending
            _require_bounded(path, zipfile.ZipFile(file).infolist())
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        except ConnectorError:
            raise
        except Exception as error:  # see read
            raise _damaged(path, error) from error
        yield book
        book.close()


def _excel(path: str, name: str | None) -> Iterator[Sequence[object]]:
    with _opened(path) as book:
        if name is not None and name not in book.sheetnames:
            raise ConfigError(
                f"{path} has no sheet {name!r}: it has {', '.join(map(repr, book.sheetnames))}."
            )
        sheet = book[name or book.sheetnames[0]]
        if not hasattr(sheet, "iter_rows"):
            raise ConfigError(f"{path}: the sheet {sheet.title!r} is a chart, no table.")
        sheet.reset_dimensions()  # what programs write there is not always so
        yield from sheet.iter_rows(values_only=True)


def _parquet(path: str) -> Iterator[Sequence[object]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # see read
        raise _damaged(path, error) from error
    with file:
        yield file.schema_arrow.names
        for batch in file.iter_batches(batch_size=_ROWS):
            columns = []
            for column in batch.columns:
                if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
                    # Python's times have microseconds, and an event time has milliseconds.
                    column = column.cast(pa.timestamp("us", column.type.tz), safe=False)  # noqa: PLW2901
                columns.append(column.to_pylist())
            yield from zip(*columns, strict=True)


def _without_empty_ends(rows: Iterable[Sequence[object]], skip: int) -> Iterator[list[str]]:
    """Write cells; what was only formatted, below the table and beside it, is left out."""
    held = width = above = 0
    for row in rows:
        cells = [_written(cell) for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            held += 1
            continue
        for _ in range(held):
            skip -= 1
            yield ["", ""]  # with its delimiter, as an empty row of a CSV that Excel writes
        held = 0
        skip -= 1
        if skip < 0:
            width = width or max(len(cells), above)
            cells += [""] * (width - len(cells))
        else:
            above = max(above, len(cells))
        yield cells


def _written(cell: object) -> str:  # noqa: PLR0911
    match cell:
        case None:
            return ""
        case bool():
            return str(int(cell))
        case str():
            return "" if cell in _ERRORS else cell
        case datetime() | date():
            return cell.isoformat()
        case bytes():
            return cell.decode("utf-8", "backslashreplace")
        case list() | dict() | tuple():
            return json.dumps(cell, default=str)
    return str(cell)
