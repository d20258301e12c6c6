"""The points of a sensor around a review item: a reviewer sees where it came from and what came."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rejex_stream.errors import CheckpointError, ConfigError
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

_Point: TypeAlias = tuple[int, tuple[float, ...], float | None, Label]


class _Followed(msgspec.Struct):
    """What is remembered of a sensor while events are owed to its latest review item."""

    recent: list[_Point]
    of: Position
    n_since: int


class ReviewItems:
    """Remembers the last `points` events of every sensor; makes review items and what follows them.

    What comes after an item is told when 1, 2, 4, 8, ... events came, up to `points`: early, and
    each event once. A new item ends it: its own context holds what was not told. What it makes
    depends on the events alone, so a replay makes the same items; its state travels in the
    snapshot of its partition.

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
        self._recent: dict[str, deque[_Point]] = {}
        self._followed: dict[str, tuple[Position, int]] = {}  # the item, and events since

    def observe(self, reading: Reading, verdict: Verdict) -> ReviewItem | None:
        """Remember one event; returns its review item if it is due for review. O(points)."""
        recent = self._recent.get(reading.sensor)
        if recent is None:
            recent = self._recent[reading.sensor] = deque(maxlen=self._points)
        item = None
        if verdict.label is Label.REJECTED and not verdict.muted:
            if verdict.reason in self._reasons:
                item = self._item(reading, verdict, recent, "rejected")
        elif self._audits and (share := self._audit.draw(verdict)):
            item = self._item(reading, verdict, recent, "audit", drawn=share)
        if item is None and verdict.status is not None and self._reasons:
            item = self._item(reading, verdict, recent, "status")
        recent.append((reading.event_time_ms, reading.values, verdict.score, verdict.label))
        if item is not None and self._points:
            self._followed[reading.sensor] = verdict.position, 0
        return item

    def follow_up(self, verdict: Verdict) -> FollowUp | None:
        """Count an event that was observed and is no item; returns what is due now. O(points).

        To be called once for each such event: what is due is part of the state.
        """
        followed = self._followed.get(verdict.sensor)
        if followed is None:
            return None
        of, n_since = followed[0], followed[1] + 1
        last = n_since >= self._points
        if last:
            del self._followed[verdict.sensor]
        else:
            self._followed[verdict.sensor] = of, n_since
            if n_since & (n_since - 1):
                return None
        told = 1 << (n_since - 1).bit_length() >> 1  # the power of two before, 0 of 1
        recent = self._recent[verdict.sensor]
        return FollowUp(
            position=verdict.position,
            of=of,
            stream_key=verdict.stream_key,
            sensor=verdict.sensor,
            channels=self._channels,
            points=_points(list(recent)[told - n_since :]),
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
        recent: Iterable[_Point],
        why: str,
        *,
        drawn: float | None = None,
    ) -> ReviewItem:
        return ReviewItem(
            verdict=verdict,
            channels=self._channels,
            values=_without_nan(reading.values),
            context=_points(recent),
            why=why,
            drawn=drawn,
        )

    def forget(self, sensor: str) -> None:
        """Forget a sensor."""
        self._recent.pop(sensor, None)
        self._followed.pop(sensor, None)

    def sensors(self) -> Collection[str]:
        """Return the sensors that are remembered."""
        return self._recent.keys()

    def newest_ms(self) -> dict[str, int]:
        """Return the event time of the newest event that is remembered of each sensor."""
        return {sensor: recent[-1][0] for sensor, recent in self._recent.items() if recent}

    def view(self, sensor: str) -> bytes:
        """Encode what is remembered of one sensor. O(points)."""
        recent, followed = list(self._recent[sensor]), self._followed.get(sensor)
        return msgspec.msgpack.encode(recent if followed is None else _Followed(recent, *followed))

    def restore(self, views: Mapping[str, bytes]) -> None:
        """Take over what :meth:`view` encoded; a smaller `points` keeps the newest.

        Raises
        ------
        CheckpointError
            If one is not such a view.
        """
        try:
            found = {
                sensor: msgspec.msgpack.decode(view, type=list[_Point] | _Followed)
                for sensor, view in views.items()
            }
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the review context cannot be read: {error}") from None
        self._recent, self._followed = {}, {}
        for sensor, kept in found.items():
            recent = kept.recent if isinstance(kept, _Followed) else kept
            self._recent[sensor] = deque(recent, maxlen=self._points)
            if isinstance(kept, _Followed) and kept.n_since < self._points:
                self._followed[sensor] = kept.of, kept.n_since

    def restore_whole(self, blob: bytes) -> None:
        """Take over what an earlier version encoded as a whole.

        Raises
        ------
        CheckpointError
            If `blob` is not such a snapshot.
        """
        try:
            remembered = msgspec.msgpack.decode(blob, type=list[tuple[str, list[_Point]]])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the review context cannot be read: {error}") from None
        self._recent = {sensor: deque(recent, maxlen=self._points) for sensor, recent in remembered}
        self._followed = {}


def _points(recent: Iterable[_Point]) -> tuple[ContextPoint, ...]:
    return tuple(
        ContextPoint(time_ms, _without_nan(values), score, label)
        for time_ms, values, score, label in recent
    )


def _without_nan(values: tuple[float, ...]) -> tuple[float | None, ...]:
    return tuple([None if math.isnan(value) else value for value in values])
