"""A control log in a file: one command a line, appended by anybody."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rejex_connectors.durable import PRIVATE
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.types import Position, Record

__all__ = ["FileControl", "append_line"]

_MOST_BYTES = 1 << 20  # at once; a line longer than that is none


class FileControl:
    """Reads commands from a file of lines; see :class:`~rejex_stream.protocols.ControlLog`.

    The offset of a line is that of its first byte. A last line without its end waits for the rest.
    A file that is not there holds no commands; one that is shorter than before was made anew.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "control.jsonl")
    >>> log = FileControl(path, ["plant.csv"])
    >>> log.read(0)
    ControlRecords(records=[], next_offset=0, begins_anew=False)
    >>> append_line(path, b'{"id": "c-1"}')
    >>> [record.value for record in log.read(0).records], log.read(0).next_offset
    ([b'{"id": "c-1"}'], 14)
    """

    def __init__(self, path: str | Path, inputs: Iterable[str]) -> None:
        self._path = Path(path)
        self.inputs = tuple(inputs)

    def read(self, start: int) -> ControlRecords:
        """Return the whole lines from byte `start` on, up to 1 MiB of them."""
        try:
            size = self._path.stat().st_size
            if size == start:
                return ControlRecords([], start)
            anew = size < start
            with self._path.open("rb") as file:
                file.seek(0 if anew else start)
                return self._lines(file.read(_MOST_BYTES), 0 if anew else start, anew=anew)
        except FileNotFoundError:
            return ControlRecords([], start)
        except OSError as error:
            raise ConnectorError(f"{self._path} cannot be read: {error.strerror}") from error

    def _lines(self, chunk: bytes, start: int, *, anew: bool) -> ControlRecords:
        whole = chunk.rfind(b"\n") + 1
        if not whole and len(chunk) == _MOST_BYTES:
            whole = len(chunk)  # refused piece by piece: nobody would wait for its end
        records, at = [], start
        for line in chunk[:whole].splitlines(keepends=True):
            if line.strip():
                position = Position(self._path.name, 0, at)
                records.append(Record(position, None, line.rstrip(b"\r\n")))
            at += len(line)
        return ControlRecords(records, at, anew)

    def close(self) -> None:
        """Nothing is held open between two reads."""


def append_line(path: Path, line: bytes) -> None:
    """Append one line and make it durable; what was left without an end before gets one."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            size = os.fstat(handle).st_size
            broken = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (b"\n" if broken else b"") + line + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise ConnectorError(f"{path} cannot be written: {error.strerror}") from error
