"""Which column of a row is made of which channel, and from how many events ago."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rejex_stream.features import FeatureSpec
from rejex_stream.types import FloatArray

__all__ = ["Layout"]

Index = npt.NDArray[np.intp]
_CALENDAR, _DERIVED = -1, -1
_CHANGES, _LEVELS = ("difference", "deviation"), ("raw", "mean")
_PARTS, _WANDERS, _FEWEST = 8, 0.6, 800
"""Share of the variance of ranks that lies between eighths of the rows, from which on a channel has
no level: of 2,000 rows 0 of AR(.97), one eighth of AR(.99), four fifths of a random walk."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in a row to find what; hashable, so that it can be a part of a recipe.

    Attributes
    ----------
    channels
        For each column the number of its channel; -1 for the calendar.
    lags
        For each column how many events ago its value was read: 0 the level, -1 for what is derived.
    spreads
        Numbers of the columns that are standard deviations, whose low side ends at 0.
    levels
        Numbers of the columns that are the level of a channel, or a mean of it, where there are
        others that show its changes.
    """

    channels: tuple[int, ...]
    lags: tuple[int, ...]
    spreads: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()

    @classmethod
    def of(cls, spec: FeatureSpec) -> Layout:
        """Return the layout of the rows of a spec.

        Examples
        --------
        >>> Layout.of(FeatureSpec(("flow",), preset="seasonal"))
        Layout(channels=(0, -1, -1, -1, -1), lags=(0, -1, -1, -1, -1), spreads=(), levels=())
        """
        channels: list[int] = []
        lags: list[int] = []
        spreads: list[int] = []
        levels: list[int] = []
        moving = {feature.channel for feature in spec.columns if feature.kind in _CHANGES}
        for feature in spec.columns:
            own = spec.channels.index(feature.channel) if feature.channel else _CALENDAR
            ago = {"raw": 0, "lag": feature.events}.get(feature.kind)
            for _ in feature.names:
                if feature.kind == "std":
                    spreads.append(len(channels))
                elif feature.kind in _LEVELS and feature.channel in moving:
                    levels.append(len(channels))
                channels.append(own)
                lags.append(_DERIVED if ago is None else ago)
        return cls(tuple(channels), tuple(lags), tuple(spreads), tuple(levels))

    @classmethod
    def plain(cls, n_columns: int) -> Layout:
        """Return the layout of rows that nobody described: every column the level of a channel."""
        return cls(tuple(range(n_columns)), (0,) * n_columns)

    def measured(self, X: FloatArray, flags: str) -> npt.NDArray[np.bool_]:
        """Return which columns are measured, shape (d,): all, or those that are no flag.

        A channel is a flag if its level takes at most two values in the training rows X of shape
        (n, d): a switch, a command, a constant. Where every channel is one, none is set apart.
        """
        channels = np.array(self.channels)
        used: npt.NDArray[np.bool_] = channels != _CALENDAR
        if flags == "in":
            return used
        for j, (channel, ago) in enumerate(zip(self.channels, self.lags, strict=True)):
            if ago == 0 and _few_values(X[:, j]):
                used &= channels != channel
        return used if used.any() else self.measured(X, "in")

    def wandering(self, X: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which columns are levels of channels that have none, shape (d,).

        A channel has no level if the variance of its ranks lies mostly between stretches of the
        training rows X of shape (n, d), or so does that of the channels on average.
        """
        without: npt.NDArray[np.bool_] = np.zeros(X.shape[1], dtype=np.bool_)
        if not self.levels or len(X) < _FEWEST:
            return without
        moves = {self.channels[j]: _between(X[:, j]) for j in self.levels if self.lags[j] == 0}
        together = float(np.mean([*moves.values()]))
        for j in self.levels:
            without[j] = max(moves[self.channels[j]], together) > _WANDERS
        return without

    def level(self) -> npt.NDArray[np.bool_]:
        """Return which columns are levels."""
        which: npt.NDArray[np.bool_] = np.array(self.lags) == 0
        return which

    def past(self, at_most: int | None = None) -> npt.NDArray[np.bool_]:
        """Return which columns are earlier levels, up to `at_most` events ago."""
        lags = np.array(self.lags)
        most = lags.max(initial=0) if at_most is None else at_most
        which: npt.NDArray[np.bool_] = (lags > 0) & (lags <= most)
        return which

    def calendar(self) -> Index:
        """Return the columns of the calendar: sine and cosine of each phase."""
        return np.flatnonzero(np.array(self.channels) == _CALENDAR)


def _few_values(x: FloatArray) -> bool:
    first = x[0]
    others = x[x != first]
    return len(others) == 0 or bool((others == others[0]).all())


def _between(x: FloatArray) -> float:
    """Return the share of the variance of ranks that lies between parts of a series, in [0, 1]."""
    length = len(x) // _PARTS
    ranks = np.searchsorted(np.sort(x), x[: length * _PARTS]).astype(np.float64)
    ranks -= ranks.mean()
    total = float(ranks @ ranks)
    means = ranks.reshape(_PARTS, length).mean(axis=1)
    return float(means @ means) * length / total if total else 0.0
