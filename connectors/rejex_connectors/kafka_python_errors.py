"""What an exception of kafka-python means for us: one sentence, and whether to try again."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka import errors as ke

from rejex_connectors.kafka_client import no_member, seat_taken
from rejex_stream.errors import ConnectorError

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings

__all__ = ["connecting", "explain", "root_cause"]

_TELLING = re.compile(
    r"(?:SaslAuthenticationFailedError: (?!Sasl)|Handshake failed: (?:\[.*?\] )?)"
    r"(.*?)(?:\)?$| \(_ssl| \(backoff)"
)

_NOT_MEMBER = (
    ke.CommitFailedError,
    ke.IllegalGenerationError,
    ke.RebalanceInProgressError,
    ke.UnknownMemberIdError,
)
_REFUSED = (
    ke.AuthorizationError,
    ke.SaslAuthenticationFailedError,
    ke.UnsupportedSaslMechanismError,
    ke.IllegalSaslStateError,
)
_TOO_LARGE = (ke.MessageSizeTooLargeError, ke.RecordListTooLargeError)
_HOPELESS = (
    *_REFUSED,
    *_TOO_LARGE,
    ke.CorruptRecordError,
    ke.OffsetOutOfRangeError,
    ke.InconsistentGroupProtocolError,
    ke.InvalidGroupIdError,
    ke.InvalidSessionTimeoutError,
    ke.InvalidTopicError,
    ke.InvalidTransactionTimeoutError,
    ke.KafkaConfigurationError,
    ke.UnsupportedCodecError,
    ke.UnsupportedCompressionTypeError,
    ke.UnsupportedVersionError,
)


def explain(error: Exception, settings: KafkaSettings, doing: str) -> ConnectorError:
    """Turn an exception of the library into one sentence, retriable or not."""
    error = root_cause(error)
    if isinstance(error, ConnectorError):
        return error
    if isinstance(error, ke.FencedInstanceIdError):
        return seat_taken(settings)
    if isinstance(error, _NOT_MEMBER):
        return no_member(settings)
    name = type(error).__name__
    retriable = not isinstance(error, _HOPELESS)
    reason = f"{name}: {error}"
    if isinstance(error, _REFUSED):
        reason = f"not allowed ({name}); check kafka.security and the ACLs"
    elif isinstance(error, _TOO_LARGE):
        reason = (
            "a record was larger than the topic accepts; raise the topic's max.message.bytes or "
            f"lower kafka.max_message_bytes = {settings.max_message_bytes}"
        )
    elif isinstance(error, ke.OffsetOutOfRangeError):
        reason = (
            f"the next offset is not in the log ({error}): events were deleted before they were "
            "read, or the topic was made anew. Check its retention, then reset the group's offsets"
        )
    elif isinstance(error, ke.CorruptRecordError):
        reason = f"the broker's log is damaged: {error}"
    return ConnectorError(
        f"Kafka at {settings.bootstrap_servers}, while {doing}: {reason}", retriable=retriable
    )


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

    Raises
    ------
    ConnectorError
        Not retriable where the broker refused us, or we did not trust the broker.
    """
    heard = _Overheard()
    logger = logging.getLogger("kafka.net")
    logger.addHandler(heard)
    try:
        yield
    except ke.KafkaError as error:
        if heard.reason is None:
            explained = explain(error, settings, "connecting")
            if settings.security.protocol == "PLAINTEXT":
                raise explained from error
            # A broker that refuses a login may hang up before its reason is read.
            hint = f"{explained}; if the broker is up, check kafka.security"
            raise ConnectorError(hint, retriable=explained.retriable) from error
        raise ConnectorError(
            f"Kafka at {settings.bootstrap_servers}, while connecting: {heard.reason}; check "
            "kafka.security"
        ) from None
    finally:
        logger.removeHandler(heard)


class _Overheard(logging.Handler):
    """Remembers why a login or a TLS handshake failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the telling part of a message."""
        found = _TELLING.search(record.getMessage())
        if found is not None:
            self.reason = found[1]
