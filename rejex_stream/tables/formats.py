"""Files that loggers, historians and databases write: what stands above the table in them.

Each is recognised by its first lines, and read as the table that it holds; a file that holds none
is named for what it is, with the step that makes one of it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rejex_stream.errors import ConfigError

_WEB_PAGE = "a web page (HTML), perhaps a login or an error of the server: export the table as CSV"
_TOB = "of a Campbell logger: convert it to TOA5 with LoggerNet's card convert"
_NO_TABLES = {
    b"PK\x03\x04\x14\x00\x06\x00": "an Office document and no workbook: save the table as CSV",
    b"PK\x03\x04": "a zip and no Excel workbook: unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls): save it as .xlsx or CSV",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it with `zstd -d`",
    b"7z\xbc\xaf": "a 7z archive: unpack it",
    b"Rar!": "a RAR archive: unpack it",
    b"\x89HDF": "HDF5 (also MATLAB 7.3 and netCDF 4): write the table as CSV or Parquet, such as "
    "with pandas.read_hdf",
    b"CDF": "netCDF: write the table as CSV or Parquet, such as with xarray's to_dataframe",
    b"MATLAB 5.0": "a MATLAB file: write the table with writetable(T, 'table.csv')",
    b"ARROW1": "Arrow or Feather: write it as Parquet, such as with pandas.read_feather",
    b"\x93NUMPY": "an array of NumPy: write it with numpy.savetxt, and name the columns",
    b"SQLite format 3": "a database of SQLite: export the table as CSV",
    b"TDSm": "TDMS of LabVIEW: write the channels as CSV, such as with the package nptdms",
    b"%PDF": "a PDF: ask for the table itself, as CSV",
    b"TOB1": f"binary TOB1 {_TOB}",
    b"TOB3": f"binary TOB3 {_TOB}",
    b"<?xml": "XML: export the table as CSV",
    b"<!DOCTYPE": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"<table": _WEB_PAGE,
    b"@relation": "ARFF of Weka: write it as CSV, such as with scipy.io.arff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where in a text its table stands, and what the format says of it."""

    name: str
    above: int  # rows that are not blank, above the first row of data
    names: tuple[str, ...]
    delimiter: str
    decimal: str | None = None
    aside: tuple[str, ...] = ()  # columns that belong to the format
    said: str = ""
    rows: Sequence[list[str]] = ()
    n_header: int = 0  # rows that name the columns
    own: bool = False  # the names are those of one row, as it stands
    named: bool = True
    over: Sequence[str] = ()  # the first row above
    heads: Sequence[Sequence[str]] = ()  # rows of the header


def require_table(path: str, begun: bytes) -> None:
    """Refuse a file whose first bytes say that it is no table of text."""
    head = begun[:64].lstrip()
    for magic, what in _NO_TABLES.items():
        if head.startswith(magic) or head[: len(magic)].lower() == magic.lower():
            raise ConfigError(f"{path} is {what}.")


def layout_of(lines: Sequence[str]) -> Layout | None:
    """Recognise the format of lines of text; ``None``: a table without one. O(lines)."""
    return next((layout for look in _LOOKS if (layout := look(lines)) is not None), None)


def _toa5(lines: Sequence[str]) -> Layout | None:
    if not lines[0].lstrip('"').startswith(("TOA5", "TOACI1")) or len(lines) < 4:
        return None
    above = 4 if lines[0].lstrip('"').startswith("TOA5") else 2
    name = "TOA5 of a Campbell logger" if above == 4 else "TOACI1 of a Campbell logger"
    return Layout(name=name, above=above, names=_cells(lines[1], ","), delimiter=",")


def _rdb(lines: Sequence[str]) -> Layout | None:
    comments = len(list(itertools.takewhile(lambda line: line.startswith("#"), lines)))
    if len(lines) < comments + 3:
        return None
    names, widths = (_cells(line, "\t") for line in lines[comments : comments + 2])
    if len(names) != len(widths) or not all(re.fullmatch(r"\d+[snd]", width) for width in widths):
        return None
    return Layout(
        name="RDB of a water service", above=comments + 2, names=names, delimiter="\t",
    )  # fmt: skip


def _lvm(lines: Sequence[str]) -> Layout | None:
    if not lines[0].startswith("LabVIEW Measurement"):
        return None
    ends = [i for i, line in enumerate(lines) if line.startswith("***End_of_Header***")]
    if not ends or len(lines) < ends[-1] + 3:
        return None
    head = dict(line.rstrip("\r\n").partition("\t")[::2] for line in lines[: ends[0]])
    at = ends[min(1, len(ends) - 1)] + 1
    delimiter = "," if any(line.startswith("Separator,") for line in lines[: ends[0]]) else "\t"
    names, first = _cells(lines[at], delimiter), _cells(lines[at + 1], delimiter)
    begun = " ".join(head.get(key, "").strip() for key in ("Date", "Time")).strip()
    said = f"X_Value is seconds since {begun}" if begun else ""
    if head.get("X_Columns", "").strip() == "No":
        steps = (line.split(delimiter)[1].strip() for line in lines if line.startswith("Delta_X"))
        said = f"X_Value is empty, and rows are Delta_X = {next(steps, '?')} s apart, not 1 s"
    return Layout(
        name=".lvm of LabVIEW",
        above=at + 1,
        names=names[: len(first)],
        delimiter=delimiter,
        decimal=head.get("Decimal_Separator", "").strip() or None,
        said=said,
    )


def _influx(lines: Sequence[str]) -> Layout | None:
    notes = list(
        itertools.takewhile(lambda x: x.lstrip('"').startswith(("#group", "#data", "#def")), lines)
    )
    if not notes or len(lines) < len(notes) + 2:
        return None
    names = [name or "annotation" for name in _cells(lines[len(notes)], ",")]
    ours = {"annotation", "result", "table", "_start", "_stop", "_measurement"}
    return Layout(
        name="annotated CSV of InfluxDB",
        above=len(notes) + 1,
        names=tuple(names),
        delimiter=",",
        aside=tuple(name for name in names if name in ours),
        said="the annotations of later tables count as unreadable rows",
    )


_LOOKS: tuple[Callable[[Sequence[str]], Layout | None], ...] = (_toa5, _rdb, _lvm, _influx)


def _cells(line: str, delimiter: str) -> tuple[str, ...]:
    return tuple(cell.strip().strip('"').strip() for cell in line.rstrip("\r\n").split(delimiter))
