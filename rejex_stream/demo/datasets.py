"""The readings that come with the package, and the demo: their files, configs and faults.

The configs are ``water.toml`` and ``turbines.toml`` of this folder, as a user would write them. No
number in there was tuned on the faults, which serve pictures and comparisons alone: windows and
first fits were chosen by how well rejection rates agree with theory, budgets are whole reviews a
day, γ is a round guess from above, and the detectors are plain: the default, and a mixture for
turbines, which idle or run.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import run_pipeline
from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.demo import turbine
from rejex_stream.errors import ConfigError
from rejex_stream.report import Fault, Run, read_run
from rejex_stream.types import CommandKind, FloatArray, IncidentState

CREDIT = (
    "Water flow: WaterFlow data set of the river package, donated by Tecnojest s.r.l. Its "
    "anomalous segments are documented there in words and were located in the series; labels were "
    "used for this report only, never by a detector."
)
_HOUR_MS = 3_600_000


class Dataset(NamedTuple):
    """Readings of one or more sensors, in the order of their times."""

    X: FloatArray
    """Shape (n, d); ``nan`` where a channel is missing."""
    channels: tuple[str, ...]
    """Names of the d columns."""
    times: npt.NDArray[np.datetime64]
    """Shape (n,), UTC, to the millisecond."""
    sensors: npt.NDArray[np.str_]
    """Shape (n,): whose reading it is."""
    is_fault: npt.NDArray[np.bool_]
    """Shape (n,): whether something is known to be wrong there; for comparisons alone."""
    about: str
    """Where the readings come from."""

    def for_sensor(self, sensor: str) -> Dataset:
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
    return tuple(
        _fault(WATER_SENSOR, datetime.fromisoformat(first), datetime.fromisoformat(last), title)
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
    return tuple(
        _fault(
            one.turbine,
            turbine_time(one.turbine, one.first),
            turbine_time(one.turbine, one.last),
            one.title,
        )
        for one in run.faults
    )


def _fault(sensor: str, first: datetime, last: datetime, title: str) -> Fault:
    return Fault(sensor, _epoch_ms(first), _epoch_ms(last), title, settling_ms=_HOUR_MS)


def _epoch_ms(time: datetime) -> int:
    return math.floor(time.timestamp() * 1000)


# ------------------------------------------------------------------------------ the demo
FOLDER = Path("demo-output")
"""Where the configs, as they stand here, look for their feeds."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Records in a file, their config, and how to present them."""

    title: str
    about: str
    n_records: int
    faults: tuple[Fault, ...]
    config_path: Path
    config: Config
    answer_after: int | None = None
    """So many records come before somebody says of what is open that it is a fault."""

    def run(self) -> Run:
        """Read back what a run of this feed wrote."""
        return dataclasses.replace(
            read_run(self.config),
            title=self.title,
            about=self.about,
            faults=self.faults,
            settings=self.config_path.read_text(encoding="utf-8"),
        )


def prepare(out: Path) -> tuple[Feed, Feed]:
    """Write feeds and configs to ``water/`` and ``turbines/`` of `out`.

    What an earlier demo left in these two folders is removed.
    """
    for name in ("water", "turbines"):
        if (out / name).exists():
            shutil.rmtree(out / name)
        (out / name).mkdir(parents=True)
    water, turbines = out / "water", out / "turbines"
    n_water, in_water = write_water(water / "feed.csv")
    n_turbines, in_turbines = write_turbines(turbines / "feed.jsonl")
    return (
        Feed(
            "Water branch",
            "Real: hourly flow of one pipeline branch, March to May 2022, from the river package. "
            "Three supply losses and a pumping peak are documented.",
            n_water,
            in_water,
            *_configure(water),
        ),
        Feed(
            "Wind farm",
            "Simulated: four turbines, one weather, ten-minute averages over five weeks. Seven "
            "faults, a cut-off line and a clock that steps back were put in. What is held on the "
            "day on which the bearing is replaced is answered: it is a fault.",
            n_turbines,
            in_turbines,
            *_configure(turbines),
            answer_after=_REPAIRED * len(turbine.TURBINES),
        ),
    )


def _configure(folder: Path) -> tuple[Path, Config]:
    """Copy the config of a feed beside it, with the paths replaced."""
    text = (files("rejex_stream.demo") / f"{folder.name}.toml").read_text(encoding="utf-8")
    here = json.dumps(str(folder.parent))[1:-1]
    path = folder / "pipeline.toml"
    path.write_text(text.replace(f"{FOLDER}/", f"{here}/"), encoding="utf-8")
    return path, load_config(path)


def write_water(path: Path) -> tuple[int, tuple[Fault, ...]]:
    """Write the water's flow as CSV; returns the number of rows and what is wrong in them."""
    rows = [(time.isoformat(), flow) for time, flow in water()]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("time", "flow_l_s"), *rows])
    return len(rows), water_faults()


_DAYS = 35
_REPAIRED = 21 * 144  # the bearing of WT-02
_CUT_OFF = ("WT-02", 12 * 144 + 31)
_CLOCK_BACK = ("WT-01", 13 * 144 + 77, timedelta(minutes=42))


def write_turbines(path: Path, seed: int = 0) -> tuple[int, tuple[Fault, ...]]:
    """Write five weeks of the simulated wind farm as JSON Lines, the turbines interleaved.

    Besides the faults of the simulation the file holds what files hold: a missing channel is
    absent, one line is cut off in the middle, and one clock steps back.
    """
    run = turbine.simulate(_DAYS, seed, (*turbine.FAULTS, turbine.LEAK))
    steps = len(run.values[turbine.TURBINES[0]])
    with path.open("w", encoding="utf-8") as file:
        for step in range(steps):
            for name in turbine.TURBINES:
                time = turbine_time(name, step)
                if (name, step) == _CLOCK_BACK[:2]:
                    time -= _CLOCK_BACK[2]
                line = _line(name, time, [*run.values[name][step], run.ambient_c[step]])
                if (name, step) == _CUT_OFF:
                    line = line[: len(line) // 2]
                file.write(line + "\n")
    return steps * len(turbine.TURBINES), turbine_faults(run)


def _line(name: str, time: datetime, values: Sequence[float]) -> str:
    fields: dict[str, object] = {"turbine": name, "time": time.isoformat()}
    for channel, value in zip((*turbine.CHANNELS, turbine.AMBIENT), values, strict=True):
        if not math.isnan(value):
            fields[channel] = round(float(value), 3)
    return json.dumps(fields)


def play(feed: Feed) -> None:
    """Run the pipeline of a feed to its end, as ``rejex-stream run`` would.

    Where somebody looks at it in between, the run is stopped there, and goes on with the answers.
    """
    if feed.answer_after is not None:
        path = Path(str(feed.config.input.path))
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: feed.answer_after]))
        _run(feed.config)
        line = ControlLine(feed.config)
        for incident in line.incidents().values():
            if incident.state is not IncidentState.CLOSED:
                answer = make_command(
                    CommandKind.FAULT, id_=f"demo-{incident.id}", by="demo",
                    given_ms=incident.changed_ms, note="The bearing was worn, and is replaced.",
                    stream_key=incident.stream_key, incident=incident.id, version=incident.version,
                )  # fmt: skip
                line.publish(answer)
        with path.open("ab") as file:
            file.writelines(lines[feed.answer_after :])
    _run(feed.config)


def _run(config: Config) -> None:
    # The report shows alarms and incidents as they stand in the end.
    run_pipeline(config, on_alarm=lambda partition, alarm: None, on_incident=lambda incident: None)
