"""Does a slow refit make anybody wait? Latency of an event while a fit runs, against idle.

python -m benchmarks.latency
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable

import numpy as np

from benchmarks.harness import write
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import ProcessFitExecutor
from rejex_stream.types import Position, Reading

CHANNELS, N = 8, 2000
RATE_HZ = 200  # one event every 5 ms: the fit has time to run beside the stream


class WatchedExecutor(ProcessFitExecutor):
    """Tells whether a fit is running."""

    def __init__(self) -> None:
        super().__init__(workers=1)
        self._submitted: set[Hashable] = set()

    def submit(self, key: Hashable, fit: Callable[[], object]) -> None:
        """Note the key."""
        self._submitted.add(key)
        super().submit(key, fit)

    def result(self, key: Hashable) -> object:
        """Forget the key."""
        self._submitted.discard(key)
        return super().result(key)

    @property
    def is_fitting(self) -> bool:
        """Whether a submitted fit has not ended."""
        return any(not self.done(key) for key in self._submitted)


def one_run(detector: str, lag: int, seconds: float) -> list[object]:
    """Feed single events at a fixed rate; split their latencies by whether a fit was running."""
    executor = WatchedExecutor()
    spec = EngineSpec(
        make_detector(detector),
        FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.05, rate=0.05),
        window=N,
        evidence=False,
        schedule=RefitSchedule(
            first_fit_events=N, refit_every_events=lag + 400, refit_lag_events=lag,
            buffer_events=N, calibration="holdout",
        ),
    )  # fmt: skip
    engine = Engine(spec, executor)
    rows = np.random.default_rng(0).normal(size=(100_000, CHANNELS)).tolist()

    def reading(i: int) -> Reading:
        return Reading("s", "s", i, tuple(rows[i % len(rows)]), Position("t", 0, i))

    seen = N + lag + 10
    engine.process([reading(i) for i in range(seen)])  # the first model is there
    busy: list[float] = []
    idle: list[float] = []
    end = time.perf_counter() + seconds
    due = time.perf_counter()
    while time.perf_counter() < end:
        due += 1 / RATE_HZ
        time.sleep(max(0.0, due - time.perf_counter()))
        fitting = executor.is_fitting
        start = time.perf_counter()
        engine.process([reading(seen)])
        (busy if fitting else idle).append(time.perf_counter() - start)
        seen += 1
    executor.close()
    p50_idle, p99_idle = np.percentile(idle, [50, 99]) * 1e6
    p50_busy, p99_busy = np.percentile(busy, [50, 99]) * 1e6
    return [
        detector, len(idle), len(busy), p50_idle, p99_idle, p50_busy, p99_busy, p99_busy / p99_idle
    ]  # fmt: skip


def main() -> None:
    """Run and write."""
    rows = []
    for detector, lag in (
        ("GMM", 100),
        ("IForest", 400),
        ("KDE", 400),
        ("pyod.models.mcd.MCD", 400),
    ):
        rows.append(one_run(detector, lag, 25.0))
    write(
        "latency",
        "Latency of an event while a refit runs",
        [
            (
                f"One stream, single events at {RATE_HZ} per second, n = {N:,}, {CHANNELS} "
                "channels, fits in one worker process (µs, wall clock).",
                ["detector", "events idle", "events during a fit", "p50 idle", "p99 idle",
                 "p50 during", "p99 during", "p99 during / idle"],
                rows,
            )
        ],
    )  # fmt: skip


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
