"""How the readings lie in records of JSON that nobody described, and the jq program that says so.

Each rule looks at a sample for one shape of industry: an envelope, text in JSON, readings in an
array, pairs of names and values, columns, machines as keys, several types of record. What it finds
is one step of a program; the sample goes through it, and the rules look again, until the records
are flat. So shapes within shapes need no rule of their own, and a program that is proposed has run.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rejex_stream.decode.json import flat
from rejex_stream.errors import ConfigError
from rejex_stream.tables.names import (
    COUNTER,
    PAIR,
    STEP,
    STRONG_SENSOR,
    TIME_OF_RECORD,
    VALUE,
    good_among,
    is_quality,
    last_of,
)

__all__ = ["Shape", "find_shape", "is_moment", "jq_of"]

_MOST_STEPS = 8
_MOSTLY = 0.8
_NEARLY = 0.95
_MOST_PLACES = 16
_SAMPLE = 500
"""Records that rules look at."""

_KINDS_OF_ONE = {
    *("before", "after", "min", "max", "avg", "mean", "std", "last", "first", "prev", "previous"),
    *("current", "x", "y", "z", "reported", "desired", "metadata", "state", "fields", "tags"),
    *("data", "values", "value", "payload", "headers", "header", "meta"),
}
_SEPARATORS = ("/", ".", ":", "|", ";", "_")


class Shape(NamedTuple):
    """What a sample is made of: the readings of each record, and the program that makes them.

    Without a program each record is one flat reading already.
    """

    program: str | None
    said: tuple[str, ...]
    readings: list[list[Any]]


_Step: TypeAlias = tuple[str, str]
"""A program, and what was seen."""


def find_shape(trees: Sequence[Any]) -> Shape:
    """Find the program that makes flat objects of a sample of parsed records. O(bytes)."""
    steps: list[str] = []
    said: list[str] = []
    readings = [[tree] for tree in trees]
    while len(steps) < _MOST_STEPS:
        now = [tree for found in readings for tree in found][:_SAMPLE]
        step = next((found for rule in _RULES if (found := rule(now)) is not None), None)
        if step is None:
            break
        made = _run(step[0], readings)
        if not any(made):
            break
        readings = made
        steps.append(step[0])
        said.append(step[1])
    program = " | ".join(steps)
    if steps and (clock := _clock_gone_back(readings)):
        # A record that holds one series behind the other is put in the order of time.
        program = f"[{program}] | sort_by({jq_of(clock)})[]"
        readings = _run(program, [[tree] for tree in trees])
    return Shape(program or None, tuple(said), readings)


def _clock_gone_back(readings: Sequence[Sequence[Any]]) -> str | None:
    """Return the clock of readings that goes back within a record, if one does."""
    several = [found for found in readings[:_SAMPLE] if len(_objects(found)) > 1]
    for path, values in _columns([one for found in several for one in found]).items():
        if not is_moment(values):
            continue
        clocks: list[list[Any]] = [
            [dict(flat(one)).get(path) for one in _objects(found)] for found in several
        ]
        known = [found for found in clocks if None not in found]
        if len(known) == len(clocks) and any(sorted(found) != found for found in known):
            return path
    return None


def _run(program: str, readings: Sequence[Sequence[Any]]) -> list[list[Any]]:
    try:
        import jq
    except ImportError:
        raise ConfigError(
            f"the records are read by a jq program, {program}, and jq is not installed: pip "
            "install 'rejex-stream[select]', then look again."
        ) from None
    compiled = jq.compile(program)
    made = []
    for found in readings:
        new: list[Any] = []
        for tree in found:
            try:
                new += [one for one in compiled.input_value(tree).all() if one is not None]
            except ValueError:
                continue
        made.append(new)
    return made


# ------------------------------------------------------------------------------- what fields are
def is_moment(values: Sequence[object]) -> bool:
    """Whether values are times of our age: seconds to nanoseconds since 1970, or ISO 8601."""
    given = [value for value in values if value is not None]
    return bool(given) and all(map(_is_moment, given))


def _is_moment(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return any(0.9 <= value / (1.7e9 * unit) <= 1.35 for unit in (1, 1e3, 1e6, 1e9))
    if not isinstance(value, str):
        return False
    if value.isdecimal():  # a number of seconds may be anything; one with more digits is a clock
        return len(value) in (13, 16, 19) and _is_moment(int(value))
    return bool(re.match(r"\d{4}-\d\d-\d\d[T ]\d", value))


def _is_measured(name: str, values: Sequence[object]) -> bool:
    """Whether a field of numbers is a measurement, not a time, a count or a name."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    last = last_of(name)
    if len(numbers) < _MOSTLY * len(values) or not numbers or is_moment(numbers):
        return False
    if COUNTER.search(name) or STEP.match(last) or is_quality(name, numbers):
        return False
    if any(not float(v).is_integer() for v in numbers):
        return True
    return not TIME_OF_RECORD.search(last) and len(set(numbers)) > 1


def _columns(trees: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the fields of objects by their paths, with the values that are there."""
    found: dict[str, list[Any]] = {}
    for tree in trees:
        for path, value in flat(tree) if isinstance(tree, dict) else ():
            if value is not None:
                found.setdefault(path, []).append(value)
    return found


def _measured(trees: Sequence[Any]) -> set[str]:
    return {name for name, values in _columns(trees).items() if _is_measured(name, values)}


def _objects(trees: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the trees where nearly all are objects, else none."""
    found = [tree for tree in trees if isinstance(tree, dict)]
    return found if len(found) >= _MOSTLY * len(trees) else []


def jq_of(path: str) -> str:
    """Return a path as jq writes it: ``motor.v`` is ``.motor.v``, ``a b`` is ``.["a b"]``."""
    parts = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", path)] if path else []
    plain = re.compile(r"[A-Za-z_]\w*")
    text = "".join(
        f".{part}" if plain.fullmatch(part) else f"[{json.dumps(part, ensure_ascii=False)}]"
        for part in parts
    )
    return text if text.startswith(".") else f".{text}"


def _lists(trees: Sequence[Any]) -> dict[str, list[list[Any]]]:
    """Return the arrays of records by path; the path of a record that is one is empty."""
    found: dict[str, list[list[Any]]] = {}
    for tree in trees:
        for path, value in flat(tree) if isinstance(tree, dict) else [("", tree)]:
            if isinstance(value, list):
                found.setdefault(path, []).append(value)
    return found


def _object_lists(trees: Sequence[Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the elements of the arrays that hold objects alone, by path."""
    for path, found in _lists(trees).items():
        elements = [one for each in found for one in each]
        if elements and all(isinstance(one, dict) for one in elements):
            yield path, elements


# ------------------------------------------------------------------------------------- envelopes
def _text(trees: Sequence[Any]) -> _Step | None:
    """JSON written as a text, the record itself or one of its fields; also in base64."""
    if trees and all(isinstance(tree, str) and _parsed(tree) is not None for tree in trees):
        return "fromjson", "text: the record is JSON written as a text"
    for path, values in _columns(_objects(trees)).items():
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) < _MOSTLY * len(values) or not texts:
            continue
        where = jq_of(path)
        if sum(_parsed(text) is not None for text in texts) >= _MOSTLY * len(texts):
            return f"{where} |= (fromjson? // .)", f"text in JSON: the field {path} is read as JSON"
        if sum(_parsed(_unpacked(text)) is not None for text in texts) >= _MOSTLY * len(texts):
            return (
                f"{where} |= ((@base64d | fromjson)? // .)",
                f"base64: the field {path} holds JSON",
            )
    return None


def _parsed(text: str) -> object:
    if text.strip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def _unpacked(text: str) -> str:
    if len(text) < 8 or len(text) % 4:
        return ""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def _bare(trees: Sequence[Any]) -> _Step | None:
    numbers = [tree for tree in trees if isinstance(tree, int | float)]
    if trees and len(numbers) >= _MOSTLY * len(trees):
        return (
            'if type == "object" then . else {value: .} end',
            "bare numbers: the record is a value alone, called value",
        )
    return None


_UNIONS = ("string", "double", "float", "int", "long", "boolean", "bytes")
"""How Avro's own JSON marks which branch of a union a value is of."""


def _union(trees: Sequence[Any]) -> _Step | None:
    """Take values out of Avro's unions: ``{"double": 60.1}`` is 60.1."""
    marked = [path for path in _columns(_objects(trees)) if path.rpartition(".")[2] in _UNIONS]
    objects = {path.rpartition(".")[0] for path in marked} - {""}
    if len(objects) < 2 or len(objects) < len(marked):
        return None
    branches = ", ".join(map(json.dumps, _UNIONS))
    return (
        'walk(if type == "object" and length == 1 and (keys[0] | '
        f"IN({branches})) then .[] else . end)",
        f"unions of Avro: {marked[0]} and others are read without the name of their type",
    )


def _with_units(trees: Sequence[Any]) -> _Step | None:
    """Take a number out of an array that holds it alone, or with the text of its unit."""
    found = [
        path
        for path, lists in _lists(trees).items()
        if path
        and all(one and _is_number(one[0]) and not isinstance(one[0], bool) for one in lists)
        and all(isinstance(unit, str) and not _is_number(unit) for one in lists for unit in one[1:])
        and max(map(len, lists)) <= 2
    ]
    if not found:
        return None
    return (
        " | ".join(f"{jq_of(path)} |= .[0]" for path in found),
        f"one number in an array: {', '.join(found[:8])}, read as the number",
    )


def _places(trees: Sequence[Any]) -> _Step | None:
    """Name what stands in arrays without names by its place: in the record itself, or in rows."""
    for path, lists in _lists(trees).items():
        within = [row for rows in lists for row in rows]
        nested = bool(within) and all(isinstance(row, list) for row in within)
        if not (nested or path == ""):
            continue
        rows = within if nested else lists
        width = len(rows[0])
        flat_rows = all(not isinstance(value, list | dict) for row in rows for value in row)
        if not 1 < width <= _MOST_PLACES or not flat_rows or any(len(r) != width for r in rows):
            continue
        names = _names_of_places([[row[i] for row in rows] for i in range(width)])
        if not any(name.startswith("v") for name in names):
            continue
        made = f"{{{', '.join(f'{name}: .[{i}]' for i, name in enumerate(names))}}}"
        where = jq_of(path)
        each = f"del({where}) as $record | {where}[] | $record + {made}" if path else made
        return (
            f".[] | {made}" if nested and not path else each,
            f"arrays without names: their places are called {', '.join(names)}; select may rename "
            "them",
        )
    return None


def _names_of_places(columns: Sequence[Sequence[object]]) -> list[str]:
    """Return t for a clock, name for a text, v1 for a number in the second place."""
    names: list[str] = []
    for i, values in enumerate(columns):
        given = [value for value in values if value is not None]
        kind = "t" if is_moment(given) else f"v{i}" if all(map(_is_number, given)) else "name"
        names.append(f"{kind}{i}" if kind in names else kind)
    return names


_OLD_AND_NEW = (("previous", "current"), ("old_state", "new_state"), ("old", "new"))


def _envelope(trees: Sequence[Any]) -> _Step | None:
    """Take a row out of its change, or a value out of what holds its schema."""
    objects = _objects(trees)
    if not objects:
        return None
    keys = set.intersection(*map(set, objects))
    every = set.union(*map(set, objects))
    if {"schema", "payload"} <= keys and len(every) <= 3:
        return ".payload", "an envelope: the value is in payload, its schema beside it"
    if {"before", "after"} <= every and "after" in every and (every & {"op", "op_type", "source"}):
        return (
            ".after // empty",
            "changes of a table: the row is in after; deletes, which have none, are ignored",
        )
    columns = _columns(objects)
    for old, new in _OLD_AND_NEW:
        for above in {m[1] for path in columns if (m := re.match(rf"(.*\.|){old}(\.|$)", path))}:
            if any(re.match(re.escape(above + new) + r"(\.|$)", path) for path in columns):
                seen = f"before and after: {above}{new} is read, {above}{old} left out"
                return f"del({jq_of(above + old)})", seen
    if {"type", "data", "table"} <= keys:
        return (
            'select(.type | ascii_downcase | . != "delete") | del(.data) as $record | .data '
            '| if type == "array" then .[] else . end | $record + .',
            "changes of a table: the row is in data; deletes are ignored",
        )
    return None


# --------------------------------------------------------------------------------- several types
def _types(trees: Sequence[Any]) -> _Step | None:
    """Several types of record, of which one holds the measurements."""
    objects = _objects(trees)
    if len(objects) < 10:
        return None
    rows = [dict(flat(tree)) for tree in objects]
    everywhere = _columns(objects)
    measured = {name for name, values in everywhere.items() if _is_measured(name, values)}
    arrays = {name for name, values in everywhere.items() if isinstance(values[0], list)}
    worth = measured | arrays
    fields = [{name for name in row if name in worth and row[name] is not None} for row in rows]
    for name, values in everywhere.items():
        kinds = set(map(str, values))
        if not (2 <= len(kinds) <= 12 and all(isinstance(value, str) for value in values)):
            continue
        if len(values) < _NEARLY * len(rows):
            continue
        step = _by_kind(name, [str(row.get(name)) for row in rows], fields)
        if step is not None:
            return step
    floats = {
        name
        for name in measured
        if len(everywhere[name]) >= 0.2 * len(rows)
        and any(not float(v).is_integer() for v in everywhere[name] if isinstance(v, float | int))
    }
    without = sum(not (found & floats) for found in fields)
    if arrays or not floats or not 0.02 * len(rows) <= without <= _MOSTLY * len(rows):
        return None
    some = sorted(floats, key=lambda name: -len(everywhere[name]))[:8]
    return (
        f"select(any({', '.join(map(jq_of, some))}; . != null))",
        f"types: {without:,} of {len(rows):,} records hold none of {', '.join(some)} and are "
        "ignored",
    )


def _by_kind(name: str, kinds: Sequence[str], fields: Sequence[set[str]]) -> _Step | None:
    of: dict[str, list[set[str]]] = {}
    for kind, found in zip(kinds, fields, strict=True):
        of.setdefault(kind, []).append(found)
    shared = [
        {
            field
            for field in set.union(*found)
            if sum(field in one for one in found) * 3 > len(found)
        }
        for found in of.values()
    ]
    known = dict(zip(of, shared, strict=True))
    common = set.intersection(*shared)
    best = max(known, key=lambda kind: (len(known[kind] - common), len(of[kind])))
    core = known[best] - common
    wanted = [kind for kind, found in of.items() if set.union(*found) & core]
    others = [kind for kind in known if kind not in wanted]
    # Where each kind has one field of its own it is the tag of a long topic, not a type.
    if not core or not others or (len(others) > 1 and all(len(known[k]) == 1 for k in known)):
        return None
    if any(known[kind] - common for kind in others) and len(core) < 2:
        return None
    test = (
        f"{jq_of(name)} == {json.dumps(wanted[0])}"
        if len(wanted) == 1
        else f"{jq_of(name)} | IN({', '.join(map(json.dumps, wanted))})"
    )
    return (
        f"select({test})",
        f"types: {name} says what a record is; {', '.join(wanted)} is read, "
        f"{', '.join(others[:5])} ignored",
    )


# ---------------------------------------------------------------------------------------- arrays
def _senml(trees: Sequence[Any]) -> _Step | None:
    """Spread a pack of SenML: what begins with b holds for all of it."""
    packs = [tree for tree in trees if isinstance(tree, list) and tree]
    if len(packs) < _MOSTLY * max(1, len(trees)):
        return None
    if not all(isinstance(one, dict) for pack in packs for one in pack):
        return None
    if not any({"bn", "bt", "bu", "bver"} & set(pack[0]) for pack in packs):
        return None
    return (
        '(map(.bn // empty) | first // "") as $name | (map(.bt // empty) | first // 0) as $time '
        '| map(select(.n or has("v"))) | group_by(.t // 0)[] '
        '| {sensor: ($name | sub("[/:.]$"; "")), t: ($time + (.[0].t // 0))} '
        '+ (map({(.n // "value"): (if has("v") then .v else .vb end)}) | add)',
        "SenML: names and values in an array; its base name is the sensor",
    )


def _table(trees: Sequence[Any]) -> _Step | None:
    """Names of columns once, and rows without them."""
    objects = _objects(trees)
    lists = _lists(objects)
    for path, found in lists.items():
        rows = [row for one in found for row in one]
        if not rows or not all(isinstance(row, list) for row in rows):
            continue
        width = Counter(map(len, rows)).most_common(1)[0][0]
        for names, listed in lists.items():
            if names == path or not all(len(one) == width for one in listed):
                continue
            if all(isinstance(name, str) for one in listed for name in one):
                return (
                    f"del({jq_of(path)}, {jq_of(names)}) as $record | {jq_of(names)} as $names "
                    f"| {jq_of(path)}[] | $record + ([$names, .] | transpose "
                    "| map({(.[0]): .[1]}) | add)",
                    f"a table: rows in {path}, the names of its columns in {names}",
                )
    return None


def _attributes(trees: Sequence[Any]) -> _Step | None:
    """Texts with names in an array, as OpenTelemetry says whose a value is: fields of an object."""
    for path, elements in _object_lists(trees):
        first = sorted(elements[0], key=lambda key: key.lower() not in ("key", "name", "k", "n"))
        if not path or len(first) != 2 or any(set(one) != set(first) for one in elements):
            continue
        name, value = first
        if name.lower() not in ("key", "name", "k", "n") or not VALUE.match(last_of(value)):
            continue
        values = [one[value] for one in elements]
        held = [
            next(iter(v.values())) if isinstance(v, dict) and len(v) == 1 else v for v in values
        ]
        if all(isinstance(v, str) and not _is_number(v) for v in held):
            where, taken = jq_of(path), 'if type == "object" then .[] else . end'
            return (
                f"{where} |= (map({{({jq_of(name)}): ({jq_of(value)} | {taken})}}) | add)",
                f"attributes: names and texts in the array {path} are read as fields",
            )
    return None


def _within(trees: Sequence[Any]) -> _Step | None:
    """Arrays within the objects of an array: each becomes an element of the outer one."""
    for path, elements in _object_lists(trees):
        for inner, values in _lists(elements).items():
            below = [one for each in values for one in each]
            if len(values) < _MOSTLY * len(elements) or not below:
                continue
            if all(isinstance(one, dict) for one in below) and _measured(below):
                where, deep = jq_of(path), jq_of(inner)
                return (
                    f"{where} |= [.[] | del({deep}) as $outer | {deep}[] | $outer + .]",
                    f"arrays in arrays: {inner} within {path or 'the record'}",
                )
    return None


@dataclass(frozen=True)
class _Pair:
    """Which fields of the elements of an array are what."""

    name: str
    values: list[str]
    time: str | None
    quality: str | None
    good: list[Any]
    sensor: str | None  # which says whose a value is, where the name does not

    @classmethod
    def of(cls, elements: Sequence[dict[str, Any]]) -> _Pair | None:
        columns = _columns(elements)
        n = len(elements)
        values = [
            path for path in columns if VALUE.match(last_of(path)) and not is_moment(columns[path])
        ]
        measured = [p for p in columns if _is_measured(p, columns[p])]
        if not values and len(measured) == 1:
            values = measured
        if len({path.rpartition(".")[0] for path in values}) != 1:
            return None
        if not any(_is_number(v) for path in values for v in columns[path]):
            return None
        names = [
            path
            for path in columns
            if path not in values
            and len(columns[path]) >= _NEARLY * n
            and all(isinstance(value, str) for value in columns[path])
            and PAIR.match(last_of(path))
            and not is_moment(columns[path])
            and len(set(columns[path])) > 1
            and len(set(columns[path])) <= max(2, n / 2)
        ]
        if not names:
            return None
        name = max(names, key=lambda path: len(set(columns[path])))
        if any(_is_free(p, name, elements) for p in set(measured) - set(values)):
            return None
        times = [path for path in columns if is_moment(columns[path])]
        flags = [p for p in columns if p not in (*values, name) and is_quality(p, columns[p])]
        flags = [p for p in flags if good_among(columns[p], p)]
        # Where a status has a text beside its code, the text says more.
        quality = min(flags, key=lambda p: not isinstance(columns[p][0], str), default=None)
        good = good_among(columns[quality], quality) if quality else []
        whose = [
            path for path in columns
            if path != name and STRONG_SENSOR.match(last_of(path))
            and all(isinstance(value, str) for value in columns[path])
            and len(set(columns[path])) > 1 and _is_free(path, name, elements)
        ]  # fmt: skip
        sensor = whose[0] if whose else None
        return cls(name, values, times[0] if times else None, quality, good, sensor)

    @property
    def value(self) -> str:
        """What jq makes of an element's value: null where it is not good."""
        found = " // ".join(map(jq_of, self.values))
        if self.quality is None:
            return f"({found})" if len(self.values) > 1 else found
        good = ", ".join(["null", *map(json.dumps, self.good)])
        return f"(if {jq_of(self.quality)} | IN({good}) then {found} else null end)"


def _is_number(value: object) -> bool:
    """Whether a value is a number, or a text that is one."""
    if isinstance(value, str):
        return bool(re.fullmatch(r"\s*[+-]?\d+([.,]\d+)?\s*", value))
    return isinstance(value, int | float)


def _is_free(path: str, name: str, elements: Sequence[dict[str, Any]]) -> bool:
    """Whether a field varies under one name: else it says no more than the name does."""
    known: dict[object, set[object]] = {}
    for one in elements:
        row = dict(flat(one))
        known.setdefault(row.get(name), set()).add(row.get(path))
    return any(len(values - {None}) > 1 for values in known.values())


class _Split(NamedTuple):
    """How a name is parted into whose it is and what it is."""

    separator: str
    whose: tuple[int, ...]
    what: int

    def part(self, expression: str, which: int) -> str:
        return f"({expression} | split({json.dumps(self.separator)})[{which}])"

    def sensor(self, expression: str) -> str:
        parts = [self.part(expression, i) for i in self.whose]
        if len(parts) == 1:
            return parts[0][1:-1]
        return f' + "{self.separator}" + '.join(parts)


def _split_of(names: Sequence[str]) -> _Split | None:
    """Find how names are parted, where each machine has about the same quantities."""
    distinct = list(dict.fromkeys(names))
    for separator in _SEPARATORS:
        parted = [name.split(separator) for name in distinct]
        (width, n), *_ = Counter(map(len, parted)).most_common(1)
        if width < 2 or n < len(parted):
            continue
        vary = [i for i in range(width) if len({parts[i] for parts in parted}) > 1]
        if len(vary) < 2:
            continue
        *whose, what = vary
        machines = {tuple(parts[i] for i in whose) for parts in parted}
        things = {parts[what] for parts in parted}
        if len(things) > 1 and len(distinct) >= 0.75 * len(machines) * len(things):
            return _Split(separator, tuple(whose), what)
    return None


def _pairs(trees: Sequence[Any]) -> _Step | None:
    """Names and values in an array: an object with the names as its fields."""
    for path, found in _lists(trees).items():
        elements = [one for each in found for one in each if isinstance(one, dict)]
        if not elements or len(elements) < sum(map(len, found)) or _measured_outside(trees, path):
            continue
        pair = _Pair.of(elements)
        if pair is None:
            continue
        columns = [dict(flat(one)) for one in elements]
        names = [str(row.get(pair.name)) for row in columns]
        where, name = jq_of(path), jq_of(pair.name)
        outer = {} if not path else _columns(trees)
        timed = any(TIME_OF_RECORD.search(last_of(p)) and is_moment(v) for p, v in outer.items())
        record = f"del({where}) as $record | " if path else ""
        keep = "$record + " if path else ""
        groups, own = [], []
        split = _split_of(names)
        if split is not None:
            sensor = split.sensor(f".[0]{name}")
            groups.append(split.sensor(name))
            own.append(f"sensor: ({sensor})")
            name = split.part(name, split.what)
        elif pair.sensor is not None:
            groups.append(jq_of(pair.sensor))
            own.append(f"sensor: .[0]{jq_of(pair.sensor)}")
        again = any(
            len({dict(flat(o)).get(pair.name) for o in each if isinstance(o, dict)}) < len(each)
            for each in found
        )
        if pair.time is not None and (again or not timed):
            if again:
                groups.append(jq_of(pair.time))
            own.append(f"t: (map({jq_of(pair.time)}) | max)")
        group = f"group_by([{', '.join(groups)}])[] | " if groups else ""
        made = f"{{{', '.join(own)}}} + " if own else ""
        also = "" if pair.quality is None else f"; {pair.quality} says whether a value is good"
        return (
            f"{record}{where} | select(length > 0) | {group}"
            f"{keep}{made}(map({{({name}): {pair.value}}}) | add)",
            f"names and values: {pair.name} and {' or '.join(pair.values)} in the array "
            f"{path or 'that a record is'}{also}",
        )
    return None


def _measured_outside(trees: Sequence[Any], path: str) -> bool:
    """Whether a record measures something beside its array: then that is no list of readings."""
    if not path:
        return False
    columns = _columns(trees)
    return any(
        _is_measured(name, values) and any(not float(v).is_integer() for v in values)
        for name, values in columns.items()
        if all(isinstance(v, int | float) for v in values)
    )


def _readings(trees: Sequence[Any]) -> _Step | None:
    """Take readings out of an array, each with what holds for all of them."""
    best: tuple[int, str] | None = None
    for path, elements in _object_lists(trees):
        n_lists = bool(_lists(elements))
        if not (_measured(elements) or n_lists) or _measured_outside(trees, path):
            continue
        if best is None or len(elements) > best[0]:
            best = len(elements), path
    if best is None:
        return None
    path = best[1]
    seen = (
        f"readings: {best[0]:,} in the array {path or 'that a record is'} of {len(trees):,} records"
    )
    if not path:
        return ".[]", seen
    return f"del({jq_of(path)}) as $record | {jq_of(path)}[] | $record + .", seen


def _column_arrays(trees: Sequence[Any]) -> _Step | None:
    """Cut arrays of a channel each: the values at one place of all are a reading."""
    objects = _objects(trees)
    lists = {
        path: found
        for path, found in _lists(objects).items()
        if any(found) and all(isinstance(v, int | float | str | None) for one in found for v in one)
    }
    numbers = {
        path
        for path, found in lists.items()
        if all(isinstance(v, int | float | None) for one in found for v in one)
    }
    if not numbers or not any(len(one) > 1 for found in lists.values() for one in found):
        return None
    if any(_measured_outside(objects, path) for path in numbers):
        return None
    above = {path.rpartition(".")[0] for path in lists}
    if len(above) > 1:
        return None
    inside = above.pop()
    rows = [dict(flat(tree)) for tree in objects]
    even = sum(
        len({len(one) for p in lists if isinstance(one := row.get(p), list)}) == 1 for row in rows
    )
    if even < _MOSTLY * len(rows):
        return None
    first = sorted(numbers)[0]
    spread = 'with_entries(.value |= if type == "array" then .[$i] else . end)'
    if inside:
        where = jq_of(inside)
        spread = f"del({where}) + ({where} | {spread})"
    program = f"range({jq_of(first)} | length) as $i | {spread}"
    seen = f"columns: {', '.join(sorted(lists))} are arrays, a reading at each place"
    timed = any(is_moment([v for one in found for v in one]) for found in lists.values())
    return (program, seen) if timed else _spaced(program, seen, _columns(objects))


def _spaced(program: str, seen: str, columns: dict[str, list[Any]]) -> _Step:
    """Give readings at even distances their times, by where they begin and how far apart."""
    begin = next((path for path, values in columns.items() if is_moment(values)), None)
    step = next(
        (p for p, v in columns.items()
         if STEP.match(last_of(p)) and all(isinstance(x, int | float) for x in v)), None,
    )  # fmt: skip
    if begin is None or step is None:
        return program, f"{seen}; nothing says how far apart they are"
    value = columns[begin][0]
    if isinstance(value, str):
        start, a_second = f'({jq_of(begin)} | sub("\\\\.[0-9]+"; "") | fromdateiso8601 * 1000)', 1e3
    else:
        start = jq_of(begin)
        a_second = next(u for u in (1, 1e3, 1e6, 1e9) if 0.9 <= value / (1.7e9 * u) <= 1.35)
    last = step.rsplit(".", 1)[-1].lower()
    if re.match(r"^(fs|rate|sampl\w*_?rate|freq)", last):
        apart = f"{a_second:.0f} / {jq_of(step)}"
    else:
        unit = next((u for u in ("ms", "us", "ns", "sec", "s") if last.endswith(u)), "ms")
        size = {"ms": 1e3, "us": 1e6, "ns": 1e9, "sec": 1, "s": 1}[unit]
        factor = a_second / size
        apart = jq_of(step) if factor == 1 else f"{jq_of(step)} * {factor:.15g}"
    return (
        f"{program} | {{t: ({start} + $i * {apart})}} + del({jq_of(begin)}, {jq_of(step)})",
        f"{seen}, from {begin} on, {step} apart",
    )


def _keyed(trees: Sequence[Any]) -> _Step | None:
    """Machines as the keys of an object."""
    objects = _objects(trees)
    for path, found in _dicts(objects).items():
        inner: dict[str, set[str]] = {}
        lists = False
        for one in found:
            for key, below in one.items():
                lists = lists or isinstance(below, list)
                for part in below if isinstance(below, list) else [below]:
                    if isinstance(part, dict):
                        inner.setdefault(key, set()).update(name for name, _ in flat(part))
        keys = set(itertools.chain.from_iterable(found))
        if len(keys) < 2 or set(inner) != keys or keys & _KINDS_OF_ONE:
            continue
        fields = list(inner.values())
        shared, every = set.intersection(*fields), set.union(*fields)
        if len(shared) < 0.7 * len(every) or not shared:
            continue
        if any(VALUE.match(last_of(name)) for name in shared):
            continue  # channels, each with its value
        if all(TIME_OF_RECORD.search(last_of(name)) for name in shared):
            continue
        below = [part for one in found for each in one.values()
                 for part in (each if isinstance(each, list) else [each])]  # fmt: skip
        if not _measured(below) and not any(_lists(below)):
            continue  # of units and names, say
        each = ".value[]" if lists else ".value"
        if lists:
            each = '(.value | if type == "array" then .[] else . end)'
        seen = f"machines as keys: {', '.join(sorted(keys)[:4])} become the field sensor"
        if not path:
            return f"to_entries[] | .key as $key | {each} | {{sensor: $key}} + .", seen
        return (
            f"del({jq_of(path)}) as $record | {jq_of(path)} | to_entries[] | .key as $key | {each} "
            "| $record + {sensor: $key} + .",
            seen,
        )
    return None


def _dicts(objects: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return objects whose values are all objects, or arrays of them, by path."""
    found: dict[str, list[dict[str, Any]]] = {}

    def visit(tree: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if tree and all(
            isinstance(v, dict) or (isinstance(v, list) and v and isinstance(v[0], dict))
            for v in tree.values()
        ):
            yield path, tree
        for name, below in tree.items():
            if isinstance(below, dict):
                part = name.replace(".", "\\.")
                yield from visit(below, f"{path}.{part}" if path else part)

    for one in objects:
        for path, tree in visit(one, ""):
            found.setdefault(path, []).append(tree)
    return {path: trees for path, trees in found.items() if len(trees) >= _MOSTLY * len(objects)}


def _named_values(trees: Sequence[Any]) -> _Step | None:
    """One value a record, under a text that names machine and quantity at once."""
    objects = _objects(trees)
    columns = _columns(objects)
    numbers = {p for p, v in columns.items() if VALUE.match(last_of(p)) or last_of(p) == "state"}
    numbers = {p for p in numbers if sum(map(_is_number, columns[p])) > 0.5 * len(columns[p])}
    if len(_measured(objects)) != 1 and len(numbers) != 1:
        return None
    for path, values in columns.items():
        if not all(isinstance(value, str) for value in values) or is_moment(values):
            continue
        if len(values) < _NEARLY * len(objects) or len(set(values)) > len(values) / 2:
            continue
        split = _split_of(values)
        if split is None:
            continue
        whose, what = split.sensor("$name"), split.part("$name", split.what)
        return (
            f"{jq_of(path)} as $name | del({jq_of(path)}) + {{sensor: ({whose}), tag: {what}}}",
            f"names: {path} says both whose a value is and what, such as {values[0]}",
        )
    return None


def _keyed_beside(trees: Sequence[Any]) -> _Step | None:
    """Machines as the keys of an object that holds a time, too, and no name."""
    objects = _objects(trees)
    parts = [{k: v for k, v in one.items() if isinstance(v, dict)} for one in objects]
    rest = [{k: v for k, v in one.items() if not isinstance(v, dict)} for one in objects]
    if not objects or not all(len(one) > 1 for one in parts):
        return None
    texts = [p for p, values in _columns(rest).items() if isinstance(values[0], str)]
    if _measured(rest) or any(not is_moment(_columns(rest)[p]) for p in texts):
        return None
    step = _keyed(parts)
    if step is None or "to_entries" not in step[0][:12]:
        return None
    program = (
        'map_values(select(type != "object")) as $record | to_entries[] '
        '| select(.value | type == "object") | $record + {sensor: .key} + .value'
    )
    return program, step[1]


_RULES: tuple[Callable[[Sequence[Any]], _Step | None], ...] = (
    _text, _bare, _union, _envelope, _types, _senml, _table, _with_units, _places, _keyed,
    _keyed_beside, _attributes, _within, _pairs, _column_arrays, _readings, _named_values,
)  # fmt: skip
