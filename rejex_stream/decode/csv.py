"""One CSV row a record."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Callable, Sequence
from operator import itemgetter

from rejex_stream.errors import ConfigError
from rejex_stream.mapping import FieldMapping, Unreadable, printable
from rejex_stream.types import Invalid, Reading, Record

__all__ = ["CsvDecoder", "parse_csv_header"]

_MISSING_TEXTS = frozenset(("", "nan", "na", "n/a", "null", "none"))


def parse_csv_header(row: bytes, delimiter: str = ",") -> tuple[str, ...]:
    """Split a header row into column names.

    Raises
    ------
    ConfigError
        If it is not UTF-8 or not CSV.

    Examples
    --------
    >>> parse_csv_header(b'time,"flow, m3/h"')
    ('time', 'flow, m3/h')
    """
    try:
        text = row.decode("utf-8-sig")
        (names,) = csv.reader([text], delimiter=delimiter, strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ConfigError(f"the CSV header {printable(row)} cannot be read: {error}") from None
    return tuple(name.strip() for name in names)


class CsvDecoder:
    """Decodes one CSV row a record.

    Empty cells and the texts ``nan``, ``na``, ``n/a``, ``null`` and ``none`` are missing channels.

    Parameters
    ----------
    mapping
        Which column means what, by exact name.
    header
        The column names (:func:`parse_csv_header`).
    delimiter
        One character.

    Raises
    ------
    ConfigError
        If a column is not in the header, or stands there twice.

    Examples
    --------
    >>> from rejex_stream.types import Position, Record
    >>> mapping = FieldMapping(["flow"], fixed_sensor="meter", time="when", time_unit="iso8601")
    >>> decoder = CsvDecoder(mapping, ("when", "flow"))
    >>> decoder.decode(Record(Position("water", 0, 0), None, b"2024-01-01 00:00:01,3.5"))[2:4]
    (1704067201000, (3.5,))
    """

    def __init__(self, mapping: FieldMapping, header: Sequence[str], delimiter: str = ",") -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter is {delimiter!r}: expected one character such as , or ;")
        columns = {field: _column(field, header) for field in mapping.fields}
        self._mapping = mapping
        self._width = len(header)
        self._delimiter = delimiter
        self._fetch = _cells([columns[field] for field in mapping.channel_fields])
        self._time = columns[mapping.time] if mapping.time is not None else None
        self._sensor = columns[mapping.sensor] if mapping.sensor is not None else None
        self._group = columns[mapping.group] if mapping.group is not None else None

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        return self._mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one row; never raises on what the row holds. O(bytes)."""
        mapping = self._mapping
        if not record.value or len(record.value) > mapping.max_value_bytes:
            return mapping.refuse(record)
        try:
            text = record.value.decode()
            if '"' in text:
                (cells,) = csv.reader([text], delimiter=self._delimiter, strict=True)
            else:
                cells = text.split(self._delimiter)
        except UnicodeDecodeError as error:
            return Invalid(record.position, "decode", f"invalid UTF-8 at byte {error.start}")
        except (csv.Error, ValueError) as error:
            return Invalid(record.position, "decode", f"not CSV: {printable(str(error))}")
        if len(cells) != self._width:
            reason = f"expected {self._width} cells as in the header, got {len(cells)}"
            return Invalid(record.position, "decode", reason)
        try:
            sensor = mapping.sensor_of(record, _at(cells, self._sensor))
            return Reading(
                mapping.key_of(sensor, _at(cells, self._group)),
                sensor,
                mapping.time_of(record, _at(cells, self._time)),
                self._values(cells),
                record.position,
            )
        except Unreadable as error:
            return Invalid(record.position, "validate", str(error))

    def _values(self, cells: list[str]) -> tuple[float, ...]:
        texts = self._fetch(cells)
        try:
            values = tuple(map(float, texts))
        except ValueError:
            pass
        else:
            # Python's float() also takes 1_000 and the digits of other scripts: look twice.
            written = "".join(texts)
            if math.isfinite(sum(values)) and written.isascii() and "_" not in written:
                return values
        return tuple(map(_cell_value, self._mapping.channel_names, texts))


def _cell_value(name: str, cell: str) -> float:
    text = cell.strip()
    if text.lower() in _MISSING_TEXTS:
        return math.nan
    try:
        value = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise Unreadable(f"channel {printable(name)}: expected a number, got {printable(cell)}")
    return value if math.isfinite(value) else math.nan


def _cells(indices: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    if len(indices) == 1:
        (index,) = indices
        return lambda cells: (cells[index],)
    return itemgetter(*indices)


def _at(cells: list[str], index: int | None) -> str | None:
    return None if index is None else cells[index]


def _column(field: str, header: Sequence[str]) -> int:
    found = [index for index, name in enumerate(header) if name == field]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"column {field!r} stands {len(found)} times in the header: rename one")
    near = difflib.get_close_matches(field, header, n=1)
    mend = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(header)}"
    raise ConfigError(f"column {field!r} is not in the header: {mend}")
