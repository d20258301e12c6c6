"""How far one worker goes, and Spark.

python -m benchmarks.scale [--days 3] [--only run]
python -m benchmarks.scale --only run,spark     from .venv-spark; a result of its own

Each way judges the same file of sensors, one event a minute each, and is charged the processor time
of all its processes: on a machine that is shared, wall time says how busy the others were.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.harness import RESULTS, paired, write
from rejex_stream.detectors import make_detector

SENSORS = 200
_PR_SET_CHILD_SUBREAPER = 36
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
    wall = time.perf_counter() - began
    while _reaped():
        pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _reaped() -> bool:
    """Wait for one whose parent has gone before it, Spark's JVM say: its time counts, too."""
    try:
        return os.wait()[0] > 0
    except ChildProcessError:
        return False


ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def ways(config: Path, only: set[str]) -> dict[str, list[str]]:
    """Return the programs that are measured, by what they are called."""
    program = [sys.executable, "-m", "rejex_stream"]
    found = {}
    if "run" in only:
        found["run"] = [*program, "run", str(config)]
    if "spark" in only:
        for executors in (1, 2):  # processes of their own, of one core each
            found[f"spark, {executors} executor{'s' * (executors - 1)}"] = [
                *program, "spark", str(config), "--master", f"local-cluster[{executors},1,1024]",
                "--shuffle-partitions", "4", "--batch-events", "100000",
            ]  # fmt: skip
    return found


def _constant(result: str, table: int, column: str, **named: str) -> float:
    """Return a figure that another benchmark has measured and committed."""
    found = json.loads((RESULTS / f"{result}.json").read_text())["tables"][table]
    for row in found["rows"]:
        cells = dict(zip(found["columns"], row, strict=True))
        if all(cells[name] == value for name, value in named.items()):
            return float(cells[column])
    raise KeyError(f"{result}: no row with {named}")


def on_paper(sensors: int, detector: str) -> list[list[object]]:
    """Say what so many sensors, an event a minute each, need: a term a row, from constants."""
    rate, window, share = sensors / 60, 2_000, 0.02
    us = _constant("kafka", 0, "CPU µs/event", client="confluent", loop=f"service, {detector}")
    memory = _constant("memory", 0, "bytes per key", detector=detector)
    kept = _constant("memory", 0, "snapshot bytes", detector=detector)
    view_ms, keys = (_constant("state", 0, name, moved="all") for name in ("all work ms", "keys"))
    view_us = view_ms / keys * 1e3
    rows = np.random.default_rng(1).normal(size=(window, 4))
    recipe = make_detector(detector)
    fits = paired({"fit": lambda: recipe.fit(rows, seed=1)}, 21)["fit"]
    fit_ms = 1e3 * statistics.median(fits)
    every, interval_s, seconds = 4_000, 300, 30
    people = rate * share * seconds * 24 / 8  # as many at work at once, in three shifts
    return [
        ["reviewers, if each of them is asked", "people", people,
         f"{share:.0%} rejected, {seconds} s each (assumed), 8 h a day"],
        ["memory of workers", "GiB", sensors * memory / 2**30, f"{memory:,.0f} bytes a sensor"],
        ["snapshots, written again and again", "MB/s", sensors * kept / interval_s / 1e6,
         f"{kept:,.0f} bytes a sensor every {interval_s} s"],
        ["views of snapshots, in the loop", "cores", sensors * view_us / 1e6 / interval_s,
         f"{view_us:.0f} µs a sensor every {interval_s} s"],
        ["judging, with all that a worker does", "cores", rate * us / 1e6, f"{us:.1f} µs an event"],
        ["fits", "cores", rate / every * fit_ms / 1e3,
         f"{fit_ms:.1f} ms every {every:,} events of a sensor"],
        ["events through the broker", "events/s", rate, "an event a minute of a sensor"],
    ]  # fmt: skip


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=3.0)
    parser.add_argument("--sensors", type=int, nargs="*", default=[SENSORS])
    parser.add_argument("--detector", default="HBOS")
    parser.add_argument("--only", default="run")
    parser.add_argument("--name", default="scale-spark", help="of the result with Spark")
    options = parser.parse_args()
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("orphans cannot be charged here: Linux is needed")
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
    if "spark" in options.only:
        _write_of_spark(options.name, options.detector, rows)
    else:
        _write(options.detector, rows)


COLUMNS = ["way", "sensors", "events", "events/s", "processor µs/event", "wall s", "load"]


def _write_of_spark(name: str, detector: str, rows: list[list[object]]) -> None:
    write(
        name,
        f"One worker, and Spark {version('pyspark')} with one and two executors",
        [(f"{detector}, window 1000, one file, each a run from its start.", COLUMNS, rows)],
        note="Processor time of all processes of a way, starts of Python and of the JVMs included; "
        "load is that before it began. The machine was shared and busy: wall times say how much.",
    )


def _write(detector: str, rows: list[list[object]]) -> None:
    write(
        "scale",
        "One process",
        [
            (f"{detector}, window 1000, one file.", COLUMNS, rows),
            (
                "A million sensors on paper: one event a minute each, n = 2,000. The constants are "
                "those of kafka.md, memory.md and state.md; a fit is measured here.",
                ["what", "unit", "needed", "of which"],
                on_paper(1_000_000, detector),
            ),
        ],
        note="Processor time of all processes of a way; load is that before it began.",
    )


if __name__ == "__main__":
    main()
