"""Every command and every example of the README, run as a reader would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
HOWTO = ROOT / "docs" / "howto"
REVIEW = HOWTO / "review.md"
# The commands of these pages follow each other, in one folder.
ABOUT_REVIEWING = (REVIEW, HOWTO / "fleet.md", HOWTO / "measure.md", HOWTO / "console.md")
PAGES = (README, *sorted(set(HOWTO.glob("*.md")) - set(ABOUT_REVIEWING)))

pytestmark = pytest.mark.skipif(
    not README.exists(), reason="README.md is not here: the tests run from a copy without sources"
)


def blocks(language, file=README):
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands():
    lines = [
        line for page in PAGES for block in blocks("bash", page) for line in block.splitlines()
    ]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


# What a command needs beside the checkout, and where it is run instead.
ELSEWHERE = {
    "make test": "this is it",
    "python3 -m venv .venv && .venv/bin/pip install '.[review]'": "tools/test-wheel installs",
    'export PATH="$PWD/.venv/bin:$PATH"': "tools/test-wheel",
    "make demo": "test_make_demo_works_in_a_fresh_checkout",
    "rejex-stream topics create examples/kafka.toml": "tests/kafka: needs a broker",
    "rejex-stream run examples/kafka.toml": "tests/kafka: needs a broker",
    **dict.fromkeys(
        (
            'rejex-stream control fault pipeline.toml plant-0-1234 --note "bearing, ordered"',
            "rejex-stream control new-normal pipeline.toml plant-0-1234",
            "rejex-stream control plan pipeline.toml --from 2024-05-01T06:00+02:00 "
            "--until 2024-05-01T14:00+02:00",
            "rejex-stream control cancel pipeline.toml c-0123456789ab",
            "rejex-stream control mute pipeline.toml T07 --channel flow=1.2:3.4 "
            '--until 2024-06-01T00:00Z --note "washing"',
            "rejex-stream control judge pipeline.toml T07 champion",
            "rejex-stream control list pipeline.toml",
        ),
        "tests/test_control_cli.py: needs a pipeline with incidents",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("command", [c for c in commands() if c not in ELSEWHERE])
def test_the_command_works(command, tmp_path):
    for name in ("examples", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_that_runs_elsewhere_is_still_in_the_readme():
    assert set(ELSEWHERE) <= set(commands())


def left_out_by(target):
    """Which marked tests a target of the Makefile leaves out."""
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (expression,) = re.findall(r'pytest [^"]*-m "([^"]*)"', done.stdout)
    assert re.fullmatch(r"not \w+( and not \w+)*", expression)
    return set(re.findall(r"not (\w+)", expression))


def test_the_quick_tests_need_no_broker_and_no_browser_and_the_whole_leaves_out_the_long_proofs():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    markers = settings["tool"]["pytest"]["ini_options"]["markers"]
    assert left_out_by("test-quick") == {marker.partition(":")[0] for marker in markers}
    # The repetitions are `make test-all`'s, and what is about text is `make check`'s; CI runs both.
    assert left_out_by("test") == {"slow", "long", "text"}
    assert left_out_by("test-all") == {"slow", "text"}


@pytest.mark.thorough
def test_the_pages_about_reviewing_work_from_top_to_bottom(tmp_path):
    pytest.importorskip("starlette", reason="the extra `review` is not installed")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    lines = [
        line for page in ABOUT_REVIEWING for b in blocks("bash", page) for line in b.splitlines()
    ]
    assert len(lines) == 9
    for line in lines:
        words = line.split()
        if "serve" not in words:
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True,
                timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, line + done.stdout + done.stderr
            continue
        with subprocess.Popen(
            [*words, "--port", "0"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as console:  # fmt: skip
            said = console.stdout.readline()
            base = said.removeprefix("review console: ").strip()
            assert base.startswith("http://127.0.0.1:"), said + console.communicate()[1]
            _decide_one(base)
            _wait_until_sent(base)
            console.terminate()
            assert "Traceback" not in console.communicate(timeout=PATIENCE_S)[1]
    assert (tmp_path / "labels.csv").read_text().count(",normal,") >= 1
    assert "same as checked" in done.stdout


def _wait_until_sent(base):
    """Labels leave in the background."""

    def sent():
        with urllib.request.urlopen(base + "metrics", timeout=PATIENCE_S) as answer:
            return b"rejex_review_outbox_pending 0.0" in answer.read()

    until(sent, "the label is sent")


def _decide_one(base):
    """Give the label that the rest of the page is about."""

    def ask(path, body=None):
        request = urllib.request.Request(
            base + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"origin": base.rstrip("/"), "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    found = until(lambda: ask("api/queue/ids?tab=ready")["targets"], "something is in the queue")
    ask("api/labels", {"request_id": "one", "verdict": "normal", "targets": found[:1]})


def test_the_keys_on_the_page_about_reviewing_are_those_of_the_console():
    pages = pytest.importorskip("rejex_stream.review.console.pages")
    work = REVIEW.read_text(encoding="utf-8").partition("## Work")[2].partition("\nThe filter")[0]
    table = "\n".join(line for line in work.splitlines() if line.startswith("|"))
    keys = {key for keys, _ in pages.KEYS.values() for key in keys}
    named = set(re.findall(r"`(.)`", table))
    assert len(named) > 10
    assert named <= keys
    for said, action in (("anomaly", "anomaly"), ("undo, again and again; also tomorrow", "undo")):
        (key,) = re.findall(rf"`(.)` \| {said}", table)
        assert key in pages.KEYS[action][0]


@pytest.mark.thorough
def test_make_demo_works_in_a_fresh_checkout(tmp_path):
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if files.returncode:
        pytest.skip("not a git checkout: there is nothing to check out freshly")
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    # The packages come from the environment of the tests: what is tested is the Makefile and the
    # sources; an installation from nothing is CI's first step.
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    script = tmp_path / ".venv" / "bin" / "rejex-stream"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:{tmp_path}/connectors" '
        f'exec "{sys.executable}" -m rejex_stream "$@"\n'
    )
    script.chmod(0o755)
    (tmp_path / ".venv" / "run.stamp").touch()
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "demo-output" / "report.html").stat().st_size > 50_000
    assert "caught" in done.stdout


def test_the_ten_lines_are_the_example_file_and_load():
    shown = blocks("toml")[0]
    example = (ROOT / "examples" / "kafka.toml").read_text(encoding="utf-8")
    body = [line for line in example.splitlines() if not line.startswith("#")]
    assert shown.split() == "\n".join(body).split()
    assert len([line for line in shown.splitlines() if line]) <= 10
    tomllib.loads(shown)


def test_the_notebook_example_runs():
    import numpy as np

    rng = np.random.default_rng(0)
    names = {"X": np.vstack([rng.normal(size=(950, 2)), rng.normal(6, 1, size=(50, 2))])}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert set(names["model"].predict(names["X"])) == {-2, 0, 1}


def test_every_local_link_leads_somewhere():
    for file in (
        README,
        ROOT / "benchmarks" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "deploy" / "helm" / "rejex-stream" / "README.md",
    ):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).exists(), f"{file.name} links to {target}"
