"""What people do to cases: claim, assign and comment, decide, and take it back.

A claim is a lease: it is renewed while the reviewer's screen is visible and runs out by itself. An
assignment says whose a case is and lasts. Comments are rows of the audit: nobody can change one.

A decision is checked first, then written to every target or to none. A request that is repeated
(a retried POST) returns what it returned the first time. It is the store that remembers, so undo
survives a reload, another tab and another day.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from rejex_stream.review.queue.database import Name, Refusal, Viewer, insert, require_reviewer
from rejex_stream.review.queue.label_store import publish, records_of, refresh_status, resolution_of
from rejex_stream.review.queue.listing import QueueFilter, case_row, model_leaning
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Position

LEASE_MS = 600_000
"""How long a claim lasts without a sign of life."""
MOST_COMMENT = 2_000


# ------------------------------------------------------------------------- retries and undo
@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in the words the screen shows."""

    kind: Literal["label", "undo"]  # `label` or `undo`
    message: str
    episodes: tuple[str, ...]  # ids the action changed, as they are called now
    events: int  # how many events that is


def counted(number: int, word: str) -> str:
    """Return a number with its word."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def repeated(connection: Connection, request_id: str, viewer: Viewer) -> Done | None:
    """Return what a request did when it came the first time; ``None`` if this is the first."""
    row = connection.execute(
        "SELECT reviewer, result FROM action WHERE request_id = ?", (request_id,)
    ).fetchone()
    if row is None:
        return None
    if row["reviewer"] != viewer.reviewer:
        raise Refusal("bad_request", "This request id was used by somebody else.")
    found = json.loads(row["result"])
    return Done(found["kind"], found["message"], tuple(found["episodes"]), found["events"])


def remember(
    connection: Connection,
    request_id: str,
    viewer: Viewer,
    done: Done,
    *,
    now_ms: int,
    payload: dict[str, Any],
) -> None:
    """Note an action with what undo needs to know; an undo itself is never undone."""
    insert(
        connection,
        "action",
        request_id=request_id,
        reviewer=viewer.reviewer,
        kind=done.kind,
        at_ms=now_ms,
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


def held_by_other(row: Row, reviewer: str, now_ms: int) -> bool:
    """Say whether somebody else holds a claim on an episode row that has not run out."""
    owner, until = row["lease_owner"], row["lease_until_ms"]
    return owner is not None and owner != reviewer and until > now_ms


def claim(store: ReviewStore, episode: str, viewer: Viewer) -> Lease:
    """Claim an episode; claiming one's own again renews it."""
    with store.database.write() as connection:
        return _claim(connection, episode, viewer, store.now_ms())


def _claim(connection: Connection, episode: str, viewer: Viewer, now_ms: int) -> Lease:
    require_reviewer(viewer)
    row = case_row(connection, episode)
    if held_by_other(row, viewer.reviewer, now_ms):
        minutes = max(1, round((row["lease_until_ms"] - now_ms) / 60_000))
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {episode} (claimed for another {minutes} min).",
            episode,
        )
    mine = row["lease_owner"] == viewer.reviewer and row["lease_until_ms"] > now_ms
    connection.execute(
        "UPDATE episode SET lease_owner = ?, lease_until_ms = ? WHERE episode_id = ?",
        (viewer.reviewer, now_ms + LEASE_MS, episode),
    )
    if not mine:
        database.append_audit(connection, now_ms, viewer.reviewer, "claim", episode)
    return Lease(episode, viewer.reviewer, now_ms + LEASE_MS)


def claim_next(store: ReviewStore, chosen: QueueFilter, viewer: Viewer) -> Lease:
    """Claim the first ready episode of a filter that nobody holds."""
    now_ms = store.now_ms()
    query = chosen.sql(viewer, now_ms)
    with store.database.write() as connection:
        first = connection.execute(
            f"SELECT e.episode_id {query.source} "
            f"AND (e.lease_owner IS NULL OR e.lease_until_ms <= :now) {query.order} LIMIT 1",
            query.values,
        ).fetchone()
        if first is None:
            raise Refusal("nothing", "Nothing is left to claim in this view.")
        return _claim(connection, first[0], viewer, now_ms)


def release(store: ReviewStore, episode: str, viewer: Viewer) -> bool:
    """Give up one's own claim; says whether there was one."""
    with store.database.write() as connection:
        if case_row(connection, episode)["lease_owner"] != viewer.reviewer:
            return False
        connection.execute(
            "UPDATE episode SET lease_owner = NULL, lease_until_ms = NULL WHERE episode_id = ?",
            (episode,),
        )
        database.append_audit(connection, store.now_ms(), viewer.reviewer, "release", episode)
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


def assign(store: ReviewStore, targets: Sequence[str], viewer: Viewer, *, to: str) -> str:
    """Give episodes to a person, or with an empty `to` back to everybody; says what was done."""
    require_reviewer(viewer)
    with store.database.write() as connection:
        if to and to not in people(connection, store.settings, viewer):
            raise Refusal("bad_request", f"Nobody here is called {to}: name a reviewer.")
        for episode in targets:
            row = case_row(connection, episode)
            if row["status"] not in ("open", "needs_second", "disputed"):
                raise Refusal("changed", f"{episode} has been decided meanwhile.", episode)
            if (row["assigned"] or "") == to:
                continue
            connection.execute(
                "UPDATE episode SET assigned = ? WHERE episode_id = ?", (to or None, episode)
            )
            database.append_audit(
                connection, store.now_ms(), viewer.reviewer, "assign", episode, to=to
            )
    return f"{counted(len(targets), 'case')} given {f'to {to}' if to else 'back to everybody'}"


def comment(
    store: ReviewStore, request_id: str, episode: str, viewer: Viewer, *, text: str
) -> None:
    """Add what somebody has to say of an episode; a request that is repeated adds nothing."""
    if not 0 < len(text.strip()) <= MOST_COMMENT:
        raise Refusal("bad_request", f"A comment has 1 to {MOST_COMMENT:,} characters.", episode)
    with store.database.write() as connection:
        case_row(connection, episode)
        note(connection, request_id, episode, viewer, text=text, now_ms=store.now_ms())


def note(
    connection: Connection, request_id: str, subject: str, viewer: Viewer, *, text: str, now_ms: int
) -> None:
    """Write down that somebody has seen a subject, or what they say of it; once a request."""
    require_reviewer(viewer)
    text = text.strip()
    known = connection.execute(
        "SELECT 1 FROM audit WHERE subject = ? AND actor = ? "
        "AND json_extract(detail, '$.request_id') = ?",
        (subject, viewer.reviewer, request_id),
    ).fetchone()
    if known is None:
        detail = {"request_id": request_id} | ({"note": text} if text else {})
        action = "comment" if text else "seen"
        database.append_audit(connection, now_ms, viewer.reviewer, action, subject, **detail)


class Target(msgspec.Struct, frozen=True):
    """One episode as the reviewer saw it; if it changed meanwhile, that matters."""

    episode_id: Name = field(name="id")
    n_events: Annotated[int, Meta(ge=1)]
    status: Name


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict for one or several episodes, with what the reviewer said about it."""

    request_id: Name  # made by the reviewer's screen once per keypress; also names the batch
    verdict: HumanVerdict
    # exactly these episodes, by id
    targets: Annotated[tuple[Target, ...], Meta(min_length=1, max_length=10_000)]
    # first and last event time of the part meant, both included; one target only
    span_ms: tuple[int, int] | None = None
    tags: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=10)] = ()
    fault_code: Annotated[str, Meta(max_length=80)] = ""
    note: Annotated[str, Meta(max_length=4000)] = ""


def _about(connection: Connection, row: Row) -> dict[str, Any]:
    """Return what every record says of the episode it is about."""
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


def _record(  # noqa: PLR0917
    connection: Connection,
    episode: str,
    decision: Decision,
    viewer: Viewer,
    now_ms: int,
    ordinal: int,
) -> LabelRecord:
    row = case_row(connection, episode)
    standing = active_labels(records_of(connection, episode))
    people = [label for label in standing if label.source == "human"]
    own = [label for label in people if label.reviewer == viewer.reviewer]
    role: Literal["first", "second", "adjudication"] = "second" if people and not own else "first"
    if row["status"] == "disputed" and viewer.role in ("lead", "admin"):
        role = "adjudication"
    elif own:
        role = own[-1].role
    return LabelRecord(
        label_id=label_id(decision.request_id, str(ordinal), episode),
        **_about(connection, row),
        verdict=decision.verdict,
        role=role,
        reviewer=viewer.reviewer,
        created_ms=now_ms,
        tags=decision.tags,
        fault_code=decision.fault_code,
        note=decision.note,
        supersedes=own[-1].label_id if own else None,
        batch_id=decision.request_id,
    )


def _require_as_seen(connection: Connection, target: Target, viewer: Viewer, now_ms: int) -> None:
    """Refuse what this reviewer may not decide, or not as they saw it."""
    row = case_row(connection, target.episode_id)
    if held_by_other(row, viewer.reviewer, now_ms):
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {target.episode_id}; nothing was written.",
            target.episode_id,
        )
    if row["status"] != target.status:
        found = resolution_of(connection, target.episode_id)
        who = " and ".join(found.reviewers) or "Somebody"
        said = f" as {found.verdict}" if found.verdict else ""
        raise Refusal(
            "changed",
            f"{who} decided {target.episode_id}{said} meanwhile; nothing was written.",
            target.episode_id,
        )
    if row["status"] == "disputed" and viewer.role not in ("lead", "admin"):
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
    """Return the events a verdict speaks about (those the reviewer saw), and how many there are."""
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


def decide(store: ReviewStore, decision: Decision, viewer: Viewer) -> Done:
    """Give a verdict to every target, or refuse and write nothing."""
    # Where the marked range, or what the reviewer saw of a growing episode, is only a part, that
    # part becomes an episode of its own and the rest stays open.
    settings, now_ms = store.settings, store.now_ms()
    with store.database.write() as connection:
        before_now = repeated(connection, decision.request_id, viewer)
        if before_now is not None:
            return before_now
        require_reviewer(viewer)
        if not decision.targets or (decision.span_ms is not None and len(decision.targets) != 1):
            raise Refusal(
                "bad_request", "Name at least one case; a marked range goes with exactly one."
            )
        for target in decision.targets:
            _require_as_seen(connection, target, viewer, now_ms)
        meant = [_events_meant(connection, t, decision.span_ms) for t in decision.targets]
        changed, parts, label_ids, n_events = [], [], [], 0
        for ordinal, (target, (events, total)) in enumerate(
            zip(decision.targets, meant, strict=True)
        ):
            episode = target.episode_id
            if len(events) < total:
                episode = cases.split(connection, target.episode_id, events)
                parts.append((episode, target.episode_id))
            record = _record(connection, episode, decision, viewer, now_ms, ordinal)
            publish(connection, record)
            refresh_status(connection, episode, settings, now_ms)
            if episode != target.episode_id:
                refresh_status(connection, target.episode_id, settings, now_ms)
            database.append_audit(
                connection,
                now_ms,
                viewer.reviewer,
                "adjudicate" if record.role == "adjudication" else "label",
                episode,
                **_label_detail(record, target.episode_id),
            )
            changed.append(episode)
            label_ids.append(record.label_id)
            n_events += len(events)
        done = Done(
            "label",
            f"{counted(len(changed), 'case')} ({counted(n_events, 'event')}) "
            f"marked {decision.verdict}",
            tuple(changed),
            n_events,
        )
        remember(
            connection,
            decision.request_id,
            viewer,
            done,
            now_ms=now_ms,
            payload={"labels": label_ids, "parts": parts},
        )
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
    """Take back all of the reviewer's latest verdict that still stands; again, the one before."""
    now_ms = store.now_ms()
    with store.database.write() as connection:
        before_now = repeated(connection, request_id, viewer)
        if before_now is not None:
            return before_now
        action = connection.execute(
            "SELECT * FROM action WHERE reviewer = ? AND undone = 0 "
            "ORDER BY action_seq DESC LIMIT 1",
            (viewer.reviewer,),
        ).fetchone()
        if action is None:
            raise Refusal("nothing", "There is nothing of yours left to undo.")
        payload = json.loads(action["payload"])
        changed, n_events = _take_back(
            connection, request_id, payload, viewer, store.settings, now_ms
        )
        connection.execute(
            "UPDATE action SET undone = 1 WHERE action_seq = ?", (action["action_seq"],)
        )
        what = json.loads(action["result"])["message"]
        done = Done("undo", f"Undone: {what}", tuple(changed), n_events)
        remember(connection, request_id, viewer, done, now_ms=now_ms, payload={})
        return done


def _take_back(  # noqa: PLR0917
    connection: Connection,
    request_id: str,
    payload: dict[str, Any],
    viewer: Viewer,
    settings: Review,
    now_ms: int,
) -> tuple[list[str], int]:
    parts = dict(payload["parts"])
    changed, n_events = [], 0
    for target in payload["labels"]:
        of_label = "SELECT record FROM label WHERE label_id = ?"
        record = decode_label(database.scalar(connection, of_label, (target,)))
        episode = record.episode_id
        retraction = msgspec.structs.replace(
            record,
            label_id=label_id(request_id, "undo", target),
            kind="retract",
            verdict=None,
            reviewer=viewer.reviewer,
            created_ms=now_ms,
            tags=(),
            fault_code="",
            note="",
            supersedes=None,
            retracts=target,
            batch_id=request_id,
        )
        publish(connection, retraction)
        query = "SELECT event_id FROM label_event JOIN label USING (label_seq) WHERE label_id = ?"
        events = database.scalars(connection, query, (target,))
        parent = parts.get(episode)
        if parent is not None and _can_rejoin(connection, episode, parent):
            cases.merge_back(connection, episode, parent)
            episode = parent
        # Somebody may have split it further in between.
        for holder in cases.holding(connection, events):
            refresh_status(connection, holder, settings, now_ms)
        database.append_audit(
            connection,
            now_ms,
            viewer.reviewer,
            "undo",
            record.episode_id,
            label_id=retraction.label_id,
            retracts=target,
            events=len(record.events),
        )
        changed.append(episode)
        n_events += len(record.events)
    return changed, n_events


def _can_rejoin(connection: Connection, child: str, parent: str) -> bool:
    """Say whether a part and the rest have the same labels again, and nobody holds the rest."""
    query = "SELECT status FROM episode WHERE episode_id = ?"
    status = database.scalar(connection, query, (parent,))
    return status != "empty" and active_labels(records_of(connection, child)) == active_labels(
        records_of(connection, parent)
    )


def expire_due(store: ReviewStore, *, limit: int = 500) -> list[str]:
    """Expire open episodes older than ``max_age_ms``, oldest first; returns their ids."""
    # An expiry is a label with `source = "expired"` by `system`; a person's label given later takes
    # its place.
    settings, now_ms = store.settings, store.now_ms()
    with store.database.write() as connection:
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
                **_about(connection, row),
                verdict=_default_answer(connection, episode, settings.default_answer),
                source="expired",
                reviewer=SYSTEM,
                created_ms=now_ms,
                batch_id=label_id("expired", episode),
            )
            if not publish(connection, record):
                continue
            refresh_status(connection, episode, settings, now_ms)
            database.append_audit(
                connection,
                now_ms,
                SYSTEM,
                "expire",
                episode,
                default_answer=settings.default_answer,
                verdict=record.verdict,
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
