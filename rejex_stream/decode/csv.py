"""One CSV row a record."""

from __future__ import annotations

import csv
import difflib
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from rejex_stream.decode.mapping import SWITCHES, FieldMapping, NameCache, Unreadable, printable
from rejex_stream.decode.written import missing_numbers, number_reader
from rejex_stream.errors import ConfigError
from rejex_stream.native_core import native
from rejex_stream.types import Invalid, Reading, Record

_COMMA = number_reader(",", ".")
NUL_ROW = "the row is NUL bytes alone, as a power loss leaves them"
EMPTY_ROW = "the row holds no value, only delimiters"


def split_row(
    text: str, delimiter: str, width: int | None = None, *, strict: bool = True
) -> list[str]:
    """Split a row into cells; empty ones beyond `width` are left out. O(bytes).

    Quotes may stand after a space; the delimiter ``" "`` is any number of them, without quotes.
    """
    if delimiter == " ":
        cells = text.split()
    elif '"' in text:
        rows = csv.reader([text], delimiter=delimiter, skipinitialspace=True, strict=strict)
        cells = next(rows, [])
    else:
        cells = text.split(delimiter)
    if width is not None and len(cells) > width and not "".join(cells[width:]).strip():
        del cells[width:]
    return cells


def parse_csv_header(row: bytes, delimiter: str = ",") -> tuple[str, ...]:
    try:
        text = row.decode("utf-8-sig")
        names = split_row(text, delimiter)
    except UnicodeDecodeError:
        raise ConfigError(
            f"the CSV header {printable(row)} is not UTF-8: give input.encoding, such as cp1252"
        ) from None
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"the CSV header {printable(row)} cannot be read: {error}") from None
    return tuple(name.strip() for name in names)


class CsvDecoder:
    """Decodes one CSV row a record.

    Empty cells and the texts ``nan``, ``na``, ``n/a``, ``null`` and ``none`` are missing channels.
    """

    def __init__(
        self, mapping: FieldMapping, header: Sequence[str], delimiter: str = ",",
        native: Callable[[str], Any] = native,
    ) -> None:  # fmt: skip
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"delimiter is {delimiter!r}: expected one character such as , or ;")
        columns = {field: _column(field, header) for field in mapping.fields if field}
        self._mapping, self._header = mapping, header
        self.channels = mapping.channel_names
        """In the order of ``Reading.values``."""
        self._width = len(header)
        self._named = len("\0".join(header).rstrip("\0").split("\0"))  # without those at the end
        self._delimiter = delimiter
        self._fetch = _cells([columns[field] for field in mapping.channel_fields])
        _, self._time = mapping.getters(lambda field: itemgetter(columns[field]))
        fields = mapping.sensor_fields
        self._sensor = columns[fields[0]] if len(fields) == 1 else None
        self._sensors = [columns[field] for field in fields] if len(fields) > 1 else []
        self._group = columns[mapping.group] if mapping.group is not None else None
        self._mode = columns[mapping.mode] if mapping.mode is not None else None
        self._tag = columns[mapping.tag] if mapping.tag is not None else None
        others = (mapping.group, mapping.mode, mapping.tag, mapping.sensor_from)
        self._joined = mapping.joined
        self._alone = others.count(None) == len(others) and not self._sensors
        self._names = NameCache(mapping)
        self._qualities = [columns.get(field) for field in mapping.quality_fields]
        self._number = number_reader(
            mapping.decimal, mapping.thousands, mapping.missing, mapping.units
        )
        self._none = missing_numbers(mapping.missing)
        self._plain = mapping.decimal == "." and mapping.thousands is None
        self._columns, self._native = columns, native

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one row; never raises on what the row holds. O(bytes)."""
        if not record.value or len(record.value) > self._mapping.max_value_bytes:
            return self._mapping.refuse(record)
        try:
            return self._reading(record, record.value)
        except UnicodeDecodeError as error:
            reason = f"invalid UTF-8 at byte {error.start}; another encoding is input.encoding"
            return Invalid(record.position, "decode", reason)
        except (csv.Error, ValueError) as error:
            return Invalid(record.position, "decode", f"not CSV: {printable(str(error))}")
        except Exception as error:
            return self._mapping.failed(record, error)

    def decode_all(self, records: Sequence[Record]) -> list[Reading | Invalid]:
        """Decode rows, each to what :meth:`decode` makes of it; faster. O(bytes)."""
        if self._cells is None:
            return list(map(self.decode, records))
        return self._cells.read(records, self.decode)  # type: ignore[no-any-return]

    @cached_property
    def _cells(self) -> Any:  # noqa: ANN401
        """What reads plain rows natively; ``None``: Python reads all."""
        mapping, time, delimiter = self._mapping, self._mapping.time, self._delimiter
        plain = self._plain and self._alone and not (mapping.quality or mapping.missing_of)
        plain = plain and delimiter.isascii() and delimiter != " "
        if not plain or not (time is None or isinstance(time, str)):
            return None
        at, in_ms = self._columns, mapping.time_unit == "ms" and not mapping.time_is_text
        cells = self._native("Cells")
        return cells and cells(
            mapping, self._names, [at[field] for field in mapping.channel_fields], self._sensor,
            time and at[time], in_ms, list(self._none), ord(delimiter), self._width,
        )  # fmt: skip

    def lacking(self, record: Record) -> str:
        return self._mapping.lacking(self.decode(record), self.fields(record))

    def fields(self, record: Record) -> dict[str, object]:
        cells = split_row((record.value or b"").decode("utf-8", "replace"), self._delimiter)
        return dict(itertools.zip_longest(self._header, cells[: self._width]))

    def _reading(self, record: Record, value: bytes) -> Reading | Invalid:
        text = value.decode()
        cells = split_row(text, self._delimiter, self._width)
        if self._named <= len(cells) < self._width:  # as where a delimiter ends the header alone
            cells += [""] * (self._width - len(cells))
        if len(cells) != self._width:
            if not text.strip(f" \t\r{self._delimiter}"):
                return Invalid(record.position, "decode", EMPTY_ROW)
            if text == "\0":
                return Invalid(record.position, "decode", NUL_ROW)
            reason = f"expected {self._width} cells as in the header, got {len(cells)}"
            return Invalid(record.position, "decode", reason)
        mapping = self._mapping
        if mapping.time is not None and not any(cells):
            return Invalid(record.position, "decode", EMPTY_ROW)
        named = _at(cells, self._sensor)
        key, sensor = self._names[named] if self._alone else self._whose(record, cells, named)
        return Reading(
            key,
            sensor,
            mapping.time_of(record, self._time(cells)),
            self._values(cells),
            record.position,
        )

    def _whose(self, record: Record, cells: list[str], named: str | None) -> tuple[str, str]:
        several = [_at(cells, at) for at in self._sensors]
        sensor = self._mapping.sensor_of(record, several or named, _at(cells, self._tag))
        return self._mapping.key_of(sensor, _at(cells, self._group), _at(cells, self._mode)), sensor

    def _values(self, cells: list[str]) -> tuple[float, ...]:
        texts: Sequence[object] = self._fetch(cells)
        if self._joined:
            texts = self._mapping.only(_at(cells, self._tag) or "", texts)
        if (quality := self._mapping.quality) is not None:
            said = [_at(cells, index) or None for index in self._qualities]
            texts = quality.only_good(texts, said, self.channels, texts=True)
        values = tuple(map(self._value, self.channels, texts))
        return self._mapping.without_missing(values) if self._mapping.missing_of else values

    def _value(self, name: str, found: object) -> float:
        if isinstance(found, float):  # absent, or in another unit
            return found
        cell = str(found or "")
        value = self._number(cell)
        if name in self._mapping.flags and (value is None or math.isnan(value)):
            word = cell.strip().lower()  # ON is one, though any text may be missing
            return math.nan if word.isdecimal() else SWITCHES.get(word, math.nan)
        if value is None:
            fix = ""
            if self._plain and _COMMA(cell) is not None:
                fix = "; how it is written is input.decimal and input.thousands"
            raise Unreadable(
                f"channel {printable(name)}: expected a number, got {printable(cell)}{fix}"
            )
        return value


def _cells(indices: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    if len(indices) == 1:
        (index,) = indices
        return lambda cells: (cells[index],)
    return itemgetter(*indices)


def _at(cells: list[str], index: int | None) -> str | None:
    return None if index is None else cells[index].strip()


def _column(field: str, header: Sequence[str]) -> int:
    found = [index for index, name in enumerate(header) if name == field]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"column {field!r} stands {len(found)} times in the header: rename one")
    near = difflib.get_close_matches(field, header, n=1)
    fix = f"did you mean {near[0]!r}?" if near else _what_there_is(header)
    raise ConfigError(f"column {field!r} is not in the header: {fix}")


def _what_there_is(header: Sequence[str]) -> str:
    """Say which columns a header has, and what it looks like if it has only one, or numbers."""
    if len(header) == 1:
        return (
            f"it has the one column {printable(header[0], 200)}; if that is several, give what is "
            "between them as input.delimiter"
        )
    names = ", ".join(header[:30]) + (f" and {len(header) - 30} more" if header[30:] else "")
    if any(number_reader()(name) is not None for name in header if name):
        names += "; if these are values, name the columns with input.columns"
    return f"the columns are {names}"
