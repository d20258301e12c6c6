"""The series around an event: a ring of readings and scores, drawn with exact extremes.

Reviewers need what came before *and after*. Readings come from the context that review items carry
and from what follows them, scores and labels from the verdicts. Whatever is drawn has at most a few
points per pixel, and keeps every extreme: a spike of one sample in a week is still there. No line
goes on over what is not known: an event whose reading the store does not have, a channel that is
missing in a reading, and a sensor that is silent are three things, and drawn differently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from sqlite3 import Connection, Row
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from rejex_stream.readable import ChannelReading, Expected, middle
from rejex_stream.review.queue.database import scalar, scalars
from rejex_stream.types import FloatArray, Label, Verdict

LABEL_CODES = {Label.NORMAL: 0, Label.ANOMALY: 1, Label.REJECTED: 2}
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_MOST_HOLES, _MOST_READ, _MOST_SPARK = 500, 5_000, 80
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class Point(NamedTuple):
    """One moment of one sensor; parts that are not known yet are ``None``."""

    t_ms: int
    values: tuple[float | None, ...] | None
    score: float | None
    label: Label | None
    expected: bytes | None = None  # JSON: what channels were expected to read, by name


@dataclass(slots=True)
class SeriesBatch:
    """Points gathered in memory, written once; writing a point again changes nothing."""

    _points: dict[tuple[int, int], Point] = field(default_factory=dict)

    def add(self, sensor_id: int, point: Point) -> None:
        """Add one point; what is known already stays, what was missing is filled in."""
        key = (sensor_id, point.t_ms)
        known = self._points.get(key)
        if known is not None:
            known_parts = {name: part for name, part in known._asdict().items() if part is not None}
            point = point._replace(**known_parts)
        self._points[key] = point

    def write(self, connection: Connection) -> None:
        """Store every point; O(points)."""
        rows = []
        for (sensor_id, t_ms), point in self._points.items():
            blob = None
            if point.values is not None:
                values = [math.nan if value is None else value for value in point.values]
                blob = np.array(values, dtype="<f8").tobytes()
            code = None if point.label is None else LABEL_CODES[point.label]
            rows.append((sensor_id, t_ms, blob, point.score, code, point.expected))
        columns = ("channel_values", "score", "label", "expected")
        filled = ", ".join(f"{name} = coalesce(excluded.{name}, point.{name})" for name in columns)
        connection.executemany(
            "INSERT INTO point VALUES (?,?,?,?,?,?) ON CONFLICT (sensor_id, t_ms) DO UPDATE SET "
            + filled,
            rows,
        )
        self._points.clear()


def expected_of(verdict: Verdict) -> bytes | None:
    """Return what the evidence of a verdict expects of its channels, as a point keeps it."""
    channels = verdict.evidence.channels if verdict.evidence else ()
    expected = {one.channel: one.expected for one in channels if one.expected}
    return msgspec.json.encode(expected) if expected else None


BEFORE_ALL_MS = -(2**62)
FORGOTTEN_MS = -(2**53)
"""The hour under which a sensor's forgotten hours are added up: before all that ever was."""

COUNTS = ("normal", "anomaly", "rejected")  # what is counted of a sensor's verdicts, hour by hour


def forget(connection: Connection, keep: int = 100_000, keep_hours: int = 400 * 24) -> None:
    """Drop each sensor's oldest points beyond `keep`, and hours with events beyond `keep_hours`."""
    # Each is counted in rows of its own: no clock, right or wrong, makes anything old. Of the hours
    # their sum stays: totals over all time remain what they are. O(sensors log rows).
    for (sensor_id,) in connection.execute("SELECT sensor_id FROM sensor").fetchall():
        newest = "ORDER BY t_ms DESC LIMIT 1 OFFSET ?"
        hours = f"SELECT t_ms FROM hour WHERE sensor_id = ? AND t_ms > ? {newest}"
        first_ms = scalar(connection, hours, (sensor_id, FORGOTTEN_MS, keep_hours - 1))
        if first_ms is not None:
            _forget_hours(connection, sensor_id, first_ms)
        points = f"SELECT t_ms FROM point WHERE sensor_id = ? {newest}"
        first_ms = scalar(connection, points, (sensor_id, keep - 1))
        if first_ms is not None:
            connection.execute(
                "DELETE FROM point WHERE sensor_id = ? AND t_ms < ?", (sensor_id, first_ms)
            )
            connection.execute(  # before that nobody knows any more whether it was silent
                "UPDATE sensor SET first_ms = max(first_ms, ?) WHERE sensor_id = ?",
                (first_ms, sensor_id),
            )


def _forget_hours(connection: Connection, sensor_id: int, first_ms: int) -> None:
    sums = ", ".join(f"sum({name})" for name in COUNTS)
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)
    connection.execute(
        f"INSERT INTO hour (sensor_id, t_ms, {', '.join(COUNTS)}) "
        f"SELECT sensor_id, ?, {sums} FROM hour WHERE sensor_id = ? AND t_ms < ? AND t_ms > ? "
        f"GROUP BY sensor_id ON CONFLICT (sensor_id, t_ms) DO UPDATE SET {added}",
        (FORGOTTEN_MS, sensor_id, first_ms, FORGOTTEN_MS),
    )
    connection.execute(
        "DELETE FROM hour WHERE sensor_id = ? AND t_ms < ? AND t_ms > ?",
        (sensor_id, first_ms, FORGOTTEN_MS),
    )


class Hole(NamedTuple):
    """A stretch without readings, and why: they are ``unknown`` here, or the sensor ``silent``."""

    from_ms: int
    to_ms: int
    kind: Literal["unknown", "silent"]


@dataclass(frozen=True, slots=True)
class Series:
    """One sensor over one stretch of time, ready to draw."""

    channels: tuple[str, ...]  # names, one per entry of `values`
    # (t_ms, value) arrays; `nan` marks a gap in the data, to be drawn as a gap
    values: tuple[tuple[FloatArray, FloatArray], ...]
    score: tuple[FloatArray, FloatArray]
    # (t_ms, score, label code) of events that are not normal
    marked: tuple[tuple[int, float, int], ...]
    # stretches without readings, in order: `unknown` to the store, though there may be some, or
    # `silent`: every verdict of that time is here, and the sensor has none
    holes: tuple[Hole, ...] = ()
    missing: tuple[tuple[int, ...], ...] = ()  # for each channel, times of readings that lack it


def _extreme(t: FloatArray, v: FloatArray, most: int) -> npt.NDArray[np.intp]:
    if len(t) <= most or most < 2:
        return np.arange(len(t))
    edges = np.linspace(t[0], t[-1], most // 2 + 1)
    starts = np.unique(np.searchsorted(t, edges[:-1], side="left"))
    bounds = np.append(starts, len(t))
    chosen = {0, len(t) - 1}
    for left, right in itertools.pairwise(bounds):
        part = v[left:right]
        chosen.add(int(left + part.argmin()))
        chosen.add(int(left + part.argmax()))
    return np.array(sorted(chosen))


def _pauses(t: FloatArray) -> BoolArray:
    """Return between which events a sensor was silent: longer than it mostly is. Shape (n - 1,)."""
    # One in ten steps may be longer than usual, or what is sampled at random would look silent.
    steps = np.diff(t)
    if len(steps) < 2:
        return np.zeros(len(steps), dtype=bool)
    return steps > 1.5 * max(float(np.median(steps)), float(np.quantile(steps, 0.9)))


def _holes(
    t: FloatArray, known: BoolArray, span: tuple[int, int], counted: tuple[int, int]
) -> tuple[Hole, ...]:
    """Return the stretches of `span` without readings; within `counted` every event is in `t`."""
    holes: list[Hole] = []
    least = (span[1] - span[0]) / _MOST_HOLES

    def add(begin: float, end: float, kind: Literal["unknown", "silent"]) -> None:
        if end <= begin:
            return
        if holes and holes[-1].kind == kind and begin - holes[-1].to_ms < least:
            begin = holes.pop().from_ms
        holes.append(Hole(int(begin), int(end), kind))

    def nothing(begin: float, end: float) -> None:
        """Between two events, or where none are: silent as far as all was counted, else unknown."""
        low, high = max(begin, counted[0]), min(end, counted[1])
        if low >= high:
            return add(begin, end, "unknown")
        add(begin, low, "unknown")
        add(low, high, "silent")
        return add(high, end, "unknown")

    if not len(t):
        nothing(*span)
        return tuple(holes)
    pauses = _pauses(t)
    usual = float(np.median(np.diff(t))) if len(t) > 1 else 0.0
    if t[0] - span[0] > 2 * usual:
        nothing(span[0], t[0])
    for i in np.flatnonzero(pauses | ~known[:-1] | ~known[1:]):
        if pauses[i]:
            nothing(t[i], t[i + 1])
        else:
            add(t[i], t[i + 1], "unknown")
    if len(t) == 1 and not known[0]:
        add(t[0] - 1, t[0] + 1, "unknown")
    if span[1] - t[-1] > 2 * usual:
        nothing(t[-1], span[1])
    return tuple(holes)


def _counted(connection: Connection, sensor_id: int) -> tuple[int, int]:
    """Return the stretch of which every verdict of a sensor is here; an empty one without any."""
    # Its pipeline is read in the order of the input: what two other sensors have reached is past.
    others = connection.execute(
        "SELECT o.last_ms FROM sensor s JOIN sensor o USING (pipeline) WHERE s.sensor_id = ? "
        "AND o.sensor_id <> s.sensor_id AND o.last_ms IS NOT NULL ORDER BY 1 DESC LIMIT 2",
        (sensor_id,),
    ).fetchall()
    first, last = connection.execute(
        "SELECT first_ms, last_ms FROM sensor WHERE sensor_id = ?", (sensor_id,)
    ).fetchone()
    if first is None or last is None:
        return (0, -1)
    return first, max(last, others[1][0] if len(others) > 1 else last)


class ClockAhead(NamedTuple):
    """A sensor whose clock is wrong, as the pipeline says, and ahead of that of its pipeline."""

    # `since_ms` is the time of its last event before that, `None` where the store has none.

    sensor_id: int
    sensor: str
    ahead_ms: int
    since_ms: int | None


class PipelineClock(NamedTuple):
    """The event time that a pipeline has reached, and the clock that runs ahead of it."""

    now_ms: int
    ahead: ClockAhead | None


def pipeline_clock(connection: Connection, pipeline: str) -> PipelineClock | None:
    """Return the second newest time of the sensors whose clocks are right; O(log sensors).

    Of two it is the newest, since the other one may have ended. ``None`` before the first verdict.
    """
    newest = (
        "SELECT sensor_id, sensor, last_ms FROM sensor WHERE pipeline = ? AND last_ms IS NOT NULL "
        "AND clock_wrong = ? ORDER BY last_ms DESC LIMIT 3"
    )
    right = connection.execute(newest, (pipeline, 0)).fetchall()
    wrong = connection.execute(newest, (pipeline, 1)).fetchall()
    if not right and not wrong:
        return None
    now_ms = (right or wrong)[1 if len(right) > 2 else 0]["last_ms"]
    if not wrong or wrong[0]["last_ms"] <= now_ms:
        return PipelineClock(now_ms, None)
    sensor_id, sensor, last_ms = wrong[0]
    before = "SELECT max(t_ms) FROM point WHERE sensor_id = ? AND t_ms <= ?"
    since_ms = scalar(connection, before, (sensor_id, now_ms + DAY_MS))
    return PipelineClock(now_ms, ClockAhead(sensor_id, sensor, last_ms - now_ms, since_ms))


def usual_step(connection: Connection, pipeline: str) -> float:
    """Return how far apart the events of the sensor heard last are (ms); 0: of none."""
    hours = (
        "SELECT t_ms, normal + anomaly + rejected AS n FROM hour WHERE sensor_id = (SELECT "
        "sensor_id FROM sensor WHERE pipeline = ? ORDER BY last_ms DESC LIMIT 1) "
        "ORDER BY t_ms DESC LIMIT 24"
    )
    step = f"SELECT (max(t_ms) - min(t_ms) + {HOUR_MS}) / max(1.0, sum(n)) FROM ({hours})"
    return float(scalar(connection, step, (pipeline,)) or 0.0)


def around(
    connection: Connection,
    sensor_id: int,
    start_ms: int,
    end_ms: int,
    *,
    before: int = 120,
    after: int = 80,
) -> tuple[int, int]:
    """Return a stretch of time around an episode: so many readings before it and after it."""
    # Counted in readings, so that a meter read once an hour and a sensor at 100 Hz both look right.
    first = scalar(
        connection,
        "SELECT min(t_ms) FROM (SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms < ? "
        "ORDER BY t_ms DESC LIMIT ?) AS near",
        (sensor_id, start_ms, before),
    )
    last = scalar(
        connection,
        "SELECT max(t_ms) FROM (SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms > ? "
        "ORDER BY t_ms LIMIT ?) AS near",
        (sensor_id, end_ms, after),
    )
    low = start_ms if first is None else first
    high = end_ms if last is None else last
    pad = 30_000 if low == high else 0
    return low - pad, high + pad


def values_of(blob: bytes | None) -> list[float]:
    """Return the values of a stored point, NaN where a channel was missing; none of none."""
    values: list[float] = [] if blob is None else np.frombuffer(blob, dtype="<f8").tolist()
    return values


def readings(
    connection: Connection, sensor_id: int, width: int, span_ms: tuple[int, int], most: int
) -> FloatArray:
    """Return the newest readings of a stretch, its end left out, oldest first; shape (m, width)."""
    newest = scalars(
        connection,
        "SELECT channel_values FROM point WHERE sensor_id = ? AND t_ms >= ? AND t_ms < ? "
        "AND channel_values IS NOT NULL ORDER BY t_ms DESC LIMIT ?",
        (sensor_id, *span_ms, most),
    )
    blobs = [blob for blob in reversed(newest) if len(blob) == 8 * width]
    return np.frombuffer(b"".join(blobs), dtype="<f8").reshape(len(blobs), width)


_PAST, _FEWEST, _NEWEST = 500, 8, 5
"""Readings before something began that say what is usual, and the fewest that do; those of now."""


def usual_range(
    connection: Connection, sensor_id: int, width: int, onset_ms: int, columns: slice = slice(None)
) -> list[tuple[float, float] | None]:
    """Return the middle 95 % of channels before an onset; ``None`` where too little is known.

    O(500 readings).
    """
    past = readings(connection, sensor_id, width, (BEFORE_ALL_MS, onset_ms), _PAST)
    return [middle(of) if np.isfinite(of).sum() >= _FEWEST else None for of in past.T[columns]]


_EXPECTED = msgspec.json.Decoder(dict[str, Expected])


def expectations(
    connection: Connection, sensor_id: int, span_ms: tuple[int, int]
) -> dict[str, list[tuple[int, Expected]]]:
    """Return what each channel was expected to read in a stretch, both ends included, by time.

    Of the newest 5,000 events whose verdicts say so. O(events).
    """
    rows = connection.execute(
        "SELECT t_ms, expected FROM point WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? "
        "AND expected IS NOT NULL ORDER BY t_ms DESC LIMIT ?",
        (sensor_id, *span_ms, _MOST_READ),
    ).fetchall()
    channels: dict[str, list[tuple[int, Expected]]] = {}
    for t_ms, text in reversed(rows):
        for channel, expected in _EXPECTED.decode(text).items():
            channels.setdefault(channel, []).append((t_ms, expected))
    return channels


class Deviation(NamedTuple):
    """A channel of a case or an incident, beside what it usually is, or was expected to read."""

    sensor: str
    column: int
    reads: ChannelReading  # newest, as the alert says it; nothing expected: the median of five
    farthest: ChannelReading  # the one that lies farthest from what is expected, or usual
    distance: float  # how many half widths of that it is away
    trend: str  # `rising`, `falling` or `steady` since the onset
    speaks: bool = False  # whether the score is higher for it, as the pipeline says

    @property
    def is_unusual(self) -> bool:
        """Whether it is what is wrong, or reads otherwise than before."""
        low, high = self.reads.usual or (-math.inf, math.inf)
        return self.speaks or not low <= self.reads.value <= high


def deviations(
    connection: Connection,
    sensor_id: int,
    sensor: str,
    channels: Sequence[str],
    span_ms: tuple[int, int],
    *,
    blind: bool = False,
) -> list[Deviation]:
    """Return how far each channel is from the readings before a stretch, both ends included.

    And, unless `blind`, from what verdicts expected of it. The farthest first; a channel of which
    too little is known is left out. O(readings).
    """
    onset_ms, end_ms = span_ms
    usual = usual_range(connection, sensor_id, len(channels), onset_ms)
    since = readings(connection, sensor_id, len(channels), (onset_ms, end_ms + 1), _MOST_READ)
    expected = {} if blind else expectations(connection, sensor_id, span_ms)
    recent = (
        "SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? "
        "AND score IS NOT NULL ORDER BY t_ms DESC LIMIT ?"
    )
    recent_ms = min(scalars(connection, recent, (sensor_id, *span_ms, _NEWEST)), default=end_ms)
    ranked = []
    for column, (name, limits, read) in enumerate(zip(channels, usual, since.T, strict=True)):
        values = read[np.isfinite(read)]
        if limits is None or not len(values):
            continue
        centre = sum(limits) / 2
        width = (limits[1] - limits[0]) / 2 or abs(centre) * 1e-3 or 1.0
        third = max(1, len(values) // 3)
        moved = float(np.median(values[-third:]) - np.median(values[:third])) / width
        trend = "rising" if moved > 0.5 else "falling" if moved < -0.5 else "steady"
        now = ChannelReading(name, float(np.median(values[-_NEWEST:])), limits)
        far = ChannelReading(name, float(values[np.abs(values - centre).argmax()]), limits)
        distance = abs(far.value - centre) / width
        if of_channel := expected.get(name):
            newest_ms, newest = of_channel[-1]
            worst = max((one for _, one in of_channel), key=attrgetter("departure"))
            if newest_ms >= recent_ms:
                now = ChannelReading(name, newest.read, limits, newest)
            far = ChannelReading(name, worst.read, limits, worst)
            distance = max(distance, worst.departure)
        ranked.append(Deviation(sensor, column, now, far, distance, trend))
    return sorted(ranked, key=lambda one: -one.distance)


def read(
    connection: Connection,
    sensor_id: int,
    channels: Sequence[str],
    from_ms: int,
    to_ms: int,
    *,
    most: int = 2_000,
) -> Series:
    """Return what is known of a sensor between two times, both included."""
    width = len(channels)
    rows = _rows(connection, sensor_id, from_ms, to_ms)
    t, known, values, scores = _columns(rows, width)
    marked = [(row[0], row[2], row[3]) for row in rows if row[2] is not None and row[3]]
    holes = _holes(t, known, (from_ms, to_ms), _counted(connection, sensor_id)) if width else ()
    return Series(
        tuple(channels),
        tuple(_line(t, values[:, column], most) for column in range(width)),
        _line(t, scores, most),
        tuple(marked[:: max(1, len(marked) // 4000)]),
        holes,
        tuple(_missing(t[known & ~np.isfinite(values[:, column])]) for column in range(width)),
    )


def _rows(
    connection: Connection, sensor_id: int, from_ms: int, to_ms: int, most: int = -1
) -> list[Row]:
    return connection.execute(
        "SELECT t_ms, channel_values, score, label FROM point WHERE sensor_id = ? "
        "AND t_ms BETWEEN ? AND ? ORDER BY t_ms LIMIT ?",
        (sensor_id, from_ms, to_ms, most),
    ).fetchall()


def _columns(
    rows: Sequence[Row], width: int
) -> tuple[FloatArray, BoolArray, FloatArray, FloatArray]:
    """Return times, of which events the reading is known, readings (m, width) and scores."""
    t = np.array([row[0] for row in rows], dtype=np.float64)
    known = np.array([row[1] is not None and len(row[1]) == 8 * width for row in rows], dtype=bool)
    values = np.full((len(rows), width), math.nan)
    if known.any():
        table = b"".join(row[1] for row, one in zip(rows, known, strict=True) if one)
        values[known] = np.frombuffer(table, dtype="<f8").reshape(-1, width)
    scores = np.array([math.nan if row[2] is None else row[2] for row in rows], dtype=np.float64)
    return t, known, values, scores


def _missing(t: FloatArray) -> tuple[int, ...]:
    return tuple(int(one) for one in t[:: max(1, len(t) // _MOST_HOLES)])


def _line(t: FloatArray, v: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Return a line through the finite values: a nan wherever it would go over anything else."""
    finite = np.flatnonzero(np.isfinite(v))
    if not len(finite):
        return t[:0], v[:0]
    pauses = np.concatenate([[0], np.cumsum(_pauses(t))])
    ends = (np.diff(finite) > 1) | (np.diff(pauses[finite]) > 0)
    part = np.concatenate([[0], np.cumsum(ends)])
    extremes = _extreme(t[finite], v[finite], most)
    kept_t, kept_v = t[finite][extremes], v[finite][extremes]
    cuts = np.flatnonzero(np.diff(part[extremes])) + 1
    between = (kept_t[cuts - 1] + kept_t[cuts]) / 2
    return np.insert(kept_t, cuts, between), np.insert(kept_v, cuts, math.nan)


def spark(
    connection: Connection, sensor_id: int, channel: int, from_ms: int, to_ms: int
) -> tuple[list[float], list[float]]:
    """Return a small line of one channel (of the score, where no readings are known)."""
    rows = _rows(connection, sensor_id, from_ms, to_ms, 4_000)
    width = max((len(row[1]) // 8 for row in rows if row[1] is not None), default=0)
    t, _, values, scores = _columns(rows, width)
    kept_t, kept_v = _line(t, values[:, channel] if channel < width else scores, _MOST_SPARK)
    return kept_t.tolist(), kept_v.tolist()
