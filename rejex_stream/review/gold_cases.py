"""Cases whose truth is known, put into the queue to measure the people who answer them.

They become ordinary items; only the store knows which they are. A rejected event that waits in the
queue stays what it is. One that was accepted and not drawn gets the item that a draw would have
made, with the readings of the input and the arrival of its time. One that was drawn is refused:
taken out for what it is, it would bend what the audit proves.

With the truth known an error is seen, not inferred: their count among n answers is binomial.

References
----------
.. [1] L. D. Brown, T. T. Cai, A. DasGupta: Interval Estimation for a Binomial Proportion.
   Statistical Science 16, 2001, section 3 (Jeffreys' prior, its ends mended).
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from scipy.stats import beta

from rejex_stream.config import Config
from rejex_stream.encode import decode_verdict
from rejex_stream.errors import ConfigError, explaining_os_errors
from rejex_stream.review.context_loader import ContextLoader
from rejex_stream.review.queue import database
from rejex_stream.review.queue.database import AT_POSITION, scalar
from rejex_stream.review.queue.ingest import Intake
from rejex_stream.review.queue.label_store import said_of
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.run.review_items import AuditDraw, committed
from rejex_stream.types import Audit, ContextPoint, FollowUp, Label, Position, ReviewItem, Verdict


class Interval(NamedTuple):
    """An estimate with a 95 % interval; ``None`` where there is nothing to estimate from."""

    value: float | None
    low: float | None
    high: float | None


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """What reviewers said of cases whose truth was known beforehand; "unsure" is in neither."""

    anomalies: int = 0  # answers to anomalies, and those of them that say normal
    overlooked: int = 0
    normals: int = 0  # answers to normals, and those of them that say anomaly
    false_alarms: int = 0

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    @property
    def rates(self) -> Mapping[str, Interval]:
        """`overlooked` and `false_alarms` as shares, with Jeffreys' intervals [1]_."""
        return {
            "overlooked": jeffreys(self.overlooked, self.anomalies),
            "false_alarms": jeffreys(self.false_alarms, self.normals),
        }


def jeffreys(k: int, n: int) -> Interval:
    """Return a share `k` of `n` with its 95 % interval of Jeffreys' prior [1]_."""
    if not n:
        return Interval(None, None, None)
    low, high = (float(beta.ppf(end, k + 0.5, n - k + 0.5)) for end in (0.025, 0.975))
    return Interval(k / n, low if k else 0.0, high if k < n else 1.0)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Cases whose truth was known before anybody was asked."""

    cases: int = 0  # how many there are; those of them that nobody has answered
    waiting: int = 0
    reviewers: Mapping[str, Errors] = {}  # what each reviewer said of them, by name

    @property
    def all(self) -> Errors:
        """What all reviewers said, together."""
        return sum(self.reviewers.values(), Errors())


def known_cases(connection: Connection, since_ms: int = 0, pipeline: str | None = None) -> Known:
    """Return how people answered known cases from an event time on, of one pipeline or of all."""
    # An answer to a part of a case counts for nothing, as the truth is that of the whole; neither
    # does one that settles a dispute, whose parties were heard before.
    rows = connection.execute(
        "SELECT e.episode_id, k.truth, count(*) = e.n_events AND count(*) = (SELECT count(*) "
        "FROM known o WHERE o.case_id = k.case_id) AS whole FROM known k "
        "JOIN event v USING (event_id) JOIN episode e USING (episode_id) "
        "JOIN sensor s ON s.sensor_id = e.sensor_id WHERE e.start_ms >= :since "
        "AND s.pipeline = coalesce(:pipeline, s.pipeline) GROUP BY e.episode_id",
        {"pipeline": pipeline, "since": since_ms},
    ).fetchall()
    waiting, found = 0, dict[str, Errors]()
    for row in rows:
        labels = said_of(connection, row["episode_id"])
        waiting += not labels
        for label in labels:
            if row["whole"] and label.role != "adjudication" and label.verdict != "unsure":
                wrong = int(label.verdict != row["truth"])
                one = (
                    Errors(anomalies=1, overlooked=wrong)
                    if row["truth"] == "anomaly"
                    else Errors(normals=1, false_alarms=wrong)
                )
                found[label.reviewer] = found.get(label.reviewer, Errors()) + one
    return Known(cases=len(rows), waiting=waiting, reviewers=dict(sorted(found.items())))


_PATIENCE_S = 60.0

# --------------------------------------------------------------------------- a file of truths
Truth: TypeAlias = Literal["anomaly", "normal"]
_FIELDS = ("stream", "event", "truth")
_EVENT = re.compile(r"(.+)-(\d{1,9})-(\d{1,18})(?:\.(\d{1,9}))?")
_MOST_SHOWN = 60


class Case(NamedTuple):
    """What an event was; `line` is where the file says so, from 1 on."""

    line: int
    stream_key: str
    position: Position
    truth: Truth


def read_cases(path: Path) -> tuple[list[Case], list[str]]:
    r"""Return the cases of a file, each event once, and a sentence for each row that is none."""
    # An event that is given with two truths is no case at all. O(rows).
    failed = f"{str(path)!r} cannot be read"
    try:
        with explaining_os_errors(failed, "check the path", kind=ConfigError):
            text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is no text in UTF-8: write it as such.") from None
    return _each_once(_rows(text, path))


def _rows(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    missing = [name for name in _FIELDS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            f"{str(path)!r} has no column {', '.join(missing)}: its first line must be "
            f"{','.join(_FIELDS)}."
        )
    for row in reader:
        yield reader.line_num, row


def _each_once(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[list[Case], list[str]]:
    found: dict[Position, Case] = {}
    twofold: set[Position] = set()
    refused = []
    for number, row in rows:
        case = _case(number, row)
        if isinstance(case, str):
            refused.append(f"line {number}: {case}")
            continue
        first = found.setdefault(case.position, case)
        if (first.stream_key, first.truth) != (case.stream_key, case.truth):
            twofold.add(case.position)
            refused.append(
                f"line {number}: {shown(case.position)} is {case.truth} of {shown(case.stream_key)}"
                f", and on line {first.line} {first.truth} of {shown(first.stream_key)}: an event "
                "has one truth; keep the line that is right."
            )
    return [case for case in found.values() if case.position not in twofold], refused


def _case(number: int, row: Mapping[str, Any]) -> Case | str:
    stream, event, truth = (row.get(name) for name in _FIELDS)
    match = _EVENT.fullmatch(event.strip()) if isinstance(event, str) else None
    if match is None:
        return f"the event is {shown(event)}: expected topic-partition-offset, such as 'feed-0-7'."
    if not isinstance(stream, str) or not stream:
        return f"the stream of {shown(event)} is {shown(stream)}: expected the key of its stream."
    said = truth.strip() if isinstance(truth, str) else truth
    if said not in ("anomaly", "normal"):
        return f"the truth of {shown(event)} is {shown(truth)}: expected anomaly or normal."
    position = Position(match[1], int(match[2]), int(match[3]), int(match[4] or 0))
    return Case(number, stream, position, cast(Truth, said))


def shown(value: object) -> str:
    """Return a value of a file as a sentence can hold it."""
    text = repr(str(value) if isinstance(value, Position) else value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


# ------------------------------------------------------------------------- into the queue
class Seeded(NamedTuple):
    """What became of a file of cases: put in, known before, and a sentence for each refused."""

    new: int
    known: int
    refused: tuple[str, ...]


class Made(NamedTuple):
    """An item for an event about which the pipeline did not ask, and what came after it."""

    item: ReviewItem
    after: FollowUp


Found: TypeAlias = Mapping[Position, Made | str]
"""By position: an item, or why there is none."""


def unknown(connection: Connection, cases: Iterable[Case]) -> list[Case]:
    """Return the cases whose events the store does not hold as items."""
    return [case for case in cases if _event(connection, case) is None]


def _event(connection: Connection, case: Case) -> Row | None:
    row: Row | None = connection.execute(
        "SELECT e.*, s.stream_key, k.truth FROM event v JOIN episode e USING (episode_id) "
        "JOIN sensor s ON s.sensor_id = v.sensor_id LEFT JOIN known k USING (event_id) "
        f"WHERE {AT_POSITION}",
        case.position,
    ).fetchone()
    return row


def seed(
    store: ReviewStore, cases: Sequence[Case], *, by: str, made: Found | None = None
) -> Seeded:
    """Make items of cases, in one transaction: each that can be one, whatever the others are."""
    # What is said of an event is said of the whole episode that it waits in: the question is one.
    # Cases that were put in before change nothing. O(cases).
    refused: list[tuple[Case, str]] = []
    new = known = 0
    with store.database.write() as connection:
        together: dict[str, list[tuple[Case, Row]]] = {}
        for case in cases:
            row = _event(connection, case)
            if row is not None:
                together.setdefault(row["episode_id"], []).append((case, row))
                continue
            found = (made or {}).get(case.position, "the store does not know it: ingest the review "
                "items first; of an accepted event give --verdicts and --config, too.")  # fmt: skip
            why = found if isinstance(found, str) else _put(store, connection, case, found)
            if why:
                refused.append((case, why))
            else:
                new += 1
        for episode, those in together.items():
            first = those[0][0]
            for case, row in those:
                why = _why_not(case, row, {other.truth for other, _ in those})
                if why:
                    refused.append((case, why))
                elif row["truth"] is not None or case is not first:
                    known += 1
                else:
                    new += 1
                    connection.execute(
                        "INSERT INTO known SELECT event_id, episode_id, ?, 0 FROM event "
                        "WHERE episode_id = ?",
                        (case.truth, episode),
                    )
        if new:
            database.append_audit(connection, store.now_ms(), by, "seed", "known cases", cases=new)
    refused.sort(key=lambda one: one[0].line)
    told = (f"line {case.line}: {shown(case.position)}: {why}" for case, why in refused)
    return Seeded(new, known, tuple(told))


_OVER = {
    "held": "nobody is asked about it: its incident asks, or an answer was given",
    "expired": "it has expired",
}


def _why_not(case: Case, row: Row, truths: set[str]) -> str:
    """Say why an event that is in the queue is no known case; empty: it is one."""
    why = _of_another(case, row["stream_key"])
    if why:
        return why
    if len(truths) > 1 or row["truth"] not in (None, case.truth):
        other = "normal" if case.truth == "anomaly" else "anomaly"
        return (
            f"it is given as {case.truth}, and its episode as {other}: an episode has one truth; "
            "keep the one that is right."
        )
    if row["truth"] is not None:
        return ""
    if row["why"] == "rejected" and row["incident"] is not None:
        return "it is of an incident, which asks a question of its own: leave it out."
    if row["why"] == "rejected":
        over = _OVER.get(row["status"], "it was answered already")
        return "" if row["status"] == "open" else f"{over}: give events that wait for an answer."
    return _DRAWN if row["why"] == "audit" else _STATE


_DRAWN = (
    "it was drawn for the audit, and what was missed is proved by that draw: give rejected events, "
    "or accepted ones that were not drawn."
)
_STATE = "it tells a state of the sensor, about which no answer is wrong: leave it out."


def _of_another(case: Case, stream_key: str) -> str:
    if stream_key == case.stream_key:
        return ""
    return (
        f"it is of the stream {shown(stream_key)}, not {shown(case.stream_key)}: give the position "
        "and the stream of the same event."
    )


def _put(store: ReviewStore, connection: Connection, case: Case, made: Made) -> str:
    """Put an item that was made into the queue, or say why it cannot be there."""
    verdict, now_ms = made.item.verdict, store.now_ms()
    # Its neighbour's arrival is its own: among old events one that came just now would stand out.
    beside_ms = scalar(
        connection,
        "SELECT v.received_ms FROM event v JOIN sensor s USING (sensor_id) WHERE v.topic = ? "
        "ORDER BY abs(v.event_time_ms - ?), v.event_id LIMIT 1",
        (verdict.position.topic, verdict.event_time_ms),
    )
    received_ms = min(now_ms, now_ms if beside_ms is None else beside_ms)
    if now_ms - received_ms >= store.settings.max_age_ms:
        return (
            f"items of its time have expired (review.max_age_hours = "
            f"{store.settings.max_age_hours:g}), and it would stand out: give later events."
        )
    query = "SELECT pipeline FROM sensor WHERE stream_key = ? AND pipeline <> '' LIMIT 1"
    pipeline = scalar(connection, query, (verdict.stream_key,)) or ""
    intake = Intake(connection, store.settings, received_ms, pipeline)
    intake.item(made.item)
    intake.follow_up(made.after)
    intake.finish()
    connection.execute(
        f"INSERT INTO known SELECT event_id, episode_id, ?, 1 FROM event WHERE {AT_POSITION}",
        (case.truth, *case.position),
    )
    return ""


# ------------------------------------------------------------------- what was accepted, from a log
@dataclass
class _Seen:
    """A verdict among those before and after it of its sensor."""

    verdict: Verdict
    before: tuple[Verdict, ...]
    after: list[Verdict] = field(default_factory=list)


def make_items(
    config: Config, cases: Sequence[Case], verdicts: Iterable[bytes], draw: AuditDraw
) -> Found:
    """Return the items that a draw would have made of events that were not drawn. O(verdicts)."""
    seen = _find(cases, verdicts, config.output.context_events)
    wider = ContextLoader(config, most_bytes=1 << 30, patience_s=_PATIENCE_S)
    found: dict[Position, Made | str] = {}
    for case in cases:
        one = seen.get(case.position)
        found[case.position] = (
            "neither the store nor the log of verdicts knows it: give the topic, partition and "
            "offset of an event that was judged."
            if one is None
            else _made(case, one, draw, wider)
        )
    return found


def _find(
    cases: Sequence[Case], verdicts: Iterable[bytes], points: int
) -> Mapping[Position, _Seen]:
    """Return the verdicts of the cases, with so many of their sensor on either side."""
    wanted = {case.position for case in cases}
    topics = {position.topic for position in wanted}
    recent: dict[tuple[str, str], deque[Verdict]] = {}
    growing: dict[tuple[str, str], list[_Seen]] = {}
    seen: dict[Position, _Seen] = {}
    for line in verdicts:
        verdict = decode_verdict(line)
        if verdict.position.topic not in topics:
            continue
        who = verdict.stream_key, verdict.sensor
        before = recent.setdefault(who, deque(maxlen=points))
        for one in growing.get(who, ()):
            one.after.append(verdict)
        growing[who] = [one for one in growing.get(who, ()) if len(one.after) < points]
        if verdict.position in wanted:
            seen[verdict.position] = _Seen(verdict, tuple(before))
            if points:
                growing[who].append(seen[verdict.position])
        before.append(verdict)
    return seen


def _undrawable(case: Case, verdict: Verdict, draw: AuditDraw) -> str:
    """Say why an audit could not have asked about it, or did; empty: it could, and did not."""
    share = draw.probability(verdict)
    why = _of_another(case, verdict.stream_key)
    if not why and verdict.label is Label.REJECTED and not verdict.muted:
        why = "it was rejected, and the store does not have it: ingest the review items first."
    if not why and not share:
        why = (
            "none like it is ever drawn for the audit (it is held or planned, or output.audit_rate "
            "is 0), and it would stand out: give others, or raise the rate."
        )
    return _DRAWN if not why and draw.is_drawn(verdict.position, share) else why


def _made(case: Case, one: _Seen, draw: AuditDraw, wider: ContextLoader) -> Made | str:
    verdict = one.verdict
    why = _undrawable(case, verdict, draw)
    if why:
        return why
    try:
        read = wider.around(verdict.position, verdict.stream_key, verdict.sensor, 1)
    except ConfigError as error:
        return str(error)
    values = dict(read.points)
    if verdict.event_time_ms not in values:
        cut = f" ({read.cut})" if read.cut else ""
        return f"its reading is not in the input any more{cut}: give events that are."

    def points(verdicts: Iterable[Verdict]) -> tuple[ContextPoint, ...]:
        return tuple(
            ContextPoint(v.event_time_ms, values[v.event_time_ms], v.score, v.label)
            for v in verdicts
            if v.event_time_ms in values
        )

    share = draw.probability(verdict)
    item = ReviewItem(
        verdict=msgspec.structs.replace(verdict, audit=Audit(share, True, committed(draw.key))),
        channels=read.channels,
        values=values[verdict.event_time_ms],
        context=points(one.before),
        why="audit",
        drawn=share,
    )
    after = FollowUp(
        position=verdict.position,
        of=verdict.position,
        stream_key=verdict.stream_key,
        sensor=verdict.sensor,
        channels=read.channels,
        points=points(one.after),
        n_since=len(one.after),
        last=True,
    )
    return Made(item, after)
