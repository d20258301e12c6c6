"""What the connector asks of a Kafka client library, and nothing more.

Two libraries stand behind these contracts, kafka-python and confluent-kafka. Their types and
exceptions stop there: what crosses is a record, a :class:`Message` or a ``ConnectorError``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Record

T = TypeVar("T")
Edge: TypeAlias = Literal["earliest", "latest"]


class Message(NamedTuple):
    """One record to send."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Gained(NamedTuple):
    """The group gave us a partition; it is paused."""

    partition: Partition


class Lost(NamedTuple):
    """The group took a partition away."""

    partition: Partition


class Consumer(Protocol):
    """A member of a consumer group; every method is called from one thread.

    A question that takes longer than its `timeout_s` raises a retriable ``ConnectorError``.
    """

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of running partitions; in order within each partition."""

    def changes(self) -> list[Gained | Lost]:
        """Return what happened to our partitions since the last call, in order."""

    def joined(self) -> bool:
        """Whether the group has dealt with us: we have what it gave us, be it nothing."""

    def committed(self, partition: Partition, timeout_s: float) -> int | None:
        """Return the next offset to process; waits for a transaction that is still deciding."""

    def edge(self, partition: Partition, which: Edge, timeout_s: float) -> int:
        """Return the first offset of a stopped partition that can be read, or its end."""

    def take_stuck(self) -> Mapping[Partition, int]:
        """Return the partitions stopped since the last call, and where the library cannot read."""

    def end(self, partition: Partition) -> int | None:
        """Return where the partition ended at its last fetch; ``None`` before the first."""

    def start(self, partition: Partition, offset: int) -> None:
        """Deliver from `offset` on."""

    def stop(self, partition: Partition) -> None:
        """Deliver nothing until :meth:`start`."""

    def membership(self) -> Any:
        """Return the token that fences our commits; raises when we are no member any more."""

    def commit(self, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Commit outside a transaction (at-least-once)."""

    def close(self) -> None:
        """Leave."""


class Producer(Protocol):
    """Writes messages; after any exception it is spent and must be closed and replaced."""

    def partitions(self, topic: str) -> int:
        """Return how many partitions `topic` has; raises when there is no such topic."""

    def publish(
        self, messages: Iterable[Message], offsets: Mapping[Partition, int], consumer: Consumer
    ) -> None:
        """Write all messages and commit the offsets, both or neither.

        The messages are asked for once, and again where it has to be said what failed.
        At-least-once: the offsets once every message was acknowledged.
        """

    def close(self) -> None:
        """Drop what is not committed."""


def transactional_id(settings: KafkaSettings, worker: str) -> str:
    return f"{settings.group}-{worker}"


def within(timeout_s: float, doing: str, call: Callable[..., T], *arguments: object) -> T:
    """Run a library call that has no deadline of its own; costs one thread."""
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
