"""What is watched about ranked events, of one stream or of a whole pipeline: rate and health.

What needs a score (stuck sensor, drift) is :mod:`rejex_stream.monitor.stream_monitor`'s.
"""

from __future__ import annotations

import msgspec

from rejex_stream.monitor.alarm import NO_ALARMS, ActiveAlarm, ActiveAlarms, Alarm
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.monitor.health import HealthDetector, HealthState
from rejex_stream.monitor.rate import RateState, RejectionRate
from rejex_stream.monitor.theory import RankLaw, rank_law
from rejex_stream.types import Verdict

__all__ = ["RankMonitors", "RankState"]


class RankState(msgspec.Struct):
    """All these monitors have to remember; its size depends on the configuration alone."""

    rate: RateState = msgspec.field(name="counts")
    health: HealthState
    active: list[ActiveAlarm]
    law: tuple[int, int, int, int] | None = msgspec.field(name="table")


class RankMonitors:
    """The monitors that a stream and the pipeline have in common.

    Parameters
    ----------
    config
        Settings.
    stream_key
        Whose alarms these are; ``None`` for the pipeline.

    Notes
    -----
    O(1) an event. The rolling rate uses the verdict's own rank, since it is about what people get
    to see; the health detector is given the cell of the randomised rank.
    """

    __slots__ = ("_rolling", "active", "health", "law", "rate")

    def __init__(self, config: MonitorConfig, stream_key: str | None) -> None:
        self._rolling = config.rolling
        self.rate = RejectionRate(config)
        self.health = HealthDetector(config)
        self.active = ActiveAlarms(stream_key)
        self.law: RankLaw | None = None

    def observe(self, verdict: Verdict, law: RankLaw, shown: int, drawn: int) -> tuple[Alarm, ...]:
        """Count one ranked event; return the alarms it raised, mostly none.

        Parameters
        ----------
        verdict
            Where alarms point to.
        law
            Law of the ranks for this event's window.
        shown
            Rank cell of the verdict.
        drawn
            Rank cell of the randomised rank; differs from `shown` only under ties.
        """
        rate = self.rate
        if law is not self.law:
            rate.switch(self.law, law)
            self.law = law
        outside = rate.update(law, shown)
        fired = self.health.update(law, drawn)
        if fired is None and not outside and rate.events < rate.recheck:
            return NO_ALARMS
        alarms = NO_ALARMS
        if fired is not None:
            alarms = self.health.raise_alarm(
                self.active, verdict, fired, now=rate.events, hold_events=self._rolling
            )
        if outside:
            alarms += rate.raise_or_withdraw(self.active, verdict, law, self.health.inflation)
        elif rate.events >= rate.recheck:
            rate.set_limits(law, self.health.inflation)
        return alarms

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
