"""Records in a schema registry's wire format: a zero byte, the schema's id, then the payload.

A schema is fetched and compiled once an id. While the registry does not answer, decoding raises
its retriable error: the run waits, and no record is taken for broken because of an outage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from rejex_stream.decode.mapping import FieldMapping, printable
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema, SchemaRegistry
from rejex_stream.types import Invalid, Reading, Record

HEADER_BYTES = 5
"""The zero byte and the schema's id, four bytes with the most significant first."""

UNKNOWN_S = 10.0
"""For so many seconds an id is not asked for again that the registry does not know, or whose schema
cannot be used."""
MAX_KNOWN = 1_000
"""A partition's records may name so many schemas that can be read by."""
_MAX_KEPT = 10_000
_MAX_TEXT = 1 << 20
FORMAT_VERSION = 1
_NEVER = 2**63 - 1
_MAX_ID = 2**31 - 1
# A field's name in a schema of Avro, or of Protobuf; only shown to people.
_FIELD = re.compile(r'"name"\s*:\s*"(\w+)"\s*,\s*"type"|\b(\w+)\s*=\s*\d+\s*[;\[]')

PayloadReader: TypeAlias = Callable[[Record], Reading] | Callable[[Record], bytes]
"""Reads the records of one schema, to readings or to JSON; raises :class:`MisfitError` or
``Unreadable``."""


class MisfitError(Exception):
    """The payload does not fit its schema; never leaves decoding: it becomes an ``Invalid``."""


class UnusableSchemaError(Exception):
    """A schema cannot be read by; never leaves decoding: its records become ``Invalid``."""


class RegistryDecoder:
    r"""Decodes records whose schema is named by an id.

    An id that the registry does not know, a schema of another kind and a payload that does not
    fit its schema are ``Invalid``, and so dead letters with their original bytes. A producer
    registers a schema before it uses it; where that is not so, what the records in between become
    depends on when they are read. So that a replay decides as before, whatever the registry has
    learnt, forgotten or changed by then, each partition has a decoder of its own
    (:meth:`of_partition`), whose :meth:`decisions` become durable with what was decided by them.

    A time that the schema declares as a timestamp has the schema's unit, whatever
    ``mapping.time_unit`` says.
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
        self._begin(mapping, _Schemas(mapping, registry, kind, compile_schema, clock))

    def _begin(self, mapping: FieldMapping, schemas: _Schemas) -> None:
        self._mapping, self.channels = mapping, mapping.channel_names
        self._schemas = schemas
        self._readers: dict[bytes, tuple[int, PayloadReader]] = {}
        self._known: dict[int, _Known] = {}
        self._complete_from = _NEVER
        self._decided_until = 0
        self._encoded: bytes | None = None

    def decode(self, record: Record) -> Reading | Invalid:
        """Decode one record; never raises on what the record holds. O(bytes)."""
        value = record.value
        if not value or len(value) > self._mapping.max_value_bytes:
            return self._mapping.refuse(record)
        header = value[:HEADER_BYTES]
        known = self._readers.get(header)
        if known is not None and record[0][2] >= known[0]:
            read = known[1]
        else:
            found = self._decide(header, record.position.offset)
            if isinstance(found, str):
                return Invalid(record.position, "decode", found)
            read = found
        try:
            return cast("Reading", read(record))
        except MisfitError as error:
            schema_id = int.from_bytes(header[1:])
            reason = f"the payload does not fit schema id {schema_id}: {error}"
            return Invalid(record.position, "decode", reason)
        except Exception as error:
            return self._mapping.failed(record, error)

    def text_of(self, record: Record) -> bytes | Invalid:
        """Return a record as JSON, where that is what schemas are compiled to."""
        return cast("bytes | Invalid", self.decode(record))

    def lacking(self, record: Record) -> str:
        schema = self._schemas.ask(int.from_bytes((record.value or b"")[1:HEADER_BYTES]))
        names = [] if isinstance(schema, str) else _FIELD.findall(schema.text)
        return self._mapping.lacking(self.decode(record), {a or b: None for a, b in names})

    # ------------------------------------------------------------------------- what was decided
    def of_partition(self, decisions: bytes | None, *, decided_until: int) -> RegistryDecoder:
        """Return a decoder of one partition alone; what was compiled is shared.

        Records before `decided_until`, the committed offset, are decided as they were when
        `decisions` became durable, whatever the registry says by now and without asking it. With
        ``None`` (none were kept yet) the registry is asked about them.
        """
        decoder = object.__new__(type(self))
        decoder._begin(self._mapping, self._schemas)
        decoder._decided_until = decoder._complete_from = decided_until
        if decisions is not None:
            found = decided(decisions, _Decisions, "schemas", "the registry is")
            # Of what comes after the committed offset nothing is decided: it may have been reset.
            decoder._complete_from = min(found.complete_from, decided_until)
            decoder._known = {
                schema_id: known._replace(since=min(known.since, decided_until))
                for schema_id, known in found.known.items()
            }
        return decoder

    def decisions(self) -> bytes:
        """Return which schemas are known, each from which offset on.

        To be made durable in one with the commit, whenever it is not the object that was durable
        before: an id that it does not hold counts as unknown before the committed offset. A few kB
        for each schema; O(1) while nothing was learnt.
        """
        if self._encoded is None:
            self._encoded = msgspec.msgpack.encode(
                _Decisions(FORMAT_VERSION, self._complete_from, self._known)
            )
        return self._encoded

    def _decide(self, header: bytes, offset: int) -> PayloadReader | str:
        if header[0] != 0 or len(header) < HEADER_BYTES:
            return _no_header(header)
        schema_id = int.from_bytes(header[1:])
        known = self._known.get(schema_id)
        complete = offset >= self._complete_from
        if complete and offset < (self._decided_until if known is None else known.since):
            return f"schema id {schema_id} was not in the registry when this was first read"
        if known is None:
            learnt = self._learn(schema_id, offset if complete else self._decided_until)
            if isinstance(learnt, str):
                return learnt
            known = learnt
        read = self._schemas.reader(known.schema)
        if isinstance(read, str):  # as after an upgrade that refuses more
            return f"schema id {schema_id} {read}"
        self._readers[header] = known.since, read
        return read

    def _learn(self, schema_id: int, since: int) -> _Known | str:
        if len(self._known) >= MAX_KNOWN:
            return f"schema id {schema_id}: the partition already names {MAX_KNOWN} other schemas"
        schema = self._schemas.ask(schema_id)
        if isinstance(schema, str):
            return schema
        self._known[schema_id] = _Known(since, schema)
        self._encoded = None
        return self._known[schema_id]


_D = TypeVar("_D", bound=Any)


def decided(encoded: bytes, kind: type[_D], about: str, asked: str) -> _D:
    """Read what was decided; `about` what, and who is `asked` again where it is dropped."""
    try:
        found: _D = msgspec.msgpack.decode(encoded, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"What was decided about {about} cannot be read ({error}): drop it (`rejex-stream "
            f"state drop --schemas`), and {asked} asked again about what is replayed."
        ) from None
    if found.version != FORMAT_VERSION:
        raise CheckpointError(
            f"What was decided about {about} has format {found.version}, this version reads "
            f"format {FORMAT_VERSION}: run the version that wrote it."
        )
    return found


class _Known(NamedTuple):
    """A schema by which records are read, and the first offset that was."""

    since: int
    schema: RegisteredSchema


class _Decisions(msgspec.Struct, array_like=True):
    """From `complete_from` on, an id that is not in `known` was unknown."""

    version: int
    complete_from: int
    known: dict[int, _Known]


@dataclass
class _Schemas:
    """What the registry said and what was made of it; shared by all partitions."""

    _mapping: FieldMapping
    _registry: SchemaRegistry
    _kind: str
    _compile: Callable[[RegisteredSchema, FieldMapping], PayloadReader]
    _clock: Callable[[], float]
    _answers: dict[int, RegisteredSchema] = field(default_factory=dict)
    _refused: dict[int, tuple[float, str]] = field(default_factory=dict)
    _readers: dict[tuple[object, ...], PayloadReader | str] = field(default_factory=dict)

    def ask(self, schema_id: int) -> RegisteredSchema | str:
        """Return a schema that can be read by, or one sentence why there is none."""
        if schema_id in self._answers:
            return self._answers[schema_id]
        if schema_id > _MAX_ID:  # to ask for it would be an error of ours
            return f"schema id {schema_id} is not in the registry"
        until, why = self._refused.get(schema_id, (-math.inf, ""))
        if self._clock() < until:
            return why
        schema = self._registry.schema(schema_id)
        found = "is not in the registry" if schema is None else self.reader(schema)
        if schema is not None and not isinstance(found, str):
            self._answers[schema_id] = schema
            return schema
        if len(self._refused) >= _MAX_KEPT:
            self._refused.clear()
        why = f"schema id {schema_id} {found}"
        self._refused[schema_id] = self._clock() + UNKNOWN_S, why
        return why

    def reader(self, schema: RegisteredSchema) -> PayloadReader | str:
        """Return what reads by a schema, or the rest of a sentence why nothing does."""
        key = (schema.kind, schema.text, *schema.references.items())
        found = self._readers.get(key)
        if found is None:
            if len(self._readers) >= _MAX_KEPT:
                self._readers.clear()
            found = self._readers[key] = self._made(schema)
        return found

    def _made(self, schema: RegisteredSchema) -> PayloadReader | str:
        if schema.kind != self._kind:
            format_ = self._kind.lower()
            return f"is {printable(schema.kind)[1:-1]}, but input.format is {format_!r}"
        size = len(schema.text) + sum(map(len, schema.references.values()))
        if size > _MAX_TEXT:
            return f"cannot be used: it has {size} characters, more than {_MAX_TEXT}"
        try:
            return self._compile(schema, self._mapping)
        except UnusableSchemaError as error:
            return f"cannot be used: {error}"
        except (ConfigError, ConnectorError):  # no fault of the schema
            raise
        except Exception as error:
            return f"cannot be used: {type(error).__name__}"


def _no_header(header: bytes) -> str:
    if header[0] != 0:
        hint = "; it looks like JSON" if header[:1] in b"{[" else ""
        return (
            f"expected the zero byte that a schema registry's producer writes first, got "
            f"0x{header[0]:02x}{hint}"
        )
    return f"the record ends within the schema's id, after {len(header)} bytes"
