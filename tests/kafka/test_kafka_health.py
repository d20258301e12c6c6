"""Health of a worker while its broker is away: alive all along, ready only while it answers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from kafka_harness import Kafka
from test_kafka_delivery import DEFAULT_CLIENT_FIRST

from rejex_stream.types import Position, Record
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = """
[input]
kind = "kafka"
topics = ["{t.input[0]}"]
channels = ["flow"]
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 4
window = 200
[output]
verdicts = "{t.verdicts}"
review = "{t.review}"
deadletter = "{t.deadletter}"
labels = "{t.labels}"
[state]
topic = "{t.state}"
[metrics]
port = {port}
[kafka]
bootstrap_servers = "{bootstrap}"
client = "{client}"
"""


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(port: int, status: int, timeout_s: float = 90.0) -> str:
    """Wait for a status of /readyz; /livez must hold meanwhile once the server is there."""
    end = time.monotonic() + timeout_s
    while True:
        found, text = get(port, "/readyz?verbose")
        if found == status:
            return text
        if found:
            assert get(port, "/livez") == (200, "ok\n")
        assert time.monotonic() < end, (found, text)
        time.sleep(0.2)


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_quiet_worker_notices_that_its_broker_is_gone_and_lives_on(
    tmp_path: Path, client: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=1)
        topic = settings.topics.input[0]
        kafka.fill(settings, [Record(Position(topic, 0, 0), b"p", b'{"flow": 1}')])
        config = tmp_path / "pipeline.toml"
        config.write_text(
            CONFIG.format(t=settings.topics, port=port, bootstrap=cluster.bootstrap, client=client)
        )
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(
                [sys.executable, "-m", "rejex_stream", "run", str(config)],
                stdout=subprocess.DEVNULL, stderr=log, cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
            ) as process,
        ):  # fmt: skip
            try:
                assert "[+] edge: answers" in wait_for(port, 200)
                cluster.nodes[0].kill()  # and nothing is left to commit
                assert "[-] edge: Kafka" in wait_for(port, 503)
                assert get(port, "/livez") == (200, "ok\n")
                cluster.nodes[0].start()
                cluster.wait()
                assert "[+] edge: answers" in wait_for(port, 200)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=60)
                finally:
                    process.kill()
        assert process.returncode == 0, (tmp_path / "log").read_text()
    if client == "kafka-python":
        assert_thinned((tmp_path / "log").read_text(), time.monotonic() - begun)


def assert_thinned(log: str, seconds: float) -> None:
    """What the client says again and again is in the log once a minute, with a count."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    said = [line["message"] for line in lines if line["logger"].startswith("kafka.")]
    more = r" \(and ([\d,]+) more like it in .* s\)$"
    left_out = [int(found[1].replace(",", "")) for text in said if (found := re.search(more, text))]
    assert sum(left_out) > len(said), (left_out, said)
    times = Counter(re.sub(r"\d+(\.\d+)*", "#", re.sub(more, "", text)) for text in said)
    assert max(times.values()) <= 2 * (1 + seconds / 60), times
    assert any("ECONNREFUSED" in text for text in said), "why it fails is still told"
