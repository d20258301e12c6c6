"""The two feeds of the demo as files, and what is known to be wrong in them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from rejex_stream.demo import turbine

__all__ = ["WATER_SENSOR", "Feed", "Segment", "write_turbines", "write_water"]

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one sensor in which something is known to be wrong.

    Attributes
    ----------
    sensor
        Whose readings.
    first_ms, last_ms
        Event times of its first and last reading, UTC, both inclusive.
    title
        What was wrong, for people.
    settling_ms
        For so long afterwards the features still contain the segment: flags there count neither as
        hits nor as false alarms.
    """

    sensor: str
    first_ms: int
    last_ms: int
    title: str
    settling_ms: int = 0


@dataclass(frozen=True, slots=True)
class Feed:
    """A file of readings.

    Attributes
    ----------
    path, n_records
        Where it was written, and how many records it has.
    events_per_day
        Of one sensor.
    segments
        What is known to be wrong, by time.
    """

    path: Path
    n_records: int
    events_per_day: float
    segments: tuple[Segment, ...]


# What river's documentation of WaterFlow says in words (three low moments, due to water losses or
# maintenance, and a small peak from a pumping operation after the first two), located in the
# series: where the flow leaves its usual 97-108 l/s, and the peak alone. The times are the data
# set's own, with its offsets.
_WATER_SEGMENTS = (
    ("2022-03-24T09:00:00+01:00", "2022-03-25T01:00:00+01:00", "first low moment"),
    ("2022-03-29T06:00:00+02:00", "2022-03-29T20:00:00+02:00", "second low moment"),
    ("2022-04-03T06:00:00+02:00", "2022-04-03T06:00:00+02:00", "pumping peak"),
    ("2022-04-27T15:00:00+02:00", "2022-04-28T06:00:00+02:00", "third low moment"),
)
WATER_SENSOR = "branch-1"


def write_water(path: Path) -> Feed:
    """Write river's WaterFlow data as CSV, unchanged; 1,268 rows, one an hour, with gaps.

    The data came from the Tecnojest s.r.l. company and is part of the river package.
    """
    from river.datasets import WaterFlow

    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("time", "flow_l_s"))
        data = WaterFlow()  # type: ignore[no-untyped-call]
        rows.writerows((features["Time"].isoformat(), flow) for features, flow in data)
    segments = tuple(
        Segment(WATER_SENSOR, _epoch_ms(first), _epoch_ms(last), title, settling_ms=_HOUR_MS)
        for first, last, title in _WATER_SEGMENTS
    )
    return Feed(path, data.n_samples, 24.0, segments)


_START = datetime(2024, 3, 4, tzinfo=UTC)
_STEP = timedelta(seconds=turbine.STEP_S)
_STAGGER = timedelta(seconds=7)  # the controllers do not report at the same second
_CUT_OFF = ("WT-02", 12 * 144 + 31)
_CLOCK_BACK = ("WT-01", 13 * 144 + 77, timedelta(minutes=42))


def write_turbines(path: Path, seed: int = 0) -> Feed:
    """Write four weeks of the simulated wind farm as JSON Lines, the turbines interleaved.

    Besides the faults of the simulation the file holds what files hold: a missing channel is
    absent, one line is cut off in the middle, and one clock steps back.
    """
    run = turbine.simulate(seed=seed)
    steps = len(run.values[turbine.TURBINES[0]])
    with path.open("w", encoding="utf-8") as file:
        for step in range(steps):
            for number, name in enumerate(turbine.TURBINES):
                time = _START + step * _STEP + number * _STAGGER
                if (name, step) == _CLOCK_BACK[:2]:
                    time -= _CLOCK_BACK[2]
                line = _line(name, time, run.values[name][step])
                if (name, step) == _CUT_OFF:
                    line = line[: len(line) // 2]
                file.write(line + "\n")
    segments = tuple(
        Segment(
            fault.turbine,
            _step_ms(fault.turbine, fault.first),
            _step_ms(fault.turbine, fault.last),
            fault.title,
            settling_ms=_HOUR_MS,
        )
        for fault in run.faults
    )
    return Feed(path, steps * len(turbine.TURBINES), 86_400 / turbine.STEP_S, segments)


def _line(name: str, time: datetime, values: np.ndarray) -> str:
    fields: dict[str, object] = {"turbine": name, "time": time.isoformat()}
    for channel, value in zip(turbine.CHANNELS, values.tolist(), strict=True):
        if not math.isnan(value):
            fields[channel] = value
    return json.dumps(fields)


def _step_ms(name: str, step: int) -> int:
    time = _START + step * _STEP + turbine.TURBINES.index(name) * _STAGGER
    return int(time.timestamp() * 1000)


def _epoch_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)
