"""Who may do what, and who did what, in a chain that shows tampering.

Each row's hash covers the row and the hash before it, so a row that is changed, dropped or slipped
in breaks every later hash. Triggers refuse updates and deletes; the chain shows what got past them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from rejex_stream.config.reviewing import Role
from rejex_stream.errors import RejexError

Name = Annotated[str, Meta(min_length=1, max_length=64)]


class Viewer(NamedTuple):
    """Who looks: what is ready depends on what one has already decided."""

    reviewer: str
    role: Role = "reviewer"


RefusalCode: TypeAlias = Literal[
    "leased", "changed", "unknown", "forbidden", "bad_request", "nothing"
]


class Refusal(RejexError):  # noqa: N818 - a refused action is an answer, not a failure
    """An action on the queue that is not possible now; nothing was written."""

    def __init__(self, code: RefusalCode, message: str, episode_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.episode_id = episode_id


def require_reviewer(viewer: Viewer) -> None:
    """Refuse whoever may only look."""
    if viewer.role == "viewer":
        raise Refusal("forbidden", "You may look but not decide: ask for the role reviewer.")


_GENESIS = "0" * 64


class AuditRow(NamedTuple):
    """One state change."""

    seq: int
    at_ms: int
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str


def _digest(previous: str, *content: int | str) -> str:
    text = json.dumps([previous, *content], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def append(
    connection: Connection,
    at_ms: int,
    actor: str,
    action: str,
    subject: str,
    **detail: Any,  # noqa: ANN401 - whatever JSON can hold
) -> None:
    """Add one row; the caller's transaction holds the change it speaks of."""
    last = connection.execute("SELECT hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    text = json.dumps(detail, ensure_ascii=False, sort_keys=True)
    digest = _digest(last["hash"] if last else _GENESIS, at_ms, actor, action, subject, text)
    connection.execute(
        "INSERT INTO audit (at_ms, actor, action, subject, detail, hash) VALUES (?,?,?,?,?,?)",
        (at_ms, actor, action, subject, text, digest),
    )


def broken_link(connection: Connection) -> int | None:
    """Return the `seq` of the first row whose hash does not follow, ``None`` if all do; O(rows)."""
    previous = _GENESIS
    query = "SELECT seq, at_ms, actor, action, subject, detail, hash FROM audit ORDER BY seq"
    for row in connection.execute(query):
        seq, *content, found = tuple(row)
        if _digest(previous, *content) != found:
            return int(seq)
        previous = found
    return None


def rows(
    connection: Connection,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    before_seq: int | None = None,
    limit: int = 200,
) -> Iterator[AuditRow]:
    """Yield the newest rows first, filtered; page on with `before_seq`."""
    where, values = ["1 = 1"], list[str | int]()
    for column, value in (("actor", actor), ("action", action), ("subject", subject)):
        if value:
            where.append(f"{column} = ?")
            values.append(value)
    if before_seq is not None:
        where.append("seq < ?")
        values.append(before_seq)
    query = f"SELECT * FROM audit WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"
    for row in connection.execute(query, (*values, limit)):
        yield AuditRow(**{**dict(row), "detail": json.loads(row["detail"])})
