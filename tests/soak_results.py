"""What the long trials found: each writes its row into `benchmarks/results/soak.md`."""

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

__all__ = ["record"]

_HEAD = """# Long trials

Each row is written by its trial, a test of `make soak`; a trial that fails writes nothing.

| trial | size | what was done to it | outcome | versions | command |
|---|---|---|---|---|---|
"""
_SHOWN = ("rejex-stream", "kafka-python", "confluent-kafka", "numpy")


def record(
    trial: str, *, size: str, done_to_it: str, outcome: str, versions: str = "", marks: str = "",
) -> None:  # fmt: skip
    """Write the row of a trial over the one before; where `REJEX_SOAK_RESULTS` names the file.

    One that is no long trial says which `marks` call it.
    """
    named = os.environ.get("REJEX_SOAK_RESULTS")
    if not named:
        return
    path = Path(named)
    rows = {}
    if path.exists():
        lines = path.read_text().splitlines()
        rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| `")}
    file, name = os.environ["PYTEST_CURRENT_TEST"].split(" ")[0].split("::")
    chosen = f"{file} -k {name.partition('[')[0]}" + f" -m {marks}" * bool(marks)
    command = f"`make soak PYTEST_ARGS='{chosen}'`"
    cells = (f"`{trial}`", size, done_to_it, outcome, _versions() + versions, command)
    rows[f"| `{trial}`"] = f"| {' | '.join(cells)} |"
    path.write_text(_HEAD + "\n".join(rows[key] for key in sorted(rows)) + "\n")


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in _SHOWN:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)
