"""Detectors of others on the same stream, event by event: what an event costs.

python -m benchmarks.peers [--events 6000]

Each scores an event before it learns it, on one core, in turns with the others; processor time of
everything after a warm-up of 2,000 events, of AWS's forest that of the whole virtual machine. What
is not installed is left out, a peer with a word. They give a score, we three verdicts, and fits are
ours.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import write
from benchmarks.streams import rivals
from benchmarks.worker import cores, use
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import FloatArray, Position, Reading

N, CHANNELS, EVERY = 2000, 8, 4000
NAMES = tuple(f"c{i}" for i in range(CHANNELS))
SPEC = {
    "features": FeatureSpec(NAMES),
    "policy": RejectionPolicy(0.05, rate=0.05),
    "window": N,
    "schedule": RefitSchedule(
        first_fit_events=N, refit_every_events=EVERY, buffer_events=N, calibration="holdout"
    ),
}
FOREST = {"num_trees": 50, "seed": 0}


def feed(events: int) -> list[Reading]:
    """Return events of channels that three hidden ones drive."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(events, 3)) @ rng.normal(size=(3, CHANNELS))
    values = (latent + rng.normal(0, 0.3, size=latent.shape)).tolist()
    return [
        Reading("s", "s", 1000 * i, tuple(row), Position("t", 0, i)) for i, row in enumerate(values)
    ]


def timed(X: FloatArray, step: Callable[[list[float]], object]) -> float:
    """Return µs an event of a call for every row, after a warm-up."""
    rows = X.tolist()
    for row in rows[:N]:
        step(row)
    start = time.process_time()
    for row in rows[N:]:
        step(row)
    return 1e6 * (time.process_time() - start) / (len(rows) - N)


def ours(detector: str, readings: list[Reading], batch: int, core: str) -> float:
    """Return the same of the whole engine, refits and all."""
    use(core)
    engine = Engine(EngineSpec(make_detector(detector), **SPEC), InlineExecutor())
    engine.process(readings[:N])
    start = time.process_time()
    for i in range(N, len(readings), batch):
        engine.process(readings[i : i + batch])
    return 1e6 * (time.process_time() - start) / (len(readings) - N)


def forest_krcf(X: FloatArray) -> float:
    """Time krcf, AWS's forest in Rust."""
    from krcf import RandomCutForest

    forest = RandomCutForest(
        {
            "dimensions": CHANNELS, "shingle_size": 1, "num_trees": 50, "sample_size": 256,
            "random_seed": 0, "internal_shingling": True, "parallel_execution_enabled": False,
        }
    )  # fmt: skip

    def step(row: list[float]) -> None:
        forest.score(row)
        forest.update(row)

    return timed(X, step)


def forest_rcf3(X: FloatArray) -> float:
    """Time the random cut forest of rcf3, in Rust."""
    from rcf3 import Forest

    return timed(X, Forest(CHANNELS, capacity=256, **FOREST).update_and_score)


def isolation_rcf3(X: FloatArray) -> float:
    """Time the online isolation forest of rcf3, in Rust."""
    from rcf3 import OnlineIForest

    return timed(X, OnlineIForest(CHANNELS, seed=0).update_and_score)


def trees_river(X: FloatArray) -> float:
    """Time River's half-space trees behind a quantile."""
    from river import anomaly

    model = anomaly.QuantileFilter(anomaly.HalfSpaceTrees(seed=0), q=0.95)

    def step(row: list[float]) -> None:
        x = dict(zip(NAMES, row, strict=True))
        model.classify(model.score_one(x))
        model.learn_one(x)

    return timed(X, step)


def loda_pysad(X: FloatArray) -> float:
    """Time PySAD's LODA, which learns by the event."""
    from pysad.models import LODA

    model = LODA()
    return timed(X, lambda row: model.fit_score_partial(np.array(row)))


def window_pysad(X: FloatArray, detector: str) -> float:
    """Time a detector of PyOD in PySAD's window, with our window and refits."""
    from pysad.models.integrations import ReferenceWindowModel

    pyod = getattr(importlib.import_module(f"pyod.models.{detector.lower()}"), detector)
    with contextlib.redirect_stdout(io.StringIO()):
        model = ReferenceWindowModel(pyod, N, EVERY, initial_window_X=X[:N])
        return timed(X, lambda row: model.fit_score_partial(np.array(row)))


def java(X: FloatArray, *, thresholded: bool) -> float:
    """Time AWS's forest in Java."""
    missing = rivals.able("AWS RCF")
    if missing:
        raise ImportError(missing)
    # Compiled to the end only after some thousand events.
    return rivals.pace_of_aws(np.tile(X, (4, 1)), 3 * len(X), thresholded=thresholded)


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    readings = feed(options.events)
    X = np.array([reading.values for reading in readings])
    ways: dict[str, Callable[[], float]] = {
        f"rejex-stream {name}, {core}, batch {batch}": (
            lambda name=name, batch=batch, core=core: ours(name, readings, batch, core)
        )
        for name in ("GMM", "HBOS", "KNN", "Sensor")
        for batch in (1, 500)
        for core in cores()
    }
    ways |= {
        "AWS RandomCutForest (Java)": lambda: java(X, thresholded=False),
        "AWS ThresholdedRandomCutForest (Java)": lambda: java(X, thresholded=True),
        "krcf RandomCutForest (Rust)": lambda: forest_krcf(X),
        "rcf3 Forest (Rust)": lambda: forest_rcf3(X),
        "rcf3 OnlineIForest (Rust)": lambda: isolation_rcf3(X),
        "River QuantileFilter(HalfSpaceTrees)": lambda: trees_river(X),
        "PySAD LODA": lambda: loda_pysad(X),
    }
    ways |= {
        f"PySAD ReferenceWindowModel({name})": lambda name=name: window_pysad(X, name)
        for name in ("HBOS", "GMM", "KNN")
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    absent: dict[str, str] = {}
    for _ in range(options.repeats):
        for name, way in ways.items():
            if name not in absent:
                try:
                    taken[name].append(way())
                except ImportError as error:
                    absent[name] = str(error)
    base = statistics.median(taken["rejex-stream GMM, Python, batch 1"])
    rows: list[list[object]] = [
        [name, statistics.median(found), statistics.median(found) / base]
        for name, found in taken.items()
        if found
    ] + [[name, f"left out: {why}", ""] for name, why in absent.items()]
    write(
        "peers",
        "What an event costs beside detectors of others",
        [
            (
                f"{CHANNELS} channels, one stream of {options.events:,} events, median of "
                f"{options.repeats} turns. Forests: 50 trees of 256 samples, shingle 1; others as "
                "they come. Ours: the whole engine, n = 2,000, a refit every 4,000 events.",
                ["detector", "µs/event", "beside GMM, one at a time"],
                rows,
            )
        ],
    )


if __name__ == "__main__":
    main()
