"""Snapshots in a compacted topic beside the input: nothing else to run or to back up.

A part is written in the transaction that commits its offset, or after it, so the newest snapshot
never runs ahead of what is committed; which parts make one is said by the last record of it
(:mod:`rejex_connectors.snapshot_parts`). What was decided has keys of its own, written with the
offset it belongs to.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import (
    PartitionReader,
    asking,
    partitions_of,
    topic_ids,
)
from rejex_connectors.kafka.refusals import undecided
from rejex_connectors.kafka.transactional_writer import TransactionalWriter, records_to_write
from rejex_connectors.kafka.unassigned_partitions import group_of
from rejex_connectors.snapshot_parts import PartSets
from rejex_stream.errors import CheckpointError, ConfigError, ConnectorError
from rejex_stream.protocols import SnapshotPiece
from rejex_stream.types import Partition, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka.sink import KafkaSink

_DECISIONS = "decisions"
SETTLE_S = 5.0  # how long the marker of a transaction may take that is already decided, in seconds
LOOK_S = 0.2  # as long where others are waited for meanwhile, who write beside it
_OVERHEAD = 3072  # bytes left for key, headers and the log's own


@dataclass
class _Pieces:
    """The pieces of one journal of decisions, as far as they were read."""

    count: int
    id: bytes
    bodies: dict[int, bytes] = field(default_factory=dict)


class KafkaSnapshots:
    """Keeps snapshots in ``topics.state``; see :class:`~rejex_stream.protocols.SnapshotStore`."""

    def __init__(
        self, settings: KafkaSettings, sink: KafkaSink | OfflineSink | BufferingSink
    ) -> None:
        if settings.topics.state is None:
            raise ConfigError("state.topic is unset: name it, or keep snapshots in a folder")
        self._settings = settings
        self._topic = settings.topics.state
        self._sink = sink
        self._reader = PartitionReader(settings)  # a takeover reads one partition after another
        self._partitions = sink.partitions(self._topic)
        self._log_of = topic_ids(settings)
        self._known: dict[Partition, PartSets] = {}
        self._just_read: tuple[Partition, _Pieces | None] | None = None
        self._size = settings.max_message_bytes - _OVERHEAD

    def save(self, partition: Partition, piece: SnapshotPiece) -> bool:
        """Write a piece with the next commit, or at once if its offset is committed. O(bytes).

        Returns whether it is or will be written: not where the partition is no longer ours either.
        """
        # Read again if the last piece may or may not have been written: a wrong guess would write
        # over the snapshot that we would restore from.
        self._just_read, known = None, self._known.pop(partition, None)
        if known is None:
            known, _ = self._read(partition)
            known.forget_bodies()
        writes = known.write(piece)
        if writes is None:
            return False
        target, prefix = self._state_partition(partition).partition, self._prefix(partition)
        messages = [Message(self._topic, target, prefix + key, value, []) for key, value in writes]
        assert not isinstance(self._sink, BufferingSink)
        durable = self._sink.write_snapshot(partition, piece.next_offset, messages)
        if durable:
            self._known[partition] = known
        return durable is not None

    def load(self, partition: Partition, at_most: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return the newest snapshot at or before `at_most`. O(bytes in the state partition).

        That its bytes are those that were written is for the seals in them to say.
        """
        known, decisions = self._read(partition)
        snapshot = known.load(at_most)
        known.forget_bodies()
        self._known[partition], self._just_read = known, (partition, decisions)
        return snapshot

    def drop(self, partition: Partition, *, schemas: bool = False) -> None:
        """Delete every key of a partition; what was decided (`schemas`) only where asked."""
        prefix = self._prefix(partition)
        journal_key = prefix + f"{_DECISIONS}|".encode()
        there = {r.key or b"": r.value is not None for r in self._records(partition)}
        target = self._state_partition(partition).partition
        gone = [
            Message(self._topic, target, key, None, [])
            for key, is_there in there.items()
            if is_there and key.startswith(prefix) and (schemas or not key.startswith(journal_key))
        ]
        self._known.pop(partition, None)
        self._just_read = None
        assert not isinstance(self._sink, BufferingSink)
        self._sink.write_snapshot(partition, 0, gone)

    def save_journal(self, partition: Partition, decisions: bytes) -> None:
        """Write `decisions` with the next commit of `partition`, or before its offset."""
        self._just_read = None
        self._sink.buffer_state(partition, self._pieces(partition, decisions))

    def load_journal(self, partition: Partition) -> bytes | None:
        """Return what was decided when `partition` was last committed. O(bytes in the partition).

        Asked right after :meth:`load`, it reads nothing again.
        """
        just_read, self._just_read = self._just_read, None
        if just_read is not None and just_read[0] == partition:
            pieces = just_read[1]
        else:
            _, pieces = self._read(partition)
        if pieces is None:
            return None
        if len(pieces.bodies) < pieces.count:
            raise CheckpointError(
                f"What was decided for {partition} was cut short by a "
                f"crash ({len(pieces.bodies)} of {pieces.count} pieces): drop it (`rejex-stream "
                "state drop --schemas`), and the registry and the control log are asked again "
                "about what is replayed."
            )
        return b"".join(pieces.bodies[n] for n in range(pieces.count))

    def _pieces(self, partition: Partition, blob: bytes) -> list[Message]:
        pieces = [blob[i : i + self._size] for i in range(0, len(blob), self._size)] or [b""]
        headers = [("pieces", b"%d" % len(pieces)), ("id", uuid.uuid4().hex.encode())]
        target = self._state_partition(partition).partition
        key = self._prefix(partition) + f"{_DECISIONS}|".encode()
        return [
            Message(self._topic, target, key + b"%d" % n, piece, headers)
            for n, piece in enumerate(pieces)
        ]

    def _prefix(self, partition: Partition) -> bytes:
        return f"{self._settings.group}|{partition.topic}|{partition.partition}|".encode()

    def close(self) -> None:
        self._reader.close()

    def is_decided(self, partition: Partition) -> bool:
        """Whether all that was committed of a partition's state can be read by now.

        Asked before a partition is given to us: what we know of one that comes back is forgotten,
        others may have written since.
        """
        self._known.pop(partition, None)
        return self._reader.undecided(self._state_partition(partition), LOOK_S) is None

    def _state_partition(self, partition: Partition) -> Partition:
        return Partition(self._topic, partition.partition % self._partitions)

    def _records(self, partition: Partition) -> Iterator[Record]:
        """Read all that was committed, of every partition that is kept in the same place."""
        # Where a transaction is open, that fails for the moment. What lies behind it is not taken
        # for absent: its worker may have been killed, and its successor have decided and committed
        # since.
        where = self._state_partition(partition)
        open_from = self._reader.undecided(where, SETTLE_S)
        if open_from is not None:
            raise undecided(self._settings, where, open_from)
        return self._reader.read(where)

    def _read(self, partition: Partition) -> tuple[PartSets, _Pieces | None]:
        prefix = self._prefix(partition)
        decided = f"{_DECISIONS}|".encode()
        sets, decisions = PartSets(self._size - len(prefix), self._log_of(partition)), None
        for record in self._records(partition):
            if record.key is None or not record.key.startswith(prefix):
                continue
            rest = record.key[len(prefix) :]
            if not sets.read(rest, record.value) and rest.startswith(decided):
                decisions = _collected(decisions, record, rest[len(decided) :])
        sets.finish_reading()
        return sets, decisions


class BufferingSink:
    """In the place of a sink: holds what is to be written with the next commit."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.messages: list[Message] = []

    def partitions(self, topic: str) -> int:
        return self._partitions

    def buffer_state(self, partition: Partition, messages: list[Message]) -> None:
        self.messages += messages


class OfflineSink:
    """In the place of a run's sink: writes at once, and as nobody's worker, while none is there."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._waiting: list[Message] = []
        with asking(settings, f"asking who is in group {settings.group}") as client:
            # Describing a group tells of the members of the classic protocol alone; a list leaves
            # out, without a word, the groups of a coordinator that is away.
            group_of(client, settings.group, SETTLE_S)
            states = {group["group_id"]: group["group_state"] for group in client.list_groups()}
        state = states.get(settings.group, "Dead")
        if state not in ("Empty", "Dead"):
            raise ConnectorError(
                f"group {settings.group} has members (it is {state}): stop the workers first, "
                "they would write over it"
            )

    def partitions(self, topic: str) -> int:
        return len(partitions_of(self._settings, topic, needed=True))

    def buffer_state(self, partition: Partition, messages: list[Message]) -> None:
        self._waiting += messages

    def write_snapshot(self, partition: Partition, next_offset: int, pieces: list[Message]) -> bool:
        waiting, self._waiting = self._waiting, []
        if waiting or pieces:
            self._write([*waiting, *pieces], {})
        return True

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._write([], offsets)

    def _write(self, messages: list[Message], offsets: Mapping[Partition, int]) -> None:
        settings = self._settings
        with closing(
            TransactionalWriter(settings, "state", "writing the state", group=settings.group)
        ) as writer:
            writer.write(records_to_write(messages), offsets)


def _collected(known: _Pieces | None, record: Record, number: bytes) -> _Pieces | None:
    """Add one piece; a piece of another journal begins again. Foreign records are ignored."""
    headers = dict(record.headers)
    if record.value is None:
        return None
    try:
        n, count, id_ = int(number), int(headers["pieces"] or b""), headers["id"] or b""
    except (KeyError, ValueError):
        return known
    if known is None or known.id != id_:
        known = _Pieces(count, id_)
    if n < count:
        known.bodies[n] = record.value
    return known
