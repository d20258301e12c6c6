"""The engine beside what its arithmetic cannot do without: rank, evict and insert in a SortedList.

python -m benchmarks.beside [--before CHECKOUT] [--sensors 1000]

Rows of processes that take turns: this tree, the tree before if a checkout of it is given, and
peers. Each process measures engine and bare work in turns, too.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

N, CHANNELS, REPEATS = 2000, 8, 3
CASES = {
    "batch 500 of one sensor": (1, 500, 10_000),
    "one event at a time": (1, 1, 2000),
    "many sensors, one event each a poll": (0, 0, 3000),  # how many is said
}
DETECTORS = ("GMM", "HBOS", "Sensor")


def rows_of(events: int, seed: int) -> list[tuple[float, ...]]:
    """Return correlated rows."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(9).normal(size=(3, CHANNELS))
    X = rng.normal(size=(events, 3)) @ mix + rng.normal(0, 0.3, size=(events, CHANNELS))
    return [*map(tuple, X.tolist())]


def median_us(runs: list[Callable[[], object]], events: int) -> list[float]:
    """Return processor time an event, medians of calls in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, into in zip(runs, taken, strict=True):
            gc.collect()
            start = time.process_time()
            run()
            into.append((time.process_time() - start) / events * 1e6)
    return [statistics.median(each) for each in taken]


def window(n: int, windows: int, events: int = 4000) -> list[float]:
    """Return µs of a rank and a push: the window of this tree, and SortedLists."""
    from rejex_stream.rejection.window import ScoreWindow

    rng = np.random.default_rng(1)
    scores = rng.normal(size=events).tolist()
    ours = [ScoreWindow(n, rng.normal(size=n).tolist()) for _ in range(windows)]

    def run() -> None:
        for i, score in enumerate(scores):
            one = ours[i % windows]
            one.rank(score)
            one.push(score)

    return median_us([run, bare(windows, events, n)], events)


def bare(sensors: int, events: int, n: int = N) -> Callable[[], None]:
    """Return bare work on as many windows of n scores: rank, evict, insert."""
    from sortedcontainers import SortedList

    rng = np.random.default_rng(1)
    pasts = rng.normal(size=(sensors, n)).tolist()
    windows = [(SortedList(past), deque(past)) for past in pasts]
    scores = rng.normal(size=events).tolist()

    def run() -> None:
        for i, score in enumerate(scores):
            ordered, arrived = windows[i % sensors]
            ordered.bisect_left(score)
            ordered.bisect_right(score)
            ordered.remove(arrived.popleft())
            arrived.append(score)
            ordered.add(score)

    return run


def measure(detector: str, case: str, many: int) -> list[float]:
    """Return µs an event: the engine, bare work on one window, bare work on as many windows."""
    from rejex_stream.detectors import make_detector
    from rejex_stream.engine import Engine, EngineSpec
    from rejex_stream.engine.refit import RefitSchedule
    from rejex_stream.features import FeatureSpec
    from rejex_stream.rejection.budget import RejectionPolicy
    from rejex_stream.run.executors import InlineExecutor
    from rejex_stream.types import Position, Reading

    sensors, batch, events = CASES[case]
    sensors, batch = sensors or many, batch or many
    spec = EngineSpec(
        make_detector(detector),
        FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.05, rate=0.05),
        window=N,
        evidence=False,
        schedule=RefitSchedule(first_fit_events=1000, refit_every_events=None,
                               refit_lag_events=0, buffer_events=1000),
    )  # fmt: skip
    engine = Engine(spec, InlineExecutor())

    def readings(rows: list[tuple[float, ...]], key: str | None, start: int) -> list[Reading]:
        keys = [key or f"s{i % sensors}" for i in range(len(rows))]
        return [
            Reading(key, key, 1000 * (start + i), row, Position("t", 0, start + i))
            for i, (key, row) in enumerate(zip(keys, rows, strict=True))
        ]

    past = rows_of(N + 1100, 5)
    for i in range(sensors):
        engine.process(readings(past, f"s{i}", 0))
    feed = readings(rows_of(events, 7), None, len(past))
    polls = [feed[start : start + batch] for start in range(0, events, batch)]

    def run() -> None:
        for poll in polls:
            engine.process(poll)

    return median_us([run, bare(1, events), bare(sensors, events)], events)


def peer(name: str) -> list[float]:
    """Return µs an event of a peer that scores and learns one event at a time."""
    events = 2000
    rows = rows_of(events + 1000, 7)
    if name == "krcf":
        from krcf import RandomCutForest

        forest = RandomCutForest({
            "dimensions": CHANNELS, "shingle_size": 1, "num_trees": 50, "sample_size": 256,
            "random_seed": 0, "parallel_execution_enabled": False,
        })  # fmt: skip
        score, learn, feed = forest.score, forest.update, [np.array(row) for row in rows]
    else:
        from river import anomaly

        trees = anomaly.HalfSpaceTrees(seed=0)
        names = [f"c{i}" for i in range(CHANNELS)]
        score, learn = trees.score_one, trees.learn_one
        feed = [dict(zip(names, row, strict=True)) for row in rows]
    for x in feed[:1000]:
        learn(x)

    def run() -> None:
        for x in feed[1000:]:
            score(x)
            learn(x)

    return median_us([run, bare(1, events)], events)


def child(tree: Path, what: list[str]) -> list[float]:
    """Measure in a process of its own, with the package of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", *what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--sensors", type=int, default=1000, help="how many 'many' are")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.measure:
        what = given.measure
        print(json.dumps(measure(*what[:2], int(what[2])) if len(what) > 1 else peer(what[0])))
        return
    from benchmarks.harness import write

    here, rows = Path(__file__).resolve().parent.parent, []
    for case in CASES:
        for detector in DETECTORS:
            what = [detector, case, str(given.sensors)]
            before = child(given.before, what) if given.before else None
            now = child(here, what)
            was = ["–", "–"] if before is None else [before[0], before[0] / before[1]]
            rows.append([detector, case, *was, now[0], now[0] / now[1], now[0] / now[2]])
            print(rows[-1], flush=True)
    peers = []
    for name in ("krcf", "River HalfSpaceTrees"):
        if name == "krcf" and importlib.util.find_spec("krcf") is None:
            continue
        taken = child(here, [name])
        peers.append([name, taken[0], taken[0] / taken[1]])
    windows = []
    for n, many in ((500, 1), (N, 1), (10_000, 1), (100_000, 1), (N, given.sensors)):
        ours, theirs = window(n, many)
        windows.append([n, many, ours, theirs, ours / theirs])
    write("beside", "The engine beside bare SortedList work", [
        (
            f"n = {N:,}, {CHANNELS} channels, no refit while it is measured, no evidence. Bare is "
            "rank, evict and insert in one SortedList of n scores, measured in turns in the same "
            f"process; the last column is beside as many lists as there are sensors ('many': "
            f"{given.sensors:,}), which leave the cache. Before: the tree given with --before.",
            ["detector", "work", "before µs", "before / bare", "now µs", "now / bare",
             "now / as many lists"],
            rows,
        ),
        (
            "Peers that score and learn one event at a time; they give a score, not a verdict, "
            "and learn with every event, where a detector here is fitted again now and then.",
            ["peer", "µs", "peer / bare"],
            peers,
        ),
        (
            "A rank and a push of the window alone, beside the same in a SortedList and a queue.",
            ["n", "windows", "µs", "SortedList µs", "ratio"],
            windows,
        ),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
