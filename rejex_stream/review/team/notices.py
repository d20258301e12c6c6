"""What those are told who do not look at the screen: a claim, an SLA about to break, a full queue.

Each is an event at the webhook of `[alerts]`, signed and tried again there, and told once: how far
it was told stands in the store, so a restart tells nothing again.
"""

from __future__ import annotations

from collections.abc import Callable
from sqlite3 import Connection
from typing import Any, TypeAlias

from rejex_stream.config.reviewing import Review
from rejex_stream.operate.alert_messages import Event, cloud_event
from rejex_stream.review.queue.claims import counted
from rejex_stream.review.queue.store import ReviewStore

__all__ = ["Notices", "Tell"]

Tell: TypeAlias = Callable[[Event], None]
_SOON = 0.75
"""From this share of `review.sla_hours` on, people are told that it is about to break."""
_MOST_NAMED = 20
_WAITING = "status IN ('open', 'needs_second', 'disputed')"
_CLAIMS, _LATE, _FULL = ("told_claims_seq", "told_late_ms", "told_full")


class Notices:
    """Tells of a store what `review.notify` names.

    Parameters
    ----------
    tell
        Takes an event and returns at once, such as a :class:`~rejex_stream.operate.Webhook`.
    console_url
        Where the console is, for links.
    name
        Whose queue it is.
    """

    def __init__(
        self,
        store: ReviewStore,
        tell: Tell,
        *,
        console_url: str | None = None,
        name: str = "review",
    ) -> None:
        self._store, self._tell = store, tell
        self._url, self._name = console_url, name

    def round(self) -> bool:
        """Tell what is new; says whether there was anything."""
        store = self._store
        now_ms = store.now_ms()
        asked = {"claim": self._claims, "sla": self._late, "full": self._full}
        with store.database.read() as connection:
            if not self._anything(connection, store.settings, now_ms):
                return False
        with store.database.write() as connection:
            events = [
                event
                for kind, look in asked.items()
                if kind in store.settings.notify
                for event in look(connection, store.settings, now_ms)
            ]
        for event in events:
            self._tell(event)
        return bool(events)

    @staticmethod
    def _anything(connection: Connection, settings: Review, now_ms: int) -> bool:
        """Say whether it may be worth the write lock."""
        claimed = connection.execute(
            "SELECT 1 FROM audit WHERE action IN ('claim', 'assign') AND seq > ? LIMIT 1",
            (_known(connection, _CLAIMS),),
        ).fetchone()
        late = connection.execute(
            f"SELECT 1 FROM episode WHERE {_WAITING} AND received_ms > ? AND received_ms <= ? "
            "LIMIT 1",
            (_known(connection, _LATE), now_ms - round(_SOON * settings.sla_ms)),
        ).fetchone()
        full = _is_full(connection, settings) != bool(_known(connection, _FULL))
        wanted = settings.notify
        return bool(
            ("claim" in wanted and claimed)
            or ("sla" in wanted and late)
            or ("full" in wanted and full)
        )

    def _claims(self, connection: Connection, settings: Review, now_ms: int) -> list[Event]:
        rows = connection.execute(
            "SELECT a.seq, a.at_ms, a.actor, a.action, a.subject, s.sensor, "
            "json_extract(a.detail, '$.to') AS whose FROM audit a "
            "JOIN episode e ON e.episode_id = a.subject JOIN sensor s USING (sensor_id) "
            "WHERE a.action IN ('claim', 'assign') AND a.seq > ? ORDER BY a.seq LIMIT 100",
            (_known(connection, _CLAIMS),),
        ).fetchall()
        events = []
        for row in rows:
            claimed = row["action"] == "claim"
            to = row["actor"] if claimed else row["whose"] or "everybody"
            message = (
                f"{row['actor']} claimed {row['subject']} of {row['sensor']}."
                if claimed
                else f"{row['actor']} gave {row['subject']} of {row['sensor']} to {to}."
            )
            events.append(
                self._event(
                    f"review-{row['action']}",
                    str(row["seq"]),
                    row["at_ms"],
                    message,
                    f"/episode/{row['subject']}",
                    episode=row["subject"],
                    sensor=row["sensor"],
                    reviewer=to,
                )
            )
        if rows:
            _note(connection, _CLAIMS, rows[-1]["seq"])
        return events

    def _late(self, connection: Connection, settings: Review, now_ms: int) -> list[Event]:
        since, until = _known(connection, _LATE), now_ms - round(_SOON * settings.sla_ms)
        found = connection.execute(
            f"SELECT episode_id FROM episode WHERE {_WAITING} AND received_ms > ? "
            "AND received_ms <= ? ORDER BY received_ms, episode_id",
            (since, until),
        ).fetchall()
        _note(connection, _LATE, until)
        if not found:
            return []
        message = (
            f"{counted(len(found), 'episode')} waited for {_SOON:.0%} of the "
            f"{settings.sla_hours:g} h after which they are late."
        )
        names = [row[0] for row in found[:_MOST_NAMED]]
        return [
            self._event(
                "review-sla", str(until), now_ms, message, "/queue?sort=oldest",
                episodes=names, count=len(found),
            )
        ]  # fmt: skip

    def _full(self, connection: Connection, settings: Review, now_ms: int) -> list[Event]:
        full, before = _is_full(connection, settings), bool(_known(connection, _FULL))
        if full == before:
            return []
        _note(connection, _FULL, now_ms if full else 0)
        if not full:
            return []
        message = f"{_waiting(connection):,} episodes wait; the queue is full at "
        message += f"{settings.full_at:,}."
        return [self._event("review-full", str(now_ms), now_ms, message, "/queue")]

    def _event(
        self,
        kind: str,
        key: str,
        at_ms: int,
        message: str,
        path: str,
        **data: Any,  # noqa: ANN401
    ) -> Event:
        link = {} if self._url is None else {"link": self._url.rstrip("/") + path}
        told = {"message": message, **data, **link}
        return cloud_event(self._name, kind, f"{kind}/{key}", self._name, at_ms, told)


def _is_full(connection: Connection, settings: Review) -> bool:
    """Say whether so many wait; once full, until a tenth less do."""
    if settings.full_at is None:
        return False
    already = bool(_known(connection, _FULL))
    return _waiting(connection) >= settings.full_at * (0.9 if already else 1.0)


def _waiting(connection: Connection) -> int:
    return int(connection.execute(f"SELECT count(*) FROM episode WHERE {_WAITING}").fetchone()[0])


def _known(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def _note(connection: Connection, name: str, value: int) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (name, str(value)),
    )
