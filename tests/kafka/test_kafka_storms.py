"""Storms with what people say in them, with gaps, another config, and without leaders.

Each ends with the outputs of a run that nothing disturbed; what a long one found stands in
``benchmarks/results/soak.md``.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError
from kafka_harness import (
    BUDGET,
    MAPPING,
    RUN,
    Feeder,
    Kafka,
    Worker,
    Workers,
    assert_holds,
    batches,
    by_partition,
    door_feed,
    feed,
    make_engine,
    messages_of,
    next_offsets,
    verdicts_of,
)
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from test_kafka_control import as_answered, say
from test_kafka_delivery import CONFLUENT, finish

from rejex_stream.decode import JsonDecoder
from rejex_stream.encode import decode_incidents, encode_command
from rejex_stream.run.loop import run
from rejex_stream.types import (
    Command,
    CommandKind,
    Incident,
    Label,
    Outcome,
    Position,
    Reason,
    Record,
    Verdict,
)
from tests.doubles import ListSink, ListSource, MemorySnapshotStore
from tests.soak_results import record
from tests.test_governor import overspent
from tests.waiting import pass_time, until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, CONFLUENT]

PARTITIONS = 4
CLIENT = {"a": "kafka-python", "b": "confluent"}
GOVERNED: dict[str, Any] = {"kind": "HBOS", "governed": True}
EVERY_S = 0.5
"""So often people look for incidents."""
Written = Mapping[str, Mapping[int, list[Any]]]


def long(n_events: int, kills: int, *, limit_s: int = 3_600) -> Any:
    """The size of which the outcome is kept."""
    return pytest.param(n_events, kills, marks=[pytest.mark.slow, pytest.mark.timeout(limit_s)])


LITTLE = 4
"""Ends in a little trial, at most."""


def quick(n_events: int, kills: int) -> Any:
    """The size at which the same trial takes a minute: what one runs after a change."""
    return pytest.param(n_events, kills, marks=pytest.mark.slow)


def storm(
    kafka: Kafka, settings: KafkaSettings, workers: Workers, records: Sequence[Record], kills: int,
    *, draw: random.Random,
    before: Callable[[int, dict[str, Worker], Callable[[str], Worker]], None] = lambda *_: None,
    engine: Callable[[str], Mapping[str, Any]],
    environment: Callable[[str], Mapping[str, str]] = lambda _: {}, **options: Any,
) -> tuple[Counter[str], list[Worker]]:  # fmt: skip
    """End two workers again and again, one of each client, until all is committed.

    `before` is called before each end, with its number, the workers, and how one is started.
    Returns how they ended, and all that there were.
    """
    ends, ended, everyone = next_offsets(records), Counter[str](), list[Worker]()
    options = {"max_poll_records": 200, "snapshot_every_events": 500, **options}

    def start(name: str) -> Worker:
        of_client = settings.replace(client=CLIENT[name])
        mine = {"environment": environment(name), "engine": dict(engine(name))}
        everyone.append(workers.start(of_client, name, **mine, **options))
        return everyone[-1]

    def done() -> int:
        return sum(kafka.committed(settings).values())

    running = {name: start(name) for name in CLIENT}
    until(lambda: len(kafka.committed(settings)) == len(ends), "each partition has a commit")
    for kill in range(kills):
        seen = done()
        until(lambda: done() > seen or seen == sum(ends.values()), "it has gone on")  # noqa: B023
        before(kill, running, start)
        pass_time(draw.uniform(0.0, 2.0), because="the moment of the end is random")
        name, how = draw.choice(sorted(running)), draw.choice(["KILL"] * 4 + ["TERM", "STOP"])
        ended[how] += 1
        worker = running[name]
        assert worker.alive, worker.output
        if how == "STOP":
            worker.freeze()
            pass_time(4.0, because="it loses its seat")
            worker.thaw()
            continue
        if how == "KILL":
            worker.kill()
        else:
            assert worker.terminate() == 0, worker.output
        running[name] = start(name)
    finish(
        kafka, settings, records, timeout_s=900,
        said=lambda: "\n".join(worker.output for worker in running.values()),
    )  # fmt: skip
    for worker in running.values():
        assert worker.terminate() == 0, worker.output
    return ended, everyone


def record_if_long(kills: int, trial: str, **told: str) -> None:
    if kills > LITTLE:
        record(trial, **told)


def ends_of(ended: Counter[str]) -> str:
    return ", ".join(f"{n} SIG{how}" for how, n in sorted(ended.items()))


# ------------------------------------------------------------------------------ people who answer
def faulty_feed(settings: KafkaSettings, n_events: int, *, sensors: int, seed: int) -> list[Record]:
    """Make a feed with spikes, a fault of each sensor, and records that cannot be read."""
    draw, (topic,) = random.Random(seed), settings.topics.input
    at: dict[int, int] = defaultdict(int)
    seen: dict[int, int] = defaultdict(int)
    fault = {
        number: draw.randrange(300, max(301, n_events // sensors)) for number in range(sensors)
    }
    records = []
    for i in range(n_events):
        number = draw.randrange(sensors)
        seen[number] += 1
        spike = 8.0 if draw.random() < 0.03 else 0.0
        lasting = 6.0 if 0 <= seen[number] - fault[number] < 60 else 0.0
        event = {"sensor": f"s{number}", "t": 1_000 * i, "v": draw.gauss(0, 1) + spike + lasting}
        value = json.dumps(event).encode() if draw.random() > 0.005 else b'{"sensor": "s'
        partition = number % PARTITIONS
        records.append(Record(Position(topic, partition, at[partition]), b"%d" % number, value))
        at[partition] += 1
    return records


class People:
    """Say of incidents what was a fault, and what is normal from now on."""

    def __init__(self, kafka: Kafka, settings: KafkaSettings, seed: int) -> None:
        self._kafka, self._settings, self._draw = kafka, settings, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.commands: Counter[CommandKind] = Counter()
        self.failure: BaseException | None = None

    def __enter__(self) -> People:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def __str__(self) -> str:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(self.commands.items()))
        return f"{self.commands.total():,} commands ({kinds})"

    def _run(self) -> None:
        try:
            with self._reading() as consumer:
                while not self._over.is_set():
                    self._speak(consumer)
                    self._over.wait(EVERY_S)
        except BaseException as error:
            self.failure = error

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        consumer = KafkaConsumer(
            bootstrap_servers=self._kafka.bootstrap, isolation_level="read_committed",
            enable_auto_commit=False, auto_offset_reset="earliest", metrics_enabled=False,
        )  # fmt: skip
        try:
            topic = self._settings.topics.incidents
            consumer.assign([TopicPartition(topic, p) for p in range(PARTITIONS)])
            yield consumer
        finally:
            consumer.close(autocommit=False)

    def _speak(self, consumer: Any) -> None:
        polled = consumer.poll(timeout_ms=200, max_records=2_000).values()
        items = [decode_incidents(one.value) for found in polled for one in found]
        for one in [item for item in items if isinstance(item, Incident)][-2:]:
            kind = self._draw.choice([CommandKind.FAULT, CommandKind.NEW_NORMAL])
            self._say(kind, incident=one.id, version=one.version)

    def _say(self, kind: CommandKind, **fields: Any) -> None:
        self.commands[kind] += 1
        command = Command(id=f"c{self.commands.total()}", kind=kind, **fields)
        say(self._kafka, self._settings, encode_command(command))


def most_overspent(kafka: Kafka, settings: KafkaSettings) -> float:
    """Return by how much a sensor has spent more than its rate at most.

    Every stretch of the events of every sensor that were ranked is looked at, those of an incident
    among them: they earn and spend as well. Fails above the burst.
    """
    by_stream: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in itertools.chain(*verdicts_of(kafka, settings).values()):
        if (verdict.limited or verdict).reason in (None, Reason.AMBIGUOUS):
            by_stream[verdict.stream_key].append(verdict)
    rate, burst, most = Fraction(repr(BUDGET.rate)), BUDGET.burst or 0, Fraction(0)
    for of_one in by_stream.values():
        rejected = [verdict.label is Label.REJECTED for verdict in of_one]
        most = max(most, overspent(rejected, [rate] * len(rejected)))
    assert most <= burst
    return float(most)


def four(settings: KafkaSettings) -> list[str]:
    topics = settings.topics
    return [topics.verdicts, topics.review, topics.deadletter, topics.incidents]


@pytest.mark.parametrize(("n_events", "kills"), [quick(6_000, 3), long(100_000, 40)])
def test_a_storm_with_a_held_budget_while_people_answer(
    kafka: Kafka, tmp_path: Path, n_events: int, kills: int
) -> None:
    """Every output is that of a run that nothing disturbed, and no sensor has spent too much."""
    settings = kafka.settings(partitions=PARTITIONS)
    records = faulty_feed(settings, n_events, sensors=12, seed=kills)
    with (
        Workers(tmp_path) as workers,
        Feeder(kafka, settings, records, seconds=5.0 * kills),
        People(kafka, settings, kills) as people,
    ):
        ended, _ = storm(
            kafka, settings, workers, records, kills,
            draw=random.Random(kills), engine=lambda _: GOVERNED,
        )  # fmt: skip
    wanted = as_answered(kafka, settings, records, GOVERNED)
    written = assert_holds(kafka, settings, wanted, four(settings))
    most = most_overspent(kafka, settings)
    assert people.commands.total()
    record_if_long(
        kills, "a held budget while people answer",
        size=f"{n_events:,} records of 12 sensors, 4 partitions, both clients",
        done_to_it=f"{ends_of(ended)}; {people}",
        outcome=f"{written:,} records of four topics, none differs; at most {most:.2f} beyond "
        f"the rate, of a burst of {BUDGET.burst}",
    )  # fmt: skip


# ------------------------------------------------------------------------- gaps of a compaction
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "100",
}  # fmt: skip
AT_THE_DOOR: dict[str, Any] = {**GOVERNED, "channels": ["temp", "press"]}


@pytest.mark.parametrize(("n_events", "kills"), [quick(3_000, 2), long(12_000, 10)])
def test_kills_while_a_compaction_has_left_gaps_with_everything_on(
    kafka: Kafka, tmp_path: Path, n_events: int, kills: int
) -> None:
    """Selected, joined, put in order, under a budget; a part of the offsets is gone.

    Nobody answers: which order an answer has among readings that were put in order, no reply tells.
    """
    settings = kafka.settings(partitions=PARTITIONS, config={"input": COMPACTED})
    draw, (topic,) = random.Random(kills), settings.topics.input
    produced = [
        one._replace(key=b"%d" % draw.randrange(n_events)) if draw.random() < 0.6 else one
        for one in door_feed(settings, n_events, seed=kills)
    ]
    unique = [
        one._replace(key=b"%b-%d" % (one.key, i)) if i % 3 else one
        for i, one in enumerate(produced)
    ]
    for some in batches(unique, n_events // 12):
        kafka.fill(settings, some)
        pass_time(0.15, because="the broker closes a segment once it is so old")
    left = 0

    def is_compacted() -> bool:
        nonlocal left
        kafka.fill(settings, [Record(Position(topic, p, 0), b"end", b"{}") for p in range(4)])
        before, left = left, kafka.count(settings, topic)
        return left < 0.9 * n_events and left <= before

    until(is_compacted, lambda: f"{left} of {n_events} records are left", every_s=1.0)
    kafka.admin.alter_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic, configs={"cleanup.policy": "delete"})]
    )
    records = [one for found in kafka.read(settings, topic).values() for one in found]
    ends = sum(next_offsets(records).values())
    with Workers(tmp_path) as workers:
        ended, _ = storm(
            kafka, settings, workers, records, kills, draw=draw, engine=lambda _: AT_THE_DOOR,
            door=True, pause_s=0.1, max_poll_records=60, snapshot_every_events=100,
        )  # fmt: skip
    wanted = as_answered(kafka, settings, records, AT_THE_DOOR, door=True)
    written = assert_holds(kafka, settings, wanted, four(settings))
    most_overspent(kafka, settings)
    record_if_long(
        kills, "gaps of a compaction, everything on",
        size=f"{n_events:,} records, of which {ends - len(records):,} of {ends:,} offsets are gone",
        done_to_it=ends_of(ended), outcome=f"{written:,} records of four topics, none differs",
    )  # fmt: skip


# ------------------------------------------------------------------- a config that rolls through
OLD, NEW = 4, 9
"""Tolerances. HBOS counts and adds, so no kernel of BLAS touches a score."""
OTHER_PROCESSOR = {"OPENBLAS_CORETYPE": "Nehalem"}
OPENED = re.compile(
    r"PartitionOpened\(partition=Partition\(.*?partition=(\d+)\).*?live_from=(\d+).*? at ([\d.]+)"
)


@pytest.mark.parametrize(("n_events", "kills"), [quick(4_000, 4), long(16_000, 18)])
def test_a_decision_that_rolls_through_the_workers_holds_from_where_each_takes_over(
    kafka: Kafka, tmp_path: Path, n_events: int, kills: int
) -> None:
    """One worker after the other gets another tolerance while partitions change hands.

    The new one comes with another processor; fits are slow, and most keys are of a flood.
    """
    settings = kafka.settings(partitions=PARTITIONS, options={"max.poll.interval.ms": 6_000})
    records = feed(settings, n_events, sensors=8, seed=kills, flood_share=0.4)
    tolerance = {"a": OLD, "b": OLD}
    of: dict[int, int] = {}

    def roll(kill: int, running: dict[str, Worker], start: Callable[[str], Worker]) -> None:
        for name, when in (("a", kills // 3), ("b", 2 * kills // 3)):
            if kill == when:
                running[name].terminate()
                tolerance[name] = NEW
                running[name] = start(name)

    def engine(name: str) -> Mapping[str, Any]:
        of[len(of)] = tolerance[name]
        return {"kind": "HBOS", "fit_s": 3.0, "tolerance": tolerance[name]}

    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, seconds=5.0 * kills):
        ended, everyone = storm(
            kafka, settings, workers, records, kills,
            draw=random.Random(kills), before=roll, engine=engine,
            environment=lambda name: OTHER_PROCESSOR if tolerance[name] == NEW else {},
            max_poll_records=100, snapshot_every_events=100,
        )  # fmt: skip
    assert "EnvironmentChanged" in "".join(worker.output for worker in everyone)
    owners: dict[int, list[tuple[int, float, int]]] = defaultdict(list)
    for number, worker in enumerate(everyone):
        for partition, live_from, at in OPENED.findall(worker.output):
            owners[int(partition)].append((int(live_from), float(at), of[number]))
    wanted = messages_of(settings, decided_in_turn(records, owners), partitions=PARTITIONS)
    written = assert_holds(kafka, settings, wanted, four(settings))
    turns = [
        sum(one[2] != other[2] for one, other in itertools.pairwise(sorted(of_one)))
        for of_one in owners.values()
    ]
    assert all(turns)
    record_if_long(
        kills,
        "a decision config that rolls through the workers",
        size=f"{n_events:,} records, most of 8 sensors, the others of a flood of names; 4 "
        "partitions, both clients, fits of 3 s",
        done_to_it=f"{ends_of(ended)}; tolerance {OLD} → {NEW} worker by worker, so partitions "
        f"changed between the two {sum(turns)} times",
        outcome=f"{written:,} records of four topics, none differs",
    )


def decided_in_turn(
    records: Sequence[Record], owners: Mapping[int, Sequence[tuple[int, float, int]]]
) -> list[Outcome]:
    """What one quiet worker says that is stopped wherever a partition changed hands."""
    sink, store = ListSink(), MemorySnapshotStore()
    for partition, script in by_partition(records).items():
        turns = sorted(owners[partition.partition])
        stops = [live_from for live_from, *_ in turns[1:]] + [len(script)]
        for (live_from, _, tolerance), stop in zip(turns, stops, strict=True):
            if stop > live_from:
                run(
                    ListSource({partition: script[:stop]}, committed=sink.offsets),
                    sink, store, make_engine("HBOS", tolerance=tolerance), JsonDecoder(MAPPING),
                    settings=RUN,
                )  # fmt: skip
    return sink.outcomes


# ---------------------------------------------------------------- three brokers, leaders killed
@pytest.mark.usefixtures("require_own_broker")
@pytest.mark.parametrize(("n_events", "kills"), [long(12_000, 6)])
def test_leaders_are_killed_in_a_storm_while_people_answer(
    three_nodes: tuple[broker.Cluster, Kafka], tmp_path: Path, n_events: int, kills: int
) -> None:
    """Of three brokers one after the other, with the leaders it has, beside ends of workers."""
    cluster, kafka = three_nodes
    settings = kafka.settings(partitions=PARTITIONS, replication=3)
    records = faulty_feed(settings, n_events, sensors=12, seed=kills)
    led: list[int] = []

    def leaders() -> list[int]:
        with suppress(KafkaError):  # asked of the broker that is dead
            (topic,) = kafka.admin.describe_topics(list(settings.topics.input))
            return [p["leader_id"] for p in topic["partitions"] if p["leader_id"] > 0]
        return []

    def kill_a_leader(kill: int, *_: object) -> None:
        (most, _), *_ = Counter(until(leaders)).most_common()
        node = next(node for node in cluster.nodes if node.node_id == most)
        node.kill()
        until(
            lambda: len(left := leaders()) == PARTITIONS and most not in left,
            f"others lead what {most} has led",
        )
        pass_time(2.0, because="an outage")
        node.start()
        cluster.wait()
        led.append(most)

    with (
        Workers(tmp_path) as workers,
        Feeder(kafka, settings, records, seconds=12.0 * kills),
        People(kafka, settings, kills) as people,
    ):
        ended, _ = storm(
            kafka, settings, workers, records, kills,
            draw=random.Random(kills), before=kill_a_leader, engine=lambda _: GOVERNED,
        )  # fmt: skip
    wanted = as_answered(kafka, settings, records, GOVERNED)
    written = assert_holds(kafka, settings, wanted, four(settings))
    most_overspent(kafka, settings)
    record_if_long(
        kills,
        "three brokers, leaders killed, a held budget while people answer",
        size=f"{n_events:,} records of 12 sensors, 4 partitions in 3 replicas, both clients",
        done_to_it=f"{len(led)} brokers killed with what they led, {ends_of(ended)}; {people}",
        outcome=f"{written:,} records of four topics, none differs",
    )
