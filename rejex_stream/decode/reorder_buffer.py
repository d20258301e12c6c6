"""From readings as they come to the events that are judged: in order, and whole.

Four things of the input need a memory: the order of events that come a little late, rows whose
channels come one by one, channels that come only where they have changed, and counters. Each is a
function of the partition's records in their order, so that a replay gives the same events; what it
takes is in the partition's snapshot.

* **Reordering** (``input.reorder_s``): an event waits until the partition's trusted clock
  (:mod:`rejex_stream.trusted_clock`) is that much later; those that wait come in order of time.
* **Joining** (``input.tag`` with several channels of one field, or ``input.partial`` with
  ``input.step_s``): the row of a sensor is complete
  when each channel has come, or ends when a value comes that is ``input.step_s`` later than the
  row's first. It is judged once, as the event of its last record and at that record's time.
* **Holding** (``input.partial = "hold_last"``): a channel that a record does not name keeps its
  value, for ``input.max_age_s``.
* **Counting** (``kind = "counter"`` of a channel): in the place of a counter stands its rise an
  hour since the value before. Where it falls, as it begins anew, or time does not go on, that of
  before stands.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from rejex_stream.decode.mapping import ABSENT
from rejex_stream.trusted_clock import TrustedClock
from rejex_stream.types import (
    DelayedRecord,
    Invalid,
    Position,
    Reading,
    Record,
    nan_of_unit,
    unit_change,
)

_MAX_SENSORS = 200_000
_MAX_WAITING = 100_000
_HOUR_MS = 3_600_000

_Taken: TypeAlias = tuple[Record, Reading | Invalid]


class ReorderRules(NamedTuple):
    """What becomes of readings before they are judged."""

    step_ms: int | None = None  # rows of joined channels end then; None: nothing is joined
    hold: bool = False  # a channel that does not come is unchanged
    max_age_ms: int | None = None  # of a value that holds; None: for good
    reorder_ms: int = 0
    counters: tuple[int, ...] = ()  # the places of channels that only add up

    @property
    def any(self) -> bool:
        """Whether there is anything to remember."""
        return self.step_ms is not None or self.hold or self.reorder_ms > 0 or bool(self.counters)


class _Row:
    """The newest values of a sensor, and the row that is under way."""

    __slots__ = ("came", "counted", "first_ms", "last", "times", "values")

    def __init__(self, width: int) -> None:
        self.values: list[float] = [math.nan] * width
        self.times: list[int | None] = [None] * width
        self.came: set[int] = set()
        self.first_ms = 0
        self.last: tuple[Record, Reading] | None = None
        self.counted: dict[int, tuple[float, int, float]] = {}  # the count, its time, the rise

    def rises(self, reading: Reading, counters: Iterable[int]) -> Reading:
        values = list(reading.values)
        for i in counters:
            count, now = values[i], reading.event_time_ms
            if math.isnan(count):  # ABSENT is one, too, and stays so
                continue
            before, then, rise = self.counted.get(i, (count, now, math.nan))
            if now > then and count >= before:
                rise = (count - before) * _HOUR_MS / (now - then)
            values[i] = rise
            self.counted[i] = count, max(now, then), rise
        return reading._replace(values=tuple(values))

    def put(self, reading: Reading) -> None:
        for i, value in enumerate(reading.values):
            if value is not ABSENT:
                self.values[i], self.times[i] = value, reading.event_time_ms

    def at(self, time_ms: int, max_age_ms: int | None) -> tuple[float, ...]:
        if max_age_ms is None:
            return tuple(self.values)
        return tuple(
            math.nan if at is None or time_ms - at > max_age_ms else value
            for value, at in zip(self.values, self.times, strict=True)
        )


class ReorderBuffer:
    """Makes events of the readings of one partition."""

    def __init__(self, rules: ReorderRules) -> None:
        self._rules = rules
        self._clock = TrustedClock()
        self._rows: dict[str, _Row] = {}
        self._waiting: list[tuple[int, int, Record, Reading]] = []
        self._n = 0

    def add(self, record: Record, item: Reading | Invalid) -> list[_Taken]:
        """Add a reading; return what can be judged now, and what became of the record itself.

        The last has the record's own place; those before it have come with earlier records.
        """
        if isinstance(item, Invalid):
            return [(record, item)]
        if not self._rules.reorder_ms:
            return self._row(record, item, record)
        now = self._clock.advance(item.sensor, item.event_time_ms)
        self._n += 1
        heapq.heappush(self._waiting, (item.event_time_ms, self._n, record, item))
        found: list[_Taken] = []
        while self._waiting and (
            len(self._waiting) > _MAX_WAITING
            or (now is not None and self._waiting[0][0] <= now - self._rules.reorder_ms)
        ):
            _, _, early, reading = heapq.heappop(self._waiting)
            found += self._row(early, reading, record)
        waits = Invalid(record.position, "waiting", "it waits for earlier events")
        return [*found, (record, waits)]

    def _row(self, record: Record, reading: Reading, by: Record) -> list[_Taken]:
        """Return what a reading makes of its sensor's row; `by` is the record that let it come."""
        rules = self._rules
        if rules.step_ms is None and not rules.hold and not rules.counters:
            return [(_delayed(record, by), reading)]
        row = self._rows.get(reading.sensor)
        if row is None:
            if len(self._rows) >= _MAX_SENSORS:
                del self._rows[next(iter(self._rows))]
            row = self._rows[reading.sensor] = _Row(len(reading.values))
        if rules.counters:
            reading = row.rises(reading, rules.counters)
        if rules.step_ms is None:
            if not rules.hold:
                return [(_delayed(record, by), reading)]
            return [self._held(row, _delayed(record, by), reading)]
        return self._joined(row, record, reading, by)

    def _held(self, row: _Row, record: Record, reading: Reading) -> _Taken:
        if all(value is ABSENT for value in reading.values):
            return record, Invalid(record.position, "ignored", "it names none of the channels")
        row.put(reading)
        values = row.at(reading.event_time_ms, self._rules.max_age_ms)
        return record, reading._replace(values=values)

    def _joined(self, row: _Row, record: Record, reading: Reading, by: Record) -> list[_Taken]:
        found: list[_Taken] = []
        time_ms, step_ms = reading.event_time_ms, self._rules.step_ms or 0
        if row.last is not None and time_ms - row.first_ms >= step_ms:
            found.append(self._ended(row, by))
        if not row.came:
            row.first_ms = time_ms
        row.put(reading)
        row.came.update(i for i, value in enumerate(reading.values) if value is not ABSENT)
        row.last = record, reading
        if len(row.came) == len(row.values):
            return [*found, self._ended(row, by)]
        part = Invalid(record.position, "joined", "its value is part of a row that comes later")
        return [*found, (_delayed(record, by), part)]

    def _ended(self, row: _Row, by: Record) -> _Taken:
        assert row.last is not None
        record, reading = row.last
        row.came, row.last = set(), None
        values = row.at(reading.event_time_ms, self._rules.max_age_ms)
        return _delayed(record, by), reading._replace(values=values)

    # ------------------------------------------------------------------------------ snapshots
    def state(self) -> dict[str, Any]:
        rows = {
            sensor: [
                _with_units(row.values), row.times, sorted(row.came), row.first_ms, _kept(row.last),
                [[i, *counted] for i, counted in row.counted.items()],
            ]
            for sensor, row in self._rows.items()
        }  # fmt: skip
        waiting = [[time_ms, n, _kept((r, one))] for time_ms, n, r, one in sorted(self._waiting)]
        return {"clock": self._clock.state(), "rows": rows, "waiting": waiting, "n": self._n}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._clock.restore(state["clock"])
        self._n = state["n"]
        self._rows = {}
        for sensor, (values, times, came, first_ms, last, counted) in state["rows"].items():
            row = self._rows[sensor] = _Row(len(values))
            row.values, row.times, row.came = _of_units(values), list(times), set(came)
            row.first_ms, row.last = first_ms, _given_back(last)
            row.counted = {i: (count, at_ms, rise) for i, count, at_ms, rise in counted}
        self._waiting = []
        for time_ms, n, kept in state["waiting"]:
            known = _given_back(kept)
            assert known is not None
            self._waiting.append((time_ms, n, *known))


def _delayed(record: Record, by: Record) -> Record:
    return record if record is by else DelayedRecord.of(record, by)


def _with_units(values: Iterable[float]) -> list[Any]:
    """Return values as they are kept: of one in another unit, both units."""
    return [unit_change(value) or value for value in values]


def _of_units(values: Iterable[Any]) -> list[float]:
    return [nan_of_unit(*v) if isinstance(v, list | tuple) else v for v in values]


def _kept(last: tuple[Record, Reading] | None) -> list[object] | None:
    if last is None:
        return None
    record, reading = last
    absent = [i for i, value in enumerate(reading.values) if value is ABSENT]
    headers = [list(pair) for pair in record.headers]
    return [
        list(record.position), record.key, headers, record.timestamp_ms,
        reading.stream_key, reading.sensor, reading.event_time_ms,
        _with_units(reading.values), absent,
    ]  # fmt: skip


def _given_back(kept: Iterable[Any] | None) -> tuple[Record, Reading] | None:
    if kept is None:
        return None
    position, key, headers, timestamp_ms, stream_key, sensor, time_ms, values, absent = kept
    place = Position(*position)
    known = tuple(ABSENT if i in absent else v for i, v in enumerate(_of_units(values)))
    record = Record(place, key, None, tuple((h[0], h[1]) for h in headers), timestamp_ms)
    return record, Reading(stream_key, sensor, time_ms, known, place)
