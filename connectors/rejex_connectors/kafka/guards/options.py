"""Further options of the client libraries: known to them, and none that decides what we promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from rejex_stream.errors import ConfigError
from rejex_stream.settings import nearest

__all__ = ["Options", "check_kafka_python", "check_librdkafka"]

Options: TypeAlias = dict[str, str | int | float | bool]

_EVERY = {
    "bootstrap_servers", "bootstrap_timeout_ms", "client_id", "reconnect_backoff_max_ms",
    "security_protocol", "metrics_enabled", "allow_auto_create_topics",
}  # fmt: skip
OURS = {
    "consumer": _EVERY | {
        "group_id", "group_instance_id", "isolation_level", "enable_auto_commit",
        "auto_offset_reset", "session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms",
        "fetch_max_bytes", "fetch_max_wait_ms", "partition_assignment_strategy",
        "metadata_max_age_ms", "key_deserializer", "value_deserializer",
    },
    "producer": _EVERY | {
        "transactional_id", "transaction_timeout_ms", "acks", "enable_idempotence", "linger_ms",
        "batch_size", "compression_type", "max_request_size", "delivery_timeout_ms",
        "request_timeout_ms", "max_block_ms", "key_serializer", "value_serializer", "partitioner",
    },
    "admin": _EVERY | {"request_timeout_ms"},
}  # fmt: skip
"""What is set from our settings, or has to be as it is, by the role of a kafka-python client."""
OURS_LIBRDKAFKA = {
    "bootstrap.servers", "metadata.broker.list", "client.id", "reconnect.backoff.max.ms",
    "allow.auto.create.topics", "log_level", "security.protocol", "group.id", "group.instance.id",
    "isolation.level", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "fetch.max.bytes",
    "queued.max.messages.kbytes", "fetch.wait.max.ms", "partition.assignment.strategy",
    "group.protocol", "group.remote.assignor",
    "transactional.id", "transaction.timeout.ms", "acks", "request.required.acks",
    "enable.idempotence", "linger.ms", "queue.buffering.max.ms", "batch.size", "compression.type",
    "compression.codec", "message.max.bytes", "delivery.timeout.ms", "message.timeout.ms",
    "queue.buffering.max.messages", "queue.buffering.max.kbytes", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
}  # fmt: skip


def check_kafka_python(role: str, options: Mapping[str, object]) -> None:
    """Refuse what a client of kafka-python in this role does not know, or may not be told.

    Raises
    ------
    ConfigError
        Naming the option, never its value.
    """
    if not options:
        return
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    of = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}[role]
    where = f"kafka.options.kafka_python.{role}"
    _refuse_ours(where, options, OURS[role], "_")
    known = sorted(set(of.DEFAULT_CONFIG) - OURS[role])
    for name in options:
        if name not in known:
            near = nearest(name, known)
            raise ConfigError(
                f"{where}.{name}: kafka-python's {role} knows no such option; did you mean {near}?"
            )


def check_librdkafka(options: Mapping[str, object]) -> None:
    """Refuse what librdkafka does not know, or may not be told; what it knows, it says itself.

    Raises
    ------
    ConfigError
        Naming the option, never its value.
    """
    if not options:
        return
    where = "kafka.options.librdkafka"
    _refuse_ours(where, options, OURS_LIBRDKAFKA, ".")
    try:
        import confluent_kafka
    except ImportError:  # it is not installed, so nobody is told
        return
    for name, value in options.items():
        try:
            confluent_kafka.Producer({name: value, "log_level": 0})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            reason = "it is not of the type that librdkafka wants"
            if isinstance(error, confluent_kafka.KafkaException):
                reason = error.args[0].str().replace(str(value), "its value")
            raise ConfigError(f"{where}.{name!r}: {reason}") from None


def _refuse_ours(where: str, given: Iterable[str], ours: set[str], separator: str) -> None:
    logins = (f"sasl{separator}", "ssl_")  # those belong into kafka.security
    for name in given:
        if name in ours or name.startswith(logins):
            raise ConfigError(
                f"{where}.{name!r} is set by rejex-stream itself, from a setting of [kafka] or "
                "[kafka.security] or so that every event is decided exactly once: leave it out"
            )
