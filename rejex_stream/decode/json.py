"""One JSON object a record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from rejex_stream.decode.mapping import FieldMapping, NameCache, printable
from rejex_stream.decode.trees import TreeReader
from rejex_stream.decode.written import missing_numbers
from rejex_stream.native_core import native
from rejex_stream.types import Invalid, Reading, Record

MAX_NESTING = 64
"""Deeper JSON is invalid: parsers are recursive, and how deep they get depends on their caller."""

_BLOCK = 128  # records that are read natively at once
_MAX_CHANNELS = 64  # of what is read natively
_PARSER = msgspec.json.Decoder()
_ESCAPED = re.compile(r'[."\\\x00-\x1f]')  # in a name: where it is a path, or JSON escapes it
# Possessive, and content with a text that never ends: no input takes more than linear time.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class _NotAnObject(Exception):  # noqa: N818 - never leaves this module
    """A value is no object of JSON; the message says why."""


class JsonDecoder:
    r"""Decodes one JSON object a record.

    Also accepts the bare ``NaN`` and ``Infinity`` that Python producers write (as missing).
    """

    def __init__(self, mapping: FieldMapping, native: Callable[[str], Any] = native) -> None:
        self._mapping, self.channels = mapping, mapping.channel_names
        self._trees = TreeReader(mapping)
        self._max_bytes = mapping.max_value_bytes
        self._native = _native_reader(mapping, self._trees.names, native)

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds. O(bytes)."""
        value = record[2]
        if not value or len(value) > self._max_bytes:
            return self._mapping.refuse(record)
        try:
            return self._trees.reading(record, _parsed(value))
        except _NotAnObject as error:
            return Invalid(record.position, "decode", str(error))
        except Exception as error:  # the stack is short, say
            return self._mapping.failed(record, error)

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
        return self._mapping.lacking(self.decode(record), self.fields(record))

    def fields(self, record: Record) -> dict[str, object]:
        try:
            return dict(flat(json.loads(record.value or b"", parse_int=_parse_int)))
        except (ValueError, RecursionError):
            return {}


def _native_reader(mapping: FieldMapping, names: NameCache, native: Callable[[str], Any]) -> Any:  # noqa: ANN401
    """Return what reads a block natively, and none that is not plain; ``None``: no block is."""
    channels, time = mapping.channel_fields, mapping.time
    in_ms = time is None or (mapping.time_unit == "ms" and not mapping.time_is_text)
    fields = [*mapping.sensor_fields, *mapping.time_fields, *channels]
    refused = (
        mapping.tagged or mapping.mode or mapping.quality or mapping.group,
        mapping.flags or mapping.partial or missing_numbers(mapping.missing) or mapping.missing_of,
        len(mapping.sensor_fields) > 1 or not isinstance(time, str | None),
        not (in_ms or mapping.time_is_text) or len(channels) > _MAX_CHANNELS,
        # A field has one role, and a name without dots that JSON does not escape.
        len(set(fields)) < len(fields) or any(map(_ESCAPED.search, fields)),
    )
    flat = None if any(refused) else native("Flat")
    sensor = next(iter(mapping.sensor_fields), None)
    return flat and flat(mapping, names, channels, sensor, time, in_ms).read


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
