"""A person's answer to an incident: kept with its audit row, then told to the pipeline.

An answer is written once, in one transaction, and leaves from there for the control log: while that
cannot be written, it waits and is not lost. Its id is made of the request, so that neither a
repeated request nor a crash between writing and remembering it says anything twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from sqlite3 import Connection
from typing import Literal, NamedTuple, Protocol

from rejex_stream.config.assembly.control_line import make_command
from rejex_stream.encode import decode_command, encode_command
from rejex_stream.errors import ConfigError
from rejex_stream.review.incidents.incident_store import kept_incident
from rejex_stream.review.queue import audit
from rejex_stream.review.queue.claims import Refusal
from rejex_stream.review.queue.database import Database
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.types import Command, CommandKind, Incident, IncidentState

__all__ = ["Said", "Tells", "give", "relay", "what_is_true"]

_AT_ONCE = 100  # commands that a crash may repeat


class Said(NamedTuple):
    """What somebody says about an incident, as the page showed it."""

    request_id: str
    incident: str
    version: int
    kind: Literal["fault", "new_normal"]
    note: str = ""


class Tells(Protocol):
    """Where commands go; see :class:`~rejex_stream.config.assembly.control_line.ControlLine`."""

    def say(self, *commands: Command) -> None:
        """Make commands durable in the control log, in this order."""
        ...


_STATES = {
    IncidentState.OPEN: "open",
    IncidentState.FAULT: "known to be a fault",
    IncidentState.RECOVERING: "recovering",
    IncidentState.ADOPTING: "being adopted as the new normal",
    IncidentState.CLOSED: "over",
}


def what_is_true(incident: Incident) -> str:
    """Say in one sentence where an incident stands now."""
    ended = f" ({incident.ended.replace('_', ' ')})" if incident.ended else ""
    return f"It is {_STATES[incident.state]}{ended} now, at version {incident.version}."


def give(connection: Connection, said: Said, viewer: Viewer, now_ms: int) -> Command:
    """Keep an answer, in a write transaction; the same request again changes nothing.

    Raises
    ------
    Refusal
        If the viewer may only look, the incident is not known, or has moved on since the page was
        made: with what is true now.
    """
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not answer: ask for the role reviewer.")
    words = "\x1f".join((viewer.reviewer, said.request_id))
    id_ = f"c-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    known = connection.execute("SELECT record FROM answer WHERE command = ?", (id_,)).fetchone()
    if known is not None:
        return decode_command(known["record"])
    kept = kept_incident(connection, said.incident)
    if kept is None:
        raise Refusal("unknown", f"There is no incident {said.incident[:200]!r}.")
    incident, kind = kept.incident, CommandKind(said.kind)
    again = incident.state is IncidentState.FAULT and kind is CommandKind.FAULT
    if not kept.can_be_answered or again:
        raise Refusal("changed", f"It takes no such answer. {what_is_true(incident)}")
    if said.version != incident.version:
        raise Refusal(
            "changed",
            f"It has moved on since you saw version {said.version}. {what_is_true(incident)} "
            "Look at it, and answer again.",
        )
    try:
        command = make_command(
            kind,
            id_=id_,
            by=viewer.reviewer,
            note=said.note,
            given_ms=now_ms,
            stream_key=incident.stream_key,
            incident=incident.id,
            version=incident.version,
        )
    except ConfigError as error:
        raise Refusal("bad_request", str(error)) from error
    connection.execute(
        "INSERT INTO answer (command, incident, pipeline, record) VALUES (?,?,?,?)",
        (id_, incident.id, kept.pipeline, encode_command(command)),
    )
    audit.append(
        connection,
        now_ms,
        viewer.reviewer,
        "answer",
        incident.id,
        answer=said.kind,
        note=said.note,
        version=incident.version,
        command=id_,
    )
    return command


def relay(database: Database, pipeline: str, line: Tells, now: Callable[[], int]) -> list[Command]:
    """Tell a pipeline what waits for it, in order; returns that. One thread at a time.

    Raises
    ------
    ConnectorError
        If its control log cannot be written; what was not told waits.
    """
    told: list[Command] = []
    while True:
        with database.read() as connection:
            waiting = connection.execute(
                "SELECT answer_seq, record FROM answer WHERE pipeline = ? AND sent_ms IS NULL "
                "ORDER BY answer_seq LIMIT ?",
                (pipeline, _AT_ONCE),
            ).fetchall()
        if not waiting:
            return told
        commands = [decode_command(row["record"]) for row in waiting]
        line.say(*commands)
        with database.write() as connection:
            connection.executemany(
                "UPDATE answer SET sent_ms = ? WHERE answer_seq = ?",
                [(now(), row["answer_seq"]) for row in waiting],
            )
        told += commands
