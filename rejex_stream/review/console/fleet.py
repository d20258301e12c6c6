"""The sensors of all pipelines and the state of each over the last day, week or month.

Rates over time are Grafana's (`rejex-stream dashboard`); here is which sensor to look at. The
period of a pipeline ends at the time that its own sensors have reached: one clock that runs ahead
affects no other pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby
from sqlite3 import Connection, Row
from typing import NamedTuple

from starlette.requests import Request
from starlette.routing import Route

from rejex_stream.review.console.console import Console, whole_number
from rejex_stream.review.console.formatting import SENSOR_STATES
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.incidents.incident_store import held_streams
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.series import HOUR_MS, PipelineClock, pipeline_clock

_PERIODS = {"24": "24 hours", "168": "7 days", "720": "30 days"}  # by hours
_PAGE_SENSORS = 60
_MIN_EVENTS = 20
"""Of fewer events only anomalies are a state."""
_MAX_EXCESS = 4.0
_SUMS = (
    "sum(normal + anomaly + rejected) AS events, sum(anomaly) AS anomaly, "
    "sum(rejected) AS rejected, sum(ambiguous) AS ambiguous, sum(expected) AS expected"
)


class SensorState(NamedTuple):
    """One sensor over a period; `state` is a key of ``SENSOR_STATES``."""

    sensor: Row
    state: str
    events: int
    anomalies: int
    rejected: int
    expected: float  # anomalies, by the share of reference scores that count as some

    @property
    def excess(self) -> float:
        """Return how far the anomalies are above that, in standard deviations of chance."""
        return float((self.anomalies - self.expected) / max(self.expected, 1.0) ** 0.5)


def _state_of(one: SensorState, counts: Row) -> str:
    events, expected = one.events, counts["expected"] or 0.0
    if events >= _MIN_EVENTS and one.rejected - counts["ambiguous"] > events / 2:
        return "stuck"
    if one.anomalies >= events / 4:
        return "fault"
    if one.excess > _MAX_EXCESS:
        return "anomaly"
    # Three standard deviations of a count that follows the plan: chance alone rarely makes more.
    if events >= _MIN_EVENTS and counts["ambiguous"] > expected + 3 * max(expected, 1.0) ** 0.5:
        return "doubt"
    return "ok"


def sensor_states(
    connection: Connection,
    sensors: Sequence[Row],
    hours: int,
    held: Collection[tuple[str, str]],
    clock: PipelineClock,
) -> list[SensorState]:
    """Return the states of a pipeline's sensors over its last hours, in one grouped query.

    ``held`` (an incident holds its reference), ``ahead`` (its clock is, of that of its pipeline)
    and ``silent`` (quiet for a twelfth of the period and for five times as long as it usually is)
    come before what its verdicts say.
    """
    begin_ms = clock.now_ms - clock.now_ms % HOUR_MS - (hours - 1) * HOUR_MS
    rows = connection.execute(
        f"SELECT sensor_id, {_SUMS} FROM hour WHERE t_ms >= ? AND t_ms <= ? GROUP BY 1",
        (begin_ms, clock.now_ms),
    )
    counts_of = {row["sensor_id"]: row for row in rows}
    states = []
    for sensor in sensors:
        counts = counts_of.get(sensor["sensor_id"])
        one = SensorState(sensor, "none", 0, 0, 0, 0.0)
        if counts is not None and counts["events"]:
            share = (sensor["n_anomalies"] or 0) / (sensor["window_len"] or 1)
            numbers = counts["events"], counts["anomaly"], counts["rejected"]
            one = SensorState(sensor, "none", *numbers, counts["events"] * share)
        usual_ms = hours * HOUR_MS / one.events if one.events else 0.0
        if clock.ahead is not None and clock.ahead.sensor_id == sensor["sensor_id"]:
            state = "ahead"
        elif (sensor["pipeline"], sensor["stream_key"]) in held:
            state = "held"
        elif clock.now_ms - sensor["last_ms"] > max(hours * HOUR_MS / 12, 5 * usual_ms):
            state = "silent"
        else:
            state = _state_of(one, counts) if counts is not None and one.events else "none"
        states.append(one._replace(state=state))
    return states


def _states_of_all(
    connection: Connection, hours: int
) -> tuple[dict[str, PipelineClock], list[SensorState]]:
    sensors = connection.execute(
        "SELECT * FROM sensor WHERE last_ms IS NOT NULL ORDER BY pipeline, grp, sensor"
    )
    held = held_streams(connection)
    clocks, states = dict[str, PipelineClock](), list[SensorState]()
    for name, own in groupby(sensors, key=lambda row: str(row["pipeline"])):
        clock = pipeline_clock(connection, name)
        assert clock is not None, "its sensors have verdicts"
        clocks[name] = clock
        states += sensor_states(connection, list(own), hours, held.keys(), clock)
    return clocks, states


def flagged(connection: Connection, limit: int = 12) -> list[SensorState]:
    """Return sensors with far more anomalies than chance in the last day; the farthest first.

    A short fault that is clear rejects nothing and opens no incident: nobody is asked about it.
    """
    _, states = _states_of_all(connection, 24)
    flagged = [one for one in states if one.state in ("fault", "anomaly")]
    return sorted(flagged, key=lambda one: -one.excess)[:limit]


def _fleet(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    hours, chosen = (request.query_params.get(name, "") for name in ("hours", "state"))
    hours = hours if hours in _PERIODS else "24"
    first = whole_number(request.query_params.get("from", ""))
    clocks, states = _states_of_all(connection, int(hours))
    counts = Counter(one.state for one in states)
    listed = [one for one in states if chosen in ("", one.state)]
    shown = listed[first : first + _PAGE_SENSORS]
    by_pipeline = groupby(shown, key=lambda one: str(one.sensor["pipeline"]))
    return {
        "hours": hours,
        "periods": _PERIODS,
        "sensors": len(states),
        "listed": len(listed),
        "chosen": chosen,
        "first": first,
        "width": _PAGE_SENSORS,
        "held": held_streams(connection),
        "counts": counts,
        "state_words": SENSOR_STATES,
        "panels": [(name, clocks[name], list(own)) for name, own in by_pipeline],
    }


routes = [Route("/fleet", page("fleet.html", _fleet))]
