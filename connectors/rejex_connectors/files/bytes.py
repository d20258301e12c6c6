"""Bytes of a file, of standard input or of a file that grows; plain or compressed."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import select
import stat
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from enum import Enum
from typing import IO, Any, Final, Literal, TypeAlias

from rejex_stream.errors import ConnectorError, explaining_os_errors

Compression: TypeAlias = Literal["gzip", "bz2", "xz", "zip"]

_CHUNK_BYTES = 256 << 10
_LOOK_AGAIN_S = 0.1
_SHOWN = 6
_MAGIC: dict[bytes, Compression] = {
    b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip",
}  # fmt: skip
_ENDINGS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip"}
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Mark(Enum):
    """Something a read can return instead of bytes.

    After ``NEW_FILE`` the path names another file, or the file was cut: what follows starts at its
    beginning.
    """

    END = "END"
    NEW_FILE = "NEW_FILE"


END: Final = Mark.END
NEW_FILE: Final = Mark.NEW_FILE


class ByteInput:
    """Reads one input, a file or ``-`` for standard input, from its beginning.

    With `follow` it waits for more at the end, and goes over to the new file when the path is
    rotated, as ``tail -F`` does.
    """

    def __init__(
        self, path: str, *, follow: bool = False, compression: Compression | None = None
    ) -> None:
        self.path = path
        self._follow, self._compression = follow, compression
        self._use(self._open())
        self._unpack()

    def _unpack(self) -> None:
        kind = self._compression
        self._packed = None if kind is None else os.fdopen(self._handle, "rb", closefd=False)
        self._unpacked = None if self._packed is None else _unpacked(self.path, kind, self._packed)

    def _use(self, handle: int) -> None:
        self._handle = handle
        self._read_bytes = 0
        self._ready = select.poll()
        self._ready.register(handle, select.POLLIN)

    def _open(self) -> int:
        if self.path == "-":
            return os.dup(sys.stdin.fileno())
        with explaining_os_errors(f"{self.path} cannot be opened"):
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
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
        """Return the next bytes; empty when there is nothing new within `timeout_s`."""
        if self._unpacked is None or self._packed is None:
            return self._read_plain(timeout_s)
        try:
            chunk = self._unpacked.read1(_CHUNK_BYTES)
        except EOFError as error:
            raise ConnectorError(
                f"{self.path} ends in the middle of its compressed data: it was cut short; "
                "everything before that is read"
            ) from error
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError) as error:
            raise ConnectorError(
                f"{self.path} is damaged, or not {self._compression}: {error}; everything before "
                "that is read"
            ) from error
        self._read_bytes = self._packed.tell()
        return chunk or END

    def _read_plain(self, timeout_s: float) -> bytes | Mark:
        # A pipe may be silent for long; a regular file always answers.
        if not self._ready.poll(timeout_s * 1000.0):
            return b""
        with explaining_os_errors(f"{self.path} cannot be read"):
            chunk = os.read(self._handle, _CHUNK_BYTES)
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
        self._unpack()

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
        """Close the file; standard input itself stays open."""
        os.close(self._handle)


def compression_of(path: str) -> Compression | None:
    """Say how a file is packed, by its first bytes, or by its name where nobody can look into it.

    A zip that is a workbook is for whoever reads workbooks.
    """
    by_name = next((kind for end, kind in _ENDINGS.items() if path.endswith(end)), None)
    with suppress(OSError):
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                begun = file.read(8)
            kinds = (kind for magic, kind in _MAGIC.items() if begun.startswith(magic))
            return next(kinds, None if begun else by_name)
    return by_name


def _unpacked(path: str, kind: Compression | None, packed: IO[bytes]) -> Any:  # noqa: ANN401
    if kind == "zip":
        return _only_member(path, packed)
    if kind == "gzip":
        return gzip.GzipFile(fileobj=packed)
    return bz2.BZ2File(packed) if kind == "bz2" else lzma.LZMAFile(packed)


def _only_member(path: str, packed: IO[bytes]) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(packed)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConnectorError(f"{path} is a zip that cannot be read: {error}") from error
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise ConnectorError(
            f"{path} is a zip with {len(names)} files ({shown}): unpack it, and name one of them"
        )
    try:
        return archive.open(names[0])
    except (RuntimeError, NotImplementedError) as error:  # a password, or a method of its own
        raise ConnectorError(f"{path} cannot be unpacked here: {error}") from error


class ToUtf8:
    r"""Turns text in another encoding into UTF-8, piece by piece.

    Without an encoding, a byte order mark of UTF-16 says so, and other bytes stay as they are.
    Bytes that stand for no character stay legible, as ``\x81``.
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
        if self._decoder is None:
            return self._begun
        return self._decoder.decode(b"", final=True).encode()
