"""From a config to the values that core, loop and alerts are told: nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rejex_stream.config.model import Config
from rejex_stream.config.operating import Alerts
from rejex_stream.engine import EngineSpec
from rejex_stream.errors import ConfigError
from rejex_stream.settings import RunSettings

if TYPE_CHECKING:
    from rejex_stream.monitor.config import MonitorConfig

__all__ = ["engine_spec", "monitor_config", "run_settings", "webhook_secret"]


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

    rejection = config.rejection
    return EngineSpec(
        detector=make_detector(config.detector.name, **config.detector.params),
        features=config.features.spec(config.input.mapping().channel_names),
        policy=rejection.policy(),
        window=rejection.window,
        schedule=config.refit.schedule(rejection.window),
        seed=config.pipeline.seed,
        evidence=config.output.evidence,
    )


def monitor_config(config: Config) -> MonitorConfig:
    """Return what the monitors are told."""
    from rejex_stream.monitor.config import MonitorConfig

    rejection, monitor = config.rejection, config.monitor
    budget = monitor.review_budget_per_day
    if budget is None and rejection.review_budget is not None:
        budget = rejection.review_budget.reviews_per_day
    return MonitorConfig(
        window=rejection.window,
        contamination=rejection.contamination,
        tolerance=rejection.policy().band(rejection.window).tolerance,
        false_alarm_events=monitor.false_alarm_events,
        delta=rejection.delta,
        confidence=monitor.confidence,
        rolling_events=monitor.rolling_events,
        review_budget_per_day=budget,
        stuck_events=monitor.stuck_events,
        drift_reference_events=monitor.drift_reference_events,
        adwin=monitor.adwin,
        ties=rejection.ties,
    )


def run_settings(config: Config) -> RunSettings:
    """Return the knobs of the loop."""
    run, state, output = config.run, config.state, config.output
    return RunSettings(
        commit_interval_s=run.commit_interval_s,
        commit_every_events=run.commit_every_events,
        snapshot_every_events=state.snapshot_every_events,
        snapshot_interval_s=state.snapshot_interval_s,
        max_poll_records=run.max_poll_records,
        review_context_events=output.context_events,
        review_reasons=frozenset(output.review_reasons),
        audit_rate=output.audit_rate,
        invalid_limit=run.invalid_limit if run.invalid_limit < 1 else None,
        invalid_window_events=run.invalid_window_events,
        retry_for_s=run.retry_for_s,
        lost_state=state.lost,
        progress_interval_s=0.5,
    )


def webhook_secret(alerts: Alerts) -> bytes | None:
    """Return the key of the webhook's signature, if there is one.

    Raises
    ------
    ConfigError
        If its file cannot be read.
    """
    if alerts.webhook_secret is not None:
        return alerts.webhook_secret.get_secret_value().encode()
    if alerts.webhook_secret_file is None:
        return None
    try:
        return Path(alerts.webhook_secret_file).read_bytes().removesuffix(b"\n")
    except OSError as error:
        raise ConfigError(
            f"alerts.webhook_secret_file {alerts.webhook_secret_file} cannot be read: "
            f"{error.strerror}."
        ) from None
