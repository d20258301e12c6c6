"""Everything the Kafka connector can be told, as one frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rejex_stream.errors import ConfigError

__all__ = ["KafkaSecurity", "KafkaSettings", "KafkaTopics", "Secret"]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class Secret:
    """Where a password comes from; read when it is needed and never shown.

    Parameters
    ----------
    env
        Name of an environment variable.
    file
        Path of a file; one trailing newline is cut.
    literal
        The secret itself, for tests and notebooks.

    Raises
    ------
    ConfigError
        Unless exactly one of the three is given.

    Examples
    --------
    >>> Secret(env="KAFKA_PASSWORD")
    Secret(env='KAFKA_PASSWORD')
    >>> Secret(literal="hunter2")
    Secret(literal='***')
    >>> f"{Secret(literal='hunter2')}"
    "Secret(literal='***')"
    """

    __slots__ = ("_literal", "env", "file")

    def __init__(
        self, *, env: str | None = None, file: str | None = None, literal: str | None = None
    ) -> None:
        if sum(source is not None for source in (env, file, literal)) != 1:
            raise ConfigError("a secret needs exactly one of `env`, `file` or `literal`")
        self.env, self.file, self._literal = env, file, literal

    def reveal(self) -> str:
        """Read the secret now.

        Raises
        ------
        ConfigError
            When the variable or the file is not there.
        """
        if self._literal is not None:
            return self._literal
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ConfigError(f"environment variable {self.env} is not set: it holds a secret")
            return value
        assert self.file is not None
        try:
            return Path(self.file).read_text(encoding="utf-8").removesuffix("\n")
        except OSError as error:
            raise ConfigError(
                f"cannot read the secret file {self.file}: {error.strerror}"
            ) from None

    def __repr__(self) -> str:
        if self.env is not None:
            return f"Secret(env={self.env!r})"
        return f"Secret(file={self.file!r})" if self.file is not None else "Secret(literal='***')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return (self.env, self.file, self._literal) == (other.env, other.file, other._literal)

    def __hash__(self) -> int:
        return hash((self.env, self.file, self._literal))


@dataclass(frozen=True, kw_only=True)
class KafkaSecurity:
    """How to reach a broker that does not trust everybody.

    Attributes
    ----------
    protocol
        ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``.
    ca_file
        PEM file with the authorities to trust; the system's by default.
    cert_file, key_file, key_password
        PEM files of the client's own certificate, where the broker asks for one.
    check_hostname
        Whether the broker's certificate must name the host we dialled.
    mechanism
        ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512`` or ``OAUTHBEARER``.
    username, password
        For PLAIN and SCRAM.
    oauth_token_url, oauth_client_id, oauth_client_secret, oauth_scope
        For OAUTHBEARER: where a token is fetched (OpenID Connect client credentials).
    oauth_token
        For OAUTHBEARER: a token somebody else renews, usually in a file; read at each login.
    """

    protocol: Protocol = "PLAINTEXT"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    check_hostname: bool = True
    mechanism: Mechanism | None = None
    username: str | None = None
    password: Secret | None = None
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: Secret | None = None
    oauth_scope: str | None = None
    oauth_token: Secret | None = None

    def __post_init__(self) -> None:
        sasl = self.protocol.startswith("SASL")
        if sasl and self.mechanism is None:
            raise ConfigError(
                f"kafka.security.protocol = {self.protocol!r} needs kafka.security.mechanism: "
                "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
            )
        if not sasl and self.mechanism is not None:
            raise ConfigError(
                f"kafka.security.mechanism = {self.mechanism!r} does nothing with protocol "
                f"{self.protocol!r}: set protocol to SASL_SSL (or SASL_PLAINTEXT)"
            )
        if self.mechanism == "OAUTHBEARER":
            fetched = self.oauth_token_url and self.oauth_client_id and self.oauth_client_secret
            if not fetched and self.oauth_token is None:
                raise ConfigError(
                    "OAUTHBEARER needs oauth_token, or oauth_token_url with oauth_client_id and "
                    "oauth_client_secret"
                )
        elif self.mechanism is not None and (self.username is None or self.password is None):
            raise ConfigError(f"{self.mechanism} needs kafka.security.username and .password")


@dataclass(frozen=True, kw_only=True)
class KafkaTopics:
    """Names of the topics; `input` may be several.

    Attributes
    ----------
    input
        Sensor events, keyed by sensor so that one sensor stays in one partition.
    verdicts
        One record per readable event.
    review
        Rejected events with context, for people.
    labels
        What people answered; retained, never compacted.
    deadletter
        Records that could not be read, bytes untouched.
    state
        Snapshots; compacted. ``None`` keeps snapshots elsewhere (a folder).
    """

    input: tuple[str, ...] = ("rejex.readings",)
    verdicts: str = "rejex.verdicts"
    review: str = "rejex.review"
    labels: str = "rejex.labels"
    deadletter: str = "rejex.deadletter"
    state: str | None = "rejex.state"

    def __post_init__(self) -> None:
        if not self.input:
            raise ConfigError("kafka.topics.input is empty: name at least one topic to read")
        outputs = [self.verdicts, self.review, self.labels, self.deadletter]
        outputs += [self.state] if self.state is not None else []
        names = [*self.input, *outputs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"topic {twice[0]!r} is named twice: input, verdicts, review, labels, deadletter "
                "and state must be different topics"
            )


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """What the connector needs to know.

    Attributes
    ----------
    bootstrap_servers
        ``host:port``, comma separated.
    topics, security
        See :class:`KafkaTopics` and :class:`KafkaSecurity`.
    group
        Consumer group; all workers of one service share it.
    pipeline, pipeline_version
        Name and version of what decides, for the CloudEvents source and ids. A new version gives
        the same event a new id.
    delivery
        ``exactly_once`` (transactions), or ``at_least_once`` for brokers or rights without them:
        then a crash repeats up to one commit of records, with equal ids.
    client
        ``kafka-python``, or ``confluent`` (extra ``confluent``; about 5 times the throughput).
    instance_id
        Stable name of this worker (a pod's ordinal). With it a restarted worker takes its
        partitions back without a rebalance and aborts its own open transaction at once; two live
        workers must never share one. ``None`` draws a new name at every start.
    start
        Where a partition begins that nobody ever committed: ``earliest`` or ``latest``.
    session_timeout_ms
        How long a silent worker keeps its partitions.
    max_poll_interval_ms
        How long a worker may work between two polls: must exceed the longest refit it may wait
        for. Also bounds how long a rebalance waits for a busy worker.
    transaction_timeout_ms
        After this the broker aborts a transaction. A transaction is open only while outcomes are
        being written, never while they are computed.
    commit_timeout_ms
        Deadline of one commit; after it the commit counts as failed and is taken again.
    linger_ms, batch_bytes, compression
        Of the producer. ``compression``: ``None``, ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    max_message_bytes
        Largest record to send; must not exceed ``max.message.bytes`` of the output topics. Dead
        letters above it are cut and say so, snapshots are sent in pieces.
    fetch_max_bytes
        Largest answer to one fetch: bounds memory together with ``max_records`` of a poll.
    client_options
        Further options for the client library, as they are; for what has no name here.
    """

    bootstrap_servers: str = "localhost:9092"
    topics: KafkaTopics = field(default_factory=KafkaTopics)
    security: KafkaSecurity = field(default_factory=KafkaSecurity)
    group: str = "rejex-stream"
    pipeline: str = "rejex-stream"
    pipeline_version: str = "1"
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    client: Literal["kafka-python", "confluent"] = "kafka-python"
    instance_id: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    session_timeout_ms: int = 15_000
    max_poll_interval_ms: int = 300_000
    transaction_timeout_ms: int = 15_000
    commit_timeout_ms: int = 15_000
    linger_ms: int = 20
    batch_bytes: int = 524_288
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = None
    max_message_bytes: int = 1_000_000
    fetch_max_bytes: int = 33_554_432
    client_options: tuple[tuple[str, str | int | float | bool], ...] = ()

    def __post_init__(self) -> None:
        if not self.bootstrap_servers:
            raise ConfigError("kafka.bootstrap_servers is empty: give host:port")
        if self.max_message_bytes < 4096:
            raise ConfigError(
                f"kafka.max_message_bytes = {self.max_message_bytes} is too small for a verdict: "
                "use at least 4096"
            )
        if self.max_poll_interval_ms < self.session_timeout_ms:
            raise ConfigError(
                f"kafka.max_poll_interval_ms = {self.max_poll_interval_ms} is below "
                f"session_timeout_ms = {self.session_timeout_ms}: raise it"
            )
