"""The client contracts on top of confluent-kafka (librdkafka)."""

from __future__ import annotations

import contextlib
import logging
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import confluent_kafka as ck

from rejex_connectors.kafka import clients, refusals
from rejex_connectors.kafka.broker_login import distrust, librdkafka_options
from rejex_connectors.kafka.kafka_settings import KafkaSettings, others_of
from rejex_connectors.kafka.partition_reader import asking, missing_of
from rejex_connectors.kafka.refusals import Meaning
from rejex_connectors.kafka.topic_admin import describe
from rejex_connectors.kafka.unpacking import LARGEST_RECORD, TOO_LARGE, UNREADABLE_HEADERS
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Position, Record, UnreadRecord

ASK_S = 5.0  # deadline for one question to the cluster, in seconds
LATE_S = 2.0  # how long a call may outstay the deadline it was given, in seconds

# Defect of the library: where a header's name is not UTF-8, headers() returns pairs that hold
# nothing, with an exception set; the interpreter's quick way to call a method does not look, and
# whatever is called next fails. This way of calling looks.
headers_of = operator.methodcaller("headers")

_log = logging.getLogger(__name__)
_library_log = logging.getLogger("kafka.librdkafka")  # as the other client's: repeats are left out


# ---------------------------------------------------------------------- what its errors mean
_E = ck.KafkaError
REFUSED = {
    _E.CLUSTER_AUTHORIZATION_FAILED, _E.GROUP_AUTHORIZATION_FAILED, _E.TOPIC_AUTHORIZATION_FAILED,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _E.SASL_AUTHENTICATION_FAILED, _E._AUTHENTICATION,
    _E._SSL,
}  # fmt: skip
UNREADABLE = {_E._BAD_COMPRESSION, _E._BAD_MSG}
"""A batch that the library does not deliver: it tries the same one for ever."""
RIVAL = {_E._FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH}
NO_TOPIC = {_E.UNKNOWN_TOPIC_OR_PART, _E._UNKNOWN_TOPIC}
WAITED_IN_VAIN = {_E._TIMED_OUT, _E._MSG_TIMED_OUT, _E._UNKNOWN_PARTITION, *NO_TOPIC}
"""What is said, among others, of a topic that was deleted."""
_MEANINGS: dict[Meaning, set[int]] = {
    "refused": REFUSED,
    "seat taken": {_E.FENCED_INSTANCE_ID},
    "no member": {
        _E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E._MAX_POLL_EXCEEDED, _E._NO_OFFSET,
    },
    "too large": {_E.MSG_SIZE_TOO_LARGE, _E.INVALID_MSG_SIZE},
    "wrong clock": {_E.INVALID_TIMESTAMP},
    "gone": {_E._AUTO_OFFSET_RESET, _E.OFFSET_OUT_OF_RANGE},
    "hopeless": {
        _E.UNSUPPORTED_VERSION, _E._UNSUPPORTED_FEATURE, _E._INVALID_ARG,
        _E.INVALID_TRANSACTION_TIMEOUT, _E.INCONSISTENT_GROUP_PROTOCOL,
    },
}  # fmt: skip


def explain(
    error: ck.KafkaError,
    settings: KafkaSettings,
    doing: str,
    *,
    topic: str | None = None,
    operation: str = "READ",
) -> ConnectorError:
    """Turn an error of the library into one sentence, retriable or not.

    `operation` is what was tried on `topic`; named where the broker does not allow it.
    """
    code, rights = error.code(), list[refusals.Right]()
    if code == _E.TOPIC_AUTHORIZATION_FAILED and topic is not None:
        rights = [refusals.Right("topic", topic, operation)]
    elif code == _E.GROUP_AUTHORIZATION_FAILED:
        rights = [refusals.Right("group", settings.group, "READ")]
    elif code == _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        rights = [refusals.transactional_right(settings)]
    reason = error.str().rstrip(".")
    if "ssl.ca.location" in reason:  # whatever was wrong with the broker's certificate
        reason = distrust(settings.security, settings.bootstrap_servers) or reason
    meanings = (means for means, codes in _MEANINGS.items() if code in codes)
    return refusals.explained(next(meanings, "passing"), settings, doing, reason, rights)


@contextlib.contextmanager
def _explaining(
    settings: KafkaSettings, doing: str, topic: str | None = None, operation: str = "READ"
) -> Iterator[None]:
    try:
        yield
    except ck.KafkaException as error:
        raise explain(error.args[0], settings, doing, topic=topic, operation=operation) from error


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": settings.instance_id or settings.pipeline,
        "reconnect.backoff.max.ms": 1_000,
        "allow.auto.create.topics": False,
        "error_cb": lambda error: _library_log.info("%s", error.str()),
        "log_level": 3,
        "logger": _library_log,
        **librdkafka_options(settings.security),
        **others_of(settings.options),
    }


def _committable(offsets: Mapping[Partition, int]) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(*p, offset) for p, offset in offsets.items()]


def _membership(settings: KafkaSettings) -> dict[str, Any]:
    """Return how a member is known, known to be alive, and who deals partitions."""
    if settings.group_protocol == "consumer":
        # The broker says how often to be heard of. No name: it refuses one that comes back before
        # the session of its dead owner has ended, and the library then waits for good.
        return {"group.protocol": "consumer"}
    return {
        **({"group.instance.id": settings.instance_id} if settings.instance_id else {}),
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": max(100, settings.session_timeout_ms // 5),
        "partition.assignment.strategy": "cooperative-sticky",
    }


class FastConsumer:
    """A consumer group member. A partition joins the assignment of the library when it starts."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._noted: list[clients.Gained | clients.Lost] = []
        self._running: dict[Partition, int] = {}
        self._stuck: dict[Partition, int] = {}
        self._member: str | None = None
        self._is_fenced = False
        with _explaining(settings, "connecting"):
            self._consumer: Any = ck.Consumer(
                {
                    **client_options(settings),
                    "group.id": settings.group,
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",  # a gap must be an error, never a silent jump
                    **_membership(settings),
                    "max.poll.interval.ms": settings.max_poll_interval_ms,
                    "fetch.max.bytes": settings.fetch_max_bytes,
                    "queued.max.messages.kbytes": max(1024, settings.fetch_max_bytes // 1024),
                    "fetch.wait.max.ms": 100,
                }
            )
        self._consumer.subscribe(
            list(settings.topics.input),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _on_assign(self, consumer: ck.Consumer, given: list[ck.TopicPartition]) -> None:
        """Note what was given; with nothing assigned in the library, nothing is fetched yet."""
        self._member = consumer.memberid()
        consumer.incremental_assign([])  # last: closing, nobody answers after it
        self._noted += [clients.Gained(Partition(tp.topic, tp.partition)) for tp in given]

    def _on_revoke(self, consumer: ck.Consumer, taken: list[ck.TopicPartition]) -> None:
        lost = [Partition(tp.topic, tp.partition) for tp in taken]
        fetched = [ck.TopicPartition(*p) for p in lost if p in self._running]
        consumer.incremental_unassign(fetched)
        for partition in lost:
            self._running.pop(partition, None)
        self._noted += [clients.Lost(partition) for partition in lost]

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of running partitions; waits for the first one only."""
        if self._is_fenced:
            raise refusals.seat_taken(self._settings)
        with _explaining(self._settings, "reading"):
            first = self._consumer.poll(timeout_s)
            messages: list[Any] = [] if first is None else [first]
            if first is not None and max_records > 1:
                messages += self._consumer.consume(min(max_records - 1, 1_000_000), 0.0)
        records: list[Record] = []
        running = self._running
        new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
        for message in messages:
            problem = message.error()
            if problem is not None:
                self._complain(problem, message)
                continue
            topic, partition = message.topic(), message.partition()
            if (topic, partition) in running:
                position = new(Position, (topic, partition, message.offset(), 0))
                try:
                    headers = tuple(headers_of(message) or ())
                except SystemError:
                    headers = tuple(UNREADABLE_HEADERS)
                key, value = message.key(), message.value()
                if len(message) > LARGEST_RECORD - len(key or b""):
                    records.append(UnreadRecord.of(position, message.timestamp()[1], TOO_LARGE))
                    continue
                fields = (position, key, value, headers, message.timestamp()[1])
                records.append(new(Record, fields))
        return records

    def _complain(self, error: ck.KafkaError, message: ck.Message) -> None:
        """Raise what needs the caller; the library retries the rest by itself."""
        code = error.code()
        if "static consumer fenced" in error.str().lower():  # the code is that of any fatal error
            self._is_fenced = True  # it is said once
            raise refusals.seat_taken(self._settings)
        if code == ck.KafkaError._MAX_POLL_EXCEEDED:
            _log.warning("%s", refusals.no_member(self._settings))
            return  # on_lost tells the rest
        if code in UNREADABLE:
            partition = Partition(message.topic() or "", message.partition() or 0)
            begun_at = self._running.get(partition)
            if begun_at is not None:  # a batch that was begun is complained of from its begin
                self.stop(partition)
                self._stuck[partition] = max(begun_at, message.offset() or 0)
            return
        explained = explain(error, self._settings, "reading", topic=message.topic())
        if not explained.retriable:
            raise explained
        _log.info("%s", explained)

    def changes(self) -> list[clients.Gained | clients.Lost]:
        noted, self._noted = self._noted, []
        return noted

    def joined(self) -> bool:
        """Say whether the callback has been called under the name that we have now."""
        return self._member is not None and self._member == self._consumer.memberid()

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        with _explaining(self._settings, f"asking where {partition} stands"):
            (answer,) = self._consumer.committed([ck.TopicPartition(*partition)], timeout=timeout_s)
            if answer.error is not None:
                raise ck.KafkaException(answer.error)
        return None if answer.offset < 0 else int(answer.offset)

    def edge(self, partition: Partition, which: clients.Edge, timeout_s: float) -> int:
        doing = f"asking for the {which} offset of {partition}"
        with _explaining(self._settings, doing, partition.topic):
            tp = ck.TopicPartition(*partition)
            watermarks = self._consumer.get_watermark_offsets(tp, timeout_s)
        if watermarks is None:
            raise ConnectorError(f"Kafka did not answer in time: {doing}", retriable=True)
        return int(watermarks[which == "latest"])

    def take_stuck(self) -> Mapping[Partition, int]:
        """Return where the library could not unpack a batch, again and again."""
        stuck, self._stuck = self._stuck, {}
        return stuck

    def end(self, partition: Partition) -> int | None:
        if partition not in self._running:
            return None
        watermarks = self._consumer.get_watermark_offsets(
            ck.TopicPartition(*partition), cached=True
        )
        return None if watermarks is None or watermarks[1] < 0 else int(watermarks[1])

    def start(self, partition: Partition, offset: int) -> None:
        self.stop(partition)
        self._consumer.incremental_assign([ck.TopicPartition(*partition, offset)])
        self._running[partition] = offset

    def stop(self, partition: Partition) -> None:
        if partition in self._running:
            del self._running[partition]
            self._consumer.incremental_unassign([ck.TopicPartition(*partition)])

    def membership(self) -> Any:
        """Return the group metadata, unless we are not who was given the partitions.

        The broker takes a commit without a member as one of a simple consumer and accepts it,
        so a worker that was thrown out must notice here.
        """
        metadata = self._consumer.consumer_group_metadata()
        member = self._consumer.memberid()
        if not member or member != self._member:
            raise refusals.no_member(self._settings)
        return metadata

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        with _explaining(self._settings, doing := "committing offsets"):
            clients.within(timeout_s, doing, self._commit, _committable(offsets))

    def _commit(self, offsets: list[ck.TopicPartition]) -> None:
        for done in self._consumer.commit(offsets=offsets, asynchronous=False):
            if done.error is not None:
                raise ck.KafkaException(done.error)

    def close(self) -> None:
        """Leave the group (a static member keeps its seat until its session ends)."""
        if self._consumer is None:
            return  # closed before
        # Defect of the library, up to 2.16 (its issue 4884): closed with `_on_assign` to be called,
        # it calls `_on_revoke` too, and may be gone by then. Nobody answers what that asks, and the
        # interpreter is held for good. So what is due is called before; and a seat that is kept
        # needs no farewell: its consumer is dropped, which calls nothing.
        held, stays = [self._consumer], "group.instance.id" in _membership(self._settings)
        with contextlib.suppress(ck.KafkaException, ConnectorError):
            self._give_back(stays)
            if not stays:
                clients.within(4.0, "leaving the group", self._consumer.close)
        self._consumer = None
        with contextlib.suppress(ConnectorError):
            clients.within(4.0, "ending the consumer", held.clear)

    def _give_back(self, stays: bool) -> None:
        """Read no more; leave, unless one `stays`. Waits for what is due, two seconds at most."""
        for partition in list(self._running):
            self.stop(partition)
        if not stays:
            self._consumer.unsubscribe()
        # Who leaves has no id then, but where the broker deals.
        has_id = not stays and self._settings.group_protocol == "classic"
        deadline = time.monotonic() + 2.0
        while self._consumer.poll(0.05) or (has_id and self._consumer.memberid()):
            if time.monotonic() > deadline:
                return


class FastProducer:
    """An idempotent producer; with ``exactly_once`` a transactional one."""

    def __init__(self, settings: KafkaSettings, worker: str) -> None:
        self._settings = settings
        self._transactional = settings.delivery == "exactly_once"
        self._failed: list[tuple[ck.KafkaError, str | None]] = []
        self._partitions: dict[str, int] = {}
        refused: list[ck.KafkaError] = []
        options = client_options(settings) | {
            "error_cb": lambda error: refused.append(error) if error.code() in REFUSED else None,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "compression.type": settings.compression,
            "message.max.bytes": settings.max_message_bytes + 1024,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 262_144,
            "message.timeout.ms": min(settings.commit_timeout_ms, settings.transaction_timeout_ms),
            # The failures are all we ask for: a call for every message would cost as much again.
            "delivery.report.only.error": True,
            "on_delivery": _keep_in(self._failed),
        }
        if self._transactional:
            options["transactional.id"] = clients.transactional_id(settings, worker)
            options["transaction.timeout.ms"] = settings.transaction_timeout_ms
        try:
            self._producer: Any = ck.Producer(options)
            if self._transactional:
                self._producer.init_transactions(settings.commit_timeout_ms / 1000)
        except ck.KafkaException as error:
            if hasattr(self, "_producer"):
                with contextlib.suppress(ck.KafkaException):  # a fatal one is raised again
                    self._producer.poll(0.0)  # calls error_cb
                self._producer = None  # its threads end with it
            # Where it could not connect, the library says no more than that time ran out.
            raise explain(next(iter(refused), error.args[0]), settings, "connecting") from None

    def partitions(self, topic: str) -> int:
        """Ask for the topic's metadata, once."""
        if topic not in self._partitions:
            with _explaining(self._settings, f"looking for topic {topic!r}", topic, "WRITE"):
                metadata = self._producer.list_topics(topic, timeout=ASK_S).topics[topic]
                if metadata.error is not None and metadata.error.code() not in NO_TOPIC:
                    raise ck.KafkaException(metadata.error)
            if not metadata.partitions:
                raise refusals.missing_topic(self._settings, topic)
            self._partitions[topic] = len(metadata.partitions)
        return self._partitions[topic]

    def publish(
        self,
        messages: Iterable[clients.Message],
        offsets: Mapping[Partition, int],
        consumer: clients.Consumer,
    ) -> None:
        began = time.monotonic()
        deadline = began + self._settings.commit_timeout_ms / 1000
        # Taken first: whoever takes our partitions from here on makes this token stale.
        membership = consumer.membership() if offsets else None
        try:
            if not self._transactional:
                self._send(messages, deadline)
                self._flush(deadline)
                if offsets:
                    consumer.commit(offsets, deadline - time.monotonic())
                return
            self._producer.begin_transaction()
            self._send(messages, deadline)
            if offsets:
                # The library was seen to outstay its own deadline after a broker came back.
                clients.within(
                    _left(deadline) + LATE_S,
                    "adding offsets to the transaction",
                    self._producer.send_offsets_to_transaction,
                    _committable(offsets),
                    membership,
                    _left(deadline),
                )
            # Flushes first, and fails if any message failed.
            self._producer.commit_transaction(_left(deadline))
            self._check()
        except ck.KafkaException as error:
            reason = self._reason(error.args[0])
            if reason.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                topics = {message.topic for message in messages}
                if topics and (unwritable := self._unwritable(topics)):
                    raise refusals.not_allowed(self._settings, unwritable) from error
                raise refusals.unread_input(self._settings, offsets) from error
            if reason.code() in WAITED_IN_VAIN and (
                missing := missing_of(self._settings, {message.topic for message in messages})
            ):
                raise refusals.deleted_topics(self._settings, missing) from error
            raise self._explain(reason, time.monotonic() - began) from error

    def _reason(self, error: ck.KafkaError) -> ck.KafkaError:
        """Return why a transaction failed: calls made after that say no more than that it has."""
        # Beginning another is refused with the reason; it changes nothing, as what failed is
        # dropped.
        if self._transactional and error.code() == ck.KafkaError._STATE:
            try:
                self._producer.begin_transaction()
            except ck.KafkaException as refused:
                reason: ck.KafkaError = refused.args[0]
                return reason
        return error

    def _unwritable(self, topics: set[str]) -> list[refusals.Right]:
        """Ask which of `topics` we may not write: a transaction that was refused does not say."""
        with asking(self._settings, "looking at topics") as client:
            described = describe(client, self._settings, sorted(topics))
        may = {name: about.get("authorized_operations") or () for name, about in described.items()}
        return [refusals.Right("topic", name, "WRITE") for name in may if "WRITE" not in may[name]]

    def _send(self, messages: Iterable[clients.Message], deadline: float) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        for topic, partition, key, value, headers in messages:
            while True:
                try:
                    produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:  # full: wait for acknowledgements
                    if time.monotonic() > deadline:
                        raise ConnectorError(
                            "Kafka: too many messages unacknowledged", retriable=True
                        ) from None
                    poll(0.05)

    def _flush(self, deadline: float) -> None:
        left = self._producer.flush(_left(deadline))
        if left:
            raise ConnectorError(f"Kafka: {left} messages were not acknowledged", retriable=True)
        self._check()

    def _check(self) -> None:
        self._producer.poll(0)
        if self._failed:
            raise ck.KafkaException(self._failed[0][0])

    def _explain(self, error: ck.KafkaError, elapsed_s: float) -> ConnectorError:
        """Tell a rival with our name from a transaction that simply took too long."""
        topic: str | None = None
        # Of a refused time the messages know no more than that they were refused.
        if self._failed and not error.fatal() and error.code() != ck.KafkaError.INVALID_TIMESTAMP:
            error, topic = self._failed[0]  # the reason, where this is only the consequence
        if error.code() in RIVAL:
            return refusals.fenced(self._settings, elapsed_s)
        return explain(error, self._settings, "writing outcomes", topic=topic, operation="WRITE")

    def close(self) -> None:
        """Stop at once; what is not committed is aborted by whoever takes the name next."""
        self._producer.purge()
        with contextlib.suppress(ck.KafkaException, ConnectorError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot abort where the broker is gone
            clients.within(4.0, "closing the producer", self._producer.close, 0.5)


def _keep_in(
    failed: list[tuple[ck.KafkaError, str | None]],
) -> Callable[[ck.KafkaError | None, ck.Message], None]:
    """Return a callback that does not hold its producer: a cycle would keep its threads alive."""
    return lambda error, m: None if error is None else failed.append((error, m.topic()))


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
