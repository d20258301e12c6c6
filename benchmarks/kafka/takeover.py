"""How long partitions stand still: a restart after SIGKILL, and a storm of them.

``python -m benchmarks.kafka.takeover`` starts a broker (or takes ``REJEX_TEST_KAFKA``) and workers
as processes of their own, with default settings and a name each; ``--quick`` with fewer kills.
Results go to ``benchmarks/results/kafka-takeover.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Self

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import asking

from benchmarks import harness
from benchmarks.kafka.setting import (
    CLIENTS,
    EPOCH_MS,
    PARTITIONS,
    Feed,
    broker,
    config_file,
    cores,
    event,
    settings_of,
)
from rejex_stream.errors import ConnectorError

SENSORS = 8
EVERY_S = 0.05
"""An event of every sensor comes so often, and as often the group's offsets are looked at."""
COLUMNS = ["client", "restarts", "first commit after, median s", "worst s"]
STORMS = ((1.0, 4.0, 30), (5.0, 10.0, 20))
"""Seconds between two kills, from and to, and how many of them."""
STORM_COLUMNS = [
    "client", "workers", "a kill every, s", "kills", "stood still, median s", "worst s",
]  # fmt: skip


class Commits(threading.Thread):
    """Notes when the committed offset of each partition moved on."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(daemon=True)
        self._settings, self._ended = settings, threading.Event()
        self._seen: dict[object, int] = {}
        self.moved: dict[object, list[float]] = {}

    def run(self) -> None:
        """Look until :meth:`end`."""
        while not self._ended.wait(EVERY_S):
            with contextlib.suppress(ConnectorError):  # a group that nobody has joined yet
                self._look()

    def _look(self) -> None:
        group, seen = self._settings.group, self._seen
        with asking(self._settings, "looking at offsets") as admin:
            while not self._ended.wait(EVERY_S):
                found = admin.list_group_offsets(group).get(group, {})
                for partition, place in found.items():
                    if place.offset > seen.get(partition, 0):
                        seen[partition] = place.offset
                        self.moved.setdefault(partition, []).append(time.monotonic())

    def first_after(self, moment: float, patience_s: float = 300.0) -> float:
        """Wait until every partition has moved since `moment`; return when the last one did."""
        while time.monotonic() < moment + patience_s:
            firsts = [next((t for t in of if t > moment), None) for of in self.moved.values()]
            if len(firsts) == PARTITIONS and None not in firsts:
                return max(first for first in firsts if first is not None)
            time.sleep(EVERY_S)
        raise TimeoutError(f"no commit in each of {PARTITIONS} partitions within {patience_s} s")

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


@contextlib.contextmanager
def feeding(bootstrap: str, topic: str) -> Iterator[None]:
    """Have an event of every sensor each :data:`EVERY_S`."""
    ended = threading.Event()

    def feed() -> None:
        draw, producer, t = random.Random(0), Feed(bootstrap), EPOCH_MS
        while not ended.wait(EVERY_S):
            t += 1000
            for sensor in range(SENSORS):
                producer.send(topic, sensor, event(sensor, t, draw))
        producer.flush()

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Workers:
    """Processes of the service, by name; none outlives the ``with``."""

    def __init__(self, config: Path, core: int) -> None:
        self._config, self._core = config, core
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a worker with a name of its own."""
        with self._config.with_name(f"{name}.log").open("ab") as log:
            process = self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "rejex_stream", "run", str(self._config)],
                env=os.environ | {"REJEX_KAFKA__INSTANCE_ID": name},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        os.sched_setaffinity(process.pid, {self._core})

    def restart(self, name: str) -> float:
        """Kill a worker, start it again; return when it was killed."""
        self._running[name].kill()
        self._running[name].wait()
        killed_at = time.monotonic()
        self.start(name)
        return killed_at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


def restarts(bootstrap: str, core: int, client: str, times: int) -> list[object]:
    """Return one row: a worker is killed and started again by its name, so many times."""
    settings = settings_of(bootstrap, client)
    commits, took = Commits(settings), []
    with (
        config_file(settings, "HBOS", window=200) as config,
        feeding(bootstrap, settings.topics.input[0]),
        Workers(config, core) as workers,
    ):
        workers.start("one")
        commits.start()
        commits.first_after(time.monotonic())
        for _ in range(times):
            time.sleep(2.0)
            killed_at = workers.restart("one")
            took.append(commits.first_after(killed_at) - killed_at)
        commits.end()
    return [client, times, *_median_and_worst(took)]


def storm(
    bootstrap: str, core: int, client: str, soonest: float, latest: float, kills: int
) -> list[object]:
    """Return one row: of three workers one is killed again and again, and comes back."""
    settings, names = settings_of(bootstrap, client), ("one", "two", "three")
    draw, commits = random.Random(1), Commits(settings)
    with (
        config_file(settings, "HBOS", window=200) as config,
        feeding(bootstrap, settings.topics.input[0]),
        Workers(config, core) as workers,
    ):
        for name in names:
            workers.start(name)
        commits.start()
        begun = commits.first_after(time.monotonic())
        for _ in range(kills):
            time.sleep(draw.uniform(soonest, latest))
            last = workers.restart(draw.choice(names))
        commits.first_after(last)
        commits.end()
    every = f"{soonest:g} to {latest:g}"
    return [
        client,
        len(names),
        every,
        kills,
        *_median_and_worst(_stood_still(commits.moved, begun)),
    ]


def _stood_still(moved: Mapping[object, Sequence[float]], since: float) -> list[float]:
    """Return the stretches without a commit that are longer than three intervals of commits."""
    return [
        after - before
        for times in moved.values()
        for before, after in itertools.pairwise(times)
        if before >= since and after - before > 1.5
    ]


def _median_and_worst(seconds: Sequence[float]) -> tuple[float, float]:
    return round(statistics.median(seconds), 1), round(max(seconds), 1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer kills")
    quick = parser.parse_args(argv).quick
    first, last = cores()
    with broker(first) as bootstrap:
        alone = [restarts(bootstrap, last, client, 3 if quick else 10) for client in CLIENTS]
        stormy = [
            storm(bootstrap, last, client, soonest, latest, 8 if quick else kills)
            for soonest, latest, kills in STORMS
            for client in CLIENTS
        ]
    session_s = KafkaSettings().session_timeout_ms / 1000
    harness.write(
        "kafka-takeover",
        f"Kafka: takeovers, kafka-python {version('kafka-python')}, confluent-kafka "
        f"{version('confluent-kafka')}, one broker on the same machine",
        [
            (
                "One worker with a name and default settings is killed with SIGKILL and started "
                f"again at once: from the kill until each of its {PARTITIONS} partitions has a new "
                "commit, with the start of Python and of the program. The aim is 6 s.",
                COLUMNS,
                alone,
            ),
            (
                f"Three workers share {PARTITIONS} partitions and one core; one of them, at "
                "random, is killed again and again and started again at once. Stretches of more "
                "than 1.5 s without a commit in a partition. The aim is at most twice the session "
                f"timeout, {2 * session_s:.0f} s. A start takes some 4 s of the core, so where "
                "kills come sooner than that, no worker comes to work.",
                STORM_COLUMNS,
                stormy,
            ),
        ],
        note="Seconds by the clock on the wall, on a machine that others use too.",
    )


if __name__ == "__main__":
    main()
