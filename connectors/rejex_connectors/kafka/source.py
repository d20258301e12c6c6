"""The partitions that the group gives us, each delivered from what is committed."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rejex_connectors.kafka.clients import Consumer, Edge, Gained, Place
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import read_partition
from rejex_connectors.kafka.poison_pill import PoisonGuard
from rejex_connectors.kafka.refusals import SeatTakenError
from rejex_connectors.kafka.unassigned_partitions import members
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Revoked
from rejex_stream.types import Partition, Record

__all__ = ["KafkaSource", "KeyWatch", "keyless"]

SETTLE_S = 1.0
"""How long one poll may wait for the broker to settle who committed what, in seconds."""
RIVAL_S = 60.0
"""Thrown out twice within so many seconds, it was no accident."""

_FEW = 10  # somebody may have tried something by hand
_LOOKED_AT = 1_000

_log = logging.getLogger(__name__)


class KafkaSource:
    """Delivers the partitions that the group gives us; see :class:`~.protocols.Source`."""

    exhausted = False

    def __init__(
        self,
        consumer: Consumer,
        settings: KafkaSettings,
        open_consumer: Callable[[], Consumer] | None = None,
    ) -> None:
        self.consumer = consumer
        self._settings = settings
        self._open_consumer = open_consumer
        self._reseated_s = -math.inf
        self._gone: list[Partition] = []
        self._from_latest = settings.start == "latest"
        # Whose outcomes may be committed, with the offset each has committed; gained and lost in
        # `changes` alone, and the sink keeps the offsets up to date.
        self.owned: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}  # of partitions that were paused, when they were
        self._waiting: list[Partition] = []
        self._rewound = False
        self.settle_transaction: Callable[[], bool] = lambda: True
        self.commit_notes: Callable[[Mapping[Partition, int]], None] | None = None
        self.inspect: Callable[[Sequence[Record]], None] | None = None
        self.is_decided: Callable[[Partition], bool] = lambda _: True
        self.written_up_to: Callable[[Partition], int] = lambda _: 0
        self._guard = PoisonGuard(lambda p, offset: read_partition(settings, p, offset))
        self._to_begin: dict[Partition, int] = {}

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return what is there, waiting at most `timeout_s`."""
        try:
            self._begin()
            records = self._read_with_care(max_records)
            records += self.consumer.poll(max_records, 0.0 if records else timeout_s)
            for partition, offset in self.consumer.take_stuck().items():
                _log.warning("%s-%d is read with care from %d on", *partition, offset)
                self._guard.read_with_care(partition, offset)
            if self.inspect is not None:
                self.inspect(records)
            return records
        except SeatTakenError as error:
            self.reseat(error)
            return ()

    def _begin(self) -> None:
        """Have the library read from where was sought, after a note of that is committed."""
        begun = [(p, offset) for p, offset in self._to_begin.items() if p in self.owned]
        self._to_begin.clear()
        if not begun:  # as in nearly every poll
            return
        owned, guard = self.owned, self._guard
        new = {p for p, _ in begun if guard.is_new(p)}
        guard.member = self.consumer.member()
        who = functools.cache(self._members)  # asked once, and only where a note asks
        plain = [(p, at) for p, at in begun if not guard.begin_reading(p, at, owned[p], who)]
        if self.commit_notes is not None and (
            to_note := {p: owned[p] for p, _ in plain if p in new}
        ):
            self.commit_notes(to_note)
        for partition, offset in plain:
            self.consumer.start(partition, offset)

    def _members(self) -> Collection[str]:
        """Return the ids of the group's members; none where we may not ask."""
        try:
            return members(self._settings)
        except ConnectorError as error:
            if error.retriable:
                raise  # silence is no proof that a run has ended
            _log.warning("a run before this one is taken to have ended: %s", error)
            return ()

    def _read_with_care(self, max_records: int) -> list[Record]:
        """Return the next records of the partitions that are read with care."""
        records: list[Record] = []
        for partition in self._guard.partitions_with_care():
            committed = self.owned[partition]
            if self._guard.awaits_commit(partition, committed):
                continue
            careful, note = self._guard.next_records(partition, max_records)
            if note is not None and self.commit_notes is not None:
                self.commit_notes({partition: committed})
            records += careful
            resume_at = self._guard.resume_offset(partition)
            if resume_at is not None:
                if not careful and partition in self._guard.noted_by_us():
                    self._clear_notes([partition])
                self.consumer.start(partition, resume_at)
        return records

    def _clear_notes(self, partitions: Iterable[Partition]) -> None:
        there = {p: self.owned[p] for p in partitions if p in self.owned}
        for partition in there:
            self._guard.clear_note(partition)
        if there and self.commit_notes is not None:
            self.commit_notes(there)

    def ended_well(self) -> None:
        """Take back the notes that an end before the next commit would be held against a record."""
        opened = list(self._guard.noted_by_us())
        if opened:
            self.ask(1.0)
            self._clear_notes(opened)

    def places(self, offsets: Mapping[Partition, int]) -> dict[Partition, Place]:
        """Return offsets to commit, each with what is to be noted there."""
        note, owned = self._guard.note_for, self.owned
        return {p: Place(offset, note(p, offset, owned[p])) for p, offset in offsets.items()}

    def settled(self, places: Mapping[Partition, Place]) -> None:
        """Record what was committed."""
        for partition, (offset, note) in places.items():
            self.owned[partition] = offset
            self._guard.note_committed(partition, note)

    def reseat(self, error: SeatTakenError) -> None:
        """Join the group again after another member joined under our name.

        That somebody may be a ghost: a request of our own that the broker answered after we had
        given it up. A rival is still there when we come back, and throws us out again; then, and
        where its transactions have fenced ours, we give way.
        """
        now = time.monotonic()
        if self._open_consumer is None or now - self._reseated_s < RIVAL_S:
            raise error
        _log.warning("joining the group again: %s", error)
        consumer = self._open_consumer()  # where that fails, the old one is thrown out again
        self._reseated_s = now
        self.consumer.close()
        self.consumer = consumer
        self._gone += self.owned
        self._waiting.clear()

    def changes(self) -> Sequence[Assigned | Revoked]:
        """Return what was gained and lost; a gained partition once its offset is settled."""
        changes: list[Assigned | Revoked] = []
        for partition in self._gone:
            changes += self._forget(partition)
        self._gone.clear()
        for change in self.consumer.changes():
            if isinstance(change, Gained):
                self._waiting.append(change.partition)
            else:
                changes += self._forget(change.partition)
        if self._rewound:
            self._rewound = False
            rewound = sorted(self.owned)
            for partition in rewound:
                changes += self._forget(partition)
            self._waiting += rewound
        if self._waiting and self.settle_transaction():
            changes += self._assigned()
        return changes

    def _forget(self, partition: Partition) -> list[Assigned | Revoked]:
        if partition in self._waiting:
            self._waiting.remove(partition)
        if partition not in self.owned:
            return []
        del self.owned[partition]
        self._guard.forget(partition)
        self._to_begin.pop(partition, None)
        self._ends.pop(partition, None)
        return [Revoked(partition)]

    def _assigned(self) -> list[Assigned | Revoked]:
        assigned: list[Assigned | Revoked] = []
        for partition in list(self._waiting):
            try:
                place = self.consumer.committed(partition, SETTLE_S)
                committed = None if place is None else place.offset
                fresh = committed is None and self._from_latest
                edge: Edge = "latest" if fresh else "earliest"
                earliest = self.consumer.edge(partition, edge, SETTLE_S)
                end = None
                if committed is None:
                    end = self.consumer.edge(partition, "latest", SETTLE_S)
                if not self.is_decided(partition):
                    _log.info("the state of %s-%d is not settled yet", *partition)
                    continue
                written = self.written_up_to(partition)
            except ConnectorError as error:
                if not error.retriable:
                    raise
                _log.warning("%s-%d is not settled yet: %s", *partition, error)
                break  # asked again after the next poll
            self._waiting.remove(partition)
            self.owned[partition] = earliest if committed is None else committed
            self._guard.load_note(partition, "" if place is None else place.note)
            assigned.append(Assigned(partition, committed, earliest, end, written))
        return assigned

    def seek(self, partition: Partition, offset: int) -> None:
        """Deliver `partition` from `offset` on."""
        if partition in self.owned:
            self._to_begin[partition] = offset

    def pause(self, partition: Partition) -> None:
        """Deliver nothing of `partition` until :meth:`seek`; the group goes on without a hitch."""
        if partition in self.owned:
            end = self.consumer.end(partition)
            if end is not None:
                self._ends[partition] = end
            self._to_begin.pop(partition, None)
            self._guard.pause(partition)
            self.consumer.stop(partition)

    def set_idle(self, partition: Partition, *, idle: bool) -> None:
        """Note at the committed offset whether the record there waits for a fit."""
        changed = self._guard.mark_idle(partition) if idle else self._guard.mark_busy(partition)
        if changed and self.commit_notes is not None:
            offset = self.owned[partition]
            self.commit_notes({partition: offset})
            state = (
                "waits for a fit: no end is held against it" if idle else "is about to be judged"
            )
            _log.info("%s-%d-%d %s", *partition, offset, state)

    @property
    def joined(self) -> bool:
        """Whether we are a member of the group, be it one without partitions."""
        return self.consumer.joined()

    def lag(self) -> dict[Partition, int]:
        """Return how many records of each owned partition are not committed.

        As of the last fetch, so nobody is asked; a partition that was not fetched yet is left out.
        """
        lag = {}
        for partition, committed in self.owned.items():
            end = self.consumer.end(partition)
            if end is None:
                end = self._ends.get(partition)
            if end is not None:
                lag[partition] = max(0, end - committed)
        return lag

    def ask(self, timeout_s: float = 2.0) -> None:
        """Find out whether the broker answers; where nothing comes in, a poll does not tell."""
        for partition in list(self.owned)[:1]:
            self.consumer.edge(partition, "latest", timeout_s)

    def rewind(self) -> None:
        """Assign every partition again, from what is committed; drop what is in flight."""
        for partition in self.owned:
            self.pause(partition)  # what was sought is forgotten: beginning there would write
        self._rewound = True

    def close(self) -> None:
        """Leave the group; a worker with an `instance_id` keeps its seat for a while."""
        self._guard.close()
        self.consumer.close()


def keyless(records: Sequence[Record], partitions: Mapping[str, int]) -> dict[str, int]:
    """Count records without a key by topic, where the topic has several partitions. O(records)."""
    counts: dict[str, int] = {}
    for record in records:
        topic = record.position.topic
        if record.key is None and partitions.get(topic, 1) > 1:
            counts[topic] = counts.get(topic, 0) + 1
    return counts


class KeyWatch:
    """Ends a run that begins with records without keys, before models are made of them."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._seen = 0
        self._keyless: dict[str, int] = {}

    def see(self, records: Sequence[Record]) -> None:
        """Look at what was polled; after a thousand records, no more. O(records)."""
        if self._seen >= _LOOKED_AT or not records:
            return
        self._seen += len(records)
        for topic, count in keyless(records, self._partitions).items():
            total = self._keyless[topic] = self._keyless.get(topic, 0) + count
            if total >= _FEW and total > self._seen / 2:
                raise ConnectorError(
                    f"{total} of the first {self._seen} records have no key, and {topic!r} has "
                    f"{self._partitions[topic]} partitions: each sensor would be parted into as "
                    "many streams, each with a model of its own. Key them (`rejex-stream topics "
                    'rekey` makes a keyed copy), or say by input.partitioning = "trust" that every '
                    "sensor is in one partition"
                )
