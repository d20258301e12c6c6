"""Bytes per stream key: how many sensors fit a machine.

python -m benchmarks.memory [--keys 1000]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import warnings

import numpy as np
import psutil

from benchmarks.harness import write
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.budget import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

N, CHANNELS = 2000, 4


def measure(
    detector: str,
    keys: int,
    buffer: int,
    digits: int | None,
    answers: mp.Queue,  # type: ignore[type-arg]
) -> None:
    """Fill every key's window and report how the process grew."""
    warnings.simplefilter("ignore")
    spec = EngineSpec(
        make_detector(detector),
        FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.05, rate=0.05),
        window=N,
        evidence=False,
        schedule=RefitSchedule(
            first_fit_events=buffer, refit_every_events=None, refit_lag_events=0,
            buffer_events=buffer, calibration="holdout",
        ),
    )  # fmt: skip
    engine = Engine(spec, InlineExecutor())
    rng = np.random.default_rng(0)
    events = buffer + N

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
    per_key = (process.memory_info().rss - before) / keys
    snapshot = sum(map(len, engine.snapshot_stream("sensor-0")[:2]))
    written = "doubles" if digits is None else f"{digits} decimals"
    answers.put([detector, written, keys, N, buffer, per_key, per_key * 10_000 / 2**30, snapshot])


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1000)
    keys = parser.parse_args().keys
    rows = []
    for detector, buffer, digits in (
        ("HBOS", 1000, None),
        ("HBOS", 1000, 3),
        ("HBOS", 1000, 5),
        ("HBOS", 2000, 3),
        ("GMM", 1000, 3),
        ("KNN", 1000, 3),
    ):
        answers: mp.Queue = mp.get_context("spawn").Queue()  # type: ignore[type-arg]
        child = mp.get_context("spawn").Process(
            target=measure, args=(detector, keys, buffer, digits, answers)
        )
        child.start()
        rows.append(answers.get())
        child.join()
    write(
        "memory",
        "Memory per stream key",
        [
            (
                f"Growth of the process per key with a full window of n = {N:,} scores and "
                f"{CHANNELS} channels; the buffer holds the rows a refit sees, and the training "
                "rows of the serving model are kept as its recipe.",
                ["detector", "values", "keys measured", "n", "buffer rows", "bytes per key",
                 "GiB for 10,000 keys", "snapshot bytes"],
                rows,
            )
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
