"""Cases whose truth is known, put into the queue to measure the people who answer them.

They are rejected events that wait in the queue, and stay ordinary cases there: only the store knows
which of them are known. An event that was drawn for the audit is refused: taken out for what it is,
it would bias what the audit proves.

With the truth known an error is observed, not inferred: their count among n answers is binomial.

References
----------
.. [1] L. D. Brown, T. T. Cai, A. DasGupta: Interval Estimation for a Binomial Proportion.
   Statistical Science 16, 2001, section 3 (Jeffreys' prior, its ends corrected).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection, Row
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from scipy.stats import beta

from rejex_stream.errors import ConfigError, explaining_os_errors
from rejex_stream.review.queue import database
from rejex_stream.review.queue.database import AT_POSITION
from rejex_stream.review.queue.label_store import human_labels
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import Position


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
    waiting, errors = 0, dict[str, Errors]()
    for row in rows:
        labels = human_labels(connection, row["episode_id"])
        waiting += not labels
        for label in labels:
            if row["whole"] and label.role != "adjudication" and label.verdict != "unsure":
                wrong = int(label.verdict != row["truth"])
                error = (
                    Errors(anomalies=1, overlooked=wrong)
                    if row["truth"] == "anomaly"
                    else Errors(normals=1, false_alarms=wrong)
                )
                errors[label.reviewer] = errors.get(label.reviewer, Errors()) + error
    return Known(cases=len(rows), waiting=waiting, reviewers=dict(sorted(errors.items())))


# --------------------------------------------------------------------------- a file of truths
Truth: TypeAlias = Literal["anomaly", "normal"]
_FIELDS = ("stream", "event", "truth")
_EVENT = re.compile(r"(.+)-(\d{1,9})-(\d{1,18})(?:\.(\d{1,9}))?")
_MAX_SHOWN = 60


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
    by_position: dict[Position, Case] = {}
    twofold: set[Position] = set()
    refused = []
    for number, row in rows:
        case = _case(number, row)
        if isinstance(case, str):
            refused.append(f"line {number}: {case}")
            continue
        first = by_position.setdefault(case.position, case)
        if (first.stream_key, first.truth) != (case.stream_key, case.truth):
            twofold.add(case.position)
            refused.append(
                f"line {number}: {shown(case.position)} is {case.truth} of {shown(case.stream_key)}"
                f", and on line {first.line} {first.truth} of {shown(first.stream_key)}: an event "
                "has one truth; keep the line that is right."
            )
    return [case for case in by_position.values() if case.position not in twofold], refused


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
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


# ------------------------------------------------------------------------- into the queue
class Seeded(NamedTuple):
    """What became of a file of cases: put in, known before, and a sentence for each refused."""

    new: int
    known: int
    refused: tuple[str, ...]


def _event(connection: Connection, case: Case) -> Row | None:
    row: Row | None = connection.execute(
        "SELECT e.*, s.stream_key, k.truth FROM event v JOIN episode e USING (episode_id) "
        "JOIN sensor s ON s.sensor_id = v.sensor_id LEFT JOIN known k USING (event_id) "
        f"WHERE {AT_POSITION}",
        case.position,
    ).fetchone()
    return row


def seed(store: ReviewStore, cases: Sequence[Case], *, by: str) -> Seeded:
    """Mark cases as known, in one transaction: each that can be one, whatever the others are."""
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
            refused.append((case, _UNKNOWN))
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
                        "INSERT INTO known SELECT event_id, episode_id, ? FROM event "
                        "WHERE episode_id = ?",
                        (case.truth, episode),
                    )
        if new:
            database.append_audit(connection, store.now_ms(), by, "seed", "known cases", cases=new)
    refused.sort(key=lambda pair: pair[0].line)
    sentences = (f"line {case.line}: {shown(case.position)}: {why}" for case, why in refused)
    return Seeded(new, known, tuple(sentences))


_UNKNOWN = "the store has no such event: ingest the review items first, and give rejected events."


_OVER = {
    "held": "nobody is asked about it: its incident asks, or an answer was given",
    "expired": "it has expired",
}


def _why_not(case: Case, row: Row, truths: set[str]) -> str:
    """Return why an event in the queue cannot be a known case; empty: it can."""
    if row["stream_key"] != case.stream_key:
        return (
            f"it is of the stream {shown(row['stream_key'])}, not {shown(case.stream_key)}: give "
            "the position and the stream of the same event."
        )
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
    "it was drawn for the audit, and what was missed is proved by that draw: give rejected events."
)
_STATE = "it is about a state of the sensor, of which no answer is wrong: leave it out."
