"""What is in the queue, for whom: one query object behind every count and every list.

A number on a tab and the rows behind it come from the same :class:`QueueFilter`, and all of a
screen from one snapshot, so they cannot disagree.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

from rejex_stream.config.reviewing import Review
from rejex_stream.encode import decode_review
from rejex_stream.encode.label_records import HumanVerdict
from rejex_stream.readable import ChannelReading
from rejex_stream.rejection import label_of, rank_edges
from rejex_stream.rejection.window import grade
from rejex_stream.review.queue import database, series
from rejex_stream.review.queue.database import Refusal, Viewer, scalar, scalars
from rejex_stream.types import Label, Reason, ReviewItem, Status, Verdict

Tab: TypeAlias = Literal["ready", "mine", "claimed", "waiting", "disputed", "done", "all"]
TABS: tuple[Tab, ...] = ("ready", "mine", "claimed", "waiting", "disputed", "done", "all")
_ASKED = TABS[:4]  # where cases of siblings that came together are one row

# As it is asked: by worth where people are asked so many cases a day, else the oldest first.
# Audited ones come first: those that nobody has called normal count as missed.
_BY_WORTH = "capacity() IS NOT NULL"
SORTS = {
    "asked": f"{_BY_WORTH} AND e.why <> 'audit', e.priority DESC, "
    f"CASE WHEN {_BY_WORTH} THEN -e.worth END, e.received_ms, e.start_ms, e.episode_id",
    "oldest": "e.priority DESC, e.received_ms, e.start_ms, e.episode_id",
    "newest": "e.received_ms DESC, e.start_ms DESC, e.episode_id",
    "doubtful": "e.confidence IS NULL, e.confidence, e.received_ms, e.episode_id",
    "severity": "e.severity IS NULL, e.severity DESC, e.received_ms, e.episode_id",
    "worth": "e.why <> 'audit', e.worth DESC, e.received_ms, e.episode_id",
    "size": "e.n_events DESC, e.received_ms, e.episode_id",
    "sensor": "s.sensor, e.start_ms, e.episode_id",
    "decided": "e.decided_ms IS NULL, e.decided_ms DESC, e.episode_id",
}

_DAY_MS = 86_400_000
_MOST_TOGETHER = 50  # cases of siblings on one page


class Listed(NamedTuple):
    """As much of a case as a verdict on it names."""

    episode_id: str
    n_events: int
    status: str
    sensor: str


class QueueQuery(NamedTuple):
    """``FROM … WHERE …`` with its values, and the order."""

    source: str
    values: dict[str, Any]
    order: str


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """A view of the queue, as the address bar has it."""

    # `ready` (asked today: open, settled, of no incident that asks itself, within the day's
    # capacity, not held by others or given to them), `mine`, `claimed` (by others, or theirs),
    # `waiting` (all else that is open), `disputed`, `done`, `all`
    tab: Tab = "ready"
    # A filter as typed: bare words look in the sensor's name; `group:`, `sensor:`, `why:audit`,
    # `verdict:`, `by:`, `for:`; `-` before a word: without
    words: str = ""
    sort: str = ""  # A key of `SORTS`
    since_ms: int | None = None  # `done` only: decided at or after this time

    def address(self) -> str:
        parts: dict[str, str | int] = {"tab": self.tab}
        if self.words:
            parts["q"] = self.words
        if self.sort:
            parts["sort"] = self.sort
        if self.since_ms is not None:
            parts["since"] = self.since_ms
        return "/queue?" + urlencode(parts)

    def sql(self, viewer: Viewer, now_ms: int) -> QueueQuery:
        values: dict[str, Any] = {
            "me": viewer.reviewer,
            "now": now_ms,
            "since": self.since_ms,
            "day": now_ms - now_ms % _DAY_MS,
        }
        where = _TAB_CLAUSES[self.tab]
        if self.tab == "done" and self.since_ms is not None:
            where += " AND e.decided_ms >= :since"
        for number, (sign, field, word) in enumerate(parse_filter(self.words)):
            clause = _WORD_CLAUSES[field].replace("?", f":word{number}")
            # What is not there, such as a verdict, is not what was asked for either.
            where += f" {'AND NOT' if sign else 'AND'} coalesce({clause}, 0)"
            values[f"word{number}"] = word
        default = "decided" if self.tab == "done" else "asked"
        name = self.sort if self.sort in SORTS else default
        source = f"FROM episode e JOIN sensor s USING (sensor_id) WHERE {where}"
        return QueueQuery(source, values, f"ORDER BY {SORTS[name]}")

    @property
    def unit(self) -> str:
        """Return what a row is: a question of siblings, where something is asked, else a case."""
        return "e.question" if self.tab in _ASKED else "e.episode_id"

    def count(self, connection: Connection, viewer: Viewer, now_ms: int) -> int:
        query = self.sql(viewer, now_ms)
        number = f"SELECT count(DISTINCT {self.unit}) {query.source}"
        return int(scalar(connection, number, query.values))

    def oldest(self, connection: Connection, viewer: Viewer, now_ms: int) -> int | None:
        """Return when the oldest case of this view came; ``None`` without one."""
        query = self.sql(viewer, now_ms)
        received_ms: int | None = scalar(
            connection, f"SELECT min(e.received_ms) {query.source}", query.values
        )
        return received_ms

    def ids(
        self, connection: Connection, viewer: Viewer, now_ms: int, limit: int = 10_000
    ) -> list[tuple[str, int, str]]:
        """Return (episode id, events, status) of every episode in the view, by question."""
        questions = self.questions(connection, viewer, now_ms, limit)
        return [one[:3] for those in questions for one in those]

    def questions(
        self, connection: Connection, viewer: Viewer, now_ms: int, limit: int = 10_000
    ) -> list[list[Listed]]:
        """Return the cases of the view by question; a question stands where its first case does."""
        query, questions = self.sql(viewer, now_ms), dict[str, list[Listed]]()
        rows = connection.execute(
            f"SELECT {self.unit}, e.episode_id, e.n_events, e.status, s.sensor {query.source} "
            f"{query.order} LIMIT :limit",
            query.values | {"limit": limit},
        )
        for question, *case in rows:
            questions.setdefault(question, []).append(Listed(*case))
        return list(questions.values())

    def rows(
        self,
        connection: Connection,
        viewer: Viewer,
        now_ms: int,
        *,
        limit: int = 500,
        offset: int = 0,
    ) -> list[Row]:
        """Return the first case of each question, and as `members` all of them."""
        query = self.sql(viewer, now_ms)
        placed = f"SELECT {_CASE}, row_number() OVER ({query.order}) AS place {query.source}"
        listed = f"json_group_array(json_array({', '.join(Listed._fields)}))"
        return connection.execute(
            f"SELECT *, min(place), {listed} AS members FROM ({placed}) AS e "
            f"GROUP BY {self.unit} ORDER BY place LIMIT :limit OFFSET :offset",
            query.values | {"limit": limit, "offset": offset},
        ).fetchall()


_WORD_CLAUSES = {
    # Found where taking it away makes a difference: nothing in it is a wildcard.
    "": "replace(lower(s.sensor), lower(?), '') <> lower(s.sensor)",
    "group": "s.grp = ?",
    "sensor": "s.sensor = ?",
    "why": "e.why = ?",
    "verdict": "e.verdict = ?",
    "for": "e.assigned = ?",
    "by": "EXISTS (SELECT 1 FROM label l WHERE l.episode_id = e.episode_id AND l.reviewer = ?)",
}


def parse_filter(text: str) -> tuple[tuple[str, str, str], ...]:
    """Split a filter as typed into (``-`` or nothing, field, value); bare words have no field."""
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote while typing
        words = text.replace('"', " ").replace("'", " ").split()
    parts = []
    for word in filter(None, words):
        sign, rest = ("-", word[1:]) if word.startswith("-") and len(word) > 1 else ("", word)
        name, colon, value = rest.partition(":")
        known = bool(colon and name in _WORD_CLAUSES)
        parts.append((sign, name, value) if known else (sign, "", rest))
    return tuple(parts)


# A second opinion is work for everybody but the first reviewer.
_WORK = (
    "(e.status = 'open' OR (e.status = 'needs_second' AND NOT EXISTS ("
    "SELECT 1 FROM label l JOIN label_event le USING (label_seq) JOIN event v USING (event_id) "
    "WHERE v.episode_id = e.episode_id AND l.reviewer = :me AND l.kind = 'label' AND NOT EXISTS "
    "(SELECT 1 FROM label r WHERE r.kind = 'retract' AND r.target = l.label_id))))"
)
_SETTLED = "e.ready_ms <= :now"
# An incident asks its own question while it lasts, and who answered it is not asked again.
_NOT_INCIDENT = (
    "NOT (EXISTS (SELECT 1 FROM incident i WHERE i.incident = e.incident AND i.state <> 'closed') "
    "OR EXISTS (SELECT 1 FROM answer a JOIN reply r USING (command) "
    "WHERE a.incident = e.incident AND r.accepted))"
)
_HELD = "e.lease_owner IS NOT NULL AND e.lease_until_ms > :now"
_OTHERS = f"(({_HELD} AND e.lease_owner <> :me) OR coalesce(e.assigned, :me) <> :me)"
# Whatever people are asked counts: cases, answers to incidents, incidents that wait for one, and
# cases that others have before them now.
_ASKED_TODAY = (
    "(SELECT count(DISTINCT e.question) FROM label l JOIN episode e USING (episode_id) "
    "WHERE l.created_ms >= :day AND l.source = 'human' AND l.kind = 'label') "
    "+ (SELECT count(*) FROM answer WHERE given_ms >= :day "
    "AND withdrawn_ms IS NULL AND command NOT LIKE '%.%' AND incident <> '') "
    "+ (SELECT count(DISTINCT situation) FROM incident i WHERE state = 'open' AND NOT "
    "EXISTS (SELECT 1 FROM answer a WHERE a.incident = i.incident AND withdrawn_ms IS NULL))"
    "+ (SELECT count(DISTINCT e.question) FROM episode e "
    "WHERE e.status IN ('open', 'needs_second') "
    f"AND {_HELD} AND e.lease_owner <> :me)"
)
_LEFT = f"CASE WHEN capacity() IS NULL THEN -1 ELSE max(0, capacity() - ({_ASKED_TODAY})) END"
_READY = f"{_WORK} AND {_SETTLED} AND {_NOT_INCIDENT} AND NOT {_OTHERS}"
# Of the cases that this person may answer, so that what waits for somebody else takes no room; by
# turns an audited one and one by worth, so that neither kind takes all of it.
_TODAY = (
    "(capacity() IS NULL OR e.question IN (SELECT question FROM (SELECT e.question, "
    "e.why <> 'audit' AS by_worth, row_number() OVER (PARTITION BY e.why <> 'audit' ORDER BY "
    "max(e.priority) DESC, sum(e.worth) DESC, min(e.received_ms), e.question) AS turn "
    f"FROM episode e WHERE {_READY} GROUP BY e.question) ORDER BY turn, by_worth LIMIT {_LEFT}))"
)

_TAB_CLAUSES: dict[Tab, str] = {
    "ready": f"{_READY} AND {_TODAY}",
    "mine": f"{_WORK} AND (({_HELD} AND e.lease_owner = :me) OR e.assigned = :me)",
    "claimed": f"{_WORK} AND {_OTHERS}",
    "waiting": f"{_WORK} AND NOT {_OTHERS} AND NOT ({_READY} AND {_TODAY})",
    "disputed": "e.status = 'disputed'",
    "done": "e.status IN ('done', 'expired')",
    "all": "e.status <> 'empty'",
}


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode in a list; times in UTC milliseconds."""

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
    held_by: str  # who works on it now, or empty
    held_until_ms: int
    assigned: str | None  # whose it is, or `None`
    # the one that its events, but for those before the evidence was in, are of
    incident: str | None
    severity: float | None  # the largest of its events, where they have one
    main: Verdict
    reading: ChannelReading | None  # of the channel that its evidence puts first; not where `blind`
    short_why: str  # why it is here, in a few words; does not tell the leaning where `blind`
    blind: bool  # whether the viewer must not see yet what model and others think of it
    others: tuple[Listed, ...]  # of its question and in the same list, by sensor


_MADE = {
    "group", "channels", "held_by", "held_until_ms", "main", "reading", "short_why", "blind",
    "others",
}  # fmt: skip
_AS_STORED = [one.name for one in fields(EpisodeRow) if one.name not in _MADE]


def is_blind(settings: Review, row: Row, viewer: Viewer) -> bool:
    """Return whether the leaning and other people's labels are still hidden from this viewer."""
    if row["status"] not in ("open", "needs_second", "held"):
        return False
    if settings.blind == "always":
        return True
    return settings.blind == "second" and (row["status"] == "needs_second" or row["why"] == "audit")


def unblinded(
    connection: Connection, settings: Review, lines: Sequence[database.AuditRow], viewer: Viewer
) -> list[database.AuditRow]:
    """Return audit rows without what others said about episodes that wait for a second opinion."""
    if settings.blind == "off":
        return list(lines)
    second = "SELECT episode_id FROM episode WHERE status = 'needs_second'"
    waiting = set(scalars(connection, second))
    return [
        line._replace(detail={})
        if line.subject in waiting and line.actor != viewer.reviewer
        else line
        for line in lines
    ]


def model_leaning(verdict: Verdict) -> HumanVerdict | None:
    """Return what the model would say had it to choose; ``None`` where it has no rank to go by."""
    # The label of an empty band: an anomaly iff the rank lies among the top r of n.
    n, r = verdict.window_len, verdict.n_anomalies
    if verdict.rank is None or not n or not r:
        return None
    edges = rank_edges(n, r, lower=1, upper=0)
    return "anomaly" if label_of(verdict.rank, edges) is Label.ANOMALY else "normal"


_NO_RANK = {
    Reason.UNSCORABLE: "readings incomplete: could not be judged",
    Reason.CONSTANT_WINDOW: "frozen: all reference scores are equal",
    Reason.WARM_UP: "still warming up",
    Reason.TOO_MANY_SENSORS: "one sensor too many",
}
_STATUS: dict[Status | None, str] = {
    Status.CONSTANT_BEGINS: "from here on, reference scores are all equal",
    Status.CONSTANT_ENDS: "reference scores differ again",
    Status.WARM_UP_MIXED: "two operating states in the first rows: was one of them a fault?",
    Status.CLOCK_BEGINS: "times before 1990, or a day ahead of all others: its clock is wrong",
    Status.CLOCK_ENDS: "times are possible again: its clock is right",
    Status.NO_LEVEL: "a channel has no level to come back to: its changes are judged",
}
_EVEN = 0.4
"""From there on nobody can say which way it leans: ranks are whole numbers, flips may be half."""


def in_short(verdict: Verdict, why: str, *, blind: bool = False) -> str:
    """Return the reason in a few words, for a row of the queue."""
    if why == "audit":
        return f"audit: {'muted' if verdict.muted else 'accepted'}, drawn for a check"
    if why == "extreme":
        severity = f"severity {grade(verdict.severity or 0.0)[0]} of 100, no incident"
        return "asked for a check" if blind else severity
    if why == "status":
        return _STATUS.get(verdict.status, "")
    if verdict.reason in _NO_RANK:
        return _NO_RANK[verdict.reason]
    p, leaning = verdict.stability, model_leaning(verdict)
    if blind or p is None or leaning is None:
        return "inside the rejection band"
    flip = 1 - p if leaning == "anomaly" else p
    return f"leans to {leaning}" if flip < _EVEN else "borderline"


def _main_event(connection: Connection, episode: str) -> ReviewItem:
    """Return the event that represents an episode: the least stable, or the most severe."""
    query = (
        "SELECT v.item FROM event v JOIN episode e USING (episode_id) WHERE episode_id = ? "
        "ORDER BY CASE WHEN e.why = 'extreme' THEN -v.severity END, "
        "v.confidence IS NULL, v.confidence, v.event_id LIMIT 1"
    )
    return decode_review(scalar(connection, query, (episode,)))


def _reading(connection: Connection, sensor_id: int, item: ReviewItem) -> ChannelReading | None:
    """Return what the channel read that the evidence puts first, and what was expected of it."""
    evidence = item.verdict.evidence
    if (
        evidence is None
        or not evidence.channels
        or evidence.channels[0].channel not in item.channels
    ):
        return None
    first = evidence.channels[0]
    column = item.channels.index(first.channel)
    value = math.nan if (read := item.values[column]) is None else read
    expected, usual = first.expected or None, None
    if expected is None:
        onset_ms, columns = item.verdict.event_time_ms, slice(column, column + 1)
        (usual,) = series.usual_range(connection, sensor_id, len(item.channels), onset_ms, columns)
    return ChannelReading(first.channel, value, usual, expected)


def row_of(
    connection: Connection,
    row: Row,
    settings: Review,
    viewer: Viewer,
    now_ms: int,
    *,
    others: Sequence[Listed] = (),
) -> EpisodeRow:
    held = row["lease_owner"] is not None and row["lease_until_ms"] > now_ms
    item = _main_event(connection, row["episode_id"])
    blind = is_blind(settings, row, viewer)
    reading = None if blind else _reading(connection, row["sensor_id"], item)
    return EpisodeRow(
        **{name: row[name] for name in _AS_STORED},
        group=row["grp"],
        channels=tuple(json.loads(row["channels"])),
        held_by=row["lease_owner"] if held else "",
        held_until_ms=row["lease_until_ms"] if held else 0,
        main=item.verdict,
        reading=reading,
        short_why=in_short(item.verdict, row["why"], blind=blind),
        blind=blind,
        others=tuple(sorted(others, key=lambda one: one.sensor)),
    )


_CASE = "e.*, s.stream_key, s.sensor, s.grp, s.pipeline, s.channels"


def case_row(connection: Connection, episode: str) -> Row:
    """Return a case with its sensor; one whose events have all moved elsewhere is none."""
    row: Row | None = connection.execute(
        f"SELECT {_CASE} FROM episode e "
        "JOIN sensor s USING (sensor_id) WHERE e.episode_id = ? AND e.status <> 'empty'",
        (episode,),
    ).fetchone()
    if row is None:
        raise Refusal("unknown", f"There is no case {episode}.", episode)
    return row


def queue_rows(
    connection: Connection,
    chosen: QueueFilter,
    settings: Review,
    viewer: Viewer,
    now_ms: int,
    *,
    limit: int = 500,
    offset: int = 0,
) -> Iterator[EpisodeRow]:
    for row in chosen.rows(connection, viewer, now_ms, limit=limit, offset=offset):
        members = map(Listed._make, json.loads(row["members"]))
        others = [one for one in members if one.episode_id != row["episode_id"]]
        yield row_of(connection, row, settings, viewer, now_ms, others=others)


def asked_with(
    connection: Connection, row: EpisodeRow, settings: Review, viewer: Viewer, now_ms: int
) -> list[EpisodeRow]:
    """Return the cases of its siblings that an answer may be for, too."""
    if row.status not in ("open", "needs_second"):
        return []
    rows = connection.execute(
        f"SELECT {_CASE} FROM episode e JOIN sensor s USING (sensor_id) "
        "WHERE e.question = (SELECT question FROM episode WHERE episode_id = :case) "
        f"AND e.episode_id <> :case AND {_READY} ORDER BY s.sensor, e.start_ms LIMIT :most",
        {"case": row.episode_id, "now": now_ms, "me": viewer.reviewer, "most": _MOST_TOGETHER},
    )
    return [row_of(connection, one, settings, viewer, now_ms) for one in rows]


def row_spark(connection: Connection, row: EpisodeRow) -> tuple[list[float], list[float], int, int]:
    """Return a small line around an episode (t, v), and the times it covers."""
    low, high = series.around(
        connection, row.sensor_id, row.start_ms, row.end_ms, before=40, after=25
    )
    channel = _speaking_channel(row)
    t, v = series.spark(connection, row.sensor_id, channel, low, high)
    return t, v, low, high


def _speaking_channel(row: EpisodeRow) -> int:
    """Return the channel that the evidence puts first, if there is any and it may be seen."""
    reading = row.reading
    if reading is None or reading.channel not in row.channels:
        return 0
    return row.channels.index(reading.channel)


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers every screen shows at the top."""

    counts: dict[Tab, int]  # episodes per tab; `done` counts those decided since midnight UTC
    oldest_ms: int | None
    undoable: str
    version: str  # changes whenever anything a list shows may have changed
    since_ms: int
    incidents: int  # how many situations are not over
    left: int | None  # how many more cases people are asked today; `None` without a capacity


def summary(connection: Connection, viewer: Viewer, now_ms: int, words: str = "") -> Summary:
    since = now_ms - now_ms % _DAY_MS
    counts: dict[Tab, int] = {}
    for tab in TABS:
        view = QueueFilter(tab, words, since_ms=since if tab == "done" else None)
        counts[tab] = view.count(connection, viewer, now_ms)
    last = "reviewer = ? AND undone = 0 ORDER BY action_seq DESC LIMIT 1"
    result = scalar(connection, f"SELECT result FROM action WHERE {last}", (viewer.reviewer,))
    moved = connection.execute(
        "SELECT (SELECT coalesce(max(seq), 0) FROM audit), "
        "(SELECT coalesce(max(event_id), 0) FROM event), "
        "(SELECT coalesce(sum(changed_seq), 0) FROM incident), "
        "(SELECT coalesce(max(reply_seq), 0) FROM reply), (SELECT count(leaving_ms) FROM answer)"
    ).fetchone()
    left = scalar(
        connection, f"SELECT {_LEFT}", {"day": since, "now": now_ms, "me": viewer.reviewer}
    )
    # Claims lapse and cases settle without anybody writing: the counts tell.
    version = ".".join(str(one) for one in (*moved, *counts.values()))
    return Summary(
        counts=counts,
        oldest_ms=QueueFilter().oldest(connection, viewer, now_ms),
        undoable=json.loads(result)["message"] if result else "",
        version=version,
        since_ms=since,
        incidents=scalar(
            connection, "SELECT count(DISTINCT situation) FROM incident WHERE state <> 'closed'"
        ),
        left=None if left < 0 else left,
    )
