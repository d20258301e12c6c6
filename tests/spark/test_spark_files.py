"""A job on Spark writes what `run` writes, byte for byte, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from rejex_connectors.files.sink import lines_of
from rejex_connectors.files.source import append_line
from rejex_connectors.folder_snapshots import FolderSnapshotStore

from rejex_stream.config import load_config
from rejex_stream.config.assembly import Judging, file_decoder, file_places, open_source, records_of
from tests.operate.alerting import Receiver, events_taken
from tests.test_cli_run import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]

OUTPUTS = ("verdicts.jsonl", "review.jsonl", "deadletter.jsonl", "incidents.jsonl")
CONFIG = """
[pipeline]
name = "pumps"
[input]
path = "{feed}"
time = "t"
time_unit = "ms"
sensor = "id"
channels = ["flow", "pressure"]
[detector]
name = "HBOS"
[rejection]
contamination = 0.03
window = 300
review_budget = {{ rate = 0.04 }}
[hold]
{hold}
[refit]
refit_every_events = 400
[output]
verdicts = "{folder}/verdicts.jsonl"
audit_rate = 0.01
{more}
"""


@pytest.fixture(autouse=True)
def spark_is_here() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        if os.environ.get("REJEX_REQUIRE_SPARK"):
            raise
        pytest.skip("Apache Spark is not installed (extra `spark`); `make test-spark` runs this")


def feed(path: Path, sensors: int, n: int) -> Path:
    """Sensors in turns; one has a fault that lasts, and some rows are nonsense."""
    rng = random.Random(7)
    with path.open("w") as file:
        file.write("t,id,flow,pressure\n")
        for i in range(n):
            name, at = i % sensors, 1_700_000_000_000 + i // sensors * 60_000
            if i % 997 == 500:
                file.write("nonsense,s1\n")
                continue
            fault = 15 if rng.random() < 0.01 or (name == 0 and i > n * 0.7) else 0
            flow, pressure = rng.gauss(10, 1) + fault, rng.gauss(3, 0.2)
            file.write(f"{at},s{name},{flow:.3f},{pressure:.3f}\n")
    return path


def config(folder: Path, source: Path, **more: str) -> Path:
    folder.mkdir()
    path = folder / "pumps.toml"
    more = {"hold": "adopt_after_events = 0", "more": ""} | more
    path.write_text(CONFIG.format(feed=source, folder=folder, **more))
    return path


def program(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rejex_stream", *map(str, arguments)]


def on_spark(path: Path, master: str = "local[2]", *more: str) -> list[str]:
    return program("spark", path, "--master", master, "--batch-events", "1500",
                   "--shuffle-partitions", "3", *more)  # fmt: skip


def same(one: Path, other: Path) -> None:
    for name in OUTPUTS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def batches(folder: Path) -> int:
    return len(list((folder / ".rejex-pumps" / "spark" / "streams" / "commits").glob("[0-9]*")))


def kill_all(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


WATCHED = """
[alerts]
webhook_url = "{url}"
[metrics]
port = {port}
[state]
snapshot_interval_s = 0.01
"""


@pytest.fixture
def receivers():
    journal = Receiver(), Receiver()
    yield journal
    for one in journal:
        one.close()


def judged_by_now(port: int) -> float:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S
        ) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0
    return sum(float(line.split()[-1]) for line in lines if line.startswith("rejex_events_total{"))


def test_a_job_that_is_killed_and_goes_on_writes_and_tells_what_run_does(tmp_path, receivers):
    source = feed(tmp_path / "feed.csv", sensors=5, n=12_000)
    of_run, of_spark = (WATCHED.format(url=one.url, port=free_port()) for one in receivers)
    subprocess.run(program("run", config(tmp_path / "run", source, more=of_run)), check=True)
    path = config(tmp_path / "spark", source, more=of_spark)
    port = load_config(path).metrics.port
    first = subprocess.Popen(on_spark(path))
    try:
        until(lambda: first.poll() is not None or batches(tmp_path / "spark") >= 2, timeout_s=900)
        assert first.poll() is None, "it was done before it could be killed"
        until(lambda: judged_by_now(port) > 2_900, "figures of two micro-batches")
    finally:
        kill_all(first)
    done = batches(tmp_path / "spark")
    assert 2 <= done < 8
    # What is written and not noted by Spark is repeated: the worst moment for a kill.
    commits = tmp_path / "spark" / ".rejex-pumps" / "spark" / "streams" / "commits"
    for name in (f"{done - 1}", f".{done - 1}.crc"):
        (commits / name).unlink(missing_ok=True)
    subprocess.run(on_spark(path), check=True)
    same(tmp_path / "run", tmp_path / "spark")
    by_run, by_spark = (events_taken(one) for one in receivers)
    assert by_spark == by_run, "monitors that had begun again would raise one again"
    assert {kind for kind, _ in by_spark} == {"alarm", "incident"}
    assert (tmp_path / "spark" / "deadletter.jsonl").stat().st_size
    assert (tmp_path / "spark" / "incidents.jsonl").stat().st_size


def said_to(folder: Path, i: int, **what: object) -> None:
    command = {"id": f"c-{i}", "kind": "planned", "by": "ada", **what}
    append_line(folder / "control.jsonl", json.dumps(command).encode())


def by_one(path: Path) -> dict[str, bytes]:
    """What one process makes of the whole file, and of what was decided meanwhile."""
    config = load_config(path)
    places, source = file_places(config), open_source(config)
    state = Judging(config).state(
        source.partition, file_decoder(config, source), [source.partition.topic]
    )
    kept = FolderSnapshotStore(places.state).load_journal(source.partition)
    assert kept is not None
    state.load_journal(kept, decided_until=0)
    state.journal.rewind_to(0, allow_gaps=False)
    found = dict.fromkeys(OUTPUTS, b"")
    for role, line in lines_of(state.process(list(records_of(source)))):
        found[f"{role}.jsonl"] += line + b"\n"
    return found


def test_each_goes_on_where_the_other_stopped_and_people_are_heard_by_both(tmp_path):
    lines = feed(tmp_path / "feed.csv", sensors=3, n=4_500).read_bytes().splitlines(keepends=True)
    folder = tmp_path / "grows"
    path = config(folder, folder / "feed.csv")
    minute = 1_700_000_000_000
    for i, (begin, end, command) in enumerate((
        (0, 1_501, program("run", path)), (1_501, 3_751, on_spark(path, "local[2]", "--control")),
        (3_751, 4_501, program("run", path)),
    )):  # fmt: skip
        with (folder / "feed.csv").open("ab") as file:
            file.writelines(lines[begin:end])
        at = minute + (i * 500 + 600) * 60_000
        said_to(folder, i, from_ms=at, until_ms=at + 50 * 60_000)
        subprocess.run(command, check=True)
    expected = by_one(path)
    for name in OUTPUTS:
        assert (folder / name).read_bytes() == expected[name], name
    assert expected["incidents.jsonl"].count(b'"command":"c-') == 3
    assert b'"planned":true' in expected["verdicts.jsonl"]


def test_commands_of_people_are_refused_before_anything_is_written(tmp_path):
    path = config(tmp_path / "spark", feed(tmp_path / "feed.csv", sensors=1, n=10))
    (tmp_path / "spark" / "control.jsonl").write_text('{"id": "c-1"}\n')
    done = subprocess.run(on_spark(path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        "control.jsonl holds commands of people, which are heard on Spark with --control"
        in done.stderr
    )
    assert not (tmp_path / "spark" / "verdicts.jsonl").exists()


def test_modes_of_a_sensor_have_the_references_that_a_worker_gives_them(tmp_path):
    header, *rows = feed(tmp_path / "plain.csv", sensors=2, n=3_000).read_text().splitlines()
    source = tmp_path / "feed.csv"
    modes = [f"{row},{('idle', 'load')[i // 500 % 2]}" for i, row in enumerate(rows)]
    source.write_text("\n".join([f"{header},mode", *modes, ""]))
    for name, command in (("run", lambda path: program("run", path)), ("spark", on_spark)):
        path = config(tmp_path / name, source)
        path.write_text(path.read_text().replace('sensor = "id"', 'sensor = "id"\nmode = "mode"'))
        subprocess.run(command(path), check=True)
    same(tmp_path / "run", tmp_path / "spark")
    assert b'"mode":"load"' in (tmp_path / "spark" / "verdicts.jsonl").read_bytes()


@pytest.mark.parametrize("order", ["", "reorder_s = 90\n"])
def test_readings_that_a_program_makes_of_records_are_those_of_a_worker(tmp_path, order):
    _, *rows = feed(tmp_path / "plain.csv", sensors=3, n=6_000).read_text().splitlines()
    lines = []
    for start in range(0, len(rows), 8):
        cells = [row.split(",") for row in rows[start : start + 8]]
        readings = [
            {"t": int(c[0]), "id": c[1], "flow": float(c[2]), "pressure": float(c[3])}
            if len(c) == 4
            else {"t": "nonsense", "id": "s1"}
            for c in cells
        ]
        lines.append(json.dumps({"unit": "u1", "readings": readings}))
        lines += ['{"heartbeat": 1}', '{"readings": 5}'] if start % 1600 == 0 else []
    source = tmp_path / "feed.jsonl"
    source.write_text("\n".join([*lines, ""]))
    program_of_jq = 'sensor = "id"\nselect = "if .readings then .readings[] else empty end"'
    program_of_jq = order + program_of_jq
    for name, command in (("run", lambda path: program("run", path)), ("spark", on_spark)):
        path = config(tmp_path / name, source)
        path.write_text(path.read_text().replace('sensor = "id"', program_of_jq))
        subprocess.run([*command(path), *(["--batch-events", "170"] * (name == "spark"))],
                       check=True)  # fmt: skip
    same(tmp_path / "run", tmp_path / "spark")
    verdicts = (tmp_path / "spark" / "verdicts.jsonl").read_bytes()
    waiting = 6 if order else 0  # the last two of each sensor
    assert verdicts.count(b"\n") == 6_000 - 6 - waiting
    letters = (tmp_path / "spark" / "deadletter.jsonl").read_text().splitlines()
    assert len(letters) == 6 + 4
    assert sum("program of input.select fails" in letter for letter in letters) == 4
    # A reading that is none comes with the whole record, as a worker's does.
    whole = [letter for letter in map(json.loads, letters) if "nonsense" in letter["reason"]]
    assert len(whole) == 6
    assert all("u1" in letter["value_text"] for letter in whole)


ALONE = "[hold]"
TOGETHER = "[state]\nforget_after = 3600\n[hold]"
