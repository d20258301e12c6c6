"""Records of JSON that nobody described, of a topic or a file: which field means what.

They are guessed as a table is: a field is a column, named by as much of its path as tells it apart.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rejex_connectors.files import FileSource
from rejex_connectors.files.bytes import ByteInput, compression_of
from rejex_connectors.files.workbooks import workbook_of

from rejex_stream.config.assembly import records_of
from rejex_stream.decode.json import flat
from rejex_stream.decode.mapping import printable
from rejex_stream.decode.written import MISSING_TEXTS, joined
from rejex_stream.errors import ConfigError
from rejex_stream.features import Circle
from rejex_stream.plan.suggest import Suggestion, suggest
from rejex_stream.tables.dialect import Marks, find_marks, moment_ms
from rejex_stream.tables.fields import FieldProfile, is_number
from rejex_stream.tables.guess import MENDABLE, Asked, TableGuess, cycle_s, guess_table
from rejex_stream.tables.inspection import Table, open_table
from rejex_stream.tables.names import COUNTER, VALUE, last_of
from rejex_stream.tables.shapes import find_shape, json_in, one_each, split_of
from rejex_stream.tables.whose import KEY, Beside
from rejex_stream.types import FloatArray, Record

_JSON = re.compile(rb"(\xef\xbb\xbf)?\s*(\[\s*)*\{")
_SAMPLE = 2_000
_LIVE = 8_000
"""Events of a sensor to plan for, where a topic holds few yet: it goes on, and a file does not."""
_ENOUGH = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Records that are understood."""

    guess: TableGuess
    fields: Mapping[str, str]  # their paths, by the short names of the guess
    channels: Mapping[str, str]  # their fields, by name
    select: str | None
    quality: Mapping[str, object] | None
    partial: bool  # a field that is absent is unchanged
    step_s: float | None  # between rows of channels that each have a record of their own
    from_key: bool
    texts: bool  # numbers are written as texts
    n_events: int  # that all records make
    live: bool  # of a topic
    n_sensors: int
    keyless: bool
    parted: bool  # a sensor was seen in several partitions
    time_zone: str | None
    said: tuple[str, ...]
    source: Mapping[str, object]  # settings of the file
    n_rows: int
    labels: Mapping[int, bool]  # as of a table: nothing is known
    season_step_ms: float | None  # of rows that can be judged by the hour, from one to the next
    levels: FloatArray | None  # the first rows of one sensor, where a record is a row

    def _called(self, names: Sequence[str]) -> list[str]:
        of_field = {self.fields.get(name, name): name for name in self.guess.channels}
        called = {of_field.get(field, name): name for name, field in self.channels.items()}
        return [called[name] for name in names if name in called]

    def told(self) -> dict[str, dict[str, object]]:
        told = self.guess.told()
        return {called: told[name] for name in told for called in self._called([name])}

    def settings(self) -> dict[str, object]:
        guess, path = self.guess, self.fields
        paths = dict(self.channels)
        plain = all(name == field for name, field in paths.items())
        times = [path[name] for name in guess.times]
        return {
            **self.source,
            "select": self.select,
            "channels": list(paths) if plain else paths,
            "flags": self._called(guess.flags) or None,
            **guess.settings(self.time_zone),
            "time": times if len(times) > 1 else next(iter(times), None),
            "numbers": "text" if self.texts else None,
            "sensor": None if guess.sensor is None else path.get(guess.sensor, "key"),
            "tag": None if guess.tag is None else path[guess.tag],
            "mode": None if guess.mode is None else path[guess.mode],
            "partial": "hold_last" if self.partial else None,
            "step_s": self.guess.step_s or self.step_s,
            "quality": self.quality,
            "sample_interval_ms": 1000 if self.source and guess.time is None else None,
        }

    def suggested(self, **knobs: object) -> Suggestion:
        """Choose settings, as for a table; for a feed that is short yet, as if it went on."""
        guess = self.guess
        streams = self.n_sensors * (guess.n_modes or 1)
        few = self.live and self.n_events // streams < _ENOUGH
        n = _LIVE * streams if few else self.n_events
        own: dict[str, Any] = {**guess.for_features(), **knobs}
        own |= {"step_ms": self.season_step_ms, "levels": self.levels}
        own["flags"] = tuple(self._called(guess.flags))
        own["angles"] = tuple(
            Circle(called, period, *self._called([leader]))
            for name, period, leader in guess.angles
            for called in self._called([name])
        )
        return suggest(n, self.n_sensors, tuple(self.channels), **own)


def open_file(path: Path, asked: Asked) -> Table | Feed:
    """Look at a file: JSON Lines, or a table. O(bytes)."""
    begun: object = b""
    if not workbook_of(str(path)):
        with closing(ByteInput(str(path), compression=compression_of(str(path)))) as opened:
            begun = opened.read(1.0)
    begun = begun if isinstance(begun, bytes) else b""
    if (alone := begun.strip()) in {b"[", b"{"}:
        raise ConfigError(f"{path} holds {alone.decode()} and no more: it was cut off.")
    first = begun.partition(b"\n")[0]
    if not (_JSON.match(begun) or isinstance(json_in(first.decode("utf-8", "replace")), list)):
        if asked.select is not None:
            raise ConfigError(f"--select reads records of JSON, and {path} holds a table.")
        if _LINE_PROTOCOL.fullmatch(first):
            raise ConfigError(f"{path} holds {_OF_INFLUX}")
        return open_table(path, asked)
    records = list(records_of(FileSource(path, format="jsonl", encoding=asked.encoding)))
    if records and (records[0].value or b"").strip() in {b"{", b"["}:
        raise ConfigError(
            f"{path} is JSON over several lines: write a record a line, `jq -c . {path} > "
            f"{path.stem}.jsonl`, then look again."
        )
    feed = infer_feed(records[:_SAMPLE], asked, total=len(records), live=False)
    source = {"path": str(path.resolve()), "format": "jsonl", "encoding": asked.encoding}
    return replace(feed, source=source, n_rows=len(records))


def infer_feed(
    records: Sequence[Record],
    asked: Asked | None = None,
    *,
    total: int | None = None,
    live: bool = True,
) -> Feed:
    """Guess what the fields of JSON records mean, from a sample of them. O(bytes)."""
    asked = asked or Asked()
    trees, read, broken, empty = _parsed(records)
    if not trees:
        raise ConfigError(_no_json(records))
    shape = find_shape(trees, asked.select)
    # Of each reading its fields by path, and the record it is of.
    pairs = zip(read, shape.readings, strict=True)
    held = [(r, tree) for r, seen in pairs for tree in seen if isinstance(tree, dict)]
    read, rows = [r for r, _ in held], [dict(flat(tree)) for _, tree in held]
    if not rows:
        raise ConfigError(_no_json(records))
    beside = _keys_of(read) | _headers_of(read)
    paths = list(dict.fromkeys(path for row in rows for path in row))
    short = {f".{name}" if name in beside else name: p for name, p in _short(paths).items()}
    names = {path: name for name, path in short.items()}
    columns = {name: [row.get(path) for row in rows] for name, path in short.items()}
    parts, what = _parts_of_key(beside.get(KEY, ()), columns)
    beside |= parts
    columns |= beside
    fields = {n: FieldProfile(str(short.get(n, n)), values) for n, values in columns.items()}
    known = replace(
        _by_short_names(asked, names),
        time=[names.get(name, name) for name in asked.time] or _time(fields, beside),
        carry=asked.carry or 0,  # what did not come is unchanged: input.partial
    )
    wanted = {*known.time, *known.channels, *known.counters, *(known.flags or ()),
              known.sensor, known.tag, known.label, known.mode}  # fmt: skip
    left = {n: why for n, f in fields.items()
            if n not in beside and n not in wanted and (why := _why_left(f))}  # fmt: skip
    names_only = {name: not name.startswith("header:") for name in beside}
    names_only |= {name: False for name, why in left.items() if why.startswith("a number")}
    cells = {name: list(map(_text, values)) for name, values in columns.items()
             if name in names_only or name not in left}  # fmt: skip
    rows_of_cells = list(zip(*cells.values(), strict=True))
    guess = guess_table(
        list(cells), rows_of_cells, known, marks=_marks(rows, asked), timed=True,
        beside=Beside(names_only, what, short),
    )  # fmt: skip
    of_sensor = [0] * len(rows) if guess.sensor is None else columns[guess.sensor]
    places: dict[object, set[int]] = {}
    for sensor, record in zip(map(str, of_sensor), read, strict=True):
        places.setdefault(sensor, set()).add(record.position.partition)
    channels = _named_channels(guess, short)
    alone = guess.tag is None and one_each(
        [[p in r or None for r in rows] for p in channels.values()]
    )
    most_absent = max(sum(p not in r for r in rows) for p in channels.values()) / len(rows)
    n_parts = len(set(columns[guess.tag])) if guess.tag is not None else len(channels) * alone or 1
    step_s = _step_s(guess, rows, channels, columns)
    if guess.tag is None:
        counts = [sum(row.get(p) is not None for row in rows) for p in channels.values()]
    else:
        counts = list(Counter(map(str, columns[guess.tag])).values())
    whole = max(counts) - min(counts) <= len(rows) / 1000  # by the hour a row is judged whole
    feed = Feed(
        guess=guess,
        fields={str(name): str(short.get(name, name)) for name in columns},
        channels=channels,
        select=shape.program,
        quality=_quality_of(guess, channels, short),
        partial=alone or (guess.value is None and len(channels) > 1 and most_absent > 0.05),
        step_s=step_s if alone else None,
        from_key=guess.sensor == KEY,
        texts=_has_texts(guess, columns),
        n_events=len(rows) * (total or len(records)) // len(records) // n_parts,
        live=live,
        n_sensors=max(1, len(places)),
        keyless=any(record.key is None for record in read),
        parted=any(len(seen) > 1 for seen in places.values()),
        time_zone=asked.time_zone,
        said=(),
        source={},
        n_rows=len(records),
        labels={},
        season_step_ms=1000 * (guess.step_s or step_s) if whole and len(guess.times) == 1 else None,
        levels=None if guess.tag or alone else _levels(guess, rows, of_sensor, channels, short),
    )
    said = [*shape.shown(trees[0]), *_said(feed, asked, rows, broken, empty)]
    said += [f"left out: {name}: {why}" for name, why in left.items() if name != guess.sensor]
    return replace(feed, said=tuple(dict.fromkeys(said)))


def _has_texts(guess: TableGuess, columns: Mapping[str, list[Any]]) -> bool:
    """Whether numbers are written as texts; a switch may be a word, as may another tag's value."""
    if guess.value is None:
        measured = [columns[name] for name in guess.channels if name not in guess.flags]
        return any(isinstance(value, str) for values in measured for value in values)
    names, tags = {*guess.channels} - {*guess.flags}, map(str, columns[str(guess.tag)])
    pairs = zip(tags, columns[guess.value], strict=True)
    return any(tag in names and isinstance(value, str) for tag, value in pairs)


def _parsed(records: Sequence[Record]) -> tuple[list[Any], list[Record], int, int]:
    trees, read, broken, empty = [], [], 0, 0
    for record in records:
        if record.value is None:
            empty += 1
            continue
        try:
            tree = json.loads(record.value)
        except (ValueError, RecursionError):
            broken += 1
            continue
        trees.append(tree)
        read.append(record)
    return trees, read, broken, empty


_LINE_PROTOCOL = re.compile(rb"[\w.-]+(,[\w.-]+=[^,\s]+)* [\w.-]+=\S+( \d+)?\s*")


_OF_INFLUX = (
    'InfluxDB line protocol; have Telegraf write JSON (data_format = "json"), then look again.'
)


def _no_json(records: Sequence[Record]) -> str:
    first = next((record.value for record in records if record.value), b"")
    seen = f"none of {len(records)} records is a JSON object"
    if first[:1] == b"\0":
        return (
            f"{seen}: they begin with a zero byte, as Avro and Protobuf of a schema registry do; "
            "name the registry, REJEX_SCHEMA_REGISTRY__URL=http://HOST:8081, and look again."
        )
    if _LINE_PROTOCOL.fullmatch(first):
        return f"{seen}: they are {_OF_INFLUX}"
    if first[:1] == b"<":
        return f"{seen}: they are XML; have their producer write JSON, then look again."
    if b"," in first or b";" in first:
        return (
            f"{seen}: {printable(first, 60)} looks like CSV; have the producer write JSON, or read "
            "a file of it: rejex-stream init FILE."
        )
    return (
        f"{seen}, such as {printable(first, 60)}: init knows tables and JSON; for Avro and "
        "Protobuf begin with examples/avro.toml."
    )


def _keys_of(read: Sequence[Record]) -> dict[str, list[Any]]:
    keys = [record.key for record in read]
    if any(key is None for key in keys):
        return {}
    texts = [str(key.decode("utf-8", "replace")) for key in keys if key is not None]
    if any("\x00" in text for text in texts[:20]):
        return {}  # bytes of Avro, say: no name
    parsed = list(map(json_in, texts))
    if not all(isinstance(tree, dict) for tree in parsed):
        return {KEY: texts}
    trees = [dict(flat(tree)) for tree in parsed]
    fields = dict.fromkeys(path for tree in trees for path in tree if not path.startswith("schema"))
    return {f"{KEY}.{path}": [tree.get(path) for tree in trees] for path in fields}


def _parts_of_key(
    keys: Sequence[str], columns: Mapping[str, list[Any]]
) -> tuple[dict[str, list[Any]], str | None]:
    """Part keys that name machine and quantity, of records of one value; and say which is what."""
    split = split_of(keys) if 0 < 2 * len(set(keys)) <= len(keys) else None
    fields = [FieldProfile(name, values) for name, values in columns.items()]
    numbers = [f.rows for f in fields if f.is_measured or (f.is_text and f.values
               and not f.is_moment and all(map(is_number, f.values)))]  # fmt: skip
    if split is None or (len(numbers) != 1 and not one_each(numbers)):
        return {}, None
    ways = [split.whose, (split.what,)] if len(numbers) == 1 else [split.whose]
    specs = [f"{KEY}:{split.pattern(*way)}" for way in ways]
    origins = [(spec, re.compile(spec.removeprefix(f"{KEY}:"))) for spec in specs]
    parted = {
        spec: ["/".join(match.groups()) if (match := found.search(key)) else None for key in keys]
        for spec, found in origins
    }
    return parted, specs[1] if len(specs) > 1 else None


def _headers_of(read: Sequence[Record]) -> dict[str, list[Any]]:
    columns: dict[str, list[str]] = {}
    for record in read:
        for name, value in dict(record.headers).items():
            columns.setdefault(f"header:{name}", []).append(
                (value or b"").decode("utf-8", "replace")
            )
    return {name: list(values) for name, values in columns.items() if len(values) == len(read)}


def _time(fields: Mapping[str, FieldProfile], beside: Mapping[str, object]) -> list[str]:
    """Choose the clock of the measurement, not of the record's transport."""
    clocks = []
    for name, field in fields.items():
        if name in beside or not field.is_in(0.95) or not field.is_moment:
            continue
        last = name.rsplit(".", 1)[-1].lower()
        penalty = 2 * bool(_ON_ITS_WAY.search(name.lower())) - bool(_MEASURED_AT.search(last))
        clocks.append((penalty, name.count("."), -len(field.distinct), name))
    return [min(clocks)[-1]] if clocks else []


_ON_ITS_WAY = re.compile(
    r"receiv|ingest|server|publish|creat|metadata|meta\.|enqueue|process|sent|kafka|source\.ts|update"
)
_MEASURED_AT = re.compile(r"measur|observ|sampl|^(t|ts|time|timestamp|time_?stamp|datetime)$")


def _why_left(field: FieldProfile) -> str:
    if not field.values:
        return ""
    if field.is_moment:
        return "a clock"
    if all(isinstance(value, list) for value in field.values):
        return "an array"
    counts = COUNTER.search(field.path) and all(str(v).lstrip("-").isdigit() for v in field.values)
    return "a number that counts or names, by its own name" if counts else ""


def _named_channels(guess: TableGuess, short: Mapping[str, str]) -> dict[str, str]:
    if guess.value is not None:
        return dict.fromkeys(guess.channels, short[guess.value])
    # Where each channel's value stands in an object of its own, that has the name.
    paths = {name: short[name] for name in guess.channels}
    parted = {name: path.rpartition(".") for name, path in paths.items()}
    if all(VALUE.match(last_of(paths[name])) and parted[name][0] for name in paths):
        named = {above.rpartition(".")[2]: paths[name] for name, (above, _, _) in parted.items()}
        if len(named) == len(paths):
            return named
    return paths


def _quality_of(
    guess: TableGuess, channels: Mapping[str, str], short: Mapping[str, str]
) -> Mapping[str, object] | None:
    of = guess.quality and guess.quality.field
    if guess.quality is None or not isinstance(of, Mapping):
        return None
    names = {path: name for name, path in short.items()}
    keys = {called: called if guess.value else names[path] for called, path in channels.items()}
    flags = {called: short[of[key]] for called, key in keys.items() if key in of}
    # What is called alike may come beside channels that have none in the sample.
    patterns = {flag.replace(called, "{channel}") for called, flag in flags.items()}
    pattern = patterns.pop() if len(patterns) == 1 else ""
    beside = [pattern.replace("{channel}", called) for called in channels]
    within = any(flag.startswith(f"{path}.") for flag in beside for path in channels.values())
    alike = "{channel}" in pattern and not within
    return {"field": pattern if alike else flags, "good": list(guess.quality.good)}


def _step_s(
    guess: TableGuess,
    rows: Sequence[Mapping[str, object]],
    channels: Mapping[str, str],
    columns: Mapping[str, list[Any]],
) -> float:
    whose = [str(name) for name in columns.get(guess.sensor or "", [None] * len(rows))]
    what = [next((p for p in channels.values() if r.get(p) is not None), "") for r in rows]
    times = columns[guess.times[0]] if len(guess.times) == 1 else ()
    return cycle_s(whose, what, [moment_ms(t, guess.time_unit, guess.time_format) for t in times])


def _levels(
    guess: TableGuess, rows: Sequence[Mapping[str, object]], of_sensor: Sequence[object],
    channels: Mapping[str, str], paths: Mapping[str, str],
) -> FloatArray:  # fmt: skip
    """Return the rows of the first sensor, of channels that are measured; nan for no number."""
    aside = {paths.get(flag) for flag in guess.flags}
    own = [row for row, whose in zip(rows, of_sensor, strict=True) if whose == of_sensor[0]]
    measured = [[row.get(p) for p in channels.values() if p not in aside] for row in own]
    return np.array(
        [[v if isinstance(v, int | float) else math.nan for v in vs] for vs in measured], float
    )


def _said(
    feed: Feed, asked: Asked, rows: Sequence[Mapping[str, object]], broken: int, empty: int
) -> list[str]:
    guess, said = feed.guess, list[str]()
    if broken:
        said.append(f"unreadable: {broken} records are no JSON")
    if empty:
        said.append(f"tombstones: {empty} records have no value and are ignored")
    if guess.time is None:
        said.append("time: no field found, the record's own is taken; --time names one")
    if guess.sensor is None:
        said.append("sensor: none found, all records are taken as of one; --sensor names its field")
    if feed.step_s is not None:
        said.append(
            f"joined: each record holds one of {', '.join(feed.channels)}, and they become rows "
            f"with all, one each {feed.step_s:g} s at most"
        )
    elif feed.partial:
        said.append(
            "unchanged: fields are absent in many records and count as unchanged, partial = "
            '"hold_last"; null is missing'
        )
    if feed.texts:
        said.append('numbers: some are written as texts, and are read by numbers = "text"')
    if guess.time is not None and guess.time_unit == "iso8601" and asked.time_zone is None:
        paths = [feed.fields[name] for name in guess.times]
        first = (joined([row.get(path) for path in paths]) for row in rows)
        text = next(filter(None, first), "")
        if not text.endswith("Z") and "+" not in text and "-" not in text[10:]:
            said.append(
                f"time zone: none in {printable(text)}, read as UTC; --time-zone changes it"
            )
    said += [
        f"left out: {feed.fields.get(name, name)}: {why}"
        for name, why in guess.aside.items()
        if name in feed.fields and not why.startswith(MENDABLE)  # which is said with the option
    ]
    return [*guess.said, *said, *guess.channels_said(), *guess.doubts]


def _short(paths: Sequence[str]) -> dict[str, str]:
    """Name fields by the shortest ends of their paths that tell them apart."""
    parts = {path: re.split(r"(?<!\\)\.", path) for path in paths}
    ends = {path: 1 for path in paths}
    while True:
        by_name: dict[str, list[str]] = {}
        for path in paths:
            by_name.setdefault(".".join(parts[path][-ends[path] :]), []).append(path)
        alike = [path for namesakes in by_name.values() if len(namesakes) > 1 for path in namesakes]
        longer = [path for path in alike if ends[path] < len(parts[path])]
        if not longer:
            return {name: namesakes[0] for name, namesakes in by_name.items()}
        for path in longer:
            ends[path] += 1


def _by_short_names(asked: Asked, names: Mapping[str, str]) -> Asked:
    """Return what was asked for, with fields called as the columns are, not by their paths."""
    if asked.sensors:
        raise ConfigError(
            "several --sensor are for tables: of JSON give one, and write input.sensor = "
            f"{json.dumps(list(asked.sensors))} into the config."
        )
    known: dict[str, Any] = {}
    for role in ("sensor", "tag", "label", "mode", "channels", "flags", "counters", "angles"):
        given = getattr(asked, role)
        one = given is None or isinstance(given, str)
        known[role] = names.get(given, given) if one else [names.get(x, x) for x in given]
    return replace(asked, **known)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _marks(rows: Sequence[Mapping[str, object]], asked: Asked) -> Marks:
    if asked.decimal is not None or asked.thousands is not None:
        return Marks(asked.decimal or ".", asked.thousands)
    texts = [v for row in rows[:1000] for v in row.values() if isinstance(v, str)]
    return find_marks([text for text in texts if text.lower() not in MISSING_TEXTS])
