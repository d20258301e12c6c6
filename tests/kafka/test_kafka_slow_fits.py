"""Fits that outlast every deadline of the group: the worker polls on, and keeps its seat."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_harness import Kafka, Workers, assert_exactly, feed
from test_kafka_delivery import CLIENTS, finish

from tests.waiting import until

pytestmark = pytest.mark.kafka
SLOW = {"kind": "HBOS", "fit_s": 7.0}  # more than twice the longest time between two polls


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_fits_longer_than_the_poll_interval_stop_nobody_not_even_at_a_takeover(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(
        partitions=2,
        client=client,
        options={
            "session.timeout.ms": 3_000,
            "max.poll.interval.ms": 3_000,
            "transaction.timeout.ms": 3_000,
            "delivery.timeout.ms": 3_000,
        },
    )
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
