"""What an event costs in the engine with either core, beside bare work on a SortedList.

python -m benchmarks.engine [--quick]

From the reading to the verdict, without fits and evidence (`benchmarks.peers` has both). Bare work
is what no ranking in O(log n) can do without: two bisections, one score out, one in. Both cores
judge the same events in turns and are compared verdict by verdict; ratios are within one turn, of
processor time. Without the native core Python is measured alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from sortedcontainers import SortedList

from benchmarks.harness import ratio, write
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.engine import core
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, Verdict

EVENTS = 4000
"""That are timed in a turn."""
N, CHANNELS = 2000, 8
ONE = [(name, 1, each) for name in ("HBOS", "GMM", "Sensor", "KNN") for each in (500, 1)]
MANY = [(name, keys, 1) for name in ("HBOS", "Sensor") for keys in (100, 1000)]


def bare(n: int, clock: Callable[[], float] = time.process_time, lists: int = 1) -> float:
    """Return µs an event of bare work on a sorted list of n scores, or on so many in turns."""
    draw = random.Random(0)
    fifos = [deque((draw.random() for _ in range(n)), maxlen=n) for _ in range(lists)]
    kept = [(fifo, SortedList(fifo)) for fifo in fifos]
    scores = [draw.random() for _ in range(EVENTS)]
    if lists == 1:
        return _bare_on_one(*kept[0], scores, clock)
    start = clock()
    for i, score in enumerate(scores):
        fifo, ordered = kept[i % lists]
        ordered.bisect_left(score)
        ordered.bisect_right(score)
        ordered.remove(fifo[0])
        fifo.append(score)
        ordered.add(score)
    return 1e6 * (clock() - start) / EVENTS


def _bare_on_one(
    fifo: deque[float], ordered: SortedList, scores: list[float], clock: Callable[[], float]
) -> float:
    left, right, remove, add = (
        ordered.bisect_left, ordered.bisect_right, ordered.remove, ordered.add
    )  # fmt: skip
    start = clock()
    for score in scores:
        left(score)
        right(score)
        remove(fifo[0])
        fifo.append(score)
        add(score)
    return 1e6 * (clock() - start) / EVENTS


class Fleet:
    """Keys with full windows, a model each, and what comes next of them."""

    def __init__(
        self,
        detector: str,
        n: int,
        channels: int,
        keys: int,
        refit_every: int | None = None,
        *,
        native: bool = True,
    ) -> None:
        schedule = RefitSchedule(
            first_fit_events=1000, refit_every_events=refit_every, refit_lag_events=0,
            buffer_events=1000, calibration="holdout",
        )  # fmt: skip
        spec = EngineSpec(
            make_detector(detector), FeatureSpec(tuple(f"c{i}" for i in range(channels))),
            RejectionPolicy(0.05, rate=0.05), window=n, evidence=False, schedule=schedule,
        )  # fmt: skip
        self._engine, self._keys, self._seen = Engine(spec, InlineExecutor()), keys, 0
        if not native:  # where there is a native core
            self._engine._core = None
        draw = np.random.default_rng(0)
        mixing = draw.normal(size=(3, channels))
        latent = draw.normal(size=(20_000, 3)) @ mixing
        values = latent + draw.normal(0, 0.3, size=latent.shape)
        self._rows = list(map(tuple, values.tolist()))
        for key in range(keys):
            self._engine.process([self._reading(key) for _ in range(1000 + n)])

    def _reading(self, key: int) -> Reading:
        self._seen += 1
        i, name = self._seen, f"s{key}"
        return Reading(name, name, i, self._rows[i % len(self._rows)], Position("t", 0, i))

    def _poll(self, each: int) -> list[Reading]:
        return [self._reading(key) for _ in range(each) for key in range(self._keys)]

    def judged(self, each: int) -> list[Verdict]:
        """Return the verdicts of a poll with so many events of every key."""
        return self._engine.process(self._poll(each))

    def us(self, each: int) -> float:
        """Return µs an event of polls with so many events of every key."""
        made = [self._poll(each) for _ in range(max(1, EVENTS // (each * self._keys)))]
        start = time.process_time()
        for poll in made:
            self._engine.process(poll)
        return 1e6 * (time.process_time() - start) / (len(made) * len(made[0]))


def row(detector: str, n: int, channels: int, keys: int, each: int, turns: int) -> list[object]:
    """Return one line of a table: what was run, and what it took, ratios within each turn."""
    names = ("Python", "native") if core()[0] is not None else ("Python",)
    fleets = {name: Fleet(detector, n, channels, keys, native=name == "native") for name in names}
    for count in {1, 7 if keys == 1 else 3, each}:
        said = [fleet.judged(count) for fleet in fleets.values()]
        if said[0] != said[-1]:
            sys.exit(f"benchmarks.engine: the cores differ, {detector}, {keys} x {count} events")
    taken: dict[str, list[float]] = {"bare": [], "lists": [], "Python": [], "native": []}
    for _ in range(turns):
        taken["bare"].append(bare(n))
        taken["lists"].append(bare(n, lists=keys) if keys > 1 else taken["bare"][-1])
        for name, fleet in fleets.items():
            taken[name].append(fleet.us(each))
    python, native, one = taken["Python"], taken["native"], taken["bare"]
    found: list[object] = [detector, n, channels, keys, each, statistics.median(python)]
    found += [statistics.median(native) if native else "-", statistics.median(one)]
    found += [ratio(python, one)]
    found += [ratio(native, one), ratio(python, native)] if native else ["-", "-"]
    found += [ratio(taken["lists"], one)]
    print(*found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn of few rows, no results")
    quick = parser.parse_args().quick
    print(core()[1])
    if quick:
        for name, keys, each in [*ONE[:6], ("HBOS", 20, 1)]:
            row(name, N, CHANNELS, keys, each, turns=1)
        print("the same verdicts" if core()[0] is not None else "by Python alone")
        return
    rows = [row(name, N, CHANNELS, keys, each, turns=5) for name, keys, each in ONE + MANY]
    grown = [("HBOS", n, 4, 1, 500) for n in (500, 2000, 10_000, 100_000)]
    grown += [("HBOS", N, channels, 1, 500) for channels in (1, 4, 16, 64)]
    grown += [("HBOS", 500, 4, keys, 1) for keys in (1, 10, 100, 1000)]
    grown += [("HBOS", 500, 4, 10, each) for each in (1, 8, 64, 500)]
    columns = ["detector", "n", "channels", "streams", "events of each in a poll",
               "Python µs/event", "native µs/event", "bare µs/event", "Python beside bare",
               "native beside bare", "Python / native", "a list for each beside one"]  # fmt: skip
    write(
        "engine",
        "An event in the engine beside bare SortedList work",
        [
            ("From the reading to the verdict, no fits, no evidence.", columns, rows),
            (
                "As n, channels, streams, and events of each in a poll grow.",
                columns,
                [row(*asked, turns=3) for asked in grown],
            ),
        ],
    )


if __name__ == "__main__":
    main()
