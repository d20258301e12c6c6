"""What the store keeps of incidents: each as it stands, its changes in order, and the replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sqlite3 import Connection, Row
from typing import NamedTuple

from rejex_stream.encode import decode_command, decode_incidents, encode_incident
from rejex_stream.review.queue import series
from rejex_stream.types import (
    Command,
    CommandReply,
    Incident,
    IncidentState,
    Position,
)

__all__ = [
    "Answer",
    "Flagged",
    "StoredIncident",
    "answers_to",
    "flagged",
    "held_streams",
    "open_count",
    "open_incidents",
    "pending_answer",
    "sensors_of",
    "standing",
    "stored_incident",
    "take",
    "timeline",
]

_MOST_CLOSED = 100
_MOST_CHANGES = 500


class StoredIncident(NamedTuple):
    """An incident as it stands, and whose pipeline it is of."""

    pipeline: str
    incident: Incident

    @property
    def can_be_answered(self) -> bool:
        """Whether a person's word would still change anything."""
        return self.incident.state not in (IncidentState.ADOPTING, IncidentState.CLOSED)


class Answer(NamedTuple):
    """A command that was given here, and what became of it; no replies: it is awaited."""

    command: Command
    sent: bool
    withdrawn: bool
    replies: tuple[CommandReply, ...]

    @property
    def accepted(self) -> bool | None:
        """Whether it holds; where one partition obeys, the others need not."""
        return any(reply.accepted for reply in self.replies) if self.replies else None

    @property
    def said(self) -> str:
        """What the pipeline said to it."""
        words = [reply.said for reply in self.replies if reply.accepted == self.accepted]
        return " ".join(dict.fromkeys(words))


# ----------------------------------------------------------------------------------- coming in
def take(
    connection: Connection, published: Incident | tuple[Position, CommandReply], pipeline: str
) -> bool:
    """Store a change of an incident or a reply, in a write transaction; says whether it was new."""
    if not isinstance(published, Incident):
        position, reply = published
        cursor = connection.execute(
            "INSERT INTO reply (command, position, accepted, said) VALUES (?,?,?,?) "
            "ON CONFLICT DO NOTHING",
            (reply.command, str(position), int(reply.accepted), reply.said),
        )
        return cursor.rowcount > 0
    cursor = connection.execute(
        "INSERT INTO incident_change (incident, version, record) VALUES (?,?,?) "
        "ON CONFLICT DO NOTHING",
        (published.id, published.version, encode_incident(published)),
    )
    connection.execute(
        "INSERT INTO incident VALUES (?,?,?,?,?,?,?) ON CONFLICT (incident) DO UPDATE SET "
        "pipeline = excluded.pipeline, state = excluded.state, version = excluded.version, "
        "severity = excluded.severity, changed_ms = excluded.changed_ms "
        "WHERE excluded.version > incident.version",
        (
            published.id,
            pipeline,
            published.stream_key,
            published.state,
            published.version,
            published.peak_severity,
            published.changed_ms,
        ),
    )
    return cursor.rowcount > 0


# -------------------------------------------------------------------------------------- looking
_NEWEST = (
    "SELECT i.pipeline, c.record FROM incident i JOIN incident_change c USING (incident, version) "
)


def standing(connection: Connection) -> list[StoredIncident]:
    """Return every incident that is not over, and the last ones that are, most severe first."""
    order = "ORDER BY i.severity DESC, i.changed_ms DESC, i.incident"
    return [
        *open_incidents(connection),
        *_stored(
            connection.execute(
                f"{_NEWEST} WHERE i.incident IN (SELECT incident FROM incident "
                f"WHERE state = 'closed' ORDER BY changed_ms DESC LIMIT ?) {order}",
                (_MOST_CLOSED,),
            )
        ),
    ]


def open_incidents(connection: Connection) -> list[StoredIncident]:
    """Return every incident that is not over, most severe first."""
    order = "ORDER BY i.severity DESC, i.changed_ms DESC, i.incident"
    return list(_stored(connection.execute(f"{_NEWEST} WHERE i.state <> 'closed' {order}")))


class Flagged(NamedTuple):
    """A sensor of which more events were called anomalies than its contamination makes of chance.

    `expected` are as many as the share of reference scores that count as anomalies makes.
    """

    sensor: str
    pipeline: str
    events: int
    anomalies: int
    expected: float


def flagged(connection: Connection, most: int = 12) -> list[Flagged]:
    """Return sensors that were called anomalous far too often in their last day, with no incident.

    Four standard deviations of a count of chance; the farthest first. A short fault that is clear
    rejects nothing and opens no incident: nobody would be asked, so it is listed. O(sensors).
    """
    held = held_streams(connection)
    found = []
    for row in connection.execute(
        "SELECT s.*, sum(h.normal + h.anomaly + h.rejected) AS events, sum(h.anomaly) AS called "
        "FROM sensor s JOIN hour h USING (sensor_id) WHERE s.window_len > 0 "
        "AND h.t_ms > s.last_ms - ? GROUP BY s.sensor_id",
        (series.DAY_MS,),
    ):
        expected = row["events"] * row["n_anomalies"] / row["window_len"]
        if (row["pipeline"], row["stream_key"]) not in held and row["called"] > expected + 4 * max(
            expected, 1.0
        ) ** 0.5:
            found.append(
                Flagged(row["sensor"], row["pipeline"], row["events"], row["called"], expected)
            )
    found.sort(key=lambda one: (one.expected - one.anomalies) / max(one.expected, 1.0) ** 0.5)
    return found[:most]


def stored_incident(connection: Connection, incident: str) -> StoredIncident | None:
    """Return an incident as it stands."""
    found = connection.execute(f"{_NEWEST} WHERE i.incident = ?", (incident,))
    return next(_stored(found), None)


def _stored(rows: Iterable[Row]) -> Iterator[StoredIncident]:
    for row in rows:
        yield StoredIncident(row["pipeline"], _incident(row["record"]))


def _incident(record: bytes) -> Incident:
    found = decode_incidents(record)
    assert isinstance(found, Incident), "replies have a table of their own"
    return found


def open_count(connection: Connection) -> int:
    """Return how many incidents are not over."""
    return int(
        connection.execute("SELECT count(*) FROM incident WHERE state <> 'closed'").fetchone()[0]
    )


def held_streams(connection: Connection) -> dict[tuple[str, str], str]:
    """Return the incident that holds each stream, by pipeline and stream key."""
    return {
        (row["pipeline"], row["stream_key"]): row["incident"]
        for row in connection.execute(
            "SELECT pipeline, stream_key, incident FROM incident WHERE state <> 'closed' "
            "ORDER BY changed_ms"
        )
    }


def timeline(connection: Connection, incident: str) -> list[Incident]:
    """Return the changes of an incident, the newest first."""
    rows = connection.execute(
        "SELECT record FROM incident_change WHERE incident = ? ORDER BY version DESC LIMIT ?",
        (incident, _MOST_CHANGES),
    )
    return [_incident(row["record"]) for row in rows]


def sensors_of(connection: Connection, incident: Incident) -> list[Row]:
    """Return the rows of the sensors of an incident, as far as they are known here."""
    marks = ",".join("?" * len(incident.sensors))
    return connection.execute(
        f"SELECT * FROM sensor WHERE stream_key = ? AND sensor IN ({marks}) ORDER BY sensor",
        (incident.stream_key, *incident.sensors),
    ).fetchall()


def answers_to(connection: Connection, incident: str) -> list[Answer]:
    """Return what was said here about an incident, the newest first."""
    rows = connection.execute(
        "SELECT command, record, leaving_ms, withdrawn_ms FROM answer WHERE incident = ? "
        "ORDER BY answer_seq DESC",
        (incident,),
    ).fetchall()
    return [
        Answer(
            decode_command(row["record"]),
            row["leaving_ms"] is not None,
            row["withdrawn_ms"] is not None,
            _replies(connection, row["command"]),
        )
        for row in rows
    ]


def pending_answer(connection: Connection, incident: str) -> Answer | None:
    """Return the answer that the pipeline has not replied to yet, if there is one."""
    found = answers_to(connection, incident)
    return next((one for one in found if not one.withdrawn and not one.replies), None)


def _replies(connection: Connection, command: str) -> tuple[CommandReply, ...]:
    rows = connection.execute(
        "SELECT accepted, said FROM reply WHERE command = ? ORDER BY reply_seq", (command,)
    )
    return tuple(
        CommandReply(command=command, accepted=bool(row["accepted"]), said=row["said"])
        for row in rows
    )
