"""One JSON object a record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from rejex_stream.decode.mapping import (
    ABSENT,
    FieldMapping,
    NotWanted,
    Unreadable,
    checked_name,
    floats_of,
    printable,
)
from rejex_stream.decode.paths import field_path, refuse_nested
from rejex_stream.decode.written import missing_numbers
from rejex_stream.native_core import native
from rejex_stream.types import Invalid, Reading, Record

__all__ = ["JsonDecoder", "flat"]

MAX_NESTING = 64
"""Deeper JSON is invalid: parsers are recursive, and how deep they get depends on their caller."""

_BLOCK = 128  # records that are read natively at once
_MAX_NAMES = 1 << 16
_MAX_CHANNELS = 64  # of what is read natively
_PARSER = msgspec.json.Decoder()
_NEW = tuple.__new__  # nearly twice as fast as calling a named tuple's class
_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # in a name, where JSON escapes it
# Possessive, and content with a text that never ends: no input takes more than linear time.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class _NotAnObject(Exception):  # noqa: N818 - never leaves this module
    """A value is no object of JSON; the message says why."""


class JsonDecoder:
    r"""Decodes one JSON object a record.

    Also accepts the bare ``NaN`` and ``Infinity`` that Python producers write (as missing).
    """

    def __init__(self, mapping: FieldMapping, native: Callable[[str], Any] = native) -> None:
        self._mapping = mapping
        self._paths = {field: field_path(field) for field in mapping.fields if field}
        refuse_nested(self._paths)
        self._time = mapping.time_getter(self._finder)
        self._sensor = mapping.sensor_getter(self._finder)
        self._names = [self._finder(field) for field in (mapping.group, mapping.tag, mapping.mode)]
        self._qualities = [self._finder(field or None) for field in mapping.quality_fields]
        self._fetch = self._fetcher(mapping.channel_fields)
        self._if_absent = ABSENT if mapping.partial else None
        self._max_bytes = mapping.max_value_bytes
        others = (mapping.tag, mapping.mode, mapping.quality, mapping.group)
        self._is_simple = others.count(None) == len(others) and len(mapping.sensor_fields) == 1
        self._keys = _Keys(lambda sensor: mapping.key_of(sensor, None))
        self._native = _native_reader(mapping, self._paths, self._keys, native)

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        return self._mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds. O(bytes)."""
        value = record[2]
        if not value or len(value) > self._max_bytes:
            return self._mapping.refuse(record)
        try:
            return self._reading(record, _parsed(value))
        except _NotAnObject as error:
            return Invalid(record.position, "decode", str(error))
        except NotWanted as error:
            return Invalid(record.position, "ignored", str(error))
        except Unreadable as error:
            return Invalid(record.position, "validate", str(error))
        except Exception as error:  # the stack is short, say
            return self._mapping.given_up(record, error)

    def decode_all(self, records: Sequence[Record]) -> list[Reading | Invalid]:
        """Decode records, each to what :meth:`decode` makes of it; natively faster. O(bytes)."""
        if self._native is None:
            return list(map(self.decode, records))
        found: list[Reading | Invalid] = []
        for start in range(0, len(records), _BLOCK):
            block = records[start : start + _BLOCK]
            found += self._native(block) or map(self.decode, block)
        return found

    def text_of(self, record: Record) -> bytes | Invalid:
        """Return the text of a record, or why it is not worth parsing."""
        value = record.value
        if not value or len(value) > self._max_bytes:
            return self._mapping.refuse(record)
        return value

    def lacking(self, record: Record) -> str:
        """Say which channels a record lacks, and which fields it has instead."""
        return self._mapping.lacking(self.decode(record), list(self.fields(record)))

    def fields(self, record: Record) -> dict[str, object]:
        """Return the fields of a record as a mapping names them, those of no mapping too."""
        try:
            return dict(flat(json.loads(record.value or b"", parse_int=_parse_int)))
        except (ValueError, RecursionError):
            return {}

    def _reading(self, record: Record, tree: dict[str, Any]) -> Reading:
        mapping, sensor, time = self._mapping, self._sensor(tree), self._time(tree)
        try:
            values = self._fetch(tree)
        except KeyError:
            values = tuple(
                [self._find(tree, field, self._if_absent) for field in mapping.channel_fields]
            )
        if type(sensor) is str and self._is_simple and (floats := floats_of(values)) is not None:
            key, sensor = self._keys[sensor]
            if mapping.missing:
                floats = mapping.without_missing(floats)
            return _NEW(Reading, (key, sensor, mapping.time_of(record, time), floats, record[0]))
        group, tag, mode = self._names
        return mapping.reading(
            record,
            time=time,
            sensor=sensor,
            group=group(tree),
            tag=tag(tree),
            mode=mode(tree),
            values=values,
            qualities=[find(tree) for find in self._qualities],
        )

    def _fetcher(self, fields: Sequence[str]) -> Callable[[dict[str, Any]], tuple[object, ...]]:
        """Return what fetches all channels; it may raise ``KeyError`` where one is absent."""
        paths = [self._paths[field] for field in fields]
        if len(paths) > 1 and max(map(len, paths)) == 1:
            return itemgetter(*(path[0] for path in paths))
        return lambda tree: tuple([self._find(tree, field, self._if_absent) for field in fields])

    def _finder(self, field: str | None) -> Callable[[dict[str, Any]], object]:
        if field is None:
            return lambda _: None
        path = self._paths[field]
        if len(path) == 1:
            (name,) = path
            return lambda tree: tree.get(name)
        return lambda tree: self._find(tree, field)

    def _find(self, tree: dict[str, Any], field: str, if_absent: float | None = None) -> object:
        node: Any = tree
        path = self._paths[field]
        for depth, name in enumerate(path):
            if node is None:
                return if_absent if depth else None
            if not isinstance(node, dict):
                where = ".".join(path[:depth])
                raise Unreadable(f"{where}: expected an object, got {printable(node)}")
            node = node.get(name, if_absent)
            if node is ABSENT:
                return node
        return node


class _Keys(dict[str, tuple[str, str]]):
    """The stream keys of names that were met, each of which is looked at once.

    With it comes the name as it was met first: whoever looks it up meets the same object.
    """

    def __init__(self, key_of: Callable[[str], str]) -> None:
        self._key_of = key_of

    def __missing__(self, name: str) -> tuple[str, str]:
        checked_name("sensor", name)
        if len(self) >= _MAX_NAMES:
            self.clear()
        known = self[name] = self._key_of(name), name
        return known


def _native_reader(
    mapping: FieldMapping,
    paths: Mapping[str, tuple[str, ...]],
    keys: _Keys,
    native: Callable[[str], Any],
) -> Any:  # noqa: ANN401
    """Return what reads a block natively, and none that is not plain; ``None``: no block is."""
    channels, time, in_ms = mapping.channel_fields, mapping.time, mapping.time_unit == "ms"
    in_ms = time is None or (in_ms and not mapping.time_is_text)
    others = (mapping.tag, mapping.mode, mapping.quality, mapping.group)
    several = time is not None and not isinstance(time, str)
    if several or len(mapping.sensor_fields) > 1 or others.count(None) < len(others):
        return None
    if mapping.flags or mapping.partial or missing_numbers(mapping.missing):
        return None
    # A field has one role, and a name that JSON does not escape.
    fields = [*mapping.sensor_fields, *mapping.time_fields, *channels]
    names = "".join(name for path in paths.values() for name in path)
    if (
        len(set(fields)) < len(fields)
        or _ESCAPED.search(names)
        or max(map(len, paths.values())) > 1
    ):
        return None
    if len(channels) > _MAX_CHANNELS or not (in_ms or mapping.time_is_text):
        return None
    flat = native("Flat")
    keys = _Keys(lambda sensor: mapping.key_of(sensor, None))
    return (
        flat
        and flat(mapping, keys, channels, next(iter(mapping.sensor_fields), None), time, in_ms).read
    )


def flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    r"""Yield the fields of an object as a mapping names them, each with its value."""
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, below in tree.items():
        part = name.replace(".", "\\.")
        yield from flat(below, f"{path}.{part}" if path else part)


def nesting(value: bytes) -> int:
    """Return how many brackets of a JSON text stand open at once. O(bytes)."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(value):
        token = match[0]
        if token in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in b"]}":
            depth -= 1
    return deepest


def _parsed(value: bytes) -> dict[str, Any]:
    """Parse an object of JSON; also one with the NaN that Python writes."""
    if value.count(b"[") + value.count(b"{") <= MAX_NESTING:
        try:
            tree = _PARSER.decode(value)
            if type(tree) is dict:
                return tree
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    try:
        text = value.decode()
        if nesting(value) > MAX_NESTING:
            raise _NotAnObject(f"JSON nested more than {MAX_NESTING} levels deep")
        tree = json.loads(text, parse_int=_parse_int)
    except UnicodeDecodeError as error:
        raise _NotAnObject(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _NotAnObject(f"not JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(tree, dict):
        raise _NotAnObject(f"expected a JSON object, got {printable(tree)}")
    return tree


def _parse_int(digits: str) -> int | float:
    # Beyond 4,300 digits int() refuses; beyond 309 the number is out of every range anyway.
    return int(digits) if len(digits) < 400 else float(digits)
