"""What the tests of alerting share: a real Alertmanager, and a server that remembers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.waiting import PATIENCE_S, until


def tool(*names):
    """Find a program of Prometheus, or skip with the reason; fail where CI requires it."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no {names[0]} on this machine (Debian: prometheus, prometheus-alertmanager)"
        if os.environ.get("REJEX_REQUIRE_PROMETHEUS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Receiver:
    """A real HTTP server that answers what it is told to and remembers what it got.

    While `refusing` it takes nothing; `taken` is what it said it took. With a `location` it sends
    everybody there.
    """

    def __init__(self, answers=(), location=None):
        self.got, self.taken, self.answers, self.refusing = [], [], list(answers), False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.got.append((dict(self.headers), body))
                status = outer.answers.pop(0) if outer.answers else 204
                status = 503 if outer.refusing else status
                if status < 300:
                    outer.taken.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if location is not None:
                    self.send_header("Location", location)
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - as the server looks for it

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def events_taken(receiver):
    """What a receiver took, once each: kind (alarm, incident, ...) and id."""
    events = (json.loads(body) for body in receiver.taken)
    return {(event["type"].split(".")[-2], event["id"]) for event in events}


@contextmanager
def alertmanager(folder, told, port=0):
    """A real Alertmanager that notifies `told` at once; yields its address."""
    program = tool("prometheus-alertmanager", "alertmanager")
    config = {
        "route": {"receiver": "test", "group_by": ["pipeline"], "group_wait": "0s",
                  "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "test", "webhook_configs": [{"url": told}]}],
    }  # fmt: skip
    (folder / "am.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, f"--config.file={folder / 'am.yml'}", f"--storage.path={folder / 'am'}",
         f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url), "Alertmanager is ready")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _answers(url):
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=PATIENCE_S) as answer:
            return answer.status == 200
    except OSError:
        return False


def active_alerts(url):
    """What an Alertmanager holds to be active, by alert name and stream."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=PATIENCE_S) as answer:
        alerts = json.load(answer)
    return {(a["labels"]["alertname"], a["labels"].get("stream")): a for a in alerts}
