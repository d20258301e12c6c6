"""What all benchmarks share: pairing, medians, the machine and its versions, result files."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "pyod",
    "river",
    "sortedcontainers",
    "pysad",
    "msgspec",
)


def machine() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def printed() -> str:
    """Return the day, and the commit that is checked out."""
    asked = ("git", "log", "-1", "--format=%h")
    done = subprocess.run(asked, cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    return f"{datetime.now(UTC):%Y-%m-%d} by {done.stdout.strip()}"


def cpu_seconds(run: Callable[[], object]) -> float:
    """Return the processor time of one call: what the code costs on a shared machine."""
    start = time.process_time()
    run()
    return time.process_time() - start


def paired(runs: Mapping[K, Callable[[], object]], repeats: int = 7) -> dict[K, list[float]]:
    """Time several calls in turn, A B C A B C, so that all meet the same weather."""
    for run in runs.values():
        run()
    taken: dict[K, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            taken[name].append(cpu_seconds(run))
    return taken


def ratio(over: list[float], under: list[float]) -> float:
    """Return the median of the pairwise ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def write(
    name: str,
    title: str,
    tables: list[tuple[str, list[str], list[list[Any]]]],
    *,
    versions: dict[str, str] | None = None,
    note: str = "Processor time, medians; trust the ratios.",
) -> None:
    """Write ``results/name.json`` and ``.md``, and print the latter."""
    RESULTS.mkdir(exist_ok=True)
    about = machine()
    about["versions"] = versions or about["versions"]
    data = {
        "title": title,
        "printed": printed(),
        "machine": about,
        "tables": [
            {"caption": caption, "columns": columns, "rows": rows}
            for caption, columns, rows in tables
        ],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    lines = [f"# {title}", ""]
    named = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    lines += [
        f"{about['cpu']}, {about['cores']} cores, load {about['load_1min']}, "
        f"Python {about['python']}, {named}. Printed {data['printed']}. {note}"
    ]
    for caption, columns, rows in tables:
        lines += ["", caption, "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
