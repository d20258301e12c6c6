"""Where in a text its table stands: what parts its cells, the rows above it, its header.

A table is looked for from below. What stands in the middle of a file is its rows, so they say what
parts cells and which columns hold numbers; data begins where rows begin to look like them, and of
the rows above, the one that names the most columns is the header.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rejex_stream.decode.written import MISSING_TEXTS
from rejex_stream.errors import ConfigError
from rejex_stream.tables.names import TIME, plain

_DELIMITERS = (",", ";", "\t", "|", "^", "~", " ")
_TOP = 400
"""Rows among which a table begins, and of its middle that say what it is like."""
_NUMBER = re.compile(
    r"\(?[+\-\u2212]?\s*[.,]?\d[\d.,'’ \u00a0\u202f]*([eEdD][+-]?\d+)?-?\)?"
    r"(\s?[^\d\s\[(:,;/-][^\d\s\[(:,;]{0,7})?"
)
_DIGIT = re.compile(r"\W?\d")
_ALIKE = 5
"""Rows that have to look like data where it begins."""


def split_all(lines: Sequence[str], delimiter: str, width: int = 0) -> list[list[str]]:
    """Split lines of CSV as :func:`~rejex_stream.decode.csv.split_row` does, each as a row.

    What is beyond the `width`, of the first row by default, and empty is left out.
    """
    if delimiter == " ":
        rows = [line.split() for line in lines]
    else:
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    width = width or len(rows[0])
    rows = [row[:width] if not "".join(row[width:]).strip() else row for row in rows]
    return [[cell.rstrip("\r\n") for cell in row] for row in rows]


@dataclass(frozen=True, slots=True)
class Body:
    """What the rows of a table are like: how many cells, and which columns hold numbers."""

    width: int
    end: int  # the last column that holds anything, counted from one
    kinds: list[re.Pattern[str] | None]
    known: list[set[str]]  # the texts of each column that come back
    blank: list[bool]  # columns with cells that are empty

    def has(self, row: Sequence[str]) -> bool:
        """Whether a row is one of these: where they hold numbers, it does."""
        if len(row) != self.width:
            return False
        like, unlike = 0, []
        for at, kind in enumerate(self.kinds):
            text = row[at].strip()
            if kind is None:
                continue
            if kind.fullmatch(text) if kind is _NUMBER else kind.match(text):
                like += 1
            elif text not in self.known[at] and (text or not self.blank[at]):
                unlike.append(at)
        return like >= max(1, len(unlike)) and unlike[:1] != [0]


def body_of(lines: Sequence[str], delimiter: str) -> Body | None:
    """Describe rows from the middle of a table; ``None`` where they are not alike."""
    remarks = len(list(itertools.takewhile(lambda line: line.startswith("#"), lines)))
    middle = min(len(lines) - 1, (remarks + len(lines)) // 2)
    body = _alike(lines[middle:][:_TOP], delimiter)
    if body is None and delimiter != " ":  # behind a table may stand another
        body = _alike(lines[: max(1, middle)][-_TOP:], delimiter)
    return body


def _alike(middle: Sequence[str], delimiter: str) -> Body | None:
    try:
        rows = split_all(middle, delimiter, 1 << 20)
    except csv.Error:
        return None
    ends = [max((i for i, cell in enumerate(row, 1) if cell.strip()), default=0) for row in rows]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    fit = [row for row, end in zip(rows, ends, strict=True) if len(row) >= width >= end]
    if len(fit) <= 0.9 * len(rows):
        return None
    kinds, texts, blank = [], [], []
    for column in itertools.islice(zip(*fit, strict=False), width):
        cells = [cell.strip() for cell in column]
        given = [cell for cell in cells if cell.lower() not in MISSING_TEXTS]
        numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in given)
        digits = sum(_DIGIT.match(cell) is not None for cell in given)
        number = numbers > 0.9 * len(given)
        kinds.append(_NUMBER if number else _DIGIT if digits > 0.95 * len(given) else None)
        texts.append(set(cells) if len(fit) > 1 else set())
        blank.append(len(given) < len(cells))
    return Body(width, max(end for end in ends if end <= width), kinds, texts, blank)


def delimiter_of(lines: Sequence[str]) -> str:
    """Find the delimiter that gives most columns of numbers. O(bytes).

    Of several it is the one that parts a row above the data as well, and leaves no other in cells.
    """
    if not lines:
        raise ConfigError("the table is empty: expected a header and rows.")
    best: tuple[int, ...] = (-1,)
    chosen, sure = ",", False
    for delimiter in _DELIMITERS:
        body = body_of(lines, delimiter)
        if body is None or body.width < 2:
            continue
        top = split_all(lines[:_TOP], delimiter, body.width)
        begin = begin_of_data(top, body)
        named = any(len(row) == body.width for row in top[:begin])
        if delimiter == " " and best > (-1,) and (sure or not named):
            continue  # blanks are in texts, too
        left = sum(any(mark in cell for cell in row for mark in ";\t|") for row in top[begin:])
        score = (
            body.kinds.count(_NUMBER), named or not begin, 2 * left < len(top), body.width,
        )  # fmt: skip
        if score > best:
            best, chosen, sure = score, delimiter, named
    return chosen


def begin_of_data(rows: Sequence[Sequence[str]], body: Body) -> int:
    """Return where rows begin to be like those of the middle; 0 where none is. O(cells)."""
    like = [body.has(row) for row in rows]
    for i in range(len(rows)):
        near = like[i : i + _ALIKE]
        if near[0] and sum(near) >= 0.8 * len(near):
            return i
    return 0


def is_header(row: Sequence[str], body: Body | None) -> bool:
    """Whether a row that holds numbers names columns all the same: whole ones, beside a text.

    Without columns of numbers below it is a header where it has no number itself.
    """
    cells = [cell.strip() for cell in row]
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    if body is None or not any(body.kinds) or not numbers:
        return not numbers
    texts = [
        cell for cell, kind, known in zip(cells, body.kinds, body.known, strict=False)
        if kind and cell and cell not in known and not kind.match(cell)
    ]  # fmt: skip
    return bool(texts) and all(map(str.isdigit, numbers)) and len(set(numbers)) == len(numbers)


def header_above(rows: Sequence[Sequence[str]], width: int) -> int | None:
    """Return which of the rows above the data names the columns: most of them, each otherwise.

    Where several do, as names and units do, it is one that calls a column a time, or the first.
    """
    named: dict[int, tuple[float, bool, int, int]] = {}
    for i, row in enumerate(rows):
        cells = [cell.strip() for cell in row]
        if not width - 1 <= len(cells) <= width + 1:
            continue
        names = set(cells) - {""}
        texts = [name for name in names if not _NUMBER.fullmatch(name)]
        timed = any(TIME.match(plain(cell)) for cell in cells if cell)
        units = sum("[" in cell for cell in cells)
        named[i] = len(names) + len(texts) / 2, timed, -units, -i
    if not named:
        return None
    most = max(score for score, *_ in named.values())
    if most < width / 2:
        return None
    return max(named, key=lambda i: (named[i][0] >= 0.9 * most, *named[i][1:]))


def names_of(
    rows: Sequence[Sequence[str]], at: int, width: int, body: Body | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return the first row that names columns, and the names, by their row above the data.

    What it calls alike is told apart by the row below it, of units, say, or by groups above it.
    """
    names = _cells(rows[at], width)
    unnamed = not names[0] and body is not None and body.kinds[0] is _DIGIT
    if unnamed and TIME.match(plain(names[1])):  # the time is called so: the last has no name
        clock = body is not None and body.kinds[1] is _DIGIT  # or the time of day has none
        names = [names[1], "clock", *names[2:]] if clock else [*names[1:], f"column_{width}"]
    others = [i for i in (at + 1, at - 1)
              if 0 <= i < len(rows) and any(map(str.isalnum, "".join(rows[i])))]  # fmt: skip
    beside = next((i for i in others if abs(len(rows[i]) - width) <= 1), None)
    if beside is not None and (len(set(names)) < width or not all(names)):
        upper, lower = (names, _cells(rows[beside], width))
        if beside < at:
            upper, lower = lower, upper
        if sum(map(bool, upper)) > 1 and sum(map(bool, lower)) > 1:
            at, names = min(at, beside), _with_groups(upper, lower)
    if names and not names[0]:  # an index that nobody named
        names = ["column_1" if "column_1" not in names else "index_1", *names[1:]]
    for i, cells in enumerate([] if body is None else body.known[: len(names)]):
        names[i] = names[i] or (f"column_{i + 1}" if cells - {""} else "")
    return at, numbered(names)


def _with_groups(upper: list[str], lower: list[str]) -> list[str]:
    """Put groups before the names below them, or what is below before names that come twice."""
    whole = all(upper)
    filled = list(upper)
    for at in range(1, len(filled)):
        filled[at] = filled[at] or filled[at - 1]
    return [
        group if whole and upper.count(group) == 1
        else name if name and lower.count(name) == 1 and not _NUMBER.fullmatch(name)
        else f"{group} {name}".strip()
        for group, name in zip(filled, lower, strict=True)
    ]  # fmt: skip


def _cells(row: Sequence[str], width: int) -> list[str]:
    marked = len(row) == width + 1 and row[0] in ("#", "%")  # a header as a remark
    cells = [cell.strip() for cell in (row[1:] if marked else row[:width])]
    if len(row) == width - 1 and all(cells):  # names of rows, which have none themselves
        cells = ["", *cells]
    return [*cells, *[""] * (width - len(cells))]


def numbered(names: Sequence[str]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} ({seen[name]})" if name and seen[name] > 1 else name)
    return tuple(unique)
