"""Workers scaled by lag, one to four and back: the chart's rule for KEDA, and a rule without it.

``python -m benchmarks.kafka.scaler`` starts a broker (or takes ``REJEX_TEST_KAFKA``), plays the
scaler against worker processes, and writes ``benchmarks/results/kafka-scaler.md``. KEDA itself does
not run here: what it asks of Kubernetes' autoscaler is followed from their documentation. Its clock
runs :data:`FASTER` times as fast, and workers start no faster for it, so changes cost more here.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import (
    bounds_of,
    committed_offsets,
    partitions_of,
    read_partition,
)

from benchmarks import harness
from benchmarks.kafka.setting import (
    CLIENTS,
    PARTITIONS,
    SENSORS,
    broker,
    config_file,
    cores,
    fill,
    settings_of,
)
from benchmarks.kafka.workers import Commits, Workers, feeding

FASTER = 20
SYNC_S = 15 / FASTER
"""Kubernetes looks so often; KEDA's answer is as fresh here."""
LAG_THRESHOLD, MOST = 5_000, PARTITIONS
"""The chart's, and the partitions: beyond them workers would idle."""
TOLERANCE = 0.1
"""Kubernetes' own: so near to what is wanted nothing is changed."""
BURST = 40_000
COLUMNS = [
    "client", "rule", "sizes", "changes", "turns", "events", "verdicts", "until lag was gone, s",
    "longest standstill, s", "partition time stood still",
]  # fmt: skip


class Rule(NamedTuple):
    """How fast workers become fewer.

    Attributes
    ----------
    name
        As the result calls it.
    steady_s
        The most workers that were wanted within so many seconds stay.
    every_s
        One worker less in so many seconds; 0: all at once.
    """

    name: str
    steady_s: float
    every_s: float


RULES = (
    Rule("the chart's", 600 / FASTER, 300 / FASTER),
    Rule("without `behavior`, down at once", 0.0, 0.0),
)


class Scaler:
    """Says how many workers there are to be.

    Examples
    --------
    >>> scaler = Scaler(Rule("", 30.0, 15.0))
    >>> [scaler.size(lag, at) for lag, at in ((9_000, 0), (90_000, 1), (0, 2), (0, 31), (0, 32))]
    [2, 4, 4, 4, 3]
    """

    def __init__(self, rule: Rule) -> None:
        self._rule, self._now = rule, 1
        self._wanted: deque[tuple[float, int]] = deque()
        self._fewer_at = -math.inf

    def size(self, lag: int, at: float) -> int:
        """Take note of a lag, and return the size from now on."""
        share = lag / (LAG_THRESHOLD * self._now)
        wanted = self._now if abs(share - 1) <= TOLERANCE else math.ceil(lag / LAG_THRESHOLD)
        wanted = min(max(wanted, 1), MOST)
        self._wanted.append((at, wanted))
        while self._wanted[0][0] < at - self._rule.steady_s:
            self._wanted.popleft()
        most = max(wanted for _, wanted in self._wanted)
        if wanted > self._now:
            self._now = wanted
        elif most < self._now and at - self._fewer_at >= self._rule.every_s:
            self._now = self._now - 1 if self._rule.every_s else most
            self._fewer_at = at
        return self._now


class Replicas(Workers):
    """Workers by number, as a StatefulSet has them: the highest goes first, by SIGTERM."""

    def __init__(self, config: Path) -> None:
        super().__init__(config, 0)
        self._told: set[str] = set()

    def resize(self, size: int) -> None:
        """Start or end what is needed; one that is ending is waited for before it comes again."""
        for number in range(MOST):
            name = f"worker-{number}"
            running = self._running.get(name)
            if number < size and (running is None or running.poll() is not None):
                self._core = cores()[number % 2]
                self.start(name)
                self._told.discard(name)
            elif number >= size and running is not None and name not in self._told:
                running.send_signal(signal.SIGTERM)
                self._told.add(name)


def _lag(settings: KafkaSettings) -> int:
    inputs = partitions_of(settings, settings.topics.input[0])
    committed, bounds = committed_offsets(settings, inputs), bounds_of(settings, inputs)
    return sum(bounds[p][1] - (committed.get(p) or 0) for p in inputs)


def under_load(bootstrap: str, client: str, rule: Rule) -> list[object]:
    """Return one row: a burst, another when it is judged, and then calm until one is left."""
    settings, scaler = settings_of(bootstrap, client), Scaler(rule)
    topic, commits, sizes, gone = settings.topics.input[0], Commits(settings), [1], list[float]()
    with config_file(settings, "HBOS", window=200) as config, Replicas(config) as workers:
        workers.resize(1)
        with feeding(bootstrap, topic):
            commits.start()
            begun = commits.first_after(time.monotonic())
            bursts, burst_at, calm_since = 0, -math.inf, math.inf
            while True:
                at = time.monotonic()
                lag = _lag(settings)
                if bursts and len(gone) < bursts and lag < LAG_THRESHOLD / 5 and at > burst_at + 3:
                    gone.append(at - burst_at)
                    calm_since = at
                if len(gone) == bursts < 2 and at > (begun if not bursts else calm_since) + 4:
                    bursts, burst_at = bursts + 1, at
                    threading.Thread(target=fill, args=(bootstrap, topic, BURST)).start()
                if (size := scaler.size(lag, at)) != sizes[-1]:
                    sizes.append(size)
                    print(f"{at - begun:6.1f} s, lag {lag:6}: {size} workers", flush=True)
                workers.resize(size)
                if len(gone) == 2 and size == 1 and at > calm_since + 10:
                    break
                time.sleep(max(0.0, at + SYNC_S - time.monotonic()))
        commits.first_after(time.monotonic() - 1)
        while _lag(settings):
            time.sleep(0.2)
        ended = time.monotonic()
        commits.end()
    still = [
        after - before
        for of_one in commits.moved.values()
        for before, after in itertools.pairwise(of_one)
        if before >= begun and after - before > 1.5
    ]
    up = [after > before for before, after in itertools.pairwise(sizes)]
    return [
        client,
        rule.name,
        " → ".join(map(str, sizes)),
        len(up),
        sum(a != b for a, b in itertools.pairwise(up)),
        _count(settings, topic),
        _count(settings, settings.topics.verdicts),
        " and ".join(f"{seconds:.0f}" for seconds in gone),
        round(max(still, default=0.0), 1),
        f"{sum(still) / (PARTITIONS * (ended - begun)):.1%}",
    ]


def _count(settings: KafkaSettings, topic: str) -> int:
    return sum(1 for p in partitions_of(settings, topic) for _ in read_partition(settings, p))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="*", default=list(CLIENTS))
    options = parser.parse_args(argv)
    with broker(cores()[0]) as bootstrap:
        rows = [under_load(bootstrap, client, rule) for client in options.clients for rule in RULES]
    harness.write(
        "kafka-scaler",
        f"Kafka: workers scaled by lag, kafka-python {version('kafka-python')}, confluent-kafka "
        f"{version('confluent-kafka')}, one broker on the same machine",
        [
            (
                f"{SENSORS} sensors in {PARTITIONS} partitions; two bursts of {BURST:,} events "
                "over a steady trickle, the second 4 s after the lag of the first is gone. Workers "
                f"as the scaler wants them, 1 to {MOST}, one for every {LAG_THRESHOLD:,} records "
                f"of lag; its clock runs {FASTER} times as fast as the chart's. A turn is a change "
                "from more to fewer or back: 1 is up and down again. Standstill: longer than 1.5 s "
                "without a commit in a partition, starts and ends of workers included.",
                COLUMNS,
                rows,
            )
        ],
        note="Seconds by the clock on the wall, on a machine that others use too: compare rows.",
    )


if __name__ == "__main__":
    main()
