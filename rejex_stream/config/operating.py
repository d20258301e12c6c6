"""Settings of what stands around the pipeline: broker, monitors, metrics, alerts, logs."""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from rejex_stream.config.fields import HttpAddress, Section, secret, setting

__all__ = ["Alerts", "Kafka", "KafkaSecurity", "Logging", "Metrics", "Monitor"]


class Monitor(Section):
    """The watch over the rejection rate; it never changes a verdict."""

    enabled: bool = setting(True, says="Whether to watch.")
    false_alarm_events: float = setting(
        1e6,
        unit="events",
        says="Statistical alarms give about one false alarm in so many events.",
        ge=100,
        le=1e12,
    )
    confidence: float = setting(
        0.99,
        unit="probability",
        says="Confidence of the limits around the rolling rejection rate.",
        gt=0,
        lt=1,
    )
    rolling_events: int | None = setting(
        None,
        unit="events",
        says="Length of the rolling rejection rate.",
        otherwise="an hour at 1 Hz, at least a window",
        ge=2,
        example=3600,
    )
    review_budget_per_day: float | None = setting(
        None,
        unit="events/day",
        says="Rejected events a day above which an alarm is raised.",
        otherwise="rejection.review_budget.reviews_per_day, if given",
        gt=0,
        example=200,
    )
    stuck_events: int = setting(
        200, unit="events", says="Equal scores in a row that count as stuck; 0: off.", ge=0
    )
    drift_reference_events: int | None = setting(
        None,
        unit="events",
        says="Frozen scores that slow drift is measured against; 0: off.",
        otherwise="five windows",
        ge=0,
        example=10_000,
    )
    adwin: bool = setting(False, says="Also run River's ADWIN on the scores, a heuristic.")


class KafkaSecurity(Section):
    """How to reach a broker that does not trust everybody."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", says="How to talk to the broker."
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = setting(
        None, says="How to log in; for the SASL protocols.", otherwise="none", example="PLAIN"
    )
    username: str | None = setting(
        None, says="Name for PLAIN and SCRAM.", otherwise="none", example="rejex"
    )
    password: SecretStr | None = secret(says="Password for PLAIN and SCRAM.")
    password_file: str | None = setting(
        None, says="File that holds the password.", otherwise="none", example="/run/secrets/kafka"
    )
    password_env: str | None = setting(
        None,
        says="Environment variable that holds the password.",
        otherwise="none",
        example="KAFKA_PASSWORD",
    )
    ca_file: str | None = setting(
        None,
        says="PEM file of the authorities to trust.",
        otherwise="the system's",
        example="ca.pem",
    )
    cert_file: str | None = setting(
        None, says="PEM file of the client's certificate.", otherwise="none", example="client.pem"
    )
    key_file: str | None = setting(
        None, says="PEM file of the client's key.", otherwise="none", example="client.key"
    )
    key_password: SecretStr | None = secret(says="Password of the client's key.")
    key_password_file: str | None = setting(
        None,
        says="File that holds the key's password.",
        otherwise="none",
        example="/run/secrets/key",
    )
    check_hostname: bool = setting(
        True, says="Whether the broker's certificate must name the host that was dialled."
    )
    oauth_token_url: HttpAddress | None = setting(
        None,
        says="Where OAUTHBEARER tokens are fetched.",
        otherwise="none",
        example="https://login.example.com/token",
    )
    oauth_client_id: str | None = setting(
        None, says="Client id for the token endpoint.", otherwise="none", example="rejex"
    )
    oauth_client_secret: SecretStr | None = secret(says="Client secret for the token endpoint.")
    oauth_client_secret_file: str | None = setting(
        None,
        says="File that holds the client secret.",
        otherwise="none",
        example="/run/secrets/oauth",
    )
    oauth_scope: str | None = setting(
        None, says="Scope to ask for.", otherwise="none", example="kafka"
    )
    oauth_token_file: str | None = setting(
        None,
        says="File with a token that somebody else renews.",
        otherwise="none",
        example="/run/secrets/token",
    )


class Kafka(Section):
    """The broker; used where input.kind is kafka."""

    bootstrap_servers: str = setting(
        "localhost:9092",
        says="Brokers to begin with, host:port, comma separated.",
        min_length=1,
        example="kafka-1:9092,kafka-2:9092",
    )
    group: str | None = setting(
        None,
        says="Consumer group; all workers of a pipeline share it.",
        otherwise="the pipeline's name",
        min_length=1,
        example="turbine-north",
    )
    delivery: Literal["exactly_once", "at_least_once"] = setting(
        "exactly_once", says="Transactions, or at least once where the broker has none."
    )
    client: Literal["kafka-python", "confluent"] = setting(
        "kafka-python", says="The client library; confluent (librdkafka) is an extra."
    )
    instance_id: str | None = setting(
        None,
        says="Stable name of this worker; no two live workers may share it.",
        otherwise="a new one at every start",
        min_length=1,
        example="worker-0",
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest", says="Where a partition begins that was never read."
    )
    session_timeout_ms: int = setting(
        15_000, unit="ms", says="How long a silent worker keeps its partitions.", ge=1000
    )
    max_poll_interval_ms: int = setting(
        300_000, unit="ms", says="How long a worker may work between two polls.", ge=1000
    )
    transaction_timeout_ms: int = setting(
        15_000, unit="ms", says="After this the broker aborts an open transaction.", ge=1000
    )
    commit_timeout_ms: int = setting(15_000, unit="ms", says="Deadline of one commit.", ge=1000)
    linger_ms: int = setting(20, unit="ms", says="How long the producer gathers a batch.", ge=0)
    batch_bytes: int = setting(524_288, unit="bytes", says="Size of a producer's batch.", ge=1)
    compression: Literal["gzip", "snappy", "lz4", "zstd"] | None = setting(
        None, says="Compression of what is written.", otherwise="none", example="lz4"
    )
    max_message_bytes: int = setting(
        1_000_000, unit="bytes", says="Largest record to write.", ge=4096
    )
    fetch_max_bytes: int = setting(
        33_554_432, unit="bytes", says="Largest answer to one fetch; bounds memory.", ge=1
    )
    client_options: dict[str, str | int | float | bool] = setting(
        dict,
        says="Further options for the client library, as they are; never printed.",
        otherwise="none",
        example={"client.rack": "a"},
        repr=False,
    )
    security: KafkaSecurity = setting(KafkaSecurity, says="TLS and login.")


class SchemaRegistry(Section):
    """Where the schemas of Avro and Protobuf records are; Confluent's API."""

    url: HttpAddress | None = setting(
        None,
        says="Its address, with the path of the API where there is one; a login goes into username "
        "and password.",
        otherwise="none",
        example="http://localhost:8081",
    )
    username: str | None = setting(
        None, says="Name for HTTP Basic authentication.", otherwise="none", example="rejex"
    )
    password: SecretStr | None = secret(says="Password that goes with the name.")
    password_file: str | None = setting(
        None,
        says="File that holds the password.",
        otherwise="none",
        example="/run/secrets/registry",
    )
    password_env: str | None = setting(
        None,
        says="Environment variable that holds the password.",
        otherwise="none",
        example="REGISTRY_PASSWORD",
    )
    ca_file: str | None = setting(
        None,
        says="PEM file of the authorities to trust.",
        otherwise="the system's",
        example="ca.pem",
    )


class Metrics(Section):
    """The Prometheus endpoint."""

    host: str = setting("127.0.0.1", says="Address to serve metrics and health on.", min_length=1)
    port: int = setting(0, says="Port of it; 0: off.", ge=0, le=65535, example=9108)
    per_sensor: str = setting(
        "off",
        says="Sensors exported by name, a time series each: off, topk:N (the N that are rejected "
        "most) or all.",
        pattern=r"^(off|all|topk:[1-9][0-9]{0,3})$",
        example="topk:20",
    )


class Alerts(Section):
    """Who is told of alarms."""

    alertmanager_url: HttpAddress | None = setting(
        None,
        says="Alertmanager to post alarms to.",
        otherwise="none",
        example="http://localhost:9093",
    )
    alertmanager_repeat_s: float = setting(
        60.0,
        unit="s",
        says="How often active alarms are posted again; one that is not for four times as long "
        "ends by itself.",
        ge=1,
    )
    webhook_url: HttpAddress | None = setting(
        None,
        says="Address that gets a signed CloudEvent for every alarm.",
        otherwise="none",
        example="https://ops.example.com/rejex",
    )
    webhook_secret: SecretStr | None = secret(says="Key of the webhook's signature.")
    webhook_secret_file: str | None = setting(
        None,
        says="File that holds the key of the signature.",
        otherwise="none",
        example="/run/secrets/webhook",
    )
    webhook_deadletter: str | None = setting(
        None,
        says="File for alarms that the webhook did not take.",
        otherwise="none",
        example="alarms-undelivered.jsonl",
    )


class Logging(Section):
    """What is said while running."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", says="From which level on."
    )
    format: Literal["auto", "text", "json"] = setting(
        "auto", says="JSON lines or text; auto: text on a terminal."
    )
    libraries: Literal["debug", "info", "warning", "error"] = setting(
        "warning",
        says="From which level on libraries speak; what Kafka's client repeats is counted, unless "
        "this or the level is debug.",
    )
