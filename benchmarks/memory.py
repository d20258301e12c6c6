"""Bytes per stream key: how many sensors fit a machine, and where the bytes of a key are.

python -m benchmarks.memory [--keys 1000] [--parts] [--held]

With `--parts` the objects of one key are walked instead, part by part: each object counts once, for
the first part that holds it, and what other keys hold too counts for none. What the allocator
keeps, and what compiled code hides (a tree's nodes), is the difference from the growth of the
process, measured in the same run. It is printed, and written beside the first as `memory-parts`.
With `--held` one key is looked at before a fault, while it is held, and after it was taken for
normal, when an earlier reference is kept: written as `memory-held`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import sys
import warnings
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import write
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms, Hold
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

N, CHANNELS = 2000, 4
CASES: tuple[tuple[str, int, int | None, bool], ...] = (
    ("HBOS", 1000, None, False),
    ("HBOS", 1000, 3, False),
    ("HBOS", 1000, 5, False),
    ("HBOS", 2000, 3, False),
    ("GMM", 1000, 3, False),
    ("KNN", 1000, 3, False),
    ("Sensor", 1000, None, False),
    ("Sensor", 1000, 3, False),
    ("HBOS", 2000, None, True),
    ("HBOS", 2000, 3, True),
    ("Sensor", 2000, None, True),
    ("Sensor", 2000, 3, True),
)
"""Detector, rows of the buffer, digits of a value, and whether it is refitted and alarms are on, as
in a service; then a key is looked at where it has most, just before a new model is swapped in."""
_SHARED = (type, ModuleType, FunctionType, Engine)  # code belongs to no key, nor do other keys

PARTS: dict[str, Callable[[Any], object]] = {
    "window, sorted": lambda key: key._judge.window._sorted,
    "window, by age": lambda key: key._judge.window._ring,
    "row buffer": lambda key: key.model._rows,
    "rows of the recipe": lambda key: key.model._serving.training,
    "scores of the next model": lambda key: getattr(key.model._shadow, "shadow_scores", None),
    "the next model": lambda key: key.model._shadow,
    "fitted model": lambda key: key.model._serving.fitted,
    "calibration scores": lambda key: key._judge.tail,
    "rows held, guard": lambda key: [key.model._held, key.model._guard],
    "alarm": lambda key: key.tracker._alarm,
    "incidents, plans, mutes": lambda key: [key.tracker, key.plans, key._mutes],
    "judge": lambda key: key._judge,
    "model": lambda key: key.model,
    "features": lambda key: [key._sensors, key._recent],
    "the rest": lambda key: key,
}
"""How to get at them; the last is all."""


def filled(
    detector: str, keys: int, buffer: int, digits: int | None, service: bool
) -> tuple[Engine, float]:
    """Return an engine of so many keys with full windows, and how the process grew a key."""
    warnings.simplefilter("ignore")
    made = make_detector(detector)
    schedule = RefitSchedule(
        first_fit_events=buffer, refit_every_events=None, refit_lag_events=0, buffer_events=buffer,
        calibration="holdout",
    )  # fmt: skip
    events = buffer + N
    if service:
        schedule = RefitSchedule.for_window(N)
        events = schedule.next_request(schedule.first_fit_events) + N - 1
    spec = EngineSpec(
        made,
        FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.05, rate=0.05),
        window=N,
        evidence=False,
        schedule=schedule.guarded_by(getattr(made, "guard_quantile", None)),
        alarms=Alarms() if service else None,
    )
    engine = Engine(spec, InlineExecutor())
    rng = np.random.default_rng(0)

    def fill(key: str) -> None:
        drawn = rng.normal(10, 1, size=(events, CHANNELS))
        values = (drawn if digits is None else drawn.round(digits)).tolist()
        engine.process(
            [Reading(key, key, i, tuple(row), Position("t", 0, i)) for i, row in enumerate(values)]
        )

    fill("first")  # tables and libraries are there
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    for i in range(keys):
        fill(f"sensor-{i}")
    gc.collect()
    return engine, (process.memory_info().rss - before) / keys


def measure(case: tuple[str, int, int, int | None, bool]) -> list[object]:
    """Fill every key's window and report how the process grew."""
    detector, keys, buffer, digits, service = case
    engine, per_key = filled(*case)
    view = engine.view("sensor-0")
    snapshot = len(view.state()) + len(view.model())
    return [
        detector, _written(digits), "yes" if service else "no", keys, N, buffer, per_key,
        per_key * 10_000 / 2**30, snapshot,
    ]  # fmt: skip


def walk(case: tuple[str, int, int, int | None, bool]) -> list[int]:
    """Return the bytes of a key by part; the last number is what none of them has."""
    engine, per_key = filled(*case)
    sizes = [*parts_of(engine, "sensor-0", beside="first").values()]
    return [*sizes, round(per_key) - sum(sizes), round(per_key)]


def parts_of(engine: Engine, key: str, *, beside: str) -> dict[str, int]:
    """Return the bytes of a key by part, without what another key has too."""
    seen: set[int] = set()
    size_of(engine._live[beside], seen)
    return {name: size_of(part(engine._live[key]), seen) for name, part in PARTS.items()}


def size_of(root: object, seen: set[int]) -> int:
    """Return the bytes of an object and of all that it holds and nobody has seen yet."""
    waiting, total = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        waiting += _held_by(one)
    return total


def _held_by(one: object) -> Iterable[object]:
    if isinstance(one, np.ndarray):  # says nothing of whose numbers it sees
        return [] if one.base is None else [one.base]
    if isinstance(one, BuiltinFunctionType):
        return [one.__self__]
    return gc.get_referents(one)


def held(detector: str) -> list[list[object]]:
    """Return the bytes of a snapshot of one key, in three states of an incident."""
    made, rng = make_detector(detector), np.random.default_rng(0)
    spec = EngineSpec(
        made, FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.05, rate=0.05), window=N, alarms=Alarms(),
        hold=Hold(adopt_after_events=N + N // 2),
        schedule=RefitSchedule.for_window(N).guarded_by(getattr(made, "guard_quantile", None)),
    )  # fmt: skip
    engine, at, rows = Engine(spec, InlineExecutor()), 0, list[list[object]]()
    before, states = 0, ("quiet", "held, with an interim reference", "an earlier reference is kept")
    for state, events, raised in zip(states, (7_000, N + N // 3, N), (0.0, 8.0, 8.0), strict=True):
        X = rng.normal(10, 1, size=(events, CHANNELS)).round(3)
        X[:, 0] += raised
        values = enumerate(X.tolist(), at)
        engine.process(
            [Reading("s", "s", 60_000 * i, tuple(row), Position("t", 0, i)) for i, row in values]
        )
        at += events
        view = engine.view("s")
        size = len(view.state()) + len(view.model())
        before = before or size
        rows.append([detector, state, size, size / before])
    return rows


def _written(digits: int | None) -> str:
    return "doubles" if digits is None else f"{digits} decimals"


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--parts", action="store_true", help="where the bytes of a key are")
    parser.add_argument("--held", action="store_true", help="what an incident adds to a key")
    asked = parser.parse_args()
    if asked.held:
        found = [row for detector in ("HBOS", "GMM", "Sensor") for row in held(detector)]
        print(*found, sep="\n")
        names = ["detector", "state of the key", "snapshot bytes", "times quiet"]
        caption = (
            f"One key with {CHANNELS} channels, n = {N:,}; the first is 8 sd off from then on."
        )
        write("memory-held", "What an incident adds to a stream key", [(caption, names, found)])
        return
    rows: list[list[Any]] = []
    run: Callable[[Any], list[Any]] = walk if asked.parts else measure
    for detector, buffer, digits, service in CASES:
        with mp.get_context("spawn").Pool(1) as fresh:
            rows.append(fresh.apply(run, ((detector, asked.keys, buffer, digits, service),)))
        print(rows[-1], flush=True)
    what = (
        f"with a full window of n = {N:,} scores and {CHANNELS} channels; the buffer holds the "
        "rows a refit sees, and the training rows of the serving model are kept as its recipe. "
        "Refitted: as in a service, looked at where it has most, just before a swap."
    )
    if asked.parts:
        names = [
            f"{name}, {buffer:,} rows, {_written(digits)}{', refitted' if service else ''}"
            for name, buffer, digits, service in CASES
        ]
        parts = [*PARTS, "allocator, compiled code", "growth of the process"]
        by_part: list[list[Any]] = [
            [part, *sizes] for part, sizes in zip(parts, zip(*rows, strict=True), strict=True)
        ]
        caption = f"Bytes of a key among {asked.keys:,} {what}"
        write("memory-parts", "Where the bytes of a stream key are",
              [(caption, ["part", *names], by_part)])  # fmt: skip
        return
    write(
        "memory",
        "Memory per stream key",
        [
            (
                f"Growth of the process per key {what}",
                ["detector", "values", "refitted", "keys measured", "n", "buffer rows",
                 "bytes per key", "GiB for 10,000 keys", "snapshot bytes"],
                rows,
            )
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
