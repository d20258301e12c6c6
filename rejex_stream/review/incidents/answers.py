"""A person's answer to an incident: stored with its audit row, then sent to the pipeline.

An answer is written once, in one transaction, and leaves from there for the control log: while that
cannot be written, it waits and is not lost. Its id is made of the request, so that neither a
repeated request nor a crash between writing and remembering it says anything twice.

While an answer is pending, which is until the pipeline has replied, nobody can give another one.
For its first seconds it stays here, and who gave it can take it back; what is in the control log
cannot be taken back, since a pipeline that starts anew reads it again.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from rejex_stream.config.assembly.control_line import make_command
from rejex_stream.encode import decode_command, encode_command
from rejex_stream.errors import ConfigError
from rejex_stream.review.incidents.incident_store import pending_answer, stored_incident
from rejex_stream.review.queue import audit
from rejex_stream.review.queue.claims import Refusal, require_reviewer
from rejex_stream.review.queue.decisions import Name
from rejex_stream.review.queue.listing import Viewer
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.types import Command, CommandKind, Incident, IncidentState

__all__ = [
    "UNDO_MS",
    "AnswerRequest",
    "CommandLog",
    "give",
    "send_commands",
    "what_is_true",
    "withdraw",
]

UNDO_MS = 10_000
"""So long an answer waits in the store, where it can be taken back."""
_AT_ONCE = 100  # commands that a crash may repeat


class AnswerRequest(msgspec.Struct, frozen=True):
    """What somebody answers to an incident, as the page showed it."""

    request_id: Name
    incident: Annotated[str, Meta(min_length=1, max_length=1000)]
    version: Annotated[int, Meta(ge=1)]
    kind: Literal["fault", "new_normal"]
    note: Annotated[str, Meta(max_length=4000)] = ""


class CommandLog(Protocol):
    """Where commands go; see :class:`~rejex_stream.config.assembly.control_line.ControlLine`."""

    def publish(self, *commands: Command) -> None:
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


def give(store: ReviewStore, request: AnswerRequest, viewer: Viewer) -> Command:
    """Store an answer, which :func:`send_commands` sends; the same request again changes nothing.

    Raises
    ------
    Refusal
        If the viewer may only look, the incident is not known, an answer is pending, or it has
        moved on since the page was made: with what is true now.
    """
    require_reviewer(viewer)
    words = "\x1f".join((viewer.reviewer, request.request_id))
    id_ = f"c-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    now_ms = store.now_ms()
    with store.database.write() as connection:
        known = connection.execute("SELECT record FROM answer WHERE command = ?", (id_,)).fetchone()
        if known is not None:
            return decode_command(known["record"])
        stored = stored_incident(connection, request.incident)
        if stored is None:
            raise Refusal("unknown", f"There is no incident {request.incident[:200]!r}.")
        incident, kind = stored.incident, CommandKind(request.kind)
        pending = pending_answer(connection, incident.id)
        if pending is not None:
            raise Refusal(
                "changed",
                f"{pending.command.by} answered {pending.command.kind.replace('_', ' ')}, and the "
                "pipeline has not replied yet: wait for it"
                + ("." if pending.sent else f", or have {pending.command.by} take it back."),
            )
        again = incident.state is IncidentState.FAULT and kind is CommandKind.FAULT
        if not stored.can_be_answered or again:
            raise Refusal("changed", f"It takes no such answer. {what_is_true(incident)}")
        if request.version != incident.version:
            raise Refusal(
                "changed",
                f"It has moved on since you saw version {request.version}. "
                f"{what_is_true(incident)} Look at it, and answer again.",
            )
        try:
            command = make_command(
                kind,
                id_=id_,
                by=viewer.reviewer,
                note=request.note,
                given_ms=now_ms,
                stream_key=incident.stream_key,
                incident=incident.id,
                version=incident.version,
            )
        except ConfigError as error:
            raise Refusal("bad_request", str(error)) from error
        connection.execute(
            "INSERT INTO answer (command, incident, pipeline, record, given_ms) VALUES (?,?,?,?,?)",
            (id_, incident.id, stored.pipeline, encode_command(command), now_ms),
        )
        audit.append(
            connection,
            now_ms,
            viewer.reviewer,
            "answer",
            incident.id,
            answer=request.kind,
            note=request.note,
            version=incident.version,
            command=id_,
        )
        return command


def withdraw(store: ReviewStore, command: str, viewer: Viewer) -> str:
    """Take an answer back that has not left for the pipeline; returns its incident.

    Raises
    ------
    Refusal
        If it is not known, somebody else's, or in the control log.
    """
    now_ms = store.now_ms()
    with store.database.write() as connection:
        row = connection.execute(
            "SELECT incident, record, leaving_ms, withdrawn_ms FROM answer "
            "WHERE command = ? AND incident <> ''",
            (command,),
        ).fetchone()
        if row is None:
            raise Refusal("unknown", "There is no such answer.")
        if decode_command(row["record"]).by != viewer.reviewer and viewer.role not in (
            "lead",
            "admin",
        ):
            raise Refusal("forbidden", "Who gave an answer, or a lead, takes it back.")
        if row["leaving_ms"] is not None:
            raise Refusal(
                "changed",
                "It is in the pipeline's control log and cannot be taken back: answer anew once "
                "the pipeline has replied.",
            )
        if row["withdrawn_ms"] is None:
            connection.execute(
                "UPDATE answer SET withdrawn_ms = ? WHERE command = ?", (now_ms, command)
            )
            audit.append(connection, now_ms, viewer.reviewer, "withdraw", row["incident"])
        return str(row["incident"])


def send_commands(
    store: ReviewStore, pipeline: str, log: CommandLog, *, wait_ms: int = 0
) -> list[Command]:
    """Send a pipeline the commands that are `wait_ms` old, in order; one thread at a time.

    Raises
    ------
    ConnectorError
        If its control log cannot be written; what was not sent waits.
    """
    sent: list[Command] = []
    database, now = store.database, store.now_ms
    with database.read() as connection:  # most rounds find nothing, and need no write lock
        if not connection.execute(
            "SELECT 1 FROM answer WHERE pipeline = ? AND sent_ms IS NULL AND withdrawn_ms IS NULL",
            (pipeline,),
        ).fetchone():
            return sent
    while True:
        # Noted before it is sent: nobody takes back what may be in the log already.
        with database.write() as connection:
            waiting = connection.execute(
                "UPDATE answer SET leaving_ms = ? WHERE answer_seq IN (SELECT answer_seq FROM "
                "answer WHERE pipeline = ? AND sent_ms IS NULL AND withdrawn_ms IS NULL "
                "AND given_ms <= ? ORDER BY answer_seq LIMIT ?) RETURNING answer_seq, record",
                (now(), pipeline, now() - wait_ms, _AT_ONCE),
            ).fetchall()
        if not waiting:
            return sent
        waiting.sort(key=lambda row: row["answer_seq"])
        commands = [decode_command(row["record"]) for row in waiting]
        log.publish(*commands)
        with database.write() as connection:
            connection.executemany(
                "UPDATE answer SET sent_ms = ? WHERE answer_seq = ?",
                [(now(), row["answer_seq"]) for row in waiting],
            )
        sent += commands
