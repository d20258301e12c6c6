"""Kills, a flood of keys, slow fits, another tolerance and another processor, all at once."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka_harness import (
    MAPPING,
    RUN,
    Feeder,
    Kafka,
    Worker,
    Workers,
    assert_holds,
    feed,
    make_engine,
    messages_of,
    next_offsets,
)
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from test_kafka_delivery import CONFLUENT

from rejex_stream.decode import JsonDecoder
from rejex_stream.run.loop import run
from rejex_stream.types import Outcome, Partition, Record
from tests.doubles import ListSink, ListSource, MemorySnapshotStore
from tests.waiting import pass_time, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, CONFLUENT]

BEFORE, AFTER = 4, 9
"""Tolerances. HBOS counts and adds, so no kernel of BLAS touches a score."""
OTHER_PROCESSOR = {"OPENBLAS_CORETYPE": "Nehalem"}
CHANGED = re.compile(r"DecisionChanged\(partition=Partition\(.*?partition=(\d+)\), offset=(\d+)")


@pytest.mark.parametrize(("n_events", "kills"), [(4_000, 6), (30_000, 40)])
def test_all_at_once_ends_as_if_nothing_had_happened(
    kafka: Kafka, tmp_path: Path, n_events: int, kills: int
) -> None:
    """What was decided before a partition changed hands to the new config stays, the rest is by it.

    The new tolerance comes with the new processor, in the middle of the storm.
    """
    settings = kafka.settings(partitions=4, options={"max.poll.interval.ms": 6_000})
    records = feed(settings, n_events, sensors=4, partitions=4, seed=7, flood_share=0.6)
    ends, draw = next_offsets(records), random.Random(7)
    everyone: list[Worker] = []
    with (
        Workers(tmp_path) as workers,
        Feeder(kafka, settings, records, seconds=7 * kills) as feeder,
    ):
        tolerance, environment = BEFORE, {}

        def start(name: str) -> Worker:
            worker = workers.start(
                settings.replace(client="kafka-python" if name == "a" else "confluent"),
                name,
                environment=environment,
                engine={"kind": "HBOS", "fit_s": 3.0, "tolerance": tolerance},
                max_poll_records=100,
                snapshot_every_events=100,
            )
            everyone.append(worker)
            return worker

        def get_on() -> None:
            before = kafka.committed(settings)
            left = [p for p, offset in before.items() if offset < ends[p]]
            until(
                lambda: all(kafka.committed(settings).get(p, 0) > before[p] for p in left),
                "each partition has gone on",
                timeout_s=300,
            )

        def storm(kills: int) -> None:
            for kill in range(kills):
                if kill % 2 == 0:  # three ends with a record about to be judged would give it up
                    get_on()
                name = draw.choice(sorted(running))
                until(lambda: running[name].owned, lambda: running[name].output)  # noqa: B023
                pass_time(draw.uniform(0.0, 6.0), because="the moment of the kill is random")
                assert running[name].alive, running[name].output
                running[name].kill()
                running[name] = start(name)

        running = {name: start(name) for name in "ab"}
        until(lambda: len(kafka.committed(settings)) == len(ends), "each partition has a commit")
        storm(kills // 2)
        get_on()
        for worker in running.values():
            worker.kill()
        tolerance, environment = AFTER, OTHER_PROCESSOR
        running = {name: start(name) for name in "ab"}
        storm(kills // 2)
        feeder.finish()
        until(lambda: kafka.committed(settings) == ends, "all is committed", timeout_s=900)
        for worker in running.values():
            assert worker.terminate() == 0, worker.output
    said = "".join(worker.output for worker in everyone)
    assert "EnvironmentChanged" in said
    changes: dict[int, int] = {}
    for partition, offset in CHANGED.findall(said):
        changes[int(partition)] = min(int(offset), changes.get(int(partition), 1 << 62))
    assert len(changes) == 4, "every partition was decided by the one and then the other"
    wanted = undisturbed(settings, records, changes)
    assert_holds(kafka, settings, messages_of(settings, wanted, partitions=4))


def undisturbed(
    settings: KafkaSettings, records: Sequence[Record], changes: dict[int, int]
) -> list[Outcome]:
    """What one quiet worker says that is stopped once in each partition, and told otherwise."""
    scripts: dict[Partition, list[Record]] = defaultdict(list)
    for record in records:
        scripts[Partition(*record.position[:2])].append(record)
    sink, store = ListSink(), MemorySnapshotStore()
    for tolerance in (BEFORE, AFTER):
        for partition, script in scripts.items():
            end = changes[partition.partition] if tolerance == BEFORE else len(script)
            run(
                ListSource({partition: script[:end]}, committed=sink.offsets),
                sink,
                store,
                make_engine("HBOS", tolerance=tolerance),
                JsonDecoder(MAPPING),
                settings=RUN,
            )
    return sink.outcomes
