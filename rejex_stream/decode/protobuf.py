"""Protobuf payloads, read with the classes that protoc and protobuf make of a schema's text."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from rejex_stream.decode.mapping import FieldMapping, Unreadable, printable
from rejex_stream.decode.paths import field_paths
from rejex_stream.decode.registry_decoder import (
    HEADER_BYTES,
    MisfitError,
    PayloadReader,
    UnusableSchemaError,
)
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Reading, Record

__all__ = ["descriptors", "protobuf_json", "protobuf_reader"]

_MAIN = "rejex_registered_schema.proto"
_GIVEN = "given.descriptors"
_LOG_LINE = re.compile(r"WARNING: All log messages|[IWEF]\d{4} ")  # they bear the time
_PROTOC_S = 60.0
_MOST_INDEXES = 64
_MOST_FIELDS = 1 << 20
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = "google/protobuf/wrappers.proto"

Getter: TypeAlias = Callable[[Any], object]
_Learnt = TypeVar("_Learnt")


class _Message(NamedTuple):
    """How to read one message type of a schema."""

    mapping: FieldMapping
    time: Getter
    sensor: Getter
    group: Getter
    mode: Getter
    values: list[Getter]


def protobuf_reader(schema: RegisteredSchema, mapping: FieldMapping) -> PayloadReader:
    """Compile a Protobuf schema; which of its messages a record holds is said by its indexes.

    A field without presence (a plain number of proto3) that was not sent is 0; declared
    ``optional`` or as a wrapper (``google.protobuf.DoubleValue``) it is missing.
    """
    paths = field_paths(mapping.fields)
    message_of = _messages(schema, lambda descriptor: _message(descriptor, mapping, paths))

    def read(record: Record) -> Reading:
        message, tree = message_of(record)
        return message.mapping.reading(
            record,
            time=message.time(tree),
            sensor=message.sensor(tree),
            group=message.group(tree),
            mode=message.mode(tree),
            values=[get(tree) for get in message.values],
        )

    return read


def protobuf_json(schema: RegisteredSchema, _: FieldMapping) -> Callable[[Record], bytes]:
    """Compile a Protobuf schema to what makes a text of JSON of a record.

    Fields are called as in the schema, a number is a number however long, an enum its name, a
    ``Timestamp`` a text of ISO 8601, bytes base64; what is missing, see :func:`protobuf_reader`, is
    left out.
    """
    message_of = _messages(schema, lambda _: None)
    return lambda record: msgspec.json.encode(_Plain().of(message_of(record)[1]))


class _Plain:
    """Makes plain values of a message; a field that was not sent takes no byte, but has a place."""

    def __init__(self) -> None:
        self._left = _MOST_FIELDS

    def of(self, message: Any) -> object:  # noqa: ANN401 - the library has no types
        kind = message.DESCRIPTOR
        if kind.full_name == _TIMESTAMP:
            return message.ToJsonString()
        if kind.file.name == _WRAPPERS:
            return message.value
        self._left -= 1 + len(kind.fields)
        if self._left < 0:
            raise MisfitError(f"it has more than {_MOST_FIELDS} fields, those not sent included")
        return {
            field.name: self._field(field, getattr(message, field.name))
            for field in kind.fields
            if not field.has_presence or message.HasField(field.name)
        }

    def _field(self, field: Any, value: Any) -> object:  # noqa: ANN401
        if not field.is_repeated:
            return self._value(field, value)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            return {str(key): self._value(of, value[key]) for key in value}
        return [self._value(field, one) for one in value]

    def _value(self, field: Any, value: Any) -> object:  # noqa: ANN401
        if field.message_type is not None:
            return self.of(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        return value


def _messages(
    schema: RegisteredSchema, learn: Callable[[Any], _Learnt]
) -> Callable[[Record], tuple[_Learnt, Any]]:
    """Make what parses records, each as the message that its indexes name."""
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
    """Read a zigzag number; returns it and where it ends."""
    found = shift = 0
    while at < len(value) and shift < 35:
        found |= (value[at] & 0x7F) << shift
        at += 1
        if value[at - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise MisfitError("its message indexes are broken")


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return where in the schema the message stands, and where the payload begins."""
    count, at = _varint(value, HEADER_BYTES)
    if count == 0:  # short for the first message of the file
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
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


# -------------------------------------------------------------------------------------- fields
def _message(
    descriptor: Any,  # noqa: ANN401 - the library has no types
    mapping: FieldMapping,
    paths: dict[str, tuple[str, ...]],
) -> _Message:
    time = mapping.time_getter(lambda field: _getter(descriptor, paths[field]))
    sensor = mapping.sensor_getter(lambda field: _getter(descriptor, paths[field]))
    group, mode = (
        _absent if field is None else _getter(descriptor, paths[field])
        for field in (mapping.group, mapping.mode)
    )
    values = [_getter(descriptor, paths[field]) for field in mapping.channel_fields]
    if isinstance(mapping.time, str) and _is_timestamp(descriptor, paths[mapping.time]):
        mapping = replace(mapping, time_unit="ns", time_format=None)
    return _Message(mapping, time, sensor, group, mode, values)


def _getter(descriptor: Any, path: tuple[str, ...]) -> Getter:  # noqa: ANN401
    """Make what fetches a field of a message; absent is ``None``."""
    name, rest = path[0], path[1:]
    field = descriptor.fields_by_name.get(name)
    if field is None:
        return _absent
    take: Getter = attrgetter(name)
    if field.is_repeated:
        entry = field.message_type
        if entry is None or not entry.GetOptions().map_entry:
            return lambda tree: list(take(tree))  # type: ignore[call-overload]
        return _map_getter(take, entry, rest)
    below = _value_getter(field, rest)
    if field.has_presence:
        return lambda tree: below(take(tree)) if tree.HasField(name) else None
    return take if below is _itself else lambda tree: below(take(tree))


def _map_getter(take: Getter, entry: Any, path: tuple[str, ...]) -> Getter:  # noqa: ANN401
    if not path:
        return lambda tree: dict(take(tree))  # type: ignore[call-overload]
    key_field, key = entry.fields_by_name["key"], path[0]
    if key_field.cpp_type != key_field.CPPTYPE_STRING:
        return _absent
    below = _value_getter(entry.fields_by_name["value"], path[1:])

    def get(tree: Any) -> object:  # noqa: ANN401
        entries: Any = take(tree)
        return below(entries[key]) if key in entries else None

    return get


def _value_getter(field: Any, path: tuple[str, ...]) -> Getter:  # noqa: ANN401
    message = field.message_type
    if message is None:
        return _itself if not path else _refuse(field.name)
    if path:
        return _getter(message, path)
    if message.full_name == _TIMESTAMP:
        return lambda tree: tree.seconds * 1_000_000_000 + tree.nanos
    if message.file.name == _WRAPPERS:
        return attrgetter("value")
    return lambda tree: {found.name: None for found, _ in tree.ListFields()}


def _absent(_: object) -> None:
    return None


def _itself(value: object) -> object:
    return value


def _refuse(name: str) -> Getter:
    def refuse(value: object) -> object:
        raise Unreadable(f"{name}: expected a message or a map, got {printable(value)}")

    return refuse


def _is_timestamp(descriptor: Any, path: tuple[str, ...]) -> bool:  # noqa: ANN401
    for name in path:
        field = descriptor.fields_by_name.get(name) if descriptor is not None else None
        if field is None:
            return False
        descriptor = field.message_type
    return descriptor is not None and descriptor.full_name == _TIMESTAMP
