"""Who works on a case, whose it is, what people say of it, and what they did: for retries and undo.

A claim is a lease. It is renewed while the reviewer's screen is visible and runs out by itself, so
a closed laptop never holds work back; claiming is also the acknowledgement. An assignment says
whose a case is and lasts. Comments are rows of the audit: nobody can change one, and each has who
and when.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from sqlite3 import Connection, Row
from typing import Any, Literal, TypeAlias

from rejex_stream.config.reviewing import SYSTEM, Review, named_reviewer
from rejex_stream.errors import RejexError
from rejex_stream.review.queue import audit
from rejex_stream.review.queue.listing import QueueFilter, Viewer
from rejex_stream.review.queue.store import ReviewStore

__all__ = [
    "LEASE_MS",
    "MOST_COMMENT",
    "Done",
    "Lease",
    "Refusal",
    "RefusalCode",
    "assign",
    "case_row",
    "claim",
    "claim_next",
    "comment",
    "counted",
    "held_by_other",
    "note",
    "people",
    "release",
    "remember",
    "renew",
    "repeated",
    "require_reviewer",
]

LEASE_MS = 600_000
"""How long a claim lasts without a sign of life."""
MOST_COMMENT = 2_000
RefusalCode: TypeAlias = Literal[
    "leased", "changed", "unknown", "not_yours", "lapsed", "forbidden", "bad_request", "nothing"
]


class Refusal(RejexError):  # noqa: N818 - a refused action is an answer, not a failure
    """An action on the queue that is not possible now; nothing was written.

    Parameters
    ----------
    code
        ``leased`` (somebody else holds it), ``changed`` (decided or grown meanwhile), ``unknown``,
        ``not_yours``, ``lapsed`` (the claim ran out), ``forbidden`` (role), ``bad_request``,
        ``nothing`` (nothing to undo or to claim).
    message
        One sentence for the reviewer.
    episode_id
        The episode it is about, where there is one.
    """

    def __init__(self, code: RefusalCode, message: str, episode_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.episode_id = episode_id


def require_reviewer(viewer: Viewer) -> None:
    """Refuse whoever may only look."""
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")


def case_row(connection: Connection, episode: str) -> Row:
    """Return the row of an episode; one whose events have all moved elsewhere is none."""
    row: Row | None = connection.execute(
        "SELECT * FROM episode WHERE episode_id = ? AND status <> 'empty'", (episode,)
    ).fetchone()
    if row is None:
        raise Refusal("unknown", f"There is no case {episode}.", episode)
    return row


# ------------------------------------------------------------------------- retries and undo
@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in the words the screen shows.

    Attributes
    ----------
    kind
        ``label`` or ``undo``.
    episodes
        Ids the action changed, as they are called now.
    events
        How many events that is.
    """

    kind: Literal["label", "undo"]
    message: str
    episodes: tuple[str, ...]
    events: int


def counted(number: int, word: str) -> str:
    """Return a number with its word.

    Examples
    --------
    >>> counted(1, "event"), counted(1200, "event")
    ('1 event', '1,200 events')
    """
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
    connection.execute(
        "INSERT INTO action (request_id, reviewer, kind, at_ms, undone, payload, result) "
        "VALUES (?,?,?,?,?,?,?)",
        (
            request_id,
            viewer.reviewer,
            done.kind,
            now_ms,
            int(done.kind == "undo"),
            json.dumps(payload),
            json.dumps(asdict(done)),
        ),
    )


# ---------------------------------------------------------------------------------- claims
@dataclass(frozen=True, slots=True)
class Lease:
    """A claim on one episode."""

    episode_id: str
    owner: str
    since_ms: int
    until_ms: int


def held_by_other(row: Row, reviewer: str, now_ms: int) -> bool:
    """Say whether somebody else holds a claim on an episode row that has not run out."""
    owner, until = row["lease_owner"], row["lease_until_ms"]
    return owner is not None and owner != reviewer and until > now_ms


def claim(store: ReviewStore, episode: str, viewer: Viewer) -> Lease:
    """Claim an episode; claiming one's own again renews it.

    Raises
    ------
    Refusal
        ``leased`` with the holder's name, ``unknown`` or ``forbidden``.
    """
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
    since = row["lease_since_ms"] if mine else now_ms
    connection.execute(
        "UPDATE episode SET lease_owner = ?, lease_since_ms = ?, lease_until_ms = ? "
        "WHERE episode_id = ?",
        (viewer.reviewer, since, now_ms + LEASE_MS, episode),
    )
    if not mine:
        audit.append(connection, now_ms, viewer.reviewer, "claim", episode)
    return Lease(episode, viewer.reviewer, since, now_ms + LEASE_MS)


def claim_next(store: ReviewStore, chosen: QueueFilter, viewer: Viewer) -> Lease:
    """Claim the first ready episode of a filter that nobody holds.

    Raises
    ------
    Refusal
        ``nothing`` if none is left, or ``forbidden``.
    """
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


def renew(store: ReviewStore, episode: str, viewer: Viewer) -> Lease:
    """Extend one's own claim.

    Raises
    ------
    Refusal
        ``lapsed`` if it ran out or belongs to somebody else by now.
    """
    now_ms = store.now_ms()
    with store.database.write() as connection:
        row = case_row(connection, episode)
        if row["lease_owner"] != viewer.reviewer or row["lease_until_ms"] <= now_ms:
            raise Refusal("lapsed", f"Your claim on {episode} has run out.", episode)
        connection.execute(
            "UPDATE episode SET lease_until_ms = ? WHERE episode_id = ?",
            (now_ms + LEASE_MS, episode),
        )
    return Lease(episode, viewer.reviewer, row["lease_since_ms"], now_ms + LEASE_MS)


def release(store: ReviewStore, episode: str, viewer: Viewer) -> bool:
    """Give up one's own claim; says whether there was one."""
    with store.database.write() as connection:
        if case_row(connection, episode)["lease_owner"] != viewer.reviewer:
            return False
        connection.execute(
            "UPDATE episode SET lease_owner = NULL, lease_until_ms = NULL, lease_since_ms = NULL "
            "WHERE episode_id = ?",
            (episode,),
        )
        audit.append(connection, store.now_ms(), viewer.reviewer, "release", episode)
    return True


# ----------------------------------------------------------------- whose it is, what is said
def people(
    connection: Connection, settings: Review, viewer: Viewer, *, blind: bool = False
) -> list[str]:
    """Return everybody who can be given work: who is named in the settings, or has acted here.

    In a `blind` review those who have acted are left out: one of them gave the first answer.
    """
    roles = dict(named_reviewer(text) for text in settings.reviewers)
    named = {name for name, role in roles.items() if role != "viewer"} | set(settings.leads)
    acted = {
        row[0]
        for row in connection.execute(
            "SELECT DISTINCT actor FROM audit WHERE action IN ('claim', 'label', 'assign')"
        )
    }
    may_not = {SYSTEM} | {name for name, role in roles.items() if role == "viewer"}
    return sorted((named | (set() if blind else acted) | {viewer.reviewer}) - may_not)


def assign(store: ReviewStore, targets: Sequence[str], viewer: Viewer, *, to: str) -> str:
    """Give episodes to a person, or with an empty `to` back to everybody; says what was done.

    Raises
    ------
    Refusal
        ``forbidden``, ``unknown`` (an episode), ``changed`` (decided) or ``bad_request`` (nobody is
        called so: a slip would hide the episode from everybody).
    """
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
            audit.append(connection, store.now_ms(), viewer.reviewer, "assign", episode, to=to)
    return f"{counted(len(targets), 'case')} given {f'to {to}' if to else 'back to everybody'}"


def comment(
    store: ReviewStore, request_id: str, episode: str, viewer: Viewer, *, text: str
) -> None:
    """Add what somebody has to say of an episode; a request that is repeated adds nothing.

    Raises
    ------
    Refusal
        ``forbidden``, ``unknown`` or ``bad_request`` (nothing was said, or too much).
    """
    if not 0 < len(text.strip()) <= MOST_COMMENT:
        raise Refusal("bad_request", f"A comment has 1 to {MOST_COMMENT:,} characters.", episode)
    with store.database.write() as connection:
        case_row(connection, episode)
        note(connection, request_id, episode, viewer, text=text, now_ms=store.now_ms())


def note(
    connection: Connection,
    request_id: str,
    subject: str,
    viewer: Viewer,
    *,
    text: str,
    now_ms: int,
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
        audit.append(connection, now_ms, viewer.reviewer, action, subject, **detail)
