"""Which columns of an unknown table say when, and how they are written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rejex_stream.decode.mapping import TimeUnit, Unreadable, printable, to_epoch_ms
from rejex_stream.decode.written import MISSING_TEXTS, joined, number_reader
from rejex_stream.errors import ConfigError
from rejex_stream.tables.dialect import Written, find_times
from rejex_stream.tables.suspicions import time_doubt

__all__ = ["NONE", "TimeColumns", "find_time_columns", "is_text", "plain"]

NONE = "-"
"""In place of a column: there is none."""
_TIME = re.compile(
    r"^(time|timestamp|datetime|date|date_?time|ts|t|when|event_?time.*|.*_(time|at|ts)|.*timestamp"
    r"|(time|date|timestamp)_.*|datum|zeit|zeitpunkt|zeitstempel|datum_.*|.*_?datum|messzeit.*"
    r"|fecha|heure|horodatage|tijd|tijdstip)$"
)
_ELAPSED = re.compile(
    r"^(elapsed.*|millis|micros|msec|seconds?|secs?|t_(s|ms|us|ns|sec)|x_value|time_elapsed.*"
    r"|relative_time.*|time_(s|ms|us|ns|sec))$"
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm]?)?")
_CLOCK_NAME = re.compile(
    r"^((local_?|utc_?)?time(_?of_?day)?|uhrzeit|zeit|clock|hora|heure|tijd|hour(_?ending)?|stunde"
    r"|he|hh|hr)$"
)
_PARTS = ("year|jahr|yyyy|yr", "month|monat|mon|mo", "day|tag|dy", "hour|stunde|hr|hh",
          "minute|min|mm|minutes")  # fmt: skip
"""Columns that make a time together, by their names."""


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
) -> TimeColumns:
    """Find when rows were measured, by names of columns, their texts and their order. O(cells).

    The one column `asked` ``-`` says that there is none. Where a time is `needed`, a column that is
    called one and holds none is a :class:`ConfigError`.
    """
    if list(asked) == [NONE]:
        return TimeColumns()
    look = _Search(cells, unit, format)
    if asked:
        found = look.read(*asked)
        if found is None:
            raise ConfigError(
                f"{_what(cells, asked)} holds no time that can be read: give --time-format, in the "
                "signs of strptime, or --time-unit."
            )
        return found
    by_name = [name for name in cells if _TIME.match(plain(name))]
    elapsed = [name for name in cells if _ELAPSED.match(plain(name))]
    texts = [name for name in cells if name not in by_name and is_text(cells[name])]
    by_name = [name for name in by_name if name not in elapsed]
    found = look.best((*by_name, *texts, *elapsed)) or look.of_parts()
    if found is not None:
        return found
    for name in () if named else cells:
        found = look.read(name)
        if found is not None and _is_clock(found.moments_ms):
            return found
    unread = [name for name in by_name if any(c.lower() not in MISSING_TEXTS for c in cells[name])]
    said = [
        f"{_what(cells, [name])} is called a time, and holds none that can be read: give --time "
        f"{printable(name)} with --time-format, in the signs of strptime, or --time - if rows have "
        "no time"
        for name in unread
    ]
    if said and needed:
        raise ConfigError(said[0] + ".")
    return TimeColumns(doubts=tuple(said))


def _what(cells: Mapping[str, Sequence[str]], names: Sequence[str]) -> str:
    first = [next((c for c in cells[name] if c.lower() not in MISSING_TEXTS), "") for name in names]
    return f"column {' and '.join(map(printable, names))} (such as {printable(' '.join(first))})"


class _Search:
    """Tries columns."""

    def __init__(
        self, cells: Mapping[str, Sequence[str]], unit: TimeUnit | None, format: str | None
    ) -> None:
        self._cells, self._unit, self._format = cells, unit, format

    def read(self, *names: str) -> TimeColumns | None:
        """Read columns as one time; ``None`` where they are none."""
        texts = self._texts(*names)
        written = self._written(texts, names[0])
        if written is None:
            return None
        moments = tuple(_moment(text, written) for text in texts)
        given = [m for m, text in zip(moments, texts, strict=True) if text not in MISSING_TEXTS]
        if given.count(None) > 0.1 * len(given) and written.unit == "iso8601":
            return None
        return TimeColumns(names, written, moments, tuple(self._doubts(names, written, moments)))

    def best(self, names: Sequence[str]) -> TimeColumns | None:
        """Return the first that goes on in our days, else the first that can be read at all."""
        first = None
        for name in dict.fromkeys(names):
            found = self.read(name)
            if found is None:
                continue
            clock = self._clock_beside(name)
            found = (clock and self.read(name, clock)) or found
            if len(set(found.moments_ms)) > 1 and not found.doubts:
                return found
            first = first or found
        return first

    def of_parts(self) -> TimeColumns | None:
        """Put year, month, day, hour and minute together, where each is a column."""
        parts = [next((n for n in self._cells if re.fullmatch(p, plain(n))), None) for p in _PARTS]
        given = [part for part in itertools.takewhile(lambda part: part is not None, parts) if part]
        if len(given) < 3:
            return None
        format = self._format or "%Y %m %d %H %M"[: 3 * len(given) - 1]
        return _Search(self._cells, None, format).read(*given)

    def _texts(self, *names: str) -> list[str]:
        if len(names) == 1:
            return list(self._cells[names[0]])
        rows = zip(*(self._cells[name] for name in names), strict=True)
        return [joined(row) or "" for row in rows]

    def _written(self, texts: Sequence[str], name: str) -> Written | None:
        if self._format is not None:
            return Written("iso8601", self._format)
        if self._unit is None:
            return find_times(texts, name)
        given = [text for text in texts if text.lower() not in MISSING_TEXTS]
        right = sum(_moment(text, Written(self._unit)) is not None for text in given)
        return Written(self._unit) if given and right > 0.9 * len(given) else None

    def _clock_beside(self, day: str) -> str | None:
        """Return the column with the time of day, where another has days that come back."""
        days = self._texts(day)
        days = [joined([cell]) or "" for cell in days]
        if sum(":" in cell for cell in days) or len(set(days)) == len(days) or not is_text(days):
            return None
        for name in self._cells:
            clocks = sum(_CLOCK.fullmatch(cell) is not None for cell in self._cells[name])
            if name != day and (clocks > 0.9 * len(days) or _CLOCK_NAME.match(plain(name))):
                found = self.read(day, name)
                if found is not None:
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
        elif written.unit not in ("iso8601", "s", "ms", "us", "ns"):
            first = next(cell for cell in self._cells[names[0]] if cell)
            doubts.append(
                f"{printable(names[0])} is read as time of {written.unit}: {first} is "
                f"{datetime.fromtimestamp((moments[0] or 0) / 1000, UTC):%Y-%m-%d %H:%M:%S}; "
                "--time-unit s says that it is seconds"
            )
        return doubts


def _moment(cell: str, written: Written) -> int | None:
    try:
        return to_epoch_ms(cell, written.unit, format=written.format)
    except Unreadable:
        return None


def _is_clock(moments: Sequence[int | None]) -> bool:
    """Whether these are times of our days, and go forward."""
    known = [moment for moment in moments if moment is not None]
    forward = sum(b >= a for a, b in itertools.pairwise(known))
    plausible = all(631_152_000_000 < moment < 4_102_444_800_000 for moment in known)
    return len(known) > 1 and plausible and forward > 0.9 * (len(known) - 1)


def is_text(cells: Sequence[str]) -> bool:
    """Whether a column holds texts, and no numbers."""
    read = number_reader()
    given = [cell for cell in cells[:200] if cell.lower() not in MISSING_TEXTS]
    return bool(given) and sum(read(cell) is None for cell in given) > 0.95 * len(given)


def plain(name: str) -> str:
    """Write a column's name as patterns want it."""
    return re.sub(r"[\s_/.-]+", "_", name.strip()).strip("_").lower()
