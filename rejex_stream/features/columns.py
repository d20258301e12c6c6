"""The columns of a feature row, each with the little state it needs; one set per sensor.

River's ``utils.Rolling(stats.Var())`` reverts what leaves the window and keeps the rounding error
for ever: one spike of 1e12 turns the variance into noise from then on. The rolling statistics here
recompute from the window instead whenever the reverted digits cannot be trusted.
"""

from __future__ import annotations

import math
from calendar import monthrange
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from rejex_stream.readable import utc
from rejex_stream.types import FloatArray

Row: TypeAlias = list[float]
LARGEST = 1e150
"""Beyond it no event can be scored: what squares and adds up values needs room to do so."""
_Rolled: TypeAlias = tuple[
    int | None, int, list[tuple[int, float]], list[tuple[int, float]],
    tuple[float, float, float, float, int],
]  # fmt: skip
_MIN_SQUARED = 1e-140  # squares of less lose their digits to underflow
_DAY_MS, _LONGEST_MONTH = 86_400_000, 31
CALENDAR = ("hour_of_day", "day_of_week", "days_to_month_end")
_MONDAY_MS = 4 * _DAY_MS  # 1970-01-05 was a Monday


class Column:
    """Appends its value to a row, or says that it is not ready; without a state of its own."""

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Take a reading; append to `row` and return true once there is a value."""
        raise NotImplementedError

    def state(self) -> Any:  # noqa: ANN401
        """Return everything it knows, as plain values."""
        return None

    def restore(self, state: Any) -> None:  # noqa: ANN401
        """Take over a state."""


class Raw(Column):
    """The channel as it is."""

    def __init__(self, channel: int) -> None:
        self.channel = channel

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Append the value."""
        row.append(values[self.channel])
        return True


def short_way(difference: float, period: float) -> float:
    """Return a difference of two angles the short way round, at most half a turn either way."""
    return math.remainder(difference, period)


def _on_circle(value: float, period: float) -> tuple[float, float]:
    # Of one value at a time: the bits of a vectorised sine may depend on what stands beside it.
    angle = 2 * math.pi * (math.fmod(value, period) / period)
    return math.sin(angle), math.cos(angle)


class Angle(Column):
    """Sine and cosine of a channel that goes round."""

    def __init__(self, channel: int, period: float) -> None:
        self.channel, self.period = channel, period

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Append the two."""
        row += _on_circle(values[self.channel], self.period)
        return True


class Lag(Column):
    """The channel `events` events ago, or how much it changed since then."""

    def __init__(self, channel: int, events: int, *, difference: bool) -> None:
        self.channel, self.events, self.difference = channel, events, difference
        self.past: deque[float] = deque(maxlen=events)

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Append the value, if there is one yet."""
        value, past = values[self.channel], self.past
        ready = len(past) == self.events
        if ready:
            self._append(value, past[0], row)
        past.append(value)
        return ready

    def _append(self, value: float, past: float, row: Row) -> None:
        row.append(value - past if self.difference else past)

    def state(self) -> Any:  # noqa: ANN401
        """Return the values that are not past yet."""
        return list(self.past)

    def restore(self, state: Any) -> None:  # noqa: ANN401
        """Take over a state."""
        past = msgspec.convert(state, list[float])
        if len(past) > self.events:
            raise ValueError(f"{len(past)} values for a lag of {self.events}")
        self.past.extend(past)


class AngleLag(Lag):
    """Where an angle was `events` events ago, as sine and cosine, or how far it turned since."""

    def __init__(self, channel: int, events: int, period: float, *, difference: bool) -> None:
        super().__init__(channel, events, difference=difference)
        self.period = period

    def _append(self, value: float, past: float, row: Row) -> None:
        if self.difference:
            row.append(short_way(value - past, self.period))
        else:
            row += _on_circle(past, self.period)


def phase(kind: str, at_ms: int) -> tuple[float, float]:
    """Return sine and cosine of where in a day or week a time is, or how far from a month's end."""
    if kind == "days_to_month_end":
        at = utc(at_ms)
        angle = 2 * math.pi * (monthrange(at.year, at.month)[1] - at.day) / _LONGEST_MONTH
    else:
        period_ms = _DAY_MS if kind == "hour_of_day" else 7 * _DAY_MS
        angle = 2 * math.pi * ((at_ms - _MONDAY_MS) % period_ms) / period_ms
    return math.sin(angle), math.cos(angle)


def phases_of(times_ms: Sequence[int]) -> FloatArray:
    """Return all phases of the calendar at some times, shape (m, 6)."""
    return np.array([[x for kind in CALENDAR for x in phase(kind, ms)] for ms in times_ms])


class Calendar(Column):
    """The phase of a calendar."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Append the two."""
        row += phase(self.kind, now_ms)
        return True


class Rolling(Column):
    """Mean, standard deviation, minimum or maximum of the last events or seconds.

    Or, as a deviation, what the newest value is away from the mean.

    Amortised O(1) per event. Sums run relative to a pivot inside the window and are recomputed
    from the window once per window length, and at once when the spread is lost in the rounding of
    what was there before. While a value beyond ±1e150 is in the window, mean and standard
    deviation are infinite; such a value enters no sum, so it leaves no trace.
    """

    def __init__(self, channel: int, kind: str, events: int | None, span_ms: float | None) -> None:
        self.channel, self.kind, self.events, self.span_ms = channel, kind, events, span_ms
        self.points: deque[tuple[int, float]] = deque()
        self.extremes: deque[tuple[int, float]] = deque()  # (serial, value), monotone in value
        self.serial = 0
        self.first_ms: int | None = None
        self.pivot = self.sum = self.squares = 0.0
        self.reach = 0.0  # largest deviation from the pivot since the last recomputation
        self.since_recompute = 0
        self.n_beyond = 0  # points that enter no sum

    def update(self, now_ms: int, values: Sequence[float], row: Row) -> bool:
        """Append the value, if there is one yet."""
        value = values[self.channel]
        if self.first_ms is None:
            self.first_ms = now_ms
        self._push(now_ms, value)
        while self._is_over(now_ms):
            self._evict()
        size = len(self.points)
        if self.events is not None:
            ready = size == self.events
        else:
            ready = size >= 2 and now_ms - self.first_ms >= (self.span_ms or 0.0)
        if ready:
            self._append(value, size, row)
        return ready

    def _append(self, value: float, size: int, row: Row) -> None:
        statistic = self._statistic(size)
        row.append(value - statistic if self.kind == "deviation" else statistic)

    def _is_over(self, now_ms: int) -> bool:
        if self.events is not None:
            return len(self.points) > self.events
        return self.points[0][0] <= now_ms - (self.span_ms or 0.0)

    def _push(self, now_ms: int, value: float) -> None:
        self.points.append((now_ms, value))
        self.serial += 1
        if self.kind in ("min", "max"):
            extremes, sign = self.extremes, 1.0 if self.kind == "max" else -1.0
            while extremes and sign * extremes[-1][1] <= sign * value:
                extremes.pop()
            extremes.append((self.serial, value))
            return
        if abs(value) > LARGEST:
            self.n_beyond += 1
            return
        if len(self.points) == self.n_beyond + 1:  # a pivot near the values keeps their digits
            self.pivot, self.sum, self.squares, self.reach = value, 0.0, 0.0, 0.0
        deviation = value - self.pivot
        if abs(deviation) > self.reach:  # noqa: PLR1730 - max() costs more, for every event
            self.reach = abs(deviation)
        self.sum += deviation
        self.squares += deviation * deviation

    def _evict(self) -> None:
        _, value = self.points.popleft()
        if self.kind in ("min", "max"):
            if self.extremes[0][0] == self.serial - len(self.points):
                self.extremes.popleft()
            return
        if abs(value) > LARGEST:
            self.n_beyond -= 1
        else:
            deviation = value - self.pivot
            self.sum -= deviation
            self.squares -= deviation * deviation
        self.since_recompute += 1
        if self.since_recompute >= len(self.points):
            self._recompute()

    def levels(self) -> list[float]:
        """Return the values that it is made of, the oldest first."""
        return [value for _, value in self.points]

    def _deviations(self) -> list[float]:
        return [value - self.pivot for _, value in self.points if abs(value) <= LARGEST]

    def _recompute(self) -> None:
        self.since_recompute = 0
        self.pivot = next((value for _, value in self.points if abs(value) <= LARGEST), 0.0)
        deviations = self._deviations()
        self.sum = math.fsum(deviations)
        self.squares = math.fsum(d * d for d in deviations)
        self.reach = max(map(abs, deviations), default=0.0)

    def _statistic(self, size: int) -> float:
        if self.kind in ("min", "max"):
            return self.extremes[0][1]
        if self.n_beyond:
            return math.inf
        # With a pivot inside the window the spread is half the squared reach at least; where it
        # is far from that, the reach is one of values that left, and so is the rounding.
        reach, spread = self.reach, self.squares - self.sum / size * self.sum
        if spread < 1e-4 * reach * reach or 0.0 < reach < _MIN_SQUARED:
            self._recompute()
            reach, spread = self.reach, self.squares - self.sum / size * self.sum
        if self.kind != "std":
            return self.pivot + self.sum / size
        if 0.0 < reach < _MIN_SQUARED:
            shares = [deviation / reach for deviation in self._deviations()]
            mean = math.fsum(shares) / size
            return reach * math.sqrt(math.fsum((x - mean) ** 2 for x in shares) / (size - 1))
        return math.sqrt(max(0.0, spread) / (size - 1))

    def state(self) -> Any:  # noqa: ANN401
        """Return the state as plain values."""
        sums = [self.pivot, self.sum, self.squares, self.reach, self.since_recompute]
        return [self.first_ms, self.serial, [*self.points], [*self.extremes], sums]

    def restore(self, state: Any) -> None:  # noqa: ANN401
        """Take over a state."""
        self.first_ms, serial, points, _, sums = msgspec.convert(state, _Rolled)
        # The extremes follow from the points, so nobody can have them say otherwise.
        self.serial = max(0, serial - len(points))
        for now_ms, value in points:
            self._push(now_ms, value)
        self.pivot, self.sum, self.squares, self.reach, self.since_recompute = sums


class AngleRolling(Rolling):
    """Mean, standard deviation of or deviation from an angle's last events or seconds.

    The mean is that of sine and cosine. For the others the angle is followed back from its newest
    value, each step the short way round, so that nothing happens where the circle closes. O(span)
    per event.
    """

    def __init__(
        self, channel: int, kind: str, events: int | None, span_ms: float | None, period: float
    ) -> None:
        super().__init__(channel, kind, events, span_ms)
        self.period = period

    def _push(self, now_ms: int, value: float) -> None:
        self.points.append((now_ms, value))
        self.serial += 1

    def _evict(self) -> None:
        self.points.popleft()

    def _append(self, value: float, size: int, row: Row) -> None:
        if self.kind == "mean":
            places = [_on_circle(x, self.period) for _, x in self.points]
            row += [math.fsum(of_all) / size for of_all in zip(*places, strict=True)]
            return
        back = self.levels()
        mean = math.fsum(back) / size
        if self.kind == "deviation":
            row.append(-mean)
        else:
            row.append(math.sqrt(math.fsum((x - mean) ** 2 for x in back) / (size - 1)))

    def levels(self) -> list[float]:
        """Return the same, each step the short way round, from the newest value back."""
        at, newer, back = 0.0, self.points[-1][1], list[float]()
        for _, older in reversed(self.points):
            at -= short_way(newer - older, self.period)
            newer = older
            back.append(at)
        return back[::-1]
