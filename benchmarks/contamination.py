"""Whether the interval for γ covers the true share of anomalies, which it never sees.

python -m benchmarks.contamination --data FOLDER [--out ROWS] [--each N]

Somewhere below FOLDER lie ADBench's tables (``*.npz``) and labelled streams
(``<source>/<stream>.csv.gz``); of either there may be none. Tables are used as the RejEx paper used
them (``benchmarks/paper``), streams as `plan --from` would: labelled part, columns of the default
detector. ROWS is a file that a killed run goes on from. Hyperparameters are those of the γGMM
paper and the criteria for "cannot tell" were written down before the first run: no median and no
posterior was chosen by a label. The interval that users are told goes by how wrong the medians of
the tables were (`rejex_stream.plan.gamma.WRONG_BY`, printed here); a table is held against the
others, and the streams have no part in it.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from benchmarks.harness import write  # noqa: E402
from benchmarks.paper import data as tables  # noqa: E402
from benchmarks.paper import rows as rows_file  # noqa: E402
from benchmarks.streams import sources  # noqa: E402
from rejex_stream.detectors import DEFAULT, make_detector  # noqa: E402
from rejex_stream.features import FeatureSpec  # noqa: E402
from rejex_stream.plan.gamma import (  # noqa: E402
    HIGH,
    MOST,
    WRONG_BY,
    Contamination,
    contamination,
    rows_of,
)
from rejex_stream.rejection.policy import CONTAMINATION  # noqa: E402
from rejex_stream.types import FloatArray, Position, Reading  # noqa: E402

__all__ = ["main", "tables_of"]

LEVEL, AIM = 0.9, 0.8
TABLES = "ADBench"
CARRY = 10
CLASSES = ((0.0, HIGH), (HIGH, MOST), (MOST, 1.0))
Row = dict[str, Any]


def table_rows(path: Path) -> tuple[FloatArray, float]:
    """Return the rows of an ADBench table, and its share of anomalies."""
    table = tables.load(path)
    return table.X, table.gamma


def stream_rows(path: Path) -> tuple[FloatArray, float]:
    """Return rows of the labelled part of a stream, and its share of anomalies."""
    stream = sources.load(path)
    known = stream.y >= 0
    preset = getattr(make_detector(DEFAULT), "preset", None)
    features = FeatureSpec(stream.channels, preset=preset, carry_forward_events=CARRY)
    times, values = stream.times_ms[known].tolist(), stream.X[known].tolist()
    readings = (
        Reading(path.stem, path.stem, at, tuple(row), Position(path.stem, 0, i))
        for i, (at, row) in enumerate(zip(times, values, strict=True))
    )
    return rows_of(readings, features)[0], float(stream.y[known].mean())


def sets(
    folder: Path, each: int | None = None
) -> Iterator[tuple[str, str, Callable[[], tuple[FloatArray, float]]]]:
    """Yield source, name, and what loads it; one of each source, then the next of each.

    With `each`, so many streams of a source, small ones first.
    """
    found = {TABLES: sorted(tables.available(folder).values(), key=_size)}
    for path in sorted(folder.rglob("*.csv.gz"), key=_size):
        if len(found.setdefault(path.parent.name, [])) != each:
            found[path.parent.name].append(path)
    yield from ((TABLES, path.stem, lambda p=path: table_rows(p)) for path in found.pop(TABLES))
    for turn in range(max(map(len, found.values()), default=0)):
        for source, paths in found.items():
            if turn < len(paths):
                path = paths[turn]
                name = path.name.removesuffix(".csv.gz")
                yield source, name, lambda p=path: stream_rows(p)


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, str(path)


def run(folder: Path, file: Path, each: int | None = None) -> list[Row]:
    """Ask for γ of every set that has no row yet."""
    done = {row["dataset"] for row in rows_file.read(file)}
    for source, name, load in sets(folder, each):
        key = f"{source}/{name}"
        if key in done:
            continue
        X, gamma = load()
        started = time.process_time()
        said = contamination(X, level=LEVEL)
        row = as_row(source, key, gamma, said) | {"cpu_s": time.process_time() - started}
        rows_file.append(file, row)
        print(key, row["true"], said, file=sys.stderr, flush=True)
    return rows_file.read(file)


def as_row(source: str, key: str, gamma: float, said: Contamination) -> Row:
    """Return what is kept of one set."""
    return {
        "dataset": key, "detector": "", "fold": 0, "method": "γGMM",
        "source": source, "true": gamma, "rows": said.rows, "agreement": said.agreement,
        "median": said.median, "low": said.low, "high": said.high, "refusal": said.refusal,
    }  # fmt: skip


def covers(row: Row) -> bool:
    """Whether γ lies in the interval."""
    return bool(row["low"] <= row["true"] <= row["high"])


def told_to_users(rows: list[Row]) -> tuple[str, list[str], list[list[Any]]]:
    """Return how often the interval over data sets covers: a table by the others' errors."""

    def logit(share: float) -> float:
        return math.log(share / (1 - share)) if share else -math.inf

    told = [r for r in rows if r["refusal"] is None]
    wrong = {r["dataset"]: logit(r["true"]) - logit(r["median"]) for r in told}
    known = {r["dataset"] for r in told if r["source"] == TABLES}

    def line(name: str, part: list[Row]) -> list[Any]:
        hits, widths = [], []
        for row in part:
            others = [wrong[one] for one in known - {row["dataset"]}]
            own = (min(others), max(others)) if row["dataset"] in known else WRONG_BY
            low, high = (1 / (1 + math.exp(-logit(row["median"]) - by)) for by in own)
            hits.append(low <= row["true"] <= high)
            widths.append(high - low)
        share = f"{np.mean(hits):.0%}"
        return [name, len(part), sum(hits), share, float(np.mean(widths))]

    groups = {"tables (ADBench), each by the others": [r for r in told if r["source"] == TABLES]}
    groups["streams, by all tables"] = [r for r in told if r["source"] != TABLES]
    for source in sorted({r["source"] for r in told} - {TABLES}):
        groups[source] = [r for r in told if r["source"] == source]
    seen = [wrong[one] for one in known]
    errors = f"{min(seen):.3g} to {max(seen):.3g}" if seen else "none"
    return (
        "The interval that users are told: the median, as wrong as it was in the tables. "
        f"logit(γ) - logit(median) of {len(seen)} tables: {errors}; in the product "
        f"{WRONG_BY[0]} to {WRONG_BY[1]}.",
        ["sets", "told", "covered", "share covered", "width of the interval"],
        [line(name, part) for name, part in groups.items() if part and len(known) > 1],
    )


def tables_of(rows: list[Row]) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Return the tables of the result."""
    groups = {
        "tables (ADBench)": [r for r in rows if r["source"] == TABLES],
        "streams": [r for r in rows if r["source"] != TABLES],
    }
    head = ["sets", "how many", "cannot tell", "told", "covered", "share covered",
            "interval above γ", "interval below γ", "median off by",
            f"{CONTAMINATION} off by", "width of the interval"]  # fmt: skip
    over = [_line(name, of) for name, of in groups.items() if of]
    for name, of in groups.items():
        for low, high in CLASSES:
            part = [r for r in of if low <= r["true"] < high]
            if part:
                over.append(_line(f"{name}, γ from {low:g} to {high:g}", part))
    by_source = [
        _line(source, [r for r in rows if r["source"] == source])
        for source in sorted({r["source"] for r in rows} - {TABLES})
    ]
    each = [
        [r["dataset"], r["rows"], r["true"], r["median"] if r["refusal"] is None else "–",
         f"{r['low']:.3f} to {r['high']:.3f}" if r["refusal"] is None else r["refusal"],
         "–" if r["refusal"] else "yes" if covers(r) else "no",
         "–" if r["agreement"] is None else r["agreement"], r.get("cpu_s", float("nan"))]
        for r in sorted(rows, key=lambda r: (r["source"] != TABLES, r["dataset"]))
    ]  # fmt: skip
    found = [told_to_users(rows),
             (f"Coverage of the posterior's {LEVEL:.0%} interval; at least {AIM:.0%} of the sets "
              "is the aim. Means over sets where it says something.", head, over)]  # fmt: skip
    if by_source:
        found.append(("Streams by source.", head, by_source))
    columns = ["set", "rows looked at", "γ", "median", f"{LEVEL:.0%} interval", "covered",
               "agreement", "CPU s"]  # fmt: skip
    return [*found, ("Every set.", columns, each)]


def _line(name: str, rows: list[Row]) -> list[Any]:
    told = [r for r in rows if r["refusal"] is None]
    line: list[Any] = [name, len(rows), len(rows) - len(told), len(told)]
    if not told:
        return [*line, *["–"] * 7]
    hits = sum(map(covers, told))
    return [
        *line,
        hits,
        f"{hits / len(told):.0%}",
        sum(r["low"] > r["true"] for r in told),
        sum(r["high"] < r["true"] for r in told),
        float(np.mean([abs(r["median"] - r["true"]) for r in told])),
        float(np.mean([abs(CONTAMINATION - r["true"]) for r in told])),
        float(np.mean([r["high"] - r["low"] for r in told])),
    ]


def main(arguments: list[str] | None = None) -> None:
    """Ask for γ of every set below a folder, and compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contamination", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of tables and streams")
    parser.add_argument("--out", type=Path, help="file of rows, to go on from")
    parser.add_argument("--each", type=int, help="streams of a source, at most; default: all")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as kept:
        found = run(options.data, options.out or Path(kept) / "rows.jsonl", options.each)
    if not found:
        raise SystemExit(f"{options.data} holds no table and no stream: give the folder that does.")
    write(
        "contamination",
        "γ from the data, without labels",
        tables_of(found),
        note="One process. γ is the share of labels that say anomaly.",
    )


if __name__ == "__main__":
    main()
