"""Will the people who look at rejected events manage? A projection, and whether chance explains it.

The alarm needs both: the day, projected to its end in event time, ends above the budget, and the
rejected events of late show a rate above it. The second is a test because the first is not: where
the rate is the budget exactly, every other day ends above it, and with a budget of one a day every
fourth.
"""

from __future__ import annotations

import math

import msgspec

from rejex_stream.monitor.alarm import NO_ALARMS, ActiveAlarms, Alarm, AlarmKind, Alternative
from rejex_stream.outcomes import is_for_review
from rejex_stream.types import Verdict

__all__ = ["FALSE_ALARM_DAYS", "BudgetEvidence", "DayBudget", "ReviewBudget"]

FALSE_ALARM_DAYS = 100.0
"""Mean number of days between two false alarms where the rate is the budget, exactly."""

_FACTORS = (1.25, 1.5, 2.0, 4.0, 10.0)  # how much too high the rate may be

_DAY_MS = 86_400_000
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
    def _scale(self) -> float:
        # An hour at least: the first minutes of a day say nothing about the rest.
        return _DAY_MS / max(self.latest_ms - self.start_ms, _DAY_MS // 24)


class BudgetEvidence(msgspec.Struct):
    """Shiryaev-Roberts evidence for a rate of rejected events above the budget; constant size.

    While nothing is rejected the evidence for a factor c follows dR = dt - (c - 1) budget R dt,
    with time in days (or in the mean gap between two events of the budget, where that is longer);
    every rejected event multiplies R by c. At a rate of at most the budget R grows by at most one
    a day in expectation, so that the mean time to R = 100 is at least 99 days if rejected events
    are independent. Autocorrelated ones come in clusters: the measured variance inflation divides
    both terms of log R, which makes that a heuristic.

    Attributes
    ----------
    values
        R for each factor, capped where one alone suffices.
    at_ms
        The moment they hold for, in event time; ``None`` before the first rejected event.
    """

    values: list[float] = msgspec.field(default_factory=lambda: [1.0] * len(_FACTORS))
    at_ms: int | None = None

    def update(self, now_ms: int, per_day: float, inflation: float) -> bool:
        """Take note of one rejected event; return whether the rate is above the budget.

        Parameters
        ----------
        now_ms
            Its moment, in event time.
        per_day
            The budget.
        inflation
            Measured variance inflation, 1 where there is none.

        Examples
        --------
        >>> evidence = BudgetEvidence()
        >>> [evidence.update(hour * 3_600_000, 1.0, 1.0) for hour in range(4)]
        [False, False, True, True]
        """
        self._advance(now_ms, per_day, inflation)
        most = FALSE_ALARM_DAYS * len(_FACTORS)
        self.values = [
            min(value * factor ** (1.0 / inflation), most)
            for value, factor in zip(self.values, _FACTORS, strict=True)
        ]
        return self._mean >= FALSE_ALARM_DAYS

    def is_gone(self, now_ms: int, per_day: float, inflation: float) -> bool:
        """Move on to `now_ms`; return whether a tenth is left at most."""
        self._advance(now_ms, per_day, inflation)
        return self._mean <= FALSE_ALARM_DAYS / 10.0

    @property
    def _mean(self) -> float:
        return sum(self.values) / len(_FACTORS)

    def _advance(self, now_ms: int, per_day: float, inflation: float) -> None:
        # A clock that goes back passes no time; one that stays ahead is followed.
        unit_ms = _DAY_MS * max(1.0, 1.0 / per_day)
        passed = 0.0 if self.at_ms is None else max(0, now_ms - self.at_ms) / unit_ms
        self.at_ms = now_ms
        for i, factor in enumerate(_FACTORS):
            decay = (factor - 1.0) * per_day * unit_ms / _DAY_MS / inflation
            left = math.expm1(-decay * passed)
            self.values[i] += self.values[i] * left - left / decay


class ReviewBudget:
    """Watches the rejected events of a day against what people can look at.

    Parameters
    ----------
    per_day
        The budget; ``None``: days are counted, no alarm is raised.
    """

    __slots__ = ("_per_day", "day", "evidence")

    def __init__(self, per_day: float | None) -> None:
        self._per_day = per_day
        self.day = DayBudget()
        self.evidence = BudgetEvidence()

    def count(
        self, active: ActiveAlarms, verdict: Verdict, inflation: float | None
    ) -> tuple[Alarm, ...]:
        """Count one verdict of any kind; return the alarm it raised, mostly none.

        Only what is worth a person's time is counted: no warm-up, no event of a constant window.

        Parameters
        ----------
        active
            Where the alarm is kept.
        verdict
            Where it points to.
        inflation
            VIF, ``None`` while unknown.
        """
        limit, day = self._per_day, self.day
        rejected = is_for_review(verdict)
        new_day = day.update(verdict.event_time_ms, rejected)
        if limit is None or not (rejected or new_day):
            return NO_ALARMS
        inflation = max(1.0, inflation or 1.0)
        if new_day and self.evidence.is_gone(day.latest_ms, limit, inflation):
            active.withdraw(AlarmKind.REVIEW_BUDGET)
        if not rejected or not self.evidence.update(day.latest_ms, limit, inflation):
            return NO_ALARMS
        projected = day.projected
        if projected <= limit or AlarmKind.REVIEW_BUDGET in active:
            return NO_ALARMS
        guarantee = (
            f"at a rate within the budget about one false alarm in {FALSE_ALARM_DAYS:g} days"
        )
        return active.raise_alarm(
            verdict,
            AlarmKind.REVIEW_BUDGET,
            Alternative.MORE_REJECTS,
            evidence=projected,
            threshold=limit,
            unit="events/day",
            guarantee=f"heuristic: {guarantee} of independent rejections",
            message=f"About {projected:,.0f} rejected events are to be expected today, and lately "
            f"there were more than chance explains; people can look at {limit:,.0f} a day.",
        )
