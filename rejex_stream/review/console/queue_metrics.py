"""The queue as Prometheus metrics, read from the store when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rejex_stream.review.certificate import certificates
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.label_report import workload
from rejex_stream.review.queue.label_store import pending
from rejex_stream.review.queue.listing import QueueFilter, Tab
from rejex_stream.review.queue.review_store import ReviewStore

_MISSED = {
    "missed_upper": "Anomalies called normal, at most: 95 %, at every look; unanswered ones count.",
    "missed_lower": "Anomalies called normal, at least: 95 %, at every look.",
    "accepted_normal_events": "Events called normal or muted, of which those were missed.",
}


class _StoreCollector(Collector):
    def __init__(self, store: ReviewStore, failing: Mapping[str, bool]) -> None:
        self._store, self._failing = store, failing

    def collect(self) -> Iterator[Metric]:
        with self._store.database.read() as connection:
            now_ms = self._store.now_ms()
            load = workload(connection, now_ms)
            # Of what people are asked: what waits for another day's capacity waits by design.
            tabs: tuple[Tab, ...] = ("ready", "claimed")
            asked = (QueueFilter(tab).oldest(connection, Viewer(""), now_ms) for tab in tabs)
            oldest_ms = min((one for one in asked if one is not None), default=now_ms)
            waiting = dict(
                connection.execute(
                    "SELECT priority, count(*) FROM episode "
                    "WHERE status IN ('open', 'needs_second', 'disputed') GROUP BY priority"
                ).fetchall()
            )
            waiting_labels = pending(connection)
            labels = connection.execute(
                "SELECT coalesce(verdict, 'none'), source, count(*) FROM label "
                "WHERE kind = 'label' GROUP BY 1, 2"
            ).fetchall()
            proven = certificates(self._store, connection)
        for name, value, says in (
            ("open_events", load.open_events, "Rejected events in them."),
            ("oldest_age_seconds", (now_ms - oldest_ms) / 1000, "How long people have been asked."),
            ("outbox_pending", waiting_labels, "Labels that wait to be sent."),
        ):
            yield GaugeMetricFamily(f"rejex_review_{name}", says, value=value)
        yield _labelled(
            "open_episodes",
            "Cases that wait for a verdict; priority 1 is that of review.priority_sensors.",
            "priority",
            # Both are always there: a series that comes and goes cannot be compared with zero.
            {str(one): waiting.get(one, 0) for one in (0, 1)},
        )
        # What the audit proves of each pipeline; none of one that was never audited.
        missed = {
            pipeline: (one.missed_at_most, one.missed_at_least, one.accepted)
            for pipeline, one in proven.items()
        }
        for i, (name, says) in enumerate(_MISSED.items()):
            values = {pipeline: float(three[i]) for pipeline, three in missed.items()}
            yield _labelled(name, says, "pipeline", values)
        yield _labelled(
            "failing",
            "1 while a part of the background work fails: a feed, labels, expiry, upkeep.",
            "part",
            self._failing,
        )
        counter = CounterMetricFamily(
            "rejex_review_labels", "Labels given.", labels=["verdict", "source"]
        )
        for verdict, source, count in labels:
            counter.add_metric([verdict, source], count)
        yield counter


def _labelled(name: str, says: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"rejex_review_{name}", says, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge


def exposition(store: ReviewStore, failing: Mapping[str, bool] | None = None) -> bytes:
    """Return all metrics in Prometheus' text format; `failing` as of the background's parts."""
    registry = CollectorRegistry()
    registry.register(_StoreCollector(store, failing or {}))
    return generate_latest(registry)
