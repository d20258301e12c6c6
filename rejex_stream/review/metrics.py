"""The queue and the monitors as Prometheus metrics, read from the store when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rejex_stream.monitor import MonitorStatus
from rejex_stream.review import workload
from rejex_stream.review.store import ReviewStore
from rejex_stream.review.watching import PipelineWatch

__all__ = ["exposition"]

# The pipeline exports these as rejex_…; under names of their own no alert fires twice.
_RATES: tuple[tuple[str, str, Callable[[MonitorStatus], float | None]], ...] = (
    ("rejection_rate_ratio", "Rolling rejection rate.", lambda s: s.rejection_rate),
    ("rejection_rate_lower_ratio", "Its lower limit.", lambda s: s.lower),
    ("rejection_rate_upper_ratio", "Its upper limit.", lambda s: s.upper),
    (
        "rejection_rate_estimate_ratio",
        "Expected rejection rate.",
        lambda s: None if s.theory is None else s.theory.expected_rate,
    ),
    (
        "rejection_rate_bound_ratio",
        "Exact bound on it.",
        lambda s: None if s.theory is None else s.theory.exact_bound,
    ),
    (
        "rejection_rate_paper_bound_ratio",
        "The paper's bound on it.",
        lambda s: None if s.theory is None else s.theory.paper_bound,
    ),
    ("rejection_window_events", "Events in the rolling window.", lambda s: s.rolling_events),
    (
        "rejection_window_effective_events",
        "Independent events these are worth.",
        lambda s: s.effective_events,
    ),
)


class _StoreCollector(Collector):
    def __init__(self, store: ReviewStore, watches: Mapping[str, PipelineWatch]) -> None:
        self._store, self._watches = store, watches

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        now = self._store.now_ms()
        with self._store.database.read() as connection:
            load = workload.workload(connection, now)
            agreement = workload.agreement(connection)
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
            "open_episodes": (load.open_episodes, "Episodes that wait for a verdict."),
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
        counter = CounterMetricFamily(
            "rejex_review_labels", "Labels given.", labels=["verdict", "source"]
        )
        for verdict, source, count in labels:
            counter.add_metric([verdict, source], count)
        yield counter
        for name, says, of in _RATES:
            gauge = GaugeMetricFamily(f"rejex_review_{name}", says, labels=["pipeline"])
            for pipeline, watch in self._watches.items():
                status = watch.status()
                value = None if status is None else of(status)
                if value is not None:
                    gauge.add_metric([pipeline], value)
            yield gauge


def exposition(store: ReviewStore, watches: Mapping[str, PipelineWatch]) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_StoreCollector(store, watches))
    return generate_latest(registry)
