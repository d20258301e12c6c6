"""What the connector asks of a Kafka client library, and nothing more.

Two libraries stand behind these contracts: kafka-python (`python`) and confluent-kafka
(`confluent`). Their types and exceptions stop
there; what crosses is a :class:`~rejex_stream.types.Record`, a :class:`Message` or a
:class:`~rejex_stream.errors.ConnectorError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Partition, Record

if TYPE_CHECKING:
    from rejex_connectors.kafka.settings import KafkaSettings

__all__ = [
    "Consumer",
    "Edge",
    "Gained",
    "Lost",
    "Message",
    "Place",
    "Producer",
    "Right",
    "SeatTakenError",
    "deleted_topics",
    "fenced",
    "grant",
    "missing_topic",
    "no_member",
    "not_allowed",
    "seat_taken",
    "took_too_long",
    "transactional_id",
    "transactional_right",
    "unread_input",
    "within",
    "wrong_clock",
]

T = TypeVar("T")
Edge: TypeAlias = Literal["earliest", "latest"]


class SeatTakenError(ConnectorError):
    """The group holds another member under our instance id: a rival, or a ghost of ourselves."""


class Message(NamedTuple):
    """One record to send."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Place(NamedTuple):
    """An offset to go on from, and the metadata committed with it."""

    offset: int
    note: str = ""


class Gained(NamedTuple):
    """The group gave us a partition; it is paused."""

    partition: Partition


class Lost(NamedTuple):
    """The group took a partition away."""

    partition: Partition


class Consumer(Protocol):
    """A member of a consumer group; every method is called from one thread."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of running partitions; in order within each partition."""
        ...

    def changes(self) -> list[Gained | Lost]:
        """Return what happened to our partitions since the last call, in order."""
        ...

    def joined(self) -> bool:
        """Whether the group has dealt with us: we have what it gave us, be it nothing."""
        ...

    def committed(self, partition: Partition, timeout_s: float) -> Place | None:
        """Return the next offset to process; waits for a transaction that is still deciding.

        Raises a retriable :class:`ConnectorError` where that takes longer than `timeout_s`.
        """
        ...

    def edge(self, partition: Partition, which: Edge, timeout_s: float) -> int:
        """Return the first offset of a stopped partition that can be read, or its end.

        Raises a retriable :class:`ConnectorError` where that takes longer than `timeout_s`.
        """
        ...

    def ask(self, partition: Partition, timeout_s: float) -> None:
        """Ask the partition's leader anything.

        Raises a retriable :class:`ConnectorError` where no answer comes within `timeout_s`.
        """
        ...

    def take_stuck(self) -> Mapping[Partition, int]:
        """Return the partitions stopped since the last call, and where the library cannot read."""
        ...

    def end(self, partition: Partition) -> int | None:
        """Return where the partition ended at its last fetch; ``None`` before the first."""
        ...

    def start(self, partition: Partition, offset: int) -> None:
        """Deliver from `offset` on."""
        ...

    def stop(self, partition: Partition) -> None:
        """Deliver nothing until :meth:`start`."""
        ...

    def membership(self) -> Any:  # noqa: ANN401 - the library's own token
        """Return the token that fences our commits; raises when we are no member any more."""
        ...

    def commit(self, offsets: Mapping[Partition, Place], timeout_s: float) -> None:
        """Commit outside a transaction (at-least-once)."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Producer(Protocol):
    """Writes messages; after any exception it is spent and must be closed and replaced."""

    def partitions(self, topic: str) -> int:
        """Return how many partitions `topic` has; raises when there is no such topic."""
        ...

    def publish(
        self, messages: Sequence[Message], offsets: Mapping[Partition, Place], consumer: Consumer
    ) -> None:
        """Write all messages and commit the offsets, both or neither.

        At-least-once: the offsets once every message was acknowledged.
        """
        ...

    def close(self) -> None:
        """Drop what is not committed."""
        ...


def transactional_id(settings: KafkaSettings, worker: str) -> str:
    """Name the transactions of one worker."""
    return f"{settings.group}-{worker}"


class Right(NamedTuple):
    """One thing that a broker with ACLs must allow us.

    Attributes
    ----------
    kind, name
        ``topic``, ``group`` or ``transactional id``, and which.
    operation
        By Kafka's name: ``READ``, ``WRITE``, ``DESCRIBE``, ...
    """

    kind: str
    name: str
    operation: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.operation} on {self.kind} {self.name}"


def transactional_right(settings: KafkaSettings) -> Right:
    """Return what a worker needs for its transactions.

    Without an `instance_id` every start draws a new name, all with the group in front.
    """
    return Right(
        "transactional id", transactional_id(settings, settings.instance_id or ""), "WRITE"
    )


def grant(right: Right, settings: KafkaSettings) -> str:
    """Return the command that gives a right.

    Examples
    --------
    >>> from rejex_connectors.kafka.settings import KafkaSettings
    >>> grant(Right("group", "pumps", "READ"), KafkaSettings())
    'kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal User:NAME \
--operation Read --group pumps'
    """
    prefix = right == transactional_right(settings) and settings.instance_id is None
    operation = right.operation.title().replace("_", "")
    return (
        f"kafka-acls.sh --bootstrap-server {settings.bootstrap_servers} --add --allow-principal "
        f"User:{settings.security.username or 'NAME'} --operation {operation} "
        f"--{right.kind.replace(' ', '-')} {right.name}"
        f"{' --resource-pattern-type prefixed' if prefix else ''}"
    )


def not_allowed(settings: KafkaSettings, rights: Sequence[Right]) -> ConnectorError:
    """Say which rights the broker denies us, and what an administrator types to grant them."""
    who = settings.security.username or "this client"
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers} does not allow {who} to "
        f"{', '.join(map(str, rights))}: "
        f"`{'; '.join(grant(right, settings) for right in rights)}` grants it"
    )


def unread_input(settings: KafkaSettings, offsets: Iterable[Partition]) -> ConnectorError:
    """Say that the offsets may not be committed: that takes the right to read their topics."""
    topics = sorted({partition.topic for partition in offsets})
    return not_allowed(settings, [Right("topic", topic, "READ") for topic in topics])


def within(timeout_s: float, doing: str, call: Callable[..., T], *arguments: object) -> T:
    """Run a library call that has no deadline of its own; costs one thread.

    Raises
    ------
    ConnectorError
        Retriable, after `timeout_s`; the call is left behind in a daemon thread.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call(*arguments))
        except BaseException as error:  # handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, name=f"kafka {doing}", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))
    if failure:
        raise failure[0]
    if not result:
        raise ConnectorError(f"Kafka did not answer in {timeout_s:.1f} s: {doing}", retriable=True)
    return result[0]


def fenced(settings: KafkaSettings) -> ConnectorError:
    """Say that another worker goes by our name."""
    return ConnectorError(
        f"another worker has taken the name {settings.instance_id!r} in group {settings.group!r}; "
        "this one wrote nothing since and stops. Give every live worker its own "
        "kafka.instance_id, or leave it unset."
    )


def seat_taken(settings: KafkaSettings) -> SeatTakenError:
    """Say the same of our seat in the group; the caller finds out whether it is a ghost."""
    return SeatTakenError(str(fenced(settings)))


def no_member(settings: KafkaSettings) -> ConnectorError:
    """Say that the group went on without us."""
    return ConnectorError(
        f"this worker is no longer a member of group {settings.group!r} (it was silent for more "
        f"than session_timeout_ms = {settings.session_timeout_ms}, or did not poll for "
        f"max_poll_interval_ms = {settings.max_poll_interval_ms}); nothing was committed",
        retriable=True,
    )


def missing_topic(settings: KafkaSettings, topic: str) -> ConfigError:
    """Say that an output topic is not there, and how to make it."""
    return ConfigError(
        f"topic {topic!r} does not exist on {settings.bootstrap_servers}: run "
        "`rejex-stream topics create`"
    )


def deleted_topics(settings: KafkaSettings, topics: Iterable[str]) -> ConnectorError:
    """Say that topics were there and are not any more; somebody may make them again."""
    named = ", ".join(map(repr, sorted(topics)))
    return ConnectorError(
        f"topic {named} is missing on {settings.bootstrap_servers}: run `rejex-stream topics "
        "create`; nothing was committed since",
        retriable=True,
    )


def wrong_clock() -> str:
    """Say why the broker may refuse the time of a record."""
    return (
        "the broker refuses the times of what we write: the clock of this machine says "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, which is ahead of the broker's or behind it "
        "by more than the topic accepts; set it right"
    )


def took_too_long(settings: KafkaSettings, elapsed_s: float) -> ConnectorError:
    """Say that the broker gave up on our transaction."""
    return ConnectorError(
        f"a transaction took {elapsed_s:.1f} s, longer than transaction_timeout_ms = "
        f"{settings.transaction_timeout_ms}: the broker aborted it",
        retriable=True,
    )
