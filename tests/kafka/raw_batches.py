"""Record batches written by hand: what no client would send, and a broker takes all the same.

The format is Kafka's, version 2; a batch goes to the broker in one Produce request on a plain
socket.
"""

from __future__ import annotations

import gzip
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard
from kafka.codec import snappy_encode
from kafka.record.util import calc_crc32c

from tests.waiting import until

NOT_YET = {3, 5, 6}
"""Errors of a topic that was made a moment ago."""

__all__ = ["CODECS", "Raw", "batch", "produce"]

CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, snappy_encode),  # in the blocks of the Java client
    "raw snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (3, lambda data: lz4.frame.compress(data, block_linked=False)),
    "zstd": (4, zstandard.ZstdCompressor(level=3).compress),
}


class Raw(NamedTuple):
    """One record, its header names as bytes."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _record(number: int, record: Raw) -> bytes:
    body = b"\0" + _varint(0) + _varint(number) + _bytes(record.key) + _bytes(record.value)
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _bytes(name) + _bytes(value)
    return _varint(len(body)) + body


def batch(
    records: Iterable[Raw], codec: str = "none", *, bend: Callable[[bytes], bytes] = bytes
) -> bytes:
    """Return a record batch; `bend` changes its packed records before the checksum is taken."""
    number, compress = CODECS[codec]
    timestamp_ms = int(time.time() * 1000)  # what is old the broker deletes
    encoded = [_record(i, record) for i, record in enumerate(records)]
    packed = bend(compress(b"".join(encoded)))
    n = len(encoded)
    checked = struct.pack(">hiqqqhii", number, n - 1, timestamp_ms, timestamp_ms, -1, -1, -1, n)
    checked += packed
    counted = struct.pack(">ibI", 0, 2, calc_crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(counted)) + counted


def produce(bootstrap: str, topic: str, partition: int, *batches: bytes) -> list[int]:
    """Send batches, one request each; returns the offset of each one's first record."""
    host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        return [_send(connection, topic, partition, content) for content in batches]


def _send(connection: socket.socket, topic: str, partition: int, content: bytes) -> int:
    name = topic.encode()
    request = struct.pack(">hhih", 0, 7, 7, 4) + b"test"  # Produce v7
    request += struct.pack(">hhii", -1, -1, 30_000, 1)
    request += struct.pack(">h", len(name)) + name
    request += struct.pack(">iii", 1, partition, len(content)) + content

    def taken() -> tuple[int, int] | None:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        answer = _receive(connection, length)
        error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
        return None if error in NOT_YET else (error, offset)

    error, offset = until(taken, "the topic has a leader")
    assert error == 0, f"the broker refused the batch with error {error}"
    return offset


def _receive(connection: socket.socket, n: int) -> bytes:
    found = b""
    while len(found) < n:
        more = connection.recv(n - len(found))
        assert more, "the broker hung up"
        found += more
    return found
