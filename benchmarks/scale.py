"""How far one worker goes, and two, and Spark; how long a history takes to be judged anew.

python -m benchmarks.scale [--days 3] [--only run,replay,spark]

Each way judges the same file of sensors, one event a minute each, and is charged the processor time
of all its processes: on a machine that is shared, wall time says how busy the others were.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import write

SENSORS = 200
CONFIG = """
[pipeline]
name = "scale"
[input]
path = "{feed}"
time = "t"
time_unit = "ms"
sensor = "id"
channels = ["flow", "pressure"]
[detector]
name = "{detector}"
[rejection]
contamination = 0.02
review_budget = {{ rate = 0.02 }}
window = 1000
[monitor]
enabled = {monitor}
[refit]
executor = "inline"
[output]
verdicts = "{out}/verdicts.jsonl"
"""


def feed(path: Path, sensors: int, minutes: int) -> int:
    """Write a file of sensors in turns; returns its events."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write("t,id,flow,pressure\n")
        for minute in range(minutes):
            at = 1_700_000_000_000 + minute * 60_000
            values = rng.normal(10, 1, sensors) + 9 * (rng.random(sensors) < 0.01)
            for i, (flow, pressure) in enumerate(
                zip(values, rng.normal(3, 0.2, sensors), strict=True)
            ):
                file.write(f"{at},s{i},{flow:.3f},{pressure:.3f}\n")
    return sensors * minutes


def charged(arguments: list[str]) -> tuple[float, float]:
    """Run a program; return its wall time and the processor time of all it started, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    quiet = subprocess.DEVNULL
    subprocess.run(arguments, check=True, stdout=quiet, stderr=quiet, env={**os.environ, **ONE})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, used


ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def ways(config: Path, only: set[str]) -> dict[str, list[str]]:
    """Return the programs that are measured, by what they are called."""
    program = [sys.executable, "-m", "rejex_stream"]
    found = {}
    if "run" in only:
        found["run"] = [*program, "run", str(config)]
    if "replay" in only:
        found["replay, two configs, 1 process"] = [*program, "replay", str(config)]
        found["replay, two configs, 2 processes"] = [*found["replay, two configs, 1 process"],
                                                     "--workers", "2"]  # fmt: skip
    if "spark" in only:
        for cores in (1, 2):
            found[f"spark, local[{cores}]"] = [
                *program, "spark", str(config), "--master", f"local[{cores}]",
                "--shuffle-partitions", "4", "--batch-events", "100000",
            ]  # fmt: skip
    return found


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=3.0)
    parser.add_argument("--sensors", type=int, nargs="*", default=[SENSORS])
    parser.add_argument("--detector", default="HBOS")
    parser.add_argument("--only", default="run,replay,spark")
    options = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory(prefix="rejex-scale-") as name:
        for sensors in options.sensors:
            # The same number of events, however many sensors share them.
            minutes = round(options.days * 1440 * SENSORS / sensors)
            path = Path(name) / f"feed-{sensors}.csv"
            events = feed(path, sensors, minutes)
            for i, way in enumerate(ways(Path("-"), set(options.only.split(",")))):
                folder = Path(name) / f"{sensors}-{i}"
                folder.mkdir()
                config = folder / "scale.toml"
                monitor = "true" if way == "run" else "false"
                text = CONFIG.format(
                    feed=path, out=folder, detector=options.detector, monitor=monitor
                )
                config.write_text(text)
                load = os.getloadavg()[0]
                wall, used = charged(ways(config, set(options.only.split(",")))[way])
                rows.append([way, sensors, events, events / wall, 1e6 * used / events, wall, load])
                print(rows[-1], flush=True)
    columns = ["way", "sensors", "events", "events/s", "processor µs/event", "wall s", "load"]
    write(
        "scale",
        "One process, two, and Spark",
        [(f"{options.detector}, window 1000, one file.", columns, rows)],
        note="Processor time of all processes of a way; load is that before it began.",
    )


if __name__ == "__main__":
    main()
