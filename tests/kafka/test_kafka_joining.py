"""A join that takes longer than one poll is still a join."""

from __future__ import annotations

import time

import pytest
from kafka_harness import Kafka
from rejex_connectors.kafka_client import Gained, open_clients
from rejex_connectors.kafka_python import admin

pytestmark = pytest.mark.kafka


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
