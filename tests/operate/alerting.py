"""What the tests of alerting share: a real Alertmanager, and a server that remembers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest
import yaml

from tests.servers import WebServer
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
        self._moved = {} if location is None else {"Location": location}
        self._server = WebServer(self._answer)
        self.url = f"http://127.0.0.1:{self._server.server.server_address[1]}/hook"
        self.close = self._server.close

    def _answer(self, _method, _path, headers, body):
        self.got.append((dict(headers), body))
        status = self.answers.pop(0) if self.answers else 204
        status = 503 if self.refusing else status
        if status < 300:
            self.taken.append(body)
        return status, self._moved, b""


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
