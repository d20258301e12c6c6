"""What is in the queue, for whom: one query object behind every count and every list.

A number on a tab and the rows behind it come from the same :class:`QueueFilter`, so they cannot
disagree.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from rejex_stream.review.storage import Connection, Row

__all__ = [
    "ROLES",
    "SORTS",
    "TABS",
    "QueueFilter",
    "QueueQuery",
    "Role",
    "Tab",
    "Viewer",
    "parse_words",
]

Tab: TypeAlias = Literal["ready", "mine", "claimed", "waiting", "disputed", "done", "all"]
TABS: tuple[Tab, ...] = ("ready", "mine", "claimed", "waiting", "disputed", "done", "all")
Role: TypeAlias = Literal["viewer", "reviewer", "lead", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "reviewer", "lead", "admin")

SORTS = {
    "oldest": "e.priority DESC, e.received_ms, e.start_ms, e.episode_id",
    "newest": "e.received_ms DESC, e.start_ms DESC, e.episode_id",
    "doubtful": "e.confidence IS NULL, e.confidence, e.received_ms, e.episode_id",
    "size": "e.n_events DESC, e.received_ms, e.episode_id",
    "sensor": "s.sensor, e.start_ms, e.episode_id",
    "decided": "e.decided_ms IS NULL, e.decided_ms DESC, e.episode_id",
}
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Viewer(NamedTuple):
    """Who looks: what is ready depends on what one has already decided."""

    reviewer: str
    role: Role = "reviewer"


class QueueQuery(NamedTuple):
    """``FROM … WHERE …`` with its values, and the order."""

    source: str
    values: tuple[Any, ...]
    order: str


def parse_words(text: str) -> tuple[tuple[str, str], ...]:
    """Split a filter as typed into (field, value) pairs; bare words look for the sensor.

    Examples
    --------
    >>> parse_words('gear group:T07 age:>1h sensor:"T 7/vib"')
    (('', 'gear'), ('group', 'T07'), ('age', '>1h'), ('sensor', 'T 7/vib'))
    """
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote while typing
        words = text.replace('"', " ").replace("'", " ").split()
    pairs = []
    for word in filter(None, words):
        name, colon, value = word.partition(":")
        known = name in {"group", "sensor", "age", "events", "reason", "why", "verdict", "by"}
        pairs.append((name, value) if colon and known else ("", word))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """A view of the queue, as it stands in the address bar.

    Attributes
    ----------
    tab
        ``ready`` (open, settled, not snoozed, not held by others), ``mine``, ``claimed`` (by
        others), ``waiting`` (snoozed or settling), ``disputed``, ``done``, ``all``.
    words
        A filter as typed: bare words look in the sensor's name; ``group:``, ``sensor:``,
        ``age:>1h``, ``events:>10``, ``reason:``, ``why:audit``, ``verdict:``, ``by:``.
    sort
        A key of ``SORTS``.
    since_ms
        ``done`` only: decided at or after this time.
    """

    tab: Tab = "ready"
    words: str = ""
    sort: str = ""
    since_ms: int | None = None

    def with_tab(self, tab: Tab) -> QueueFilter:
        """Return the same words under another tab."""
        return replace(self, tab=tab, sort="")

    def address(self) -> str:
        """Return the address of this view.

        Examples
        --------
        >>> QueueFilter("done", "group:T07").address()
        '/queue?tab=done&q=group%3AT07'
        """
        parts: dict[str, str | int] = {"tab": self.tab}
        if self.words:
            parts["q"] = self.words
        if self.sort:
            parts["sort"] = self.sort
        if self.since_ms is not None:
            parts["since"] = self.since_ms
        return "/queue?" + urlencode(parts)

    def sql(self, viewer: Viewer, now_ms: int) -> QueueQuery:
        """Return the query behind every count and list of this view."""
        clause, values = _TAB_CLAUSES[self.tab], list[Any]()
        if self.tab == "done" and self.since_ms is not None:
            clause += " AND e.decided_ms >= :since"
        for field, value in parse_words(self.words):
            for part, number in _word_clause(field, value, now_ms):
                clause += f" AND {part}"
                values.append(number)
        # Named and positional values do not mix: the named ones are put in place here.
        names = {"me": viewer.reviewer, "now": now_ms, "since": self.since_ms}
        ordered: list[Any] = []
        word_values = iter(values)

        def place(match: re.Match[str]) -> str:
            name = match.group(1)
            ordered.append(names[name] if name else next(word_values))
            return "?"

        where = re.sub(r":(me|now|since)\b|\?", place, clause)
        default = "decided" if self.tab == "done" else "oldest"
        order = SORTS.get(self.sort, SORTS[default])
        source = f"FROM episode e JOIN sensor s USING (sensor_id) WHERE {where}"
        return QueueQuery(source, tuple(ordered), f"ORDER BY {order}")

    def count(self, connection: Connection, viewer: Viewer, now_ms: int) -> int:
        """Return how many episodes this view holds."""
        query = self.sql(viewer, now_ms)
        found = connection.execute(f"SELECT count(*) {query.source}", query.values).fetchone()[0]
        return int(found)

    def ids(
        self, connection: Connection, viewer: Viewer, now_ms: int, limit: int = 10_000
    ) -> list[tuple[str, int, str]]:
        """Return (episode id, events, status) of every episode in the view, in order."""
        query = self.sql(viewer, now_ms)
        return [
            tuple(row)
            for row in connection.execute(
                f"SELECT e.episode_id, e.n_events, e.status {query.source} {query.order} LIMIT ?",
                (*query.values, limit),
            )
        ]

    def rows(
        self,
        connection: Connection,
        viewer: Viewer,
        now_ms: int,
        *,
        limit: int = 500,
        offset: int = 0,
    ) -> Iterator[Row]:
        """Yield the episodes with their sensors, in order."""
        query = self.sql(viewer, now_ms)
        yield from connection.execute(
            "SELECT e.*, s.stream_key, s.sensor, s.grp, s.pipeline, s.channels "
            f"{query.source} {query.order} LIMIT ? OFFSET ?",
            (*query.values, limit, offset),
        )


# A second opinion is work for everybody but the first reviewer.
_WORK = (
    "(e.status = 'open' OR (e.status = 'needs_second' AND NOT EXISTS ("
    "SELECT 1 FROM label l JOIN label_event le USING (label_seq) JOIN event v USING (event_id) "
    "WHERE v.episode_id = e.episode_id AND l.reviewer = :me AND l.kind = 'label' AND NOT EXISTS "
    "(SELECT 1 FROM label r WHERE r.kind = 'retract' AND r.target = l.label_id))))"
)
_AWAKE = "(e.snooze_until_ms IS NULL OR e.snooze_until_ms <= :now) AND e.ready_ms <= :now"
_HELD = "e.lease_owner IS NOT NULL AND e.lease_until_ms > :now"

_TAB_CLAUSES: dict[Tab, str] = {
    "ready": f"{_WORK} AND {_AWAKE} AND NOT ({_HELD} AND e.lease_owner <> :me)",
    "mine": f"{_WORK} AND {_HELD} AND e.lease_owner = :me",
    "claimed": f"{_WORK} AND {_HELD} AND e.lease_owner <> :me",
    "waiting": f"{_WORK} AND NOT ({_AWAKE})",
    "disputed": "e.status = 'disputed'",
    "done": "e.status IN ('done', 'expired')",
    "all": "e.status <> 'empty'",
}


def _comparison(value: str) -> tuple[str, str]:
    match = re.match(r"(<=|>=|<|>|=)?(.*)", value)
    assert match is not None
    return match.group(1) or ">=", match.group(2).strip()


def _word_clause(field: str, value: str, now_ms: int) -> Iterator[tuple[str, Any]]:
    """Yield the clause of one filter word with its value; nothing for what cannot be read."""
    if field == "":
        # Found where taking it away makes a difference: nothing in it is a wildcard.
        yield "replace(lower(s.sensor), lower(?), '') <> lower(s.sensor)", value
    elif field == "group":
        yield "s.grp = ?", value
    elif field == "sensor":
        yield "s.sensor = ?", value
    elif field == "why":
        yield "e.why = ?", value
    elif field == "verdict":
        yield "e.verdict = ?", value
    elif field == "reason":
        yield (
            "EXISTS (SELECT 1 FROM event v WHERE v.episode_id = e.episode_id AND v.reason = ?)",
            value,
        )
    elif field == "by":
        yield (
            "EXISTS (SELECT 1 FROM label l WHERE l.episode_id = e.episode_id AND l.reviewer = ?)",
            value,
        )
    elif field == "events":
        sign, number = _comparison(value)
        if number.isdigit():
            yield f"e.n_events {sign} ?", int(number)
    elif field == "age":
        sign, text = _comparison(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
        if match:
            age_ms = float(match.group(1)) * _UNITS[match.group(2)]
            yield f"? - e.received_ms {sign} {age_ms:.0f}", now_ms
