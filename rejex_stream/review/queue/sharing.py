"""Whose an episode is, and what people say about it.

A claim says who works on an episode now and runs out by itself; an assignment says whose it is and
lasts. Comments are rows of the audit: nobody can change one, and each has who and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from rejex_stream.config.reviewing import SYSTEM, Review, named_reviewer
from rejex_stream.review.queue import audit
from rejex_stream.review.queue.claims import Refusal, counted
from rejex_stream.review.queue.listing import Viewer

__all__ = [
    "MOST_COMMENT",
    "assign",
    "comment",
    "note",
    "people",
]

MOST_COMMENT = 2_000


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


def _may_act(viewer: Viewer) -> None:
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")


def assign(
    connection: Connection,
    settings: Review,
    targets: Sequence[str],
    viewer: Viewer,
    *,
    to: str,
    now_ms: int,
) -> str:
    """Give episodes to a person, or with an empty `to` back to everybody; says what was done.

    Raises
    ------
    Refusal
        ``forbidden``, ``unknown`` (an episode), ``changed`` (decided) or ``bad_request`` (nobody is
        called so: a slip would hide the episode from everybody).
    """
    _may_act(viewer)
    if to and to not in people(connection, settings, viewer):
        raise Refusal("bad_request", f"Nobody here is called {to}: name a reviewer.")
    for episode in targets:
        row = connection.execute(
            "SELECT status, assigned FROM episode WHERE episode_id = ?", (episode,)
        ).fetchone()
        if row is None or row["status"] == "empty":
            raise Refusal("unknown", f"There is no case {episode}.", episode)
        if row["status"] not in ("open", "needs_second", "disputed"):
            raise Refusal("changed", f"{episode} has been decided meanwhile.", episode)
        if (row["assigned"] or "") == to:
            continue
        connection.execute(
            "UPDATE episode SET assigned = ? WHERE episode_id = ?", (to or None, episode)
        )
        audit.append(connection, now_ms, viewer.reviewer, "assign", episode, to=to)
    return f"{counted(len(targets), 'case')} given {f'to {to}' if to else 'back to everybody'}"


def comment(
    connection: Connection,
    request_id: str,
    episode: str,
    viewer: Viewer,
    *,
    text: str,
    now_ms: int,
) -> None:
    """Add what somebody has to say of an episode; a request that is repeated adds nothing.

    Raises
    ------
    Refusal
        ``forbidden``, ``unknown`` or ``bad_request`` (nothing was said, or too much).
    """
    _may_act(viewer)
    text = text.strip()
    if not 0 < len(text) <= MOST_COMMENT:
        raise Refusal("bad_request", f"A comment has 1 to {MOST_COMMENT:,} characters.", episode)
    found = connection.execute(
        "SELECT status FROM episode WHERE episode_id = ?", (episode,)
    ).fetchone()
    if found is None or found["status"] == "empty":
        raise Refusal("unknown", f"There is no case {episode}.", episode)
    note(connection, request_id, episode, viewer, text=text, now_ms=now_ms)


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
    _may_act(viewer)
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
