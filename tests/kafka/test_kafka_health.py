"""Health of a worker while its broker is away: alive all along, ready only while it answers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from kafka_harness import Kafka, pipeline_toml
from test_kafka_delivery import CLIENTS, DEFAULT_CLIENT_FIRST

from rejex_stream.types import Position, Record
from tests.waiting import PATIENCE_S, until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]

ROOT = Path(__file__).resolve().parent.parent.parent


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(port: int, status: int) -> str:
    """Wait for a status of /readyz; /livez must hold meanwhile once the server is there."""

    def reached() -> str:
        found, text = get(port, "/readyz?verbose")
        if found and found != status:
            assert get(port, "/livez") == (200, "ok\n")
        return text if found == status else ""

    return until(reached, f"/readyz answers {status}")


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_quiet_worker_notices_that_its_broker_is_gone_and_lives_on(
    tmp_path: Path, client: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=1)
        topic = settings.topics.input[0]
        kafka.fill(settings, [Record(Position(topic, 0, 0), b"p", b'{"flow": 1}')])
        config = tmp_path / "pipeline.toml"
        (name, _, _) = topic.rpartition(".in")
        config.write_text(
            pipeline_toml(name, cluster.bootstrap, metrics={"port": port}, kafka={"client": client})
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
                    process.wait(timeout=PATIENCE_S)
                finally:
                    process.kill()
        assert process.returncode == 0, (tmp_path / "log").read_text()
    if client == "kafka-python":
        assert_thinned((tmp_path / "log").read_text())


def assert_thinned(log: str) -> None:
    """What the client says again and again is in the log once a minute."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    first, last = (datetime.fromisoformat(lines[i]["ts"]) for i in (0, -1))
    minutes = (last - first) / timedelta(minutes=1)
    said = [line["message"] for line in lines if line["logger"].startswith("kafka.")]
    times = Counter(re.sub(r"0x[0-9a-f]+|\d+(\.\d+)*", "#", text) for text in said)
    assert max(times.values()) <= 2 * (1 + minutes), times
    assert any("ECONNREFUSED" in text for text in said), "why it fails is still told"


def start(folder: Path, config: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{config.stem}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rejex_stream", "run", str(config)],
            stdout=subprocess.DEVNULL, stderr=log, cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
        )  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_worker_whose_broker_comes_late_waits_for_it_and_one_without_partitions_is_ready(
    tmp_path: Path, client: str
) -> None:
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=1)
        topic = settings.topics.input[0]
        kafka.fill(settings, [Record(Position(topic, 0, 0), b"p", b'{"flow": 1}')])
        (name, _, _) = topic.rpartition(".in")
        ports, running = [free_port(), free_port()], []
        cluster.nodes[0].kill()
        try:
            for number, port in enumerate(ports):
                config = tmp_path / f"worker-{number}.toml"
                config.write_text(
                    pipeline_toml(
                        name,
                        cluster.bootstrap,
                        metrics={"port": port},
                        kafka={"client": client, "options": {"delivery.timeout.ms": 3_000}},
                    )
                )
                running.append(start(tmp_path, config))
            log = tmp_path / "worker-0.log"
            until(lambda: "attempt 1 failed" in log.read_text(), log.read_text)
            assert get(ports[0], "/livez") == (200, "ok\n")
            cluster.nodes[0].start()
            cluster.wait()
            told = "".join(wait_for(port, 200) for port in ports)
            assert "[+] partitions: 1 owned" in told
            assert "[+] partitions: none owned, standing by in the group" in told
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            ended = [process.wait(PATIENCE_S) for process in running]
        assert ended == [0, 0]
