"""Outcomes, incidents and commands to JSON and back: the one wire form of files, topics and store.

Every object starts with ``id`` ("topic-partition-offset", the identity of the event), then the
same in parts. Field order is stable. NaN and infinity do not exist in JSON: they become ``null``.
Changes of incidents and replies to commands stand in one file or topic, in the order of the events:
``kind`` tells them apart, and on Kafka ``ce_type`` too. Commands come in on a file or topic of
their own, written by anybody: :func:`decode_command` takes none that cannot be applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import starmap
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from rejex_stream.decode.mapping import printable
from rejex_stream.errors import ConnectorError
from rejex_stream.native_core import native
from rejex_stream.types import (
    Command,
    CommandKind,
    CommandReply,
    ContextPoint,
    FollowUp,
    Incident,
    Invalid,
    Label,
    Position,
    Reason,
    Record,
    ReviewItem,
    SelectedRecord,
    Verdict,
)

__all__ = [
    "Answered", "ContextRecord", "DeadLetterRecord", "FollowUpRecord", "Form",
    "IncidentRecord", "LeanVerdictRecord", "ReplyRecord", "ReviewRecord",
    "VerdictRecord", "decode_command", "decode_dead_letter", "decode_incidents", "decode_review",
    "decode_reviewed", "decode_verdict", "encode_command", "encode_dead_letter", "encode_follow_up",
    "encode_incident", "encode_lean_verdict", "encode_reply", "encode_review", "encode_verdict",
    "identified", "position_of", "require_sound", "verdict_encoder",
]  # fmt: skip

Form: TypeAlias = Literal["full", "lean"]
"""How much of a verdict is written."""

_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")
_MAX_TEXT = {"id": 100, "stream_key": 1_000, "incident": 1_000, "cancels": 100, "by": 200}
_MAX_NOTE = 4_000
_MAX_SIDES = 200  # channels of a box
_MAX_MUTE_MS = 90 * 86_400_000  # of a mute: what is normal for longer belongs in the model
_MAX_INTEGER = 2**53  # what every reader of JSON keeps whole
_ANSWERED = {"incident": "the id of the one that is answered"}
_MUTED = "a mute says whose, who and why"
_NEEDED: dict[CommandKind, dict[str, str]] = {
    CommandKind.FAULT: _ANSWERED,
    CommandKind.KNOWN_FAULT: _ANSWERED,
    CommandKind.NEW_NORMAL: _ANSWERED,
    CommandKind.CANCEL: {"cancels": "the id of what is taken back"},
    CommandKind.MUTE: {"stream_key": _MUTED, "by": _MUTED, "note": _MUTED},
}
"""What a command of a kind has to say."""


_IDENTITY = ("id", "topic", "partition", "offset")
"""Fields that spell a position out."""


class VerdictHead(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on the wire: a :class:`Verdict` with its position spelled out."""

    id: str
    topic: str
    partition: int
    offset: int


class IncidentHead(msgspec.Struct, frozen=True, kw_only=True):
    """A change of an incident on the wire."""

    id: str
    topic: str
    partition: int
    offset: int
    """Of the event that changed it."""
    kind: Literal["incident"]
    """``incident``."""
    incident: str
    """Id of the incident: position of the event that opened it, as text."""


class ReplyHead(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command, on the wire."""

    id: str
    topic: str
    partition: int
    offset: int
    """Of the event from which on it holds, or would have held."""
    kind: Literal["reply"]
    """``reply``."""


def _on_the_wire(name: str, head: type[msgspec.Struct], kind: type[msgspec.Struct]) -> Any:  # noqa: ANN401
    """Make the wire type of a type with a position: its head, then the other fields."""
    fields = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
        if field.name not in ("position", *head.__struct_fields__)
    ]
    return msgspec.defstruct(
        name, fields, bases=(head,), module=__name__, namespace={"__doc__": head.__doc__},
        frozen=True, kw_only=True,
    )  # fmt: skip


VerdictRecord = _on_the_wire("VerdictRecord", VerdictHead, Verdict)
IncidentRecord = _on_the_wire("IncidentRecord", IncidentHead, Incident)
ReplyRecord = _on_the_wire("ReplyRecord", ReplyHead, CommandReply)


class LeanVerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """A verdict on the wire for those who only act on it: what it says, of whom, and when."""

    id: str
    """``topic-partition-offset``."""
    stream_key: str
    sensor: str
    mode: str | None
    event_time_ms: int
    label: Label
    reason: Reason | None
    severity: float | None
    """As in :class:`~rejex_stream.types.Verdict`."""


class ContextRecord(msgspec.Struct, frozen=True, gc=False):
    """One earlier or later event of the same sensor, on the wire."""

    event_time_ms: int
    values: tuple[float | None, ...]
    score: float | None
    label: Label


class ReviewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A review item on the wire; what is not said here is as in the item."""

    id: str
    """``topic-partition-offset``."""
    schema_version: int
    """Readers refuse a version above their own."""
    why: str
    channels: tuple[str, ...]
    values: tuple[float | None, ...]

    verdict: VerdictRecord  # type: ignore[valid-type]
    """A :data:`VerdictRecord`."""
    context: tuple[ContextRecord, ...] = ()
    drawn: float | None = None


class FollowUpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What came after a review item, on the wire; stands where the items do."""

    id: str
    topic: str
    partition: int
    offset: int
    """Of the event that made it due."""
    schema_version: int
    """Readers refuse a version above their own."""
    follows: str
    """The item's ``id``."""
    follows_offset: int
    """Its offset, in the same partition."""
    stream_key: str
    sensor: str
    channels: tuple[str, ...]
    points: tuple[ContextRecord, ...]
    n_since: int
    last: bool = False
    """As in :class:`~rejex_stream.types.FollowUp`."""


class DeadLetterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be read, on the wire (files; Kafka keeps the bytes themselves)."""

    id: str
    topic: str
    partition: int
    offset: int
    """Identity of the record."""
    stage: str
    reason: str
    """As in :class:`~rejex_stream.types.Invalid`."""
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    """The original record; bytes in base64."""
    value_text: str | None = None
    """The value once more as text, where it is printable."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """The original record; bytes in base64."""


def encode_verdict(verdict: Verdict) -> bytes:
    """Encode a verdict as one line of JSON, without the newline."""
    # The encoder writes fields in order, the position first; only that part is replaced.
    topic, partition, number, index = verdict.position
    start, middle, cut = _frame(topic, partition)
    place = offset = b"%d" % number
    cut += len(offset) + 1
    if index:
        place = b"%d.%d" % (number, index)
        cut += len(place) - len(offset) - 2
    return start + place + middle + offset + _encode(verdict)[cut:]


@lru_cache(maxsize=1024)
def _frame(topic: str, partition: int) -> tuple[bytes, bytes, int]:
    name = _encode(topic)
    start = b'{"id":%b-%d-' % (name[:-1], partition)
    middle = b'","topic":%b,"partition":%d,"offset":' % (name, partition)
    return start, middle, len(b'{"position":[%b,%d,,]' % (name, partition))


_lean_fields = attrgetter(*LeanVerdictRecord.__struct_fields__[1:])


def encode_lean_verdict(verdict: Verdict) -> bytes:
    """Encode what a verdict says as one line of JSON, a :class:`LeanVerdictRecord`, no newline."""
    return _encode(LeanVerdictRecord(str(verdict.position), *_lean_fields(verdict)))


@lru_cache(maxsize=8)
def verdict_encoder(
    form: Form, native: Callable[[str], Any] = native
) -> Callable[[Verdict], bytes]:
    """Return what encodes verdicts in a form, each as one line of JSON."""
    encode, lines = encode_lean_verdict if form == "lean" else encode_verdict, native("lines")
    if lines is None:
        return encode
    ours = lines(form).verdict
    return lambda verdict: ours(verdict) or encode(verdict)


def decode_verdict(line: bytes) -> Verdict:
    """Decode what :func:`encode_verdict` wrote; unknown fields are ignored."""
    try:
        return _verdict(_parse(line, VerdictRecord, "a verdict"))
    except ConnectorError:
        _refuse_lean(line)
        raise


def _refuse_lean(line: bytes) -> None:
    try:
        lean = msgspec.json.decode(line, type=LeanVerdictRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    raise ConnectorError(
        f"the verdict {printable(lean.id)} is a lean one, without the score, rank and band that "
        'are needed here: it was written with output.form = "lean"; run the pipeline with '
        'output.form = "full".'
    )


def encode_review(item: ReviewItem, verdict: bytes | None = None) -> bytes:
    """Encode a review item as one line of JSON, without the newline.

    `verdict` is what :func:`encode_verdict` made of the item's, where that is at hand.
    """
    return _encode(
        {
            "id": str(item.verdict.position),
            "schema_version": item.schema_version,
            "why": item.why,
            "channels": item.channels,
            "values": item.values,
            "verdict": msgspec.Raw(verdict or encode_verdict(item.verdict)),
            "context": _context_records(item.context),
            "drawn": item.drawn,
        }
    )


def decode_review(line: bytes) -> ReviewItem:
    """Decode what :func:`encode_review` wrote; unknown fields are ignored."""
    record = _parse(line, ReviewRecord, "a review item")
    _require_known(record, ReviewItem, "review item")
    fields = msgspec.structs.asdict(record)
    del fields["id"]
    fields |= {"verdict": _verdict(record.verdict), "context": _context_points(record.context)}
    return ReviewItem(**fields)


def encode_follow_up(follow_up: FollowUp) -> bytes:
    """Encode what came after a review item as one line of JSON, without the newline."""
    fields = msgspec.structs.asdict(follow_up)
    position, of = fields.pop("position"), fields.pop("of")
    fields["points"] = _context_records(follow_up.points)
    identity = _identity(position) | {"follows": str(of), "follows_offset": of.offset}
    return _encode(FollowUpRecord(**identity, **fields))


def decode_reviewed(line: bytes) -> ReviewItem | FollowUp:
    """Decode a line of the reviewers' file or topic; unknown fields are ignored."""
    if _parse(line, _Followed, "a review item or what came after one").follows is None:
        return decode_review(line)
    record = _parse(line, FollowUpRecord, "what came after a review item")
    _require_known(record, FollowUp, "follow-up")
    fields = msgspec.structs.asdict(record) | {"points": _context_points(record.points)}
    place = [fields.pop(name) for name in _IDENTITY]
    of = identified(fields.pop("follows"), place[1], place[2], fields.pop("follows_offset"))
    return FollowUp(position=identified(*place), of=of, **fields)


class _Followed(msgspec.Struct):
    follows: str | None = None


def _require_known(
    record: ReviewRecord | FollowUpRecord, kind: type[ReviewItem | FollowUp], what: str
) -> None:
    newest = kind.__struct_defaults__[-1]
    if not 1 <= record.schema_version <= newest:
        raise ConnectorError(
            f"the {what} {printable(record.id)} has schema_version {record.schema_version}, "
            f"this program reads up to {newest}: update it"
        )


def _context_records(points: Sequence[ContextPoint]) -> Any:  # noqa: ANN401 - or their JSON
    lines: tuple[bytes, ...] | None = getattr(points, "lines", None)  # who has them as JSON
    if lines is not None:
        return msgspec.Raw(b"[%b]" % b",".join(lines))
    return tuple(starmap(ContextRecord, points))


def _context_points(records: Sequence[ContextRecord]) -> tuple[ContextPoint, ...]:
    return tuple(starmap(ContextPoint, map(msgspec.structs.astuple, records)))


def encode_dead_letter(record: Record, invalid: Invalid) -> bytes:
    """Encode an unreadable record with its original bytes as one line of JSON, no newline."""
    identity = _identity(record.position)
    if isinstance(record, SelectedRecord):
        record = record.source
    return _encode(
        DeadLetterRecord(
            **identity,
            stage=invalid.stage,
            reason=invalid.reason,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            value_text=_as_text(record.value),
            headers=record.headers,
        )
    )


def decode_dead_letter(line: bytes) -> tuple[Record, Invalid]:
    """Decode what :func:`encode_dead_letter` wrote: the original record, and why it was refused."""
    letter = _parse(line, DeadLetterRecord, "a dead letter")
    position = identified(letter.id, letter.topic, letter.partition, letter.offset)
    return (
        Record(position, letter.key, letter.value, letter.headers, letter.timestamp_ms),
        Invalid(position, letter.stage, letter.reason),
    )


def identified(id_: str, topic: str, partition: int, offset: int) -> Position:
    """Return the position on the wire: the index of a reading in its record ends its id."""
    index = id_.rpartition("-")[2].partition(".")[2]
    return Position(topic, partition, offset, int(index) if index.isdecimal() else 0)


def _verdict(record: Any) -> Verdict:  # noqa: ANN401 - VerdictRecord is made at run time
    fields = msgspec.structs.asdict(record)
    position = identified(*(fields.pop(name) for name in _IDENTITY))
    return Verdict(position=position, **fields)


def _parse(line: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConnectorError(
            f"expected {what} as one JSON object, got {printable(line)}: {error}"
        ) from None


def _as_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(part.isprintable() for part in text.split()) else None


# ---------------------------------------------------------------- incidents, commands, replies
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
    what = "an incident or a reply"
    is_reply = _parse(line, _Kind, what).kind == "reply"
    fields = msgspec.structs.asdict(_parse(line, ReplyRecord if is_reply else IncidentRecord, what))
    del fields["kind"]
    position = identified(*(fields.pop(name) for name in _IDENTITY))
    if is_reply:
        return position, CommandReply(**fields)
    return Incident(position=position, id=fields.pop("incident"), **fields)


class _Kind(msgspec.Struct):
    kind: Literal["incident", "reply"]


def encode_command(command: Command) -> bytes:
    """Encode a command as one line of JSON, without the newline."""
    return _encode(command)


def decode_command(line: bytes) -> Command:
    """Decode a command that can be obeyed; unknown fields are ignored."""
    command = _parse(line, Command, "a command")
    require_sound(command)
    return command


def require_sound(command: Command) -> None:
    """Refuse a command that could not be obeyed by anybody."""
    for problem in _problems(command):
        raise ConnectorError(f"the command {printable(command.id)} ({command.kind}) {problem}")


def _problems(command: Command) -> Iterator[str]:
    for name, max_length in (*_MAX_TEXT.items(), ("note", _MAX_NOTE)):
        text = getattr(command, name)
        if text is not None and len(text) > max_length:
            yield f"has {len(text)} characters of {name}, at most {max_length} fit"
    for name in ("version", "from_ms", "until_ms", "given_ms"):
        number = getattr(command, name)
        if number is not None and abs(number) > _MAX_INTEGER:
            yield f"has {name} = {number}, beyond ±{_MAX_INTEGER}"
    if not command.id:
        yield "has no id: give it one that no other command has"
    for name, meant in _NEEDED.get(command.kind, {}).items():
        if not getattr(command, name):
            yield f"does not say {name}: {meant}"
    begin, end = command.from_ms, command.until_ms
    if command.kind is CommandKind.MUTE:
        if begin is None or end is None or not 0 < end - begin <= _MAX_MUTE_MS:
            yield (
                f"is from_ms = {begin} until_ms = {end}: expected both, the second later by "
                f"{_MAX_MUTE_MS // 86_400_000} days at most"
            )
        yield from _unbounded(command)
    if command.kind is CommandKind.PLANNED and (begin is None or end is None or begin >= end):
        yield f"is from_ms = {begin} until_ms = {end}: expected both, the first earlier"


def _unbounded(command: Command) -> Iterator[str]:
    if not 1 <= len(command.box) <= _MAX_SIDES:
        yield f"has a box of {len(command.box)} channels: expected 1 to {_MAX_SIDES}"
    for name, (low, high) in command.box.items():
        if not -math.inf < low <= high < math.inf:
            yield (
                f"has {printable(name)} from {low:g} to {high:g}: expected two numbers, the "
                "larger one last"
            )


def position_of(incident: str) -> Position | None:
    """Return the position that an incident's id stands for; ``None``: it is no such id."""
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
