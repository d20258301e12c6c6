"""The queue as Prometheus metrics, read from the store when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sqlite3 import Connection

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rejex_stream.review.certificate import certificates
from rejex_stream.review.queue import report
from rejex_stream.review.queue.store import ReviewStore

__all__ = ["exposition"]

# From a minute, as an alarm is answered, to a week, when a queue is given up.
_TURNAROUND_S = (60, 300, 900, 3600, 14_400, 43_200, 86_400, 259_200, 604_800)

_MISSED = {
    "missed_upper": "Anomalies called normal, at most: 95 %, at every look; unanswered ones count.",
    "missed_lower": "Anomalies called normal, at least: 95 %, at every look.",
    "accepted_normal_events": "Events called normal, of which those were missed.",
}


class _StoreCollector(Collector):
    def __init__(
        self,
        store: ReviewStore,
        failing: Mapping[str, bool],
    ) -> None:
        self._store, self._failing = store, failing

    def collect(self) -> Iterator[Metric]:
        now = self._store.now_ms()
        with self._store.database.read() as connection:
            load = report.workload(connection, now)
            agreement = report.agreement(connection)
            waiting = _waiting(connection)
            turnaround = _turnaround(connection)
            claimed = connection.execute(
                "SELECT count(*) FROM episode WHERE lease_until_ms > ?", (now,)
            ).fetchone()[0]
            pending = connection.execute(
                "SELECT count(*) FROM outbox WHERE sent_ms IS NULL"
            ).fetchone()[0]
            labels = connection.execute(
                "SELECT coalesce(verdict, 'none'), source, count(*) FROM label "
                "WHERE kind = 'label' GROUP BY 1, 2"
            ).fetchall()
        gauges = {
            "open_events": (load.open_events, "Rejected events in them."),
            "oldest_age_seconds": ((load.oldest_ms or 0) / 1000, "Age of the oldest of them."),
            "claimed_episodes": (claimed, "Episodes that somebody works on."),
            "outbox_pending": (pending, "Labels that wait to be sent."),
        }
        if agreement.percent.value is not None:
            gauges["agreement_ratio"] = (
                agreement.percent.value,
                "Share of agreeing pairs among doubly reviewed episodes.",
            )
        for name, (value, says) in gauges.items():
            yield GaugeMetricFamily(f"rejex_review_{name}", says, value=value)
        yield waiting
        yield turnaround
        yield from _missed(self._store)
        yield _failing(self._failing)
        counter = CounterMetricFamily(
            "rejex_review_labels", "Labels given.", labels=["verdict", "source"]
        )
        for verdict, source, count in labels:
            counter.add_metric([verdict, source], count)
        yield counter


def _waiting(connection: Connection) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        "rejex_review_open_episodes",
        "Episodes that wait for a verdict; priority 1 is that of review.priority_sensors.",
        labels=["priority"],
    )
    rows = connection.execute(
        "SELECT priority, count(*) FROM episode "
        "WHERE status IN ('open', 'needs_second', 'disputed') GROUP BY priority"
    )
    # Both are always there: a series that comes and goes cannot be compared with zero.
    for priority, count in sorted(({0: 0, 1: 0} | {row[0]: row[1] for row in rows}).items()):
        gauge.add_metric([str(priority)], count)
    return gauge


def _missed(store: ReviewStore) -> Iterator[GaugeMetricFamily]:
    """Tell what the audit proves of each pipeline; none of one that was never audited."""
    gauges = {
        name: GaugeMetricFamily(f"rejex_review_{name}", says, labels=["pipeline"])
        for name, says in _MISSED.items()
    }
    with store.database.read() as connection:
        proven = certificates(store, connection)
        accepted = connection.execute(
            "SELECT pipeline, sum(normal) FROM hour JOIN sensor USING (sensor_id) GROUP BY 1"
        ).fetchall()
    for pipeline, normal in accepted:
        if pipeline in proven:
            values = (proven[pipeline].missed_at_most, proven[pipeline].missed_at_least, normal)
            for gauge, value in zip(gauges.values(), values, strict=True):
                gauge.add_metric([pipeline], value)
    yield from gauges.values()


def _failing(parts: Mapping[str, bool]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        "rejex_review_failing",
        "1 while a part of the background work fails: a feed, labels, expiry, upkeep.",
        labels=["part"],
    )
    for part, fails in parts.items():
        gauge.add_metric([part], fails)
    return gauge


def _turnaround(connection: Connection) -> HistogramMetricFamily:
    """Count people's labels by how long their episode had waited; facts only, so it never falls."""
    row = connection.execute(
        f"SELECT {', '.join(['count(*) FILTER (WHERE ms <= ?)'] * len(_TURNAROUND_S))}, count(*), "
        "coalesce(sum(ms), 0) FROM (SELECT CASE WHEN l.created_ms > e.received_ms "
        "THEN l.created_ms - e.received_ms ELSE 0 END AS ms "
        "FROM label l JOIN episode e USING (episode_id) "
        "WHERE l.kind = 'label' AND l.source = 'human') AS waits",
        [1000 * limit for limit in _TURNAROUND_S],
    ).fetchone()
    *counts, total, sum_ms = row
    buckets = [(str(float(le)), n) for le, n in zip(_TURNAROUND_S, counts, strict=True)]
    return HistogramMetricFamily(
        "rejex_review_turnaround_seconds",
        "From the arrival of an episode to a verdict of a person.",
        buckets=[*buckets, ("+Inf", total)],
        sum_value=sum_ms / 1000,
    )


def exposition(
    store: ReviewStore,
    failing: Mapping[str, bool] | None = None,
) -> bytes:
    """Return all metrics in Prometheus' text format; `failing` as of the background's parts."""
    registry = CollectorRegistry()
    registry.register(_StoreCollector(store, failing or {}))
    return generate_latest(registry)
