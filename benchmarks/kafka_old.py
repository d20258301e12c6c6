"""Speed on a real broker: the bare client's loop beside the whole service, in one run.

``python -m benchmarks.kafka`` starts a broker (or takes ``REJEX_TEST_KAFKA``), fills a topic, and
lets each loop work through the same events; ``--quick`` with fewer of them. Results go to
``benchmarks/results/kafka.md``. A loop's rate is taken between its first and its last commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rejex_connectors.kafka import KafkaSettings, KafkaSource, KafkaTopics
from rejex_connectors.kafka_client import Message, open_clients
from rejex_connectors.kafka_reading import read_partition
from rejex_connectors.kafka_topics import create_topics, plan_topics

from benchmarks import harness
from rejex_stream.builders import run_pipeline
from rejex_stream.config import load_config
from rejex_stream.encode import decode_verdict
from rejex_stream.progress import Committed, LaneLive, LaneOpened, RunEvent, SnapshotSaved
from rejex_stream.protocols import Assigned
from rejex_stream.types import Outcome, Partition

CLIENTS = ("kafka-python", "confluent")
PARTITIONS = 4
SENSORS = 8
COMMIT_S = 0.5
DETECTORS = {
    "HBOS": "",
    "GMM": "params = { n_components = 3 }",
    "HalfSpaceTrees": "",
}
CONFIG = """
[pipeline]
name = "{group}"
[input]
kind = "kafka"
topics = ["{topic}"]
channels = ["temperature", "vibration", "power"]
time = "t"
[detector]
name = "{detector}"
{params}
[rejection]
contamination = 0.02
window = {window}
review_budget = {{ rate = 0.02 }}
[refit]
refit_every_events = 4000
[output]
verdicts = "{group}.verdicts"
review = "{group}.review"
deadletter = "{group}.dead"
labels = "{group}.labels"
[state]
topic = "{group}.state"
snapshot_every_events = {snapshot_every}
[run]
commit_interval_s = {commit_s}
[kafka]
bootstrap_servers = "{bootstrap}"
client = "{client}"
[metrics]
enabled = false
"""


# ------------------------------------------------------------------------------------ set-up
def event(sensor: int, t: int, draw: random.Random) -> bytes:
    """One reading of about 200 bytes."""
    return json.dumps(
        {
            "sensor": f"turbine-{sensor:04d}",
            "t": t,
            "temperature": round(draw.gauss(60, 5), 3),
            "vibration": round(abs(draw.gauss(2, 0.5)), 4),
            "power": round(draw.uniform(200, 2000), 2),
            "site": "north field, row 7",
            "firmware": "4.11.2-rc1+g7f3a9c2",
        }
    ).encode()


def settings_of(bootstrap: str, client: str = "kafka-python", **fields: Any) -> KafkaSettings:
    group = f"bench-{uuid.uuid4().hex[:8]}"
    topics = KafkaTopics(
        input=(fields.pop("topic", f"{group}.in"),),
        verdicts=f"{group}.verdicts",
        review=f"{group}.review",
        labels=f"{group}.labels",
        deadletter=f"{group}.dead",
        state=f"{group}.state",
    )
    settings = KafkaSettings(
        bootstrap_servers=bootstrap, client=client, group=group, topics=topics, **fields
    )
    create_topics(settings, plan_topics(settings, partitions=PARTITIONS))
    return settings


class Feed:
    """Produces events with the fastest client there is."""

    def __init__(self, bootstrap: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "queue.buffering.max.messages": 2_000_000,
                "log_level": 3,
            }
        )

    def send(self, topic: str, sensor: int, value: bytes) -> None:
        """Hand over one event."""
        self._producer.produce(topic, value, f"turbine-{sensor:04d}", sensor % PARTITIONS)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all are acknowledged."""
        assert self._producer.flush(60) == 0


def fill(bootstrap: str, topic: str, n_events: int, sensors: int = SENSORS) -> None:
    draw = random.Random(0)
    feed = Feed(bootstrap)
    for i in range(n_events):
        sensor = i % sensors
        feed.send(topic, sensor, event(sensor, 1_700_000_000_000 + 1000 * i, draw))
    feed.flush()


# -------------------------------------------------------------------------------- throughput
@dataclass
class Pace:
    """Events and times between the first and the last commit."""

    events: int = 0
    began: float = 0.0
    cpu_began: float = 0.0
    ended: float = 0.0
    cpu_ended: float = 0.0

    def committed(self, n_events: int) -> None:
        """Note a commit; the first one starts the clocks."""
        now, cpu = time.perf_counter(), time.process_time()
        if not self.began:
            self.began, self.cpu_began = now, cpu
            return
        self.events += n_events
        self.ended, self.cpu_ended = now, cpu

    @property
    def per_s(self) -> float:
        """Events a second."""
        return self.events / (self.ended - self.began)

    @property
    def cpu_us(self) -> float:
        """Processor time of this process per event, in microseconds."""
        return 1e6 * (self.cpu_ended - self.cpu_began) / self.events


def bare(settings: KafkaSettings, n_events: int, *, contract: bool) -> Pace:
    """Consume and produce one to one with the bare client.

    `contract`: write as many bytes and headers as a verdict has; else pass the value through.
    """
    open_consumer, open_producer = open_clients(settings, "bench")
    producer = open_producer()
    source = KafkaSource(open_consumer(), settings)
    value = b"x" * 560
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_type", b"io.rejex.verdict.v1"),
        ("ce_source", b"/rejex-stream/bench"),
        ("content-type", b"application/json"),
        ("ce_id", b"bench-0a1b2c3d.in-3-123456@1"),
        ("ce_time", b"2023-11-14T22:13:20.042Z"),
        ("ce_subject", b"turbine-0004"),
    ]
    pace, done = Pace(), 0
    messages: list[Message] = []
    at: dict[Partition, int] = {}
    due = time.perf_counter() + COMMIT_S
    topic = settings.topics.verdicts
    try:
        while done < n_events:
            records = source.poll(2_000, 0.1)
            for change in source.changes():
                if isinstance(change, Assigned):
                    source.seek(change.partition, change.earliest)
            for record in records:
                position = record.position
                what, with_ = (value, headers) if contract else (record.value, [])
                messages.append(Message(topic, position.partition, record.key, what, with_))
                at[Partition(position.topic, position.partition)] = position.offset + 1
            if messages and (time.perf_counter() >= due or done + len(messages) >= n_events):
                producer.publish(messages, at, source.consumer)
                done += len(messages)
                pace.committed(len(messages))
                messages, at = [], {}
                due = time.perf_counter() + COMMIT_S
    finally:
        producer.close()
        source.close()
    return pace


class Watch:
    """Counts commits of a run, and ends it."""

    def __init__(self, n_events: int) -> None:
        self.pace = Pace()
        self.stop = threading.Event()
        self.events: list[tuple[float, RunEvent]] = []
        self._left = n_events

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Only commits count."""

    def event(self, event: RunEvent) -> None:
        """Note an event; stop at the last commit."""
        self.events.append((time.perf_counter(), event))
        if isinstance(event, Committed):
            self.pace.committed(event.n_events)
            self._left -= event.n_events
            if self._left <= 0:
                self.stop.set()


@contextlib.contextmanager
def config_file(
    settings: KafkaSettings,
    detector: str,
    *,
    window: int = 2000,
    snapshot_every: int = 50_000,
    commit_s: float = COMMIT_S,
) -> Iterator[Path]:
    text = CONFIG.format(
        group=settings.group,
        topic=settings.topics.input[0],
        detector=detector,
        params=DETECTORS[detector],
        window=window,
        snapshot_every=snapshot_every,
        commit_s=commit_s,
        bootstrap=settings.bootstrap_servers,
        client=settings.client,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.toml"
        path.write_text(text)
        yield path


def service(settings: KafkaSettings, n_events: int, detector: str) -> Pace:
    watch = Watch(n_events)
    with config_file(settings, detector) as path:
        run_pipeline(load_config(path), observers=[watch], stop=watch.stop)
    return watch.pace


def throughput(bootstrap: str, n_events: int, repeats: int) -> list[list[Any]]:
    source = settings_of(bootstrap)
    topic = source.topics.input[0]
    fill(bootstrap, topic, n_events)
    rows: list[list[Any]] = []
    for client in CLIENTS:
        loops: dict[str, Any] = {
            "bare loop, plain, value passed through": lambda s: bare(s, n_events, contract=False),
            "bare loop, transactions, value passed through": lambda s: bare(
                s, n_events, contract=False
            ),
            "bare loop, transactions, a verdict's bytes and headers": lambda s: bare(
                s, n_events, contract=True
            ),
        }
        for detector in DETECTORS:
            loops[f"service, {detector}"] = lambda s, detector=detector: service(
                s, n_events, detector
            )
        paces: dict[str, list[Pace]] = {name: [] for name in loops}
        for _ in range(repeats):
            for name, loop in loops.items():
                delivery = "at_least_once" if "plain" in name else "exactly_once"
                paces[name].append(
                    loop(settings_of(bootstrap, client, topic=topic, delivery=delivery))
                )
        names = list(loops)
        for name, taken in paces.items():
            rates = [p.per_s for p in taken]
            beside = [[p.per_s for p in paces[base]] for base in names[1:3]]
            rows.append(
                [
                    client,
                    name,
                    round(statistics.median(rates)),
                    round(statistics.median(p.cpu_us for p in taken), 1),
                    *(round(harness.ratio(rates, base), 2) for base in beside),
                ]
            )
            print(rows[-1])
    return rows


# ----------------------------------------------------------------------------------- latency
def latency(
    bootstrap: str, client: str, rates: dict[str, float], seconds: float
) -> list[list[Any]]:
    """Event to committed verdict, at several rates; HBOS with full windows of 500."""
    settings = settings_of(bootstrap, client)
    topic = settings.topics.input[0]
    warm = SENSORS * 1_600
    fill(bootstrap, topic, warm)
    watch = Watch(10**12)
    rows = []
    with config_file(settings, "HBOS", window=500, commit_s=0.1) as path:
        runner = threading.Thread(
            target=run_pipeline,
            args=(load_config(path),),
            kwargs={"observers": [watch], "stop": watch.stop},
        )
        runner.start()
        try:
            while watch._left > 10**12 - warm:
                time.sleep(0.1)
            for name, rate in rates.items():
                ends = _ends(settings)
                sent = _paced(bootstrap, topic, rate, seconds)
                target = 10**12 - warm - sent
                warm += sent
                limit = time.perf_counter() + 60
                while watch._left > target and time.perf_counter() < limit:
                    time.sleep(0.05)
                time.sleep(0.5)
                taken = sorted(_latencies(settings, ends))
                assert len(taken) == sent, (len(taken), sent)
                rows.append(
                    [
                        client,
                        name,
                        round(rate),
                        round(taken[len(taken) // 2]),
                        round(taken[int(len(taken) * 0.99)]),
                    ]
                )
                print(rows[-1])
        finally:
            watch.stop.set()
            runner.join()
    return rows


def _paced(bootstrap: str, topic: str, rate: float, seconds: float) -> int:
    """Produce at a rate, in steps of 5 ms; an event's time is when it was sent."""
    feed, draw = Feed(bootstrap), random.Random(1)
    values = [event(i % SENSORS, 1_700_000_000_000, draw) for i in range(1_000)]
    began, sent = time.time(), 0
    while (elapsed := time.time() - began) < seconds:
        while sent < elapsed * rate:
            now = b"%d" % int(time.time() * 1000)
            value = values[sent % 1_000].replace(b"1700000000000", now)
            feed.send(topic, sent % SENSORS, value)
            sent += 1
        time.sleep(0.005)
    feed.flush()
    return sent


def _ends(settings: KafkaSettings) -> list[int]:
    ends = []
    for p in range(PARTITIONS):
        last = 0
        for record in read_partition(settings, Partition(settings.topics.verdicts, p)):
            last = record.position.offset + 1
        ends.append(last)
    return ends


def _latencies(settings: KafkaSettings, since: list[int]) -> Iterator[float]:
    """Milliseconds from an event's time to the commit that made its verdict visible.

    A verdict's own record time is when it was written; the commit marker follows in the same
    partition, and its time is what a reader waits for. Markers are not delivered, so the record
    time of the *last* verdict of a transaction stands for it (a few milliseconds early).
    """
    for p in range(PARTITIONS):
        records = list(
            read_partition(settings, Partition(settings.topics.verdicts, p), since[p], settle_s=5)
        )
        visible: list[float] = []
        for i, record in enumerate(records):
            assert record.value is not None
            # A gap in the offsets is the marker of the commit before it.
            last = i + 1 == len(records) or (
                records[i + 1].position.offset > record.position.offset + 1
            )
            sent = decode_verdict(record.value).event_time_ms
            visible.append(sent)
            if last:
                at = record.timestamp_ms or 0
                yield from (at - sent for sent in visible)
                visible = []


# ----------------------------------------------------------------------------------- restore
def restore(bootstrap: str, keys: int, per_key: int) -> list[list[Any]]:
    """Time from assignment to live for a restarted worker with many keys."""
    settings = settings_of(bootstrap)
    topic = settings.topics.input[0]
    n_events = keys * per_key
    fill(bootstrap, topic, n_events, sensors=keys)
    first = Watch(n_events)
    every = n_events // PARTITIONS * 6 // 10  # one snapshot, and the rest to be replayed
    with config_file(settings, "HBOS", window=200, snapshot_every=every) as path:
        crash = _CrashBeforeLastSnapshot(first)
        with contextlib.suppress(_Crash):
            run_pipeline(load_config(path), observers=[crash], stop=first.stop)
        saved = [e for _, e in first.events if isinstance(e, SnapshotSaved)]
        second = Watch(10**12)
        timer = _StopWhenLive(second)
        run_pipeline(load_config(path), observers=[timer], stop=second.stop)
    opened = [(t, e) for t, e in second.events if isinstance(e, LaneOpened)]
    live = [(t, e) for t, e in second.events if isinstance(e, LaneLive)]
    replayed = sum(e.replayed_events for _, e in live)
    began = timer.began
    row = [
        keys,
        sum(e.n_bytes for e in saved[-PARTITIONS:]) // 1024,
        round(opened[-1][0] - began, 2),
        replayed,
        round(live[-1][0] - opened[-1][0], 2),
    ]
    print(row)
    return [row]


class _Crash(BaseException):
    """Stands for SIGKILL."""


class _CrashBeforeLastSnapshot:
    """Dies once everything is committed, before the final snapshot is written."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.outcomes = watch.outcomes

    def event(self, event: RunEvent) -> None:
        self._watch.event(event)
        if self._watch.stop.is_set():
            raise _Crash


class _StopWhenLive:
    def __init__(self, watch: Watch) -> None:
        self._watch, self._live = watch, 0
        self.outcomes = watch.outcomes
        self.began = time.perf_counter()

    def event(self, event: RunEvent) -> None:
        self._watch.event(event)
        self._live += isinstance(event, LaneLive)
        if self._live == PARTITIONS:
            self._watch.stop.set()


# -------------------------------------------------------------------------------------- main
@contextlib.contextmanager
def broker() -> Iterator[str]:
    yours = os.environ.get("REJEX_TEST_KAFKA")
    if yours:
        yield yours
        return
    from tools.kafka.broker import start

    with start(quick=False) as cluster:
        yield cluster.bootstrap


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer events, one repeat")
    quick = parser.parse_args(argv).quick
    n_events, repeats = (60_000, 1) if quick else (160_000, 3)
    with broker() as bootstrap:
        rows = throughput(bootstrap, n_events, repeats)
        waits = []
        for client in CLIENTS:
            full = next(r[2] for r in rows if r[0] == client and r[1] == "service, HBOS")
            rates = {f"{share:.0%}": share * full for share in (0.1, 0.5, 0.9)}
            waits += latency(bootstrap, client, rates, 4.0 if quick else 15.0)
        restored = restore(bootstrap, 1_000, 150 if quick else 400)
    title = (
        f"Kafka: kafka-python {version('kafka-python')}, confluent-kafka "
        f"{version('confluent-kafka')}, one broker on the same machine"
    )
    harness.write(
        "kafka",
        title,
        [
            (
                f"Throughput of one worker: {n_events:,} events of about 200 bytes, {PARTITIONS} "
                f"partitions, {SENSORS} sensors, a commit every {COMMIT_S} s; service with n = "
                "2,000, refits, monitors and evidence on. Median of "
                f"{repeats}; ratios are of events/s within a repeat.",
                [
                    "client",
                    "loop",
                    "events/s",
                    "CPU µs/event",
                    "of pass-through",
                    "of same bytes",
                ],
                rows,
            ),
            (
                "Latency from an event's time to its committed verdict, ms; HBOS, n = 500, a "
                "commit every 0.1 s; feed, broker and worker share the machine.",
                ["client", "load", "events/s", "p50", "p99"],
                waits,
            ),
            (
                "A restarted worker: HBOS, n = 200, snapshots in the state topic.",
                ["keys", "snapshot KiB", "connect and restore s", "replayed events", "replay s"],
                restored,
            ),
        ],
    )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
