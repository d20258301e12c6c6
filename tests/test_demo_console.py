"""``rejex-stream demo --console``: the demo's rejected events in the review console."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest


def test_the_console_shows_what_the_demo_rejected_and_ends_when_told(tmp_path):
    for module in ("starlette", "uvicorn", "jinja2"):
        pytest.importorskip(module, reason="the extra `review` is not installed")
    process = subprocess.Popen(
        [sys.executable, "-m", "rejex_stream", "demo", "--console"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(
        target=lambda: [said.put(line) for line in process.stdout], daemon=True
    ).start()
    try:
        address = None
        while address is None:
            found = re.match(r"review console: (http://127\.0\.0\.1:\d+/)", said.get(timeout=120))
            address = found and found[1]
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.status == 200
            page = answer.read().decode()
        assert "WT-0" in page
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
        assert "Traceback" not in complaints
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
