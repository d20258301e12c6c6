"""Whose a reading is, and of what: one test for the columns of tables and the fields of JSON.

Among all columns whose values come back, the sensor is the one under which rows of one time are
whole, and the tag names the quantity where such rows are several still. A name decides between
those that do it alike: keys and headers of records are among them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rejex_stream.decode.mapping import printable
from rejex_stream.decode.written import MISSING_TEXTS
from rejex_stream.errors import ConfigError
from rejex_stream.tables.column_checks import is_key
from rejex_stream.tables.columns import is_text
from rejex_stream.tables.names import (
    ELAPSED,
    MODE,
    SENSOR,
    STRONG_SENSOR,
    TAG,
    TEXT_SENSOR,
    is_unit,
    last_of,
    plain,
)

KEY = "key"
"""The key of a record, where it stands among the columns."""
MOST_JOINED = 64
_LOCKSTEP = 1.5
"""So many rows a time, or more, are several series side by side."""
_MERGED = 0.1
"""A time that stands still or goes back in so many rows is of several series."""


class Keys(NamedTuple):
    """The columns that say whose rows are; ``None``: all are of one sensor, hold all quantities."""

    sensor: str | None = None
    tag: str | None = None
    said: Sequence[str] = ()
    doubts: Sequence[str] = ()
    sensors: tuple[str, ...] = ()  # where one alone leaves several rows a time


@dataclass(frozen=True, slots=True)
class Beside:
    """What JSON knows of its columns beside their cells."""

    # Columns that may only name, of the record's key and headers, say; and whether of its key.
    names: Mapping[str, bool] = field(default_factory=dict)
    what: str | None = None  # the part of the key that names the quantity
    paths: Mapping[str, str] = field(default_factory=dict)


class KeySearch:
    """Finds the columns whose values name a series, come back and are not measured. O(cells)."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[str]],
        numeric: Sequence[str],
        moments_ms: Sequence[int | None],
        read: Callable[[str], float | None],
        beside: Beside,
    ) -> None:
        self._cells, self._moments, self._beside = cells, moments_ms, beside
        self._free = [n for n in cells
                      if _comes_back(cells[n], read) and not is_unit(n, cells[n])
                      and not ELAPSED.match(plain(n))]  # fmt: skip
        self.texts = [
            n for n in self._free
            if n not in numeric and is_text(cells[n]) and len(set(cells[n])) > 1
        ]  # fmt: skip
        self._numeric, self._n = numeric, len(next(iter(cells.values()), ()))
        self._long = len([n for n in numeric if n not in self._free]) == 1
        measured = [n for n in numeric if n in cells and n not in self._free]
        columns = zip(*(cells[n] for n in measured), strict=True)
        # Rows of one time may hold other quantities each, and be of one sensor.
        self._there = [tuple(map(bool, row)) for row in columns] or [()] * len(moments_ms)

    def found(self, sensor: str | None, tag: str | None) -> Keys:
        """Return the keys; raises ConfigError where series are mixed and no column names them."""
        asked, given = sensor is not None, tag
        if sensor is None:
            sensor = self.sensor(tag or self.tag(None))
        tag = given or self.tag(sensor)
        if sensor is None and tag is not None:
            sensor, tag = tag, self.tag(tag)
        called = [n is not None and self._is_tag(n, vague=False) for n in (sensor, tag)]
        if tag and not asked and given in (None, sensor) and called == [True, False]:
            sensor, tag = tag, sensor
        open_ones = [n for n in self.texts if n not in (sensor, tag, *self._beside.names)]
        pairs = list(itertools.pairwise(m for m in self._moments if m is not None))
        if sensor is None and open_ones and sum(b <= a for a, b in pairs) > _MERGED * len(pairs):
            raise ConfigError(
                "the time stands still or goes back, as if several series were mixed, and no "
                f"column is called a sensor: give --sensor, one of {', '.join(open_ones)}; or "
                "--sensor - if all rows are of one."
            )
        doubts = [
            f"{name} holds {len(set(self._cells[name])):,} texts that come back and is left out; "
            + (
                f"if they name who measured, give --sensor {printable(name)}"
                if self._may_name(name, tag) and not MODE.search(plain(name))
                else f"if they name an operating mode, --mode {printable(name)} judges each alone"
            )
            for name in open_ones
        ]
        said = self._refused(sensor, tag)
        if sensor is not None and not asked:
            chosen = f"sensor: {sensor}, {named(self._cells[sensor])}"
            said = [f"{chosen}; --sensor names another column, - none", *said]
        return Keys(sensor, tag, said, doubts, () if asked or tag else self._sensors(sensor))

    def sensor(self, tag: str | None) -> str | None:
        """Return the column called as a sensor under which rows of one time are whole, if any.

        Else it is one that separates them, whatever it is called, or the one name that never
        changes.
        """
        called = [n for n in self._called() if n not in (tag, self._beside.what)]
        strong = [n for n in called if self._strength(n) > 1 or n in self._beside.names]
        weak = [n for n in called if n not in strong and 3 * len(set(self._cells[n])) <= self._n]
        if any(map(self._varies, strong)):
            weak = [n for n in weak if not self._is_tag(n)]
        keys = [
            n for n in called if n in (*strong, *weak) and (
                self._is_key(n, tag)
                or (tag is None and any(self._names_quantity(n, m) for m in self._free if m != n))
            )
        ]  # fmt: skip
        if self._long:  # what may be the quantity's name is it, beside another
            keys = [n for n in keys if n in strong or not self._is_tag(n)] or keys
        if keys:
            by = [tag] if tag else []
            return min(keys, key=lambda n: (
                round(1 - 1 / self._rows_a_time(n, *by, apart=True), 1), -self._strength(n),
                n == KEY,
            ))  # fmt: skip
        if self._rows_a_time() >= _LOCKSTEP:
            beside = (n for n in self._free if n != tag and self._rows_a_time(n) < 1.01)
            key = next((n for n in beside if self._is_key(n, tag, strong=False)), None)
            if key is not None:
                return key
        return next((n for n in called if self._strength(n) > 1 and not self._varies(n)), None)

    def tag(self, sensor: str | None) -> str | None:
        """Return the column that names the quantity of a value: by its name, or by rows of a time.

        What never varies under a sensor is another name of it.
        """
        texts = [n for n in self.texts if self._long and n != sensor
                 and n not in self._beside.names and self._varies(n, sensor)]  # fmt: skip
        by_name = sorted(texts, key=lambda n: not last_of(self._path(n)).endswith("name"))
        by_name = [n for n in by_name if self._is_tag(n, vague=sensor is not None)]
        if by_name or (self._long and self._beside.what):
            return (*by_name, self._beside.what)[0]
        if sensor is None or not self._moments or self._rows_a_time(sensor) < _LOCKSTEP:
            return None
        texts = [n for n in texts if self._is_tag(n) or not self._is_place(n)]
        if len([n for n in self._numeric if n != sensor]) == 2:  # a register and its value
            called = {sensor, *self._called()}
            texts += [n for n in self._numeric if n in self._free and n not in called]
        return next((n for n in texts if self._names_quantity(sensor, n)), None)

    def _names_quantity(self, sensor: str, name: str) -> bool:
        """Whether rows of one time and machine differ in a column, and are whole by it."""
        things, apart = len(set(self._cells[name])), self._rows_a_time(sensor, name)
        whole = self._rows_a_time(sensor) >= 0.75 * things
        return 2 <= things <= MOST_JOINED and apart < 1.02 and whole

    def _sensors(self, sensor: str | None) -> tuple[str, ...]:
        """Return two columns that together separate rows of equal time."""
        if sensor is None or self._rows_a_time(sensor) < _LOCKSTEP:
            return ()
        others = (n for n in self._called() + self.texts if n != sensor)
        second = next((n for n in others if self._rows_a_time(sensor, n) < 1.01), None)
        return () if second is None else (sensor, second)

    def _refused(self, sensor: str | None, tag: str | None) -> list[str]:
        return [
            f"{name}: called as a sensor may be, and its values are no names; --sensor {name} says "
            "otherwise"
            for name in self._called()
            if name not in (sensor, tag, *self.texts, *self._beside.names)
            and self._varies(name)
            and not self._is_key(name, tag)
        ]

    def _path(self, name: str) -> str:
        return self._beside.paths.get(name, name)

    def _called(self) -> list[str]:
        return [n for n in self._free if self._strength(n) or self._beside.names.get(n)]

    def _strength(self, name: str) -> int:
        """Return 2 for what is called as nothing but a sensor is, 1 for what may be."""
        path = re.split(r":|^header:ce_", self._path(name))[-1]
        last, of = last_of(path), plain(".".join(path.split(".")[-2:]))  # device.name is strong
        if name.startswith(f"{KEY}:") or STRONG_SENSOR.match(last) or STRONG_SENSOR.match(of):
            return 2
        about = any(last.startswith(f"{plain(other)}_") for other in self._numeric)
        is_text = name in self.texts and TEXT_SENSOR.search(last) is not None and not about
        return int(is_text or (SENSOR.match(last) is not None and not about))

    def _is_tag(self, name: str, *, vague: bool = True) -> bool:
        last = last_of(self._path(name))
        return bool(TAG.match(last)) or (vague and last in ("n", "name", "key"))

    def _is_place(self, name: str) -> bool:
        """Whether a column is called as part of whose a value is, such as the line of a station."""
        last = last_of(self._path(name))
        return SENSOR.match(last) is not None and not last.endswith(("id", "name"))

    def _varies(self, name: str, under: str | None = None) -> bool:
        cells = self._cells[name]
        if under is None:
            return len(set(cells)) > 1
        return len(set(zip(self._cells[under], cells, strict=True))) > len(set(self._cells[under]))

    def _is_key(self, name: str, tag: str | None, *, strong: bool | None = None) -> bool:
        if strong is None:
            strong = self._strength(name) > 1 or bool(self._beside.names.get(name))
        cells, moments = self._cells[name], self._moments
        if tag is not None and tag != name:  # one quantity of each time
            first = self._cells[tag][0]
            rows = [i for i, cell in enumerate(self._cells[tag]) if cell == first]
            cells = [cells[i] for i in rows]
            moments = [moments[i] for i in rows] if moments else ()
        return is_key(cells, moments, strong=strong)

    def _may_name(self, name: str, tag: str | None) -> bool:
        """Whether a text may name a sensor: as a key does, or as each has one block of rows."""
        blocks = len(list(itertools.groupby(self._cells[name])))
        return blocks == len(set(self._cells[name])) or self._is_key(name, tag, strong=False)

    def _rows_a_time(self, *names: str, apart: bool = False) -> float:
        if not self._moments:
            return 1.0
        columns = [*(self._cells[name] for name in names), *([self._there] if apart else [])]
        return len(self._moments) / len(set(zip(self._moments, *columns, strict=True)))


def _comes_back(cells: Sequence[str], read: Callable[[str], float | None]) -> bool:
    """Whether values come back: names do, and so do whole numbers that count units."""
    distinct = set(cells)
    if len(distinct) > max(1, len(cells) / 2) or not distinct - MISSING_TEXTS:
        return False
    numbers = [read(cell) for cell in distinct]
    return all(value is None or math.isnan(value) or value.is_integer() for value in numbers)


def named(cells: Sequence[str]) -> str:
    """Say how many names a column holds, and the first of them."""
    names = sorted(set(cells))
    shown = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
    return f"{len(names):,} named {shown}"
