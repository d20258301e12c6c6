"""One SQLite file: opened safely, written by one transaction at a time."""

from __future__ import annotations

import os
import queue
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.review.schema import SCHEMA, SCHEMA_VERSION

__all__ = ["SqliteDatabase", "filesystem_of", "remove_file", "require_replaceable", "take_place"]

# WAL needs shared memory between processes, which these cannot give: locks are silently lost.
_NETWORK = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "smb2", "smb3", "smbfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    ]
)


def filesystem_of(path: Path, mounts: str | None = None) -> str:
    r"""Return the type of the file system that holds `path`, or ``unknown``.

    Parameters
    ----------
    path
        Need not exist yet.
    mounts
        Text in the form of ``/proc/self/mountinfo``; read from there by default.

    Examples
    --------
    >>> table = "22 1 8:1 / / rw - ext4 /dev/a rw\n30 22 0:5 / /mnt/share rw - nfs4 host:/x rw"
    >>> filesystem_of(Path("/mnt/share/review.db"), table)
    'nfs4'
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "unknown"
    target = path.resolve()
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        mount = Path(left.split()[4].replace("\\040", " "))
        if len(mount.parts) >= best and target.is_relative_to(mount):
            best, found = len(mount.parts), right.split()[0]
    return found


class SqliteDatabase:
    """The :class:`~rejex_stream.review.storage.Database` in one SQLite file.

    The write-ahead log gives readers their state beside a writer; every write runs in
    ``BEGIN IMMEDIATE``, so that two of them never decide on the same row.

    Parameters
    ----------
    path
        The file; it and its tables are made if missing.
    busy_timeout_s
        How long a writer waits for its turn.

    Raises
    ------
    ConfigError
        If the file lies on a network file system, is no database, or is of another version.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 10.0) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._all: list[sqlite3.Connection] = []
        kind = filesystem_of(path)
        if kind in _NETWORK:
            raise ConfigError(
                f"The review store {str(path)!r} lies on a network file system ({kind}), where "
                "SQLite's locks do not hold: put it on a local disk."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            raise ConfigError(
                f"{str(path)!r} cannot be used as a review store ({error}): give a new path, or "
                "rebuild it with `rejex-stream review rebuild`."
            ) from error

    def _prepare(self) -> None:
        with self._borrow() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, SCHEMA_VERSION):
                raise ConfigError(
                    f"The review store {str(self.path)!r} has schema version {found}, this program "
                    f"writes {SCHEMA_VERSION}: rebuild it with `rejex-stream review rebuild`."
                )
            if found == 0:
                connection.executescript(
                    f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
                )

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self._busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.OperationalError as error:
            raise ConnectorError(
                f"The review store {str(self.path)!r} cannot be opened ({error}): "
                "check that the folder exists and can be written."
            ) from error
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        self._all.append(connection)
        return connection

    @contextmanager
    def _borrow(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.put(connection)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._borrow() as connection:
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # on a full disk SQLite has rolled back by itself
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction, alone among writers; all of it or nothing."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Run a block against one unchanging state, beside any writer."""
        with self._transaction("BEGIN DEFERRED") as connection:
            yield connection

    def back_up(self, target: Path) -> None:
        """Write a consistent copy to `target`, which must not exist, beside running writers."""
        with self._borrow() as connection:
            connection.execute("VACUUM INTO ?", (str(target),))

    def integrity(self) -> str:
        """Return ``ok``, or the first damage that a look at every page finds."""
        with self._borrow() as connection:
            return str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])

    def settle(self) -> None:
        """Move everything from the write-ahead log into the file itself."""
        with self._borrow() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close every connection; the database must not be in use."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle = queue.LifoQueue()


def require_replaceable(path: Path) -> None:
    """Refuse to put another store in the place of one that is in use or holds unsent labels.

    Raises
    ------
    ConfigError
        Also if what is there is no review store; one that is damaged may be replaced.
    """
    connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
    try:
        tables = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'outbox'").fetchone()
        if tables is None:
            raise ConfigError(f"{str(path)!r} is no review store: give another path.")
        waiting = connection.execute(
            "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"
        ).fetchone()[0]
        if waiting:
            raise ConfigError(
                f"{waiting} labels in {str(path)!r} have not been published yet and would be lost: "
                "let `rejex-stream review serve` send them, or rebuild into a new path."
            )
        # Possible only without any other connection.
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise ConfigError(
                f"{str(path)!r} is in use: stop the console that has it open first."
            ) from error
        # Damaged: that is what a rebuild is for.
    finally:
        connection.close()


_LOGS = ("-wal", "-shm")


def remove_file(path: Path) -> None:
    """Remove a closed store with its logs, if it is there."""
    for suffix in ("", *_LOGS):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def take_place(fresh: Path, path: Path) -> None:
    """Put a closed, settled store in the place of another, whole or not at all."""
    # First the logs: beside another database, SQLite would play them into that.
    for suffix in _LOGS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(fresh, path)
