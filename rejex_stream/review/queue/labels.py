"""Labels in the store, and on their way out: written with the decision, sent later, never lost.

A crash between sending and noting that it was sent publishes a label twice, with the same id both
times; readers keep the first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple, Protocol

import msgspec

from rejex_stream.config.reviewing import Review
from rejex_stream.encode.label_records import (
    LabelRecord,
    Resolution,
    active_labels,
    decode_label,
    encode_label,
    resolve,
)
from rejex_stream.errors import ConnectorError
from rejex_stream.review.queue.database import Database, owner_only

__all__ = [
    "OF_KNOWN",
    "LabelCache",
    "LabelFile",
    "LabelSink",
    "OutboxRow",
    "drawn_for_second_review",
    "pending",
    "publish",
    "read_labels",
    "records_of",
    "refresh_status",
    "resolution_of",
]


OF_KNOWN = (
    "EXISTS (SELECT 1 FROM known WHERE event_id = "
    "(SELECT event_id FROM event w WHERE w.episode_id = e.episode_id LIMIT 1))"
)
"""Says of an episode `e` that its truth is known: its answers measure people, and nothing else.

All of its events are of the case or none is, so one stands for all.
"""


def drawn_for_second_review(root_id: str, ratio: float) -> bool:
    """Say whether an episode gets a second, independent reviewer; a share `ratio` of them do.

    A larger ratio keeps every smaller draw, and nobody can choose who is drawn.

    Examples
    --------
    >>> sum(drawn_for_second_review(f"E-{number}", 0.1) for number in range(10_000))
    989
    """
    digest = hashlib.sha256(f"second/{root_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < ratio * 2.0**64


def records_of(connection: Connection, episode: str) -> list[LabelRecord]:
    """Return every record that speaks about the events of an episode, in order.

    All events of an episode share them, so one event stands for all.
    """
    rows = connection.execute(
        "SELECT l.record FROM label_event le JOIN label l USING (label_seq) WHERE le.event_id = "
        "(SELECT event_id FROM event WHERE episode_id = ? LIMIT 1) ORDER BY l.label_seq",
        (episode,),
    )
    return [decode_label(row[0]) for row in rows]


class LabelCache:
    """Decoded labels by number, without their lists of events: for walks over many events.

    A label of an episode of 500 events is met 500 times, and names 500 events each time.
    """

    def __init__(self, most: int = 4_096) -> None:
        self._most = most
        self._known: dict[int, LabelRecord] = {}

    def get(self, label_seq: int, record: bytes) -> LabelRecord:
        """Return the record, its `events` left empty."""
        found = self._known.get(label_seq)
        if found is None:
            if len(self._known) >= self._most:
                self._known.clear()
            found = msgspec.structs.replace(decode_label(record), events=())
            self._known[label_seq] = found
        return found


def resolution_of(connection: Connection, episode: str) -> Resolution:
    """Return what the labels of an episode add up to now."""
    return resolve(active_labels(records_of(connection, episode)))


def refresh_status(connection: Connection, episode: str, settings: Review, now_ms: int) -> None:
    """Bring an episode's status in line with its labels, and give up the claim on it."""
    row = connection.execute(
        "SELECT root_id, status FROM episode WHERE episode_id = ?", (episode,)
    ).fetchone()
    if row["status"] == "empty":
        return
    found = resolution_of(connection, episode)
    status = {
        "open": "open",
        "expired": "expired",
        "disputed": "disputed",
        "agreed": "done",
        "adjudicated": "done",
        "labelled": "done",
    }[found.state]
    if found.state == "open" and _follows_an_answer(connection, episode):
        status = "held"
    if found.state == "labelled" and drawn_for_second_review(
        row["root_id"], settings.double_review_ratio
    ):
        status = "needs_second"
    connection.execute(
        "UPDATE episode SET status = ?, verdict = ?, decided_ms = ?, lease_owner = NULL, "
        "lease_until_ms = NULL, lease_since_ms = NULL WHERE episode_id = ?",
        (
            status,
            found.verdict if status in ("done", "expired") else None,
            now_ms if status in ("done", "expired") else None,
            episode,
        ),
    )


def _follows_an_answer(connection: Connection, episode: str) -> bool:
    """Say whether these events came after others of their incident had been decided."""
    return (
        connection.execute(
            "SELECT 1 FROM episode e JOIN episode o ON o.incident = e.incident "
            "AND o.root_id <> e.root_id AND o.rowid < e.rowid AND o.status <> 'empty' "
            "WHERE e.episode_id = ?",
            (episode,),
        ).fetchone()
        is not None
    )


def publish(
    connection: Connection, record: LabelRecord, *, handle_ms: int | None, sent: bool
) -> bool:
    """Store a record with its events and put it into the outbox; says whether it was new.

    What is said of a known case stays in the store: it measures who says it, and teaches nobody.
    """
    value = encode_label(record)
    made = connection.execute(
        "INSERT INTO label (label_id, episode_id, reviewer, kind, target, source, verdict, "
        "created_ms, handle_ms, record) VALUES (?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING "
        "RETURNING label_seq",
        (
            record.label_id,
            record.episode_id,
            record.reviewer,
            record.kind,
            record.retracts,
            record.source,
            record.verdict,
            record.created_ms,
            handle_ms,
            value,
        ),
    ).fetchone()
    if made is None:
        return False
    connection.executemany(
        "INSERT INTO label_event (event_id, label_seq) SELECT event_id, ? FROM event "
        "WHERE topic = ? AND partition = ? AND offset = ? AND reading = ?",
        [(made["label_seq"], *position) for position in record.events],
    )
    if connection.execute(
        "SELECT 1 FROM label_event JOIN known USING (event_id) WHERE label_seq = ? LIMIT 1",
        (made["label_seq"],),
    ).fetchone():
        return True
    connection.execute(
        "INSERT INTO outbox (label_id, key, value, sent_ms) VALUES (?,?,?,?)",
        (record.label_id, record.root_id.encode(), value, record.created_ms if sent else None),
    )
    return True


class OutboxRow(NamedTuple):
    """One encoded label record that waits to be sent."""

    seq: int
    label_id: str
    key: bytes
    value: bytes


class LabelSink(Protocol):
    """Where labels go: a file, a topic. Order within a key must be kept."""

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Make all rows durable, then return where each went (``labels-0@553``); or raise."""
        ...

    def close(self) -> None:
        """Let go of the output."""
        ...


class LabelFile:
    """Appends label records to a JSON Lines file, synced to disk before they count as sent.

    Parameters
    ----------
    path
        Made if missing. A line that a crash cut short is dropped: its label is still in the outbox.

    Raises
    ------
    ConnectorError
        If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = self._end = 0
        self._file: FileIO | None = None
        try:
            self._file = self._open()
        except OSError as error:
            raise ConnectorError(
                f"The labels file {str(path)!r} cannot be written ({error.strerror}): "
                "give a path that can."
            ) from error

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer, which would bring back later what failed once.
        file = FileIO(self.path, "ab+", opener=owner_only)
        file.seek(0)
        self._lines = self._end = 0
        while chunk := file.read(1 << 20):
            self._lines += chunk.count(b"\n")
            if b"\n" in chunk:
                self._end = file.tell() - len(chunk) + chunk.rindex(b"\n") + 1
        file.truncate(self._end)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # a name that a power cut takes away takes the labels with it
        finally:
            os.close(folder)
        return file

    def publish(self, rows: Sequence[OutboxRow]) -> Sequence[str]:
        """Append the rows and sync them to disk.

        Raises
        ------
        ConnectorError
            If that fails; none of the rows is in the file then, as far as that can still be done.
        """
        data = b"".join(row.value + b"\n" for row in rows)
        try:
            if self._file is None or not self._named():
                self.close()
                self._file = self._open()
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._take_back()
            raise ConnectorError(
                f"The labels file {str(self.path)!r} cannot be written ({error.strerror}): make "
                "room for it, or let the console's user write it; the labels wait in the store.",
                retriable=True,
            ) from error
        places = [f"{self.path.name}@{self._lines + i}" for i in range(len(rows))]
        self._lines += len(rows)
        self._end += len(data)
        return places

    def _named(self) -> bool:
        """Whether the path still leads to our file: what is rotated away, nobody reads."""
        assert self._file is not None
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _take_back(self) -> None:
        # Opened anew next time: after a failed fsync nobody knows what the disk holds.
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(self._end)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def pending(database: Database) -> int:
    """Return how many labels wait to be sent."""
    with database.read() as connection:
        query = "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"
        return int(connection.execute(query).fetchone()[0])


def read_labels(path: Path) -> Iterator[LabelRecord]:
    """Yield the records of a labels file in order, each once; an unfinished last line is left out.

    Raises
    ------
    ConnectorError
        If the file cannot be read, or a whole line is no label record.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or not line.strip():
                    continue
                record = decode_label(line)
                if record.label_id not in seen:
                    seen.add(record.label_id)
                    yield record
    except OSError as error:
        raise ConnectorError(
            f"The labels file {str(path)!r} cannot be read ({error.strerror}): check the path."
        ) from error
