"""Put columns of different units on one scale, by what the first rows say, and never again.

A scaler that goes on learning stretches for ever on heavy tails, and every stretch moves the
scores that the reference window holds. So a scale is measured once and frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.types import FloatArray

SCALES: Final = ("none", "standard", "robust", "unit")
_IQR_OF_A_STANDARD_NORMAL = 1.3489795003921634
_UNIT_HALF_WIDTH = 3.0
_MAX = 1e100
_MAX_LEARNT = 20.0


@dataclass(frozen=True, slots=True)
class Scale:
    """``(x - centre) / spread`` per column; both of shape (d,)."""

    centre: FloatArray
    spread: FloatArray

    def apply(self, X: FloatArray) -> FloatArray:
        """Scale one row of shape (d,) or rows of shape (m, d)."""
        return (X - self.centre) / self.spread


def measure_scale(kind: str, X: FloatArray) -> Scale | None:
    """Measure the scale of rows X of shape (n, d)."""
    check_scale(kind)
    if kind == "none":
        return None
    deviation = X.std(axis=0)
    if kind == "standard":
        centre, spread = X.mean(axis=0), deviation
    else:
        low, centre, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
        spread = (high - low) / _IQR_OF_A_STANDARD_NORMAL
        spread = np.where(spread > 0, spread, deviation)
    # A column that never moved has no scale: leave its unit alone.
    spread = np.where(spread > 0, spread, 1.0)
    if kind == "unit":
        return Scale(centre - _UNIT_HALF_WIDTH * spread, 2 * _UNIT_HALF_WIDTH * spread)
    return Scale(centre, spread)


def check_scale(kind: str) -> None:
    """Raise a :class:`ConfigError` where `kind` is no scale."""
    if kind not in SCALES:
        raise ConfigError(f"scale = {kind!r} is unknown; use one of {', '.join(SCALES)}.")


@dataclass(slots=True)
class FrozenScale:
    """A scale measured on the first rows of a stream, which wait for it and are learnt then."""

    kind: str  # which scale, measured on how many rows
    events: int
    rows: list[FloatArray] = field(default_factory=list)  # rows that wait, oldest first
    # ``None`` until it is measured (and for ever where `kind` is ``none``)
    scale: Scale | None = None

    @property
    def is_ready(self) -> bool:
        """Whether rows can be scaled now."""
        return self.kind == "none" or self.scale is not None

    def apply(self, x: FloatArray) -> FloatArray:
        """Scale a row of shape (d,); beyond ±1e100, squares would overflow."""
        with np.errstate(over="ignore"):
            scaled = x if self.scale is None else self.scale.apply(x)
        return np.clip(scaled, -_MAX, _MAX)

    def admit(self, x: FloatArray) -> list[FloatArray]:
        """Take a row of shape (d,); returns the scaled rows to learn now, oldest first.

        What is learnt on a scale stays within 20 of its units: one wild value must not drown a
        running mean or variance for good. (It is *scored* as wild as it is.)
        """
        if self.is_ready:
            return [self._bounded(x)]
        self.rows.append(x.copy())
        if len(self.rows) < self.events:
            return []
        self.scale = measure_scale(self.kind, np.array(self.rows))
        waiting, self.rows = self.rows, []
        return [self._bounded(row) for row in waiting]

    def _bounded(self, x: FloatArray) -> FloatArray:
        scaled = self.apply(x)
        return scaled if self.scale is None else np.clip(scaled, -_MAX_LEARNT, _MAX_LEARNT)

    def state(self) -> dict[str, FloatArray]:
        """Everything it knows: the waiting rows of shape (k, d), or centre and spread."""
        if self.scale is not None:
            return {"centre": self.scale.centre, "spread": self.scale.spread}
        return {"rows": np.array(self.rows)} if self.rows else {}

    def restore(self, state: dict[str, FloatArray], n_columns: int) -> None:
        """Bring back what :meth:`state` returned."""
        match state:
            case {"rows": rows} if (
                not self.is_ready and len(rows) < self.events and rows.shape[1:] == (n_columns,)
            ):
                self.rows = list(rows)
            case {"centre": centre, "spread": spread} if (
                not self.is_ready
                and centre.shape == spread.shape == (n_columns,)
                and (spread > 0).all()
            ):
                self.scale = Scale(centre, spread)
            case _ if state:
                raise CheckpointError(
                    f"The scale of the state ({', '.join(state)}) is none of {n_columns} columns "
                    f"by {self.kind!r}; start without the state, or from another snapshot."
                )
