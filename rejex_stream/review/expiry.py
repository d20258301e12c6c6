"""Episodes nobody looked at in time: they leave with the configured fallback, marked as such."""

from __future__ import annotations

from rejex_stream.encode import decode_review
from rejex_stream.review import auditlog
from rejex_stream.review.binding import SYSTEM
from rejex_stream.review.labels import HumanVerdict, LabelRecord, label_id
from rejex_stream.review.settings import Fallback, ReviewSettings
from rejex_stream.review.standing import publish, refresh_status
from rejex_stream.review.storage import Connection
from rejex_stream.types import Position, Verdict

__all__ = ["expire_due", "model_leaning"]


def model_leaning(verdict: Verdict) -> HumanVerdict | None:
    """Return what the model would say had it to choose; ``None`` where it has no rank to go by.

    An anomaly iff the rank lies among the top r of n, that is iff ``rank > n - r``.
    """
    if verdict.rank is None or not verdict.window_len or not verdict.n_anomalies:
        return None
    return "anomaly" if verdict.rank > verdict.window_len - verdict.n_anomalies else "normal"


def expire_due(
    connection: Connection, settings: ReviewSettings, now_ms: int, *, limit: int = 500
) -> list[str]:
    """Expire open episodes older than ``max_age_ms``, oldest first; returns their ids.

    An expiry is a label with ``source = "expired"`` by ``system``; a person's label given later
    takes its place.
    """
    due = connection.execute(
        "SELECT e.*, s.stream_key, s.sensor FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE e.status = 'open' AND e.received_ms <= ? "
        "AND (e.lease_owner IS NULL OR e.lease_until_ms <= ?) "
        "ORDER BY e.received_ms, e.episode_id LIMIT ?",
        (now_ms - settings.max_age_ms, now_ms, limit),
    ).fetchall()
    for row in due:
        episode = row["episode_id"]
        events = connection.execute(
            "SELECT topic, partition, offset FROM event WHERE episode_id = ? "
            "ORDER BY event_time_ms, event_id",
            (episode,),
        )
        record = LabelRecord(
            label_id=label_id("expired", episode, str(row["n_events"])),
            episode_id=episode,
            root_id=row["root_id"],
            stream_key=row["stream_key"],
            sensor=row["sensor"],
            events=tuple(Position(*tuple(event)) for event in events),
            verdict=_fallback(connection, episode, settings.fallback),
            source="expired",
            why=row["why"],
            reviewer=SYSTEM,
            created_ms=now_ms,
            from_ms=row["start_ms"],
            to_ms=row["end_ms"],
            batch_id=label_id("expired", episode),
        )
        if not publish(connection, record, handle_ms=None, sent=False):
            continue
        refresh_status(connection, episode, settings, now_ms)
        auditlog.append(
            connection,
            at_ms=now_ms,
            actor=SYSTEM,
            action="expire",
            subject=episode,
            detail={"fallback": settings.fallback, "verdict": record.verdict},
        )
    return [row["episode_id"] for row in due]


def _fallback(connection: Connection, episode: str, fallback: Fallback) -> HumanVerdict | None:
    if fallback == "none":
        return None
    if fallback == "anomaly":
        return "anomaly"
    items = connection.execute("SELECT item FROM event WHERE episode_id = ?", (episode,))
    leanings = [model_leaning(decode_review(row[0]).verdict) for row in items]
    # One event that looks anomalous makes the stretch worth a look; so it counts.
    if "anomaly" in leanings:
        return "anomaly"
    return "normal" if "normal" in leanings else None
