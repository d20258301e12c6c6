"""Records in a schema registry's wire format: a zero byte, the schema's id, then the payload.

A schema is fetched and compiled once an id. While the registry does not answer, decoding raises
its retriable error: the run waits, and no record is taken for broken because of an outage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import TypeAlias

from rejex_stream.mapping import FieldMapping, Unreadable
from rejex_stream.protocols import RegisteredSchema, SchemaRegistry
from rejex_stream.types import Invalid, Reading, Record

__all__ = [
    "HEADER_BYTES",
    "MisfitError",
    "PayloadReader",
    "RegistryDecoder",
    "UnusableSchemaError",
    "reading_of",
]

HEADER_BYTES = 5
"""The zero byte and the schema's id, four bytes with the most significant first."""

UNKNOWN_S = 10.0
"""For so many seconds an id that the registry does not know is not asked for again."""
_MOST_UNKNOWN = 10_000
_LARGEST_ID = 2**31 - 1

PayloadReader: TypeAlias = Callable[[Record], Reading]
"""Reads the records of one schema; raises :class:`MisfitError` or ``Unreadable``."""


class MisfitError(Exception):
    """The payload does not fit its schema; never leaves decoding: it becomes an ``Invalid``."""


class UnusableSchemaError(Exception):
    """A schema cannot be read by; never leaves decoding: its records become ``Invalid``."""


class RegistryDecoder:
    r"""Decodes records whose schema is named by an id.

    An id that the registry does not know, a schema of another kind and a payload that does not
    fit its schema are ``Invalid``, and so dead letters with their original bytes. A producer
    registers a schema before it uses it; where that is not so, what the records in between become
    depends on when they are read.

    Parameters
    ----------
    mapping
        Which field means what; dots reach into nested records and maps. A time that the schema
        declares as a timestamp has the schema's unit, whatever ``mapping.time_unit`` says.
    registry
        Where schemas are asked for.
    kind
        ``AVRO`` or ``PROTOBUF``.
    compile_schema
        Makes a reader of a schema: :func:`~rejex_stream.decode.avro.avro_reader` or
        :func:`~rejex_stream.decode.protobuf.protobuf_reader`.
    clock
        Monotonic seconds.

    Examples
    --------
    >>> from rejex_stream.decode.avro import avro_reader
    >>> from rejex_stream.types import Position
    >>> class Registry:
    ...     def schema(self, schema_id):
    ...         fields = '[{"name": "id", "type": "string"}, {"name": "flow", "type": "double"}]'
    ...         text = '{"type": "record", "name": "Reading", "fields": %s}' % fields
    ...         return RegisteredSchema("AVRO", text, {}) if schema_id == 7 else None
    >>> mapping = FieldMapping(["flow"], sensor="id")
    >>> decoder = RegistryDecoder(mapping, Registry(), "AVRO", avro_reader)
    >>> payload = b"\x04m1" + bytes([0, 0, 0, 0, 0, 0, 4, 64])
    >>> record = Record(Position("water", 0, 1), None, b"\0\0\0\0\7" + payload, (), 5)
    >>> decoder.decode(record)[1:4]
    ('m1', 5, (2.5,))
    >>> decoder.decode(record._replace(value=b"\0\0\0\0\6" + payload)).reason
    'schema id 6 is not in the registry'
    """

    def __init__(
        self,
        mapping: FieldMapping,
        registry: SchemaRegistry,
        kind: str,
        compile_schema: Callable[[RegisteredSchema, FieldMapping], PayloadReader],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._mapping = mapping
        self._registry = registry
        self._kind = kind
        self._compile = compile_schema
        self._clock = clock
        self._readers: dict[bytes, PayloadReader | str] = {}
        self._unknown: dict[bytes, float] = {}

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in the order of ``Reading.values``."""
        return self._mapping.channel_names

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds. O(bytes).

        Raises
        ------
        ConnectorError
            While the registry cannot be asked for a schema that was not seen yet.
        """
        value = record.value
        if not value or len(value) > self._mapping.max_value_bytes:
            return self._mapping.refuse(record)
        header = value[:HEADER_BYTES]
        read = self._readers.get(header) or self._learn(header)
        if isinstance(read, str):
            return Invalid(record.position, "decode", read)
        try:
            return read(record)
        except Unreadable as error:
            return Invalid(record.position, "validate", str(error))
        except MisfitError as error:
            schema_id = int.from_bytes(header[1:])
            reason = f"the payload does not fit schema id {schema_id}: {error}"
            return Invalid(record.position, "decode", reason)

    def _learn(self, header: bytes) -> PayloadReader | str:
        """Return the reader of a schema, or one sentence why there is none."""
        if header[0] != 0 or len(header) < HEADER_BYTES:
            return _no_header(header)
        schema_id = int.from_bytes(header[1:])
        unknown = f"schema id {schema_id} is not in the registry"
        if schema_id > _LARGEST_ID:  # to ask for it would be an error of ours
            return unknown
        if self._clock() < self._unknown.get(header, -math.inf):
            return unknown
        schema = self._registry.schema(schema_id)
        if schema is None:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[header] = self._clock() + UNKNOWN_S
            return unknown
        found: PayloadReader | str
        if schema.kind != self._kind:
            format_ = self._kind.lower()
            found = f"schema id {schema_id} is {schema.kind}, but input.format is {format_!r}"
        else:
            try:
                found = self._compile(schema, self._mapping)
            except UnusableSchemaError as error:
                found = f"schema id {schema_id} cannot be used: {error}"
        self._readers[header] = found
        return found


def reading_of(
    mapping: FieldMapping,
    record: Record,
    named: tuple[object, object, object],
    values: tuple[object, ...],
) -> Reading:
    """Make a reading of decoded fields: `named` are time, sensor and group.

    ``None`` stands for what is absent or not mapped.

    Raises
    ------
    Unreadable
        With a sentence that names the field and quotes the value.
    """
    time, sensor, group = named
    # Plain finite floats, as nearly always, need no second look.
    if {*map(type, values)} == {float} and math.isfinite(sum(values)):  # type: ignore[arg-type]
        name = mapping.sensor_of(record, sensor)
        return Reading(
            mapping.key_of(name, group),
            name,
            mapping.time_of(record, time),
            values,  # type: ignore[arg-type]
            record.position,
        )
    return mapping.reading(record, time=time, sensor=sensor, group=group, values=values)


def _no_header(header: bytes) -> str:
    if header[0] != 0:
        hint = "; it looks like JSON" if header[:1] in b"{[" else ""
        return (
            f"expected the zero byte that a schema registry's producer writes first, got "
            f"0x{header[0]:02x}{hint}"
        )
    return f"the record ends within the schema's id, after {len(header)} bytes"
