"""Whoever watches what a pipeline makes: monitors, metrics, health, and those who are told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rejex_stream.config.input import ALL_SENSORS
from rejex_stream.config.model import Config
from rejex_stream.config.operating import Alerts
from rejex_stream.config.reviewing import Shown
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConnectorError
from rejex_stream.monitor import Alarm, MonitorConfig
from rejex_stream.operate.alert_channels import Alertmanager, Webhook, WebhookOutbox
from rejex_stream.operate.alert_messages import Alert, Told, Wording, alert_of, event_of
from rejex_stream.operate.health import Health, HealthServer
from rejex_stream.operate.incidents import OpenIncidents, UsualValues, Value
from rejex_stream.operate.metrics import RunMetrics
from rejex_stream.run.incremental_snapshot import PartitionEngine
from rejex_stream.run.partition_monitor import PartitionMonitor
from rejex_stream.run.progress import (
    IncidentsDurable,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
    RunEvent,
    RunObserver,
    SensorsForgotten,
)
from rejex_stream.types import (
    Incident,
    IncidentState,
    Outcome,
    Partition,
    Reading,
    Verdict,
    in_mode,
)

__all__ = ["Watch", "monitor_config", "open_webhook", "watching"]

_ASK_EVERY_S = 10.0
_MOST_VALUES = 3


def monitor_config(config: Config) -> MonitorConfig:
    """Return what the monitors are told."""
    rejection, monitor = config.rejection, config.monitor
    budget = rejection.review_budget
    return MonitorConfig(
        **dict(monitor),
        review_budget_per_day=None if budget is None else budget.reviews_per_day,
        window=rejection.window,
        contamination=rejection.contamination,
        tolerance=rejection.policy().band(rejection.window).tolerance,
    )


class Watch:
    """Monitors, metrics, health and those who are told, for one run."""

    def __init__(
        self,
        config: Config,
        spec: EngineSpec,
        on_alarm: Callable[[Partition, Alarm], None],
        on_incident: Callable[[Incident], None],
        *,
        alertmanager: Alertmanager | None,
        webhook: Webhook | None,
    ) -> None:
        costs = config.rejection.costs
        self.metrics = RunMetrics(
            config.pipeline.name,
            spec,
            costs=None if costs.c_r is None else (costs.c_fp, costs.c_fn, costs.c_r),
            grouped=config.input.group not in (None, ALL_SENSORS),
            per_sensor=config.metrics.per_sensor,
            version=config.pipeline.version,
        )
        self.health = Health()
        self._settings = monitor_config(config)
        self._wording = Wording(
            config.pipeline.name,
            config.alerts.console_url,
            {name: channel.unit for name, channel in config.channels.items()},
            {name: channel.label or name for name, channel in config.channels.items()},
            Shown(config.channels, config.sensors).link,
        )
        self._channels = config.input.mapping().channel_names
        self._usual: dict[Partition, UsualValues] = {}
        self._values: dict[str, list[Value]] = {}
        self._on_alarm, self._on_incident = on_alarm, on_incident
        self._alertmanager, self._webhook = alertmanager, webhook
        self.outbox = None if webhook is None else WebhookOutbox(webhook)
        self._incidents = OpenIncidents()
        self._engines: dict[Partition, PartitionEngine] = {}
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self._nothing_scorable: Alarm | None = None
        self.source: object = None
        self._asked_at = -math.inf

    @property
    def observers(self) -> list[RunObserver]:
        """Who sees the run; this object too, to let go of monitors in time."""
        return [self.metrics, self.health, self]

    def engine(
        self,
        partition: Partition,
        engine: PartitionEngine,
        on_readings: Callable[[Sequence[Reading]], object] = lambda _: None,
    ) -> PartitionEngine:
        """Look at the engine of a partition: time it, and ask it for open incidents."""
        self._engines[partition] = engine
        self._usual[partition] = usual = UsualValues(self._channels)

        def see(readings: Sequence[Reading], verdicts: Sequence[Verdict]) -> None:
            usual.see(readings, verdicts)
            on_readings(readings)

        return self.metrics.timed(engine, see)

    def monitor(self, partition: Partition) -> PartitionMonitor:
        """Make the monitor of a partition."""
        monitor = PartitionMonitor(partition, self._settings, self._alarm)
        self._monitors[partition] = monitor
        self.metrics.watch(partition, monitor.bank)
        return monitor

    def _alarm(self, partition: Partition, alarm: Alarm) -> None:
        self._on_alarm(partition, alarm)
        self.metrics.alarm(alarm)
        self._tell(alarm)

    def _tell(self, told: Told) -> None:
        if self._webhook is not None:
            self._webhook.tell(event_of(told, self._wording))

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
            self._alertmanager.update(map(self._alert, (*alarms, *self._incidents.to_tell())))

    def _alert(self, told: Told) -> Alert:
        return alert_of(told, self._wording, self._values_of(told))

    def _values_of(self, told: Told) -> list[Value]:
        return self._values.get(told.id, []) if isinstance(told, Incident) else []

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

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """See outcomes; people are told of what they changed once that is durable."""

    def event(self, event: RunEvent) -> None:
        """Tell of incidents that changed; learn what is open in a partition once it is live.

        Before that its state is one of the past: what is open there may be over since. What the
        run itself raises is passed on.
        """
        if isinstance(event, IncidentsDurable):
            for incident in event.incidents:
                self._changed(incident, again=event.again)
        if isinstance(event, PartitionOpened) and event.next_offset >= event.live_from:
            self._learn_open(event.partition)
        if isinstance(event, PartitionLive):
            self._learn_open(event.partition)
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
                self._tell(event.alarm)

    def _learn_open(self, partition: Partition) -> None:
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

    def _changed(self, incident: Incident, *, again: bool) -> None:
        self._on_incident(incident)
        self._look_at(incident)
        alone = not self._incidents.is_flooded(incident)
        look = self._incidents.told_as if again else self._incidents.changed
        told = look(incident)
        if told is not None and self.outbox is not None:
            self.outbox.tell(incident, event_of(told, self._wording, self._values_of(told)))
        if incident.state is IncidentState.CLOSED:
            if self._alertmanager is not None and alone and not again:
                self._alertmanager.over(self._alert(incident))
            self._values.pop(incident.id, None)


def open_webhook(alerts: Alerts) -> Webhook | None:
    """Return who is told of events; ``None`` where nobody is named."""
    address, key = alerts.webhook_address(), alerts.reveal("webhook_secret")
    if address is None:
        return None
    return Webhook(address, secret=None if key is None else key.encode("utf-8", "surrogateescape"))


@contextmanager
def watching(
    config: Config,
    spec: EngineSpec,
    on_alarm: Callable[[Partition, Alarm], None],
    on_incident: Callable[[Incident], None],
    *,
    quiet: bool,
) -> Iterator[Watch]:
    """Open what the config names for operators; `quiet` opens nothing."""
    alerts, metrics = config.alerts, config.metrics
    with ExitStack() as exits:
        alertmanager = None
        if alerts.alertmanager_url is not None and not quiet:
            every_s = alerts.alertmanager_repeat_s
            alertmanager = Alertmanager(
                alerts.alertmanager_url, repeat_s=every_s, lifetime_s=4 * every_s
            )
            exits.callback(alertmanager.close)
        webhook = None if quiet else open_webhook(alerts)
        if webhook is not None:
            exits.callback(webhook.close)
        watch = Watch(
            config, spec, on_alarm, on_incident, alertmanager=alertmanager, webhook=webhook
        )
        if metrics.port and not quiet:
            server = HealthServer(
                metrics.host, metrics.port, watch.health, watch.metrics.exposition
            )
            exits.callback(server.close)
        yield watch
