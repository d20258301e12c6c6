"""Which sensors of a partition have stopped sending, by the partition's trusted clock.

The gap of a sensor is how far the clock has moved since the sensor was last heard. How long its
gaps are is seen in the sensor itself (docs/explanation/rest-and-silence.md), so a logger that
uploads twice a day, or a machine that is switched off each night, is not silent.

All of it is a function of the events in their order. O(1) an event, O(log sensors) where a sensor
is looked at: once for each limit's length.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from rejex_stream.trusted_clock import DAY_MS
from rejex_stream.types import Incident, IncidentState, Reading, of_mode

_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DAYS, _FEWEST = 16, 3
_SHORTEST_MS = 60_000
_MAX_STEPS = 64


class _Heard(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """When a sensor was last heard, and how long its gaps are."""

    stream_key: str  # of its last reading
    at_ms: _Time  # by the trusted clock
    event_time_ms: _Time  # of its last reading
    day_ms: _Time  # since when the day goes on
    longest_ms: _Time = 0  # of its gaps on that day
    days: Annotated[list[_Time], msgspec.Meta(max_length=_DAYS)] = []
    limit_ms: int | None = None  # None: too little is known

    def hear(self, reading: Reading, now_ms: int) -> bool:
        """Take a reading into account; return whether it may be overdue sooner than was noted."""
        self.stream_key, _, self.event_time_ms, _, _ = reading
        gap = now_ms - self.at_ms
        if not gap:
            return False
        self.at_ms = now_ms
        self.longest_ms = max(self.longest_ms, gap)
        if 0 < now_ms - self.day_ms < DAY_MS:
            return gap < 0
        if gap > 0:
            self.days = [*self.days[1 - _DAYS :], self.longest_ms]
            self.set_limit()
        self.day_ms, self.longest_ms = now_ms, 0
        return True

    def set_limit(self) -> None:
        """Set how long a gap is usual."""
        count = len(self.days)
        if count >= _FEWEST:
            days = sorted(self.days)
            largest = days[-1 - count // 8]
            self.limit_ms = max(_SHORTEST_MS, 3 * days[count // 2], largest + largest // 2)


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    now_ms: int | None
    steps: list[tuple[int, int]]
    open: list[Incident]


class Silences:
    """Knows when each sensor of a partition was last heard, and who is silent."""

    def __init__(self) -> None:
        self.open: dict[str, Incident] = {}  # by sensor
        self._heard: dict[str, _Heard] = {}
        self._queue: list[tuple[int, str]] = []  # a heap: when whom to look at
        self._due: dict[str, int] = {}  # the entries of it that count
        self._now_ms: int | None = None
        # Steps of the clock that no later one exceeds: where each led, and how long it was.
        self._steps: list[tuple[int, int]] = []

    def hear(self, reading: Reading, now_ms: int, *, by_others: bool) -> tuple[Incident, ...]:
        """Take an event into account; return the silences that end with it, and that begin.

        `by_others`: two sensors took the clock there; what one alone says makes nobody silent.
        """
        sensor, queue = reading.sensor, self._queue
        if now_ms != self._now_ms:
            self._step(self._now_ms, now_ms)
        own = self._heard.get(sensor)
        if own is None:
            key, _, time_ms, _, _ = reading
            self._heard[sensor] = _Heard(key, now_ms, time_ms, now_ms)
        elif own.hear(reading, now_ms):
            self._look_again(sensor, own)
        is_late = by_others and bool(queue) and queue[0][0] < now_ms
        if not is_late and sensor not in self.open:
            return ()
        ended = self._ended(reading, now_ms)
        return (*ended, *(self._begun(reading, now_ms) if is_late else ()))

    def _step(self, was_ms: int | None, now_ms: int) -> None:
        self._now_ms, steps = now_ms, self._steps
        if was_ms is None or now_ms < was_ms:  # who was late by the wrong clock may be so sooner
            steps.clear()
            self._look_at_all()
            return
        size = now_ms - was_ms
        while steps and steps[-1][1] <= size:
            steps.pop()
        if len(steps) < _MAX_STEPS:
            steps.append((now_ms, size))

    def _look_again(self, sensor: str, own: _Heard, longest_step_ms: int = 0) -> None:
        if own.limit_ms is not None and sensor not in self.open:
            self._due[sensor] = due_ms = own.at_ms + longest_step_ms + own.limit_ms
            heapq.heappush(self._queue, (due_ms, sensor))

    def _look_at_all(self) -> None:
        self._queue, self._due = [], {}
        for sensor, own in self._heard.items():
            self._look_again(sensor, own)

    def _ended(self, reading: Reading, now_ms: int) -> Iterator[Incident]:
        silence = self.open.pop(reading.sensor, None)
        if silence is not None:
            self._look_again(reading.sensor, self._heard[reading.sensor])
            yield replace(
                silence, position=reading.position, version=2, state=IncidentState.CLOSED,
                ended="back", changed_ms=max(now_ms, silence.opened_ms),
            )  # fmt: skip

    def _begun(self, reading: Reading, now_ms: int) -> Iterator[Incident]:
        for i, sensor in enumerate(sorted(self._overdue(now_ms))):
            own = self._heard[sensor]
            silence = Incident(
                position=reading.position, id=f"{reading.position}-silent-{i}", version=1,
                state=IncidentState.OPEN, stream_key=of_mode(own.stream_key)[0], sensors=(sensor,),
                onset_ms=min(own.event_time_ms, now_ms), opened_ms=now_ms, changed_ms=now_ms,
                onset_seq=0, opened_seq=0, changed_seq=0, peak_severity=0.0, peak_ms=0,
                held=False, silent=True,
            )  # fmt: skip
            self.open[sensor] = silence
            yield silence

    def _overdue(self, now_ms: int) -> Iterator[str]:
        queue = self._queue
        while queue and queue[0][0] < now_ms:
            at_ms, sensor = heapq.heappop(queue)
            own = self._heard.get(sensor)
            if own is None or own.limit_ms is None or self._due.get(sensor) != at_ms:
                continue  # it was forgotten, or another entry counts
            at = bisect_right(self._steps, own.at_ms, key=itemgetter(0))
            longest = self._steps[at][1] if at < len(self._steps) else 0
            if own.at_ms + longest + own.limit_ms < now_ms:
                del self._due[sensor]
                yield sensor
            else:
                self._look_again(sensor, own, longest)

    def limits(self) -> Iterator[tuple[str, int]]:
        """Yield the sensors that are not silent, with the gap that is usual for each."""
        for sensor, own in self._heard.items():
            if own.limit_ms is not None and sensor not in self.open:
                yield sensor, own.limit_ms

    def forget(self, sensor: str) -> None:
        """Forget a sensor."""
        for known in (self._heard, self._due, self.open):
            known.pop(sensor, None)

    def view(self, sensor: str) -> Any:  # noqa: ANN401 - plain values
        """Return what is known of a sensor; ``None``: nothing is."""
        return msgspec.to_builtins(self._heard.get(sensor))

    def head(self) -> dict[str, Any]:
        """Return, as plain values, what belongs to no single sensor."""
        head: dict[str, Any] = msgspec.to_builtins(
            _Head(self._now_ms, self._steps, [*self.open.values()])
        )
        return head

    def restore(self, head: object, views: Mapping[str, object]) -> None:
        """Take over :meth:`head` and every :meth:`view`."""
        known = msgspec.convert(head, _Head)
        self._now_ms, self._steps = known.now_ms, known.steps
        self.open.clear()
        self.open |= {one.sensors[0]: one for one in known.open}
        heard = msgspec.convert(dict(views), dict[str, _Heard | None])
        self._heard = {sensor: own for sensor, own in heard.items() if own is not None}
        self._look_at_all()
