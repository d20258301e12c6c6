"""What a worker may not do or cannot go on with, as an error in one sentence with its fix.

The same sentence for both client libraries: what they raise is recognised beside each, by a table
of meanings (:data:`Meaning`), and what it means for us stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeAlias

from rejex_connectors.kafka.clients import transactional_id
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.types import Partition


class SeatTakenError(ConnectorError):
    """The group holds another member under our instance id: a rival, or a ghost of ourselves."""


class Right(NamedTuple):
    """One thing that a broker with ACLs must allow us."""

    kind: str  # kind, name: ``topic``, ``group`` or ``transactional id``, and which
    name: str
    operation: str  # by Kafka's name: ``READ``, ``WRITE``, ``DESCRIBE``,

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}"


def transactional_right(settings: KafkaSettings) -> Right:
    """Return what a worker needs for its transactions.

    Without an `instance_id` every start draws a new name, all with the group in front.
    """
    return Right(
        "transactional id", transactional_id(settings, settings.instance_id or ""), "WRITE"
    )


def grant(right: Right, settings: KafkaSettings) -> str:
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
    topics = sorted({partition.topic for partition in offsets})
    return not_allowed(settings, [Right("topic", topic, "READ") for topic in topics])


def fenced(settings: KafkaSettings, elapsed_s: float) -> ConnectorError:
    if elapsed_s * 1000 < settings.transaction_timeout_ms:
        return ConnectorError(_name_taken(settings))
    return ConnectorError(
        f"a transaction took {elapsed_s:.1f} s, longer than transaction.timeout.ms = "
        f"{settings.transaction_timeout_ms}: the broker aborted it",
        retriable=True,
    )


def seat_taken(settings: KafkaSettings) -> SeatTakenError:
    """Say that our seat in the group is taken; the caller finds out whether by a ghost of us."""
    return SeatTakenError(_name_taken(settings))


def _name_taken(settings: KafkaSettings) -> str:
    return (
        f"another worker has taken the name {settings.instance_id!r} in group {settings.group!r}; "
        "this one wrote nothing since and stops. Give every live worker its own "
        "kafka.instance_id, or leave it unset."
    )


def no_member(settings: KafkaSettings) -> ConnectorError:
    return ConnectorError(
        f"this worker is no longer a member of group {settings.group!r} (it was silent for more "
        f"than session.timeout.ms = {settings.session_timeout_ms}, or did not poll for "
        f"max.poll.interval.ms = {settings.max_poll_interval_ms}); nothing was committed",
        retriable=True,
    )


def missing_topic(settings: KafkaSettings, topic: str) -> ConfigError:
    return ConfigError(
        f"topic {topic!r} does not exist on {settings.bootstrap_servers}: run "
        "`rejex-stream topics create`"
    )


def deleted_topics(settings: KafkaSettings, topics: Iterable[str]) -> ConnectorError:
    gone = sorted(topics)
    more = " --with-input" if {*gone} & {*settings.topics.input} else ""
    return ConnectorError(
        f"topic {', '.join(map(repr, gone))} is missing on {settings.bootstrap_servers}: run "
        f"`rejex-stream topics create{more}`; nothing was committed since",
        retriable=True,
    )


def undecided(settings: KafkaSettings, partition: Partition, end: int) -> ConnectorError:
    return ConnectorError(
        f"{partition} cannot be read beyond offset {end} yet: a "
        "transaction is open there, of a worker that has ended, say. The broker aborts it after "
        f"transaction.timeout.ms = {settings.transaction_timeout_ms}, or as soon as that worker is "
        "back",
        retriable=True,
    )


Meaning: TypeAlias = Literal[
    "passing", "hopeless", "refused", "seat taken", "no member", "too large", "wrong clock", "gone"
]
"""What an error of a library comes to; each of them has a table for its own."""


def explained(
    meaning: Meaning, settings: KafkaSettings, doing: str, reason: str, rights: Sequence[Right] = ()
) -> ConnectorError:
    """Return an error of either library in one sentence, retriable or not.

    `reason` is what the library says, `rights` what the broker does not allow.
    """
    if rights:
        return not_allowed(settings, rights)
    match meaning:
        case "seat taken":
            return seat_taken(settings)
        case "no member":
            return no_member(settings)
        case "refused":
            reason += "; check kafka.security and the ACLs"
        case "too large":
            reason = (
                "a record was larger than the topic accepts; raise the topic's max.message.bytes "
                f"or lower kafka.options.'message.max.bytes' = {settings.max_message_bytes}"
            )
        case "wrong clock":
            reason = (
                "the broker refuses the times of what we write: the clock of this machine says "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, which is ahead of the broker's or "
                "behind it by more than the topic accepts; set it right"
            )
        case "gone":
            reason = (
                f"the next offset is not in the log ({reason}): events were deleted before they "
                "were read, or the topic was recreated. Check its retention, then reset the "
                "group's offsets"
            )
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers}, while {doing}: {reason}",
        retriable=meaning in ("passing", "wrong clock"),
    )
