"""Which numbers of a monitor's status are exported, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping

from rejex_stream.monitor import Alarm, MonitorBank, MonitorStatus

__all__ = ["GAUGES", "active_alarms", "gauge_values"]


def active_alarms(bank: MonitorBank) -> list[Alarm]:
    """Return the alarms of a bank that are not withdrawn: the pipeline's and every stream's."""
    alarms = list(bank.status().active_alarms)
    for key in bank:
        alarms += bank.stream(key).status().active_alarms
    return alarms


GAUGES: Mapping[str, str] = {
    "rejection_rate_ratio": "Rolling share of rejected events, pooled over the streams.",
    "rejection_rate_lower_ratio": "Lower batch-means limit of that share.",
    "rejection_rate_upper_ratio": "Upper batch-means limit of that share.",
    "rejection_rate_estimate_ratio": "Expected share, w / (n + 1).",
    "rejection_rate_bound_ratio": "Exact bound, exceeded by a window with probability delta.",
    "rejection_rate_paper_bound_ratio": "The paper's bound h, corrected.",
    "anomaly_rate_ratio": "Rolling share of accepted anomalies.",
    "flagged_rate_ratio": "Rolling share of events above the threshold; contamination expected.",
    "rejection_window_events": "Events the rolling shares are taken over.",
    "rejection_window_effective_events": "The same, divided by the variance inflation.",
    "health_log_evidence": "Log evidence against the theory; alarms at the threshold.",
    "health_log_threshold": "Where the health monitor raises its alarm.",
    "reviews_projected_per_day": "Rejected events of the day of event time, projected to its end.",
    "review_budget_per_day": "Reviews a day that people can do.",
}


def gauge_values(status: MonitorStatus) -> dict[str, float | None]:
    """Return the value of every gauge; ``None`` where it is not known yet."""
    theory = status.theory
    return {
        "rejection_rate_ratio": status.rejection_rate,
        "rejection_rate_lower_ratio": status.lower,
        "rejection_rate_upper_ratio": status.upper,
        "rejection_rate_estimate_ratio": None if theory is None else theory.expected_rate,
        "rejection_rate_bound_ratio": None if theory is None else theory.exact_bound,
        "rejection_rate_paper_bound_ratio": None if theory is None else theory.paper_bound,
        "anomaly_rate_ratio": status.anomaly_rate,
        "flagged_rate_ratio": status.flagged_rate,
        "rejection_window_events": status.rolling_events,
        "rejection_window_effective_events": status.effective_events,
        "health_log_evidence": status.health_log_evidence,
        "health_log_threshold": status.health_threshold,
        "reviews_projected_per_day": status.reviews_projected,
        "review_budget_per_day": status.review_budget,
    }
