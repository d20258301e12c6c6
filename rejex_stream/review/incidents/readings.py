"""What an incident is about, in readings: how it is now, how it usually is, and where it goes.

A clear fault rejects nothing, so few of its readings come with review items: they are read from the
pipeline's own input, step by step around the event that opened it, bounded in all it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import starmap
from sqlite3 import Connection
from typing import NamedTuple

from rejex_stream.errors import ConfigError
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.incidents.incident_store import StoredIncident, open_incidents, sensors_of
from rejex_stream.review.queue import series
from rejex_stream.review.queue.database import note_down, noted, scalar
from rejex_stream.review.queue.label_report import pipelines_of
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.review.queue.series import DAY_MS, HOUR_MS, LABEL_CODES, pipeline_clock
from rejex_stream.types import Incident, IncidentState, Label, Position

_MOST_STEPS = 40
_MAX_EXCESS = 4.0


class Counted(NamedTuple):
    """The events of an incident since its onset; of `known` of them the reading is here."""

    end_ms: int  # event time of the newest event, or of the end
    events: int  # counted from the verdicts, or as published where there are none
    anomalies: int
    rejected: int
    known: int


class Card(NamedTuple):
    """What a person must know of an incident before anything else; counts as of now."""

    stored: StoredIncident
    counted: Counted
    deviations: tuple[series.Deviation, ...]


def stretch(connection: Connection, incident: Incident) -> tuple[int, int]:
    """Return where an incident begins and ends, in event time: so far, while it is open."""
    # A sensor whose clock runs ahead of its pipeline says nothing of that.
    if incident.state is IncidentState.CLOSED:
        return incident.onset_ms, incident.changed_ms
    rows = sensors_of(connection, incident)
    times = [incident.changed_ms, *(row["last_ms"] or 0 for row in rows)]
    clock = pipeline_clock(connection, rows[0]["pipeline"]) if rows else None
    if clock is not None and clock.ahead is not None:
        times = [t for t in times if t <= clock.now_ms + DAY_MS]
    return incident.onset_ms, max([incident.onset_ms, *times])


def _deviations(connection: Connection, incident: Incident, end_ms: int) -> list[series.Deviation]:
    # Channels that add to the score come first, by how much: a fault's may read as usual just now.
    speaking = [one.channel for one in incident.speaking]
    place = {name: at for at, name in enumerate(speaking)}
    deviations = [
        one._replace(speaks=one.reads.channel in place)
        for row in sensors_of(connection, incident)
        for one in series.deviations(
            connection,
            row["sensor_id"],
            row["sensor"],
            json.loads(row["channels"]),
            (incident.onset_ms, end_ms),
        )
    ]
    return sorted(
        deviations, key=lambda one: (place.get(one.reads.channel, len(place)), -one.distance)
    )


def published(incident: Incident) -> Counted:
    """Return the figures of an incident's newest record: of one that is over, the last word."""
    return Counted(
        incident.changed_ms, incident.n_events, incident.n_anomalies, incident.n_rejected, 0
    )


def counted(connection: Connection, incident: Incident) -> Counted:
    """Count an incident's events as they are now, or as published; O(events since its onset)."""
    onset_ms, end_ms = stretch(connection, incident)
    counts, known = dict.fromkeys(LABEL_CODES, 0), 0
    labels = {code: label for label, code in LABEL_CODES.items()}
    for row in sensors_of(connection, incident):
        for code, events, read in connection.execute(
            "SELECT label, count(*), count(channel_values) FROM point WHERE sensor_id = ? "
            "AND t_ms BETWEEN ? AND ? AND label IS NOT NULL GROUP BY label",
            (row["sensor_id"], onset_ms, end_ms),
        ):
            counts[labels[code]] += events
            known += read
    counts_now = Counted(
        end_ms, sum(counts.values()), counts[Label.ANOMALY], counts[Label.REJECTED], known
    )
    if counts_now.events >= incident.n_events:
        return counts_now
    # The console has heard of the incident and not yet of its events.
    return published(incident)._replace(end_ms=end_ms, known=known)


def card(connection: Connection, stored: StoredIncident) -> Card:
    """Return an incident as it is now; O(events since its onset)."""
    events = counted(connection, stored.incident)
    return Card(stored, events, tuple(_deviations(connection, stored.incident, events.end_ms)))


class Flagged(NamedTuple):
    """A sensor with far more anomalies than chance on the last day of its pipeline."""

    sensor: str
    events: int
    anomalies: int
    expected: float  # anomalies, by the share of reference scores that count as some

    @property
    def excess(self) -> float:
        """How far the anomalies are above that, in standard deviations of chance."""
        return float((self.anomalies - self.expected) / max(self.expected, 1.0) ** 0.5)


def flagged(connection: Connection, limit: int = 12) -> list[Flagged]:
    """Return sensors without an incident on that day that stand out, the farthest first.

    A short fault that is clear rejects nothing and opens no incident: nobody is asked about it.
    """
    sensors = list[Flagged]()
    for pipeline in pipelines_of(connection):
        clock = pipeline_clock(connection, pipeline)
        assert clock is not None, "its sensors have verdicts"
        begin_ms = clock.now_ms - clock.now_ms % HOUR_MS - DAY_MS + HOUR_MS
        rows = connection.execute(
            "SELECT sensor, sum(normal + anomaly + rejected), sum(anomaly), "
            "sum(normal + anomaly + rejected) * coalesce(1.0 * n_anomalies / window_len, 0) "
            "FROM hour JOIN sensor s USING (sensor_id) WHERE pipeline = ? AND t_ms BETWEEN ? AND ? "
            "AND NOT EXISTS (SELECT 1 FROM incident i WHERE i.pipeline = s.pipeline "
            "AND i.stream_key = s.stream_key AND (i.state <> 'closed' OR i.changed_ms > ?)) "
            "GROUP BY sensor_id",
            (pipeline, begin_ms, clock.now_ms, begin_ms),
        )
        sensors += [one for one in starmap(Flagged, rows) if one.excess > _MAX_EXCESS]
    return sorted(sensors, key=lambda one: -one.excess)[:limit]


def load(store: ReviewStore, source: ContextLoader, stored: StoredIncident) -> str:
    """Store one step of the input around an incident; returns why it was cut, or ""."""
    # Steps go outward from the event that opened it, until the stretch is known, with half of its
    # length before the onset; a step that met the end of the input is read again the next time.
    incident = stored.incident
    key = f"readings:{incident.id}"
    with store.database.read() as connection:
        onset_ms, end_ms = stretch(connection, incident)
        sensors = sensors_of(connection, incident)
        step = int(noted(connection, key) or 1)
        begin_ms = onset_ms - (end_ms - onset_ms) // 2
        without = (
            "SELECT 1 FROM point WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? "
            "AND channel_values IS NULL LIMIT 1"
        )
        missing = any(
            scalar(connection, without, (sensor["sensor_id"], begin_ms, end_ms))
            for sensor in sensors
        )
    if not missing or step > _MOST_STEPS or incident.silent:  # there is nothing to read
        return ""
    position = _opened_at(incident)
    cut, newest = "", 0
    for sensor in sensors:
        read = source.around(position, sensor["stream_key"], sensor["sensor"], step)
        cut = cut or read.cut
        newest = max([newest, *(t_ms for t_ms, _ in read.points)])
        store.add_readings(
            sensor["stream_key"],
            sensor["sensor"],
            read.channels,
            read.points,
            pipeline=stored.pipeline,
        )
    if not cut and newest < end_ms and newest:
        with store.database.write() as connection:
            note_down(connection, key, step + 1)
    return cut


_OF_ID = re.compile(r"(.*)-(\d+)-(\d+)(?:\.\d+)?(?:-silent-\d+)?")


def _opened_at(incident: Incident) -> Position:
    """Return the record that opened an incident, from its id."""
    parts = _OF_ID.fullmatch(incident.id)
    assert parts is not None, "the engine names incidents by their records"
    return Position(parts[1], int(parts[2]), int(parts[3]))


def load_next(store: ReviewStore, sources: Mapping[str, ContextLoader], tried: set[str]) -> bool:
    """Read one step for an open incident that lacks readings; returns whether there was one."""
    # Those in `tried` come again once all others had their turn.
    with store.database.read() as connection:
        waiting = [one for one in open_incidents(connection) if one.pipeline in sources][:50]
    fresh = [one for one in waiting if one.incident.id not in tried]
    if not fresh:
        tried.clear()
        return False
    tried.add(fresh[0].incident.id)
    with suppress(ConfigError):  # of an input that the config does not name any more
        load(store, sources[fresh[0].pipeline], fresh[0])
    return True
