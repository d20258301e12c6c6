"""Processes of the service, a feed, and when each partition was committed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import asking

from benchmarks.kafka.setting import EPOCH_MS, PARTITIONS, Feed, event
from rejex_stream.errors import ConnectorError

SENSORS = 8
EVERY_S = 0.05
"""An event of every sensor comes so often, and as often the group's offsets are looked at."""


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
