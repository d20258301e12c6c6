"""Whether channels came back to the levels that they had before an incident.

Scores become ordinary again in two ways: the channels come back, or the reference takes in what
they are now. Means of as many rows as end an incident tell which. Those before it have a range, of
eight at least; a mean that lies outside by more than a quarter of it is no such mean by chance.
Slow data and seasons have a wide range: in them a new level is found where it is new.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from rejex_stream.types import ChannelEvidence, FloatArray, LevelChange

_MIN_MEANS, _MARGIN, _ROUNDING = 8, 0.25, 1e-9


class LevelHistory(Protocol):
    """Who knows the rows of a stream, and so the levels of its channels."""

    def last_mark(self) -> int:
        """Return the last row count, of some that no cut of the input moves."""

    def levels_before(self, mark: int, length: int) -> list[ChannelLevel]:
        """Return the levels before the row of that count, by means of so many rows."""


class ChannelLevel(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The level of a channel before an incident, and its sum over the ordinary events since."""

    channel: str
    place: int  # among the values of a reading
    before: float
    low: float
    high: float
    total: float = 0.0
    count: int = 0

    def add(self, values: Sequence[float], *, is_ordinary: bool) -> None:
        """Take a reading in; one that is not ordinary begins again."""
        value = values[self.place]
        if not is_ordinary:
            self.total, self.count = 0.0, 0
        elif value - value == 0.0:  # finite
            self.total, self.count = self.total + value, self.count + 1


def levels_before(
    rows: FloatArray, columns: Mapping[str, tuple[int, int]], length: int
) -> list[ChannelLevel]:
    """Return the levels of channels at the end of rows; none where there are too few rows.

    `columns` has the place of each channel in a reading and in a row. O(rows x channels).
    """
    X = rows[:, [column for _, column in columns.values()]]
    X = X[~np.isnan(X).any(axis=1)]
    count = len(X) // length
    if count < _MIN_MEANS or not columns:
        return []
    means = X[len(X) - count * length :].reshape(count, length, -1).mean(axis=1)
    low, high = means.min(axis=0), means.max(axis=0)
    margin = np.maximum(_MARGIN * (high - low), _ROUNDING * np.abs(means).max(axis=0))
    found = zip(
        columns, means[-1].tolist(), (low - margin).tolist(), (high + margin).tolist(), strict=True
    )
    return [
        ChannelLevel(channel, columns[channel][0], before, below, above)
        for channel, before, below, above in found
    ]


def level_changes(
    levels: Sequence[ChannelLevel], named: Sequence[ChannelEvidence], since: Mapping[str, float]
) -> list[LevelChange]:
    """Return which channels are not back: of the one named first, or of all if none is."""
    return [
        LevelChange(level.channel, level.before, now)
        for level in levels
        if not named or level.channel == named[0].channel
        if (now := since.get(level.channel, math.nan)) < level.low or now > level.high
    ]
