"""TLS and SASL, spelled for each client library; secrets are revealed here and nowhere else.

Client libraries log at debug what they send, passwords and tokens among it. A filter on each of
their loggers hides them, whatever handlers a host has put up: content of requests goes by its
length, what is given as authentication not at all, and a secret that was revealed to a library is
hidden wherever it stands.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from typing import Any

from rejex_connectors.kafka.kafka_settings import KafkaSecurity
from rejex_stream.errors import ConfigError, ConnectorError

RENEW_BEFORE_S = 60.0


class TokenSource:
    """Access tokens for OAUTHBEARER: from a secret, or fetched as client credentials.

    A fetched token is kept until a minute before it expires.
    """

    def __init__(self, security: KafkaSecurity) -> None:
        self._security = security
        self._token = ""
        self._expires_s = 0.0

    def token(self) -> tuple[str, float]:
        """Return a token and the Unix time at which it expires, in seconds."""
        token, expires_s = self._current()
        hide(token)
        return token, expires_s

    def _current(self) -> tuple[str, float]:
        security = self._security
        if (renewed := security.reveal("oauth_token")) is not None:
            return renewed.strip(), time.time() + RENEW_BEFORE_S * 5
        if time.time() > self._expires_s - RENEW_BEFORE_S:
            self._token, lifetime_s = self._fetch()
            self._expires_s = time.time() + lifetime_s
        return self._token, self._expires_s

    def _fetch(self) -> tuple[str, float]:
        security = self._security
        assert security.oauth_token_url is not None
        url = security.oauth_token_url
        form = {"grant_type": "client_credentials"}
        if security.oauth_scope:
            form["scope"] = security.oauth_scope
        pair = f"{security.oauth_client_id}:{security.reveal('oauth_client_secret')}"
        request = urllib.request.Request(
            url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": "Basic " + b64encode(pair.encode()).decode()},
        )
        context = tls_context(security) if url.startswith("https") else None
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                body = json.load(answer)
            return str(body["access_token"]), float(body.get("expires_in", 300))
        except urllib.error.HTTPError as error:
            raise ConnectorError(
                f"the token endpoint {url} answered {error.code}: check oauth_client_id, "
                "oauth_client_secret and oauth_scope"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            raise ConnectorError(
                f"no token from {url}: {type(error).__name__}", retriable=True
            ) from None


def tls_context(security: KafkaSecurity) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.check_hostname
        if security.cert_file is not None:
            password = security.reveal("key_password")
            context.load_cert_chain(security.cert_file, security.key_file, password)
    except (OSError, ssl.SSLError) as error:
        files = [security.ca_file, security.cert_file, security.key_file]
        named = ", ".join(name for name in files if name)
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"cannot use the TLS files ({named}): {reason}") from None
    return context


def distrust(security: KafkaSecurity, bootstrap_servers: str) -> str | None:
    """Ask the brokers for their certificates; return what is wrong with the first that is wrong.

    librdkafka says of any that it is for the authorities; waits 2 s for each broker at most.
    """
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError):  # of which a bad certificate is one
            try:
                with (
                    socket.create_connection((host, int(port)), timeout=2.0) as plain,
                    tls_context(security).wrap_socket(plain, server_hostname=host),
                ):
                    pass
            except ssl.SSLCertVerificationError as error:
                reason = error.verify_message.rstrip(".")
                return f"the certificate of {address.strip()} is refused: {reason}"
    return None


def _keep_secret(security: KafkaSecurity, *loggers: str) -> None:
    for name in ("password", "key_password", "oauth_client_secret"):
        hide(security.reveal(name))
    guard_logs(*loggers)


def kafka_python_options(security: KafkaSecurity) -> dict[str, Any]:
    """Options for kafka-python's clients; from here on its log does not tell the secrets."""
    _keep_secret(security, "kafka")
    options: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        options["ssl_context"] = tls_context(security)
        options["ssl_check_hostname"] = security.check_hostname
    if security.mechanism is not None:
        options["sasl_mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _token_provider(security)
        else:
            options["sasl_plain_username"] = security.username
            options["sasl_plain_password"] = security.reveal("password")
    return options


def _token_provider(security: KafkaSecurity) -> object:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    source = TokenSource(security)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # the library insists on its class
        def token(self) -> str:
            return source.token()[0]

    return Provider()


def librdkafka_options(security: KafkaSecurity) -> dict[str, Any]:
    """Options for confluent-kafka's clients; from here on its log does not tell the secrets."""
    _keep_secret(security, "rejex_connectors.kafka.confluent_client")
    options: dict[str, Any] = {"security.protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        files = {
            "ssl.ca.location": security.ca_file,
            "ssl.certificate.location": security.cert_file,
            "ssl.key.location": security.key_file,
        }
        options |= {key: value for key, value in files.items() if value is not None}
        if (password := security.reveal("key_password")) is not None:
            options["ssl.key.password"] = password
        if not security.check_hostname:
            options["ssl.endpoint.identification.algorithm"] = "none"
    if security.mechanism is not None:
        options["sasl.mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            source = TokenSource(security)
            options["oauth_cb"] = lambda _: source.token()
        else:
            options["sasl.username"] = security.username
            options["sasl.password"] = security.reveal("password")
    return options


# ---------------------------------------------------------------------- what is logged
HIDDEN = "***"
SHORTEST = 4  # characters; anything shorter stands in too many words to be looked for
_AUTHENTICATION = re.compile(r"""(auth_bytes=)(b'(?:\\.|[^'\\])*'|b"(?:\\.|[^"\\])*"|[^,)\s]+)""")
_OPTION = re.compile(
    r"""(['"][\w.]*(?:password|secret|token)[\w.]*['"]\s*[:=]\s*)"""
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,}\s]+)"""
)
_secrets: set[str] = set()


def hide(secret: str | None) -> None:
    """Hide a secret from now on, as it is and as it looks escaped."""
    if secret is not None and len(secret) >= SHORTEST:
        _secrets.update((secret, repr(secret)[1:-1], repr(secret.encode())[2:-1]))


def guard_logs(*names: str) -> None:
    """Put the filter on the loggers of these names and on all there are below them; once each."""
    below = tuple(f"{name}." for name in names)
    known = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in (*names, *known):
        logging.getLogger(name).addFilter(_redact)  # the same one twice is one


def _redact(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        # A request that logs in holds the password somewhere in its bytes.
        hidden = bytes | bytearray | memoryview
        record.args = tuple(
            f"<{len(a)} bytes>" if isinstance(a, hidden) else a for a in record.args
        )
    text = _AUTHENTICATION.sub(rf"\1{HIDDEN}", record.getMessage())
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    record.msg, record.args = text, None
    return True
