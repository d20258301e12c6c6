"""A real Apache Kafka without Docker: Maven fetches it, Java 17 runs it.

``python tools/kafka/broker.py`` starts one node and prints its address; Ctrl-C stops it.
Tests call :func:`start` and may kill, stop and restart single nodes on the same data.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Final

__all__ = ["KAFKA_VERSION", "BrokerUnavailableError", "Cluster", "Node", "jars", "start"]

KAFKA_VERSION: Final = "4.2.0"
HERE: Final = Path(__file__).resolve().parent
JAVA_AT_LEAST: Final = 17
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_LOG_LEVEL: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
_SMALL: Final = ("-Xmx640m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")


class BrokerUnavailableError(RuntimeError):
    """There is no Java 17+, no Maven, or the node did not come up; the message says which."""


def cache_dir() -> Path:
    """Where the jars live: ``REJEX_KAFKA_DIR``, else a folder of the user's cache."""
    if chosen := os.environ.get("REJEX_KAFKA_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rejex-stream" / f"kafka-{KAFKA_VERSION}"


def jars() -> Path:
    """Fetch Kafka's jars once (Maven checks their checksums) and return their folder.

    Raises
    ------
    BrokerUnavailableError
        Without Java 17+, or without Maven where the jars are not cached yet.
    """
    require_java()
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        if not (folder / ".complete").exists():
            _fetch(folder)
            (folder / ".complete").touch()
        if not _archive(folder).exists():
            _share_classes(folder)
    return folder


def require_java() -> None:
    java = shutil.which("java")
    if java is None:
        raise BrokerUnavailableError(f"no `java` on PATH: install Java {JAVA_AT_LEAST} or newer")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    words = said.split('"')
    version = words[1] if len(words) > 1 else "unknown"
    major = version.split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < JAVA_AT_LEAST:
        raise BrokerUnavailableError(f"`java` is version {version}: Kafka needs {JAVA_AT_LEAST}+")


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError(f"no `mvn` on PATH and no Kafka in {folder}: install Maven")
    command = [maven, "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Dkafka.version={KAFKA_VERSION}"]
    command += [_COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = (done.stdout + done.stderr)[-1500:]
        raise BrokerUnavailableError(f"Maven could not fetch Kafka {KAFKA_VERSION}:\n{tail}")


def _share_classes(folder: Path) -> None:
    """Archive the loaded classes of one short run: later starts take a third of the time."""
    archive = _archive(folder)
    with tempfile.TemporaryDirectory(prefix="rejex-kafka-") as data:
        flag = f"-XX:ArchiveClassesAtExit={archive}.part"
        with contextlib.suppress(BrokerUnavailableError):  # only speed is lost
            Cluster.create(1, Path(data), folder, jvm=(flag,)).stop()
    part = Path(f"{archive}.part")
    if part.exists():
        part.rename(archive)
    else:
        archive.touch()


def _archive(folder: Path) -> Path:
    return folder / "classes.jsa"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, so that parallel test processes fetch once."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """Ask the system for a TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Node:
    """One broker-and-controller process; it keeps its ports and data over restarts."""

    node_id: int
    port: int
    properties: Path
    folder: Path
    jvm: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the plaintext listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.properties.with_suffix(".log")

    def start(self) -> None:
        """Start the process; does not wait until it answers."""
        command = ["java", *_SMALL, *self.jvm, _LOG_LEVEL, "-cp", _class_path(self.folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self.properties)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us first, and we stop it in order
            )

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL after 15 s."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Freeze it with SIGSTOP: connections stay open and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again after :meth:`pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@dataclass
class Cluster:
    """Nodes that form one Kafka cluster, in a folder of their own."""

    nodes: list[Node]
    directory: Path
    temporary: bool = False
    listeners: Mapping[str, int] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Addresses for a client, comma separated."""
        return ",".join(node.address for node in self.nodes)

    @classmethod
    def create(
        cls,
        n_nodes: int,
        directory: Path,
        folder: Path,
        *,
        port: int = 0,
        jvm: Sequence[str] = (),
        listeners: Sequence[str] = (),
        overrides: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
    ) -> Cluster:
        """Format the storage of `n_nodes` nodes under `directory`, start them and wait."""
        ports = [port or free_port()] + [free_port() for _ in range(n_nodes - 1)]
        controllers = [free_port() for _ in range(n_nodes)]
        voters = ",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(controllers, start=1))
        more = {name: free_port() for name in listeners}
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        nodes = []
        for i in range(n_nodes):
            text = Template((HERE / "server.properties").read_text()).substitute(
                node_id=i + 1,
                voters=voters,
                port=ports[i],
                controller_port=controllers[i],
                data=directory / f"node-{i + 1}",
                replicas=n_nodes,
                min_isr=max(1, n_nodes - 1),
                controlled_shutdown=str(n_nodes > 1).lower(),
                more_listeners="".join(f",{name}://127.0.0.1:{p}" for name, p in more.items()),
            )
            text += "".join(f"{key}={value}\n" for key, value in (overrides or {}).items())
            properties = directory / f"node-{i + 1}.properties"
            properties.write_text(text)
            nodes.append(Node(i + 1, ports[i], properties, folder, tuple(jvm)))
        cluster = cls(nodes, directory, listeners=more)
        _format(nodes, identity, format_options)
        try:
            for node in nodes:
                node.start()
            cluster.wait()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def wait(self, timeout_s: float = 60.0, n_nodes: int | None = None) -> None:
        """Wait until `n_nodes` nodes (default: all started ones) answer as one cluster.

        Raises
        ------
        BrokerUnavailableError
            After `timeout_s`, with the end of the log of a node.
        """
        alive = [node for node in self.nodes if node.process is not None]
        wanted = len(alive) if n_nodes is None else n_nodes
        end = time.monotonic() + timeout_s
        while True:
            dead = [n for n in alive if n.process is not None and n.process.poll() is not None]
            if dead or time.monotonic() > end:
                node = (dead or alive)[0]
                tail = node.log.read_text(errors="replace")[-2000:]
                raise BrokerUnavailableError(f"Kafka node {node.node_id} did not come up:\n{tail}")
            if all(_alive(node.port) >= wanted for node in alive):
                return
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop every node; if the folder was made for this cluster, at once and with its data."""
        how = signal.SIGKILL if self.temporary else signal.SIGTERM
        for node in self.nodes:
            if node.process is not None:
                node.process.send_signal(signal.SIGCONT)  # a frozen one could not hear us
                node.process.send_signal(how)
        for node in self.nodes:
            node.stop()
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    n_nodes: int = 1,
    *,
    directory: Path | None = None,
    port: int = 0,
    quick: bool = True,
    listeners: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
    format_options: Sequence[str] = (),
) -> Cluster:
    """Start a cluster and wait until it answers.

    Parameters
    ----------
    n_nodes
        Brokers (each is a controller too); replication factors follow.
    directory
        Where data and logs go; a temporary folder, removed by ``stop()``, by default.
    port
        Port of the first node; any free one by default.
    quick
        Compile little: starts in about 1.5 s instead of 2; leave it off to measure.
    listeners
        Further listeners by protocol name, e.g. ``SASL_SSL``; ports in ``Cluster.listeners``.
    overrides
        Lines to add to ``server.properties``.
    format_options
        Options for Kafka's StorageTool, e.g. ``--add-scram …``.

    Raises
    ------
    BrokerUnavailableError
        With the reason: Java, Maven, or what the node printed.
    """
    folder = jars()
    temporary = directory is None
    directory = directory or Path(tempfile.mkdtemp(prefix="rejex-kafka-"))
    directory.mkdir(parents=True, exist_ok=True)
    jvm = [f"-XX:SharedArchiveFile={_archive(folder)}"] if _archive(folder).stat().st_size else []
    if quick:
        jvm.append("-XX:TieredStopAtLevel=1")
    cluster = Cluster.create(
        n_nodes,
        directory,
        folder,
        port=port,
        jvm=jvm,
        listeners=listeners,
        overrides=overrides,
        format_options=format_options,
    )
    cluster.temporary = temporary
    return cluster


def _class_path(folder: Path) -> str:
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _format(nodes: Sequence[Node], identity: str, options: Sequence[str]) -> None:
    running = []
    for node in nodes:
        command = ["java", *_SMALL, "-XX:TieredStopAtLevel=1", _LOG_LEVEL]
        command += ["-cp", _class_path(node.folder), "kafka.tools.StorageTool", "format"]
        # One word: an identity may begin with a dash.
        command += [f"--cluster-id={identity}", "-c", str(node.properties), *options]
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise BrokerUnavailableError(f"Kafka could not format its storage:\n{output[-2000:]}")


def _alive(port: int) -> int:
    """Ask a node how many brokers it knows to be alive; 0 when it does not answer.

    A Metadata request (version 5) by hand, so that this file needs nothing installed.
    """
    header = struct.pack(">hhih", 3, 5, 1, -1)  # Metadata, version, correlation, no client id
    request = header + struct.pack(">i?", 0, False)  # no topics, create none
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection(("127.0.0.1", port), timeout=2) as connection,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(16)
        _, _, _, brokers = struct.unpack(">iiii", answer)  # size, correlation, throttle, count
        return int(brokers)
    return 0


def main() -> int:
    """Run a node until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run a real Apache Kafka for development.")
    parser.add_argument("--port", type=int, default=9092, help="port of the first node")
    parser.add_argument("--nodes", type=int, default=1, help="brokers in the cluster")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        cluster = start(asked.nodes, port=asked.port, quick=False)
    except BrokerUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    with cluster:
        print(f"Apache Kafka {KAFKA_VERSION} is ready at {cluster.bootstrap} (Ctrl-C stops it)")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
