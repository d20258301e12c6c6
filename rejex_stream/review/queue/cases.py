"""Cases: rejected events of one sensor that belong together, so that one answer decides them all.

An unstable minute at 1 Hz is 60 rejected events and one question. Every event belongs to exactly
one case, and all events of a case always have the same labels: labelling a part splits it. Events
of one incident are one case for as long as it lasts; what comes after that was decided is kept in
one that asks nobody again. Cases are made here and not in the worker: they bring nothing to a
verdict, change with what people say (a split, an undo), and what they are made of, the review
items with the events before each, is kept as long as anybody wants to make the store again.

In the store, in addresses and in labels a case is called `episode`, as on the wire.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np

from rejex_stream.config.reviewing import Review
from rejex_stream.plan.promises import Costs, cost_of_leaning
from rejex_stream.rejection.judge import EXTREME
from rejex_stream.review.queue.database import insert, scalar, scalars
from rejex_stream.types import ContextPoint, Incident, IncidentState, Label, Position, ReviewItem

_COPIED = (
    "sensor_id, why, start_ms, end_ms, first_seq, last_seq, n_events, confidence, priority, "
    "received_ms, ready_ms, incident, step_ms"
)
_AS_IT_CAME = (*("sensor_id", "why", "confidence", "priority", "received_ms", "severity", "worth"),)
# Digits and letters that nobody mistakes for one another in speech.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class EpisodeSpan(NamedTuple):
    """As much of an episode as decides whether one more event belongs to it."""

    start_ms: int
    end_ms: int
    first_seq: int
    last_seq: int
    n_events: int


class Arrival(NamedTuple):
    """A review event on its way into an episode."""

    sensor_id: int
    position: Position
    event_time_ms: int
    seq: int
    why: str
    confidence: float | None
    priority: int
    received_ms: int
    incident: str | None = None
    severity: float | None = None
    worth: float = 0.0
    context: Sequence[ContextPoint] = ()


OF_VERDICT = ("position", "event_time_ms", "seq", "confidence", "incident", "severity")
"""Fields of an arrival that are its verdict's."""


def episode_id(*parts: str) -> str:
    """Return a short id that depends on nothing but `parts`."""
    digest = int.from_bytes(hashlib.sha256("\x1f".join(parts).encode()).digest()[:8], "big")
    return "E-" + "".join(_ALPHABET[(digest >> (5 * i)) & 31] for i in range(10))


_LEAST_GAP, _MOST_GAP = 5, 60
MOST_EVENTS = 500  # a case of so many events is continued by a new one
LONGEST_MS = 86_400_000
"""And one that is a day long: the shape that is asked about must fit a screen."""


def stream_gap(context: Sequence[ContextPoint]) -> int:
    """Return how many events apart two rejected events are still the same doubt."""
    # Three times the lag at which the autocorrelation of the scores before an event falls below
    # 1/e, and 5 to 60: what remembers itself for long comes back for long. It depends on nothing
    # but the review item, so that a recreated store has the same cases. O(context**2).
    scores = np.array([one.score for one in context if one.score is not None], dtype=np.float64)
    if len(scores) < 8 or not np.isfinite(scores).all():
        return _LEAST_GAP
    scores = scores - scores.mean()
    power = float(scores @ scores)
    for lag in range(1, len(scores) // 2 if power > 0 else 1):
        if float(scores[lag:] @ scores[:-lag]) < power / math.e:
            return min(_MOST_GAP, max(_LEAST_GAP, 3 * lag))
    return _MOST_GAP if power > 0 else _LEAST_GAP


def belongs(span: EpisodeSpan, event: Arrival, gap: int) -> bool:
    """Return whether an event continues a case: at most `gap` steps in a row are all ordinary.

    Anomalies between them, which are in the event's context, are no gap.
    """
    if span.n_events >= MOST_EVENTS:
        return False
    start, end = min(span.start_ms, event.event_time_ms), max(span.end_ms, event.event_time_ms)
    if end - start > LONGEST_MS:
        return False
    left = max(event.seq - span.last_seq, span.first_seq - event.seq)
    steps = 1
    for point in reversed(event.context) if event.seq > span.last_seq else ():
        if point.event_time_ms <= span.end_ms or left <= 1 or steps > gap:
            break
        left -= 1
        steps = 1 if point.label is not Label.NORMAL else steps + 1
    return steps <= gap and steps + left - 1 <= gap


_MOST = 10.0  # a severity beyond which nothing is more severe to people: 100 of 100


def worth_of(item: ReviewItem, costs: Costs) -> float:
    """Return what an answer about one event saves: the expected cost of the label it leans to."""
    # Of an extreme anomaly nobody knows as yet: telling somebody saves a miss, which weighs one to
    # two and a half, the more severe the more. An audited event has none: it is asked because it
    # was drawn.
    if item.why == "audit":
        return 0.0
    if item.why == "extreme":
        return costs.c_fn * min(max(item.verdict.severity or 0.0, EXTREME), _MOST) / EXTREME
    p = item.verdict.stability
    if p is None:  # it cannot be ranked
        return min(costs.c_fn, costs.c_fp) / 2
    return cost_of_leaning(p, costs)


def assign(connection: Connection, event: Arrival, settings: Review) -> str:
    """Return the episode `event` goes to, made or extended; O(log episodes)."""
    # Only an episode that nobody has labelled takes more events; audits stand alone, since each is
    # a draw of its own.
    # Data older than the settling time cannot be waiting for what comes after it.
    ready_ms = min(event.event_time_ms, event.received_ms) + settings.settle_ms
    status = "open"
    if event.why in ("rejected", "extreme"):
        known, status = _of_incident(connection, event)
        # What an incident begins with was rejected before the evidence was in: it goes on there.
        episode = known or (
            _open_episode_near(connection, event, settings) if status == "open" else None
        )
        if episode is not None:
            _extend(connection, episode, event, ready_ms)
            return episode
    new = episode_id(str(event.position))
    while connection.execute("SELECT 1 FROM episode WHERE episode_id = ?", (new,)).fetchone():
        new = episode_id(new, str(event.position))  # 50 bits: once in a blue moon
    times = [*(point.event_time_ms for point in event.context), event.event_time_ms]
    insert(
        connection,
        "episode",
        episode_id=new,
        root_id=new,
        question=new,
        step_ms=max(0.0, float(np.median(np.diff(times)))) if event.context else 0.0,
        status=status,
        start_ms=event.event_time_ms,
        end_ms=event.event_time_ms,
        first_seq=event.seq,
        last_seq=event.seq,
        n_events=1,
        ready_ms=event.received_ms if event.priority else ready_ms,
        incident=event.incident if event.why == "rejected" else None,
        **{name: getattr(event, name) for name in _AS_IT_CAME},
    )
    return new


def _of_incident(connection: Connection, event: Arrival) -> tuple[str | None, str]:
    """Return the episode that takes the events of an incident, or the status of a new one."""
    if event.incident is None or event.why == "extreme":  # those are joined, and asked by none
        return None, "open"
    row = connection.execute(
        "SELECT episode_id, status FROM episode WHERE incident = ? AND status <> 'empty' "
        "AND why <> 'extreme' "
        "ORDER BY CASE status WHEN 'open' THEN 0 WHEN 'held' THEN 1 ELSE 2 END, rowid LIMIT 1",
        (event.incident,),
    ).fetchone()
    if row is None:
        return None, "open"
    return (str(row["episode_id"]) if row["status"] in ("open", "held") else None), "held"


def join_incident(connection: Connection, incident: Incident, now_ms: int) -> None:
    """Hold cases of extreme anomalies that belong to an incident: the incident asks instead."""
    # Accepted as they are, they are in no case of what was rejected, so that no figure of those is
    # bent; what somebody works on just now stays theirs. How far it goes its end alone says: what
    # lies behind that was joined too early, where items were read before.
    end = incident.changed_seq if incident.state is IncidentState.CLOSED else math.inf
    connection.execute(
        "UPDATE episode SET status = 'open', incident = NULL WHERE incident = ? "
        "AND status = 'held' AND why = 'extreme' AND first_seq > ?",
        (incident.id, end),
    )
    for sensor in incident.sensors:
        connection.execute(
            "UPDATE episode SET status = 'held', incident = ? WHERE status = 'open' "
            "AND why = 'extreme' AND last_seq >= ? AND first_seq <= ? "
            "AND coalesce(lease_until_ms, 0) <= ? "
            "AND sensor_id = (SELECT sensor_id FROM sensor WHERE stream_key = ? AND sensor = ?)",
            (incident.id, incident.onset_seq, end, now_ms, incident.stream_key, sensor),
        )


def _open_episode_near(connection: Connection, event: Arrival, settings: Review) -> str | None:
    gap = stream_gap(event.context) if settings.gap_events is None else settings.gap_events
    candidates = connection.execute(
        "SELECT episode_id, start_ms, end_ms, first_seq, last_seq, n_events FROM episode "
        "WHERE sensor_id = ? AND status = 'open' AND why = ? AND incident IS NULL "
        "AND root_id = episode_id "
        "ORDER BY end_ms DESC LIMIT 8",
        (event.sensor_id, event.why),
    )
    for row in candidates:
        episode, *numbers = tuple(row)
        if belongs(EpisodeSpan(*numbers), event, gap):
            return str(episode)
    return None


def _extend(connection: Connection, episode: str, event: Arrival, ready_ms: int) -> None:
    connection.execute(
        """UPDATE episode SET
             start_ms = min(start_ms, :t), end_ms = max(end_ms, :t),
             first_seq = min(first_seq, :seq), last_seq = max(last_seq, :seq),
             n_events = n_events + 1, worth = worth + :worth,
             incident = coalesce(:incident, incident),
             confidence = coalesce(min(confidence, :confidence), confidence, :confidence),
             severity = coalesce(max(severity, :severity), severity, :severity),
             ready_ms = CASE WHEN priority > 0 THEN ready_ms ELSE max(ready_ms, :ready) END
           WHERE episode_id = :episode""",
        event._asdict() | {"t": event.event_time_ms, "ready": ready_ms, "episode": episode},
    )


def split(
    connection: Connection, parent: str, event_ids: list[int], *, own_root: bool = False
) -> str:
    """Move some events of `parent` into an episode of their own and return its id."""
    # The rest stays where it is, under the parent's id. `event_ids` is a strict, non-empty subset.
    # With `own_root` the new episode is one that merely began later, not a part of the old one.
    marks = ",".join("?" * len(event_ids))
    first = connection.execute(
        f"SELECT topic, partition, offset, reading FROM event WHERE event_id IN ({marks}) "
        "ORDER BY event_time_ms, event_id LIMIT 1",
        event_ids,
    ).fetchone()
    position = str(Position(*tuple(first)))
    child = (
        episode_id(position)
        if own_root
        else episode_id("split", parent, position, str(len(event_ids)))
    )
    while connection.execute("SELECT 1 FROM episode WHERE episode_id = ?", (child,)).fetchone():
        child = episode_id("split", child)
    connection.execute(
        f"INSERT INTO episode (episode_id, question, root_id, status, verdict, {_COPIED}) "
        f"SELECT ?1, ?1, coalesce(?2, root_id), status, verdict, {_COPIED} FROM episode "
        "WHERE episode_id = ?3",
        (child, child if own_root else None, parent),
    )
    _move(connection, event_ids, child)
    for episode in (parent, child):
        _update_span(connection, episode)
    return child


def _move(connection: Connection, event_ids: list[int], episode: str) -> None:
    query = "UPDATE event SET episode_id = ? WHERE event_id = ?"
    connection.executemany(query, [(episode, event) for event in event_ids])


def merge_back(connection: Connection, child: str, parent: str) -> None:
    connection.execute("UPDATE event SET episode_id = ? WHERE episode_id = ?", (parent, child))
    for episode in (parent, child):
        _update_span(connection, episode)


def _update_span(connection: Connection, episode: str) -> None:
    left = scalar(connection, "SELECT count(*) FROM event WHERE episode_id = ?", (episode,))
    if not left:
        # The empty shell stays, since labels refer to it.
        connection.execute(
            "UPDATE episode SET status = 'empty', n_events = 0, verdict = NULL, "
            "lease_owner = NULL WHERE episode_id = ?",
            (episode,),
        )
        return
    connection.execute(
        """UPDATE episode SET
             (start_ms, end_ms, first_seq, last_seq, n_events, confidence, severity, worth) =
             (SELECT min(event_time_ms), max(event_time_ms), min(seq), max(seq), count(*),
                     min(confidence), max(severity), sum(worth)
              FROM event WHERE episode_id = :episode)
           WHERE episode_id = :episode""",
        {"episode": episode},
    )


def holding(connection: Connection, event_ids: list[int]) -> set[str]:
    marks = ",".join("?" * len(event_ids))
    query = f"SELECT DISTINCT episode_id FROM event WHERE event_id IN ({marks})"
    return set(scalars(connection, query, event_ids))


def adopt(connection: Connection, episode: str, root_id: str, event_ids: list[int]) -> set[str]:
    """Make `episode` hold exactly these events; returns the episodes that changed."""
    # For a rebuild: the log says which events an episode had when it was labelled. What it holds
    # besides goes to an episode of its own, as it did then.
    marks = ",".join("?" * len(event_ids))
    before = holding(connection, event_ids)
    connection.execute(
        f"INSERT INTO episode (episode_id, question, root_id, status, {_COPIED}) "
        f"SELECT ?1, ?1, ?2, 'open', {_COPIED} FROM episode WHERE episode_id = ?3 "
        "ON CONFLICT (episode_id) DO UPDATE SET "
        "status = CASE WHEN episode.status = 'empty' THEN 'open' ELSE episode.status END",
        (episode, root_id, min(before)),
    )
    rest = scalars(
        connection,
        f"SELECT event_id FROM event WHERE episode_id = ? AND event_id NOT IN ({marks}) "
        "ORDER BY event_time_ms, event_id",
        (episode, *event_ids),
    )
    _move(connection, event_ids, episode)
    changed = before | {episode}
    if rest:
        changed.add(split(connection, episode, rest, own_root=True))
    for changed_episode in changed:
        _update_span(connection, changed_episode)
    return changed
