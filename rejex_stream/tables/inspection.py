"""One look at a whole table: its dialect, its columns, and what is odd about its rows."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rejex_connectors.files.bytes import END, ByteInput, ToUtf8, compression_of
from rejex_connectors.files.source import CsvRows
from rejex_connectors.files.workbooks import (
    TableInput,
    Workbook,
    sheet_to_read,
    sheets_of,
    workbook_of,
)

from rejex_stream.config.input import stem
from rejex_stream.decode.csv import EMPTY_ROW, split_row
from rejex_stream.decode.mapping import decode_all, parse_moment, printable
from rejex_stream.decode.reorder_buffer import ReorderBuffer
from rejex_stream.decode.written import ZONES, is_repeated, joined, require_encoding, zone_of
from rejex_stream.detectors.sensor.siblings import SiblingResidual
from rejex_stream.engine.siblings import Siblings
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.plan.suggest import Suggestion, suggest
from rejex_stream.readable import number
from rejex_stream.tables.angles import in_degrees
from rejex_stream.tables.column_checks import at_rest, resting_among
from rejex_stream.tables.dialect import Marks, find_marks, groups_of_thousands
from rejex_stream.tables.draft import opened
from rejex_stream.tables.formats import Layout, layout_of, require_table
from rejex_stream.tables.guess import Asked, TableGuess, guess_table
from rejex_stream.tables.order import TimeOrder
from rejex_stream.tables.place import (
    begin_of_data,
    body_of,
    delimiter_of,
    header_above,
    is_header,
    names_of,
    numbered,
    split_all,
)
from rejex_stream.types import FloatArray, Invalid, Reading, Record, unit_change

_SAMPLE_ROWS = 5_000
_AT_ONCE = 1_000  # rows that are decoded in one call
_SAMPLE_BYTES = 4 << 20
_TRUTH = {"1": True, "1.0": True, "true": True, "anomaly": True}
_TRUTH |= {"0": False, "0.0": False, "false": False, "normal": False}
_SHOWN, _FEW_MISSING = 12, 1000
_LOOKED_AT = 2_000  # rows of one sensor in which states are looked for
_BESIDE, _FEWEST_BESIDE = 8_000, 200  # readings in which siblings are looked for; of the first
_OF_EAST_ASIA = {"gb18030": rb"[\xa1-\xf7][\xa1-\xfe]", "cp932": rb"[\x81-\x9f][@-~\x80-\xfc]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is understood."""

    path: Path
    encoding: str | None
    delimiter: str
    header: tuple[str, ...]
    has_header: bool
    guess: TableGuess
    time_zone: str | None
    format: Literal["csv", "excel", "parquet"] = "csv"
    sheet: str | None = None
    skip_rows: int = 0
    n_rows: int = 0
    n_events: int = 0  # which they make: fewer where rows are joined
    n_missing: int = 0  # rows without a value, of the channel that has most of them
    n_sensors: int = 1
    step_ms: float = 0.0  # the usual time from one row of a sensor to its next; 0: unknown
    levels: FloatArray | None = None  # the first rows of one sensor, of channels that are measured
    labels: dict[int, bool] = field(default_factory=dict)  # the known truth, by row
    said: tuple[str, ...] = ()  # what was guessed and found, each with what to write to change it

    def _channels(self) -> list[str] | dict[str, str]:
        value, names = self.guess.value, self.guess.channels
        return list(names) if value is None else dict.fromkeys(names, value)

    def told(self) -> dict[str, dict[str, object]]:
        return self.guess.told()

    def settings(self) -> dict[str, object]:
        guess = self.guess
        return {
            "path": str(self.path.resolve()),
            "format": self.format,
            "sheet": self.sheet,
            "skip_rows": self.skip_rows or None,
            "delimiter": self.delimiter if self.format == "csv" else None,
            "encoding": self.encoding,
            "columns": None if self.has_header else list(self.header),
            "channels": self._channels(),
            "flags": list(guess.flags) or None,
            **guess.settings(self.time_zone),
            "sample_interval_ms": self._interval_ms(),
            "fixed_sensor": None if guess.sensor else stem(str(self.path)),
        }

    def suggested(self, **knobs: Any) -> Suggestion:  # noqa: ANN401 - as suggest's
        """Choose settings for the table, as :func:`~rejex_stream.plan.suggest.suggest` does."""
        guess = self.guess
        own: Any = {**guess.for_features(), "step_ms": self._season_step_ms()}
        own["levels"] = None if guess.apart else self.levels
        n = self.n_rows if guess.value is None else self.n_events
        choice = suggest(n, self.n_sensors, guess.channels, **own, **knobs)
        if guess.apart and choice.pooled:
            raise ConfigError(
                f"{self.n_rows // self.n_sensors:,} rows of each {guess.tag} are too few for "
                "a model, and different quantities cannot share one: give more rows, a smaller "
                "--window, or a larger --contamination."
            )
        return choice

    def _interval_ms(self) -> int | None:
        if self.guess.time is None:
            return 1000  # the time of a row is its number
        return None if self.guess.apart else round(self.step_ms) or None

    def _season_step_ms(self) -> float | None:
        """Return the usual step of rows that can be judged by the hour; ``None``: they cannot be.

        By the hour a row is judged whole: where cells are missing, a distance sees more.
        """
        gaps = _FEW_MISSING * self.n_missing > self.n_rows
        if self.guess.time is None or self.guess.apart or gaps:
            return None
        return self.step_ms or None

    def cells(self, record: Record) -> list[str]:
        text = (record.value or b"").decode("utf-8", "replace")
        return split_row(text, self.delimiter, len(self.header), strict=False)


def open_table(path: str | Path, asked: Asked | None = None) -> Table:
    """Look at a CSV, Excel or Parquet file; guess how it is written and what it means. O(bytes)."""
    path, asked = Path(path), asked or Asked()
    workbook = workbook_of(str(path))
    sheet = asked.sheet or (sheet_to_read(str(path)) if workbook == "excel" else None)
    encoding, begun, whole = _read_through(path, replace(asked, sheet=sheet), workbook)
    lines = _lines(path, encoding, begun, whole=whole, is_text=workbook is None)
    place = _placed(path, lines, asked, is_text=workbook is None)
    rows = [row for row in place.rows if any(cell.strip() for cell in row)]
    header = place.names
    marks = Marks(asked.decimal or place.decimal or ".", asked.thousands)
    given = asked.decimal or asked.thousands or place.decimal
    if not given:
        marks = find_marks(itertools.chain.from_iterable(rows[:1000]), place.delimiter)
    if len(rows) < 2:
        said = "one row: there is nothing to compare it with" if rows else (
            "a header and no rows: there is nothing to look at"
        )  # fmt: skip
        raise ConfigError(f"{path} has {said}.{_sheets_said(path, workbook)}")
    grouped: list[str] = []
    if not given:
        columns = {name: [row[i].strip() for row in rows if len(row) == len(header)]
                   for i, name in enumerate(header)}  # fmt: skip
        marks, grouped = groups_of_thousands(columns, marks)
    guess = guess_table(header, rows, asked, marks=marks, named=place.named, skip=place.aside)
    heads = [row[0] for row in place.heads if header[0] in guess.times]
    table = Table(
        path=path,
        encoding=encoding,
        delimiter=place.delimiter,
        header=header,
        has_header=place.own,
        guess=guess,
        time_zone=asked.time_zone or _zone_in([*guess.times, *heads]),
        format=workbook or "csv",
        sheet=sheet if asked.sheet or (sheet and sheet != sheets_of(str(path))[0]) else None,
        skip_rows=place.above + (0 if place.own else place.n_header),
    )
    written = [*_place_said(table, asked, place), *_dialect_said(table, asked, place)]
    scan = _Scan(
        table,
        guess.flags if asked.flags is None else (),
        [name for name, _, _ in guess.angles if asked.angles is None],
    )
    return scan.result([*written, *grouped])


def _zone_in(names: Sequence[str]) -> str | None:
    pattern = (
        r"[A-Z]\w+/[A-Z][\w/]+|[+-]\d{1,2}:\d{2}|(?<=UTC)[+-]\d{1,2}"
        r"|(?<![^\W_])[A-Z]{3,4}(?![^\W_]|[+-]\d)"
    )
    for found in map(str, re.findall(pattern, " ".join(names))):
        with suppress(ConfigError):
            zone_of(zone := ZONES.get(found, found))
            return zone
    return None


def _placed(path: Path, lines: Sequence[str], asked: Asked, *, is_text: bool) -> Layout:
    layout = layout_of(lines) if asked.skip_rows is None and asked.header is None else None
    if layout is not None:
        rows = split_all(lines[layout.above :], layout.delimiter, len(layout.names))
        rows = [row[: len(layout.names)] for row in rows]
        return replace(layout, names=numbered(layout.names), rows=rows)
    skip = asked.skip_rows or 0
    lines = lines[skip:]
    if not lines:
        raise ConfigError(f"{path}: --skip-rows {skip} leaves no row of the table.")
    if asked.delimiter is not None and len(asked.delimiter) != 1:
        raise ConfigError(f"--delimiter {asked.delimiter!r}: expected one character such as , or ;")
    delimiter = (asked.delimiter or delimiter_of(lines)) if is_text else ","
    body = body_of(lines, delimiter)
    rows = split_all(lines, delimiter, 0 if body is None else body.width)
    width = len(rows[0]) if body is None else body.width
    if not is_text:
        rows = [[*row, *[""] * (width - len(row))] for row in rows]
    like = rows if is_text else [row[:width] for row in rows]
    begin = 0 if body is None else begin_of_data(like, body)
    at = header_above(rows[:begin], width) if begin else None
    if asked.skip_rows is not None and at is not None:
        at = 0
    if asked.header is not None:
        at = (at or 0) if asked.header else None
        begin = at + 1 if at is not None else begin
    elif begin == 0 and is_header(rows[0], body):
        at, begin = 0, 1
    if at is not None and body is not None:
        named = len(rows[at]) - [*map(bool, map(str.strip, reversed(rows[at]))), True].index(True)
        width = max(width, named) if not is_text else named if named == body.end else width
        rows = [row[:width] if not "".join(row[width:]).strip() else row for row in rows]
    if at is None:
        names: tuple[str, ...] = tuple(f"column_{i + 1}" for i in range(width))
        first = begin
    else:
        first, names = names_of(rows[:begin], at, width, body)
    if not is_text:
        rows = [[*row, *[""] * (width - len(row))] for row in rows]
    raw = [cell.strip() for cell in rows[first]]
    above, file_rows = first, CsvRows(delimiter)
    if delimiter == " ":  # lines as the file source counts them: a quoted cell may span several
        above = len(file_rows.feed("".join(lines[:first]).encode()) + file_rows.finish())
    return Layout(
        name="",
        above=skip + above,
        names=names,
        delimiter=delimiter,
        rows=rows[begin:],
        n_header=begin - first,
        own=begin - first == 1 and raw == list(names) and "\n" not in "".join(raw),
        named=at is not None,
        over=rows[0] if first else (),
        heads=[row[:width] for row in rows[first:begin]],
    )


def _lines(
    path: Path, encoding: str | None, begun: bytes, *, whole: bool, is_text: bool
) -> list[str]:
    to_utf8 = ToUtf8(encoding)
    text = (to_utf8.feed(begun) + (to_utf8.finish() if whole else b"")).decode("utf-8", "replace")
    text = re.sub("\0{2,}", "", text.removeprefix("\ufeff"))  # of a power loss
    if not text.strip():
        raise ConfigError(f"{path} is empty: expected a table with a header, or JSON.")
    broken = "\ufffd" in text[:2000] and "\ufffd".encode() not in begun[:8000]
    if text.count("\0") > len(text) / 20 or (broken and encoding is None):
        raise ConfigError(f"{path} is not UTF-8 text: expected a CSV table, or give --encoding.")
    if is_text and text.lstrip().startswith(("{", "[{")):
        raise ConfigError(f"{path} holds JSON, and no table: rejex-stream init and score read it.")
    lines = [line for line in io.StringIO(text, newline=None) if line.strip(" \t\r\n\0")]
    if not whole and len(lines) > 1:
        lines.pop()
    return lines[:_SAMPLE_ROWS]


def _sheets_said(path: Path, workbook: Workbook | None) -> str:
    if workbook != "excel":
        return ""
    names = ", ".join(map(repr, sheets_of(str(path))))
    return f" The workbook has the sheets {names}; --sheet names one."


def _read_through(
    path: Path, asked: Asked, workbook: Workbook | None
) -> tuple[str | None, bytes, bool]:
    named = None if workbook else asked.encoding
    if named is not None:
        require_encoding(named, "--encoding")
    begun, total, as_utf8 = bytearray(), 0, codecs.getincrementaldecoder("utf-8")()
    valid, saw_utf8 = True, False
    try:
        source = (
            ByteInput(str(path), compression=compression_of(str(path)))
            if workbook is None
            else TableInput(str(path), workbook, asked.sheet, asked.skip_rows or 0)
        )
        while isinstance(chunk := source.read(1.0), bytes):
            begun += chunk[: max(0, _SAMPLE_BYTES - len(begun))]
            total += len(chunk)
            if valid:
                try:
                    saw_utf8 |= not as_utf8.decode(chunk).isascii()
                except UnicodeDecodeError:
                    valid = False
        assert chunk is END
        source.close()
    except ConnectorError as error:
        why = error.__cause__
        if not isinstance(why, OSError) or why.strerror is None:
            raise
        raise ConnectorError(f"cannot read {path}: {why.strerror}.") from error
    data, whole = bytes(begun), total <= _SAMPLE_BYTES
    if workbook is not None:
        return None, data, whole
    require_table(str(path), data)
    if named is not None:
        return named, data, whole
    return _encoding(data, valid=valid or saw_utf8), data, whole


def _encoding(data: bytes, *, valid: bool) -> str | None:
    """Return the encoding to name in a config; ``None`` where the reader detects it."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    half = len(data[:2000]) / 2
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        if half and data[first:2000:2].count(0) > 0.6 * half:
            return name
    if valid:
        return None
    for name, pair in _OF_EAST_ASIA.items():
        pairs, others = re.findall(pair, data), re.findall(rb"[\x80-\xff]", re.sub(pair, b"", data))
        if len(set(pairs)) > 2 and 4 * len(others) < len(pairs):
            return name
    return "latin-1" if any(byte in data for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)) else "cp1252"


def _place_said(table: Table, asked: Asked, place: Layout) -> Iterator[str]:
    if table.format == "excel" and asked.sheet is None:
        sheets = sheets_of(str(table.path))
        if len(sheets) > 1:
            which = repr(table.sheet or sheets[0])
            why = "the first with a table" if table.sheet else "the first"
            others = ", ".join(repr(name) for name in sheets if repr(name) != which)
            yield f"sheet: {which}, {why} of {len(sheets)}; --sheet names another: {others}"
    if place.over and asked.skip_rows is None:
        given = place.over if table.format == "csv" else [cell for cell in place.over if cell]
        first = printable(table.delimiter.join(given))
        yield f"above the table: {place.above} rows, from {first}; --skip-rows says how many"
    if place.name:
        yield f"format: {place.name}, {place.above} rows above the data; --skip-rows says otherwise"
    if place.said:
        yield place.said


def _dialect_said(table: Table, asked: Asked, place: Layout) -> list[str]:
    guess, said, n_header = table.guess, list(table.guess.said), place.n_header
    more = ", …" if len(table.header) > _SHOWN else ""
    names = ", ".join(map(printable, table.header[:_SHOWN])) + more
    if table.encoding is not None and asked.encoding is None:
        said.append(f"encoding: {table.encoding}, as it is not UTF-8; --encoding changes it")
    if table.delimiter != "," and asked.delimiter is None:
        said.append(f"delimiter: {table.delimiter!r}; --delimiter changes it")
    if guess.marks != Marks(".", None) and asked.decimal is None:
        said.append(
            f"numbers: decimal mark {guess.marks.decimal!r}, thousands "
            f"{guess.marks.thousands or 'without a mark'!r}; --decimal and --thousands change it"
        )
    if n_header > 1:
        many = "two" if n_header == 2 else str(n_header)
        said.append(f"header: {many} rows, read as {names}; --header takes the first alone")
    elif n_header and not table.has_header:
        odd = "some column has no name, or that of another"
        said.append(f"header: {odd}; they are read as {names}")
    if not place.named and asked.header is None:
        said.append(
            f"header: none, the first row is data; columns are column_1 to "
            f"column_{len(table.header)}; --header says otherwise"
        )
    if guess.time_format is not None and asked.time_format is None:
        said.append(f"time format: {guess.time_format}; --time-format changes it")
    if table.time_zone is not None and asked.time_zone is None:
        said.append(f"time zone: {table.time_zone}, of the header; --time-zone changes it")
    if guess.time is None:
        said.append("time: none found, rows are taken as 1 s apart; --time names its column")
    if guess.apart:
        said.append(
            f"long table: each {guess.tag} of a {guess.sensor or 'table'} is a series of its own; "
            "--tag and --sensor change it"
        )
    return said + list(guess.doubts)


class _Scan:
    """Goes through all rows once and counts what is odd. O(1) memory a sensor, but for labels."""

    def __init__(self, table: Table, flags: Sequence[str], angles: Sequence[str]) -> None:
        self._table = table
        # Nor is what stays within a circle in a sample an angle, if it leaves it later.
        self._ends = {name: (0.0, 0.0) for name in angles}
        # Two values in a sample may be three in the table.
        self._values: dict[str, set[float]] = {name: set() for name in flags}
        self._decoder, self._records, self._rules = opened(table.settings(), table.told())
        aside = {*flags, *angles}
        self._measured = [i for i, name in enumerate(self._decoder.channels) if name not in aside]
        self._order = TimeOrder()
        self._odd: Counter[str] = Counter()
        self._labels: dict[int, bool] = {}
        self._without_zone: str | None = None
        self._missing: Counter[str] = Counter()
        self._units = dict[tuple[str, str, str], int]()  # what was and is, and the first row
        self._first: str | None = None  # the sensor whose rows are looked at for states
        self._levels: list[list[float]] = []
        names = tuple(self._decoder.channels[i] for i in self._measured)
        self._compared = FeatureSpec(names, siblings="*") if names else None
        self._siblings = Siblings(self._compared, modes=False) if self._compared else None
        self._beside: list[list[float]] = []  # rows of the first sensor, with what others read
        self._read = defaultdict[str, list[tuple[float, ...]]](list)  # by sensor, as long
        self._unreadable: Invalid | None = None
        self._n_events = 0

    def result(self, said: list[str]) -> Table:
        table, guess = self._table, self._table.guess
        label = None if guess.label is None else table.header.index(guess.label)
        times = [table.header.index(name) for name in guess.times]
        naive = bool(times) and guess.time_unit == "iso8601"
        zone = None if table.time_zone is None else zone_of(table.time_zone)
        n_rows, rows = 0, ReorderBuffer(self._rules)
        for record, item in self._decoded():
            n_rows += 1
            for _, found in rows.add(record, item):
                self._see(found)
            if label is None and not naive:
                continue
            cells = table.cells(record)
            if label is not None and label < len(cells):
                known = _TRUTH.get(cells[label].strip().lower())
                if known is not None:
                    self._labels[record.position.offset] = known
            if naive and isinstance(item, Reading):
                text = (
                    joined([cells[at] for at in times]) or "" if len(times) > 1 else cells[times[0]]
                )
                moment = parse_moment(text, guess.time_format)
                if moment.tzinfo is None:
                    self._without_zone = self._without_zone or text
                    self._order.repeated += zone is not None and is_repeated(moment, zone)
                    naive = zone is not None  # else the next ones say nothing new
        many = [name for name, values in self._values.items() if len(values) > 2]
        guess = replace(guess, flags=tuple(name for name in guess.flags if name not in many))
        no_angle = [name for name, ends in self._ends.items() if not in_degrees(ends)]
        guess = guess.without_angles(no_angle)
        return replace(
            table,
            n_rows=n_rows,
            n_events=self._n_events,
            n_missing=max(self._missing.values(), default=0),
            n_sensors=max(1, self._order.n_sensors),
            step_ms=self._order.usual_step_ms,
            guess=guess,
            levels=np.array(self._levels),
            labels=self._labels,
            said=(*said, *guess.channels_said(), *self._said(n_rows)),
        )

    def _decoded(self) -> Iterator[tuple[Record, Reading | Invalid]]:
        records = iter(self._records)
        while some := list(itertools.islice(records, _AT_ONCE)):
            yield from zip(some, decode_all(self._decoder, some), strict=True)

    def _see(self, reading: Reading | Invalid) -> None:
        if isinstance(reading, Invalid):
            empty = reading.reason == EMPTY_ROW
            self._odd["empty" if empty else "unreadable"] += not reading.silent
            self._unreadable = self._unreadable or (None if empty or reading.silent else reading)
            return
        self._n_events += 1
        is_odd = self._values or self._ends or not isfinite(sum(reading.values))
        named = zip(self._decoder.channels, reading.values, strict=True)
        for name, value in named if is_odd else ():
            if value != value:  # noqa: PLR0124 - nan
                self._missing[name] += 1
                if change := unit_change(value):
                    self._units.setdefault((name, *change), reading.position.offset)
            elif name in self._values and len(self._values[name]) <= 2:
                self._values[name].add(value)
            if name in self._ends and value == value:  # noqa: PLR0124 - not nan
                low, high = self._ends[name]
                self._ends[name] = min(low, value), max(high, value)
        self._order.add(reading.sensor, reading.event_time_ms)
        self._first = self._first or reading.sensor
        if len(self._levels) < _LOOKED_AT and reading.sensor == self._first:
            self._levels.append([reading.values[i] for i in self._measured])
        if self._siblings and self._order.n_sensors > 3 and self._n_events <= _BESIDE:
            values = tuple(reading.values[i] for i in self._measured)
            row = [*values, *self._siblings.beside([reading._replace(values=values)])[0].tolist()]
            self._read[reading.sensor].append(values)
            if reading.sensor == self._first and np.isfinite(row).all():
                self._beside.append(row)

    def _together(self) -> str | None:
        """Say which channels of the first sensor follow what others read at the same time."""
        spec, rows = self._compared, self._beside
        if spec is None or self._table.guess.apart or len(rows) < _FEWEST_BESIDE:
            return None
        found = SiblingResidual().for_features(spec).of_rows(np.array(rows))
        if found is None:
            return None
        names = ", ".join(printable(spec.channels[i]) for i in found.targets)
        said = f"siblings: what others read explains {names} of a sensor; "
        for i in found.targets:
            read = [np.array([row[i] for row in rows]) for rows in self._read.values()]
            read = [values[np.isfinite(values)] for values in read]
            quarters = [np.quantile(values, (0.25, 0.5, 0.75)) for values in read if len(values)]
            low, middle, high = np.transpose(quarters)
            between = np.subtract(*np.quantile(middle, (0.75, 0.25)))
            # The median of unequal ones is one of them, whose fault would become theirs.
            if between > np.median(high - low):
                return (
                    f"{said}but {printable(spec.channels[i])} is usually {number(min(middle))} at "
                    f"one and {number(max(middle))} at another: name groups of one level in "
                    "input.siblings, or leave it out"
                )
        return f'{said}input.siblings = "*" judges each beside the others'

    def _said(self, n_rows: int) -> Iterator[str]:
        guess, odd = self._table.guess, self._odd
        names = [self._decoder.channels[i] for i in self._measured]
        if not guess.apart and (resting := resting_among(names, self._levels)):
            yield at_rest(resting, f" in the first {len(self._levels):,} rows of a sensor")
        if together := self._together():
            yield together
        if self._without_zone is not None and self._table.time_zone is None:
            yield (
                f"time zone: none in {printable(self._without_zone)}, read as UTC; --time-zone "
                "Europe/Berlin, say, changes it"
            )
        if odd["empty"]:
            yield f"empty rows: {odd['empty']:,} hold only delimiters and are not judged"
        if self._unreadable is not None:
            yield (
                f"unreadable: {odd['unreadable']:,} of {n_rows:,} rows, which are not judged; the "
                f"first is row {self._unreadable.position.offset + 1:,}: {self._unreadable.reason}"
            )
        yield from self._order.remarks(gaps=guess.time is not None)
        for (name, was, now), row in self._units.items():
            yield (
                f"unit: {name} was in {was}, is in {now} from row {row + 1:,} on; that is missing "
                f"until {now} is among the good of input.quality and channels.{name}.unit is gone"
            )
        for name, count in self._missing.items():
            yield f"missing: {name} has no value in {count:,} of {n_rows:,} rows"
