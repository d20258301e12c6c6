"""One JSON object a record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from rejex_stream.decode.mapping import (
    MAX_EPOCH_MS,
    MAX_SENSOR_CHARS,
    MIN_EPOCH_MS,
    FieldMapping,
    Unreadable,
    printable,
)
from rejex_stream.decode.paths import field_path, refuse_nested
from rejex_stream.types import MODE_MARK, Invalid, Reading, Record

__all__ = ["JsonDecoder", "flat"]

MAX_NESTING = 64
"""Deeper JSON is invalid: parsers are recursive, and how deep they get depends on their caller."""

_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # in a name, where JSON escapes it
# Possessive, and content with a text that never ends: no input takes more than linear time.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class JsonDecoder:
    r"""Decodes one JSON object a record.

    Also accepts the bare ``NaN`` and ``Infinity`` that Python producers write (as missing).

    Parameters
    ----------
    mapping
        Which field means what; dots reach into nested objects.

    Raises
    ------
    ConfigError
        If a field stands inside another one (``a`` and ``a.b``).

    Examples
    --------
    >>> from rejex_stream.types import Position, Record
    >>> decoder = JsonDecoder(FieldMapping(["flow", "p.in"], sensor="id", time="t"))
    >>> record = Record(Position("water", 0, 7), None, b'{"id": "m1", "t": 5, "p": {"in": 2.5}}')
    >>> decoder.decode(record).values
    (nan, 2.5)
    >>> decoder.decode(record._replace(value=b'{"id": "m1", "t": 5, "flow": "high"}')).reason
    "channel 'flow': expected a number, got 'high'"
    """

    def __init__(self, mapping: FieldMapping) -> None:
        self._mapping = mapping
        self._paths = {field: field_path(field) for field in mapping.fields}
        refuse_nested(self._paths)
        self._time = mapping.time_getter(lambda field: partial(self._find, field=field))
        plain = mapping.tag is None and mapping.mode is None and len(mapping.time_fields) < 2
        self._quick = _quick_json(mapping, self._paths) if plain else None
        self._max_bytes = mapping.max_value_bytes

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        return self._mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds. O(bytes)."""
        value = record.value
        if not value or len(value) > self._max_bytes:
            return self._mapping.refuse(record)
        if not value.isascii():
            # The quick parser skips fields nobody asked for without looking at their bytes.
            try:
                value.decode()
            except UnicodeDecodeError as error:
                return Invalid(record.position, "decode", f"invalid UTF-8 at byte {error.start}")
        if value.count(b"[") + value.count(b"{") > MAX_NESTING and nesting(value) > MAX_NESTING:
            return Invalid(
                record.position, "decode", f"JSON nested more than {MAX_NESTING} levels deep"
            )
        try:
            reading = None if self._quick is None else self._quick(record, value)
            return self._thorough(record, value) if reading is None else reading
        except Exception as error:  # the stack is short, say
            return self._mapping.given_up(record, error)

    def lacking(self, record: Record) -> str:
        """Say which channels a record lacks, and which fields it has instead."""
        try:
            tree = json.loads(record.value or b"", parse_int=_parse_int)
            fields = [name for name, _ in flat(tree)]
        except (ValueError, RecursionError):
            fields = []
        return self._mapping.lacking(self.decode(record), fields)

    def _thorough(self, record: Record, value: bytes) -> Reading | Invalid:
        try:
            tree = json.loads(value.decode(), parse_int=_parse_int)
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error.msg} at character {error.pos}"
            return Invalid(record.position, "decode", reason)
        if not isinstance(tree, dict):
            reason = f"expected a JSON object, got {printable(tree)}"
            return Invalid(record.position, "decode", reason)
        mapping = self._mapping
        try:
            return mapping.reading(
                record,
                time=self._time(tree),
                sensor=self._find(tree, mapping.sensor),
                group=self._find(tree, mapping.group),
                tag=self._find(tree, mapping.tag),
                mode=self._find(tree, mapping.mode),
                values=[self._find(tree, field) for field in mapping.channel_fields],
            )
        except Unreadable as error:
            return Invalid(record.position, "validate", str(error))

    def _find(self, tree: dict[str, Any], field: str | None) -> object:
        if field is None:
            return None
        node: Any = tree
        path = self._paths[field]
        for depth, name in enumerate(path):
            if node is None:
                return None
            if not isinstance(node, dict):
                where = ".".join(path[:depth])
                raise Unreadable(f"{where}: expected an object, got {printable(node)}")
            node = node.get(name)
        return node


def _quick_json(
    mapping: FieldMapping, paths: dict[str, tuple[str, ...]]
) -> Callable[[Record, bytes], Reading | None] | None:
    """Build the quick way: a typed parser, one attribute fetch, no loop over channels.

    It answers ``None`` for whatever it is not sure of. A field with two roles has no single type,
    and a typed parser takes no name that JSON escapes: such a mapping has no quick way.
    """
    roles: dict[str, Any] = {field: float | None for field in mapping.channel_fields}
    named = [field for field in (mapping.sensor, mapping.group) if field is not None]
    n_fields = len(named) + len(roles) + (mapping.time is not None)
    names = "".join(name for path in paths.values() for name in path)
    if len({*named, *mapping.time_fields, *roles}) < n_fields or _ESCAPED.search(names):
        return None
    roles |= dict.fromkeys(named, str)
    for field in mapping.time_fields:
        roles[field] = str if mapping.time_is_text else int | float

    struct, attributes = _typed_tree({paths[field]: kind for field, kind in roles.items()})
    parse = msgspec.json.Decoder(struct).decode
    fetch = _fetcher([attributes[paths[field]] for field in mapping.channel_fields])
    timed = mapping.time is not None
    fetch_time: Callable[[Any], Any] = mapping.time_getter(
        lambda field: attrgetter(attributes[paths[field]])
    )
    fetch_sensor = attrgetter(attributes[paths[mapping.sensor]]) if mapping.sensor else None
    fetch_group = attrgetter(attributes[paths[mapping.group]]) if mapping.group else None
    in_ms = mapping.time_unit == "ms" and not mapping.time_is_text
    single_key = fetch_group is None and mapping.groups is None and not mapping.pooled
    new = tuple.__new__  # nearly twice as fast as calling a named tuple's class

    def quick(record: Record, value: bytes) -> Reading | None:
        try:
            tree = parse(value)
            values = fetch(tree)
            sensor = fetch_sensor(tree) if fetch_sensor else mapping.sensor_of(record, None)
            if not 0 < len(sensor) <= MAX_SENSOR_CHARS or MODE_MARK in sensor:
                return None
            if single_key:
                key = sensor
            elif fetch_group:
                key = fetch_group(tree)
                if not 0 < len(key) <= MAX_SENSOR_CHARS or MODE_MARK in key:
                    return None
            else:
                key = mapping.key_of(sensor, None)
            if not timed:
                time = mapping.time_of(record, None)
            else:
                time = fetch_time(tree)
                if not (in_ms and type(time) is int and MIN_EPOCH_MS <= time <= MAX_EPOCH_MS):
                    time = mapping.epoch_ms(time)
        except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, Unreadable):
            return None
        if None in values:
            values = tuple([math.nan if found is None else found for found in values])
        return new(Reading, (key, sensor, time, values, record[0]))

    return quick


def _typed_tree(
    kinds: dict[tuple[str, ...], Any],
) -> tuple[type[msgspec.Struct], dict[tuple[str, ...], str]]:
    """Define a struct for these paths; returns it with the attribute path of every leaf."""
    fields: list[Any] = []
    rename: dict[str, str] = {}
    attributes: dict[tuple[str, ...], str] = {}
    for index, name in enumerate(dict.fromkeys(path[0] for path in kinds)):
        attribute = f"f{index}"
        rename[attribute] = name
        if (name,) in kinds:
            kind = kinds[name,]
            attributes[name,] = attribute
            optional = kind == float | None
        else:
            below = {path[1:]: kind for path, kind in kinds.items() if path[0] == name}
            inner, inner_attributes = _typed_tree(below)
            kind, optional = inner | None, True
            for path, inner_attribute in inner_attributes.items():
                attributes[name, *path] = f"{attribute}.{inner_attribute}"
        fields.append((attribute, kind, None) if optional else (attribute, kind))
    fields.sort(key=len)  # those without a default come first
    return msgspec.defstruct("Fields", fields, rename=rename, gc=False), attributes


def _fetcher(attributes: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    fetch = attrgetter(*attributes)
    if len(attributes) == 1:
        return lambda tree: (fetch(tree),)
    return fetch


def flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    r"""Yield the fields of an object as a mapping names them, each with its value.

    Examples
    --------
    >>> list(flat({"t": 5, "motor": {"temp": 2.5, "v1.2": None}}))
    [('t', 5), ('motor.temp', 2.5), ('motor.v1\\.2', None)]
    """
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


def _parse_int(digits: str) -> int | float:
    # Beyond 4,300 digits int() refuses; beyond 309 the number is out of every range anyway.
    return int(digits) if len(digits) < 400 else float(digits)
