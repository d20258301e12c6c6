"""What is seldom asked for, outside the memory: a file that is gone with the process."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

import msgspec

from rejex_stream.errors import ConnectorError

T = TypeVar("T", bound=tuple[Any, ...])


class Packed(MutableMapping[str, T], Generic[T]):
    """A mapping of names to tuples of plain values in a temporary file of SQLite.

    The file has no name and no second use: whoever starts again makes its own of the snapshots. It
    lies where SQLite puts such files, in ``SQLITE_TMPDIR`` or ``TMPDIR``, and grows to what is in
    it; up to 2 MB stay in memory.
    """

    def __init__(self, make: Callable[[Iterable[Any]], T]) -> None:
        self._make = make
        # The loop asks, and at the end of a run the thread that commits, while the loop waits.
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._file.close)  # it lives as long as this
        self._run("PRAGMA journal_mode = OFF")
        self._run("PRAGMA synchronous = OFF")
        self._run("CREATE TABLE packed (name BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def __getitem__(self, name: str) -> T:
        row = self._run("SELECT value FROM packed WHERE name = ?", _key(name)).fetchone()
        if row is None:
            raise KeyError(name)
        return self._make(msgspec.msgpack.decode(row[0]))

    def __setitem__(self, name: str, value: T) -> None:
        packed = msgspec.msgpack.encode(tuple(value))
        self._run("REPLACE INTO packed VALUES (?, ?)", _key(name), packed)

    def __delitem__(self, name: str) -> None:
        if not self._run("DELETE FROM packed WHERE name = ?", _key(name)).rowcount:
            raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return self._run("SELECT 1 FROM packed WHERE name = ?", _key(name)).fetchone() is not None

    def __iter__(self) -> Iterator[str]:
        rows = self._run("SELECT name FROM packed").fetchall()
        return iter([name.decode("utf-8", "surrogatepass") for (name,) in rows])

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM packed").fetchone()[0])

    def clear(self) -> None:
        self._run("DELETE FROM packed")

    def _run(self, command: str, *values: bytes) -> sqlite3.Cursor:
        try:
            return self._file.execute(command, values)
        except sqlite3.Error as error:
            raise ConnectorError(
                f"streams that are silent cannot be packed away ({error}): make room where "
                "temporary files lie (TMPDIR), or leave state.max_live_streams out"
            ) from error


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
