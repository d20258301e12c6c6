"""Checks of columns that can be read: one table, each with its test and what overrules it.

A column can be readable and still be no measurement: a number that only counts, a value that
stands for none, a name that is the position of a valve. `score`, `init` and `doctor` ask this list
of a sample of columns, and `run` asks it once, of its first events. Nothing here decides: the
caller sets aside, proposes or warns, and reports it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from statistics import quantiles
from typing import Literal, NamedTuple, TypeAlias

from rejex_stream.config import Config
from rejex_stream.decode.mapping import SWITCHES, TimeUnit, printable
from rejex_stream.decode.written import MISSING_TEXTS
from rejex_stream.settings import toml_key
from rejex_stream.tables.columns import Sample
from rejex_stream.tables.fields import jq_of
from rejex_stream.tables.names import NAMED_UNITS, TOTAL, plain
from rejex_stream.types import Reading

Kind: TypeAlias = Literal["counter", "key", "sentinel", "sparse", "mixture", "time", "decimal"]

_ENOUGH = 20
"""Steps, or values, below which nothing is doubted."""
_SURE = 50  # readings that show whether a channel is at rest
_NEARLY_ALWAYS = 0.95
_SWITCHES = SWITCHES.keys() | {
    "ja", "nein", "an", "aus", "auf", "zu", "ein", "start", "started", "idle", "ok", "good", "bad",
    "fault", "alarm", "enabled", "disabled", "high", "low", "auto", "manual", "up", "down", "ready",
    "busy", "marche", "arret",
}  # fmt: skip
_NINES = re.compile(r"-?7{4,}|-?[6-9]?9{2,}(\.9+|\.0)?|-?9{2,}")
_EXTREMES = frozenset(
    (-273.15, 3276.7, -3276.8, 6553.5, 327.67, -327.68, 655.35,
     127.0, -128.0, 255.0, 32767.0, -32768.0, 65535.0, 8388607.0, -8388608.0, 16777215.0,
     2147483647.0, -2147483648.0, 4294967295.0)
)  # fmt: skip
_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}")
_INTEGER = re.compile(r"[+-]?\d{1,3}")
_1990_MS, _2005_MS, _DAY_MS = 631_152_000_000, 1_104_537_600_000, 86_400_000


class Doubt(NamedTuple):
    """One doubt about one column, and what overrules it on a command line and in a config."""

    kind: Kind
    column: str
    seen: str
    option: str
    setting: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.seen}; {self.option}"


class _Check(NamedTuple):
    test: Callable[[Sample, str], Iterator[tuple[str, str]]]
    option: str
    setting: str


def check_columns(sample: Sample, *kinds: Kind) -> list[Doubt]:
    """Return what is doubtful about a sample of columns. O(cells log cells)."""
    return [
        Doubt(
            kind,
            name,
            seen,
            entry.option.format(name=printable(name), given=printable(f"{name}={value}")),
            entry.setting.format(field=jq_of(name), key=toml_key(name), value=value),
            value,
        )
        for kind, entry in CHECKS.items()
        if not kinds or kind in kinds
        for name in (sample.cells if kind in _OF_CELLS else sample.numbers)
        for seen, value in entry.test(sample, name)
    ]


def check_readings(
    config: Config, readings: Sequence[Reading], fields: Sequence[Mapping[str, object]] = ()
) -> list[Doubt]:
    """Return what is doubtful about readings and has no answer in their config. O(values log).

    Flags, counters, channels of which only differences are taken, and those whose last value stands
    in are answered. `fields` is what each reading's record holds as it is written, where known.
    """
    if not readings:
        return []
    mapping, made = config.mapping(), config.features.columns
    order = sorted(range(len(readings)), key=lambda i: readings[i].event_time_ms)
    rows = [readings[i] for i in order]
    values = zip(*(row.values for row in rows), strict=True)
    measured = {column.channel for column in made if column.kind != "difference"}
    counters = {name for name, channel in config.channels.items() if channel.kind == "counter"}
    numbers = {
        name: column
        for name, column in zip(mapping.channel_names, values, strict=True)
        if name not in {*mapping.flags, *counters} and (name in measured or not made)
    }
    lost = {name: column for name, column in numbers.items() if all(map(math.isnan, column))}
    if fields:  # whoever knows them says what they are called
        numbers, lost = {n: column for n, column in numbers.items() if n not in lost}, {}
    fields = fields or [{}] * len(rows)
    texts = {
        path: [str(text) if isinstance(text := fields[i].get(path), str) else "" for i in order]
        for path in (*mapping.channel_fields, *fields[0])
    }
    sensors = [row.sensor for row in rows]
    named = " and ".join(mapping.sensor_fields) or mapping.sensor_from
    sample = Sample(
        numbers=numbers,
        cells={path: cells_of for path, cells_of in texts.items() if path not in mapping.fields},
        series=sensors,
        moments_ms=[row.event_time_ms for row in rows],
        time=" and ".join(mapping.time_fields) or "the record",
        time_unit="iso8601" if mapping.time_is_text or not mapping.time else mapping.time_unit,
    )
    whole = not (config.features.carry_forward_events or mapping.partial or mapping.joined)
    given = {path: cells_of for path, cells_of in texts.items() if path in mapping.channel_fields}
    given |= {named: sensors} if named else {}
    doubts = check_columns(replace(sample, cells=given), "key", "decimal")
    return [
        *check_columns(sample, "counter", "sentinel", "time"),
        *(
            check_columns(sample, "sparse", "mixture")
            if whole
            else check_columns(replace(sample, numbers=lost), "sparse")
        ),
        *(doubt for doubt in doubts if doubt.value in ("", mapping.decimal)),
    ]


def resting_among(
    names: Sequence[str], rows: Sequence[Sequence[float]], flags: Container[str] = ()
) -> list[str]:
    """Return the channels of at most two values in some rows, where some other takes more."""
    counts = {
        name: len({x for x in column if x == x})  # noqa: PLR0124 - nan
        for name, column in zip(names, zip(*rows, strict=True), strict=False)
        if name not in flags
    }
    found = [name for name, count in counts.items() if 1 <= count <= 2]
    return found if len(rows) >= _SURE and len(found) < len(counts) else []


def at_rest(names: Sequence[str] = (), of: str = "") -> str:
    """Say which channels are out of the distance, and why; `of` which readings that is known."""
    which = f"{', '.join(map(printable, names))}," if names else "channels"
    return (
        f"at rest: {which} of at most two values{of}; detectors for sensors leave what stays so "
        "out of the distance, and judge it by what it has never shown"
    )


# ------------------------------------------------------------------------------------- counter
def _counter(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    runs = sample.runs(name)
    pairs = [pair for run in runs for pair in itertools.pairwise(run)]
    steps = [b - a for a, b in pairs]
    if len(steps) < _ENOUGH:
        return
    up, down = [step for step in steps if step > 0], [step for step in steps if step < 0]
    # An energy or a volume adds up, with rests between; a slow one with long rests.
    many = 5 if TOTAL.search(plain(name)) else _ENOUGH
    adds_up = len(up) >= max(many, 20 * len(down)) and len({x for run in runs for x in run}) >= many
    adds_up = adds_up and _rises_all_along(runs)
    shown = f"{printable(name)} only counts: it "
    of_all = f"of {len(steps):,} steps"
    if len(up) >= _NEARLY_ALWAYS * len(steps):
        yield f"{shown}rises in {len(up):,} {of_all}", ""
    elif len(down) >= _NEARLY_ALWAYS * len(steps) and usual_step(down)[1] > 0.8:
        yield f"{shown}falls by {-usual_step(down)[0]:g} in {len(down):,} {of_all}", ""
    elif not up:
        return
    elif len(down) <= 0.005 * len(steps) and (adds_up or _is_calendar(runs, up)):
        yield f"{shown}rises in {len(up):,} steps and falls in {len(down):,} {of_all}", ""
    elif down and _is_sawtooth(pairs, up, down):
        yield f"{shown}rises, and falls back to its beginning {len(down):,} times", ""


def _rises_all_along(runs: Sequence[Sequence[float]]) -> bool:
    """Whether it rises in three quarters of the time at least: a gas that comes once does not."""
    quarters = {
        4 * i // (len(run) - 1)
        for run in runs
        for i, (before, after) in enumerate(itertools.pairwise(run))
        if after > before
    }
    return len(quarters) >= 3


def usual_step(steps: Sequence[float]) -> tuple[float, float]:
    """Return the step that comes most often, and its share of all."""
    ((step, count),) = Counter(round(step, 9) for step in steps).most_common(1)
    return step, count / len(steps)


def _is_calendar(runs: Sequence[Sequence[float]], up: Sequence[float]) -> bool:
    if usual_step(up)[1] < 0.9 or not all(x.is_integer() for run in runs for x in run):
        return False
    lengths = [
        length
        for run in runs
        for length in [len(list(same)) for _, same in itertools.groupby(run)][1:-1]
    ]
    return len(lengths) > 1 and max(lengths) <= 1.1 * min(lengths)


def _is_sawtooth(
    pairs: Sequence[tuple[float, float]], up: Sequence[float], down: Sequence[float]
) -> bool:
    low, high = min(map(min, pairs)), max(map(max, pairs))
    deep = all(b - low <= 0.1 * (high - low) and a - b > 0.2 * (high - low)
               for a, b in pairs if b < a)  # fmt: skip
    sizes = len({round(step, 6) for step in up})
    return (
        3 * len(down) <= len(up)
        and len({x for pair in pairs for x in pair}) >= 4
        and deep
        and (sizes <= 3 or usual_step(up)[1] > 0.8)
    )


# ----------------------------------------------------------------------------------------- key
def is_key(cells: Sequence[str], moments_ms: Sequence[int | None] = (), *, strong: bool) -> bool:
    """Whether a column says whose a row is. O(rows).

    It is one where the same set of values comes back at each time, or where each value has one
    long run and time begins again with it. A switch, a number that moves smoothly or in steps up,
    and a state that changes while time goes on are none. With a `strong` name, that means nothing
    else (``device_id``), it is one unless its values say otherwise.
    """
    given = [cell for cell in cells if cell]
    distinct = set(given)
    if len(distinct) < 2 or {cell.lower() for cell in distinct} <= _SWITCHES:
        return False
    if _is_side_by_side(cells, moments_ms) or _begins_anew(cells, moments_ms):
        return True
    if not all(_INTEGER.fullmatch(cell.removesuffix(".0")) or cell.isdigit() for cell in distinct):
        changes = sum(a != b for a, b in itertools.pairwise(given))
        # Words that stay for long, and come again while time goes on, are a state.
        states = not any(map(str.isdigit, "".join(distinct))) and len(distinct) <= changes
        if states and changes < 0.1 * len(given) and moments_ms:
            return False
        return strong or (len(distinct) > 2 and changes > len(given) / len(distinct) / 2)
    return strong and not _is_smooth([float(cell) for cell in given])


def _is_side_by_side(cells: Sequence[str], moments_ms: Sequence[int | None]) -> bool:
    """Whether rows of one time differ in this column, and hold the same few values each time."""
    rows = [(m, cell) for m, cell in zip(moments_ms, cells, strict=False) if m is not None]
    widths = sorted(Counter(moment for moment, _ in set(rows)).values())
    alone = len(rows) >= 1.5 * len(widths) > 0 and sum(widths) >= 0.98 * len(rows)
    return alone and 2 * widths[len(widths) // 2] >= len(set(cells))


def _begins_anew(cells: Sequence[str], moments_ms: Sequence[int | None]) -> bool:
    """Whether each value has one run of rows, and time goes back where the next begins."""
    runs = [value for value, _ in itertools.groupby(cells)]
    if not moments_ms or len(runs) != len(set(runs)):
        return False
    rows = list(zip(cells, moments_ms, strict=False))
    back = sum(
        a is not None and b is not None and b <= a and one != other
        for (one, a), (other, b) in itertools.pairwise(rows)
    )
    return back > 0.5 * (len(runs) - 1) > 0


def _is_smooth(values: Sequence[float]) -> bool:
    steps = sorted(abs(b - a) for a, b in itertools.pairwise(values))
    mean = math.fsum(values) / len(values)
    spread = math.fsum(abs(x - mean) for x in values) / len(values)
    return math.fsum(steps) / max(1, len(steps)) < spread


def _key(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    cells = sample.cells[name]
    if not sample.series or list(map(str, sample.series)) != list(cells):
        return
    once = dict.fromkeys(zip(cells, sample.moments_ms, strict=True))  # parts of a row share both
    if not is_key(*zip(*once, strict=True), strong=True) and len(set(cells)) > 1:
        yield f"{printable(name)} is taken for the sensor and moves as a measurement does", ""


# ------------------------------------------------------------------------------------ sentinel
def _sentinel(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    values = [x for x in sample.numbers[name] if not math.isnan(x)]
    counts = Counter(values)
    distinct = sorted(counts)
    if len(values) < _ENOUGH or len(distinct) < 4:
        return
    ends = dict.fromkeys((*distinct[:3], *reversed(distinct[-3:])))
    for x in [x for x in ends if counts[x] > 1 and x]:  # zero is what rests, or is off
        rest = [y for y in values if y != x and not (y in ends and is_sentinel(y))]
        if len(rest) < _ENOUGH // 2:
            continue
        low, *_, high = quantiles(rest, n=100, method="inclusive")
        if why := _why_sentinel(x, values, low, high):
            yield (
                f"{printable(name)} is {x:.15g} in {counts[x]:,} of {len(values):,} rows, {why}; "
                f"the others are from {low:g} to {high:g}",
                f"{x:.15g}",
            )


def _why_sentinel(x: float, values: Sequence[float], low: float, high: float) -> str:
    span = high - low or abs(high) * 0.01 or 1.0
    away = max(low - x, x - high)
    if away > span and is_sentinel(x):
        return "far from all others"
    runs = sum(b == x != a for a, b in itertools.pairwise([math.nan, *values]))
    count = values.count(x)
    if count < 5 or runs < 3 or count > 0.5 * len(values) or low == high:
        return ""
    if x < 0 <= min(y for y in values if y != x):
        return "the only one below zero"
    return "far from all others" if away > 3 * span and count <= 5 * runs else ""


def is_sentinel(x: float) -> bool:
    """Whether a number looks like none: nines, or the end of an integer type."""
    return bool(_NINES.fullmatch(f"{x:.15g}")) or x in _EXTREMES or abs(x) >= 1e20


# -------------------------------------------------------------------------------------- sparse
def _sparse(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    values = sample.numbers[name]
    there = sum(not math.isnan(x) for x in values)
    n = len(values)
    if n >= _ENOUGH and there < 0.5 * n:
        none = f"has no value in {n:,} rows: see what its field is now"
        yield (
            f"{printable(name)} {f'has a value in {there:,} of {n:,} rows' if there else none}",
            "",
        )


def carry_needed(sample: Sample, names: Sequence[str]) -> int:
    """Return for how many rows a value has to stand until the next; 0 where most rows are whole.

    O(cells).
    """
    columns = [sample.numbers[name] for name in names]
    rows = list(zip(*columns, strict=True))
    whole = sum(not any(map(math.isnan, row)) for row in rows)
    if len(rows) < _ENOUGH or whole >= 0.8 * len(rows):
        return 0
    series = sample.series or [None] * len(rows)
    since: dict[tuple[object, int], int] = {}
    gaps: list[int] = []
    for whose, row in zip(series, rows, strict=True):
        for i, x in enumerate(row):
            key = whose, i
            if math.isnan(x):
                since[key] = since.get(key, 0) + 1
            elif gap := since.pop(key, 0):
                gaps.append(gap)
    # What fails does so at random; what reports more seldom has gaps of one length.
    even = gaps and Counter(gaps).most_common(1)[0][1] >= _NEARLY_ALWAYS * len(gaps)
    if not gaps or (whole >= 0.5 * len(rows) and not even):
        return 0
    return sorted(gaps)[int(0.99 * (len(gaps) - 1))]


# ------------------------------------------------------------------------------------- mixture
def _mixture(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    cells = sample.cells[name]
    kinds = Counter(cell for cell in cells if cell)
    if not 2 <= len(kinds) <= _ENOUGH < len(cells) or kinds.total() < len(cells):
        return
    if any(number[:1].isdigit() for number in kinds):
        return
    for other, values in sample.numbers.items():
        there = Counter(kind for kind, x in zip(cells, values, strict=True) if not math.isnan(x))
        full = [kind for kind in kinds if there[kind] > 0.9 * kinds[kind]]
        if (
            full
            and all(there[kind] == 0 for kind in kinds if kind not in full)
            and len(full) < len(kinds)
        ):
            most = max(full, key=kinds.__getitem__)
            yield (
                f"{printable(name)} tells {len(kinds)} types of record apart, and only "
                f"{', '.join(map(printable, full))} has {printable(other)}",
                most,
            )
            return


# ---------------------------------------------------------------------------------------- time
def time_doubt(name: str, moments_ms: Sequence[int | None], unit: str, now_ms: int) -> str:
    """Say what is odd about the times of a column, or nothing. O(rows)."""
    known = [moment for moment in moments_ms if moment is not None]
    if not known:
        return ""
    first, last = min(known), max(known)
    named = named_unit(name)
    if named and unit not in (named, "iso8601"):
        return f"{printable(name)} speaks of {named}, and is read as {unit}"
    since_start = unit != "iso8601" and 0 <= first < _DAY_MS
    if not since_start and (first < _1990_MS or last > now_ms + _DAY_MS):
        return f"the times of {printable(name)} are from {_day(first)} to {_day(last)}"
    if unit == "s" and first - _1990_MS >= 0 and last < _2005_MS:
        return (
            f"the times of {printable(name)} are from {_day(first)} to {_day(last)}, counted from "
            "1970; from 2000 on is unit s2000, of GPS gps"
        )
    return ""


def named_unit(name: str) -> TimeUnit | None:
    """Return the unit that the name of a column of times speaks of."""
    return next((unit for pattern, unit in NAMED_UNITS if pattern.search(name)), None)


def _day(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d}"


def _time(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    # Said of the first column alone, as it is about the rows.
    if name == next(iter(sample.numbers)) and sample.moments_ms:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        if said := time_doubt(sample.time, sample.moments_ms, sample.time_unit, now_ms):
            yield said, ""


# ------------------------------------------------------------------------------------- decimal
def _decimal(sample: Sample, name: str) -> Iterator[tuple[str, str]]:
    given = [c for c in map(str.strip, sample.cells[name]) if c.lower() not in MISSING_TEXTS]
    grouped = [match for cell in given if (match := _GROUP.fullmatch(cell))]
    whole = sum(_INTEGER.fullmatch(cell) is not None for cell in given)
    marks = {match[1] for match in grouped}
    if grouped and whole and len(marks) == 1 and len(grouped) + whole >= 0.99 * len(given):
        yield (
            f"{printable(name)} holds whole numbers beside such as {printable(grouped[0][0])}, "
            "with exactly three digits behind the mark: it may stand between thousands",
            marks.pop(),
        )


_OF_CELLS: frozenset[Kind] = frozenset(("key", "mixture", "decimal"))
CHECKS: dict[Kind, _Check] = {
    "counter": _Check(
        _counter,
        "--channel takes it for a measurement",
        'leave it out of input.channels, make it a flag, or say kind = "counter" in [channels]',
    ),
    "key": _Check(_key, "--sensor names another, or - for none", "fix input.sensor"),
    "sentinel": _Check(
        _sentinel,
        "--missing {given} says it stands for no value",
        "if it stands for no value, give missing = [{value}] in [channels.{key}]",
    ),
    "sparse": _Check(
        _sparse,
        "--channel takes it all the same, and --carry ROWS lets its last value stand",
        "leave it out of input.channels, or give features.carry_forward_events",
    ),
    "mixture": _Check(
        _mixture,
        "init proposes an input.select",
        'give input.select, a jq program such as select({field} == "{value}")',
    ),
    "time": _Check(
        _time,
        "--time-unit or --time-format says how it is written",
        "check input.time_unit, input.time and input.time_format",
    ),
    "decimal": _Check(
        _decimal, "--decimal and --thousands say which", "check input.decimal and input.thousands"
    ),
}
"""Every check: its test, what overrules it on the command line, what in a config."""
