"""A broker's and a machine's bad days: coordinators move, topics go, memory and descriptors end."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError
from kafka_harness import Feeder, Kafka, Workers, assert_exactly, feed, make_pipeline, start_rejex
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from test_kafka_delivery import CLIENTS, finish
from test_kafka_outages import under_way

from rejex_stream.cli import main
from rejex_stream.types import Position, Record
from tests.soak_results import record
from tests.waiting import PATIENCE_S, pass_time, until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("require_own_broker")]
COORDINATORS = ("__consumer_offsets", "__transaction_state")


def leaders(kafka: Kafka, topic: str) -> dict[int, int]:
    (found,) = kafka.admin.describe_topics([topic])
    return {one["partition_index"]: one["leader_id"] for one in found["partitions"]}


def move(kafka: Kafka, nodes: Sequence[int]) -> None:
    """Make the first of `nodes` the coordinator of every group and of every transaction."""
    for topic in COORDINATORS:
        places = [TopicPartition(topic, p) for p in leaders(kafka, topic)]
        refused = kafka.admin.alter_partition_reassignments({tp: [*nodes] for tp in places})
        assert not any(refused.values()), refused
        until(lambda: not kafka.admin.list_partition_reassignments(), "replicas are where we want")

        def moved() -> bool:
            with contextlib.suppress(KafkaError):
                kafka.admin.elect_leaders(0, [topic], raise_errors=False)  # noqa: B023
            return {*leaders(kafka, topic).values()} == {nodes[0]}  # noqa: B023

        until(moved, f"{nodes[0]} leads {topic}")


@pytest.mark.parametrize("client", CLIENTS)
def test_coordinators_that_move_again_and_again_change_no_record(
    three_nodes: tuple[broker.Cluster, Kafka], tmp_path: Path, client: str
) -> None:
    cluster, kafka = three_nodes
    settings = kafka.settings(partitions=4, replication=3, client=client)
    records, moves = feed(settings, 12_000), 6
    ids = [node.node_id for node in cluster.nodes]
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, 60) as feeder:
        running = [workers.start(settings, n, pause_s=0.02, max_poll_records=50) for n in "ab"]
        under_way(kafka, settings, records)
        for i in range(moves):
            move(kafka, [ids[(i + k) % 3] for k in range(3)])
            before = kafka.committed(settings)
            until(lambda: kafka.committed(settings) != before, lambda: running[0].output)  # noqa: B023
        feeder.finish()
        finish(kafka, settings, records, said=lambda: [one.output for one in running])
        for worker in running:
            assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)
    record(
        f"coordinators that move ({client})",
        size=f"{len(records):,} records of 12 sensors, 4 partitions in 3 replicas, two workers",
        done_to_it=f"every group's and transaction's coordinator moved {moves} times",
        outcome="verdicts, review items, dead letters: none differs, none lacks, none is doubled",
    )


@pytest.mark.parametrize("role", ["verdicts", "review", "state"])
@pytest.mark.parametrize("client", CLIENTS)
def test_an_output_that_is_deleted_while_it_runs_is_named_and_goes_on_when_made_again(
    kafka: Kafka, tmp_path: Path, client: str, role: str
) -> None:
    settings = kafka.settings(partitions=1, client=client, options={"delivery.timeout.ms": 4_000})
    name, records = str(getattr(settings.topics, role)), feed(settings, 6_000, partitions=1)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "a", pause_s=0.1, max_poll_records=20)
        under_way(kafka, settings, records)
        kafka.admin.delete_topics([name])
        until(lambda: f"topic {name!r} is missing" in worker.output, lambda: worker.output[-3_000:])
        plans = plan_topics(settings, partitions=1, replication=1)
        create_topics(settings, [plan for plan in plans if plan.name == name])
        before = kafka.committed(settings)
        until(lambda: kafka.committed(settings) != before, lambda: worker.output[-3_000:])
        assert worker.terminate() == 0, worker.output
        assert worker.output.count("ListOffsets") < 500, "it asks again and again, without a pause"
    record(
        f"an output deleted while it runs: {role} ({client})",
        size=f"{len(records):,} records, one worker",
        done_to_it="the topic is deleted, and made again once its name was said",
        outcome="it is named, with the line that makes it; made again the run goes on",
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_an_input_that_is_deleted_while_it_runs_is_named_and_another_log_is_refused(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    path, settings = make_pipeline(kafka, tmp_path, kafka={"client": client})
    (name,), n = settings.topics.input, 500
    records = [Record(Position(name, 0, 0), b"p", b'{"flow": %d}' % (i % 97)) for i in range(n)]
    kafka.fill(settings, records)
    log = tmp_path / "log"
    with log.open("wb") as end, start_rejex("run", path, cwd=tmp_path, stderr=end) as run:
        try:
            until(lambda: kafka.count(settings, settings.topics.verdicts) == n, log.read_text)
            kafka.admin.delete_topics([name])
            missing = f"topic {name!r} is missing"
            until(lambda: missing in log.read_text(), log.read_text)
            run.terminate()
            assert run.wait(PATIENCE_S) == 0
        finally:
            run.kill()
    assert main(["topics", "create", str(path), "--with-input"]) == 0
    kafka.fill(settings, records)
    with start_rejex("run", path, cwd=tmp_path) as run:
        _, said = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert "another log of that name" in said
    record(
        f"an input deleted while it runs ({client})",
        size=f"{n} records, one worker, all judged",
        done_to_it="the topic is deleted, and made again under its name with as many records",
        outcome="it is named, with the line that makes it; a start on the new log is refused with "
        "what to do",
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_who_runs_out_of_memory_or_descriptors_loses_nothing(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    """Limits are set on the running process: what it has, and nothing more; then lifted.

    A thread that cannot begin for want of memory hangs whoever started it (CPython), so a worker
    may stand still: `/livez` says so, and whoever watches it kills, as here.
    """
    settings = kafka.settings(partitions=2, client=client)
    records, ended, stood_still = feed(settings, 12_000, partitions=2), 0, 0
    kinds = [resource.RLIMIT_AS, resource.RLIMIT_NOFILE] * 2
    with Workers(tmp_path) as workers, Feeder(kafka, settings, records, 600) as feeder:
        worker = workers.start(settings, "a", pause_s=0.02, max_poll_records=50)
        under_way(kafka, settings, records)
        for kind in kinds:
            pid, usual = worker.process.pid, resource.prlimit(worker.process.pid, kind)
            resource.prlimit(pid, kind, (held(pid, kind), usual[1]))
            pass_time(3, because="it works at its limit")
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, kind, usual)
            before = kafka.committed(settings)
            pass_time(15, because="whoever watches /livez is patient")
            if worker.alive and kafka.committed(settings) == before:
                stood_still += 1
                worker.kill()
            if not worker.alive:
                ended += 1
                worker = workers.start(settings, "a", pause_s=0.02, max_poll_records=50)
                until(lambda: kafka.committed(settings) != before, lambda: worker.output)  # noqa: B023
        feeder.finish()
        finish(kafka, settings, records, said=lambda: worker.output)
        assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records)
    record(
        f"neither memory nor descriptors ({client})",
        size=f"{len(records):,} records, 2 partitions",
        done_to_it=f"{len(kinds)} times for three seconds no byte (ulimit -v) or no descriptor "
        "(ulimit -n) more than it has, by turns",
        outcome=f"it was started again {ended} times, of which it stood still {stood_still} times "
        "and was killed; verdicts, review items, dead letters: none differs, none lacks, none is "
        "doubled",
    )


def held(pid: int, kind: int) -> int:
    """What a process holds of a limited thing now."""
    if kind == resource.RLIMIT_NOFILE:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_program_of_jq_that_does_not_end_ends_the_process_and_is_mended(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    settings = kafka.settings(partitions=1, client=client)
    records = feed(settings, 200, partitions=1, poison_share=0.0)
    kafka.fill(settings, records)
    (endless,) = (r for r in records if r.position.offset == 120)
    name = json.loads(endless.value or b"")["t"]
    with Workers(tmp_path) as workers:
        worker = workers.start(
            settings, max_poll_records=20, select=f"if .t == {name} then until(false; .) else . end"
        )
        until(lambda: not worker.alive, lambda: worker.output, timeout_s=180)
        assert "Timeout" in worker.output
        assert "select.py" in worker.output
        stepped = f"select(.t != {name})"
        worker = workers.start(settings, select=stepped)
        finish(kafka, settings, records, said=lambda: worker.output)
        assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, settings, records, select=stepped)
    record(
        f"a program of jq that does not end ({client})",
        size=f"{len(records)} records, of which one keeps it for ever",
        done_to_it="the process ends after a minute; a program that steps over the record",
        outcome="what came before was committed; every other record has one verdict",
    )
