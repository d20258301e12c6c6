"""Run what is missing, small streams first; can be killed and resumed at any time."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from benchmarks.paper import rows
from benchmarks.streams.evaluate import evaluate
from benchmarks.streams.prequential import DETECTORS, said
from benchmarks.streams.sources import find, load

__all__ = ["run"]


def run(
    data: Path, out: Path, sources: list[str] | None = None, detectors: list[str] | None = None
) -> None:
    """Append a row for every (stream, detector) that has none yet."""
    paths = [path for path in find(data) if sources is None or path.parent.name in sources]
    if not paths:
        raise SystemExit(f"{data} holds no <source>/<stream>.csv.gz: give the folder that does.")
    for name in detectors or ():
        if name not in DETECTORS:
            raise SystemExit(f"There is no detector {name!r}: use {', '.join(DETECTORS)}.")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "rows.jsonl"
    done = rows.keys(rows.read(file))
    work = [
        (path, [d for d in detectors or DETECTORS if (_key(path), d, 0, "engine") not in done])
        for path in paths
    ]
    work = [(path, missing) for path, missing in work if missing]
    total = sum(path.stat().st_size * len(missing) for path, missing in work)
    print(f"{len(paths) - len(work)} of {len(paths)} streams are there.", flush=True)
    started, finished = time.monotonic(), 0.0
    for number, (path, missing) in enumerate(work, 1):
        stream = load(path)
        for detector in missing:
            row: dict[str, Any] = {
                "dataset": _key(path),
                "source": stream.source,
                "detector": detector,
                "fold": 0,
                "method": "engine",
                "warm_up": stream.warm_up,
                "channels": len(stream.channels),
                "interval_s": stream.interval_s,
            }
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    row |= evaluate(stream, said(stream, detector, out / "cache"))
            except Exception as error:  # one stream must not end the run
                traceback.print_exc(file=sys.stderr)
                row["absent"] = f"{type(error).__name__}: {error}"
            rows.append(file, row)
        finished += path.stat().st_size * len(missing)
        spent = time.monotonic() - started
        eta = spent * (total - finished) / finished
        print(
            f"[{'#' * round(30 * finished / total):<30}] {number}/{len(work)} streams  "
            f"{_key(path)}  {spent / 60:.1f} min, about {eta / 60:.0f} min to go",
            flush=True,
        )


def _key(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.csv.gz')}"
