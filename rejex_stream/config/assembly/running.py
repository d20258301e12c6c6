"""From a config to a run: engines, monitors, executor, and whoever watches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from rejex_connectors.signed_snapshots import read_key
from rejex_connectors.spill_map import Packed

from rejex_stream.config.assembly.edges import Edges, MissingTopicError, open_edges
from rejex_stream.config.input import ALL_SENSORS
from rejex_stream.config.operating import Alerts
from rejex_stream.config.pipeline_config import Config
from rejex_stream.config.reviewing import angles_of, sides_of
from rejex_stream.decode import Decoder
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.stream_state import StreamSnapshot
from rejex_stream.errors import ConnectorError
from rejex_stream.incidents import ChannelLimits
from rejex_stream.monitor import Alarm, MonitorConfig
from rejex_stream.operate.alerts import Alertmanager, Webhook, log_incident
from rejex_stream.operate.incident_text import DisplayNames
from rejex_stream.operate.probes import HealthServer
from rejex_stream.operate.run_metrics import RunMetrics
from rejex_stream.operate.run_monitor import RunMonitor
from rejex_stream.protocols import FitExecutor
from rejex_stream.rejection.audit_sampling import commitment
from rejex_stream.run.executors import InlineExecutor, ProcessFitExecutor, ThreadFitExecutor
from rejex_stream.run.loop import Retries, run
from rejex_stream.run.partition import PartitionState, log_alarm, make_state
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.run.run_events import Progress, Retrying, RunObserver, RunSummary
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Incident, Invalid, Partition, Position, Reading, Record

__all__ = [
    "DecodedBefore", "Judging", "audit_draw", "by_partition", "engine_spec", "make_engine",
    "make_executor", "monitor_config", "open_run_monitor", "run_pipeline",
    "run_settings",
]  # fmt: skip

_LOOK_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


def engine_spec(config: Config) -> EngineSpec:
    rejection = config.rejection
    names, flags = config.input.mapping().channel_names, config.input.flags
    sides, angles = sides_of(config.channels), angles_of(config.channels)
    return EngineSpec(
        detector=make_detector(config.detector.name, **config.detector.params),
        features=config.features.spec(names, flags, sides, angles, config.input.siblings_said()),
        policy=rejection.policy(),
        window=rejection.window,
        schedule=config.refit.schedule(rejection.window),
        seed=config.pipeline.seed,
        evidence=config.output.evidence,
        hold=config.hold,
        calendar=tuple(entry.plan() for entry in config.calendar),
        modes=config.input.mode is not None,
        alarms=config.incidents,
        limits=tuple(
            ChannelLimits(name, channel.low, channel.high)
            for name, channel in sorted(config.channels.items())
            if channel.limit == "alarm"
        ),
    )


def run_settings(config: Config) -> RunSettings:
    state, output = config.state, config.output
    return RunSettings(
        **dict(config.run),
        snapshot_every_events=state.snapshot_every_events,
        snapshot_interval_s=state.snapshot_interval_s,
        lost_state=state.lost_state,
        environment=state.environment,
        forget_after=state.forget_after,
        max_keys=state.max_keys,
        review_context_events=output.context_events,
        review_reasons=output.review_reasons,
        audit=audit_draw(config),
        reorder=config.reorder_rules(),
        progress_interval_s=0.5,
    )


def audit_draw(config: Config) -> AuditDraw:
    output, key = config.output, b""
    if output.audit_key_file is not None:
        key = read_key(output.audit_key_file, "output.audit_key_file")
    rates = output.audit_rate
    if not isinstance(rates, dict):
        rates = {"normal": rates}
    return AuditDraw(rates.get("normal", 0.0), rates.get("near"), rates.get("anomaly"), key)


def make_engine(config: Config) -> Callable[[Partition, FitExecutor], Engine]:
    spec, max_live = engine_spec(config), config.state.max_live_streams

    def make(partition: Partition, fits: FitExecutor) -> Engine:
        if max_live is None:
            return Engine(spec, fits)
        return Engine(spec, fits, idle=Packed(StreamSnapshot._make), max_live_streams=max_live)

    return make


def make_executor(config: Config) -> InlineExecutor | ThreadFitExecutor | ProcessFitExecutor:
    """Return where fits run; the caller closes it."""
    refit = config.refit
    where = refit.executor
    if where == "auto":
        where = "process" if config.input.kind == "kafka" else "thread"
    if where == "process":
        prepare = partial(_fit_once, config.detector.name, config.detector.params)
        return ProcessFitExecutor(prepare=prepare)
    if where == "thread":
        return ThreadFitExecutor()
    return InlineExecutor()


def _fit_once(name: str, params: Mapping[str, Any]) -> None:
    """Fit on rows that mean nothing, for the modules that a fit loads."""
    rows = np.random.default_rng(0).normal(size=(64, 2))
    make_detector(name, **params).fit(rows, seed=0)  # type: ignore[union-attr] # fails: no matter


# ------------------------------------------------------------------------ who watches
def monitor_config(config: Config) -> MonitorConfig:
    rejection, monitor = config.rejection, config.monitor
    budget = rejection.review_budget
    return MonitorConfig(
        **dict(monitor),
        review_budget_per_day=None if budget is None else budget.reviews_per_day,
        window=rejection.window,
        contamination=rejection.contamination,
        tolerance=rejection.policy().band(rejection.window).tolerance,
    )


def open_webhook(alerts: Alerts) -> Webhook | None:
    """Return who is told of events; ``None`` where nobody is named."""
    address, key = alerts.webhook_address(), alerts.reveal("webhook_secret")
    if address is None:
        return None
    return Webhook(address, secret=None if key is None else key.encode("utf-8", "surrogateescape"))


@contextmanager
def open_run_monitor(
    config: Config,
    spec: EngineSpec,
    on_alarm: Callable[[Partition, Alarm], None],
    on_incident: Callable[[Incident], None] | None,
    *,
    quiet: bool,
) -> Iterator[RunMonitor]:
    """Open what the config names for operators, or nothing where `quiet`.

    Without an `on_incident` changes of incidents are logged.
    """
    alerts, endpoint, name = config.alerts, config.metrics, config.pipeline.name
    grouped = config.input.group not in (None, ALL_SENSORS)
    first = config.review.priority_sensors
    names = DisplayNames(name, alerts.console_url, config.channels, config.sensors, first)
    watch = RunMonitor(
        RunMetrics(name, spec, grouped=grouped, version=config.pipeline.version),
        monitor_config(config),
        names,
        on_alarm=on_alarm,
        on_incident=on_incident or partial(log_incident, names=names),
        per_day=spec.policy.per_day is not None,
    )
    with ExitStack() as exits:
        if not quiet:
            if (url := alerts.alertmanager_url) is not None:
                every_s = alerts.alertmanager_repeat_s
                watch.alertmanager = Alertmanager(url, repeat_s=every_s, lifetime_s=4 * every_s)
                exits.callback(watch.alertmanager.close)
            if (webhook := open_webhook(alerts)) is not None:
                watch.outbox = webhook
                exits.callback(webhook.close)
            if endpoint.port:
                exposition = watch.metrics.exposition
                server = HealthServer(endpoint.host, endpoint.port, watch.health, exposition)
                exits.callback(server.close)
        yield watch


# ------------------------------------------------------------------------------ a run
def run_pipeline(
    config: Config,
    *,
    observers: Sequence[RunObserver] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_alarm: Callable[[Partition, Alarm], None] = log_alarm,
    on_incident: Callable[[Incident], None] | None = None,
    on_open: Callable[[Edges], None] | None = None,
    on_readings: Callable[[Sequence[Reading]], bool] | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
) -> RunSummary:
    """Build everything that a config names and run it until the input ends or `stop` is set.

    `on_readings` is shown what was judged for as long as it returns that it wants more.
    """
    stop = stop or threading.Event()
    make = make_engine(config)
    settings = run_settings(config)
    if settings.audit.key:
        _log.info("The audit's draw is committed to: %s", commitment(settings.audit.key))
    with ExitStack() as exits:
        executor = make_executor(config)
        exits.callback(executor.close)
        run_monitor = exits.enter_context(
            open_run_monitor(config, engine_spec(config), on_alarm, on_incident, quiet=dry_run)
        )
        everybody = [*run_monitor.observers, *observers]
        edges = _patiently_opened(config, settings, everybody, stop, dry_run=dry_run)
        if edges is None:
            return RunSummary(stopped=True)
        run_monitor.source, run_monitor.on_readings = edges.source, on_readings
        if on_open is not None:
            on_open(edges)

        def progress(seen: Progress) -> None:
            run_monitor.progress(seen)
            if on_progress is not None:
                on_progress(seen)

        return run(
            edges.source,
            edges.sink,
            edges.store,
            lambda partition, fits: run_monitor.register_engine(partition, make(partition, fits)),
            edges.decoder,
            settings=settings,
            make_monitor=run_monitor.make_monitor if config.monitor.enabled else None,
            control=edges.control,
            outbox=run_monitor.outbox,
            observers=everybody,
            on_judged=run_monitor.judged,
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
    """Open the edges, trying again where they are away as a run does; ``None``: stopped."""
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


# ------------------------------------- judging outside the loop: on Spark, over a history
class DecodedBefore:
    """A decoder of records that were decoded beforehand: `items` says of each what it is."""

    def __init__(self, channels: Sequence[str]) -> None:
        self.channels = tuple(channels)
        self.items: dict[Position, Reading | Invalid] = {}

    def decode(self, record: Record) -> Reading | Invalid:
        return self.items[record.position]

    def decode_all(self, records: Sequence[Record]) -> list[Reading | Invalid]:
        return [self.items[record[0]] for record in records]


class Judging:
    """Makes states that judge as a worker's do, without threads: fits run where they are due."""

    def __init__(self, config: Config) -> None:
        self.spec: EngineSpec = engine_spec(config)
        self.settings: RunSettings = run_settings(config)
        self.channels: Sequence[str] = config.input.mapping().channel_names

    def state(
        self, partition: Partition, decoder: Decoder, inputs: Sequence[str] | None = None
    ) -> PartitionState:
        """Make an empty state, of a whole partition or of some of its streams.

        Given the topics of the input, people can tell it things.
        """
        engine = Engine(self.spec, InlineExecutor())
        return make_state(self.settings, partition, decoder, engine, inputs=inputs)


def by_partition(config: Config) -> bool:
    """Whether streams of a partition share anything, so that they must be judged together.

    Beyond ``state.max_keys``: that many are judged wherever each stream is on its own.
    """
    return (
        config.rejection.policy().owner != "stream"
        or config.state.forget_after is not None
        # A sensor may speak in two groups, with one history.
        or config.input.mapping().group is not None
        or config.input.mode is not None
        or config.reorder_rules().any  # which has one clock
    )
