"""The monitors of ranks, and what they know at one moment: for metrics, console and reports."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rejex_stream.monitor.alarm import NO_ALARMS, ActiveAlarm, ActiveAlarms, Alarm, AlarmKind
from rejex_stream.monitor.config import CONFIDENCE, MonitorConfig
from rejex_stream.monitor.health import HealthDetector, HealthState
from rejex_stream.monitor.rate import WITHHELD, RateState, RejectionRate, batch_means, rate_limits
from rejex_stream.monitor.theory import RankLaw, Theory, rank_law
from rejex_stream.types import Reason, Verdict, without_limits

HealthWord = Literal[
    "calibrating", "ok", "too autocorrelated to tell", "too few rejects to tell", "alarm"
]

_TIE_WARNING = 0.01
_NOTICEABLE_VIF = 1.5


class Unranked(msgspec.Struct):
    """Events without a rank, since the start."""

    warm_up: int = 0
    unscorable: int = 0
    constant_window: int = 0

    def count(self, verdict: Verdict) -> None:
        """Count one; what has no rank for any other reason counts as unscorable."""
        reason = without_limits(verdict).reason
        if reason is Reason.WARM_UP:
            self.warm_up += 1
        elif reason is Reason.CONSTANT_WINDOW:
            self.constant_window += 1
        else:
            self.unscorable += 1


class MonitorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream, or the pipeline, at one moment. Rates are shares of ranked events.

    `stream_key` is ``None`` for the pipeline. Counts are since the start, rates over the last
    `rolling_events` ranked events; what is not known yet is ``None``. `lower` and `upper` limit
    the rejection rate (:func:`~rejex_stream.monitor.rate.rate_limits`; batch means in the first
    three windows); `inflation` is the VIF, `effective_events` = `rolling_events` / VIF.
    `health` = ``ok`` means: a doubling would have shown. Evidence is in nats; health's alarm comes
    when it reaches `health_threshold`, log L, and a doubling needs about `doubling_delay_events` to
    show. `drift` is ``off`` for the pipeline, whose streams move by themselves. `review_budget` is
    in reviews a day. `tie_mass` is the share of the reference that equals the threshold λ, when
    last seen: above 1 % the mid-rank moves the rates noticeably (`tie_warning`).
    """

    stream_key: str | None
    events: int
    warm_up_events: int
    unscorable_events: int
    constant_window_events: int
    rolling_events: int
    rejection_rate: float | None
    anomaly_rate: float | None
    flagged_rate: float | None
    contamination: float
    theory: Theory | None
    lower: float | None
    upper: float | None
    inflation: float | None
    effective_events: float | None
    health: HealthWord
    health_log_evidence: float
    health_threshold: float
    doubling_delay_events: float
    drift: str
    drift_log_evidence: float
    review_budget: float | None
    tie_mass: float
    tie_warning: bool
    active_alarms: tuple[Alarm, ...]


class RankState(msgspec.Struct):
    """All these monitors have to remember; its size depends on the configuration alone."""

    rate: RateState
    health: HealthState
    active: list[ActiveAlarm]
    law: tuple[int, int, int, int] | None


class RankMonitors:
    """Rate and health: the monitors that a stream and the pipeline (key ``None``) have in common.

    The rate is about what people get to see, the cell `shown` of the verdict's rank; health is a
    test, of the cell of a rank `drawn` among its ties. O(1) an event.
    """

    __slots__ = ("_config", "active", "health", "law", "rate")

    def __init__(self, config: MonitorConfig, stream_key: str | None) -> None:
        self._config = config
        self.rate = RejectionRate(config)
        self.health = HealthDetector(config)
        self.active = ActiveAlarms(stream_key)
        self.law: RankLaw | None = None

    def count(self, verdict: Verdict, law: RankLaw, shown: int, drawn: int) -> tuple[Alarm, ...]:
        """Count one event; return the alarms it raised."""
        rate, alarms = self.rate, NO_ALARMS
        if law is not self.law:
            rate.switch(self.law, law)
            self.law = law
        is_withheld = verdict.withheld and 0 < shown < 3
        is_outside = rate.update(law, shown + WITHHELD if is_withheld else shown)
        fired = self.health.update(law, drawn)
        if fired is not None:
            alarms = self._fired(verdict, fired, rate.events)
        if is_outside:
            alarms += rate.raise_or_withdraw(self.active, verdict, law, self.health.inflation)
        elif rate.events >= rate.recheck:
            rate.set_limits(law, self.health.inflation)
        return alarms

    def _fired(self, verdict: Verdict, fired: int, now: int) -> tuple[Alarm, ...]:
        hold = self._config.rolling  # the native core calls this, too
        return self.health.raise_alarm(self.active, verdict, fired, now=now, hold_events=hold)

    def status(
        self,
        *,
        stream_key: str | None,
        unranked: Unranked,
        theory: Theory | None,
        drift: str = "off",
        drift_log_evidence: float = -math.inf,
        tie_mass: float = 0.0,
    ) -> MonitorStatus:
        """Return the status; O(rolling window), some 10 µs per thousand events."""
        config, rates, health, law = self._config, self.rate, self.health, self.law
        active = self.active.at(rates.events)
        cells = rates.cells
        count = len(cells)
        rejects, anomalies = cells.count(1) + cells.count(2), cells.count(3)
        rate = rejects / count if count else None
        inflation = health.inflation
        limits = batch_means(cells, CONFIDENCE)
        if limits is not None and inflation is not None and law is not None:
            limits = rate_limits(
                rejects / count, count, law=law, inflation=inflation, confidence=CONFIDENCE,
                streams=health.streams,
            )  # fmt: skip
        return MonitorStatus(
            stream_key=stream_key,
            events=rates.events,
            warm_up_events=unranked.warm_up,
            unscorable_events=unranked.unscorable,
            constant_window_events=unranked.constant_window,
            rolling_events=count,
            rejection_rate=rate,
            anomaly_rate=anomalies / count if count else None,
            flagged_rate=(cells.count(2) + anomalies) / count if count else None,
            contamination=config.contamination,
            theory=theory,
            lower=None if limits is None else limits.lower,
            upper=None if limits is None else limits.upper,
            inflation=inflation,
            effective_events=None if inflation is None else count / inflation,
            health=_health_word(health, law, active),
            health_log_evidence=health.log_evidence,
            health_threshold=math.log(config.false_alarm_events),
            doubling_delay_events=math.inf if law is None else health.doubling_delay(law),
            drift=drift,
            drift_log_evidence=drift_log_evidence,
            review_budget=config.review_budget_per_day,
            tie_mass=tie_mass,
            tie_warning=tie_mass > _TIE_WARNING,
            active_alarms=active,
        )

    @property
    def state(self) -> RankState:
        """All that has to be kept."""
        return RankState(
            rate=self.rate.state,
            health=self.health.state,
            active=self.active.state,
            law=None if self.law is None else self.law.key,
        )

    def restore(self, state: RankState) -> None:
        """Go on from a state."""
        self.law = None if state.law is None else rank_law(*state.law)
        self.rate.restore(state.rate)
        self.health.restore(state.health, self.law)
        self.active.restore(state.active)


def _health_word(
    health: HealthDetector, law: RankLaw | None, active: tuple[Alarm, ...]
) -> HealthWord:
    if any(alarm.kind is AlarmKind.HEALTH for alarm in active):
        return "alarm"
    if health.inflation is None or law is None:
        return "calibrating"
    if health.can_tell(law):
        return "ok"
    if health.inflation > _NOTICEABLE_VIF:
        return "too autocorrelated to tell"
    return "too few rejects to tell"
