"""``replay`` over the topics of a broker finds what it finds in a file of the same events."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest
from kafka_harness import pipeline_toml
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.types import Position, Record

pytestmark = pytest.mark.kafka

START_MS, N, SENSORS, PARTITIONS = 1_700_000_000_000, 2_400, 6, 2


def events():
    rng = random.Random(17)
    for i in range(N):
        flow = rng.gauss(10, 1) + (9 if rng.random() < 0.03 else 0)
        yield i % SENSORS, {"t": START_MS + i * 1000, "flow": flow, "id": f"s{i % SENSORS}"}


@pytest.fixture
def replayed(kafka, bootstrap, tmp_path, monkeypatch, capsys):
    """Configs that read the same events from topics and from a file, by two decisions each."""
    monkeypatch.chdir(tmp_path)
    name = kafka.name
    lines = [json.dumps(body) for _, body in events()]
    (tmp_path / "feed.jsonl").write_text("\n".join(lines) + "\n")
    for decision, contamination in (("old", 0.03), ("new", 0.09)):
        rejection = {"contamination": contamination, "tolerance": 4, "window": 150}
        shared = {"pipeline": {"name": decision}, "rejection": rejection}
        topics = pipeline_toml(name, bootstrap, **shared, input={"time": "t", "sensor": "id"})
        (tmp_path / f"{decision}-topics.toml").write_text(topics)
        text = pipeline_toml(name, bootstrap, **shared)
        sections = text.split("[")
        judging = "".join(
            f"[{s}" for s in sections if s.startswith(("pipeline", "detector", "rejection"))
        )
        source = (
            '[input]\npath = "feed.jsonl"\ntime = "t"\nsensor = "id"\nchannels = ["flow"]\n'
            f'[output]\nverdicts = "{decision}.jsonl"\n'
        )
        (tmp_path / f"{decision}-file.toml").write_text(judging + source)
    settings = kafka_settings(load_config(tmp_path / "old-topics.toml"))
    create_topics(settings, plan_topics(settings, partitions=PARTITIONS, replication=1))
    topic = settings.topics.input[0]
    kafka.fill(
        settings,
        (
            Record(Position(topic, sensor % PARTITIONS, 0), b"s%d" % sensor,
                   json.dumps(body).encode())
            for sensor, body in events()
        ),
    )  # fmt: skip

    def run(*arguments):
        assert main(["replay", *arguments, "--output", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def without_places(found):
    return {key: value for key, value in found.items() if key != "examples"}


def test_topics_are_judged_anew_as_a_file_is(replayed):
    again = replayed("old-topics.toml")
    assert {one["events"] for one in again["counts"]} == {N}
    assert again["changed"] == 0
    found = replayed("old-topics.toml", "--config", "new-topics.toml")
    assert found["changed"] > 0
    assert {one["partition"] for one in found["examples"]} <= set(range(PARTITIONS))
    assert without_places(found) == without_places(
        replayed("old-file.toml", "--config", "new-file.toml")
    )
    since = datetime.fromtimestamp(START_MS / 1000 + 1_500, UTC).isoformat()
    later = replayed("old-topics.toml", "--config", "new-topics.toml", "--since", since)
    assert [one["events"] for one in later["counts"]] == [N - 1_500] * 2
    assert without_places(later) == without_places(
        replayed("old-file.toml", "--config", "new-file.toml", "--since", since)
    )
