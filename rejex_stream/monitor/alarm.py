"""What a monitor says when it speaks up, how much that is worth, and which alarms are active."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rejex_stream.types import Position, Verdict


class AlarmKind(StrEnum):
    """Which question was answered."""

    HEALTH = "health"
    """The ranks are not what exchangeable scores give; `Alternative` says in which direction."""
    REJECTION_RATE = "rejection_rate"
    """Twice the planned share of the last n events was rejected: a fact, not a test."""
    COLLAPSE = "collapse"
    """Almost nothing is rejected any more: a dead sensor, or one that left its usual range."""
    STUCK = "stuck"
    """The same score over and over, or a reference of one repeated value."""
    DRIFT = "drift"
    """The level of the scores moves, slower than the window learns."""
    WARM_UP = "warm_up"
    """The first model learnt from rows of two kinds: a fault may be its normal."""
    NOTHING_SCORABLE = "nothing_scorable"
    """A hundred events in a row lacked a channel: it was renamed, say. Raised by the run itself."""


class Alternative(StrEnum):
    """In which direction the stream left the theory."""

    MORE_REJECTS = "more_rejects"
    FEWER_REJECTS = "fewer_rejects"
    MORE_ANOMALIES = "more_anomalies"
    FEWER_ANOMALIES = "fewer_anomalies"
    HIGHER_SCORES = "higher_scores"
    LOWER_SCORES = "lower_scores"
    REPEATED_SCORE = "repeated_score"
    MIXED_ROWS = "mixed_rows"


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One alarm. A monitor raises alarms and never changes a verdict.

    It belongs to `stream_key` (``None``: the whole pipeline) and its `mode`. `position`, `seq`
    (within its own stream), `event_time_ms` and `model_epoch` are of the event that completed the
    evidence. `evidence` is the number that was too large (for a collapse, too small) beside its
    `threshold`, both in `unit`: ``nats``, a ``rate``, or ``events``. `guarantee` says what a false
    alarm costs, `message` all of it to a person in one sentence.
    """

    kind: AlarmKind
    alternative: Alternative
    stream_key: str | None
    position: Position
    seq: int
    event_time_ms: int
    model_epoch: int | None
    evidence: float
    threshold: float
    unit: str
    guarantee: str
    message: str
    mode: str | None = None


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

        It points to `verdict`, and stays active for `hold_events` from the event count `now` on;
        ``None``: until it is withdrawn.
        """
        until = -1 if hold_events is None else now + hold_events
        active = self._by_kind.get(kind)
        if active is not None and (active.until < 0 or active.until > now):
            active.until = until
            return NO_ALARMS
        alarm = Alarm(
            kind=kind,
            alternative=alternative,
            stream_key=None if self._stream_key is None else verdict.stream_key,
            mode=None if self._stream_key is None else verdict.mode,
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
