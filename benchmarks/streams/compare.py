"""One detector before and after a change, on the same streams: VUS-PR and recall, by source."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.harness import write
from benchmarks.paper import rows

__all__ = ["compare", "compared"]

MEASURES = ("vus_pr", "recall")


def compared(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[list[Any]]:
    """Return by source the means of both, then over all streams and over sources.

    Examples
    --------
    >>> def row(name, vus):
    ...     ranking = {"detector": {"vus_pr": vus, "recall": 1.0}}
    ...     return {"dataset": name, "source": name[0], "ranking": ranking}
    >>> was, now = [row("a1", 0.2), row("a2", 0.4), row("b1", 0.9)], [row("a1", 0.4)]
    >>> compared(was, now)[-1]
    ['mean of sources', 1, 0.2, 0.4, 1.0, 1.0]
    """
    first = {row["dataset"]: row for row in before if row.get("ranking")}
    by_source: dict[str, list[list[float]]] = defaultdict(list)
    for row in after:
        if row.get("ranking") and (was := first.get(row["dataset"])):
            each = (was["ranking"]["detector"], row["ranking"]["detector"])
            by_source[row["source"]].append([one[m] for m in MEASURES for one in each])

    def means(figures: list[list[float]]) -> list[float]:
        return [statistics.mean(column) for column in zip(*figures, strict=True)]

    table: list[list[Any]] = [
        [source, len(each), *means(each)] for source, each in sorted(by_source.items())
    ]
    of_sources = means([means(each) for each in by_source.values()])
    streams = [figures for each in by_source.values() for figures in each]
    table.append(["mean of streams", len(streams), *means(streams)])
    table.append(["mean of sources", len(by_source), *of_sources])
    return table


def compare(before: Path, after: Path, detector: str, name: str | None) -> None:
    """Print the table of two folders of rows, and keep it under a name."""
    each = [
        [row for row in rows.read(folder / "rows.jsonl") if row["detector"] == detector]
        for folder in (before, after)
    ]
    columns = ["source", "streams", "VUS-PR before", "after", "recall before", "after "]
    caption = (
        f"{detector} before and after, the same streams and rows; recall at one run of false "
        "alarms per 1,000 events"
    )
    table = (caption, columns, compared(*each))
    if name:
        write(name, f"{detector}, before and after", [table], note="Seeded.")
        return
    print(f"{caption}\n{' | '.join(columns)}")
    for row in table[2]:
        print(" | ".join(f"{x:.3f}" if isinstance(x, float) else str(x) for x in row))
