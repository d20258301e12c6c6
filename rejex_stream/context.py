"""The last few points of each sensor, so that a reviewer sees where an event came from."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.types import ContextPoint, Label, Position, Reading, Reason, ReviewItem, Verdict

__all__ = ["REVIEW_REASONS", "ReviewContext", "drawn_for_audit"]

REVIEW_REASONS = frozenset({Reason.AMBIGUOUS, Reason.UNSCORABLE, Reason.CONSTANT_WINDOW})
"""Rejected for one of these, an event goes to review; the events of a warm-up do not."""

_Point: TypeAlias = tuple[int, tuple[float, ...], float | None, Label]


class ReviewContext:
    """Remembers the last `points` events of every sensor and makes review items.

    What it makes depends on the events alone, so a replay makes the same items; its state travels
    in the snapshot of its partition.

    Parameters
    ----------
    channels
        Names of the channels, in the order of ``Reading.values``.
    points
        How many earlier events a review item carries (0 for none).
    reasons
        Rejected for one of these, an event goes to review.
    audit_rate
        Share of *accepted* events drawn for review as well, by a hash of their position: labels
        from the boundary alone say nothing about the rest.
    max_sensors
        Beyond this many sensors the one silent for longest is forgotten; it bounds the memory
        against hostile names.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Examples
    --------
    >>> from rejex_stream.types import Position
    >>> context = ReviewContext(["temp"], points=2)
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
        audit_rate: float = 0.0,
        max_sensors: int = 100_000,
    ) -> None:
        if points < 0:
            raise ConfigError(f"review context is {points} points: expected 0 or more")
        if not 0.0 <= audit_rate <= 1.0:
            raise ConfigError(f"audit_rate is {audit_rate}: expected a share from 0 to 1")
        if max_sensors < 1:
            raise ConfigError(f"max_sensors is {max_sensors}: expected at least 1")
        self._channels = tuple(channels)
        self._points = points
        self._reasons = frozenset(reasons)
        self._audit_rate = audit_rate
        self._max_sensors = max_sensors
        self._recent: OrderedDict[str, deque[_Point]] = OrderedDict()

    def observe(self, reading: Reading, verdict: Verdict) -> ReviewItem | None:
        """Remember one event; returns its review item if it is due for review. O(points)."""
        recent = self._recent.get(reading.sensor)
        if recent is None:
            recent = self._recent[reading.sensor] = deque(maxlen=self._points)
            if len(self._recent) > self._max_sensors:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(reading.sensor)
        item = None
        if verdict.label is Label.REJECTED:
            if verdict.reason in self._reasons:
                item = self._item(reading, verdict, recent, "rejected")
        elif self._audit_rate and drawn_for_audit(verdict.position, self._audit_rate):
            item = self._item(reading, verdict, recent, "audit")
        recent.append((reading.event_time_ms, reading.values, verdict.score, verdict.label))
        return item

    def _item(
        self, reading: Reading, verdict: Verdict, recent: deque[_Point], why: str
    ) -> ReviewItem:
        return ReviewItem(
            verdict=verdict,
            channels=self._channels,
            values=_without_nan(reading.values),
            context=tuple(
                ContextPoint(time_ms, _without_nan(values), score, label)
                for time_ms, values, score, label in recent
            ),
            why=why,
        )

    def snapshot(self) -> bytes:
        """Encode everything remembered. O(sensors · points)."""
        return msgspec.msgpack.encode(
            [(sensor, list(recent)) for sensor, recent in self._recent.items()]
        )

    def restore(self, blob: bytes) -> None:
        """Take over what :meth:`snapshot` encoded; a smaller `points` keeps the newest.

        Raises
        ------
        CheckpointError
            If `blob` is not such a snapshot.
        """
        try:
            remembered = msgspec.msgpack.decode(blob, type=list[tuple[str, list[_Point]]])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the review context cannot be read: {error}") from None
        self._recent = OrderedDict(
            (sensor, deque(recent, maxlen=self._points)) for sensor, recent in remembered
        )


def drawn_for_audit(position: Position, rate: float) -> bool:
    """Whether the event at `position` belongs to the audit sample: a fixed draw of share `rate`.

    A smaller rate draws a subset of a larger one.

    Examples
    --------
    >>> sum(drawn_for_audit(Position("t", 0, offset), 0.01) for offset in range(100_000))
    1003
    """
    digest = blake2b(str(position).encode(), digest_size=8, person=b"rejex-audit").digest()
    return int.from_bytes(digest, "big") < rate * 2.0**64


def _without_nan(values: tuple[float, ...]) -> tuple[float | None, ...]:
    return tuple([None if math.isnan(value) else value for value in values])
