"""The points of a sensor around a review item: a reviewer sees where it came from and what came."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.rejection.judge import EXTREME
from rejex_stream.run.audit_draw import AuditDraw
from rejex_stream.types import (
    ContextPoint,
    FollowUp,
    Label,
    Position,
    Reading,
    Reason,
    ReviewItem,
    Verdict,
)

__all__ = ["REVIEW_REASONS", "ReviewItems"]

NO_AUDIT = AuditDraw()
REVIEW_REASONS = frozenset({Reason.AMBIGUOUS, Reason.UNSCORABLE})
"""Rejected for one of these, an event goes to review; the events of a warm-up do not.

Nor do those of a constant window, which is a state of the sensor: where it begins and where it ends
an item of its own says so.
"""

_PER_WINDOW = 4
"""An extreme anomaly is asked about if none was seen of its sensor for a quarter of a window, or
none that is half as severe.
"""

_Point: TypeAlias = tuple[int, tuple[float, ...], float | None, Label]


class _View(msgspec.Struct):
    """What is kept of a sensor in a snapshot."""

    recent: list[_Point]
    of: Position | None
    n_since: int
    extreme: tuple[int, float] | None


class _Sensor:
    """What is remembered of a sensor: points as they leave, what is owed, the last extreme."""

    __slots__ = ("extreme", "n_since", "of", "recent")

    def __init__(self, recent: Iterable[ContextPoint], points: int) -> None:
        self.recent = deque(recent, maxlen=points)
        self.of: Position | None = None  # the latest item, while events are owed to it
        self.n_since = 0
        # Where an anomaly was extreme last, and how severe the worst was since all was quiet.
        self.extreme: tuple[int, float] | None = None

    def asks(self, verdict: Verdict, severity: float) -> bool:
        """Take note of an extreme anomaly; return whether it is the first for long, or the worst.

        Twice as severe as those before, so that a blip hides no fault; O(log severity) times.
        """
        before, worst = self.extreme or (verdict.seq, 0.0)
        if not 0 <= verdict.seq - before <= verdict.window_len // _PER_WINDOW:
            worst = 0.0
        asks = severity > 2 * worst
        self.extreme = verdict.seq, severity if asks else worst
        return asks


class ReviewItems:
    """Remembers the last `points` events of every sensor; makes review items and what follows them.

    What comes after an item is told when 1, 2, 4, 8, ... events came, up to `points`: early, and
    each event once. A new item ends it: its own context holds what was not told. What it makes
    depends on the events alone, so a replay makes the same items; its state travels in the
    snapshot of its partition.

    An extreme anomaly (:data:`~rejex_stream.rejection.judge.EXTREME`) that no incident holds is
    asked about as well where it is the sensor's first for a quarter of a window, or twice as
    severe: of a fault that is over before there is evidence for an alarm nobody would be told.

    Parameters
    ----------
    channels
        Names of the channels, in the order of ``Reading.values``.
    points
        How many earlier events a review item carries, and how many later ones follow (0: none).
    reasons
        Rejected for one of these, an event goes to review; without any, nothing does but audits.
    audit
        Which *accepted* events, and muted ones, are drawn for review as well, by a hash of their
        position: labels from the boundary alone say nothing about the rest.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> context = ReviewItems(["temp"], points=2)
    >>> def event(offset, label, reason=None):
    ...     at = Position("t", 0, offset)
    ...     return Reading("a", "a", offset, (20.0,), at), Verdict(
    ...         position=at, stream_key="a", sensor="a", event_time_ms=offset, seq=offset,
    ...         label=label, reason=reason)
    >>> context.observe(*event(0, Label.NORMAL)) is None
    True
    >>> item = context.observe(*event(1, Label.REJECTED, Reason.AMBIGUOUS))
    >>> [point.event_time_ms for point in item.context]
    [0]
    >>> context.observe(*event(2, Label.NORMAL)).of.offset
    1
    """

    def __init__(
        self,
        channels: Sequence[str],
        *,
        points: int = 32,
        reasons: Collection[Reason] = REVIEW_REASONS,
        audit: AuditDraw = NO_AUDIT,
    ) -> None:
        if points < 0:
            raise ConfigError(f"review context is {points} points: expected 0 or more")
        self._channels = tuple(channels)
        self._points = points
        self._reasons = frozenset(reasons)
        self._audit, self._audits = audit, audit != NO_AUDIT
        self._sensors: dict[str, _Sensor] = {}

    def observe(self, reading: Reading, verdict: Verdict) -> ReviewItem | FollowUp | None:
        """Remember one event; returns its review item, or what is due to the item before it.

        A verdict that could be drawn for an audit is given its probability. O(1), and O(points)
        where there is something to return.
        """
        sensor = self._sensors.get(reading.sensor)
        if sensor is None:
            sensor = self._sensors[reading.sensor] = _Sensor((), self._points)
        item = None
        if verdict.label is Label.REJECTED and not verdict.muted:
            if verdict.reason in self._reasons:
                item = self._item(reading, verdict, sensor.recent, "rejected")
        elif self._audits and (audit := self._audit.audit(verdict)):
            # Of a verdict that was made a moment ago, and that nobody else has seen yet.
            msgspec.structs.force_setattr(verdict, "audit", audit)
            if audit.drawn:
                item = self._item(reading, verdict, sensor.recent, "audit", drawn=audit.p)
        if (
            verdict.severity is not None
            and verdict.severity >= EXTREME
            and verdict.label is Label.ANOMALY
            and not (verdict.held or verdict.planned or verdict.muted)
            and sensor.asks(verdict, verdict.severity)
            and item is None
            and self._reasons
        ):
            item = self._item(reading, verdict, sensor.recent, "extreme")
        if item is None and verdict.status is not None and self._reasons:
            item = self._item(reading, verdict, sensor.recent, "status")
        point = (reading.event_time_ms, _known(reading.values), verdict.score, verdict.label)
        sensor.recent.append(_as_named(ContextPoint, point))
        if item is not None:
            if self._points:
                sensor.of, sensor.n_since = verdict.position, 0
            return item
        if sensor.of is None:
            return None
        sensor.n_since = n_since = sensor.n_since + 1
        if n_since & (n_since - 1) and n_since < self._points:
            return None
        return self._follow_up(sensor, sensor.of, verdict)

    def _follow_up(self, sensor: _Sensor, of: Position, verdict: Verdict) -> FollowUp:
        n_since = sensor.n_since
        last = n_since >= self._points
        if last:
            sensor.of = None
        told = 1 << (n_since - 1).bit_length() >> 1  # the power of two before, 0 of 1
        return FollowUp(
            position=verdict.position,
            of=of,
            stream_key=verdict.stream_key,
            sensor=verdict.sensor,
            channels=self._channels,
            points=tuple(sensor.recent)[told - n_since :],
            n_since=n_since,
            last=last,
        )

    def turned_away(self, reading: Reading, verdict: Verdict) -> ReviewItem | None:
        """Return the review item of an event that nothing is remembered of, if it is due."""
        if verdict.reason in self._reasons:
            return self._item(reading, verdict, (), "rejected")
        return None

    def _item(
        self,
        reading: Reading,
        verdict: Verdict,
        recent: Iterable[ContextPoint],
        why: str,
        *,
        drawn: float | None = None,
    ) -> ReviewItem:
        return ReviewItem(
            verdict=verdict,
            channels=self._channels,
            values=_known(reading.values),
            context=tuple(recent),
            why=why,
            drawn=drawn,
        )

    def forget(self, sensor: str) -> None:
        """Forget a sensor."""
        self._sensors.pop(sensor, None)

    def sensors(self) -> Collection[str]:
        """Return the sensors that are remembered."""
        return self._sensors.keys()

    def view(self, sensor: str) -> bytes:
        """Encode what is remembered of one sensor. O(points)."""
        known = self._sensors[sensor]
        recent = [
            (ms, _with_nan(values), score, label) for ms, values, score, label in known.recent
        ]
        owed = 0 if known.of is None else known.n_since
        return msgspec.msgpack.encode(_View(recent, known.of, owed, known.extreme))

    def restore(self, views: Mapping[str, bytes]) -> None:
        """Take over what :meth:`view` encoded; a smaller `points` keeps the newest.

        Raises
        ------
        CheckpointError
            If one is not such a view.
        """
        try:
            found = {
                sensor: msgspec.msgpack.decode(view, type=_View) for sensor, view in views.items()
            }
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the review context cannot be read: {error}") from None
        self._sensors = {}
        for name, kept in found.items():
            sensor = self._sensors[name] = _Sensor(_points(kept.recent), self._points)
            sensor.extreme = kept.extreme
            if kept.of is not None and kept.n_since < self._points:
                sensor.of, sensor.n_since = kept.of, kept.n_since


_as_named = tuple.__new__  # nearly twice as fast as calling a named tuple's class


def _points(recent: Iterable[_Point]) -> Iterable[ContextPoint]:
    return (ContextPoint(ms, _known(values), score, label) for ms, values, score, label in recent)


def _known(values: tuple[float, ...]) -> tuple[float | None, ...]:
    """Return values with ``None`` for nan."""
    if math.isnan(sum(values)):  # of infinities too, which the longer way leaves alone
        return tuple([None if math.isnan(value) else value for value in values])
    return values


def _with_nan(values: tuple[float | None, ...]) -> tuple[float, ...]:
    return tuple([math.nan if value is None else value for value in values])
