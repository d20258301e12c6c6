"""Bytes of a file, of standard input or of a file that grows; plain or gzip."""

from __future__ import annotations

import codecs
import os
import select
import stat
import sys
import time
import zlib
from typing import Final

from rejex_stream.errors import ConnectorError

__all__ = ["END", "NEW_FILE", "ByteInput", "Mark", "ToUtf8", "is_gzip"]

_CHUNK_BYTES = 256 << 10
_GZIP_CHUNK_BYTES = 32 << 10
_LOOK_AGAIN_S = 0.1
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Mark:
    """Something a read can return instead of bytes."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __repr__(self) -> str:
        return self._what


END: Final = Mark("END")
"""The input is at its end."""

NEW_FILE: Final = Mark("NEW_FILE")
"""The path names another file now, or the file was cut: what follows starts at its beginning."""


class ByteInput:
    """Reads one input from its beginning.

    Parameters
    ----------
    path
        A file, or ``-`` for standard input.
    follow
        Wait for more at the end, and go over to the new file when the path is rotated, as
        ``tail -F`` does.
    compressed
        Whether the bytes are gzip.

    Raises
    ------
    ConnectorError
        If it cannot be opened.
    """

    def __init__(self, path: str, *, follow: bool = False, compressed: bool = False) -> None:
        self.path = path
        self._follow = follow
        self._inflate = _Inflate(path) if compressed else None
        self._use(self._open())

    def _use(self, handle: int) -> None:
        self._handle = handle
        self._read_bytes = 0
        self._ready = select.poll()
        self._ready.register(handle, select.POLLIN)

    def _open(self) -> int:
        if self.path == "-":
            return os.dup(sys.stdin.fileno())
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConnectorError(f"{self.path} cannot be opened: {error.strerror}") from error
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            os.close(handle)
            raise ConnectorError(f"{self.path} is a folder: expected a file")
        return handle

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file: it can be read again, and it never makes us wait."""
        return stat.S_ISREG(os.fstat(self._handle).st_mode)

    @property
    def fraction(self) -> float | None:
        """Share of a regular file that was read; ``None`` for anything else, and when following."""
        if self._follow or not self.is_file:
            return None
        size = os.fstat(self._handle).st_size
        return min(1.0, self._read_bytes / size) if size else 1.0

    def read(self, timeout_s: float) -> bytes | Mark:
        """Return the next bytes; empty when there is nothing new within `timeout_s`.

        Raises
        ------
        ConnectorError
            If reading fails, or compressed data is damaged or ends early.
        """
        if self._inflate is None:
            return self._read_plain(timeout_s, _CHUNK_BYTES)
        while True:  # some compressed bytes give no plain ones yet
            chunk: bytes | Mark = b""
            if not self._inflate.pending:
                chunk = self._read_plain(timeout_s, _GZIP_CHUNK_BYTES)
                if not chunk:
                    return b""
            if isinstance(chunk, Mark):
                self._inflate.finish()
                return chunk
            plain = self._inflate.feed(chunk)
            if plain:
                return plain

    def _read_plain(self, timeout_s: float, size: int) -> bytes | Mark:
        # A pipe may be silent for long; a regular file always answers.
        if not self._ready.poll(timeout_s * 1000.0):
            return b""
        try:
            chunk = os.read(self._handle, size)
        except OSError as error:
            raise ConnectorError(f"{self.path} cannot be read: {error.strerror}") from error
        self._read_bytes += len(chunk)
        if chunk:
            return chunk
        if self._follow and self.is_file:
            return self._wait_for_more(timeout_s)
        return END

    def restart(self) -> None:
        """Go back to the beginning of the same file, also if its path names another one now."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        self._read_bytes = 0
        if self._inflate is not None:
            self._inflate = _Inflate(self.path)

    def _wait_for_more(self, timeout_s: float) -> bytes | Mark:
        ours = os.fstat(self._handle)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:  # rotated away; the new one is not there yet
            time.sleep(min(timeout_s, _LOOK_AGAIN_S))
            return b""
        if (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            # What was written between our last read and the rotation is still in the old one.
            rest = os.read(self._handle, _CHUNK_BYTES)
            if rest:
                return rest
            handle = self._open()
            os.close(self._handle)
            self._use(handle)
            return NEW_FILE
        if ours.st_size < self._read_bytes:
            os.lseek(self._handle, 0, os.SEEK_SET)
            self._read_bytes = 0
            return NEW_FILE
        time.sleep(min(timeout_s, _LOOK_AGAIN_S))
        return b""

    def close(self) -> None:
        """Let go of the file; standard input itself stays open."""
        os.close(self._handle)


def is_gzip(path: str) -> bool:
    """Whether a file is gzip, by its first bytes, or by its name where it cannot be looked into."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                begun = file.read(2)
            return begun == b"\x1f\x8b" or (not begun and path.endswith(".gz"))
    except OSError:
        pass
    return path.endswith(".gz")


class ToUtf8:
    r"""Turns text in another encoding into UTF-8, piece by piece.

    Without an encoding, a byte order mark of UTF-16 says so, and other bytes stay as they are.
    Bytes that stand for no character stay legible, as ``\x81``.

    Examples
    --------
    >>> to_utf8 = ToUtf8("latin-1")
    >>> to_utf8.feed(b"Gr\xf6\xdfe") == "Größe".encode()
    True
    """

    def __init__(self, encoding: str | None = None) -> None:
        self._encoding = encoding
        self._begun = b""
        self._decoder = None if encoding is None else self._make(encoding)

    def _make(self, encoding: str) -> codecs.IncrementalDecoder | None:
        if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
            return None  # bytes that are no UTF-8 are a matter of their row
        return codecs.getincrementaldecoder(encoding)("backslashreplace")

    def feed(self, chunk: bytes) -> bytes:
        """Return as much UTF-8 as is complete. O(bytes)."""
        if self._encoding is None:
            self._begun += chunk
            if len(self._begun) < 2:
                return b""
            chunk, self._begun = self._begun, b""
            self._encoding = "utf-16" if chunk.startswith(_UTF_16_MARKS) else "utf-8"
            self._decoder = self._make(self._encoding)
        return chunk if self._decoder is None else self._decoder.decode(chunk).encode()

    def finish(self) -> bytes:
        """Return what is left at the end of the input."""
        if self._decoder is None:
            return self._begun
        return self._decoder.decode(b"", final=True).encode()


class _Inflate:
    """Gzip, member after member, a bounded piece at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False
        self._left = b""

    @property
    def pending(self) -> bool:
        """Whether more comes out without anything going in."""
        return bool(self._left)

    def feed(self, chunk: bytes) -> bytes:
        data = self._left + chunk
        if not self._begun:
            data = data.lstrip(b"\0")  # padding between members
        self._begun = self._begun or bool(data)
        try:
            plain = self._member.decompress(data, _CHUNK_BYTES)
        except zlib.error as error:
            raise ConnectorError(
                f"{self._path} is damaged, or not gzip: {error}; everything before that is read"
            ) from error
        self._left = self._member.unconsumed_tail
        if self._member.eof:
            self._left = self._member.unused_data
            self._member = zlib.decompressobj(wbits=31)
            self._begun = False
        return plain

    def finish(self) -> None:
        if self._begun:
            raise ConnectorError(
                f"{self._path} ends in the middle of its compressed data: it was cut short; "
                "everything before that is read"
            )
