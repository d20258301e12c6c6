"""What the siblings of a sensor read at the same time, so that it can be judged beside them.

Turbines under one wind and pumps on one main go up and down together. A reading is laid beside
those that its siblings took nearest to it, at most half a step away, and that is done with the
sensor's next reading: by then they have come. Who is held is looked at every so many readings. So
all of it is a function of the partition's records in their order, wherever a batch or a run ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rejex_stream.features import FeatureSpec
from rejex_stream.features.spec import group_of
from rejex_stream.types import FloatArray, Reading, Verdict, in_mode, of_mode

_LEAST = 3  # of fewer siblings the median is one at fault where one of them is
_SHARE = 1 / 24  # of the newest in a smoothed value: as far as `Sensor` looks back
# Readings of all sensors between which nobody becomes held or free: fewer would cut blocks short
_LOOK_EVERY, _OF_EACH = 256, 32


class _Group:
    """What siblings in one mode have read; a row each, in the order in which they came."""

    def __init__(self, width: int) -> None:
        self.at: dict[str, int] = {}
        # the last reading but one and the last: a time, 1 where the sensor was held, and values;
        # and smoothed, what a sensor read and its siblings then; nan: none
        self.kept: FloatArray = np.empty((0, 4, 2 + width))

    def row(self, sensor: str) -> FloatArray:
        if sensor not in self.at:
            self.at[sensor] = len(self.at)
            self.kept = np.append(self.kept, np.full((1, *self.kept.shape[1:]), np.nan), axis=0)
        return self.kept[self.at[sensor]]  # type: ignore[no-any-return]

    def medians(self, sensor: str, time: float, step: float) -> FloatArray:
        """Return the medians of what its siblings read at a time, shape (k,); nan: unknown."""
        away = np.abs(self.kept[:, :2, 0] - time)
        nearest = np.where(away[:, 1] > away[:, 0], 0, 1)
        rows = np.arange(len(away))
        near = self.kept[rows, nearest]
        is_near = (2 * away[rows, nearest] <= step) & (near[:, 1] == 0.0)
        is_near[self.at[sensor]] = False
        read = near[is_near, 2:]
        read.sort(axis=0)  # nan at the end
        known = (~np.isnan(read)).sum(axis=0)
        if known.max() < _LEAST:
            return np.full(read.shape[1], np.nan)
        lower, upper = np.maximum(known - 1, 0) // 2, known // 2
        columns = np.arange(read.shape[1])
        return np.where(known < _LEAST, np.nan, (read[lower, columns] + read[upper, columns]) / 2)


class Siblings:
    """The newest readings of the sensors of a partition, by the siblings they belong to."""

    def __init__(self, features: FeatureSpec, *, modes: bool) -> None:
        self.any, self._by_mode = bool(features.siblings), modes
        self._group_of = group_of(features.siblings)
        self._picked = [features.channels.index(name) for name in features.compared]
        self._groups: dict[str, _Group] = {}
        self._held: Collection[str] = ()  # at the last look, and now
        self._held_now: set[str] = set()
        self.until_look = _LOOK_EVERY

    def beside(self, reading: Reading) -> list[float]:
        """Take a reading; return what the sensor read before it and its siblings then.

        Two values a channel, and the same smoothed. Where fewer than three siblings read the
        channel in the same mode and were not held, all are the sensor's own, as if it were like
        them.
        """
        key, sensor, time, values, _ = reading
        own = np.array([values[i] for i in self._picked])
        said, name = np.full((4, len(own)), np.nan), self._group_of(sensor)
        if name is not None:
            name = in_mode(name, of_mode(key)[1] if self._by_mode else None)
            group = self._groups.setdefault(name, _Group(len(own)))
            row = group.row(sensor)
            (older, then), before = row[:2, 0].tolist(), row[1, 2:].copy()
            row[0], row[1] = row[1], (time, sensor in self._held, *own)
            if older < then < time:
                usual = group.medians(sensor, then, min(time - then, then - older))
                known, pair = np.isfinite(before) & np.isfinite(usual), np.stack((before, usual))
                smooth = np.where(np.isnan(row[2:, 2:]), pair, row[2:, 2:])
                smooth += _SHARE * (pair - smooth)
                row[2:, 2:] = np.where(known, smooth, row[2:, 2:])
                said = np.where(known, np.concatenate((pair, smooth)), np.nan)
        alike = np.where(np.isfinite(own), own, 0.0)
        found: list[float] = np.where(np.isnan(said), alike, said).T.ravel().tolist()
        return found

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
                group.kept[group.at[sensor]] = np.nan

    def state(self) -> dict[str, Any]:
        """Return the state as plain values; empty where there are no siblings."""
        groups = {name: [[*one.at], one.kept.tolist()] for name, one in self._groups.items()}
        held = [sorted(self._held), sorted(self._held_now), self.until_look]
        return {"groups": groups, "held": held} if self.any else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self._groups.clear()
        self._held, held_now, self.until_look = state.get("held", ((), (), _LOOK_EVERY))
        self._held_now = {*held_now}
        for name, (sensors, kept) in state.get("groups", {}).items():
            group = self._groups[name] = _Group(len(self._picked))
            group.at = {sensor: i for i, sensor in enumerate(sensors)}
            group.kept = np.array(kept, np.float64).reshape(len(sensors), *group.kept.shape[1:])
