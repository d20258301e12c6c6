"""``rejex-stream run`` over real files, in processes that are really stopped."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from rejex_stream.cli import bars, main
from rejex_stream.cli.commands import run_pipeline
from rejex_stream.cli.commands.run_pipeline import RunDisplay
from rejex_stream.encode import decode_verdict
from rejex_stream.engine.snapshot import environment as environment_of_scores
from rejex_stream.run.run_events import Progress, Replay
from rejex_stream.types import Partition
from tests.program import command, environment, rejex, started
from tests.pump import feed, flow, pump_toml
from tests.waiting import PATIENCE_S, until

CONFIG = pump_toml()


def run_apart(folder, *arguments, **changes):
    return rejex("run", "pump.toml", *arguments, cwd=folder, **changes)


@pytest.fixture
def run(capsys, monkeypatch):
    def here(folder, *arguments, **changes):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            for name in [name for name in os.environ if name.startswith("REJEX_")]:
                patch.delenv(name)
            for name, value in changes.items():
                patch.setenv(name, value)
            status = main(["run", "pump.toml", *arguments])
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, captured.out, captured.err)

    return here


@contextlib.contextmanager
def running(folder, **changes):
    """A run in the background, ended if the test forgets to."""
    how = {"cwd": folder, "env": environment(**changes)}
    with started(command("run", "pump.toml"), **how) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def verdicts(folder):
    path = folder / "verdicts.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""  # it may be written to
    return [decode_verdict(line) for line in whole.splitlines()]


@pytest.fixture
def pipeline(tmp_path):
    (tmp_path / "pump.toml").write_text(CONFIG)
    return tmp_path


def change(folder, *changes):
    text = (folder / "pump.toml").read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "pump.toml").write_text(text)


# --------------------------------------------------------------- what its beginning is suspected of
def doubtful(folder, start, stop):
    """Append rows of which a channel counts, and from the thousandth on another stands for none."""
    with (folder / "feed.csv").open("a") as file:
        if start == 0:
            file.write("t,id,flow,entry\n")
        for i in range(start, stop):
            value = -999 if i >= 1000 and i % 9 == 4 else flow(i)
            file.write(f"{1_700_000_000 + i},p{i % 2},{value},{7000 + i}\n")


def doubts(done):
    lines = map(json.loads, done.stderr.splitlines())
    return [
        line["message"]
        for line in lines
        if line["logger"].endswith(".run_pipeline") and line["level"] == "warning"
    ]


ENTRY = (
    "'entry' only counts: it rises in {0} of {0} steps; leave it out of input.channels, make it a "
    'flag, or say kind = "counter" in [channels]'
)


@pytest.mark.thorough
def test_a_run_asks_once_what_its_first_thousand_readings_are_suspected_of(pipeline, run):
    change(pipeline, ('["flow"]', '["flow", "entry"]'))
    doubtful(pipeline, 0, 2000)
    assert doubts(run(pipeline)) == [ENTRY.format(998)]
    doubtful(pipeline, 2000, 3500)
    assert doubts(run(pipeline)) == [], "it goes on from state, whose beginning was looked at"


@pytest.mark.thorough
def test_a_short_input_is_looked_at_when_it_ends_and_a_flag_is_no_doubt(pipeline, run):
    change(pipeline, ('["flow"]', '["flow", "entry"]'))
    doubtful(pipeline, 0, 200)
    assert doubts(run(pipeline, "--dry-run")) == [ENTRY.format(198)]
    change(pipeline, ('"entry"]', '"entry"]\nflags = ["entry"]'))
    assert doubts(run(pipeline, "--dry-run")) == []


# --------------------------------------------------------------------------- to the end of it
@pytest.mark.thorough
def test_a_run_ends_with_its_input_and_the_next_one_goes_on(pipeline, run):
    feed(pipeline, 0, 2000)
    first = run_apart(pipeline)
    assert first.returncode == 0, first.stderr
    assert "pump: done" in first.stdout
    assert len(verdicts(pipeline)) == 2000
    again = run(pipeline)
    assert "pump: nothing new" in again.stdout
    feed(pipeline, 2000, 3000)
    more = run(pipeline, "--output", "json")
    assert json.loads(more.stdout)["events"] == 1000
    offsets = [verdict.position.offset for verdict in verdicts(pipeline)]
    assert offsets == list(range(3000))
    for line in first.stderr.splitlines():
        assert set(json.loads(line)) >= {"ts", "level", "message"}


@pytest.mark.thorough
def test_a_run_in_pieces_gives_the_bytes_of_a_run_in_one(pipeline, run, tmp_path_factory):
    whole = tmp_path_factory.mktemp("whole")
    (whole / "pump.toml").write_text(CONFIG)
    feed(whole, 0, 3000)
    assert run(whole).returncode == 0
    for start in (0, 700, 1900):
        feed(pipeline, start, {0: 700, 700: 1900, 1900: 3000}[start])
        assert run(pipeline).returncode == 0
    for name in ("verdicts.jsonl", "review.jsonl", "deadletter.jsonl"):
        assert (pipeline / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.thorough
def test_verdicts_on_standard_output_are_alone_there(pipeline):
    feed(pipeline, 0, 500)
    change(pipeline, ("[detector]", '[output]\nverdicts = "-"\n[detector]'))
    shown = run_apart(pipeline)
    assert shown.returncode == 0, shown.stderr
    assert len([json.loads(line) for line in shown.stdout.splitlines()]) == 500
    assert "pump: done" in shown.stderr
    assert not (pipeline / ".rejex-pump").exists()


@pytest.mark.thorough
def test_standard_input_is_an_input(pipeline, run, monkeypatch):
    change(pipeline, ('path = "feed.csv"', 'path = "-"\nformat = "csv"'))
    feed(pipeline, 0, 400)
    with (pipeline / "feed.csv").open() as given:
        monkeypatch.setattr("sys.stdin", given)
        shown = run(pipeline, "--output", "json")
    assert json.loads(shown.stdout)["events"] == 400


# ----------------------------------------------------------------------------- to be refused
@pytest.mark.parametrize(("content", "status", "said"), [
    (None, 1, "feed.csv"), ("", 1, "is empty: expected a CSV header"),
    ("t,id,other\n1,a,2\n", 2, "column 'flow' is not in the header"),
])  # fmt: skip
def test_an_input_that_cannot_be_is_one_sentence(pipeline, run, content, status, said):
    if content is not None:
        (pipeline / "feed.csv").write_text(content)
    shown = run(pipeline)
    assert shown.returncode == status
    last = shown.stderr.splitlines()[-1]
    assert last.startswith("rejex-stream: ")
    assert said in last
    assert "Traceback" not in shown.stderr
    assert not shown.stdout


def test_an_empty_feed_of_json_is_done_at_once(pipeline, run):
    (pipeline / "feed.jsonl").write_bytes(b"")
    change(pipeline, ("feed.csv", "feed.jsonl"))
    shown = run(pipeline)
    assert shown.returncode == 0, shown.stderr
    assert "pump: nothing new" in shown.stdout


def test_a_feed_that_cannot_be_read_stops_the_run_and_says_why(pipeline, run):
    feed(pipeline, 0, 10)
    with (pipeline / "feed.csv").open("a") as file:
        file.writelines(f"{i},a,\x1b[31mhot\n" for i in range(3000))
    shown = run(pipeline)
    assert shown.returncode == 1
    assert "could not be read" in shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr


# ------------------------------------------------------------------------------- the rehearsal
@pytest.mark.thorough
def test_a_dry_run_writes_nothing_and_shows_the_mix_beside_the_expected_rate(pipeline, run):
    feed(pipeline, 0, 9000)
    before = sorted(path.name for path in pipeline.iterdir())
    shown = run(pipeline, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "nothing was written" in shown.stdout
    assert "expected in a full window" in shown.stdout
    assert sorted(path.name for path in pipeline.iterdir()) == before
    short = run(pipeline, "--dry-run", "--limit", "900", "--output", "json")
    found = json.loads(short.stdout)
    assert 900 <= found["events"] < 9000
    assert sorted(path.name for path in pipeline.iterdir()) == before


# ------------------------------------------------------------------------------ to be stopped
@pytest.mark.thorough
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_in_hand(pipeline, run, which):
    feed(pipeline, 0, 1500)
    change(pipeline, ('path = "feed.csv"', 'path = "feed.csv"\nfollow = true'))
    with running(pipeline) as process:
        until(lambda: len(verdicts(pipeline)) >= 1000)
        process.send_signal(which)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "pump: stopped; the next run goes on from here" in out
    assert "Traceback" not in err
    done = len(verdicts(pipeline))
    change(pipeline, ("follow = true", "follow = false"))
    feed(pipeline, 1500, 2000)
    more = run(pipeline, "--output", "json")
    assert json.loads(more.stdout)["events"] == 2000 - done
    assert [v.position.offset for v in verdicts(pipeline)] == list(range(2000))


@pytest.mark.thorough
def test_a_signal_is_heard_before_the_first_line_of_a_followed_file(pipeline):
    (pipeline / "feed.csv").touch()
    change(pipeline, ('path = "feed.csv"', 'path = "feed.csv"\nfollow = true'))
    with running(pipeline) as process:
        files = psutil.Process(process.pid).open_files
        until(lambda: str(pipeline / "feed.csv") in {file.path for file in files()})
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err


@pytest.mark.parametrize(("which", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_program_is_being_loaded_ends_it_without_a_word(pipeline, which, status):
    feed(pipeline, 0, 100)

    def was_early() -> bool:
        with running(pipeline) as process:
            here = Path("/proc", str(process.pid))
            until(lambda: catches(here, signal.SIGTERM))
            is_loaded = "numpy" in (here / "maps").read_text()
            process.send_signal(which)
            out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err
        return not is_loaded and (process.returncode, out, err) == (status, "", "")

    until(was_early, "a signal before all is loaded")  # a busy machine may be late once


def catches(process, which):
    (mask,) = re.findall(r"SigCgt:\s*(\w+)", (process / "status").read_text())
    return int(mask, 16) >> (which - 1) & 1


# ------------------------------------------------------------------------------ to be watched
@pytest.mark.thorough
def test_a_terminal_gets_a_bar_and_no_colour_where_none_is_wanted(pipeline):
    feed(pipeline, 0, 4000)
    mine, theirs = pty.openpty()
    terminal = environment(TERM="xterm-256color", NO_COLOR="1", COLUMNS="120")
    how = {"stdout": subprocess.DEVNULL, "stderr": theirs, "env": terminal}
    process = started(command("run", "pump.toml"), cwd=pipeline, **how)
    os.close(theirs)
    seen = b""
    try:
        while process.poll() is None or select.select([mine], [], [], 0.2)[0]:
            if select.select([mine], [], [], 0.2)[0]:
                try:
                    seen += os.read(mine, 65536)
                except OSError:
                    break
    finally:
        process.wait(timeout=PATIENCE_S)
        os.close(mine)
    text = seen.decode()
    assert process.returncode == 0
    assert "4,000" in text
    assert "events" in text
    assert "/s" in text
    assert "info: pump: reading feed.csv" in text
    colours = [codes for codes in re.findall(r"\x1b\[([0-9;]*)m", text) if codes not in ("", "0")]
    assert not [codes for codes in colours if re.search(r"(^|;)(3\d|9\d|38)", codes)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


@pytest.mark.thorough
def test_metrics_and_health_are_served_while_it_runs(pipeline):
    feed(pipeline, 0, 1000)
    port = free_port()
    change(pipeline, ('path = "feed.csv"', 'path = "feed.csv"\nfollow = true'))
    with running(pipeline, REJEX_METRICS__PORT=str(port)) as process:
        until(lambda: len(verdicts(pipeline)) == 1000)
        assert "ready" in get(f"http://127.0.0.1:{port}/readyz?verbose")
        metrics = get(f"http://127.0.0.1:{port}/metrics")
        counted = sum(
            float(line.rpartition(" ")[2])
            for line in metrics.splitlines()
            if line.startswith("rejex_events_total{")
        )
        assert counted == 1000
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


# -------------------------------------------------------------- what may change between two runs
def test_a_changed_tolerance_goes_on_and_says_from_where_it_holds(pipeline, run):
    feed(pipeline, 0, 1500)
    assert run(pipeline).returncode == 0
    before = (pipeline / "verdicts.jsonl").read_bytes()
    feed(pipeline, 1500, 2200)
    change(pipeline, ("tolerance = 4", "tolerance = 5"))
    shown = run(pipeline)
    assert shown.returncode == 0, shown.stderr
    (said,) = [line for line in shown.stderr.splitlines() if "another decision" in line]
    offset = json.loads(said)["message"].split("from offset ")[1].split()[0].replace(",", "")
    assert "(tolerance 4.0 -> 5.0)" in said
    after = (pipeline / "verdicts.jsonl").read_bytes()
    assert after.startswith(before)
    found = verdicts(pipeline)
    assert len({v.position for v in found}) == len(found) == 2200
    assert {v.tolerance for v in found[:1500]} == {None, 4.0}
    assert {v.tolerance for v in found[1500:]} == {5.0}
    assert found[1500].position.offset == int(offset)
    assert "another decision" not in run(pipeline).stderr


def test_a_changed_window_is_refused_by_name(pipeline, run):
    feed(pipeline, 0, 500)
    assert run(pipeline).returncode == 0
    change(pipeline, ("window = 200", "window = 300"))
    shown = run(pipeline)
    assert shown.returncode == 1
    assert "window 200 -> 300" in shown.stderr
    assert "begin again" in shown.stderr


@pytest.mark.thorough
def test_another_kind_of_processor_is_said_and_gone_on_with_or_refused(pipeline, run):
    blas = environment_of_scores()["blas"]
    if "openblas" not in blas or "Nehalem" in blas:
        pytest.skip(f"{blas} has no other kernel for this processor")
    feed(pipeline, 0, 800)
    assert run(pipeline).returncode == 0
    feed(pipeline, 800, 1200)
    older = {"OPENBLAS_CORETYPE": "Nehalem"}
    refused = run_apart(pipeline, REJEX_STATE__ENVIRONMENT="refuse", **older)
    assert refused.returncode == 1
    assert "-> openblas Nehalem" in refused.stderr
    assert 'state.environment = "accept"' in refused.stderr
    assert len(verdicts(pipeline)) == 800
    shown = run_apart(pipeline, **older)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count("-> openblas Nehalem") == 1
    assert len({v.position for v in verdicts(pipeline)}) == 1200
    assert "Nehalem" not in run_apart(pipeline, **older).stderr, "it is the snapshot's own now"


@pytest.mark.parametrize("name", ['flow "north"', "fl\\ow", "{flow}", "flow'"])
def test_a_channel_may_be_called_anything(pipeline, run, name):
    """A double quote in it ended the run with "unexpected ValueError"."""
    change(pipeline, ('channels = ["flow"]', f"channels = [{json.dumps(name)}]"))
    feed(pipeline, 0, 600)
    text = (pipeline / "feed.csv").read_text()
    cell = '"' + name.replace('"', '""') + '"'
    (pipeline / "feed.csv").write_text(text.replace("flow", cell, 1))
    shown = run(pipeline)
    assert shown.returncode == 0, shown.stderr
    assert len(verdicts(pipeline)) == 600


# ------------------------------------------------------------------------------------- the end
@pytest.mark.thorough
def test_an_end_that_takes_too_long_is_cut_short_and_said():
    program = """
import threading
from rejex_stream.cli.commands.run_pipeline import stopping
stuck = threading.Lock()
stuck.acquire()
with stopping(threading.Event()):
    print("running", flush=True)
    stuck.acquire()
"""
    with started([sys.executable, "-c", program]) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=PATIENCE_S / 2)
    assert process.returncode == 0
    assert "goes on from what is durable" in told


@pytest.mark.thorough
def test_a_start_without_a_broker_goes_on_trying_and_says_so(tmp_path, run):
    config = tmp_path / "pump.toml"
    config.write_text(
        pipeline_without_a_broker := f"""
[pipeline]
name = "pump"
[input]
kind = "kafka"
topics = ["in"]
channels = ["flow"]
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 4
window = 200
[kafka]
bootstrap_servers = "127.0.0.1:{free_port()}"
client = "kafka-python"
options = {{ "delivery.timeout.ms" = 2000 }}
"""
    )
    told = []
    with running(tmp_path) as process:
        for line in process.stderr:
            told.append(line)
            if "attempt 2 failed" in line:
                process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, told
    assert any("attempt 1 failed" in line for line in told)
    config.write_text(pipeline_without_a_broker + "[run]\nretry_for_s = 0\n")
    shown = run(tmp_path)
    assert shown.returncode == 1
    assert "gave up after 1 attempts" in shown.stderr


def test_a_replay_tells_of_itself_now_and_then_in_one_line(caplog, monkeypatch):
    """Of each partition a line came twice a second."""
    caplog.set_level("INFO")
    display = RunDisplay(lambda done, fraction=None: None)
    replays = {Partition("in", n): Replay(10, 30, 110) for n in range(4)}
    seen = Progress(0, 0, 1.0, 0, replays)
    for _ in range(100):
        display.progress(seen)
    assert not caplog.messages
    monkeypatch.setattr(run_pipeline, "QUIET_S", 0.0)
    display.progress(seen)
    assert caplog.messages == ["replaying in 4 partition(s): 80 of 400"]
    display.progress(seen._replace(replays={}))
    assert len(caplog.messages) == 1


def test_nothing_that_a_run_makes_is_for_others_to_read(tmp_path, monkeypatch):
    """Readings, names of sensors and state were 0644."""
    feed(tmp_path, 0, 300)
    (tmp_path / "pump.toml").write_text(pump_toml())
    monkeypatch.chdir(tmp_path)
    made_by_us = {path.name for path in tmp_path.iterdir()}
    umask = os.umask(0)
    try:
        assert main(["run", "pump.toml"]) == 0
    finally:
        os.umask(umask)
    made = [path for path in tmp_path.rglob("*") if path.name not in made_by_us]
    assert len(made) > 5
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_an_input_that_is_read_to_its_end_is_not_called_done(caplog, monkeypatch):
    """A full disk: 264 events (100%, 0 s left) of 1,500."""
    monkeypatch.setattr("rejex_stream.cli.bars.QUIET_S", 0.0)
    caplog.set_level("INFO", "rejex_stream")
    lines = bars._Lines(None, "events")
    lines(264, 1.0)
    lines(100, 0.5)
    assert caplog.messages[0].startswith("264 events (the input is read to its end), ")
    assert caplog.messages[1].startswith("100 events (50% of the input, ")
