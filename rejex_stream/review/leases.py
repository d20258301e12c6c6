"""Claims: who is looking at an episode, for how long, and never two people at once.

A claim is a lease. It is renewed while the reviewer's screen is visible and runs out by itself, so
a closed laptop never holds work back. Claiming is also the acknowledgement.
"""

from __future__ import annotations

from typing import NamedTuple

from rejex_stream.review import auditlog
from rejex_stream.review.queue import QueueFilter, Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.storage import Connection, Row

__all__ = ["Lease", "claim", "claim_next", "held_by_other", "release", "renew"]


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
        raise Refusal("unknown", f"There is no episode {episode}.", episode)
    return row


def claim(
    connection: Connection, episode: str, reviewer: str, *, now_ms: int, lease_ms: int
) -> Lease:
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
        auditlog.append(connection, at_ms=now_ms, actor=reviewer, action="claim", subject=episode)
    return Lease(episode, reviewer, since, now_ms + lease_ms)


def claim_next(
    connection: Connection,
    chosen: QueueFilter,
    viewer: Viewer,
    *,
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
        f"SELECT e.episode_id {query.source} AND (e.lease_owner IS NULL OR e.lease_until_ms <= ?) "
        f"{query.order} LIMIT 1",
        (*query.values, now_ms),
    ).fetchone()
    if first is None:
        raise Refusal("nothing", "Nothing is left to claim in this view.")
    return claim(connection, first[0], viewer.reviewer, now_ms=now_ms, lease_ms=lease_ms)


def renew(
    connection: Connection, episode: str, reviewer: str, *, now_ms: int, lease_ms: int
) -> Lease:
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


def release(connection: Connection, episode: str, reviewer: str, *, now_ms: int) -> bool:
    """Give up one's own claim; says whether there was one."""
    row = _row(connection, episode)
    if row["lease_owner"] != reviewer:
        return False
    connection.execute(
        "UPDATE episode SET lease_owner = NULL, lease_until_ms = NULL, lease_since_ms = NULL "
        "WHERE episode_id = ?",
        (episode,),
    )
    auditlog.append(connection, at_ms=now_ms, actor=reviewer, action="release", subject=episode)
    return True
