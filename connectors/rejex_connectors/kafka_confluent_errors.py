"""What an error of librdkafka means for us: one sentence, and whether to try again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import confluent_kafka as ck

from rejex_connectors.kafka_client import no_member, seat_taken
from rejex_stream.errors import ConnectorError

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["REFUSED", "RIVAL", "explain"]

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
RIVAL = {_E._FENCED, _E.PRODUCER_FENCED, _E.INVALID_PRODUCER_EPOCH}
_GONE = {_E._AUTO_OFFSET_RESET, _E.OFFSET_OUT_OF_RANGE}
_HOPELESS = {
    _E.UNSUPPORTED_VERSION,
    _E._UNSUPPORTED_FEATURE,
    _E._INVALID_ARG,
    _E.INVALID_TRANSACTION_TIMEOUT,
    _E.INCONSISTENT_GROUP_PROTOCOL,
}


def explain(error: ck.KafkaError, settings: KafkaSettings, doing: str) -> ConnectorError:
    """Turn an error of the library into one sentence, retriable or not."""
    code = error.code()
    if code == _E.FENCED_INSTANCE_ID:
        return seat_taken(settings)
    if code in _NOT_MEMBER:
        return no_member(settings)
    reason = error.str().rstrip(".")
    hopeless = code in _HOPELESS
    if code in REFUSED:
        hopeless, reason = True, f"{reason}; check kafka.security and the ACLs"
    elif code in {_E.MSG_SIZE_TOO_LARGE, _E.INVALID_MSG_SIZE}:
        hopeless = True
        reason = (
            "a record was larger than the topic accepts; raise the topic's max.message.bytes or "
            f"lower kafka.max_message_bytes = {settings.max_message_bytes}"
        )
    elif code in _GONE:
        hopeless = True
        reason = (
            f"the next offset is not in the log ({reason}): events were deleted before they were "
            "read, or the topic was made anew. Check its retention, then reset the group's offsets"
        )
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers}, while {doing}: {reason}", retriable=not hopeless
    )
