"""Whether times go forward: duplicates, disorder, gaps, the hour that comes twice."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median

_RECENT = 256
_STEPS = 5_000
_LONG_STEPS = 5


class TimeOrder:
    """Counts what is odd about the times of each sensor, as they come. O(1) a row."""

    def __init__(self) -> None:
        self.repeated = 0
        self._duplicates = self._back = 0
        self._last: dict[str, tuple[int, float]] = {}  # and the newest so far
        self._recent = defaultdict[str, deque[int]](lambda: deque(maxlen=_RECENT))
        self._steps: list[int] = []
        self._counts: Counter[int] = Counter()
        self._longest = (0, 0)

    @property
    def n_sensors(self) -> int:
        return len(self._last)

    @property
    def usual_step_ms(self) -> float:
        """The median time from one row of a sensor to its next; 0 where none has two."""
        return median(self._steps) if self._steps else 0

    def add(self, sensor: str, now_ms: int) -> None:
        recent = self._recent[sensor]
        before, newest = self._last.get(sensor, (None, -math.inf))
        if before is not None and now_ms <= newest and now_ms in recent:
            self._duplicates += 1
        elif before is not None and now_ms < before:
            self._back += 1
        elif before is not None:
            self._step(now_ms - before, before)
        self._last[sensor] = now_ms, max(now_ms, newest)
        recent.append(now_ms)

    def _step(self, step: int, since: int) -> None:
        if len(self._steps) < _STEPS:
            self._steps.append(step)
        if step in self._counts or len(self._counts) < _STEPS:
            self._counts[step] += 1
        self._longest = max(self._longest, (step, since))

    def remarks(self, sensor: str = "--sensor", *, gaps: bool = True) -> Iterator[str]:
        if self.repeated:
            yield (
                f"summer time: {self.repeated:,} rows are in the hour that comes twice, "
                "read as its first; log in UTC to tell them apart"
            )
        if self._duplicates:
            yield (
                f"duplicates: {self._duplicates:,} rows have a time that their sensor had before; "
                f"they are judged like all others; if they are other sensors, give {sensor}"
            )
        if self._back:
            most = self._back > 9 * sum(self._counts.values())
            yield (
                f"disorder: {self._back:,} rows are older than the one before; they are judged as "
                "they come" + ("; the newest seems to be first: turn the table round" * most)
            )
        typical = self.usual_step_ms
        long = sum(n for step, n in self._counts.items() if step > _LONG_STEPS * typical > 0)
        if long and gaps:
            step, since = self._longest
            yield (
                f"gaps: {long:,}, steps of more than {_LONG_STEPS} times the usual "
                f"{typical / 1000:g} s; the longest {step / 1000:g} s after "
                f"{datetime.fromtimestamp(since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
            )
