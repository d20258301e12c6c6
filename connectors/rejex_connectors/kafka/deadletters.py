"""Look at dead letters, and put them back into the input once their cause is mended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rejex_connectors.kafka.clients import transactional_id
from rejex_connectors.kafka.messages import Cut, split_headers
from rejex_connectors.kafka.partition_reader import (
    bounds_of,
    committed_offsets,
    partitions_of,
    read_partition,
)
from rejex_connectors.kafka.transactional_writer import TransactionalWriter
from rejex_stream.encode.schemas import CONNECT_PREFIX
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Position, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka.kafka_settings import KafkaSettings

__all__ = ["DeadLetter", "Redriven", "list_dead_letters", "redrive"]

REDRIVEN_FROM = "rejex.redriven.from"
"""Header of a record that was put back: the position where it failed first."""
_REDRIVE = "redrive"


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be read, and why."""

    position: Position  # where it stands in the dead-letter topic
    # key, value, headers and position as they came; the value is cut short if `cut` is set
    original: Record
    stage: str  # stage, reason: where reading it failed, and one sentence
    reason: str
    cut: Cut | None  # length and digest of a value that was too large to keep
    timestamp_ms: int | None  # when it was written
    # whether nothing but its position is known: it could not be read from the input
    unread: bool = False


@dataclass(frozen=True)
class Redriven:
    """What became of one dead letter: ``redriven``, or ``skipped`` with the reason."""

    letter: DeadLetter
    what: Literal["redriven", "skipped"]
    reason: str = ""


def list_dead_letters(
    settings: KafkaSettings, *, newest: int | None = None, pending_only: bool = False
) -> Iterator[DeadLetter]:
    """Yield dead letters, partition by partition, oldest first."""
    partitions = partitions_of(settings, settings.topics.deadletter)
    done = _redriven_up_to(settings) if pending_only else {}
    ends = {} if newest is None else bounds_of(settings, partitions)
    share = None if newest is None else -(-newest // max(1, len(partitions)))
    for partition in partitions:
        first = done.get(partition, 0)
        if share is not None:
            first = max(first, ends[partition][1] - share)
        for record in read_partition(settings, partition, first):
            yield _letter(record)


def redrive(
    settings: KafkaSettings,
    *,
    select: Callable[[DeadLetter], bool] = lambda _: True,
    dry_run: bool = False,
) -> Iterator[Redriven]:
    """Put pending dead letters back into the topic they came from, each once.

    Key, value and headers are the original ones; the record gets a new offset and so a verdict of
    its own. A value that was cut is read again from the input while it is still there. How far
    redriving has come is committed in the group ``<group>-redrive``, in the transaction that
    writes: stopping half-way repeats nothing.

    Parameters
    ----------
    select
        Which ones; the others count as dealt with too.
    dry_run
        Say what would be done, write and commit nothing.

    Raises
    ------
    ConnectorError
        When the broker cannot be reached, refuses, or another redrive is running.
    """
    for partition in partitions_of(settings, settings.topics.deadletter):
        letters = read_partition(settings, partition, _redriven_up_to(settings).get(partition, 0))
        batch: list[Record] = []
        for record in letters:
            batch.append(record)
            if len(batch) == 500:
                yield from _redrive_batch(settings, partition, batch, select, dry_run)
                batch = []
        if batch:
            yield from _redrive_batch(settings, partition, batch, select, dry_run)


def _redrive_batch(
    settings: KafkaSettings,
    partition: Partition,
    records: list[Record],
    select: Callable[[DeadLetter], bool],
    dry_run: bool,
) -> Iterator[Redriven]:
    plans = [_plan(settings, _letter(record), select) for record in records]
    if not dry_run:
        # Its time is that of being put back: the original one is not kept.
        wanted = [found._replace(timestamp_ms=None) for _, found in plans if found is not None]
        with closing(TransactionalWriter(settings, _REDRIVE, "redriving dead letters")) as writer:
            writer.write(wanted, {partition: records[-1].position.offset + 1})
    yield from (result for result, _ in plans)


def _plan(
    settings: KafkaSettings, letter: DeadLetter, select: Callable[[DeadLetter], bool]
) -> tuple[Redriven, Record | None]:
    if not select(letter):
        return Redriven(letter, "skipped", "not selected"), None
    original = letter.original
    if letter.unread:
        return Redriven(
            letter, "skipped", "it was never read, so there is nothing to put back"
        ), None
    if letter.cut is not None:
        found = _read_again(settings, original.position, letter.cut)
        if found is None:
            return Redriven(letter, "skipped", "its value was cut and the input has expired"), None
        original = found
    if original.key is None and original.value is None:
        return Redriven(letter, "skipped", "it has neither key nor value"), None
    came_from = (REDRIVEN_FROM, str(original.position).encode())
    headers = tuple(pair for pair in original.headers if pair[0] != REDRIVEN_FROM)
    return Redriven(letter, "redriven"), original._replace(headers=(*headers, came_from))


def _read_again(settings: KafkaSettings, position: Position, cut: Cut) -> Record | None:
    topic, partition, offset, _ = position
    try:
        for record in read_partition(settings, Partition(topic, partition), offset, offset + 1):
            value = record.value or b""
            same = record.position == position and len(value) == cut.value_bytes
            if same and hashlib.sha256(value).hexdigest() == cut.sha256:
                return record
    except ConnectorError:
        return None
    return None


def _letter(record: Record) -> DeadLetter:
    """Take a dead letter apart; works for those of Kafka Connect as well."""
    headers = split_headers(record.headers)
    said = {
        name.removeprefix(CONNECT_PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in headers.said.items()
    }
    try:
        partition, offset = (int(said[n]) for n in ("partition", "offset"))
        position = Position(said["topic"], partition, offset, int(said.get("index", 0)))
    except (KeyError, ValueError):
        position = record.position
    return DeadLetter(
        position=record.position,
        original=Record(
            position,
            record.key,
            None if headers.had_no_value or headers.unread else record.value,
            tuple(headers.original),
            record.timestamp_ms,
        ),
        stage=said.get("stage", "unknown"),
        reason=said.get("exception.message", "no reason given"),
        cut=headers.cut,
        timestamp_ms=record.timestamp_ms,
        unread=headers.unread,
    )


# ----------------------------------------------------------------------------- bookkeeping
def _redriven_up_to(settings: KafkaSettings) -> dict[Partition, int]:
    letters = partitions_of(settings, settings.topics.deadletter)
    return committed_offsets(settings.replace(group=transactional_id(settings, _REDRIVE)), letters)
