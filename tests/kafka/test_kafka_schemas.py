"""A worker is killed, the registry changes its mind, and the replay decides as it was decided."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kafka_harness import Kafka, make_pipeline, start_rejex
from test_kafka_delivery import CONFLUENT

from rejex_stream.encode import decode_verdict
from rejex_stream.types import Position, Record
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.kafka


def schema(*names: str) -> str:
    fields = [{"name": name, "type": "long"} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


class Fickle:
    """A registry over HTTP that says what it was told to say last."""

    def __init__(self) -> None:
        self.says: dict[int, str] = {}
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = outer.says.get(int(self.path.rsplit("/", 1)[-1]))
                unknown = {"error_code": 40403, "message": "Schema not found"}
                body = json.dumps(unknown if known is None else {"schema": known}).encode()
                self.send_response(404 if known is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Fickle]:
    fickle = Fickle()
    yield fickle
    fickle.close()


@contextmanager
def worker(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (path.parent / "log").open("ab") as log,
        start_rejex("run", path, cwd=path.parent, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("client", "delivery"), [
    ("kafka-python", "exactly_once"),
    pytest.param("confluent", "at_least_once", marks=[CONFLUENT, pytest.mark.long]),
    pytest.param("kafka-python", "at_least_once", marks=pytest.mark.long),
    pytest.param("confluent", "exactly_once", marks=[CONFLUENT, pytest.mark.long]),
])  # fmt: skip
def test_killed_and_told_otherwise_a_worker_keeps_to_what_is_committed(
    kafka: Kafka, registry: Fickle, tmp_path: Path, client: str, delivery: str
) -> None:
    path, settings = make_pipeline(
        kafka, tmp_path, input={"format": "avro", "fixed_sensor": "s", "channels": ["flow"]},
        detector={"name": "HalfSpaceTrees"}, schema_registry={"url": registry.url},
        run={"invalid_limit": 1.0}, kafka={"client": client, "delivery": delivery},
    )  # fmt: skip
    (topic,) = settings.topics.input

    def send(*ids: int) -> None:
        values = (bytes([0, 0, 0, 0, id_, 2, 4]) for id_ in ids)
        kafka.fill(settings, (Record(Position(topic, 0, 0), b"k", value) for value in values))

    def wait_for(verdicts: int, dead: int, process: subprocess.Popen[bytes]) -> None:
        def there() -> bool:
            found = kafka.count(settings, settings.topics.verdicts)
            letters = kafka.count(settings, settings.topics.deadletter)
            return (found, letters) == (verdicts, dead) or process.poll() is not None

        until(there, f"{verdicts} verdicts and {dead} dead letters")
        assert process.poll() is None, (tmp_path / "log").read_text()

    registry.says = {1: schema("flow", "other"), 3: schema("flow", "other")}
    send(*[1, 2, 3] * 20)
    with worker(path) as process:
        wait_for(40, 20, process)
        committed = {tuple(at): offset for at, offset in kafka.committed(settings).items()}
        process.kill()
    assert committed == {(topic, 0): 60}
    # It has learnt 2, forgotten 3, and reads 1 the other way round.
    registry.says = {1: schema("other", "flow"), 2: schema("flow", "other")}
    send(*[1, 2, 3] * 10)
    with worker(path) as process:
        wait_for(40 + 30, 20, process)
        process.terminate()
        process.wait(PATIENCE_S)
    (records,) = kafka.read(settings, settings.topics.verdicts).values()
    verdicts = [decode_verdict(record.value or b"") for record in records]
    assert [verdict.seq for verdict in verdicts] == list(range(70)), "the state was the same"
    assert {verdict.position.offset % 3 for verdict in verdicts[:40]} == {0, 2}
