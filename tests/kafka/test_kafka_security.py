"""TLS and logins against a real broker that insists on them."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka_harness import Kafka, assert_exactly, feed, next_offsets, run_here, start_rejex
from rejex_connectors.kafka.broker_login import distrust, guard_logs, hide
from rejex_connectors.kafka.kafka_settings import KafkaSecurity, KafkaSettings
from rejex_connectors.kafka.partition_reader import admin
from rejex_connectors.kafka.sink import KafkaSink, connect
from rejex_connectors.kafka.source import KafkaSource
from rejex_connectors.kafka.topic_admin import TopicPlan, create_topics
from test_kafka_delivery import CLIENTS, CONFLUENT, DEFAULT_CLIENT_FIRST

from rejex_stream.cli import main
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Position, Record
from tests.operate.alerting import Receiver
from tests.waiting import PATIENCE_S, until
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
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "keystore.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    }  # fmt: skip
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
        fields["oauth_token"] = f"file:{folder / 'token'}"
    elif mechanism is not None:
        fields |= {"username": "ada", "password": PASSWORD}
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
    return settings.replace(bootstrap_servers=f"localhost:{port}", security=own)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("protocol", "mechanism"), [
    ("SSL", None), ("SASL_SSL", "SCRAM-SHA-512"), ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "OAUTHBEARER"),
    pytest.param("SASL_PLAINTEXT", "SCRAM-SHA-256", marks=pytest.mark.slow),
])  # fmt: skip
def test_events_go_through_a_broker_that_asks_who_we_are_and_no_password_is_in_the_loudest_log(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], caplog: pytest.LogCaptureFixture,
    client: str, protocol: str, mechanism: str | None,
) -> None:  # fmt: skip
    cluster, folder = secured
    settings = through(kafka, cluster, security(folder, protocol, mechanism), client=client)
    records = feed(settings, 100, sensors=2, partitions=1)
    kafka.fill(settings, records)
    with caplog.at_level(logging.DEBUG):
        run_here(settings, next_offsets(records))
        admin(settings).close()
    assert_exactly(kafka, settings, records)
    if mechanism is not None:
        said = "\n".join(record.getMessage() for record in caplog.records)
        assert "SaslAuthenticateRequest" in said, "it was at its loudest"
        assert "'sasl_mechanism': '" in said
        secrets = [PASSWORD, "correct", "horse"]
        secrets += (folder / "token").read_text().split() if mechanism == "OAUTHBEARER" else []
        assert [secret for secret in secrets if secret in said] == []


def test_secrets_are_hidden_in_every_form() -> None:
    hide("it's\\a\tß")
    guard_logs("kafka")
    logger = logging.getLogger("kafka.protocol.parser")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    secret = "it's\\a\tß"
    try:
        logger.warning("Send: %r", b"\0\0" + secret.encode())
        logger.warning("Request: %s", """Sasl(auth_bytes=b'n=a\\x00\\'"', x=1)""")
        logger.warning("with %s", {"sasl_plain_password": "abc", "ssl.key.password": 'a"b'})
        logger.warning("%r %s %r", secret, secret, [secret.encode()])
    finally:
        logger.removeHandler(handler)
    assert lines == [
        f"Send: '<{2 + len(secret.encode())} bytes>'", "Request: Sasl(auth_bytes=***, x=1)",
        "with {'sasl_plain_password': ***, 'ssl.key.password': ***}", '"***" *** [b"***"]',
    ]  # fmt: skip


@CONFLUENT
@pytest.mark.parametrize(
    ("names", "days", "said"),
    [("DNS:elsewhere", "2", "mismatch"), ("DNS:localhost", "0", "certificate has expired")],
)
def test_a_certificate_is_refused_for_what_is_wrong_with_it(
    tmp_path: Path, names: str, days: str, said: str
) -> None:
    """Of any, librdkafka says that ssl.ca.location may be wrong."""
    certificates(tmp_path)
    (tmp_path / "odd.ext").write_text(f"subjectAltName={names}\n")
    sign = ["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
    sign += ["-CAcreateserial", "-days", days, "-extfile", "odd.ext", "-out", "odd.pem"]
    subprocess.run(sign, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "odd.pem", tmp_path / "server.key")
    own = KafkaSecurity(protocol="SSL", ca_file=str(tmp_path / "ca.pem"))

    def shake_hands() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the test is over
                return
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

    listening = socket.create_server(("localhost", 0))
    ours = threading.Thread(target=shake_hands)
    ours.start()
    try:
        address = f"localhost:{listening.getsockname()[1]}"
        until(lambda: said in (distrust(own, address) or ""), lambda: distrust(own, address))
        settings = KafkaSettings(bootstrap_servers=address, security=own, client="confluent")
        with pytest.raises(ConnectorError) as caught:
            connect(settings.replace(options=settings.options | {"delivery.timeout.ms": 3_000}))
        assert said in str(caught.value)
        assert "ssl.ca.location" not in str(caught.value)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        ours.join()


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_wrong_password_is_one_sentence_without_the_password(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], client: str
) -> None:
    cluster, folder = secured
    own = security(folder, "SASL_SSL", "SCRAM-SHA-256")
    wrong = own.replace(password="not the password")
    settings = through(kafka, cluster, wrong, client=client, options={"delivery.timeout.ms": 3_000})
    with pytest.raises(ConnectorError) as caught:
        connect(settings)
    text = str(caught.value)
    assert "check kafka.security" in text
    assert not caught.value.retriable, "a wrong password does not become right"
    assert "invalid credentials" in text
    assert "not the password" not in text
    assert "\n" not in text


class Doorman:
    """Stands before a broker and breaks off every login, as one under load does, until told."""

    def __init__(self, port: int) -> None:
        self._server, self._broker = socket.create_server(("localhost", 0)), ("localhost", port)
        self.port: int = self._server.getsockname()[1]
        self.is_open, self.n_refused, self.lingers = False, 0, False
        threading.Thread(target=self._stand, daemon=True).start()

    def _stand(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                guest, _ = self._server.accept()
                if self.is_open:
                    host = socket.create_connection(self._broker)
                    for ends in ((guest, host), (host, guest)):
                        threading.Thread(target=self._carry, args=ends, daemon=True).start()
                else:
                    guest.recv(1)
                    guest.close()
                    self.n_refused += 1

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), source, target:  # the other end is closed
            while data := source.recv(65_536):
                # So what comes last arrives together with the end: it is there, or a moment later.
                while self.lingers and select.select([source], [], [], 0.3)[0]:
                    more = source.recv(65_536)
                    data += more
                    if not more:
                        break
                target.sendall(data)

    def __enter__(self) -> Doorman:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()


def connected(settings: KafkaSettings) -> Sequence[KafkaSource | KafkaSink]:
    """Both ends; none where that is to be tried again."""
    try:
        return connect(settings)
    except ConnectorError as error:
        if not error.retriable:
            raise
    return ()


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_why_a_login_is_refused_is_read_though_the_broker_hangs_up_with_it(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], protocol: str
) -> None:
    """By kafka-python, which threw away what came together with the end of a connection."""
    cluster, folder = secured
    wrong = security(folder, protocol, "SCRAM-SHA-512").replace(password="not the password")
    settings = through(kafka, cluster, wrong, client="kafka-python")
    with Doorman(cluster.listeners[protocol]) as door:
        door.is_open = door.lingers = True
        with pytest.raises(ConnectorError) as caught:
            connect(settings.replace(bootstrap_servers=f"localhost:{door.port}"))
    assert not caught.value.retriable
    assert "invalid credentials" in str(caught.value)


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_login_that_is_broken_off_is_tried_again_and_goes_through(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], client: str
) -> None:
    """No reason was given: a right password must not end a run then, and a wrong one is hinted."""
    cluster, folder = secured
    own = security(folder, "SASL_SSL", "SCRAM-SHA-512")
    settings = through(kafka, cluster, own, client=client, options={"delivery.timeout.ms": 3_000})
    with Doorman(cluster.listeners["SASL_SSL"]) as door:
        settings = settings.replace(bootstrap_servers=f"localhost:{door.port}")
        with pytest.raises(ConnectorError) as caught:
            connect(settings)
        assert caught.value.retriable
        assert door.n_refused
        assert PASSWORD not in str(caught.value)
        if client == "kafka-python":
            assert "check kafka.security" in str(caught.value)
        door.is_open = True
        for end in until(lambda: connected(settings)):
            end.close()


def test_what_init_wrote_for_a_topic_behind_a_login_runs_and_tells_people(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    cluster, folder = secured
    topic, told = f"plant-{uuid.uuid4().hex[:8]}", Receiver()
    settings = KafkaSettings(bootstrap_servers=cluster.bootstrap)
    create_topics(settings, [TopicPlan(name=topic, role="input", partitions=1, replication=1)])

    def reading(i: int, **data: float) -> Record:
        value = {"meta": {"pump": "P-1"}, "data": data, "ts": 1_700_000_000 + i}
        return Record(Position(topic, 0, 0), b"P-1", json.dumps(value).encode(), (), None)

    def temp(i: int) -> float:
        return (25.0 if 900 <= i < 1000 else 0.0) + 20 + i * 7919 % 1009 / 100

    kafka.fill(settings, (reading(i, temp=temp(i), vib=i * 31 % 17 / 10) for i in range(1100)))
    # The login is the environment's, for init as for whatever reads what it wrote.
    login = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "ada",
             "password": PASSWORD, "ca_file": f"{folder}/ca.pem"}  # fmt: skip
    for name, value in login.items():
        monkeypatch.setenv(f"REJEX_KAFKA__SECURITY__{name.upper()}", value)
    monkeypatch.setenv("REJEX_ALERTS__WEBHOOK_URL", told.url)
    monkeypatch.chdir(tmp_path)
    server = f"localhost:{cluster.listeners['SASL_SSL']}"
    assert main(["init", "--kafka", server, topic, "--window", "200"]) == 0
    assert PASSWORD not in (tmp_path / f"{topic}.toml").read_text()
    for command in (["topics", "create"], ["doctor"]):
        assert main([*command, f"{topic}.toml"]) == 0, command

    def kinds() -> set[str]:
        events = [json.loads(body) for _, body in told.got if body]  # doctor asks with HEAD
        return {event["data"].get("kind", event["type"]) for event in events}

    with start_rejex("run", f"{topic}.toml", cwd=tmp_path, stderr=subprocess.STDOUT) as process:
        try:
            until(lambda: kafka.count(settings, f"{topic}.verdicts") == 1100, "all verdicts")
            until(lambda: any("incident" in kind for kind in kinds()), "the incident is told")
            kafka.fill(settings, (reading(i, Temp=20.0, Vib=1.0) for i in range(1100, 1250)))
            until(lambda: "nothing_scorable" in kinds(), "people are told of what has no score")
            process.terminate()
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    told.close()
    assert process.returncode == 0, said
    assert "did you mean" in said
    assert PASSWORD not in said
    assert kafka.count(settings, f"{topic}.incidents") > 0


@pytest.mark.slow
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_broker_that_nobody_vouches_for_is_refused(
    kafka: Kafka, secured: tuple[broker.Cluster, Path], client: str
) -> None:
    cluster, folder = secured
    own = security(folder, "SASL_SSL", "PLAIN")
    unknown = own.replace(ca_file=None)
    settings = through(
        kafka, cluster, unknown, client=client, options={"delivery.timeout.ms": 3_000}
    )
    with pytest.raises(ConnectorError, match=r"certificate .*check kafka\.security") as caught:
        connect(settings)
    assert not caught.value.retriable
