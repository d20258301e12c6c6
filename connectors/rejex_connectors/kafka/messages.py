"""What one outcome becomes on Kafka: a verdict, a review record, an incident, or a dead letter.

Events are CloudEvents 1.0 in binary mode: attributes in headers, data in the value.
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md

Every outcome becomes at least one message and every message fits: what is too large to send is
cut, and says so. Outputs go to the partition of the input (modulo theirs), with its key, so what
is in order for a sensor in the input is in order in every output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_stream import types
from rejex_stream.encode import (
    encode_follow_up,
    encode_incident,
    encode_reply,
    encode_review,
    schemas,
    verdict_encoder,
)
from rejex_stream.native_core import native

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Own: TypeAlias = list[tuple[str, bytes]]
_Shown = TypeVar("_Shown", types.ReviewItem, types.FollowUp)

CUT_BYTES, CUT_SHA256 = "rejex.cut.value.bytes", "rejex.cut.value.sha256"
CUT_HEADERS, NULL_VALUE = "rejex.cut.headers", "rejex.null.value"
UNREAD = "rejex.unread"  # header of a dead letter of which nothing but the position is known
_AT_ONCE = 100  # outcomes; what is made of them and sent stays in the processor's caches
_RECORD_OVERHEAD = 100  # bytes the log adds to a record, and a little more


class OutcomeMessages:
    """Turns outcomes into messages."""

    def __init__(
        self,
        settings: KafkaSettings,
        partitions: Callable[[str], int],
        native: Callable[[str], Any] = native,
    ) -> None:
        topics = settings.topics
        self._limit = settings.max_message_bytes - _RECORD_OVERHEAD
        self._verdicts, self._review = topics.verdicts, topics.review
        self._deadletter, self._incidents = topics.deadletter, topics.incidents
        self._n_verdicts = partitions(topics.verdicts)
        self._n_review = partitions(topics.review)
        self._n_deadletter = partitions(topics.deadletter)
        self._n_incidents = partitions(topics.incidents)
        version = settings.pipeline_version
        self._pipeline, self._worker = settings.pipeline, settings.instance_id or ""
        event_type = schemas.LEAN_VERDICT_TYPE if settings.form == "lean" else schemas.VERDICT_TYPE
        self._verdict_headers = EventHeaders(event_type, settings.pipeline, version)
        self._encode, self._lean = verdict_encoder(settings.form, native), settings.form == "lean"
        self._review_headers = EventHeaders(schemas.REVIEW_TYPE, settings.pipeline, version)
        self._follow_up_headers = EventHeaders(schemas.FOLLOW_UP_TYPE, settings.pipeline, version)
        self._incident_headers = EventHeaders(schemas.INCIDENT_TYPE, settings.pipeline, version)
        self._reply_headers = EventHeaders(schemas.REPLY_TYPE, settings.pipeline, version)
        make = native("Messages")
        self._native = make and make(self, settings.form)

    def of(self, outcomes: list[types.Outcome]) -> Iterator[Message]:
        if not self._native:
            return self._of(outcomes)
        blocks = (outcomes[at : at + _AT_ONCE] for at in range(0, len(outcomes), _AT_ONCE))
        return chain.from_iterable(self._native.of(block, self._of) for block in blocks)

    def _of(self, outcomes: list[types.Outcome]) -> Iterator[Message]:
        headers_of, topic, n = self._verdict_headers.of, self._verdicts, self._n_verdicts
        surely_fits = self._limit - self._verdict_headers.most
        encode_verdict = self._encode
        new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
        for record, verdict, invalid, review, incidents, replies, after in outcomes:
            for nth, reply in enumerate(replies):
                yield self._replied(record.position, nth, reply)
            if verdict is None:
                assert invalid is not None
                if not invalid.silent:
                    yield self._dead(record, invalid)
                continue
            value = encode_verdict(verdict)
            position, key, _, original, _ = record
            headers = headers_of(position, verdict.sensor, verdict.event_time_ms, original)
            message = new(Message, (topic, position[1] % n, key, value, headers))
            size = len(value) + len(key or b"") + 4 * len(verdict.sensor)
            if size > surely_fits and _is_above(self._limit, message):
                yield self._dead(record, _unsendable(position, "verdict", _size(message)))
            else:
                yield message
                if review is not None:
                    line = None if self._lean or review.verdict is not verdict else value
                    fixed = self._review_headers.fixed
                    headers = [*fixed, *headers[len(fixed) :]]
                    yield self._shown(record, review, headers, partial(encode_review, verdict=line))
                elif after is not None:
                    headers = self._follow_up_headers.of(
                        position, after.sensor, after.points[-1].event_time_ms, original
                    )
                    yield self._shown(record, after, headers, encode_follow_up)
            for incident in incidents:
                yield self._changed(record, incident)

    def _replied(self, position: types.Position, nth: int, reply: types.CommandReply) -> Message:
        # Each partition that a command concerns answers for itself, each time that it was given.
        id_ = f"{reply.command}-{position}" + (f"-{nth}" if nth else "")
        headers = self._reply_headers.named(id_, reply.command)
        key = reply.command.encode("utf-8", "replace")
        to = position.partition % self._n_incidents
        while True:
            message = Message(self._incidents, to, key, encode_reply(position, reply), headers)
            if not (_is_above(self._limit, message) and reply.said):
                return message
            half = reply.said[: len(reply.said) // 2]
            reply = msgspec.structs.replace(reply, said=half)

    def _changed(self, record: types.Record, incident: types.Incident) -> Message:
        """Return a change of an incident; where it is too large, its names go first."""
        position = record.position
        headers = self._incident_headers.of(
            position, incident.stream_key, incident.changed_ms, record.headers
        )
        of_event = dict(headers)  # which may change several incidents
        at = f"{incident.id}-".encode("utf-8", "replace") + of_event["ce_id"]
        headers = list((of_event | {"ce_id": at}).items())
        to = position.partition % self._n_incidents
        while True:
            value = encode_incident(incident)
            message = Message(self._incidents, to, record.key, value, headers)
            if not _is_above(self._limit, message):
                return message
            if not incident.channels and not incident.sensors:
                what = _unsendable(position, "incident", _size(message))
                return self._dead(record, what)
            incident = msgspec.structs.replace(
                incident,
                channels=incident.channels[: len(incident.channels) // 2],
                sensors=incident.sensors[: len(incident.sensors) // 2],
            )

    def _shown(
        self, record: types.Record, item: _Shown, headers: Own, encode: Callable[[_Shown], bytes]
    ) -> Message:
        """Return what reviewers see; where it is too large, its oldest points go first."""
        partition = record.position.partition % self._n_review
        is_item = isinstance(item, types.ReviewItem)
        name, what = ("context", "review record") if is_item else ("points", "follow-up")
        while True:
            message = Message(self._review, partition, record.key, encode(item), headers)
            if not _is_above(self._limit, message):
                return message
            points = getattr(item, name)
            if not points:
                return self._dead(record, _unsendable(record.position, what, _size(message)))
            newest = points[len(points) - len(points) // 2 :]
            item = msgspec.structs.replace(item, **{name: newest})

    def _dead(self, record: types.Record, invalid: types.Invalid) -> Message:
        """Return the original with the reason in headers, cut where it cannot be sent whole."""
        topic, partition, offset, index = record.position
        reason = invalid.reason.encode("utf-8", "replace")[:2000]
        ours: list[tuple[str, bytes]] = [
            (schemas.CONNECT_PREFIX + "topic", topic.encode()),
            (schemas.CONNECT_PREFIX + "partition", b"%d" % partition),
            (schemas.CONNECT_PREFIX + "offset", b"%d" % offset),
            *([(schemas.CONNECT_PREFIX + "index", b"%d" % index)] if index else ()),
            (schemas.CONNECT_PREFIX + "connector.name", self._pipeline.encode()),
            (schemas.CONNECT_PREFIX + "task.id", self._worker.encode()),
            (schemas.CONNECT_PREFIX + "stage", invalid.stage.encode()),
            (schemas.CONNECT_PREFIX + "exception.class.name", b"rejex_stream.types.Invalid"),
            (schemas.CONNECT_PREFIX + "exception.message", reason),
        ]
        original = [(name, value or b"") for name, value in record.headers]
        if isinstance(record, types.SelectedRecord):
            record = record.source
        key, value = record.key, record.value
        if isinstance(record, types.UnreadRecord):
            ours.append((UNREAD, b"1"))
        elif value is None:
            ours.append((NULL_VALUE, b"1"))
        to = partition % self._n_deadletter
        message = Message(self._deadletter, to, key, value or b"", original + ours)
        if _size(message) <= self._limit:
            return message
        return self._cut(message, original, ours)

    def _cut(
        self, message: Message, original: list[tuple[str, bytes]], ours: list[tuple[str, bytes]]
    ) -> Message:
        value = message.value or b""
        ours = [
            *ours,
            (CUT_BYTES, b"%d" % len(value)),
            (CUT_SHA256, hashlib.sha256(value).hexdigest().encode()),
        ]
        budget = self._limit - _headers_size(ours) - 100
        key = message.key
        if _headers_size(original) > budget // 2:
            ours.append((CUT_HEADERS, b"%d" % len(original)))
            original = []
        if key is not None and len(key) > budget // 4:
            key = key[: budget // 4]
        budget -= _headers_size(original) + len(key or b"")
        return message._replace(key=key, value=value[:budget], headers=original + ours)


class DeadHeaders(NamedTuple):
    """The headers of a dead letter: those of the original record, and ours about it."""

    original: Headers
    ours: dict[str, bytes | None]

    @property
    def has_value(self) -> bool:
        """Whether the original record was read, and no tombstone, which is sent as empty."""
        return not {UNREAD, NULL_VALUE} & self.ours.keys()


def split_headers(headers: Headers) -> DeadHeaders:
    """Tell the headers of the original from those that made it a dead letter.

    Ours come last and begin with the topic; so do Kafka Connect's. Whatever stands before the last
    header of that name was on the record, even if it looks like ours: data, not orders.
    """
    first = schemas.CONNECT_PREFIX + "topic"
    begins = max((i for i, (name, _) in enumerate(headers) if name == first), default=len(headers))
    return DeadHeaders(tuple(headers[:begins]), dict(headers[begins:]))


def _unsendable(position: types.Position, what: str, size: int) -> types.Invalid:
    reason = f"its {what} would be {size} bytes, more than message.max.bytes"
    return types.Invalid(position, "encode", reason)


def _is_above(limit: int, message: Message) -> bool:
    # Rarely is it worth while to measure the names of headers well: ours are shorter than that.
    upper_bound = len(message.value or b"") + len(message.key or b"") + 64 * len(message.headers)
    upper_bound += sum([len(value) for _, value in message.headers])
    return upper_bound > limit and _size(message) > limit


def _size(message: Message) -> int:
    return len(message.key or b"") + len(message.value or b"") + _headers_size(message.headers)


def _headers_size(headers: Sequence[tuple[str, bytes]]) -> int:
    return sum(len(name.encode()) + len(value) + 8 for name, value in headers)


# ---------------------------------------------------------------------- CloudEvents
TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""W3C trace context, kept from the input so that traces go through."""

_TRACE_BYTES = 512
"""What the specification has everybody carry on; whoever writes more loses a trace, not events."""

_OTHERS_BYTES = 2 * (_TRACE_BYTES + 32) + 1_000
"""Trace headers, and identity, time and subject without its text: a topic has 249 characters."""

_SOURCE = "/rejex-stream/"


def pipeline_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """Return the name of the pipeline that wrote an event, if one did."""
    source = (dict(headers).get("ce_source") or b"").decode("utf-8", "replace")
    return unquote(source.removeprefix(_SOURCE)) if source.startswith(_SOURCE) else None


def event_id(position: types.Position, pipeline_version: str) -> str:
    """Identity of what the pipeline says about one event: equal for every repeat."""
    return f"{position}@{pipeline_version}"


class EventHeaders:
    """Makes the headers of one kind of event."""

    def __init__(self, event_type: str, pipeline: str, pipeline_version: str) -> None:
        self._version = f"@{pipeline_version}"
        self.fixed: list[tuple[str, bytes]] = [
            ("ce_specversion", b"1.0"),
            ("ce_type", event_type.encode()),
            ("ce_source", f"{_SOURCE}{quote(pipeline, safe='')}".encode()),
            ("content-type", b"application/json"),
        ]
        # What the headers of one event take at most, without its subject.
        self.most = _headers_size(self.fixed) + len(self._version) + _OTHERS_BYTES

    def named(self, id_: str, subject: str) -> list[tuple[str, bytes]]:
        return [
            *self.fixed,
            ("ce_id", f"{id_}{self._version}".encode("utf-8", "replace")),
            ("ce_subject", subject.encode("utf-8", "replace")),
        ]

    def of(
        self,
        position: types.Position,
        subject: str,
        event_time_ms: int,
        original: tuple[tuple[str, bytes | None], ...] = (),
    ) -> list[tuple[str, bytes]]:
        """Return the headers for one event; of trace headers, the first of each kind is kept."""
        topic, partition, offset, index = position
        minute, ms = divmod(event_time_ms, 60_000)
        place = f"{offset}.{index}" if index else offset
        headers = [
            *self.fixed,
            ("ce_id", f"{topic}-{partition}-{place}{self._version}".encode()),
            ("ce_time", _minute(minute) + _SECONDS[ms // 1000] + _MILLISECONDS[ms % 1000]),
            ("ce_subject", subject.encode("utf-8", "replace")),
        ]
        if original:
            traced: dict[str, bytes] = {}
            for name, value in original:
                if name in TRACE_HEADERS and value is not None and len(value) <= _TRACE_BYTES:
                    traced.setdefault(name, value)
            headers += traced.items()
        return headers


_SECONDS = [b"%02d." % s for s in range(60)]
_MILLISECONDS = [b"%03dZ" % ms for ms in range(1000)]


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> bytes:
    return datetime.fromtimestamp(60 * minutes, UTC).isoformat()[:17].encode()
