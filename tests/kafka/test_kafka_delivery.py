"""Exactly once on a real broker: what is committed equals an uninterrupted run."""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import (
    Feeder,
    Kafka,
    Worker,
    Workers,
    assert_exactly,
    door_feed,
    feed,
    next_offsets,
    verdicts_of,
)
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.sink import open_clients

from rejex_stream.native_core import core
from rejex_stream.types import Partition, Record
from tests.soak_results import record
from tests.waiting import pass_time, until

pytestmark = pytest.mark.kafka

CONFLUENT = pytest.mark.skipif(
    importlib.util.find_spec("confluent_kafka") is None,
    reason="no confluent-kafka: pip install 'rejex-stream[confluent]'",
)
CLIENTS = ["kafka-python", pytest.param("confluent", marks=CONFLUENT)]
"""`make test` takes one of them in turn (`tests/conftest.py`), `make test-all` both."""
DEFAULT_CLIENT_FIRST = [
    "kafka-python",
    pytest.param("confluent", marks=[CONFLUENT, pytest.mark.slow]),
]
"""The proof is the same for both; `make test` takes the time for one, `make soak` for both."""
MODES = ("idle", "load")


def finish(
    kafka: Kafka, settings: KafkaSettings, records: Sequence[Record], timeout_s: float = 300.0,
    said: Callable[[], object] = lambda: "",
) -> None:  # fmt: skip
    """Wait until everything is committed; what the workers `said` is told if it does not come."""
    until(
        lambda: kafka.committed(settings) == next_offsets(records),
        timeout_s=timeout_s,
        what=lambda: f"the group commits the whole feed: {kafka.committed(settings)}\n{said()}",
        every_s=0.3,
    )


@pytest.mark.parametrize(("client", "delivery", "kind"), [
    ("kafka-python", "exactly_once", "HBOS"), ("kafka-python", "at_least_once", "chain"),
    pytest.param("confluent", "exactly_once", "HalfSpaceTrees", marks=CONFLUENT),
    pytest.param("confluent", "at_least_once", "chain", marks=[CONFLUENT, pytest.mark.slow]),
])  # fmt: skip
def test_each_outcome_is_written_once_and_in_order(
    kafka: Kafka, tmp_path: Path, client: str, delivery: str, kind: str
) -> None:
    settings = kafka.settings(partitions=4, client=client, delivery=delivery)
    records = feed(settings, 4_000)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "w0", engine={"kind": kind})
        finish(kafka, settings, records)
        # Where a commit fails (a busy machine can cost a session), at-least-once may repeat.
        disturbed = "Retrying" in worker.output or "PartitionClosed" in worker.output
        assert worker.terminate() == 0, worker.output
    may_repeat = delivery == "at_least_once" and disturbed
    assert_exactly(kafka, settings, records, kind, may_repeat=may_repeat)


def chaos(
    kafka: Kafka, settings: KafkaSettings, tmp_path: Path, records: Sequence[Record],
    draw: random.Random, *, kills: int, feed_s: float = 5.0,
    before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None,
    until_done: Sequence[Record] = (), **options: Any,
) -> str:  # fmt: skip
    """Let two workers work through a feed; kill one of them at random, again and again.

    Returns what all of them have said.
    """
    options = {"pause_s": 0.02, **options}
    everyone: list[Worker] = []

    def start(name: str) -> Worker:
        everyone.append(workers.start(settings, name, **options))
        return everyone[-1]

    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, feed_s) as feeder:
        running = {name: start(name) for name in ("a", "b")}
        for _ in range(kills):
            pass_time(draw.uniform(0.3, 2.0), because="the moment of the kill is random")
            before()
            name = draw.choice(sorted(running))
            assert running[name].alive, running[name].output
            running[name].kill()
            after()
            running[name] = start(name)
        feeder.finish()
        finish(
            kafka, settings, until_done or records, timeout_s=300 + len(records) / 500,
            said=lambda: "\n".join(f"{name}:\n{w.output}" for name, w in running.items()),
        )  # fmt: skip
        for worker in running.values():
            assert worker.terminate() == 0, worker.output
    return "".join(worker.output for worker in everyone)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_partition_that_rested_half_read_is_read_on_while_the_others_are_at_their_end(
    kafka: Kafka, client: str
) -> None:
    """kafka-python forgot such a partition for good: its worker seemed to be idle."""
    settings = kafka.settings(partitions=2, client=client)
    records = feed(settings, 400, partitions=2)
    kafka.fill(settings, records)
    wanted = {partition: [*range(end)] for partition, end in next_offsets(records).items()}
    consumer = open_clients(settings, "w")[0]()
    read: dict[Partition, list[int]] = defaultdict(list)

    def poll(most: int) -> Partition | None:
        got = consumer.poll(most, 0.1)
        for one in got:
            read[Partition(*one.position[:2])].append(one.position.offset)
        return Partition(*got[-1].position[:2]) if got else None

    def begin() -> bool:
        poll(1)
        for change in consumer.changes():
            consumer.start(change.partition, 0)
            read[change.partition] = []
        return len(read) == 2

    try:
        until(begin)
        resting = until(lambda: poll(1))
        assert resting is not None
        (other,) = set(read) - {resting}
        consumer.stop(resting)
        until(lambda: poll(50) is None and read[other] == wanted[other])
        consumer.start(resting, read[resting][-1] + 1)
        until(lambda: poll(50) is None and read == wanted, lambda: read)
    finally:
        consumer.close()


def losing_seats(draw: random.Random) -> Callable[[], None]:
    """Between a worker's end and its next start: sometimes it is away for long."""

    def away() -> None:
        if draw.random() < 0.3:
            pass_time(draw.uniform(0, 4), because="sometimes it loses its seat")

    return away


@pytest.mark.parametrize(("client", "dealt", "n_events", "kills"), [
    ("kafka-python", "classic", 6_000, 5),
    pytest.param("confluent", "classic", 6_000, 5, marks=[CONFLUENT, pytest.mark.long]),
    pytest.param("confluent", "consumer", 24_000, 20, marks=[CONFLUENT, pytest.mark.slow]),
])  # fmt: skip
def test_workers_with_either_core_write_what_python_alone_would(
    kafka: Kafka, tmp_path: Path, client: str, dealt: str, n_events: int, kills: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Killed at random, each goes on from the other's snapshots, now natively and now in Python."""
    pytest.importorskip("rejex_native", reason="the native core is not built: make native")
    use_core(monkeypatch, "")
    assert core()[0] is not None, "it is not believed, and the workers would not use it"
    settings = kafka.settings(partitions=2, client=client, group_protocol=dealt)
    records, draw = feed(settings, n_events, sensors=8, partitions=2, seed=6), random.Random(6)
    chaos(
        kafka, settings, tmp_path, records, draw, kills=kills, feed_s=3.0 * kills,
        engine={"kind": "HBOS"},
        after=lambda: monkeypatch.setenv("REJEX_CORE", draw.choice(("", "", "python"))),
        max_poll_records=200, snapshot_every_events=300,
    )  # fmt: skip
    use_core(monkeypatch, "python")
    assert core()[0] is None
    assert_exactly(kafka, settings, records, "HBOS")
    record(
        f"workers with either core, partitions dealt by the {dealt} protocol",
        size=f"{n_events:,} records of 8 sensors, 2 partitions, two workers with {client}",
        done_to_it=f"{kills} SIGKILL; a worker that comes back draws its core, of three twice "
        "native",
        outcome="verdicts, review items, dead letters: none differs from Python's alone",
    )


def use_core(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have this process, and those that it starts, ask again which core there is."""
    monkeypatch.setenv("REJEX_CORE", name)
    core.cache_clear()


@pytest.fixture(autouse=True)
def forget_the_core() -> Iterator[None]:
    """Leave the next test its own choice."""
    yield
    core.cache_clear()


@pytest.mark.parametrize(("client", "kind", "n_events", "kills", "more"), [
    ("kafka-python", "chain", 8_000, 5, {}),
    pytest.param("confluent", "chain", 8_000, 5, {}, marks=[CONFLUENT, pytest.mark.slow]),
    pytest.param("kafka-python", "HalfSpaceTrees", 3_600, 2, {"sensors": 4, "modes": MODES},
                 marks=pytest.mark.long),
    pytest.param("confluent", "HBOS", 3_600, 3, {"sensors": 4, "modes": MODES, "dealt": True},
                 marks=[CONFLUENT, pytest.mark.long]),
    pytest.param("kafka-python", "siblings", 12_000, 3,
                 {"sensors": 16, "modes": MODES, "weather": 3.0},
                 marks=pytest.mark.long),
])  # fmt: skip
def test_random_kills_lose_nothing_and_double_nothing(
    kafka: Kafka, tmp_path: Path, client: str, kind: str, n_events: int, kills: int,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Operating modes show none of it either, nor a group whose partitions the broker deals."""
    modes, dealt = more.get("modes", ()), {"group_protocol": "consumer"}
    settings = kafka.settings(partitions=4, client=client, **(dealt if "dealt" in more else {}))
    sensors, weather = more.get("sensors", 20), more.get("weather", 0.0)
    records = feed(settings, n_events, sensors=sensors, seed=1, modes=modes, weather=weather)
    draw = random.Random(1)
    chaos(
        kafka, settings, tmp_path, records, draw, kills=kills, after=losing_seats(draw),
        max_poll_records=100, snapshot_every_events=200,
        engine={"kind": kind} | ({"modes": True} if modes else {}),
    )  # fmt: skip
    assert_exactly(kafka, settings, records, kind, modes=bool(modes))
    if modes:
        verdicts = itertools.chain(*verdicts_of(kafka, settings).values())
        assert len({(v.stream_key, v.mode) for v in verdicts if v.rank is not None}) == sensors * 2
    if "dealt" in more:
        import confluent_kafka as ck
        from confluent_kafka.admin import AdminClient

        broker = AdminClient({"bootstrap.servers": kafka.bootstrap})  # answers end with it
        asked = broker.list_consumer_groups(types={ck.ConsumerGroupType.CONSUMER})
        assert settings.group in {group.group_id for group in asked.result().valid}


def getting_on(kafka: Kafka, settings: KafkaSettings, step: int) -> Callable[[], None]:
    """Return what waits until so many more records are committed: no kill hits a mere start."""
    seen = 0

    def committed() -> int:
        return sum(kafka.committed(settings).values())

    def wait() -> None:
        nonlocal seen
        until(lambda: committed() >= seen + step, "more is committed")
        seen = committed()

    return wait


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("n_records", "kills", "given_up"), [
    pytest.param(1_200, 3, True, marks=pytest.mark.long),
    pytest.param(12_000, 40, False, marks=pytest.mark.slow),
])  # fmt: skip
def test_kills_while_readings_are_selected_joined_and_put_in_order(
    kafka: Kafka, tmp_path: Path, client: str, n_records: int, kills: int, given_up: bool
) -> None:
    """Half a row, and events that wait for earlier ones, are in the state: none is lost.

    Transactions that were given up lie between the records: offsets with gaps, which nobody counts.
    """
    settings, draw = kafka.settings(partitions=4, client=client), random.Random(5)
    feed = records = door_feed(settings, n_records, seed=5)
    if given_up:
        records = kafka.fill_in_transactions(settings, feed, draw)
        assert len(records) == len(feed)
        assert sum(next_offsets(records).values()) > 1.2 * len(feed), "there are gaps"
    said = chaos(
        kafka, settings, tmp_path, [] if given_up else records, draw, kills=kills,
        feed_s=10.0 * kills, until_done=records, pause_s=0.1 if given_up else 0.02,
        before=getting_on(kafka, settings, n_records // (2 * kills)),
        max_poll_records=60, snapshot_every_events=20, engine={"kind": "chain"}, door=True,
    )  # fmt: skip
    assert re.search(r"snapshot_offset=[1-9]", said), "half a row was restored"
    assert_exactly(kafka, settings, records, door=True)


@pytest.mark.long
def test_workers_that_join_one_by_one_give_the_same_verdicts(kafka: Kafka, tmp_path: Path) -> None:
    """One, two and four workers over eight partitions; joining moves little."""
    settings = kafka.settings(partitions=8)
    records = feed(settings, 8_000, sensors=32, partitions=8)
    running: list[Worker] = []

    def shared() -> bool:
        most = -(-8 // len(running))
        whole = sorted(p for worker in running for p in worker.owned) == list(range(8))
        return whole and all(0 < len(worker.owned) <= most for worker in running)

    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, seconds=8) as feeder:
        for name in "abcd":
            running.append(workers.start(settings, name))
            until(shared, lambda: [worker.owned for worker in running])
        # Adding one moves what it gets and nothing else.
        opened = sum(worker.output.count("PartitionOpened") for worker in running)
        assert opened <= 8 + (4 + 2 + 2), [worker.output for worker in running]
        feeder.finish()
        finish(kafka, settings, records)
        for worker in running:
            assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)
