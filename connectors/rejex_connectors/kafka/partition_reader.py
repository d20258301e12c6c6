"""kafka-python outside the consumer group: how it connects, and what its errors mean.

An admin client, the bounds of partitions, reading one to its end, listening to the control log.
"""

from __future__ import annotations

import logging
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Literal, TypeAlias

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import errors as ke

import rejex_connectors.kafka.kafka_python_patches  # noqa: F401 - fixes leaks on import
from rejex_connectors.kafka import refusals
from rejex_connectors.kafka.broker_login import guard_logs, kafka_python_options
from rejex_connectors.kafka.kafka_settings import KafkaSettings, kafka_python_options_of
from rejex_connectors.kafka.unpacking import Unread
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.types import Partition, Position, Record, UnreadRecord

_DIAL_S = 2.0
_ID_HOLDS_S = 1.0

logging.getLogger("kafka").addHandler(logging.NullHandler())
Role: TypeAlias = Literal["consumer", "producer", "admin"]


def client_options(settings: KafkaSettings, role: Role) -> dict[str, Any]:
    guard_logs("kafka")
    return {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": settings.instance_id or settings.pipeline,
        "bootstrap_timeout_ms": 4_000,
        "reconnect_backoff_max_ms": 1_000,
        **kafka_python_options(settings.security),
        **kafka_python_options_of(role, settings.options),
    }


def records_of(topic: str, partition: int, messages: Sequence[Any]) -> list[Record]:
    new = tuple.__new__  # nearly twice as fast as calling a named tuple's class
    records: list[Record] = []
    for r in messages:
        position = new(Position, (topic, partition, r.offset, 0))
        headers = r.headers
        if type(headers) is Unread:
            records.append(UnreadRecord.of(position, r.timestamp, headers.reason))
            continue
        fields = (position, r.key, r.value, tuple(headers) if headers else (), r.timestamp)
        records.append(new(Record, fields))
    return records


def admin(settings: KafkaSettings) -> KafkaAdminClient:
    """Open an admin client; the caller closes it."""
    with connecting(settings):
        return KafkaAdminClient(**client_options(settings, "admin"), request_timeout_ms=15_000)


@contextmanager
def asking(
    settings: KafkaSettings, doing: str, *, operation: str = "READ"
) -> Iterator[KafkaAdminClient]:
    """Lend an admin client, and explain what goes wrong with it as in :func:`explain`."""
    with closing(admin(settings)) as client, explaining(settings, doing, operation=operation):
        yield client


@contextmanager
def explaining(settings: KafkaSettings, doing: str, *, operation: str = "READ") -> Iterator[None]:
    try:
        yield
    except ke.KafkaError as error:
        raise explain(error, settings, doing, operation=operation) from error


def partitions_of(settings: KafkaSettings, topic: str, *, needed: bool = False) -> list[Partition]:
    """Return the partitions of a topic; none if it does not exist, which a `needed` one has to."""
    with asking(settings, f"looking at {topic}") as client:
        if topic not in client.list_topics():
            if needed:
                raise refusals.missing_topic(settings, topic)
            return []
        count = len(client.describe_topics([topic])[0]["partitions"])
    return [Partition(topic, number) for number in range(count)]


def missing_of(settings: KafkaSettings, topics: set[str]) -> set[str]:
    """Ask which topics are gone, where a library says no more than that it waited."""
    with suppress(ConnectorError), asking(settings, "looking for topics") as client:
        return topics - set(client.list_topics())
    return set()


def check_topics(
    client: KafkaConsumer, settings: KafkaSettings, tps: Iterable[TopicPartition]
) -> None:
    """Raise where a topic is gone: kafka-python would ask for its offsets until it times out."""
    if gone := {tp.topic for tp in tps if not client.partitions_for_topic(tp.topic)}:
        raise refusals.deleted_topics(settings, gone)


def topic_ids(settings: KafkaSettings) -> Callable[[Partition], bytes]:
    """Return what tells a partition's topic from one of the same name: its id (KIP-516).

    Asked once a second at most. Where the broker has none (before Kafka 2.8) the partition's first
    record tells it, by its time and bytes; empty where that is not there any more.
    """
    known: dict[Partition | str, tuple[float, bytes]] = {}

    def of(partition: Partition) -> bytes:
        topic, now = partition.topic, time.monotonic()
        asked, known_id = known.get(topic) or known.get(partition, (-math.inf, b""))
        if now - asked <= _ID_HOLDS_S:
            return known_id
        with asking(settings, f"looking at {topic}") as client:
            (described,) = client.describe_topics([topic])
            if described["error_code"]:  # it has an id that is not known yet, or has gone
                raise ke.for_code(described["error_code"])
        id_ = str(described.get("topic_id") or "").encode()
        if id_.strip(b"0-"):
            known[topic] = now, id_
        else:
            first = next(read_partition(settings, partition, stop=1), None)
            id_ = b"" if first is None else blake2b(repr(first[1:]).encode()).hexdigest().encode()
            known[partition] = now, id_
        return id_

    return of


def bounds_of(
    settings: KafkaSettings, partitions: Sequence[Partition]
) -> dict[Partition, tuple[int, int]]:
    """Return the bounds as :meth:`PartitionReader.bounds` does, and close what that opened."""
    with closing(PartitionReader(settings)) as reader:
        return reader.bounds(partitions)


def _consumer(settings: KafkaSettings, **more: object) -> KafkaConsumer:
    """Open a consumer that reads what is committed, unless `more` says otherwise."""
    options = client_options(settings, "consumer") | {
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
    with connecting(settings):
        return KafkaConsumer(**options | more)


def committed_offsets(
    settings: KafkaSettings, partitions: Sequence[Partition]
) -> dict[Partition, int]:
    """Return where the group stands, for the partitions where it does."""
    doing = f"asking where group {settings.group} stands"
    with (
        closing(_consumer(settings, group_id=settings.group)) as consumer,
        explaining(settings, doing),
    ):
        offsets = {p: consumer.committed(TopicPartition(*p)) for p in partitions}
    return {partition: offset for partition, offset in offsets.items() if offset is not None}


class PartitionReader:
    """Reads committed records of partitions in order, outside any group, over few connections.

    They are opened at the first question, and again where one failed.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._clients: dict[str, KafkaConsumer] = {}

    def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic; none where it is not there, or not for us to see."""
        with self._asking("read_committed", f"looking at {topic}") as client:
            return [Partition(topic, n) for n in sorted(client.partitions_for_topic(topic) or ())]

    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last committed."""
        tps = [TopicPartition(*partition) for partition in partitions]
        names = ", ".join(sorted({partition.topic for partition in partitions}))
        with self._asking("read_committed", f"asking how far {names} goes", *tps) as client:
            first, end = client.beginning_offsets(tps), client.end_offsets(tps)
        return {Partition(*tp): (int(first[tp]), int(end[tp])) for tp in tps}

    def undecided(self, partition: Partition, settle_s: float = 0.0) -> int | None:
        """Return where a transaction is open even after `settle_s`; what is behind it is hidden."""
        tp, deadline = TopicPartition(*partition), time.monotonic() + settle_s
        doing = f"asking how far {tp.topic} goes"
        with self._asking("read_uncommitted", doing, tp) as client:
            written = client.end_offsets([tp])[tp]
        with self._asking("read_committed", doing) as client:
            while (end := int(client.end_offsets([tp])[tp])) < written:
                if time.monotonic() >= deadline:
                    return end
                time.sleep(0.02)
        return None

    def read(
        self,
        partition: Partition,
        start: int | None = None,
        stop: int | None = None,
        *,
        settle_s: float = 0.0,
    ) -> Iterator[Record]:
        """Read one partition up to its end now; another read ends this one.

        Waits at most `settle_s` for transactions that are being decided: the broker confirms a
        commit a moment before readers can see it.
        """
        tp = TopicPartition(*partition)
        if settle_s:
            self.undecided(partition, settle_s)
        with self._asking("read_committed", f"reading {tp.topic}-{tp.partition}", tp) as client:
            client.assign([tp])
            first, end = client.beginning_offsets([tp])[tp], client.end_offsets([tp])[tp]
            client.seek(tp, first if start is None else max(first, start))
            end = end if stop is None else min(end, stop)
            while client.position(tp) < end:
                for messages in client.poll(timeout_ms=500).values():
                    for record in records_of(tp.topic, tp.partition, messages):
                        if record.position.offset >= end:
                            return
                        yield record

    @contextmanager
    def _asking(self, isolation: str, doing: str, *tps: TopicPartition) -> Iterator[KafkaConsumer]:
        if isolation not in self._clients:
            self._clients[isolation] = _consumer(
                self._settings,
                isolation_level=isolation,
                fetch_max_bytes=self._settings.fetch_max_bytes,
                max_partition_fetch_bytes=self._settings.fetch_max_bytes // 4,
            )
        try:
            check_topics(self._clients[isolation], self._settings, tps)
            yield self._clients[isolation]
        except ke.KafkaError as error:
            self.close()
            raise explain(error, self._settings, doing) from error

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close(autocommit=False)


def read_partition(
    settings: KafkaSettings,
    partition: Partition,
    start: int | None = None,
    stop: int | None = None,
    *,
    settle_s: float = 0.0,
) -> Iterator[Record]:
    with closing(PartitionReader(settings)) as reader:
        yield from reader.read(partition, start, stop, settle_s=settle_s)


def newest_records(
    settings: KafkaSettings, partitions: Sequence[Partition], max_records: int
) -> Iterator[Record]:
    """Read the newest records of partitions, as many of each, `most` in all, outside any group."""
    each = max(1, max_records // max(1, len(partitions)))
    ends = bounds_of(settings, partitions) if partitions else {}
    newest = (
        read_partition(settings, partition, max(first, end - each))
        for partition, (first, end) in ends.items()
        if end > first
    )
    yield from islice(chain.from_iterable(newest), max_records)


# --------------------------------------------------------------------------- the control log
_LISTEN_S = 0.2
_LISTEN_AGAIN_S = 5.0
_LOOK_AGAIN_S = 60.0
_MAX_READ = 1_000


class KafkaControl:
    """Reads commands from the control topic; see :class:`~rejex_stream.protocols.ControlLog`.

    A thread of its own waits for the broker, so nobody else does: where the topic is missing, may
    not be read, or the broker is away, :meth:`read` says so and the thread goes on trying.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self.inputs = settings.topics.input
        self._settings = settings
        self._lock = threading.Lock()
        self._next: int | None = None  # where the reader of this log stands
        self._records: list[Record] = []
        self._log_of, self._log = topic_ids(settings), b""
        self._why: str | None = None
        self._sought = True
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka control", daemon=True)
        self._thread.start()

    def read(self, start: int) -> ControlRecords:
        """Return what was read since; a `start` that is not where the last one ended is sought."""
        with self._lock:
            if start != self._next:
                self._next, self._sought = start, True
                self._records.clear()
            if self._why is not None:
                raise ConnectorError(self._why)
            records, self._records = self._records, []
            if records:
                self._next = records[-1].position.offset + 1
            return ControlRecords(records, self._next or 0, self._log)

    def close(self) -> None:
        """End the thread; it is not waited for where the broker is away."""
        self._end.set()
        self._thread.join(2.0)

    # ------------------------------------------------------------------------ the other thread
    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._follow()
            except (ConnectorError, OSError) as error:  # of no descriptors, too
                with self._lock:
                    self._why, self._sought = str(error), True
                self._end.wait(_LISTEN_AGAIN_S)

    def _follow(self) -> None:
        topic = self._settings.topics.control
        with (
            closing(_consumer(self._settings)) as consumer,
            explaining(self._settings, f"listening to {topic}"),
        ):
            if not consumer.partitions_for_topic(topic):
                # The broker does not say whether it is not there, or not for us to see.
                granted = refusals.grant(refusals.Right("topic", topic, "READ"), self._settings)
                raise ConnectorError(
                    f"{refusals.missing_topic(self._settings, topic)}; if it is there, we may not "
                    f"see it: `{granted}` grants that"
                )
            tp = TopicPartition(topic, 0)
            consumer.assign([tp])
            try:
                while not self._end.is_set():
                    self._seek(consumer, tp)
                    self._take(consumer, tp)
            except ke.OffsetOutOfRangeError:
                with self._lock:
                    self._sought = True  # trimmed or recreated while we read: looked at again

    def _seek(self, consumer: Any, tp: TopicPartition) -> None:
        with self._lock:
            if not self._sought or self._next is None:
                return
            start = self._next
        first, end = consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
        log = self._identity(tp)
        with self._lock:
            if start != self._next:
                return  # sought again meanwhile
            consumer.seek(tp, min(end, max(first, start)))
            self._log, self._sought, self._why = log, False, None
            self._records.clear()

    def _take(self, consumer: Any, tp: TopicPartition) -> None:
        with self._lock:
            idle = self._sought or len(self._records) >= _MAX_READ
        if idle:
            self._end.wait(_LISTEN_S)
            return
        batches = consumer.poll(timeout_ms=int(_LISTEN_S * 1000), max_records=_MAX_READ)
        if (batches or time.monotonic() >= self._look_at) and self._identity(tp) != self._log:
            with self._lock:
                self._sought = True  # what was read is of another log than what is said of it
            return
        for batch in batches.values():
            records = records_of(tp.topic, tp.partition, batch)
            with self._lock:
                if not self._sought:
                    self._records += records

    def _identity(self, tp: TopicPartition) -> bytes:
        # When it is looked at again, though nothing comes: as many may stand in the new log.
        self._look_at = time.monotonic() + _LOOK_AGAIN_S
        return self._log_of(Partition(*tp))


# ------------------------------------------------------------------- what its errors mean
_TELLING = re.compile(
    # A connection that was reset says nothing of the login: a broker under load does that.
    r"(?:SaslAuthenticationFailedError: (?!Sasl)|Handshake failed: (?!\[Errno)(?:\[.*?\] )?)"
    r"(.*?)(?:\)?$| \(_ssl| \(backoff)"
)

_MEANINGS: dict[refusals.Meaning, tuple[type[Exception], ...]] = {
    "seat taken": (ke.FencedInstanceIdError,),
    "no member": (
        ke.CommitFailedError, ke.IllegalGenerationError, ke.UnknownMemberIdError,
    ),
    "refused": (
        ke.AuthorizationError, ke.SaslAuthenticationFailedError, ke.UnsupportedSaslMechanismError,
        ke.IllegalSaslStateError,
    ),
    "too large": (ke.MessageSizeTooLargeError, ke.RecordListTooLargeError),
    "gone": (ke.OffsetOutOfRangeError,),
    "hopeless": (
        ke.CorruptRecordError, ke.InconsistentGroupProtocolError, ke.InvalidGroupIdError,
        ke.InvalidSessionTimeoutError, ke.InvalidTopicError, ke.InvalidTransactionTimeoutError,
        ke.KafkaConfigurationError, ke.UnsupportedCodecError, ke.UnsupportedCompressionTypeError,
        ke.UnsupportedVersionError,
    ),
}  # fmt: skip


def explain(
    error: Exception, settings: KafkaSettings, doing: str, *, operation: str = "READ"
) -> ConnectorError:
    """Turn an exception of the library into one sentence, retriable or not.

    `operation` is what was tried on a topic; named where the broker does not allow it.
    """
    error = root_cause(error)
    if isinstance(error, ConnectorError):
        return error
    meanings = (means for means, kinds in _MEANINGS.items() if isinstance(error, kinds))
    meaning: refusals.Meaning = next(meanings, "passing")
    name = type(error).__name__
    reason = f"{name}: {str(error).removeprefix(f'{name}: ')}"
    if meaning == "refused":
        reason = f"not allowed ({name})"
    elif isinstance(error, ke.CorruptRecordError):
        reason = f"the broker's log is damaged: {error}"
    elif isinstance(error, ke.InvalidTimestampError | ke.InvalidRecordError) and (
        "timestamp" in str(error).lower()  # the second is of a single record
    ):
        meaning = "wrong clock"
    rights = _denied(error, settings, operation)
    return refusals.explained(meaning, settings, doing, reason, rights)


def _denied(error: Exception, settings: KafkaSettings, operation: str) -> list[refusals.Right]:
    argument = error.args[0] if error.args else None
    if isinstance(error, ke.TopicAuthorizationFailedError):
        names = {argument} if isinstance(argument, str) else set(argument or ())
        return [refusals.Right("topic", name, operation) for name in sorted(names)]
    if isinstance(error, ke.GroupAuthorizationFailedError):
        name = argument if isinstance(argument, str) else settings.group
        return [refusals.Right("group", name, "READ")]
    if isinstance(error, ke.TransactionalIdAuthorizationFailedError):
        return [refusals.transactional_right(settings)]
    return []


def root_cause(error: Exception) -> Exception:
    """Unwrap errors that carry the real one as an argument or as their cause."""
    while type(error) is ke.KafkaError:
        inner = [a for a in (*error.args, error.__cause__) if isinstance(a, Exception)]
        if not inner:
            break
        error = inner[0]
    return error


@contextmanager
def connecting(settings: KafkaSettings) -> Iterator[None]:
    """Explain why a client could not be opened.

    The library says no more than that it could not; the reason it gives to its log alone.
    """
    refused = _RefusalLog()
    logger = logging.getLogger("kafka.net")
    logger.addHandler(refused)
    try:
        yield
    except ke.KafkaError as error:
        if refused.reason is None:
            explained = explain(error, settings, "connecting")
            if explained.retriable:
                raise unreachable(settings) from error
            raise explained from error
        raise ConnectorError(
            f"Kafka at {settings.bootstrap_servers}, while connecting: {refused.reason}; check "
            "kafka.security"
        ) from None
    finally:
        logger.removeHandler(refused)


def unreachable(settings: KafkaSettings) -> ConnectorError:
    """Say at which step each broker cannot be reached; they are dialled once more, to know."""
    reasons = dict.fromkeys(map(_silence, settings.bootstrap_servers.split(",")))
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers}, while connecting: {'; '.join(reasons)}",
        retriable=True,
    )


def _silence(address: str) -> str:
    host, _, port = address.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
    except socket.gaierror as error:
        return f"the name {host} is not known (DNS: {error.strerror}); check the address"
    except ConnectionRefusedError:
        return (
            f"nobody listens at {address} (connection refused); start the broker, or check the port"
        )
    except TimeoutError:
        return f"{address} does not answer at all; check the address, and what is between"
    except (OSError, ValueError) as error:
        return f"{address}: {error}"
    # A broker that refuses a login may hang up before its reason is read.
    return (
        f"something listens at {address}, but does not answer as a broker does here; if it is one, "
        "check kafka.security: the protocol (TLS or not) and the login"
    )


class _RefusalLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        match = _TELLING.search(record.getMessage())
        if match is not None:
            self.reason = match[1]
