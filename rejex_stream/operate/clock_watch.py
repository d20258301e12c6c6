"""Whether the times of each sensor still make sense, watched for as long as a run lasts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rejex_stream.readable import span
from rejex_stream.trusted_clock import DAY_MS, FIRST_MS
from rejex_stream.types import Reading

__all__ = ["ClockDoubt", "ClockWatch"]

_LATE_MS = 60_000
_AGAIN_S = 3_600.0
_MOST = 200_000  # sensors


class ClockDoubt(NamedTuple):
    """What is odd about times of a sensor in a batch: how many events, and in which way."""

    kind: str  # behind, unit or ahead
    n: int
    said: str  # empty where it was said within the hour


class ClockWatch:
    """Compares each event with the newest of its sensor. O(1) an event; no verdict depends on it.

    What waits in a reorder buffer is in order by then, so what is late here is late for good.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._newest, self._said = now_s, dict[str, int](), dict[str, float]()

    def see(self, readings: Sequence[Reading]) -> Iterator[ClockDoubt]:
        """Take a batch of events in their order; yield what is odd, one a sensor and kind."""
        newest, late = self._newest, dict[str, tuple[int, int]]()
        odd: Counter[tuple[str, str]] = Counter()
        for _, sensor, at_ms, _, _ in readings:
            before = newest.get(sensor, at_ms)
            if at_ms < before - _LATE_MS:
                odd[sensor, "unit" if at_ms < FIRST_MS <= before else "behind"] += 1
                late[sensor] = at_ms, before
            elif at_ms > before + DAY_MS and self._is_ahead(at_ms):
                odd[sensor, "ahead"] += 1
                late[sensor] = at_ms, before
            elif at_ms >= before:
                newest[sensor] = at_ms
        if len(newest) > _MOST:
            newest.clear()
        for (sensor, kind), n in odd.items():
            yield ClockDoubt(kind, n, self._sentence(sensor, kind, n, *late[sensor]))

    def _is_ahead(self, at_ms: int) -> bool:
        """Whether most other sensors are more than a day behind."""
        others = list(self._newest.values())
        return len(others) > 1 and 2 * sum(at_ms > other + DAY_MS for other in others) > len(others)

    def _sentence(self, sensor: str, kind: str, n: int, at_ms: int, before: int) -> str:
        now_s = self._now_s()
        if now_s - self._said.get(sensor, -_AGAIN_S) < _AGAIN_S:
            return ""
        if len(self._said) > _MOST:
            self._said.clear()
        self._said[sensor] = now_s
        how = {
            "unit": "are before 1990, while those before were not: their unit has changed, or a "
            "clock was reset",
            "ahead": f"are {span(at_ms - before)} ahead of all before",
            "behind": f"are {span(before - at_ms)} behind the newest; input.reorder_s lets events "
            "wait for earlier ones",
        }[kind]
        return f"{sensor}: times of {n:,} event(s) {how}"
