"""Who works on an episode, and who put it off; and what reviewers did, for retries and undo.

A claim is a lease. It is renewed while the reviewer's screen is visible and runs out by itself, so
a closed laptop never holds work back. Claiming is also the acknowledgement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, TypeAlias

from rejex_stream.errors import RejexError
from rejex_stream.review.queue import audit
from rejex_stream.review.queue.listing import QueueFilter, Viewer

__all__ = [
    "Done",
    "Lease",
    "Refusal",
    "RefusalCode",
    "claim",
    "claim_next",
    "counted",
    "held_by_other",
    "release",
    "remember",
    "renew",
    "repeated",
    "snooze",
    "undo_snooze",
]

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


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in the words the screen shows.

    Attributes
    ----------
    kind
        ``label``, ``snooze`` or ``undo``.
    episodes
        Ids the action changed, as they are called now.
    events
        How many events that is.
    """

    kind: Literal["label", "snooze", "undo"]
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


class Lease(NamedTuple):
    """A claim on one episode."""

    episode_id: str
    owner: str
    since_ms: int
    until_ms: int


def held_by_other(row: Row, reviewer: str, now_ms: int) -> bool:
    """Say whether somebody else holds a living claim on an episode row."""
    owner, until = row["lease_owner"], row["lease_until_ms"]
    return owner is not None and owner != reviewer and until > now_ms


def _row(connection: Connection, episode: str) -> Row:
    row: Row | None = connection.execute(
        "SELECT * FROM episode WHERE episode_id = ?", (episode,)
    ).fetchone()
    if row is None:
        raise Refusal("unknown", f"There is no case {episode}.", episode)
    return row


def claim(connection: Connection, episode: str, reviewer: str, now_ms: int, lease_ms: int) -> Lease:
    """Claim an episode for `reviewer`; claiming one's own again renews it.

    Raises
    ------
    Refusal
        ``leased`` with the holder's name, or ``unknown``.
    """
    row = _row(connection, episode)
    if held_by_other(row, reviewer, now_ms):
        minutes = max(1, round((row["lease_until_ms"] - now_ms) / 60_000))
        raise Refusal(
            "leased",
            f"{row['lease_owner']} is working on {episode} (claimed for another {minutes} min).",
            episode,
        )
    mine = row["lease_owner"] == reviewer and row["lease_until_ms"] > now_ms
    since = row["lease_since_ms"] if mine else now_ms
    connection.execute(
        "UPDATE episode SET lease_owner = ?, lease_since_ms = ?, lease_until_ms = ? "
        "WHERE episode_id = ?",
        (reviewer, since, now_ms + lease_ms, episode),
    )
    if not mine:
        audit.append(connection, now_ms, reviewer, "claim", episode)
    return Lease(episode, reviewer, since, now_ms + lease_ms)


def claim_next(
    connection: Connection,
    chosen: QueueFilter,
    viewer: Viewer,
    now_ms: int,
    lease_ms: int,
) -> Lease:
    """Claim the first ready episode of a filter that nobody holds.

    Raises
    ------
    Refusal
        ``nothing`` if none is left.
    """
    query = chosen.sql(viewer, now_ms)
    first = connection.execute(
        f"SELECT e.episode_id {query.source} "
        f"AND (e.lease_owner IS NULL OR e.lease_until_ms <= :now) {query.order} LIMIT 1",
        query.values,
    ).fetchone()
    if first is None:
        raise Refusal("nothing", "Nothing is left to claim in this view.")
    return claim(connection, first[0], viewer.reviewer, now_ms, lease_ms)


def renew(connection: Connection, episode: str, reviewer: str, now_ms: int, lease_ms: int) -> Lease:
    """Extend one's own claim.

    Raises
    ------
    Refusal
        ``lapsed`` if it ran out or belongs to somebody else by now.
    """
    row = _row(connection, episode)
    if row["lease_owner"] != reviewer or row["lease_until_ms"] <= now_ms:
        raise Refusal("lapsed", f"Your claim on {episode} has run out.", episode)
    connection.execute(
        "UPDATE episode SET lease_until_ms = ? WHERE episode_id = ?", (now_ms + lease_ms, episode)
    )
    return Lease(episode, reviewer, row["lease_since_ms"], now_ms + lease_ms)


def release(connection: Connection, episode: str, reviewer: str, now_ms: int) -> bool:
    """Give up one's own claim; says whether there was one."""
    row = _row(connection, episode)
    if row["lease_owner"] != reviewer:
        return False
    connection.execute(
        "UPDATE episode SET lease_owner = NULL, lease_until_ms = NULL, lease_since_ms = NULL "
        "WHERE episode_id = ?",
        (episode,),
    )
    audit.append(connection, now_ms, reviewer, "release", episode)
    return True


def snooze(
    connection: Connection,
    request_id: str,
    targets: Sequence[str],
    viewer: Viewer,
    *,
    until_ms: int,
    growth: bool,
    now_ms: int,
) -> Done:
    """Put episodes off until a time, and with `growth` also until the next event joins them.

    Raises
    ------
    Refusal
        ``leased``, ``unknown``, ``changed`` (already decided), ``forbidden`` or ``bad_request``.
    """
    before_now = repeated(connection, request_id, viewer)
    if before_now is not None:
        return before_now
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")
    if not targets or until_ms <= now_ms:
        raise Refusal("bad_request", "Name at least one case and a time that is still to come.")
    before, n_events = [], 0
    for episode in targets:
        row = connection.execute(
            "SELECT * FROM episode WHERE episode_id = ?", (episode,)
        ).fetchone()
        if row is None or row["status"] == "empty":
            raise Refusal("unknown", f"There is no case {episode}.", episode)
        if held_by_other(row, viewer.reviewer, now_ms):
            raise Refusal("leased", f"{row['lease_owner']} is working on {episode}.", episode)
        if row["status"] not in ("open", "needs_second"):
            raise Refusal("changed", f"{episode} has been decided meanwhile.", episode)
        before.append((episode, row["snooze_until_ms"], row["snooze_growth"]))
        n_events += row["n_events"]
    for episode, *_ in before:
        connection.execute(
            "UPDATE episode SET snooze_until_ms = ?, snooze_growth = ?, snooze_by = ?, "
            "lease_owner = NULL, lease_until_ms = NULL, lease_since_ms = NULL "
            "WHERE episode_id = ?",
            (until_ms, int(growth), viewer.reviewer, episode),
        )
        audit.append(
            connection,
            now_ms,
            viewer.reviewer,
            "snooze",
            episode,
            until_ms=until_ms,
            until_it_grows=growth,
        )
    minutes = round((until_ms - now_ms) / 60_000)
    length = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    done = Done(
        "snooze",
        f"{counted(len(before), 'case')} snoozed for {length}"
        + (" or until it grows" if growth else ""),
        tuple(targets),
        n_events,
    )
    remember(connection, request_id, viewer, done, now_ms=now_ms, payload={"before": before})
    return done


def undo_snooze(
    connection: Connection, payload: dict[str, Any], viewer: Viewer, now_ms: int
) -> tuple[list[str], int]:
    """Put back what a snooze changed; returns the episodes and their number of events."""
    changed, n_events = [], 0
    for episode, until_ms, growth in payload["before"]:
        row = connection.execute(
            "UPDATE episode SET snooze_until_ms = ?, snooze_growth = ? WHERE episode_id = ? "
            "RETURNING n_events",
            (until_ms, growth, episode),
        ).fetchone()
        audit.append(connection, now_ms, viewer.reviewer, "undo", episode, what="snooze")
        changed.append(episode)
        n_events += row["n_events"]
    return changed, n_events
