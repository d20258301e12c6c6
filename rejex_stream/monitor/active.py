"""Which alarms are active: raised once, prolonged while they recur, withdrawn or outlived."""

from __future__ import annotations

import msgspec

from rejex_stream.monitor.alarm import Alarm, AlarmKind, Alternative
from rejex_stream.types import Verdict

__all__ = ["NO_ALARMS", "ActiveAlarm", "ActiveAlarms"]

NO_ALARMS: tuple[Alarm, ...] = ()


class ActiveAlarm(msgspec.Struct):
    """An alarm that has not been withdrawn; `until` is an event count, -1: no end."""

    alarm: Alarm
    until: int


class ActiveAlarms:
    """The active alarms of one stream (or of the pipeline: `stream_key` ``None``), one a kind."""

    __slots__ = ("_by_kind", "_stream_key")

    def __init__(self, stream_key: str | None) -> None:
        self._stream_key = stream_key
        self._by_kind: dict[AlarmKind, ActiveAlarm] = {}

    def raise_alarm(
        self,
        verdict: Verdict,
        kind: AlarmKind,
        alternative: Alternative,
        *,
        evidence: float,
        threshold: float,
        unit: str,
        guarantee: str,
        message: str,
        now: int = 0,
        hold_events: int | None = None,
    ) -> tuple[Alarm, ...]:
        """Return a new alarm; or nothing, and prolong the one of that kind that is still active.

        Parameters
        ----------
        verdict
            The event that completed the evidence.
        kind, alternative, evidence, threshold, unit, guarantee, message
            As in :class:`Alarm`.
        now, hold_events
            The present event count, and how many events the alarm stays active unless it is raised
            again; ``None`` means until it is withdrawn.
        """
        until = -1 if hold_events is None else now + hold_events
        active = self._by_kind.get(kind)
        if active is not None and (active.until < 0 or active.until > now):
            active.until = until
            return NO_ALARMS
        alarm = Alarm(
            kind=kind,
            alternative=alternative,
            stream_key=self._stream_key,
            position=verdict.position,
            seq=verdict.seq,
            event_time_ms=verdict.event_time_ms,
            model_epoch=verdict.model_epoch,
            evidence=evidence,
            threshold=threshold,
            unit=unit,
            guarantee=guarantee,
            message=message,
        )
        self._by_kind[kind] = ActiveAlarm(alarm, until)
        return (alarm,)

    def withdraw(self, *kinds: AlarmKind) -> None:
        """End alarms whose cause is gone."""
        for kind in kinds:
            self._by_kind.pop(kind, None)

    def __contains__(self, kind: AlarmKind) -> bool:
        return kind in self._by_kind

    def at(self, now: int) -> tuple[Alarm, ...]:
        """Return the alarms that are active at an event count."""
        return tuple(
            active.alarm
            for active in self._by_kind.values()
            if active.until < 0 or active.until > now
        )

    @property
    def state(self) -> list[ActiveAlarm]:
        """All that has to be kept."""
        return list(self._by_kind.values())

    def restore(self, state: list[ActiveAlarm]) -> None:
        """Go on from a state."""
        self._by_kind = {active.alarm.kind: active for active in state}
