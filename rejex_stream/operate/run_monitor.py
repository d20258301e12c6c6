"""What operators see of a run: monitors, metrics and health; alarms and incidents go out here."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rejex_stream.engine import Engine
from rejex_stream.engine.silences import Silences
from rejex_stream.errors import ConnectorError
from rejex_stream.monitor import Alarm, MonitorConfig
from rejex_stream.operate.alerts import (
    Alert,
    Alertmanager,
    Webhook,
    make_alert,
    make_event,
    make_overdue_alert,
)
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.operate.open_situations import OpenSituations, Together
from rejex_stream.operate.run_metrics import RunMetrics
from rejex_stream.readable import ChannelReading, span
from rejex_stream.run.partition import PartitionMonitor
from rejex_stream.run.run_events import (
    Committed,
    IncidentsDurable,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
    Retrying,
    RunEvent,
    RunObserver,
)
from rejex_stream.trusted_clock import DAY_MS, FIRST_MS
from rejex_stream.types import Incident, IncidentState, Partition, Reading, of_mode

_log = logging.getLogger(__name__)
_LAG_EVERY_S, _LOOK_EVERY_S = 10.0, 10.0
_ENOUGH = 3  # sensors alive, and of each two others are
_LATE_MS, _AGAIN_S, _MOST_SENSORS = 60_000, 3_600.0, 200_000  # of times that go back


class Arrivals:
    """When each sensor of a partition was last heard here, and who is overdue by that.

    Where fewer than two other sensors are alive, the trusted clock of a partition stands, and no
    event says who is silent. Then a sensor is overdue by what has passed here since it was heard:
    as long as nothing came at all, or as far as others' times have moved, so that an input that is
    caught up with makes nobody overdue. That is for an alert and a metric, and written nowhere.
    """

    def __init__(self, silences: Silences, now_s: float) -> None:
        self._silences = silences
        self._began = self._last = now_s, 0
        self._at: dict[str, tuple[float, int]] = {}

    def update(self, readings: Sequence[Reading], now_s: float) -> None:
        self._last = now_s, readings[-1].event_time_ms
        if not self._at:
            self._began = self._began[0], readings[0].event_time_ms
        self._at |= dict.fromkeys([reading.sensor for reading in readings], self._last)

    def overdue(self, now_s: float) -> list[str]:
        found, n_alive, (last_s, last_ms) = list[str](), 0, self._last
        for sensor, limit_ms in self._silences.limits():
            at_s, at_ms = self._at.get(sensor, self._began)
            passed_ms = min(1000 * (now_s - at_s), max(1000 * (now_s - last_s), last_ms - at_ms))
            if passed_ms > limit_ms:
                found.append(sensor)
                continue
            n_alive += 1
            if n_alive >= _ENOUGH:
                return []
        return sorted(found)


class Check(NamedTuple):
    """One line of ``/readyz?verbose``."""

    name: str
    ok: bool
    detail: str


class Health:
    """The state of a run as checks; an observer of the run."""

    def __init__(
        self, *, stalled_after_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._stalled_after_s = clock, stalled_after_s
        self._progress_at = clock()
        self._lock = threading.Lock()
        self._replaying: set[Partition] = set()
        self._owned: set[Partition] = set()
        self._standing_by = False
        self._error: str | None = None
        self._unanswered: str | None = None

    def progress(self, progress: Progress) -> None:
        """Record that the loop ran, with or without events."""
        self._progress_at = self._clock()

    def event(self, event: RunEvent) -> None:
        """Record ownership, replays and failures of the edge."""
        self._progress_at = self._clock()
        with self._lock:
            match event:
                case PartitionOpened(partition, _, next_offset, live_from):
                    self._owned.add(partition)
                    self._error = None
                    if next_offset < live_from:
                        self._replaying.add(partition)
                case PartitionLive(partition):
                    self._replaying.discard(partition)
                case PartitionClosed(partition):
                    self._owned.discard(partition)
                    self._replaying.discard(partition)
                case Retrying(error):
                    self._error = str(error)
                case Committed():
                    self._error = None

    def edge_answered(self, problem: str | None) -> bool:
        """Note what is wrong with the broker, if anything; return whether that is new."""
        with self._lock:
            before, self._unanswered = self._unanswered, problem
        return before != problem

    def group_joined(self, joined: bool) -> None:
        with self._lock:
            if joined and not self._standing_by:
                self._error = None  # of a start that had to be tried again
            self._standing_by = joined

    @property
    def is_live(self) -> bool:
        return self._clock() - self._progress_at < self._stalled_after_s

    @property
    def is_ready(self) -> bool:
        return all(check.ok for check in self.checks())

    def checks(self) -> list[Check]:
        with self._lock:
            owned, replaying = len(self._owned), len(self._replaying)
            error = self._error or self._unanswered
        silent_s = self._clock() - self._progress_at
        detail = f"{owned} owned"
        if not owned and self._standing_by:
            detail = "none owned, standing by in the group"
        return [
            Check("loop", self.is_live, f"last round {silent_s:.0f} s ago"),
            Check("partitions", owned > 0 or self._standing_by, detail),
            Check("replay", replaying == 0, f"{replaying} still replaying"),
            Check("edge", error is None, error or "answers"),
        ]


class ClockDoubt(NamedTuple):
    """What is odd about times of a sensor in a batch: how many events, and in which way."""

    kind: str  # behind, unit or ahead
    n: int
    said: str  # empty where it was said within the hour


class ClockWatch:
    """Compares each event with the newest of its sensor. O(1) an event; no verdict depends on it.

    What waits in a reorder buffer is in order by then, so what is late here is late for good.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic, *, per_day: bool) -> None:
        self._now_s, self._newest, self._said = now_s, dict[str, int](), dict[str, float]()
        # A budget of reviews by event time has earned up to the newest.
        self._lost = " and a review budget per_day earns nothing before they pass it"
        self._lost = self._lost if per_day else ""

    def _is_ahead(self, at_ms: int) -> bool:
        """Whether most other sensors are more than a day behind."""
        others = list(self._newest.values())
        return len(others) > 1 and 2 * sum(at_ms > other + DAY_MS for other in others) > len(others)

    def see(self, readings: Sequence[Reading]) -> list[ClockDoubt]:
        newest, late = self._newest, dict[str, tuple[int, int]]()
        odd: Counter[tuple[str, str]] = Counter()
        for _, sensor, at_ms, _, _ in readings:
            before = newest.get(sensor, at_ms)
            if at_ms < before - _LATE_MS:
                odd[sensor, "unit" if at_ms < FIRST_MS <= before else "behind"] += 1
                late[sensor] = at_ms, before
            elif at_ms > before + DAY_MS and self._is_ahead(at_ms):
                odd[sensor, "ahead"] += 1
                late[sensor] = at_ms, before
            elif at_ms >= before:
                newest[sensor] = at_ms
        if len(newest) > _MOST_SENSORS:
            newest.clear()
        if not odd:
            return []
        return [
            ClockDoubt(kind, n, self._sentence(sensor, kind, n, *late[sensor]))
            for (sensor, kind), n in odd.items()
        ]

    def _sentence(self, sensor: str, kind: str, n: int, at_ms: int, before: int) -> str:
        now_s = self._now_s()
        if now_s - self._said.get(sensor, -_AGAIN_S) < _AGAIN_S:
            return ""
        if len(self._said) > _MOST_SENSORS:
            self._said.clear()
        self._said[sensor] = now_s
        how = {
            "unit": "are before 1990, while those before were not: their unit has changed, or a "
            "clock was reset",
            "ahead": f"are {span(at_ms - before)} ahead of all before",
            "behind": f"are {span(before - at_ms)} behind the newest{self._lost}; input.reorder_s "
            "lets events wait for earlier ones",
        }[kind]
        return f"{sensor}: times of {n:,} event(s) {how}"


class RunMonitor:
    """The monitors, metrics and health of one run, and the senders of its alerts and events."""

    def __init__(
        self,
        metrics: RunMetrics,
        monitors: MonitorConfig,
        names: DisplayNames,
        *,
        on_alarm: Callable[[Partition, Alarm], None],
        on_incident: Callable[[Incident], None],
        per_day: bool = False,
    ) -> None:
        self.metrics, self.health = metrics, Health()
        self._settings, self._names = monitors, names
        self._readings: dict[str, Sequence[ChannelReading]] = {}
        self._on_alarm, self._on_incident = on_alarm, on_incident
        self.alertmanager: Alertmanager | None = None
        self.outbox: Webhook | None = None
        self._situations = OpenSituations()
        self._engines: dict[Partition, Engine] = {}
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self._nothing_scorable: Alarm | None = None
        self.source: object = None
        self.on_readings: Callable[[Sequence[Reading]], bool] | None = None
        self._scoring_duration = metrics.scoring_duration
        self._lag_at = -math.inf
        self._arrivals: dict[Partition, Arrivals] = {}
        self._overdue: dict[Partition, list[str]] = {}
        self._looked_at = -math.inf
        self._clocks = ClockWatch(per_day=per_day)

    @property
    def observers(self) -> list[RunObserver]:
        """The observers of the run; this object drops what belongs to closed partitions."""
        return [self.metrics, self.health, self]

    def register_engine(self, partition: Partition, engine: Engine) -> Engine:
        self._engines[partition] = engine
        self._arrivals.pop(partition, None)
        return engine

    def judged(self, partition: Partition, readings: Sequence[Reading], seconds: float) -> None:
        """Take a judged batch into account, as :data:`~rejex_stream.run.partition.OnJudged`.

        The first readings are passed on for as long as somebody wants more.
        """
        self._scoring_duration.observe(seconds / len(readings))
        if partition in self._arrivals:
            self._arrivals[partition].update(readings, time.monotonic())
        for doubt in self._clocks.see(readings):
            self.metrics.out_of_time(doubt.kind, doubt.n)
            if doubt.said:
                _log.warning("%s", doubt.said)
        if self.on_readings is not None and not self.on_readings(readings):
            self.on_readings = None

    def make_monitor(self, partition: Partition) -> PartitionMonitor:
        monitor = PartitionMonitor(partition, self._settings, self._alarm)
        self._monitors[partition] = monitor
        self.metrics.watch(partition, monitor.bank)
        return monitor

    def _alarm(self, partition: Partition, alarm: Alarm) -> None:
        self._on_alarm(partition, alarm)
        self.metrics.alarm(alarm)
        self._publish(alarm)

    def _publish(self, alarm: Alarm) -> None:
        if self.outbox is not None:
            self.outbox.post(make_event(alarm, self._names))

    def progress(self, progress: Progress) -> None:
        self.health.progress(progress)
        self.health.group_joined(getattr(self.source, "joined", False))
        self.metrics.refresh()
        self._measure_lag()
        self.metrics.incidents(self._situations.incidents)
        self._look_for_overdue()
        if self.alertmanager is not None:
            alarms = [alarm for m in self._monitors.values() for alarm in m.bank.active_alarms()]
            if self._nothing_scorable is not None:
                alarms.append(self._nothing_scorable)
            alerts = [make_alert(alarm, self._names) for alarm in alarms]
            overdue = sorted({sensor for those in self._overdue.values() for sensor in those})
            alerts += [make_overdue_alert(sensor, self._names) for sensor in overdue]
            self.alertmanager.update([*alerts, *map(self._situation_alert, self._situations)])

    def _look_for_overdue(self) -> None:
        """Look, seldom, who sends nothing by our own clock; O(sensors)."""
        now_s = time.monotonic()
        if now_s - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at, known = now_s, self._overdue
        for partition, engine in self._engines.items():
            if partition not in self._arrivals and engine.silences is not None:
                self._arrivals[partition] = Arrivals(engine.silences, now_s)
        self._overdue = {p: arrivals.overdue(now_s) for p, arrivals in self._arrivals.items()}
        for partition, sensors in self._overdue.items():
            for sensor in set(sensors) - set(known.get(partition, ())):
                _log.warning("%s sends nothing, and too few others do for an incident", sensor)
        self.metrics.silent(self._situations.incidents, self._overdue)

    def _situation_alert(self, together: Together) -> Alert:
        first = together.first
        return make_alert(first, self._names, self._readings.get(first.id, ()), together)

    def _measure_lag(self) -> None:
        """Ask a broker for the lag, seldom: the answer takes a round trip."""
        ask, lag = getattr(self.source, "ask", None), getattr(self.source, "lag", None)
        if ask is None or lag is None or time.monotonic() - self._lag_at < _LAG_EVERY_S:
            return
        try:
            ask()
            self.metrics.lag(lag())
        except ConnectorError as error:
            if self.health.edge_answered(str(error)):
                _log.warning("%s", error)
        else:
            self.health.edge_answered(None)
        self._lag_at = time.monotonic()

    def event(self, event: RunEvent) -> None:
        """Publish changes of incidents and alarms; register what is open in a partition once live.

        Before that its state is one of the past: what is open there may be over by now.
        """
        if isinstance(event, IncidentsDurable):
            for incident in event.incidents:
                self._incident_changed(incident, again=event.again)
            for incident in self._situations.incidents if event.again else ():
                self._situations.is_news(incident)  # told before: no process tells it as news
        if isinstance(event, PartitionOpened) and event.next_offset >= event.live_from:
            self._register_open(event.partition)
        if isinstance(event, PartitionLive):
            self._register_open(event.partition)
        if isinstance(event, PartitionClosed):
            self._monitors.pop(event.partition, None)
            self._engines.pop(event.partition, None)
            self._arrivals.pop(event.partition, None)
            incidents = self._situations.incidents
            gone = [one for one in incidents if one.position[:2] == event.partition]
            before = {one.situation.id: self._situation_alert(one) for one in self._situations}
            self._situations.forget(gone)
            stay = {one.situation.id for one in self._situations}
            if self.alertmanager is not None:
                self.alertmanager.hand_over(before[id_] for id_ in before.keys() - stay)
            for incident in gone:
                self._readings.pop(incident.id, None)
        if isinstance(event, NothingScorable):
            self._nothing_scorable = event.alarm
            if event.alarm is not None:
                self._publish(event.alarm)

    def _register_open(self, partition: Partition) -> None:
        if partition in self._engines:
            self.register_open(self._engines[partition].open_incidents())

    def register_open(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self._store_readings(incident)
            self._update_situations(incident)

    def _store_readings(self, incident: Incident) -> None:
        """Keep what its channels read at a change: an alert that varied would be notified again."""
        engine = self._engines.get(Partition(*incident.position[:2]))
        if engine is not None and engine.told is not None and (readings := engine.told(incident)):
            self._readings[incident.id] = readings

    def _incident_changed(self, incident: Incident, *, again: bool) -> None:
        if self._situations.has_new_state(incident):
            self._on_incident(incident)
        self._store_readings(incident)
        is_new = self._update_situations(incident)
        together = self._situations.of(incident.id)
        if (is_new or again) and self._situations.is_news(incident) and self.outbox is not None:
            readings = self._readings.get(incident.id, ())
            self.outbox.post(make_event(incident, self._names, readings, together), incident)
        if incident.state is IncidentState.CLOSED:
            if self.alertmanager is not None and not again:
                self.alertmanager.post_ended(self._situation_alert(together))
            self._situations.forget([incident])
            self._readings.pop(incident.id, None)

    def _update_situations(self, incident: Incident) -> bool:
        streams = (of_mode(key)[0] for engine in self._engines.values() for key in engine.streams())
        return self._situations.update(incident, streams)
