"""What it costs to judge a sensor beside its siblings: the same readings with them and without.

python -m benchmarks.siblings [--sensors 100] [--turns 5]

An engine alone judges a farm by `Sensor`, with evidence and the fits of `[refit]`'s defaults: the
sensors go up and down together and send at the same times, one reading of each in a poll and in
blocks. Processor time, with and without in turns on the same readings, either core. Once without
fits: what an event costs; and once with as many as the schedule has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import chain

import numpy as np

from benchmarks.harness import ratio, write
from benchmarks.worker import cores, use
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

N, CHANNELS = 200, ("a", "b", "c")


def readings(sensors: int) -> Iterator[list[Reading]]:
    """Yield what all sensors of a farm read, step by step."""
    draw, at = np.random.default_rng(0), 0
    names = [f"s{k}" for k in range(sensors)]
    while True:
        weather = 6 * np.sin(at / 17) + draw.normal(0, 1, len(CHANNELS))
        values = np.round(40 + weather + 0.3 * draw.normal(size=(sensors, len(CHANNELS))), 3)
        yield [
            Reading(name, name, 60_000 * at, tuple(row), Position("t", 0, at * sensors + k))
            for k, (name, row) in enumerate(zip(names, values.tolist(), strict=True))
        ]
        at += 1


def engine(siblings: str, *, fits: bool) -> Engine:
    """Return an engine that judges a farm, beside siblings or not."""
    spec = EngineSpec(
        make_detector("Sensor"), FeatureSpec(CHANNELS, siblings=siblings),
        RejectionPolicy(0.05, rate=0.05), window=N, evidence=True,
        schedule=RefitSchedule.for_window(N, **({} if fits else {"refit_every_events": None})),
    )  # fmt: skip
    return Engine(spec, InlineExecutor())


def row(name: str, sensors: int, each: int, turns: int, *, fits: bool) -> list[object]:
    """Return one line: with siblings and without, in turns."""
    use(name)
    feed, ways = readings(sensors), {said: engine(said, fits=fits) for said in ("", "*")}
    taken: dict[str, list[float]] = {said: [] for said in ways}
    # A turn has a fit of each sensor, where there are fits.
    n_steps, warm = (2 * N if fits else 60), 2 * N
    for steps in [warm, *[n_steps] * turns]:
        made = [next(feed) for _ in range(steps)]
        polls = [[*chain.from_iterable(made[i : i + each])] for i in range(0, steps, each)]
        for said, one in ways.items():
            begun = time.process_time()
            for poll in polls:
                one.process(poll)
            taken[said].append(1e6 * (time.process_time() - begun) / (steps * sensors))
    alone, beside = (times[1:] for times in taken.values())
    found: list[object] = [name, "yes" if fits else "no", each]
    found += [statistics.median(alone), statistics.median(beside), ratio(beside, alone)]
    print(found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    rows = [
        row(name, asked.sensors, each, asked.turns, fits=fits)
        for name in cores() for fits in (False, True) for each in (1, 20)
    ]  # fmt: skip
    columns = ["core", "fits", "steps in a poll", "alone µs/event", "beside µs/event", "ratio"]
    about = f"{asked.sensors} sensors, {len(CHANNELS)} channels, window {N}, evidence."
    write("siblings", "An event beside its siblings", [(about, columns, rows)])


if __name__ == "__main__":
    main()
