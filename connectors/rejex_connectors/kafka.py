"""Kafka as source and sink: every event decided exactly once, crash or no crash.

:func:`connect` opens both. A commit is one transaction: verdicts, review records, dead letters,
snapshots and the input's offsets become visible together or not at all. The transaction is opened
when outcomes are written, not while they are computed, so a slow refit never outlives it.

What the caller must know:

* A new partition delivers nothing until :meth:`KafkaSource.seek`.
* Recovery is :meth:`KafkaSink.abort`, :meth:`KafkaSource.rewind`, and go on polling: ``changes()``
  says ``Revoked`` and, once the broker has settled the open transaction, ``Assigned`` with the
  offset that really is committed.
* Outcomes of a partition that was revoked before their commit are dropped: its new owner decides
  those events again, and equally.

``delivery = "at_least_once"`` writes, waits for every acknowledgement, then commits the offsets.
A crash in between repeats the records of that commit with the same ``ce_id``.
"""

from __future__ import annotations

import logging
import math
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from rejex_connectors.kafka_access import refuse_early
from rejex_connectors.kafka_client import (
    Consumer,
    Edge,
    Gained,
    Message,
    Producer,
    SeatTakenError,
    open_clients,
)
from rejex_connectors.kafka_messages import OutcomeMessages
from rejex_connectors.kafka_settings import KafkaSecurity, KafkaSettings, KafkaTopics, Secret
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import Assigned, Revoked
from rejex_stream.types import Outcome, Partition, Record

__all__ = [
    "KafkaSecurity",
    "KafkaSettings",
    "KafkaSink",
    "KafkaSource",
    "KafkaTopics",
    "Secret",
    "connect",
]

SETTLE_S = 1.0
"""How long one poll may wait for the broker to settle who committed what, in seconds."""
RIVAL_S = 60.0
"""Thrown out twice within so many seconds, it was no accident."""

_log = logging.getLogger(__name__)


def connect(settings: KafkaSettings) -> tuple[KafkaSource, KafkaSink]:
    """Join the group and take the worker's name for transactions.

    Raises
    ------
    ConnectorError
        Retriable when the broker does not answer; not when it refuses us, or some of what we do.
    ConfigError
        When an output topic does not exist.
    """
    worker = settings.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    open_consumer, open_producer = open_clients(settings, worker)
    # The producer first: taking the name settles what a dead predecessor left open.
    producer = open_producer()
    try:
        messages = OutcomeMessages(settings, producer.partitions)
        consumer = open_consumer()
    except BaseException:
        producer.close()
        raise
    try:
        refuse_early(settings)
    except BaseException:
        consumer.close()
        producer.close()
        raise
    source = KafkaSource(consumer, settings, open_consumer)
    return source, KafkaSink(source, producer, open_producer, messages)


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
        self._open_consumer = open_consumer
        self._reseated_s = -math.inf
        self._gone: list[Partition] = []
        self._from_latest = settings.start == "latest"
        self._announced: dict[Partition, int] = {}
        self._waiting: list[Partition] = []
        self._again = False
        self.settle: Callable[[], bool] = lambda: True

    @property
    def owned(self) -> dict[Partition, int]:
        """Partitions whose outcomes may be committed, with the offset each has committed.

        Changes in :meth:`changes` alone; the sink keeps the offsets up to date.
        """
        return self._announced

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return what is there, waiting at most `timeout_s`.

        Raises
        ------
        ConnectorError
            Not retriable where the log ends before our offset (trimmed or made anew).
        """
        try:
            return self.consumer.poll(max_records, timeout_s)
        except SeatTakenError as error:
            self.reseat(error)
            return ()

    def reseat(self, error: SeatTakenError) -> None:
        """Join the group anew after somebody joined under our name.

        That somebody may be a ghost: a request of our own that the broker answered after we had
        given it up. A rival is still there when we come back, and throws us out again; then, and
        where its transactions have fenced ours, we give way.

        Raises
        ------
        SeatTakenError
            The second time within :data:`RIVAL_S`.
        """
        now = time.monotonic()
        if self._open_consumer is None or now - self._reseated_s < RIVAL_S:
            raise error
        _log.warning("joining the group anew: %s", error)
        self._reseated_s = now
        self.consumer.close()
        self.consumer = self._open_consumer()
        self._gone += self._announced
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
        if self._again:
            self._again = False
            again = sorted(self._announced)
            for partition in again:
                changes += self._forget(partition)
            self._waiting += again
        if self._waiting and self.settle():
            changes += self._assigned()
        return changes

    def _forget(self, partition: Partition) -> list[Assigned | Revoked]:
        if partition in self._waiting:
            self._waiting.remove(partition)
        if partition not in self._announced:
            return []
        del self._announced[partition]
        return [Revoked(partition)]

    def _assigned(self) -> list[Assigned | Revoked]:
        found: list[Assigned | Revoked] = []
        for partition in list(self._waiting):
            try:
                committed = self.consumer.committed(partition, SETTLE_S)
                fresh = committed is None and self._from_latest
                edge: Edge = "latest" if fresh else "earliest"
                earliest = self.consumer.edge(partition, edge, SETTLE_S)
            except ConnectorError as error:
                if not error.retriable:
                    raise
                _log.warning("%s-%d is not settled yet: %s", *partition, error)
                break  # asked again after the next poll
            self._waiting.remove(partition)
            self._announced[partition] = earliest if committed is None else committed
            found.append(Assigned(partition, committed, earliest))
        return found

    def seek(self, partition: Partition, offset: int) -> None:
        """Deliver `partition` from `offset` on."""
        if partition in self._announced:
            self.consumer.start(partition, offset)

    def lag(self) -> dict[Partition, int]:
        """Return how many records of each owned partition are not committed.

        As of the last fetch, so nobody is asked; a partition that was not fetched yet is left out.
        """
        ends = {partition: self.consumer.end(partition) for partition in self._announced}
        return {
            partition: max(0, end - self._announced[partition])
            for partition, end in ends.items()
            if end is not None
        }

    def ask(self, timeout_s: float = 2.0) -> None:
        """Find out whether the broker answers; where nothing comes in, a poll does not tell.

        Raises
        ------
        ConnectorError
            If it does not within `timeout_s`.
        """
        for partition in list(self._announced)[:1]:
            self.consumer.ask(partition, timeout_s)

    def rewind(self) -> None:
        """Give every partition anew, from what is committed; nothing in flight is delivered."""
        for partition in self._announced:
            self.consumer.stop(partition)
        self._again = True

    def close(self) -> None:
        """Leave the group; a worker with an `instance_id` keeps its seat for a while."""
        self.consumer.close()


class KafkaSink:
    """Writes outcomes and offsets in one transaction; see :class:`~.protocols.Sink`."""

    def __init__(
        self,
        source: KafkaSource,
        producer: Producer,
        open_producer: Callable[[], Producer],
        messages: OutcomeMessages,
    ) -> None:
        self._source = source
        self._producer: Producer | None = producer
        self._open_producer = open_producer
        self._messages = messages
        self._written: dict[Partition, list[Message]] = {}
        source.settle = self._settle

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Encode and keep; nothing is sent before :meth:`commit`. O(outcomes)."""
        for (topic, partition), of_one in groupby(outcomes, key=_partition_of):
            kept = self._written.setdefault(Partition(topic, partition), [])
            kept.extend(self._messages.of(list(of_one)))

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Make what was written durable, with the offsets, in one transaction.

        Partitions that we lost are left out. What was written for a partition that `next_offsets`
        does not name waits for its commit.

        Raises
        ------
        ConnectorError
            Not retriable when another worker has taken our name. After a retriable one
            :meth:`abort` and :meth:`KafkaSource.rewind`: the commit may or may not have happened,
            and ``Assigned`` will say.
        """
        owned = self._source.owned
        for partition in [p for p in self._written if p not in owned]:
            del self._written[partition]
        offsets = {p: offset for p, offset in next_offsets.items() if p in owned}
        self._publish(offsets, {p: self._written.pop(p, []) for p in offsets})

    def _publish(
        self, offsets: Mapping[Partition, int], messages: Mapping[Partition, Sequence[Message]]
    ) -> None:
        if not offsets:
            return
        if self._producer is None:
            raise ConnectorError("Kafka: the last commit failed and was not aborted yet")
        flat = [message for of_one in messages.values() for message in of_one]
        try:
            self._producer.publish(flat, offsets, self._source.consumer)
        except SeatTakenError as error:
            self._drop_producer()
            self._source.reseat(error)
            raise ConnectorError(f"nothing was committed: {error}", retriable=True) from error
        except BaseException:
            self._drop_producer()
            raise
        self._source.owned.update(offsets)

    def partitions(self, topic: str) -> int:
        """Return how many partitions an output topic has."""
        if self._producer is None:
            self._producer = self._open_producer()
        return self._producer.partitions(topic)

    def keep_snapshot(self, partition: Partition, next_offset: int, pieces: list[Message]) -> None:
        """Write a snapshot: at once if its offset is committed, else with the next commit."""
        committed = self._source.owned.get(partition)
        if committed is None:
            return
        if next_offset <= committed and not self._written.get(partition):
            self._publish({partition: committed}, {partition: pieces})
        else:
            self._written.setdefault(partition, []).extend(pieces)

    def abort(self) -> None:
        """Forget what was written since the last commit; the transaction is given up."""
        self._written.clear()
        self._drop_producer()

    def _settle(self) -> bool:
        """Take the worker's name again where need be: that settles our last transaction."""
        if self._producer is not None:
            return True
        try:
            self._producer = self._open_producer()
        except ConnectorError as error:
            if not error.retriable:
                raise
            _log.warning("cannot write to Kafka yet: %s", error)
            return False
        return True

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def close(self) -> None:
        """Let go; what is not committed is dropped."""
        self._drop_producer()


def _partition_of(outcome: Outcome) -> tuple[str, int]:
    return outcome[0][0][:2]
