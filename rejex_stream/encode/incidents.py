"""Incidents, what people say about them, and what became of that: records to JSON and back.

Changes of incidents and replies to commands stand in one file or topic, in the order of the events:
``kind`` tells them apart, and on Kafka ``ce_type`` too. Commands come in on a file or topic of
their own, written by anybody: :func:`decode_command` takes none that cannot be obeyed.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

from rejex_stream.decode.mapping import printable
from rejex_stream.encode.records import identified
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Command, CommandKind, CommandReply, Incident, Position

__all__ = [
    "MOST_ANSWERS",
    "IncidentRecord",
    "ReplyRecord",
    "decode_command",
    "decode_incidents",
    "encode_command",
    "encode_incident",
    "encode_reply",
    "position_of",
    "require_sound",
]

_encode = msgspec.json.Encoder().encode
_MOST_TEXT = {"id": 100, "stream_key": 1_000, "incident": 1_000, "cancels": 100, "by": 200}
_MOST_NOTE = 4_000
MOST_ANSWERS = 200
"""So many answers go into one command."""
_MOST_SIDES = 200  # channels of a box
_LONGEST_MS = 90 * 86_400_000  # of a mute: what is normal for longer belongs in the model
_LARGEST = 2**53  # what every reader of JSON keeps whole

_IDENTITY: list[tuple[str, Any]] = [
    ("id", str),
    ("topic", str),
    ("partition", int),
    ("offset", int),
]

IncidentRecord: type[msgspec.Struct] = msgspec.defstruct(
    "IncidentRecord",
    [
        *_IDENTITY,
        ("kind", Literal["incident"]),
        ("incident", str),
        *(
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(Incident)
            if field.name not in ("position", "id")
        ),
    ],
    module=__name__,
    namespace={
        "__doc__": """A change of an incident on the wire.

    Attributes
    ----------
    id, topic, partition, offset
        Of the event that changed it.
    kind
        ``incident``.
    incident
        Id of the incident: position of the event that opened it, as text.
    """
    },
    frozen=True,
    kw_only=True,
)


class ReplyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command, on the wire.

    Attributes
    ----------
    id, topic, partition, offset
        Of the event from which on it holds, or would have held.
    kind
        ``reply``.
    command, accepted, said
        As in :class:`~rejex_stream.types.CommandReply`.
    """

    id: str
    topic: str
    partition: int
    offset: int
    kind: Literal["reply"]
    command: str
    accepted: bool
    said: str


Answered: TypeAlias = Incident | tuple[Position, CommandReply]


def encode_incident(incident: Incident) -> bytes:
    """Encode a change of an incident as one line of JSON, without the newline."""
    fields = msgspec.structs.asdict(incident)
    position, id_ = fields.pop("position"), fields.pop("id")
    return _encode(IncidentRecord(**_identity(position), kind="incident", incident=id_, **fields))


def encode_reply(position: Position, reply: CommandReply) -> bytes:
    """Encode what became of a command as one line of JSON, without the newline."""
    fields = msgspec.structs.asdict(reply)
    return _encode(ReplyRecord(**_identity(position), kind="reply", **fields))


def decode_incidents(line: bytes) -> Answered:
    """Decode a line of the incidents' file or topic; unknown fields are ignored."""
    try:
        kind = msgspec.json.decode(line, type=_Kind).kind
        if kind == "reply":
            reply = msgspec.json.decode(line, type=ReplyRecord)
            position = identified(reply.id, reply.topic, reply.partition, reply.offset)
            return position, CommandReply(
                command=reply.command, accepted=reply.accepted, said=reply.said
            )
        fields = msgspec.structs.asdict(msgspec.json.decode(line, type=IncidentRecord))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectorError(
            f"expected an incident or a reply as one JSON object, got {printable(line)}: {error}"
        ) from None
    del fields["kind"]
    place = (fields.pop(name) for name in ("id", "topic", "partition", "offset"))
    position = identified(*place)
    return Incident(position=position, id=fields.pop("incident"), **fields)


class _Kind(msgspec.Struct):
    kind: Literal["incident", "reply"]


def encode_command(command: Command) -> bytes:
    """Encode a command as one line of JSON, without the newline."""
    fields = msgspec.to_builtins(command)
    fields["answers"] = [(one.position.parts, one.verdict) for one in command.answers]
    return _encode(fields)


def decode_command(line: bytes) -> Command:
    """Decode a command that can be obeyed; unknown fields are ignored."""
    try:
        command = msgspec.json.decode(line, type=Command)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectorError(
            f"expected a command as one JSON object, got {printable(line)}: {error}"
        ) from None
    require_sound(command)
    return command


def require_sound(command: Command) -> None:
    """Refuse a command that could not be obeyed by anybody."""
    what = f"the command {printable(command.id)} ({command.kind})"
    for name, most in (*_MOST_TEXT.items(), ("note", _MOST_NOTE)):
        text = getattr(command, name)
        if text is not None and len(text) > most:
            raise ConnectorError(f"{what} has {len(text)} characters of {name}, at most {most} fit")
    for name in ("version", "from_ms", "until_ms", "given_ms"):
        number = getattr(command, name)
        if number is not None and abs(number) > _LARGEST:
            raise ConnectorError(f"{what} has {name} = {number}, beyond ±{_LARGEST}")
    if not command.id:
        raise ConnectorError(f"{what} has no id: give it one that no other command has")
    if command.kind in (CommandKind.FAULT, CommandKind.NEW_NORMAL) and not command.incident:
        raise ConnectorError(f"{what} does not say incident: the id of the one that is answered")
    if command.kind is CommandKind.CANCEL and not command.cancels:
        raise ConnectorError(f"{what} does not say cancels: the id of what is taken back")
    if command.kind in (CommandKind.ANSWERS, CommandKind.JUDGE):
        _require_lesson(command, what)
    if command.kind is CommandKind.MUTE:
        _require_bounded(command, what)
    if command.kind is CommandKind.PLANNED:
        begin, end = command.from_ms, command.until_ms
        if begin is None or end is None or begin >= end:
            raise ConnectorError(
                f"{what} is from_ms = {begin} until_ms = {end}: expected both, the first earlier"
            )


def _require_bounded(command: Command, what: str) -> None:
    """Refuse a mute that has no end, no reason, or no bounds."""
    for name in ("stream_key", "by", "note"):
        if not getattr(command, name):
            raise ConnectorError(f"{what} does not say {name}: a mute says whose, who and why")
    begin, end = command.from_ms, command.until_ms
    if begin is None or end is None or not 0 < end - begin <= _LONGEST_MS:
        raise ConnectorError(
            f"{what} is from_ms = {begin} until_ms = {end}: expected both, the second later by "
            f"{_LONGEST_MS // 86_400_000} days at most"
        )
    if not 1 <= len(command.box) <= _MOST_SIDES:
        raise ConnectorError(
            f"{what} has a box of {len(command.box)} channels: expected 1 to {_MOST_SIDES}"
        )
    for name, (low, high) in command.box.items():
        if not -math.inf < low <= high < math.inf:
            raise ConnectorError(
                f"{what} has {printable(name)} from {low:g} to {high:g}: expected two numbers, the "
                "larger one last"
            )


def _require_lesson(command: Command, what: str) -> None:
    if command.stream_key is None:
        raise ConnectorError(f"{what} does not say stream_key: whose")
    if command.kind is CommandKind.JUDGE:
        if command.judge is None:
            raise ConnectorError(f"{what} does not say judge: champion or challenger")
        return
    places = {answer.position[:2] for answer in command.answers}
    if len(places) != 1 or len(command.answers) > MOST_ANSWERS:
        raise ConnectorError(
            f"{what} has {len(command.answers)} answers of {len(places)} partitions: expected 1 to "
            f"{MOST_ANSWERS} of one"
        )


def position_of(incident: str) -> Position | None:
    """Return the position that an incident's id stands for; ``None``: it is no such id.

    Examples
    --------
    >>> position_of("plant-a-0-17")
    Position(topic='plant-a', partition=0, offset=17, reading=0)
    >>> position_of("the pump") is None
    True
    """
    topic, _, rest = incident.rpartition("-")
    topic, _, partition = topic.rpartition("-")
    if not (topic and partition.isascii() and partition.isdigit()):
        return None
    offset, dot, index = rest.partition(".")
    if not (rest.isascii() and offset.isdigit() and (index.isdigit() or not dot)):
        return None
    return Position(topic, int(partition), int(offset), int(index or 0))


def _identity(position: Position) -> dict[str, Any]:
    topic, partition, offset, _ = position
    return {"id": str(position), "topic": topic, "partition": partition, "offset": offset}
