"""From a config to a run: engines, monitors, executor, and whoever watches."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rejex_connectors.packed import Packed

from rejex_stream.config.assembly.edges import Edges, MissingTopicError, open_edges
from rejex_stream.config.model import Config
from rejex_stream.config.operating import Alerts
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.stream import StreamSnapshot
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.monitor import Alarm, MonitorConfig
from rejex_stream.operate.health import Health, HealthServer
from rejex_stream.operate.incidents import OpenIncidents
from rejex_stream.operate.metrics import RunMetrics
from rejex_stream.operate.notify import Alertmanager, Webhook, WebhookOutbox
from rejex_stream.operate.telling import Told, alert_of, event_of, log_incident
from rejex_stream.protocols import FitExecutor, Source
from rejex_stream.rejection.coin import Coin
from rejex_stream.run.audit_draw import AuditDraw, commitment
from rejex_stream.run.executors import InlineExecutor, ProcessFitExecutor, ThreadFitExecutor
from rejex_stream.run.monitors import PartitionMonitor, log_alarm
from rejex_stream.run.parts import PartitionEngine
from rejex_stream.run.progress import (
    IncidentsDurable,
    NothingScorable,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
    Retrying,
    RunEvent,
    RunObserver,
    RunSummary,
)
from rejex_stream.run.retry import Retries
from rejex_stream.run.settings import RunSettings
from rejex_stream.types import Incident, Outcome, Partition

__all__ = [
    "engine_spec",
    "make_engine",
    "make_executor",
    "monitor_config",
    "open_webhook",
    "run_pipeline",
    "run_settings",
]

_ASK_EVERY_S = 10.0
_LOOK_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


def engine_spec(config: Config) -> EngineSpec:
    """Return everything that decides a verdict.

    Raises
    ------
    ConfigError
        If a label could never be given, or the refits do not fit the window.
    DetectorError
        If the detector is unknown or refused.
    """
    from rejex_stream.detectors import make_detector

    rejection, coin = config.rejection, _coin(config)
    return EngineSpec(
        detector=make_detector(config.detector.name, **config.detector.params),
        features=config.features.spec(config.input.mapping().channel_names, config.input.flags),
        policy=rejection.policy(),
        window=rejection.window,
        schedule=config.refit.schedule(rejection.window),
        seed=config.pipeline.seed,
        evidence=config.output.evidence,
        hold=config.hold,
        calendar=tuple(entry.plan() for entry in config.calendar),
        modes=config.input.mode is not None,
        learning=config.learning.spec(rejection.costs, rejection.contamination, coin),
        coin=coin,
    )


def _coin(config: Config) -> Coin:
    """Return the coin of the draw; whoever never tosses it need not have its key."""
    try:
        return audit_draw(config).coin
    except ConfigError:
        if config.learning.enabled:
            raise
        return Coin()


def monitor_config(config: Config) -> MonitorConfig:
    """Return what the monitors are told."""
    rejection, monitor = config.rejection, config.monitor
    budget = monitor.review_budget_per_day
    if budget is None and rejection.review_budget is not None:
        budget = rejection.review_budget.reviews_per_day
    told = dict(monitor) | {"review_budget_per_day": budget}
    return MonitorConfig(
        **told,
        window=rejection.window,
        contamination=rejection.contamination,
        tolerance=rejection.policy().band(rejection.window).tolerance,
        delta=rejection.delta,
        ties=rejection.ties,
    )


def run_settings(config: Config) -> RunSettings:
    """Return the knobs of the loop."""
    state, output = config.state, config.output
    return RunSettings(
        **dict(config.run),
        snapshot_every_events=state.snapshot_every_events,
        snapshot_interval_s=state.snapshot_interval_s,
        lost_state=state.lost,
        environment=state.environment,
        forget_after=state.forget_after,
        max_keys=state.max_keys,
        review_context_events=output.context_events,
        review_reasons=output.review_reasons,
        audit=audit_draw(config),
        progress_interval_s=0.5,
    )


def audit_draw(config: Config) -> AuditDraw:
    """Return which accepted events are audited.

    Raises
    ------
    ConfigError
        If the key cannot be read, or is too short or too long.
    """
    from rejex_connectors.sealing import read_key

    output, key = config.output, b""
    if output.audit_key_file is not None:
        key = read_key(output.audit_key_file, "output.audit_key_file")
    return AuditDraw(
        output.audit_rate,
        output.audit_near_rate,
        output.audit_anomaly_rate,
        key,
        config.learning.measure_rate if config.learning.enabled else 0.0,
    )


def make_engine(config: Config) -> Callable[[Partition, FitExecutor], Engine]:
    """Return what makes the engine of a partition."""
    spec, most = engine_spec(config), config.state.max_live_streams

    def make(partition: Partition, fits: FitExecutor) -> Engine:
        if most is None:
            return Engine(spec, fits)
        return Engine(spec, fits, idle=Packed(StreamSnapshot._make), max_live_streams=most)

    return make


def make_executor(config: Config) -> InlineExecutor | ThreadFitExecutor | ProcessFitExecutor:
    """Return where fits run; the caller closes it."""
    refit = config.refit
    where = refit.executor
    if where == "auto":
        where = "process" if config.input.kind == "kafka" else "thread"
    if where == "process":
        prepare = partial(_fit_once, config.detector.name, config.detector.params)
        return ProcessFitExecutor(refit.workers, prepare=prepare)
    if where == "thread":
        return ThreadFitExecutor(refit.workers)
    return InlineExecutor()


def _fit_once(name: str, params: Mapping[str, Any]) -> None:
    """Fit on rows that mean nothing, for the modules that a fit loads."""
    from rejex_stream.detectors import make_detector

    rows = np.random.default_rng(0).normal(size=(64, 2))
    make_detector(name, **params).fit(rows, seed=0)  # type: ignore[union-attr] # fails: no matter


def run_pipeline(
    config: Config,
    *,
    observers: Sequence[RunObserver] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_alarm: Callable[[Partition, Alarm], None] = log_alarm,
    on_incident: Callable[[Incident], None] = log_incident,
    on_open: Callable[[Edges], None] | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
) -> RunSummary:
    """Build everything that a config names and run it until the input ends or `stop` is set.

    Parameters
    ----------
    observers, on_progress, stop
        As in :func:`rejex_stream.run.loop.run`.
    on_alarm, on_incident
        Told of alarms and of changes of incidents, beside those that the config names.
    on_open
        Given the open edges, before the first record.
    dry_run
        Judge and write nothing, tell nobody.

    Raises
    ------
    ConfigError, DetectorError
        What is wrong with the config, before anything is opened.
    ConnectorError, CheckpointError
        As :func:`rejex_stream.run.loop.run`.
    """
    from rejex_stream.run.loop import run

    stop = stop or threading.Event()
    make = make_engine(config)
    settings = run_settings(config)
    if settings.audit.key:
        _log.info("The audit's draw is committed to: %s", commitment(settings.audit.key))
    with ExitStack() as exits:
        executor = make_executor(config)
        exits.callback(executor.close)
        watch = exits.enter_context(_watching(config, on_alarm, on_incident, quiet=dry_run))
        everybody = [*watch.observers, *observers]
        edges = _patiently_opened(config, settings, everybody, stop, dry_run=dry_run)
        if edges is None:
            return RunSummary(stopped=True)
        watch.source = edges.source
        if on_open is not None:
            on_open(edges)

        def progress(seen: Progress) -> None:
            watch.progress(seen)
            if on_progress is not None:
                on_progress(seen)

        return run(
            edges.source,
            edges.sink,
            edges.store,
            lambda partition, fits: watch.engine(partition, make(partition, fits)),
            edges.decoder,
            settings=settings,
            make_monitor=watch.monitor if config.monitor.enabled else None,
            control=edges.control,
            outbox=watch.outbox,
            observers=everybody,
            on_progress=progress,
            executor=executor,
            stop=stop,
        )


def _patiently_opened(
    config: Config,
    settings: RunSettings,
    observers: Sequence[RunObserver],
    stop: threading.Event,
    *,
    dry_run: bool,
) -> Edges | None:
    """Open the edges, trying again as a run does where they are away; ``None``: stopped meanwhile.

    Raises
    ------
    ConnectorError
        If an edge refuses for good, or is away for longer than ``run.retry_for_s``; if an input
        topic is not made within ``run.topic_wait_s``.
    """
    retries = Retries(settings)
    missing_since: float | None = None
    while not stop.is_set():
        try:
            return open_edges(config, dry_run=dry_run)
        except MissingTopicError as error:
            now = time.monotonic()
            if missing_since is None:
                missing_since = now
                _log.warning("waiting up to %g s: %s", settings.topic_wait_s, error)
            if now - missing_since >= settings.topic_wait_s:
                raise
            stop.wait(min(_LOOK_AGAIN_S, settings.topic_wait_s - now + missing_since))
        except ConnectorError as error:
            if not error.retriable:
                raise
            delay_s = retries.failed(error, time.monotonic())
            for observer in observers:
                observer.event(Retrying(error, delay_s, retries.attempts))
            stop.wait(delay_s)
    return None


class _Watch:
    """Monitors, metrics, health and those who are told, for one run."""

    def __init__(
        self,
        config: Config,
        on_alarm: Callable[[Partition, Alarm], None],
        on_incident: Callable[[Incident], None],
        alertmanager: Alertmanager | None,
        webhook: Webhook | None,
    ) -> None:
        costs = config.rejection.costs
        self.metrics = RunMetrics(
            config.pipeline.name,
            engine_spec(config),
            costs=None if costs.c_r is None else (costs.c_fp, costs.c_fn, costs.c_r),
            grouped=config.input.group is not None or config.input.groups is not None,
            per_sensor=config.metrics.per_sensor,
            version=config.pipeline.version,
        )
        self.health = Health()
        self._settings = monitor_config(config)
        self._pipeline, self._console_url = config.pipeline.name, config.alerts.console_url
        self._on_alarm, self._on_incident = on_alarm, on_incident
        self._alertmanager, self._webhook = alertmanager, webhook
        self.outbox = None if webhook is None else WebhookOutbox(webhook)
        self._incidents = OpenIncidents()
        self._engines: dict[Partition, PartitionEngine] = {}
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self._nothing_scorable: Alarm | None = None
        self.source: Source | None = None
        self._asked_at = -math.inf

    @property
    def observers(self) -> list[RunObserver]:
        """Who sees the run; this object too, to let go of monitors in time."""
        return [self.metrics, self.health, self]

    def engine(self, partition: Partition, engine: PartitionEngine) -> PartitionEngine:
        """Look at the engine of a partition: time it, and ask it for open incidents."""
        self._engines[partition] = engine
        return self.metrics.timed(engine)

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
            self._webhook.tell(event_of(told, self._pipeline))

    def progress(self, progress: Progress) -> None:
        """Renew what others see."""
        self.health.progress(progress)
        self.health.standing_by(getattr(self.source, "joined", False))
        self.metrics.refresh()
        self._ask_the_edge()
        self.metrics.incidents(self._incidents)
        if self._alertmanager is not None:
            alarms = [one for m in self._monitors.values() for one in m.bank.active_alarms()]
            if self._nothing_scorable is not None:
                alarms.append(self._nothing_scorable)
            self._alertmanager.update(
                alert_of(told, self._pipeline, self._console_url)
                for told in (*alarms, *self._incidents.to_tell())
            )

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
            self._incidents.forget(event.partition)
        if isinstance(event, NothingScorable):
            self._nothing_scorable = event.alarm
            if event.alarm is not None:
                self._tell(event.alarm)

    def _learn_open(self, partition: Partition) -> None:
        for incident in self._engines[partition].open_incidents():
            self._incidents.changed(incident)

    def _changed(self, incident: Incident, *, again: bool) -> None:
        self._on_incident(incident)
        look = self._incidents.told_as if again else self._incidents.changed
        told = look(incident)
        if told is not None and self.outbox is not None:
            self.outbox.tell(incident, event_of(told, self._pipeline))


def open_webhook(alerts: Alerts) -> Webhook | None:
    """Return who is told of events; ``None`` where nobody is named.

    Raises
    ------
    ConfigError
        If the file of the secret cannot be read.
    """
    if alerts.webhook_url is None:
        return None
    kept, key = alerts.webhook_deadletter, alerts.reveal("webhook_secret")
    return Webhook(
        alerts.webhook_url,
        secret=None if key is None else key.encode("utf-8", "surrogateescape"),
        deadletter=None if kept is None else Path(kept),
    )


@contextmanager
def _watching(
    config: Config,
    on_alarm: Callable[[Partition, Alarm], None],
    on_incident: Callable[[Incident], None],
    *,
    quiet: bool,
) -> Iterator[_Watch]:
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
        watch = _Watch(config, on_alarm, on_incident, alertmanager, webhook)
        if metrics.port and not quiet:
            server = HealthServer(
                metrics.host, metrics.port, watch.health, watch.metrics.exposition
            )
            exits.callback(server.close)
        yield watch
