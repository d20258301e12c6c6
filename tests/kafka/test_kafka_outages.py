"""Brokers die, leaders move, rivals appear, workers freeze: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka_harness import (
    Feeder,
    Kafka,
    Worker,
    Workers,
    assert_exactly,
    feed,
    next_offsets,
    pipeline_toml,
    start_rejex,
)
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import admin
from rejex_connectors.kafka.sink import connect, open_clients
from test_kafka_delivery import CLIENTS, DEFAULT_CLIENT_FIRST, finish

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Position, Record
from tests.waiting import PATIENCE_S, pass_time, until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]


FELT = re.compile("Retrying|refused", re.IGNORECASE)
WAITING = re.compile("attempt 3 failed|0 events, 0/s")
"""With transactions a start asks what the rest of the cluster must answer; without, the group."""


@pytest.fixture
def one_node() -> Iterator[tuple[broker.Cluster, Kafka]]:
    with broker.start(1) as cluster, Kafka(cluster.bootstrap) as kafka:
        yield cluster, kafka


def under_way(kafka: Kafka, settings: KafkaSettings, records: Sequence[Record]) -> None:
    ends = next_offsets(records)
    until(lambda: len(kafka.committed(settings)) == len(ends), "a commit in each partition")
    assert kafka.committed(settings) != ends, "the feed is over before the outage begins"


@contextmanager
def outlasted(
    one_node: tuple[broker.Cluster, Kafka], folder: Path, client: str, options: dict[str, int]
) -> Iterator[tuple[broker.Node, Worker, KafkaSettings]]:
    """Yield the only node while a worker is under way; what it writes in the end is exact."""
    cluster, kafka = one_node
    settings = kafka.settings(partitions=2, client=client, options=options)
    records = feed(settings, 4_000, partitions=2)
    kafka.fill(settings, records)
    with Workers(folder) as workers:
        worker = workers.start(settings, "a", pause_s=0.05, max_poll_records=50)
        under_way(kafka, settings, records)
        yield cluster.nodes[0], worker, settings
        cluster.wait()
        finish(kafka, settings, records)
        assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_is_killed_and_comes_back_on_its_data(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str
) -> None:
    """Meanwhile no topic of it is said to be missing."""
    options = {"delivery.timeout.ms": 4_000}
    with outlasted(one_node, tmp_path, client, options) as (node, worker, settings):
        producer = open_clients(settings.replace(delivery="at_least_once"), "w")[1]()
        with pytest.raises(ConfigError, match="does not exist"):
            producer.partitions("nowhere")
        node.kill()
        with pytest.raises(ConnectorError) as caught:
            producer.partitions("elsewhere")
        assert caught.value.retriable
        producer.close()
        # A worker with nothing in hand has nothing to try again: its client feels the outage then.
        until(lambda: FELT.search(worker.output), lambda: f"the outage is felt: {worker.output}")
        node.start()


@pytest.mark.slow
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_broker_that_freezes_is_waited_for(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str
) -> None:
    options = {"delivery.timeout.ms": 2_000, "transaction.timeout.ms": 2_500}
    with outlasted(one_node, tmp_path, client, options) as (node, *_):
        node.pause()
        pass_time(5, because="the transaction in flight runs out meanwhile")
        node.resume()


@pytest.mark.slow
def test_leaders_move_and_move_back_in_three_nodes(
    three_nodes: tuple[broker.Cluster, Kafka], tmp_path: Path
) -> None:
    cluster, kafka = three_nodes
    settings = kafka.settings(partitions=4, replication=3)
    records = feed(settings, 6_000)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records) as feeder:
        running = [
            workers.start(settings, name, pause_s=0.02, max_poll_records=50) for name in "ab"
        ]
        under_way(kafka, settings, records)
        leaders = _leaders(kafka, settings)
        for node in cluster.nodes[:2]:
            node.kill()
            pass_time(4, because="an outage")
            node.start()
            cluster.wait()
        assert _leaders(kafka, settings) != leaders, "a leader has moved"
        feeder.finish()
        finish(kafka, settings, records)
        for worker in running:
            assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)


def _leaders(kafka: Kafka, settings: KafkaSettings) -> list[int]:
    (topic,) = kafka.admin.describe_topics(list(settings.topics.input))
    return [p["leader_id"] for p in sorted(topic["partitions"], key=lambda p: p["partition_index"])]


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_second_worker_with_the_same_name_takes_over_and_the_first_says_why(
    kafka: Kafka, tmp_path: Path, client: str, busy: bool
) -> None:
    """Without work no commit tells it: kafka-python kept to itself what its heartbeats heard."""
    settings = kafka.settings(partitions=2, client=client)
    records = feed(settings, 3_000 if busy else 100, partitions=2)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records if busy else []) as feeder:
        first = workers.start(settings, "same", pause_s=0.02, max_poll_records=50)
        if busy:
            under_way(kafka, settings, records)
        until(lambda: len(first.owned) == 2, "the first has everything")
        second = workers.start(settings, "same")
        until(lambda: not first.alive, lambda: f"the first ends: {first.output}")
        assert first.process.returncode == 1
        assert "another worker has taken the name 'same'" in first.output
        feeder.finish()
        kafka.fill(settings, [] if busy else records)
        finish(kafka, settings, records)
        assert second.terminate() == 0, second.output
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_frozen_worker_that_wakes_up_writes_nothing_of_its_own(
    kafka: Kafka, tmp_path: Path, client: str, delivery: str
) -> None:
    """At least once, what was written before its failed commit is there twice."""
    settings = kafka.settings(partitions=2, client=client, delivery=delivery)
    records = feed(settings, 3_000, partitions=2)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records) as feeder:
        zombie = workers.start(settings, "zombie", pause_s=0.02, max_poll_records=50)
        under_way(kafka, settings, records)
        zombie.freeze()
        heir = workers.start(settings, "heir")
        feeder.finish()
        finish(kafka, settings, records)
        zombie.thaw()
        until(lambda: not zombie.alive or len(zombie.owned) < 2, "it notices")
        if zombie.alive:  # it noticed in time, and is a member again
            assert zombie.terminate() == 0, zombie.output
        assert heir.terminate() == 0, heir.output
    assert_exactly(kafka, settings, records, may_repeat=delivery == "at_least_once")


@pytest.mark.long
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_slow_refit_never_costs_a_worker_its_seat(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    """The engine stands still longer than session and transaction may take: only polls stop."""
    settings = kafka.settings(
        partitions=2,
        client=client,
        options=dict.fromkeys(("transaction.timeout.ms", "delivery.timeout.ms"), 5_000)
        | {"session.timeout.ms": 9_000},
    )
    records = feed(settings, 300, sensors=2, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        slow = {"kind": "chain", "slow_s": 10.0, "slow_every": 130}
        worker = workers.start(settings, "slow", engine=slow)
        finish(kafka, settings, records)
        assert worker.terminate() == 0, worker.output
    assert worker.output.count("PartitionOpened") == 2, "each partition was given once"
    assert "Retrying" not in worker.output
    assert_exactly(kafka, settings, records)


def test_a_broker_that_is_not_there_is_named_and_asking_it_leaves_nothing_behind() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    open_files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for ask in (connect, admin):
        with pytest.raises(ConnectorError, match=re.escape("127.0.0.1:1")) as caught:
            ask(settings)
        assert caught.value.retriable
    # What an earlier test left to end may open something in between, and close it.
    until(lambda: len(os.listdir("/proc/self/fd")) <= open_files)
    until(lambda: threading.active_count() <= threads)


@pytest.mark.slow
def test_an_outage_of_a_minute_is_waited_for(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path
) -> None:
    with outlasted(one_node, tmp_path, "kafka-python", {}) as (node, worker, _):
        node.kill()
        pass_time(60, because="an outage of a minute")
        node.start()
    assert FELT.search(worker.output), "the outage was felt"


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_start_with_two_of_three_nodes_down_waits_until_they_are_back(
    three_nodes: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str, delivery: str
) -> None:
    cluster, kafka = three_nodes
    settings = kafka.settings(partitions=2, replication=3)
    topic = settings.topics.input[0]
    n = 20
    kafka.fill(settings, [Record(Position(topic, 0, i), b"p", b'{"flow": 1}') for i in range(n)])
    config = tmp_path / "pipeline.toml"
    (name, _, _) = topic.rpartition(".in")
    told = {"client": client, "delivery": delivery, "options": {"delivery.timeout.ms": 4_000}}
    config.write_text(pipeline_toml(name, cluster.bootstrap, kafka=told))
    for node in cluster.nodes[1:]:
        node.kill()
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        start_rejex("run", config, cwd=tmp_path, stderr=output) as process,
    ):
        try:
            until(
                lambda: process.poll() is not None or WAITING.search(log.read_text()), log.read_text
            )
            assert process.poll() is None, log.read_text()
            for node in cluster.nodes[1:]:
                node.start()
            cluster.wait()
            until(lambda: kafka.count(settings, f"{name}.verdicts") == n, log.read_text)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            process.kill()


# ------------------------------------------------------------------------------- slow fits
SLOW = {"kind": "HBOS", "fit_s": 7.0}  # more than twice the longest time between two polls


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_fits_longer_than_the_poll_interval_stop_nobody_not_even_at_a_takeover(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(
        partitions=2, client=client,
        options={
            "session.timeout.ms": 3_000, "max.poll.interval.ms": 3_000,
            "transaction.timeout.ms": 3_000, "delivery.timeout.ms": 3_000,
        },
    )  # fmt: skip
    records = feed(settings, 500, sensors=2, partitions=2)
    kafka.fill(settings, records)
    options = {"engine": SLOW, "max_poll_records": 40, "snapshot_every_events": 50}
    with Workers(tmp_path) as workers:
        first = workers.start(settings, "one", **options)
        until(
            lambda: min([0, 0, *kafka.committed(settings).values()][-2:]) > 200,
            "both partitions have a model, and wait for none",
        )
        first.kill()
        heir = workers.start(settings, "one", **options)
        finish(kafka, settings, records)
        assert heir.terminate() == 0, heir.output
    for worker in (first, heir):
        assert worker.output.count("PartitionOpened") == 2, "each partition was given once"
        assert "no longer a member" not in worker.output
        assert "Retrying" not in worker.output
    assert_exactly(kafka, settings, records, kind="HBOS")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_worker_that_waits_for_a_fit_of_minutes_ends_when_asked(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(partitions=2, client=client)
    records = feed(settings, 500, sensors=2, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        endless = workers.start(settings, "one", engine={"kind": "HBOS", "fit_s": 900.0})
        until(lambda: len(kafka.committed(settings)) == 2, "what needs no fit is committed")
        assert endless.terminate() == 0, endless.output
        assert "Traceback" not in endless.output
        quick = workers.start(settings, "one", engine={"kind": "HBOS"})
        finish(kafka, settings, records)
        assert quick.terminate() == 0, quick.output
    assert_exactly(kafka, settings, records, kind="HBOS")
