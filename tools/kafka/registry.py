"""A real schema registry for tests: Apicurio Registry, fetched by Maven, run by Java 17.

``python tools/kafka/registry.py`` starts one and prints its address; Ctrl-C stops it. It speaks
Confluent's API and keeps its schemas in memory, so they are gone when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.kafka.broker import BrokerUnavailableError, cache_dir, free_port, locked, require_java

__all__ = ["REGISTRY_VERSION", "Registry", "start"]

REGISTRY_VERSION: Final = "2.6.13.Final"  # the newest that runs on Java 17
_ARTIFACT: Final = "io.apicurio:apicurio-registry-app"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_SMALL: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_API: Final = "/apis/ccompat/v7"


def fetched() -> Path:
    """Fetch the registry once (Maven checks its checksum) and return its folder."""
    require_java()
    folder = cache_dir().parent / f"registry-{REGISTRY_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        if not (folder / ".complete").exists():
            _fetch(folder)
            (folder / ".complete").touch()
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError(f"no `mvn` on PATH and no registry in {folder}: install Maven")
    with tempfile.TemporaryDirectory(prefix="rejex-registry-") as place:
        command = [
            maven,
            "-q",
            "-B",
            _COPY,
            f"-Dartifact={_ARTIFACT}:{REGISTRY_VERSION}:tar.gz:all",
        ]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={place}"],
            capture_output=True,
            text=True,
            check=False,
            cwd=place,
        )
        if done.returncode:
            tail = (done.stdout + done.stderr)[-1500:]
            raise BrokerUnavailableError(f"Maven could not fetch the schema registry:\n{tail}")
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")


class Registry:
    """One registry process; it keeps its port over restarts, and no schemas."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._log = Path(tempfile.mkstemp(prefix="rejex-registry-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What goes into ``schema_registry.url``."""
        return f"http://127.0.0.1:{self._port}{_API}"

    def start(self, timeout_s: float = 90.0) -> None:
        """Start the process and wait until it answers."""
        (runner,) = self._folder.glob("*-runner.jar")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *_SMALL, "-cp", f"{runner}{os.pathsep}{self._folder}/lib/*",
                 "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}",
                 "io.quarkus.runner.GeneratedMain"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                tail = self._log.read_text(errors="replace")[-2000:]
                self.kill()
                raise BrokerUnavailableError(f"the schema registry did not come up:\n{tail}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.url}/subjects", timeout=2),
        ):
            return True
        return False

    def pause(self) -> None:
        """Freeze it with SIGSTOP: connections are accepted and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again after :meth:`pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.unlink(missing_ok=True)


def start(port: int = 0) -> Registry:
    """Start a registry and wait until it answers.

    Raises
    ------
    BrokerUnavailableError
        With the reason: Java, Maven, or what the process printed.
    """
    registry = Registry(fetched(), port or free_port())
    registry.start()
    return registry


def main() -> int:
    """Run a registry until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run a real schema registry for development.")
    parser.add_argument("--port", type=int, default=8081)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        registry = start(asked.port)
    except BrokerUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    with registry:
        print(f"Apicurio Registry {REGISTRY_VERSION} is ready at {registry.url} (Ctrl-C stops it)")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
