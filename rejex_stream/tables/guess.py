"""What the columns of an unknown table mean, guessed from their names and values.

Used for a quick look and for a first config, and every guess is reported. Which columns make the
time is found in :mod:`.time_columns`, and what is left has to pass the :mod:`.column_checks`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from rejex_stream.decode.mapping import SWITCHES, Quality, TimeUnit, printable
from rejex_stream.decode.written import MISSING_TEXTS, number_reader
from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle
from rejex_stream.settings import toml
from rejex_stream.tables.angles import find_angles, followed
from rejex_stream.tables.column_checks import carry_needed, check_columns, is_sentinel, usual_step
from rejex_stream.tables.columns import ColumnProfile, Sample, is_text, profile
from rejex_stream.tables.dialect import Marks, are_times, find_marks, find_missing, find_units
from rejex_stream.tables.names import (
    ASIDE,
    HOURS,
    LABEL,
    MAYBE_LABEL,
    MOST_QUALITIES,
    PARTS,
    TAG,
    TOTAL,
    good_among,
    is_quality,
    is_unit,
    last_of,
    plain,
)
from rejex_stream.tables.time_columns import NONE, find_time_columns
from rejex_stream.tables.whose import MOST_JOINED, Beside, Keys, KeySearch
from rejex_stream.tables.whose import named as named_in

_PLAIN = Marks(".", None)

_UNITS = "in several units"
_OTHER_MARK = "by another decimal mark,"
_MINUS_BEHIND = re.compile(r"\d[\d.,]*-")
_ENOUGH_FOR_FLAG = 20  # values; of few, two are soon all
_ENOUGH_FOR_SERIES = 5  # values of one sensor that are the same
_SHOWN, _HOURS_OF_DAY = 10, 12
_FOR_FEATURES = ("flags", "angles", "n_modes", "carry")
_MOST_LATE = 100
"""Steps for which values of several quantities wait to be joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody knows about a table and how it is written; what is empty is guessed.

    The sensor ``-`` and the time ``-`` say that there is none, the flag and the angle ``-``
    likewise. A flag is a channel, and so is an angle.
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
    angles: Sequence[str] | None = None
    counters: Sequence[str] = ()
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
    select: str | None = None


@dataclass(frozen=True, slots=True)
class TableGuess:
    """What each column is taken for.

    Without a time rows are one second apart, without a sensor all are of one. The label is a known
    truth, never shown to the detector; flags are read and kept out of the distance; a tag names
    the quantity where a row holds one value, and the channels are joined where `value` is the
    column of them all.
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
    angles: tuple[Circle, ...] = ()
    counters: tuple[str, ...] = ()  # channels that only add up: their rise is measured
    mode: str | None = None
    n_modes: int | None = None
    missing: tuple[str, ...] = ()
    missing_of: Mapping[str, Collection[float]] = field(default_factory=dict)  # by channel
    units: tuple[str, ...] = ()
    carry: int = 0  # rows for which the last value stands in for a missing one
    said: tuple[str, ...] = ()
    quality: Quality | None = None
    sensors: tuple[str, ...] = ()  # the columns, where several make the sensor's name
    value: str | None = None  # the one column of all channels, which the tag names
    step_s: float | None = None  # between joined rows
    reorder_s: float | None = None  # for which values of another tag come later than newer ones

    @property
    def apart(self) -> bool:
        """Whether each quantity of a sensor is a series of its own."""
        return self.tag is not None and self.value is None

    @property
    def time_said(self) -> str:
        if self.time is None:
            return "none: rows 1 s apart"
        return f"{' and '.join(self.times)} ({self.time_format or self.time_unit})"

    @property
    def times(self) -> tuple[str, ...]:
        return (self.time,) if isinstance(self.time, str) else self.time or ()

    def channels_said(self) -> Iterator[str]:
        if self.flags:
            yield (
                f"flags: {', '.join(self.flags)}, of at most two values: out of the score, shown "
                "to the reviewer; --flag NAME says which are, --flag - that none is"
            )
        names = (
            n + (f" (which follows {leader})" if leader else "") for n, _, leader in self.angles
        )
        if self.angles:
            yield (
                f"angles: {', '.join(names)}, in degrees: 359 and 1 are 2 apart; --angle NAME says "
                "which are, --angle - that none is"
            )

    def without_angles(self, names: Sequence[str]) -> TableGuess:
        """Return the guess in which some channels are no angles, and nothing follows them."""
        left = [one for one in self.angles if one.channel not in names]
        left = [one._replace(follows="" if one.follows in names else one.follows) for one in left]
        return replace(self, angles=tuple(left))

    def for_features(self) -> dict[str, Any]:
        """Return what :func:`~rejex_stream.plan.suggest.suggest` wants to know of the channels."""
        return {name: getattr(self, name) for name in _FOR_FEATURES}

    def told(self) -> dict[str, dict[str, object]]:
        """Return what a config says of single channels, but for angles."""
        told: dict[str, dict[str, object]] = {name: {"kind": "counter"} for name in self.counters}
        for name, unit in ((self.quality and self.quality.units) or {}).items():
            told.setdefault(name, {})["unit"] = unit
        for name, numbers in self.missing_of.items():
            told.setdefault(name, {})["missing"] = list(numbers)
        return told

    def settings(self, time_zone: str | None) -> dict[str, object]:
        return {
            "time": list(self.time) if isinstance(self.time, tuple) else self.time,
            "time_unit": None if self.time is None or self.time_format else self.time_unit,
            "time_format": self.time_format,
            "time_zone": time_zone,
            "sensor": list(self.sensors) or self.sensor,
            "tag": self.tag,
            "step_s": self.step_s,
            "reorder_s": self.reorder_s,
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
        facts = [("time", self.time_said), ("sensor", self.sensor or "none: one sensor")]
        facts.append(("channels", ", ".join(self.channels)))
        if self.label is not None:
            facts.append(("label", f"{self.label} (kept from the detector)"))
        by_reason: dict[str, list[str]] = {}
        for name, why in self.aside.items():
            by_reason.setdefault(why, []).append(name)
        return facts + [("left out", f"{', '.join(n)}: {why}") for why, n in by_reason.items()]


def guess_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    known: Asked | None = None,
    *,
    marks: Marks = _PLAIN,
    named: bool = True,
    timed: bool = False,
    skip: Sequence[str] = (),
    beside: Beside | None = None,
) -> TableGuess:
    """Say what each column is, from its name and a sample of its values. O(cells log cells).

    `named`: the names are the table's own; `timed`: rows have a time beside their columns, as
    records of a topic have; `skip`: columns of the file's format; `beside`: of records of JSON.
    """
    known = known or Asked()
    if not (timed or known.time) and len(header) > _HOURS_OF_DAY and are_times(header[1:]):
        raise ConfigError(
            f"the times, {header[1]} to {header[-1]}, stand in the first row, and each row is a "
            "quantity: turn the table first (in pandas: table.set_index(table.columns[0]).T)."
        )
    _require_columns(header, known)
    whole = [row for row in rows if len(row) == len(header)]
    cells = {
        name: [row[i].strip() for row in whole] for i, name in enumerate(header) if name not in skip
    }
    if not known.sensors:
        guess = _guess(cells, known, marks, beside or Beside(), named=named, timed=timed)
        if timed or not guess.sensors:
            return replace(guess, sensors=())
        known = replace(known, sensor=None, sensors=guess.sensors)
    columns = [cells.pop(name) for name in dict.fromkeys(known.sensors)]
    joined_name = "/".join(known.sensors)
    cells[joined_name] = ["/".join(parts) for parts in zip(*columns, strict=True)]
    known = replace(known, sensor=joined_name)
    guess = _guess(cells, known, marks, beside or Beside(), named=named, timed=timed)
    said = f"sensor: {' and '.join(known.sensors)} together, {named_in(cells[joined_name])}"
    return replace(guess, sensors=tuple(known.sensors), said=(said, *guess.said))


def _require_columns(header: Sequence[str], known: Asked) -> None:
    flags = (*(known.flags or ()), *(known.angles or ()))
    single = (known.sensor, known.label, known.tag, known.mode)
    for name in (*known.time, *known.sensors, *single, *known.channels, *flags):
        none = name in (None, NONE) and name not in known.sensors
        if not none and name not in header:
            raise ConfigError(
                f"there is no column {printable(name)}: the columns are {', '.join(header)}."
            )


def _guess(
    cells: Mapping[str, Sequence[str]], known: Asked, marks: Marks, beside: Beside, *,
    named: bool, timed: bool,
) -> TableGuess:  # fmt: skip
    """Assign columns to roles: time, label, sensor and tag, then the channels."""
    meant = [name for name in known.flags or () if name != NONE]
    round_ones = [name for name in known.angles or () if name != NONE]
    wanted = {*known.channels, *meant, *round_ones, *known.counters}
    no_times = {*wanted, *beside.names} - {*known.time}
    free = {n: c for n, c in cells.items() if n not in no_times}
    time = find_time_columns(
        free, known.time, known.time_unit, known.time_format,
        named=named, needed=not timed, decimal=marks.decimal,
    )  # fmt: skip
    table = _Walked({n: c for n, c in cells.items() if n not in time.names}, marks, known.missing)
    roles = {known.sensor, known.label, known.tag, known.mode}
    other = {*roles, *beside.names}
    codes = _find_quality(table, other, wanted, beside.paths)  # of which nobody knows what is good
    label = known.label or _find_label(table, [n for n in table.cells if n not in wanted | other])
    taken = {label, known.mode, *table.says_quality}
    measured = [n for n in table.cells
                if n not in {*taken, known.sensor, known.tag, *beside.names} - wanted]  # fmt: skip
    keys = Keys(tag=known.tag)
    if known.sensor != NONE:
        asked = {known.sensor, known.tag}
        free = {n: c for n, c in cells.items()
                if n in asked or (n not in {*time.names, *taken, *wanted}
                and not (table.why_not.get(n) or "").startswith(_UNITS))}  # fmt: skip
        numeric = [n for n in measured if table.holds_numbers(n)]
        moments = time.moments_ms or _cycles(table.columns[n] for n in numeric)
        search = KeySearch(free, numeric, moments, table.read, beside)
        keys = search.found(known.sensor, known.tag)
    measured = [n for n in measured if n not in (keys.sensor, keys.tag)]
    keys, join = _by_quantity(table, keys, measured, time.moments_ms, known)
    series = table.series(keys.sensor, None if join else keys.tag)
    table, rest = (table, measured) if join is None else (
        join.table, [n for n in join.table.cells if n not in {*taken, *keys[:2], *beside.names}]
    )  # fmt: skip
    aside = {
        n: why for n in rest if n not in wanted
        and (why := table.why_not[n] or _why_of_series(n, table.sample([n], series), codes))
    }  # fmt: skip
    aside |= dict.fromkeys(join.apart if join else (), "is not of every sensor")
    channels = [n for n in rest if n not in aside]
    texts_said = list(table.said())
    sentinels = _without_sentinels(table, table.sample(channels, series))
    sample = table.sample(channels, series)
    counters = tuple(known.counters)
    if known.channels:
        channels, aside = [n for n in channels if n in wanted], {}
    else:
        channels, counters = _without_counters(sample, channels, aside, counters)
        if known.carry is None and join is None:
            channels = _without_sparse(sample, channels, aside)
    flags = _flags(table, channels) if known.flags is None else meant
    words = [n for n in channels if n in table.switches and n not in flags]
    aside |= {n: f"not numbers, such as {printable(table.cells[n][0], 30)}" for n in words}
    channels = [n for n in channels if n not in words]
    _require_channels(table, channels, known, aside, of_json=timed)
    measured = [n for n in channels if n not in {*flags, *counters}]
    angles = find_angles(sample, measured) if known.angles is None else round_ones
    by_turns = known.carry is None and join is None
    guess = TableGuess(
        time=(time.names if len(time.names) > 1 else time.names[0]) if time.names else None,
        time_unit=time.written.unit if time.written else "ms",
        time_format=time.written.format if time.written else None,
        sensor=keys.sensor,
        tag=keys.tag,
        label=label,
        channels=tuple(channels),
        aside=aside,
        marks=marks,
        doubts=(*time.doubts, *texts_said, *sentinels, *keys.doubts),
        flags=tuple(flags),
        angles=followed(sample, [n for n in angles if n in channels]),
        quality=table.quality_without_units_of(counters),
        sensors=keys.sensors,
        mode=known.mode,
        n_modes=None if known.mode is None else max(1, len(set(cells[known.mode]))),
        missing=table.missing,
        missing_of={n: tuple(x) for n, x in table.missing_of.items() if x and n in channels},
        units=table.units,
        carry=carry_needed(sample, channels) if by_turns else known.carry or 0,
        counters=counters,
        value=None if join is None else join.value,
        step_s=None if join is None else join.step_s,
        reorder_s=None if join is None else join.reorder_s,
    )
    said = (*keys.said, *_said(guess, table, known))
    return replace(guess, said=said, doubts=(*guess.doubts, *_odd_columns(guess, table)))


class _Join(NamedTuple):
    table: _Walked
    value: str  # the column that held them all
    step_s: float
    apart: Sequence[str]  # quantities that not every machine has
    reorder_s: float | None


def _by_quantity(
    table: _Walked, keys: Keys, measured: Sequence[str], moments_ms: Sequence[int | None],
    known: Asked,
) -> tuple[Keys, _Join | None]:  # fmt: skip
    """Join the quantities of a machine; where they are not joined, each has its own unit."""
    apart = any(map(table.has_units_apart, measured)) or table.has_units_by(keys.sensor, measured)
    if keys.tag is known.sensor is None and apart:
        keys = Keys(tag=keys.sensor)  # machines of a kind have one unit, quantities have their own
    join = None if known.channels else _joined(table, keys, measured, moments_ms)
    if join is None and keys.tag is not None:
        table.read_units_apart(measured, keys.tag)
    return keys, join


def _joined(
    table: _Walked, keys: Keys, measured: Sequence[str], moments_ms: Sequence[int | None]
) -> _Join | None:
    """Give each quantity a column, where one holds them all and most machines have the same."""
    values = [n for n in measured if table.holds_numbers(n)]
    if keys.tag is None or len(values) != 1:
        return None
    what = table.cells[keys.tag]
    whose = [""] * len(what) if keys.sensor is None else table.cells[keys.sensor]
    counts = Counter(thing for _, thing in set(zip(whose, what, strict=True)))
    things = {thing for thing, n in counts.items() if n == len(set(whose))}
    if not max(2, len(counts) / 2) <= len(things) <= MOST_JOINED or table.cells.keys() & things:
        return None
    pivoted = table.pivoted(what, things, values[0])
    if sum(pivoted.why_not[thing] is None for thing in things) < 2:
        return None
    apart = [thing for thing in counts if thing not in things]
    step_s, newest, late_ms = cycle_s(whose, what, moments_ms), dict[str, int](), 0
    for machine, now in zip(whose, moments_ms, strict=False):
        if now is not None:
            newest[machine] = max(now, newest.get(machine, now))
            late_ms = max(late_ms, newest[machine] - now)
    late_s = late_ms / 1000
    if late_s > _MOST_LATE * step_s:  # one quantity is behind the other
        return None
    return _Join(pivoted, values[0], step_s, apart, late_s if late_s >= step_s else None)


def cycle_s(whose: Sequence[str], what: Sequence[str], moments_ms: Sequence[int | None]) -> float:
    """Return how far apart values of one quantity usually are, in seconds; 1 if nobody knows."""
    last: dict[tuple[str, str], int] = {}
    steps = []
    for machine, thing, moment in zip(whose, what, moments_ms, strict=False):
        if moment is not None:
            if moment > (before := last.get((machine, thing), moment)):
                steps.append(moment - before)
            last[machine, thing] = moment
    return max(0.001, median(steps) / 1000) if steps else 1.0


class _Walked:
    """The columns of a sample beside its times, by one way to read numbers."""

    def __init__(
        self, cells: Mapping[str, Sequence[str]], marks: Marks, missing: Sequence[str] | None
    ) -> None:
        self.cells, self.marks, self._asked = cells, marks, missing
        self.texts_missing = list[str]()
        self.missing_of, read = dict[str, list[float]](), number_reader()
        for text in missing or ():  # NAME=NUMBER is of a channel, and NAME= says that it has none
            name, _, number = text.rpartition("=")
            x = math.nan if name and not number else read(number)
            if name in cells and x is None:
                raise ConfigError(
                    f"--missing {printable(text)}: {printable(number)} is no number, and of a "
                    "single channel only numbers stand for no value; a text does in all of them: "
                    f"--missing {printable(number)}."
                )
            if not name or x is None:
                self.texts_missing.append(text)
            else:
                self.missing_of.setdefault(name, []).extend([x] if number else [])
        self._units_of = find_units(cells, marks)
        self.units = tuple(dict.fromkeys(u[0] for u in self._units_of.values() if len(u) == 1))
        self.missing = tuple(self.texts_missing)
        self.switches = {name for name, column in cells.items() if _is_switch(column)}
        self.quality: Quality | None = None
        self.quality_of: dict[str, str] = {}  # the column that says what of a column is good
        self.says_quality = set[str]()
        self.walk()
        if not self.texts_missing and (texts := find_missing(self.columns)):
            self.missing = texts
            self.walk()

    def walk(self) -> None:
        self.read = number_reader(*self.marks, self.missing, self.units)
        self.columns = {}
        for name, cells in self.cells.items():
            good = None
            if self.quality is not None and name in self.quality_of:
                codes = [cell or None for cell in self.cells[self.quality_of[name]]]
                good = self.quality.only_good(cells, codes, texts=True)
            read = _switched if name in self.switches else self.read
            self.columns[name] = profile(cells, read, good, self.missing_of.get(name, ()))
        self.why_not = {name: self._why_not(name) for name in self.columns}

    def quality_without_units_of(self, counters: Sequence[str]) -> Quality | None:
        """Return the quality; a counter is read as its rise, which has another unit."""
        if (quality := self.quality) is None:
            return None
        units = {n: unit for n, unit in (quality.units or {}).items() if n not in counters}
        return replace(quality, units=units)

    def _why_not(self, name: str) -> str | None:
        column, units = self.columns[name], self._units_of.get(name, ())
        if ASIDE.match(plain(name)):
            return "not a measurement, by its name"
        if len(units) > 1 and column.given:
            return f"{_UNITS}, {' and '.join(map(printable, units[:_SHOWN]))}"
        word = {cell.lower() for cell in column.given}
        if len(word) == 1 and word <= SWITCHES.keys():
            return "never changes"
        if column.unread and (other := find_marks(column.unread)) != self.marks:
            read = number_reader(*other)
            if None not in map(read, column.given) and any(map(str.isdigit, column.unread[0])):
                return f"{_OTHER_MARK} {other.decimal!r}, such as {printable(column.unread[0], 30)}"
        return column.why_no_measurement()

    def holds_numbers(self, name: str) -> bool:
        return (self.why_not[name] or _UNITS).startswith(_UNITS)

    def has_units_apart(self, name: str) -> bool:
        return (self.why_not[name] or "").startswith(_UNITS)

    def has_units_by(self, tag: str | None, names: Sequence[str]) -> bool:
        """Whether a column beside the values says a unit of each quantity that another names."""
        flag = next(filter(None, map(self.quality_of.get, names)), None)
        if not (tag and flag and TAG.match(last_of(tag)) and is_unit(flag, self.cells[flag])):
            return False
        pairs = {pair for pair in zip(self.cells[tag], self.cells[flag], strict=True) if all(pair)}
        return len({unit for _, unit in pairs}) > 1 and len(pairs) == len({of for of, _ in pairs})

    def read_units_apart(self, names: Sequence[str], tag: str) -> None:
        """Read columns in several units of which each quantity has one."""
        for name in filter(self.has_units_apart, names):
            of = dict[str, list[str]]()
            for what, cell in zip(self.cells[tag], self.cells[name], strict=True):
                of.setdefault(what, []).append(cell)
            if all(len(units) == 1 for units in find_units(of, self.marks).values()):
                self.units += (units := self._units_of[name])
                self._units_of[name] = (" and ".join(units),)
                self.walk()

    def series(self, *names: str | None) -> list[object]:
        columns = [self.cells[name] for name in names if name is not None]
        return list(zip(*columns, strict=True)) if columns else []

    def pivoted(self, what: Sequence[str], things: set[str], value: str) -> _Walked:
        """Return the columns with one a quantity, in the place of the one that holds them all."""
        cells = {name: column for name, column in self.cells.items() if name != value}
        whole = list(zip(what, self.cells[value], strict=True))
        for thing in dict.fromkeys(t for t in what if t in things):
            cells[thing] = [cell if name == thing else "" for name, cell in whole]
        table = _Walked(cells, self.marks, self._asked)
        if self.quality is not None:
            table.quality_of = dict.fromkeys(sorted(things), self.quality_of[value])
            table.watch(self.quality.good, [what])
        return table

    def watch(self, good: Sequence[Any], what: Sequence[Sequence[str]] = ()) -> None:
        """Take what is not good for missing, and of a channel with one unit any other unit."""
        units = dict[str, str]()
        for name, flag in self.quality_of.items():
            pairs = zip(self.cells[flag], *what, strict=True)
            seen = {said for said, *of in pairs if said and of in ([], [name])}
            if is_unit(flag, list(seen)) and len(seen) == 1:
                units[name] = seen.pop()
        self.quality = Quality(self.quality_of, good, units)
        self.walk()

    def sample(self, names: Sequence[str], series: Sequence[object]) -> Sample:
        return Sample(numbers={n: self.columns[n].numbers for n in names}, series=series)

    def said(self) -> Iterator[str]:
        if self.missing and not self.texts_missing:
            which = ", ".join(map(printable, self.missing))
            if self.missing == ("*",):
                bare = number_reader(*self.marks)
                cells = dict.fromkeys(itertools.chain.from_iterable(self.cells.values()))
                texts = (c for c in cells if bare(c) is None and self.read(c) is not None)
                shown = ", ".join(map(printable, itertools.islice(texts, _SHOWN)))
                which = f"every text in a channel, such as {shown},"
            yield (
                f"{which} is taken for no value; --missing says which texts are, --missing '' that "
                "none is"
            )
        behind = [n for n, cells in self.cells.items() if any(map(_MINUS_BEHIND.fullmatch, cells))]
        if behind:
            yield f"minus: behind numbers of {', '.join(map(printable, behind))} it is their sign"
        if self.units:
            named = [n for n, units in self._units_of.items() if len(units) == 1]
            yield (
                f"units: {', '.join(map(printable, self.units))} behind the numbers of "
                f"{', '.join(map(printable, named[:_SHOWN]))} is left out"
            )

    def quality_said(self) -> Iterator[str]:
        if self.quality is not None:
            flags = list(dict.fromkeys(self.quality_of.values()))
            units = any(is_unit(flag, self.cells[flag]) for flag in flags)
            says = "in which unit a value is" if units else "whether a value is good"
            good = ", ".join(
                one if isinstance(one, str) else toml(one) for one in self.quality.good
            )
            yield (
                f"quality: {', '.join(flags[:_SHOWN])} says {says} ({good}); what is not is "
                f"missing; --channel or --flag {printable(flags[0])} takes it for a channel"
            )


# -------------------------------------------------------------------------------------- the roles
def _find_quality(
    table: _Walked, roles: set[str | None], wanted: set[str], paths: Mapping[str, str]
) -> set[str]:
    """Find which column says what of a column is good; return those of which nobody knows."""
    free = [n for n in table.cells if n not in wanted | roles]
    numeric = [n for n in table.cells if n not in roles and table.why_not[n] is None]
    # A text says more than a code.
    free.sort(key=lambda name: table.why_not[name] is None)
    few = {n: [*map(_typed, table.cells[n])]
           for n in free if len(set(table.cells[n])) <= MOST_QUALITIES}  # fmt: skip
    # Where a unit changes, values are none of what they were.
    units = {n: [x for x in dict.fromkeys(cells) if x != ""]
             for n, cells in few.items() if is_unit(n, cells) and any(cells)}  # fmt: skip
    beside = {
        name: [
            flag for flag in few if flag != name
            and (rest := _rest_of(paths.get(flag, flag), paths.get(name, name)))
            and (flag in units or is_quality(rest, few[flag]))
        ]
        for name in numeric
    }  # fmt: skip
    alone = [flag for flag in few if is_quality(flag, few[flag], alone=True)]
    flags = dict.fromkeys((*itertools.chain.from_iterable(beside.values()), *alone))
    measured = [name for name in numeric if name not in flags]
    alone += units if len(measured) == 1 else []
    flags |= dict.fromkeys(alone)
    good = {flag: units.get(flag) or good_among(few[flag], flag) for flag in flags}
    if not any(beside.values()):
        beside = dict.fromkeys(measured, alone)
    of = {n: max(found, key=lambda flag: (bool(good[flag]), flag not in units))
          for n, found in beside.items() if found}  # fmt: skip
    table.quality_of = {name: flag for name, flag in of.items() if good[flag]}
    if table.quality_of:
        table.says_quality = {flag for flag in flags if good[flag]}
        every = dict.fromkeys(itertools.chain.from_iterable(good[f] for f in of.values()))
        table.watch(list(every))
    return {
        flag for name, flag in of.items()
        if not good[flag] and is_quality(_rest_of(flag, name) or flag, few[flag], alone=True)
    }  # fmt: skip


def _typed(cell: str) -> object:
    try:
        return True if cell.lower() == "true" else int(cell) if cell.isdecimal() else float(cell)
    except ValueError:
        return cell


def _rest_of(flag: str, name: str) -> str:
    """Return what a name has beside another's, or beside its stem: T1.PV and T1.Q have Q."""
    stem = re.split(r"[\W_]+(?=[^\W_]+$)", name)[0]
    known = name if name in flag else stem if len(stem) < len(name) else ""
    return flag.replace(known, "", 1).strip(" _.-/()[]") if known and known in flag else ""


def _find_label(table: _Walked, free: Sequence[str]) -> str | None:
    true = [name for name in free if _says_the_truth(table, name)]
    differ = (n for n in true if len(set(table.cells[n]) - MISSING_TEXTS) > 1)
    numbers = {n for n in free if table.why_not[n] is None}
    maybe = (n for n in differ if MAYBE_LABEL.match(plain(n)) and numbers - {n})
    return next((n for n in true if LABEL.match(plain(n))), next(maybe, None))


def _says_the_truth(table: _Walked, name: str) -> bool:
    words = {cell.lower() for cell in table.cells[name]} - MISSING_TEXTS
    texts = {"true", "false", "normal", "anomaly", "attack", "fault", "abnormal", "yes", "no"}
    read = number_reader(*table.marks)
    return words <= texts or {read(word) for word in words} <= {-1.0, 0.0, 1.0, -999.0}


def _cycles(columns: Iterable[ColumnProfile]) -> tuple[int, ...]:
    for column in columns:
        if not all(map(float.is_integer, column.numbers)):
            continue
        cycles = list(map(int, column.numbers))
        back = [i for i, (a, b) in enumerate(itertools.pairwise(cycles)) if b != a + 1]
        lengths = {b - a for a, b in itertools.pairwise(back)}
        if len(lengths) > 1 and len(back) < 0.1 * len(cycles):
            return tuple(cycles)
    return ()


def _why_of_series(name: str, sample: Sample, codes: set[str]) -> str | None:
    if name in codes:
        return "a code of quality, and nobody says which is good"
    runs = sample.runs(name)
    constant = all(len(run) >= _ENOUGH_FOR_SERIES and min(run) == max(run) for run in runs)
    if constant and len({run[0] for run in runs}) > 1:
        return "the same at all times of a sensor"
    return None


def _flags(table: _Walked, names: Sequence[str]) -> Sequence[str]:
    """Return the channels of at most two values; none where none would be left to measure."""
    columns = {name: table.columns[name].measured for name in names}
    flags = [
        n for n, x in columns.items()
        if n in table.switches or (len(x) >= _ENOUGH_FOR_FLAG and len(set(x)) <= 2)
    ]  # fmt: skip
    if len(flags) == len(names):
        flags = [n for n in flags if n in table.switches]
    return flags if len(flags) < len(names) else ()


def _is_switch(cells: Sequence[str]) -> bool:
    words = {cell.lower() for cell in cells} - MISSING_TEXTS
    return words <= SWITCHES.keys() - {"0", "1"} and len({SWITCHES[word] for word in words}) == 2


def _switched(cell: str) -> float | None:
    word = cell.lower()
    return math.nan if word in MISSING_TEXTS else SWITCHES.get(word)


# --------------------------------------------------------------------------------- the doubts
def _without_sentinels(table: _Walked, sample: Sample) -> list[str]:
    """Treat sure sentinels as missing in their channel; say these and the doubtful ones."""
    if "" in table.texts_missing:  # nobody's is
        return []
    doubts = [
        one for one in check_columns(sample, "sentinel") if one.column not in table.missing_of
    ]
    sure = {(one.column, x) for one in doubts if is_sentinel(x := float(one.value))}
    for name, x in sorted(sure):
        table.missing_of.setdefault(name, []).append(x)
    if sure:
        table.walk()
    return [
        f"{one.seen}; it is taken for no value, and --missing {printable(f'{one.column}=')} says "
        "that it is one"
        if (one.column, float(one.value)) in sure
        else str(one)
        for one in doubts
    ]


def _without_counters(
    sample: Sample, channels: list[str], aside: dict[str, str], counters: tuple[str, ...]
) -> tuple[list[str], tuple[str, ...]]:
    counting = {
        doubt.column: doubt.seen for doubt in check_columns(sample, "counter")
        if doubt.column not in counters
    }  # fmt: skip
    left = [name for name in channels if name not in counting]
    if not left:
        counters = tuple(n for n in counting if _change_varies(sample.runs(n)))
        left = list(counters or channels)
    for name in (n for n in counting if n not in left):
        why, total = _short(counting[name]), TOTAL.search(plain(name))
        called = any(part.match(plain(name)) for part in PARTS)  # a calendar's
        if called or (not total and not _change_varies(sample.runs(name))):  # its rise says nothing
            why = why.replace("only counts:", "only counts on:")
        aside[name] = why
    return left, counters


def _change_varies(runs: Sequence[Sequence[float]]) -> bool:
    steps = [round(b - a, 9) for run in runs for a, b in itertools.pairwise(run)]
    return len(set(steps)) > 2 or usual_step(steps)[1] < 0.95


def _without_sparse(sample: Sample, channels: list[str], aside: dict[str, str]) -> list[str]:
    sparse = {
        doubt.column: doubt.seen
        for doubt in check_columns(sample, "sparse")
        if doubt.column in channels
    }
    left = [name for name in channels if name not in sparse]
    if left:
        aside |= {
            name: f"{_short(seen)}; --carry ROWS lets the last one stand"
            for name, seen in sparse.items()
        }
    return left or channels


# ----------------------------------------------------------------------------------- what is said
def _said(guess: TableGuess, table: _Walked, known: Asked) -> Iterator[str]:
    if len(guess.times) > 1 and not known.time:
        which = " and ".join(map(printable, guess.times))
        yield f"the time is made of {which}; --time says otherwise"
    yield from table.quality_said()
    if guess.carry and known.carry is None:
        yield (
            f"carry: {', '.join(map(printable, guess.channels[:_SHOWN]))} report by turns, so the "
            f"last value of each stands for up to {guess.carry} rows; --carry ROWS changes it, "
            "--carry 0 rejects what is not whole"
        )
    if guess.value is not None:
        tags = dict.fromkeys(table.cells[str(guess.tag)])
        others = list(map(printable, tags.keys() - {*guess.channels}))[:_SHOWN]
        yield (
            f"joined: rows of one value each, named by {guess.tag}, become rows with "
            f"{', '.join(guess.channels)}, one each {guess.step_s:g} s at most; "
            + (f"not read: {', '.join(sorted(others))}; " if others else "")
            + f"--channel {guess.value} makes each a series of its own"
        )
    if guess.reorder_s is not None:
        yield (
            f"reordered: values come up to {guess.reorder_s:g} s after newer ones of their "
            f"{guess.sensor or 'table'}, so events wait as long, and the last are not judged; "
            "input.reorder_s changes it"
        )
    if guess.counters and not known.counters:
        one = len(guess.counters) == 1
        yield (
            f"counter: {', '.join(guess.counters)} only {'adds' if one else 'add'} up, so "
            f"{'its' if one else 'their'} rise an hour is read; --channel NAME reads it as it is"
        )
    for name, why in guess.aside.items():
        if why.startswith(MENDABLE):
            takes = "--channel takes a column for a measurement"
            takes = "input.channels may name it" if guess.value else takes
            if why.startswith(_OTHER_MARK):
                takes = "write all columns with one mark"
            if why.startswith("only counts:"):
                takes = f"--counter {printable(name)} reads its rise an hour, {takes}"
            yield f"left out: {name} {why}; {takes}"


MENDABLE = (
    "only counts", "has a value", "counts the rows", "is not of every", "the same", "a code",
    _UNITS, _OTHER_MARK, "numbers in part",
)  # fmt: skip
"""How the reasons begin for which a column is left out that an option would take."""


def _odd_columns(guess: TableGuess, table: _Walked) -> Iterator[str]:
    for name in (n for n, cells in table.cells.items() if is_unit(n, cells)):
        whose = table.series(guess.sensor, guess.tag) or [None] * len(table.cells[name])
        pairs = {(who, u) for who, u in zip(whose, table.cells[name], strict=True) if u}
        if len(pairs) > len({who for who, _ in pairs}):
            yield (
                f"unit: {printable(name)} changes within a series, between "
                f"{' and '.join(map(printable, sorted({u for _, u in pairs})[:4]))}: convert the "
                f"values, or --mode {printable(name)} judges each unit alone"
            )
    for name in guess.aside if guess.times else ():
        cells = table.cells.get(name, ())
        if is_text(cells) and are_times(cells) and name != guess.sensor:
            yield (
                f"another clock: {printable(name)} is left out, and all channels of a row are "
                f"taken to be of {guess.times[0]}; where each has its own time, make a file of each"
            )
    hours = [name for name in guess.channels if HOURS.fullmatch(name)]
    if len(hours) >= _HOURS_OF_DAY:
        yield (
            f"a row a day: {len(hours)} columns, {hours[0]} to {hours[-1]}, are called as hours "
            "are, and each is judged as a channel of one row; to judge every hour, turn the table "
            f"first, a row an hour (in pandas: table.melt({(*guess.times, '')[0]!r}))"
        )


def _short(seen: str) -> str:
    return re.sub(r"^(['\"]).*?\1 ", "", seen)


def _require_channels(
    table: _Walked, channels: Sequence[str], known: Asked, aside: Mapping[str, str], *,
    of_json: bool,
) -> None:  # fmt: skip
    for name in set(known.counters) - set(channels):
        raise ConfigError(f"there is no channel {printable(name)} for --counter to read.")
    for name in table.missing_of.keys() - table.cells.keys():
        raise ConfigError(f"there is no channel {printable(name)} for --missing to read.")
    if channels:
        return
    how = (
        "or write input.select, a jq program that makes flat records of numbers"
        if of_json
        else "say how the table is written with --delimiter, --decimal, --thousands and "
        "--encoding, or where it begins with --skip-rows"
    )
    raise ConfigError(
        f"no {'field' if of_json else 'column'} holds numbers that change: name the channels with "
        f"--channel, {how}. "
        + "; ".join(f"{printable(name)}: {why}" for name, why in list(aside.items())[:_SHOWN])
    )
