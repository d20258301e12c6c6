"""Incidents in the store: the newest state of each, its changes, the answers and the replies.

An answer is stored once, in one transaction, and goes from there to the control log: while that
cannot be written, the answer waits and is not lost. Its id follows from the request, so neither a
repeated request nor a crash between sending it and recording that gives it twice.

While an answer is pending, which is until the pipeline has replied, nobody can give another one.
For its first seconds it stays here, and who gave it can withdraw it. What is in the control log
cannot be withdrawn: a pipeline that starts again reads it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from sqlite3 import Connection, Row
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_command, decode_incidents, encode_command
from rejex_stream.errors import ConfigError
from rejex_stream.operate.incident_text import state_phrase
from rejex_stream.review.queue import database
from rejex_stream.review.queue.database import Name, Refusal, Viewer, require_reviewer
from rejex_stream.review.queue.review_store import Action, ReviewStore
from rejex_stream.types import Command, CommandKind, CommandReply, Incident, IncidentState

_MOST_CLOSED = 2_000
_MOST_CHANGES = 500
_REMINDED_MS = 31 * 86_400_000  # what was acknowledged and never ended is told again after so long


class StoredIncident(NamedTuple):
    """The newest state of an incident, its pipeline, and the situation it is of."""

    pipeline: str
    incident: Incident
    situation: str


class Care(NamedTuple):
    """Who looks after an incident, and why it pages nobody; nothing about it changes by that."""

    assigned: str  # whose it is, or empty
    shelved_by: str
    shelved_until_ms: int  # 0: it is not shelved
    acknowledged_by: str = ""  # until it opens again, or something is added to it
    acknowledged_ms: int = 0
    why_shelved: str = ""

    @property
    def quiet_until_ms(self) -> int:
        """Until when its alert is not repeated; 0: it is."""
        acknowledged = self.acknowledged_ms and self.acknowledged_ms + _REMINDED_MS
        return max(self.shelved_until_ms, acknowledged)


class Answer(NamedTuple):
    """A command that was given here, and what became of it; no replies: it is awaited."""

    command: Command
    pipeline: str
    sent: bool
    withdrawn: bool
    replies: tuple[CommandReply, ...]

    @property
    def accepted(self) -> bool | None:
        """Whether it holds; where one partition obeys, the others need not."""
        return any(reply.accepted for reply in self.replies) if self.replies else None

    @property
    def reply_text(self) -> str:
        """What the pipeline said to it."""
        words = [reply.said for reply in self.replies if reply.accepted == self.accepted]
        return " ".join(dict.fromkeys(words))


# -------------------------------------------------------------------------------------- looking
def standing(connection: Connection) -> list[StoredIncident]:
    """Return every incident that is not over, and the last ones that are, most severe first."""
    newest = "SELECT incident FROM incident WHERE state = 'closed' ORDER BY changed_ms DESC LIMIT ?"
    closed = _stored(connection, f"i.incident IN ({newest})", _MOST_CLOSED)
    return open_incidents(connection) + closed


def open_incidents(connection: Connection) -> list[StoredIncident]:
    """Return every incident that is not over, most severe first."""
    return _stored(connection, "i.state <> 'closed'")


def stored_incident(connection: Connection, incident: str) -> StoredIncident | None:
    return next(iter(_stored(connection, "i.incident = ?", incident)), None)


def members(connection: Connection, situation: str) -> list[StoredIncident]:
    return _stored(connection, "i.situation = ?", situation)


def group_size(connection: Connection, stored: StoredIncident) -> tuple[str, int]:
    """Return what names in the group of a situation begin with, and how many streams there are."""
    groups = json.loads(database.noted(connection, f"groups:{stored.pipeline}") or "{}")
    name, streams = groups.get(stored.situation, ("", 0))
    return name, streams


def _stored(connection: Connection, which: str, *values: str | int) -> list[StoredIncident]:
    rows = connection.execute(
        f"SELECT i.pipeline, i.record, i.situation FROM incident i WHERE {which} "
        "ORDER BY i.severity DESC, i.changed_ms DESC, i.incident",
        values,
    )
    return [StoredIncident(row[0], _incident(row[1]), row[2]) for row in rows]


def _incident(record: bytes) -> Incident:
    incident = decode_incidents(record)
    assert isinstance(incident, Incident), "replies have a table of their own"
    return incident


def care_of(connection: Connection, incident: Incident, now_ms: int) -> Care:
    """Return who looks after an incident, as the trail has it; O(log rows of the trail)."""
    # What was seen is shelved: that ends early where the incident turns, or passes a limit.
    given, shelved = (
        next(database.audit_rows(connection, subject=incident.id, action=one, limit=1), None)
        for one in ("assign", "shelve")
    )
    holds = shelved is not None and (
        shelved.detail["until_ms"] > now_ms
        and shelved.detail["state"] == incident.state
        and shelved.detail["limits"] >= len(incident.limits)
    )
    return Care(
        "" if given is None else given.detail["to"],
        shelved.actor if shelved is not None and holds else "",
        shelved.detail["until_ms"] if shelved is not None and holds else 0,
        *_acknowledged(connection, incident),
        shelved.detail["why"] if shelved is not None and holds else "",
    )


def quiet_care(cares: Sequence[Care], now_ms: int) -> Care | None:
    """Return why the alert of a situation is not repeated, by the care of its open incidents.

    Of eight one has to be acknowledged, or shelved: what grows to eight times that pages again.
    """
    quiet = [care for care in cares if care.quiet_until_ms > now_ms]
    longest = max(quiet, key=lambda care: care.quiet_until_ms, default=None)
    return longest if len(cares) < 8 * len(quiet) else None


_SPEAKING = (IncidentState.OPEN, IncidentState.FAULT)


def _acknowledged(connection: Connection, incident: Incident) -> tuple[str, int]:
    """Return who acknowledged an incident as it stands, and when; the answer *fault* does so, too.

    It holds until a change says that the incident is open once more, or a fault: it has come back,
    or something was added.
    """
    seen = next(database.audit_rows(connection, subject=incident.id, action="seen", limit=1), None)
    if seen is None and incident.state is IncidentState.OPEN:
        return "", 0  # as most are: nobody said anything
    changes = timeline(connection, incident.id)
    newest = max((one.version for one in changes if one.state in _SPEAKING), default=0)
    if seen is not None and seen.detail["version"] >= newest:
        return seen.actor, seen.at_ms
    first = min((one for one in changes if one.state is IncidentState.FAULT),
                key=lambda one: one.version, default=None)  # fmt: skip
    if first is None or first.version < newest:
        return "", 0
    said = (one.command for one in answers_to(connection, incident.id) if one.accepted)
    fault = next((one for one in said if one.kind is not CommandKind.NEW_NORMAL), None)
    by, at_ms = ("", None) if fault is None else (fault.by, fault.given_ms)
    return by or "somebody", first.changed_ms if at_ms is None else at_ms


def timeline(connection: Connection, incident: str) -> list[Incident]:
    rows = connection.execute(
        "SELECT record FROM incident_change WHERE incident = ? ORDER BY version DESC LIMIT ?",
        (incident, _MOST_CHANGES),
    )
    return [_incident(row["record"]) for row in rows]


def sensors_of(connection: Connection, incident: Incident) -> list[Row]:
    marks = ",".join("?" * len(incident.sensors))
    return connection.execute(
        f"SELECT * FROM sensor WHERE stream_key = ? AND sensor IN ({marks}) ORDER BY sensor",
        (incident.stream_key, *incident.sensors),
    ).fetchall()


def answers_to(connection: Connection, incident: str) -> list[Answer]:
    """Return what was said here about an incident, or about none, the newest first."""
    rows = connection.execute(
        "SELECT command, record, pipeline, leaving_ms, withdrawn_ms FROM answer WHERE incident = ? "
        "ORDER BY answer_seq DESC",
        (incident,),
    ).fetchall()
    return [
        Answer(
            decode_command(row["record"]),
            row["pipeline"],
            row["leaving_ms"] is not None,
            row["withdrawn_ms"] is not None,
            _replies(connection, row["command"]),
        )
        for row in rows
    ]


def pending_answer(connection: Connection, incident: str) -> Answer | None:
    """Return the answer that the pipeline has not replied to yet, if there is one."""
    answers = answers_to(connection, incident)
    return next((answer for answer in answers if not answer.withdrawn and not answer.replies), None)


def _replies(connection: Connection, command: str) -> tuple[CommandReply, ...]:
    rows = connection.execute(
        "SELECT accepted, said FROM reply WHERE command = ? ORDER BY reply_seq", (command,)
    )
    return tuple(
        CommandReply(command=command, accepted=bool(row["accepted"]), said=row["said"])
        for row in rows
    )


UNDO_MS = 10_000  # so long an answer waits in the store, where it can be taken back
_AT_ONCE = 100  # commands that a crash may repeat


class AnswerRequest(msgspec.Struct, frozen=True):
    """What somebody answers to an incident, as the page showed it."""

    request_id: Name
    incident: Annotated[str, Meta(min_length=1, max_length=1000)]
    version: Annotated[int, Meta(ge=1)]
    kind: Literal["fault", "known_fault", "new_normal"]
    note: Annotated[str, Meta(max_length=4000)] = ""
    others: dict[str, int] = {}  # of its situation, with their versions: the same answer


def state_sentence(incident: Incident) -> str:
    return f"At version {incident.version} now, it {state_phrase(incident)}."


def give_answer(store: ReviewStore, request: AnswerRequest, viewer: Viewer) -> Command:
    """Store an answer, which :func:`send_commands` sends; once a request.

    What has moved on among the `others` is left as it is: people look at it again.
    """
    require_reviewer(viewer)
    id_ = command_id(viewer, request.request_id)
    with store.acting(viewer) as act:
        known = stored_command(act.connection, id_)
        if known is not None:
            return known
        command = _give(act, request, id_, store.settings)
        for number, (incident, version) in enumerate(request.others.items(), 1):
            other = msgspec.structs.replace(request, incident=incident, version=version)
            with suppress(Refusal):
                _give(act, other, f"{id_}.{number}", store.settings)
        return command


def _give(act: Action, request: AnswerRequest, id_: str, settings: Review) -> Command:
    connection, viewer = act.connection, act.viewer
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
    is_over = incident.state in (IncidentState.ADOPTING, IncidentState.CLOSED)
    is_known = incident.state is IncidentState.FAULT and (
        kind is CommandKind.FAULT or (kind is CommandKind.KNOWN_FAULT and incident.known is True)
    )
    if is_over or incident.silent or is_known:
        raise Refusal("changed", f"It takes no such answer. {state_sentence(incident)}")
    if request.version != incident.version:
        raise Refusal(
            "changed",
            f"It has moved on since you saw version {request.version}. "
            f"{state_sentence(incident)} Look at it, and answer again.",
        )
    if kind is CommandKind.NEW_NORMAL and not viewer.has_role(settings.new_normal):
        raise Refusal("forbidden", f"New normal takes the role {settings.new_normal} here.")
    command = store_command(
        act,
        kind,
        id_,
        stored.pipeline,
        note=request.note,
        stream_key=incident.stream_key,
        incident=incident.id,
        version=incident.version,
    )
    detail = {"answer": request.kind, "note": request.note, "version": incident.version}
    act.record("answer", incident.id, **detail, command=id_)
    return command


def command_id(viewer: Viewer, request_id: str) -> str:
    """Return the id of what a person's request commands: repeated, it says nothing new."""
    words = "\x1f".join((viewer.reviewer, request_id))
    return f"c-{hashlib.sha256(words.encode()).hexdigest()[:12]}"


def stored_command(connection: Connection, id_: str) -> Command | None:
    known = database.scalar(connection, "SELECT record FROM answer WHERE command = ?", (id_,))
    return None if known is None else decode_command(known)


def store_command(
    act: Action, kind: CommandKind, id_: str, pipeline: str, **fields: Any
) -> Command:
    """Store a command, for :func:`send_commands` to send."""
    by = act.viewer.reviewer
    try:
        command = make_command(kind, id_=id_, by=by, given_ms=act.now_ms, **fields)
    except ConfigError as error:
        raise Refusal("bad_request", str(error)) from error
    act.connection.execute(
        "INSERT INTO answer (command, incident, pipeline, record, given_ms) VALUES (?,?,?,?,?)",
        (id_, command.incident or "", pipeline, encode_command(command), act.now_ms),
    )
    return command


def withdraw_answer(store: ReviewStore, command: str, viewer: Viewer) -> str:
    """Withdraw an answer that has not been sent, to all it was given to; returns its incident."""
    first = command.partition(".")[0]
    with store.acting(viewer) as act:
        rows = act.connection.execute(
            "SELECT command, incident, record, leaving_ms, withdrawn_ms FROM answer "
            "WHERE ?1 IN (command, substr(command, 1, instr(command, '.') - 1)) "
            "ORDER BY command <> ?2",
            (first, command),
        ).fetchall()
        if not rows:
            raise Refusal("unknown", "There is no such answer.")
        by = decode_command(rows[0]["record"]).by
        if by != viewer.reviewer and not viewer.has_role("lead"):
            raise Refusal("forbidden", "Who gave an answer, or a lead, takes it back.")
        if any(row["leaving_ms"] is not None for row in rows):
            raise Refusal(
                "changed",
                "It is in the pipeline's control log and cannot be taken back: answer again once "
                "the pipeline has replied.",
            )
        for row in rows:
            withdraw_command(act, row["command"], row["incident"] or row["command"])
        return str(rows[0]["incident"])


def withdraw_command(act: Action, command: str, whose: str) -> None:
    """Let a command that has not left never leave; one that was withdrawn stays so."""
    change = act.connection.execute(
        "UPDATE answer SET withdrawn_ms = ? WHERE command = ? AND withdrawn_ms IS NULL",
        (act.now_ms, command),
    )
    if change.rowcount:
        act.record("withdraw", whose)


def send_commands(
    store: ReviewStore, pipeline: str, log: ControlLine, *, wait_ms: int = 0
) -> list[Command]:
    """Send a pipeline the commands that are `wait_ms` old, in order; one thread at a time."""
    sent: list[Command] = []
    db, now = store.database, store.now_ms
    unsent = "SELECT 1 FROM answer WHERE pipeline = ? AND sent_ms IS NULL AND withdrawn_ms IS NULL"
    with db.read() as connection:  # most rounds find nothing, and need no write lock
        if not database.scalar(connection, unsent, (pipeline,)):
            return sent
    while True:
        # Noted before it is sent: nobody takes back what may be in the log already.
        with db.write() as connection:
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
        with db.write() as connection:
            connection.executemany(
                "UPDATE answer SET sent_ms = ? WHERE answer_seq = ?",
                [(now(), row["answer_seq"]) for row in waiting],
            )
        sent += commands
