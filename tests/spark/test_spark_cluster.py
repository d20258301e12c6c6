"""Topics through a real cluster: an executor dies, and the topics hold what a worker writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kafka.errors import KafkaError
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics

from rejex_stream.config import load_config
from rejex_stream.config.assembly import Judging, kafka_decoder, kafka_settings
from rejex_stream.config.assembly.control_line import ControlLine, make_command
from rejex_stream.spark.job_journal import JobJournal
from rejex_stream.types import CommandKind, Partition, Position, Record
from tests.kafka.kafka_harness import Kafka, pipeline_toml
from tests.operate.alerting import Receiver, events_taken
from tests.waiting import until
from tools.kafka import broker
from tools.spark import cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]

N, SENSORS, PARTITIONS = 4_500, 6, 2
LONG_S = 900.0
ROLES = ("verdicts", "review", "deadletter", "incidents")
REJEX = [sys.executable, "-m", "rejex_stream"]


@pytest.fixture
def bootstrap():
    try:
        import pyspark  # noqa: F401
    except ImportError:
        if os.environ.get("REJEX_REQUIRE_SPARK"):
            raise
        pytest.skip("Apache Spark is not installed (extra `spark`); `make test-spark` runs this")
    with broker.start() as node:
        yield node.bootstrap


def events(topic, n=N):
    rng = random.Random(3)
    for i in range(n):
        name = i % SENSORS
        fault = 12 if rng.random() < 0.01 or (name == 0 and i > 0.7 * N) else 0
        value = json.dumps({"t": 1_700_000_000_000 + i * 100, "flow": rng.gauss(10, 1) + fault})
        body = b"?" if i % 499 == 7 else value.encode()
        headers = (("traceparent", b"00-%032x-%016x-01" % (i, i)),)
        yield Record(Position(topic, name % PARTITIONS, 0), b"s%d" % name, body, headers, None)


def pipeline(folder: Path, bootstrap: str, out: str, **more: dict[str, object]) -> Path:
    folder.mkdir()
    path = folder / "pumps.toml"
    path.write_text(
        pipeline_toml(
            out, bootstrap, pipeline={"name": "pumps"}, input={"topics": ["pumps.in"], "time": "t"},
            refit={"executor": "thread", "refit_every_events": 250}, kafka={"group": out}, **more,
        )
    )  # fmt: skip
    return path


def written(kafka: Kafka, settings) -> dict[str, dict[int, list]]:
    topics = settings.topics
    found = {}
    for role in ROLES:
        by_partition = kafka.read(settings, getattr(topics, role))
        found[role] = {
            partition: [
                (r.key, r.value, [h for h in r.headers if not h[0].endswith("task.id")])
                for r in records
            ]
            for partition, records in by_partition.items()
        }
    return found


def total(kafka: Kafka, settings) -> int:
    return kafka.count(settings, settings.topics.verdicts) + kafka.count(
        settings, settings.topics.deadletter
    )


def answers_for_groups(kafka: Kafka, settings) -> bool:
    """A broker that is new finds nobody for its first group at once."""
    try:
        return bool(kafka.admin.describe_groups([settings.group]))
    except KafkaError:
        return False


def on_spark(path: Path, master: str) -> list[str]:
    conf = {
        "spark.jars": cluster.connector_jars(), "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "700m", "spark.executor.memory": "700m", "spark.executor.cores": "1",
    }  # fmt: skip
    return [
        *REJEX, "spark", str(path), "--master", master,
        "--checkpoint", str(path.parent / "checkpoint"),
        "--shuffle-partitions", "2", "--available-now",
        *(word for pair in conf.items() for word in ("--conf", "=".join(pair))),
    ]  # fmt: skip


@pytest.fixture
def receivers():
    journal = {out: Receiver() for out in ("alone", "many")}
    yield journal
    for one in journal.values():
        one.close()


def test_an_executor_dies_and_the_topics_hold_and_people_hear_what_a_worker_says(
    tmp_path, bootstrap, receivers
):
    with Kafka(bootstrap) as kafka:
        paths = {
            out: pipeline(
                tmp_path / out,
                bootstrap,
                out,
                detector={"name": "KNN"},  # which the fault of s0 has open an incident
                monitor={"false_alarm_events": 100, "stuck_events": 2},
                alerts={"webhook_url": one.url},
            )
            for out, one in receivers.items()
        }
        settings = {out: kafka_settings(load_config(path)) for out, path in paths.items()}
        for of_one in settings.values():
            create_topics(of_one, plan_topics(of_one, partitions=PARTITIONS, replication=1))
        kafka.fill(settings["alone"], events("pumps.in"))
        worker = subprocess.Popen([*REJEX, "run", str(paths["alone"])])
        until(lambda: total(kafka, settings["alone"]) == N, timeout_s=LONG_S, every_s=1.0)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        with cluster.start(workers=2) as spark:
            job = subprocess.Popen(
                [*on_spark(paths["many"], spark.address), "--batch-events", "1500"]
            )
            until(
                lambda: job.poll() is not None or total(kafka, settings["many"]) > 0,
                timeout_s=LONG_S,
                every_s=0.5,
            )
            executors = spark.executors()
            assert len(executors) == 2
            executors[0].send_signal(signal.SIGKILL)
            before = total(kafka, settings["many"])
            assert before < N, "it was done before an executor could be killed"
            try:
                assert job.wait(LONG_S) == 0
            finally:
                job.kill()
        assert written(kafka, settings["many"]) == written(kafka, settings["alone"])
        assert kafka.committed(settings["many"]) == kafka.committed(settings["alone"])
        journal = events_taken(receivers["many"])
        assert journal == events_taken(receivers["alone"])
        assert {kind for kind, _ in journal} == {"alarm", "incident"}
        of_job = JobJournal.of(load_config(paths["many"]), listens=False)
        for number in range(PARTITIONS):
            assert of_job.pending(Partition("pumps.in", number), N) == []


def test_what_people_say_is_durable_with_what_it_follows(tmp_path, bootstrap):
    """Each job begins where the one before ended; what was said meanwhile holds from there."""
    with Kafka(bootstrap) as kafka:
        path = pipeline(tmp_path / "told", bootstrap, "told")
        config, settings = load_config(path), kafka_settings(load_config(path))
        create_topics(settings, plan_topics(settings, partitions=PARTITIONS, replication=1))
        until(lambda: answers_for_groups(kafka, settings), timeout_s=LONG_S, every_s=0.5)
        every, half = list(events("pumps.in", 2_000)), 1_000
        for i, some in enumerate((every[:half], every[half:])):
            kafka.fill(settings, some)
            begin = 1_700_000_000_000 + 100_000 * (i + 1)
            said = make_command(
                CommandKind.PLANNED, by="ada", given_ms=0, id_=f"c-{i}",
                from_ms=begin, until_ms=begin + 20_000,
            )  # fmt: skip
            ControlLine(config).publish(said)
            job = [*on_spark(path, "local[2]"), "--batch-events", "500", "--control"]
            subprocess.run(job, check=True, timeout=LONG_S)
        journal, expected = JobJournal.of(config), {role: {0: [], 1: []} for role in ROLES}
        of = OutcomeMessages(settings, kafka.partitions).of
        for number, records in kafka.read(settings, "pumps.in").items():
            partition = Partition("pumps.in", number)
            state = Judging(config).state(partition, kafka_decoder(config), journal.inputs)
            state.load_journal(journal.decided(partition), decided_until=0)
            state.journal.rewind_to(0, allow_gaps=False)
            for m in of(state.process(records)):
                role = next(role for role in ROLES if getattr(settings.topics, role) == m.topic)
                expected[role][m.partition].append((m.key, m.value))
        found = written(kafka, settings)
        for role in ROLES:
            values = {p: [one[:2] for one in found[role][p]] for p in found[role]}
            assert values == expected[role], role
        verdicts = [value for of_one in found["verdicts"].values() for _, value, _ in of_one]
        assert 0 < sum(b'"planned":true' in value for value in verdicts) < half
        replies = [value for of_one in found["incidents"].values() for _, value, _ in of_one]
        assert sum(b'"command":"c-0"' in value for value in replies) == PARTITIONS
