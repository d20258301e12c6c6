"""Brokers die, leaders move, rivals appear, workers freeze: nothing is lost, nothing doubled."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka_harness import Feeder, Kafka, Workers, assert_exactly, feed, next_offsets, until
from rejex_connectors.kafka import KafkaSettings, connect
from rejex_connectors.kafka_python import admin
from test_kafka_delivery import DEFAULT_CLIENT_FIRST, finish

from rejex_stream.errors import ConnectorError
from rejex_stream.types import Record
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]


@pytest.fixture
def one_node() -> Iterator[tuple[broker.Cluster, Kafka]]:
    with broker.start(1) as cluster, Kafka(cluster.bootstrap) as kafka:
        yield cluster, kafka


@pytest.fixture
def three_nodes() -> Iterator[tuple[broker.Cluster, Kafka]]:
    with broker.start(3) as cluster, Kafka(cluster.bootstrap) as kafka:
        yield cluster, kafka


def under_way(kafka: Kafka, settings: KafkaSettings, records: Sequence[Record]) -> None:
    """Wait until every partition has a commit, and make sure that there is more to come."""
    ends = next_offsets(records)
    until(lambda: len(kafka.committed(settings)) == len(ends), what="a commit in each partition")
    assert kafka.committed(settings) != ends, "the feed is over before the outage begins"


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_broker_is_killed_and_comes_back_on_its_data(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str
) -> None:
    cluster, kafka = one_node
    settings = kafka.settings(partitions=2, client=client, commit_timeout_ms=4_000)
    records = feed(settings, 4_000, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "a", pause_s=0.05, max_poll_records=50)
        under_way(kafka, settings, records)
        cluster.nodes[0].kill()
        time.sleep(6)  # longer than a commit may take
        cluster.nodes[0].start()
        cluster.wait()
        finish(kafka, settings, records)
        assert worker.terminate()[0] == 0, worker.output
    assert_exactly(kafka, settings, records)


@pytest.mark.slow
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_broker_that_freezes_is_waited_for(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str
) -> None:
    cluster, kafka = one_node
    settings = kafka.settings(
        partitions=2, client=client, commit_timeout_ms=2_000, transaction_timeout_ms=2_500
    )
    records = feed(settings, 3_000, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "a", pause_s=0.05, max_poll_records=50)
        under_way(kafka, settings, records)
        cluster.nodes[0].pause()
        time.sleep(5)  # the transaction in flight runs out meanwhile
        cluster.nodes[0].resume()
        finish(kafka, settings, records)
        assert worker.terminate()[0] == 0, worker.output
    assert_exactly(kafka, settings, records)


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
            time.sleep(4)
            node.start()
            cluster.wait()
        assert _leaders(kafka, settings) != leaders, "a leader has moved"
        feeder.finish()
        finish(kafka, settings, records)
        for worker in running:
            assert worker.terminate()[0] == 0, worker.output
    assert_exactly(kafka, settings, records)


def _leaders(kafka: Kafka, settings: KafkaSettings) -> list[int]:
    (topic,) = kafka.admin.describe_topics(list(settings.topics.input))
    return [p["leader_id"] for p in sorted(topic["partitions"], key=lambda p: p["partition_index"])]


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_second_worker_with_the_same_name_takes_over_and_the_first_says_why(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(partitions=2, client=client)
    records = feed(settings, 3_000, partitions=2)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records) as feeder:
        first = workers.start(settings, "same", pause_s=0.02, max_poll_records=50)
        under_way(kafka, settings, records)
        second = workers.start(settings, "same")
        until(lambda: not first.alive, what="the first is fenced")
        assert first.process.returncode == 1
        assert "another worker has taken the name 'same'" in first.output
        feeder.finish()
        finish(kafka, settings, records)
        assert second.terminate()[0] == 0, second.output
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_frozen_worker_that_wakes_up_writes_nothing_of_its_own(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(partitions=2, client=client)
    records = feed(settings, 3_000, partitions=2)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records) as feeder:
        zombie = workers.start(settings, "zombie", pause_s=0.02, max_poll_records=50)
        under_way(kafka, settings, records)
        zombie.freeze()
        heir = workers.start(settings, "heir")
        feeder.finish()
        finish(kafka, settings, records)
        zombie.thaw()
        time.sleep(2)
        if zombie.alive:  # it noticed in time, and is a member again
            assert zombie.terminate()[0] == 0, zombie.output
        assert heir.terminate()[0] == 0, heir.output
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_slow_refit_never_costs_a_worker_its_seat(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    """The engine stands still longer than session and transaction may take: only polls stop."""
    settings = kafka.settings(
        partitions=2, client=client, session_timeout_ms=1_500, transaction_timeout_ms=1_500
    )
    settings = dataclasses.replace(settings, commit_timeout_ms=1_500)
    records = feed(settings, 300, sensors=2, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        slow = {"kind": "chain", "slow_s": 2.0, "slow_every": 130}
        worker = workers.start(settings, "slow", engine=slow)
        finish(kafka, settings, records)
        code, _ = worker.terminate(15)
        assert code == 0, worker.output
    assert worker.output.count("LaneOpened") == 2, "each partition was given once"
    assert "Retrying" not in worker.output
    assert_exactly(kafka, settings, records)


def test_a_broker_that_is_not_there_is_named_and_asking_it_leaves_nothing_behind() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    open_files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for ask in (connect, admin):
        with pytest.raises(ConnectorError, match=re.escape("127.0.0.1:1")) as caught:
            ask(settings)
        assert caught.value.retriable
    assert len(os.listdir("/proc/self/fd")) <= open_files
    assert threading.active_count() <= threads


@pytest.mark.slow
def test_an_outage_of_a_minute_is_waited_for(
    one_node: tuple[broker.Cluster, Kafka], tmp_path: Path
) -> None:
    cluster, kafka = one_node
    settings = kafka.settings(partitions=2)
    records = feed(settings, 4_000, partitions=2)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "a", pause_s=0.05, max_poll_records=50)
        under_way(kafka, settings, records)
        cluster.nodes[0].kill()
        time.sleep(60)
        cluster.nodes[0].start()
        cluster.wait()
        finish(kafka, settings, records)
        assert worker.terminate()[0] == 0, worker.output
    assert "Retrying" in worker.output, "the outage was felt"
    assert_exactly(kafka, settings, records)
