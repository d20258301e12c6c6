"""Putting an episode off: until a time, or until it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rejex_stream.review import auditlog
from rejex_stream.review.actions import Done, counted, remember, repeated
from rejex_stream.review.leases import held_by_other
from rejex_stream.review.queue import Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.storage import Connection

__all__ = ["snooze", "undo_snooze"]


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
        raise Refusal("bad_request", "Name at least one episode and a time that is still to come.")
    before, n_events = [], 0
    for episode in targets:
        row = connection.execute(
            "SELECT * FROM episode WHERE episode_id = ?", (episode,)
        ).fetchone()
        if row is None or row["status"] == "empty":
            raise Refusal("unknown", f"There is no episode {episode}.", episode)
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
        auditlog.append(
            connection,
            at_ms=now_ms,
            actor=viewer.reviewer,
            action="snooze",
            subject=episode,
            detail={"until_ms": until_ms, "until_it_grows": growth},
        )
    minutes = round((until_ms - now_ms) / 60_000)
    length = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    done = Done(
        "snooze",
        f"{counted(len(before), 'episode')} snoozed for {length}"
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
        auditlog.append(
            connection,
            at_ms=now_ms,
            actor=viewer.reviewer,
            action="undo",
            subject=episode,
            detail={"what": "snooze"},
        )
        changed.append(episode)
        n_events += row["n_events"]
    return changed, n_events
