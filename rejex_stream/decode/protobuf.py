"""Protobuf payloads, read with the classes that protoc and protobuf make of a schema's text."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rejex_stream.decode.mapping import FieldMapping, printable
from rejex_stream.decode.paths import field_paths
from rejex_stream.decode.registry_decoder import (
    HEADER_BYTES,
    MisfitError,
    PayloadReader,
    UnusableSchemaError,
)
from rejex_stream.decode.trees import TreeReader
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Reading, Record

_MAIN = "rejex_registered_schema.proto"
_GIVEN = "given.descriptors"
_LOG_LINE = re.compile(r"WARNING: All log messages|[IWEF]\d{4} ")  # they bear the time
_PROTOC_S = 60.0
_MAX_INDEXES = 64
_MAX_FIELDS = 1 << 20
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = "google/protobuf/wrappers.proto"

_Learnt = TypeVar("_Learnt")


def protobuf_reader(schema: RegisteredSchema, mapping: FieldMapping) -> PayloadReader:
    """Compile a Protobuf schema; which of its messages a record holds is said by its indexes.

    A field without presence (a plain number of proto3) that was not sent is 0; declared
    ``optional`` or as a wrapper (``google.protobuf.DoubleValue``) it is missing.
    """
    paths = field_paths(mapping.fields)
    wanted = frozenset(path[0] for path in paths.values())

    def reader_of(descriptor: Any) -> TreeReader:  # noqa: ANN401 - the library has no types
        own = mapping
        if isinstance(mapping.time, str) and _is_timestamp(descriptor, paths[mapping.time]):
            own = replace(mapping, time_unit="ns", time_format=None)
        return TreeReader(own, container="a message or a map")

    message_of = _messages(schema, reader_of)

    def read(record: Record) -> Reading:
        trees, message = message_of(record)
        return trees.reading(record, _Tree(wanted, as_json=False).of(message))

    return read


def protobuf_json(schema: RegisteredSchema, _: FieldMapping) -> Callable[[Record], bytes]:
    """Compile a Protobuf schema to what makes a text of JSON of a record.

    Fields are called as in the schema, a number is a number however long, an enum its name, a
    ``Timestamp`` a text of ISO 8601, bytes base64; what is missing, see :func:`protobuf_reader`, is
    left out.
    """
    message_of = _messages(schema, lambda _: None)
    return lambda record: msgspec.json.encode(_Tree(as_json=True).of(message_of(record)[1]))


class _Tree:
    """Makes plain values of a message, of `wanted` fields; one that was not sent has a place."""

    def __init__(self, wanted: Collection[str] | None = None, *, as_json: bool) -> None:
        self._wanted, self._as_json = wanted, as_json
        self._left = _MAX_FIELDS

    def of(self, message: Any) -> dict[str, Any]:  # noqa: ANN401 - the library has no types
        fields = message.DESCRIPTOR.fields
        self._left -= 1 + len(fields)
        if self._left < 0:
            raise MisfitError(f"it has more than {_MAX_FIELDS} fields, those not sent included")
        wanted, self._wanted = self._wanted, None  # of those below, all
        return {
            field.name: self._field(field, getattr(message, field.name))
            for field in fields
            if (wanted is None or field.name in wanted)
            and (not field.has_presence or message.HasField(field.name))
        }

    def _field(self, field: Any, value: Any) -> object:  # noqa: ANN401
        if not field.is_repeated:
            return self._value(field, value)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            return {str(key): self._value(of, value[key]) for key in value}
        return [self._value(field, one) for one in value]

    def _value(self, field: Any, value: Any) -> object:  # noqa: ANN401
        if (kind := field.message_type) is not None:
            if kind.full_name == _TIMESTAMP:
                at_ns = value.seconds * 1_000_000_000 + value.nanos
                return value.ToJsonString() if self._as_json else at_ns
            return value.value if kind.file.name == _WRAPPERS else self.of(value)
        if self._as_json and field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        return value


def _messages(
    schema: RegisteredSchema, learn: Callable[[Any], _Learnt]
) -> Callable[[Record], tuple[_Learnt, Any]]:
    # With it comes what `learn` made, once, of the message's descriptor.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors(schema))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    main = files.file[-1]
    known: dict[tuple[int, ...], tuple[_Learnt, Callable[[bytes], Any]]] = {}

    def read(record: Record) -> tuple[_Learnt, Any]:
        value = record.value
        assert value is not None
        indexes, begin = _indexes(value)
        if indexes not in known:
            found = pool.FindMessageTypeByName(_message_name(main, indexes))
            known[indexes] = learn(found), message_factory.GetMessageClass(found).FromString
        learnt, parse = known[indexes]
        try:
            return learnt, parse(value[begin:])
        except Exception:  # whatever a parser says of bytes that mean nothing
            raise MisfitError("it is broken, or of another message") from None

    return read


def descriptors(schema: RegisteredSchema) -> bytes:
    """Return protoc's descriptor set: what is imported first, the schema itself last.

    A schema is kept as its text, or (some producers register it so) as its own descriptor in
    base64.
    """
    from google.protobuf import descriptor_pb2

    try:
        with tempfile.TemporaryDirectory(prefix="rejex-protoc-") as folder:
            root = Path(folder).resolve()
            known = descriptor_pb2.FileDescriptorSet()
            for name, text in {**schema.references, _MAIN: schema.text}.items():
                described = _described(text)
                if described is not None:
                    known.file.add().MergeFrom(described)
                    known.file[-1].name = name
                else:
                    _lay_down(root, name, text)
            (root / _GIVEN).write_bytes(known.SerializeToString())
            return _compiled(root)
    except OSError as error:  # a full disk, no memory: no schema's fault
        reason = error.strerror or type(error).__name__
        raise ConnectorError(f"protoc cannot be run: {reason}", retriable=True) from None


def _lay_down(root: Path, name: str, text: str) -> None:
    path = (root / name).resolve() if name.isprintable() else root
    if path == root or not path.is_relative_to(root):
        raise UnusableSchemaError(f"it refers to {printable(name)}, outside of its folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except (ValueError, FileExistsError, IsADirectoryError, NotADirectoryError):
        raise UnusableSchemaError(f"{printable(name)} cannot be a file with such a text") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UnusableSchemaError(f"{printable(name)} is too long for a file") from None


def _compiled(root: Path) -> bytes:
    made = root / "made.descriptors"
    # In a process of its own: protoc says what is wrong on the standard error stream alone.
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", "--include_imports",
             f"--descriptor_set_in={root / _GIVEN}", f"--descriptor_set_out={made}", _MAIN],
            capture_output=True, text=True, errors="replace", check=False, timeout=_PROTOC_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UnusableSchemaError(f"protoc is not done with it in {_PROTOC_S:g} s") from None
    if done.returncode:
        lines = done.stderr.replace(f"{root}/", "").splitlines()
        said = "; ".join(line for line in lines if not _LOG_LINE.match(line))
        raise UnusableSchemaError(f"protoc says {printable(said, 300)}")
    return made.read_bytes()


def _described(text: str) -> Any:  # noqa: ANN401 - a FileDescriptorProto, or None
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


# ---------------------------------------------------------------------------- message indexes
def _varint(value: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(value) and shift < 35:
        found |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise MisfitError("its message indexes are broken")


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    count, at = _varint(value, HEADER_BYTES)
    if count == 0:  # short for the first message of the file
        return (0,), at
    if not 0 < count <= _MAX_INDEXES:
        raise MisfitError("its message indexes are broken")
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        found.append(index)
    return tuple(found), at


def _message_name(file: Any, indexes: Sequence[int]) -> str:  # noqa: ANN401 - a descriptor
    names: list[str] = [file.package] if file.package else []
    siblings = file.message_type
    for index in indexes:
        if not 0 <= index < len(siblings):
            raise MisfitError(f"the schema has no message at {list(indexes)}")
        names.append(siblings[index].name)
        siblings = siblings[index].nested_type
    return ".".join(names)


def _is_timestamp(descriptor: Any, path: tuple[str, ...]) -> bool:  # noqa: ANN401
    for name in path:
        field = descriptor.fields_by_name.get(name) if descriptor is not None else None
        if field is None:
            return False
        descriptor = field.message_type
    return descriptor is not None and descriptor.full_name == _TIMESTAMP
