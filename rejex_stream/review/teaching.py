"""What people said of events that a challenger asked about, on its way to the pipeline it teaches.

Answers are put into commands in the store, each event once, in the transaction that records which
these are; from there commands are sent as answers to incidents are. A crash in between sends the
same command again, a rebuilt store sends all of them again: a learner ignores what it knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from sqlite3 import Connection, Row
from typing import NamedTuple

from rejex_stream.config.assembly.control_line import make_command
from rejex_stream.config.reviewing import SYSTEM
from rejex_stream.encode import decode_review, encode_command
from rejex_stream.encode.label_records import active_labels, decode_label, resolve
from rejex_stream.encode.records import MAX_ANSWERS
from rejex_stream.errors import ConfigError
from rejex_stream.review.queue import database
from rejex_stream.review.queue.database import AT_POSITION, Database, note_down, noted, scalar
from rejex_stream.review.queue.label_store import FINAL, LabelCache
from rejex_stream.types import CommandKind, EventAnswer, Position

_AT_ONCE = 200  # labels a transaction
_MOST_NAME = 100
_log = logging.getLogger(__name__)


class _Answered(NamedTuple):
    """An event that was asked about, and what people agree on."""

    event_id: int
    stream_key: str
    answer: EventAnswer
    reviewers: tuple[str, ...]


class Lessons(NamedTuple):
    """How many events' answers a pipeline was sent or is to be sent, and its last reply."""

    sent: int
    waiting: int
    reply: str


def collect(database: Database, pipeline: str, now_ms: int, *, wait_ms: int = 0) -> bool:
    """Queue commands with the answers that people agree on; returns whether there may be more."""
    # Expiries are no answers; disputes, and episodes that wait for a second opinion, have none yet.
    # An event that was sent is not sent again, even if somebody changes their mind.
    with database.read() as connection:
        if not _labels(connection, pipeline, now_ms - wait_ms):
            return False
    with database.write() as connection:
        labels = _labels(connection, pipeline, now_ms - wait_ms)
        if not labels:
            return False  # another one was faster
        last = labels[-1]["label_seq"]
        answered = list(_answered(connection, pipeline, labels, last))
        answered.sort(key=lambda event: (event.stream_key, event.answer.position))
        for _, those in groupby(
            answered, key=lambda event: (event.stream_key, event.answer.position[:2])
        ):
            same = list(those)
            for at in range(0, len(same), MAX_ANSWERS):
                _store_command(connection, pipeline, same[at : at + MAX_ANSWERS], now_ms)
        note_down(connection, f"taught {pipeline}", last)
    return True


def _labels(connection: Connection, pipeline: str, until_ms: int) -> list[Row]:
    """Return the next labels that were not looked at yet, up to the first that is too young."""
    mark = noted(connection, f"taught {pipeline}")
    rows = connection.execute(
        "SELECT label_seq, created_ms, record FROM label WHERE label_seq > ? "
        "ORDER BY label_seq LIMIT ?",
        (int(mark or 0), _AT_ONCE),
    )
    return list(takewhile(lambda row: row["created_ms"] <= until_ms, rows))


def _answered(
    connection: Connection, pipeline: str, labels: Sequence[Row], last: int
) -> Iterator[_Answered]:
    """Yield the events of these labels that were asked about, not sent yet, and have an answer."""
    cache = LabelCache()
    named = (place for row in labels for place in decode_label(row["record"]).events)
    for place in dict.fromkeys(named):
        event = connection.execute(
            "SELECT v.event_id, v.item, s.stream_key FROM event v JOIN sensor s USING (sensor_id) "
            f"JOIN episode e USING (episode_id) WHERE {AT_POSITION} "
            "AND s.pipeline = ? AND e.status <> 'needs_second' "
            "AND NOT EXISTS (SELECT 1 FROM taught WHERE event_id = v.event_id) "
            "AND NOT EXISTS (SELECT 1 FROM known WHERE event_id = v.event_id)",
            (*place, pipeline),
        ).fetchone()
        if event is None:
            continue
        learning = decode_review(event["item"]).verdict.learning
        if not learning or learning.asked is None:
            continue
        said = connection.execute(
            "SELECT label_seq, record FROM label_event JOIN label USING (label_seq) "
            "WHERE event_id = ? ORDER BY label_seq",
            (event["event_id"],),
        ).fetchall()
        if said[-1]["label_seq"] > last:
            continue  # somebody has just said more: that is looked at when its own time comes
        result = resolve(active_labels(cache.get(*tuple(row)) for row in said))
        if result.state in FINAL and result.verdict is not None:
            answer = EventAnswer(Position(*place), result.verdict)
            yield _Answered(event["event_id"], event["stream_key"], answer, result.reviewers)


def _store_command(
    connection: Connection, pipeline: str, answers: Sequence[_Answered], now_ms: int
) -> None:
    """Queue one command; record which events it covers."""
    people = sorted({name for event in answers for name in event.reviewers})
    others = f" and {len(people) - 1} more" if len(people) > 1 else ""
    try:
        command = make_command(
            CommandKind.ANSWERS,
            by=people[0][:_MOST_NAME] + others,
            given_ms=now_ms,
            stream_key=answers[0].stream_key,
            answers=tuple(event.answer for event in answers),
        )
    except ConfigError as error:  # what nobody could obey must not hold up the others
        _log.error("answers of %s teach nothing: %s", pipeline, error)
        return
    connection.execute(
        "INSERT INTO answer (command, incident, pipeline, record) VALUES (?,'',?,?)",
        (command.id, pipeline, encode_command(command)),
    )
    connection.executemany(
        "INSERT INTO taught (event_id, command) VALUES (?,?)",
        [(event.event_id, command.id) for event in answers],
    )
    database.append_audit(
        connection,
        now_ms,
        SYSTEM,
        "teach",
        answers[0].stream_key,
        events=len(answers),
        command=command.id,
    )


def lessons(connection: Connection, pipeline: str) -> Lessons:
    """Return what became of the answers of a pipeline's events."""
    sent, waiting = connection.execute(
        "SELECT count(*) FILTER (WHERE sent_ms IS NOT NULL), "
        "count(*) FILTER (WHERE sent_ms IS NULL) "
        "FROM taught JOIN answer USING (command) WHERE pipeline = ?",
        (pipeline,),
    ).fetchone()
    reply = scalar(
        connection,
        "SELECT said FROM reply JOIN answer USING (command) WHERE pipeline = ? AND incident = '' "
        "ORDER BY reply_seq DESC LIMIT 1",
        (pipeline,),
    )
    return Lessons(sent, waiting, reply or "")
