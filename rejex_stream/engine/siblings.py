"""What the siblings of a sensor read at the same time, so that it can be judged beside them.

Turbines under one wind and pumps on one main go up and down together. A reading is laid beside
those that its siblings took nearest to it, at most half a step away, and that is done with the
sensor's next reading: by then they have come. So it is a function of the partition's records in
their order, wherever a batch or a run ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from rejex_stream.features import FeatureSpec
from rejex_stream.types import FloatArray, Reading, in_mode, of_mode

_LEAST = 3  # of fewer siblings the median is one at fault where one of them is
_SHARE = 1 / 24  # of the newest in a smoothed value: as far as `Sensor` looks back


def group_of(siblings: str | tuple[tuple[str, str], ...]) -> Callable[[str], str | None]:
    """Return what says of a sensor with whom it is a sibling; ``None``: with nobody."""
    if not isinstance(siblings, str):
        return dict(siblings).get
    pattern = re.compile("(?s).*" if siblings == "*" else siblings)

    def by_name(sensor: str) -> str | None:
        found = pattern.fullmatch(sensor)
        return None if found is None else "/".join(found.groups("")) or siblings

    return by_name


class _Group:
    """What siblings in one mode have read; a row each, in the order in which they came."""

    def __init__(self, width: int) -> None:
        self.at: dict[str, int] = {}
        # the last reading but one and the last, a time and values each; and smoothed, what a
        # sensor read and its siblings then; nan: none
        self.kept: FloatArray = np.empty((0, 4, 1 + width))

    def row(self, sensor: str) -> FloatArray:
        if sensor not in self.at:
            self.at[sensor] = len(self.at)
            self.kept = np.append(self.kept, np.full((1, *self.kept.shape[1:]), np.nan), axis=0)
        return self.kept[self.at[sensor]]  # type: ignore[no-any-return]

    def medians(self, sensor: str, time: float, step: float) -> FloatArray:
        """Return the medians of what its siblings read at a time, shape (k,); nan: unknown."""
        away = np.abs(self.kept[:, :2, 0] - time)
        is_last = ~(away[:, 1] > away[:, 0])
        is_near = 2 * np.where(is_last, away[:, 1], away[:, 0]) <= step
        is_near[self.at[sensor]] = False
        read = np.where(is_last[:, None], self.kept[:, 1, 1:], self.kept[:, 0, 1:])[is_near]
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

    def beside(self, reading: Reading) -> list[float]:
        """Take a reading; return what the sensor read before it and its siblings then.

        Two values a channel, and the same smoothed. Where fewer than three siblings read the
        channel in the same mode, all are the sensor's own, as if it were like them.
        """
        key, sensor, time, values, _ = reading
        own = np.array([values[i] for i in self._picked])
        said, name = np.full((4, len(own)), np.nan), self._group_of(sensor)
        if name is not None:
            name = in_mode(name, of_mode(key)[1] if self._by_mode else None)
            group = self._groups.setdefault(name, _Group(len(own)))
            row = group.row(sensor)
            (older, then), before = row[:2, 0].tolist(), row[1, 1:].copy()
            row[0], row[1] = row[1], (time, *own)
            if older < then < time:
                usual = group.medians(sensor, then, min(time - then, then - older))
                known, pair = np.isfinite(before) & np.isfinite(usual), np.stack((before, usual))
                smooth = np.where(np.isnan(row[2:, 1:]), pair, row[2:, 1:])
                smooth += _SHARE * (pair - smooth)
                row[2:, 1:] = np.where(known, smooth, row[2:, 1:])
                said = np.where(known, np.concatenate((pair, smooth)), np.nan)
        alike = np.where(np.isfinite(own), own, 0.0)
        found: list[float] = np.where(np.isnan(said), alike, said).T.ravel().tolist()
        return found

    def forget(self, sensors: Collection[str]) -> None:
        """Forget what sensors have read."""
        for group in self._groups.values():
            for sensor in group.at.keys() & sensors:
                group.kept[group.at[sensor]] = np.nan

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {name: [[*one.at], one.kept.tolist()] for name, one in self._groups.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        self._groups.clear()
        for name, (sensors, kept) in state.items():
            group = self._groups[name] = _Group(len(self._picked))
            group.at = {sensor: i for i, sensor in enumerate(sensors)}
            group.kept = np.array(kept, np.float64).reshape(len(sensors), *group.kept.shape[1:])
