"""The whole engine beside the bare detector, with refits on, and beside its peers; by both cores.

python -m benchmarks.engine
"""

from __future__ import annotations

import contextlib
import io
import statistics
import warnings
from collections.abc import Callable

import numpy as np
from pyod.models.gmm import GMM
from pyod.models.hbos import HBOS
from pyod.models.knn import KNN
from pysad.models.integrations import ReferenceWindowModel
from river import anomaly

from benchmarks.harness import paired, write
from benchmarks.worker import cores, use
from rejex_stream import native_core
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule, derive_seed
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

N, CHANNELS, EVERY = 2000, 8, 4000
SPEC = {
    "features": FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
    "policy": RejectionPolicy(0.05, rate=0.05),
    "window": N,
    "schedule": RefitSchedule(
        first_fit_events=N, refit_every_events=EVERY, buffer_events=N, calibration="holdout"
    ),
}


def feed(events: int) -> list[Reading]:
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(events, 3)) @ rng.normal(size=(3, CHANNELS))
    values = (latent + rng.normal(0, 0.3, size=latent.shape)).tolist()
    return [
        Reading("s", "s", 1000 * i, tuple(row), Position("t", 0, i)) for i, row in enumerate(values)
    ]


def engine_run(
    detector, readings: list[Reading], batch: int, *, evidence: bool = False, core: str = "Python"
):
    spec = EngineSpec(detector, **SPEC, evidence=evidence)
    use(core)
    judges = native_core.core()[0]  # known once: its trial is no event's

    def run() -> None:
        engine = Engine(spec, InlineExecutor())
        engine._core = judges
        for start in range(0, len(readings), batch):
            engine.process(readings[start : start + batch])

    return run


def bare_run(detector, readings: list[Reading], batch: int) -> Callable[[], None]:
    """Run the detector alone: the same fits, the same rows scored in the same cuts."""
    X = np.array([reading.values for reading in readings])
    schedule, incremental = SPEC["schedule"], hasattr(detector, "start")

    def run_batch() -> None:
        scorer, seen, epoch, fitted_on = None, 0, 0, None
        while seen < len(X):
            boundary = schedule.next_request(seen)
            if fitted_on is not None:
                boundary = min(boundary, fitted_on + schedule.refit_lag_events)
            stop = min(len(X), (seen // batch + 1) * batch, boundary)
            if scorer is not None:
                scorer.score(X[seen:stop])
            seen = stop
            if fitted_on is not None and seen == fitted_on + schedule.refit_lag_events:
                rows = X[fitted_on - N : fitted_on]
                cut = round(N * 0.7)
                scorer = detector.fit(rows[:cut], seed=derive_seed(0, "s", epoch))
                scorer.score(rows[cut:])
                scorer.score(X[fitted_on:seen])
                epoch, fitted_on = epoch + 1, None
            if schedule.is_request(seen):
                fitted_on = seen

    def run_incremental() -> None:
        scorer = detector.start(SPEC["features"].names, seed=derive_seed(0, "s", 0))
        for x in X:
            scorer.score_one(x)
            scorer.learn_one(x)

    return run_incremental if incremental else run_batch


def overhead_rows() -> list[list[object]]:
    rows = []
    for name in ("Sensor", "SensorEnsemble", "GMM", "KNN", "HBOS", "IForest", "HalfSpaceTrees"):
        for batch in (1, 64, 500):
            slow = batch == 1 or name == "SensorEnsemble"
            events = 8000 if slow or name == "HalfSpaceTrees" else 30_000
            readings, detector = feed(events), make_detector(name)
            runs = {c: engine_run(detector, readings, batch, core=c) for c in cores()}
            taken = paired(runs | {"bare": bare_run(detector, readings, batch)}, repeats=3)
            bare = statistics.median(taken["bare"]) / events * 1e6
            for core in runs:
                engine = statistics.median(taken[core]) / events * 1e6
                over = statistics.median(
                    (a - b) / events * 1e6 for a, b in zip(taken[core], taken["bare"], strict=True)
                )
                rows.append([name, core, batch, 1e6 / engine, engine, bare, over])
    return rows


def beside(
    label: str,
    peer: Callable[[], None],
    events: int,
    name: str,
    readings: list[Reading],
    batch: int,
) -> list[list[object]]:
    """Return a row for each core: a peer that takes so many events, and our engine."""
    runs = {c: engine_run(make_detector(name), readings, batch, core=c) for c in cores()}
    taken = paired({"peer": peer} | runs, repeats=3)
    theirs = statistics.median(taken["peer"]) / events * 1e6
    ours = {c: statistics.median(taken[c]) / len(readings) * 1e6 for c in runs}
    return [[label, c, batch, theirs, each, theirs / each] for c, each in ours.items()]


def peer_rows() -> list[list[object]]:
    rows, readings = [], feed(6000)
    X = np.array([reading.values for reading in readings])
    dicts = [dict(zip(SPEC["features"].names, row, strict=True)) for row in X.tolist()]
    for name, cls in (("HBOS", HBOS), ("GMM", GMM), ("KNN", KNN)):

        def pysad(cls=cls) -> None:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                model = ReferenceWindowModel(cls, N, EVERY, initial_window_X=X[:N])
                for x in X[N:]:
                    model.fit_partial(x)
                    model.score_partial(x)

        label = f"PySAD ReferenceWindowModel({name})"
        for batch in (1, 500):
            rows += beside(label, pysad, len(X) - N, name, readings, batch)

    def quantile_filter() -> None:
        model = anomaly.QuantileFilter(anomaly.HalfSpaceTrees(seed=0), q=0.95)
        for x in dicts:
            model.classify(model.score_one(x))
            model.learn_one(x)

    label = "River QuantileFilter(HalfSpaceTrees)"
    return rows + beside(label, quantile_filter, len(X), "HalfSpaceTrees", readings, 500)


def evidence_rows() -> list[list[object]]:
    rows, readings = [], feed(20_000)
    for name in ("HBOS", "GMM", "KNN", "IForest"):
        detector = make_detector(name)
        runs = {
            (core, evidence): engine_run(detector, readings, 500, evidence=evidence, core=core)
            for core in cores()
            for evidence in (True, False)
        }
        taken = paired(runs, repeats=3)
        engine = Engine(EngineSpec(detector, **SPEC, evidence=True), InlineExecutor())
        explained = sum(v.evidence is not None for v in engine.process(readings))
        share = explained / len(readings)
        for core in cores():
            pairs = zip(taken[core, True], taken[core, False], strict=True)
            more = 1e6 * statistics.median(a - b for a, b in pairs)
            rows.append([name, core, share, more / len(readings), more / explained])
    return rows


def main() -> None:
    """Run and write."""
    write(
        "engine",
        "Engine: events per second and overhead",
        [
            (
                f"{CHANNELS} channels, n = {N:,}, refit every {EVERY:,} events on the last {N:,} "
                "(holdout). 'bare' is the same detector doing the same fits and scores in the same "
                "cuts; overhead is everything else: features, window, rank, verdict, bookkeeping.",
                ["detector", "core", "batch", "events/s", "engine µs/event", "bare µs/event",
                 "overhead µs/event"],
                overhead_rows(),
            ),
            (
                "Peers in the same run, with the same detector, window and refit interval. They "
                "give a score or a binary label; ours gives three verdicts. 'batch' is ours.",
                ["peer", "core", "batch", "peer µs/event", "ours µs/event", "peer / ours"],
                peer_rows(),
            ),
            (
                f"Evidence switched on: {CHANNELS} more scores for every anomaly and ambiguous "
                "event, in one call per batch of 500.",
                ["detector", "core", "share explained", "more µs per event",
                 "µs per explained event"],
                evidence_rows(),
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
