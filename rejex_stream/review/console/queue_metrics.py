"""What the alert rules and the dashboard ask of the queue, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from rejex_stream.review.certificate import certificates
from rejex_stream.review.queue.database import Viewer, scalar
from rejex_stream.review.queue.label_store import pending
from rejex_stream.review.queue.listing import QueueFilter, Tab
from rejex_stream.review.queue.review_store import ReviewStore

_METRICS = {  # help text, and the label, if any
    "open_episodes": ("Cases that wait for a verdict.", ""),
    "oldest_age_seconds": ("How long people have been asked.", ""),
    "outbox_pending": ("Labels that wait to be sent.", ""),
    "missed_lower": ("Anomalies called normal, at least: 95 %, at every look.", "pipeline"),
    "accepted_normal_events": (
        "Events called normal or muted, of which those were missed.",
        "pipeline",
    ),
    "failing": (
        "1 while a part of the background work fails: a feed, labels, expiry, upkeep.",
        "part",
    ),
}
_WAITING = "SELECT count(*) FROM episode WHERE status IN ('open', 'needs_second', 'disputed')"


def exposition(store: ReviewStore, failing: Mapping[str, bool] | None = None) -> bytes:
    """Return all metrics in Prometheus' text format; `failing` as of the background's parts."""
    with store.database.read() as connection:
        now_ms = store.now_ms()
        # Of what people are asked: what waits for another day's capacity waits by design.
        tabs: tuple[Tab, ...] = ("ready", "claimed")
        asked = (QueueFilter(tab).oldest(connection, Viewer(""), now_ms) for tab in tabs)
        oldest_ms = min((one for one in asked if one is not None), default=now_ms)
        proven = certificates(store, connection)  # of pipelines that were audited
        samples: dict[str, Mapping[str, float]] = {
            "open_episodes": {"": scalar(connection, _WAITING)},
            "oldest_age_seconds": {"": (now_ms - oldest_ms) / 1000},
            "outbox_pending": {"": pending(connection)},
            "missed_lower": {name: one.missed_at_least for name, one in proven.items()},
            "accepted_normal_events": {name: one.accepted for name, one in proven.items()},
            "failing": failing or {},
        }
    registry = CollectorRegistry()
    for name, (text, label) in _METRICS.items():
        labels = [label] if label else []
        gauge = Gauge(f"rejex_review_{name}", text, labels, registry=registry)
        for key, value in samples[name].items():
            (gauge.labels(key) if label else gauge).set(value)
    return generate_latest(registry)
