"""Run what is missing, small streams first; can be killed and resumed at any time."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.paper import rows
from benchmarks.streams import rivals
from benchmarks.streams.evaluate import evaluate, evaluate_score, trivial_scores
from benchmarks.streams.prequential import CONTAMINATION, DETECTORS, RATE, said
from benchmarks.streams.sources import Stream, capped, find, load

__all__ = ["TEST", "TRAIN", "TRIVIAL", "run"]


TRAIN, TEST = 4000, 16_000
"""Newest rows of a warm-up, and rows after it, that a stream is cut to."""
QUICK = 3
TRIVIAL = ("random", "|Δx|", "max |z|")
"""Scores that need no detector, in the order of the report."""


def run(
    data: Path,
    out: Path,
    sources: list[str] | None = None,
    detectors: list[str] | None = None,
    *,
    rows_each: int = TEST,
    quick: bool = False,
) -> None:
    """Append a row for every (stream, detector) that has none yet.

    `rows_each` cuts streams after so many evaluated rows; `quick` takes the three smallest of a
    source.
    """
    paths = [path for path in find(data) if sources is None or path.parent.name in sources]
    if quick:
        taken: Counter[str] = Counter()
        paths = [p for p in paths if taken.update([p.parent.name]) or taken[p.parent.name] <= QUICK]
    if not paths:
        raise SystemExit(f"{data} holds no <source>/<stream>.csv.gz: give the folder that does.")
    everybody = (*DETECTORS, *TRIVIAL, *rivals.NAMES)
    for name in detectors or ():
        if name not in everybody:
            raise SystemExit(f"There is no detector {name!r}: use {', '.join(everybody)}.")
        if name in rivals.NAMES and (why := rivals.able(name)) is not None:
            raise SystemExit(f"{name} cannot run here: {why}.")
    wanted = detectors or [d for d in everybody if d not in rivals.NAMES or rivals.able(d) is None]
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, rows_each)
    file = out / "rows.jsonl"
    done = {(dataset, detector) for dataset, detector, _, _ in rows.keys(rows.read(file))}
    work = [(path, [d for d in wanted if (_key(path), d) not in done]) for path in paths]
    work = [(path, missing) for path, missing in work if missing]
    total = sum(path.stat().st_size * len(missing) for path, missing in work)
    print(f"{len(paths) - len(work)} of {len(paths)} streams are there.", flush=True)
    started, finished = time.monotonic(), 0.0
    for number, (path, missing) in enumerate(work, 1):
        stream = capped(load(path), TRAIN, rows_each)
        for detector in missing:
            rows.append(file, _row(path, stream, detector, out / "cache"))
        finished += path.stat().st_size * len(missing)
        spent = time.monotonic() - started
        eta = spent * (total - finished) / finished
        print(
            f"[{'#' * round(30 * finished / total):<30}] {number}/{len(work)} streams  "
            f"{_key(path)}  {spent / 60:.1f} min, about {eta / 60:.0f} min to go",
            flush=True,
        )


def _row(path: Path, stream: Stream, detector: str, cache: Path) -> dict[str, Any]:
    ours = detector in DETECTORS
    row: dict[str, Any] = {
        "dataset": _key(path),
        "source": stream.source,
        "detector": detector,
        "fold": 0,
        "method": "engine" if ours else "score",
        "warm_up": stream.warm_up,
        "channels": len(stream.channels),
        "interval_s": stream.interval_s,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if ours:
                return row | evaluate(stream, said(stream, detector, cache))
            if detector in TRIVIAL:
                return row | evaluate_score(stream, trivial_scores(stream)[detector])
            return row | evaluate_score(stream, rivals.score_of(stream, detector, cache))
    except Exception as error:  # one stream must not end the run
        traceback.print_exc(file=sys.stderr)
        return row | {"absent": f"{type(error).__name__}: {error}"}


def _claim(out: Path, rows_each: int) -> None:
    """Write what made the rows of a folder, or refuse to put others beside them."""
    packages = ("numpy", "scipy", "scikit-learn", "pyod", "river")
    setup = {
        "code": _digest(),
        "evaluated rows": rows_each,
        "contamination": CONTAMINATION,
        "rate": RATE,
        "versions": {name: importlib.metadata.version(name) for name in packages}
        | rivals.versions(),
        "python": platform.python_version(),
    }
    path = out / "setup.json"
    if not path.exists():
        path.write_text(json.dumps(setup, indent=1) + "\n", "utf-8")
        return
    there = json.loads(path.read_text("utf-8"))
    other = [key for key in setup if there.get(key) != setup[key]]
    if other:
        raise SystemExit(
            f"{out} holds rows made with another {', '.join(other)}: give another --out, so that "
            "no report mixes them."
        )


def _digest() -> str:
    """Return what tells one state of the code from another: a hash of all that decides a row."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in ("types.py", "features", "detectors", "rejection", "incidents", "engine"):
        place = root / "rejex_stream" / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    for name in ("evaluate", "events", "prequential", "rivals", "sources", "vus"):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def _key(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.csv.gz')}"
