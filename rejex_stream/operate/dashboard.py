"""A Grafana dashboard as data: every panel is a title, a question and its expressions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

__all__ = ["PANELS", "Panel", "dashboard", "dashboard_json"]

_BY = '{pipeline=~"$pipeline"}'


class Panel(NamedTuple):
    """One panel.

    Attributes
    ----------
    title, says
        What it shows, and how to read it.
    queries
        (legend, PromQL) pairs; ``$pipeline`` is the dashboard's variable.
    unit
        Grafana's name of the unit.
    width
        Of 24 columns.
    """

    title: str
    says: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 12


PANELS: tuple[Panel, ...] = (
    Panel(
        "Rejection rate against theory",
        "The rolling rate should move around the expected one. The bounds are laws of one "
        "frozen window, not of a rolling rate: above one is a fact, not an alarm, and happens with "
        "nothing wrong. The limits tell.",
        (
            ("rolling {{topic}}-{{partition}}", f"rejex_rejection_rate_ratio{_BY}"),
            ("lower limit", f"rejex_rejection_rate_lower_ratio{_BY}"),
            ("upper limit", f"rejex_rejection_rate_upper_ratio{_BY}"),
            ("expected R", f"max(rejex_rejection_rate_estimate_ratio{_BY})"),
            ("frozen-window bound", f"max(rejex_rejection_rate_bound_ratio{_BY})"),
            ("paper bound h", f"max(rejex_rejection_rate_paper_bound_ratio{_BY})"),
        ),
        "percentunit",
        24,
    ),
    Panel(
        "Verdicts per second",
        "Every event gets exactly one of three.",
        (("{{verdict}}", f"sum by (verdict) (rate(rejex_events_total{_BY}[$__rate_interval]))"),),
        "reqps",
    ),
    Panel(
        "Why events are rejected",
        "Ambiguous is what theory plans; the other reasons are the sensors'.",
        (
            (
                "{{reason}}",
                f"sum by (reason) (rate(rejex_rejected_events_total{_BY}[$__rate_interval]))",
            ),
        ),
        "reqps",
    ),
    Panel(
        "Rejected share by group",
        "Every group should be near the expected share. One line without a name where sensors "
        "are not grouped.",
        (
            (
                "{{sensor_group}}",
                "sum by (sensor_group) "
                f"(rate(rejex_rejected_events_total{_BY}[$__rate_interval])) / "
                f"sum by (sensor_group) (rate(rejex_events_total{_BY}[$__rate_interval]))",
            ),
        ),
        "percentunit",
    ),
    Panel(
        "Sensors that are rejected most",
        "Empty unless metrics.per_sensor asks for sensors by name.",
        (("{{sensor}}", f"topk(10, rejex_sensor_rejection_rate_ratio{_BY})"),),
        "percentunit",
    ),
    Panel(
        "Flagged share against contamination",
        "Share of events above the threshold; its expectation is the contamination.",
        (
            ("flagged", f"rejex_flagged_rate_ratio{_BY}"),
            ("accepted anomalies", f"rejex_anomaly_rate_ratio{_BY}"),
        ),
        "percentunit",
    ),
    Panel(
        "Evidence against the theory",
        "The health monitor alarms when the evidence reaches the threshold.",
        (
            ("log evidence {{topic}}-{{partition}}", f"rejex_health_log_evidence{_BY}"),
            ("threshold", f"max(rejex_health_log_threshold{_BY})"),
        ),
    ),
    Panel(
        "Active alarms",
        "By monitor.",
        (("{{kind}}", f"sum by (kind) (rejex_active_alarms{_BY})"),),
    ),
    Panel(
        "Open incidents",
        "By state; one that is open waits for an answer. Held: streams whose reference stands "
        "still.",
        (
            ("{{state}}", f"sum by (state) (rejex_open_incidents{_BY})"),
            ("held", f"sum(rejex_held_streams{_BY})"),
        ),
    ),
    Panel(
        "Sent to review in a day",
        "Against what people can do.",
        (
            ("sent", f"sum(increase(rejex_review_items_total{_BY}[1d]))"),
            ("budget", f"max(rejex_review_budget_per_day{_BY})"),
        ),
    ),
    Panel(
        "Review queue",
        "Cases that wait for a verdict, the oldest one's age, and labels that wait to be sent.",
        (
            ("open cases", "sum(rejex_review_open_episodes)"),
            ("oldest, hours", "max(rejex_review_oldest_age_seconds) / 3600"),
            ("labels waiting", "sum(rejex_review_outbox_pending)"),
        ),
    ),
    Panel(
        "Latency from event to verdict",
        "By the event's own clock.",
        (
            (
                "p50",
                "histogram_quantile(0.5, sum by (le) "
                f"(rate(rejex_event_latency_seconds_bucket{_BY}[$__rate_interval])))",
            ),
            (
                "p99",
                "histogram_quantile(0.99, sum by (le) "
                f"(rate(rejex_event_latency_seconds_bucket{_BY}[$__rate_interval])))",
            ),
        ),
        "s",
    ),
    Panel(
        "Commit duration",
        "One transaction per commit interval.",
        (
            (
                "p99",
                "histogram_quantile(0.99, sum by (le) "
                f"(rate(rejex_commit_duration_seconds_bucket{_BY}[$__rate_interval])))",
            ),
        ),
        "s",
    ),
    Panel(
        "Records that cannot be read",
        "They are in the dead-letter topic with their original bytes.",
        (
            (
                "{{reason}}",
                f"sum by (reason) (rate(rejex_records_invalid_total{_BY}[$__rate_interval]))",
            ),
        ),
        "reqps",
    ),
    Panel(
        "Effective events in the rolling window",
        "Rolling events divided by the variance inflation: how much the rate can tell.",
        (("{{topic}}-{{partition}}", f"rejex_rejection_window_effective_events{_BY}"),),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard for Grafana's import; it asks for a Prometheus data source."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    panels, x, y = [], 0, 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > 24:
            x, y = 0, y + 8
        panels.append(
            {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.says,
                "datasource": source,
                "gridPos": {"h": 8, "w": panel.width, "x": x, "y": y},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + i),
                        "expr": expression,
                        "legendFormat": legend,
                        "datasource": source,
                    }
                    for i, (legend, expression) in enumerate(panel.queries)
                ],
            }
        )
        x += panel.width
    pipeline = {
        "name": "pipeline",
        "type": "query",
        "datasource": source,
        "query": "label_values(rejex_events_total, pipeline)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "title": "rejex-stream",
        "uid": "rejex-stream",
        "tags": ["rejex-stream"],
        "timezone": "utc",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [pipeline]},
        "panels": panels,
    }


def dashboard_json() -> str:
    """Return the dashboard as text."""
    return json.dumps(dashboard(), indent=2) + "\n"
