"""Snapshots in a compacted topic beside the input: nothing else to run or to back up.

A snapshot is written in the transaction that commits its offset, or after it, so the newest one
never runs ahead of what is committed. Two slots take turns, so an older one is left when offsets
are reset or, without transactions, when a crash came in between. Large ones are sent in pieces.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rejex_connectors.kafka_client import Message
from rejex_connectors.kafka_python import read_partition
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.types import Partition, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka import KafkaSink
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["KafkaSnapshots"]

SLOTS = 2
SETTLE_S = 5.0
"""How long the marker of a transaction may take that is already decided, in seconds."""
_OVERHEAD = 1024
"""Bytes left for key, headers and the log's own."""


class _Slot(NamedTuple):
    """What a slot holds."""

    next_offset: int
    pieces: int


@dataclass
class _Pieces:
    """The pieces of one snapshot, as far as they were seen."""

    next_offset: int
    count: int
    digest: str
    found: dict[int, bytes] = field(default_factory=dict)
    written_at: int = 0


class KafkaSnapshots:
    """Keeps snapshots in ``topics.state``; see :class:`~rejex_stream.protocols.SnapshotStore`.

    Parameters
    ----------
    settings
        Names the topic and the largest message.
    sink
        The sink whose transactions the snapshots join.

    Raises
    ------
    ConfigError
        When no state topic is configured.
    """

    def __init__(self, settings: KafkaSettings, sink: KafkaSink) -> None:
        if settings.topics.state is None:
            raise ConfigError("kafka.topics.state is unset: name it, or keep snapshots in a folder")
        self._settings = settings
        self._topic = settings.topics.state
        self._sink = sink
        self._partitions = sink.partitions(self._topic)
        self._slots: dict[Partition, dict[int, _Slot]] = {}
        self._size = settings.max_message_bytes - _OVERHEAD

    def save(self, partition: Partition, next_offset: int, blob: bytes) -> None:
        """Write `blob` with the next commit, or at once if `next_offset` is committed.

        Snapshots at later offsets are dropped in the same transaction.
        """
        slots = self._slots.get(partition)
        if slots is None:
            slots = self._slots[partition] = _slots(self._read(partition))
        pieces = [blob[i : i + self._size] for i in range(0, len(blob), self._size)] or [b""]
        headers = [
            ("next_offset", b"%d" % next_offset),
            ("pieces", b"%d" % len(pieces)),
            ("sha256", hashlib.sha256(blob).hexdigest().encode()),
        ]
        to = partition.partition % self._partitions
        messages = []
        for slot, held in list(slots.items()):
            if held.next_offset > next_offset:  # of a past that was given up
                keys = [self._key(partition, slot, n) for n in range(held.pieces)]
                messages += [Message(self._topic, to, key, None, []) for key in keys]
                del slots[slot]
        # The oldest makes room: the one we would restore from must stay until this one counts.
        free = [slot for slot in range(SLOTS) if slot not in slots]
        slot = free[0] if free else min(slots, key=lambda held: slots[held].next_offset)
        slots[slot] = _Slot(next_offset, len(pieces))
        for n, piece in enumerate(pieces):
            messages.append(Message(self._topic, to, self._key(partition, slot, n), piece, headers))
        self._sink.keep_snapshot(partition, next_offset, messages)

    def load(self, partition: Partition, at_most: int) -> tuple[int, bytes] | None:
        """Return the newest snapshot at or before `at_most`. O(bytes in the state partition).

        Raises
        ------
        CheckpointError
            When the newest fitting one does not have the checksum it was written with.
        """
        found = self._read(partition)
        self._slots[partition] = _slots(found)
        fitting = [
            pieces
            for pieces in found.values()
            if len(pieces.found) == pieces.count and pieces.next_offset <= at_most
        ]
        if not fitting:
            return None
        best = max(fitting, key=lambda pieces: (pieces.next_offset, pieces.written_at))
        blob = b"".join(best.found[n] for n in range(best.count))
        if hashlib.sha256(blob).hexdigest() != best.digest:
            raise CheckpointError(
                f"the snapshot of {partition.topic}-{partition.partition} at offset "
                f"{best.next_offset} in topic {self._topic!r} was altered: its checksum does not "
                "match. Delete the topic's records to rebuild from the input alone"
            )
        return best.next_offset, blob

    def _key(self, partition: Partition, slot: int, piece: int) -> bytes:
        group = self._settings.group
        return f"{group}|{partition.topic}|{partition.partition}|{slot}|{piece}".encode()

    def _read(self, partition: Partition) -> dict[int, _Pieces]:
        prefix = self._key(partition, 0, 0).rsplit(b"|", 2)[0] + b"|"
        slots: dict[int, _Pieces] = {}
        where = Partition(self._topic, partition.partition % self._partitions)
        for record in read_partition(self._settings, where, settle_s=SETTLE_S):
            if record.key is not None and record.key.startswith(prefix):
                _collect(slots, record, record.key[len(prefix) :])
        return slots


def _slots(found: dict[int, _Pieces]) -> dict[int, _Slot]:
    return {slot: _Slot(pieces.next_offset, pieces.count) for slot, pieces in found.items()}


def _collect(slots: dict[int, _Pieces], record: Record, rest: bytes) -> None:
    """Add one piece; a piece of another snapshot starts its slot anew. Foreign ones are ignored."""
    headers = dict(record.headers)
    try:
        slot, n = (int(part) for part in rest.split(b"|"))
        if record.value is None:
            slots.pop(slot, None)
            return
        next_offset, count = int(headers["next_offset"] or b""), int(headers["pieces"] or b"")
        digest = (headers["sha256"] or b"").decode()
    except (KeyError, ValueError):
        return
    pieces = slots.get(slot)
    if pieces is None or (pieces.next_offset, pieces.digest) != (next_offset, digest):
        pieces = slots[slot] = _Pieces(next_offset, count, digest)
    if n < count:
        pieces.found[n] = record.value
        pieces.written_at = record.position.offset
