"""How long a restarted worker with many keys takes until it is live.

``python -m benchmarks.kafka.restore`` starts a broker on one core (or takes ``REJEX_TEST_KAFKA``);
the worker has the other. Results go to ``benchmarks/results/kafka-restore.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

from rejex_connectors.kafka.kafka_settings import KafkaSettings

from benchmarks import harness, worker
from benchmarks.kafka.loops import Watch
from benchmarks.kafka.setting import (
    CLIENTS,
    PARTITIONS,
    Pinned,
    broker,
    config_file,
    cores,
    fill,
    settings_of,
)
from rejex_stream.run.run_events import PartitionLive, PartitionOpened, RunEvent, SnapshotSaved

WINDOW, KEYS = 200, 1_000
EACH, FULL = 150, 600  # events of a key: the window fills at 340
COLUMNS = [
    "client",
    "core",
    "keys",
    "events a key",
    "snapshots KiB",
    "connect and restore s",
    "replayed events",
    "replay s",
    "replayed events/s",
    "CPU µs/event",
    "1 / CPU, events/s",
]


def restore(bootstrap: str, core: int, client: str, keys: int, per_key: int) -> list[object]:
    """Return one row: a worker dies with its last snapshot some way behind, another takes over."""
    settings = settings_of(bootstrap, client)
    name, n_events = "Python" if os.environ["REJEX_CORE"] else "native", keys * per_key
    fill(bootstrap, settings.topics.input[0], n_events, sensors=keys)
    # One snapshot in each partition, and the rest to be replayed.
    every = n_events // PARTITIONS * 6 // 10
    size = Pinned(core, _until_it_dies, settings, n_events, every).result()
    opening, replayed, replaying, cpu = Pinned(core, _until_live, settings, every).result()
    row = [
        client,
        name,
        keys,
        per_key,
        size // 1024,
        round(opening, 2),
        replayed,
        round(replaying, 2),
        round(replayed / replaying),
        round(1e6 * cpu / replayed, 1),
        round(replayed / cpu),
    ]
    print(row, flush=True)
    return row


class _Crash(BaseException):
    """Stands for SIGKILL: nothing of the run gets another word."""


class _Dies(Watch):
    """Dies once everything is committed, before the last snapshots are written."""

    def __init__(self, n_events: int) -> None:
        super().__init__(n_events)
        self.sizes: list[int] = []

    def event(self, event: RunEvent) -> None:
        """Count snapshots; die at the last commit."""
        super().event(event)
        if isinstance(event, SnapshotSaved):
            self.sizes.append(event.n_bytes)
        if self.stop.is_set():
            raise _Crash


def _until_it_dies(settings: KafkaSettings, n_events: int, every: int, _: object) -> int:
    from rejex_stream.config import load_config
    from rejex_stream.config.assembly import run_pipeline

    watch = _Dies(n_events)
    with (
        config_file(settings, "HBOS", window=WINDOW, snapshot_every=every) as path,
        contextlib.suppress(_Crash),
    ):
        run_pipeline(load_config(path), observers=[watch], stop=watch.stop)
    return sum(watch.sizes[-PARTITIONS:])


def _now() -> tuple[float, float]:
    """Return the time by the clock on the wall, and that of the processor."""
    return time.perf_counter(), time.process_time()


class _Live(Watch):
    """Stops a run as soon as every partition is live."""

    def __init__(self) -> None:
        super().__init__(10**12)
        self.opened = self.live = _now()
        self.replayed = 0
        self._lives = 0

    def event(self, event: RunEvent) -> None:
        """Note when the last partition was restored, and when the last one was live."""
        if isinstance(event, PartitionOpened):
            self.opened = _now()
        if isinstance(event, PartitionLive):
            self.live = _now()
            self.replayed += event.replayed_events
            self._lives += 1
            if self._lives == PARTITIONS:
                self.stop.set()


def _until_live(settings: KafkaSettings, every: int, _: object) -> tuple[float, int, float, float]:
    from rejex_stream.config import load_config
    from rejex_stream.config.assembly import run_pipeline

    with config_file(settings, "HBOS", window=WINDOW, snapshot_every=every) as path:
        config = load_config(path)
        began, watch = time.perf_counter(), _Live()
        run_pipeline(config, observers=[watch], stop=watch.stop)
    (opened, before), (live, after) = watch.opened, watch.live
    return opened - began, watch.replayed, live - opened, after - before


def main() -> None:
    """Run and write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    first, last = cores()
    os.sched_setaffinity(0, {first})
    with broker(first) as bootstrap:
        rows = []
        for client, each in [(client, EACH) for client in CLIENTS] + [(CLIENTS[-1], FULL)]:
            for name in worker.cores():
                worker.use(name)
                rows.append(restore(bootstrap, last, client, KEYS, each))
    harness.write(
        "kafka-restore",
        "Kafka: a worker that died and was restarted",
        [
            (
                f"HBOS, n = {WINDOW}, snapshots in the state topic. With {EACH} events of every "
                "key the last one lies before the first fit of most keys, so that what is replayed "
                f"holds it: a key of a fleet is at its dearest then. With {FULL} all windows are "
                "full. CPU is of all threads of the worker, while it replays.",
                COLUMNS,
                rows,
            )
        ],
    )


if __name__ == "__main__":
    main()
