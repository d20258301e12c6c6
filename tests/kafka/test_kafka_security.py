"""TLS and logins against a real broker that insists on them."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import ROOT, Kafka, assert_exactly, feed, next_offsets, run_here, until
from rejex_connectors.kafka import KafkaSecurity, KafkaSettings, KafkaTopics, Secret, connect
from rejex_connectors.kafka_client import open_clients
from test_kafka_delivery import CONFLUENT, DEFAULT_CLIENT_FIRST

from rejex_stream.errors import ConnectorError
from tools.kafka import broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.usefixtures("require_own_broker"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates"),
]

PASSWORD = "correct horse"


def certificates(folder: Path) -> None:
    """Make an authority, and certificates signed by it for the broker and for a client."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        request = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("req", "-new", *new_key, *request)
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        sign += ("-extfile", f"{name}.ext", "-out", f"{name}.pem")
        openssl("x509", "-req", "-in", f"{name}.csr", *sign)
    key, own, authority = (
        (folder / name).read_text() for name in ("server.key", "server.pem", "ca.pem")
    )
    (folder / "keystore.pem").write_text(key + own + authority)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[broker.Cluster, Path]]:
    folder = tmp_path_factory.mktemp("secured")
    certificates(folder)
    security = "org.apache.kafka.common.security"
    plain = f'{security}.plain.PlainLoginModule required user_ada="{PASSWORD}";'
    scram = f"{security}.scram.ScramLoginModule required;"
    oauth = f"{security}.oauthbearer.OAuthBearerLoginModule required"
    oauth += ' unsecuredLoginStringClaim_sub="broker";'
    overrides = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "keystore.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    }
    for listener in ("sasl_ssl", "sasl_plaintext"):
        prefix = f"listener.name.{listener}"
        overrides[f"{prefix}.plain.sasl.jaas.config"] = plain
        overrides[f"{prefix}.scram-sha-256.sasl.jaas.config"] = scram
        overrides[f"{prefix}.scram-sha-512.sasl.jaas.config"] = scram
        overrides[f"{prefix}.oauthbearer.sasl.jaas.config"] = oauth
    users = []
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        users += ["--add-scram", f"{mechanism}=[name=ada,password={PASSWORD}]"]
    with broker.start(
        listeners=("SSL", "SASL_SSL", "SASL_PLAINTEXT"), overrides=overrides, format_options=users
    ) as cluster:
        yield cluster, folder


@pytest.fixture
def kafka(secured: tuple[broker.Cluster, Path]) -> Iterator[Kafka]:
    with Kafka(secured[0].bootstrap) as kafka:
        yield kafka


def security(folder: Path, protocol: str, mechanism: str | None) -> KafkaSecurity:
    fields: dict[str, Any] = {"protocol": protocol, "mechanism": mechanism}
    if protocol.endswith("SSL"):
        fields["ca_file"] = str(folder / "ca.pem")
    if protocol == "SSL":
        fields |= {"cert_file": str(folder / "client.pem"), "key_file": str(folder / "client.key")}
    if mechanism == "OAUTHBEARER":
        (folder / "token").write_text(token() + "\n")
        fields["oauth_token"] = Secret(file=str(folder / "token"))
    elif mechanism is not None:
        fields |= {"username": "ada", "password": Secret(literal=PASSWORD)}
    return KafkaSecurity(**fields)


def token() -> str:
    """An unsigned token, which a broker without keys accepts."""
    now = int(time.time())
    claims = {"sub": "ada", "iat": now - 5, "exp": now + 600}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts) + "."


def through(
    kafka: Kafka, cluster: broker.Cluster, own: KafkaSecurity, **fields: Any
) -> KafkaSettings:
    settings = kafka.settings(partitions=1, **fields)
    port = cluster.listeners[own.protocol]
    return dataclasses.replace(settings, bootstrap_servers=f"localhost:{port}", security=own)


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", None),
        ("SASL_SSL", "SCRAM-SHA-512"),
        pytest.param("SASL_SSL", "PLAIN", marks=pytest.mark.slow),
        pytest.param("SASL_PLAINTEXT", "SCRAM-SHA-256", marks=pytest.mark.slow),
        ("SASL_SSL", "OAUTHBEARER"),
    ],
)
def test_events_go_through_a_broker_that_asks_who_we_are(
    kafka: Kafka,
    secured: tuple[broker.Cluster, Path],
    client: str,
    protocol: str,
    mechanism: str | None,
) -> None:
    cluster, folder = secured
    settings = through(kafka, cluster, security(folder, protocol, mechanism), client=client)
    records = feed(settings, 100, sensors=2, partitions=1)
    kafka.fill(settings, records)
    run_here(settings, next_offsets(records))
    assert_exactly(kafka, settings, records)


@CONFLUENT
def test_who_has_which_partition_is_seen_with_a_token_too(
    kafka: Kafka, secured: tuple[broker.Cluster, Path]
) -> None:
    """librdkafka gets a token where its owner asks for its callbacks, and not otherwise."""
    from rejex_connectors.kafka_confluent_joining import Ownerless

    cluster, folder = secured
    own = security(folder, "SASL_SSL", "OAUTHBEARER")
    settings = through(kafka, cluster, own, client="confluent", instance_id="a")
    open_consumer, _ = open_clients(settings, "a")
    consumer = open_consumer()
    try:
        until(lambda: not consumer.poll(1, 0.1) and consumer.changes() != [])
        ownerless = Ownerless(settings)
        seen = []
        until(lambda: seen.append(ownerless.found()) or ownerless.over)
        assert not any(seen), "the one consumer has everything"
    finally:
        consumer.close()


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_wrong_password_is_one_sentence_without_the_password(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], client: str
) -> None:
    cluster, folder = secured
    own = security(folder, "SASL_SSL", "SCRAM-SHA-256")
    wrong = dataclasses.replace(own, password=Secret(literal="not the password"))
    settings = through(kafka, cluster, wrong, client=client, commit_timeout_ms=3_000)
    with pytest.raises(ConnectorError) as caught:
        connect(settings)
    text = str(caught.value)
    assert "check kafka.security" in text
    if client == "confluent":  # kafka-python may lose the reason when the broker hangs up
        assert not caught.value.retriable, "a wrong password does not become right"
        assert "invalid credentials" in text
    assert "not the password" not in text
    assert "\n" not in text


CONFIG = """
[pipeline]
name = "{name}"
[input]
kind = "kafka"
topics = ["{name}.in"]
channels = ["v"]
sensor = "sensor"
time = "t"
[detector]
name = "HalfSpaceTrees"
[rejection]
contamination = 0.05
tolerance = 4
window = 200
[output]
verdicts = "{name}.verdicts"
review = "{name}.review"
deadletter = "{name}.dead"
labels = "{name}.labels"
[state]
topic = "{name}.state"
[logging]
level = "debug"
[kafka]
bootstrap_servers = "localhost:{port}"
client = "{client}"
[kafka.security]
protocol = "SASL_SSL"
mechanism = "SCRAM-SHA-512"
username = "ada"
ca_file = "{folder}/ca.pem"
"""


@pytest.mark.parametrize(
    ("client", "secret"),
    [
        ("kafka-python", 'password_file = "{folder}/password"'),
        pytest.param("confluent", 'password_env = "KAFKA_PASSWORD_OF_ADA"', marks=pytest.mark.slow),
        # Neither: REJEX_KAFKA__SECURITY__PASSWORD.
        pytest.param("kafka-python", "", marks=pytest.mark.slow),
    ],
)
def test_the_command_line_reads_its_password_from_a_file_or_the_environment(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], tmp_path: Path, client: str, secret: str
) -> None:
    cluster, folder = secured
    name = f"cli-{uuid.uuid4().hex[:8]}"
    (folder / "password").write_text(PASSWORD + "\n")
    path = tmp_path / "pipeline.toml"
    port = cluster.listeners["SASL_SSL"]
    path.write_text((CONFIG + secret).format(name=name, port=port, client=client, folder=folder))
    mine = "KAFKA_PASSWORD_OF_ADA" if "env" in secret else "REJEX_KAFKA__SECURITY__PASSWORD"
    given = {} if "file" in secret else {mine: PASSWORD}
    said: list[str] = []

    def command(*words: str, **more: str) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"} | given | more
        return subprocess.Popen(
            [sys.executable, "-m", "rejex_stream", *words, str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env=os.environ | own,
        )  # fmt: skip

    def ended(process: subprocess.Popen[str]) -> int:
        said.extend(process.communicate(timeout=90))
        return process.returncode

    assert ended(command("topics", "create", "--partitions", "1")) == 0, said
    assert ended(command("topics", "check")) == 0, said
    settings = KafkaSettings(
        bootstrap_servers=cluster.bootstrap,
        topics=KafkaTopics(input=(f"{name}.in",), verdicts=f"{name}.verdicts"),
    )
    kafka.fill(settings, feed(settings, 100, sensors=2, partitions=1, poison_share=0))
    assert ended(command("doctor")) == 0, said
    assert "records of 2 sensor(s) can be read" in said[-2]
    with command("run") as process:
        until(lambda: kafka.count(settings, f"{name}.verdicts") == 100, what="all verdicts")
        process.terminate()
        assert ended(process) == 0, said
    wrong = {mine: "the wrong horse"} if given else {}
    (folder / "password").write_text("the wrong horse")
    assert ended(command("doctor", **wrong)) == 1
    assert "kafka.security" in said[-2]
    assert ended(command("run", **wrong)) == 1
    assert "check kafka.security" in said[-1].splitlines()[-1]
    assert "Traceback" not in said[-1]
    for text in said:
        assert "horse" not in text


@pytest.mark.slow
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_broker_that_nobody_vouches_for_is_refused(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], client: str
) -> None:
    cluster, folder = secured
    own = security(folder, "SASL_SSL", "PLAIN")
    unknown = dataclasses.replace(own, ca_file=None)
    settings = through(kafka, cluster, unknown, client=client, commit_timeout_ms=3_000)
    with pytest.raises(ConnectorError, match=r"certificate .*check kafka\.security") as caught:
        connect(settings)
    assert not caught.value.retriable
