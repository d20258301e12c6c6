"""All settings of the Kafka connector: sections of the config file, used as they are.

`[kafka.options]` is what a client library knows itself; what we set, and what may be tuned, stands
in the tables here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, SecretStr

from rejex_stream.encode.records import Form
from rejex_stream.encode.schemas import PIPELINE, PIPELINE_VERSION, TOPICS
from rejex_stream.errors import ConfigError
from rejex_stream.settings import SECRET, HttpAddress, Section, nearest, secret, setting

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
OURS_KAFKA_PYTHON = {name.replace(".", "_") for name in (*OURS_LIBRDKAFKA, *TUNED)} | {
    "bootstrap_timeout_ms", "metrics_enabled", "fetch_max_wait_ms", "request_timeout_ms",
    "max_request_size", "max_block_ms", "partitioner",
    "key_serializer", "value_serializer", "key_deserializer", "value_deserializer",
}  # fmt: skip
"""What is set from our settings, or has to be as it is, by the names of either library."""


class KafkaSecurity(Section):
    """How to reach a broker that does not trust everybody."""

    table: ClassVar[str] = "kafka.security"
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting("PLAINTEXT")
    """How to talk to the broker."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = setting(
        None, example="PLAIN"
    )
    """How to log in; for the SASL protocols."""
    username: str | None = setting(None, says="Name for PLAIN and SCRAM.", example="rejex")
    password: SecretStr | None = secret(says="Password for PLAIN and SCRAM.")
    ca_file: str | None = setting(None, otherwise="the system's", example="ca.pem")
    """PEM file of the authorities to trust."""
    cert_file: str | None = setting(None, example="client.pem")
    """PEM file of the client's certificate."""
    key_file: str | None = setting(None, says="PEM file of the client's key.", example="client.key")
    key_password: SecretStr | None = secret(says="Password of the client's key.")
    check_hostname: bool = setting(True)
    """Whether the broker's certificate must name the host that was dialled."""
    oauth_token_url: HttpAddress | None = setting(None, example="https://login.example.com/token")
    """Where OAUTHBEARER tokens are fetched."""
    oauth_client_id: str | None = setting(None, example="rejex")
    """Client id for the token endpoint."""
    oauth_client_secret: SecretStr | None = secret(says="Client secret for the token endpoint.")
    oauth_scope: str | None = setting(None, says="Scope to ask for.", example="kafka")
    oauth_token: SecretStr | None = secret(says="A token; read again at every login.")

    def check(self) -> None:
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
                    "OAUTHBEARER needs oauth_token, or oauth_token_url with oauth_client_id "
                    "and oauth_client_secret"
                )
        elif self.mechanism is not None and None in (self.username, self.password):
            raise ConfigError(f"{self.mechanism} needs kafka.security.username and .password")


class _Tuned:
    """What stands in ``options`` for one of :data:`TUNED`, or its default."""

    def __init__(self, name: str) -> None:
        self._name, self._default = name, TUNED[name][0]

    def __get__(self, settings: Any, owner: object) -> Any:
        return (settings.options if settings else {}).get(self._name, self._default)


class Kafka(Section):
    """The broker; used where input.kind is kafka."""

    bootstrap_servers: str = setting(
        "localhost:9092", min_length=1, example="kafka-1:9092,kafka-2:9092"
    )
    """Brokers to begin with, host:port, comma separated."""
    group: str | None = setting(
        None, otherwise="the pipeline's name", min_length=1, example="turbine-north"
    )
    """Consumer group; all workers of a pipeline share it."""
    delivery: Literal["exactly_once", "at_least_once"] = setting("exactly_once")
    """Transactions, or at least once where the broker has none."""
    client: Literal["auto", "kafka-python", "confluent"] = setting("auto")
    """The client library; auto takes confluent (librdkafka, an extra) where it is there."""
    instance_id: str | None = setting(
        None, otherwise="a new one at every start", min_length=1, example="worker-0"
    )
    """Stable name of this worker; no two live workers may share it."""
    start: Literal["earliest", "latest"] = setting("earliest")
    """Where a partition begins that was never read."""
    group_protocol: Literal["classic", "consumer"] = setting("classic")
    """Who deals partitions: a worker, or the broker (KIP-848; Kafka 4.0 and newer, with confluent).
    All workers of a group say the same. With consumer the broker's
    group.consumer.session.timeout.ms counts, not session.timeout.ms."""
    options: Options = setting(
        dict,
        unit=SECRET,
        says="Options of the client library by librdkafka's names, such as 'linger.ms'; to "
        "kafka-python goes what it has under the same name with underscores. Ours by default: "
        + ", ".join(f"{name} {default}" for name, (default, _) in TUNED.items())
        + ".",
        otherwise="none",
        example={"linger.ms": 20},
        repr=False,
    )
    security: KafkaSecurity = setting(KafkaSecurity, says="TLS and login.")

    session_timeout_ms: ClassVar = _Tuned("session.timeout.ms")
    """How long a silent worker keeps its partitions, in ms."""
    max_poll_interval_ms: ClassVar = _Tuned("max.poll.interval.ms")
    """How long a worker may work between two polls, in ms."""
    transaction_timeout_ms: ClassVar = _Tuned("transaction.timeout.ms")
    """After this the broker aborts an open transaction, in ms."""
    commit_timeout_ms: ClassVar = _Tuned("delivery.timeout.ms")  # deadline of one commit, in ms
    linger_ms: ClassVar = _Tuned("linger.ms")  # how long the producer gathers a batch
    batch_bytes: ClassVar = _Tuned("batch.size")  # size of a producer's batch
    compression: ClassVar = _Tuned("compression.type")
    """Of what is written; ``none`` where it is not."""
    max_message_bytes: ClassVar = _Tuned("message.max.bytes")  # largest record to write
    fetch_max_bytes: ClassVar = _Tuned("fetch.max.bytes")
    """Largest answer to one fetch; bounds memory."""

    def check(self) -> None:
        self.security.check()
        check_options(self.client, self.options)
        if self.group_protocol == "consumer" and self.client == "kafka-python":
            raise ConfigError(
                "kafka.group_protocol = 'consumer' is not spoken by kafka.client = 'kafka-python': "
                "take confluent, or leave the protocol out"
            )
        if self.max_poll_interval_ms < self.session_timeout_ms:
            raise ConfigError(
                f"kafka.options.'max.poll.interval.ms' = {self.max_poll_interval_ms} is below "
                f"'session.timeout.ms' = {self.session_timeout_ms}: raise it"
            )


class KafkaTopics(Section):
    """Names of the topics; `input` may be several."""

    # sensor events, keyed by sensor so that one sensor stays in one partition
    input: tuple[str, ...] = (TOPICS["input"],)
    verdicts: str = TOPICS["verdicts"]  # one record per readable event
    review: str = TOPICS["review"]  # rejected events with context, for people
    labels: str = TOPICS["labels"]  # what people answered; retained, never compacted
    deadletter: str = TOPICS["deadletter"]  # records that could not be read, bytes untouched
    incidents: str = TOPICS["incidents"]  # changes of incidents, and what became of commands
    # commands of people; one partition, which every worker reads whole
    control: str = TOPICS["control"]
    # snapshots; compacted. ``None`` keeps snapshots elsewhere (a folder)
    state: str | None = TOPICS["state"]

    def check(self) -> None:
        if not self.input:
            raise ConfigError("input.topics is empty: name at least one topic to read")
        names = [*self.input, *self.others]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"topic {twice[0]!r} is named twice: input, verdicts, review, labels, deadletter, "
                "incidents, control and state must be different topics"
            )

    @property
    def others(self) -> list[str]:
        """All names but those of the input."""
        named = [self.verdicts, self.review, self.labels, self.deadletter, self.incidents]
        return [*named, self.control, *([] if self.state is None else [self.state])]


class KafkaSettings(Kafka):
    """What the connector needs to know: the broker, and what a pipeline says elsewhere."""

    topics: KafkaTopics = Field(default_factory=KafkaTopics)  # see :class:`KafkaTopics`
    group: str = PIPELINE  # consumer group; all workers of one service share it
    # pipeline, pipeline_version: name and version of what decides, for the CloudEvents source and
    # ids. A new version gives the same event a new id
    pipeline: str = PIPELINE
    pipeline_version: str = PIPELINE_VERSION
    form: Form = "full"  # how much of a verdict is written

    def check(self) -> None:
        super().check()
        self.topics.check()


class RegistrySettings(Section):
    """Where the schemas of Avro and Protobuf records are; Confluent's API."""

    table: ClassVar[str] = "schema_registry"
    url: HttpAddress | None = setting(None, example="http://localhost:8081")
    """Its address, with the path of the API where there is one; a login goes into username and
    password."""
    username: str | None = setting(None, example="rejex")
    """Name for HTTP Basic authentication."""
    password: SecretStr | None = secret(says="Password that goes with the name.")
    ca_file: str | None = setting(None, otherwise="the system's", example="ca.pem")
    """PEM file of the authorities to trust."""

    def check(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ConfigError("schema_registry.username and .password go together: give both")


def check_options(client: str, options: Mapping[str, object]) -> None:
    """Refuse what the library does not know, what is no value of ours, and what we set."""
    for name, value in options.items():
        if name in OURS_LIBRDKAFKA or name.startswith(("sasl.", "ssl.")):
            raise ConfigError(
                f"kafka.options.{name!r} is set by rejex-stream itself, from a setting of [kafka] "
                "or [kafka.security] or so that every event is decided exactly once: leave it out"
            )
        if name in TUNED:
            _check_tuned(name, value)
    if not (others := others_of(options)):
        return
    if client != "kafka-python" and find_spec("confluent_kafka"):
        _check_librdkafka(others)
    elif client != "confluent":
        known = sorted(_open_to("consumer") | _open_to("producer") | _open_to("admin"))
        for name in others:
            if name.replace(".", "_") not in known:
                near = nearest(name.replace(".", "_"), known).replace("_", ".")
                raise ConfigError(
                    f"kafka.options.{name!r}: kafka-python knows no such option; did you mean "
                    f"{near}?"
                )


def others_of(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in TUNED}


def kafka_python_options_of(role: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that kafka-python has for a client in this role, under its names."""
    known = _open_to(role)
    named = {name.replace(".", "_"): value for name, value in others_of(options).items()}
    return {name: value for name, value in named.items() if name in known}


def _open_to(role: str) -> set[str]:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    of = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}[role]
    ours = OURS_KAFKA_PYTHON - ({"request_timeout_ms"} if role == "consumer" else set())
    return set(of.DEFAULT_CONFIG) - ours


def _check_tuned(name: str, value: object) -> None:
    _, minimum = TUNED[name]
    if name == "compression.type":
        good, expected = value in _CODECS, "one of " + ", ".join(_CODECS)
    else:
        good = type(value) is int and value >= minimum
        expected = f"a whole number of at least {minimum}"
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
