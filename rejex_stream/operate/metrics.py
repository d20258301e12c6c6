"""Prometheus metrics of a run, fed by what the run tells its observers.

No sensor is a label by default; see :mod:`rejex_stream.operate.sensors`.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter

from rejex_stream import __version__
from rejex_stream.engine import EngineSpec
from rejex_stream.monitor import Alarm, MonitorBank, MonitorStatus
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.operate.sensors import GroupNames, SensorRates, most_sensors
from rejex_stream.outcomes import OutcomeCounts
from rejex_stream.rejection.bounds import cost_bound
from rejex_stream.run.incremental_snapshot import PartitionEngine
from rejex_stream.run.progress import (
    Committed,
    ControlUnread,
    DecisionChanged,
    EnvironmentChanged,
    FitFailure,
    IncidentsDurable,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
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
    Partition,
    Reading,
    Reason,
    Verdict,
    in_mode,
)

__all__ = ["GAUGES", "RunMetrics"]

_WINDOW = 1_000  # where nobody says what decides
_LATENCY_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, math.inf)
_SCORING_BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, math.inf)
_INCIDENT_BUCKETS = (60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, math.inf)
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
    "rejection_window_events": (
        "Events the rolling shares are taken over.",
        lambda s: s.rolling_events,
    ),
    "rejection_window_effective_events": (
        "The same, divided by the variance inflation.",
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


# Events of a run that are counted as such.
_COUNTED = {
    FitFailure: ("rejex_fit_failures", "Background fits that failed."),
    Retrying: ("rejex_edge_retries", "Times the edge failed and was tried again."),
    DecisionChanged: (
        "rejex_decision_changes",
        "Partitions taken over with another decision (policy, budget, ties, evidence).",
    ),
    EnvironmentChanged: (
        "rejex_environment_changes",
        "Partitions taken over from another environment (library versions, processor).",
    ),
}


class RunMetrics:
    """Counts what a run does; a :class:`~rejex_stream.run.progress.RunObserver`."""

    def __init__(
        self,
        pipeline: str,
        spec: EngineSpec | None = None,
        *,
        costs: tuple[float, float, float] | None = None,
        grouped: bool = False,
        per_sensor: str = "off",
        version: str = "1",
        refresh_s: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = CollectorRegistry()
        self._pipeline, self._clock, self._groups = pipeline, clock, GroupNames(grouped)
        self._refresh_s, self._refreshed_at = refresh_s, -math.inf
        self._banks: dict[Partition, MonitorBank] = {}
        self._nothing_scorable = False
        self._epochs: dict[str, int] = {}
        counter = partial(PrometheusCounter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        whole, part = ["pipeline"], ["pipeline", "topic", "partition"]
        group = ["pipeline", "sensor_group"]
        self._events = counter("rejex_events", "Events judged, by verdict.", [*group, "verdict"])
        self._rejected = counter(
            "rejex_rejected_events", "Rejected events, by reason.", [*group, "reason"]
        )
        self._withheld = counter(
            "rejex_withheld_events",
            "Events whose label stands because the review budget had no credit left.",
            group,
        )
        self._muted = counter(
            "rejex_muted_events",
            "Events in a pattern that people muted: nobody was asked, unless the audit drew them.",
            group,
        )
        self._learns = spec is not None and spec.learning is not None
        self._challenged = counter(
            "rejex_challenged_events",
            "Events judged by detector and challenger: who spoke, and whether the two differ.",
            [*whole, "judge", "differ"],
        )
        self._invalid = counter(
            "rejex_records_invalid",
            "Records that could not be read and went to the dead letters.",
            [*whole, "reason"],
        )
        self._ignored = counter(
            "rejex_records_ignored",
            "Records without a reading of their own: ignored, or joined into a later row.",
            [*whole, "reason"],
        )
        self._reviews = counter("rejex_review_items", "Events sent to the reviewers.", group)
        self._alarms = counter(
            "rejex_monitor_alarms", "Alarms raised, by monitor.", [*whole, "kind"]
        )
        self._forgotten = counter(
            "rejex_sensors_forgotten", "Streams forgotten after state.forget_after.", whole
        )
        self._counted = {kind: counter(*told, whole) for kind, told in _COUNTED.items()}
        self._dead_letters = counter("rejex_dlq_records", "Dead letters written.", whole)
        self._model_swaps = counter("rejex_model_swaps", "Models that took over.", whole)
        self._commit = histogram(
            "rejex_commit_duration_seconds",
            "How long a commit took.",
            whole,
            buckets=_DURATION_BUCKETS,
        )
        self._latency = histogram(
            "rejex_event_latency_seconds",
            "From the event's own time to its verdict; the last event of every batch.",
            whole,
            buckets=_LATENCY_BUCKETS,
        )
        self._scoring = histogram(
            "rejex_scoring_duration_seconds",
            "Features, score, rank and verdict, per event: the mean of every batch.",
            whole,
            buckets=_SCORING_BUCKETS,
        )
        self._incidents = _IncidentMetrics(self.registry, pipeline)
        self._by_partition = {
            name: gauge(f"rejex_{name}", says, part) for name, (says, _) in GAUGES.items()
        }
        self._offset = gauge("rejex_committed_offset", "Next offset to read.", part)
        self._lag = gauge("rejex_consumer_lag_records", "Records not committed yet.", part)
        self._lag_s = gauge(
            "rejex_consumer_lag_seconds",
            "Age of the newest judged event by its own clock; 0 where nothing waits.",
            part,
        )
        self._newest_ms: dict[Partition, int] = {}
        self._snapshot_at = gauge(
            "rejex_snapshot_timestamp_seconds", "When state was last kept.", part
        )
        self._streams = gauge("rejex_streams", "Streams seen by the monitors.", part)
        self._trained = gauge(
            "rejex_model_trained_timestamp_seconds",
            "When a stream last changed its model.",
            whole,
        )
        self._last_event = gauge(
            "rejex_last_event_timestamp_seconds", "When the last event came.", whole
        )
        self._active = gauge(
            "rejex_active_alarms", "Alarms not withdrawn, by monitor.", [*whole, "kind"]
        )
        self._sensors: SensorRates | None = None
        if (most := most_sensors(per_sensor)) > 0:
            window = _WINDOW if spec is None else spec.window
            self._sensors = SensorRates(pipeline, most, window)
            self.registry.register(self._sensors)
        self._describe(spec, costs, version)
        for label in Label:  # a series that is zero is not a series that is missing
            self._events.labels(pipeline, "", label.value)
        for reason in Reason:
            self._rejected.labels(pipeline, "", reason.value)
        self._withheld.labels(pipeline, "")
        self._muted.labels(pipeline, "")

    def _describe(
        self,
        spec: EngineSpec | None,
        costs: tuple[float, float, float] | None,
        version: str,
    ) -> None:
        build = Gauge("rejex_build_info", "Version.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        if spec is None:
            return
        band = spec.band
        names = ["pipeline", "detector", "model_version", "n", "gamma", "t"]
        info = Gauge("rejex_model_info", "What decides.", names, registry=self.registry)
        info.labels(
            self._pipeline,
            spec.detector.name,
            version,
            spec.window,
            f"{spec.policy.contamination:g}",
            f"{band.tolerance:g}",
        ).set(1)
        if costs is not None:
            bound = Gauge(
                "rejex_expected_cost_bound",
                "Bound on the expected cost of an event, in the costs' own unit.",
                ["pipeline"],
                registry=self.registry,
            )
            bound.labels(self._pipeline).set(cost_bound(band, *costs))

    # ----------------------------------------------------------------------- what a run tells
    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Count a batch; what is replayed was counted before."""
        if replaying or not outcomes:
            return
        verdicts = [outcome.verdict for outcome in outcomes if outcome.verdict is not None]
        self._count(outcomes)
        if self._learns:
            self._count_challenged(verdicts)
        epochs = self._epochs
        for verdict in verdicts:
            key, mode, epoch = verdict.stream_key, verdict.mode, verdict.model_epoch
            if mode is not None:
                key = in_mode(key, mode)
            if epoch is not None and epochs.get(key) != epoch:
                self._new_model(key, epoch)
        if self._sensors is not None:
            for verdict in verdicts:
                self._sensors.count(verdict, self._groups.of(verdict.stream_key))
        now = self._clock()
        self._last_event.labels(self._pipeline).set(now)
        if verdicts:
            newest_ms = self._newest_ms[partition] = verdicts[-1].event_time_ms
            self._latency.labels(self._pipeline).observe(max(0.0, now - newest_ms / 1000))
        self.refresh()

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        for incidents in [outcome.incidents for outcome in outcomes if outcome.incidents]:
            for incident in incidents:
                self._incidents.count(incident, self._groups.of(incident.stream_key))
        for invalid in [outcome.invalid for outcome in outcomes if outcome.invalid is not None]:
            if invalid.silent:
                if invalid.stage != "waiting":
                    self._ignored.labels(self._pipeline, invalid.stage).inc()
                continue
            self._invalid.labels(self._pipeline, invalid.stage).inc()
            self._dead_letters.labels(self._pipeline).inc()
        judged = [outcome for outcome in outcomes if outcome.verdict is not None]
        for group, those in self._groups.told_apart(judged).items():
            counts = OutcomeCounts()
            counts.add(those)
            for label, count in counts.labels.items():
                self._events.labels(self._pipeline, group, label.value).inc(count)
            for reason, count in counts.reasons.items():
                self._rejected.labels(self._pipeline, group, reason.value).inc(count)
            # The series are there before the first review.
            self._withheld.labels(self._pipeline, group).inc(counts.n_withheld)
            self._muted.labels(self._pipeline, group).inc(counts.n_muted)
            self._reviews.labels(self._pipeline, group).inc(counts.n_reviews)

    def _count_challenged(self, verdicts: Iterable[Verdict]) -> None:
        found = Counter(
            (learning.judge, "yes" if learning.other is not verdict.label else "no")
            for verdict in verdicts
            if (learning := verdict.learning) and learning.other is not None
        )
        for names, count in found.items():
            self._challenged.labels(self._pipeline, *names).inc(count)

    def of_lean_verdicts(self) -> None:
        """Leave out what a lean verdict does not say, rather than to count none of it."""
        self.registry.unregister(self._withheld)

    def incidents(self, incidents: Sequence[Incident]) -> None:
        """Export which incidents are open now."""
        self._incidents.show(incidents, self._newest_ms, self._clock())

    def _new_model(self, key: str, epoch: int) -> None:
        self._epochs[key] = epoch
        self._model_swaps.labels(self._pipeline).inc()
        self._trained.labels(self._pipeline).set(self._clock())

    def lag(self, records: Mapping[Partition, int]) -> None:
        """Export how far the committed offsets are behind the input's end."""
        now = self._clock()
        for partition, count in records.items():
            names, newest_ms = self._names(partition), self._newest_ms.get(partition)
            self._lag.labels(*names).set(count)
            age_s = now - newest_ms / 1000 if count and newest_ms is not None else 0.0
            self._lag_s.labels(*names).set(max(0.0, age_s))

    def timed(
        self,
        engine: PartitionEngine,
        see: Callable[[Sequence[Reading], Sequence[Verdict]], object] = lambda *_: None,
    ) -> PartitionEngine:
        """Return the engine with a stop-watch around its work, and somebody who sees all of it."""
        return _Timed(engine, self._scoring.labels(self._pipeline).observe, see)

    def event(self, event: RunEvent) -> None:
        """Note what happened to the run itself."""
        match event:
            case Committed(_, seconds, next_offsets):
                self._commit.labels(self._pipeline).observe(seconds)
                self.committed(next_offsets)
            case SnapshotSaved(partition):
                self._snapshot_at.labels(*self._names(partition)).set(self._clock())
            case FitFailure() | DecisionChanged() | EnvironmentChanged() | Retrying():
                self._counted[type(event)].labels(self._pipeline).inc()
            case SensorsForgotten():
                self._forget_streams(event)
            case PartitionClosed(partition):
                self.forget(partition)
            case NothingScorable(_, alarm):
                self._nothing_scorable = alarm is not None
                if alarm is not None:
                    self.alarm(alarm)
            case PartitionOpened() | PartitionLive() | ControlUnread() | IncidentsDurable():
                pass

    def committed(self, next_offsets: Mapping[Partition, int]) -> None:
        """Export how far partitions are durable."""
        for partition, offset in next_offsets.items():
            self._offset.labels(*self._names(partition)).set(offset)

    def _forget_streams(self, event: SensorsForgotten) -> None:
        for stream in event.streams:
            self._epochs.pop(stream, None)
        if self._sensors is not None:
            self._sensors.forget(event.streams)
        if not event.replaying:
            self._forgotten.labels(self._pipeline).inc(len(event.streams))

    def alarm(self, alarm: Alarm) -> None:
        """Count an alarm."""
        self._alarms.labels(self._pipeline, alarm.kind.value).inc()

    # ----------------------------------------------------------------------------- monitors
    def watch(self, partition: Partition, bank: MonitorBank) -> None:
        """Export what this bank knows from now on."""
        self._banks[partition] = bank

    def forget(self, partition: Partition) -> None:
        """Drop the gauges of a partition that is no longer ours."""
        self._banks.pop(partition, None)
        if self._sensors is not None:
            self._sensors.forget_partition(partition)
        gauges = (self._offset, self._lag, self._lag_s, self._snapshot_at, self._streams)
        for gauge in (*self._by_partition.values(), *gauges):
            try:
                gauge.remove(*self._names(partition))
            except KeyError:
                continue  # it never had a value

    def refresh(self, *, force: bool = False) -> None:
        """Renew the gauges, if they are older than `refresh_s`; called in the run's own thread."""
        now = self._clock()
        if not force and now - self._refreshed_at < self._refresh_s:
            return
        self._refreshed_at = now
        kinds: Counter[str] = Counter()
        for partition, bank in self._banks.items():
            status, names = bank.status(), self._names(partition)
            for name, (_, read) in GAUGES.items():
                value = read(status)
                self._by_partition[name].labels(*names).set(math.nan if value is None else value)
            self._streams.labels(*names).set(len(bank))
            kinds.update(alarm.kind.value for alarm in bank.active_alarms())
        kinds[AlarmKind.NOTHING_SCORABLE] = int(self._nothing_scorable)
        for kind in AlarmKind:
            self._active.labels(self._pipeline, kind.value).set(kinds[kind.value])
        if self._sensors is not None:
            self._sensors.refresh()

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def _names(self, partition: Partition) -> tuple[str, str, str]:
        return self._pipeline, partition.topic, str(partition.partition)


class _Timed:
    """An engine whose batches are timed, per event."""

    def __init__(
        self,
        engine: PartitionEngine,
        observe: Callable[[float], object],
        see: Callable[[Sequence[Reading], Sequence[Verdict]], object],
    ) -> None:
        self._engine, self._observe, self._see = engine, observe, see
        self.streams, self.head, self.view = engine.streams, engine.head, engine.view
        self.restore_streams = engine.restore_streams
        self.decide, self.take_failures = engine.decide, engine.take_failures
        self.ready, self.forget = engine.ready, engine.forget
        self.open_incidents, self.command = engine.open_incidents, engine.command
        self.take_incidents, self.streams_of = engine.take_incidents, engine.streams_of

    def process(self, readings: Sequence[Reading]) -> Sequence[Verdict]:
        start = time.perf_counter()
        verdicts = self._engine.process(readings)
        if readings:
            self._observe((time.perf_counter() - start) / len(readings))
            self._see(readings, verdicts)
        return verdicts


class _IncidentMetrics:
    """What becomes of incidents, and which are open."""

    def __init__(self, registry: CollectorRegistry, pipeline: str) -> None:
        self._pipeline = pipeline
        self._changes = PrometheusCounter(
            "rejex_incident_changes",
            "Changes of incidents, by the state they led to.",
            ["pipeline", "sensor_group", "state"],
            registry=registry,
        )
        self._duration = Histogram(
            "rejex_incident_duration_seconds",
            "From the onset of an incident to its end, by the events' own clock.",
            ["pipeline"],
            buckets=_INCIDENT_BUCKETS,
            registry=registry,
        )
        self._open = Gauge(
            "rejex_open_incidents",
            "Incidents that are not over, by state.",
            ["pipeline", "state"],
            registry=registry,
        )
        self._held = Gauge(
            "rejex_held_streams",
            "Streams whose reference stands still for an incident.",
            ["pipeline"],
            registry=registry,
        )
        self._waiting = Gauge(
            "rejex_incident_waiting_seconds",
            "How long an incident waits for an answer, by the events' own clock or, where that "
            "stands still, by ours; of the hundred that wait for longest.",
            ["pipeline", "stream", "incident"],
            registry=registry,
        )
        self._seen_at: dict[str, float] = {}
        self.show((), {}, 0.0)

    def count(self, incident: Incident, group: str) -> None:
        self._changes.labels(self._pipeline, group, incident.state.value).inc()
        if incident.state is IncidentState.CLOSED:
            seconds = (incident.changed_ms - incident.onset_ms) / 1000
            self._duration.labels(self._pipeline).observe(max(0.0, seconds))

    def show(
        self, incidents: Sequence[Incident], newest_ms: Mapping[Partition, int], now_s: float
    ) -> None:
        unanswered = [one for one in incidents if one.state is IncidentState.OPEN]
        self._seen_at = {one.id: self._seen_at.get(one.id, now_s) for one in unanswered}
        waits = []
        for one in unanswered:
            by_events = newest_ms.get(Partition(*one.position[:2]), 0) - one.opened_ms
            waits.append((max(by_events / 1000, now_s - self._seen_at[one.id]), one))
        self._waiting.clear()
        for seconds, one in heapq.nlargest(_MOST_WAITING, waits, key=lambda wait: wait[0]):
            self._waiting.labels(self._pipeline, one.stream_key, one.id).set(seconds)
        states = Counter((incident.state, incident.held) for incident in incidents)
        for state in _OPEN:
            of = states[state, True] + states[state, False]
            self._open.labels(self._pipeline, state.value).set(of)
        held = sum(n for (state, held), n in states.items() if held)
        self._held.labels(self._pipeline).set(held - states[IncidentState.ADOPTING, True])
