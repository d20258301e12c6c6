"""Which column says whose row it is, and which one which quantity a row holds."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rejex_stream.decode.mapping import printable
from rejex_stream.decode.numbers import MISSING_TEXTS
from rejex_stream.errors import ConfigError
from rejex_stream.tables.suspicions import is_key
from rejex_stream.tables.time_columns import NONE, is_text, plain

__all__ = ["Keys", "find_keys"]

_STRONG = (
    r"sensor|device|machine|unit|asset|meter|station|site|pump|motor|engine|turbine|node|plant"
    r"|messstelle|messpunkt|pumpe|anlage|gerät|geraet|maschine|zähler|zaehler|standort|fühler"
    r"|capteur|pompe|equipo|instrument|logger|gateway|inverter|well"
)
_WEAK = r"valve|source|tank|line|road|location|id|name|key|ort|tag|host|serial"
_ENDING = r"(_?(id|name|key|nr|no|number|code|serial))?"
_SENSOR = re.compile(rf"^(({_STRONG}|{_WEAK}){_ENDING}|.*_(id|name|nr))$")
_MEANT = re.compile(rf"^({_STRONG}){_ENDING}$")
_TAG = re.compile(
    r"^((tag|parameter|variable|metric|signal|quantity|channel|kanal|measurement|property|field"
    r"|messgröße|messgroesse|größe|groesse|merkmal)(_?(id|name|nr|no|code))?)$"
)
_LOCKSTEP = 1.5
"""So many rows a time, or more, are several series side by side."""
_MERGED = 0.1
"""A time that stands still or goes back in so many rows is of several series."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns that say whose rows are; ``None``: all are of one sensor, hold all quantities."""

    sensor: str | None = None
    tag: str | None = None
    said: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def find_keys(  # noqa: PLR0917 - what is known comes last
    cells: Mapping[str, Sequence[str]],
    numeric: Sequence[str],
    moments_ms: Sequence[int | None],
    read: Callable[[str], float | None],
    sensor: str | None = None,
    tag: str | None = None,
) -> Keys:
    """Find the columns whose values name a series, come back and are not measured. O(cells).

    The sensor ``-`` is none. Several series mixed, and nothing that tells which row is whose, is a
    :class:`ConfigError`.
    """
    if sensor == NONE:
        return Keys(tag=tag)
    search = _Search(cells, numeric, moments_ms, read)
    asked = sensor is not None
    tag = tag or search.tag_by_name(sensor)
    if sensor is None:
        sensor = search.sensor(tag)
    if sensor is None and tag is not None:
        sensor, tag = tag, None
    if sensor is not None and tag is None and not asked:
        tag = search.tag_beside(sensor)
    open_ones = [name for name in search.texts if name not in (sensor, tag)]
    if sensor is None and open_ones:
        search.require_one_series(open_ones)
    doubts = [
        f"{name} holds {len(set(cells[name])):,} texts that come back and is left out; if they "
        f"name who measured, give --sensor {printable(name)}"
        for name in open_ones
    ]
    said = search.refused(sensor, tag)
    if sensor is not None and not asked:
        names = sorted(set(cells[sensor]))
        shown = ", ".join(map(printable, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
        said = [
            f"sensor: {sensor}, {len(names):,} named {shown}; --sensor names another column, - "
            "none",
            *said,
        ]
    return Keys(sensor, tag, tuple(said), tuple(doubts))


class _Search:
    """The candidates of one table."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[str]],
        numeric: Sequence[str],
        moments_ms: Sequence[int | None],
        read: Callable[[str], float | None],
    ) -> None:
        self._cells, self._moments = cells, moments_ms
        self._free = [name for name in cells if _comes_back(cells[name], read)]
        self.texts = [
            n for n in self._free
            if n not in numeric and is_text(cells[n]) and len(set(cells[n])) > 1
        ]  # fmt: skip
        self._long = len([n for n in numeric if n not in self._free]) == 1

    def tag_by_name(self, sensor: str | None) -> str | None:
        """Return the text that is called a quantity, where a row holds one value."""
        if not self._long:
            return None
        return next((n for n in self.texts if n != sensor and _TAG.match(plain(n))), None)

    def sensor(self, tag: str | None) -> str | None:
        """Return the best of those called a sensor, else what tells rows of a time apart."""
        called = [n for n in self._called() if n != tag]
        keys = [n for n in called if self._is_key(n, tag)]
        alone = [self._rows_a_time(n, *([tag] if tag else [])) for n in keys]
        if keys:
            return keys[min(range(len(keys)), key=lambda i: (alone[i] > 1.01, i))]
        if self._rows_a_time() >= _LOCKSTEP:
            beside = (n for n in self._free if n != tag and self._rows_a_time(n) < 1.01)
            found = next((n for n in beside if self._is_key(n, tag, strong=False)), None)
            if found is not None:
                return found
        constant = (n for n in called if _MEANT.match(plain(n)) and len(set(self._cells[n])) == 1)
        return next(constant, None)

    def tag_beside(self, sensor: str) -> str | None:
        """Return what tells the rows of a sensor and a time apart, where a row holds one value."""
        if not self._long or self._rows_a_time(sensor) < _LOCKSTEP:
            return None
        others = (n for n in self.texts if n != sensor)
        return next((n for n in others if self._rows_a_time(sensor, n) < 1.01), None)

    def refused(self, sensor: str | None, tag: str | None) -> list[str]:
        """Say which columns are called a sensor, and taken for a measurement."""
        return [
            f"{name}: called as a sensor may be, and its values are no names; --sensor {name} says "
            "otherwise"
            for name in self._called()
            if name not in (sensor, tag, *self.texts)
            and len(set(self._cells[name])) > 1
            and not self._is_key(name, tag)
        ]

    def require_one_series(self, open_ones: Sequence[str]) -> None:
        """Refuse a table whose time goes back as if series were mixed."""
        pairs = list(itertools.pairwise(m for m in self._moments if m is not None))
        if pairs and sum(b <= a for a, b in pairs) > _MERGED * len(pairs):
            raise ConfigError(
                "the time stands still or goes back, as if several series were mixed, and no "
                f"column is called a sensor: give --sensor, one of {', '.join(open_ones)}; or "
                "--sensor - if all rows are of one."
            )

    def _called(self) -> list[str]:
        return [name for name in self._free if _SENSOR.match(plain(name))]

    def _is_key(self, name: str, tag: str | None, *, strong: bool | None = None) -> bool:
        strong = bool(_MEANT.match(plain(name))) if strong is None else strong
        cells, moments = self._cells[name], self._moments
        if tag is not None and tag != name:  # one quantity of each time
            first = self._cells[tag][0]
            rows = [i for i, cell in enumerate(self._cells[tag]) if cell == first]
            cells = [cells[i] for i in rows]
            moments = [moments[i] for i in rows] if moments else ()
        return is_key(cells, moments, strong=strong)

    def _rows_a_time(self, *names: str) -> float:
        """Return how many rows have the same time and the same texts, on average."""
        if not self._moments:
            return 1.0
        columns = [self._cells[name] for name in names]
        return len(self._moments) / len(set(zip(self._moments, *columns, strict=True)))


def _comes_back(cells: Sequence[str], read: Callable[[str], float | None]) -> bool:
    """Whether values come back: names do, and so do whole numbers that count units."""
    distinct = set(cells)
    if len(distinct) > max(1, len(cells) / 2) or not distinct - MISSING_TEXTS:
        return False
    numbers = [read(cell) for cell in distinct]
    return all(value is None or math.isnan(value) or value.is_integer() for value in numbers)
