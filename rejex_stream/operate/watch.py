"""What operators are shown of a run: whether it is ready, which incidents are open, who is told.

Many sensors that leave their usual range within a minute have one cause, and whoever is called
must be called once: such incidents are one alert, for as long as one of them is open.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError
from rejex_stream.monitor import Alarm, MonitorConfig
from rejex_stream.operate.alerts import (
    Alert,
    Alertmanager,
    Flood,
    Subject,
    Webhook,
    Wording,
    alert_of,
    event_of,
)
from rejex_stream.operate.run_metrics import RunMetrics
from rejex_stream.readable import Reads, UsualRows
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
    SensorsForgotten,
)
from rejex_stream.types import Incident, IncidentState, Label, Partition, Reading, Verdict, in_mode

__all__ = ["FLOOD_MS", "FLOOD_STREAMS", "Check", "Health", "OpenIncidents", "UsualValues", "Watch"]

FLOOD_STREAMS = 10
"""More streams than these, opened within `FLOOD_MS` of event time, are a flood."""
FLOOD_MS = 60_000
_ASK_EVERY_S = 10.0
_MOST_VALUES = 3
_MOST_USUAL, _WIDEST = 32, 32


class UsualValues:
    """What the channels of the streams of a partition read, now and usually; for people alone.

    Of each batch the newest normal reading of a stream counts, and of a thousand such every 32nd is
    kept. Nothing here decides a verdict, and nothing outlives the process. O(events) a batch.
    """

    def __init__(self, channels: Sequence[str]) -> None:
        self._at = {name: index for index, name in enumerate(channels)}
        self._newest: dict[str, tuple[Reading, Verdict]] = {}
        self._usual: dict[str, UsualRows] = {}

    def see(self, readings: Sequence[Reading], verdicts: Sequence[Verdict]) -> None:
        """Take note of a batch."""
        told = list(zip(readings, verdicts, strict=True))
        self._newest |= {reading.stream_key: (reading, verdict) for reading, verdict in told}
        normal = {
            reading.stream_key: reading
            for reading, verdict in told
            if verdict.label is Label.NORMAL and verdict.incident is None
        }
        for stream, reading in normal.items():
            known = self._usual.get(stream)
            if known is None:
                known = self._usual[stream] = UsualRows(_MOST_USUAL, _WIDEST)
            known.see(reading.values)

    def forget(self, streams: Sequence[str]) -> None:
        """Drop streams that the engine has forgotten."""
        for stream in streams:
            self._newest.pop(stream, None)
            self._usual.pop(stream, None)

    def of(self, stream: str, channel: str) -> Reads | None:
        """Return what a channel reads; ``None`` where nothing was seen of it."""
        at, newest = self._at.get(channel), self._newest.get(stream)
        if at is None or newest is None:
            return None
        known, (reading, verdict) = self._usual.get(stream), newest
        usual = None if known is None else known.range(at)
        return Reads(channel, reading.values[at], usual, verdict.expected(channel))


class OpenIncidents:
    """The incidents that are open, by id; a change that is known already changes nothing."""

    def __init__(self) -> None:
        self._open: dict[str, Incident] = {}
        self._floods: dict[str, Flood] = {}
        self._flood_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._open.values())

    def changed(self, incident: Incident) -> Incident | Flood | None:
        """Take note of a change; return what somebody should hear of it. O(open incidents).

        The flood that it began; nothing, where it was one more of a flood, is known already, or
        has other figures alone, which its alert shows; else the change itself.
        """
        known = self._open.get(incident.id)
        if known is not None and known.version >= incident.version:
            self._open[incident.id] = max(known, incident, key=lambda i: (i.version, i.changed_seq))
            return None
        if incident.state is IncidentState.CLOSED:
            self._closed(incident.id)
            return incident
        self._open[incident.id] = incident
        return incident if known is not None else self._opened(incident)

    def turns(self, incident: Incident) -> bool:
        """Whether it stands where it did not: its figures alone go on without a word in the log."""
        known = self._open.get(incident.id)
        return known is None or known.state is not incident.state

    def standing_for(self, incident: Incident) -> Incident | Flood:
        """Return what stands for a change that nobody may have heard of: its flood, or itself."""
        changed = self.changed(incident)
        if changed is not None:
            return changed
        flood = self._flood_of.get(incident.id)
        return incident if flood is None else self._floods[flood]

    def forget(self, partition: Partition) -> list[Incident]:
        """Drop and return those of a partition that is no longer ours: its owner tells of them."""
        gone = [one for one in self._open.values() if one.position[:2] == partition]
        for incident in gone:
            self._closed(incident.id)
        return gone

    def is_flooded(self, incident: Incident) -> bool:
        """Whether it is one of a flood, and people are told of that."""
        return incident.id in self._flood_of

    def to_publish(self) -> Sequence[Incident | Flood]:
        """Return what is one alert each: floods first, then incidents that belong to none."""
        alone = (one for name, one in self._open.items() if name not in self._flood_of)
        return [*self._floods.values(), *alone]

    def _closed(self, name: str) -> None:
        self._open.pop(name, None)
        flood = self._flood_of.pop(name, None)
        if flood is not None and flood not in self._flood_of.values():
            del self._floods[flood]

    def _opened(self, incident: Incident) -> Incident | Flood | None:
        at = incident.opened_ms
        near = [one for one in self._open.values() if abs(one.opened_ms - at) <= FLOOD_MS]
        floods = (self._flood_of[one.id] for one in near if one.id in self._flood_of)
        flood = self._floods.get(next(floods, ""))
        if flood is not None:
            streams = dict.fromkeys((*flood.streams, incident.stream_key))
            self._floods[flood.id] = flood._replace(streams=tuple(streams))
            self._flood_of[incident.id] = flood.id
            return None
        streams = dict.fromkeys(one.stream_key for one in near)
        if len(streams) <= FLOOD_STREAMS:
            return incident
        first = min(near, key=lambda one: (one.opened_ms, one.id))
        flood = Flood(first.id, first.opened_ms, tuple(streams))
        self._floods[flood.id] = flood
        self._flood_of |= {one.id: flood.id for one in near}
        return flood


class Check(NamedTuple):
    """One line of ``/readyz?verbose``."""

    name: str
    ok: bool
    says: str


class Health:
    """What a run told about itself, as checks; an observer of it."""

    def __init__(
        self, *, stalled_after_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._stalled_after_s = clock, stalled_after_s
        self._turned_at = clock()
        self._lock = threading.Lock()
        self._replaying: set[Partition] = set()
        self._owned: set[Partition] = set()
        self._standing_by = False
        self._error: str | None = None
        self._unanswered: str | None = None

    def progress(self, progress: Progress) -> None:
        """Note that the loop came round, events or not."""
        self._turned_at = self._clock()

    def event(self, event: RunEvent) -> None:
        """Note ownership, replays and failures of the edge."""
        self._turned_at = self._clock()
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

    def answered(self, problem: str | None) -> None:
        """Note whether the edge answers a question; `problem` says why not."""
        with self._lock:
            self._unanswered = problem

    def standing_by(self, joined: bool) -> None:
        """Note whether we are a member of the group, whatever it gave us."""
        with self._lock:
            if joined and not self._standing_by:
                self._error = None  # of a start that had to be tried again
            self._standing_by = joined

    @property
    def is_live(self) -> bool:
        """Whether the loop has turned of late."""
        return self._clock() - self._turned_at < self._stalled_after_s

    @property
    def is_ready(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks())

    def checks(self) -> list[Check]:
        """Return what readiness is made of."""
        with self._lock:
            owned, replaying = len(self._owned), len(self._replaying)
            error = self._error or self._unanswered
        silent_s = self._clock() - self._turned_at
        says = f"{owned} owned"
        if not owned and self._standing_by:
            says = "none owned, standing by in the group"
        return [
            Check("loop", self.is_live, f"last turn {silent_s:.0f} s ago"),
            Check("partitions", owned > 0 or self._standing_by, says),
            Check("replay", replaying == 0, f"{replaying} still replaying"),
            Check("edge", error is None, error or "answers"),
        ]


class Watch:
    """Monitors, metrics, health and those who are told, for one run."""

    def __init__(
        self,
        metrics: RunMetrics,
        monitors: MonitorConfig,
        wording: Wording,
        channels: Sequence[str],
        *,
        on_alarm: Callable[[Partition, Alarm], None],
        on_incident: Callable[[Incident], None],
        alertmanager: Alertmanager | None = None,
        webhook: Webhook | None = None,
    ) -> None:
        self.metrics, self.health = metrics, Health()
        self._settings, self._wording, self._channels = monitors, wording, channels
        self._usual: dict[Partition, UsualValues] = {}
        self._values: dict[str, list[Reads]] = {}
        self._on_alarm, self._on_incident = on_alarm, on_incident
        self._alertmanager = alertmanager
        self.outbox = webhook
        self._incidents = OpenIncidents()
        self._engines: dict[Partition, Engine] = {}
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self._nothing_scorable: Alarm | None = None
        self.source: object = None
        self.on_readings: Callable[[Sequence[Reading]], bool] | None = None
        self._scoring_duration = metrics.scoring_duration
        self._asked_at = -math.inf

    @property
    def observers(self) -> list[RunObserver]:
        """Who sees the run; this object too, to let go of monitors in time."""
        return [self.metrics, self.health, self]

    def engine(self, partition: Partition, engine: Engine) -> Engine:
        """Look at the engine of a partition, to ask it for open incidents."""
        self._engines[partition] = engine
        self._usual[partition] = UsualValues(self._channels)
        return engine

    def judged(
        self,
        partition: Partition,
        readings: Sequence[Reading],
        verdicts: Sequence[Verdict],
        seconds: float,
    ) -> None:
        """See what an engine was given and gave, as :data:`~rejex_stream.run.partition.OnJudged`.

        The first readings are passed on for as long as somebody wants more.
        """
        self._scoring_duration.observe(seconds / len(readings))
        self._usual[partition].see(readings, verdicts)
        if self.on_readings is not None and not self.on_readings(readings):
            self.on_readings = None

    def monitor(self, partition: Partition) -> PartitionMonitor:
        """Make the monitor of a partition."""
        monitor = PartitionMonitor(partition, self._settings, self._alarm)
        self._monitors[partition] = monitor
        self.metrics.watch(partition, monitor.bank)
        return monitor

    def _alarm(self, partition: Partition, alarm: Alarm) -> None:
        self._on_alarm(partition, alarm)
        self.metrics.alarm(alarm)
        self._publish(alarm)

    def _publish(self, subject: Subject) -> None:
        if self.outbox is not None:
            self.outbox.post(event_of(subject, self._wording))

    def progress(self, progress: Progress) -> None:
        """Renew what others see."""
        self.health.progress(progress)
        self.health.standing_by(getattr(self.source, "joined", False))
        self.metrics.refresh()
        self._ask_the_edge()
        self.metrics.incidents(list(self._incidents))
        if self._alertmanager is not None:
            alarms = [one for m in self._monitors.values() for one in m.bank.active_alarms()]
            if self._nothing_scorable is not None:
                alarms.append(self._nothing_scorable)
            self._alertmanager.update(map(self._alert, (*alarms, *self._incidents.to_publish())))

    def _alert(self, subject: Subject) -> Alert:
        return alert_of(subject, self._wording, self._values_of(subject))

    def _values_of(self, subject: Subject) -> list[Reads]:
        return self._values.get(subject.id, []) if isinstance(subject, Incident) else []

    def _ask_the_edge(self) -> None:
        """Ask a broker now and then whether it is there: the answer takes a round trip."""
        ask, lag = getattr(self.source, "ask", None), getattr(self.source, "lag", None)
        if ask is None or lag is None or time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return
        try:
            ask()
            self.metrics.lag(lag())
        except ConnectorError as error:
            self.health.answered(str(error))  # the loop itself meets the same trouble
        else:
            self.health.answered(None)
        self._asked_at = time.monotonic()

    def event(self, event: RunEvent) -> None:
        """Tell of incidents that changed; learn what is open in a partition once it is live.

        Before that its state is one of the past: what is open there may be over since. What the
        run itself raises is passed on.
        """
        if isinstance(event, IncidentsDurable):
            for incident in event.incidents:
                self._incident_changed(incident, again=event.again)
        if isinstance(event, PartitionOpened) and event.next_offset >= event.live_from:
            self._note_open(event.partition)
        if isinstance(event, PartitionLive):
            self._note_open(event.partition)
        if isinstance(event, PartitionClosed):
            self._monitors.pop(event.partition, None)
            self._engines.pop(event.partition, None)
            self._usual.pop(event.partition, None)
            gone = self._incidents.forget(event.partition)
            if self._alertmanager is not None:
                self._alertmanager.hand_over(map(self._alert, gone))
            for incident in gone:
                self._values.pop(incident.id, None)
        if isinstance(event, SensorsForgotten) and event.partition in self._usual:
            self._usual[event.partition].forget(event.streams)
        if isinstance(event, NothingScorable):
            self._nothing_scorable = event.alarm
            if event.alarm is not None:
                self._publish(event.alarm)

    def _note_open(self, partition: Partition) -> None:
        if partition in self._engines:
            self.were_open(self._engines[partition].open_incidents())

    def were_open(self, incidents: Iterable[Incident]) -> None:
        """Take note of incidents that changed before this process began; nobody is told."""
        for incident in incidents:
            self._look_at(incident)
            self._incidents.changed(incident)

    def _look_at(self, incident: Incident) -> None:
        """Note what its channels read as it changes: an alert that moved on would be told anew."""
        usual = self._usual.get(Partition(*incident.position[:2]))
        if usual is not None:
            named = [found.channel for found in incident.channels[:_MOST_VALUES]]
            key = in_mode(incident.stream_key, incident.mode)
            found = (usual.of(key, channel) for channel in named)
            self._values[incident.id] = [value for value in found if value is not None]

    def _incident_changed(self, incident: Incident, *, again: bool) -> None:
        if self._incidents.turns(incident):
            self._on_incident(incident)
        self._look_at(incident)
        alone = not self._incidents.is_flooded(incident)
        look = self._incidents.standing_for if again else self._incidents.changed
        subject = look(incident)
        if subject is not None and self.outbox is not None:
            self.outbox.post(event_of(subject, self._wording, self._values_of(subject)), incident)
        if incident.state is IncidentState.CLOSED:
            if self._alertmanager is not None and alone and not again:
                self._alertmanager.over(self._alert(incident))
            self._values.pop(incident.id, None)
