"""Snapshots in a folder."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from rejex_connectors.durable import PRIVATE, read_if_there, replace_file
from rejex_connectors.snapshot_parts import PartSets
from rejex_stream.errors import WAY_OUT, CheckpointError, ConnectorError, explaining_os_errors
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition

_MAGIC = b"rejex-snapshot-1\n"
_DIGEST_BYTES = 32
_BUSY_S = 5.0
_MAX_BYTES = 100_000_000  # of one value; SQLite takes ten times as much


class FolderSnapshotStore:
    """Keeps the two newest snapshots of every partition, in a file of SQLite each.

    A single file that is written in place where something moved, and whose every write is whole or
    not there, is what a database file is; a folder of our own making would have to become one.
    """

    def __init__(
        self, folder: str | Path, log_of: Callable[[Partition], bytes] = lambda _: b""
    ) -> None:
        self._folder = Path(folder)
        self._log_of = log_of
        self._sets: dict[Partition, PartSets] = {}
        with explaining_os_errors(f"the snapshot folder {self._folder} cannot be made"):
            self._folder.mkdir(0o700, parents=True, exist_ok=True)

    def save(self, partition: Partition, piece: SnapshotPiece) -> bool:
        """Keep a piece, whole or not at all. O(bytes in it)."""
        path = self._path(partition)
        # Until it is known to be written, what was read of it may not be so any more.
        sets = self._sets.pop(partition, None)
        with _explained(path, "written"), closing(_connect(path)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if sets is None:
                sets = _read(connection, self._log_of(partition))
                sets.forget_bodies()
            writes = sets.write(piece)
            if writes is None:
                return False
            for key, value in writes:
                if value is None:
                    connection.execute("DELETE FROM records WHERE key = ?", (key,))
                else:
                    connection.execute("REPLACE INTO records VALUES (?, ?)", (key, value))
        self._sets[partition] = sets
        return True

    def load(self, partition: Partition, at_most: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return the newest snapshot at or before `at_most`. O(bytes).

        That its bytes are those that were written is for the seals in them to say.
        """
        path = self._path(partition)
        snapshot = None
        with explaining_os_errors(f"the snapshots in {self._folder} cannot be read"):
            self._folder.stat()  # of a folder that is gone nothing is known
            there = path.exists()
        if there:
            with _explained(path, "read"), closing(_connect(path)) as connection:
                sets = _read(connection, self._log_of(partition))
                snapshot = sets.load(at_most)
                sets.forget_bodies()
                self._sets[partition] = sets
        return snapshot

    def drop(self, partition: Partition, *, schemas: bool = False) -> None:
        """Remove every snapshot, damaged or not; `schemas`: what was decided, too."""
        path = self._path(partition)
        self._sets.pop(partition, None)
        with explaining_os_errors(f"the snapshots {path} cannot be removed"):
            decided = [self._path(partition, "decisions")] if schemas else []
            for file in (path.with_name(f"{path.name}-journal"), path, *decided):
                file.unlink(missing_ok=True)

    def save_journal(self, partition: Partition, decisions: bytes) -> None:
        path = self._path(partition, "decisions")
        with explaining_os_errors(f"{path} cannot be written"):
            replace_file(path, _MAGIC + hashlib.sha256(decisions).digest() + decisions)

    def load_journal(self, partition: Partition) -> bytes | None:
        path = self._path(partition, "decisions")
        if (content := read_if_there(path)) is None:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        decisions = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(decisions).digest():
            raise CheckpointError(
                f"{path} was altered or cut short (its checksum does not match). Restore the file; "
                "or drop it (`rejex-stream state drop --schemas`): the registry and the control "
                "log are asked again about what is replayed."
            )
        return decisions

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _path(self, partition: Partition, what: str = "snapshots.db") -> Path:
        name = quote(partition.topic, safe="")
        if len(name) > 150:  # file names end at 255 bytes
            name = f"{name[:100]}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return self._folder / f"{name}-{partition.partition}-{what}"


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite says it better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
    )
    return connection


def _read(connection: sqlite3.Connection, log: bytes) -> PartSets:
    sets = PartSets(_MAX_BYTES, log)
    for key, value in connection.execute("SELECT key, value FROM records"):
        sets.read(key, value)
    sets.finish_reading()
    return sets


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ConnectorError(f"the snapshots {path} cannot be {what}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CheckpointError(
            f"The snapshots {path} are damaged ({error}): restore the file, or {WAY_OUT}."
        ) from error
