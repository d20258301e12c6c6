"""How far a sensor is from what its siblings read: what no weather, which all have, explains.

What each channel should read follows from the medians of the siblings' channels at the same time,
by ridge. A channel counts where these leave at most nine tenths of it in held-back rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.sensor.recipes import Columns, Layout, SensorRecipe, fit_residual
from rejex_stream.detectors.sensor.recipes import Residual as Forecast
from rejex_stream.protocols import Scorer
from rejex_stream.types import ColumnGroups, FloatArray

_LEFT = 0.9
_LIKELY = 1.96
_BY_SIBLINGS = 2.0  # who makes one expect a value


@dataclass(frozen=True, slots=True)
class Residual:
    """Scores what siblings leave of readings."""

    # Of rows of k levels of now it forecasts k of the reading before and, smoothed, of those before
    # by as many medians of siblings and the medians of other channels.
    forecast: Forecast

    def score(self, X: FloatArray) -> FloatArray:
        return self.forecast.inner.score(self.left(X))

    def score_row(self, x: FloatArray) -> float:
        scale, weights = self.forecast.scale, self.forecast.weights
        t = weights.shape[1]
        k = t // 2
        z = scale.apply_row(x[k:])
        left = z[:t] + np.add.reduce(z[t:, None] * weights)
        left[x[k : k + t] == x[k + t : k + 2 * t]] = 0.0
        return self.forecast.inner.score_row(left)

    def left(self, X: FloatArray) -> FloatArray:
        """Return what is left, shape (m, 2 k); 0 where nobody was there."""
        t = self.forecast.weights.shape[1]
        own, usual = X[:, t // 2 : t // 2 + t], X[:, t // 2 + t : t // 2 + 2 * t]
        return np.where(own == usual, 0.0, self.forecast.residual(X[:, t // 2 :]))

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        k = self.forecast.weights.shape[1] // 2
        of = [group[group < k] for group in groups]
        return self.forecast.inner.score_without(self.left(X), [np.append(g, k + g) for g in of])

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Return what the siblings make one expect of the first of each group, (m, g, 4).

        By how far the reading before was from them: it is judged with this one.
        """
        k, inner = self.forecast.weights.shape[1] // 2, self.forecast.inner
        spread = self.forecast.scale.spread[:k]
        value = X[:, :k] - (self.left(X) - inner.mean)[:, :k] * spread
        width = np.broadcast_to(_LIKELY * inner.scale.spread[:k] * spread, value.shape)
        said = (value, value - width, value + width, np.full_like(value, _BY_SIBLINGS))
        return np.stack(said, axis=2)[:, [group[0] for group in groups]]


@dataclass(frozen=True)
class SiblingResidual(SensorRecipe):
    """Distance of a sensor's levels from what its siblings make one expect of them."""

    allow_nan: ClassVar[bool] = True
    name: str = "rejex:SiblingResidual"
    targets: tuple[int, ...] = ()  # places of the channels that siblings explain

    def of_rows(self, X: FloatArray) -> Self | None:
        """Return the recipe with the channels that siblings explain in rows X; ``None``: none."""
        if self.layout is None or not self.layout.beside:
            return None
        levels, before = np.array(self.layout.beside).T
        usual = before + 1
        rows = X[(X[:, before] != X[:, usual]).any(axis=1)][:, [*before, *usual]]
        if 2 * len(rows) < len(X):
            return None
        half, k, sums = len(rows) // 2, len(levels), np.zeros((2, len(levels)))
        for known, others in ((rows[:half], rows[half:]), (rows[half:], rows[:half])):
            forecast = fit_residual(known, k)
            sums[0] += np.abs(forecast.residual(others)).sum(axis=0)
            sums[1] += np.abs(forecast.scale.apply(others)[:, :k]).sum(axis=0)
        moves = self.layout.measured(X, self.flags)[levels]
        targets = np.flatnonzero(moves & (sums[0] < _LEFT * sums[1])).tolist()
        return replace(self, targets=tuple(targets)) if targets else None

    def _fit(
        self, X: FloatArray, layout: Layout, measured: npt.NDArray[np.bool_], seed: int
    ) -> Scorer:
        at, k = [*self.targets], len(self.targets)
        levels, before = np.array(layout.beside).T
        own, usual = np.stack((before, before + 2)), np.stack((before + 1, before + 3))
        rest = np.delete(usual, at, axis=1)
        which = np.concatenate((levels[at], *own[:, at], *usual[:, at], *rest))
        rows = X[:, which[k:]]
        known = (rows[:, : 2 * k] != rows[:, 2 * k : 4 * k]).any(axis=1)
        return Columns(which, Residual(fit_residual(rows[known] if known.any() else rows, 2 * k)))
