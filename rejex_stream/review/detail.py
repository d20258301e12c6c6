"""One episode with everything a reviewer needs to decide it."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rejex_stream.encode import decode_review
from rejex_stream.review import auditlog, similar
from rejex_stream.review.explain import Explanation, explain
from rejex_stream.review.labels import LabelRecord, active_labels
from rejex_stream.review.queue import Viewer
from rejex_stream.review.refusals import Refusal
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.similar import ChannelDeviation, Similar
from rejex_stream.review.standing import records_of
from rejex_stream.review.storage import Connection
from rejex_stream.review.views import EpisodeRow, around, row_of
from rejex_stream.types import ReviewItem

__all__ = ["Bar", "Detail", "EventLine", "Neighbour", "episode_detail", "raw_record"]


class EventLine(NamedTuple):
    """One event of the episode."""

    event_id: int
    position: str
    item: ReviewItem
    raw_bytes: int


class Bar(NamedTuple):
    """How much one channel has to do with it.

    `share` in 0..1 is the length of the bar; `text` the number behind it.
    """

    channel: str
    share: float
    text: str


class Neighbour(NamedTuple):
    """Another sensor of the same group."""

    sensor_id: int
    sensor: str


@dataclass(frozen=True, slots=True)
class Detail:
    """What the episode screen shows.

    Attributes
    ----------
    bars
        What the model reacts to, channel by channel (from the evidence in the verdict).
    deviations
        How far each channel is from its own recent past.
    labels
        Labels that stand; empty while `row.blind`.
    similar
        Nearest labelled cases; empty while `row.blind`.
    history
        What happened to it, newest first; labels by others left out while `row.blind`.
    from_ms, to_ms
        The stretch of time the plots begin with.
    main_channel
        Index of the channel shown first.
    """

    row: EpisodeRow
    explanation: Explanation
    events: tuple[EventLine, ...]
    bars: tuple[Bar, ...]
    flip: str
    deviations: tuple[ChannelDeviation, ...]
    labels: tuple[LabelRecord, ...]
    similar: tuple[Similar, ...]
    history: tuple[auditlog.AuditRow, ...]
    parts: tuple[tuple[str, int, str], ...]
    neighbours: tuple[Neighbour, ...]
    from_ms: int
    to_ms: int
    main_channel: int
    gaps: int


def episode_detail(
    connection: Connection,
    episode: str,
    settings: ReviewSettings,
    viewer: Viewer,
    now_ms: int,
) -> Detail:
    """Return an episode.

    Raises
    ------
    Refusal
        ``unknown``.
    """
    found = connection.execute(
        "SELECT e.*, s.stream_key, s.sensor, s.grp, s.pipeline, s.channels "
        "FROM episode e JOIN sensor s USING (sensor_id) WHERE e.episode_id = ?",
        (episode,),
    ).fetchone()
    if found is None or found["status"] == "empty":
        raise Refusal("unknown", f"There is no episode {episode}.", episode)
    row = row_of(connection, found, settings, viewer, now_ms)
    deviations = similar.deviations(
        connection, row.sensor_id, row.channels, row.start_ms, row.end_ms
    )
    bars, flip = _evidence(row)
    main = (
        row.channels.index(bars[0].channel)
        if bars and bars[0].channel in row.channels
        else (deviations[0].column if deviations else 0)
    )
    low, high = around(connection, row.sensor_id, row.start_ms, row.end_ms)
    return Detail(
        row=row,
        explanation=explain(row.main, row.why, blind=row.blind),
        events=tuple(_events(connection, episode)),
        bars=bars,
        flip=flip,
        deviations=deviations,
        labels=() if row.blind else tuple(active_labels(records_of(connection, episode))),
        similar=() if row.blind else similar.similar(connection, episode),
        history=tuple(_history(connection, row, viewer)),
        parts=tuple(
            tuple(part)
            for part in connection.execute(
                "SELECT episode_id, n_events, status FROM episode "
                "WHERE root_id = ? AND episode_id <> ? AND status <> 'empty' ORDER BY start_ms",
                (row.root_id, episode),
            )
        ),
        neighbours=tuple(
            Neighbour(*tuple(other))
            for other in connection.execute(
                "SELECT sensor_id, sensor FROM sensor WHERE grp = ? AND sensor_id <> ? "
                "ORDER BY sensor LIMIT 8",
                (row.group, row.sensor_id),
            )
        ),
        from_ms=low,
        to_ms=high,
        main_channel=main,
        gaps=_gaps(connection, row, low, high),
    )


def _events(connection: Connection, episode: str) -> list[EventLine]:
    return [
        EventLine(
            row["event_id"],
            f"{row['topic']}-{row['partition']}-{row['offset']}",
            decode_review(row["item"]),
            row["raw_bytes"],
        )
        for row in connection.execute(
            "SELECT * FROM event WHERE episode_id = ? ORDER BY event_time_ms, event_id", (episode,)
        )
    ]


def _evidence(row: EpisodeRow) -> tuple[tuple[Bar, ...], str]:
    evidence = row.main.evidence
    if evidence is None or row.blind:
        return (), ""
    known = [c for c in evidence.channels if c.contribution is not None]
    largest = max((abs(c.contribution or 0.0) for c in known), default=0.0)
    bars = tuple(
        Bar(c.channel, max(0.0, (c.contribution or 0.0) / largest), f"{c.contribution:+.3g}")
        for c in known[:8]
        if largest > 0
    )
    flip = ""
    for channel in evidence.channels:
        if channel.channel == evidence.flip and channel.label_without is not None:
            flip = f"Without {channel.channel} the verdict would be {channel.label_without}."
    return bars, flip


def _history(connection: Connection, row: EpisodeRow, viewer: Viewer) -> list[auditlog.AuditRow]:
    lines = list(auditlog.rows(connection, subject=row.episode_id, limit=50))
    if row.root_id != row.episode_id:
        lines += list(auditlog.rows(connection, subject=row.root_id, limit=20))
    if row.blind:
        told = {"label", "undo", "adjudicate", "expire"}
        lines = [line for line in lines if line.action not in told or line.actor == viewer.reviewer]
    return sorted(lines, key=lambda line: -line.seq)


def _gaps(connection: Connection, row: EpisodeRow, low: int, high: int) -> int:
    """Return how often the readings pause for more than eight usual steps."""
    times = [
        found[0]
        for found in connection.execute(
            "SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms BETWEEN ? AND ? ORDER BY t_ms "
            "LIMIT 5000",
            (row.sensor_id, low, high),
        )
    ]
    steps = sorted(b - a for a, b in pairwise(times))
    usual = steps[len(steps) // 2] if steps else 0
    return sum(step > 8 * usual for step in steps) if usual else 0


def raw_record(connection: Connection, event_id: int) -> tuple[str, bytes]:
    """Return (position, whole record as it came) of an event.

    Raises
    ------
    Refusal
        ``unknown``.
    """
    row = connection.execute("SELECT * FROM event WHERE event_id = ?", (event_id,)).fetchone()
    if row is None:
        raise Refusal("unknown", f"There is no event {event_id}.")
    position = json.dumps([row["topic"], row["partition"], row["offset"]])
    return position, zlib.decompress(row["raw"])
