"""One JSON object a record."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from rejex_stream.decode.mapping import (
    ABSENT,
    MAX_EPOCH_MS,
    MAX_SENSOR_CHARS,
    MIN_EPOCH_MS,
    FieldMapping,
    NotWanted,
    Unreadable,
    printable,
)
from rejex_stream.decode.paths import field_path, refuse_nested
from rejex_stream.decode.written import missing_numbers
from rejex_stream.native_core import native
from rejex_stream.types import MODE_MARK, Invalid, Reading, Record

__all__ = ["JsonDecoder", "flat"]

MAX_NESTING = 64
"""Deeper JSON is invalid: parsers are recursive, and how deep they get depends on their caller."""

_BLOCK = 128
"""Records that are parsed at once; if one of them is unusual, as many are decoded one by one."""
_MOST_NAMES = 1 << 16
_MOST_CHANNELS = 64  # of what is read natively
_UNSURE = (msgspec.DecodeError, UnicodeDecodeError, AttributeError, Unreadable)
"""What the quick way raises where the thorough one must look."""

_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # in a name, where JSON escapes it
# Possessive, and content with a text that never ends: no input takes more than linear time.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class JsonDecoder:
    r"""Decodes one JSON object a record.

    Also accepts the bare ``NaN`` and ``Infinity`` that Python producers write (as missing).
    """

    def __init__(self, mapping: FieldMapping, native: Callable[[str], Any] = native) -> None:
        self._mapping = mapping
        self._paths = {field: field_path(field) for field in mapping.fields if field}
        refuse_nested(self._paths)
        self._time = mapping.time_getter(lambda field: partial(self._find, field=field))
        self._sensor = mapping.sensor_getter(lambda field: partial(self._find, field=field))
        plain = mapping.tag is None and mapping.mode is None and len(mapping.time_fields) < 2
        plain = plain and mapping.quality is None and len(mapping.sensor_fields) < 2
        self._quick = _quick_json(mapping, self._paths) if plain else None
        flat = self._quick and _flat_reader(mapping, self._quick.keys, native)
        self._flat: Callable[[Sequence[Record]], Any] = flat or (lambda _: None)
        self._max_bytes = mapping.max_value_bytes
        self._if_absent = ABSENT if mapping.partial else None

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
        if _n_brackets(value) > MAX_NESTING and nesting(value) > MAX_NESTING:
            return Invalid(
                record.position, "decode", f"JSON nested more than {MAX_NESTING} levels deep"
            )
        try:
            found = self._at_once((record,))
            return found[0] if found else self._thorough(record, value)
        except Exception as error:  # the stack is short, say
            return self._mapping.given_up(record, error)

    def decode_all(self, records: Sequence[Record]) -> list[Reading | Invalid]:
        """Decode records, each to what :meth:`decode` makes of it; faster. O(bytes)."""
        found: list[Reading | Invalid] = []
        for start in range(0, len(records), _BLOCK):
            block = records[start : start + _BLOCK]
            found += self._flat(block) or self._at_once(block) or map(self.decode, block)
        return found

    def _at_once(self, records: Sequence[Record]) -> Sequence[Reading] | None:
        """Parse records as lines of one text; ``None`` where any of them is unusual."""
        # Every break between lines stands between `}` and `{`, which no JSON value has within it.
        # So no value reaches from one record into the next, each record has one at least, and with
        # as many values as records each is one.
        if self._quick is None:
            return None
        values: list[Any] = [record[2] for record in records]
        n_more = len(values) - 1
        try:
            text = b"\n".join(values)
            if text.count(b"\n") > n_more or text.count(b"}\n{") < n_more:
                return None
            if max(map(len, values)) > self._max_bytes:
                return None
            if not text.isascii():
                text.decode()
            # Each has a bracket at least, so none has more than those that are left.
            if _n_brackets(text) - n_more > MAX_NESTING and any(
                _n_brackets(value) > MAX_NESTING for value in values
            ):
                return None
            trees = self._quick.parse_lines(text)
            return self._quick.readings(records, trees) if len(trees) == len(values) else None
        except (TypeError, RecursionError, *_UNSURE):  # TypeError: one is a tombstone
            return None

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
                sensor=self._sensor(tree),
                group=self._find(tree, mapping.group),
                tag=self._find(tree, mapping.tag),
                mode=self._find(tree, mapping.mode),
                values=[
                    self._find(tree, field, if_absent=self._if_absent)
                    for field in mapping.channel_fields
                ],
                qualities=[self._find(tree, field or None) for field in mapping.quality_fields],
            )
        except NotWanted as error:
            return Invalid(record.position, "ignored", str(error))
        except Unreadable as error:
            return Invalid(record.position, "validate", str(error))

    def _find(
        self, tree: dict[str, Any], field: str | None, *, if_absent: float | None = None
    ) -> object:
        if field is None:
            return None
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


class _Quick(NamedTuple):
    """The quick way: a typed parser, and no loop over channels.

    It raises one of :data:`_UNSURE` at whatever it is not sure of.
    """

    parse_lines: Callable[[bytes], list[Any]]
    readings: Callable[[Sequence[Record], list[Any]], list[Reading]]
    keys: _Keys


class _Keys(dict[str, tuple[str, str]]):
    """The stream keys of names that were met, each of which is looked at once.

    With it comes the name as it was met first: whoever looks it up meets the same object.
    """

    def __init__(self, key_of: Callable[[str], str]) -> None:
        self._key_of = key_of

    def __missing__(self, name: str) -> tuple[str, str]:
        if not 0 < len(name) <= MAX_SENSOR_CHARS or MODE_MARK in name:
            raise Unreadable(name)
        if len(self) >= _MOST_NAMES:
            self.clear()
        known = self[name] = self._key_of(name), name
        return known


def _quick_json(mapping: FieldMapping, paths: dict[str, tuple[str, ...]]) -> _Quick | None:
    """Build the quick way."""
    # A field with two roles has no single type, and a typed parser takes no name that JSON escapes:
    # such a mapping has none.
    kind: Any = float | bool | None if mapping.flags else float | None
    if mapping.partial:
        kind |= msgspec.UnsetType
    roles: dict[str, Any] = dict.fromkeys(mapping.channel_fields, kind)
    named = [field for field in (*mapping.sensor_fields, mapping.group) if field is not None]
    n_fields = len(named) + len(roles) + (mapping.time is not None)
    names = "".join(name for path in paths.values() for name in path)
    if len({*named, *mapping.time_fields, *roles}) < n_fields or _ESCAPED.search(names):
        return None
    roles |= dict.fromkeys(named, str)
    for field in mapping.time_fields:
        roles[field] = str if mapping.time_is_text else int | float

    default = msgspec.UNSET if mapping.partial else None
    tree = {paths[field]: kind for field, kind in roles.items()}
    struct, attributes = _typed_tree(tree, kind, default)
    decoder = msgspec.json.Decoder(struct)
    fetch = _fetcher([attributes[paths[field]] for field in mapping.channel_fields])
    fetch_time: Callable[[Any], Any] | None = None
    if mapping.time is not None:
        fetch_time = mapping.time_getter(lambda field: attrgetter(attributes[paths[field]]))
    fetch_sensor: Callable[[Any], Any] | None = None
    if mapping.sensor is not None:
        fetch_sensor = mapping.sensor_getter(lambda field: attrgetter(attributes[paths[field]]))
    fetch_group = attrgetter(attributes[paths[mapping.group]]) if mapping.group else None
    in_ms = fetch_time is None or (mapping.time_unit == "ms" and not mapping.time_is_text)
    keys = _Keys(str if fetch_group else lambda sensor: mapping.key_of(sensor, None))
    nan = math.nan
    as_meant = _as_meant(mapping)
    new = tuple.__new__  # nearly twice as fast as calling a named tuple's class

    def readings(records: Sequence[Record], trees: list[Any]) -> list[Reading]:
        found = []
        for record, tree in zip(records, trees, strict=True):
            sensor = fetch_sensor(tree) if fetch_sensor else mapping.sensor_of(record, None)
            key, sensor = keys[sensor]
            if fetch_group:
                key, _ = keys[fetch_group(tree)]
            time = fetch_time(tree) if fetch_time else record[4]
            if not (in_ms and type(time) is int and MIN_EPOCH_MS <= time <= MAX_EPOCH_MS):
                time = mapping.time_of(record, time)
            values = fetch(tree)
            if None in values:
                values = tuple([nan if value is None else value for value in values])
            if as_meant is not None:
                values = as_meant(values)
            found.append(new(Reading, (key, sensor, time, values, record[0])))
        return found

    return _Quick(decoder.decode_lines, readings, keys)


def _flat_reader(mapping: FieldMapping, keys: _Keys, native: Callable[[str], Any]) -> Any:  # noqa: ANN401
    """Return what reads a block natively, and none that is not plain; ``None``: no block is."""
    names, sensor = mapping.channel_fields, next(iter(mapping.sensor_fields), None)
    in_ms = mapping.time is None or (mapping.time_unit == "ms" and not mapping.time_is_text)
    plain = _as_meant(mapping) is None and mapping.group is None
    plain = plain and isinstance(mapping.time, str | None) and (in_ms or mapping.time_is_text)
    plain = plain and len(set(names)) == len(names) <= _MOST_CHANNELS
    plain = plain and not any("." in name or "\\" in name for name in mapping.fields)
    flat = native("Flat") if plain else None
    return flat and flat(mapping, keys, names, sensor, mapping.time, in_ms).read


def _as_meant(mapping: FieldMapping) -> Callable[[tuple[Any, ...]], tuple[float, ...]] | None:
    """Return what makes of values the floats they stand for; ``None`` where they are these."""
    if not (mapping.flags or mapping.partial):
        return mapping.without_missing if missing_numbers(mapping.missing) else None
    is_flag = [name in mapping.flags for name in mapping.channel_names]

    def floats(values: tuple[Any, ...]) -> tuple[float, ...]:
        kinds = [type(value) for value in values]
        if any(kind is bool and not flag for kind, flag in zip(kinds, is_flag, strict=True)):
            raise Unreadable
        values = tuple([ABSENT if value is msgspec.UNSET else float(value) for value in values])
        return mapping.without_missing(values)

    return floats


def _typed_tree(
    kinds: dict[tuple[str, ...], Any],
    may_lack: Any,  # noqa: ANN401 - a type
    default: Any,  # noqa: ANN401 - of a field of that type
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
            optional = kind == may_lack
        else:
            below = {path[1:]: kind for path, kind in kinds.items() if path[0] == name}
            inner, inner_attributes = _typed_tree(below, may_lack, default)
            kind, optional = inner | None, True
            for path, inner_attribute in inner_attributes.items():
                attributes[name, *path] = f"{attribute}.{inner_attribute}"
        field = (attribute, kind, default if kind == may_lack else None)
        fields.append(field if optional else (attribute, kind))
    fields.sort(key=len)  # those without a default come first
    return msgspec.defstruct("Fields", fields, rename=rename, gc=False), attributes


def _fetcher(attributes: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    fetch = attrgetter(*attributes)
    if len(attributes) == 1:
        return lambda tree: (fetch(tree),)
    return fetch


def flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    r"""Yield the fields of an object as a mapping names them, each with its value."""
    if not isinstance(tree, dict):
        yield path, tree
        return
    for name, below in tree.items():
        part = name.replace(".", "\\.")
        yield from flat(below, f"{path}.{part}" if path else part)


def _n_brackets(value: bytes) -> int:
    return value.count(b"[") + value.count(b"{")


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
