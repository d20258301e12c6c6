"""A join that takes longer than one poll is still a join."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_harness import Kafka, Workers, assert_exactly, feed, until
from rejex_connectors.kafka_client import Gained, open_clients
from rejex_connectors.kafka_python import admin
from rejex_connectors.kafka_settings import KafkaSettings
from test_kafka_delivery import CLIENTS, CONFLUENT, finish

pytestmark = pytest.mark.kafka


class Member:
    """A consumer that is polled by hand, and what it owns."""

    def __init__(self, settings: KafkaSettings) -> None:
        open_consumer, _ = open_clients(settings, settings.instance_id or "w")
        self._consumer = open_consumer()
        self.owned: set[int] = set()

    def poll(self) -> None:
        self._consumer.poll(10, 0.02)
        for change in self._consumer.changes():
            partition = change.partition.partition
            (self.owned.add if isinstance(change, Gained) else self.owned.discard)(partition)

    def close(self) -> None:
        self._consumer.close()


def test_a_partition_added_to_the_input_arrives_however_short_the_polls(kafka: Kafka) -> None:
    """kafka-python forgot a join that outlasted the poll that began it, and heard no more."""
    settings = kafka.settings(partitions=1)
    open_consumer, _ = open_clients(settings, "w")
    consumer = open_consumer()
    try:
        gained: set[int] = set()

        def poll_until(wanted: set[int]) -> None:
            deadline = time.monotonic() + 90  # new partitions are looked for every 30 s
            while gained != wanted:
                assert time.monotonic() < deadline, f"{gained} of {wanted}"
                consumer.poll(10, 0.001)
                for change in consumer.changes():
                    partition = change.partition.partition
                    (gained.add if isinstance(change, Gained) else gained.discard)(partition)
                time.sleep(0.05)  # what a batch takes; the join is answered meanwhile

        poll_until({0})
        cluster = admin(settings)
        cluster.create_partitions({settings.topics.input[0]: 2})
        cluster.close()
        poll_until({0, 1})
    finally:
        consumer.close()


@CONFLUENT
def test_what_a_worker_gave_up_when_it_was_killed_finds_an_owner(
    kafka: Kafka, tmp_path: Path
) -> None:
    """librdkafka answers the first round while its program is busy, and asks for the next after.

    So a kill that comes while a program works through its records falls between the two.
    """
    settings = kafka.settings(partitions=4, client="confluent")
    records = feed(settings, 400)
    kafka.fill(settings, records)

    def given() -> list[int]:
        group = kafka.admin.describe_groups([settings.group])[settings.group]
        if group["group_state"] != "Stable":
            return []
        return sorted(
            sum(len(t["partitions"]) for t in member["member_assignment"]["assigned_partitions"])
            for member in group["members"]
        )

    with Workers(tmp_path) as workers:
        busy = workers.start(settings, "a", pause_s=60.0)
        until(lambda: len(busy.owned) == 4, what="the first worker has everything")
        other = workers.start(settings, "b")
        until(lambda: given() == [0, 2], what="two partitions are on their way")
        busy.kill()
        again = workers.start(settings, "a")
        finish(kafka, settings, records)
        assert "nobody was given" in again.output + other.output
        assert sorted(again.owned + other.owned) == [0, 1, 2, 3]
    assert_exactly(kafka, settings, records)


@pytest.mark.parametrize("client", CLIENTS)
def test_partitions_that_wait_for_a_worker_killed_between_two_rounds_find_an_owner(
    kafka: Kafka, client: str
) -> None:
    """A worker gives partitions up in one round and asks for the next; who is killed asks nobody.

    Its successor has its name and so its seat: without a round of its own nothing would change.
    """
    settings = kafka.settings(partitions=4, client=client)
    members: dict[str, Member] = {}

    def join(name: str) -> None:
        members[name] = Member(dataclasses.replace(settings, instance_id=name))

    def turn(until: Callable[[], bool], names: str = "ab") -> None:
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline, {n: m.owned for n, m in members.items()}
            for name in names:
                if not until():
                    members[name].poll()

    try:
        join("a")
        turn(lambda: len(members["a"].owned) == 4, "a")
        join("b")
        turn(lambda: len(members["a"].owned) < 4)
        assert not members["b"].owned, "the second round came before the kill"
        members["a"].close()  # says nothing to the group: as a kill does
        join("a")
        turn(lambda: len(members["a"].owned | members["b"].owned) == 4)
        assert not members["a"].owned & members["b"].owned
    finally:
        for member in members.values():
            member.close()
