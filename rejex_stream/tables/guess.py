"""What the columns of an unknown table mean, guessed from their names and values.

Used for a quick look and for a first config, and every guess is said aloud. Which columns make the
time is found in :mod:`.time_columns`, and what is left has to survive the :mod:`.suspicions`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rejex_stream.decode.mapping import Quality, TimeUnit, printable
from rejex_stream.decode.written import MISSING_TEXTS, number_reader
from rejex_stream.errors import ConfigError
from rejex_stream.tables.dialect import Marks, find_missing, find_units
from rejex_stream.tables.names import (
    ASIDE,
    LABEL,
    MAYBE_LABEL,
    SENSOR,
    STRONG_SENSOR,
    TAG,
    good_among,
    is_quality,
    plain,
)
from rejex_stream.tables.suspicions import (
    Sample,
    Suspicion,
    carry_needed,
    is_key,
    is_sentinel,
    suspect,
)
from rejex_stream.tables.time_columns import NONE, find_time_columns, is_text

_PLAIN = Marks(".", None)
__all__ = ["Asked", "TableGuess", "guess_table"]

_ENOUGH_FOR_FLAG = 20  # values; of few, two are soon all
_ENOUGH_FOR_SERIES = 5  # values of one sensor that are the same
_SHOWN = 10
_LOCKSTEP = 1.5
"""So many rows a time, or more, are several series side by side."""
_MERGED = 0.1
"""A time that stands still or goes back in so many rows is of several series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody knows about a table and how it is written; what is empty is guessed.

    The sensor ``-`` and the time ``-`` say that there is none, the flag ``-`` likewise. A flag is a
    channel.
    """

    time: Sequence[str] = ()
    time_unit: TimeUnit | None = None
    time_format: str | None = None
    sensor: str | None = None
    sensors: Sequence[str] = ()  # where several columns make the name
    label: str | None = None
    tag: str | None = None
    mode: str | None = None
    channels: Sequence[str] = ()
    flags: Sequence[str] | None = None
    missing: Sequence[str] | None = None
    carry: int | None = None
    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    header: bool | None = None
    skip_rows: int | None = None
    sheet: str | None = None
    time_zone: str | None = None


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What each column is taken for.

    Without a time rows are one second apart, without a sensor all are of one. The label is a known
    truth, never shown to the detector; flags are read and kept out of the distance; a tag names
    the quantity where a row holds one value.
    """

    time: str | tuple[str, ...] | None
    time_unit: TimeUnit
    sensor: str | None
    label: str | None
    channels: tuple[str, ...]
    aside: dict[str, str] = field(default_factory=dict)  # what is left out, and why
    time_format: str | None = None
    tag: str | None = None
    marks: Marks = _PLAIN
    doubts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    mode: str | None = None
    n_modes: int | None = None
    missing: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    carry: int = 0  # rows for which the last value stands in for a missing one
    totals: tuple[str, ...] = ()  # channels that only add up: their differences are measured
    said: tuple[str, ...] = ()
    quality: Quality | None = None
    sensors: tuple[str, ...] = ()  # the columns, where several make the sensor's name

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

    def for_features(self) -> dict[str, Any]:
        """Return what :func:`~rejex_stream.plan.suggest.suggest` wants to know of the channels."""
        return {
            "flags": self.flags,
            "n_modes": self.n_modes,
            "carry": self.carry,
            "totals": self.totals,
        }

    def settings(self, time_zone: str | None) -> dict[str, object]:
        """Return the settings of ``[input]`` that say how columns are read."""
        return {
            "time": list(self.time) if isinstance(self.time, tuple) else self.time,
            "time_unit": None if self.time is None or self.time_format else self.time_unit,
            "time_format": self.time_format,
            "time_zone": time_zone,
            "sensor": list(self.sensors) or self.sensor,
            "tag": self.tag,
            "mode": self.mode,
            "decimal": None if self.marks.decimal == "." else self.marks.decimal,
            "thousands": self.marks.thousands,
            "missing": list(self.missing) or None,
            "units": list(self.units) or None,
            "quality": None
            if self.quality is None
            else {"field": self.quality.field, "good": list(self.quality.good)},
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return what each column is taken for, for people."""
        found = [("time", self.time_said), ("sensor", self.sensor or "none: one sensor")]
        found.append(("channels", ", ".join(self.channels)))
        if self.label is not None:
            found.append(("label", f"{self.label} (kept from the detector)"))
        by_reason: dict[str, list[str]] = {}
        for name, why in self.aside.items():
            by_reason.setdefault(why, []).append(name)
        return found + [("left out", f"{', '.join(n)}: {why}") for why, n in by_reason.items()]


def guess_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    known: Asked | None = None,
    *,
    marks: Marks = _PLAIN,
    named: bool = True,
    timed: bool = False,
    skip: Sequence[str] = (),
) -> TableGuess:
    """Say what each column is, from its name and a sample of its values. O(cells log cells).

    `named`: the names are the table's own; `timed`: rows have a time beside their columns, as
    records of a topic have; `skip`: columns of the file's format.
    """
    known = known or Asked()
    _require_columns(header, known)
    whole = [row for row in rows if len(row) == len(header)]
    cells = {
        name: [row[i].strip() for row in whole] for i, name in enumerate(header) if name not in skip
    }
    if not known.sensors:
        found = _Guesser(cells, known, marks, named=named, timed=timed).result()
        if timed or not found.sensors:
            return replace(found, sensors=())
        known = replace(known, sensor=None, sensors=found.sensors)
    columns = [cells.pop(name) for name in dict.fromkeys(known.sensors)]
    one = "/".join(known.sensors)
    cells[one] = ["/".join(parts) for parts in zip(*columns, strict=True)]
    found = _Guesser(cells, replace(known, sensor=one), marks, named=named, timed=timed).result()
    names = sorted(set(cells[one]))
    shown = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
    said = f"sensor: {' and '.join(known.sensors)} together, {len(names):,} named {shown}"
    return replace(found, sensors=tuple(known.sensors), said=(said, *found.said))


def _require_columns(header: Sequence[str], known: Asked) -> None:
    flags = () if known.flags is None else known.flags
    single = (known.sensor, known.label, known.tag, known.mode)
    for name in (*known.time, *known.sensors, *single, *known.channels, *flags):
        none = name in (None, NONE) and name not in known.sensors
        if not none and name not in header:
            raise ConfigError(
                f"there is no column {printable(name)}: the columns are {', '.join(header)}."
            )


class _Guesser:
    """Goes from the time to the key, the truth, and what is left to measure."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[str]],
        known: Asked,
        marks: Marks,
        *,
        named: bool,
        timed: bool,
    ) -> None:
        self._cells, self._known, self._marks = cells, known, marks
        none = known.flags is not None and list(known.flags) == [NONE]
        self._meant_flags = () if none else tuple(known.flags or ())
        self._wanted = (*known.channels, *self._meant_flags)
        free = {n: c for n, c in cells.items() if n not in self._wanted or n in known.time}
        self._time = find_time_columns(
            free,
            known.time,
            known.time_unit,
            known.time_format,
            named=named,
            needed=not timed,
            decimal=marks.decimal,
        )
        others = {n: c for n, c in cells.items() if n not in self._time.names}
        self._units_of = find_units(others, marks)
        self._units = tuple(dict.fromkeys(u[0] for u in self._units_of.values() if len(u) == 1))
        self._missing = tuple(known.missing or ())
        if known.missing is None:
            self._missing = find_missing(
                {n: [_unit_cut(c, self._units) for c in cs] for n, cs in others.items()}, marks
            )
        self._numbers: dict[str, list[float | None]] = {}
        self.read = number_reader(*marks, self._missing, self._units)
        self._beside: dict[str, str] = {}  # from a column to the one that says what of it is good
        self._codes: set[str] = set()  # columns of quality of which nobody knows what is good
        self._quality: Quality | None = None
        if not timed:  # records of a topic are looked at elsewhere
            self._look_for_quality(list(others))

    def result(self) -> TableGuess:
        """Return what the columns were taken for."""
        known, times = self._known, self._time.names
        label = known.label or self._label()
        taken = {*times, label, known.mode, *self._beside.values()}
        measured = [n for n in self._cells if n not in (*taken, known.sensor, known.tag)]
        numeric = [n for n in measured if self._why_not(n) is None]
        free = {n: c for n, c in self._cells.items() if n not in {*taken, *self._wanted}
                or n in (known.sensor, known.tag)}  # fmt: skip
        keys = _Keys(tag=known.tag)
        if known.sensor != NONE:
            moments = self._time.moments_ms or self._cycles(numeric)
            search = _KeySearch(free, numeric, moments, self.read)
            keys = search.found(known.sensor, known.tag)
        rest = [n for n in measured if n not in (keys.sensor, keys.tag)]
        series = self._series(keys.sensor, keys.tag)
        aside = {
            n: why for n in rest
            if n not in self._wanted and (why := self._why_not(n) or self._why_of_series(n, series))
        }  # fmt: skip
        found = [n for n in rest if n not in aside]
        doubts = self._missing_said() + self._sentinels(found, series)
        sample = self._sample(found, series)
        totals: tuple[str, ...] = ()
        carry, said = known.carry or 0, []
        if known.channels:
            found = [n for n in found if n in self._wanted]
            aside = {}
        else:
            found, totals = self._without_counters(sample, found, aside)
            found = self._without_sparse(sample, found, aside)
        if known.carry is None and found:
            carry = carry_needed(sample, found)
            if carry:
                said.append(
                    f"carry: {', '.join(map(printable, found[:_SHOWN]))} report by turns, so the "
                    f"last value of each stands for up to {carry} rows; --carry ROWS changes it, "
                    "--carry 0 rejects what is not whole"
                )
        if totals:
            said.append(
                f"difference: {', '.join(totals)} only adds up, so what is measured is its change "
                "from row to row"
            )
        if not found:
            raise _nothing(aside)
        doubts = [*self._time.doubts, *doubts, *keys.doubts]
        flags = self._meant_flags if known.flags is not None else self._flags(found)
        written = self._time.written
        return TableGuess(
            time=(times if len(times) > 1 else times[0]) if times else None,
            time_unit=written.unit if written else "ms",
            time_format=written.format if written else None,
            sensor=keys.sensor,
            tag=keys.tag,
            label=label,
            channels=tuple(found),
            aside=aside,
            marks=self._marks,
            said=(
                *keys.said,
                *self._time_said(),
                *self._quality_said(),
                *said,
                *_asides_said(aside),
            ),
            doubts=tuple(doubts),
            flags=tuple(flags),
            quality=self._quality,
            sensors=keys.sensors,
            mode=known.mode,
            n_modes=None if known.mode is None else max(1, len(set(self._cells[known.mode]))),
            missing=self._missing,
            units=self._units,
            carry=carry,
            totals=totals,
        )

    # ------------------------------------------------------------------------------ the columns
    def _values(self, name: str) -> list[float | None]:
        if name not in self._numbers:
            cells: Sequence[object] = self._cells[name]
            if self._quality is not None and name in self._beside:
                said = [cell or None for cell in self._cells[self._beside[name]]]
                cells = self._quality.only_good(cells, said, texts=True)
            self._numbers[name] = [self.read(str(cell or "")) for cell in cells]
        return self._numbers[name]

    def _cycles(self, numeric: Sequence[str]) -> tuple[int | None, ...]:
        """Return numbers that count from their beginning again and again, in place of a time."""
        for name in numeric:
            values = self._values(name)
            if None in values or not all(x is not None and x.is_integer() for x in values):
                continue
            cycles = [int(x or 0) for x in values]
            back = [i for i, (a, b) in enumerate(itertools.pairwise(cycles)) if b != a + 1]
            lengths = {b - a for a, b in itertools.pairwise(back)}
            if len(lengths) > 1 and len(back) < 0.1 * len(cycles):
                return tuple(cycles)
        return ()

    def _look_for_quality(self, names: Sequence[str]) -> None:
        """Find the columns that say of others whether their values are good."""
        known = (self._known.sensor, self._known.label, self._known.tag, self._known.mode)
        free = [n for n in names if n not in (*self._wanted, *known)]
        numeric = [n for n in names if n not in known and self._why_not(n) is None]
        beside = {
            name: flag
            for name in numeric
            for flag in free
            if flag != name and name in flag
            and is_quality(_rest_of(flag, name), self._cells[flag])
        }  # fmt: skip
        alone = [name for name in free if is_quality(name, self._cells[name], alone=True)]
        measured = [name for name in numeric if name not in (*alone, *beside.values())]
        if not beside and measured and len(alone) == 1:
            beside = dict.fromkeys(measured, alone[0])
        flags = dict.fromkeys(beside.values())
        good = {
            flag: good_among([_plain_cell(cell) for cell in self._cells[flag]], flag)
            for flag in flags
        }
        self._codes = {
            flag for name, flag in beside.items()
            if not good[flag] and is_quality(_rest_of(flag, name), self._cells[flag], alone=True)
        }  # fmt: skip
        beside = {name: flag for name, flag in beside.items() if good[flag]}
        if beside:
            every = dict.fromkeys(itertools.chain.from_iterable(good.values()))
            self._beside, self._quality = beside, Quality(beside, list(every))
            self._numbers.clear()

    def _quality_said(self) -> list[str]:
        if self._quality is None:
            return []
        flags = list(dict.fromkeys(self._beside.values()))
        good = ", ".join(map(str, self._quality.good))
        return [
            f"quality: {', '.join(flags[:_SHOWN])} says whether a value is good ({good}); what is "
            f"not is missing; --channel or --flag {printable(flags[0])} takes it for a channel"
        ]

    def _sample(self, names: Sequence[str], series: Sequence[object]) -> Sample:
        return Sample(
            numbers={n: [math.nan if x is None else x for x in self._values(n)] for n in names},
            series=series,
            moments_ms=self._time.moments_ms,
        )

    def _series(self, sensor: str | None, tag: str | None) -> Sequence[object]:
        columns = [self._cells[name] for name in (sensor, tag) if name is not None]
        return list(zip(*columns, strict=True)) if columns else ()

    def _label(self) -> str | None:
        free = [
            name
            for name in self._cells
            if name not in (*self._time.names, *self._wanted)
            and name not in (self._known.sensor, self._known.tag, self._known.mode)
        ]
        for name in free:
            if LABEL.match(plain(name)) and self._says_the_truth(name):
                return name
        for name in free:
            if not MAYBE_LABEL.match(plain(name)) or not self._says_the_truth(name):
                continue
            others = any(n != name and self._why_not(n) is None for n in free)
            if others and len(set(self._cells[name]) - MISSING_TEXTS) > 1:
                return name
        return None

    def _says_the_truth(self, name: str) -> bool:
        words = {cell.lower() for cell in self._cells[name]} - MISSING_TEXTS
        texts = {"true", "false", "normal", "anomaly", "attack", "fault", "abnormal", "yes", "no"}
        read = number_reader(*self._marks)
        return words <= texts or {read(word) for word in words} <= {-1.0, 0.0, 1.0, -999.0}

    def _why_not(self, name: str) -> str | None:
        """Say why a column is no measurement, whatever the other rows are; ``None``: it may be."""
        given = [cell for cell in self._cells[name] if cell.lower() not in MISSING_TEXTS]
        units = self._units_of.get(name, ())
        if ASIDE.match(plain(name)):
            return "not a measurement, by its name"
        if not given:
            return "empty"
        if len(units) > 1:
            return f"in several units, {' and '.join(map(printable, units[:_SHOWN]))}"
        values = self._values(name)
        numbers = [x for x in values if x is not None and not math.isnan(x)]
        if values.count(None) > 0.05 * len(given) or not numbers:
            odd = next((c for c in given if self.read(c) is None), given[0])
            return f"not numbers, such as {printable(odd, 30)}"
        return _why_no_measurement(numbers)

    def _why_of_series(self, name: str, series: Sequence[object]) -> str | None:
        """Say why a column of numbers is no measurement beside the others."""
        if name in self._codes:
            return "a code of quality, and nobody says which is good"
        runs = self._sample([name], series).runs(name)
        constant = all(len(run) >= _ENOUGH_FOR_SERIES and min(run) == max(run) for run in runs)
        if constant and len({run[0] for run in runs}) > 1:
            return "the same at all times of a sensor"
        return None

    # --------------------------------------------------------------------------- the suspicions
    def _sentinels(self, names: Sequence[str], series: Sequence[object]) -> list[str]:
        """Take what surely stands for no value as missing; say that, and what may."""
        if self._known.missing is not None:
            return []
        found = suspect(self._sample(names, series), "sentinel")
        sure = [one for one in found if is_sentinel(float(one.value)) and self._is_none(one, found)]
        values = tuple(dict.fromkeys(one.value for one in sure))
        if values:
            decimal = self._marks.decimal
            self._missing += tuple(value.replace(".", decimal) for value in values)
            self.read = number_reader(*self._marks, self._missing, self._units)
            self._numbers.clear()
        return [
            f"{one.seen}; it is taken for no value, and --missing '' says that it is one"
            if one.value in values
            else str(one)
            for one in found
        ]

    def _is_none(self, one: Suspicion, found: Sequence[Suspicion]) -> bool:
        """Whether no other column measures the same value: what is missing, is so in all."""
        suspected = {other.column for other in found if other.value == one.value}
        x = float(one.value)
        return not any(
            values.count(x) > 0 and min(v for v in values if v is not None and v == v) < x  # noqa: PLR0124 - nan
            and max(v for v in values if v is not None and v == v) > x  # noqa: PLR0124 - nan
            for name, values in self._numbers.items()
            if name not in suspected
        )  # fmt: skip

    def _without_counters(
        self, sample: Sample, found: list[str], aside: dict[str, str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Set aside what only counts; where nothing else is measured, its change is."""
        counting = {one.column: one.seen for one in suspect(sample, "counter")}
        left = [name for name in found if name not in counting]
        totals: tuple[str, ...] = ()
        if not left:
            totals = tuple(n for n in counting if _change_varies(sample.runs(n)))
            left = list(totals or found)
        aside |= {n: _short(why) for n, why in counting.items() if n not in left}
        return left, totals

    def _without_sparse(self, sample: Sample, found: list[str], aside: dict[str, str]) -> list[str]:
        """Set aside channels that are missing in most rows, if others are not."""
        if self._known.carry is not None:
            return found
        sparse = {one.column: one.seen for one in suspect(sample, "sparse") if one.column in found}
        left = [name for name in found if name not in sparse]
        if not left:
            return found
        aside |= {
            name: f"{_short(seen)}; --carry ROWS lets the last one stand"
            for name, seen in sparse.items()
        }
        return left

    def _flags(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the channels of at most two values; none where none would be left to measure."""
        found = []
        for name in names:
            numbers = [x for x in self._values(name) if x is not None and not math.isnan(x)]
            if len(numbers) >= _ENOUGH_FOR_FLAG and len(set(numbers)) <= 2:
                found.append(name)
        return tuple(found) if len(found) < len(names) else ()

    # ------------------------------------------------------------------------------ what is said
    def _missing_said(self) -> list[str]:
        said = []
        if self._missing and self._known.missing is None:
            which = ", ".join(map(printable, self._missing))
            if self._missing == ("*",):
                texts = {
                    cell: None
                    for cells in self._cells.values()
                    for cell in cells
                    if number_reader(*self._marks)(cell) is None
                    and self.read(cell) is not None
                }  # fmt: skip
                shown = ", ".join(map(printable, list(texts)[:_SHOWN]))
                which = f"every text in a channel, such as {shown},"
            said.append(
                f"{which} is taken for no value; --missing says which texts are, --missing '' that "
                "none is"
            )
        if self._units:
            named = [n for n, units in self._units_of.items() if len(units) == 1]
            said.append(
                f"units: {', '.join(map(printable, self._units))} behind the numbers of "
                f"{', '.join(map(printable, named[:_SHOWN]))} is left out"
            )
        return said

    def _time_said(self) -> list[str]:
        if len(self._time.names) > 1 and not self._known.time:
            which = " and ".join(map(printable, self._time.names))
            return [f"the time is made of {which}; --time says otherwise"]
        return []


def _why_no_measurement(numbers: Sequence[float]) -> str | None:
    if len(set(numbers)) == 1:
        return "never changes"
    steps = {round(b - a, 9) for a, b in itertools.pairwise(numbers)}
    if steps == {1.0} and numbers[0] in (0.0, 1.0) and len(numbers) > 10:
        return "counts the rows"
    return None


def _rest_of(flag: str, name: str) -> str:
    return flag.replace(name, "", 1).strip(" _.-/()[]") or flag


def _plain_cell(cell: str) -> str | int:
    return int(cell) if re.fullmatch(r"\d{1,18}", cell) else cell


def _unit_cut(cell: str, units: Sequence[str]) -> str:
    for unit in units:
        if cell.endswith(unit):
            return cell[: -len(unit)].rstrip()
    return cell


def _change_varies(runs: Sequence[Sequence[float]]) -> bool:
    steps = {round(b - a, 9) for run in runs for a, b in itertools.pairwise(run)}
    return len(steps) > 2


def _short(seen: str) -> str:
    """Leave out the name at the beginning of a sentence that stands behind it."""
    return re.sub(r"^(['\"]).*?\1 ", "", seen)


def _asides_said(aside: Mapping[str, str]) -> list[str]:
    """Say what was set aside though it could be read."""
    return [
        f"left out: {name} {why}; --channel takes a column for a measurement"
        for name, why in aside.items()
        if why.startswith(("only counts", "has a value", "counts the rows", "the same", "a code"))
    ]


def _nothing(aside: Mapping[str, str]) -> ConfigError:
    return ConfigError(
        "no column holds numbers that change: name the channels with --channel, say how the table "
        "is written with --delimiter, --decimal, --thousands and --encoding, or where it begins "
        "with --skip-rows. "
        + "; ".join(f"{printable(name)}: {why}" for name, why in list(aside.items())[:_SHOWN])
    )


# ---------------------------------------------------------------------------------------- keys
class _Keys(NamedTuple):
    """The columns that say whose rows are; ``None``: all are of one sensor, hold all quantities."""

    sensor: str | None = None
    tag: str | None = None
    said: Sequence[str] = ()
    doubts: Sequence[str] = ()
    sensors: tuple[str, ...] = ()  # where one alone leaves several rows a time


class _KeySearch:
    """Finds the columns whose values name a series, come back and are not measured. O(cells)."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[str]],
        numeric: Sequence[str],
        moments_ms: Sequence[int | None],
        read: Callable[[str], float | None],
    ) -> None:
        self._cells, self._moments = cells, moments_ms
        self._free = [n for n in cells if _comes_back(cells[n], read) and not _is_unit(n, cells[n])]
        self.texts = [
            n for n in self._free
            if n not in numeric and is_text(cells[n]) and len(set(cells[n])) > 1
        ]  # fmt: skip
        self._long = len([n for n in numeric if n not in self._free]) == 1

    def found(self, sensor: str | None, tag: str | None) -> _Keys:
        """Return the keys; several series mixed, and no key to them, is a :class:`ConfigError`."""
        asked = sensor is not None
        tag = tag or self.tag_by_name(sensor)
        if sensor is None:
            sensor = self.sensor(tag)
        if sensor is None and tag is not None:
            sensor, tag = tag, None
        if sensor is not None and tag is None and not asked:
            tag = self.tag_beside(sensor)
        open_ones = [name for name in self.texts if name not in (sensor, tag)]
        if sensor is None and open_ones:
            self.require_one_series(open_ones)
        doubts = [
            f"{name} holds {len(set(self._cells[name])):,} texts that come back and is left out; "
            f"if they name who measured, give --sensor {printable(name)}"
            for name in open_ones
        ]
        said = self.refused(sensor, tag)
        if sensor is not None and not asked:
            names = sorted(set(self._cells[sensor]))
            shown = ", ".join(map(printable, names[:3])) + (", …" if len(names) > 3 else "")
            chosen = f"sensor: {sensor}, {len(names):,} named {shown}; --sensor names another"
            said = [f"{chosen} column, - none", *said]
        return _Keys(sensor, tag, said, doubts, () if asked or tag else self.sensors(sensor))

    def sensors(self, sensor: str | None) -> tuple[str, ...]:
        """Return two columns that tell the rows of a time apart, where one alone does not."""
        if sensor is None or self._rows_a_time(sensor) < _LOCKSTEP:
            return ()
        others = (n for n in self._called() + self.texts if n != sensor)
        second = next((n for n in others if self._rows_a_time(sensor, n) < 1.01), None)
        return () if second is None else (sensor, second)

    def tag_by_name(self, sensor: str | None) -> str | None:
        """Return the text that is called a quantity, where a row holds one value."""
        if not self._long:
            return None
        return next((n for n in self.texts if n != sensor and TAG.match(plain(n))), None)

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
        constant = (n for n in called if STRONG_SENSOR.match(plain(n)))
        return next((n for n in constant if len(set(self._cells[n])) == 1), None)

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
        return [name for name in self._free if SENSOR.match(plain(name))]

    def _is_key(self, name: str, tag: str | None, *, strong: bool | None = None) -> bool:
        strong = bool(STRONG_SENSOR.match(plain(name))) if strong is None else strong
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


def _is_unit(name: str, cells: Sequence[str]) -> bool:
    """Whether a column gives the unit of a value: a unit of a plant has a number."""
    return plain(name) in ("unit", "units") and not any(map(str.isdigit, "".join(set(cells))))


def _comes_back(cells: Sequence[str], read: Callable[[str], float | None]) -> bool:
    """Whether values come back: names do, and so do whole numbers that count units."""
    distinct = set(cells)
    if len(distinct) > max(1, len(cells) / 2) or not distinct - MISSING_TEXTS:
        return False
    numbers = [read(cell) for cell in distinct]
    return all(value is None or math.isnan(value) or value.is_integer() for value in numbers)
