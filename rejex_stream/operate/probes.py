"""The HTTP endpoint of a run: whether it is live and ready, and its metrics.

``/livez``: the loop runs. It never asks the broker: an outage must not restart every worker.
``/readyz``: partitions are ours, or the group has none for us; they are replayed to their committed
offset, and the edge answers; with ``?verbose`` one line a check. ``/metrics``: Prometheus' text
format. ``/healthz`` is ``/livez``.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from rejex_stream.errors import explaining_os_errors
from rejex_stream.operate.run_monitor import Health

_MAX_CONNECTIONS = 32
_PATIENCE_S = 20.0


class HealthServer:
    """Serves health and metrics until closed.

    At most 32 connections are open, each for one request and 20 s: a further one closes the oldest.
    So clients that send a byte now and then hold up neither the probes nor the worker's threads.
    """

    def __init__(
        self, host: str, port: int, health: Health, exposition: Callable[[], bytes]
    ) -> None:
        handler = type("Handler", (_Handler,), {"health": health, "exposition": exposition})
        failed = f"Metrics cannot be served on {host}:{port}"
        with explaining_os_errors(failed, "choose another metrics.port, or 0 for none"):
            self._server = _BoundedServer((host, port), handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BoundedServer(ThreadingHTTPServer):
    def __init__(self, *how: Any) -> None:  # noqa: ANN401 - as the class it is made of
        self._open: dict[int, tuple[float, socket.socket]] = {}  # since when; the oldest first
        self._lock = threading.Lock()
        super().__init__(*how)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        with self._lock:
            self._open[id(request)] = time.monotonic(), request
        super().process_request(request, client_address)

    def service_actions(self) -> None:  # after each connection, and every half second
        late = time.monotonic() - _PATIENCE_S
        with self._lock:
            n_surplus = len(self._open) - _MAX_CONNECTIONS
            opened = enumerate(self._open.values())
            closed = [one for i, (since, one) in opened if i < n_surplus or since < late]
        for one in closed:
            with contextlib.suppress(OSError):  # its thread, which waits for it, closes it
                one.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        with self._lock:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if not isinstance(sys.exception(), ConnectionError):  # clients go when they like
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    health: Health
    exposition: Callable[[], bytes]
    server_version = "rejex-stream"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/metrics":
            self._send(200, type(self).exposition(), "text/plain; version=0.0.4; charset=utf-8")
        elif address.path in ("/livez", "/healthz"):
            live = self.health.is_live
            self._send(200 if live else 503, b"ok\n" if live else b"the loop does not run\n")
        elif address.path == "/readyz":
            self._ready(verbose="verbose" in address.query)
        else:
            self._send(404, b"try /metrics, /livez or /readyz?verbose\n")

    def _ready(self, *, verbose: bool) -> None:
        checks = self.health.checks()
        ready = all(check.ok for check in checks)
        lines = ["ready" if ready else "not ready"]
        if verbose:
            lines += [f"[{'+' if c.ok else '-'}] {c.name}: {c.detail}" for c in checks]
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
