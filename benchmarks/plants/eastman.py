"""Tennessee Eastman: the 21 faults of Russell, Chiang and Braatz, row by row.

python -m benchmarks.plants.eastman DATA

DATA is the folder of their files d00.dat, d00_te.dat, d01_te.dat to d21_te.dat. A stream is what
both files without a fault hold (1,460 rows) and then the 960 rows of a test, a row in three
minutes, whose fault begins after 160. Beside it stands what the process industry uses: PCA of the
same 1,460 rows (components for nine tenths of the variance), where T2 or SPE is above a limit that
two in a hundred of all rows before the faults exceed: an oracle's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import write
from benchmarks.incidents import Floats, play, readings
from benchmarks.plants.frame import Pca
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Label

WINDOW, BEGINS, EVERY_MS, FALSE, CONTAMINATION = 600, 160, 180_000, 0.02, 0.03

PARTS = (slice(BEGINS), slice(BEGINS, None))


def table(path: Path) -> Floats:
    X = np.loadtxt(path)
    return X if X.shape[1] == 52 else X.T


def judged(train: Floats, test: Floats) -> tuple[Floats, Floats, float]:
    """Return which rows of a test are anomalies, which rejected, and after how many one tells."""
    policy = RejectionPolicy(CONTAMINATION, rate=CONTAMINATION)  # as `init` has it
    features = FeatureSpec(tuple(f"x{i + 1}" for i in range(52)))
    schedule = RefitSchedule.for_window(WINDOW, first_fit_events=WINDOW)
    spec = EngineSpec(
        make_detector("Sensor"), features, policy, window=WINDOW, schedule=schedule,
        evidence=False, alarms=Alarms(),
    )  # fmt: skip
    X = np.vstack([train, test])
    verdicts, incidents = play(Engine(spec, InlineExecutor()), readings(X, EVERY_MS))
    verdicts = verdicts[len(train) :]
    fault = len(train) + BEGINS
    delays = [i.opened_seq - fault for i in incidents if i.opens and i.opened_seq >= fault]
    return (
        np.array([v.label is Label.ANOMALY for v in verdicts]),
        np.array([v.label is Label.REJECTED for v in verdicts]),
        min(delays, default=float("inf")),
    )


def limits(statistic: Floats) -> Floats:
    """Return the limits of both, at one quantile, beyond which FALSE of the rows lie."""
    for quantile in np.linspace(1 - FALSE, 1, 2001):
        found = np.quantile(statistic, quantile, axis=0)
        if (statistic > found).any(axis=1).mean() <= FALSE:
            return np.asarray(found)
    raise AssertionError("the largest is beyond no limit")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plants.eastman")
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    train = np.vstack([table(data / "d00.dat"), table(data / "d00_te.dat")])
    tests = [table(data / f"d{fault:02}_te.dat") for fault in range(1, 22)]
    pca = Pca(train)
    at = limits(pca(np.vstack([test[:BEGINS] for test in tests])))
    rows: list[list[Any]] = []
    for fault, test in enumerate(tests, 1):
        anomaly, rejected, delay = judged(train, test)
        beside = (pca(test) > at).any(axis=1)
        each = (of[part].mean() for of in (anomaly, rejected, beside) for part in PARTS)
        rows.append([fault, *each, delay])
        print(*rows[-1], flush=True)
    means = [float(np.mean([row[i] for row in rows])) for i in range(1, 7)]
    rows.append(["mean", *means, "-"])
    write(
        "eastman", "Tennessee Eastman",
        [(
            "Share of the 160 rows before each fault and of its 800 rows that are anomalies, and "
            f"that are rejected, by `Sensor` with n = {WINDOW}, γ = {CONTAMINATION:g} and a first "
            "fit after a window; by PCA's T2 and SPE at an oracle's limits; and after how many "
            "rows of the fault somebody is told (inf: nobody).",
            ["fault", "anomaly before", "anomaly", "rejected before", "rejected",
             "T2 or SPE before", "T2 or SPE", "told after"],
            rows,
        )],
    )  # fmt: skip


if __name__ == "__main__":
    main()
