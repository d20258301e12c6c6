"""``rejex-stream state`` on a real broker: dropped, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid

import pytest
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from test_kafka_delivery import CONFLUENT

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode import decode_verdict
from rejex_stream.types import Position, Record
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def pipelines(bootstrap, tmp_path, monkeypatch):
    """Configs over one input; each has a group and topics of its own."""
    for name in [name for name in os.environ if name.startswith("REJEX_") and "__" in name]:
        monkeypatch.delenv(name)
    base = f"state-{uuid.uuid4().hex[:8]}"

    def make(which, kafka=(), **state):
        path = tmp_path / f"{which}.toml"
        name = f"{base}-{which}"
        source = {"time": "t", "topics": [f"{base}.in"]}
        store = {"snapshot_every_events": 500, "topic": f"{name}.state"} | state
        thread = {"executor": "thread"}
        path.write_text(
            pipeline_toml(name, bootstrap, input=source, state=store, refit=thread, kafka=kafka)
        )
        assert main(["topics", "create", str(path), "--with-input", "--partitions", "2"]) == 0
        return path

    return make


@pytest.fixture
def rejex(capsys):
    def call(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def fill(kafka, path, start, end):
    settings = kafka_settings(load_config(path))
    (topic,) = settings.topics.input
    kafka.fill(
        settings,
        (
            Record(
                Position(topic, i % 2, 0), f"pump-{i % 2}".encode(),
                json.dumps({"t": NOW_MS + i, "flow": i * 7919 % 1009 / 100}).encode(), (), None,
            )
            for i in range(start, end)
        ),
    )  # fmt: skip


def verdicts(kafka, path):
    settings = kafka_settings(load_config(path))
    found = kafka.read(settings, settings.topics.verdicts)
    return {
        partition: [decode_verdict(record.value) for record in records]
        for partition, records in found.items()
    }


def run_until(kafka, path, n):
    with start_rejex("run", path, cwd=path.parent) as process:
        until(lambda: sum(map(len, verdicts(kafka, path).values())) >= n)
        stop(process)


@pytest.mark.long
def test_dropped_it_is_rebuilt_and_no_verdict_changes(pipelines, rejex, kafka: Kafka):
    one, plain = pipelines("one"), pipelines("plain")
    assert "no snapshot" in rejex("state", "list", one)[1]
    fill(kafka, one, 0, 1200)
    run_until(kafka, one, 1200)
    rows = json.loads(rejex("state", "list", one, "--output", "json")[1])["partitions"]
    assert [(row["committed"], row["next_offset"], row["sensors"]) for row in rows] == [
        (row["committed"], row["committed"], 1) for row in rows
    ]
    names = [row["partition"] for row in rows]
    status, said, failed = rejex("state", "drop", one, "--partition", names[0])
    assert status == 0, failed
    assert "again, silently, and goes on" in said
    (gone, kept) = json.loads(rejex("state", "list", one, "--output", "json")[1])["partitions"]
    assert (gone["what"], "next_offset" in gone, "next_offset" in kept) == (
        "no snapshot",
        False,
        True,
    )

    fill(kafka, one, 1200, 1500)
    run_until(kafka, one, 1500)
    run_until(kafka, plain, 1500)
    assert verdicts(kafka, one) == verdicts(kafka, plain)


@pytest.mark.parametrize("client", ["kafka-python", pytest.param("confluent", marks=CONFLUENT)])
def test_under_another_group_nothing_is_written_twice(
    pipelines, rejex, kafka: Kafka, tmp_path, client
):
    """Every verdict was written again, and nothing said so: 3,540 records of 1,770 ids."""
    old, new = pipelines("one", kafka={"client": client}), tmp_path / "new.toml"
    new.write_text(old.read_text().replace("[kafka]", '[kafka]\ngroup = "another"'))
    fill(kafka, old, 0, 600)
    run_until(kafka, old, 600)
    fill(kafka, old, 600, 700)
    status, _, said = rejex("run", new)
    assert (status, "300 record(s) from offset 0 on would get a second verdict" in said) == (
        1,
        True,
    )
    assert sum(map(len, verdicts(kafka, old).values())) == 600

    run_until(kafka, old, 700)
    settings = kafka_settings(load_config(old))
    written = kafka.read(settings, settings.topics.verdicts)
    ids = [dict(record.headers)["ce_id"] for records in written.values() for record in records]
    assert len(ids) == len(set(ids)) == 700
    sequences = {p: [verdict.seq for verdict in found] for p, found in verdicts(kafka, old).items()}
    assert sequences == {p: list(range(350)) for p in (0, 1)}, "their models went on"


DEALT = {"client": "confluent", "group_protocol": "consumer"}  # by the broker


@pytest.mark.parametrize("protocol", [{}, pytest.param(DEALT, marks=CONFLUENT)])
def test_nothing_is_changed_while_a_worker_lives(pipelines, rejex, kafka: Kafka, protocol):
    one = pipelines("one", kafka=protocol)
    fill(kafka, one, 0, 20)
    with start_rejex("run", one, cwd=one.parent, stderr=subprocess.DEVNULL) as process:
        until(lambda: sum(map(len, verdicts(kafka, one).values())) == 20)
        status, _, said = rejex("state", "drop", one, "--all")
        assert (status, "(it is Stable): stop the workers first" in said) == (1, True), said
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
