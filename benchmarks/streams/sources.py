"""Labelled sensor streams: folders of gzipped CSV files, one folder a source."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Stream", "capped", "find", "load"]

_NOT_CHANNELS = ("timestamp", "t", "label", "changepoint", "split", "unit", "RUL")
_NOMINAL_S = {"smd": 60.0, "asd": 300.0}
"""Sampling intervals that the publishers state and the files do not."""
_SHARE, _LEAST, _MOST = 0.25, 200, 2000


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream in its order.

    Attributes
    ----------
    source, name
        Folder and file.
    channels
        Names of the columns of `X`.
    times_ms
        Event times, shape (n,); the row number in seconds where the file has none.
    X
        Shape (n, d); ``nan`` where a value is missing.
    y
        Shape (n,): 1 anomaly, 0 normal, -1 not labelled (training rows).
    warm_up
        The evaluation begins at this row: after the train part, or after a quarter of the stream
        (200 to 2,000 rows), whatever its labels are.
    interval_s
        Median interval between events, or ``None`` where it is not known.
    """

    source: str
    name: str
    channels: tuple[str, ...]
    times_ms: npt.NDArray[np.int64]
    X: npt.NDArray[np.float64]
    y: npt.NDArray[np.int64]
    warm_up: int
    interval_s: float | None


def find(folder: Path) -> list[Path]:
    """Return the stream files below `folder`, small ones first."""
    return sorted(folder.glob("*/*.csv.gz"), key=lambda path: (path.stat().st_size, str(path)))


def load(path: Path) -> Stream:
    """Read one file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        table = list(rows)
    column = {name: i for i, name in enumerate(header)}
    channels = tuple(name for name in header if name not in _NOT_CHANNELS)
    X = np.array(
        [[_number(row[column[name]]) for name in channels] for row in table], dtype=np.float64
    )
    y = np.array([int(float(row[column["label"]])) for row in table], dtype=np.int64)
    source = path.parent.name
    interval_s: float | None = _NOMINAL_S.get(source)
    if "timestamp" in column:
        times_ms = np.array([_time_ms(row[column["timestamp"]]) for row in table], dtype=np.int64)
        interval_s = float(np.median(np.diff(times_ms))) / 1000
    else:
        times_ms = np.arange(len(table), dtype=np.int64) * int(1000 * (interval_s or 1.0))
    trained = int(np.count_nonzero(y == -1))
    if "split" in column:
        trained = max(trained, sum(row[column["split"]] == "train" for row in table))
    warm_up = trained or min(_MOST, max(_LEAST, int(_SHARE * len(table))))
    name = path.name.removesuffix(".csv.gz")
    return Stream(source, name, channels, times_ms, X, y, warm_up, interval_s)


def capped(stream: Stream, train: int, test: int) -> Stream:
    """Return the newest `train` rows of the warm-up and the first `test` rows after it."""
    first, last = max(0, stream.warm_up - train), stream.warm_up + test
    return replace(
        stream,
        times_ms=stream.times_ms[first:last],
        X=stream.X[first:last],
        y=stream.y[first:last],
        warm_up=stream.warm_up - first,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _time_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
