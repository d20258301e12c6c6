"""One, two and four workers over eight partitions say the same; joining moves little."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_harness import Feeder, Kafka, Workers, assert_exactly, feed
from test_kafka_delivery import finish

from tests.waiting import until

pytestmark = pytest.mark.kafka

PARTITIONS = 8


@pytest.mark.long
def test_workers_that_join_one_by_one_give_the_same_verdicts(kafka: Kafka, tmp_path: Path) -> None:
    settings = kafka.settings(partitions=PARTITIONS)
    records = feed(settings, 8_000, sensors=32, partitions=PARTITIONS)
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, seconds=8) as feeder:
        names = ("a", "b", "c", "d")
        running = []
        for name in names:
            running.append(workers.start(settings, name))
            share = -(-PARTITIONS // len(running))
            until(
                lambda share=share: (
                    sorted(p for w in running for p in w.owned) == list(range(PARTITIONS))
                    and all(0 < len(w.owned) <= share for w in running)
                ),
                what=f"{len(running)} workers share {PARTITIONS} partitions",
            )
        # Adding one moves what it gets and nothing else.
        opened = sum(w.output.count("PartitionOpened") for w in running)
        assert opened <= PARTITIONS + (4 + 2 + 2), [w.output for w in running]
        feeder.finish()
        finish(kafka, settings, records)
        for worker in running:
            assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)
