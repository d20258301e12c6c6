"""Prometheus metrics of a run, fed by the run as its observer.

Groups are labels up to a number, sensors are none: ten thousand of them would be ten thousand time
series, and what every sensor does is the console's to show.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rejex_stream import __version__
from rejex_stream.engine import EngineSpec
from rejex_stream.monitor import Alarm, MonitorBank, MonitorStatus
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.native_core import core, native
from rejex_stream.operate.incident_text import urgency
from rejex_stream.operate.logs import escaped
from rejex_stream.run.run_events import (
    Committed,
    DecisionChanged,
    EnvironmentChanged,
    FitFailure,
    NothingScorable,
    PartitionClosed,
    Retrying,
    RunEvent,
    SensorsForgotten,
    SnapshotSaved,
)
from rejex_stream.types import (
    Incident,
    IncidentState,
    Label,
    Outcome,
    OutcomeCounts,
    Partition,
    Reason,
    in_mode,
)

_LATENCY_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, math.inf)
_SCORING_BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, math.inf)
_DURATION_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)

# What of a monitor's status is exported: what it means, and how it is read; None: not known yet.
GAUGES: Mapping[str, tuple[str, Callable[[MonitorStatus], float | None]]] = {
    "rejection_rate_ratio": (
        "Rolling share of rejected events, pooled over the streams.",
        lambda s: s.rejection_rate,
    ),
    "rejection_rate_lower_ratio": ("Lower limit of that share.", lambda s: s.lower),
    "rejection_rate_upper_ratio": ("Upper limit of that share.", lambda s: s.upper),
    "rejection_rate_estimate_ratio": (
        "Expected share, w / (n + 1).",
        lambda s: None if s.theory is None else s.theory.expected_rate,
    ),
    "rejection_rate_bound_ratio": (
        "Exact law of a frozen window: its rate is above this with probability delta. Not of the "
        "rolling rate.",
        lambda s: None if s.theory is None else s.theory.frozen_bound,
    ),
    "rejection_rate_paper_bound_ratio": (
        "The paper's bound h, corrected.",
        lambda s: None if s.theory is None else s.theory.paper_bound,
    ),
    "anomaly_rate_ratio": ("Rolling share of accepted anomalies.", lambda s: s.anomaly_rate),
    "flagged_rate_ratio": (
        "Rolling share of events above the threshold; contamination expected.",
        lambda s: s.flagged_rate,
    ),
    "rejection_window_effective_events": (
        "Events the rolling shares are taken over, divided by the variance inflation.",
        lambda s: s.effective_events,
    ),
    "health_log_evidence": (
        "Log evidence against the theory; alarms at the threshold.",
        lambda s: s.health_log_evidence,
    ),
    "health_log_threshold": (
        "Where the health monitor raises its alarm.",
        lambda s: s.health_threshold,
    ),
    "review_budget_per_day": ("Reviews a day that people can do.", lambda s: s.review_budget),
}


_MOST_WAITING = 100
_OPEN = [state for state in IncidentState if state is not IncidentState.CLOSED]


COUNTERS: Mapping[str, tuple[str, str]] = {
    "events": ("Events judged, by verdict.", "sensor_group verdict"),
    "rejected_events": ("Rejected events, by reason.", "sensor_group reason"),
    "limit_events": ("Anomalies by a limit or an unseen value.", "sensor_group"),
    "withheld_events": (
        "Events whose label stands because the review budget had no credit left.",
        "sensor_group",
    ),
    "muted_events": (
        "Events in a pattern that people muted: nobody was asked, unless the audit drew them.",
        "sensor_group",
    ),
    "records_invalid": ("Records that could not be read and went to the dead letters.", "reason"),
    "records_ignored": (
        "Records without a reading of their own: ignored, or joined into a later row.",
        "reason",
    ),
    "events_out_of_time": (
        "Events a minute behind their sensor's newest (behind), before 1990 (unit), or a day ahead "
        "of all others (ahead).",
        "kind",
    ),
    "review_items": ("Events sent to the reviewers.", "sensor_group"),
    "monitor_alarms": ("Alarms raised, by monitor.", "kind"),
    "sensors_forgotten": ("Streams forgotten after state.forget_after.", ""),
    "fit_failures": ("Background fits that failed.", ""),
    "edge_retries": ("Times the edge failed and was tried again.", ""),
    "decision_changes": (
        "Partitions taken over with another decision (policy, budget, ties, evidence).",
        "",
    ),
    "environment_changes": (
        "Partitions taken over from another environment (library versions, processor).",
        "",
    ),
}
"""By name: what is counted, and the labels beside the pipeline."""
LEVELS: Mapping[str, tuple[str, str]] = {
    "committed_offset": ("Next offset to read.", "topic partition"),
    "commands_waiting": ("Commands that were read and hold from no event yet.", "topic partition"),
    "untrusted_clocks": (
        "Sensors whose times are a day ahead, or before 1990, while those of others are not.",
        "topic partition",
    ),
    "silent_sensors": (
        "Sensors that send nothing: incidents, and by the run's own clock.",
        "topic partition",
    ),
    "consumer_lag_records": ("Records not committed yet.", "topic partition"),
    "consumer_lag_seconds": (
        "Age of the newest judged event by its own clock; 0 where nothing waits.",
        "topic partition",
    ),
    "snapshot_timestamp_seconds": ("When state was last saved.", "topic partition"),
    "streams": ("Streams seen by the monitors.", "topic partition"),
    "model_trained_timestamp_seconds": ("When a stream last changed its model.", ""),
    "last_event_timestamp_seconds": ("When the last event came.", ""),
    "active_alarms": ("Alarms not withdrawn, by monitor.", "kind"),
    "open_incidents": ("Incidents that are not over, by state.", "state"),
    "held_streams": ("Streams whose reference stands still for an incident.", ""),
    "incident_waiting_seconds": (
        "How long an incident waits for an answer, by the events' own clock or, where that "
        "stands still, by ours; of the hundred that wait for longest.",
        "stream incident severity",
    ),
}
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "commit_duration_seconds": ("How long a commit took.", _DURATION_BUCKETS),
    "event_latency_seconds": (
        "From the event's own time to its verdict; the last event of every batch.",
        _LATENCY_BUCKETS,
    ),
    "scoring_duration_seconds": (
        "Features, score, rank and verdict, per event: the mean of every batch.",
        _SCORING_BUCKETS,
    ),
}
_COUNTED = {
    FitFailure: "fit_failures",
    Retrying: "edge_retries",
    DecisionChanged: "decision_changes",
    EnvironmentChanged: "environment_changes",
}


class RunMetrics:
    """Counts what a run does; a :class:`~rejex_stream.run.run_events.OutcomeObserver`."""

    def __init__(
        self,
        pipeline: str,
        spec: EngineSpec | None = None,
        *,
        grouped: bool = False,
        version: str = "1",
        refresh_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = CollectorRegistry()
        self._pipeline, self._clock, self._groups = pipeline, clock, GroupNames(grouped)
        self._refresh_s, self._refreshed_at = refresh_s, -math.inf
        self._plain = native("plain")
        self._banks: dict[Partition, MonitorBank] = {}
        self._nothing_scorable = False
        self._epochs: dict[str, int] = {}
        self._newest_ms: dict[Partition, int] = {}
        self._seen_at: dict[str, float] = {}
        in_ours: dict[str, Any] = {"registry": self.registry}
        self._counters = {
            name: Counter(f"rejex_{name}", says, ["pipeline", *labels.split()], **in_ours)
            for name, (says, labels) in COUNTERS.items()
        }
        of_bank = {name: (says, "topic partition") for name, (says, _) in GAUGES.items()}
        self._levels = {**LEVELS, **of_bank}
        self._gauges = {
            name: Gauge(f"rejex_{name}", says, ["pipeline", *labels.split()], **in_ours)
            for name, (says, labels) in self._levels.items()
        }
        self._histograms = {
            name: Histogram(f"rejex_{name}", says, ["pipeline"], buckets=buckets, **in_ours)
            for name, (says, buckets) in HISTOGRAMS.items()
        }
        self.scoring_duration = self._histogram("scoring_duration_seconds")  # for who takes it
        self._describe(spec, version)
        for label in Label:  # a series that is zero is not a series that is missing
            self._counter("events", "", label.value)
        for reason in Reason:
            if reason is not Reason.LIMIT:
                self._counter("rejected_events", "", reason.value)
        self._counter("limit_events", "")
        self._counter("withheld_events", "")
        self._counter("muted_events", "")
        self.incidents(())

    def _describe(self, spec: EngineSpec | None, version: str) -> None:
        build = Gauge("rejex_build_info", "Version.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        judges = Gauge(
            "rejex_core_info", "Which judges ordinary events.", ["core"], registry=self.registry
        )
        judges.labels("python" if core()[0] is None else "native").set(1)
        if spec is None:
            return
        names = ["pipeline", "detector", "model_version", "n", "gamma", "t"]
        info = Gauge("rejex_model_info", "What decides.", names, registry=self.registry)
        info.labels(
            self._pipeline,
            spec.detector.name,
            version,
            spec.window,
            f"{spec.policy.contamination:g}",
            f"{spec.band.tolerance:g}",
        ).set(1)

    # ----------------------------------------------------------------------- what a run tells
    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        if replaying or not outcomes:
            return
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self._count(outcomes)
        epochs = self._epochs
        for verdict in verdicts:
            key, mode, epoch = verdict.stream_key, verdict.mode, verdict.model_epoch
            if mode is not None:
                key = in_mode(key, mode)
            if epoch is not None and epochs.get(key) != epoch:
                self._epochs[key] = epoch
                self._gauge("model_trained_timestamp_seconds").set(self._clock())
        now = self._clock()
        self._gauge("last_event_timestamp_seconds").set(now)
        if verdicts:
            newest_ms = self._newest_ms[partition] = verdicts[-1].event_time_ms
            self._histogram("event_latency_seconds").observe(max(0.0, now - newest_ms / 1000))
        self.refresh()

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        for invalid in [outcome.invalid for outcome in outcomes if outcome.invalid is not None]:
            if invalid.silent:
                if invalid.stage != "waiting":
                    self._counter("records_ignored", invalid.stage).inc()
                continue
            self._counter("records_invalid", invalid.stage).inc()
        judged = [outcome for outcome in outcomes if outcome.verdict is not None]
        for group, those in self._groups.by_group(judged).items():
            counts = OutcomeCounts(plain=self._plain)
            counts.add(those)
            for label, count in counts.labels.items():
                self._counter("events", group, label.value).inc(count)
            self._counter("limit_events", group).inc(counts.n_limited)
            for reason, count in counts.reasons.items():
                self._counter("rejected_events", group, reason.value).inc(count)
            # The series are there before the first review.
            self._counter("withheld_events", group).inc(counts.n_withheld)
            self._counter("muted_events", group).inc(counts.n_muted)
            self._counter("review_items", group).inc(counts.n_reviews)

    def of_lean_verdicts(self) -> None:
        """Leave out what a lean verdict does not say, rather than to count none of it."""
        self.registry.unregister(self._counters["withheld_events"])

    def incidents(self, incidents: Sequence[Incident]) -> None:
        now_s, waiting = self._clock(), self._gauges["incident_waiting_seconds"]
        unanswered = [o for o in incidents if o.state is IncidentState.OPEN and not o.silent]
        self._seen_at = {one.id: self._seen_at.get(one.id, now_s) for one in unanswered}
        waits = []
        for one in unanswered:
            by_events = self._newest_ms.get(Partition(*one.position[:2]), 0) - one.opened_ms
            waits.append((max(by_events / 1000, now_s - self._seen_at[one.id]), one))
        waiting.clear()
        for seconds, one in heapq.nlargest(_MOST_WAITING, waits, key=lambda wait: wait[0]):
            waiting.labels(self._pipeline, one.stream_key, one.id, urgency(one)).set(seconds)
        states = Tally((incident.state, incident.held) for incident in incidents)
        for state in _OPEN:
            of = states[state, True] + states[state, False]
            self._gauge("open_incidents", state.value).set(of)
        held = sum(n for (state, held), n in states.items() if held)
        self._gauge("held_streams").set(held - states[IncidentState.ADOPTING, True])

    def silent(
        self, incidents: Iterable[Incident], overdue: Mapping[Partition, Sequence[str]]
    ) -> None:
        counts = Tally(Partition(*one.position[:2]) for one in incidents if one.silent)
        for partition in overdue:
            n_silent = counts[partition] + len(overdue[partition])
            self._gauge("silent_sensors", *_labels(partition)).set(n_silent)

    def out_of_time(self, kind: str, n: int) -> None:
        self._counter("events_out_of_time", kind).inc(n)

    def lag(self, records: Mapping[Partition, int]) -> None:
        now = self._clock()
        for partition, count in records.items():
            names, newest_ms = _labels(partition), self._newest_ms.get(partition)
            self._gauge("consumer_lag_records", *names).set(count)
            age_s = now - newest_ms / 1000 if count and newest_ms is not None else 0.0
            self._gauge("consumer_lag_seconds", *names).set(max(0.0, age_s))

    def event(self, event: RunEvent) -> None:
        match event:
            case Committed(_, seconds, next_offsets, waiting, untrusted):
                self._histogram("commit_duration_seconds").observe(seconds)
                self.committed(next_offsets)
                for partition, n in waiting.items():
                    self._gauge("commands_waiting", *_labels(partition)).set(n)
                for partition, n in untrusted.items():
                    self._gauge("untrusted_clocks", *_labels(partition)).set(n)
            case SnapshotSaved(partition):
                self._gauge("snapshot_timestamp_seconds", *_labels(partition)).set(self._clock())
            case FitFailure() | DecisionChanged() | EnvironmentChanged() | Retrying():
                self._counter(_COUNTED[type(event)]).inc()
            case SensorsForgotten(_, streams, replaying):
                for stream in streams:
                    self._epochs.pop(stream, None)
                self._counter("sensors_forgotten").inc(0 if replaying else len(streams))
            case PartitionClosed(partition):
                self.forget(partition)
            case NothingScorable(_, alarm):
                self._nothing_scorable = alarm is not None
                if alarm is not None:
                    self.alarm(alarm)

    def committed(self, next_offsets: Mapping[Partition, int]) -> None:
        for partition, offset in next_offsets.items():
            self._gauge("committed_offset", *_labels(partition)).set(offset)

    def alarm(self, alarm: Alarm) -> None:
        self._counter("monitor_alarms", alarm.kind.value).inc()

    # ----------------------------------------------------------------------------- monitors
    def watch(self, partition: Partition, bank: MonitorBank) -> None:
        self._banks[partition] = bank

    def forget(self, partition: Partition) -> None:
        self._banks.pop(partition, None)
        for name, (_, labels) in self._levels.items():
            if labels != "topic partition":
                continue
            with suppress(KeyError):  # it never had a value
                self._gauges[name].remove(self._pipeline, *_labels(partition))

    def refresh(self, *, force: bool = False) -> None:
        now = self._clock()
        if not force and now - self._refreshed_at < self._refresh_s:
            return
        self._refreshed_at = now
        kinds: Tally[str] = Tally()
        for partition, bank in self._banks.items():
            status, names = bank.status(), _labels(partition)
            for name, (_, read) in GAUGES.items():
                value = read(status)
                self._gauge(name, *names).set(math.nan if value is None else value)
            self._gauge("streams", *names).set(len(bank))
            kinds.update(alarm.kind.value for alarm in bank.active_alarms())
        kinds[AlarmKind.NOTHING_SCORABLE] = int(self._nothing_scorable)
        for kind in AlarmKind:
            self._gauge("active_alarms", kind.value).set(kinds[kind.value])

    def exposition(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def _counter(self, name: str, *labels: str) -> Counter:
        return self._counters[name].labels(self._pipeline, *labels)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return self._gauges[name].labels(self._pipeline, *labels)

    def _histogram(self, name: str) -> Histogram:
        return self._histograms[name].labels(self._pipeline)


def _labels(partition: Partition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)


# ------------------------------------------------------------------------------ groups
_MOST_GROUPS = 100
_OTHER = "other"


class GroupNames:
    """The value of the label ``sensor_group``; empty where sensors are not grouped.

    A field of the records may name the group, so there may be any number: the first hundred are
    told apart, all further ones are ``other``.
    """

    def __init__(self, grouped: bool) -> None:
        self._grouped = grouped
        self._known: dict[str, str] = {}

    def of(self, stream_key: str) -> str:
        if not self._grouped:
            return ""
        name = self._known.get(stream_key)
        if name is None:
            if len(self._known) >= _MOST_GROUPS:
                return _OTHER
            name = self._known[stream_key] = escaped(stream_key)
        return name

    def by_group(self, judged: Sequence[Outcome]) -> Mapping[str, Sequence[Outcome]]:
        if not self._grouped:
            return {"": judged} if judged else {}
        groups: dict[str, list[Outcome]] = {}
        for outcome in judged:
            if outcome.verdict is not None:
                groups.setdefault(self.of(outcome.verdict.stream_key), []).append(outcome)
        return groups
