"""The readings that come with the package, and where something is known to be wrong in them.

The faults serve pictures and comparisons; no default and no detector was tuned on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rejex_stream.demo import turbine
from rejex_stream.errors import ConfigError
from rejex_stream.report import Fault
from rejex_stream.types import FloatArray

__all__ = [
    "CREDIT",
    "Dataset",
    "load_dataset",
    "turbine_faults",
    "turbine_time",
    "water",
    "water_faults",
]

CREDIT = (
    "Water flow: WaterFlow data set of the river package, donated by Tecnojest s.r.l. Its "
    "anomalous segments are documented there in words and were located in the series; labels were "
    "used for this report only, never by a detector."
)
_HOUR_MS = 3_600_000


class Dataset(NamedTuple):
    """Readings of one or more sensors, in the order of their times.

    Attributes
    ----------
    X
        Shape (n, d); ``nan`` where a channel is missing.
    channels
        Names of the d columns.
    times
        Shape (n,), UTC, to the millisecond.
    sensors
        Shape (n,): whose reading it is.
    is_fault
        Shape (n,): whether something is known to be wrong there; for comparisons alone.
    about
        Where the readings come from.
    """

    X: FloatArray
    channels: tuple[str, ...]
    times: npt.NDArray[np.datetime64]
    sensors: npt.NDArray[np.str_]
    is_fault: npt.NDArray[np.bool_]
    about: str

    def of(self, sensor: str) -> Dataset:
        """Return the readings of one sensor.

        Raises
        ------
        ConfigError
            If there is no such sensor.
        """
        mine = self.sensors == sensor
        if not mine.any():
            known = ", ".join(sorted(set(self.sensors.tolist())))
            raise ConfigError(f"There is no sensor {sensor!r}; there are {known}.")
        return self._replace(
            X=self.X[mine],
            times=self.times[mine],
            sensors=self.sensors[mine],
            is_fault=self.is_fault[mine],
        )

    def columns(self) -> dict[str, FloatArray]:
        """Return the channels by name, as DataFrames and `RejectingStream.learn_many` take them."""
        return dict(zip(self.channels, self.X.T, strict=True))


def load_dataset(name: Literal["water", "turbines"] = "water", *, seed: int = 0) -> Dataset:
    """Load readings that come with the package; no network.

    Parameters
    ----------
    name
        ``water``: 1,268 hours of the flow of a real pipeline branch. ``turbines``: four weeks of
        four simulated wind turbines, 16,128 readings of four channels.
    seed
        Of the simulation.

    Raises
    ------
    ConfigError
        If there is no such data set.

    Examples
    --------
    >>> water = load_dataset("water")
    >>> water.X.shape, water.channels, int(water.is_fault.sum())
    ((1268, 1), ('flow_l_s',), 49)
    """
    if name == "water":
        times, flows = zip(*water(), strict=True)
        return _dataset(
            np.array(flows, dtype=np.float64)[:, None],
            ("flow_l_s",),
            [round(time.timestamp() * 1000) for time in times],
            [WATER_SENSOR] * len(flows),
            faults=water_faults(),
            about=CREDIT,
        )
    if name == "turbines":
        run = turbine.simulate(seed=seed)
        steps = range(len(run.values[turbine.TURBINES[0]]))
        order = [(sensor, step) for step in steps for sensor in turbine.TURBINES]
        return _dataset(
            np.array([run.values[sensor][step] for sensor, step in order]),
            turbine.CHANNELS,
            [_epoch_ms(turbine_time(sensor, step)) for sensor, step in order],
            [sensor for sensor, _ in order],
            faults=turbine_faults(run),
            about="Simulated: four turbines, one weather, ten-minute averages; nothing was "
            "fitted to a real one.",
        )
    raise ConfigError(f"There is no data set {name!r}: use 'water' or 'turbines'.")


def _dataset(
    X: FloatArray,
    channels: tuple[str, ...],
    times_ms: list[int],
    sensors: list[str],
    *,
    faults: tuple[Fault, ...],
    about: str,
) -> Dataset:
    at, whose = np.array(times_ms), np.array(sensors)
    is_fault = np.zeros(len(X), dtype=bool)
    for fault in faults:
        is_fault |= (whose == fault.sensor) & (fault.first_ms <= at) & (at <= fault.last_ms)
    return Dataset(X, channels, at.astype("datetime64[ms]"), whose, is_fault, about)


# ----------------------------------------------------------------------------------- water
WATER_SENSOR = "branch-1"

# What river's documentation of WaterFlow says in words (three low moments, due to water losses or
# maintenance, and a small peak from a pumping operation after the first two), located in the
# series: where the flow leaves its usual 97-108 l/s, and the peak alone. The times are the data
# set's own, with its offsets.
_WATER_FAULTS = (
    ("2022-03-24T09:00:00+01:00", "2022-03-25T01:00:00+01:00", "first low moment"),
    ("2022-03-29T06:00:00+02:00", "2022-03-29T20:00:00+02:00", "second low moment"),
    ("2022-04-03T06:00:00+02:00", "2022-04-03T06:00:00+02:00", "pumping peak"),
    ("2022-04-27T15:00:00+02:00", "2022-04-28T06:00:00+02:00", "third low moment"),
)


def water() -> Iterator[tuple[datetime, float]]:
    """Yield river's WaterFlow data, unchanged: 1,268 times and flows, one an hour, with gaps.

    The data came from the Tecnojest s.r.l. company and is part of the river package.
    """
    from river.datasets import WaterFlow

    for features, flow in WaterFlow():  # type: ignore[no-untyped-call]
        yield features["Time"], flow


def water_faults() -> tuple[Fault, ...]:
    """Return what is known to be wrong in the water's flow."""
    return tuple(
        Fault(
            WATER_SENSOR,
            _epoch_ms(datetime.fromisoformat(first)),
            _epoch_ms(datetime.fromisoformat(last)),
            title,
            settling_ms=_HOUR_MS,
        )
        for first, last, title in _WATER_FAULTS
    )


# -------------------------------------------------------------------------------- turbines
_START = datetime(2024, 3, 4, tzinfo=UTC)
_STEP = timedelta(seconds=turbine.STEP_S)
_STAGGER = timedelta(seconds=7)  # the controllers do not report at the same second


def turbine_time(name: str, step: int) -> datetime:
    """Return when a turbine reports a step of the simulation."""
    return _START + step * _STEP + turbine.TURBINES.index(name) * _STAGGER


def turbine_faults(run: turbine.Run) -> tuple[Fault, ...]:
    """Return what was done to the turbines of a simulation."""
    return tuple(
        Fault(
            fault.turbine,
            _epoch_ms(turbine_time(fault.turbine, fault.first)),
            _epoch_ms(turbine_time(fault.turbine, fault.last)),
            fault.title,
            settling_ms=_HOUR_MS,
        )
        for fault in run.faults
    )


def _epoch_ms(time: datetime) -> int:
    return math.floor(time.timestamp() * 1000)
