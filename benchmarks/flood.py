"""A flood of sensor names through the real program: its memory, its stalls, and how it ends.

python -m benchmarks.flood [--names 300000]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep

import psutil

from benchmarks.harness import write

REAL, EVERY = 50, 10
"""So many sensors that stay, of which one speaks after so many names of the flood."""
CONFIG = """
[pipeline]
name = "flood"
[input]
path = "in.jsonl"
follow = true
channels = ["a", "b"]
time = "t"
sensor = "id"
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 4
window = 200
[state]
"""
LIMITS = (
    ("max_keys = 5000", "max_keys = 5000\n"),
    ("forget_after = 60 s (about 6,000 names)", "forget_after = 60\n"),
)


def lines(names: int) -> Iterator[str]:
    """Yield the records: a hundred new names a second, and those that stay."""
    for i in range(names):
        body = {"t": 1_700_000_000_000 + 10 * i, "a": i * 7919 % 101, "b": i * 104729 % 97}
        if i % EVERY == 0:  # first, so that those that stay are known before the flood
            yield json.dumps({"id": f"pump-{i // EVERY % REAL}", **body}) + "\n"
        yield json.dumps({"id": f"flood-{i}", **body}) + "\n"


def flooded(names: int, limits: str) -> list[object]:
    """Run to the end of the flood, ask for its end, and return what it took."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with (folder / "in.jsonl").open("w") as file:
            file.writelines(lines(names))
        (folder / "flood.toml").write_text(CONFIG + limits)
        total, most, longest, at = names + -(-names // EVERY), 0, 0.0, 0
        command = [sys.executable, "-m", "rejex_stream", "run", "flood.toml"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=folder, **quiet) as process:  # type: ignore[call-overload]
            seen = psutil.Process(process.pid)
            began = moved = perf_counter()
            while at < total and process.poll() is None:
                sleep(0.1)
                most = max(most, seen.memory_info().rss)
                with suppress(OSError, ValueError):
                    commit = json.loads((folder / ".rejex-flood" / "commit.json").read_text())
                    ((_, _, now),) = commit["next_offsets"]
                    if now != at:
                        longest = max(longest, perf_counter() - moved) if at else 0.0
                        at, moved = now, perf_counter()
            took, asked = perf_counter() - began, perf_counter()
            used = sum(seen.cpu_times()[:2])
            process.send_signal(signal.SIGTERM)
            process.wait()
            ended = perf_counter() - asked
        stored = sum(path.stat().st_size for path in (folder / ".rejex-flood").iterdir())
    return [names, took, 1e6 * used / total, longest, most / 1e6, stored / 1e6, ended]


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", type=int, default=300_000)
    given = parser.parse_args()
    rows = [[what, *flooded(given.names, limits)] for what, limits in LIMITS]
    write(
        "flood",
        "A flood of sensor names",
        [
            (
                "",
                [
                    "limit",
                    "names",
                    "s",
                    "CPU µs an event",
                    "longest without a commit s",
                    "most memory MB",
                    "state MB",
                    "SIGTERM s",
                ],
                rows,
            )
        ],
        note=f"Each name once, a hundred a second of event time, and {REAL} sensors that stay; the "
        "whole program over a file, HBOS, window 200, with its monitors and snapshots.",
    )


if __name__ == "__main__":
    main()
