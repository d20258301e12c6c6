"""A job on Spark writes what `run` writes, byte for byte, whatever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

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
    path.write_text(CONFIG.format(feed=source, folder=folder, hold=more.get("hold", "")))
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
    """How many micro-batches Spark holds for done."""
    return len(list((folder / ".rejex-pumps" / "spark" / "commits").glob("[0-9]*")))


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver and all that it started, at once."""
    if process.poll() is not None:
        return
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


def test_a_job_that_is_killed_and_goes_on_writes_what_run_writes(tmp_path):
    source = feed(tmp_path / "feed.csv", sensors=5, n=12_000)
    subprocess.run(program("run", config(tmp_path / "run", source)), check=True)
    path = config(tmp_path / "spark", source)
    first = subprocess.Popen(on_spark(path))
    try:
        until(lambda: first.poll() is not None or batches(tmp_path / "spark") >= 2, timeout_s=900)
        assert first.poll() is None, "it was done before it could be killed"
    finally:
        kill_all(first)
    done = batches(tmp_path / "spark")
    assert 2 <= done < 8
    # What is written and not noted by Spark is repeated: the worst moment for a kill.
    commits = tmp_path / "spark" / ".rejex-pumps" / "spark" / "commits"
    for name in (f"{done - 1}", f".{done - 1}.crc"):
        (commits / name).unlink(missing_ok=True)
    subprocess.run(on_spark(path), check=True)
    same(tmp_path / "run", tmp_path / "spark")
    assert (tmp_path / "spark" / "deadletter.jsonl").stat().st_size
    assert (tmp_path / "spark" / "incidents.jsonl").stat().st_size
