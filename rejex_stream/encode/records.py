"""Outcomes to JSON and back: the one wire form of files, topics and the review store.

Every object starts with ``id`` ("topic-partition-offset", the identity of the event), then the
same in parts. Field order is stable. NaN and infinity do not exist in JSON: they become ``null``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import starmap
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from rejex_stream.decode.mapping import printable
from rejex_stream.errors import ConnectorError
from rejex_stream.types import (
    ContextPoint,
    FollowUp,
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
    "DeadLetterRecord",
    "FollowUpRecord",
    "Form",
    "LeanVerdictRecord",
    "ReviewRecord",
    "VerdictEncoder",
    "VerdictRecord",
    "decode_dead_letter",
    "decode_review",
    "decode_reviewed",
    "decode_verdict",
    "encode_dead_letter",
    "encode_follow_up",
    "encode_lean_verdict",
    "encode_review",
    "encode_verdict",
    "identified",
]

Form: TypeAlias = Literal["full", "lean"]
"""How much of a verdict is written."""

_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")

_IDENTITY: list[tuple[str, Any]] = [
    ("id", str),
    ("topic", str),
    ("partition", int),
    ("offset", int),
]

VerdictRecord: type[msgspec.Struct] = msgspec.defstruct(
    "VerdictRecord",
    [
        *_IDENTITY,
        *(
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(Verdict)
            if field.name != "position"
        ),
    ],
    module=__name__,
    namespace={
        "__doc__": "A verdict on the wire: a :class:`Verdict` with its position spelled out."
    },
    frozen=True,
    kw_only=True,
)


class LeanVerdictRecord(msgspec.Struct, frozen=True, gc=False):
    """A verdict on the wire for those who only act on it: what it says, of whom, and when.

    Attributes
    ----------
    id
        ``topic-partition-offset``.
    stream_key, sensor, mode, event_time_ms, label, reason, severity
        As in :class:`~rejex_stream.types.Verdict`.
    """

    id: str
    stream_key: str
    sensor: str
    mode: str | None
    event_time_ms: int
    label: Label
    reason: Reason | None
    severity: float | None


class ContextRecord(msgspec.Struct, frozen=True, gc=False):
    """One earlier or later event of the same sensor, on the wire."""

    event_time_ms: int
    values: tuple[float | None, ...]
    score: float | None
    label: Label


class ReviewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A review item on the wire.

    Attributes
    ----------
    id
        ``topic-partition-offset``.
    schema_version
        Readers refuse a version above their own.
    why, channels, values, context, drawn
        As in :class:`~rejex_stream.types.ReviewItem`.
    verdict
        A :data:`VerdictRecord`.
    """

    id: str
    schema_version: int
    why: str
    channels: tuple[str, ...]
    values: tuple[float | None, ...]
    verdict: VerdictRecord  # type: ignore[valid-type]
    context: tuple[ContextRecord, ...] = ()
    drawn: float | None = None


class FollowUpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What came after a review item, on the wire; stands where the items do.

    Attributes
    ----------
    id, topic, partition, offset
        Of the event that made it due.
    schema_version
        Readers refuse a version above their own.
    follows
        The item's ``id``.
    follows_offset
        Its offset, in the same partition.
    stream_key, sensor, channels, points, n_since, last
        As in :class:`~rejex_stream.types.FollowUp`.
    """

    id: str
    topic: str
    partition: int
    offset: int
    schema_version: int
    follows: str
    follows_offset: int
    stream_key: str
    sensor: str
    channels: tuple[str, ...]
    points: tuple[ContextRecord, ...]
    n_since: int
    last: bool = False


class DeadLetterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be read, on the wire (files; Kafka keeps the bytes themselves).

    Attributes
    ----------
    id, topic, partition, offset
        Identity of the record.
    stage, reason
        As in :class:`~rejex_stream.types.Invalid`.
    timestamp_ms, key, value, headers
        The original record; bytes in base64.
    value_text
        The value once more as text, where it is printable.
    """

    id: str
    topic: str
    partition: int
    offset: int
    stage: str
    reason: str
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    value_text: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def encode_verdict(verdict: Verdict) -> bytes:
    """Encode a verdict as one line of JSON, without the newline.

    Examples
    --------
    >>> verdict = Verdict(position=Position("water", 0, 7), stream_key="m", sensor="m", seq=7,
    ...     event_time_ms=5, label=Label.NORMAL, score=float("inf"))
    >>> encode_verdict(verdict)[:79]
    b'{"id":"water-0-7","topic":"water","partition":0,"offset":7,"stream_key":"m","se'
    >>> decode_verdict(encode_verdict(verdict)).score is None
    True
    """
    # The encoder writes fields in order, the position first; only that part is replaced.
    topic, partition, number, index = verdict.position
    start, middle, cut = _frame(topic, partition)
    offset = b"%d" % number
    place = b"%d.%d" % (number, index) if index else offset
    rest = _encode(verdict)[cut + len(offset) + len(b"%d" % index) :]
    return b"".join((start, place, middle, offset, rest))


@lru_cache(maxsize=1024)
def _frame(topic: str, partition: int) -> tuple[bytes, bytes, int]:
    name = _encode(topic)
    start = b'{"id":%b-%d-' % (name[:-1], partition)
    middle = b'","topic":%b,"partition":%d,"offset":' % (name, partition)
    return start, middle, len(b'{"position":[%b,%d,,]' % (name, partition))


def encode_lean_verdict(verdict: Verdict) -> bytes:
    """Encode what a verdict says as one line of JSON, a :class:`LeanVerdictRecord`, no newline."""
    return _encode(
        LeanVerdictRecord(
            str(verdict.position),
            verdict.stream_key,
            verdict.sensor,
            verdict.mode,
            verdict.event_time_ms,
            verdict.label,
            verdict.reason,
            verdict.severity,
        )
    )


class VerdictEncoder:
    """Encodes verdicts in a form, and review items, whose verdict is mostly the one before."""

    __slots__ = ("_encode", "_form", "_last", "_line")

    def __init__(self, form: Form) -> None:
        self._form: Form = form
        self._encode = encode_lean_verdict if form == "lean" else encode_verdict
        self._last: Verdict | None = None
        self._line = b""

    def verdict(self, verdict: Verdict) -> bytes:
        """Return a verdict as one line of JSON, without the newline."""
        self._last = verdict
        self._line = line = self._encode(verdict)
        return line

    def review(self, item: ReviewItem) -> bytes:
        """Return a review item as :func:`encode_review` does: in full, whatever the form."""
        is_there = self._form == "full" and item.verdict is self._last
        return encode_review(item, self._line if is_there else None)


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
    return ReviewItem(
        verdict=_verdict(record.verdict),
        channels=record.channels,
        values=record.values,
        context=_context_points(record.context),
        why=record.why,
        drawn=record.drawn,
        schema_version=record.schema_version,
    )


def encode_follow_up(follow_up: FollowUp) -> bytes:
    """Encode what came after a review item as one line of JSON, without the newline."""
    topic, partition, offset, _ = follow_up.position
    return _encode(
        FollowUpRecord(
            id=str(follow_up.position),
            topic=topic,
            partition=partition,
            offset=offset,
            schema_version=follow_up.schema_version,
            follows=str(follow_up.of),
            follows_offset=follow_up.of.offset,
            stream_key=follow_up.stream_key,
            sensor=follow_up.sensor,
            channels=follow_up.channels,
            points=_context_records(follow_up.points),
            n_since=follow_up.n_since,
            last=follow_up.last,
        )
    )


def decode_reviewed(line: bytes) -> ReviewItem | FollowUp:
    """Decode a line of the reviewers' file or topic; unknown fields are ignored."""
    if _parse(line, _Followed, "a review item or what came after one").follows is None:
        return decode_review(line)
    record = _parse(line, FollowUpRecord, "what came after a review item")
    _require_known(record, FollowUp, "follow-up")
    return FollowUp(
        position=identified(record.id, record.topic, record.partition, record.offset),
        of=identified(record.follows, record.topic, record.partition, record.follows_offset),
        stream_key=record.stream_key,
        sensor=record.sensor,
        channels=record.channels,
        points=_context_points(record.points),
        n_since=record.n_since,
        last=record.last,
        schema_version=record.schema_version,
    )


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


def _context_records(points: Sequence[ContextPoint]) -> tuple[ContextRecord, ...]:
    return tuple(starmap(ContextRecord, points))


def _context_points(records: Sequence[ContextRecord]) -> tuple[ContextPoint, ...]:
    return tuple(
        ContextPoint(one.event_time_ms, one.values, one.score, one.label) for one in records
    )


def encode_dead_letter(record: Record, invalid: Invalid) -> bytes:
    """Encode an unreadable record with its original bytes as one line of JSON, no newline."""
    topic, partition, offset, _ = record.position
    id_ = str(record.position)
    if isinstance(record, SelectedRecord):
        record = record.source
    return _encode(
        DeadLetterRecord(
            id=id_,
            topic=topic,
            partition=partition,
            offset=offset,
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
    """Return the position on the wire: the index of a reading in its record ends its id.

    Examples
    --------
    >>> identified("water-0-7.2", "water", 0, 7)
    Position(topic='water', partition=0, offset=7, reading=2)
    """
    index = id_.rpartition("-")[2].partition(".")[2]
    return Position(topic, partition, offset, int(index) if index.isdecimal() else 0)


def _verdict(record: Any) -> Verdict:  # noqa: ANN401 - VerdictRecord is made at run time
    fields = msgspec.structs.asdict(record)
    place = (fields.pop(name) for name, _ in _IDENTITY)
    position = identified(*place)
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
