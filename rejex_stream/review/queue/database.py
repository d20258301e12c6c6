"""One SQLite file, opened safely, written by one transaction at a time."""

from __future__ import annotations

import os
import queue
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.review.schema import SCHEMA, SCHEMA_VERSION
from rejex_stream.types import Position

__all__ = [
    "Database",
    "StoreError",
    "filesystem_of",
    "owner_only",
    "position_in",
    "require_replaceable",
]

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
    table = Path("/proc/self/mountinfo")
    if mounts is None:
        mounts = table.read_text(encoding="utf-8", errors="replace") if table.exists() else ""
    target, best, found = path.resolve(), -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        mount = Path(left.split()[4].replace("\\040", " "))
        if len(mount.parts) >= best and target.is_relative_to(mount):
            best, found = len(mount.parts), right.split()[0]
    return found


class StoreError(ConnectorError):
    """The store's file cannot be read or written now; what was tried was not done at all."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=True)


# With less room an I/O error is a full disk: what SQLite cannot map, it cannot name.
_LITTLE_BYTES = 1 << 20
_GOES_ON = "What comes in waits and is not lost; the console goes on by itself."


def _explain(error: sqlite3.Error, path: Path) -> StoreError | None:
    """Say what is wrong with the file, and what to do; ``None`` where a statement was wrong."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without SQLite's note of where it was
    failed = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    if code == sqlite3.SQLITE_FULL or (failed and _free_bytes(path) < _LITTLE_BYTES):
        told = (
            f"cannot be written ({error}): make room on the file system that holds "
            f"{str(path.parent)!r}. {_GOES_ON}"
        )
    elif failed:
        told = (
            f"cannot be used ({error}, {error.sqlite_errorname}): check that its folder is there, "
            f"the limits of the process, and the system's log for errors of the disk. {_GOES_ON}"
        )
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        told = f"is locked by {_holder(path)} ({error}): let that finish, or end it. {_GOES_ON}"
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        told = (
            f"cannot be written ({error}): let the console's user write the file and its folder, "
            f"and mount them for writing. {_GOES_ON}"
        )
    elif code == sqlite3.SQLITE_CORRUPT:
        told = (
            f"is damaged ({error}): stop the console, and put a backup in its place or make it "
            "anew with `rejex-stream review rebuild`."
        )
    else:
        return None
    return StoreError(f"The review store {str(path)!r} {told}")


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return _LITTLE_BYTES


def _holder(path: Path) -> str:
    """Name who holds a write lock on a database; Linux tells, others do not."""
    try:
        inodes = {
            str(file.stat().st_ino)
            for file in (path, path.with_name(path.name + "-shm"))
            if file.exists()
        }
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return "another process"
    for line in locks:
        words = line.split()
        if len(words) < 6 or words[3] != "WRITE" or words[5].rpartition(":")[2] not in inodes:
            continue
        pid = words[4]
        if pid == str(os.getpid()):
            return "another action of this console"
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            command = ""
        return f"process {pid}" + (f" ({command.replace(chr(0), ' ').strip()})" if command else "")
    return "another process"


def owner_only(path: str | Path, flags: int) -> int:
    """Open a file as ``open(opener=...)`` wants it: a new one is its owner's alone (0600).

    One that is there keeps its mode: who opened it to a group meant to.
    """
    return os.open(path, flags, 0o600)


def position_in(row: sqlite3.Row) -> Position:
    """Return the position of an event, of a row of the table ``event``."""
    return Position(row["topic"], row["partition"], row["offset"], row["reading"])


class Database:
    """A review database in one SQLite file, used by several threads and processes at once.

    Every statement runs in a block of :meth:`read` or :meth:`write`. The write-ahead log gives
    readers their state beside a writer; every write runs in ``BEGIN IMMEDIATE``, so that two of
    them never decide on the same row. Blocks of one thread do not nest into a second write: it
    would wait for the first.

    Parameters
    ----------
    path
        The file; it and its tables are made if missing.
    capacity
        What the SQL function ``capacity()`` returns: cases that people are asked a day.
    busy_timeout_s
        How long a writer waits for its turn.

    Raises
    ------
    ConfigError
        If the file lies on a network file system, is no database, or is of another version.
    StoreError
        By every block, if the disk is full or fails, or the file is locked, damaged or gone.
    """

    def __init__(
        self, path: Path, *, capacity: int | None = None, busy_timeout_s: float = 10.0
    ) -> None:
        self.path = path
        self._capacity = capacity
        self._busy_timeout_s = busy_timeout_s
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._all: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        kind = filesystem_of(path)
        if kind in _NETWORK:
            raise ConfigError(
                f"The review store {str(path)!r} lies on a network file system ({kind}), where "
                "SQLite's locks do not hold: put it on a local disk."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # SQLite says it better, and gives its log the mode of the file
            os.close(owner_only(path, os.O_RDWR | os.O_CREAT))
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            told = _explain(error, path)
            if told is not None:
                raise told from error
            raise ConfigError(
                f"{str(path)!r} cannot be used as a review store ({error}): give a new path, or "
                "rebuild it with `rejex-stream review rebuild`."
            ) from error
        found = path.stat()
        self._identity = (found.st_dev, found.st_ino)

    def _prepare(self) -> None:
        with self._borrow() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
                return
            connection.execute("BEGIN IMMEDIATE")  # another process may be making it, too
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if not found:
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
            if found not in (0, SCHEMA_VERSION):
                raise ConfigError(
                    f"The review store {str(self.path)!r} has schema version {found}, this program "
                    f"writes {SCHEMA_VERSION}: make it anew with `rejex-stream review rebuild`."
                )

    def _require_there(self) -> None:
        """Refuse to write into a file that nobody can open any more: it would be lost with us."""
        try:
            found = self.path.stat()
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(
                f"The review store {str(self.path)!r} was removed or replaced while it was open: "
                "stop the console, put the file back or make it anew with `rejex-stream review "
                "rebuild`, and start again."
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
        connection.create_function("capacity", 0, lambda: self._capacity, deterministic=True)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        self._all.append(connection)
        return connection

    @contextmanager
    def _borrow(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            if self._identity is not None:
                self._require_there()  # or SQLite would make another one
            connection = self._connect()
        try:
            yield connection
        finally:
            if connection.in_transaction:  # it could not even be rolled back
                self._all.remove(connection)
                connection.close()
            else:
                self._idle.put(connection)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._borrow() as connection:
            try:
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:  # on a full disk SQLite has rolled back by itself
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                told = _explain(error, self.path) if isinstance(error, sqlite3.Error) else None
                if told is not None:
                    raise told from error
                raise

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction, alone among writers; all of it or nothing.

        Raises
        ------
        StoreError
            If the file cannot be written; nothing was.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            self._require_there()
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
