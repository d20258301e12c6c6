"""Whose clock is believed: what lets time pass for all must not follow one sensor that lies.

The trusted clock of a partition is the largest t for which two sensors have sent an event at or
after t within the last K events; more than a day beyond what was believed, where two of them agree
within a day. Where only one sensor is there, it is the time that its last m events have all
reached: a jump is believed after m events that agree. It goes back where a sensor
that was alone took it more than a day ahead of what two others then agree on, or another that is
alone: to what they say. Else it never does. It is a function of the events in their order, and
takes a few numbers.

So whatever one sensor says, the clock stands between the second largest of the others' times and a
day beyond their largest, once two of them have spoken. There the guarantee ends: two that run ahead
together are believed, and of two sensors nobody knows which is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

_RECENT = 10_000
_IN_A_ROW = 8
DAY_MS = 86_400_000
FIRST_MS = 631_152_000_000
"""The year 1990: no sensor measured before it."""
_MAX_BEHIND = 64


class _State(msgspec.Struct, array_like=True):
    now_ms: int | None
    n: int
    ahead: dict[str, tuple[int, int]]
    only: str | None
    other_at: int
    row: list[int]
    moved_by: str | None = None
    behind: dict[str, int] = {}


class TrustedClock:
    """The time that a partition has reached, by its events alone; O(1) an event.

    Attributes
    ----------
    now_ms
        ``None`` before anybody is believed.
    """

    __slots__ = (
        "_ahead", "_behind", "_moved_by", "_n", "_only", "_other_at", "_row", "now_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now_ms: int | None = None
        self._n = 0
        # Sensors that are ahead of the clock: how far, and at which event they said so.
        self._ahead: dict[str, tuple[int, int]] = {}
        self._only: str | None = None  # whose the last events are
        self._other_at = -_RECENT  # when another sensor was there last
        self._row: list[int] = []
        self._moved_by: str | None = None  # who was alone when it moved last
        self._behind: dict[str, int] = {}  # others since, more than a day behind: when

    def advance(self, sensor: str, time_ms: int) -> int | None:
        """Take an event; return the time that is believed now."""
        self._n += 1
        if sensor != self._only:
            if self._only is not None:
                self._other_at = self._n
            self._only, self._row = sensor, []
        now = self.now_ms
        if now is None or time_ms > now:
            self._lead(sensor, time_ms)
        elif self._moved_by not in (None, sensor) and FIRST_MS <= time_ms < now - DAY_MS:
            self._contradict(sensor, time_ms)
        if self._n - self._other_at >= _RECENT or self._other_at < 0:
            self._alone(time_ms)
        return self.now_ms

    def _lead(self, sensor: str, time_ms: int) -> None:
        ahead = self._ahead
        known = ahead.get(sensor)
        recent = known is not None and self._n - known[1] < _RECENT
        if known is None or not recent or time_ms >= known[0]:
            ahead[sensor] = time_ms, self._n
        if len(ahead) < 2:
            return
        times = sorted([t for t, n in ahead.values() if self._n - n < _RECENT])
        if self.now_ms is not None and times[-1] > self.now_ms + DAY_MS:
            times = _credible(times, self.now_ms + DAY_MS)
        if len(times) > 1:
            self._believe(times[-2])

    def _contradict(self, sensor: str, time_ms: int) -> None:
        behind = self._behind
        near = [t for name, t in behind.items() if name != sensor and abs(t - time_ms) <= DAY_MS]
        if near:
            self._go_back(min(time_ms, max(near)), behind | {sensor: time_ms})
        elif sensor in behind or len(behind) < _MAX_BEHIND:
            behind[sensor] = time_ms

    def _go_back(self, time_ms: int, known: Mapping[str, int]) -> None:
        self.now_ms, self._moved_by, self._behind = time_ms, None, {}
        self._ahead |= {sensor: (t, self._n) for sensor, t in known.items() if t > time_ms}

    def _alone(self, time_ms: int) -> None:
        row = self._row
        row.append(time_ms)
        if len(row) > _IN_A_ROW:
            del row[0]
        if len(row) == _IN_A_ROW:
            if self._only in self._behind and max(row) < (self.now_ms or 0) - DAY_MS:
                self._go_back(min(row), {})
            self._believe(min(row), self._only)

    def _believe(self, time_ms: int, alone: str | None = None) -> None:
        if self.now_ms is None or time_ms > self.now_ms:
            self.now_ms, self._moved_by, self._behind = time_ms, alone, {}
        self._ahead = {
            sensor: (t, n)
            for sensor, (t, n) in self._ahead.items()
            if t > self.now_ms and self._n - n < _RECENT
        }

    @property
    def is_by_one(self) -> bool:
        """Whether one sensor that was alone took it where it stands."""
        return self._moved_by is not None

    def state(self) -> list[Any]:
        """Return what it knows, for a snapshot, as plain values."""
        known = _State(
            self.now_ms, self._n, self._ahead, self._only, self._other_at, self._row,
            self._moved_by, self._behind,
        )  # fmt: skip
        state: list[Any] = msgspec.to_builtins(known)
        return state

    def restore(self, state: object) -> None:
        """Go on from :meth:`state`."""
        known = msgspec.convert(state, _State)
        self.now_ms, self._n, self._ahead = known.now_ms, known.n, known.ahead
        self._only, self._other_at, self._row = known.only, known.other_at, known.row
        self._moved_by, self._behind = known.moved_by, dict(known.behind)


def _credible(times: list[int], far_ms: int) -> list[int]:
    """Return sorted times without those that are far and agree with no other within a day."""
    around = [-math.inf, *times, math.inf]
    return [
        t
        for before, t, after in zip(around, times, around[2:], strict=False)
        if t <= far_ms or t - before <= DAY_MS or after - t <= DAY_MS
    ]
