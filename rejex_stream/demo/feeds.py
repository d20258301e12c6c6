"""The two feeds of the demo: records in a file, a config for them, and what is wrong in them.

The configs are ``water.toml`` and ``turbines.toml`` of this folder, as a user would write them. No
number in there was tuned on the labels: windows are whole weeks, budgets are whole reviews a day,
γ is a round guess from above, and the detectors are plain: the default, and a mixture for turbines,
which idle or run.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path

from rejex_stream.config import Config, load_config
from rejex_stream.config.assembly import run_pipeline
from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.demo import turbine
from rejex_stream.demo.datasets import turbine_faults, turbine_time, water, water_faults
from rejex_stream.report import Channel, Fault, Run, read_run
from rejex_stream.run.progress import RunEvent, RunSummary
from rejex_stream.types import (
    CommandKind,
    Incident,
    IncidentState,
    Outcome,
    Partition,
)

__all__ = ["FOLDER", "Feed", "Played", "play", "prepare", "write_turbines", "write_water"]

FOLDER = Path("demo-output")
"""Where the configs, as they stand here, look for their feeds."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Records in a file, their config, and how to present them.

    Attributes
    ----------
    title, about, channels
        For people; the channels in the order of the config.
    n_records
        Of the file.
    faults
        What is known to be wrong.
    config_path, config
        The TOML file beside the records, and what it says (with overrides from the environment).
    answer_after
        So many records come before somebody looks at what is held, and says that it is a fault.
    """

    title: str
    about: str
    channels: tuple[Channel, ...]
    n_records: int
    faults: tuple[Fault, ...]
    config_path: Path
    config: Config
    answer_after: int | None = None

    def run(self) -> Run:
        """Read back what a run of this feed wrote."""
        return dataclasses.replace(
            read_run(self.config),
            title=self.title,
            about=self.about,
            channels=self.channels,
            faults=self.faults,
            settings=self.config_path.read_text(encoding="utf-8"),
        )


def prepare(out: Path, *, seed: int = 0, detector: str | None = None) -> tuple[Feed, Feed]:
    """Write feeds and configs below `out`; what an earlier demo left there is removed."""
    for name in ("water", "turbines"):
        if (out / name).exists():
            shutil.rmtree(out / name)
        (out / name).mkdir(parents=True)
    water, turbines = out / "water", out / "turbines"
    n_water, water_faults = write_water(water / "feed.csv")
    n_turbines, turbine_faults = write_turbines(turbines / "feed.jsonl", seed)
    return (
        Feed(
            "Water branch",
            "Real: hourly flow of one pipeline branch, March to May 2022, from the river package. "
            "Three supply losses and a pumping peak are documented.",
            (Channel("Flow", "l/s"),),
            n_water,
            water_faults,
            *_configure(water, detector),
        ),
        Feed(
            "Wind farm",
            "Simulated: four turbines, one weather, ten-minute averages over five weeks. Seven "
            "faults, a cut-off line and a clock that steps back were put in. What is held on the "
            "day on which the bearing is replaced is answered: it is a fault.",
            (
                Channel("Gearbox", "°C"),
                Channel("Vibration", "mm/s"),
                Channel("Power", "kW"),
                Channel("Rotor", "rpm"),
                Channel("Air", "°C"),
            ),
            n_turbines,
            turbine_faults,
            *_configure(turbines, detector),
            answer_after=_REPAIRED * len(turbine.TURBINES),
        ),
    )


def _configure(folder: Path, detector: str | None) -> tuple[Path, Config]:
    """Copy the config of a feed beside it, with its paths and maybe another detector."""
    text = (files("rejex_stream.demo") / f"{folder.name}.toml").read_text(encoding="utf-8")
    here = json.dumps(str(folder.parent))[1:-1]
    text = text.replace(f"{FOLDER}/", f"{here}/")
    if detector is not None:
        sections = [part for part in text.split("\n\n") if not part.startswith("[detector]\n")]
        text = "\n\n".join([*sections, f"[detector]\nname = {json.dumps(detector)}\n"])
    path = folder / "pipeline.toml"
    path.write_text(text, encoding="utf-8")
    return path, load_config(path)


def write_water(path: Path) -> tuple[int, tuple[Fault, ...]]:
    """Write the water's flow as CSV; returns the number of rows and what is wrong in them."""
    written = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("time", "flow_l_s"))
        for time, flow in water():
            rows.writerow((time.isoformat(), flow))
            written += 1
    return written, water_faults()


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


@dataclass(slots=True)
class Played:
    """What a run of a feed brought; an observer of it.

    Attributes
    ----------
    summary
        Of the whole feed.
    incidents
        As they stand, by id, in the order in which they opened.
    """

    summary: RunSummary = field(default_factory=RunSummary)
    incidents: dict[str, Incident] = field(default_factory=dict)

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Take note of what became of incidents."""
        self.incidents |= {one.id: one for outcome in outcomes for one in outcome.incidents}

    def event(self, event: RunEvent) -> None:
        """Nothing about the run itself is shown."""


def play(feed: Feed) -> Played:
    """Run the pipeline of a feed to its end, as ``rejex-stream run`` would.

    Where somebody looks at it in between, the run is stopped there, and goes on with the answers.
    """
    played = Played()
    if feed.answer_after is None:
        played.summary = _run(feed, played)
        return played
    path = Path(str(feed.config.input.path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: feed.answer_after]))
    first = _run(feed, played)
    for incident in played.incidents.values():
        if incident.state is not IncidentState.CLOSED:
            answer = make_command(
                CommandKind.FAULT, id_=f"demo-{incident.id}", by="demo",
                given_ms=incident.changed_ms, note="The bearing was worn, and is replaced.",
                stream_key=incident.stream_key, incident=incident.id, version=incident.version,
            )  # fmt: skip
            ControlLine(feed.config).say(answer)
    with path.open("ab") as file:
        file.writelines(lines[feed.answer_after :])
    played.summary = _run(feed, played)
    played.summary.labels.update(first.labels)
    played.summary.reasons.update(first.reasons)
    return played


def _run(feed: Feed, played: Played) -> RunSummary:
    return run_pipeline(
        feed.config,
        observers=[played],
        on_alarm=lambda partition, alarm: None,  # the report shows them
        on_incident=lambda incident: None,  # the command prints them as they stand in the end
    )
