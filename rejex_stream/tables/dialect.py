"""How a table writes numbers and times, found in a sample of its cells."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rejex_stream.decode.mapping import TimeUnit, Unreadable, parse_moment, to_epoch_ms
from rejex_stream.decode.written import ANY_TEXT, MISSING_TEXTS, canonical_time, number_reader
from rejex_stream.tables.column_checks import check_columns, named_unit
from rejex_stream.tables.columns import ColumnProfile, Sample
from rejex_stream.tables.names import PARTS, TIME, plain

_ENOUGH = 0.95
_SURE = 20
_UNITS: tuple[TimeUnit, ...] = (
    "s", "ms", "us", "ns", "excel", "matlab", "labview", "filetime", "dotnet", "jd", "mjd",
)  # fmt: skip
_WITH_UNIT = re.compile(
    r"([+-]?[\d.,' \u00a0\u202f]*\d)\s*([^\d\s.,:;+-][^\d\s:;]{0,7}[²³]?(?: [^\d\s:;]{1,6})?)"
)
_DATES = (
    "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y", "%m-%d-%Y",
    "%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d %Y", "%b %d, %Y", "%Y-%m-%d",
    "%d%b%Y", "%Y%m%d", "%d %B %Y", "%B %d, %Y", "%B %d %Y", "%Y %m %d", "%y/%m/%d", "%y.%m.%d",
    "%y-%m-%d", "%d/%b/%Y", "%b-%d-%Y",
)  # fmt: skip
_CLOCKS = (
    "%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M:%S %p", "%I:%M %p", "%H.%M.%S",
    "%H.%M", "%H%M%S", "%H%M", "%H", "%I:%M%p", "%I:%M:%S%p", "%I:%M:%S.%f %p",
)  # fmt: skip
_FORMATS = tuple(dict.fromkeys((
    *(
        date + between + clock + zone
        for date in _DATES
        for between, clock in (("", ""), *itertools.product((" ", "T", ", ", ""), _CLOCKS))
        for zone in ("", " %z", "%z")
        if between or not clock or (date == "%Y%m%d" and clock in ("%H%M%S", "%H%M"))
    ),
    "%Y%m%d%H", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z", "%d/%b/%Y:%H:%M:%S", "[%d/%b/%Y:%H:%M:%S %z]",
    *(
        date + clock
        for date in ("%A, %B %d, %Y ", "%A, %d %B %Y ", "%a %d %b %Y ", "%d. %b %Y ", "%Y-%j ",
                     "%Y-%jT", "%Y:%m:%d ", "%Y %j ", "%y %m %d ", "%d/%m/%Y; ", "%d-%b-%y ",
                     "%m/%d/%Y ")
        for clock in ("%H:%M:%S", "%H:%M", "%H %M", "%H %M %S", "%I:%M:%S %p", "%I:%M %p",
                      "%I.%M.%S %p", "%I.%M.%S.%f %p", "%H:%M:%S:%f", "%H")
    ),
    *("%Y-%j", "%Y %j", "%d. %b %Y", "%Y%j%H%M", "%Y%j", "%Y-%m-%d-%H-%M-%S", "%Y-%m-%d %H-%M-%S",
      "%Y-%m-%d_%H-%M-%S", "%Y%m%d-%H%M%S", "%d.%m.%Y %Hh%M", "%d/%m/%Y %Hh%M",
      "%d.%m.%Y %H:%M Uhr", "%d.%m.%Y %H:%M:%S Uhr", "%Y %m %d %H %M %S", "%y %m %d",
      "%Y%m%dT%H%M"),
    "%a %b %d %H:%M:%S %z %Y",
)))  # fmt: skip
_MARKS = {format: frozenset(re.sub("%.| ", "", format).casefold()) for format in _FORMATS}
"""What stands between the numbers of a format."""
_WIDTHS = {format: len(datetime(2031, 11, 23, tzinfo=UTC).strftime(format)) for format in _FORMATS}


_YEAR_NAME = re.compile(f"{PARTS[0].pattern}|{TIME.pattern}")
_YEAR = re.compile(r"(19|20)\d\d")


class Marks(NamedTuple):
    """The decimal mark of a table, and the one between groups of three digits."""

    decimal: str
    thousands: str | None


class Written(NamedTuple):
    """How times are written: a unit, or a format of ``strptime``, and what it might be too."""

    unit: TimeUnit
    format: str | None = None
    other: str | None = None


def find_marks(cells: Iterable[str], delimiter: str = ",") -> Marks:
    """Find the marks under which most cells are numbers. O(cells).

    Where ``1,234`` could be either, it is a decimal comma beside a semicolon, else a thousand.
    """
    comma, grouped = Marks(",", None), Marks(".", ",")
    choices = [Marks(".", None), *((comma, grouped) if delimiter == ";" else (grouped, comma))]
    choices += [
        Marks(d, t) for d, t in ((",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
    ]
    cells = [cell for cell in cells if _has_digit(cell)]
    cells = [unit[1] if (unit := _WITH_UNIT.fullmatch(cell)) else cell for cell in cells]
    scored = []
    for choice in choices:
        read = number_reader(*choice)
        scored.append(sum(read(cell) is not None for cell in cells))
    return choices[scored.index(max(scored))]


def groups_of_thousands(
    columns: Mapping[str, Sequence[str]], marks: Marks
) -> tuple[Marks, list[str]]:
    """Doubt a decimal mark that always has three digits behind it, beside whole numbers.

    Fractions that lose their zeros have one digit or two in a tenth of all cases; where twenty
    have three, and whole numbers stand beside them, it is thousands.
    """
    sample = Sample(numbers={}, cells=columns)
    doubts = [doubt for doubt in check_columns(sample, "decimal") if doubt.value in marks]
    said = [str(doubt) for doubt in doubts]
    if doubts and all(doubt.value == marks.decimal for doubt in doubts):
        n = sum("." in cell or "," in cell for doubt in doubts for cell in columns[doubt.column])
        other = "," if marks.decimal == "." else "."
        before, after = number_reader(*marks), number_reader(other, marks.decimal)
        some = itertools.chain.from_iterable(cells[:500] for cells in columns.values())
        lost = any(before(cell) is not None and after(cell) is None for cell in some)
        if n >= _SURE and not lost:
            return Marks(other, marks.decimal), [f"{line}; read as thousands" for line in said]
    return marks, [f"{line}; read as {marks.decimal!r} decimal" for line in said]


def find_missing(columns: Mapping[str, ColumnProfile]) -> tuple[str, ...]:
    """Find the texts that stand for no value: they stand in columns of numbers. O(texts).

    Of more than two, or one that came once, there will be others: ``*`` is any text.
    """
    any_text, texts_missing = number_reader(missing=[ANY_TEXT]), Counter[str]()
    for column in columns.values():
        texts = Counter(column.unread)
        names = any(text in columns for text in texts)  # a header that comes again
        some = texts.total() < len(column.given) / 2
        if some and not names and None not in map(any_text, texts):
            texts_missing.update(texts)
    if len(texts_missing) > 2 or 1 in texts_missing.values():
        return (ANY_TEXT,)
    return tuple(text for text, _ in texts_missing.most_common())


def find_units(columns: Mapping[str, Sequence[str]], marks: Marks) -> dict[str, tuple[str, ...]]:
    """Find what stands behind the numbers of each column: a unit, or several. O(cells)."""
    read, units = number_reader(*marks), {}
    for name, cells in columns.items():
        given = [cell for cell in cells if cell.lower() not in MISSING_TEXTS]
        parts = [match for cell in given if (match := _WITH_UNIT.fullmatch(cell))]
        parts = [match for match in parts if read(match[1]) is not None]
        if parts and len(parts) > 0.9 * sum(map(_has_digit, given)) and not are_times(given):
            units[name] = tuple(dict.fromkeys(match[2] for match in parts))
    return units


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def are_times(cells: Sequence[str]) -> bool:
    """Whether texts are dates, and no numbers."""
    written = find_times(cells[:200])
    return written is not None and written.unit == "iso8601"


def find_times(cells: Sequence[str], name: str = "", decimal: str = ".") -> Written | None:
    """Find the unit or format in which almost all cells are times that make sense."""
    given = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING_TEXTS]
    if not given:
        return None
    read = number_reader()
    numbers = [value for cell in given if (value := read(cell)) is not None]
    if _YEAR_NAME.match(plain(name)) and all(map(_YEAR.fullmatch, given)):
        return Written("iso8601")
    if len(numbers) == len(given) and not is_compact(given):
        return Written(_unit_of(numbers, name))
    if len(numbers) < len(given) / 2 and _readable(given, None) > _ENOUGH:
        return Written("iso8601")
    some = (given[0], given[len(given) // 2])
    fits = [f for f in _FORMATS if any(_may_be(cell, f) and _moment(cell, f) for cell in some)]
    fits = [f for f in fits if _readable(given[:1000], f) > _ENOUGH]
    fits = [f for f in fits if _readable(given, f) > _ENOUGH]
    if not fits:
        return None
    steps = {format: _steps(given, format) for format in fits}
    # Who writes a decimal comma writes the day before the month.
    fits.sort(key=lambda f: (*steps[f], decimal == "," and f.startswith("%m")))
    best = fits[0]
    even = [f for f in fits[1:] if steps[f][:2] == steps[best][:2]]
    return Written("iso8601", best, even[0] if even else None)


def _unit_of(numbers: Sequence[float], name: str) -> TimeUnit:
    """Find a unit in which numbers are times since 1990, else by the name, else by their size."""
    first, last = min(numbers), max(numbers)
    if _YEAR_NAME.match(plain(name)) and 1500 < first < last < 2100:
        steps = Counter(round(b - a, 3) for a, b in itertools.pairwise(numbers))
        if steps.most_common(1)[0][0] in (1, 0.25, 0.083):  # a year, a quarter, a month
            return "year"
    until = datetime.now(UTC).timestamp() * 1000 + 86_400_000
    named = named_unit(name)
    fits: dict[TimeUnit, int] = {}
    for unit in dict.fromkeys((*_UNITS, *([named] if named else []))):
        begun, ended = moment_ms(first, unit), moment_ms(last, unit)
        if begun and ended and begun >= 631_152_000_000 and ended <= until:
            fits[unit] = ended
    since_1970 = fits.keys() & {"s", "ms", "us", "ns"}
    if named in fits or (named in ("min", "h") and not since_1970):
        return named
    if fits:
        return max(fits, key=fits.__getitem__)
    if named is not None:
        return named
    largest = max(abs(first), abs(last))
    sizes: tuple[tuple[float, TimeUnit], ...] = ((1e11, "s"), (1e14, "ms"), (1e17, "us"))
    return next((unit for limit, unit in sizes if largest < limit), "ns")


def is_compact(cells: Sequence[str]) -> bool:
    """Whether digits are a calendar's: 20240131, 202401311205, 20240131120500."""
    lengths = {len(cell) for cell in cells}
    return (
        len(lengths) == 1
        and lengths <= {7, 8, 10, 11, 12, 14}
        and all(cell.isdigit() and cell[:2] in ("19", "20") for cell in cells)
        and all(
            lengths != {width} or all(_moment(cell, format) for cell in cells)
            for width, format in ((7, "%Y%j"), (10, "%Y%m%d%H"), (11, "%Y%j%H%M"))
        )
    )


def moment_ms(cell: object, unit: TimeUnit, format: str | None = None) -> int | None:
    """Return a time in UTC milliseconds since 1970; ``None`` where it is none."""
    try:
        return to_epoch_ms(cell, unit, format=format)
    except Unreadable:
        return None


def _moment(text: str, format: str | None) -> datetime | None:
    try:
        return parse_moment(text, format)
    except (ValueError, OverflowError):
        return None


def _may_be(text: str, format: str) -> bool:
    """Whether a text has the marks of a format: to ask strptime makes a pattern, milliseconds."""
    if text.isdecimal():  # strptime takes one digit for two, and so a day for minutes
        return len(text) == _WIDTHS[format]
    marks = set(text.casefold()) | set((canonical_time(text) or ("", 0))[0])
    return _MARKS[format] <= marks and ("%z" not in format or not marks.isdisjoint("+-z"))


def _readable(cells: Sequence[str], format: str | None) -> float:
    return sum(_moment(cell, format) is not None for cell in cells) / len(cells)


def _steps(cells: Sequence[str], format: str) -> tuple[bool, int, float, float]:
    """Return whether times are in the future, how often they go back, the longest step, the age."""
    # Months for days, and years for days, show in all of them.
    back, longest = 0, 0.0
    last = newest = -math.inf
    for cell in cells:
        now = moment_ms(cell, "iso8601", format)
        if now is None:
            continue
        back += now < last
        longest = max(longest, abs(now - last) if last > -math.inf else 0.0)
        last, newest = now, max(now, newest)
    ago = (datetime.now(UTC).timestamp() * 1000 - newest) / 86_400_000
    return ago < -1, back, longest, ago // 365
