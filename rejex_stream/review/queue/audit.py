"""Who did what, in a chain that shows tampering.

Each row's hash covers the row and the hash before it, so a row that is changed, dropped or slipped
in breaks every later hash. Triggers refuse updates and deletes; the chain shows what got past them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from sqlite3 import Connection
from typing import Any, NamedTuple

__all__ = ["AuditRow", "append", "broken_link", "rows"]

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
