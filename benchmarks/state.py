"""Snapshots of many streams: how long the loop waits, and what is written for what moved.

python -m benchmarks.state [--keys 4000] [--moved 100]
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from itertools import count
from time import perf_counter, thread_time

import numpy as np
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from benchmarks.harness import write
from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.monitor import MonitorConfig
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.commit import VIEW_S
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionMonitor, PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.threads import seldom_collecting
from rejex_stream.types import Partition, Position, Record

N, CHANNELS, PER_KEY = 500, 4, 560
PART = Partition("t", 0)


def filled(keys: int) -> tuple[PartitionState, count[int]]:
    """Return a partition in which every key has a full window, and the next offset."""
    names = tuple(f"c{i}" for i in range(CHANNELS))
    decoder = JsonDecoder(FieldMapping(names, sensor="id", time="t"))
    spec = EngineSpec(
        make_detector("HBOS"), FeatureSpec(names), RejectionPolicy(0.05, rate=0.1), window=N,
        evidence=False,
        schedule=RefitSchedule(
            first_fit_events=50, refit_every_events=None, refit_lag_events=0, buffer_events=N,
            calibration="holdout",
        ),
    )  # fmt: skip
    config = MonitorConfig(window=N, contamination=0.05, tolerance=4)
    state = PartitionState(
        PART, decoder=decoder, engine=Engine(spec, InlineExecutor()),
        context=ReviewItems(names), monitor=PartitionMonitor(PART, config, lambda *_: None),
    )  # fmt: skip
    offsets = count()
    rng = np.random.default_rng(0)
    for key in range(keys):
        state.process([_record(key, offsets, rng) for _ in range(PER_KEY)])
    return state, offsets


def _record(key: int, offsets: count[int], rng: np.random.Generator) -> Record:
    offset = next(offsets)
    values = ", ".join(f'"c{i}": {value:.6f}' for i, value in enumerate(rng.normal(size=CHANNELS)))
    value = f'{{"id": "sensor-{key}", "t": {offset}, {values}}}'.encode()
    return Record(Position(*PART, offset), None, value)


def snapshot(state: PartitionState, store: FolderSnapshotStore) -> list[object]:
    """Keep a snapshot; what the loop waits for is beginning it and the views of each turn."""
    began, worked = perf_counter(), thread_time()
    state.begin_snapshot()
    waits, works = [perf_counter() - began], [thread_time() - worked]
    n_bytes, n_parts, saving_s, last = 0, 0, 0.0, False
    while not last:
        began, worked = perf_counter(), thread_time()
        views = state.parts.next_piece(VIEW_S)
        waits.append(perf_counter() - began)
        works.append(thread_time() - worked)
        saving = thread_time()
        piece = views.encoded()
        store.save(PART, piece)
        saving_s += thread_time() - saving
        n_parts += len(piece.parts)
        n_bytes += sum(len(body or b"") for body in piece.parts.values())
        last = piece.last
    state.parts.commit()
    longest = 1000 * max(waits), 1000 * max(works)
    return [n_parts, n_bytes / 1e6, len(waits) - 1, *longest, 1000 * sum(works), saving_s]


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=4000)
    parser.add_argument("--moved", type=int, default=100)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, seldom_collecting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state, offsets = filled(given.keys)
        store = FolderSnapshotStore(folder)
        rng = np.random.default_rng(1)
        for what, moved in (
            ("all, the first", given.keys), ("some", given.moved), ("one", 1),
            ("all", given.keys),
        ):  # fmt: skip
            state.process([_record(key, offsets, rng) for key in range(moved)])
            rows.append([what, moved, *snapshot(state, store)])
    write(
        "state",
        "Snapshots that follow the change",
        [
            (
                "",
                [
                    "moved",
                    "keys",
                    "parts",
                    "MB",
                    "turns",
                    "longest wait ms",
                    "of it work ms",
                    "all work ms",
                    "saving work s",
                ],
                rows,
            )
        ],
        note=f"{given.keys:,} keys in one partition, HBOS, window {N}, {CHANNELS} channels, into a "
        "folder. The loop waits for a view at a time, on its own thread; encoding and saving run "
        "on another while it judges.",
    )


if __name__ == "__main__":
    main()
