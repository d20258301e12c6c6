"""The two pipelines of the demo: a feed and a config file each, as a user would write them.

No number in here was tuned on the labels. Windows are whole weeks, budgets are whole reviews a
day, γ is a round guess from above, and the detectors are the plain ones for the shape of the data.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from rejex_stream.config import Config, load_config
from rejex_stream.demo.feeds import WATER_SENSOR, Feed, write_turbines, write_water

__all__ = ["Channel", "Pipeline", "prepare"]


@dataclass(frozen=True, slots=True)
class Channel:
    """How a channel is shown."""

    name: str
    title: str
    unit: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One feed, its config file and how to present it.

    Attributes
    ----------
    name
        Of the folder that holds all its files.
    title, about
        For people.
    channels
        In the order of the config.
    feed
        What was written.
    config_path, config
        The TOML file, and what it says (with overrides from the environment).
    """

    name: str
    title: str
    about: str
    channels: tuple[Channel, ...]
    feed: Feed
    config_path: Path
    config: Config

    @property
    def folder(self) -> Path:
        """Where everything of this pipeline lies."""
        return self.config_path.parent

    @property
    def verdicts_path(self) -> Path:
        """Every verdict, one JSON object a line."""
        return self.folder / "verdicts.jsonl"

    @property
    def review_path(self) -> Path:
        """Every event that waits for a person."""
        return self.folder / "review.jsonl"

    @property
    def deadletter_path(self) -> Path:
        """Every record that could not be read."""
        return self.folder / "deadletter.jsonl"


_WATER = """\
# Hourly water flow of a pipeline branch: the WaterFlow data of the river package.
# Run it again:  rejex-stream run {config}   (remove the folder {state} to start anew)

[pipeline]
name = "demo-water"

[input]
path = {feed}
channels = ["flow_l_s"]
time = "time"
time_unit = "iso8601"
fixed_sensor = "{sensor}"

[features]                                # the flow, how fast it changes, and when
columns = [
  {{ kind = "raw", channel = "flow_l_s" }},
  {{ kind = "difference", channel = "flow_l_s", events = 1 }},
  {{ kind = "hour_of_day" }},
]

{detector}

[rejection]
contamination = 0.05                      # at most 5 % of the hours are expected to be wrong
window = 336                              # two weeks of hours
review_budget = {{ reviews_per_day = 1, events_per_day = 24 }}

[refit]
first_fit_events = 48                     # two days
refit_every_events = 336
refit_lag_events = 4
buffer_events = 336
executor = "thread"

[monitor]
rolling_events = 336
review_budget_per_day = 3                 # one is the average, three is a bad day
{output}"""

_WATER_DETECTOR = """\
[detector]
name = "KNN"                              # unusual is what was not seen for a whole day before
params = { n_neighbors = 24 }"""

_TURBINES = """\
# Four simulated wind turbines, ten-minute averages, each with its own model and window.
# Run it again:  rejex-stream run {config}   (remove the folder {state} to start anew)

[pipeline]
name = "demo-turbines"

[input]
path = {feed}
channels = ["gearbox_temp_c", "vibration_mm_s", "power_kw", "rotor_rpm"]
time = "time"
time_unit = "iso8601"
sensor = "turbine"

[features]                                # the channels, and the power of the last hour: a gearbox
carry_forward_events = 2                  # is warm from what it did, not from what it does
columns = [
  {{ kind = "raw", channel = "gearbox_temp_c" }},
  {{ kind = "raw", channel = "vibration_mm_s" }},
  {{ kind = "raw", channel = "power_kw" }},
  {{ kind = "raw", channel = "rotor_rpm" }},
  {{ kind = "mean", channel = "power_kw", events = 6 }},
]

{detector}

[rejection]
contamination = 0.02                      # at most 2 % of the time something is wrong
window = 1008                             # a week
review_budget = {{ reviews_per_day = 16, events_per_day = 576 }}    # four a turbine

[refit]
first_fit_events = 1008                   # a week
refit_every_events = 1008
refit_lag_events = 36
buffer_events = 2016                      # two weeks, once they are there
executor = "thread"

[monitor]
rolling_events = 1008
review_budget_per_day = 48                # sixteen is the average, this is a bad day
{output}"""

_TURBINE_DETECTOR = """\
[detector]
name = "GMM"                              # idling, part load, rated power: a few clouds of points
params = { n_components = 4 }"""

_OUTPUT = """
[output]
verdicts = {verdicts}
review = {review}
deadletter = {deadletter}

[state]
folder = {state}
"""


def prepare(out: Path, *, seed: int = 0, detector: str | None = None) -> tuple[Pipeline, ...]:
    """Write feeds and config files below `out`; what an earlier demo left there is removed.

    Parameters
    ----------
    out
        A folder; made if it is missing. Only ``water/`` and ``turbines/`` in it are touched.
    seed
        Of the simulation.
    detector
        A registry name that takes the place of both detectors, with its default parameters.

    Raises
    ------
    ConfigError
        If the detector cannot be used.
    """
    override = f"[detector]\nname = {json.dumps(detector)}" if detector else None
    for name in ("water", "turbines"):
        if (out / name).exists():
            shutil.rmtree(out / name)
        (out / name).mkdir(parents=True)
    water, turbines = out / "water", out / "turbines"
    return (
        _pipeline(
            title="Water branch",
            about="Real: hourly flow of one pipeline branch, March to May 2022, from the river "
            "package. Three supply losses and a pumping peak are documented.",
            channels=(Channel("flow_l_s", "Flow", "l/s"),),
            feed=write_water(water / "feed.csv"),
            template=_WATER,
            detector=override or _WATER_DETECTOR,
        ),
        _pipeline(
            title="Wind farm",
            about="Simulated: four turbines, one weather, ten-minute averages over four weeks. "
            "Six faults, a cut-off line and a clock that steps back were put in.",
            channels=(
                Channel("gearbox_temp_c", "Gearbox", "°C"),
                Channel("vibration_mm_s", "Vibration", "mm/s"),
                Channel("power_kw", "Power", "kW"),
                Channel("rotor_rpm", "Rotor", "rpm"),
            ),
            feed=write_turbines(turbines / "feed.jsonl", seed),
            template=_TURBINES,
            detector=override or _TURBINE_DETECTOR,
        ),
    )


def _pipeline(
    *,
    title: str,
    about: str,
    channels: tuple[Channel, ...],
    feed: Feed,
    template: str,
    detector: str,
) -> Pipeline:
    folder = feed.path.parent
    config_path = folder / "pipeline.toml"
    files = {
        "verdicts": folder / "verdicts.jsonl",
        "review": folder / "review.jsonl",
        "deadletter": folder / "deadletter.jsonl",
        "state": folder / "state",
    }
    quoted = {key: json.dumps(str(path)) for key, path in files.items()}
    text = template.format(
        config=config_path,
        state=files["state"],
        feed=json.dumps(str(feed.path)),
        sensor=WATER_SENSOR,
        detector=detector,
        output=_OUTPUT.format(**quoted),
    )
    config_path.write_text(text, encoding="utf-8")
    config = load_config(config_path)
    return Pipeline(folder.name, title, about, channels, feed, config_path, config)
