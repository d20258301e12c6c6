"""What the columns of an unknown table mean, guessed from their names and values.

Used for a quick look only, and every guess is said aloud; a pipeline's config names its columns.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rejex_stream.errors import ConfigError
from rejex_stream.mapping import TimeUnit, Unreadable, printable, to_epoch_ms

__all__ = ["TableGuess", "guess_table", "split_rows"]

_TIME = re.compile(
    r"^(time|timestamp|datetime|date|ts|t|when|event_?time.*|.*_(time|at|ts))$", re.I
)
_SENSOR = re.compile(
    r"^(sensor|device|machine|unit|asset|meter|station|pump|turbine|node|source|tag|id|name|key"
    r"|.*_(id|name))$",
    re.I,
)
_LABEL = re.compile(
    r"^(label|labels|anomaly|is_?anomaly|outlier|attack|class|target|fault|y|ground_?truth"
    r"|event)$",
    re.I,
)
_ASIDE = re.compile(r"^(index|row|split|fold|changepoint|change_?point|rul|unnamed.*|)$", re.I)
_MISSING = frozenset(("", "nan", "na", "n/a", "null", "none"))

Role = Literal["time", "sensor", "label", "channel", "aside"]


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What each column is taken for.

    Attributes
    ----------
    time, time_unit
        The event time; without one, rows are taken as one second apart.
    sensor
        The sensor's name; without one, the table is one sensor.
    label
        A known truth, 1 for an anomaly: never shown to the detector.
    channels
        What is measured.
    aside
        Columns left out, each with the reason.
    """

    time: str | None
    time_unit: TimeUnit
    sensor: str | None
    label: str | None
    channels: tuple[str, ...]
    aside: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        when = f"{self.time} ({self.time_unit})" if self.time else "none: rows 1 s apart"
        said = [
            f"time: {when}",
            f"sensor: {self.sensor or 'none: one sensor'}",
            f"channels: {', '.join(self.channels)}",
        ]
        if self.label is not None:
            said.append(f"label: {self.label}")
        said += [f"left out: {name} ({why})" for name, why in self.aside.items()]
        return "\n".join(said)


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
    for delimiter in (",", ";", "\t", "|"):
        try:
            rows = list(csv.reader(lines, delimiter=delimiter))
        except csv.Error:
            continue
        width = len(rows[0])
        even = sum(len(row) == width for row in rows)
        if width > 1 and even > 0.9 * len(rows) and width > best[0]:
            best = (width, delimiter, rows)
    if best[0] == 0:  # one column
        return ",", [[line] for line in lines]
    return best[1], best[2]


def guess_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    time: str | None = None,
    sensor: str | None = None,
    label: str | None = None,
    channels: Sequence[str] = (),
) -> TableGuess:
    """Say what each column is, from its name and a sample of its values.

    Parameters
    ----------
    header, rows
        Column names, and the cells of some rows.
    time, sensor, label, channels
        What is known already; the rest is guessed.

    Raises
    ------
    ConfigError
        If a named column is not there, or no column holds numbers.

    Examples
    --------
    >>> guess = guess_table(["id", "t", "flow", "label"], [["a", "0", "1.5", "0"],
    ...                     ["b", "0", "1.7", "0"], ["a", "1", "1.6", "1"], ["b", "1", "", "0"]])
    >>> guess.time, guess.time_unit, guess.sensor, guess.channels, guess.label
    ('t', 's', 'id', ('flow',), 'label')
    """
    for name in (time, sensor, label, *channels):
        if name is not None and name not in header:
            raise ConfigError(
                f"there is no column {printable(name)}: the columns are {', '.join(header)}."
            )
    cells = {
        name: [row[i].strip() for row in rows if len(row) == len(header)]
        for i, name in enumerate(header)
    }
    unit: TimeUnit | None = None
    if time is not None:
        unit = _time_unit(cells[time])
        if unit is None:
            raise ConfigError(f"column {printable(time)} holds no time that can be read.")
    else:
        for name in header:
            if name not in channels and _TIME.match(name) and (unit := _time_unit(cells[name])):
                time = name
                break
    label = label or _first(header, _LABEL, lambda name: _is_label(cells[name]), time, *channels)
    sensor = sensor or _first(
        header, _SENSOR, lambda name: _is_sensor(cells[name]), time, label, *channels
    )
    found: list[str] = []
    aside: dict[str, str] = {}
    for name in header:
        if name in (time, sensor, label):
            continue
        why = _why_not(name, cells[name])
        if name in channels or (not channels and why is None):
            found.append(name)
        elif not channels:
            aside[name] = why or ""
    if not found:
        raise ConfigError(
            "no column holds numbers that change: name the channels, or check the delimiter."
        )
    return TableGuess(time, unit or "ms", sensor, label, tuple(found), aside)


def _first(
    header: Sequence[str],
    pattern: re.Pattern[str],
    holds: Callable[[str], bool],
    *taken: str | None,
) -> str | None:
    return next(
        (name for name in header if name not in taken and pattern.match(name) and holds(name)), None
    )


def _time_unit(cells: Sequence[str]) -> TimeUnit | None:
    """Return the unit in which almost all cells are times that make sense."""
    given = [cell for cell in cells if cell.lower() not in _MISSING]
    if not given:
        return None
    numbers = [value for cell in given if (value := _number(cell)) is not None]
    if len(numbers) == len(given):
        largest = max(abs(value) for value in numbers)
        units: tuple[tuple[float, TimeUnit], ...] = ((1e11, "s"), (1e14, "ms"), (1e17, "us"))
        return next((unit for limit, unit in units if largest < limit), "ns")
    readable = 0
    for cell in given:
        try:
            to_epoch_ms(cell, "iso8601")
        except Unreadable:
            continue
        readable += 1
    return "iso8601" if readable > 0.95 * len(given) else None


def _is_label(cells: Sequence[str]) -> bool:
    values = {_number(cell) for cell in cells if cell.lower() not in _MISSING}
    words = {cell.lower() for cell in cells}
    return values <= {-1.0, 0.0, 1.0} or words <= {"true", "false", "normal", "anomaly", ""}


def _is_sensor(cells: Sequence[str]) -> bool:
    """Whether values come back: names do, and so do whole numbers that count units."""
    distinct = set(cells)
    if len(distinct) > max(1, len(cells) / 2):
        return False
    numbers = [_number(cell) for cell in distinct]
    return all(value is None or value.is_integer() for value in numbers)


def _why_not(name: str, cells: Sequence[str]) -> str | None:
    if _ASIDE.match(name):
        return "not a measurement, by its name"
    given = [cell for cell in cells if cell.lower() not in _MISSING]
    numbers = [value for cell in given if (value := _number(cell)) is not None]
    if not given:
        return "empty"
    if len(numbers) < 0.95 * len(given):
        return "not numbers"
    if len(set(numbers)) == 1:
        return "never changes"
    steps = {round(b - a, 9) for a, b in itertools.pairwise(numbers)}
    if steps == {1.0} and numbers[0] in (0.0, 1.0) and len(numbers) > 10:
        return "counts the rows"
    return None


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None
