"""How a table writes numbers and times, found in a sample of its cells."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from rejex_stream.decode.mapping import TimeUnit, Unreadable, parse_moment, to_epoch_ms
from rejex_stream.decode.numbers import MISSING_TEXTS, number_reader

__all__ = [
    "Marks",
    "Written",
    "find_marks",
    "find_missing",
    "find_times",
    "is_header",
    "is_second_header",
]

_ENOUGH = 0.95
_MOST_MISSING = 5
_DATES = (
    "%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y", "%m-%d-%Y",
    "%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d %Y", "%b %d, %Y", "%Y-%m-%d",
    "%d%b%Y", "%Y%m%d", "%d %B %Y", "%B %d, %Y", "%B %d %Y", "%Y %m %d",
)  # fmt: skip
_CLOCKS = (
    "%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M:%S %p", "%I:%M %p", "%H.%M.%S",
    "%H.%M", "%H%M%S", "%H%M", "%H",
)  # fmt: skip
_FORMATS = tuple(
    date + between + clock + zone
    for date in _DATES
    for between, clock in (("", ""), *itertools.product((" ", "T", ", ", ""), _CLOCKS))
    for zone in ("", " %z", "%z")
    if between or not clock or (date == "%Y%m%d" and clock in ("%H%M%S", "%H%M"))
)
_MARKS = {format: frozenset(re.sub("%.| ", "", format).casefold()) for format in _FORMATS}
"""What stands between the numbers of a format."""


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

    Examples
    --------
    >>> find_marks(["06.01.2014", "1.234,5", "7,25"], ";")
    Marks(decimal=',', thousands='.')
    """
    comma, grouped = Marks(",", None), Marks(".", ",")
    choices = [Marks(".", None), *((comma, grouped) if delimiter == ";" else (grouped, comma))]
    choices += [
        Marks(d, t) for d, t in ((",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
    ]
    cells = [cell for cell in cells if any(map(str.isdigit, cell))]
    found = []
    for choice in choices:
        read = number_reader(*choice)
        found.append(sum(read(cell) is not None for cell in cells))
    return choices[found.index(max(found))]


def find_missing(columns: Mapping[str, Sequence[str]], marks: Marks) -> tuple[str, ...]:
    """Find the texts that stand for no value: they come back in columns of numbers. O(cells).

    Examples
    --------
    >>> find_missing({"flow": ["1.5", "Bad", "1.7", "1.8", "Bad"]}, Marks(".", None))
    ('Bad',)
    """
    read, found = number_reader(*marks), Counter[str]()
    for cells in columns.values():
        texts = Counter(cell for cell in cells if read(cell) is None)
        if texts.total() < len(cells) / 2 and not any(map(str.isdigit, "".join(texts))):
            found.update({text: n for text, n in texts.items() if n > 1 and text not in columns})
    return tuple(text for text, _ in found.most_common(_MOST_MISSING))


def find_times(cells: Sequence[str]) -> Written | None:
    """Find the unit or format in which almost all cells are times that make sense.

    Examples
    --------
    >>> find_times(["06.01.2014 00:00", "06.01.2014 00:15"])
    Written(unit='iso8601', format='%d.%m.%Y %H:%M', other=None)
    >>> find_times(["1/2/2024", "1/3/2024"])
    Written(unit='iso8601', format='%m/%d/%Y', other='%d/%m/%Y')
    """
    given = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING_TEXTS]
    if not given:
        return None
    read = number_reader()
    numbers = [value for cell in given if (value := read(cell)) is not None]
    if len(numbers) == len(given) and not _is_compact(given):
        largest = max(abs(value) for value in numbers)
        units: tuple[tuple[float, TimeUnit], ...] = ((1e11, "s"), (1e14, "ms"), (1e17, "us"))
        return Written(next((unit for limit, unit in units if largest < limit), "ns"))
    if len(numbers) < len(given) / 2 and _readable(given, None) > _ENOUGH:
        return Written("iso8601")
    some = (given[0], given[len(given) // 2])
    fits = [f for f in _FORMATS if any(_may_be(cell, f) and _moment(cell, f) for cell in some)]
    fits = [f for f in fits if _readable(given[:1000], f) > _ENOUGH]
    fits = sorted(
        (f for f in fits if _readable(given, f) > _ENOUGH), key=lambda f: _steps(given, f)
    )
    if not fits:
        return None
    even = [f for f in fits[1:] if _steps(given, f)[0] == _steps(given, fits[0])[0]]
    return Written("iso8601", fits[0], even[0] if even else None)


def is_header(rows: Sequence[Sequence[str]], marks: Marks) -> bool:
    """Whether the first row names the columns: what it holds is not what stands below it.

    Examples
    --------
    >>> is_header([["t", "1", "2"], ["0", "1.5", "3"], ["1", "2.5", "7"]], Marks(".", None))
    True
    >>> is_header([["01.02.2024", "2,5"], ["02.02.2024", "2,6"]], Marks(",", None))
    False
    """
    read = number_reader(*marks)
    same, other, numbered = _likeness(rows, marks)
    counted = [value for value in numbered if value is not None]
    is_count = len(counted) > 1 and {b - a for a, b in itertools.pairwise(counted)} == {1.0}
    if not same + other:  # all is text
        return not any(read(cell) is not None for cell in rows[0] if cell.strip())
    return other > same or (other > 0 and is_count)


def is_second_header(rows: Sequence[Sequence[str]], marks: Marks) -> bool:
    """Whether the row below the header is no data either: units, or names below groups.

    Examples
    --------
    >>> is_second_header([["t", "flow"], ["s", "m3/h"], ["0", "1.5"], ["1", "2"]], Marks(".", None))
    True
    """
    same, other, _ = _likeness(rows[1:], marks)
    return other > 1 and not same


def _likeness(rows: Sequence[Sequence[str]], marks: Marks) -> tuple[int, int, list[float | None]]:
    """Count the cells of the first row that are like those below, and those that are not."""
    read = number_reader(*marks)
    same = other = 0
    numbered = []
    for column in itertools.zip_longest(*rows[:200], fillvalue=""):
        first, *below = (cell.strip() for cell in column)
        given = [cell for cell in below if cell.lower() not in MISSING_TEXTS]
        if not given or first.lower() in MISSING_TEXTS:
            continue
        if sum(read(cell) is not None for cell in given) > 0.9 * len(given):
            like = read(first) is not None
            numbered.append(read(first))
        elif written := find_times(given):
            like = _moment(first, written.format) is not None
        else:
            continue
        same += like
        other += not like
    return same, other, numbered


def _is_compact(cells: Sequence[str]) -> bool:
    """Whether digits are a calendar's: 20240131, 202401311205, 20240131120500."""
    lengths = {len(cell) for cell in cells}
    return (
        len(lengths) == 1
        and lengths <= {8, 12, 14}
        and all(cell.isdigit() and cell[:2] in ("19", "20") for cell in cells)
    )


def _moment(text: str, format: str | None) -> datetime | None:
    try:
        return parse_moment(text, format)
    except (ValueError, OverflowError):
        return None


def _may_be(text: str, format: str) -> bool:
    """Whether a text has the marks of a format: to ask strptime makes a pattern, milliseconds."""
    marks = set(text.casefold())
    return _MARKS[format] <= marks and ("%z" not in format or not marks.isdisjoint("+-z"))


def _readable(cells: Sequence[str], format: str | None) -> float:
    return sum(_moment(cell, format) is not None for cell in cells) / len(cells)


def _steps(cells: Sequence[str], format: str) -> tuple[int, float]:
    """Return how often time goes back, and its longest step: months for days show in both."""
    back, longest = 0, 0.0
    last = -math.inf
    for cell in cells:
        try:
            now = to_epoch_ms(cell, "iso8601", format=format)
        except Unreadable:
            continue
        back += now < last
        longest = max(longest, now - last if last > -math.inf else 0.0)
        last = now
    return back, longest
