"""What people said of events that a challenger asked about, told to the pipeline it is taught in.

A command carries answers of one stream and partition. What has been told is read from the control
log itself, so that a crash between telling and remembering tells nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from sqlite3 import Connection
from typing import NamedTuple, Protocol

from rejex_stream.config.assembly.control import make_command
from rejex_stream.encode import decode_review
from rejex_stream.encode.incidents import MOST_ANSWERS
from rejex_stream.encode.labels import active_labels, resolve
from rejex_stream.review.queue.labels import LabelCache
from rejex_stream.types import Command, CommandKind, EventAnswer, Position

__all__ = ["Control", "answered", "teach"]

_FINAL = ("labelled", "agreed", "adjudicated")


class Control(Protocol):
    """A control log; see :class:`~rejex_stream.config.assembly.control.ControlLine`."""

    def say(self, command: Command) -> None:
        """Make a command durable in the log."""
        ...

    def given(self) -> list[Command]:
        """Return the commands that stand in it."""
        ...


class Answered(NamedTuple):
    """An event that was asked about, and what people agree on."""

    stream_key: str
    answer: EventAnswer


def answered(connection: Connection, pipeline: str) -> Iterator[Answered]:
    """Yield the events of a pipeline that were asked about, and have a person's final answer.

    Expiries are no answers; disputes, and events that wait for a second opinion, have none yet.
    """
    rows = connection.execute(
        "SELECT v.event_id, v.topic, v.partition, v.offset, v.item, s.stream_key FROM event v "
        "JOIN sensor s USING (sensor_id) JOIN episode e USING (episode_id) "
        "WHERE s.pipeline = ? AND e.status != 'needs_second' AND v.event_id IN "
        "(SELECT event_id FROM label_event) ORDER BY v.event_id",
        (pipeline,),
    )
    cache = LabelCache()
    for row in rows:
        learning = decode_review(row["item"]).verdict.learning
        if not learning or learning.asked is None:
            continue
        labels = connection.execute(
            "SELECT l.label_seq, l.record FROM label_event JOIN label l USING (label_seq) "
            "WHERE event_id = ? ORDER BY label_seq",
            (row["event_id"],),
        )
        found = resolve(active_labels(cache.get(*tuple(label)) for label in labels))
        if found.state in _FINAL and found.verdict is not None:
            position = Position(row["topic"], row["partition"], row["offset"])
            yield Answered(row["stream_key"], EventAnswer(position, found.verdict))


def teach(connection: Connection, pipeline: str, line: Control, by: str) -> Sequence[Command]:
    """Tell a pipeline the answers that it was not told yet, in the order of the events.

    Raises
    ------
    ConnectorError
        If its control log cannot be read or written; what was not told is told by the next call.
    """
    told = {answer.position for command in line.given() for answer in command.answers}
    fresh = [one for one in answered(connection, pipeline) if one.answer.position not in told]
    fresh.sort(key=lambda one: (one.stream_key, one.answer.position))
    commands = []
    for (stream_key, _), those in groupby(
        fresh, key=lambda one: (one.stream_key, one.answer.position[:2])
    ):
        answers = [one.answer for one in those]
        for at in range(0, len(answers), MOST_ANSWERS):
            command = make_command(
                CommandKind.ANSWERS,
                by=by,
                given_ms=time.time_ns() // 1_000_000,
                stream_key=stream_key,
                answers=tuple(answers[at : at + MOST_ANSWERS]),
            )
            line.say(command)
            commands.append(command)
    return commands
