"""What errors of librdkafka mean: one sentence each, and whether to try again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import confluent_kafka as ck

from rejex_connectors.kafka.refusals import (
    Right,
    no_member,
    not_allowed,
    offset_is_gone,
    seat_taken,
    too_large,
    transactional_right,
    wrong_clock,
)
from rejex_connectors.kafka.security import distrust
from rejex_stream.errors import ConnectorError

if TYPE_CHECKING:
    from rejex_connectors.kafka.settings import KafkaSettings

__all__ = ["REFUSED", "RIVAL", "UNREADABLE", "WAITED_IN_VAIN", "explain"]

_E = ck.KafkaError
_NOT_MEMBER = {
    _E.ILLEGAL_GENERATION,
    _E.UNKNOWN_MEMBER_ID,
    _E.REBALANCE_IN_PROGRESS,
    _E._MAX_POLL_EXCEEDED,
    _E._NO_OFFSET,
}
REFUSED = {
    _E.CLUSTER_AUTHORIZATION_FAILED,
    _E.GROUP_AUTHORIZATION_FAILED,
    _E.TOPIC_AUTHORIZATION_FAILED,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    _E.SASL_AUTHENTICATION_FAILED,
    _E._AUTHENTICATION,
    _E._SSL,
}
UNREADABLE = {_E._BAD_COMPRESSION, _E._BAD_MSG}
"""A batch that the library does not deliver: it tries the same one for ever."""
RIVAL = {_E._FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH}
_GONE = {_E._AUTO_OFFSET_RESET, _E.OFFSET_OUT_OF_RANGE}
WAITED_IN_VAIN = {
    _E._TIMED_OUT,
    _E._MSG_TIMED_OUT,
    _E.UNKNOWN_TOPIC_OR_PART,
    _E._UNKNOWN_TOPIC,
    _E._UNKNOWN_PARTITION,
}
"""What is said, among others, of a topic that was deleted."""
_HOPELESS = {
    _E.UNSUPPORTED_VERSION,
    _E._UNSUPPORTED_FEATURE,
    _E._INVALID_ARG,
    _E.INVALID_TRANSACTION_TIMEOUT,
    _E.INCONSISTENT_GROUP_PROTOCOL,
}


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
    code = error.code()
    if code == _E.TOPIC_AUTHORIZATION_FAILED and topic is not None:
        return not_allowed(settings, [Right("topic", topic, operation)])
    if code == _E.GROUP_AUTHORIZATION_FAILED:
        return not_allowed(settings, [Right("group", settings.group, "READ")])
    if code == _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return not_allowed(settings, [transactional_right(settings)])
    if code == _E.FENCED_INSTANCE_ID:
        return seat_taken(settings)
    if code in _NOT_MEMBER:
        return no_member(settings)
    reason = error.str().rstrip(".")
    if "ssl.ca.location" in reason:  # whatever was wrong with the broker's certificate
        reason = distrust(settings.security, settings.bootstrap_servers) or reason
    hopeless = code in _HOPELESS
    if code in REFUSED:
        hopeless, reason = True, f"{reason}; check kafka.security and the ACLs"
    elif code in {_E.MSG_SIZE_TOO_LARGE, _E.INVALID_MSG_SIZE}:
        hopeless = True
        reason = too_large(settings)
    elif code == _E.INVALID_TIMESTAMP:
        reason = wrong_clock()
    elif code in _GONE:
        hopeless = True
        reason = offset_is_gone(reason)
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers}, while {doing}: {reason}", retriable=not hopeless
    )
