"""Labels in the store, and on their way out: sent later and never lost, or exported.

They are written with the decision. A crash between sending and noting that it was sent publishes a
label twice, with the same id both times; readers keep the first. One row of an export is one event.
Sensor names and notes come from outside: a spreadsheet must not take them for formulas, so such
cells begin with an apostrophe.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import (
    LabelRecord,
    Resolution,
    active_labels,
    decode_label,
    encode_label,
    resolve,
)
from rejex_stream.errors import ConnectorError, explaining_os_errors
from rejex_stream.review.queue.database import AT_POSITION, Database, insert, owner_only, scalar


def drawn_for_second_review(root_id: str, ratio: float) -> bool:
    """Return whether an episode gets a second, independent reviewer; a share `ratio` of them do."""
    # A larger ratio keeps every smaller draw, and nobody can choose who is drawn.
    digest = hashlib.sha256(f"second/{root_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < ratio * 2.0**64


def records_of(connection: Connection, episode: str) -> list[LabelRecord]:
    # All events of an episode share them, so one event stands for all.
    rows = connection.execute(
        "SELECT l.record FROM label_event le JOIN label l USING (label_seq) WHERE le.event_id = "
        "(SELECT event_id FROM event WHERE episode_id = ? LIMIT 1) ORDER BY l.label_seq",
        (episode,),
    )
    return [decode_label(row[0]) for row in rows]


def human_labels(connection: Connection, episode: str) -> tuple[LabelRecord, ...]:
    """Return the labels that people gave an episode, without those that were retracted."""
    standing = active_labels(records_of(connection, episode))
    return tuple(label for label in standing if label.source == "human")


class LabelCache:
    """Decoded labels by number, without their lists of events: for walks over many events."""

    # A label of an episode of 500 events is met 500 times, and names 500 events each time.

    def __init__(self, most: int = 4_096) -> None:
        self._most = most
        self._known: dict[int, LabelRecord] = {}

    def get(self, label_seq: int, record: bytes) -> LabelRecord:
        """Return the record, its `events` left empty."""
        label = self._known.get(label_seq)
        if label is None:
            if len(self._known) >= self._most:
                self._known.clear()
            label = msgspec.structs.replace(decode_label(record), events=())
            self._known[label_seq] = label
        return label


def resolution_of(connection: Connection, episode: str) -> Resolution:
    """Return what the labels of an episode add up to now."""
    return resolve(active_labels(records_of(connection, episode)))


FINAL = ("labelled", "agreed", "adjudicated")  # what labels add up to where people have an answer


def refresh_status(connection: Connection, episode: str, settings: Review, now_ms: int) -> None:
    """Update an episode's status from its labels, and release the claim on it."""
    row = connection.execute(
        "SELECT root_id, status FROM episode WHERE episode_id = ?", (episode,)
    ).fetchone()
    if row["status"] == "empty":
        return
    result = resolution_of(connection, episode)
    status: str = "done" if result.state in FINAL else result.state
    if result.state == "open" and _follows_an_answer(connection, episode):
        status = "held"
    if result.state == "labelled" and drawn_for_second_review(
        row["root_id"], settings.double_review_ratio
    ):
        status = "needs_second"
    connection.execute(
        "UPDATE episode SET status = ?, verdict = ?, decided_ms = ?, lease_owner = NULL, "
        "lease_until_ms = NULL WHERE episode_id = ?",
        (
            status,
            result.verdict if status in ("done", "expired") else None,
            now_ms if status in ("done", "expired") else None,
            episode,
        ),
    )


def _follows_an_answer(connection: Connection, episode: str) -> bool:
    """Return whether others of its incident were decided, or the incident asks instead."""
    query = (
        "SELECT 1 FROM episode e JOIN episode o ON o.incident = e.incident "
        "AND (e.why = 'extreme' OR o.why <> 'extreme' AND o.root_id <> e.root_id "
        "AND o.rowid < e.rowid AND o.status <> 'empty') WHERE e.episode_id = ?"
    )
    return scalar(connection, query, (episode,)) is not None


_OF_RECORD = "label_id", "episode_id", "reviewer", "kind", "source", "verdict", "created_ms"


def publish(connection: Connection, record: LabelRecord, *, sent: bool = False) -> bool:
    """Store a record with its events and put it into the outbox; returns whether it was new."""
    value = encode_label(record)
    made = insert(
        connection,
        "label",
        "ON CONFLICT DO NOTHING RETURNING label_seq",
        **{name: getattr(record, name) for name in _OF_RECORD},
        target=record.retracts,
        record=value,
    ).fetchone()
    if made is None:
        return False
    connection.executemany(
        f"INSERT INTO label_event (event_id, label_seq) SELECT event_id, ? FROM event "
        f"WHERE {AT_POSITION}",
        [(made["label_seq"], *position) for position in record.events],
    )
    sent_ms, key = record.created_ms if sent else None, record.root_id.encode()
    insert(connection, "outbox", label_id=record.label_id, key=key, value=value, sent_ms=sent_ms)
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

    def close(self) -> None:
        """Close the output."""


class LabelFile:
    """Appends label records to a JSON Lines file, synced to disk before they count as sent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = self._end = 0
        self._file: FileIO | None = None
        failed = f"The labels file {str(path)!r} cannot be written"
        with explaining_os_errors(failed, "give a path that can"):
            self._file = self._open()

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
        assert self._file is not None
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _take_back(self) -> None:
        # Opened again next time: after a failed fsync nobody knows what the disk holds.
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(self._end)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def pending(connection: Connection) -> int:
    return int(scalar(connection, "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"))


def read_labels(path: Path) -> Iterator[LabelRecord]:
    """Yield the records of a labels file in order, each once, but an unfinished last line."""
    failed = f"The labels file {str(path)!r} cannot be read"
    with explaining_os_errors(failed, "check the path"), path.open("rb") as lines:
        whole = (line for line in lines if line.endswith(b"\n") and line.strip())
        yield from each_once(map(decode_label, whole))


def each_once(records: Iterable[LabelRecord]) -> Iterator[LabelRecord]:
    """Yield records in their order, each the first time that it comes."""
    seen: set[str] = set()
    for record in records:
        if record.label_id not in seen:
            seen.add(record.label_id)
            yield record


ExportFormat: TypeAlias = Literal["csv", "jsonl"]
FORMATS: tuple[ExportFormat, ...] = ("csv", "jsonl")
_BATCH = 500


class ExportRow(NamedTuple):
    """One event with what people decided about it."""

    topic: str
    partition: int
    offset: int
    stream_key: str
    sensor: str
    event_time_ms: int
    episode_id: str
    why: str
    state: str  # what all labels add up to; `verdict` is empty where there is none
    verdict: str
    model_label: str  # what the model said: `rejected`, or the accepted label of an audit
    reason: str
    score: float | None
    severity: float | None
    rank: int | None
    window_len: int
    model_epoch: int | None
    reviewers: str  # of the labels that stand, in their order, separated by `; `
    tags: str
    fault_codes: str
    notes: str
    decided_ms: int | None
    readings: str  # the reading itself, a JSON object by channel: nothing has to be joined


_OF_EVENT = ExportRow._fields[: ExportRow._fields.index("state")]
_OF_VERDICT = ("score", "severity", "rank", "window_len", "model_epoch")


def export_rows(
    database: Database, *, labelled_only: bool = True, final_only: bool = False
) -> Iterator[ExportRow]:
    """Yield events in order of arrival; constant memory, a short read per batch."""
    last, cache = 0, LabelCache(512)
    while True:
        with database.read() as connection:
            batch = connection.execute(
                "SELECT v.*, s.stream_key, s.sensor, e.why, e.status FROM event v "
                "JOIN sensor s USING (sensor_id) JOIN episode e USING (episode_id) "
                "WHERE v.event_id > ? ORDER BY v.event_id LIMIT ?",
                (last, _BATCH),
            ).fetchall()
            exported = [
                _row(connection, row, cache)
                for row in batch
                if not (final_only and row["status"] == "needs_second")
            ]
        if not batch:
            return
        last = batch[-1]["event_id"]
        for exported_row in exported:
            if exported_row.state != "open" or not labelled_only:
                yield exported_row


def _row(connection: Connection, row: Row, cache: LabelCache) -> ExportRow:
    standing = active_labels(
        cache.get(*tuple(result))
        for result in connection.execute(
            "SELECT l.label_seq, l.record FROM label_event JOIN label l USING (label_seq) "
            "WHERE event_id = ? ORDER BY label_seq",
            (row["event_id"],),
        )
    )
    result = resolve(standing)
    item = decode_review(row["item"])
    verdict = item.verdict

    def joined(parts: list[str]) -> str:
        return "; ".join(dict.fromkeys(part for part in parts if part))

    return ExportRow(
        **{name: row[name] for name in _OF_EVENT},
        **{name: getattr(verdict, name) for name in _OF_VERDICT},
        state=result.state,
        verdict=result.verdict or "",
        model_label=str(verdict.label),
        reason=str(verdict.reason or ""),
        reviewers=joined([label.reviewer for label in standing]),
        tags=joined([tag for label in standing for tag in label.tags]),
        fault_codes=joined([label.fault_code for label in standing]),
        notes=joined([label.note for label in standing]),
        decided_ms=standing[-1].created_ms if standing else None,
        readings=json.dumps(
            dict(zip(item.channels, item.values, strict=False)), ensure_ascii=False
        ),
    )


def cell(value: Any) -> str:
    r"""Return a value for a spreadsheet; text that would start a formula gets an apostrophe first.

    Also after a semicolon, tab or line's end: a spreadsheet that splits there would begin a cell.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    harmless = _STARTS.sub(r"\1'\2", value)
    return f"'{harmless}" if harmless[:1] in {"\t", "\r", "\n"} else harmless


# Spreadsheets skip what cannot be seen before they look for a sign; some know the wide signs too.
_UNSEEN = " \\t\\r\\n\\x0b\\x0c\\x00\\ufeff\\u00a0\\u200b"
_STARTS = re.compile(f"((?:^|[;\\t\\r\\n])[{_UNSEEN}]*)([=+\\-@|＝＋－＠])")


def as_csv(rows: Iterator[ExportRow]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(ExportRow._fields)
    for count, row in enumerate(rows, 1):
        writer.writerow([cell(value) for value in row])
        if count % 200 == 0:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def as_jsonl(rows: Iterator[ExportRow]) -> Iterator[str]:
    for row in rows:
        yield msgspec.json.encode(row._asdict()).decode() + "\n"


def write_export(
    database: Database, path: Path, form: ExportFormat, *, labelled_only: bool = True
) -> int:
    count = 0

    def counted() -> Iterator[ExportRow]:
        nonlocal count
        for row in export_rows(database, labelled_only=labelled_only):
            count += 1
            yield row

    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(as_csv(counted()) if form == "csv" else as_jsonl(counted()))
    return count
