"""Topics as plants have them, from ``init`` to verdicts, without a hand-written line."""

from __future__ import annotations

import json
import uuid

import pytest
from kafka_harness import Kafka, start_rejex, stop
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.topic_admin import TopicPlan, create_topics

from rejex_stream.cli import main
from rejex_stream.encode import decode_verdict
from rejex_stream.types import Position
from tests.test_shapes import MACHINES, case
from tests.waiting import until

pytest.importorskip("jq")
pytestmark = pytest.mark.kafka

# How many verdicts a record gives.
SHAPES = {
    "batch": 3, "columnar": 10, "kepware": 1, "tbgateway": 1, "sparkplug": 1, "emqx": 1,
    "telegraf": 1, "keyjson": 1, "quality": 1, "long1": 1 / 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in {"columnar", "long1"} else pytest.mark.long)
        for name in SHAPES
    ],
)
def test_from_a_topic_of_any_shape_to_verdicts(
    name, tmp_path, monkeypatch, bootstrap, capsys, kafka: Kafka
):
    monkeypatch.chdir(tmp_path)
    settings, topic = KafkaSettings(bootstrap_servers=bootstrap), f"{name}-{uuid.uuid4().hex[:8]}"
    create_topics(settings, [TopicPlan(name=topic, role="input", partitions=1, replication=1)])
    records = case(name)
    expected = round(len(records) * SHAPES[name])
    kafka.fill(settings, [r._replace(position=Position(topic, 0, 0)) for r in records])

    def run(*words):
        status = main([str(word) for word in words])
        captured = capsys.readouterr()
        assert status == 0, (words, captured.out, captured.err)
        return captured

    run("init", "--kafka", bootstrap, topic, "--detector", "HBOS")
    for step in ("validate", "doctor"):
        if step == "doctor":
            run("topics", "create", f"{topic}.toml")
        run(step, f"{topic}.toml")
    with start_rejex("run", f"{topic}.toml", "--output", "json", cwd=tmp_path) as process:
        until(lambda: kafka.count(settings, f"{topic}.verdicts") == expected)
        done, _ = stop(process)
    summary = json.loads(done)
    assert (summary["events"], summary["invalid"]) == (expected, 0)
    of_topic = kafka.read(settings, f"{topic}.verdicts")
    verdicts = [decode_verdict(r.value) for found in of_topic.values() for r in found]
    assert len({str(verdict.position) for verdict in verdicts}) == expected
    assert {verdict.sensor[-2:] for verdict in verdicts} == MACHINES
