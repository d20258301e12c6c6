"""TLS and SASL, spelled for each client library; secrets are revealed here and nowhere else.

Client libraries log at debug what they send, passwords and tokens among it. A filter on each of
their loggers hides them, whatever handlers a host has put up: content of requests goes by its
length, what is given as authentication not at all, and a secret that was revealed to a library is
hidden wherever it stands.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from rejex_stream.errors import ConfigError

if TYPE_CHECKING:
    from rejex_connectors.kafka.kafka_settings import KafkaSecurity

__all__ = [
    "distrust", "guard_logs", "hide", "kafka_python_options", "librdkafka_options",
]  # fmt: skip


def tls_context(security: KafkaSecurity) -> ssl.SSLContext:
    """Make a TLS context (1.2 or newer) from PEM files."""
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
    for name in ("password", "key_password"):
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
        options["sasl_plain_username"] = security.username
        options["sasl_plain_password"] = security.reveal("password")
    return options


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
        options["sasl.username"] = security.username
        options["sasl.password"] = security.reveal("password")
    return options


# ---------------------------------------------------------------------- what is logged
HIDDEN = "***"
SHORTEST = 4
"""Characters; anything shorter stands in too many words to be looked for."""
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
        record.args = tuple(map(_by_length, record.args))
    text = _AUTHENTICATION.sub(rf"\1{HIDDEN}", record.getMessage())
    text = _OPTION.sub(rf"\1{HIDDEN}", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    record.msg, record.args = text, None
    return True


def _by_length(value: object) -> object:
    """Say of bytes how many there are: a request that logs in holds the password somewhere."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return value
