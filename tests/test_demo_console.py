"""The last lines of ``rejex-stream demo``: its rejected events in the review console."""

from __future__ import annotations

import re
import shlex
import signal
import urllib.request

import pytest

from tests.program import command, started
from tests.waiting import until

pytestmark = pytest.mark.thorough


def test_the_command_that_the_demo_names_shows_what_it_rejected(tmp_path):
    for module in ("starlette", "uvicorn", "jinja2"):
        pytest.importorskip(module, reason="the extra `review` is not installed")
    with started(command("demo"), cwd=tmp_path) as demo:
        said, complaints = demo.communicate(timeout=300)
    assert demo.returncode == 0, complaints
    (named,) = re.findall(r"^to decide what was rejected: rejex-stream (.*)$", said, re.M)
    words = command(*shlex.split(named), "--port", "0")
    with started(words, cwd=tmp_path) as console:
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
