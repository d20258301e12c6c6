"""After a command no client of Kafka is open, and none is left for the garbage collector."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka_harness import Kafka, make_pipeline, start_rejex, stop
from test_kafka_delivery import DEFAULT_CLIENT_FIRST

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.spark.job_journal import JobJournal
from rejex_stream.types import Partition, Position, Record
from tests.waiting import until

pytestmark = pytest.mark.kafka

N_EVENTS, EVERY_BROKEN = 600, 50


def clients() -> list[str]:
    """Threads of Kafka's libraries: each of their clients has one at least until it is closed."""
    ours = [one.name for one in threading.enumerate() if "kafka" in one.name]
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith("rdk:"):  # librdkafka's; Python does not know of them
            ours.append(name)
    return sorted(ours)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every client that is made, so that none is closed for being forgotten."""
    made: list[object] = []
    for kind in (KafkaConsumer, KafkaProducer, KafkaAdminClient):

        def make(
            self: object, *args: Any, init: Callable[..., None] = kind.__init__, **named: Any
        ) -> None:
            made.append(self)
            init(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", make)
    return made


@pytest.fixture(params=DEFAULT_CLIENT_FIRST)
def pipeline(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Path:
    """A pipeline that has run: there are snapshots, dead letters and items to review."""
    path, settings = make_pipeline(
        kafka, tmp_path, partitions=2, input={"time": "t", "sensor": "s"},
        state={"snapshot_every_events": 200}, refit={"executor": "thread"},
        kafka={"client": request.param},
    )  # fmt: skip
    (topic,) = settings.topics.input

    def value(i: int) -> bytes:
        event = {"t": 1_000 * i, "s": f"pump-{i % 2}", "flow": i * 7919 % 1009 / 100}
        return b"broken" if i % EVERY_BROKEN == 7 else json.dumps(event).encode()

    kafka.fill(
        settings,
        [Record(Position(topic, i % 2, 0), b"%d" % (i % 2), value(i)) for i in range(N_EVENTS)],
    )
    with start_rejex("run", path, cwd=tmp_path) as process:
        until(
            lambda: (
                sum(kafka.committed(settings).values()) == N_EVENTS or process.poll() is not None
            )
        )
        stop(process)
    return path


def test_what_was_still_to_be_written_keeps_no_socket_open(kafka: Kafka) -> None:
    """kafka-python closes a connection once all is written, and ended before that."""
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, metrics_enabled=False)
    consumer.topics()
    transports = [c.transport for c in consumer._manager._conns.values() if c.transport]
    sockets = [transport._sock for transport in transports]
    assert sockets
    for transport in transports:
        transport._write_buffer.append(b"to be written")
    consumer.close(autocommit=False)
    assert [socket.fileno() for socket in sockets] == [-1] * len(sockets)


@pytest.mark.long
def test_no_command_leaves_a_client_open(
    pipeline: Path, kafka: Kafka, tmp_path: Path, held: list[object]
) -> None:
    settings = kafka_settings(load_config(pipeline))
    (topic,) = settings.topics.input
    nameless = f"{kafka.name}.nameless"
    source = kafka.settings(partitions=1).topics.input[0]
    event = b'{"s": "a", "t": 1, "flow": 2}'
    kafka.fill(settings, [Record(Position(source, 0, 0), None, event)] * 9)
    keyed = tmp_path / "keyed.toml"
    keyed.write_text(pipeline.read_text().replace(topic, nameless))
    journal = JobJournal.of(load_config(pipeline))
    here = Partition(topic, 0)
    times = ["--from", "2024-01-01T00:00Z", "--until", "2024-01-02T00:00Z"]

    def command(*words: object) -> Callable[[], object]:
        return lambda: main([str(word) for word in words])

    tried: dict[str, Callable[[], object]] = {
        "doctor": command("doctor", pipeline),
        "topics rekey": command("topics", "rekey", keyed, "--from", source),
        "state list": command("state", "list", pipeline),
        "state show": command("state", "show", pipeline),
        "state export": command("state", "export", pipeline, tmp_path / "exported"),
        "state drop": command("state", "drop", pipeline, "--all"),
        "state import": command("state", "import", pipeline, tmp_path / "exported"),
        "control plan": command("control", "plan", pipeline, *times),
        "control list": command("control", "list", pipeline),
        "deadletter list": command("deadletter", "list", pipeline),
        "init": command("init", "--kafka", kafka.bootstrap, topic, "--to", tmp_path / "new.toml"),
        "review ingest": command(
            "review", "ingest", "--store", tmp_path / "review.db", "--config", pipeline
        ),
        "spark: kept": lambda: journal.decided(here),
        "spark: at_commit": lambda: journal.at_commit(here, 100),
    }
    for name, do in tried.items():
        before = Counter(clients())
        assert do() == 0 or name.startswith("spark"), name
        until(  # a thread may be ending
            lambda: not Counter(clients()) - before,  # noqa: B023
            lambda: f"{name} leaves {Counter(clients()) - before}",  # noqa: B023
        )
    assert held, "nothing was counted"
