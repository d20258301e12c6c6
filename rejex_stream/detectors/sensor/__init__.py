"""Detectors for sensors: distances on columns that know what happened a moment ago.

In: rows of features, and which column is made of which channel. Out: a score a row, batch-exact.
Recipes like all others; the columns they want come with them (`preset`). Open `recipes` first;
`distance` is what all of them measure in the end, `ensemble` brings several to one scale.
"""

from rejex_stream.detectors.sensor.ensemble import (
    Ensemble,
    ensemble,
    seasonal_sensor,
    sensor_ensemble,
    state_sensor,
)
from rejex_stream.detectors.sensor.recipes import Mahalanobis, Subsequence, VARResidual
from rejex_stream.detectors.sensor.states import States

__all__ = [
    "Ensemble", "Mahalanobis", "States", "Subsequence", "VARResidual", "ensemble",
    "seasonal_sensor", "sensor_ensemble", "state_sensor",
]  # fmt: skip
