"""Tennessee Eastman: the 21 faults of Russell, Chiang and Braatz, row by row.

python -m benchmarks.plants.eastman DATA [--faults 21]

DATA is the folder of their files d00.dat, d00_te.dat, d01_te.dat to d21_te.dat, as in `data/` of
the repository jkitchin/tennessee-eastman-profbraatz. A stream is what both files without a fault
hold (1,460 rows) and then the 960 rows of a test, a row in three minutes, whose fault begins after
160. Beside it stands what the process industry uses: PCA of the same 1,460 rows (components for
nine tenths of the variance), where T2 or SPE is above a limit that two in a hundred of all rows
before the faults exceed: an oracle's. In the table by alerts each fault is a plant of its own, and
eight hours without a row beyond a limit end an alert.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.incidents import Floats, play, readings
from benchmarks.plants import frame
from benchmarks.plants.frame import PEERS, Fault, Pca, Rows, Tally, Telling, moment
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Alarms
from rejex_stream.rejection import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Label

WINDOW, BEGINS, EVERY_MS, FALSE, CONTAMINATION = 600, 160, 180_000, 0.02, 0.03

PARTS, STEP = (slice(BEGINS), slice(BEGINS, None)), timedelta(milliseconds=EVERY_MS)


def table(path: Path) -> Floats:
    X = np.loadtxt(path)
    return X if X.shape[1] == 52 else X.T


def judged(train: Floats, test: Floats) -> tuple[Floats, Floats, list[int]]:
    """Return which rows of a test are anomalies, which rejected, and at which one tells."""
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
    opened = [i.opened_seq - len(train) for i in incidents if i.opens]
    return (
        np.array([v.label is Label.ANOMALY for v in verdicts]),
        np.array([v.label is Label.REJECTED for v in verdicts]),
        [seq for seq in opened if seq >= 0],
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
    parser.add_argument("--faults", type=int, default=21)
    args = parser.parse_args()
    data = args.data
    train = np.vstack([table(data / "d00.dat"), table(data / "d00_te.dat")])
    tests = [table(data / f"d{fault:02}_te.dat") for fault in range(1, args.faults + 1)]
    pca = Pca(train)
    at = limits(pca(np.vstack([test[:BEGINS] for test in tests])))
    rows: list[list[Any]] = []
    ours, streams = list[Telling](), dict[str, Rows]()
    faults = list[Fault]()
    for number, test in enumerate(tests, 1):
        anomaly, rejected, opened = judged(train, test)
        beside = (pca(test) > at).any(axis=1)
        each = (of[part].mean() for of in (anomaly, rejected, beside) for part in PARTS)
        delay = min((seq - BEGINS for seq in opened if seq >= BEGINS), default=float("inf"))
        rows.append([number, *each, delay])
        name = f"fault {number}"
        ours += [Telling(moment(EVERY_MS * seq), "", False, name) for seq in opened]
        times = [moment(EVERY_MS * i) for i in range(-len(train), len(test))]
        streams[name] = Rows(times, np.vstack([train, test]))
        faults.append(Fault(name, "", times[len(train) + BEGINS], times[-1] + STEP, name))
        print(*rows[-1], flush=True)
    means = [float(np.mean([row[i] for row in rows])) for i in range(1, 7)]
    rows.append(["mean", *means, "-"])
    tallies, told = [Tally("rejex-stream")], {"rejex-stream": ours}
    for peer, score in PEERS.items():
        scored = frame.scored(streams, score)
        tested = [
            (name, Rows(of.times[len(train) :], of.X[len(train) :]), found[len(train) :])
            for name, of, found in scored
        ]
        told[peer] = frame.alerts(tested, len(ours), timedelta(hours=8))
        tallies.append(Tally(peer))
    months = len(tests) * len(tests[0]) * STEP / frame.MONTH
    for tally in tallies:
        tally.add(told[tally.name], faults, frame.MONTH, months)
    frame.publish(
        "eastman", "Tennessee Eastman",
        f"{len(tests)} faults, 960 rows each at three minutes.",
        [tally.row() for tally in tallies],
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
    peer = frame.DRAWN
    lanes = [
        frame.Lane(
            one.name,
            [one],
            [it for it in ours if it.sensor == one.name],
            [it for it in told[peer] if it.sensor == one.name],
        )
        for one in faults
    ]
    end = faults[0].end
    frame.picture(
        frame.DOCS / "pictures/plants-eastman.svg", "Tennessee Eastman", lanes, moment(0), end, peer
    )


if __name__ == "__main__":
    main()
