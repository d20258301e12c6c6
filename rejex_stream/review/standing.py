"""Where an episode stands: what its labels add up to, and how a new one gets in."""

from __future__ import annotations

import msgspec

from rejex_stream.review.labels import (
    LabelRecord,
    Resolution,
    active_labels,
    decode_label,
    encode_label,
    resolve,
)
from rejex_stream.review.sampling import drawn_for_second_review
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.storage import Connection

__all__ = ["LabelCache", "publish", "records_of", "refresh_status", "resolution_of"]


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


def refresh_status(
    connection: Connection, episode: str, settings: ReviewSettings, now_ms: int
) -> None:
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
    if found.state == "labelled" and drawn_for_second_review(
        row["root_id"], settings.double_review_ratio
    ):
        status = "needs_second"
    connection.execute(
        "UPDATE episode SET status = ?, verdict = ?, decided_ms = ?, lease_owner = NULL, "
        "lease_until_ms = NULL, lease_since_ms = NULL, snooze_until_ms = NULL, snooze_growth = 0 "
        "WHERE episode_id = ?",
        (
            status,
            found.verdict if status in ("done", "expired") else None,
            now_ms if status in ("done", "expired") else None,
            episode,
        ),
    )


def publish(
    connection: Connection, record: LabelRecord, *, handle_ms: int | None, sent: bool
) -> bool:
    """Store a record with its events and put it into the outbox; says whether it was new."""
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
        "WHERE topic = ? AND partition = ? AND offset = ?",
        [(made["label_seq"], *position) for position in record.events],
    )
    connection.execute(
        "INSERT INTO outbox (label_id, key, value, sent_ms) VALUES (?,?,?,?)",
        (record.label_id, record.root_id.encode(), value, record.created_ms if sent else None),
    )
    return True
