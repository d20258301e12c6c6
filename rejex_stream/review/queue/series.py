"""The series around an event: a ring at full resolution, and minutes with exact extremes.

Reviewers need what came before *and after*. Readings come from the context that review items carry
(and from the input, where it is at hand), scores and labels from the verdicts. Whatever is drawn
has at most a few points per pixel, and keeps every extreme: a spike of one sample in a week is
still there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection

import numpy as np

from rejex_stream.types import FloatArray, Label

__all__ = [
    "LABEL_CODES",
    "MINUTE_MS",
    "Point",
    "Series",
    "SeriesBatch",
    "decimate",
    "forget",
    "read",
    "spark",
    "values_of",
]

LABEL_CODES = {Label.NORMAL: 0, Label.ANOMALY: 1, Label.REJECTED: 2}
MINUTE_MS = 60_000
_MOST_RAW_POINTS = 60_000


@dataclass(frozen=True, slots=True)
class Point:
    """One moment of one sensor; parts that are not known yet are ``None``."""

    t_ms: int
    values: tuple[float | None, ...] | None
    score: float | None
    label: Label | None


@dataclass(slots=True)
class _Extremes:
    lows: FloatArray | None = None
    highs: FloatArray | None = None
    score_low: float | None = None
    score_high: float | None = None

    def add_values(self, lows: FloatArray, highs: FloatArray) -> None:
        if self.lows is None or self.highs is None or len(self.lows) != len(lows):
            self.lows, self.highs = lows.copy(), highs.copy()
        else:
            np.fmin(self.lows, lows, out=self.lows)
            np.fmax(self.highs, highs, out=self.highs)

    def add_score(self, low: float, high: float) -> None:
        self.score_low = low if self.score_low is None else min(low, self.score_low)
        self.score_high = high if self.score_high is None else max(high, self.score_high)


@dataclass(slots=True)
class SeriesBatch:
    """Points gathered in memory, written once; writing a point again changes nothing."""

    _points: dict[tuple[int, int], Point] = field(default_factory=dict)

    def add(self, sensor_id: int, point: Point) -> None:
        """Take one point; what is known already stays, what was missing is filled in."""
        key = (sensor_id, point.t_ms)
        known = self._points.get(key)
        if known is not None:
            if known.values is not None and known.score is not None:
                return
            point = Point(
                point.t_ms,
                known.values if known.values is not None else point.values,
                known.score if known.score is not None else point.score,
                known.label if known.label is not None else point.label,
            )
        self._points[key] = point

    def write(self, connection: Connection) -> None:
        """Store every point and bring the minutes' extremes up to date; O(points)."""
        rows = []
        minutes: dict[tuple[int, int], _Extremes] = {}
        for (sensor_id, t_ms), point in self._points.items():
            blob = None
            extremes = minutes.setdefault((sensor_id, t_ms - t_ms % MINUTE_MS), _Extremes())
            if point.values is not None:
                array = np.array(
                    [math.nan if value is None else value for value in point.values], dtype="<f8"
                )
                blob = array.tobytes()
                extremes.add_values(array, array)
            if point.score is not None and math.isfinite(point.score):
                extremes.add_score(point.score, point.score)
            code = None if point.label is None else LABEL_CODES[point.label]
            rows.append((sensor_id, t_ms, blob, point.score, code))
        connection.executemany(
            "INSERT INTO point VALUES (?,?,?,?,?) ON CONFLICT (sensor_id, t_ms) DO UPDATE SET "
            "channel_values = coalesce(excluded.channel_values, point.channel_values), "
            "score = coalesce(excluded.score, point.score), "
            "label = coalesce(excluded.label, point.label)",
            rows,
        )
        for (sensor_id, minute_ms), extremes in minutes.items():
            _merge_minute(connection, sensor_id, minute_ms, extremes)
        self._points.clear()


def _merge_minute(
    connection: Connection, sensor_id: int, minute_ms: int, extremes: _Extremes
) -> None:
    known = connection.execute(
        "SELECT lows, highs, score_low, score_high FROM minute WHERE sensor_id = ? AND t_ms = ?",
        (sensor_id, minute_ms),
    ).fetchone()
    if known is not None:
        if known["lows"] is not None:
            extremes.add_values(_array(known["lows"]), _array(known["highs"]))
        if known["score_low"] is not None:
            extremes.add_score(known["score_low"], known["score_high"])
    connection.execute(
        "INSERT INTO minute (sensor_id, t_ms, lows, highs, score_low, score_high) "
        "VALUES (?,?,?,?,?,?) ON CONFLICT (sensor_id, t_ms) DO UPDATE SET "
        "lows = excluded.lows, highs = excluded.highs, "
        "score_low = excluded.score_low, score_high = excluded.score_high",
        (
            sensor_id,
            minute_ms,
            None if extremes.lows is None else extremes.lows.tobytes(),
            None if extremes.highs is None else extremes.highs.tobytes(),
            extremes.score_low,
            extremes.score_high,
        ),
    )


def forget(connection: Connection, keep: int) -> None:
    """Drop each sensor's oldest full-resolution points beyond `keep`; the minutes stay."""
    for (sensor_id,) in connection.execute("SELECT sensor_id FROM sensor").fetchall():
        oldest = connection.execute(
            "SELECT t_ms FROM point WHERE sensor_id = ? ORDER BY t_ms DESC LIMIT 1 OFFSET ?",
            (sensor_id, keep - 1),
        ).fetchone()
        if oldest is not None:
            connection.execute(
                "DELETE FROM point WHERE sensor_id = ? AND t_ms < ?", (sensor_id, oldest["t_ms"])
            )


@dataclass(frozen=True, slots=True)
class Series:
    """One sensor over one stretch of time, ready to draw.

    Attributes
    ----------
    channels
        Names, one per entry of `values`.
    values, score
        (t_ms, value) arrays; ``nan`` marks a gap in the data, to be drawn as a gap.
    marked
        (t_ms, score, label code) of events that are not normal.
    resolution_ms
        0 for single readings, else the width of the minutes whose extremes are shown.
    """

    channels: tuple[str, ...]
    values: tuple[tuple[FloatArray, FloatArray], ...]
    score: tuple[FloatArray, FloatArray]
    marked: tuple[tuple[int, float, int], ...]
    resolution_ms: int


def decimate(t: FloatArray, v: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Return at most about `most` points of a line that looks the same at that many pixels.

    Each of ``most // 2`` equal stretches of time keeps its smallest and its largest value, in
    order. Shape (n,) in, shape (m,) out with m <= most + 2; O(n).

    Examples
    --------
    >>> t = np.arange(100_000.0); v = np.zeros(100_000); v[54_321] = 9.0
    >>> kept_t, kept_v = decimate(t, v, 400)
    >>> len(kept_t) <= 402, float(kept_v.max()), float(kept_t[kept_v.argmax()])
    (True, 9.0, 54321.0)
    """
    finite = np.isfinite(v)
    t, v = t[finite], v[finite]
    if len(t) <= most or most < 2:
        return t, v
    edges = np.linspace(t[0], t[-1], most // 2 + 1)
    starts = np.unique(np.searchsorted(t, edges[:-1], side="left"))
    bounds = np.append(starts, len(t))
    kept = {0, len(t) - 1}
    for left, right in itertools.pairwise(bounds):
        part = v[left:right]
        kept.add(int(left + part.argmin()))
        kept.add(int(left + part.argmax()))
    index = np.array(sorted(kept))
    return t[index], v[index]


def _with_gaps(t: FloatArray, v: FloatArray, spacing_ms: float) -> tuple[FloatArray, FloatArray]:
    """Put a nan where readings are missing, so that no line bridges the hole."""
    if len(t) < 3 or spacing_ms <= 0:
        return t, v
    holes = np.flatnonzero(np.diff(t) > 8 * spacing_ms)
    if not len(holes):
        return t, v
    return np.insert(t, holes + 1, t[holes] + spacing_ms), np.insert(v, holes + 1, math.nan)


def values_of(blob: bytes | None) -> list[float]:
    """Return the values of a stored point, NaN where a channel was missing; none of none."""
    found: list[float] = [] if blob is None else _array(blob).tolist()
    return found


def _array(blob: bytes) -> FloatArray:
    return np.frombuffer(blob, dtype="<f8").copy()


def read(
    connection: Connection,
    sensor_id: int,
    channels: Sequence[str],
    from_ms: int,
    to_ms: int,
    *,
    most: int = 2_000,
) -> Series:
    """Return what is known of a sensor between two times, both included.

    Parameters
    ----------
    most
        About how many points a line may have: twice the plot's width in pixels.
    """
    span = (sensor_id, from_ms, to_ms)
    between = "sensor_id = ? AND t_ms BETWEEN ? AND ?"
    count = connection.execute(f"SELECT count(*) FROM point WHERE {between}", span).fetchone()[0]
    minutes = connection.execute(
        f"SELECT count(*), min(t_ms) FROM minute WHERE {between}",
        (sensor_id, from_ms - MINUTE_MS + 1, to_ms),
    ).fetchone()
    oldest = connection.execute(
        "SELECT min(t_ms) FROM point WHERE sensor_id = ?", (sensor_id,)
    ).fetchone()[0]
    worn = minutes[1] is not None and (oldest is None or minutes[1] + MINUTE_MS <= oldest)
    if count > _MOST_RAW_POINTS or worn:
        return _read_minutes(connection, sensor_id, channels, (from_ms, to_ms), most)
    rows = connection.execute(
        f"SELECT t_ms, channel_values, score, label FROM point WHERE {between} ORDER BY t_ms", span
    ).fetchall()
    width = len(channels)
    timed, table, score_t, score_v = [], [], [], []
    marked = []
    for t_ms, blob, score, label in rows:
        if blob is not None and len(blob) == 8 * width:
            timed.append(t_ms)
            table.append(blob)
        if score is not None:
            score_t.append(t_ms)
            score_v.append(score)
            if label:
                marked.append((t_ms, score, label))
    t = np.array(timed, dtype=np.float64)
    values = np.frombuffer(b"".join(table), dtype="<f8").reshape(len(table), width)
    lines = []
    for column in range(width):
        lines.append(_line(t, values[:, column], most))
    return Series(
        tuple(channels),
        tuple(lines),
        _line(np.array(score_t, dtype=np.float64), np.array(score_v, dtype=np.float64), most),
        tuple(marked[:: max(1, len(marked) // 4000)]),
        0,
    )


def _line(t: FloatArray, v: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    spacing = float(np.median(np.diff(t))) if len(t) > 2 else 0.0
    kept_t, kept_v = decimate(t, v, most)
    stretch = float(kept_t[-1] - kept_t[0]) / max(1, len(kept_t)) if len(kept_t) > 1 else 0.0
    return _with_gaps(kept_t, kept_v, max(spacing, stretch))


def _read_minutes(
    connection: Connection,
    sensor_id: int,
    channels: Sequence[str],
    span_ms: tuple[int, int],
    most: int,
) -> Series:
    rows = connection.execute(
        "SELECT t_ms, lows, highs, score_low, score_high, anomaly, rejected FROM minute "
        "WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? ORDER BY t_ms",
        (sensor_id, span_ms[0] - MINUTE_MS + 1, span_ms[1]),
    ).fetchall()
    width = len(channels)
    valued = [row for row in rows if row["lows"] is not None and len(row["lows"]) == 8 * width]
    scored = [row for row in rows if row["score_low"] is not None]

    def both(times: list[int], low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        # Low and high share a minute: half a minute apart, the line shows both.
        t = np.repeat(np.array(times, dtype=np.float64), 2)
        t[1::2] += MINUTE_MS / 2
        return _line(t, np.column_stack([low, high]).ravel(), most)

    times = [row["t_ms"] for row in valued]
    lows = np.array([_array(row["lows"]) for row in valued]).reshape(len(valued), width)
    highs = np.array([_array(row["highs"]) for row in valued]).reshape(len(valued), width)
    marked = tuple(
        (row["t_ms"], row["score_high"], 2 if row["rejected"] else 1)
        for row in scored
        if row["rejected"] or row["anomaly"]
    )
    return Series(
        tuple(channels),
        tuple(both(times, lows[:, i], highs[:, i]) for i in range(width)),
        both(
            [row["t_ms"] for row in scored],
            np.array([row["score_low"] for row in scored], dtype=np.float64),
            np.array([row["score_high"] for row in scored], dtype=np.float64),
        ),
        marked[:: max(1, len(marked) // 4000)],
        MINUTE_MS,
    )


def spark(
    connection: Connection,
    sensor_id: int,
    channel: int,
    from_ms: int,
    to_ms: int,
    *,
    most: int = 80,
) -> tuple[list[float], list[float]]:
    """Return a small line of one channel (of the score, where no readings are known)."""
    rows = connection.execute(
        "SELECT t_ms, channel_values, score FROM point WHERE sensor_id = ? "
        "AND t_ms BETWEEN ? AND ? ORDER BY t_ms LIMIT 4000",
        (sensor_id, from_ms, to_ms),
    ).fetchall()
    valued = [(row[0], row[1]) for row in rows if row[1] is not None]
    if valued and len(valued[0][1]) >= 8 * (channel + 1):
        width = len(valued[0][1]) // 8
        valued = [(t, blob) for t, blob in valued if len(blob) == 8 * width]
        t = np.array([t for t, _ in valued], dtype=np.float64)
        table = np.frombuffer(b"".join(blob for _, blob in valued), dtype="<f8")
        v = table.reshape(-1, width)[:, channel]
    else:
        scored = [(row[0], row[2]) for row in rows if row[2] is not None]
        t = np.array([t for t, _ in scored], dtype=np.float64)
        v = np.array([score for _, score in scored], dtype=np.float64)
    kept_t, kept_v = decimate(t, v, most)
    return kept_t.tolist(), kept_v.tolist()
