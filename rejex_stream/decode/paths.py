"""Where a value or a name stands: a field by its path, or the record's key, header or topic.

``motor.temp`` is the field ``temp`` of the object ``motor``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.types import Record

_LIKE_ONE = re.compile(r"(keys?|topics?|headers?):")
_MOST_KNOWN = 1 << 16
_UNESCAPED_DOT = re.compile(r"(?<!\\)\.")


def field_path(field: str) -> tuple[str, ...]:
    r"""Split a field at its dots; a dot that belongs to a name is written ``\.``."""
    path = tuple(part.replace("\\.", ".") for part in _UNESCAPED_DOT.split(field))
    if not all(path):
        raise ConfigError(f"field {field!r} has an empty part: write nested fields as `a.b`")
    return path


def field_paths(fields: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the path of each field; ``ConfigError`` where one stands inside the other."""
    paths = {field: field_path(field) for field in fields if field}
    for outer, outer_path in paths.items():
        for inner, inner_path in paths.items():
            if outer != inner and inner_path[: len(outer_path)] == outer_path:
                raise ConfigError(
                    f"field {inner!r} stands inside field {outer!r}, which is a value itself: "
                    f"map one of them"
                )
    return paths


Origin: TypeAlias = Callable[[Record], object]
"""Finds a name in a record; raises ``ValueError`` with a sentence where there is none."""


def origin_of(spec: str) -> Origin | None:
    r"""Return what finds a name beside the value; ``None`` where `spec` names a field of it.

    It is ``key``; ``key.FIELD`` of a key that is a JSON object; ``header:NAME``; or
    ``key:PATTERN`` or ``topic:PATTERN``, a regular expression whose groups, with a slash between,
    are the name.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> record = Record(Position("plant.north.m7", 0, 1), b'{"site": "A", "unit": 3}', b"{}")
    >>> origin_of("key.site")(record), origin_of("key.unit")(record)
    ('A', 3)
    >>> origin_of(r"topic:plant\.(?P<site>\w+)\.(?P<machine>\w+)")(record)
    'north/m7'
    >>> plain = record._replace(key=b"plant/north/m7/temp")
    >>> origin_of("key:([^/]+)/[^/]+$")(plain), origin_of("key:([^/]+)$")(plain)
    ('m7', 'temp')
    >>> origin_of("motor.id") is None
    True
    """
    if spec == "key":
        return _key
    if spec.startswith("key."):
        path = field_path(spec.removeprefix("key."))
        return lambda record: _in_key(record, path)
    if spec.startswith("header:"):
        name = spec.removeprefix("header:")
        return lambda record: _header(record, name)
    if spec.startswith("key:"):
        return _match("key", spec.removeprefix("key:"), _key)
    if spec.startswith("topic:"):
        topic = spec.removeprefix("topic:")
        return _match("topic", topic, lambda record: record.position.topic)
    if wrong := _LIKE_ONE.match(spec):
        raise ConfigError(
            f"{spec!r} begins with {wrong[0]!r}: expected key:PATTERN, topic:PATTERN or "
            "header:NAME, or the name of a field"
        )
    return None


def _key(record: Record) -> object:
    try:
        return None if record.key is None else record.key.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the key {record.key!r:.80} is not UTF-8") from None


def _in_key(record: Record, path: tuple[str, ...]) -> object:
    try:
        node = msgspec.json.decode(record.key or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"expected a key of JSON, got {record.key!r:.80}") from None
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _header(record: Record, name: str) -> object:
    found = next((value for known, value in record.headers if known == name), None)
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the header {name!r} is not UTF-8") from None


def _match(what: str, pattern: str, text_of: Origin) -> Origin:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what}:{pattern} holds no regular expression: {error}") from None
    if not compiled.groups:
        raise ConfigError(
            f"the pattern {pattern!r} has no group: put what names the sensor or the quantity into "
            r"one, such as plant\.(?P<machine>\w+)"
        )
    known: dict[object, str | None] = {}

    def find(record: Record) -> object:
        text = text_of(record)
        if text not in known:
            match = compiled.search(str(text or ""))
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[text] = None if match is None else "/".join(filter(None, match.groups()))
        if known[text] is None:
            raise ValueError(f"the {what} {text!r:.80} does not match {pattern!r}")
        return known[text]

    return find
