"""Which rights a worker needs on a broker that asks, and which of them it lacks.

Nothing is changed by asking. Topics tell what is allowed. Groups and transactional ids tell only
those that exist, so they are sent a request that the broker refuses for its content once it has
found the right: a heartbeat of nobody, and the end of a transaction that nobody began.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors as ke
from kafka.admin.client import CoordinatorType
from kafka.protocol.consumer.group import HeartbeatRequest
from kafka.protocol.producer.transaction import EndTxnRequest

from rejex_connectors.kafka_client import transactional_id
from rejex_connectors.kafka_python_errors import explain
from rejex_connectors.kafka_reading import admin
from rejex_connectors.kafka_topics import describe
from rejex_stream.errors import ConnectorError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["Right", "grant", "missing_rights", "needed_of_topics", "refuse_early"]

_log = logging.getLogger(__name__)
_NOBODY = 2**62  # no broker has given out so many producer ids
_NOT_YET = (
    ke.CoordinatorLoadInProgressError,
    ke.CoordinatorNotAvailableError,
    ke.NotCoordinatorError,
)
_COORDINATOR_S = 10.0  # the first question to a new cluster has it make its internal topics


class Right(NamedTuple):
    """One thing a worker must be allowed to do.

    Attributes
    ----------
    kind, name
        ``topic``, ``group`` or ``transactional id``, and which.
    operation
        By Kafka's name: ``READ``, ``WRITE``, ``DESCRIBE``.
    """

    kind: str
    name: str
    operation: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.operation} on {self.kind} {self.name}"


def needed_of_topics(settings: KafkaSettings) -> list[Right]:
    """Return what a worker does with its topics; READ and WRITE imply DESCRIBE."""
    topics = settings.topics
    rights = [Right("topic", name, "READ") for name in topics.input]
    for name in (topics.verdicts, topics.review, topics.deadletter):
        rights.append(Right("topic", name, "WRITE"))
    if topics.state is not None:
        rights += [Right("topic", topics.state, "READ"), Right("topic", topics.state, "WRITE")]
    return rights


def missing_rights(
    client: KafkaAdminClient, settings: KafkaSettings, described: Mapping[str, Mapping[str, Any]]
) -> Iterator[Right]:
    """Ask the broker for every right of a worker; yields those it lacks.

    Parameters
    ----------
    described
        By name, what the broker says of the topics; one that it knows nothing of is not judged.

    Raises
    ------
    ConnectorError
        Where the broker does not answer.
    """
    for right in needed_of_topics(settings):
        topic = described.get(right.name, {})
        refused = topic.get("error_code") == ke.TopicAuthorizationFailedError.errno
        allowed = topic.get("authorized_operations")
        if refused or (allowed is not None and right.operation not in allowed):
            yield right
    if _refused(client, settings, CoordinatorType.GROUP, settings.group, _heartbeat):
        yield Right("group", settings.group, "READ")
    if settings.delivery == "exactly_once":
        name = transactional_id(settings, settings.instance_id or f"{socket.gethostname()}-doctor")
        if _refused(client, settings, CoordinatorType.TRANSACTION, name, _end):
            yield Right("transactional id", name, "WRITE")


def refuse_early(settings: KafkaSettings) -> None:
    """Raise where a right is missing: the clients would notice late, or wait for ever.

    A broker that does not answer these questions stops nobody.

    Raises
    ------
    ConnectorError
        With all that is missing; not retriable.
    """
    try:
        client = admin(settings)
        try:
            names = {right.name for right in needed_of_topics(settings)}
            described = describe(client, settings, sorted(names))
            missing = list(missing_rights(client, settings, described))
        finally:
            client.close()
    except ConnectorError as error:
        _log.debug("rights unknown: %s", error)
        return
    if missing:
        who = settings.security.username or "this client"
        raise ConnectorError(
            f"Kafka at {settings.bootstrap_servers} does not allow {who} to "
            f"{', '.join(map(str, missing))}: `rejex-stream doctor` prints the commands that "
            "grant it."
        )


def grant(right: Right, settings: KafkaSettings) -> str:
    """Return the command that gives a right.

    Examples
    --------
    >>> from rejex_connectors.kafka_settings import KafkaSettings
    >>> grant(Right("group", "pumps", "READ"), KafkaSettings())
    'kafka-acls.sh --bootstrap-server localhost:9092 --add --allow-principal User:NAME \
--operation Read --group pumps'
    """
    name, pattern = right.name, ""
    if right.kind == "transactional id" and settings.instance_id is None:
        # Every start draws a new name, all with the group in front.
        name, pattern = f"{settings.group}-", " --resource-pattern-type prefixed"
    return (
        f"kafka-acls.sh --bootstrap-server {settings.bootstrap_servers} --add --allow-principal "
        f"User:{settings.security.username or 'NAME'} --operation {right.operation.capitalize()} "
        f"--{right.kind.replace(' ', '-')} {name}{pattern}"
    )


def _heartbeat(group: str) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=0, member_id="nobody", group_instance_id=None
    )


def _end(name: str) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name, producer_id=_NOBODY, producer_epoch=0, committed=False
    )


def _refused(
    client: KafkaAdminClient,
    settings: KafkaSettings,
    kind: CoordinatorType,
    name: str,
    request: Callable[[str], Any],
) -> bool:
    """Say whether the coordinator refuses us, rather than what the request says."""

    async def ask() -> type[ke.KafkaError]:
        (node,) = (await client._find_coordinator_ids([name], key_type=kind)).values()
        answer = await client._manager.send(request(name), node_id=node)
        return ke.for_code(answer.error_code)  # type: ignore[no-any-return]

    deadline = time.monotonic() + _COORDINATOR_S
    while True:
        try:
            found = client._manager.run(ask)
        except (ke.AuthorizationError, *_NOT_YET) as error:
            found = type(error)
        except ke.KafkaError as error:
            raise explain(error, settings, f"asking for the rights on {name}") from error
        if not issubclass(found, _NOT_YET) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if issubclass(found, _NOT_YET):
        raise ConnectorError(
            f"Kafka at {settings.bootstrap_servers} has no coordinator for {name} "
            f"({found.__name__}): look at the broker's log.",
            retriable=True,
        )
    return issubclass(found, ke.AuthorizationError)
