"""Every command and every example of the README and of docs/, run as a reader would."""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from rejex_stream.cli.main import _PARTS, main
from rejex_stream.config.pipeline_config import settings
from tests.program import ended, started
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
HOWTO = DOCS / "howto"
REVIEW = HOWTO / "review.md"
# The commands of these pages follow each other, in one folder.
ABOUT_REVIEWING = (REVIEW, HOWTO / "fleet.md", HOWTO / "measure.md", HOWTO / "console.md")
PAGES = (README, *sorted(set(DOCS.rglob("*.md")) - set(ABOUT_REVIEWING)))
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

pytestmark = pytest.mark.skipif(
    not README.exists(), reason="README.md is not here: the tests run from a copy without sources"
)


def blocks(language, file=README):
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def lines(page, language="bash"):
    return [line.split("  #")[0] for block in blocks(language, page) for line in block.splitlines()]


# What a command needs beside the checkout, and where it is run instead.
ELSEWHERE = {
    "make test": "this is it",
    "python3 -m venv .venv && .venv/bin/pip install '.[review,select]'": "tools/test-wheel",
    'export PATH="$PWD/.venv/bin:$PATH"': "tools/test-wheel",
    "make demo": "test_make_demo_works_in_a_fresh_checkout",
    "rejex-stream topics create examples/kafka.toml --with-input": "tests/kafka: needs a broker",
    "rejex-stream run examples/kafka.toml": "tests/kafka: needs a broker",
}


def run(command, folder):
    """Run a command of a page in a folder that has the examples, and return what it prints."""
    if not (folder / "examples").exists():
        shutil.copytree(ROOT / "examples", folder / "examples")
    done = ended(command, shell=True, cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 0, command + done.stdout + done.stderr
    for name in re.findall(r"(?:--(?:out|report|save-config|to)|>) (\S+)", command):
        assert (folder / name).stat().st_size, command
    return done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("page", [p for p in PAGES if lines(p)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_work_from_top_to_bottom(page, tmp_path):
    for config in blocks("toml", page)[: page.parent.name == "tutorials"]:
        (tmp_path / "pump.toml").write_text(config, encoding="utf-8")
    commands = [command for command in lines(page) if command.strip() not in ELSEWHERE]
    said = " ".join("".join(run(command, tmp_path) for command in commands).split())
    for shown in blocks("text", page) if page.parent.name == "tutorials" else ():
        for part in map(str.split, shown.split("…")):  # where … stands something was left out
            assert " ".join(part) in said, shown


def test_every_command_that_runs_elsewhere_is_still_in_the_readme():
    assert set(ELSEWHERE) <= {line.strip() for line in lines(README)}


@functools.cache
def help_of(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*words, "--help"])
    below = out.getvalue().partition("\nCommands:\n")[2]
    return out.getvalue(), set(re.findall(r"^  ([a-z-]+)  ", below, re.M))


@pytest.mark.thorough
def test_every_command_and_option_that_a_page_names_exists():
    checked = 0
    for page in PAGES + ABOUT_REVIEWING:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        text += "".join(f"\n$ {line}" for line in lines(page))
        for given in re.findall(r"[$`] ?rejex-stream ([a-z][^`\n|]*)", text):
            name, *rest = given.split()
            assert name in {part.name for part in _PARTS}, (page.name, given)
            if help_of(name)[1] and rest:
                assert rest[0] in help_of(name)[1], (page.name, given)
            said = help_of(name, *(rest[:1] if help_of(name)[1] else ()))[0]
            for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", given):
                assert option in said, (page.name, given)
                checked += 1
    assert checked > 40


def unknown_settings(value, key=""):
    if key in {row.key for row in settings()}:
        return
    for table in value if isinstance(value, list) else [value]:
        if not isinstance(table, dict):
            yield key
            continue
        for name, inner in table.items():
            yield from unknown_settings(inner, f"{key}.{name}".lstrip("."))


def test_every_setting_that_a_page_names_exists():
    known = {row.key for row in settings()}
    tables = {key[:i] for key in known for i, sign in enumerate(key) if sign == "."}
    for page in PAGES + ABOUT_REVIEWING:
        for block in blocks("toml", page):
            nameless = re.sub(r"^\[(channels|sensors)\..+\]", r"[[\1]]", block, flags=re.M)
            assert not [*unknown_settings(tomllib.loads(nameless))], page.name
        for key in re.findall(r"`([a-z]+\.(?!jsonl)[a-z_.]+)(?= = |`)", page.read_text("utf-8")):
            assert key in known | tables or key.partition(".")[0] not in tables, (page.name, key)


def test_every_message_and_metric_that_a_page_explains_is_one_of_the_program():
    sources = [*(ROOT / "rejex_stream").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    program = "".join(path.read_text(encoding="utf-8") for path in sources)
    program = re.sub(r'"\s*\n\s*f?"', "", program)
    checked = 0
    for page in (HOWTO / "troubleshoot.md", HOWTO / "console.md"):
        for cell in re.findall(r"^\| (.*?) \|", page.read_text(encoding="utf-8"), re.M):
            for part in re.split("…", " … ".join(re.findall('"(.+?)"', cell))):
                if len(part) > 8:
                    assert part.strip(" (),.") in program, (page.name, part)
                    checked += 1
    assert checked > 15
    for page in PAGES + ABOUT_REVIEWING:
        for name in re.findall(r"`rejex_((?!stream)[a-z_]+)", page.read_text(encoding="utf-8")):
            assert name.removesuffix("_total").removeprefix("review_") in program, (page, name)


def left_out_by(target):
    done = ended(["make", "--dry-run", target], cwd=ROOT)
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
    for line in [line for page in ABOUT_REVIEWING for line in lines(page)]:
        if "serve" not in line:
            last = run(line, tmp_path)
            continue
        words = [*line.split(), "--port", "0"]
        with started(words, cwd=tmp_path, env=ENVIRONMENT) as console:
            said = console.stdout.readline()
            base = said.removeprefix("review console: ").strip()
            assert base.startswith("http://127.0.0.1:"), said + console.communicate()[1]
            _decide_one(base)
            _wait_until_sent(base)
            console.terminate()
            assert "Traceback" not in console.communicate(timeout=PATIENCE_S)[1]
    assert (tmp_path / "labels.csv").read_text().count(",normal,") >= 1
    assert "same as checked" in last


def _wait_until_sent(base):
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
    work = REVIEW.read_text(encoding="utf-8").partition("## Keys")[2].partition("\nThe filter")[0]
    table = "\n".join(line for line in work.splitlines() if line.startswith("|"))
    keys = {key for keys, _ in pages.KEYS.values() for key in keys}
    named = set(re.findall(r"`(.)`", table))
    assert len(named) > 10
    assert named <= keys
    for said, action in (("anomaly", "anomaly"), ("undo, again and again; also tomorrow", "undo")):
        (key,) = re.findall(rf"`(.)` \| {said}", table)
        assert key in pages.KEYS[action][0]


@pytest.mark.long
def test_make_demo_works_in_a_fresh_checkout(tmp_path):
    files = ended(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
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
    done = ended(["make", "demo"], cwd=tmp_path)
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


def test_the_page_about_python_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {}
    for block in blocks("python", HOWTO / "python.md"):
        exec(compile(block, "python.md", "exec"), names)
    assert names["labels"].count("anomaly") > 50
    assert len(names["outcomes"]) == 500


def test_the_notebook_example_runs():
    import numpy as np

    rng = np.random.default_rng(0)
    names = {"X": np.vstack([rng.normal(size=(950, 2)), rng.normal(6, 1, size=(50, 2))])}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert set(names["model"].predict(names["X"])) == {-2, 0, 1}


def test_every_local_link_leads_somewhere():
    for file in (
        README, ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md"),
        ROOT / "deploy" / "helm" / "rejex-stream" / "README.md",
    ):  # fmt: skip
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text(encoding="utf-8")):
            assert (file.parent / target).exists(), f"{file.name} links to {target}"
