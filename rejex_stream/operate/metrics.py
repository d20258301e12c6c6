"""Prometheus metrics of a run, fed by what the run tells its observers.

No sensor is a label by default; see :mod:`rejex_stream.operate.sensors`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter

from rejex_stream import __version__
from rejex_stream.engine import EngineSpec
from rejex_stream.guarantees import cost_bound
from rejex_stream.lane import LaneEngine
from rejex_stream.monitor import Alarm, MonitorBank
from rejex_stream.monitor.alarm import AlarmKind
from rejex_stream.operate.gauges import GAUGES, active_alarms, gauge_values
from rejex_stream.operate.sensors import GroupNames, SensorRates, most_sensors
from rejex_stream.progress import (
    Committed,
    FitFailure,
    LaneClosed,
    LaneLive,
    LaneOpened,
    Retrying,
    RunEvent,
    SnapshotSaved,
)
from rejex_stream.types import Label, Outcome, Partition, Reading, Reason, Verdict

__all__ = ["RunMetrics"]

_WINDOW = 1_000  # where nobody says what decides
_LATENCY_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, math.inf)
_SCORING_BUCKETS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, math.inf)
_DURATION_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)


class RunMetrics:
    """Counts what a run does; a :class:`~rejex_stream.progress.RunObserver`.

    Parameters
    ----------
    pipeline
        Label of every metric.
    spec
        Told as ``rejex_model_info``; its band gives the expected rate before the first event.
    costs
        (c_fp, c_fn, c_r), for the cost bound.
    grouped
        Whether stream keys are groups of sensors: then ``sensor_group`` names them, else it is
        empty.
    per_sensor
        Which sensors are exported by name: ``off``, ``topk:N`` or ``all``.
    version
        Of what decides, as ``model_version``.
    refresh_s
        Gauges are renewed at most this often: a status costs some 10 µs per thousand events.
    clock
        Seconds since 1970.

    Examples
    --------
    >>> metrics = RunMetrics("turbine")
    >>> b"rejex_build_info" in metrics.exposition()
    True
    """

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
        self._epochs: dict[str, int] = {}
        self._events = PrometheusCounter(
            "rejex_events",
            "Events judged, by verdict.",
            ["pipeline", "sensor_group", "verdict"],
            registry=self.registry,
        )
        self._rejected = PrometheusCounter(
            "rejex_rejected_events",
            "Rejected events, by reason.",
            ["pipeline", "sensor_group", "reason"],
            registry=self.registry,
        )
        self._invalid = PrometheusCounter(
            "rejex_records_invalid",
            "Records that could not be read and went to the dead letters.",
            ["pipeline", "reason"],
            registry=self.registry,
        )
        self._reviews = PrometheusCounter(
            "rejex_review_items",
            "Events sent to the reviewers.",
            ["pipeline", "sensor_group"],
            registry=self.registry,
        )
        self._alarms = PrometheusCounter(
            "rejex_monitor_alarms",
            "Alarms raised, by monitor.",
            ["pipeline", "kind"],
            registry=self.registry,
        )
        self._retries = PrometheusCounter(
            "rejex_edge_retries",
            "Times the edge failed and was tried again.",
            ["pipeline"],
            registry=self.registry,
        )
        self._fit_failures = PrometheusCounter(
            "rejex_fit_failures",
            "Background fits that failed.",
            ["pipeline"],
            registry=self.registry,
        )
        self._commit = Histogram(
            "rejex_commit_duration_seconds",
            "How long a commit took.",
            ["pipeline"],
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._latency = Histogram(
            "rejex_event_latency_seconds",
            "From the event's own time to its verdict; the last event of every batch.",
            ["pipeline"],
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        part = ["pipeline", "topic", "partition"]
        self._by_partition = {
            name: Gauge(f"rejex_{name}", says, part, registry=self.registry)
            for name, says in GAUGES.items()
        }
        self._offset = Gauge(
            "rejex_committed_offset", "Next offset to read.", part, registry=self.registry
        )
        self._lag = Gauge(
            "rejex_consumer_lag_records", "Records not committed yet.", part, registry=self.registry
        )
        self._lag_s = Gauge(
            "rejex_consumer_lag_seconds",
            "Age of the newest judged event by its own clock; 0 where nothing waits.",
            part,
            registry=self.registry,
        )
        self._newest_ms: dict[Partition, int] = {}
        self._snapshot_at = Gauge(
            "rejex_snapshot_timestamp_seconds",
            "When state was last kept.",
            part,
            registry=self.registry,
        )
        self._dead_letters = PrometheusCounter(
            "rejex_dlq_records", "Dead letters written.", ["pipeline"], registry=self.registry
        )
        self._scoring = Histogram(
            "rejex_scoring_duration_seconds",
            "Features, score, rank and verdict, per event: the mean of every batch.",
            ["pipeline"],
            buckets=_SCORING_BUCKETS,
            registry=self.registry,
        )
        self._trained = Gauge(
            "rejex_model_trained_timestamp_seconds",
            "When a stream last changed its model.",
            ["pipeline"],
            registry=self.registry,
        )
        self._model_swaps = PrometheusCounter(
            "rejex_model_swaps", "Models that took over.", ["pipeline"], registry=self.registry
        )
        self._last_event = Gauge(
            "rejex_last_event_timestamp_seconds",
            "When the last event came.",
            ["pipeline"],
            registry=self.registry,
        )
        self._active = Gauge(
            "rejex_active_alarms",
            "Alarms not withdrawn, by monitor.",
            ["pipeline", "kind"],
            registry=self.registry,
        )
        self._streams = Gauge(
            "rejex_streams", "Streams seen by the monitors.", part, registry=self.registry
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
        if len(verdicts) < len(outcomes):
            self._count_invalid(outcomes)
        self._count(verdicts, [o.review.verdict for o in outcomes if o.review is not None])
        if self._sensors is not None:
            for verdict in verdicts:
                self._sensors.count(verdict, self._groups.of(verdict.stream_key))
        now = self._clock()
        self._last_event.labels(self._pipeline).set(now)
        if verdicts:
            newest_ms = self._newest_ms[partition] = verdicts[-1].event_time_ms
            self._latency.labels(self._pipeline).observe(max(0.0, now - newest_ms / 1000))
        self.refresh()

    def _count(self, verdicts: Sequence[Verdict], reviewed: Sequence[Verdict]) -> None:
        labels: Counter[tuple[str, str]] = Counter()
        reasons: Counter[tuple[str, str]] = Counter()
        reviews: Counter[str] = Counter()
        # A few combinations stand for thousands of events; they come in the order of the events.
        kinds = Counter([(v.stream_key, v.model_epoch, v.label, v.reason) for v in verdicts])
        for (stream_key, epoch, label, reason), count in kinds.items():
            if epoch is not None and self._epochs.get(stream_key) != epoch:
                self._new_model(stream_key, epoch)
            group = self._groups.of(stream_key)
            labels[group, label.value] += count
            if reason is not None:
                reasons[group, reason.value] += count
            reviews[group] += 0  # the series is there before the first review
        for verdict in reviewed:
            reviews[self._groups.of(verdict.stream_key)] += 1
        for (group, text), count in labels.items():
            self._events.labels(self._pipeline, group, text).inc(count)
        for (group, text), count in reasons.items():
            self._rejected.labels(self._pipeline, group, text).inc(count)
        for group, count in reviews.items():
            self._reviews.labels(self._pipeline, group).inc(count)

    def _count_invalid(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.invalid is not None:
                self._invalid.labels(self._pipeline, outcome.invalid.stage).inc()
                self._dead_letters.labels(self._pipeline).inc()

    def _new_model(self, stream_key: str, epoch: int) -> None:
        self._epochs[stream_key] = epoch
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

    def timed(self, engine: LaneEngine) -> LaneEngine:
        """Return the engine with a stop-watch around its work."""
        return _Timed(engine, self._scoring.labels(self._pipeline).observe)

    def event(self, event: RunEvent) -> None:
        """Note what happened to the run itself."""
        match event:
            case Committed(_, seconds, next_offsets):
                self._commit.labels(self._pipeline).observe(seconds)
                for partition, offset in next_offsets.items():
                    self._offset.labels(*self._names(partition)).set(offset)
            case SnapshotSaved(partition):
                self._snapshot_at.labels(*self._names(partition)).set(self._clock())
            case FitFailure():
                self._fit_failures.labels(self._pipeline).inc()
            case Retrying():
                self._retries.labels(self._pipeline).inc()
            case LaneClosed(partition):
                self.forget(partition)
            case LaneOpened() | LaneLive():
                pass

    def alarm(self, partition: Partition, alarm: Alarm) -> None:
        """Count an alarm."""
        self._alarms.labels(self._pipeline, alarm.kind.value).inc()

    # ----------------------------------------------------------------------------- monitors
    def watch(self, partition: Partition, bank: MonitorBank) -> None:
        """Export what this bank knows from now on."""
        self._banks[partition] = bank

    def forget(self, partition: Partition) -> None:
        """Drop the gauges of a partition that is no longer ours."""
        if self._banks.pop(partition, None) is None:
            return
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
            for name, value in gauge_values(status).items():
                self._by_partition[name].labels(*names).set(math.nan if value is None else value)
            self._streams.labels(*names).set(len(bank))
            kinds.update(alarm.kind.value for alarm in active_alarms(bank))
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

    def __init__(self, engine: LaneEngine, observe: Callable[[float], object]) -> None:
        self._engine, self._observe = engine, observe
        self.snapshot, self.restore = engine.snapshot, engine.restore
        self.take_failures = engine.take_failures

    def process(self, readings: Sequence[Reading]) -> Sequence[Verdict]:
        start = time.perf_counter()
        verdicts = self._engine.process(readings)
        if readings:
            self._observe((time.perf_counter() - start) / len(readings))
        return verdicts
