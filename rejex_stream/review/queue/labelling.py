"""What people do to cases: claim, assign and comment on them, label them, and undo that.

A claim is a lease: it is renewed while the reviewer's screen is visible and expires by itself. An
assignment lasts. Comments are rows of the audit: nobody can change one.

A request is checked first, then applied to every target or to none. A repeated request (a retried
POST) returns what it returned the first time. All of it is in the store, so undo survives a reload,
another tab and another day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from sqlite3 import Connection, Row
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from rejex_stream.config.reviewing import SYSTEM, DefaultAnswer, Review, named_reviewer
from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import (
    HumanVerdict,
    LabelRecord,
    active_labels,
    decode_label,
    label_id,
)
from rejex_stream.review.queue import cases, database
from rejex_stream.review.queue.database import (
    Name,
    Refusal,
    Viewer,
    insert,
    require_reviewer,
    scalar,
)
from rejex_stream.review.queue.label_store import publish, records_of, refresh_status, resolution_of
from rejex_stream.review.queue.listing import QueueFilter, case_row, model_leaning
from rejex_stream.review.queue.review_store import Action, ReviewStore
from rejex_stream.types import Position

LEASE_MS = 600_000  # how long a claim lasts without a sign of life
MAX_COMMENT = 2_000


# ------------------------------------------------------------------------- retries and undo
@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in the words the screen shows."""

    kind: Literal["label", "undo"]  # `label` or `undo`
    message: str
    episodes: tuple[str, ...]  # ids the action changed, as they are called now
    events: int  # how many events that is


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _first_result(act: Action, request_id: str) -> Done | None:
    """Return what a request did when it came the first time; ``None`` if this is the first."""
    query = "SELECT reviewer, result FROM action WHERE request_id = ?"
    row = act.connection.execute(query, (request_id,)).fetchone()
    if row is None:
        return None
    if row["reviewer"] != act.viewer.reviewer:
        raise Refusal("bad_request", "This request id was used by somebody else.")
    return msgspec.json.decode(row["result"], type=Done)


def _store_result(act: Action, request_id: str, done: Done, **payload: Any) -> None:
    """Store what an action did, and what undo needs for it; an undo itself is never undone."""
    insert(
        act.connection,
        "action",
        request_id=request_id,
        reviewer=act.viewer.reviewer,
        kind=done.kind,
        at_ms=act.now_ms,
        undone=int(done.kind == "undo"),
        payload=json.dumps(payload),
        result=json.dumps(asdict(done)),
    )


# ---------------------------------------------------------------------------------- claims
@dataclass(frozen=True, slots=True)
class Lease:
    """A claim on one episode."""

    episode_id: str
    owner: str
    until_ms: int


def is_claimed_by_other(row: Row, reviewer: str, now_ms: int) -> bool:
    """Return whether somebody else holds a claim on an episode that has not expired."""
    owner, until = row["lease_owner"], row["lease_until_ms"]
    return owner is not None and owner != reviewer and until > now_ms


def claim(store: ReviewStore, episode: str, viewer: Viewer) -> Lease:
    """Claim an episode; claiming one's own again renews it."""
    with store.acting(viewer) as act:
        return _claim(act, episode)


def _claim(act: Action, episode: str) -> Lease:
    connection, now_ms, viewer = act
    require_reviewer(viewer)
    row = case_row(connection, episode)
    if is_claimed_by_other(row, viewer.reviewer, now_ms):
        minutes = max(1, round((row["lease_until_ms"] - now_ms) / 60_000))
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {episode} (claimed for another {minutes} min).",
            episode,
        )
    mine = row["lease_owner"] == viewer.reviewer and row["lease_until_ms"] > now_ms
    # Nobody else is asked meanwhile about what is asked with it.
    connection.execute(
        "UPDATE episode SET lease_owner = ?1, lease_until_ms = ?2 WHERE episode_id = ?3 OR "
        "(question = ?4 AND status IN ('open', 'needs_second') AND coalesce(assigned, ?1) = ?1 "
        "AND (lease_owner IS NULL OR lease_owner = ?1 OR lease_until_ms <= ?5))",
        (viewer.reviewer, now_ms + LEASE_MS, episode, row["question"], now_ms),
    )
    if not mine:
        act.record("claim", episode)
    return Lease(episode, viewer.reviewer, now_ms + LEASE_MS)


def claim_next(store: ReviewStore, chosen: QueueFilter, viewer: Viewer) -> Lease:
    """Claim the first ready episode of a filter that nobody holds."""
    with store.acting(viewer) as act:
        query = chosen.sql(viewer, act.now_ms)
        first = scalar(
            act.connection,
            f"SELECT e.episode_id {query.source} "
            f"AND (e.lease_owner IS NULL OR e.lease_until_ms <= :now) {query.order} LIMIT 1",
            query.values,
        )
        if first is None:
            raise Refusal("nothing", "Nothing is left to claim in this view.")
        return _claim(act, first)


def release(store: ReviewStore, episode: str, viewer: Viewer) -> bool:
    with store.acting(viewer) as act:
        row = case_row(act.connection, episode)
        if row["lease_owner"] != viewer.reviewer:
            return False
        act.connection.execute(
            "UPDATE episode SET lease_owner = NULL, lease_until_ms = NULL "
            "WHERE question = ? AND lease_owner = ?",
            (row["question"], viewer.reviewer),
        )
        act.record("release", episode)
    return True


# ----------------------------------------------------------------- whose it is, what is said
def people(
    connection: Connection, settings: Review, viewer: Viewer, *, blind: bool = False
) -> list[str]:
    """Return everybody who can be given work: who is named in the settings, or has acted here."""
    # In a `blind` review those who have acted are left out: one of them gave the first answer.
    roles = dict(named_reviewer(text) for text in settings.reviewers)
    named = {name for name, role in roles.items() if role != "viewer"}
    query = "SELECT DISTINCT actor FROM audit WHERE action IN ('claim', 'label', 'assign')"
    acted = set() if blind else set(database.scalars(connection, query))
    may_not = {SYSTEM} | {name for name, role in roles.items() if role == "viewer"}
    return sorted((named | acted | {viewer.reviewer}) - may_not)


def require_known(act: Action, settings: Review, name: str) -> None:
    """Refuse a name that nobody has who can be given work; empty: nobody's."""
    if name and name not in people(act.connection, settings, act.viewer):
        raise Refusal("bad_request", f"Nobody here is called {name}: name a reviewer.")


def assign(store: ReviewStore, targets: Sequence[str], viewer: Viewer, *, to: str) -> str:
    """Assign episodes to a person, or with an empty `to` to nobody; returns what was done."""
    require_reviewer(viewer)
    with store.acting(viewer) as act:
        require_known(act, store.settings, to)
        for episode in targets:
            row = case_row(act.connection, episode)
            if row["status"] not in ("open", "needs_second", "disputed"):
                raise Refusal("changed", f"{episode} has been decided meanwhile.", episode)
            if (row["assigned"] or "") == to:
                continue
            act.connection.execute(
                "UPDATE episode SET assigned = ? WHERE episode_id = ?", (to or None, episode)
            )
            act.record("assign", episode, to=to)
    return f"{counted(len(targets), 'case')} given {f'to {to}' if to else 'back to everybody'}"


def comment(
    store: ReviewStore, request_id: str, episode: str, viewer: Viewer, *, text: str
) -> None:
    if not 0 < len(text.strip()) <= MAX_COMMENT:
        raise Refusal("bad_request", f"A comment has 1 to {MAX_COMMENT:,} characters.", episode)
    with store.acting(viewer) as act:
        case_row(act.connection, episode)
        add_note(act, request_id, episode, text)


def add_note(
    act: Action, request_id: str, subject: str, text: str, version: int | None = None
) -> None:
    """Record that somebody has seen a version of a subject, or their comment; once a request."""
    require_reviewer(act.viewer)
    text = text.strip()
    known = scalar(
        act.connection,
        "SELECT 1 FROM audit WHERE subject = ? AND actor = ? "
        "AND json_extract(detail, '$.request_id') = ?",
        (subject, act.viewer.reviewer, request_id),
    )
    if known is None:
        said = {"note": text} if text else {"version": version}
        detail = {"request_id": request_id} | said
        act.record("comment" if text else "seen", subject, **detail)


class Target(msgspec.Struct, frozen=True):
    """One episode as the reviewer saw it; if it changed meanwhile, that matters."""

    episode_id: Name = field(name="id")
    n_events: Annotated[int, Meta(ge=1)]
    status: Name


class LabelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A label for one or several episodes, as a reviewer's screen sends it."""

    request_id: Name  # made by the reviewer's screen once per keypress; also names the batch
    verdict: HumanVerdict
    # exactly these episodes, by id
    targets: Annotated[tuple[Target, ...], Meta(min_length=1, max_length=10_000)]
    # first and last event time of the part meant, both included; one target only
    span_ms: tuple[int, int] | None = None
    tags: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=10)] = ()
    fault_code: Annotated[str, Meta(max_length=80)] = ""
    note: Annotated[str, Meta(max_length=4000)] = ""


def _subject_of(connection: Connection, row: Row) -> dict[str, Any]:
    events = connection.execute(
        "SELECT topic, partition, offset, reading FROM event WHERE episode_id = ? "
        "ORDER BY event_time_ms, event_id",
        (row["episode_id"],),
    )
    return {
        **{name: row[name] for name in ("episode_id", "root_id", "stream_key", "sensor", "why")},
        "events": tuple(Position(*tuple(event)) for event in events),
        "from_ms": row["start_ms"],
        "to_ms": row["end_ms"],
    }


def _record(act: Action, episode: str, request: LabelRequest, ordinal: int) -> LabelRecord:
    connection, now_ms, viewer = act
    row = case_row(connection, episode)
    standing = active_labels(records_of(connection, episode))
    people = [label for label in standing if label.source == "human"]
    own = [label for label in people if label.reviewer == viewer.reviewer]
    role: Literal["first", "second", "adjudication"] = "second" if people and not own else "first"
    if row["status"] == "disputed" and viewer.has_role("lead"):
        role = "adjudication"
    elif own:
        role = own[-1].role
    return LabelRecord(
        label_id=label_id(request.request_id, str(ordinal), episode),
        **_subject_of(connection, row),
        verdict=request.verdict,
        role=role,
        reviewer=viewer.reviewer,
        created_ms=now_ms,
        tags=request.tags,
        fault_code=request.fault_code,
        note=request.note,
        supersedes=own[-1].label_id if own else None,
        batch_id=request.request_id,
    )


def _require_as_seen(act: Action, target: Target) -> None:
    """Refuse what this reviewer may not label, or not as they saw it."""
    connection, now_ms, viewer = act
    row = case_row(connection, target.episode_id)
    if is_claimed_by_other(row, viewer.reviewer, now_ms):
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {target.episode_id}; nothing was written.",
            target.episode_id,
        )
    if row["status"] != target.status:
        result = resolution_of(connection, target.episode_id)
        who = " and ".join(result.reviewers) or "Somebody"
        verdict = f" as {result.verdict}" if result.verdict else ""
        raise Refusal(
            "changed",
            f"{who} decided {target.episode_id}{verdict} meanwhile; nothing was written.",
            target.episode_id,
        )
    if row["status"] == "disputed" and not viewer.has_role("lead"):
        parties = resolution_of(connection, target.episode_id).reviewers
        if viewer.reviewer not in parties:
            raise Refusal(
                "forbidden",
                f"{' and '.join(parties)} disagree about {target.episode_id}: "
                "they or a lead settle it.",
                target.episode_id,
            )
    if row["n_events"] < target.n_events:
        raise Refusal(
            "changed",
            f"{target.episode_id} was split meanwhile; nothing was written.",
            target.episode_id,
        )


def _events_meant(
    connection: Connection, target: Target, span_ms: tuple[int, int] | None
) -> tuple[list[int], int]:
    """Return the events that a label is about (those the reviewer saw), and how many there are."""
    # event_id is the order of arrival: what came after the reviewer looked is not judged.
    rows = connection.execute(
        "SELECT event_id, event_time_ms FROM event WHERE episode_id = ? ORDER BY event_id",
        (target.episode_id,),
    ).fetchall()
    seen = rows[: target.n_events]
    if span_ms is not None:
        low, high = min(span_ms), max(span_ms)
        seen = [row for row in seen if low <= row["event_time_ms"] <= high]
        if not seen:
            raise Refusal(
                "bad_request",
                "No event of the case lies in the marked range: mark one that holds some, or "
                "press e for the whole case.",
                target.episode_id,
            )
    return [row["event_id"] for row in seen], len(rows)


def label_cases(store: ReviewStore, request: LabelRequest, viewer: Viewer) -> Done:
    """Label every target, or refuse and write nothing."""
    # Where the marked range, or what the reviewer saw of a growing episode, is only a part, that
    # part becomes an episode of its own and the rest stays open.
    with store.acting(viewer) as act:
        done = _first_result(act, request.request_id)
        if done is not None:
            return done
        require_reviewer(viewer)
        if not request.targets or (request.span_ms is not None and len(request.targets) != 1):
            raise Refusal(
                "bad_request", "Name at least one case; a marked range goes with exactly one."
            )
        for target in request.targets:
            _require_as_seen(act, target)
        connection = act.connection
        meant = [_events_meant(connection, t, request.span_ms) for t in request.targets]
        records: list[LabelRecord] = []
        parts: dict[str, str] = {}
        for target, (events, total) in zip(request.targets, meant, strict=True):
            episode = target.episode_id
            if len(events) < total:
                episode = cases.split(connection, target.episode_id, events)
                parts[episode] = target.episode_id
            record = _record(act, episode, request, len(records))
            publish(connection, record)
            for changed in dict.fromkeys((episode, target.episode_id)):
                refresh_status(connection, changed, store.settings, act.now_ms)
            action = "adjudicate" if record.role == "adjudication" else "label"
            act.record(action, episode, **_label_detail(record, target.episode_id))
            records.append(record)
        n_events = sum(len(events) for events, _ in meant)
        done = Done(
            "label",
            f"{counted(len(records), 'case')} ({counted(n_events, 'event')}) "
            f"marked {request.verdict}",
            tuple(record.episode_id for record in records),
            n_events,
        )
        labels = [record.label_id for record in records]
        _store_result(act, request.request_id, done, labels=labels, parts=parts)
        return done


def _label_detail(record: LabelRecord, asked: str) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "label_id": record.label_id,
        "verdict": record.verdict,
        "events": len(record.events),
        "role": record.role,
    }
    for name in ("note", "fault_code", "supersedes"):
        if getattr(record, name):
            detail[name] = getattr(record, name)
    if record.tags:
        detail["tags"] = list(record.tags)
    if record.episode_id != asked:
        detail["split_from"] = asked
    return detail


def undo(store: ReviewStore, request_id: str, viewer: Viewer) -> Done:
    """Undo the reviewer's latest label request that still stands; again, the one before."""
    with store.acting(viewer) as act:
        done = _first_result(act, request_id)
        if done is not None:
            return done
        action = act.connection.execute(
            "SELECT * FROM action WHERE reviewer = ? AND undone = 0 "
            "ORDER BY action_seq DESC LIMIT 1",
            (viewer.reviewer,),
        ).fetchone()
        if action is None:
            raise Refusal("nothing", "There is nothing of yours left to undo.")
        payload = json.loads(action["payload"])
        changed, n_events = [], 0
        for label in payload["labels"]:
            episode, events = _retract(act, request_id, label, payload["parts"], store.settings)
            changed.append(episode)
            n_events += events
        act.connection.execute(
            "UPDATE action SET undone = 1 WHERE action_seq = ?", (action["action_seq"],)
        )
        message = json.loads(action["result"])["message"]
        done = Done("undo", f"Undone: {message}", tuple(changed), n_events)
        _store_result(act, request_id, done)
        return done


def _retract(
    act: Action, request_id: str, label: str, parts: Mapping[str, str], settings: Review
) -> tuple[str, int]:
    """Retract one label; returns the episode that has its events now, and how many these are."""
    connection = act.connection
    of_label = "SELECT record FROM label WHERE label_id = ?"
    record = decode_label(scalar(connection, of_label, (label,)))
    retraction = msgspec.structs.replace(
        record,
        label_id=label_id(request_id, "undo", label),
        kind="retract",
        verdict=None,
        reviewer=act.viewer.reviewer,
        created_ms=act.now_ms,
        tags=(),
        fault_code="",
        note="",
        supersedes=None,
        retracts=label,
        batch_id=request_id,
    )
    publish(connection, retraction)
    query = "SELECT event_id FROM label_event JOIN label USING (label_seq) WHERE label_id = ?"
    events = database.scalars(connection, query, (label,))
    episode, parent = record.episode_id, parts.get(record.episode_id)
    if parent is not None and _can_rejoin(connection, episode, parent):
        cases.merge_back(connection, episode, parent)
        episode = parent
    # Somebody may have split it further in between.
    for holder in cases.holding(connection, events):
        refresh_status(connection, holder, settings, act.now_ms)
    act.record(
        "undo",
        record.episode_id,
        label_id=retraction.label_id,
        retracts=label,
        events=len(record.events),
    )
    return episode, len(record.events)


def _can_rejoin(connection: Connection, child: str, parent: str) -> bool:
    query = "SELECT status FROM episode WHERE episode_id = ?"
    status = scalar(connection, query, (parent,))
    return status != "empty" and active_labels(records_of(connection, child)) == active_labels(
        records_of(connection, parent)
    )


def expire_due(store: ReviewStore, *, limit: int = 500) -> list[str]:
    """Expire open episodes older than ``max_age_ms``, oldest first; returns their ids."""
    # An expiry is a label with `source = "expired"` by `system`; a person's label given later takes
    # its place.
    settings = store.settings
    with store.acting(Viewer(SYSTEM)) as act:
        connection, now_ms, _ = act
        due = connection.execute(
            "SELECT e.*, s.stream_key, s.sensor FROM episode e JOIN sensor s USING (sensor_id) "
            "WHERE e.status = 'open' AND e.received_ms <= ? "
            "AND (e.lease_owner IS NULL OR e.lease_until_ms <= ?) "
            "ORDER BY e.received_ms, e.episode_id LIMIT ?",
            (now_ms - settings.max_age_ms, now_ms, limit),
        ).fetchall()
        for row in due:
            episode = row["episode_id"]
            record = LabelRecord(
                label_id=label_id("expired", episode, str(row["n_events"])),
                **_subject_of(connection, row),
                verdict=_default_answer(connection, episode, settings.default_answer),
                source="expired",
                reviewer=SYSTEM,
                created_ms=now_ms,
                batch_id=label_id("expired", episode),
            )
            if not publish(connection, record):
                continue
            refresh_status(connection, episode, settings, now_ms)
            act.record(
                "expire", episode, default_answer=settings.default_answer, verdict=record.verdict
            )
        return [row["episode_id"] for row in due]


def _default_answer(
    connection: Connection, episode: str, default_answer: DefaultAnswer
) -> HumanVerdict | None:
    if default_answer == "none":
        return None
    if default_answer == "anomaly":
        return "anomaly"
    items = connection.execute("SELECT item FROM event WHERE episode_id = ?", (episode,))
    leanings = [model_leaning(decode_review(row[0]).verdict) for row in items]
    # One event that looks anomalous makes the stretch worth a look; so it counts.
    if "anomaly" in leanings:
        return "anomaly"
    return "normal" if "normal" in leanings else None
