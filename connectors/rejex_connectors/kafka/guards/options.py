"""`[kafka.options]`: what we set ourselves, what may be tuned, and what a client library knows."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, TypeAlias

from rejex_stream.errors import ConfigError
from rejex_stream.settings import nearest

__all__ = ["TUNED", "Options", "check_options", "kafka_python_options_of", "others_of"]

Options: TypeAlias = dict[str, str | int | float | bool]

TUNED: dict[str, tuple[int | str, int]] = {
    "session.timeout.ms": (15_000, 1000),
    "max.poll.interval.ms": (300_000, 1000),
    "transaction.timeout.ms": (15_000, 1000),
    "delivery.timeout.ms": (15_000, 1000),
    "linger.ms": (20, 0),
    "batch.size": (524_288, 1),
    "message.max.bytes": (1_000_000, 4096),
    "fetch.max.bytes": (33_554_432, 1),
    "compression.type": ("none", 0),
}
"""Options that we give to either library, by librdkafka's name: our default, the least value."""
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

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
    "heartbeat.interval.ms", "queued.max.messages.kbytes", "fetch.wait.max.ms",
    "partition.assignment.strategy",
    "group.protocol", "group.remote.assignor",
    "transactional.id", "acks", "request.required.acks",
    "enable.idempotence", "queue.buffering.max.ms", "compression.codec", "message.timeout.ms",
    "queue.buffering.max.messages", "queue.buffering.max.kbytes", "ssl.ca.location",
    "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
}  # fmt: skip


def check_options(client: str, options: Mapping[str, object]) -> None:
    """Refuse what the library does not know, what is no value of ours, and what we set.

    Parameters
    ----------
    client
        ``kafka.client``; the library that it leads to is asked, if it is installed.

    Raises
    ------
    ConfigError
        Naming the option, and never the value of one that is handed on.
    """
    for name, value in options.items():
        if name in OURS_LIBRDKAFKA or name.startswith(("sasl.", "ssl.")):
            raise ConfigError(
                f"kafka.options.{name!r} is set by rejex-stream itself, from a setting of [kafka] "
                "or [kafka.security] or so that every event is decided exactly once: leave it out"
            )
        if name in TUNED:
            _check_tuned(name, value)
    others = others_of(options)
    if client != "kafka-python" and find_spec("confluent_kafka"):
        _check_librdkafka(others)
    elif client != "confluent":
        known = sorted(
            {name for role in OURS for name in _defaults(role) if name not in OURS[role]}
        )
        for name in others:
            if name.replace(".", "_") not in known:
                near = nearest(name.replace(".", "_"), known).replace("_", ".")
                raise ConfigError(
                    f"kafka.options.{name!r}: kafka-python knows no such option; did you mean "
                    f"{near}?"
                )


def others_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are handed on as they are."""
    return {name: value for name, value in options.items() if name not in TUNED}


def kafka_python_options_of(role: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that kafka-python has for a client in this role, under its names."""
    known = _defaults(role).keys() - OURS[role]
    named = {name.replace(".", "_"): value for name, value in others_of(options).items()}
    return {name: value for name, value in named.items() if name in known}


def _defaults(role: str) -> Mapping[str, object]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    of = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}[role]
    defaults: Mapping[str, object] = of.DEFAULT_CONFIG
    return defaults


def _check_tuned(name: str, value: object) -> None:
    _, least = TUNED[name]
    if name == "compression.type":
        good, expected = value in _CODECS, "one of " + ", ".join(_CODECS)
    else:
        good = type(value) is int and value >= least
        expected = f"a whole number of at least {least}"
    if not good:
        raise ConfigError(f"kafka.options.{name!r} = {value!r}: expected {expected}")


def _check_librdkafka(options: Mapping[str, object]) -> None:
    import confluent_kafka

    for name, value in options.items():
        try:
            confluent_kafka.Producer({name: value, "log_level": 0})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            reason = "it is not of the type that librdkafka wants"
            if isinstance(error, confluent_kafka.KafkaException):
                reason = error.args[0].str().replace(str(value), "its value")
            raise ConfigError(f"kafka.options.{name!r}: {reason}") from None
