"""What reviewers decide, as records that leave the queue, and what a pile of them adds up to.

Records are never changed: a changed mind is a new record that supersedes, undo is a record that
retracts. Whoever has read all records of an event, in order, knows its verdict by
:func:`resolve`; the queue itself has no other way to know.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from rejex_stream.errors import ConnectorError
from rejex_stream.types import Position

LABEL_SCHEMA_VERSION = 1
_NAMESPACE = uuid.UUID("6d9a2c1e-5f0b-5c43-9a51-2d0f3b7c8e44")

HumanVerdict: TypeAlias = Literal["anomaly", "normal", "unsure"]
State: TypeAlias = Literal["open", "labelled", "agreed", "disputed", "adjudicated", "expired"]


class LabelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about the events of one episode, as published on the labels topic."""

    label_id: str
    """Deterministic: a decision that is published twice carries the same id both times."""
    kind: Literal["label", "retract"] = "label"
    """``label``, or ``retract`` for an undo: then `retracts` names the label taken back."""
    episode_id: str
    root_id: str
    """The episode as it was labelled, and the one it was once split from; `root_id` is the key, so
    that all records about one stretch of time keep their order."""
    stream_key: str
    sensor: str

    events: tuple[Position, ...]
    """Positions of the events this speaks about."""
    verdict: HumanVerdict | None
    """``None`` for a retraction, and for an expiry whose default answer is no verdict."""
    source: Literal["human", "expired"] = "human"
    """``human``, or ``expired`` when nobody looked in time; an expiry is never a person's word."""
    why: str = "rejected"
    """``rejected``, ``audit`` for accepted events drawn by the audit sample, ``extreme`` for
    anomalies that no incident holds, or ``status`` where a state of the sensor begins or ends."""
    role: Literal["first", "second", "adjudication"] = "first"
    """``first``, ``second`` (double review) or ``adjudication`` (settles a dispute)."""
    reviewer: str
    created_ms: int

    from_ms: int
    to_ms: int
    """Event times of the first and the last event, UTC milliseconds."""
    tags: tuple[str, ...] = ()
    fault_code: str = ""
    note: str = ""

    supersedes: str | None = None
    """The same reviewer's earlier label that this one replaces."""
    retracts: str | None = None

    batch_id: str
    """Decisions made by one keypress share it."""
    schema_version: int = LABEL_SCHEMA_VERSION


class Resolution(NamedTuple):
    """What all labels of an event say together.

    `verdict` is ``None`` where there is none: nobody looked, or two people disagree.
    """

    state: State
    verdict: HumanVerdict | None
    reviewers: tuple[str, ...]


def label_id(*parts: str) -> str:
    """Return the id of a decision: equal parts, equal id, on any machine."""
    return uuid.uuid5(_NAMESPACE, "\x1f".join(parts)).hex


def encode_label(record: LabelRecord) -> bytes:
    """Return one line of JSON, without the line's end."""
    fields = msgspec.structs.asdict(record)
    return msgspec.json.encode(fields | {"events": [event.parts for event in record.events]})


def decode_label(line: bytes) -> LabelRecord:
    """Return the record in `line`; unknown fields of later minor versions are ignored."""
    try:
        record = msgspec.json.decode(line, type=LabelRecord)
    except msgspec.DecodeError as error:
        raise ConnectorError(
            f"{line[:80]!r} is no label record ({error}): give the labels file or topic that "
            "`rejex-stream review serve` writes."
        ) from error
    if record.schema_version != LABEL_SCHEMA_VERSION:
        raise ConnectorError(
            f"Label {record.label_id} has schema version {record.schema_version}, this program "
            f"reads {LABEL_SCHEMA_VERSION}: update rejex-stream."
        )
    return record


def active_labels(records: Iterable[LabelRecord]) -> list[LabelRecord]:
    """Return the labels that still stand, of all records of one event in their order.

    The latest of each reviewer counts, a record seen twice once. A retraction of a label that
    superseded another brings the earlier one back: undo is exact. O(n).
    """
    ordered: dict[str, LabelRecord] = {}
    for record in records:
        if record.kind == "retract":
            if record.retracts is not None:
                ordered.pop(record.retracts, None)
        elif record.label_id not in ordered:
            ordered[record.label_id] = record
    latest: dict[tuple[str, str], LabelRecord] = {}
    for record in ordered.values():
        who = (record.source, record.reviewer)
        latest.pop(who, None)
        latest[who] = record
    return list(latest.values())


def resolve(labels: Sequence[LabelRecord]) -> Resolution:
    """Return what `labels`, the active ones of an event, add up to.

    An adjudication settles everything; ``unsure`` does not vote; an expiry counts only while no
    person has spoken. The result depends on the labels alone, not on any setting.
    """
    people = [label for label in labels if label.source == "human"]
    names = tuple(label.reviewer for label in people)
    if not people:
        if labels:
            return Resolution("expired", labels[-1].verdict, ())
        return Resolution("open", None, ())
    settled = [label for label in people if label.role == "adjudication"]
    if settled:
        return Resolution("adjudicated", settled[-1].verdict, names)
    votes = {label.verdict for label in people if label.verdict != "unsure"}
    if len(votes) > 1:
        return Resolution("disputed", None, names)
    verdict: HumanVerdict = next((vote for vote in votes if vote is not None), "unsure")
    return Resolution("agreed" if len(people) > 1 else "labelled", verdict, names)
