"""From a config to what the Kafka connector and the schema registry are told."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import SecretStr

from rejex_stream.config.edges import REGISTRY_FORMATS
from rejex_stream.config.model import Config
from rejex_stream.decode import Decoder, JsonDecoder
from rejex_stream.errors import ConfigError

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings, Secret
    from rejex_connectors.schema_registry import HttpSchemaRegistry, RegistrySettings

__all__ = ["kafka_decoder", "kafka_settings", "open_registry", "registry_settings"]


def kafka_settings(config: Config) -> KafkaSettings:
    """Return what the Kafka connector is told; secrets stay sealed.

    Raises
    ------
    ConfigError
        If settings contradict each other.
    """
    from rejex_connectors.kafka_settings import KafkaSecurity, KafkaSettings, KafkaTopics

    kafka, output, state = config.kafka, config.output, config.state
    security = kafka.security
    return KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers,
        topics=KafkaTopics(
            input=config.input.topics or KafkaTopics().input,
            verdicts=output.verdicts or "rejex.verdicts",
            review=output.review or "rejex.review",
            labels=output.labels,
            deadletter=output.deadletter or "rejex.deadletter",
            state=None if state.folder is not None else state.topic,
        ),
        security=KafkaSecurity(
            protocol=security.protocol,
            ca_file=security.ca_file,
            cert_file=security.cert_file,
            key_file=security.key_file,
            key_password=_secret("key_password", security.key_password, security.key_password_file),
            check_hostname=security.check_hostname,
            mechanism=security.mechanism,
            username=security.username,
            password=_secret(
                "password", security.password, security.password_file, security.password_env
            ),
            oauth_token_url=security.oauth_token_url,
            oauth_client_id=security.oauth_client_id,
            oauth_client_secret=_secret(
                "oauth_client_secret",
                security.oauth_client_secret,
                security.oauth_client_secret_file,
            ),
            oauth_scope=security.oauth_scope,
            oauth_token=_secret("oauth_token", None, security.oauth_token_file),
        ),
        group=kafka.group or config.pipeline.name,
        pipeline=config.pipeline.name,
        pipeline_version=config.pipeline.version,
        delivery=kafka.delivery,
        client=kafka.client,
        instance_id=kafka.instance_id,
        start=kafka.start,
        session_timeout_ms=kafka.session_timeout_ms,
        max_poll_interval_ms=kafka.max_poll_interval_ms,
        transaction_timeout_ms=kafka.transaction_timeout_ms,
        commit_timeout_ms=kafka.commit_timeout_ms,
        linger_ms=kafka.linger_ms,
        batch_bytes=kafka.batch_bytes,
        compression=kafka.compression,
        max_message_bytes=kafka.max_message_bytes,
        fetch_max_bytes=kafka.fetch_max_bytes,
        client_options=tuple(kafka.client_options.items()),
    )


def registry_settings(config: Config) -> RegistrySettings:
    """Return where the schema registry is; the password stays sealed.

    Raises
    ------
    ConfigError
        If settings contradict each other.
    """
    from rejex_connectors.schema_registry import RegistrySettings

    registry = config.schema_registry
    return RegistrySettings(
        url=registry.url or "",
        username=registry.username,
        password=_secret(
            "password",
            registry.password,
            registry.password_file,
            registry.password_env,
            section="schema_registry",
        ),
        ca_file=registry.ca_file,
    )


def open_registry(config: Config) -> HttpSchemaRegistry:
    """Make a client of the registry; nobody is asked yet.

    Raises
    ------
    ConfigError
        If its password or its authorities cannot be read.
    """
    from rejex_connectors.schema_registry import HttpSchemaRegistry

    return HttpSchemaRegistry(registry_settings(config))


def kafka_decoder(config: Config) -> Decoder:
    """Return what makes readings of the records of a topic.

    Raises
    ------
    ConfigError
        If the format needs an extra that is not installed.
    """
    mapping, kind = config.input.mapping(), config.input.format
    if kind not in REGISTRY_FORMATS:
        return JsonDecoder(mapping)
    _require_extra(kind)
    from rejex_stream.decode.avro import avro_reader
    from rejex_stream.decode.protobuf import protobuf_reader
    from rejex_stream.decode.registry import RegistryDecoder

    compile_schema = avro_reader if kind == "avro" else protobuf_reader
    return RegistryDecoder(mapping, open_registry(config), kind.upper(), compile_schema)


def _require_extra(kind: str) -> None:
    needed = ("fastavro",) if kind == "avro" else ("google.protobuf", "grpc_tools")
    try:
        for name in needed:
            import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"input.format = {kind!r} needs {error.name}: install the extra with "
            "pip install 'rejex-stream[registry]'."
        ) from None


def _secret(
    name: str,
    literal: SecretStr | None,
    file: str | None,
    env: str | None = None,
    *,
    section: str = "kafka.security",
) -> Secret | None:
    from rejex_connectors.kafka_settings import Secret

    given = [source for source in (literal, file, env) if source is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigError(
            f"{section}.{name} is given more than once: keep one of {name}, {name}_file and "
            f"{name}_env."
        )
    text = None if literal is None else literal.get_secret_value()
    return Secret(env=env, file=file, literal=text)
