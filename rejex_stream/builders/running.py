"""From a config to a run: engines, monitors, executor, and whoever watches."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rejex_stream.builders.edges import Edges, open_edges
from rejex_stream.builders.recipes import (
    engine_spec,
    monitor_config,
    run_settings,
    webhook_secret,
)
from rejex_stream.config.model import Config
from rejex_stream.engine import Engine
from rejex_stream.errors import ConnectorError
from rejex_stream.executors import InlineExecutor, ProcessFitExecutor, ThreadFitExecutor
from rejex_stream.monitor import Alarm
from rejex_stream.operate.gauges import active_alarms
from rejex_stream.operate.health import Health, HealthServer
from rejex_stream.operate.metrics import RunMetrics
from rejex_stream.operate.notify import Alertmanager, Webhook
from rejex_stream.progress import LaneClosed, Progress, RunEvent, RunObserver, RunSummary
from rejex_stream.protocols import FitExecutor, Source
from rejex_stream.types import Outcome, Partition
from rejex_stream.watched import PartitionMonitor, log_alarm

__all__ = ["make_engine", "make_executor", "run_pipeline"]

_ASK_EVERY_S = 10.0
_log = logging.getLogger(__name__)


def make_engine(config: Config) -> Callable[[Partition, FitExecutor], Engine]:
    """Return what makes the engine of a partition."""
    spec, most = engine_spec(config), config.state.max_live_streams

    def make(partition: Partition, fits: FitExecutor) -> Engine:
        return Engine(spec, fits, idle={}, max_live_streams=most)

    return make


def make_executor(config: Config) -> InlineExecutor | ThreadFitExecutor | ProcessFitExecutor:
    """Return where fits run; the caller closes it."""
    refit = config.refit
    where = refit.executor
    if where == "auto":
        where = "process" if config.input.kind == "kafka" else "thread"
    if where == "process":
        return ProcessFitExecutor(refit.workers)
    if where == "thread":
        return ThreadFitExecutor(refit.workers)
    return InlineExecutor()


def run_pipeline(
    config: Config,
    *,
    observers: Sequence[RunObserver] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_alarm: Callable[[Partition, Alarm], None] = log_alarm,
    on_open: Callable[[Edges], None] | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
) -> RunSummary:
    """Build everything that a config names and run it until the input ends or `stop` is set.

    Parameters
    ----------
    observers, on_progress, stop
        As in :func:`rejex_stream.runtime.run`.
    on_alarm
        Told of alarms, beside those that the config names.
    on_open
        Given the open edges, before the first record.
    dry_run
        Judge and write nothing, tell nobody.

    Raises
    ------
    ConfigError, DetectorError
        What is wrong with the config, before anything is opened.
    ConnectorError, CheckpointError
        As :func:`rejex_stream.runtime.run`.
    """
    from rejex_stream.runtime import run

    make = make_engine(config)
    settings = run_settings(config)
    with ExitStack() as exits:
        executor = make_executor(config)
        exits.callback(executor.close)
        watch = exits.enter_context(_watching(config, on_alarm, quiet=dry_run))
        edges = open_edges(config, dry_run=dry_run)
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
            lambda partition, fits: watch.metrics.timed(make(partition, fits)),
            edges.decoder,
            settings=settings,
            make_monitor=watch.monitor if config.monitor.enabled else None,
            observers=[*watch.observers, *observers],
            on_progress=progress,
            executor=executor,
            stop=stop,
        )


class _Watch:
    """Monitors, metrics, health and those who are told of alarms, for one run."""

    def __init__(
        self,
        config: Config,
        on_alarm: Callable[[Partition, Alarm], None],
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
        self._on_alarm, self._alertmanager, self._webhook = on_alarm, alertmanager, webhook
        self._monitors: dict[Partition, PartitionMonitor] = {}
        self.source: Source | None = None
        self._asked_at = -math.inf

    @property
    def observers(self) -> list[RunObserver]:
        """Who sees the run; this object too, to let go of monitors in time."""
        return [self.metrics, self.health, self]

    def monitor(self, partition: Partition) -> PartitionMonitor:
        """Make the monitor of a partition."""
        monitor = PartitionMonitor(partition, self._settings, self._alarm)
        self._monitors[partition] = monitor
        self.metrics.watch(partition, monitor.bank)
        return monitor

    def _alarm(self, partition: Partition, alarm: Alarm) -> None:
        self._on_alarm(partition, alarm)
        self.metrics.alarm(partition, alarm)
        if self._webhook is not None:
            self._webhook.alarm(alarm)

    def progress(self, progress: Progress) -> None:
        """Renew what others see."""
        self.health.progress(progress)
        self.metrics.refresh()
        self._ask_the_edge()
        if self._alertmanager is not None:
            self._alertmanager.update(
                alarm
                for monitor in self._monitors.values()
                for alarm in active_alarms(monitor.bank)
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
        """See outcomes; the monitors have them already."""

    def event(self, event: RunEvent) -> None:
        """Let go of the monitor of a partition that is no longer ours."""
        if isinstance(event, LaneClosed):
            self._monitors.pop(event.partition, None)


@contextmanager
def _watching(
    config: Config, on_alarm: Callable[[Partition, Alarm], None], *, quiet: bool
) -> Iterator[_Watch]:
    """Open what the config names for operators; `quiet` opens nothing."""
    alerts, metrics, name = config.alerts, config.metrics, config.pipeline.name
    with ExitStack() as exits:
        alertmanager = webhook = None
        if alerts.alertmanager_url is not None and not quiet:
            every_s = alerts.alertmanager_repeat_s
            alertmanager = Alertmanager(
                alerts.alertmanager_url, name, repeat_s=every_s, lifetime_s=4 * every_s
            )
            exits.callback(alertmanager.close)
        if alerts.webhook_url is not None and not quiet:
            kept = alerts.webhook_deadletter
            webhook = Webhook(
                alerts.webhook_url,
                name,
                secret=webhook_secret(alerts),
                deadletter=None if kept is None else Path(kept),
            )
            exits.callback(webhook.close)
        watch = _Watch(config, on_alarm, alertmanager, webhook)
        if metrics.port and not quiet:
            server = HealthServer(
                metrics.host, metrics.port, watch.health, watch.metrics.exposition
            )
            exits.callback(server.close)
        yield watch
