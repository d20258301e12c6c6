"""Settings: secrets stay secret, contradictions are refused with the way out."""

from __future__ import annotations

import pickle

import pytest
from rejex_connectors.kafka.broker_login import (
    TokenSource,
    kafka_python_options,
    librdkafka_options,
)
from rejex_connectors.kafka.kafka_settings import KafkaSecurity, KafkaSettings, KafkaTopics

from rejex_stream.config.operating import Alerts
from rejex_stream.errors import ConfigError, ConnectorError
from tests.strangers import stranger

PASSWORD = "hunter2-very-secret"


def test_a_password_is_in_no_text_that_settings_turn_into():
    security = KafkaSecurity(
        protocol="SASL_SSL", mechanism="PLAIN", username="ada", password=PASSWORD,
        key_password=PASSWORD,
    )  # fmt: skip
    settings = KafkaSettings(security=security)
    for text in (repr(settings), str(settings), f"{security!r}", f"{settings}"):
        assert PASSWORD not in text
    assert PASSWORD not in repr(settings.model_dump())


def test_a_secret_survives_pickling_without_being_shown():
    security = pickle.loads(pickle.dumps(KafkaSecurity(password=PASSWORD)))
    assert (security.reveal("password"), PASSWORD in repr(security)) == (PASSWORD, False)


def test_secrets_come_from_the_environment_and_from_files(monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    path = tmp_path / "password"
    path.write_bytes(PASSWORD.encode() + b"\r\n")
    assert KafkaSecurity(password="env:KAFKA_PASSWORD").reveal("password") == PASSWORD
    assert KafkaSecurity(password=f"file:{path}").reveal("password") == PASSWORD
    assert KafkaSecurity(password=PASSWORD).reveal("password") == PASSWORD
    assert KafkaSecurity().reveal("password") is None


def test_a_key_of_any_bytes_comes_back_as_it_is(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(bytes(range(256)) + b"\n")
    alerts = Alerts(webhook_url="http://localhost", webhook_secret=f"file:{path}")
    assert alerts.reveal("webhook_secret").encode("utf-8", "surrogateescape") == bytes(range(256))


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"password": "env:REJEX_NOT_SET"}, "kafka.security.password: .* REJEX_NOT_SET is not"),
    ({"password": "file:/nowhere/at/all"}, "password: /nowhere/at/all cannot be read: No"),
])  # fmt: skip
def test_a_secret_that_is_not_there_is_named(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        KafkaSecurity(**fields).reveal("password")


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"protocol": "SASL_SSL"}, "needs kafka.security.mechanism"),
    ({"mechanism": "PLAIN"}, "does nothing with protocol"),
    ({"protocol": "SASL_SSL", "mechanism": "PLAIN"}, "needs kafka.security.username"),
    ({"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs oauth_token"),
])  # fmt: skip
def test_contradictions_are_refused(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        KafkaSecurity(**fields)


def test_one_topic_cannot_have_two_roles():
    with pytest.raises(ConfigError, match="'a' is named twice"):
        KafkaTopics(input=("a",), verdicts="a")
    with pytest.raises(ConfigError, match="'a' is named twice"):
        KafkaSettings(topics={"input": ["a"], "verdicts": "a"})


def test_both_libraries_are_told_the_same():
    security = KafkaSecurity(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="ada", password=PASSWORD
    )
    assert kafka_python_options(security) == {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ada", "sasl_plain_password": PASSWORD,
    }  # fmt: skip
    assert librdkafka_options(security) == {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada", "sasl.password": PASSWORD,
    }  # fmt: skip


def test_a_missing_tls_file_is_named():
    security = KafkaSecurity(protocol="SSL", ca_file="/nowhere/ca.pem")
    with pytest.raises(ConfigError, match=r"/nowhere/ca\.pem"):
        kafka_python_options(security)


def fetched(url):
    return TokenSource(
        KafkaSecurity(
            protocol="SASL_SSL", mechanism="OAUTHBEARER", oauth_token_url=url,
            oauth_client_id="rejex", oauth_client_secret=PASSWORD,
        )
    )  # fmt: skip


def test_a_token_endpoint_that_does_not_speak_http_is_named():
    with (
        stranger() as url,
        pytest.raises(ConnectorError, match=f"no token from {url}: BadStatusLine"),
    ):
        fetched(url).token()


def test_an_address_that_cannot_be_asked_for_a_token_is_refused():
    with pytest.raises(ConfigError, match="begins with http:// or https://"):
        fetched("login.example.com").token()
    with pytest.raises(ConfigError, match="without a login") as caught:
        fetched(f"https://ada:{PASSWORD}@login.example.com").token()
    assert PASSWORD not in str(caught.value)


def test_a_token_from_a_file_is_read_at_each_login(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    security = KafkaSecurity(
        protocol="SASL_SSL", mechanism="OAUTHBEARER", oauth_token=f"file:{path}"
    )
    source = TokenSource(security)
    assert source.token()[0] == "one"
    path.write_text("two\n")
    assert source.token()[0] == "two"
