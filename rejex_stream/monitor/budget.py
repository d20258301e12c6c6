"""Will the people who look at rejected events manage today? A projection in event time.

Heuristic: it extrapolates the day so far, with two standard deviations of a count as allowance.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["DayBudget"]

_DAY_MS = 86_400_000
_MIN_COUNT = 20
_BELIEVE_AFTER = 5  # events of another day in a row: one broken clock must not turn the calendar


class DayBudget(msgspec.Struct):
    """Rejected events of the current UTC day of event time; constant size.

    Attributes
    ----------
    day
        Days since 1970; ``None`` before the first event.
    start_ms, latest_ms
        The part of the day seen so far; starts at midnight if the day before was seen.
    count
        Rejected events in it.
    """

    day: int | None = None
    start_ms: int = 0
    latest_ms: int = 0
    count: int = 0
    other_day: int = 0
    others: int = 0
    others_count: int = 0

    def update(self, event_time_ms: int, rejected: bool) -> bool:
        """Count one event; return whether a new day began with it.

        A new day begins once five events in a row belong to another one.

        Examples
        --------
        >>> day = DayBudget()
        >>> for minute in range(12 * 60):
        ...     new_day = day.update(minute * 60_000, rejected=minute % 2 == 0)
        >>> day.count, round(day.projected)
        (360, 721)
        """
        today = event_time_ms // _DAY_MS
        if today == self.day:
            self.others = 0
            self.count += rejected
            self.latest_ms = max(self.latest_ms, event_time_ms)
            return False
        if self.day is None:
            self.day, self.start_ms, self.latest_ms = today, event_time_ms, event_time_ms
            self.count = int(rejected)
            return True
        if not self.others or today != self.other_day:
            self.other_day, self.others, self.others_count = today, 0, 0
        self.others += 1
        self.others_count += rejected
        if self.others < _BELIEVE_AFTER:
            self.count += rejected
            return False
        follows = today == self.day + 1
        self.day = today
        self.start_ms = today * _DAY_MS if follows else event_time_ms
        self.latest_ms = event_time_ms
        self.count, self.others = self.others_count, 0
        return True

    @property
    def projected(self) -> float:
        """Rejected events in a whole day at the rate of this day so far."""
        return self._scale * self.count

    @property
    def projected_at_least(self) -> float:
        """The same less two standard deviations of the count; the count itself where larger."""
        if self.count < _MIN_COUNT:
            return float(self.count)
        return max(float(self.count), self._scale * (self.count - 2.0 * math.sqrt(self.count)))

    @property
    def _scale(self) -> float:
        # An hour at least: the first minutes of a day say nothing about the rest.
        return _DAY_MS / max(self.latest_ms - self.start_ms, _DAY_MS // 24)
