"""Which columns of an unknown table say when, and how they are written."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rejex_stream.decode.mapping import TimeUnit, printable
from rejex_stream.decode.written import MISSING_TEXTS, joined, number_reader
from rejex_stream.errors import ConfigError
from rejex_stream.tables.column_checks import time_doubt
from rejex_stream.tables.columns import is_text
from rejex_stream.tables.dialect import Written, find_times, is_compact, moment_ms
from rejex_stream.tables.names import CLOCK, DAY_OF_YEAR, ELAPSED, PARTS, TIME, plain

NONE = "-"
"""In place of a column: there is none."""
_YEARS = frozenset(map(str, range(1950, 2100)))
_COMMA = re.compile(r"(?<=\d),(?=\d+([eE][+-]?\d+)?$)")
_DAY_MS, _1990_MS = 86_400_000, 631_152_000_000
_OF_LAST = {"%H": ("%H", "%H%M", "%H:%M", "%H:%M:%S")}
"""How the hour is written where it is the last part."""
_FRACTIONS = 20  # times between 0 and 1 that are parts of a day
_HHMM = re.compile(r"\d|[1-5]\d|(2[0-4]|1?\d)[0-5]\d")
_MONTH_DAY = re.compile(r"\d\d?/\d\d?\s+\d\d?:\d\d(:\d\d)?")  # of EnergyPlus
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm]?)?")


@dataclass(frozen=True, slots=True)
class TimeColumns:
    """The columns whose texts make the time, if any; and the time of each row by them."""

    names: tuple[str, ...] = ()
    written: Written | None = None
    moments_ms: tuple[int | None, ...] = ()
    doubts: tuple[str, ...] = ()


def find_time_columns(
    cells: Mapping[str, Sequence[str]],
    asked: Sequence[str] = (),
    unit: TimeUnit | None = None,
    format: str | None = None,
    *,
    named: bool = True,
    needed: bool = True,
    decimal: str = ".",
) -> TimeColumns:
    """Find the time columns by their names, texts and order. O(cells).

    The one column `asked` ``-`` says that there is none. Where a time is `needed`, a column that is
    called one and holds none is a :class:`ConfigError`.
    """
    if list(asked) == [NONE]:
        return TimeColumns()
    look = _Search(cells, unit, format, decimal)
    if asked:
        time = look.read(*asked)
        if time is None:
            raise ConfigError(
                f"{_what(cells, asked)} holds no time that can be read: give --time-format, in the "
                "signs of strptime, or --time-unit."
            )
        return time
    by_name = [name for name in cells if TIME.match(plain(name))]
    elapsed = [name for name in cells if ELAPSED.match(plain(name)) and not _falls(cells[name])]
    by_name = [name for name in by_name if name not in elapsed]
    parts = [name for name in by_name if look.is_part_of_day(name)] if len(by_name) > 1 else []
    by_name = [name for name in by_name if name not in parts]
    texts = [name for name in cells if name not in by_name and is_text(cells[name], decimal)]
    time = look.best((*by_name, *texts, *elapsed))
    if time is None or time.doubts or max(filter(None, time.moments_ms), default=0) < _DAY_MS:
        time = look.of_parts(() if named else look.parts_by_value()) or time or look.years()
    if time is not None:
        more = (
            f"{printable(name)} is from 0 to 1, as parts of a day are: add it to the column of the "
            "day, and give the sum with --time" for name in parts
        )  # fmt: skip
        return replace(time, doubts=(*time.doubts, *more))
    # What nobody has named may be a clock all the same.
    for name in cells if not named else [n for n in cells if n in ("column_1", "index_1")]:
        time = look.read(name)
        if time is not None and _is_clock(time.moments_ms):
            return time
    first = next(iter(cells), None)
    if needed and first is not None and (time := look.axis(first)) is not None:
        return time
    called = (*by_name, *(n for n in texts if CLOCK.match(plain(n)) or ELAPSED.match(plain(n))))
    unread = [name for name in called if any(c.lower() not in MISSING_TEXTS for c in cells[name])]
    said = [
        f"{_what(cells, names)} is called a time, and holds "
        + (
            "times of day without a date: give the column of the date as well, with --time, "
            if all(_CLOCK.fullmatch(cell) for cell in cells[names[0]] if cell)
            else "a month and a day without a year: write the year before each, "
            if (len(names) > 1 and not PARTS[0].match(plain(names[0])))
            or all(_MONTH_DAY.fullmatch(cell) for cell in cells[names[0]] if cell)
            else f"none that can be read: give --time {printable(names[0])} with --time-format, in "
            "the signs of strptime, "
        )
        + "or --time - if rows have no time"
        for names in (*look.parts_by_name(), *([name] for name in unread))
    ]
    if said and needed:
        raise ConfigError(said[0] + ".")
    return TimeColumns(doubts=tuple(said))


def _falls(cells: Sequence[str]) -> bool:
    read = number_reader(",") if any("," in cell for cell in cells) else number_reader()
    numbers = [x for cell in cells if (x := read(cell)) is not None and not math.isnan(x)]
    return sum(b < a for a, b in itertools.pairwise(numbers)) > 0.1 * len(numbers)


def _what(cells: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    first = [next((c for c in cells[name] if c.lower() not in MISSING_TEXTS), "") for name in names]
    return f"column {' and '.join(map(printable, names))} (such as {printable(' '.join(first))})"


class _Search:
    def __init__(
        self,
        cells: Mapping[str, Sequence[str]],
        unit: TimeUnit | None,
        format: str | None,
        decimal: str = ".",
    ) -> None:
        self._cells, self._unit, self._format, self._decimal = cells, unit, format, decimal

    def read(self, *names: str) -> TimeColumns | None:
        """Read columns as one time; ``None`` where they are none."""
        texts = self._texts(*names)
        written = self._written(texts, names[0])
        if written is None:
            return None
        moments = tuple(moment_ms(text, written.unit, written.format) for text in texts)
        given = [m for m, text in zip(moments, texts, strict=True) if text not in MISSING_TEXTS]
        if given.count(None) > 0.1 * len(given) and written.unit == "iso8601":
            return None
        return TimeColumns(names, written, moments, tuple(self._doubts(names, written, moments)))

    def best(self, names: Sequence[str]) -> TimeColumns | None:
        """Return the first column of dates since 1990, else of time since a start, else any."""
        since_start = first = None
        for name in dict.fromkeys(names):
            time = self.read(name)
            if time is None:
                continue
            clock = self._clock_beside(name)
            time = (clock and self.read(name, clock)) or time
            if len(set(time.moments_ms)) > 1 and not time.doubts:
                if max(filter(None, time.moments_ms), default=0) >= _1990_MS:
                    return time
                if not _falls(self._cells[name]):
                    since_start = since_start or time
            elif not (
                time.written and time.written.unit != "iso8601" and _falls(self._cells[name])
            ):
                first = first or time
        return since_start or first

    def is_part_of_day(self, name: str) -> bool:
        numbers = list(map(number_reader(self._decimal), self._cells[name]))
        parts = {x for x in numbers if x is not None and 0 <= x < 1}
        return None not in numbers and len(parts) > _FRACTIONS and parts >= {*numbers}

    def axis(self, name: str) -> TimeColumns | None:
        """Read an unnamed time axis: epochs, or even steps in seconds."""
        time, shown = self.read(name), printable(name)
        if time is None or time.written is None:
            return None
        numbers = [float(text) for text in self._texts(name) if text]
        steps = [b - a for a, b in itertools.pairwise(numbers)]
        is_epoch = time.written.unit in ("s", "ms", "us", "ns") and not time.doubts
        if is_epoch and _is_clock(time.moments_ms):
            why = f"{shown} is called no time, and holds seconds or their parts since 1970"
        elif steps and 1e-3 <= max(steps) < 1.01 * min(steps) and max(steps) % 1:
            why = f"{shown} rises by {min(steps):g} from row to row, and is taken for seconds"
        else:
            return None
        return replace(time, doubts=(f"{why}; --time - says that rows have no time",))

    def of_parts(self, unnamed: Iterable[list[str]] = ()) -> TimeColumns | None:
        called = [n for n in self.parts_by_name() if PARTS[0].match(plain(n[0]))]  # with a year
        for names in (*called, *unnamed):
            of_year = len(names) < 3 or DAY_OF_YEAR.match(plain(names[1])) is not None
            of_year = of_year or any(c.isdigit() and int(c) > 12 for c in self._cells[names[1]])
            days = "%j" if of_year else "%m %d"
            year = "%Y" if any(len(cell) > 2 for cell in self._cells[names[0]]) else "%y"
            signs = f"{year} {days} %H %M %S".split()[: len(names)]
            clocks = (" ".join([*signs[:-1], last]) for last in _OF_LAST.get(signs[-1], signs[-1:]))
            for format in (self._format,) if self._format else clocks:
                time = _Search(self._cells, None, format).read(*names)
                if time is not None and len(set(time.moments_ms)) > 1:
                    return time
        return None

    def years(self) -> TimeColumns | None:
        """Read a column of years, where a row each stands in it, or one of each sensor."""
        name = next((n for n in self._cells if PARTS[0].match(plain(n))), None)
        counts = Counter(self._cells[name] if name else ())
        return self.read(name) if name and len(counts) > 1 == len({*counts.values()}) else None

    def parts_by_name(self) -> Iterator[list[str]]:
        left = list(self._cells)
        parts: list[str | None] = []
        for part in PARTS:
            name = next((n for n in left if part.match(plain(n))), None)
            parts.append(name)
            if name is not None:
                left.remove(name)
        year, month, day, *clock = parts
        clocks = [name for name in itertools.takewhile(bool, clock) if name]
        if year and month and day:
            yield [year, month, day, *clocks]
        of_year = next((n for n in self._cells if DAY_OF_YEAR.match(plain(n))), day)
        if year and of_year and not month:
            yield [year, of_year, *clocks]
        if month and day and not year:
            yield [month, day, *clocks]

    def parts_by_value(self) -> Iterator[list[str]]:
        """Yield columns without names whose numbers are years, months, days, hours and minutes."""
        # A day of the year may stand between the year and the month.
        names = list(self._cells)[:8]
        numbers = [{c.strip() for c in self._cells[name]} for name in names]
        years = [i for i, parts in enumerate(numbers) if parts <= _YEARS]
        for year, between in itertools.product(years[:1], (1, 2)):
            parts = []
            for i, last in zip(range(year + between, len(names)), (12, 31, 24, 59), strict=False):
                if not all(c.isdigit() and int(c) <= last for c in numbers[i]):
                    break
                parts.append(names[i])
            if len(parts) > 2 and len(numbers[year + between + 2]) > 1:
                yield [names[year], *parts]
        for year in years[:1]:
            day, clock = (*numbers[year + 1 : year + 3], set[str](), set[str]())[:2]
            days = all(c.isdigit() and 0 < int(c) <= 366 for c in day)
            if days and len(clock) > 1 and all(map(_HHMM.fullmatch, clock)):
                yield names[year : year + 3]

    def _texts(self, *names: str) -> list[str]:
        if len(names) > 1:
            rows = zip(*(self._cells[name] for name in names), strict=True)
            return [joined(row) or "" for row in rows]
        cells = self._cells[names[0]]
        return list(cells) if self._decimal == "." else [_COMMA.sub(".", cell) for cell in cells]

    def _written(self, texts: Sequence[str], name: str) -> Written | None:
        if self._format is not None:
            return Written("iso8601", self._format)
        if self._unit is None:
            return find_times(texts, name, self._decimal)
        given = [text for text in texts if text.lower() not in MISSING_TEXTS]
        right = sum(moment_ms(text, self._unit) is not None for text in given)
        return Written(self._unit) if given and right > 0.9 * len(given) else None

    def _clock_beside(self, day: str) -> str | None:
        days = self._texts(day)
        days = [joined([cell]) or "" for cell in days]
        if sum(":" in cell for cell in days) or len(set(days)) == len(days):
            return None
        if not (is_text(days) or is_compact([day for day in days if day])):
            return None
        for name in self._cells:
            clocks = sum(_CLOCK.fullmatch(cell) is not None for cell in self._cells[name])
            if name != day and (clocks > 0.9 * len(days) or CLOCK.match(plain(name))):
                time = self.read(day, name)
                if time is not None:
                    return name
        return None

    def _doubts(
        self, names: tuple[str, ...], written: Written, moments: tuple[int | None, ...]
    ) -> list[str]:
        if self._format is not None or self._unit is not None:
            return []
        doubts = []
        if written.other is not None:
            doubts.append(
                f"the time is read as {written.format}; if it is {written.other}, give "
                f"--time-format '{written.other}'"
            )
        odd = time_doubt(names[0], moments, written.unit, int(datetime.now(UTC).timestamp() * 1000))
        if odd:
            doubts.append(f"{odd}; --time-unit or --time-format says how it is written")
        elif written.unit not in ("iso8601", "s", "ms", "us", "ns", "min", "h", "d"):
            first = next(cell for cell in self._cells[names[0]] if cell)
            doubts.append(
                f"{printable(names[0])} is read as time of {written.unit}: {first} is "
                f"{datetime.fromtimestamp((moments[0] or 0) / 1000, UTC):%Y-%m-%d %H:%M:%S}; "
                "--time-unit s says that it is seconds"
            )
        return doubts


def _is_clock(moments: Sequence[int | None]) -> bool:
    known = [moment for moment in moments if moment is not None]
    forward = sum(b >= a for a, b in itertools.pairwise(known))
    plausible = all(631_152_000_000 < moment < 4_102_444_800_000 for moment in known)
    goes_on = len(set(known)) > max(1, len(known) / 4)
    return goes_on and plausible and forward > 0.9 * (len(known) - 1)
