"""Record batches, unpacked as a stream: bounded in memory whatever their records hold.

Compressed records may grow a thousandfold, so nothing is unpacked before somebody asks for the next
record, and of a record that is larger than :data:`LARGEST_RECORD` no more than a piece is held at
a time. What cannot be handed over whole becomes a record without key and value whose headers are
an :class:`Unread`: it keeps its offset, and the records behind it are read.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from typing import Any, Protocol

import cramjam
import lz4.frame
import zstandard
from kafka.record.default_records import DefaultRecord
from kafka.record.util import decode_varint

UNREADABLE_HEADERS: list[tuple[str, bytes | None]] = [
    ("rejex.unreadable.headers", b"a name is not UTF-8")
]
"""In place of a record's headers where one of them has a name that is not text; one client library
cannot say any of them then, so neither does."""
LARGEST_RECORD = 32 * 1024 * 1024
"""Bytes of key and value, unpacked, up to which a record is read; a larger one is a dead letter."""
PIECE = 1024 * 1024  # bytes that are unpacked at a time
_HEAD = 64  # bytes within which a record's varints before its key are
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4


class Unread(list[tuple[str, bytes | None]]):
    """In place of the headers of a record that could not be read: `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__([("rejex.unread", reason.encode())])
        self.reason = reason


TOO_LARGE = f"its key and value are larger than the {LARGEST_RECORD} bytes that are read"


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


class _Snappy:
    """Unpacks snappy: in blocks, as the Java client packs it, or in one, as librdkafka does."""

    MAGIC = b"\x82SNAPPY\0"

    def __init__(self, packed: bytes) -> None:
        in_blocks = packed.startswith(self.MAGIC)
        self._blocks = self._split(packed) if in_blocks else iter([packed])
        self._ready = io.BytesIO()

    @staticmethod
    def _split(packed: bytes) -> Iterator[bytes]:
        at = 16
        while at < len(packed):
            end = at + 4 + int.from_bytes(packed[at : at + 4], "big")
            yield packed[at + 4 : end]
            at = end

    def read(self, n: int, /) -> bytes:
        while not (piece := self._ready.read(n)):
            block = next(self._blocks, None)
            if block is None:
                return b""
            n_bytes = cramjam.snappy.decompress_raw_len(block)
            if n_bytes > 2 * LARGEST_RECORD:  # a block has no pieces; one of a client has 32 kB
                raise ValueError(f"a block of snappy says it is {n_bytes} bytes")
            self._ready = io.BytesIO(bytes(cramjam.snappy.decompress_raw(block)))
        return piece


def _open(codec: int, packed: bytes) -> _Readable:
    if codec == _GZIP:
        return gzip.GzipFile(fileobj=io.BytesIO(packed))
    if codec == _SNAPPY:
        return _Snappy(packed)
    if codec == _LZ4:
        return lz4.frame.LZ4FrameFile(io.BytesIO(packed))  # type: ignore[no-any-return]
    if codec == _ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(packed), read_across_frames=True
        )
    raise ValueError(f"compression {codec}, which this version does not know")


class _Stream:
    """The unpacked bytes of a batch from one place on, as many as are asked for."""

    def __init__(self, source: _Readable | None, buffer: bytearray) -> None:
        self._source = source
        self.buffer = buffer
        self.at = 0

    def has(self, n: int) -> bool:
        """Unpack until `n` bytes are in the buffer; false where the batch ends before."""
        while len(self.buffer) - self.at < n:
            piece = b"" if self._source is None else self._source.read(PIECE)
            if not piece:
                return False
            if self.at:
                del self.buffer[: self.at]
                self.at = 0
            self.buffer += piece
        return True

    def let_go(self) -> None:
        """Free what was taken, where that is much: a large record would be held twice."""
        if self._source is not None and self.at > PIECE:
            del self.buffer[: self.at]
            self.at = 0

    def skip(self, n: int) -> None:
        while n and self.has(1):
            here = min(n, len(self.buffer) - self.at)
            n -= here
            self.at += here
        if n:
            raise ValueError(f"it ends {n} bytes before its last record does")


def unpack(batch: Any, buffer: bytearray, begin: int) -> Iterator[DefaultRecord]:
    """Yield the records of a data batch of kafka-python, unpacking as it goes.

    Costs what the records cost, in memory one record and a piece.
    """
    left = batch.records_count
    following = batch.base_offset
    try:
        codec = batch.compression_type
        if codec:
            packed = bytes(memoryview(buffer)[begin:])
            stream = _Stream(_open(codec, packed), bytearray())
        else:
            stream = _Stream(None, buffer)
            stream.at = begin
        while left:
            record = _next(batch, stream)
            yield record
            following = record.offset + 1
            left -= 1
    except MemoryError:  # the machine's fault, and another day's batch is the same
        raise
    except Exception as error:  # whatever a codec may raise
        reason = f"its batch cannot be unpacked from here on: {type(error).__name__}: {error}"
        for offset in range(following, batch.last_offset + 1)[:left]:
            yield _unread(batch, offset, batch.max_timestamp, reason)


def _next(batch: Any, stream: _Stream) -> DefaultRecord:
    stream.has(_HEAD)
    buffer, at = stream.buffer, stream.at
    length, begin = decode_varint(buffer, at)
    _, at = decode_varint(buffer, begin)  # attributes
    passed, at = decode_varint(buffer, at)
    beyond, at = decode_varint(buffer, at)
    timestamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + passed
    offset = batch.base_offset + beyond
    if length > 2 * LARGEST_RECORD:  # unless most of it is headers
        stream.at = begin
        stream.skip(length)
        return _unread(batch, offset, timestamp, TOO_LARGE)
    n_head = begin - stream.at
    ahead = at - stream.at
    if not stream.has(n_head + length):
        raise ValueError("it ends in the middle of a record")
    end = stream.at + n_head + length
    key, value, headers = _fields(stream.buffer, stream.at + ahead, end)
    stream.at = end
    stream.let_go()
    if length > LARGEST_RECORD and len(key or b"") + len(value or b"") > LARGEST_RECORD:
        return _unread(batch, offset, timestamp, TOO_LARGE)
    return DefaultRecord(length, offset, timestamp, batch.timestamp_type, key, value, headers)


def _fields(
    buffer: bytearray, at: int, end: int
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Return key, value and headers of a record; names that are not UTF-8 cost it the headers."""
    key, at = _bytes(buffer, at)
    value, at = _bytes(buffer, at)
    n_headers, at = decode_varint(buffer, at)
    headers: list[tuple[str, bytes | None]] = []
    readable = True
    for _ in range(n_headers):
        name, at = _bytes(buffer, at)
        content, at = _bytes(buffer, at)
        try:
            headers.append(((name or b"").decode(), content))
        except UnicodeDecodeError:
            readable = False
    if at != end:
        raise ValueError(f"a record says it is {at - end:+d} bytes from what it holds")
    return key, value, headers if readable else UNREADABLE_HEADERS


def _bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    n, at = decode_varint(buffer, at)
    if n < 0:
        return None, at
    with memoryview(buffer) as view:  # a slice of the buffer itself would be a second copy
        return bytes(view[at : at + n]), at + n


def _unread(batch: Any, offset: int, timestamp: int, reason: str) -> DefaultRecord:
    return DefaultRecord(0, offset, timestamp, batch.timestamp_type, None, None, Unread(reason))
