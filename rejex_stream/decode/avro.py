"""Avro payloads, read with fastavro by the schema they were written with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from operator import itemgetter
from typing import Any, TypeAlias

from rejex_stream.decode.paths import field_path, refuse_nested
from rejex_stream.decode.registry import (
    HEADER_BYTES,
    MisfitError,
    PayloadReader,
    UnusableSchemaError,
    reading_of,
)
from rejex_stream.mapping import FieldMapping, TimeUnit, Unreadable, printable
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Reading, Record

__all__ = ["avro_reader"]

_Fetcher: TypeAlias = Callable[[Any], tuple[object, ...]]
_UNITS: Mapping[str, TimeUnit] = {"millis": "ms", "micros": "us", "nanos": "ns"}


def avro_reader(schema: RegisteredSchema, mapping: FieldMapping) -> PayloadReader:
    """Compile an Avro schema.

    Raises
    ------
    UnusableSchemaError
        If it is no Avro, no record, or contains itself: then a short record could nest so deeply
        that the reader overruns the stack.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for text in schema.references.values():
            fastavro.parse_schema(_plain(json.loads(text)), named_schemas=named)
        parsed = fastavro.parse_schema(_plain(json.loads(schema.text)), named_schemas=named)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise UnusableSchemaError(f"not an Avro schema: {printable(str(error), 200)}") from None
    parsed = _resolved(parsed, named)
    if not isinstance(parsed, dict) or parsed.get("type") != "record" or not parsed.get("fields"):
        raise UnusableSchemaError("expected a record with fields")
    _refuse_recursion(parsed, named, ())
    paths = {field: field_path(field) for field in mapping.fields}
    refuse_nested(paths)
    if mapping.time is not None:
        unit = _unit(parsed, named, paths[mapping.time])
        mapping = mapping if unit is None else replace(mapping, time_unit=unit)
    find_time, find_sensor, find_group = (
        _finder(None if field is None else paths[field])
        for field in (mapping.time, mapping.sensor, mapping.group)
    )
    fetch = _fetcher([paths[field] for field in mapping.channel_fields], parsed)
    if any('"decimal"' in text for text in (schema.text, *schema.references.values())):
        fetch = _without_decimals(fetch)
    parse = fastavro.schemaless_reader

    def read(record: Record) -> Reading:
        assert record.value is not None
        payload = io.BytesIO(record.value)
        payload.seek(HEADER_BYTES)
        try:
            tree: Any = parse(payload, parsed, None)
        except (EOFError, IndexError):
            raise MisfitError("it ends too early, or names a branch that is not there") from None
        except Exception as error:  # whatever a parser says of bytes that mean nothing
            raise MisfitError(type(error).__name__) from None
        left = len(record.value) - payload.tell()
        if left:
            raise MisfitError(f"{left} byte(s) are left over")
        named = (find_time(tree), find_sensor(tree), find_group(tree))
        return reading_of(mapping, record, named, fetch(tree))

    return read


def _fetcher(paths: list[tuple[str, ...]], parsed: dict[str, Any]) -> _Fetcher:
    names = {field["name"] for field in parsed["fields"]}
    if len(paths) > 1 and all(len(path) == 1 and path[0] in names for path in paths):
        return itemgetter(*(path[0] for path in paths))
    return lambda tree: tuple([_find(tree, path) for path in paths])


def _without_decimals(fetch: _Fetcher) -> _Fetcher:
    def plain(value: object) -> object:
        return float(value) if isinstance(value, Decimal) else value

    return lambda tree: tuple(map(plain, fetch(tree)))


def _finder(path: tuple[str, ...] | None) -> Callable[[Any], object]:
    if path is None:
        return lambda _: None
    if len(path) == 1:
        (name,) = path
        return lambda tree: tree.get(name)
    return lambda tree: _find(tree, path)


def _find(tree: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 - whatever Avro holds
    node = tree
    for depth, name in enumerate(path):
        if node is None:
            return None
        if not isinstance(node, dict):
            where = ".".join(path[:depth])
            raise Unreadable(f"{where}: expected a record or a map, got {printable(node)}")
        node = node.get(name)
    return node


def _plain(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop what a logical type adds, but for decimals, whose bytes say nothing without it.

    The value of a timestamp is its number; :func:`_unit` knows its unit.
    """
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) if key in _INNER else value for key, value in schema.items()}
    if plain.get("logicalType") != "decimal":
        plain = {_DECLARED if key == "logicalType" else key: v for key, v in plain.items()}
    return plain


_INNER = ("type", "fields", "items", "values")
_DECLARED = "declaredLogicalType"


def _resolved(schema: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _refuse_recursion(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> None:  # noqa: ANN401
    schema = _resolved(schema, named)
    if isinstance(schema, list):
        for branch in schema:
            _refuse_recursion(branch, named, within)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            name = schema["name"]
            if name in within:
                raise UnusableSchemaError(f"{printable(name)} contains itself")
            for field in schema.get("fields", ()):
                _refuse_recursion(field["type"], named, (*within, name))
        else:
            for part in _INNER:
                if part in schema:
                    _refuse_recursion(schema[part], named, within)


def _unit(schema: Any, named: dict[str, Any], path: tuple[str, ...]) -> TimeUnit | None:  # noqa: ANN401
    """Return the unit of a field that is declared as a timestamp."""
    schema = _resolved(schema, named)
    if isinstance(schema, list):
        units = [_unit(branch, named, path) for branch in schema]
        return next((unit for unit in units if unit is not None), None)
    if not isinstance(schema, dict):
        return None
    if path:
        if schema.get("type") == "map":
            return _unit(schema["values"], named, path[1:])
        inner = [f["type"] for f in schema.get("fields", ()) if f["name"] == path[0]]
        return _unit(inner[0], named, path[1:]) if inner else None
    declared = str(schema.get(_DECLARED, ""))
    return _UNITS.get(declared.rpartition("-")[2]) if "timestamp-" in declared else None
