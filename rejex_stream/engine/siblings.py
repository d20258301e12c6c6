"""What the siblings of a sensor read at the same time, so that it can be judged beside them.

Turbines under one wind and pumps on one main go up and down together. A reading is laid beside
those that its siblings took nearest to it, at most half a step away, and that is done with the
sensor's next reading: by then they have come. Who is held is looked at every so many readings. So
all of it is a function of the partition's records in their order, wherever a batch or a run ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from typing import Annotated, Any

import msgspec
import numpy as np

from rejex_stream.engine.snapshot import pack_array, unpack_array
from rejex_stream.errors import WAY_OUT, CheckpointError
from rejex_stream.features import FeatureSpec
from rejex_stream.features.spec import group_of
from rejex_stream.types import FloatArray, Reading, Verdict, in_mode, of_mode

_LEAST = 3  # of fewer siblings the median is one at fault where one of them is
_SHARE = 1 / 24  # of the newest in a smoothed value: as far as `Sensor` looks back
# Readings of all sensors between which nobody becomes held or free: fewer would cut blocks short
_LOOK_EVERY, _OF_EACH = 256, 32


class _State(msgspec.Struct, forbid_unknown_fields=True):
    groups: dict[str, tuple[list[str], list[Any]]]
    held: tuple[frozenset[str], set[str], Annotated[int, msgspec.Meta(ge=1)]]


class _Group:
    """What siblings in one mode have read; a row each, in the order in which they came."""

    def __init__(self, width: int) -> None:
        self.at: dict[str, int] = {}
        # Four parts a row: the last reading but one and the last, each a time, 1 where the sensor
        # was held, and values; and smoothed, what a sensor read and its siblings then; nan: none
        self.part, self.size, self.kept = 2 + width, 4 * (2 + width), array("d")
        # Within half a step of a time: where each sensor's reading begins, -1 for none, and of each
        # channel the values in order. Made of what is kept.
        self.when = (nan, nan)
        self._nearest, self._ordered = list[int](), list[list[float]]()

    def row(self, sensor: str) -> int:
        """Return where what is kept of a sensor begins."""
        if sensor not in self.at:
            self.at[sensor] = len(self.kept)
            self.kept.extend([nan] * self.size)
            self.when = (nan, nan)
        return self.at[sensor]

    def beside(self, row: int, time: float, held: bool, own: list[float]) -> list[float]:
        """Take a reading; return what the sensor read before it and its siblings then."""
        kept, part = self.kept, self.part
        last, smooth, end = row + part, row + 2 * part, row + self.size
        older, then, before = kept[row], kept[last], kept[last + 2 : smooth]
        kept[row:last], kept[last:smooth] = kept[last:smooth], array("d", [time, held, *own])
        at = row // self.size
        if not isnan(self.when[0]):
            was, self._nearest[at] = self._nearest[at], self._near(row)
            if self._nearest[at] != (was - part if was >= 0 else was):  # no longer the same one
                self.when = (nan, nan)
        found = [x if isfinite(x) else 0.0 for x in own for _ in range(4)]
        if not older < then < time:
            return found
        step = min(time - then, then - older)
        if (then, step) != self.when:
            self._look_at(then, step)
        for i, (read, usual) in enumerate(zip(before, self._medians(at), strict=True)):
            if isfinite(read) and isfinite(usual):
                places = smooth + 2 + i, end - part + 2 + i
                for j, new in zip(places, (read, usual), strict=True):
                    old = kept[j]
                    kept[j] = new if isnan(old) else old + _SHARE * (new - old)
                found[4 * i : 4 * i + 4] = read, usual, kept[places[0]], kept[places[1]]
        return found

    def _look_at(self, time: float, step: float) -> None:
        self.when, kept = (time, step), self.kept
        self._nearest = [self._near(row) for row in range(0, len(kept), self.size)]
        near = [begin for begin in self._nearest if begin >= 0]
        of_channels = ([kept[begin + i] for begin in near] for i in range(2, self.part))
        self._ordered = [sorted(x for x in values if not isnan(x)) for values in of_channels]

    def _near(self, row: int) -> int:
        """Return where the reading of a sensor begins that is the nearest, if it was not held."""
        kept, (time, step), last = self.kept, self.when, row + self.part
        away, of_older = abs(kept[last] - time), abs(kept[row] - time)
        if away > of_older:
            away, last = of_older, row
        return last if 2 * away <= step and kept[last + 1] == 0.0 else -1

    def _medians(self, at: int) -> list[float]:
        """Return the medians of all but a sensor; nan where fewer than three are known."""
        kept, own, found = self.kept, self._nearest[at], list[float]()
        for i, ordered in enumerate(self._ordered, 2):
            n, gone = len(ordered), inf
            if own >= 0 and not isnan(value := kept[own + i]):
                n, gone = n - 1, bisect_left(ordered, value)
            if n < _LEAST:
                found.append(nan)
                continue
            lower, upper = (n - 1) // 2, n // 2
            lower, upper = lower + (lower >= gone), upper + (upper >= gone)
            found.append((ordered[lower] + ordered[upper]) / 2)
        return found


class Siblings:
    """The newest readings of the sensors of a partition, by the siblings they belong to."""

    def __init__(self, features: FeatureSpec, *, modes: bool) -> None:
        self.any, self._by_mode = bool(features.siblings), modes
        self._group_of = group_of(features.siblings)
        self._picked = [features.channels.index(name) for name in features.compared]
        self._groups: dict[str, _Group] = {}
        self._places: dict[tuple[str, str | None], tuple[_Group | None, int]] = {}
        self._held: Collection[str] = ()  # at the last look, and now
        self._held_now: set[str] = set()
        self.until_look = _LOOK_EVERY

    def beside(
        self, readings: Sequence[Reading], native: Callable[..., bytes] | None = None
    ) -> FloatArray:
        """Take readings; return what each's sensor read before it and its siblings then.

        Two values a channel, and the same smoothed. Where fewer than three siblings read the
        channel in the same mode and were not held, all are the sensor's own, as if it were like
        them. `native` says the same, compiled.
        """
        picked, is_held = self._picked, self._held.__contains__
        places = [self._place(reading[1], reading[0]) for reading in readings]
        shape = len(readings), 4 * len(picked)
        if native is not None:
            kept = [group and group.kept for group, _ in places]
            held = [is_held(reading[1]) for reading in readings]
            said = native(readings, picked, kept, [row for _, row in places], held)
            for touched in self._groups.values():
                touched.when = (nan, nan)
            return np.frombuffer(said).reshape(shape)
        found = []
        for (_, sensor, time, values, _), (group, row) in zip(readings, places, strict=True):
            own = [values[i] + 0.0 for i in picked]  # a zero has one sign: order is order
            if group is None:
                found.append([x if isfinite(x) else 0.0 for x in own for _ in range(4)])
            else:
                found.append(group.beside(row, float(time), is_held(sensor), own))
        return np.array(found).reshape(shape)

    def _place(self, sensor: str, key: str) -> tuple[_Group | None, int]:
        mode = of_mode(key)[1] if self._by_mode else None
        place = self._places.get((sensor, mode))
        if place is None:
            name, place = self._group_of(sensor), (None, 0)
            if name is not None:
                width = len(self._picked)
                group = self._groups.setdefault(in_mode(name, mode), _Group(width))
                place = group, group.row(sensor)
            self._places[sensor, mode] = place
        return place

    def look(self, verdicts: Sequence[Verdict]) -> None:
        """Note, of the next verdicts up to a look, whose reference stands still."""
        for verdict in verdicts:
            if verdict.held:
                self._held_now.add(verdict.sensor)
            else:
                self._held_now.discard(verdict.sensor)
        self.until_look -= len(verdicts)
        if not self.until_look:
            n_sensors = sum(len(group.at) for group in self._groups.values())
            self._held = frozenset(self._held_now)
            self.until_look = max(_LOOK_EVERY, _OF_EACH * n_sensors)

    def forget(self, sensors: Collection[str]) -> None:
        """Forget what sensors have read."""
        for group in self._groups.values():
            for sensor in group.at.keys() & sensors:
                begin = group.at[sensor]
                group.kept[begin : begin + group.size] = array("d", [nan] * group.size)
                group.when = (nan, nan)

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        groups = {
            name: [[*one.at], pack_array(np.array(one.kept))] for name, one in self._groups.items()
        }
        held = [sorted(self._held), sorted(self._held_now), self.until_look]
        return {"groups": groups, "held": held}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self._groups.clear()
        self._places.clear()
        try:
            known = msgspec.convert(state, _State)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f"What siblings have read is broken ({error}): {WAY_OUT}."
            ) from None
        self._held, self._held_now, self.until_look = known.held
        for name, (sensors, kept) in known.groups.items():
            group = self._groups[name] = _Group(len(self._picked))
            group.at = {sensor: group.size * i for i, sensor in enumerate(sensors)}
            group.kept = array("d", unpack_array(kept).tolist())
