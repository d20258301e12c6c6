"""What an event costs beside bare work on a SortedList, and as everything grows.

python -m benchmarks.scaling [--quick]

Bare work is what no ranking in O(log n) can do without: two bisections, one score out, one in.
Every figure is a ratio to it within one turn, of processor time; medians of turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from sortedcontainers import SortedList

from benchmarks.harness import ratio, write
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, Verdict

EVENTS = 4000
"""That are timed in a turn."""


def bare(n: int, clock: Callable[[], float] = time.process_time, lists: int = 1) -> float:
    """Return µs an event of bare work on a sorted list of n scores, or on so many in turns."""
    draw = random.Random(0)
    if lists > 1:
        return _bare_in_turns(n, clock, lists, draw)
    scores = [draw.random() for _ in range(n + EVENTS)]
    fifo = deque(scores[:n], maxlen=n)
    ordered = SortedList(fifo)
    left, right, remove, add = (
        ordered.bisect_left, ordered.bisect_right, ordered.remove, ordered.add
    )  # fmt: skip
    start = clock()
    for score in scores[n:]:
        left(score)
        right(score)
        remove(fifo[0])
        fifo.append(score)
        add(score)
    return 1e6 * (clock() - start) / EVENTS


def _bare_in_turns(n: int, clock: Callable[[], float], lists: int, draw: random.Random) -> float:
    fifos = [deque((draw.random() for _ in range(n)), maxlen=n) for _ in range(lists)]
    kept = [(fifo, SortedList(fifo)) for fifo in fifos]
    scores = [draw.random() for _ in range(EVENTS)]
    start = clock()
    for i, score in enumerate(scores):
        fifo, ordered = kept[i % lists]
        ordered.bisect_left(score)
        ordered.bisect_right(score)
        ordered.remove(fifo[0])
        fifo.append(score)
        ordered.add(score)
    return 1e6 * (clock() - start) / EVENTS


class Fleet:
    """Keys with full windows, all of one model each, and what comes next of them."""

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

    def judged(self, each: int) -> list[Verdict]:
        """Return the verdicts of a poll with so many events of every key."""
        poll = [self._reading(key) for _ in range(each) for key in range(self._keys)]
        return self._engine.process(poll)

    def us(self, each: int) -> float:
        """Return µs an event of polls with so many events of every key."""
        polls = max(1, EVENTS // (each * self._keys))
        made = [
            [self._reading(key) for _ in range(each) for key in range(self._keys)]
            for _ in range(polls)
        ]
        start = time.process_time()
        for poll in made:
            self._engine.process(poll)
        return 1e6 * (time.process_time() - start) / (polls * len(made[0]))


def row(detector: str, n: int, channels: int, keys: int, each: int, turns: int) -> list[object]:
    """Return one line of a table."""
    fleet = Fleet(detector, n, channels, keys)
    fleet.us(each)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(turns):
        theirs.append(bare(n))
        ours.append(fleet.us(each))
    found: list[object] = [detector, n, channels, keys, each, statistics.median(ours)]
    found += [statistics.median(theirs), ratio(ours, theirs)]
    print(found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="at most 200 keys, n up to 10,000")
    quick = parser.parse_args().quick
    many, longest, turns = (200, 10_000, 3) if quick else (1000, 100_000, 5)
    aims = [("GMM", 500), ("GMM", 64), ("GMM", 1), ("HBOS", 500), ("HBOS", 1)]
    beside = [row(name, 2000, 8, 1, each, turns) for name, each in aims]
    beside += [row(name, 2000, 8, many, 1, turns) for name in ("GMM", "HBOS")]
    grown = [row("HBOS", n, 4, 1, 500, turns) for n in (500, 2000, 10_000, 100_000) if n <= longest]
    grown += [row("HBOS", 2000, d, 1, 500, turns) for d in (1, 4, 16, 64)]
    keys = (1, 10, 100, many) if quick else (1, 10, 100, 1000, 10_000)
    grown += [row("HBOS", 500, 4, k, 1, turns) for k in keys]
    grown += [row("HBOS", 500, 4, 10, each, turns) for each in (1, 8, 64, 500)]
    columns = ["detector", "n", "channels", "keys", "events a key and poll", "µs/event",
               "bare SortedList µs/event", "ratio"]  # fmt: skip
    write(
        "scaling",
        "An event beside bare SortedList work, and as everything grows",
        [
            ("The hot path: scoring, ranking and judging, without refits.", columns, beside),
            ("n, channels, keys, and events a key and poll.", columns, grown),
        ],
    )


if __name__ == "__main__":
    main()
