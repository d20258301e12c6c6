"""The partitions that the group gives us, each delivered from what is committed."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rejex_connectors.kafka.clients import Consumer, Edge, Gained, within
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import missing_of, read_partition
from rejex_connectors.kafka.refusals import SeatTakenError, deleted_topics
from rejex_connectors.kafka.unassigned_partitions import SeatRepair
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Revoked
from rejex_stream.types import Partition, Record

SETTLE_S = 1.0  # how long one poll may wait for the broker to settle who committed what, in seconds
RIVAL_S = 60.0  # thrown out twice within so many seconds, it was no accident

_FEW = 10  # somebody may have tried something by hand
_LOOKED_AT = 1_000

_STUCK_STRETCH = 100  # records read by the other library before the group's own tries again

_log = logging.getLogger(__name__)


@dataclass
class _StuckRead:
    """A stretch of a partition that the group's library cannot unpack, read by the other one."""

    next_offset: int
    records: Iterator[Record]


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
        self.inspect: Callable[[Sequence[Record]], None] | None = None
        self.is_decided: Callable[[Partition], bool] = lambda _: True
        self.written_up_to: Callable[[Partition], int] = lambda _: 0
        self._stuck: dict[Partition, _StuckRead] = {}
        self._unsettled = ""  # why, as it was said last
        self._quiet = True  # nothing came since it was asked: librdkafka may keep a deleted topic
        self._seat_repair: SeatRepair | None = None
        self._watch_seat()

    def _watch_seat(self) -> None:
        if self._seat_repair is not None:
            self._seat_repair.close()
        settings = self._settings  # where the broker deals, it forgets none
        if settings.instance_id is not None and settings.group_protocol == "classic":
            self._seat_repair = SeatRepair(settings)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        try:
            records = self._read_stuck(max_records)
            records += self.consumer.poll(max_records, 0.0 if records else timeout_s)
            for partition, offset in self.consumer.take_stuck().items():
                _log.warning("%s-%d is read by kafka-python from %d on", *partition, offset)
                stop = offset + _STUCK_STRETCH
                stretch = read_partition(self._settings, partition, offset, stop)
                self._stuck[partition] = _StuckRead(offset, stretch)
            if self.inspect is not None:
                self.inspect(records)
            self._quiet = self._quiet and not records
            return records
        except SeatTakenError as error:
            self.reseat(error)
            return ()

    def _read_stuck(self, max_records: int) -> list[Record]:
        """Return records of stretches that the library cannot unpack; it goes on behind them."""
        records: list[Record] = []
        for partition, stuck in list(self._stuck.items()):
            records_read = list(islice(stuck.records, max_records))
            if records_read:
                stuck.next_offset = records_read[-1].position.offset + 1
            records += records_read
            if len(records_read) < max_records:
                del self._stuck[partition]
                self.consumer.start(partition, stuck.next_offset)
        return records

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
        self._watch_seat()
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
        self._stuck.pop(partition, None)
        self._ends.pop(partition, None)
        return [Revoked(partition)]

    def _assigned(self) -> list[Assigned | Revoked]:
        assigned: list[Assigned | Revoked] = []
        for partition in list(self._waiting):
            try:
                committed = self.consumer.committed(partition, SETTLE_S)
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
                if str(error) != self._unsettled:
                    self._unsettled = str(error)
                    _log.warning("%s-%d is not settled yet: %s", *partition, error)
                break  # asked again after the next poll
            self._waiting.remove(partition)
            self._unsettled = ""
            self.owned[partition] = earliest if committed is None else committed
            assigned.append(Assigned(partition, committed, earliest, end, written))
        return assigned

    def seek(self, partition: Partition, offset: int) -> None:
        if partition in self.owned:
            self._stuck.pop(partition, None)
            self.consumer.start(partition, offset)

    def pause(self, partition: Partition) -> None:
        """Deliver nothing of `partition` until :meth:`seek`; the group goes on without a hitch."""
        if partition in self.owned:
            end = self.consumer.end(partition)
            if end is not None:
                self._ends[partition] = end
            self._stuck.pop(partition, None)
            self.consumer.stop(partition)

    @property
    def joined(self) -> bool:
        return self.consumer.joined()

    def lag(self) -> dict[Partition, int]:
        """Return how many records of each owned partition are not committed.

        As of the last fetch, so nobody is asked; a partition that was not fetched yet is left out.
        """
        fetched = {partition: self.consumer.end(partition) for partition in self.owned}
        ends = self._ends | {p: end for p, end in fetched.items() if end is not None}
        return {p: max(0, ends[p] - at) for p, at in self.owned.items() if p in ends}

    def ask(self, timeout_s: float = 2.0) -> None:
        """Find out whether the broker answers; where nothing comes in, a poll does not tell."""
        quiet, self._quiet, topics = self._quiet, True, {*self._settings.topics.input}
        if quiet and (
            gone := within(timeout_s, "looking for topics", missing_of, self._settings, topics)
        ):
            raise deleted_topics(self._settings, gone)
        for partition in list(self.owned)[:1]:
            self.consumer.edge(partition, "latest", timeout_s)

    def rewind(self) -> None:
        """Assign every partition again, from what is committed; drop what is in flight."""
        for partition in self.owned:
            self.pause(partition)
        self._rewound = True

    def close(self) -> None:
        """Leave the group; a worker with an `instance_id` keeps its seat for a while."""
        self._stuck.clear()
        if self._seat_repair is not None:
            self._seat_repair.close()
        self.consumer.close()


def keyless(records: Sequence[Record], partitions: Mapping[str, int]) -> Counter[str]:
    """Count records without a key by topic, where the topic has several partitions. O(records)."""
    topics = (record.position.topic for record in records if record.key is None)
    return Counter(topic for topic in topics if partitions.get(topic, 1) > 1)


class KeyWatch:
    """Ends a run that begins with records without keys, before models are made of them."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions
        self._seen = 0
        self._keyless = Counter[str]()

    def see(self, records: Sequence[Record]) -> None:
        """Look at what was polled; after a thousand records, no more. O(records)."""
        if self._seen >= _LOOKED_AT or not records:
            return
        self._seen += len(records)
        self._keyless += keyless(records, self._partitions)
        for topic, total in self._keyless.items():
            if total >= _FEW and total > self._seen / 2:
                raise ConnectorError(
                    f"{total} of the first {self._seen} records have no key, and {topic!r} has "
                    f"{self._partitions[topic]} partitions: each sensor would be parted into as "
                    "many streams, each with a model of its own. Key them (`rejex-stream topics "
                    'rekey` makes a keyed copy), or say by input.partitioning = "trust" that every '
                    "sensor is in one partition"
                )
