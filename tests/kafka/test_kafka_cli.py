"""The command line on a real broker: topics, doctor, run, rehearsal, dead letters."""

from __future__ import annotations

import json
import signal
import socket
import time
import uuid
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics

from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode import decode_reviewed, decode_verdict
from rejex_stream.errors import ConnectorError
from rejex_stream.report import read_run
from rejex_stream.types import Position, Record, ReviewItem
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def pipeline(bootstrap, tmp_path):
    name = f"cli-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "pipeline.toml"
    path.write_text(
        pipeline_toml(
            name, bootstrap, input={"time": "t"}, state={"snapshot_every_events": 500},
            refit={"executor": "thread"},
        )
    )  # fmt: skip
    return path


def events(topic, n, start=0, partitions=2):
    now_ms = int(time.time() * 1000) - 3_600_000
    for i in range(start, start + n):
        sensor = f"pump-{i % partitions}"
        value = json.dumps({"t": now_ms + i, "flow": i * 7919 % 1009 / 100}).encode()
        yield Record(Position(topic, i % partitions, 0), sensor.encode(), value, (), None)


def background(path):
    return start_rejex("run", path, "--output", "json", cwd=path.parent)


def test_from_nothing_to_verdicts_with_the_commands_of_the_readme(pipeline, rejex, kafka: Kafka):
    settings = kafka_settings(load_config(pipeline))
    topics = settings.topics

    # Nothing is there yet, and every command says so.
    sick = rejex("doctor", pipeline)
    assert sick.status == 1
    assert "does not exist" in sick.stdout
    assert "rejex-stream topics create" in sick.stdout
    words = ("topics", "create", pipeline, "--partitions", "2", "--with-input")
    assert rejex(*words, "--dry-run").stdout.count("to create") == 8
    create_topics(settings, [p for p in plan_topics(settings, partitions=2) if p.role == "input"])
    early = rejex("run", pipeline)
    assert early.status in (1, 2)
    assert "rejex-stream topics create" in early.stderr
    made = rejex("topics", "create", pipeline, "--output", "json")
    assert len(json.loads(made.stdout)["created"]) == 7
    assert rejex(*words).stdout.count("exists") == 8

    (input_topic,) = topics.input
    kafka.fill(settings, events(input_topic, 1500))
    kafka.fill(settings, [Record(Position(input_topic, 0, 0), b"pump-0", b"{broken", (), None)])

    healthy = rejex("doctor", pipeline, "--output", "json")
    checks = json.loads(healthy.stdout)
    assert healthy.status == 0, healthy.stdout
    found = {check["name"]: check for check in checks}
    assert found["broker"]["level"] == "ok"
    assert found["access"]["level"] == "ok"
    assert any("cannot be read" in check["message"] for check in checks)
    assert kafka.committed(settings) == {}

    # A rehearsal reads everything, and leaves no trace.
    rehearsal = rejex("run", pipeline, "--dry-run", "--limit", "1501", "--output", "json")
    assert rehearsal.status == 0, rehearsal.stderr
    measured = json.loads(rehearsal.stdout)
    assert (measured["events"], measured["invalid"]) == (1501, 1)
    assert kafka.count(settings, topics.verdicts) == 0
    assert kafka.committed(settings) == {}

    # The real thing, stopped and started again.
    with background(pipeline) as process:
        until(lambda: kafka.count(settings, topics.verdicts) == 1500)
        out, _ = stop(process)
    summary = json.loads(out)
    assert (summary["events"], summary["invalid"], summary["stopped"]) == (1501, 1, True)
    assert summary["labels"] == measured["labels"]
    reviews = [
        item
        for records in kafka.read(settings, topics.review).values()
        for record in records
        if isinstance(item := decode_reviewed(record.value), ReviewItem)
    ]
    assert len(reviews) == summary["reviews"] > 0
    kafka.fill(settings, events(input_topic, 500, start=1500))
    with background(pipeline) as process:
        until(lambda: kafka.count(settings, topics.verdicts) == 2000)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert json.loads(out)["events"] == 500
    for records in kafka.read(settings, topics.verdicts).values():
        seqs = [decode_verdict(record.value).seq for record in records]
        assert seqs == list(range(1000))

    against = rejex("validate", pipeline, "--against-state").stdout
    assert f"{input_topic}-0 goes on: at offset 1,001, with the state of offset" in against
    assert f"{input_topic}-1 goes on: at offset 1,000, with the state of offset" in against

    # A report shows what the topics hold, and says what they hold no more.
    out = rejex("report", pipeline, "--out", pipeline.parent / "r.html")
    assert out.status == 0, out.stderr
    run = read_run(load_config(pipeline))
    assert (len(run.events), run.left_out, len(run.dead_letters)) == (2000, 0, 1)
    assert all(reading.position == verdict.position for reading, verdict in run.events)
    assert {reading.sensor for reading, _ in run.events} == {"pump-0", "pump-1"}
    kafka.admin.delete_records({TopicPartition(input_topic, 0): 600})
    run = read_run(load_config(pipeline))
    assert run.left_out == 600 == 2000 - len(run.events)
    kafka.admin.delete_records({TopicPartition(input_topic, n): -1 for n in range(2)})
    with pytest.raises(ConnectorError, match="does not hold the reading"):
        read_run(load_config(pipeline))

    # The broken record: seen, and not shown unasked.
    listed = rejex("deadletter", "list", pipeline)
    assert listed.status == 0
    assert "not JSON" in listed.stdout
    assert "{broken" not in listed.stdout
    assert "{broken" in rejex("deadletter", "list", pipeline, "--payload").stdout


def test_the_example_of_the_readme_runs(bootstrap, tmp_path, rejex, kafka: Kafka):
    """``examples/kafka.toml`` as it stands, but for the address and the names."""
    name = f"readme-{uuid.uuid4().hex[:8]}"
    text = (ROOT / "examples" / "kafka.toml").read_text().replace("localhost:9092", bootstrap)
    text = text.replace("turbine.readings", f"{name}.in")
    outputs = "".join(
        f'{role} = "{name}.{role}"\n'
        for role in ("verdicts", "review", "deadletter", "labels", "incidents")
    )
    text = (
        f'[pipeline]\nname = "{name}"\n[output]\n{outputs}[state]\ntopic = "{name}.state"\n{text}'
    )
    path = tmp_path / "kafka.toml"
    path.write_text(text)
    assert rejex("topics", "create", path, "--with-input", "--partitions", "1").status == 0
    settings = kafka_settings(load_config(path))
    value = b'{"gearbox_temp": 61.5, "vibration": 2.0, "power": 1500}'
    kafka.fill(settings, (Record(Position(f"{name}.in", 0, 0), b"wt-1", value) for _ in range(50)))
    with background(path) as process:
        until(lambda: kafka.count(settings, f"{name}.verdicts") == 50)
        out, err = stop(process)
    assert json.loads(out)["labels"]["rejected"] == 50  # still warming up
    assert err.count("replaying") == 0


def test_a_broker_that_is_not_there_is_one_sentence(pipeline, rejex):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = pipeline.read_text()
    address = text.partition('bootstrap_servers = "')[2].partition('"')[0]
    pipeline.write_text(text.replace(address, f"127.0.0.1:{port}"))
    shown = rejex("deadletter", "list", pipeline)
    assert shown.status == 1
    assert shown.stderr.splitlines()[-1].startswith("rejex-stream: Kafka at 127.0.0.1:")
    assert "Traceback" not in shown.stderr
