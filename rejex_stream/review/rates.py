"""The live screen's numbers: what the monitors say, what was counted, stream by stream."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from rejex_stream.monitor import MonitorStatus
from rejex_stream.review.queue import QueueFilter, Viewer
from rejex_stream.review.storage import Connection
from rejex_stream.review.watching import PipelineWatch, RateSample, samples

__all__ = ["Mix", "StreamLine", "last_event_ms", "mix", "state_word", "stream_lines"]


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts counted over a stretch of event time."""

    normal: int = 0
    anomaly: int = 0
    rejected: int = 0
    banded: int = 0
    ambiguous: int = 0
    expected: float = 0.0

    @property
    def events(self) -> int:
        """All verdicts."""
        return self.normal + self.anomaly + self.rejected


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """One stream in the list beside the plot.

    Attributes
    ----------
    state
        See :func:`state_word`.
    trace
        Its rolling rates, oldest first.
    open_episodes
        Ready for review; the link behind it shows exactly these.
    """

    stream_key: str
    sensors: int
    state: str
    rate: float | None
    expected: float | None
    exact_bound: float | None
    lower: float | None
    upper: float | None
    events: int
    last_ms: int
    trace: list[tuple[int, float]]
    open_episodes: int
    address: str


def state_word(sample: RateSample | MonitorStatus | None) -> str:
    """Return one word or two for a stream's state, worst first."""
    if sample is None:
        return "no verdicts yet"
    if isinstance(sample, MonitorStatus):
        alarms = {str(alarm.kind) for alarm in sample.active_alarms}
        rate, theory = sample.rejection_rate, sample.theory
        bound = None if theory is None else theory.exact_bound
        health: str = sample.health
    else:
        alarms, rate, bound = set(sample.alarms), sample.rate, sample.exact_bound
        health = sample.health
    for kind, word in (
        ("stuck", "stuck"),
        ("collapse", "rate collapsed"),
        ("rejection_rate", "far above plan"),
        ("health", "changed"),
        ("drift", "drifting"),
        ("adwin", "mean changed"),
        ("review_budget", "over budget"),
    ):
        if kind in alarms:
            return word
    if rate is not None and bound is not None and rate > bound:
        return "above bound"
    return "calibrating" if health == "calibrating" else "as planned"


def last_event_ms(connection: Connection, pipeline: str) -> int | None:
    """Return the event time of the newest verdict of a pipeline."""
    row = connection.execute(
        "SELECT max(last_ms) FROM sensor WHERE pipeline = ?", (pipeline,)
    ).fetchone()
    return None if row[0] is None else int(row[0])


def mix(
    connection: Connection,
    pipeline: str,
    from_ms: int,
    *,
    to_ms: int | None = None,
    stream_key: str = "",
    sensor_id: int | None = None,
) -> Mix:
    """Count the verdicts from one minute of event time to another (not included)."""
    where, values = ["s.pipeline = ?", "m.t_ms >= ?"], list[Any]([pipeline, from_ms])
    if to_ms is not None:
        where.append("m.t_ms < ?")
        values.append(to_ms)
    if stream_key:
        where.append("s.stream_key = ?")
        values.append(stream_key)
    if sensor_id is not None:
        where.append("m.sensor_id = ?")
        values.append(sensor_id)
    row = connection.execute(
        "SELECT coalesce(sum(normal), 0), coalesce(sum(anomaly), 0), coalesce(sum(rejected), 0), "
        "coalesce(sum(banded), 0), coalesce(sum(ambiguous), 0), coalesce(sum(expected), 0.0) "
        f"FROM minute m JOIN sensor s USING (sensor_id) WHERE {' AND '.join(where)}",
        values,
    ).fetchone()
    return Mix(
        normal=row[0],
        anomaly=row[1],
        rejected=row[2],
        banded=row[3],
        ambiguous=row[4],
        expected=row[5],
    )


def stream_lines(
    connection: Connection,
    watch: PipelineWatch,
    viewer: Viewer,
    from_ms: int,
    now_ms: int,
) -> list[StreamLine]:
    """Return every stream of a pipeline, those farthest from plan first."""
    found = []
    rows = connection.execute(
        "SELECT stream_key, count(*) AS sensors, max(last_ms) AS last_ms, "
        "min(sensor) AS sensor, min(grp) AS grp "
        "FROM sensor WHERE pipeline = ? AND last_ms IS NOT NULL GROUP BY stream_key",
        (watch.pipeline,),
    ).fetchall()
    for row in rows:
        key = row["stream_key"]
        status = watch.status(key)
        theory = None if status is None else status.theory
        one = row["sensors"] == 1
        view = QueueFilter(
            words=shlex.quote(f"sensor:{row['sensor']}" if one else f"group:{row['grp']}")
        )
        trace = samples(connection, watch.pipeline, key, from_ms, most=60)
        found.append(
            StreamLine(
                stream_key=key,
                sensors=row["sensors"],
                state=state_word(status),
                rate=None if status is None else status.rejection_rate,
                expected=None if theory is None else theory.expected_rate,
                exact_bound=None if theory is None else theory.exact_bound,
                lower=None if status is None else status.lower,
                upper=None if status is None else status.upper,
                events=0 if status is None else status.rolling_events,
                last_ms=row["last_ms"],
                trace=[(sample.t_ms, sample.rate) for sample in trace if sample.lower is not None],
                open_episodes=view.count(connection, viewer, now_ms),
                address=view.address(),
            )
        )
    calm = {"as planned", "calibrating", "no verdicts yet"}
    return sorted(found, key=lambda line: (line.state in calm, -_distance(line), line.stream_key))


def _distance(line: StreamLine) -> float:
    if line.rate is None or not line.expected:
        return 0.0
    return abs(line.rate / line.expected - 1)
