"""What reviewers did, remembered for two reasons: a retried request, and undo."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rejex_stream.review.queue import Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.storage import Connection

__all__ = ["Done", "counted", "remember", "repeated"]


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
