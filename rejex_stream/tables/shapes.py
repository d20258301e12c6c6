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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rejex_stream.decode.json import flat
from rejex_stream.decode.select import Selector
from rejex_stream.errors import needing_extra
from rejex_stream.tables.fields import MOSTLY, FieldProfile, Trees, is_moment, is_number, jq_of
from rejex_stream.tables.names import (
    PAIR,
    STEP,
    STRONG_SENSOR,
    TIME_OF_RECORD,
    VALUE,
    good_among,
    is_quality,
    is_unit,
    last_of,
)

_MOST_STEPS = 8
_NEARLY = 0.95
_MOST_PLACES = 16
_SAMPLE = 500
"""Records that rules look at."""

_KINDS_OF_ONE = {
    *("before", "after", "min", "max", "avg", "mean", "std", "last", "first", "prev", "previous"),
    *("current", "x", "y", "z", "reported", "desired", "metadata", "state", "fields", "tags"),
    *("data", "values", "value", "payload", "headers", "header", "meta"),
}
_NAMES = ("key", "name", "k", "n")
_WHEN = re.compile(
    r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AP]M)?|\d{1,4}([./-])\d{1,2}\4\d{1,4}([ T].*)?", re.I
)
_SEPARATORS = ("/", ".", ":", "|", ";", "_")


class Shape(NamedTuple):
    """What a sample is made of: the readings of each record, and the program that makes them.

    Without a program each record is one flat reading already.
    """

    program: str | None
    said: tuple[str, ...]
    readings: list[list[Any]]

    def shown(self, first: object) -> tuple[str, ...]:
        """Return what was seen, and what the program makes of the first record."""
        if self.program is None:
            return self.said
        made = next(iter(self.readings[0]), None)
        trees = (json.dumps(tree, ensure_ascii=False) for tree in (first, made))
        before, after = (text if len(text) <= 300 else f"{text[:299]}…" for text in trees)
        return (*self.said, f"select: {self.program}", f"before: {before}", f"after: {after}")


_Step: TypeAlias = tuple[str, str]
"""A program, and what was seen."""


def find_shape(trees: Sequence[Any], program: str | None = None) -> Shape:
    """Find the program that makes flat objects of records, where none is given. O(bytes)."""
    steps: list[str] = []
    said: list[str] = []
    readings = [[tree] for tree in trees]
    if program is not None:
        Selector(program)  # which says what is wrong with it
        return Shape(program, (), _run(program, readings))
    while len(steps) < _MOST_STEPS:
        now = Trees([tree for found in readings for tree in found][:_SAMPLE])
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
    several = [Trees(found) for found in readings[:_SAMPLE] if len(Trees(found).objects) > 1]
    for path, field in Trees([one for found in several for one in found.all]).fields.items():
        if field.is_moment and all(path in one.fields for one in several):
            clocks = [one.fields[path].rows for one in several]
            known = all(None not in clock for clock in clocks)
            if known and any(sorted(clock) != [*clock] for clock in clocks):
                return path
    return None


def _run(program: str, readings: Sequence[Sequence[Any]]) -> list[list[Any]]:
    with needing_extra("select", f"the jq program {program}, which reads the records,"):
        import jq
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


# ------------------------------------------------------------------------------------- envelopes
def _text(trees: Trees) -> _Step | None:
    if len(trees.all) and all(isinstance(tree, str) and json_in(tree) for tree in trees.all):
        return "fromjson", "text: the record is JSON written as a text"
    for path, field in trees.fields.items() if trees.objects else ():
        texts = [value for value in field.values if isinstance(value, str)]
        if len(texts) < MOSTLY * len(field.values) or not texts:
            continue
        where = jq_of(path)
        if sum(json_in(text) is not None for text in texts) >= MOSTLY * len(texts):
            return f"{where} |= (fromjson? // .)", f"text in JSON: the field {path} is read as JSON"
        if sum(json_in(_unpacked(text)) is not None for text in texts) >= MOSTLY * len(texts):
            return (
                f"{where} |= ((@base64d | fromjson)? // .)",
                f"base64: the field {path} holds JSON",
            )
    return None


def json_in(text: str) -> object:
    """Return the object or array that a text is as JSON, else nothing."""
    if text.strip()[:1] not in ("{", "["):
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict | list) else None


def _unpacked(text: str) -> str:
    if len(text) < 8 or len(text) % 4:
        return ""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""


def _bare(trees: Trees) -> _Step | None:
    numbers = [tree for tree in trees.all if isinstance(tree, int | float)]
    if numbers and len(numbers) >= MOSTLY * len(trees.all):
        return (
            'if type == "object" then . else {value: .} end',
            "bare numbers: the record is a value alone, called value",
        )
    return None


def _frames(trees: Trees) -> _Step | None:
    """Take the object out of arrays that hold one beside numbers and texts, as OCPP's calls do."""
    places = Counter(
        [*map(type, tree)].index(dict)
        for tree in trees.all
        if isinstance(tree, list) and [*map(type, tree)].count(dict) == 1 < len(tree)
    )
    place, n = next(iter(places.most_common(1)), (0, 0))
    if n < max(1, MOSTLY * len(trees.all)):
        return None
    return (
        f".[{place}] | objects",
        f"arrays: the object at place {place} of each is read, and what stands beside it is not",
    )


_UNIONS = ("string", "double", "float", "int", "long", "boolean", "bytes", "S", "N", "BOOL", "M",
           "$numberDouble", "$numberLong", "$numberInt")  # fmt: skip
"""How Avro's own JSON, DynamoDB and MongoDB mark of which type a value is."""


def _union(trees: Trees) -> _Step | None:
    marked = [path for path in trees.fields if path.rpartition(".")[2] in _UNIONS]
    objects = {path.rpartition(".")[0] for path in marked} - {""}
    enough = 1 if any(path.rpartition(".")[2].startswith("$") for path in marked) else 2
    if len(objects) < enough or len(objects) < len(marked):
        return None
    branches = ", ".join(map(json.dumps, _UNIONS))
    return (
        'walk(if type == "object" and length == 1 and (keys[0] | '
        f"IN({branches})) then .[] else . end)",
        f"unions: {marked[0]} and others are read without the name of their type",
    )


def _with_units(trees: Trees) -> _Step | None:
    found = [
        path
        for path, lists in trees.lists.items()
        if path
        and all(one and is_number(one[0]) for one in lists)
        and all(isinstance(unit, str) and not is_number(unit) for one in lists for unit in one[1:])
        and max(map(len, lists)) <= 2
    ]
    if not found:
        return None
    return (
        " | ".join(f"{jq_of(path)} |= .[0]" for path in found),
        f"one number in an array: {', '.join(found[:8])}, read as the number",
    )


def _places(trees: Trees) -> _Step | None:
    """Name what stands in arrays by its place, in the record itself or in rows: as another does."""
    for path, lists in trees.lists.items():
        within = [row for rows in lists for row in rows]
        nested = bool(within) and all(isinstance(row, list) for row in within)
        # One time with one number, as Prometheus has them.
        pair = all(len(row) == 2 and is_moment(row[0]) and is_number(row[1]) for row in lists)
        if not (nested or path == "" or pair):
            continue
        rows, where = within if nested else lists, jq_of(path)
        width = Counter(map(len, rows)).most_common(1)[0][0]
        if nested and (header := _header_beside(trees, path, width)):
            return (
                f"del({where}, {jq_of(header)}) as $record | {jq_of(header)} as $names "
                f"| {where}[] | $record + ([$names, .] | transpose | map({{(.[0]): .[1]}}) | add)",
                f"a table: rows in {path}, the names of its columns in {header}",
            )
        flat_rows = all(not isinstance(value, list | dict) for row in rows for value in row)
        if not 1 < width <= _MOST_PLACES or not flat_rows or any(len(r) != width for r in rows):
            continue
        names = _names_of_places([[row[i] for row in rows] for i in range(width)])
        if not any(name.startswith("v") for name in names):
            continue
        made = f"{{{', '.join(f'{name}: .[{i}]' for i, name in enumerate(names))}}}"
        each = f"del({where}) as $record | {where}[] | $record + {made}" if path else made
        each = f"del({where}) + ({where} | {made})" if path and pair else each
        return (
            f".[] | {made}" if nested and not path else each,
            f"arrays without names: their places are called {', '.join(names)}; select may rename "
            "them",
        )
    return None


def _header_beside(trees: Trees, rows: str, width: int) -> str | None:
    """Return the array that names the columns of the rows in another, if one does."""
    for path, lists in trees.lists.items():
        named = all(isinstance(name, str) for one in lists for name in one)
        if path != rows and named and all(len(one) == width for one in lists):
            return path
    return None


def _names_of_places(columns: Sequence[Sequence[object]]) -> list[str]:
    """Return t for a clock, name for a text, v1 for a number in the second place."""
    names: list[str] = []
    for i, values in enumerate(columns):
        given = [value for value in values if value is not None]
        clock = given and all(map(is_moment, given))
        kind = "t" if clock else f"v{i}" if all(map(_is_value, given)) else "name"
        names.append(f"{kind}{i}" if kind in names else kind)
    return names


_OLD_AND_NEW = (("previous", "current"), ("old_state", "new_state"), ("old", "new"))


def _envelope(trees: Trees) -> _Step | None:
    """Take a row out of its change, or a value out of what holds its schema."""
    objects = trees.objects
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
    columns = trees.fields
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
def _types(trees: Trees) -> _Step | None:
    objects = trees.objects
    if len(objects) < 10:
        return None
    rows, everywhere = trees.rows, trees.fields
    arrays = {name for name, field in everywhere.items() if isinstance(field.values[0], list)}
    worth = trees.measured | arrays
    fields = [{name for name in row if name in worth and row[name] is not None} for row in rows]
    for name, field in everywhere.items():
        if 2 <= len(field.distinct) <= 12 and field.is_text and field.is_in(_NEARLY):
            step = _by_kind(name, list(map(str, field.rows)), fields)
            if step is not None:
                return step
    floats = {name for name in trees.measured
              if everywhere[name].is_in(0.2) and _is_fractional(everywhere[name])}  # fmt: skip
    without = sum(floats.isdisjoint(row) for row in rows)  # what is null is missing
    if arrays or not floats or not 0.02 * len(rows) <= without <= MOSTLY * len(rows):
        return None
    some = sorted(floats, key=lambda name: -len(everywhere[name].values))[:8]
    return (
        f"select(any({', '.join(map(jq_of, some))}; . != null))",
        f"types: {without:,} of {len(rows):,} records hold none of {', '.join(some)} and are "
        "ignored",
    )


def _by_kind(name: str, kinds: Sequence[str], fields: Sequence[set[str]]) -> _Step | None:
    of: dict[str, list[set[str]]] = {}
    for kind, paths in zip(kinds, fields, strict=True):
        of.setdefault(kind, []).append(paths)
    shared = [
        {
            field
            for field in set.union(*paths)
            if sum(field in path_set for path_set in paths) * 3 > len(paths)
        }
        for paths in of.values()
    ]
    known = dict(zip(of, shared, strict=True))
    common = set.intersection(*shared)
    best = max(known, key=lambda kind: (len(known[kind] - common), len(of[kind])))
    core = known[best] - common
    wanted = [kind for kind, paths in of.items() if set.union(*paths) & core]
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
def _senml(trees: Trees) -> _Step | None:
    """Spread a pack of SenML: what begins with b holds for all of it."""
    packs = [tree for tree in trees.all if isinstance(tree, list) and tree]
    if len(packs) < MOSTLY * max(1, len(trees.all)):
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


def _attributes(trees: Trees) -> _Step | None:
    """Texts with names in an array, as OpenTelemetry says whose a value is: fields of an object."""
    for path, elements in trees.object_lists.items():
        first = sorted(elements.all[0], key=lambda key: key.lower() not in _NAMES)
        if not path or len(first) != 2 or any(set(one) != set(first) for one in elements.all):
            continue
        name, value = first
        if name.lower() not in _NAMES or not VALUE.match(last_of(value)):
            continue
        values = [one[value] for one in elements.all]
        held = [
            next(iter(v.values())) if isinstance(v, dict) and len(v) == 1 else v for v in values
        ]
        if all(isinstance(v, str) and not is_number(v) for v in held):
            where, taken = jq_of(path), 'if type == "object" then .[] else . end'
            return (
                f"{where} |= (map({{({jq_of(name)}): ({jq_of(value)} | {taken})}}) | add)",
                f"attributes: names and texts in the array {path} are read as fields",
            )
    return None


def _siblings(trees: Trees) -> _Step | None:
    """Put arrays of alike objects that stand side by side into one: none may hide another."""
    for path, outer in {**({"": trees} if trees.objects else {}), **trees.object_lists}.items():
        alike: dict[frozenset[str], list[str]] = {}
        for inner, below in outer.object_lists.items():
            values = {p for p in below.fields if p in below.measured or VALUE.match(last_of(p))}
            if inner and values:
                alike.setdefault(frozenset(values), []).append(inner)
        for paths in (paths for paths in alike.values() if len(paths) > 1):
            each = [
                f"({jq_of(p)}[]? | {{key: {json.dumps(p.rpartition('.')[2])}}} + .)" for p in paths
            ]
            together = f"del({', '.join(map(jq_of, paths))}) + {{readings: [{', '.join(each)}]}}"
            return (
                together if outer is trees else f"{jq_of(path)} |= map({together})",
                f"arrays side by side: {', '.join(paths)} become one, readings",
            )
    return None


def _within(trees: Trees) -> _Step | None:
    for path, elements in trees.object_lists.items():
        for inner, below in elements.object_lists.items():
            if len(elements.lists[inner]) >= MOSTLY * len(elements.all) and below.measured:
                where, deep = jq_of(path), jq_of(inner)
                return (
                    f"{where} |= [.[] | del({deep}) as $outer | {deep}[] | $outer + .]",
                    f"arrays in arrays: {inner} within {path or 'the record'}",
                )
    return None


@dataclass(frozen=True)
class _Pair:
    name: str
    values: list[str]
    time: str | None
    quality: str | None
    good: list[Any]
    sensor: str | None  # which says whose a value is, where the name does not
    unit: str | None

    @classmethod
    def of(cls, elements: Trees) -> _Pair | None:
        fields = elements.fields.values()
        values = [f for f in fields if VALUE.match(last_of(f.path)) and not f.is_moment]
        if not values and len(elements.measured) == 1:
            values = [f for f in fields if f.is_measured]
        if len({f.path.rpartition(".")[0] for f in values}) != 1:
            return None
        if not any(_is_value(x) for f in values for x in f.values):
            return None
        texts = [f for f in fields if f.is_text and not f.is_moment and len(f.distinct) > 1]
        names = [
            f for f in texts
            if f not in values and f.is_in(_NEARLY) and PAIR.match(last_of(f.path))
            and len(f.distinct) <= max(2, len(elements.all) / 2)
        ]  # fmt: skip
        if not names:
            return None
        # Of two that vary under each other, one says whose a value is.
        ids = [f for f in names if last_of(f.path).endswith("id")
               and any(_is_free(f, other) and _is_free(other, f) for other in names)]  # fmt: skip
        name = max(names, key=lambda f: (f not in ids, len(f.distinct)))
        if any(f.is_measured and f not in values and _is_free(f, name) for f in fields):
            return None
        flags = [f for f in fields if f not in (*values, name) and is_quality(f.path, f.values)]
        # Where a status has a text beside its code, the text says more.
        quality = min(
            flags, default=None,
            key=lambda f: (not good_among(f.values, f.path), not isinstance(f.values[0], str)),
        )  # fmt: skip
        whose = [f for f in texts if f in ids or STRONG_SENSOR.match(last_of(f.path))]
        return cls(
            name.path,
            [f.path for f in values],
            next((f.path for f in fields if f.is_moment), None),
            None if quality is None else quality.path,
            [] if quality is None else good_among(quality.values, quality.path),
            next((f.path for f in whose if f is not name and _is_free(f, name)), None),
            next((f.path for f in fields if f.is_in(_NEARLY) and is_unit(f.path, f.values)), None),
        )

    @property
    def value(self) -> str:
        """What jq makes of an element's value: null where it is not good."""
        alternatives = " // ".join(map(jq_of, self.values))
        if self.quality is None or not self.good:
            return f"({alternatives})" if len(self.values) > 1 else alternatives
        good = ", ".join(["null", *map(json.dumps, self.good)])
        return f"(if {jq_of(self.quality)} | IN({good}) then {alternatives} else null end)"


def _is_value(value: object) -> bool:
    return isinstance(value, bool) or is_number(value)


def _is_fractional(field: FieldProfile) -> bool:
    return any(isinstance(x, float) and not x.is_integer() for x in field.values)


def _is_free(field: FieldProfile, name: FieldProfile) -> bool:
    """Whether a field varies under one name: else it says no more than the name does."""
    known: dict[object, set[object]] = {}
    for under, value in zip(name.rows, field.rows, strict=True):
        known.setdefault(under, set()).add(value)
    return any(len(values - {None}) > 1 for values in known.values())


class Split(NamedTuple):
    """How a name is parted into whose it is and what it is."""

    separator: str
    whose: tuple[int, ...]
    what: int
    width: int

    def part(self, expression: str, which: int) -> str:
        return f"({expression} | split({json.dumps(self.separator)})[{which}])"

    def pattern(self, *which: int) -> str:
        """Return the regular expression whose groups are some of the parts."""
        part = f"[^{re.escape(self.separator)}]*"
        parts = [f"({part})" if i in which else part for i in range(self.width)]
        return f"^{re.escape(self.separator).join(parts)}$"

    def sensor(self, expression: str) -> str:
        parts = [self.part(expression, i) for i in self.whose]
        if len(parts) == 1:
            return parts[0][1:-1]
        return f' + "{self.separator}" + '.join(parts)


def one_each(columns: Sequence[Sequence[object]]) -> bool:
    """Whether each record has one of several fields, as where each quantity comes by itself."""
    n = sum(sum(x is not None for x in row) == 1 for row in zip(*columns, strict=True))
    return len(columns) > 1 and n > _NEARLY * len(columns[0])


def split_of(names: Sequence[str]) -> Split | None:
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
            return Split(separator, tuple(whose), what, width)
    return None


def _pairs(trees: Trees) -> _Step | None:
    for path, elements in trees.object_lists.items():
        pair = None if _measured_outside(trees, path) else _Pair.of(elements)
        if pair is None:
            continue
        names = list(map(str, elements.fields[pair.name].rows))
        where, name = jq_of(path), jq_of(pair.name)
        outer = trees.fields.values() if path else ()
        timed = any(TIME_OF_RECORD.search(last_of(f.path)) and f.is_moment for f in outer)
        record = f"del({where}) as $record | " if path else ""
        keep = "$record + " if path else ""
        groups, own = [], []
        split = split_of(names)
        if split is not None:
            sensor = split.sensor(f".[0]{name}")
            groups.append(split.sensor(name))
            own.append(f"sensor: ({sensor})")
            name = split.part(name, split.what)
        elif pair.sensor is not None:
            groups.append(jq_of(pair.sensor))
            own.append(f"sensor: .[0]{jq_of(pair.sensor)}")
        each_name = iter(names)
        again = any(
            len(set(itertools.islice(each_name, len(each)))) < len(each)
            for each in trees.lists[path]
        )
        if pair.time is not None and (again or not timed):
            if again:
                groups.append(jq_of(pair.time))
            taken = {re.split(r"[\W_]", one)[-1] for one in names}
            clock = "time" if "t" in taken else "t"
            own.append(f"{clock}: (map({jq_of(pair.time)}) | max)")
        group = f"group_by([{', '.join(groups)}])[] | " if groups else ""
        unit = f', ({name} + "_unit"): {jq_of(pair.unit)}' if pair.unit else ""
        made = f"{{{', '.join(own)}}} + " if own else ""
        also = "" if pair.quality is None else f"; {pair.quality} says whether a value is good"
        also += ", and nobody says by which code" if also and not pair.good else ""
        return (
            f"{record}{where} | select(length > 0) | {group}"
            f"{keep}{made}(map({{({name}): {pair.value}{unit}}}) | add)",
            f"names and values: {pair.name} and {' or '.join(pair.values)} in the array "
            f"{path or 'that a record is'}{also}",
        )
    return None


def _measured_outside(trees: Trees, path: str) -> bool:
    """Whether a record measures something beside its array: then that is no list of readings."""
    fields = [trees.fields[name] for name in trees.measured] if path else []
    return any(_is_fractional(field) and len(field.distinct) > 1 for field in fields)


def _readings(trees: Trees) -> _Step | None:
    found = {
        path: elements
        for path, elements in trees.object_lists.items()
        if (elements.measured or elements.lists or (not path and elements.has_text_numbers))
        and not _measured_outside(trees, path)
    }
    if not found:
        return None
    path = max(
        found,
        key=lambda path: (
            any(_is_fractional(found[path].fields[name]) for name in found[path].measured),
            len(found[path].all),
        ),
    )
    seen = (
        f"readings: {len(found[path].all):,} in the array {path or 'that a record is'} of "
        f"{len(trees.all):,} records"
    )
    if not path:
        return ".[]", seen
    others = [other for other in found if other != path]  # a row each of either has no meaning
    seen += f"; {', '.join(others)} left out" if others else ""
    gone = ", ".join(map(jq_of, (path, *others)))
    return f"del({gone}) as $record | {jq_of(path)}[] | $record + .", seen


def _column_arrays(trees: Trees) -> _Step | None:
    """Cut arrays of a channel each: the values at one place of all are a reading."""
    objects = trees.objects
    lists = {
        path: found
        for path, found in (trees.lists if objects else {}).items()
        if any(found) and all(isinstance(v, int | float | str | None) for one in found for v in one)
    }
    numbers = {
        path
        for path, found in lists.items()
        if all(isinstance(v, int | float | None) for one in found for v in one)
    }
    if not numbers or not any(len(one) > 1 for found in lists.values() for one in found):
        return None
    if any(_measured_outside(trees, path) for path in numbers):
        return None
    above = {path.rpartition(".")[0] for path in lists}
    if len(above) > 1:
        return None
    inside = above.pop()
    even = sum(
        len({len(one) for p in lists if isinstance(one := row.get(p), list)}) == 1
        for row in trees.rows
    )
    if even < MOSTLY * len(trees.rows):
        return None
    first = sorted(numbers)[0]
    spread = 'with_entries(.value |= if type == "array" then .[$i] else . end)'
    if inside:
        where = jq_of(inside)
        spread = f"del({where}) + ({where} | {spread})"
    program = f"range({jq_of(first)} | length) as $i | {spread}"
    seen = f"columns: {', '.join(sorted(lists))} are arrays, a reading at each place"
    timed = any(
        all(map(is_moment, itertools.chain.from_iterable(found))) for found in lists.values()
    )
    return (program, seen) if timed else _spaced(program, seen, trees.fields.values())


def _spaced(program: str, seen: str, fields: Collection[FieldProfile]) -> _Step:
    """Give readings at even distances their times, by where they begin and how far apart."""
    begun = next((f for f in fields if f.is_moment), None)
    step = next((f.path for f in fields if STEP.match(last_of(f.path))), None)
    if begun is None or step is None:
        return program, f"{seen}; nothing says how far apart they are"
    begin, value = begun.path, begun.values[0]
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


def _keyed(trees: Trees) -> _Step | None:
    objects = trees.objects
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
        below = Trees([part for one in found for each in one.values()
                       for part in (each if isinstance(each, list) else [each])])  # fmt: skip
        if not below.measured and not any(below.lists):
            continue  # of units and names, say
        each = '(.value | if type == "array" then .[] else . end)' if lists else ".value"
        seen = f"machines as keys: {', '.join(sorted(keys)[:4])} become the field sensor"
        beside = sorted(set().union(*objects) - keys)
        record = f"del({jq_of(path)})" if path else f"{{{', '.join(map(json.dumps, beside))}}}"
        rest = jq_of(path) if path else f"del({', '.join(map(jq_of, beside))})"
        each = f"to_entries[] | .key as $key | {each} | "
        if not path and not beside:
            return f"{each}{{sensor: $key}} + .", seen
        return f"{record} as $record | {rest} | {each}$record + {{sensor: $key}} + .", seen
    return None


def _dicts(objects: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return objects whose values are all objects, or arrays of them, or clocks beside, by path."""
    objects_by_path: dict[str, list[dict[str, Any]]] = {}

    def visit(tree: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        parts = {
            name: v for name, v in tree.items()
            if isinstance(v, dict) or (isinstance(v, list) and v and isinstance(v[0], dict))
        }  # fmt: skip
        beside = [v for name, v in tree.items() if name not in parts]
        clocks = not path and len(parts) > 1 and all(
            is_moment(v) or type(v) is int for v in beside
        )  # fmt: skip
        if parts and (clocks or not beside):
            yield path, parts
        for name, below in tree.items():
            if isinstance(below, dict):
                part = name.replace(".", "\\.")
                yield from visit(below, f"{path}.{part}" if path else part)

    for one in objects:
        for path, tree in visit(one, ""):
            objects_by_path.setdefault(path, []).append(tree)
    return {
        path: trees
        for path, trees in objects_by_path.items()
        if len(trees) >= MOSTLY * len(objects)
    }


def _named_values(trees: Trees) -> _Step | None:
    fields = trees.fields.values() if trees.objects else ()
    called = [f for f in fields if VALUE.match(last_of(f.path)) or last_of(f.path) == "state"]
    numbers = [f for f in called if sum(map(_is_value, f.values)) > 0.5 * len(f.values)]
    named = one_each([[row.get(name) for row in trees.rows] for name in trees.measured])
    if (len(trees.measured) != 1 and len(numbers) != 1 and not named) or {
        "sensor",
        "tag",
    } <= trees.fields.keys():
        return None
    for field in fields:
        path, values = field.path, field.values
        if not field.is_text or field.is_moment or not field.is_in(_NEARLY):
            continue
        if all(map(_WHEN.fullmatch, values)):  # a day or a time of day beside the other
            continue
        split = None if len(field.distinct) > len(values) / 2 else split_of(values)
        if split is None:
            continue
        whose, what = split.sensor("$name"), split.part("$name", split.what)
        what = "" if named else f", tag: {what}"  # a field of its own has the quantity's name
        return (
            f"{jq_of(path)} as $name | del({jq_of(path)}) + {{sensor: ({whose}){what}}}",
            f"names: {path} says both whose a value is and what, such as {values[0]}",
        )
    return None


_RULES: tuple[Callable[[Trees], _Step | None], ...] = (
    _text, _bare, _frames, _union, _envelope, _types, _senml, _with_units, _places, _keyed,
    _attributes, _siblings, _within, _pairs, _column_arrays, _readings,
    _named_values,
)  # fmt: skip
