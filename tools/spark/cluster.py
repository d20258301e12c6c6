"""A real Spark cluster without Docker: a master and workers from the installed package.

``with start(workers=2) as cluster`` gives its address; ``executors()`` are the processes to kill.
Maven fetches the Kafka connector (:func:`connector_jars`), whose token provider is not in every
registry in the version it names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Cluster", "connector_jars", "start"]

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)


def connector_jars() -> str:
    """Fetch the connector once, and return its jars as ``spark.jars`` wants them."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "rejex-stream" / "spark-kafka-4.2.0"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for jar in _JARS:
        _, name, version = jar.split(":")
        path = folder / f"{name}-{version}.jar"
        if not path.exists():
            command = ["mvn", "-q", "-B", _COPY, f"-Dartifact={jar}:jar"]
            subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
        found.append(str(path))
    return ",".join(found)


@dataclass
class Cluster:
    """A master with workers of one core each, on this machine."""

    address: str
    processes: list[subprocess.Popen[bytes]]

    def executors(self) -> list[psutil.Process]:
        """Return the executors that are alive."""
        found = []
        for process in self.processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        found.append(child)
        return found


@contextlib.contextmanager
def start(workers: int, memory: str = "2g") -> Iterator[Cluster]:
    """Start a cluster and end it, and all that it started, afterwards."""
    import pyspark

    run = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with tempfile.TemporaryDirectory(prefix="rejex-spark-") as folder:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        port = _free_port()
        cluster = Cluster(f"spark://127.0.0.1:{port}", [])

        def launch(*arguments: str) -> None:
            with (Path(folder) / f"{len(cluster.processes)}.log").open("wb") as log:
                cluster.processes.append(
                    subprocess.Popen(
                        [str(run), *arguments],
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,
                    )
                )

        master = "org.apache.spark.deploy.master.Master"
        worker = "org.apache.spark.deploy.worker.Worker"
        try:
            launch(master, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
            _until_listening(port)
            for i in range(workers):
                launch(
                    worker, "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1",
                    "--memory", memory, "--work-dir", f"{folder}/work{i}", cluster.address,
                )  # fmt: skip
            yield cluster
        finally:
            for process in reversed(cluster.processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until_listening(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"no master of Spark listens at port {port}")
