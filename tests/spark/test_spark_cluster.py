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
from rejex_connectors.kafka.topics import create_topics, plan_topics

from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.types import Position, Record
from tests.kafka.kafka_harness import Kafka, pipeline_toml
from tests.waiting import until
from tools.kafka import broker
from tools.spark import cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]

N, SENSORS, PARTITIONS = 4_500, 6, 2
LONG_S = 900.0


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


def events(topic):
    rng = random.Random(3)
    for i in range(N):
        name = i % SENSORS
        fault = 12 if rng.random() < 0.01 or (name == 0 and i > 0.7 * N) else 0
        value = json.dumps({"t": 1_700_000_000_000 + i * 100, "flow": rng.gauss(10, 1) + fault})
        body = b"?" if i % 499 == 7 else value.encode()
        headers = (("traceparent", b"00-%032x-%016x-01" % (i, i)),)
        yield Record(Position(topic, name % PARTITIONS, 0), b"s%d" % name, body, headers, None)


def pipeline(folder: Path, bootstrap: str, out: str) -> Path:
    """Pipelines of one name, so that headers are the same, with outputs and groups of their own."""
    folder.mkdir()
    path = folder / "pumps.toml"
    path.write_text(
        pipeline_toml(
            out,
            bootstrap,
            pipeline={"name": "pumps"},
            input={"topics": ["pumps.in"], "time": "t"},
            refit={"executor": "thread", "refit_every_events": 250},
            kafka={"group": out},
        )
    )
    return path


def written(kafka: Kafka, settings) -> dict[str, dict[int, list]]:
    topics = settings.topics
    found = {}
    for role in ("verdicts", "review", "deadletter", "incidents"):
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


def test_an_executor_dies_and_the_topics_hold_what_a_worker_writes(tmp_path, bootstrap):
    with Kafka(bootstrap) as kafka:
        paths = {out: pipeline(tmp_path / out, bootstrap, out) for out in ("alone", "many")}
        settings = {out: kafka_settings(load_config(path)) for out, path in paths.items()}
        for of_one in settings.values():
            create_topics(of_one, plan_topics(of_one, partitions=PARTITIONS, replication=1))
        kafka.fill(settings["alone"], events("pumps.in"))
        rejex = [sys.executable, "-m", "rejex_stream"]
        worker = subprocess.Popen([*rejex, "run", str(paths["alone"])])
        until(lambda: total(kafka, settings["alone"]) == N, timeout_s=LONG_S, every_s=1.0)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        with cluster.start(workers=2) as spark:
            conf = {
                "spark.jars": cluster.connector_jars(),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "700m",
                "spark.executor.memory": "700m",
                "spark.executor.cores": "1",
            }
            job = subprocess.Popen(
                [
                    *rejex, "spark", str(paths["many"]), "--master", spark.address,
                    "--checkpoint", str(tmp_path / "checkpoint"), "--batch-events", "1500",
                    "--shuffle-partitions", "2", "--available-now",
                    *(word for pair in conf.items() for word in ("--conf", "=".join(pair))),
                ]
            )  # fmt: skip
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
