"""One SQLite file: its tables, opened safely, written by one transaction at a time, and its trail.

Facts (`event`, `label`, `label_event`, `audit`) are only ever inserted; triggers refuse anything
else. Everything else is a view of those facts, or short-lived coordination (claims).

The trail says who did what, in a chain that shows tampering: each row's hash covers the row and the
hash before it, so a row that is changed, dropped or slipped in breaks every later hash.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from rejex_stream.config.reviewing import ROLES, Role
from rejex_stream.errors import ConfigError, ConnectorError, RejexError
from rejex_stream.types import Position

SCHEMA_VERSION = 19

_APPEND_ONLY = ("label", "label_event", "audit")

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE sensor (
  sensor_id INTEGER PRIMARY KEY,
  stream_key TEXT NOT NULL,
  sensor TEXT NOT NULL,
  grp TEXT NOT NULL,                -- text before the first slash, for grouping on screens
  pipeline TEXT NOT NULL DEFAULT '',
  channels TEXT NOT NULL DEFAULT '[]',
  first_ms INTEGER, last_ms INTEGER,  -- event times of which every verdict was counted
  clock_wrong INTEGER NOT NULL DEFAULT 0,  -- by the pipeline: its times are impossible
  window_len INTEGER, n_anomalies INTEGER,
  UNIQUE (stream_key, sensor)
) STRICT;

CREATE TABLE episode (
  episode_id TEXT PRIMARY KEY,
  root_id TEXT NOT NULL,            -- the episode it was split from, else itself
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  why TEXT NOT NULL,
  status TEXT NOT NULL,             -- open|needs_second|disputed|done|expired|held|empty
  verdict TEXT,
  start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
  first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  n_events INTEGER NOT NULL,
  confidence REAL,                  -- the least stable event's
  priority INTEGER NOT NULL DEFAULT 0,
  received_ms INTEGER NOT NULL,     -- wall clock of the first arrival: what age counts from
  ready_ms INTEGER NOT NULL,
  decided_ms INTEGER,
  lease_owner TEXT, lease_until_ms INTEGER,
  incident TEXT,                    -- the incident that its events are of: one item for all
  severity REAL,                    -- the largest of its events
  assigned TEXT,                    -- whose it is, until somebody gives it to another
  worth REAL NOT NULL DEFAULT 0,    -- what an answer saves: the sum of its events
  step_ms REAL NOT NULL,            -- between readings of its sensor, when it began
  question TEXT NOT NULL            -- the case of a sibling that is asked about with it, or itself
) STRICT;
CREATE INDEX episode_question ON episode (question);
CREATE INDEX episode_incident ON episode (incident) WHERE incident IS NOT NULL;
CREATE INDEX episode_queue ON episode (status, priority DESC, received_ms);
CREATE INDEX episode_worth ON episode (status, worth DESC);
CREATE INDEX episode_sensor ON episode (sensor_id, status, end_ms);
CREATE INDEX episode_lease ON episode (lease_owner) WHERE lease_owner IS NOT NULL;

CREATE TABLE event (
  event_id INTEGER PRIMARY KEY,
  topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
  reading INTEGER NOT NULL,         -- its index in the record, where that holds several
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  episode_id TEXT NOT NULL REFERENCES episode,
  event_time_ms INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  confidence REAL,
  reason TEXT,
  received_ms INTEGER NOT NULL,
  item BLOB NOT NULL,               -- the review item as JSON, without its context
  severity REAL,
  worth REAL NOT NULL DEFAULT 0,    -- expected cost of the label it leans to
  UNIQUE (topic, partition, offset, reading)
) STRICT;
CREATE INDEX event_episode ON event (episode_id, event_time_ms, event_id);

CREATE TABLE label (
  label_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  label_id TEXT NOT NULL UNIQUE,
  episode_id TEXT NOT NULL,
  reviewer TEXT NOT NULL,
  kind TEXT NOT NULL,               -- label | retract
  target TEXT,                      -- the label a retraction takes back
  source TEXT NOT NULL,             -- human | expired
  verdict TEXT,
  created_ms INTEGER NOT NULL,
  record BLOB NOT NULL              -- the LabelRecord as published
) STRICT;
CREATE INDEX label_episode ON label (episode_id);
CREATE INDEX label_time ON label (created_ms);

CREATE TABLE label_event (
  event_id INTEGER NOT NULL REFERENCES event,
  label_seq INTEGER NOT NULL REFERENCES label,
  PRIMARY KEY (event_id, label_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  label_id TEXT NOT NULL,
  key BLOB NOT NULL, value BLOB NOT NULL,
  sent_ms INTEGER, place TEXT
) STRICT;
CREATE INDEX outbox_pending ON outbox (seq) WHERE sent_ms IS NULL;

CREATE TABLE action (    -- what can be undone, and what a retried request gets back
  action_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  request_id TEXT NOT NULL UNIQUE,
  reviewer TEXT NOT NULL,
  kind TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  undone INTEGER NOT NULL DEFAULT 0,
  payload TEXT NOT NULL,
  result TEXT NOT NULL
) STRICT;
CREATE INDEX action_undo ON action (reviewer, undone, action_seq);

CREATE TABLE audit (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE INDEX audit_subject ON audit (subject, seq);

CREATE TABLE consumed (  -- where to go on reading, moved with what was read
  topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
  PRIMARY KEY (topic, partition)
) STRICT;

CREATE TABLE counted (   -- verdicts already in the totals, per stream (and mode) of a partition
  topic TEXT NOT NULL, partition INTEGER NOT NULL, stream TEXT NOT NULL,
  last_offset INTEGER NOT NULL, last_reading INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  PRIMARY KEY (topic, partition, stream)
) STRICT;

CREATE TABLE point (     -- the series around events, full resolution, a ring
  sensor_id INTEGER NOT NULL REFERENCES sensor,
  t_ms INTEGER NOT NULL,
  channel_values BLOB,                 -- float64, one per channel, NaN where missing
  score REAL,
  label INTEGER,
  expected BLOB,                       -- JSON: what the verdict expected of its channels
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE hour (      -- exact counts per hour; those forgotten in one sum
  sensor_id INTEGER NOT NULL REFERENCES sensor, t_ms INTEGER NOT NULL,
  normal INTEGER NOT NULL DEFAULT 0, anomaly INTEGER NOT NULL DEFAULT 0,
  rejected INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (sensor_id, t_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE accepted (  -- called normal, or muted: by how probably each was to be audited
  pipeline TEXT NOT NULL, t_ms INTEGER NOT NULL,  -- its hour
  p REAL NOT NULL,                     -- 0: it could not be drawn
  why TEXT NOT NULL,                   -- of p = 0: held | planned | rate
  n INTEGER NOT NULL, drawn INTEGER NOT NULL,
  PRIMARY KEY (pipeline, t_ms, p, why)
) STRICT, WITHOUT ROWID;

CREATE TABLE incident (  -- the newest state of each
  incident TEXT PRIMARY KEY,
  pipeline TEXT NOT NULL, stream_key TEXT NOT NULL, state TEXT NOT NULL,
  version INTEGER NOT NULL, severity REAL NOT NULL, changed_ms INTEGER NOT NULL,
  changed_seq INTEGER NOT NULL,        -- of its newest figures, which are published between turns
  opened_ms INTEGER NOT NULL,
  onset TEXT NOT NULL,                 -- JSON: what says which incidents began together
  situation TEXT NOT NULL,             -- the id of one of them
  record BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX incident_stream ON incident (stream_key);
CREATE INDEX incident_situation ON incident (situation);

CREATE TABLE incident_change (  -- its turns
  change_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  incident TEXT NOT NULL, version INTEGER NOT NULL,
  record BLOB NOT NULL,                -- as published
  UNIQUE (incident, version)
) STRICT;

CREATE TABLE reply (     -- the pipeline's replies to commands
  reply_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL, position TEXT NOT NULL,
  accepted INTEGER NOT NULL, said TEXT NOT NULL,
  UNIQUE (command, position)
) STRICT;

CREATE TABLE answer (    -- commands given here, and those on their way out
  answer_seq INTEGER PRIMARY KEY AUTOINCREMENT,
  command TEXT NOT NULL UNIQUE,        -- made of the request: a retry says nothing new
  incident TEXT NOT NULL,              -- empty: it is about planned work
  pipeline TEXT NOT NULL,
  record BLOB NOT NULL,                -- the command as published
  given_ms INTEGER NOT NULL DEFAULT 0,
  leaving_ms INTEGER,                  -- may be in the control log from then on
  sent_ms INTEGER,
  withdrawn_ms INTEGER                 -- taken back before it left
) STRICT;

CREATE INDEX answer_waiting ON answer (pipeline, answer_seq) WHERE sent_ms IS NULL;

CREATE TABLE session (
  token_hash TEXT PRIMARY KEY,
  reviewer TEXT NOT NULL, role TEXT NOT NULL,
  kind TEXT NOT NULL,                  -- cookie | link
  expires_ms INTEGER NOT NULL
) STRICT;
"""

_TRIGGERS = tuple(
    f"""CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} rows are never changed'); END;"""
    for table in _APPEND_ONLY
    for verb in ("update", "delete")
)

SCHEMA = (*(one for one in _TABLES.split(";\n") if one.strip()), *_TRIGGERS)


# WAL needs shared memory between processes, which these cannot give: locks are silently lost.
_NETWORK = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "ncpfs", "nfs"),
        *("nfs4", "smb2", "smb3", "smbfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs"),
        *("fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    ]
)


def filesystem_of(path: Path, mounts: str | None = None) -> str:
    r"""Return the type of the file system that holds `path`, or ``unknown``."""
    table = Path("/proc/self/mountinfo")
    if mounts is None:
        mounts = table.read_text(encoding="utf-8", errors="replace") if table.exists() else ""
    target, best, kind = path.resolve(), -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        mount = Path(left.split()[4].replace("\\040", " "))
        if len(mount.parts) >= best and target.is_relative_to(mount):
            best, kind = len(mount.parts), right.split()[0]
    return kind


class StoreError(ConnectorError):
    """The store's file cannot be read or written now; what was tried was not done at all."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=True)


# With less room an I/O error is a full disk: what SQLite cannot map, it cannot name.
_LITTLE_BYTES = 1 << 20
_GOES_ON = "What comes in waits and is not lost; the console goes on by itself."


def _explain(error: sqlite3.Error, path: Path) -> StoreError | None:
    """Return what is wrong with the file, and the fix; ``None`` where a statement was wrong."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without SQLite's note of where it was
    failed = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    if code == sqlite3.SQLITE_FULL or (failed and _free_bytes(path) < _LITTLE_BYTES):
        problem = (
            f"cannot be written ({error}): make room on the file system that holds "
            f"{str(path.parent)!r}. {_GOES_ON}"
        )
    elif failed:
        problem = (
            f"cannot be used ({error}, {error.sqlite_errorname}): check that its folder is there, "
            f"the limits of the process, and the system's log for errors of the disk. {_GOES_ON}"
        )
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        problem = f"is locked by {_holder(path)} ({error}): let that finish, or end it. {_GOES_ON}"
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        problem = (
            f"cannot be written ({error}): let the console's user write the file and its folder, "
            f"and mount them for writing. {_GOES_ON}"
        )
    elif code == sqlite3.SQLITE_CORRUPT:
        problem = (
            f"is damaged ({error}): stop the console, and put a backup in its place or make it "
            "again with `rejex-stream review rebuild`."
        )
    else:
        return None
    return StoreError(f"The review store {str(path)!r} {problem}")


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


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def owner_only(path: str | Path, flags: int) -> int:
    """Open a file as ``open(opener=...)`` wants it: a new one is its owner's alone (0600)."""
    # One that is there keeps its mode: who opened it to a group meant to.
    return os.open(path, flags, 0o600)


def scalar(connection: sqlite3.Connection, query: str, values: Any = ()) -> Any:
    """Return the first value of the first row of a query; ``None`` without a row."""
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def scalars(connection: sqlite3.Connection, query: str, values: Any = ()) -> list[Any]:
    """Return the first value of every row of a query."""
    return [row[0] for row in connection.execute(query, values)]


def insert(
    connection: sqlite3.Connection, table: str, otherwise: str = "", **values: Any
) -> sqlite3.Cursor:
    """Add a row to a table, value by name of column; `otherwise` is the clause for a conflict."""
    marks = ", ".join("?" * len(values))
    query = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks}) {otherwise}"
    return connection.execute(query, tuple(values.values()))


AT_POSITION = "topic = ? AND partition = ? AND offset = ? AND reading = ?"
"""Finds an event by its position."""


def noted(connection: sqlite3.Connection, key: str) -> str | None:
    value: str | None = scalar(connection, "SELECT value FROM meta WHERE key = ?", (key,))
    return value


def note_down(connection: sqlite3.Connection, key: str, value: object) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, str(value)))


def position_in(row: sqlite3.Row) -> Position:
    return Position(row["topic"], row["partition"], row["offset"], row["reading"])


class Database:
    """A review database in one SQLite file, used by several threads and processes at once."""

    # Every statement runs in a block of :meth:`read` or :meth:`write`. The write-ahead log gives
    # readers their state beside a writer; every write runs in `BEGIN IMMEDIATE`, so that two of
    # them never decide on the same row. Blocks of one thread do not nest into a second write: it
    # would wait for the first.

    def __init__(
        self, path: Path, *, capacity: int | None = None, busy_timeout_s: float = 10.0
    ) -> None:
        self.path = path
        self._capacity = capacity
        self._busy_timeout_s = busy_timeout_s
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._all: list[sqlite3.Connection] = []
        self._identity: tuple[int, int] | None = None
        self._counter, self._written = itertools.count(1), 0
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
            problem = _explain(error, path)
            if problem is not None:
                raise problem from error
            raise ConfigError(
                f"{str(path)!r} cannot be used as a review store ({error}): give a new path, or "
                "rebuild it with `rejex-stream review rebuild`."
            ) from error
        stat = path.stat()
        self._identity = (stat.st_dev, stat.st_ino)

    def _prepare(self) -> None:
        with self._borrow() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
                return
            connection.execute("BEGIN IMMEDIATE")  # another process may be making it, too
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not version:
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
            if version not in (0, SCHEMA_VERSION):
                raise ConfigError(
                    f"The review store {str(self.path)!r} has schema version {version}, expected "
                    f"{SCHEMA_VERSION}: make it again with `rejex-stream review rebuild`."
                )

    def _require_there(self) -> None:
        """Refuse to write into a file that nobody can open any more: it would be lost with us."""
        try:
            stat = self.path.stat()
        except OSError:
            stat = None
        if stat is None or (stat.st_dev, stat.st_ino) != self._identity:
            raise StoreError(
                f"The review store {str(self.path)!r} was removed or replaced while it was open: "
                "stop the console, put the file back or make it again with `rejex-stream review "
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
                problem = _explain(error, self.path) if isinstance(error, sqlite3.Error) else None
                if problem is not None:
                    raise problem from error
                raise

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction, alone among writers; all of it or nothing."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            self._require_there()
            yield connection
        self._written = next(self._counter)

    def mark(self) -> tuple[int, ...]:
        """Return what is another one once anything was written, here or by another process."""
        log = self.path.with_name(f"{self.path.name}-wal")
        with suppress(OSError):
            stat = log.stat()
            return self._written, stat.st_mtime_ns, stat.st_size
        return (self._written,)

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
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle = queue.LifoQueue()


def require_replaceable(path: Path) -> None:
    """Refuse to put another store in the place of one that is in use or holds unsent labels."""
    connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
    try:
        if not scalar(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'outbox'"):
            raise ConfigError(f"{str(path)!r} is no review store: give another path.")
        waiting = scalar(connection, "SELECT count(*) FROM outbox WHERE sent_ms IS NULL")
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


# ------------------------------------------------------------- who may, and who did: the trail
Name = Annotated[str, Meta(min_length=1, max_length=64)]


class Viewer(NamedTuple):
    """Who looks: what is ready depends on what one has already decided."""

    reviewer: str
    role: Role = "reviewer"

    def has_role(self, least: Role) -> bool:
        """Whether the role is this one, or one that may do more."""
        return ROLES.index(self.role) >= ROLES.index(least)


RefusalCode: TypeAlias = Literal[
    "leased", "changed", "unknown", "forbidden", "bad_request", "nothing"
]


class Refusal(RejexError):  # noqa: N818 - a refused action is an answer, not a failure
    """An action on the queue that is not possible now; nothing was written."""

    def __init__(self, code: RefusalCode, message: str, episode_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.episode_id = episode_id


def require_reviewer(viewer: Viewer) -> None:
    """Refuse a viewer, who may only read."""
    if not viewer.has_role("reviewer"):
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")


_GENESIS = "0" * 64


class AuditRow(NamedTuple):
    """One state change."""

    seq: int
    at_ms: int
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str


def _digest(previous: str, *content: int | str) -> str:
    text = json.dumps([previous, *content], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def append_audit(
    connection: sqlite3.Connection, at_ms: int, actor: str, action: str, subject: str, **detail: Any
) -> None:
    """Add one row; the caller's transaction holds the change that it records."""
    last = scalar(connection, "SELECT hash FROM audit ORDER BY seq DESC LIMIT 1")
    text = json.dumps(detail, ensure_ascii=False, sort_keys=True)
    digest = _digest(last or _GENESIS, at_ms, actor, action, subject, text)
    connection.execute(
        "INSERT INTO audit (at_ms, actor, action, subject, detail, hash) VALUES (?,?,?,?,?,?)",
        (at_ms, actor, action, subject, text, digest),
    )


def broken_link(connection: sqlite3.Connection) -> int | None:
    """Return the `seq` of the first row whose hash does not follow, ``None`` if all do; O(rows)."""
    previous = _GENESIS
    query = "SELECT seq, at_ms, actor, action, subject, detail, hash FROM audit ORDER BY seq"
    for row in connection.execute(query):
        seq, *content, stored = tuple(row)
        if _digest(previous, *content) != stored:
            return int(seq)
        previous = stored
    return None


def audit_rows(
    connection: sqlite3.Connection,
    *,
    actor: str = "",
    action: str = "",
    subject: str = "",
    before_seq: int | None = None,
    limit: int = 200,
) -> Iterator[AuditRow]:
    """Yield the newest rows first, filtered; page on with `before_seq`."""
    where, values = ["1 = 1"], list[str | int]()
    for column, value in (("actor", actor), ("action", action), ("subject", subject)):
        if value:
            where.append(f"{column} = ?")
            values.append(value)
    if before_seq is not None:
        where.append("seq < ?")
        values.append(before_seq)
    query = f"SELECT * FROM audit WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"
    for row in connection.execute(query, (*values, limit)):
        yield AuditRow(**{**dict(row), "detail": json.loads(row["detail"])})
