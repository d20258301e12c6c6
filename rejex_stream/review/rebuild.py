"""The same verdicts again, from what was published: the queue is a view of two logs.

Everything that decides an event's verdict is in the review items and the labels. Claims, snoozes
and preferences are not; they live in the store alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rejex_stream.errors import ConfigError
from rejex_stream.review import auditlog, episodes, similar
from rejex_stream.review.binding import SYSTEM
from rejex_stream.review.database import (
    SqliteDatabase,
    remove_file,
    require_replaceable,
    take_place,
)
from rejex_stream.review.labels import LabelRecord, active_labels, resolve
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.standing import LabelCache, publish, refresh_status
from rejex_stream.review.storage import Connection, Database
from rejex_stream.review.store import ReviewStore

__all__ = ["EventState", "Rebuilt", "apply_labels", "rebuild", "state_hash", "verdict_state"]


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
            "SELECT v.topic, v.partition, v.offset, l.label_seq, l.record FROM event v "
            "LEFT JOIN label_event le USING (event_id) LEFT JOIN label l USING (label_seq) "
            "ORDER BY v.topic, v.partition, v.offset, l.label_seq"
        )
        position, records, cache = None, list[LabelRecord](), LabelCache()
        for row in rows:
            here = f"{row['topic']}-{row['partition']}-{row['offset']}"
            if here != position:
                if position is not None:
                    yield _state(position, records)
                position, records = here, []
            if row["record"] is not None:
                records.append(cache.get(row["label_seq"], row["record"]))
        if position is not None:
            yield _state(position, records)


def _state(position: str, records: list[LabelRecord]) -> EventState:
    standing = active_labels(records)
    found = resolve(standing)
    return EventState(
        position, found.state, found.verdict, tuple(label.label_id for label in standing)
    )


def state_hash(database: Database) -> str:
    """Return a hash of :func:`verdict_state`: equal iff every event's verdict and labels are."""
    digest = hashlib.sha256()
    for state in verdict_state(database):
        digest.update(json.dumps(state).encode() + b"\n")
    return digest.hexdigest()


def apply_labels(store: ReviewStore, records: Iterable[LabelRecord]) -> tuple[int, int]:
    """Take records that were published before; returns (new ones, those whose events are unknown).

    Each puts its events into the episode it names, made if need be, as they were when it was given.
    """
    new, unknown = 0, 0
    with store.database.write() as connection:
        for record in records:
            events = [
                row[0]
                for position in record.events
                for row in connection.execute(
                    "SELECT event_id FROM event WHERE topic = ? AND partition = ? AND offset = ?",
                    position,
                )
            ]
            if not events:
                unknown += 1
                continue
            if record.kind == "label":
                touched = _gather(connection, record, events)
            else:  # by now these events may be spread over several episodes: that is fine
                touched = episodes.holding(connection, events)
            if not publish(connection, record, handle_ms=None, sent=True):
                continue
            new += 1
            for episode in touched:
                refresh_status(connection, episode, store.settings, record.created_ms)
            if record.kind == "label" and record.source == "human":
                similar.remember(connection, record.episode_id)
    return new, unknown


def _gather(connection: Connection, record: LabelRecord, events: list[int]) -> set[str]:
    held = connection.execute(
        "SELECT count(*) FROM event WHERE episode_id = ?", (record.episode_id,)
    ).fetchone()[0]
    marks = ",".join("?" * len(events))
    here = connection.execute(
        f"SELECT count(*) FROM event WHERE episode_id = ? AND event_id IN ({marks})",
        (record.episode_id, *events),
    ).fetchone()[0]
    if held == here == len(events):
        return {record.episode_id}
    return episodes.adopt(connection, record.episode_id, record.root_id, events)


def rebuild(
    path: Path,
    settings: ReviewSettings,
    *,
    feed: Callable[[ReviewStore], None],
    labels: Iterable[LabelRecord],
    replace: bool = False,
) -> Rebuilt:
    """Make the store at `path` anew from review items and labels; it appears whole or not at all.

    Parameters
    ----------
    feed
        Fills an empty store with everything the review log holds.
    labels
        Everything the labels log holds, in its order.
    replace
        Take the place of a store that exists; without it, that is refused.

    Raises
    ------
    ConfigError
        If `path` exists and `replace` is not set, or what is there is in use, is no review store,
        or holds labels that nobody else has yet.
    """
    if path.exists():
        if not replace:
            raise ConfigError(
                f"{str(path)!r} exists: add --replace to build it anew, or give a new path."
            )
        require_replaceable(path)
    fresh = path.with_name(path.name + ".rebuild")
    remove_file(fresh)
    database = SqliteDatabase(fresh)
    store = ReviewStore(database, settings)
    try:
        feed(store)
        new, unknown = apply_labels(store, labels)
        with store.database.write() as connection:
            events = int(connection.execute("SELECT count(*) FROM event").fetchone()[0])
            auditlog.append(
                connection,
                at_ms=store.now_ms(),
                actor=SYSTEM,
                action="rebuild",
                subject=path.name,
                detail={"events": events, "labels": new, "labels_without_events": unknown},
            )
        found = state_hash(database)
        database.settle()
    finally:
        store.close()
    if path.exists():
        require_replaceable(path)
    take_place(fresh, path)
    return Rebuilt(events, new, unknown, found)
