"""The review store: everything people and pipelines do to the queue, one transaction each.

It is a view of two logs. Everything that decides an event's verdict is in the review items and the
labels, from which :func:`rebuild` makes the same verdicts again. Claims are not; they
live in the store alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal, NamedTuple

from rejex_stream.config.reviewing import SYSTEM, Review
from rejex_stream.encode import decode_command, decode_incidents, decode_reviewed, decode_verdict
from rejex_stream.encode.label_records import LabelRecord, active_labels, resolve
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.plan.promises import Costs
from rejex_stream.review.queue import cases, database, ingest
from rejex_stream.review.queue.database import (
    AT_POSITION,
    Database,
    Viewer,
    position_in,
    require_replaceable,
    scalar,
    wall_clock_ms,
)
from rejex_stream.review.queue.ingest import IngestBatch, IngestCounts, Span
from rejex_stream.review.queue.label_store import (
    LabelCache,
    LabelSink,
    OutboxRow,
    publish,
    refresh_status,
)
from rejex_stream.review.queue.series import Point
from rejex_stream.types import Command, FollowUp, Partition, ReviewItem, Verdict

_log = logging.getLogger(__name__)
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "review": decode_reviewed,
    "verdicts": decode_verdict,
    "incidents": decode_incidents,
    "control": decode_command,
}


class Action(NamedTuple):
    """One transaction of a person on the store, recorded in the audit."""

    connection: Connection
    now_ms: int
    viewer: Viewer

    def record(self, action: str, subject: str, **detail: Any) -> None:
        name = self.viewer.reviewer
        database.append_audit(self.connection, self.now_ms, name, action, subject, **detail)


class ReviewStore:
    """A review queue in one database."""

    # Safe for several threads and processes. What comes in and the labels that go out pass here;
    # what people do is in `labelling`, pages read through :attr:`database`. Whatever
    # changes something is one transaction.

    def __init__(
        self,
        path: Path,
        settings: Review | None = None,
        *,
        costs: Mapping[str, Costs] | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.settings = settings or Review()
        self.costs = costs or {}
        self.database = Database(path, capacity=self.settings.capacity.questions_per_day)
        self.now_ms = clock_ms
        # Sent and not noted: a store that stays full for an hour would send it again and again.
        self._unnoted: dict[int, str] = {}

    @contextmanager
    def acting(self, viewer: Viewer) -> Iterator[Action]:
        """Run a block as one transaction of a person: all of it or nothing."""
        now_ms = self.now_ms()
        with self.database.write() as connection:
            yield Action(connection, now_ms, viewer)

    # ------------------------------------------------------------------------------ coming in
    def ingest(
        self,
        kind: Literal["review", "verdicts", "incidents", "control"],
        lines: Iterable[bytes],
        spans: Mapping[Partition, Span] | None = None,
        *,
        pipeline: str = "",
    ) -> IngestCounts:
        """Store encoded records with the spans they were read from; unreadable ones are counted."""
        decode = _DECODERS[kind]
        read: list[Any] = []
        refused = IngestCounts()
        for line in lines:
            try:
                read.append(decode(line))
            except ConnectorError as error:
                refused.refuse(str(error))
        with self.database.write() as connection:
            batch = IngestBatch(connection, self.settings, self.now_ms(), pipeline, self.costs)
            for record in read:
                if isinstance(record, ReviewItem):
                    batch.item(record)
                elif isinstance(record, FollowUp):
                    batch.follow_up(record)
                elif isinstance(record, Verdict):
                    batch.verdict(record)
                elif isinstance(record, Command):
                    batch.command(record)
                else:
                    batch.incident(record)
            counts = batch.finish(spans)
        counts += refused
        return counts

    def add(
        self, items: Iterable[ReviewItem] = (), verdicts: Iterable[Verdict] = ()
    ) -> IngestCounts:
        with self.database.write() as connection:
            batch = IngestBatch(connection, self.settings, self.now_ms())
            for verdict in verdicts:
                batch.verdict(verdict)
            for item in items:
                batch.item(item)
            return batch.finish()

    def add_readings(
        self,
        stream_key: str,
        sensor: str,
        channels: Sequence[str],
        points: Iterable[tuple[int, tuple[float | None, ...]]],
        *,
        pipeline: str = "",
    ) -> None:
        with self.database.write() as connection:
            batch = IngestBatch(connection, self.settings, self.now_ms(), pipeline)
            sensor_id = batch.sensor_id(stream_key, sensor, channels)
            for t_ms, values in points:
                batch.series.add(sensor_id, Point(t_ms, values, None, None))
            batch.finish()

    def begin(self, partition: Partition, earliest: int = 0, log: str = "") -> int:
        """Return where to go on reading an input that still holds positions from `earliest` on.

        An input with another `log` than before is new: it is read from its start.
        """
        # What was deleted before it was read is given up here, with a warning and an audit row.
        if log:
            self.restart_input(partition, log)
        with self.database.read() as connection:
            known = ingest.next_offset(connection, partition)
        if known is not None and known >= earliest:
            return known
        with self.database.write() as connection:
            known = ingest.next_offset(connection, partition)
            if known is not None and known >= earliest:
                return known
            connection.execute(
                "INSERT OR REPLACE INTO consumed VALUES (?,?,?)", (*partition, earliest)
            )
            if known is None:
                return earliest
            name, last = str(partition), earliest - 1
            database.append_audit(
                connection, self.now_ms(), SYSTEM, "lost", name, first=known, last=last
            )
        _log.warning(
            "%s: records %d to %d were deleted before the console read them; "
            "keep them for longer than the console may be away",
            name,
            known,
            last,
        )
        return earliest

    def restart_input(self, partition: Partition, log: str = "") -> None:
        """Read an input again from position 0, with a `log` only where that is another than before.

        What is known already changes nothing.
        """
        name = str(partition)
        with self.database.write() as connection:
            if log:
                before = database.noted(connection, f"log of {name}")
                database.note_down(connection, f"log of {name}", log)
                if before in (None, log):
                    return
            database.append_audit(connection, self.now_ms(), SYSTEM, "restarted", name)
            connection.execute(
                "UPDATE consumed SET next_offset = 0 WHERE topic = ? AND partition = ?", partition
            )
        _log.warning("%s is new: it is read from its start", name)

    # ------------------------------------------------------------------------------------ time
    def send_labels(self, sink: LabelSink, *, limit: int = 500) -> int:
        """Send the labels that wait, oldest first, and note it; returns how many. One at a time."""
        sent = 0
        while True:
            with self.database.read() as connection:
                unsent = connection.execute(
                    "SELECT seq, label_id, key, value FROM outbox WHERE sent_ms IS NULL "
                    "ORDER BY seq LIMIT ?",
                    (limit,),
                )
                rows = list(map(OutboxRow._make, unsent))
            if not rows:
                return sent
            fresh = [row for row in rows if row.seq not in self._unnoted]
            if fresh:
                places = sink.publish(fresh)
                self._unnoted.update(zip((row.seq for row in fresh), places, strict=True))
            with self.database.write() as connection:
                connection.executemany(
                    "UPDATE outbox SET sent_ms = ?, place = ? WHERE seq = ?",
                    [(self.now_ms(), self._unnoted[row.seq], row.seq) for row in rows],
                )
            for row in rows:
                del self._unnoted[row.seq]
            sent += len(rows)

    def close(self) -> None:
        self.database.close()


class EventState(NamedTuple):
    """What is known of one event: the part of the store that the logs determine."""

    position: str
    state: str
    verdict: str | None
    labels: tuple[str, ...]


class Rebuilt(NamedTuple):
    """What a rebuild found."""

    events: int
    labels: int
    labels_without_events: int
    state_hash: str


def verdict_state(database: Database) -> Iterator[EventState]:
    """Yield the state of every event, in order of position; constant memory."""
    with database.read() as connection:
        rows = connection.execute(
            "SELECT v.topic, v.partition, v.offset, v.reading, l.label_seq, l.record FROM event v "
            "LEFT JOIN label_event le USING (event_id) "
            "LEFT JOIN label l USING (label_seq) "
            "ORDER BY v.topic, v.partition, v.offset, v.reading, l.label_seq"
        )
        cache = LabelCache()
        for position, those in groupby(rows, key=lambda row: str(position_in(row))):
            standing = active_labels(
                cache.get(row["label_seq"], row["record"])
                for row in those
                if row["record"] is not None
            )
            result = resolve(standing)
            labels = tuple(label.label_id for label in standing)
            yield EventState(position, result.state, result.verdict, labels)


def state_hash(database: Database) -> str:
    """Return a hash of :func:`verdict_state`: equal iff every event's verdict and labels are."""
    digest = hashlib.sha256()
    for state in verdict_state(database):
        digest.update(json.dumps(state).encode() + b"\n")
    return digest.hexdigest()


def apply_labels(store: ReviewStore, records: Iterable[LabelRecord]) -> tuple[int, int]:
    """Apply records that were published before; returns (new ones, those whose events are unknown).

    Each puts its events into the episode it names, made if need be, as they were when it was given.
    """
    new, unknown = 0, 0
    with store.database.write() as connection:
        for record in records:
            query = f"SELECT event_id FROM event WHERE {AT_POSITION}"
            ids = (scalar(connection, query, position) for position in record.events)
            events = [event for event in ids if event is not None]
            if not events:
                unknown += 1
                continue
            if record.kind == "label":
                touched = _gather(connection, record, events)
            else:  # by now these events may be spread over several episodes: that is fine
                touched = cases.holding(connection, events)
            if not publish(connection, record, sent=True):
                continue
            new += 1
            for episode in touched:
                refresh_status(connection, episode, store.settings, record.created_ms)
    return new, unknown


def _gather(connection: Connection, record: LabelRecord, events: list[int]) -> set[str]:
    held = scalar(
        connection, "SELECT count(*) FROM event WHERE episode_id = ?", (record.episode_id,)
    )
    marks = ",".join("?" * len(events))
    here = scalar(
        connection,
        f"SELECT count(*) FROM event WHERE episode_id = ? AND event_id IN ({marks})",
        (record.episode_id, *events),
    )
    if held == here == len(events):
        return {record.episode_id}
    return cases.adopt(connection, record.episode_id, record.root_id, events)


def rebuild(
    path: Path,
    settings: Review,
    *,
    feed: Callable[[ReviewStore], None],
    labels: Iterable[LabelRecord],
    replace: bool = False,
    costs: Mapping[str, Costs] | None = None,
) -> Rebuilt:
    """Make the store at `path` again from review items and labels: whole or not at all."""
    if path.exists():
        if not replace:
            raise ConfigError(
                f"{str(path)!r} exists: add --replace to rebuild it, or give a new path."
            )
        require_replaceable(path)
    fresh = path.with_name(path.name + ".rebuild")
    _remove_store_files(fresh)
    store = ReviewStore(fresh, settings, costs=costs)
    try:
        feed(store)
        new, unknown = apply_labels(store, labels)
        with store.database.write() as connection:
            events = int(scalar(connection, "SELECT count(*) FROM event"))
            database.append_audit(
                connection,
                store.now_ms(),
                SYSTEM,
                "rebuild",
                path.name,
                events=events,
                labels=new,
                labels_without_events=unknown,
            )
        digest = state_hash(store.database)
        store.database.settle()
    finally:
        store.close()
    if path.exists():
        require_replaceable(path)
    # First: beside another database, SQLite would play them into that.
    _remove_store_files(path, _LOGS)
    os.replace(fresh, path)
    return Rebuilt(events, new, unknown, digest)


_LOGS = ("-wal", "-shm")


def _remove_store_files(path: Path, suffixes: Sequence[str] = ("", *_LOGS)) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
