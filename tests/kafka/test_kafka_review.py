"""The loop closed over a real broker: events, verdicts, the console, a label, and what it gives."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from rejex_connectors.kafka.kafka_settings import KafkaSettings

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode import decode_verdict
from rejex_stream.encode.label_records import LabelRecord, decode_label, label_id
from rejex_stream.review.incidents import incident_store
from rejex_stream.types import CommandKind, CommandReply, Position, Record
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka

N_EVENTS = 1500


@pytest.fixture
def config(bootstrap, tmp_path) -> Path:
    path = tmp_path / "pipeline.toml"
    sections: dict[str, dict[str, Any]] = {
        "input": {"time": "t"},
        "output": {"audit_rate": 0.05},
        "kafka": {"options": {"delivery.timeout.ms": 3000}},
        "review": {"port": 0, "settle_s": 0, "gap_events": 0},
    }
    path.write_text(pipeline_toml(f"loop-{uuid.uuid4().hex[:8]}", bootstrap, **sections))
    return path


@pytest.fixture
def call(config, monkeypatch, capsys) -> Callable[..., str]:
    monkeypatch.chdir(config.parent)

    def run(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        returned = main([*map(str, words)])
        out, err = capsys.readouterr()
        assert returned == status, out + err
        return out

    return run


class Console:
    def __init__(self, process: subprocess.Popen[str], base: str) -> None:
        self.process, self.base = process, base

    def ask(self, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self.base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"origin": self.base, "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def targets(self, tab: str = "ready") -> list[dict[str, Any]]:
        return self.ask(f"/api/queue/ids?tab={tab}")["targets"]

    def label(self, request: str, target: dict[str, Any], verdict: str = "normal") -> str:
        body = {"request_id": request, "verdict": verdict, "targets": [target]}
        (episode,) = self.ask("/api/labels", body)["episodes"]
        return label_id(request, "0", episode)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)


@contextmanager
def serving(config: Path, *words: object) -> Iterator[Console]:
    process = start_rejex("review", "serve", "--config", config, *words, cwd=config.parent)
    try:
        line = process.stdout.readline()
        found = re.match(r"review console: (http://\S+)/$", line.strip())
        assert found, line + process.communicate()[1]
        yield Console(process, found.group(1))
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE_S)
            assert "Traceback" not in err, err
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def fill(kafka: Kafka, settings: KafkaSettings) -> None:
    (topic,) = settings.topics.input
    start_ms = int(time.time() * 1000) - 3_600_000

    def events() -> Iterator[Record]:
        for i in range(N_EVENTS):
            value = json.dumps({"t": start_ms + i, "flow": i * 7919 % 1009 / 100}).encode()
            yield Record(Position(topic, i % 2, 0), f"pump-{i % 2}".encode(), value, (), None)

    kafka.fill(settings, events())


def run_pipeline(kafka: Kafka, config: Path, settings: KafkaSettings, n: int = N_EVENTS) -> int:
    with start_rejex("run", config, "--output", "json", cwd=config.parent) as process:
        until(lambda: kafka.count(settings, settings.topics.verdicts) == n)
        out, _ = stop(process)
    return json.loads(out)["reviews"]


def published(kafka: Kafka, settings: KafkaSettings) -> list[tuple[Record, LabelRecord]]:
    return [
        (record, decode_label(record.value))
        for records in kafka.read(settings, settings.topics.labels).values()
        for record in records
    ]


def test_a_label_goes_round_the_whole_loop_and_a_kill_loses_none(config, kafka: Kafka, call):
    folder = config.parent
    settings = kafka_settings(load_config(config))
    call("topics", "create", config, "--with-input", "--partitions", "2")
    # The labels topic comes later: until then a label can only wait.
    kafka.admin.delete_topics([settings.topics.labels])
    fill(kafka, settings)
    n_reviews = run_pipeline(kafka, config, settings)
    assert n_reviews > 30

    with serving(config) as console:
        until(lambda: console.ask("/api/queue/ids?tab=all")["events"] == n_reviews)
        targets = console.targets()
        assert len(targets) > 5
        first = console.label("one", targets[0], "anomaly")
        until(lambda: any("does not exist" in p for p in console.ask("/api/summary")["problems"]))
        second = console.label("two", targets[1])
        console.kill()  # decided, and not published

    call("topics", "create", config, "--with-input", "--partitions", "2")
    assert published(kafka, settings) == []
    with serving(config) as console:
        until(lambda: len(published(kafka, settings)) == 2)
        assert console.ask("/api/queue/ids?tab=all")["events"] == n_reviews, "each event once"
        console.label("three", console.targets()[0])
        console.ask("/api/undo", {"request_id": "undo"})
        done = until(lambda: len(found := published(kafka, settings)) == 4 and found)
        assert {r.label_id for _, r in done if r.kind == "label"} >= {first, second}
        for record, label in done:
            assert dict(record.headers)["ce_id"] == label.label_id.encode()
            assert record.key == label.root_id.encode()

        # Another store of the same pipeline, filled while the console reads, is whole too.
        counts = json.loads(
            call("review", "ingest", "--config", config, "--store", "other.db",
                 "--output", "json")
        )  # fmt: skip
        assert (counts["items"], counts["verdicts"]) == (n_reviews, N_EVENTS)

        # Killed after publishing, before noting it: published again, under the same id.
        console.kill()
    store = sqlite3.connect(folder / "review.db")
    store.execute("UPDATE outbox SET sent_ms = NULL WHERE label_id = ?", (first,))
    store.commit()
    store.close()
    with serving(config):
        again = until(lambda: len(found := published(kafka, settings)) == 5 and found)
    assert [label.label_id for _, label in again].count(first) == 2

    # What the labels give back.
    words = ("--config", config)
    report = json.loads(call("review", "report", *words, "--output", "json"))
    ((name, said),) = report["pipelines"].items()
    assert sum(
        said[group]["judged"] for group in ("accepted_anomaly", "accepted_normal", "rejected")
    ) == sum(target["n_events"] for target in targets[:2])
    assert name == load_config(config).pipeline.name
    call("review", "dump", "verdicts", "dumped.jsonl", *words)
    dumped = [decode_verdict(line) for line in (folder / "dumped.jsonl").read_bytes().splitlines()]
    assert len({one.position for one in dumped}) == len(dumped) == N_EVENTS
    call("review", "dump", "review", "items.jsonl", *words)
    call("review", "ingest", *words)
    (folder / "told.json").write_text(call("review", "certify", *words))
    check = ["review", "verify-certificate", "told.json", *words, "--review", "items.jsonl"]
    checked = call(*check, "--verdicts", "dumped.jsonl")
    assert "the log says the same" in checked
    assert "no partition is left out" not in checked, "the broker was asked"
    one = b"".join(
        line + b"\n"
        for line in (folder / "dumped.jsonl").read_bytes().splitlines()
        if decode_verdict(line).position.partition == 0
    )
    (folder / "half.jsonl").write_bytes(one)
    half = call(*check, "--verdicts", "half.jsonl", status=1)
    assert re.search(r"\d+ records before the first verdict of their partition are not in", half)
    call("review", "export", "labels.jsonl", *words)
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert {(row["episode_id"], row["verdict"]) for row in rows} == {
        (targets[0]["id"], "anomaly"),
        (targets[1]["id"], "normal"),
    }
    rebuilt = json.loads(
        call("review", "rebuild", *words, "--store", "again.db", "--check", "review.db",
             "--output", "json")
    )  # fmt: skip
    assert rebuilt["same_as_checked"] is True
    assert (rebuilt["events"], rebuilt["labels"]) == (n_reviews, 4)
    assert rebuilt["labels_without_events"] == 0


def test_a_console_whose_broker_is_away_starts_and_keeps_the_labels(config, kafka: Kafka, call):
    settings = kafka_settings(load_config(config))
    with serving(config) as console:  # before there is any topic

        def missing() -> list[str]:
            return [p for p in console.ask("/api/summary")["problems"] if "does not exist" in p]

        until(lambda: any(settings.topics.review in problem for problem in missing()))
        call("topics", "create", config, "--with-input", "--partitions", "2")
        until(lambda: not missing())
    fill(kafka, settings)
    run_pipeline(kafka, config, settings)
    call("review", "ingest", "--config", config)
    address = settings.bootstrap_servers
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    config.write_text(config.read_text().replace(address, nobody))
    with serving(config) as console:
        console.label("one", console.targets()[0])
        until(lambda: console.ask("/api/summary")["problems"])
        with pytest.raises(urllib.error.HTTPError, match="503"):
            console.ask("/readyz")
    config.write_text(config.read_text().replace(nobody, address))
    with serving(config) as console:
        until(lambda: len(published(kafka, settings)) == 1)
        until(lambda: console.ask("/readyz")["status"] == "ok")


# ------------------------------------------------------------------------------------ incidents
def test_an_incident_comes_from_its_topic_and_the_answer_goes_to_the_control_topic(
    config, bootstrap, call
):
    from rejex_stream.config.assembly.control_line import ControlLine, make_command
    from rejex_stream.encode import decode_command
    from rejex_stream.review.console.background import Background, feeding
    from rejex_stream.review.incidents.incident_store import AnswerRequest
    from rejex_stream.review.incidents.planned import planned_work
    from rejex_stream.review.queue.database import Viewer
    from rejex_stream.review.queue.review_store import ReviewStore
    from tests.review.incidents import incident, published

    call("topics", "create", config, "--partitions", "2", "--with-input")
    loaded = load_config(config)
    settings = kafka_settings(loaded)
    topics = settings.topics
    store = ReviewStore(config.parent / "review.db")
    fed = feeding(store.database.path, configs=[loaded])
    background = Background(store, fed, undo_ms=0)
    said = AnswerRequest("r", "feed-0-10", 1, "new_normal", "a new pump")

    def known() -> Any:
        background.round()
        with store.database.read() as connection:
            return incident_store.stored_incident(
                connection, said.incident
            ), incident_store.answers_to(connection, said.incident)

    try:
        with Kafka(bootstrap) as kafka:
            told = published(incident())
            kafka.fill(settings, [Record(Position(topics.incidents, 1, 0), b"k", *told)])
            until(lambda: known()[0], "the incident is known")
            command_ = incident_store.give_answer(store, said, Viewer("ada"))
            until(lambda: known()[1][0].sent, "the answer is told")
            ((record,),) = kafka.read(settings, topics.control).values()
            assert decode_command(record.value) == command_
            reply = published(CommandReply(command=command_.id, accepted=False, said="It is over."))
            kafka.fill(settings, [Record(Position(topics.incidents, 0, 0), b"k", *reply)])
            until(lambda: known()[1][0].accepted is False, "the reply is known")
            assert known()[1][0].reply_text == "It is over."
            plan = make_command(
                CommandKind.PLANNED, by="bob", given_ms=1, note="oil", from_ms=1, until_ms=9
            )
            ControlLine(loaded).publish(plan)

            def planned() -> Any:
                background.round()
                with store.database.read() as connection:
                    return [work.command for work in planned_work(connection, {}, {})]

            until(lambda: planned() == [plan.id], "what was planned elsewhere is known")
            assert background.problems == {}
    finally:
        assert background.stop(PATIENCE_S)
        store.close()
