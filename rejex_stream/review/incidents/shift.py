"""What whoever takes over has to know of the last hours, and which streams alarm most.

By the clock of each pipeline, so that a history that is read again says the same. Situations are
counted, since each is one alarm for a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from sqlite3 import Connection
from typing import NamedTuple

from rejex_stream.review.queue.database import scalar
from rejex_stream.review.queue.series import DAY_MS, HOUR_MS

SHIFT_HOURS = 8
ATTENDED_AN_HOUR = 6
"""Alarms that one operator can attend to in an hour, on average (ANSI/ISA-18.2-2016, 16.5)."""
_MONTH_MS = 30 * DAY_MS
_CHATTERING, _MOST_ACTORS = 3, 10


class Actor(NamedTuple):
    """A stream that alarms more than once."""

    stream_key: str
    incidents: int  # opened in the last 30 days
    is_chattering: bool  # three or more of them within the last day


class Shift(NamedTuple):
    """Counts of situations in the last eight hours, and what alarms most often."""

    opened: int
    ended: int
    answered: int
    standing: int  # open for more than a day
    actors: tuple[Actor, ...]  # the most frequent first

    @property
    def an_hour(self) -> float:
        """Alarms an hour, to compare with `ATTENDED_AN_HOUR`."""
        return self.opened / SHIFT_HOURS


def last_shift(connection: Connection, now_ms: int, newest_ms: Mapping[str, int]) -> Shift:
    """Return what happened in the eight hours before the newest event; O(incidents)."""
    begun_ms = SHIFT_HOURS * HOUR_MS
    opened = ended = standing = 0
    actors = list[Actor]()
    for pipeline, at_ms in newest_ms.items():
        times = {"pipeline": pipeline, "shift": at_ms - begun_ms,
                 "day": at_ms - DAY_MS, "month": at_ms - _MONTH_MS}  # fmt: skip
        counts = connection.execute(
            "SELECT count(DISTINCT situation) FILTER (WHERE opened_ms > :shift), "
            "count(DISTINCT situation) FILTER (WHERE state = 'closed' AND changed_ms > :shift), "
            "count(DISTINCT situation) FILTER (WHERE state <> 'closed' AND opened_ms <= :day) "
            "FROM incident WHERE pipeline = :pipeline",
            times,
        ).fetchone()
        opened, ended, standing = opened + counts[0], ended + counts[1], standing + counts[2]
        actors += [
            Actor(stream, n, of_day >= _CHATTERING)
            for stream, n, of_day in connection.execute(
                "SELECT stream_key, count(*) AS n, sum(opened_ms > :day) FROM incident "
                "WHERE pipeline = :pipeline AND opened_ms > :month GROUP BY stream_key "
                f"HAVING n > 1 ORDER BY n DESC, stream_key LIMIT {_MOST_ACTORS}",
                times,
            )
        ]
    answered = scalar(
        connection,
        "SELECT count(*) FROM answer WHERE given_ms > ? AND withdrawn_ms IS NULL "
        "AND command NOT LIKE '%.%' AND incident <> ''",
        (now_ms - begun_ms,),
    )
    actors.sort(key=lambda actor: -actor.incidents)
    return Shift(opened, ended, answered, standing, tuple(actors[:_MOST_ACTORS]))
