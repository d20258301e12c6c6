"""Random Fourier features: a Gaussian kernel over *all* columns for a linear model.

River's ``RBFSampler`` embeds each column by itself, so a linear model on top cannot see a broken
correlation. Rahimi and Recht, *Random features for large-scale kernel machines* (NIPS 2007).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from river import base

from rejex_stream.types import FloatArray

__all__ = ["FourierFeatures"]


class FourierFeatures(base.Transformer):
    """Map a row to ``sqrt(2/D) cos(w·x + b)`` for D random (w, b).

    Parameters
    ----------
    gamma
        Kernel ``exp(-gamma |x - y|²)``; ``None``: ``0.5 / number of columns``, which suits
        columns of unit spread.
    n_components
        D.
    seed
        Of the random directions.

    Examples
    --------
    >>> features = FourierFeatures(n_components=3, seed=1).transform_one({"a": 0.5, "b": -1.0})
    >>> sorted(features)
    [0, 1, 2]
    """

    def __init__(
        self, gamma: float | None = None, n_components: int = 100, seed: int | None = None
    ) -> None:
        self.gamma = gamma
        self.n_components = n_components
        self.seed = seed
        self._columns: tuple[Any, ...] | None = None
        self._directions: FloatArray = np.empty((0, 0))
        self._offsets: FloatArray = np.empty(0)

    def transform_one(self, x: dict[Hashable, Any]) -> dict[Hashable, Any]:
        """Map one row; the directions follow from seed and columns, so nothing is learnt."""
        columns = tuple(x)
        if columns != self._columns:
            self._draw(columns)
        z = np.fromiter(x.values(), dtype=np.float64, count=len(x))
        phase = (z[:, None] * self._directions).sum(axis=0) + self._offsets
        values = np.cos(phase) * np.sqrt(2.0 / self.n_components)
        return dict(enumerate(values.tolist()))

    def _draw(self, columns: tuple[Any, ...]) -> None:
        rng = np.random.default_rng(self.seed)
        gamma = 0.5 / len(columns) if self.gamma is None else self.gamma
        shape = (len(columns), self.n_components)
        self._directions = rng.normal(size=shape) * np.sqrt(2.0 * gamma)
        self._offsets = rng.uniform(0.0, 2.0 * np.pi, self.n_components)
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        # Directions are drawn again: they are not state.
        return {"gamma": self.gamma, "n_components": self.n_components, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
