"""Avro payloads, read with fastavro by the schema they were written with."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from rejex_stream.decode.json import nesting
from rejex_stream.decode.mapping import FieldMapping, TimeUnit, printable
from rejex_stream.decode.paths import field_paths
from rejex_stream.decode.registry_decoder import (
    HEADER_BYTES,
    MisfitError,
    PayloadReader,
    UnusableSchemaError,
)
from rejex_stream.decode.trees import TreeReader
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Record

_UNITS: Mapping[str, TimeUnit] = {"millis": "ms", "micros": "us", "nanos": "ns"}

_MAX_TEXT_LEVELS = 128
_MAX_LEVELS = 64
"""Levels of a payload, where a name stands for all it holds: the reader is recursive."""
_STEPS_PER_BYTE = 16
_MAX_STEPS = 1 << 16
_RECORD_STEPS = 4
"""A record makes a dict; every other value is one step."""
_MAX_DECIMAL_BYTES = 1024
_MAX_SCALE = 1000


def avro_reader(schema: RegisteredSchema, mapping: FieldMapping) -> PayloadReader:
    """Compile an Avro schema.

    No payload makes the reader take more than 16 steps a byte and 65,536 besides, or go more than
    64 levels deep: a schema that allows it is refused.
    """
    parsed, named = _parsed(schema)
    paths = field_paths(mapping.fields)
    if isinstance(mapping.time, str):
        unit = _unit(parsed, named, paths[mapping.time])
        mapping = mapping if unit is None else replace(mapping, time_unit=unit, time_format=None)
    trees = TreeReader(mapping, container="a record or a map")
    tree_of = _parser(parsed)
    return lambda record: trees.reading(record, tree_of(record))


def avro_json(schema: RegisteredSchema, _: FieldMapping) -> Callable[[Record], bytes]:
    """Compile an Avro schema to what makes a text of JSON of a record, within the same bounds.

    A decimal is a number, other logical types are what they are stored as; bytes are base64, what
    is not finite is ``null``.
    """
    parsed, _named = _parsed(schema)
    tree_of = _parser(parsed)
    return lambda record: msgspec.json.encode(tree_of(record))


def _decimal(value: bytes, schema: Any, _: object = None) -> float | str:  # noqa: ANN401 - JSON
    """Return a decimal as a float; the library's own way takes minutes for a long one."""
    if len(value) > _MAX_DECIMAL_BYTES:
        return f"a decimal of {len(value)} bytes"  # refused where it is a channel
    try:
        return float(int.from_bytes(value, signed=True) / 10 ** schema.get("scale", 0))
    except OverflowError:  # beyond 1.8e308, as an integer would be
        return math.nan


def _parser(parsed: dict[str, Any]) -> Callable[[Record], Any]:
    from fastavro import schemaless_reader as parse

    def tree_of(record: Record) -> Any:  # noqa: ANN401 - whatever Avro holds
        assert record.value is not None
        payload = io.BytesIO(record.value)
        payload.seek(HEADER_BYTES)
        try:
            tree = parse(payload, parsed, None)
        except MisfitError:
            raise
        except (EOFError, IndexError):
            raise MisfitError("it ends too early, or names a branch that is not there") from None
        except Exception as error:  # whatever a parser says of bytes that mean nothing
            raise MisfitError(type(error).__name__) from None
        left = len(record.value) - payload.tell()
        if left:
            raise MisfitError(f"{left} byte(s) are left over")
        return tree

    return tree_of


def _parsed(schema: RegisteredSchema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema and all that has a name in it, its work and depth found bounded."""
    import fastavro
    from fastavro.read import LOGICAL_READERS

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{_DECIMAL}"] = _decimal
    named: dict[str, Any] = {}
    try:
        for text in schema.references.values():
            fastavro.parse_schema(_loaded(text), named_schemas=named)
        main = _loaded(schema.text)
        parsed = _resolved(fastavro.parse_schema(main, named_schemas=named), named)
        if not isinstance(parsed, dict) or parsed["type"] != "record" or not parsed["fields"]:
            raise UnusableSchemaError("expected a record with fields")
        most = _Costs(named).of(parsed, 0).peak
    except UnusableSchemaError:
        raise
    except fastavro.schema.UnknownType as error:
        what = f"it refers to {printable(error.name, 200)}, which the registry does not give"
        raise UnusableSchemaError(what) from None
    except Exception as error:  # whatever a parser says of a text that means nothing
        raise UnusableSchemaError(f"not an Avro schema: {printable(str(error), 200)}") from None
    if most > _MAX_STEPS:
        raise UnusableSchemaError(
            f"a record of it may take {most} steps without a byte, more than {_MAX_STEPS}"
        )
    return parsed, named


def _loaded(text: str) -> Any:  # noqa: ANN401 - JSON
    if nesting(text.encode()) > _MAX_TEXT_LEVELS:
        raise UnusableSchemaError(f"it is nested more than {_MAX_TEXT_LEVELS} levels deep")
    return _plain(json.loads(text))


def _plain(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop what a logical type adds, but for decimals: a value is what it is stored as.

    :func:`_unit` knows the unit of a timestamp.
    """
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        _DECLARED if key == "logicalType" else key: _plain(value) if key in _INNER else value
        for key, value in schema.items()
    }
    if plain.get(_DECLARED) == "decimal" and schema["type"] in {"bytes", "fixed"}:
        scale = schema.get("scale", 0)
        if not isinstance(scale, int) or not 0 <= scale <= _MAX_SCALE:
            raise UnusableSchemaError(
                f"a decimal has a scale from 0 to {_MAX_SCALE}, not {printable(scale)}"
            )
        plain["logicalType"] = _DECIMAL
    return plain


_INNER = ("type", "fields", "items", "values")
_DECLARED = "declaredLogicalType"
_DECIMAL = "rejex-decimal"


def _resolved(schema: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401
    return named.get(schema, schema) if isinstance(schema, str) else schema


class _Cost(NamedTuple):
    surplus: int
    peak: int
    levels: int


class _Costs:
    """Bounds the work of reading before anything is read.

    Let the surplus of a value be its steps less `_STEPS_PER_BYTE` times its bytes, and its peak
    the most that this comes to on the way, where a payload may end. Over a record's fields the
    surplus adds up, over a union's branches the largest counts, and an array may hold any number
    of items, so an item's must not be positive. No payload takes more steps than `_STEPS_PER_BYTE`
    for each byte and the peak of the whole.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._known: dict[str, _Cost | None] = {}

    def of(self, schema: Any, depth: int) -> _Cost:  # noqa: ANN401 - JSON
        schema = _resolved(schema, self._named)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            cost = self._of_record(schema, depth)
        elif isinstance(kind, list):
            branches = [self.of(branch, depth + 1) for branch in kind]
            tag = 1 - _STEPS_PER_BYTE
            cost = _Cost(
                tag + max(branch.surplus for branch in branches),
                max(1, *(tag + branch.peak for branch in branches)),
                1 + max(branch.levels for branch in branches),
            )
        elif kind in {"array", "map"}:
            cost = self._of_many(schema, depth)
        elif isinstance(kind, dict):
            return self.of(kind, depth + 1)
        else:
            size = int(schema["size"]) if kind == "fixed" else _MIN_BYTES.get(kind, 1)
            cost = _Cost(1 - _STEPS_PER_BYTE * size, 1, 1)
        if depth + cost.levels > _MAX_LEVELS:
            raise UnusableSchemaError(f"its values are nested more than {_MAX_LEVELS} levels deep")
        return cost

    def _of_record(self, schema: dict[str, Any], depth: int) -> _Cost:
        name = schema["name"]
        if name not in self._known:
            self._known[name] = None
            surplus = peak = _RECORD_STEPS
            levels = 0
            for field in schema["fields"]:
                found = self.of(field["type"], depth + 1)
                peak = max(peak, surplus + found.peak)
                surplus += found.surplus
                levels = max(levels, found.levels)
            self._known[name] = _Cost(surplus, peak, 1 + levels)
        cost = self._known[name]
        if cost is None:
            raise UnusableSchemaError(f"{printable(name)} contains itself")
        return cost

    def _of_many(self, schema: dict[str, Any], depth: int) -> _Cost:
        kind = schema["type"]
        item = self.of(schema["items" if kind == "array" else "values"], depth + 1)
        key = 1 - _STEPS_PER_BYTE if kind == "map" else 0
        if item.surplus + key > 0:
            raise UnusableSchemaError(
                f"its {kind} holds values that take hardly a byte: a short record could hold any "
                "number of them"
            )
        return _Cost(1 - _STEPS_PER_BYTE, 2 + item.peak, 1 + item.levels)


_MIN_BYTES = {"null": 0, "float": 4, "double": 8}


def _unit(schema: Any, named: dict[str, Any], path: tuple[str, ...]) -> TimeUnit | None:  # noqa: ANN401
    for kind in _kinds(schema, named, path):
        declared = str(kind.get(_DECLARED, "")) if isinstance(kind, dict) else ""
        if "timestamp-" in declared:
            return _UNITS.get(declared.rpartition("-")[2])
    return None


def _kinds(schema: Any, named: dict[str, Any], path: tuple[str, ...]) -> Iterator[Any]:  # noqa: ANN401
    schema = _resolved(schema, named)
    if isinstance(schema, list):
        for branch in schema:
            yield from _kinds(branch, named, path)
    elif not path:
        yield schema
    elif isinstance(schema, dict) and schema.get("type") == "map":
        yield from _kinds(schema["values"], named, path[1:])
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if field["name"] == path[0]:
                yield from _kinds(field["type"], named, path[1:])
