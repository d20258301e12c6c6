"""From a config to what the Kafka connector is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from rejex_stream.config.model import Config
from rejex_stream.errors import ConfigError

if TYPE_CHECKING:
    from rejex_connectors.kafka_settings import KafkaSettings, Secret

__all__ = ["kafka_settings"]


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


def _secret(
    name: str, literal: SecretStr | None, file: str | None, env: str | None = None
) -> Secret | None:
    from rejex_connectors.kafka_settings import Secret

    given = [source for source in (literal, file, env) if source is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigError(
            f"kafka.security.{name} is given more than once: keep one of {name}, {name}_file and "
            f"{name}_env."
        )
    text = None if literal is None else literal.get_secret_value()
    return Secret(env=env, file=file, literal=text)
