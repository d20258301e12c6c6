"""The map of sensors: what each was called, stretch by stretch of event time.

Rates, limits and bounds over time are Grafana's (`rejex-stream dashboard`); here is which sensor to
look at. Every pipeline ends at the time that its own sensors have reached, so that one clock that
runs ahead empties nobody else's row.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from sqlite3 import Connection, Row
from typing import NamedTuple

from starlette.requests import Request
from starlette.routing import Route

from rejex_stream.review.console.console import Console, whole_number
from rejex_stream.review.console.formatting import CELL_STATES, SENSOR_STATES
from rejex_stream.review.console.pages import Context, page
from rejex_stream.review.incidents.incident_store import held_streams
from rejex_stream.review.queue.database import Viewer
from rejex_stream.review.queue.listing import QueueFilter
from rejex_stream.review.queue.series import HOUR_MS, PipelineClock, pipeline_clock

_BUCKETS = {"24": (HOUR_MS, 24), "168": (7 * HOUR_MS, 24), "720": (30 * HOUR_MS, 24)}
_PAGE_SENSORS = 60
_FEWEST = 20
"""Of fewer events nothing is said but whether there was an anomaly."""


class Stretch(NamedTuple):
    """Buckets of event time, from `from_ms` on, between full hours."""

    from_ms: int
    width_ms: int
    buckets: int

    @property
    def to_ms(self) -> int:
        """Where the last one ends."""
        return self.from_ms + self.width_ms * self.buckets


class Cell(NamedTuple):
    """One sensor over one bucket; `state` is a key of ``CELL_STATES``."""

    t_ms: int
    state: str
    events: int
    anomalies: int
    rejected: int


class FleetRow(NamedTuple):
    """One sensor with its cells."""

    sensor: Row
    cells: list[Cell]

    def count(self, state: str) -> int:
        """Return how many cells are in a state."""
        return [cell.state for cell in self.cells].count(state)


_SUMS = (
    "sum(normal + anomaly + rejected) AS events, sum(anomaly) AS anomaly, "
    "sum(rejected) AS rejected, sum(ambiguous) AS ambiguous, sum(expected) AS expected"
)


def _cell(found: Row | None, t_ms: int) -> Cell:
    if found is None or not found["events"]:
        return Cell(t_ms, "none", 0, 0, 0)
    events, anomalies, rejected = found["events"], found["anomaly"], found["rejected"]
    unranked = rejected - found["ambiguous"]
    expected = found["expected"] or 0.0
    state = "ok"
    if events >= _FEWEST and unranked > events / 2:
        state = "stuck"
    elif anomalies and anomalies >= events / 4:
        state = "fault"
    elif anomalies:
        state = "anomaly"
    # Three standard deviations of a count that follows the plan: chance alone rarely makes more.
    elif events >= _FEWEST and found["ambiguous"] > expected + 3 * max(expected, 1.0) ** 0.5:
        state = "doubt"
    return Cell(t_ms, state, events, anomalies, rejected)


def rows_of(connection: Connection, sensors: Sequence[Row], stretch: Stretch) -> list[FleetRow]:
    """Return the cells of some sensors; O(hours with events)."""
    marks = ",".join("?" * len(sensors))
    counted = {
        (row["sensor_id"], row["bucket"]): row
        for row in connection.execute(
            f"SELECT sensor_id, (t_ms - ?) / ? AS bucket, {_SUMS} FROM hour "
            f"WHERE t_ms >= ? AND t_ms < ? AND sensor_id IN ({marks}) GROUP BY 1, 2",
            (
                *(stretch.from_ms, stretch.width_ms, stretch.from_ms, stretch.to_ms),
                *(row["sensor_id"] for row in sensors),
            ),
        )
    }
    return [
        FleetRow(
            row,
            [
                _cell(counted.get((row["sensor_id"], i)), stretch.from_ms + i * stretch.width_ms)
                for i in range(stretch.buckets)
            ],
        )
        for row in sensors
    ]


def states(
    connection: Connection,
    sensors: Sequence[Row],
    stretch: Stretch,
    held: Collection[tuple[str, str]],
    clock: PipelineClock,
) -> dict[int, str]:
    """Return in which state each sensor is over a whole stretch, by its id, in one grouped query.

    A key of ``SENSOR_STATES``: ``held`` (an incident holds its reference), ``ahead`` (its clock
    is, of that of its pipeline), ``silent`` (quiet for two buckets and for five times as long as it
    usually is), or else as a cell's.
    """
    counted = {
        row["sensor_id"]: row
        for row in connection.execute(
            f"SELECT sensor_id, {_SUMS} FROM hour WHERE t_ms >= ? AND t_ms < ? GROUP BY 1",
            (stretch.from_ms, stretch.to_ms),
        )
    }
    found = {}
    for row in sensors:
        own = counted.get(row["sensor_id"])
        events = own["events"] if own is not None else 0
        usual = stretch.width_ms * stretch.buckets / events if events else 0.0
        if clock.ahead is not None and clock.ahead.sensor_id == row["sensor_id"]:
            state = "ahead"
        elif (row["pipeline"], row["stream_key"]) in held:
            state = "held"
        elif clock.now_ms - row["last_ms"] > max(2 * stretch.width_ms, 5 * usual):
            state = "silent"
        else:
            state = _cell(own, stretch.from_ms).state
        found[row["sensor_id"]] = state
    return found


def _by_pipeline(sensors: Sequence[Row]) -> dict[str, list[Row]]:
    ordered = sorted(sensors, key=itemgetter("pipeline"))
    return {name: list(rows) for name, rows in groupby(ordered, itemgetter("pipeline"))}


def _groups(
    rows: Sequence[FleetRow], waiting: Mapping[tuple[str, str], int]
) -> list[tuple[str, list[FleetRow], str, int]]:
    """Return (group, its sensors, address of its queue, cases there)."""
    groups: dict[str, list[FleetRow]] = {}
    for row in rows:
        groups.setdefault(row.sensor["grp"], []).append(row)
    return [
        (
            group,
            sensors,
            QueueFilter(words=shlex.quote(f"group:{group}")).address(),
            waiting["group", group],
        )
        for group, sensors in groups.items()
    ]


def _fleet(console: Console, connection: Connection, viewer: Viewer, request: Request) -> Context:
    hours, state = (request.query_params.get(name, "") for name in ("hours", "state"))
    hours = hours if hours in _BUCKETS else "24"
    width, buckets = _BUCKETS[hours]
    first = whole_number(request.query_params.get("from", ""))
    sensors = connection.execute(
        "SELECT * FROM sensor WHERE last_ms IS NOT NULL ORDER BY pipeline, grp, sensor"
    ).fetchall()
    held = held_streams(connection)
    clocks, stretches = dict[str, PipelineClock](), dict[str, Stretch]()
    state_of: dict[int, str] = {}
    for name, own in _by_pipeline(sensors).items():
        clock = pipeline_clock(connection, name)
        assert clock is not None, "its sensors have verdicts"
        last = clock.now_ms
        clocks[name] = clock
        stretches[name] = Stretch(last - last % width - (buckets - 1) * width, width, buckets)
        state_of |= states(connection, own, stretches[name], held.keys(), clock)
    chosen = [row for row in sensors if state in ("", state_of[row["sensor_id"]])]
    shown = _by_pipeline(chosen[first : first + _PAGE_SENSORS])
    counts = Counter(state_of.values())
    waiting = QueueFilter().waiting(connection, viewer, console.store.now_ms())
    return {
        "hours": hours,
        "bucket_ms": width,
        "sensors": len(sensors),
        "chosen": len(chosen),
        "state": state,
        "first": first,
        "width": _PAGE_SENSORS,
        "held": held,
        "states": [
            (one, words, counts[one]) for one, words in SENSOR_STATES.items() if counts[one]
        ],
        "state_of": state_of,
        "state_words": SENSOR_STATES,
        "cell_states": CELL_STATES,
        "panels": [
            {
                "name": name,
                "clock": clocks[name],
                "axis": [stretches[name].from_ms + i * width for i in range(buckets)],
                "groups": _groups(rows_of(connection, own, stretches[name]), waiting),
            }
            for name, own in shown.items()
        ],
    }


routes = [Route("/fleet", page("fleet.html", _fleet))]
