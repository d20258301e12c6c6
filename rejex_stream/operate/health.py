"""Whether a run lives and is ready, and the HTTP endpoint that says so.

``/livez``: the loop turns. It never asks the broker: an outage must not restart every worker.
``/readyz``: partitions are ours, or the group has none for us; they are replayed to their committed
offset, and the edge answers; with ``?verbose`` one line a check. ``/metrics``: Prometheus' text
format. ``/healthz`` is ``/livez``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from rejex_stream.errors import ConnectorError
from rejex_stream.run.progress import (
    Committed,
    PartitionClosed,
    PartitionLive,
    PartitionOpened,
    Progress,
    Retrying,
    RunEvent,
)
from rejex_stream.types import Outcome, Partition

__all__ = ["Check", "Health", "HealthServer"]


class Check(NamedTuple):
    """One line of ``/readyz?verbose``."""

    name: str
    ok: bool
    says: str


class Health:
    """What a run told about itself, as checks; an observer of it."""

    def __init__(
        self, *, stalled_after_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._stalled_after_s = clock, stalled_after_s
        self._turned_at = clock()
        self._lock = threading.Lock()
        self._replaying: set[Partition] = set()
        self._owned: set[Partition] = set()
        self._standing_by = False
        self._error: str | None = None
        self._unanswered: str | None = None

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Note that the loop turns: a batch was judged."""
        self._turned_at = self._clock()

    def progress(self, progress: Progress) -> None:
        """Note that the loop came round, events or not."""
        self._turned_at = self._clock()

    def event(self, event: RunEvent) -> None:
        """Note ownership, replays and failures of the edge."""
        self._turned_at = self._clock()
        with self._lock:
            match event:
                case PartitionOpened(partition, _, next_offset, live_from):
                    self._owned.add(partition)
                    self._error = None
                    if next_offset < live_from:
                        self._replaying.add(partition)
                case PartitionLive(partition):
                    self._replaying.discard(partition)
                case PartitionClosed(partition):
                    self._owned.discard(partition)
                    self._replaying.discard(partition)
                case Retrying(error):
                    self._error = str(error)
                case Committed():
                    self._error = None

    def answered(self, problem: str | None) -> None:
        """Note whether the edge answers a question; `problem` says why not."""
        with self._lock:
            self._unanswered = problem

    def standing_by(self, joined: bool) -> None:
        """Note whether we are a member of the group, whatever it gave us."""
        with self._lock:
            if joined and not self._standing_by:
                self._error = None  # of a start that had to be tried again
            self._standing_by = joined

    @property
    def is_live(self) -> bool:
        """Whether the loop has turned of late."""
        return self._clock() - self._turned_at < self._stalled_after_s

    @property
    def is_ready(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks())

    def checks(self) -> list[Check]:
        """Return what readiness is made of."""
        with self._lock:
            owned, replaying = len(self._owned), len(self._replaying)
            error = self._error or self._unanswered
        silent_s = self._clock() - self._turned_at
        says = f"{owned} owned"
        if not owned and self._standing_by:
            says = "none owned, standing by in the group"
        return [
            Check("loop", self.is_live, f"last turn {silent_s:.0f} s ago"),
            Check("partitions", owned > 0 or self._standing_by, says),
            Check("replay", replaying == 0, f"{replaying} still replaying"),
            Check("edge", error is None, error or "answers"),
        ]


class HealthServer:
    """Serves health and metrics until closed."""

    def __init__(
        self, host: str, port: int, health: Health, exposition: Callable[[], bytes]
    ) -> None:
        handler = type("Handler", (_Handler,), {"health": health, "exposition": exposition})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise ConnectorError(
                f"Metrics cannot be served on {host}:{port} ({error.strerror}): choose another "
                "metrics.port, or 0 for none."
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    health: Health
    exposition: Callable[[], bytes]
    protocol_version = "HTTP/1.1"
    server_version = "rejex-stream"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        """Answer one of four addresses."""
        address = urlsplit(self.path)
        if address.path == "/metrics":
            self._send(200, type(self).exposition(), "text/plain; version=0.0.4; charset=utf-8")
        elif address.path in ("/livez", "/healthz"):
            live = self.health.is_live
            self._send(200 if live else 503, b"ok\n" if live else b"the loop does not turn\n")
        elif address.path == "/readyz":
            self._ready(verbose="verbose" in address.query)
        else:
            self._send(404, b"try /metrics, /livez or /readyz?verbose\n")

    def _ready(self, *, verbose: bool) -> None:
        checks = self.health.checks()
        ready = all(check.ok for check in checks)
        lines = ["ready" if ready else "not ready"]
        if verbose:
            lines += [f"[{'+' if c.ok else '-'}] {c.name}: {c.says}" for c in checks]
        self._send(200 if ready else 503, ("\n".join(lines) + "\n").encode())

    def _send(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes every few seconds are not worth a line."""
