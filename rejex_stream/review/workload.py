"""How the queue itself is doing: ages, arrivals, decisions, time per decision, agreement."""

from __future__ import annotations

import statistics

import msgspec

from rejex_stream.review.agreement import (
    Interval,
    bootstrap,
    by_pair,
    cohen_kappa,
    krippendorff_alpha,
    percent_agreement,
)
from rejex_stream.review.quality import judged_episodes
from rejex_stream.review.storage import Connection

__all__ = ["Agreement", "Measured", "Workload", "agreement", "measured", "workload"]

_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The queue now and over the last seven days.

    Attributes
    ----------
    oldest_ms
        Age of the oldest open episode.
    arrived_per_day, decided_per_day
        Episodes.
    handle_s
        Median seconds from claim to verdict, where an episode was claimed.
    turnaround_ms
        Median from arrival to the verdict.
    """

    open_episodes: int
    open_events: int
    oldest_ms: int | None
    arrived_per_day: float
    decided_per_day: float
    decided: int
    expired: int
    handle_s: float | None
    turnaround_ms: float | None


def workload(connection: Connection, now_ms: int) -> Workload:
    """Return how the queue is doing."""
    week = now_ms - _WEEK_MS
    waiting = connection.execute(
        "SELECT count(*), coalesce(sum(n_events), 0), min(received_ms) FROM episode "
        "WHERE status IN ('open', 'needs_second', 'disputed')"
    ).fetchone()
    first = connection.execute("SELECT min(received_ms) FROM episode").fetchone()[0]
    days = min(7.0, max((now_ms - first) / _DAY_MS, 1.0)) if first is not None else 1.0
    arrived = connection.execute(
        "SELECT count(*) FROM episode WHERE received_ms >= ? AND root_id = episode_id", (week,)
    ).fetchone()[0]
    decided = connection.execute(
        "SELECT count(DISTINCT episode_id) FROM label WHERE kind = 'label' AND source = 'human' "
        "AND created_ms >= ?",
        (week,),
    ).fetchone()[0]
    expired = connection.execute(
        "SELECT count(*) FROM label WHERE source = 'expired' AND kind = 'label' "
        "AND created_ms >= ?",
        (week,),
    ).fetchone()[0]
    handles = [
        row[0] / 1000
        for row in connection.execute(
            "SELECT handle_ms FROM label WHERE handle_ms IS NOT NULL AND created_ms >= ?", (week,)
        )
    ]
    waits = [
        row[0]
        for row in connection.execute(
            "SELECT l.created_ms - e.received_ms FROM label l JOIN episode e USING (episode_id) "
            "WHERE l.kind = 'label' AND l.source = 'human' AND l.created_ms >= ?",
            (week,),
        )
    ]
    return Workload(
        open_episodes=waiting[0],
        open_events=waiting[1],
        oldest_ms=None if waiting[2] is None else now_ms - waiting[2],
        arrived_per_day=arrived / days,
        decided_per_day=decided / days,
        decided=decided,
        expired=expired,
        handle_s=statistics.median(handles) if handles else None,
        turnaround_ms=statistics.median(waits) if waits else None,
    )


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far reviewers agree, over episodes that at least two people judged.

    Attributes
    ----------
    kappa
        Of the pair of reviewers with most episodes in common, named in `pair`.
    """

    episodes: int
    judged: int
    percent: Interval
    alpha: Interval
    kappa: float | None
    pair: tuple[str, str] | None
    disputed: int


def agreement(connection: Connection, since_ms: int = 0) -> Agreement:
    """Return the agreement; adjudications are answers to a disagreement and do not count."""
    units: list[dict[str, str]] = []
    judged = 0
    for episode in judged_episodes(connection, since_ms):
        judged += 1
        said = {
            label.reviewer: str(label.verdict)
            for label in episode.labels
            if label.role != "adjudication"
        }
        if len(said) > 1:
            units.append(said)
    words = [tuple(unit.values()) for unit in units]
    pairs = by_pair(units)
    pair = max(pairs, key=lambda names: (len(pairs[names]), names), default=None)
    disputed = connection.execute(
        "SELECT count(*) FROM episode WHERE status = 'disputed'"
    ).fetchone()[0]
    return Agreement(
        episodes=len(units),
        judged=judged,
        percent=bootstrap(words, percent_agreement),
        alpha=bootstrap(words, krippendorff_alpha),
        kappa=cohen_kappa(pairs[pair]) if pair is not None else None,
        pair=pair,
        disputed=disputed,
    )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline did over its last seven days of event time, to put beside a plan.

    Attributes
    ----------
    days
        Event time covered.
    events_per_episode
        Rejected events that one review settled.
    window, n_anomalies, tolerance
        n, r and T in use.
    """

    pipeline: str
    days: float
    sensors: int
    streams: int
    events_per_day: float
    rejected_per_day: float
    rejection_rate: float | None
    expected_rate: float | None
    episodes_per_day: float
    events_per_episode: float | None
    window: int | None
    n_anomalies: int | None
    tolerance: float | None


def measured(connection: Connection, pipeline: str) -> Measured | None:
    """Return what a pipeline did; ``None`` before its first verdict."""
    newest = connection.execute(
        "SELECT max(t_ms), min(t_ms) FROM minute JOIN sensor USING (sensor_id) "
        "WHERE pipeline = ? AND normal + anomaly + rejected > 0",
        (pipeline,),
    ).fetchone()
    if newest[0] is None:
        return None
    start = max(newest[1], newest[0] - _WEEK_MS)
    days = max((newest[0] - start) / _DAY_MS, 1 / 24)
    found = connection.execute(
        "SELECT sum(normal + anomaly + rejected), sum(banded), sum(ambiguous), sum(expected) "
        "FROM minute JOIN sensor USING (sensor_id) WHERE pipeline = ? AND t_ms >= ?",
        (pipeline, start),
    ).fetchone()
    episodes = connection.execute(
        "SELECT count(*), coalesce(sum(n_events), 0) FROM episode JOIN sensor USING (sensor_id) "
        "WHERE pipeline = ? AND start_ms >= ? AND why = 'rejected' AND status <> 'empty' "
        "AND root_id = episode_id",
        (pipeline, start),
    ).fetchone()
    sensors = connection.execute(
        "SELECT count(*), count(DISTINCT stream_key), max(window_len) FROM sensor "
        "WHERE pipeline = ? AND last_ms IS NOT NULL",
        (pipeline,),
    ).fetchone()
    window = connection.execute(
        "SELECT window_len, n_anomalies, tolerance FROM sensor WHERE pipeline = ? "
        "AND window_len IS NOT NULL ORDER BY window_len DESC LIMIT 1",
        (pipeline,),
    ).fetchone()
    banded = found[1]
    return Measured(
        pipeline=pipeline,
        days=days,
        sensors=sensors[0],
        streams=sensors[1],
        events_per_day=found[0] / days,
        rejected_per_day=found[2] / days,
        rejection_rate=found[2] / banded if banded else None,
        expected_rate=found[3] / banded if banded else None,
        episodes_per_day=episodes[0] / days,
        events_per_episode=episodes[1] / episodes[0] if episodes[0] else None,
        window=window[0] if window else None,
        n_anomalies=window[1] if window else None,
        tolerance=window[2] if window else None,
    )
