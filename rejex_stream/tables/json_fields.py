"""Records of JSON that nobody described, of a topic or a file: which field means what.

They are guessed as a table is: a field is a column, named by as much of its path as tells it apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rejex_stream.decode.json import flat
from rejex_stream.decode.mapping import printable
from rejex_stream.decode.numbers import MISSING_TEXTS
from rejex_stream.decode.times import joined
from rejex_stream.errors import ConfigError
from rejex_stream.plan.suggest import Suggestion, suggest
from rejex_stream.tables.dialect import Marks, find_marks
from rejex_stream.tables.guess import TableGuess, guess_table
from rejex_stream.tables.inspection import Asked
from rejex_stream.types import Record

__all__ = ["Feed", "open_feed"]

_KEY = "key"
_LIVE = 8_000
"""Events of a sensor to plan for, where there are few yet: a topic goes on."""
_ENOUGH = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Records that are understood.

    Attributes
    ----------
    guess
        What the fields were taken for, by their short names.
    fields
        Their paths, by short name.
    from_key
        Whether the sensor is the record's key.
    texts
        Whether numbers are written as texts.
    n_records, n_sensors
        How many there are, as far as is known.
    keyless, parted
        Whether records lack a key, and whether a sensor was seen in several partitions.
    time_zone
        Where times without a zone were read off the clock; ``None`` is UTC.
    said
        What was guessed and found, a sentence each with what to write to change it.
    """

    guess: TableGuess
    fields: Mapping[str, str]
    from_key: bool
    texts: bool
    n_records: int
    n_sensors: int
    keyless: bool
    parted: bool
    time_zone: str | None
    said: tuple[str, ...]

    def settings(self) -> dict[str, object]:
        """Return the settings of ``[input]`` that say which field means what."""
        guess, path = self.guess, self.fields
        paths = {name: path[name] for name in guess.channels}
        plain = all(name == found for name, found in paths.items())
        marks = guess.marks
        return {
            "channels": list(paths) if plain else paths,
            "flags": list(guess.flags) or None,
            **guess.time_settings(self.time_zone),
            "time": _one_or_all([path[name] for name in guess.times]),
            "numbers": "text" if self.texts else None,
            "decimal": None if marks.decimal == "." else marks.decimal,
            "thousands": marks.thousands,
            "missing": list(guess.missing) or None,
            "sensor": None if guess.sensor is None else path.get(guess.sensor, "key"),
            "tag": None if guess.tag is None else path[guess.tag],
            "mode": None if guess.mode is None else path[guess.mode],
        }

    def suggested(self, **knobs: object) -> Suggestion:
        """Choose settings, as for a table; for a feed that is short yet, as if it went on.

        Raises
        ------
        ConfigError
            As :func:`~rejex_stream.plan.suggest.suggest`.
        """
        guess = self.guess
        streams = self.n_sensors * (guess.n_modes or 1)
        n = self.n_records if self.n_records // streams >= _ENOUGH else _LIVE * streams
        own = {"flags": guess.flags, "n_modes": guess.n_modes}
        return suggest(n, self.n_sensors, guess.channels, **own, **knobs)  # type: ignore[arg-type]


def open_feed(
    records: Sequence[Record], asked: Asked | None = None, *, total: int | None = None
) -> Feed:
    """Guess what the fields of JSON records mean, from a sample of them. O(bytes).

    Parameters
    ----------
    records
        The sample, in an order in which a sensor's times go forward.
    asked
        What is known already; fields by their paths.
    total
        How many records there are; by default those.

    Raises
    ------
    ConfigError
        If they are no JSON objects, or hold nothing that can be judged.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> lines = [b'{"pump": {"id": "a"}, "ts": %d, "flow": "%d.5"}' % (1700000000 + i, i * 7 % 5)
    ...          for i in range(50)]
    >>> feed = open_feed([Record(Position("t", 0, i), None, v) for i, v in enumerate(lines)])
    >>> {name: value for name, value in feed.settings().items() if value is not None}
    {'channels': ['flow'], 'time': 'ts', 'time_unit': 's', 'numbers': 'text', 'sensor': 'pump.id'}
    """
    asked = asked or Asked()
    rows, read, broken = [], [], 0
    for record in records:
        try:
            tree = json.loads(record.value or b"")
        except (ValueError, RecursionError):
            tree = None
        if isinstance(tree, dict):
            rows.append(dict(flat(tree)))
            read.append(record)
        else:
            broken += 1
    if not rows:
        raise ConfigError(
            f"none of {len(records)} records is a JSON object: init knows tables and JSON; for "
            "Avro and Protobuf begin with examples/avro.toml."
        )
    short = _short(list(dict.fromkeys(path for row in rows for path in row)))
    names = {path: name for name, path in short.items()}
    header, cells = list(short), [[_text(row.get(path)) for path in names] for row in rows]
    keys = [None if r.key is None else r.key.decode("utf-8", "replace") for r in read]
    key = next(name for name in (_KEY, "record key", "the record's key") if name not in short)
    if None not in keys:
        header.append(key)
        cells = [[*row, str(found)] for row, found in zip(cells, keys, strict=True)]
    marks = _marks(rows, asked)
    single = ("sensor", "label", "tag", "mode")
    known = {part: _named(getattr(asked, part), names, key) for part in single}
    guess = guess_table(
        header,
        cells,
        **known,  # type: ignore[arg-type]
        time=[str(_named(time, names, key)) for time in asked.time],
        channels=[str(_named(channel, names, key)) for channel in asked.channels],
        flags=None if asked.flags is None else [str(_named(f, names, key)) for f in asked.flags],
        time_format=asked.time_format,
        marks=marks,
        missing=asked.missing,
    )
    from_key = guess.sensor == key
    of_sensor = [0] * len(rows) if guess.sensor is None else _column(header, cells, guess.sensor)
    channels = [short[name] for name in guess.channels]
    texts = any(isinstance(row.get(path), str) for row in rows for path in channels)
    places: dict[object, set[int]] = {}
    for sensor, record in zip(of_sensor, read, strict=True):
        places.setdefault(sensor, set()).add(record.position.partition)
    feed = Feed(
        guess=guess,
        fields=short,
        from_key=from_key,
        texts=texts,
        n_records=len(records) if total is None else total,
        n_sensors=max(1, len(places)),
        keyless=None in keys,
        parted=any(len(found) > 1 for found in places.values()),
        time_zone=asked.time_zone,
        said=(),
    )
    said = tuple(_said(feed, asked, rows, broken))
    return Feed(**{name: getattr(feed, name) for name in Feed.__slots__} | {"said": said})


def _said(feed: Feed, asked: Asked, rows: Sequence[Mapping[str, object]], broken: int) -> list[str]:
    guess, said = feed.guess, []
    if broken:
        said.append(f"unreadable: {broken} of {broken + len(rows)} records are no JSON objects")
    if guess.time is None:
        said.append("time: no field found, the record's own is taken; --time names one")
    if guess.sensor is None:
        said.append("sensor: none found, all records are taken as of one; --sensor names its field")
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
        if name in feed.fields
    ]
    return [*said, *guess.flags_said, *guess.doubts]


def _short(paths: Sequence[str]) -> dict[str, str]:
    """Name fields by the shortest ends of their paths that tell them apart."""
    parts = {path: re.split(r"(?<!\\)\.", path) for path in paths}
    ends = {path: 1 for path in paths}
    while True:
        by_name: dict[str, list[str]] = {}
        for path in paths:
            by_name.setdefault(".".join(parts[path][-ends[path] :]), []).append(path)
        alike = [path for found in by_name.values() if len(found) > 1 for path in found]
        longer = [path for path in alike if ends[path] < len(parts[path])]
        if not longer:
            return {name: found[0] for name, found in by_name.items()}
        for path in longer:
            ends[path] += 1


def _named(path: str | None, names: Mapping[str, str], key: str) -> str | None:
    """Return the short name of a field that somebody gave by its path."""
    return path if path is None or path == key else names.get(path, path)


def _one_or_all(names: list[str]) -> str | list[str] | None:
    return names if len(names) > 1 else next(iter(names), None)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _column(header: Sequence[str], cells: Sequence[Sequence[str]], name: str) -> list[str]:
    at = header.index(name)
    return [row[at] for row in cells]


def _marks(rows: Sequence[Mapping[str, object]], asked: Asked) -> Marks:
    if asked.decimal is not None or asked.thousands is not None:
        return Marks(asked.decimal or ".", asked.thousands)
    texts = [v for row in rows[:1000] for v in row.values() if isinstance(v, str)]
    return find_marks([text for text in texts if text.lower() not in MISSING_TEXTS])
