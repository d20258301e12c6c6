"""The last lines of ``rejex-stream demo``: its rejected events in the review console."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.waiting import until

pytestmark = pytest.mark.thorough


def program(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "rejex_stream", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_command_that_the_demo_names_shows_what_it_rejected(tmp_path):
    for module in ("starlette", "uvicorn", "jinja2"):
        pytest.importorskip(module, reason="the extra `review` is not installed")
    with program(tmp_path, "demo") as demo:
        said, complaints = demo.communicate(timeout=300)
    assert demo.returncode == 0, complaints
    (command,) = re.findall(r"^to decide what was rejected: rejex-stream (.*)$", said, re.M)
    with program(tmp_path, *shlex.split(command), "--port", "0") as console:
        try:
            line = console.stdout.readline()
            address = re.match(r"review console: (http://127\.0\.0\.1:\d+/)", line)[1]

            def sensors_are_listed():
                with urllib.request.urlopen(address, timeout=60) as answer:
                    return "WT-0" in answer.read().decode()

            until(sensors_are_listed)  # the queue is filled while the console answers
            console.send_signal(signal.SIGINT)
            _, complaints = console.communicate(timeout=60)
        finally:
            console.kill()
    assert "Traceback" not in complaints
