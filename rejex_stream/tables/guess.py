"""What the columns of an unknown table mean, guessed from their names and values.

Used for a quick look only, and every guess is said aloud; a pipeline's config names its columns.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rejex_stream.decode.mapping import TimeUnit, Unreadable, printable, to_epoch_ms
from rejex_stream.decode.numbers import MISSING_TEXTS, number_reader
from rejex_stream.decode.times import joined
from rejex_stream.errors import ConfigError
from rejex_stream.tables.dialect import Marks, Written, find_missing, find_times

_PLAIN = Marks(".", None)
__all__ = ["TableGuess", "guess_table", "split_all", "split_rows"]

_TIME = re.compile(
    r"^(time|timestamp|datetime|date|date_?time|ts|t|when|event_?time.*|.*_(time|at|ts)"
    r"|(time|date|timestamp)_.*|datum|zeit|zeitpunkt|zeitstempel|datum_.*|messzeit.*|fecha|heure"
    r"|horodatage|tijd)$"
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?")
_CLOCK_NAME = re.compile(
    r"^((local_?|utc_?)?time(_?of_?day)?|uhrzeit|zeit|clock|hora|heure|tijd|hour|stunde)$"
)
_PARTS = ("year|jahr|yyyy", "month|monat|mon", "day|tag", "hour|stunde|hr", "minute|min")
"""Columns that make a time together, by their names."""
_DAYS = (20_000, 80_000)  # of spreadsheets: 1954 to 2119
_WHO = (
    r"sensor|device|machine|unit|asset|meter|station|site|pump|motor|valve|engine|turbine|node"
    r"|source|well|tank|line|plant|road|location|id|name|key|messstelle|messpunkt|pumpe|anlage"
    r"|gerät|geraet|maschine|zähler|zaehler|standort|ort|fühler|capteur|pompe|equipo"
)
_SENSOR = re.compile(rf"^(({_WHO}|tag)(_?(id|name|nr|no|number|code|key))?|.*_(id|name|nr))$")
_TAG = re.compile(
    r"^((tag|parameter|variable|metric|signal|quantity|channel|kanal|measurement|property|field"
    r"|messgröße|messgroesse|größe|groesse|merkmal)(_?(id|name|nr|no|code))?)$"
)
_LABEL = re.compile(
    r"^(label|labels|anomaly|is_?anomaly|outlier|attack|class|target|fault|y|ground_?truth"
    r"|event)$",
    re.I,
)
_MODE = re.compile(r"^(op(erat\w*)?_?)?(mode|state|status|regime|betriebsart|zustand)$", re.I)
_MOST_MODES = 8  # and a mode lasts for more events than that
_ASIDE = re.compile(r"^(index|row|split|fold|changepoint|change_?point|rul|unnamed.*|)$", re.I)
_MISSING = MISSING_TEXTS
_ONE = "-"
_ENOUGH_FOR_FLAG = 20  # values; of few, two are soon all
"""In place of a sensor's column: all rows are of one sensor."""
_LOCKSTEP = 1.5
"""So many rows a time, or more, are several series side by side."""
_MERGED = 0.1
"""A time that stands still or goes back in so many rows is of several series."""


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What each column is taken for.

    Attributes
    ----------
    time, time_unit
        The event time, or the columns that make it; without one, rows are one second apart.
    sensor
        The sensor's name; without one, the table is one sensor.
    label
        A known truth, 1 for an anomaly: never shown to the detector.
    channels
        What is measured.
    aside
        Columns left out, each with the reason.
    flags
        Channels that are read, and kept out of the distance: they take at most two values.
    missing
        Texts that stand for no value.
    time_format
        Of times that are neither a number nor ISO 8601.
    tag
        The column that names the quantity, where a row holds one value.
    mode, n_modes
        The column of the operating mode, where somebody named it, and how many there are.
    marks
        Of the numbers.
    doubts
        What else it could be, a sentence each with what to write.
    """

    time: str | tuple[str, ...] | None
    time_unit: TimeUnit
    sensor: str | None
    label: str | None
    channels: tuple[str, ...]
    aside: dict[str, str] = field(default_factory=dict)
    time_format: str | None = None
    tag: str | None = None
    marks: Marks = _PLAIN
    doubts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    mode: str | None = None
    n_modes: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def time_said(self) -> str:
        """What is taken for the time, for people."""
        if self.time is None:
            return "none: rows 1 s apart"
        return f"{' and '.join(self.times)} ({self.time_format or self.time_unit})"

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that make the time."""
        return (self.time,) if isinstance(self.time, str) else self.time or ()

    @property
    def flags_said(self) -> tuple[str, ...]:
        """What is kept out of the distance, for people."""
        if not self.flags:
            return ()
        return (
            f"flags: {', '.join(self.flags)}, of at most two values: out of the score, shown to "
            "the reviewer; --flag NAME says which are, --flag - that none is",
        )

    def time_settings(self, time_zone: str | None) -> dict[str, object]:
        """Return the settings of ``[input]`` that say how the time is read."""
        return {
            "time": list(self.time) if isinstance(self.time, tuple) else self.time,
            "time_unit": None if self.time is None or self.time_format else self.time_unit,
            "time_format": self.time_format,
            "time_zone": time_zone,
        }

    def __str__(self) -> str:
        said = [
            f"time: {self.time_said}",
            f"sensor: {self.sensor or 'none: one sensor'}",
            f"channels: {', '.join(self.channels)}",
        ]
        if self.label is not None:
            said.append(f"label: {self.label}")
        said += [f"left out: {name} ({why})" for name, why in self.aside.items()]
        return "\n".join(said)


def split_all(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Split lines of CSV as :func:`~rejex_stream.decode.csv.split_row` does, each as a row.

    Raises
    ------
    csv.Error
        If a row is too large to be one.
    """
    if delimiter == " ":
        rows = [line.split() for line in lines]
    else:
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    width = len(rows[0])
    return [row[:width] if not "".join(row[width:]).strip() else row for row in rows]


def split_rows(lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Find the delimiter of a few lines of CSV, and split them.

    Raises
    ------
    ConfigError
        If the lines are no table.

    Examples
    --------
    >>> split_rows(["t;flow", "0;1,5", "1;1,6"])
    (';', [['t', 'flow'], ['0', '1,5'], ['1', '1,6']])
    """
    if not lines:
        raise ConfigError("the table is empty: expected a header and rows.")
    best: tuple[int, str, list[list[str]]] = (0, ",", [])
    for delimiter in (",", ";", "\t", "|", " "):
        try:
            rows = split_all(lines, delimiter)
        except csv.Error:
            continue
        width = len(rows[0])
        even = sum(len(row) == width for row in rows)
        if width > 1 and even > 0.9 * len(rows) and width > best[0] * (1 + (delimiter == " ")):
            best = (width, delimiter, rows)
    if best[0] == 0:  # one column
        return ",", [[line] for line in lines]
    return best[1], best[2]


def guess_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    time: str | Sequence[str] | None = None,
    sensor: str | None = None,
    label: str | None = None,
    channels: Sequence[str] = (),
    flags: Sequence[str] | None = None,
    tag: str | None = None,
    mode: str | None = None,
    time_format: str | None = None,
    marks: Marks = _PLAIN,
    missing: Sequence[str] | None = None,
    named: bool = True,
) -> TableGuess:
    """Say what each column is, from its name and a sample of its values.

    Parameters
    ----------
    header, rows
        Column names, and the cells of some rows.
    time, sensor, label, channels, flags, tag, mode, time_format, marks, missing
        What is known already; the rest is guessed. The sensor ``-`` says that there is only one,
        the flag ``-`` that there is none. A flag is a channel.
    named
        Whether the names are the table's own.

    Raises
    ------
    ConfigError
        If a named column is not there, no column holds numbers, or several series are mixed and
        nothing tells which row is whose.

    Examples
    --------
    >>> guess = guess_table(["id", "t", "flow", "label"], [["a", "0", "1.5", "0"],
    ...                     ["b", "0", "1.7", "0"], ["a", "1", "1.6", "1"], ["b", "1", "", "0"]])
    >>> guess.time, guess.time_unit, guess.sensor, guess.channels, guess.label
    ('t', 's', 'id', ('flow',), 'label')
    """
    no_flags = flags is not None and list(flags) == [_ONE]
    meant = () if no_flags else tuple(flags or ())
    times = (time,) if isinstance(time, str) else tuple(time or ())
    one = sensor if sensor != _ONE else None
    for name in (*times, one, label, tag, mode, *channels, *meant):
        if name is not None and name not in header:
            raise ConfigError(
                f"there is no column {printable(name)}: the columns are {', '.join(header)}."
            )
    cells = {
        name: [row[i].strip() for row in rows if len(row) == len(header)]
        for i, name in enumerate(header)
    }
    absent = find_missing(cells, marks) if missing is None else tuple(missing)
    read = number_reader(*marks, absent)
    asked = bool(times)
    times, moment_cells, written = _find_time(
        header, cells, times, time_format, channels, named=named
    )
    doubts = _time_doubts(cells, times, written, asked=asked)
    if absent and missing is None:
        doubts.append(
            f"{', '.join(map(printable, absent))} is taken for no value; --missing says which "
            "texts are, --missing '' that none is"
        )
    label = label or _first(
        header,
        _LABEL,
        lambda name: _is_label(cells[name], read),
        *times,
        sensor,
        tag,
        mode,
        *channels,
        *meant,
    )
    numeric = [
        name
        for name in header
        if name not in (*times, sensor, label, tag, mode)
        and _why_not(name, cells[name], read) is None
    ]
    moments = _moments(moment_cells, written) if written is not None else []
    taken = (*times, label, mode, *channels, *meant)
    sensor, tag, said = _who(header, cells, moments, taken, sensor, tag, numeric, read)
    doubts += said
    found: list[str] = []
    aside: dict[str, str] = {}
    for name in header:
        if name in (*times, sensor, tag, label, mode):
            continue
        why = _why_not(name, cells[name], read)
        if name in channels or name in meant or (not channels and why is None):
            found.append(name)
        elif not channels:
            aside[name] = why or ""
    if not found:
        raise ConfigError(
            "no column holds numbers that change: name the channels with --channel, or say how "
            "the table is written with --delimiter, --decimal, --thousands and --encoding. "
            + "; ".join(f"{printable(name)}: {why}" for name, why in list(aside.items())[:10])
        )
    named_so = [name for name in header if name not in (*times, sensor, tag, label)]
    doubts += [] if mode is not None else _modes_said(named_so, cells)
    return TableGuess(
        (times if len(times) > 1 else times[0]) if times else None,
        written.unit if written else "ms",
        sensor,
        label,
        tuple(found),
        aside,
        written.format if written else None,
        tag,
        marks,
        tuple(doubts),
        tuple(meant) if flags is not None else _flags(found, cells, read),
        mode,
        None if mode is None else max(1, len(set(cells[mode]))),
        absent,
    )


def _modes_said(names: Sequence[str], cells: dict[str, list[str]]) -> Iterator[str]:
    """Say which column looks like an operating mode: by its name, few values that stay."""
    for name in names:
        given = cells[name]
        runs = 1 + sum(a != b for a, b in itertools.pairwise(given))
        if _MODE.match(_plain(name)) and 2 <= len(set(given)) <= _MOST_MODES < len(given) / runs:
            yield (
                f"mode: {printable(name)} looks like an operating mode, {len(set(given))} values; "
                f"--mode {name} judges each apart, with a warm-up of its own"
            )


def _find_time(
    header: Sequence[str],
    cells: dict[str, list[str]],
    times: tuple[str, ...],
    time_format: str | None,
    channels: Sequence[str],
    *,
    named: bool,
) -> tuple[tuple[str, ...], list[str], Written | None]:
    """Find the columns of the time; return them, their texts put together and how to read them."""

    def read(*names: str) -> tuple[tuple[str, ...], list[str], Written | None]:
        texts = cells[names[0]]
        if len(names) > 1:
            parts = zip(*(cells[name] for name in names), strict=True)
            texts = [joined(part) or "" for part in parts]
        written = Written("iso8601", time_format) if time_format else find_times(texts)
        return names, texts, written

    if times:
        found = read(*times)
        if found[2] is None:
            raise ConfigError(
                f"column {' and '.join(map(printable, times))} holds no time that can be read, "
                f"such as {printable(next(iter(found[1]), ''))}: give --time-format, in the signs "
                "of strptime."
            )
        return found
    free = [name for name in header if name not in channels]
    by_name = [name for name in free if _TIME.match(_plain(name))]
    texts = [name for name in free if name not in by_name and _is_text(cells[name])]
    for name in by_name + texts:
        if (found := read(name))[2]:
            clock = _clock_beside(name, free, cells, time_format)
            return found if clock is None else read(name, clock)
    parts = [next((n for n in free if re.fullmatch(p, _plain(n))), None) for p in _PARTS]
    given = list(itertools.takewhile(lambda part: part is not None, parts))
    if len(given) > 2:
        time_format = time_format or "%Y %m %d %H %M"[: 3 * len(given) - 1]
        found = read(*map(str, given))
        known = _moments(found[1], Written("iso8601", time_format))
        if known.count(None) < 0.1 * len(known):
            return found
    for name in free if not named else ():
        found = read(name)
        if found[2] and _is_clock(_moments(found[1], found[2])):
            return found
    return (), [], None


def _time_doubts(
    cells: dict[str, list[str]], times: tuple[str, ...], written: Written | None, *, asked: bool
) -> list[str]:
    doubts = []
    if len(times) > 1 and not asked:
        doubts.append(
            f"the time is made of {' and '.join(map(printable, times))}; --time says otherwise"
        )
    if written is not None and written.other is not None:
        doubts.append(
            f"the time is read as {written.format}; if it is {written.other}, give "
            f"--time-format '{written.other}'"
        )
    if written == Written("s"):
        first = next(iter(cells[times[0]]), "")
        if _DAYS[0] < (_number(first) or 0.0) < _DAYS[1]:
            doubts.append(
                f"the time is read as seconds since 1970; if {first} is a day as spreadsheets "
                "count them, format the column as a date and save it again"
            )
    for name in () if times else [name for name in cells if _TIME.match(_plain(name))]:
        doubts.append(
            f"{name} is called a time and holds none that can be read, such as "
            f"{printable(next(iter(cells[name]), ''))}: give --time {printable(name)} and "
            "--time-format, in the signs of strptime"
        )
    return doubts


def _clock_beside(
    day: str, free: Sequence[str], cells: dict[str, list[str]], time_format: str | None
) -> str | None:
    """Return the column with the time of day, where another has days that come back."""
    days = [joined([cell]) or "" for cell in cells[day]]
    if sum(":" in cell for cell in days) or len(set(days)) == len(days):
        return None
    for name in free:
        clocks = sum(_CLOCK.fullmatch(cell) is not None for cell in cells[name])
        if name != day and (clocks > 0.9 * len(days) or _CLOCK_NAME.match(_plain(name))):
            texts = [joined(pair) or "" for pair in zip(days, cells[name], strict=True)]
            written = Written("iso8601", time_format) if time_format else find_times(texts)
            if written is not None and written.unit == "iso8601":
                known = _moments(texts, written)
                if known.count(None) < 0.1 * len(known):
                    return name
    return None


def _is_text(cells: Sequence[str]) -> bool:
    given = [cell for cell in cells[:200] if cell.lower() not in _MISSING]
    return bool(given) and sum(_number(cell) is None for cell in given) > 0.95 * len(given)


def _is_clock(moments: Sequence[int | None]) -> bool:
    """Whether these are times of our days, and go forward."""
    known = [moment for moment in moments if moment is not None]
    forward = sum(b >= a for a, b in itertools.pairwise(known))
    plausible = all(631_152_000_000 < moment < 4_102_444_800_000 for moment in known)
    return len(known) > 1 and plausible and forward > 0.9 * (len(known) - 1)


def _moments(cells: Sequence[str], written: Written) -> list[int | None]:
    found: list[int | None] = []
    for cell in cells:
        try:
            found.append(to_epoch_ms(cell, written.unit, format=written.format))
        except Unreadable:
            found.append(None)
    return found


def _who(  # noqa: PLR0917
    header: Sequence[str],
    cells: dict[str, list[str]],
    moments: Sequence[int | None],
    taken: Sequence[str | None],
    sensor: str | None,
    tag: str | None,
    numeric: Sequence[str],
    read: Callable[[str], float | None],
) -> tuple[str | None, str | None, list[str]]:
    """Find the column that says whose row it is, and the one that says which quantity."""
    asked = sensor is not None
    if sensor == _ONE:
        return None, None, []
    free = [
        name for name in header if name not in (*taken, sensor) and _is_sensor(cells[name], read)
    ]
    texts = [name for name in free if _is_text(cells[name]) and len(set(cells[name])) > 1]
    long = len([name for name in numeric if name not in free or name in texts]) == 1
    if tag is None and long:
        tag = next((name for name in texts if _TAG.match(_plain(name))), None)
    if sensor is None:
        names = [name for name in free if name != tag]
        sensor = next((name for name in names if _SENSOR.match(_plain(name))), None)
    crowded = _rows_a_time(moments, [])
    if sensor is None and crowded >= _LOCKSTEP:  # several rows of each time: whose are they?
        sensor = next(
            (name for name in free if name != tag and _rows_a_time(moments, [cells[name]]) < 1.01),
            None,
        )
    if sensor is None and tag is not None:
        sensor, tag = tag, None
    if sensor is not None and tag is None and long and not asked:
        left = _rows_a_time(moments, [cells[sensor]])
        others = [name for name in texts if name != sensor]
        if left >= _LOCKSTEP:
            tag = next(
                (
                    name
                    for name in others
                    if _rows_a_time(moments, [cells[sensor], cells[name]]) < 1.01
                ),
                None,
            )
    open_ones = [name for name in texts if name not in (sensor, tag)]
    if sensor is None and open_ones:
        pairs = list(itertools.pairwise(moment for moment in moments if moment is not None))
        mixed = sum(b <= a for a, b in pairs) > _MERGED * len(pairs) if pairs else False
        if mixed:
            raise ConfigError(
                "the time stands still or goes back, as if several series were mixed, and no "
                f"column is called a sensor: give --sensor, one of {', '.join(open_ones)}; or "
                "--sensor - if all rows are of one."
            )
    doubts = [
        f"{name} holds {len(set(cells[name])):,} texts that come back and is left out; if they "
        f"name who measured, give --sensor {printable(name)}"
        for name in open_ones
    ]
    return sensor, tag, doubts


def _rows_a_time(moments: Sequence[int | None], columns: Sequence[Sequence[str]]) -> float:
    """Return how many rows have the same time and the same texts, on average."""
    if not moments:
        return 1.0
    return len(moments) / len(set(zip(moments, *columns, strict=True)))


def _plain(name: str) -> str:
    return re.sub(r"[\s_/.-]+", "_", name.strip()).strip("_").lower()


def _first(
    header: Sequence[str],
    pattern: re.Pattern[str],
    holds: Callable[[str], bool],
    *taken: str | None,
) -> str | None:
    return next(
        (
            name
            for name in header
            if name not in taken and pattern.match(_plain(name)) and holds(name)
        ),
        None,
    )


def _is_label(cells: Sequence[str], read: Callable[[str], float | None]) -> bool:
    values = {read(cell) for cell in cells if cell.lower() not in _MISSING}
    words = {cell.lower() for cell in cells}
    return values <= {-1.0, 0.0, 1.0} or words <= {"true", "false", "normal", "anomaly", ""}


def _is_sensor(cells: Sequence[str], read: Callable[[str], float | None]) -> bool:
    """Whether values come back: names do, and so do whole numbers that count units."""
    distinct = set(cells)
    if len(distinct) > max(1, len(cells) / 2):
        return False
    if not distinct - _MISSING:
        return False
    numbers = [read(cell) for cell in distinct]
    return all(value is None or math.isnan(value) or value.is_integer() for value in numbers)


def _why_not(name: str, cells: Sequence[str], read: Callable[[str], float | None]) -> str | None:
    if _ASIDE.match(name):
        return "not a measurement, by its name"
    given = [cell for cell in cells if cell.lower() not in _MISSING]
    numbers = [value for cell in given if (value := read(cell)) is not None]
    if not given:
        return "empty"
    if len(numbers) < 0.95 * len(given):
        odd = next(cell for cell in given if read(cell) is None)
        return f"not numbers, such as {printable(odd, 30)}"
    if len(set(numbers)) == 1:
        return "never changes"
    steps = {round(b - a, 9) for a, b in itertools.pairwise(numbers)}
    if steps == {1.0} and numbers[0] in (0.0, 1.0) and len(numbers) > 10:
        return "counts the rows"
    return None


def _flags(
    names: Sequence[str], cells: dict[str, list[str]], read: Callable[[str], float | None]
) -> tuple[str, ...]:
    """Return the channels of at most two values; none where none would be left to measure."""
    found = []
    for name in names:
        numbers = [x for cell in cells[name] if (x := read(cell)) is not None and x == x]  # noqa: PLR0124 - nan
        if len(numbers) >= _ENOUGH_FOR_FLAG and len(set(numbers)) <= 2:
            found.append(name)
    return tuple(found) if len(found) < len(names) else ()


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None
