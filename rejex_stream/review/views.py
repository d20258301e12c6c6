"""The queue as the screens show it: rows, counts and the line at the top, all from one snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rejex_stream.encode import decode_review
from rejex_stream.review import auditlog, series
from rejex_stream.review.explain import in_short
from rejex_stream.review.queue import TABS, QueueFilter, Tab, Viewer
from rejex_stream.review.settings import ReviewSettings
from rejex_stream.review.storage import Connection, Row
from rejex_stream.types import Verdict

__all__ = [
    "EpisodeRow",
    "Summary",
    "around",
    "is_blind",
    "queue_rows",
    "row_of",
    "row_spark",
    "summary",
    "unblinded",
]

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode in a list; times in UTC milliseconds.

    Attributes
    ----------
    short_why
        Why it is here, in a few words; does not tell the leaning where `blind`.
    held_by
        Who works on it now, or empty.
    blind
        Whether the viewer must not see yet what model and others think of it.
    """

    episode_id: str
    root_id: str
    sensor_id: int
    pipeline: str
    stream_key: str
    sensor: str
    group: str
    channels: tuple[str, ...]
    why: str
    status: str
    verdict: str | None
    start_ms: int
    end_ms: int
    n_events: int
    priority: int
    received_ms: int
    ready_ms: int
    decided_ms: int | None
    held_by: str
    held_until_ms: int
    snooze_until_ms: int | None
    snooze_growth: bool
    main: Verdict
    short_why: str
    blind: bool


def is_blind(settings: ReviewSettings, row: Row, viewer: Viewer) -> bool:
    """Say whether the leaning and other people's labels are still hidden from this viewer."""
    if row["status"] not in ("open", "needs_second"):
        return False
    if settings.blind == "always":
        return True
    return settings.blind == "second" and (row["status"] == "needs_second" or row["why"] == "audit")


def unblinded(
    connection: Connection,
    settings: ReviewSettings,
    lines: Sequence[auditlog.AuditRow],
    viewer: Viewer,
) -> list[auditlog.AuditRow]:
    """Return audit rows without what others said about episodes that wait for a second opinion."""
    if settings.blind == "off":
        return list(lines)
    waiting = {
        row[0]
        for row in connection.execute(
            "SELECT episode_id FROM episode WHERE status = 'needs_second'"
        )
    }
    return [
        line._replace(detail={})
        if line.subject in waiting and line.actor != viewer.reviewer
        else line
        for line in lines
    ]


def _main_event(connection: Connection, episode: str) -> Verdict:
    """Return the least stable event, which stands for the episode."""
    row = connection.execute(
        "SELECT item FROM event WHERE episode_id = ? ORDER BY confidence IS NULL, confidence, "
        "event_id LIMIT 1",
        (episode,),
    ).fetchone()
    return decode_review(row["item"]).verdict


def row_of(
    connection: Connection,
    row: Row,
    settings: ReviewSettings,
    viewer: Viewer,
    now_ms: int,
) -> EpisodeRow:
    """Return a row of the queue's query as the screens want it."""
    held = row["lease_owner"] is not None and row["lease_until_ms"] > now_ms
    verdict = _main_event(connection, row["episode_id"])
    blind = is_blind(settings, row, viewer)
    return EpisodeRow(
        episode_id=row["episode_id"],
        root_id=row["root_id"],
        sensor_id=row["sensor_id"],
        pipeline=row["pipeline"],
        stream_key=row["stream_key"],
        sensor=row["sensor"],
        group=row["grp"],
        channels=tuple(json.loads(row["channels"])),
        why=row["why"],
        status=row["status"],
        verdict=row["verdict"],
        start_ms=row["start_ms"],
        end_ms=row["end_ms"],
        n_events=row["n_events"],
        priority=row["priority"],
        received_ms=row["received_ms"],
        ready_ms=row["ready_ms"],
        decided_ms=row["decided_ms"],
        held_by=row["lease_owner"] if held else "",
        held_until_ms=row["lease_until_ms"] if held else 0,
        snooze_until_ms=row["snooze_until_ms"],
        snooze_growth=bool(row["snooze_growth"]),
        main=verdict,
        short_why=in_short(verdict, row["why"], blind=blind),
        blind=blind,
    )


def queue_rows(
    connection: Connection,
    chosen: QueueFilter,
    settings: ReviewSettings,
    viewer: Viewer,
    now_ms: int,
    *,
    limit: int = 500,
    offset: int = 0,
) -> Iterator[EpisodeRow]:
    """Yield the rows of a view, in order."""
    rows = list(chosen.rows(connection, viewer, now_ms, limit=limit, offset=offset))
    for row in rows:
        yield row_of(connection, row, settings, viewer, now_ms)


def around(
    connection: Connection,
    sensor_id: int,
    start_ms: int,
    end_ms: int,
    *,
    before: int = 120,
    after: int = 80,
) -> tuple[int, int]:
    """Return a stretch of time around an episode: so many readings before it and after it.

    Counted in readings, so that a meter read once an hour and a sensor at 100 Hz both look right.
    """
    first = connection.execute(
        "SELECT min(t_ms) FROM (SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms < ? "
        "ORDER BY t_ms DESC LIMIT ?) AS near",
        (sensor_id, start_ms, before),
    ).fetchone()[0]
    last = connection.execute(
        "SELECT max(t_ms) FROM (SELECT t_ms FROM point WHERE sensor_id = ? AND t_ms > ? "
        "ORDER BY t_ms LIMIT ?) AS near",
        (sensor_id, end_ms, after),
    ).fetchone()[0]
    low = start_ms if first is None else first
    high = end_ms if last is None else last
    pad = 30_000 if low == high else 0
    return low - pad, high + pad


def row_spark(connection: Connection, row: EpisodeRow) -> tuple[list[float], list[float], int, int]:
    """Return a small line around an episode (t, v), and the times it covers."""
    low, high = around(connection, row.sensor_id, row.start_ms, row.end_ms, before=40, after=25)
    channel = _speaking_channel(row)
    t, v = series.spark(connection, row.sensor_id, channel, low, high)
    return t, v, low, high


def _speaking_channel(row: EpisodeRow) -> int:
    """Return the channel that the evidence puts first, if there is any and it may be seen."""
    evidence = row.main.evidence
    if evidence is not None and evidence.channels and not row.blind:
        name = evidence.channels[0].channel
        if name in row.channels:
            return row.channels.index(name)
    return 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers every screen shows at the top.

    Attributes
    ----------
    counts
        Episodes per tab; ``done`` counts those decided since midnight UTC.
    version
        Changes whenever anything a list shows may have changed.
    """

    counts: dict[Tab, int]
    oldest_ms: int | None
    late: int
    undoable: str
    version: str
    since_ms: int


def summary(
    connection: Connection,
    settings: ReviewSettings,
    viewer: Viewer,
    now_ms: int,
    words: str = "",
) -> Summary:
    """Return the counts of all tabs for a viewer."""
    since = now_ms - now_ms % _DAY_MS
    counts: dict[Tab, int] = {}
    for tab in TABS:
        view = QueueFilter(tab, words, since_ms=since if tab == "done" else None)
        counts[tab] = view.count(connection, viewer, now_ms)
    query = QueueFilter().sql(viewer, now_ms)
    oldest, late = connection.execute(
        f"SELECT min(e.received_ms), count(CASE WHEN e.received_ms <= ? THEN 1 END) {query.source}",
        (now_ms - settings.sla_ms, *query.values),
    ).fetchone()
    action = connection.execute(
        "SELECT result FROM action WHERE reviewer = ? AND undone = 0 "
        "ORDER BY action_seq DESC LIMIT 1",
        (viewer.reviewer,),
    ).fetchone()
    moved = connection.execute(
        "SELECT (SELECT coalesce(max(seq), 0) FROM audit), "
        "(SELECT coalesce(max(event_id), 0) FROM event)"
    ).fetchone()
    # Claims lapse, snoozes end and episodes settle without anybody writing: look again in a while.
    version = f"{moved[0]}.{moved[1]}.{now_ms // 15_000}"
    return Summary(
        counts=counts,
        oldest_ms=oldest,
        late=late or 0,
        undoable=json.loads(action["result"])["message"] if action else "",
        version=version,
        since_ms=since,
    )
