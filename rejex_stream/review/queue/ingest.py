"""Into the queue: review items, verdicts and readings, each counted once, in one transaction.

A batch and the position it was read up to are stored together. A crash, a redelivery or a second
reader therefore changes nothing: events are known by (topic, partition, offset).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import NamedTuple

import msgspec

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_incidents, encode_command, encode_incident, encode_review
from rejex_stream.errors import ConnectorError
from rejex_stream.incidents.situations import Onset, find_situations, onset_of
from rejex_stream.operate.incident_text import comes_first
from rejex_stream.plan.promises import Costs
from rejex_stream.rejection.window import joint_severity
from rejex_stream.review.queue import cases
from rejex_stream.review.queue.database import AT_POSITION, insert, note_down, scalar, scalars
from rejex_stream.review.queue.series import (
    COUNTS,
    DAY_MS,
    HOUR_MS,
    Point,
    SeriesBatch,
    expected_of,
)
from rejex_stream.types import (
    Command,
    CommandKind,
    CommandReply,
    ContextPoint,
    FollowUp,
    Incident,
    Partition,
    Position,
    ReviewItem,
    Status,
    Verdict,
    could_be_missed,
    drawable,
    in_mode,
)

_OF_VERDICT = "event_time_ms", "seq", "confidence", "reason", "severity"
_UPDATE_NEWER = (
    "ON CONFLICT (incident) DO UPDATE SET "
    "pipeline = excluded.pipeline, state = excluded.state, version = excluded.version, "
    "severity = excluded.severity, changed_ms = excluded.changed_ms, "
    "changed_seq = excluded.changed_seq, onset = excluded.onset, record = excluded.record WHERE "
    "(excluded.version, excluded.changed_seq) > (incident.version, incident.changed_seq)"
)
_MADE_ANEW = (
    "was another event before, so its topic or file was recreated: give what is there now a store "
    "of its own (review.store)."
)


class Span(NamedTuple):
    """What was read of one input without a break: from `first` up to, without, `next_offset`."""

    # Positions need not be dense. Whoever reads says from where on it has read, and so which of
    # them do not exist (aborted transactions, control records, what compaction removed); the store
    # only knows that nothing between two spans was skipped.

    first: int
    next_offset: int


@dataclass(slots=True)
class IngestCounts:
    """What became of what was read."""

    items: int = 0
    duplicates: int = 0
    verdicts: int = 0
    incidents: int = 0  # and plans
    invalid: int = 0
    first_invalid: str = ""

    def __iadd__(self, other: IngestCounts) -> IngestCounts:
        for name in ("items", "duplicates", "verdicts", "incidents", "invalid"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_invalid = self.first_invalid or other.first_invalid
        return self

    def refuse(self, reason: str) -> None:
        """Count a record that could not be read, and remember why the first one could not."""
        self.invalid += 1
        self.first_invalid = self.first_invalid or reason


def group_of(stream_key: str, sensor: str) -> str:
    """Return the group a sensor is shown under: the text before its first slash."""
    if stream_key != sensor:
        return stream_key
    return sensor.split("/", 1)[0]


def _group(connection: Connection, pipeline: str) -> None:
    """Note which incidents of a pipeline began together; O(incidents of a month, log of them)."""
    newest = "SELECT max(opened_ms) FROM incident WHERE pipeline = ?1"
    rows = connection.execute(
        "SELECT incident, situation, onset FROM incident WHERE pipeline = ?1 "
        f"AND (state <> 'closed' OR opened_ms > ({newest}) - ?2)",
        (pipeline, 30 * DAY_MS),
    ).fetchall()
    known = {row["incident"]: row["situation"] for row in rows}
    onsets = [msgspec.json.decode(row["onset"], type=Onset) for row in rows]
    streams = scalars(
        connection, "SELECT DISTINCT stream_key FROM sensor WHERE pipeline = ?", (pipeline,)
    )
    found = find_situations(onsets, streams, known)
    moved = [(one.id, id_) for one in found for id_ in one.members if known[id_] != one.id]
    connection.executemany("UPDATE incident SET situation = ? WHERE incident = ?", moved)
    sizes = {one.id: (one.group, one.streams) for one in found if len(one.members) > 1}
    note_down(connection, f"groups:{pipeline}", json.dumps(sizes))


def _group_cases(connection: Connection, pipeline: str) -> None:
    """Note which cases of siblings are one question, as incidents of one cause are one situation.

    An audited event is a draw of its own, and so is a part that was split off.
    """
    rows = connection.execute(
        "SELECT episode_id, s.sensor, start_ms, end_ms, step_ms, question FROM episode e "
        "JOIN sensor s USING (sensor_id) WHERE s.pipeline = ?1 AND why IN ('rejected', 'extreme') "
        "AND incident IS NULL AND root_id = episode_id AND status <> 'empty' AND start_ms > -?2 + "
        "(SELECT max(start_ms) FROM episode JOIN sensor USING (sensor_id) WHERE pipeline = ?1)",
        (pipeline, 30 * DAY_MS),
    ).fetchall()
    if not rows:
        return
    known = {row["episode_id"]: row["question"] for row in rows}
    sensor_of = {row["episode_id"]: row["sensor"] for row in rows}
    begun = [Onset(one, sensor, False, *times) for one, sensor, *times, _ in rows]
    sensors = scalars(connection, "SELECT sensor FROM sensor WHERE pipeline = ?", (pipeline,))
    times = [one.onset_ms for one in begun]
    first = "SELECT min(first_ms) FROM sensor WHERE pipeline = ?"
    times.append(scalar(connection, first, (pipeline,)) or times[0])
    span_ms = min(30 * DAY_MS, max(DAY_MS, max(times) - min(times)))
    questions = dict[str, str]()
    for one in find_situations(begun, sensors, known, span_ms):
        are_siblings = len({sensor_of[id_] for id_ in one.members}) > 1
        questions |= {id_: one.id if are_siblings else id_ for id_ in one.members}
    moved = [(one, id_) for id_, one in questions.items() if known[id_] != one]
    connection.executemany("UPDATE episode SET question = ? WHERE episode_id = ?", moved)


def next_offset(connection: Connection, partition: Partition) -> int | None:
    """Return where to go on reading `partition`; ``None`` if it was never read."""
    offset: int | None = scalar(
        connection, "SELECT next_offset FROM consumed WHERE topic = ? AND partition = ?", partition
    )
    return offset


def advance(connection: Connection, partition: Partition, span: Span) -> None:
    known = next_offset(connection, partition)
    if known is None or span.first > known:
        raise ConnectorError(
            f"The store holds {partition.topic}-{partition.partition} up to position {known}, and "
            f"was given what follows {span.first}: it is read again from there.",
            retriable=True,
        )
    # A second reader may be behind: what it brings is known already.
    connection.execute(
        "UPDATE consumed SET next_offset = max(next_offset, ?) WHERE topic = ? AND partition = ?",
        (span.next_offset, *partition),
    )


class IngestBatch:
    """One batch on its way into the store; use within a write transaction, then :meth:`finish`."""

    def __init__(
        self,
        connection: Connection,
        settings: Review,
        now_ms: int,
        pipeline: str = "",
        costs: Mapping[str, Costs] | None = None,
    ) -> None:
        self._costs = costs or {}
        self._pipeline = pipeline
        self._connection = connection
        self._settings = settings
        self._now_ms = now_ms
        self._sensors: dict[tuple[str, str], tuple[int, str]] = {}
        self.series = SeriesBatch()
        self._hours: dict[tuple[int, int], dict[str, float]] = {}
        self._first_ms: dict[int, int] = {}
        self._last_ms: dict[int, int | None] = {}
        self._accepted: dict[tuple[int, float, str], list[int]] = {}
        self._latest: dict[int, Verdict] = {}
        self._clock_wrong: dict[int, bool] = {}
        self._counted: dict[tuple[str, int, str], tuple[tuple[int, int], int]] = {}
        self._turned = False  # an incident, since the last look at which began together
        self.counts = IngestCounts()

    def sensor_id(self, stream_key: str, sensor: str, channels: Sequence[str] = ()) -> int:
        """Return the id of a sensor, which is made known if it is new."""
        names = json.dumps(list(channels), ensure_ascii=False) if channels else ""
        known = self._sensors.get((stream_key, sensor))
        if known is not None and (not names or known[1] == names):
            return known[0]
        row = self._connection.execute(
            "INSERT INTO sensor (stream_key, sensor, grp, pipeline, channels) "
            "VALUES (:key, :sensor, :grp, :pipeline, coalesce(nullif(:names, ''), '[]')) "
            "ON CONFLICT (stream_key, sensor) DO UPDATE SET "
            "channels = coalesce(nullif(:names, ''), sensor.channels), "
            "pipeline = coalesce(nullif(:pipeline, ''), sensor.pipeline) "
            "RETURNING sensor_id, channels, last_ms",
            {
                "key": stream_key,
                "sensor": sensor,
                "grp": group_of(stream_key, sensor),
                "pipeline": self._pipeline,
                "names": names,
            },
        ).fetchone()
        self._sensors[stream_key, sensor] = (row["sensor_id"], row["channels"])
        self._last_ms.setdefault(row["sensor_id"], row["last_ms"])
        return int(row["sensor_id"])

    # ------------------------------------------------------------------------- review items
    def item(self, item: ReviewItem) -> None:
        """Queue one review item; what is known changes nothing, another event there is refused."""
        verdict, connection = item.verdict, self._connection
        sensor_id = self.sensor_id(verdict.stream_key, verdict.sensor, item.channels)
        query = f"SELECT sensor_id, event_time_ms FROM event WHERE {AT_POSITION}"
        known = connection.execute(query, verdict.position).fetchone()
        if known is not None and tuple(known) == (sensor_id, verdict.event_time_ms):
            self.counts.duplicates += 1
            return
        if known is not None:  # and labels name events by position
            self.counts.refuse(f"{verdict.position} {_MADE_ANEW}")
            return
        evidence, limited = verdict.evidence, verdict.limited
        about = [one.channel for one in evidence.channels[:1]] if evidence else []
        about += [one.channel for one in limited.channels] if limited else []
        priority = comes_first(self._settings.priority_sensors, [verdict.sensor], about)
        worth = cases.worth_of(item, self._costs.get(self._pipeline, Costs()))
        episode = cases.assign(
            connection,
            cases.Arrival(
                **{name: getattr(verdict, name) for name in cases.OF_VERDICT},
                sensor_id=sensor_id,
                why=item.why,
                priority=int(priority),
                received_ms=self._now_ms,
                worth=worth,
                context=item.context,
            ),
            self._settings,
        )
        insert(
            connection,
            "event",
            **verdict.position._asdict(),
            sensor_id=sensor_id,
            episode_id=episode,
            received_ms=self._now_ms,
            item=encode_review(msgspec.structs.replace(item, context=())),
            **{name: getattr(verdict, name) for name in _OF_VERDICT},
            worth=worth,
        )
        width = len(item.channels)
        self._remember(sensor_id, width, item.context)
        values = item.values if width and len(item.values) == width else None
        self._add_judged(sensor_id, verdict, values)
        if item.why == "extreme":
            records = "SELECT record FROM incident WHERE stream_key = ?"
            for record in scalars(connection, records, (verdict.stream_key,)):
                incident = decode_incidents(record)
                assert isinstance(incident, Incident), "replies have a table of their own"
                cases.join_incident(connection, incident, self._now_ms)
        self.counts.items += 1

    def follow_up(self, after: FollowUp) -> None:
        """Add what came after an item to its sensor's series; repeated it changes nothing."""
        sensor_id = self.sensor_id(after.stream_key, after.sensor, after.channels)
        self._remember(sensor_id, len(after.channels), after.points)

    def _remember(self, sensor_id: int, width: int, points: Iterable[ContextPoint]) -> None:
        for point in points:
            values = point.values if len(point.values) == width else None
            known = Point(point.event_time_ms, values, point.score, point.label)
            self.series.add(sensor_id, known)

    # ----------------------------------------------------------------------------- verdicts
    def verdict(self, verdict: Verdict) -> None:
        topic, partition, *place = verdict.position
        stream = topic, partition, in_mode(verdict.stream_key, verdict.mode)
        # Late events come in order of their time, so a higher number is new as well; one that was
        # forgotten begins again at 0, behind all its places.
        last, seq = self._last_counted(stream)
        if tuple(place) <= last and verdict.seq <= seq:
            self.counts.duplicates += 1
            return
        self._counted[stream] = max(last, verdict.position[2:]), verdict.seq
        sensor_id = self.sensor_id(verdict.stream_key, verdict.sensor)
        hour_ms = verdict.event_time_ms - verdict.event_time_ms % HOUR_MS
        hour = self._hours.setdefault((sensor_id, hour_ms), dict.fromkeys(COUNTS, 0))
        hour[str(verdict.label)] += 1
        if could_be_missed(verdict):
            p, why = drawable(verdict)
            counted = self._accepted.setdefault((hour_ms, p, why), [0, 0])
            counted[0] += 1
            counted[1] += bool(verdict.audit and verdict.audit.drawn)
        self._latest[sensor_id] = verdict
        if verdict.status in (Status.CLOCK_BEGINS, Status.CLOCK_ENDS):
            self._clock_wrong[sensor_id] = verdict.status is Status.CLOCK_BEGINS
        self._first_ms.setdefault(sensor_id, verdict.event_time_ms)
        last_ms = self._last_ms[sensor_id]
        # What is a little late takes nothing back; a clock that ran ahead and was set right does.
        if last_ms is None or not last_ms - DAY_MS <= verdict.event_time_ms < last_ms:
            self._last_ms[sensor_id] = verdict.event_time_ms
        self._add_judged(sensor_id, verdict, None)
        self.counts.verdicts += 1

    def _add_judged(
        self, sensor_id: int, verdict: Verdict, values: tuple[float | None, ...] | None
    ) -> None:
        t_ms, expected = verdict.event_time_ms, expected_of(verdict)
        self.series.add(sensor_id, Point(t_ms, values, verdict.score, verdict.label, expected))

    def _last_counted(self, stream: tuple[str, int, str]) -> tuple[tuple[int, int], int]:
        known = self._counted.get(stream)
        if known is None:
            row = self._connection.execute(
                "SELECT last_offset, last_reading, last_seq FROM counted "
                "WHERE topic = ? AND partition = ? AND stream = ?",
                stream,
            ).fetchone() or (-1, 0, -1)
            known = self._counted[stream] = (row[0], row[1]), row[2]
        return known

    # ---------------------------------------------------------------------------- incidents
    def incident(self, published: Incident | tuple[Position, CommandReply]) -> None:
        if isinstance(published, Incident):
            is_new = self._store_incident(published)
            if is_new:
                cases.join_incident(self._connection, published, self._now_ms)
        else:
            position, reply = published
            fields = msgspec.structs.asdict(reply) | {"position": str(position)}
            stored = insert(self._connection, "reply", "ON CONFLICT DO NOTHING", **fields)
            is_new = stored.rowcount > 0
        self.counts.incidents += is_new
        self.counts.duplicates += not is_new

    def _store_incident(self, incident: Incident) -> bool:
        connection, record = self._connection, encode_incident(incident)
        change = insert(
            connection,
            "incident_change",
            "ON CONFLICT DO NOTHING",
            incident=incident.id,
            version=incident.version,
            record=record,
        )
        # A value beyond a limit comes first, however ordinary its scores are.
        severity = (
            math.inf
            if incident.passed_limit
            else joint_severity(incident.peak_severity, incident.n_anomalies)
        )
        newest = insert(
            connection,
            "incident",
            _UPDATE_NEWER,
            incident=incident.id,
            pipeline=self._pipeline,
            stream_key=incident.stream_key,
            state=incident.state,
            version=incident.version,
            severity=severity,
            changed_ms=incident.changed_ms,
            changed_seq=incident.changed_seq,
            opened_ms=incident.opened_ms,
            onset=msgspec.json.encode(onset_of(incident)).decode(),
            situation=incident.id,
            record=record,
        )
        self._turned |= change.rowcount > 0
        return change.rowcount > 0 or newest.rowcount > 0

    def command(self, command: Command) -> None:
        """Know planned work that was told to the pipeline elsewhere, and what took it back."""
        if command.kind not in (CommandKind.PLANNED, CommandKind.CANCEL):
            return
        at_ms = self._now_ms if command.given_ms is None else command.given_ms
        self.counts.incidents += self._connection.execute(
            "INSERT INTO answer (command, incident, pipeline, record, given_ms, leaving_ms, "
            "sent_ms) VALUES (?1, '', ?2, ?3, ?4, ?4, ?4) ON CONFLICT DO NOTHING",
            (command.id, self._pipeline, encode_command(command), at_ms),
        ).rowcount

    # ------------------------------------------------------------------------------- finish
    def finish(self, spans: Mapping[Partition, Span] | None = None) -> IngestCounts:
        """Write what was gathered and what it was read from; returns the counts."""
        connection = self._connection
        self.series.write(connection)
        if self._turned:
            _group(connection, self._pipeline)
        if self.counts.items:
            _group_cases(connection, self._pipeline)
        connection.executemany(
            f"INSERT INTO hour (sensor_id, t_ms, {', '.join(COUNTS)}) VALUES (?,?,?,?,?) "
            "ON CONFLICT (sensor_id, t_ms) DO UPDATE SET "
            + ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS),
            [(*key, *(hour[name] for name in COUNTS)) for key, hour in self._hours.items()],
        )
        connection.executemany(
            "INSERT INTO accepted VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
            "n = n + excluded.n, drawn = drawn + excluded.drawn",
            [(self._pipeline, *key, n, drawn) for key, (n, drawn) in self._accepted.items()],
        )
        connection.executemany(
            "UPDATE sensor SET first_ms = coalesce(first_ms, ?), last_ms = ?, "
            "window_len = coalesce(nullif(?, 0), window_len), "
            "n_anomalies = coalesce(nullif(?, 0), n_anomalies) WHERE sensor_id = ?",
            [
                (self._first_ms[one], self._last_ms[one], v.window_len, v.n_anomalies, one)
                for one, v in self._latest.items()
            ],
        )
        connection.executemany(
            "UPDATE sensor SET clock_wrong = ? WHERE sensor_id = ?",
            [(is_wrong, sensor_id) for sensor_id, is_wrong in self._clock_wrong.items()],
        )
        connection.executemany(
            "INSERT OR REPLACE INTO counted VALUES (?,?,?,?,?,?)",
            [(*stream, *place, seq) for stream, (place, seq) in self._counted.items()],
        )
        for partition, span in (spans or {}).items():
            advance(connection, partition, span)
        if self.counts.items or self.counts.verdicts or self.counts.incidents:
            note_down(connection, f"arrived:{self._pipeline}", self._now_ms)
        return self.counts
