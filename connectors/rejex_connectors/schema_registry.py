"""A schema registry over HTTP: Confluent's API, which Karapace and Apicurio speak too."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from rejex_connectors.kafka_settings import Secret
from rejex_stream.addresses import check_http_address
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema

__all__ = ["HttpSchemaRegistry", "RegistrySettings"]

TIMEOUT_S = 5.0
_MOST_BYTES = 16 << 20
_UNKNOWN = 40403
_RETRIABLE = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """Where a registry is and who asks.

    Attributes
    ----------
    url
        ``http(s)://host:port``, with the path of the API where there is one.
    username, password
        For HTTP Basic authentication.
    ca_file
        PEM file with the authorities to trust; the system's by default.
    """

    url: str
    username: str | None = None
    password: Secret | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        check_http_address("schema_registry.url", self.url)
        if (self.username is None) != (self.password is None):
            raise ConfigError("schema_registry.username and .password go together: give both")


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename="camel"):
    schema: str
    schema_type: str | None = None
    references: list[_Reference] | None = None


class _Refusal(msgspec.Struct):
    error_code: int = 0


class HttpSchemaRegistry:
    """Asks a registry for schemas; nothing is kept, a decoder remembers what it compiled.

    Raises
    ------
    ConfigError
        When the file of authorities or a secret cannot be read.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        self._url = settings.url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.username is not None and settings.password is not None:
            pair = f"{settings.username}:{settings.password.reveal()}".encode()
            self._headers["Authorization"] = "Basic " + b64encode(pair).decode()
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if settings.url.startswith("https"):
            handlers.append(urllib.request.HTTPSHandler(context=_tls(settings.ca_file)))
        self._open = urllib.request.build_opener(*handlers).open

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema with all it refers to, or ``None`` if the registry has no such id.

        Raises
        ------
        ConnectorError
            Retriable while the registry does not answer; not when it refuses us.
        """
        found = self._get(f"/schemas/ids/{schema_id}")
        if found is None:
            return None
        answer = self._read(found)
        references: dict[str, str] = {}
        self._collect(answer, references, set())
        return RegisteredSchema(answer.schema_type or "AVRO", answer.schema, references)

    def _collect(self, answer: _Answer, into: dict[str, str], asked: set[tuple[str, int]]) -> None:
        for reference in answer.references or ():
            key = (reference.subject, reference.version)
            if key in asked:
                continue
            asked.add(key)
            subject = urllib.parse.quote(reference.subject, safe="")
            path = f"/subjects/{subject}/versions/{reference.version}"
            found = self._get(path)
            if found is None:
                raise ConnectorError(
                    f"the schema registry at {self._url} has no {path}, which a schema refers to: "
                    "register it again"
                )
            inner = self._read(found)
            self._collect(inner, into, asked)
            into[reference.name] = inner.schema

    def _read(self, body: bytes) -> _Answer:
        try:
            return msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError:
            self._no_registry("answers something else")

    def _get(self, path: str) -> bytes | None:
        """Return the body; ``None`` where the registry itself says that it has no such thing."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._open(request, timeout=TIMEOUT_S) as answer:
                body: bytes = answer.read(_MOST_BYTES)
                # A short read is no error to the library; taken as it is, half a schema is none.
                if answer.length and len(body) < _MOST_BYTES:
                    raise http.client.IncompleteRead(body, answer.length)
                return body
        except urllib.error.HTTPError as error:
            with error:
                self._explain(path, error.code, error.read(_MOST_BYTES))
            return None
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._untrusted(error.reason) from None
            self._silent(str(error.reason))
        except (OSError, ValueError, http.client.IncompleteRead) as error:
            self._silent(str(error) or type(error).__name__)
        except http.client.HTTPException:
            self._no_registry("does not speak HTTP")

    def _explain(self, path: str, status: int, body: bytes) -> None:
        """Raise what an answer other than 200 means; silent where it means `no such thing`."""
        if status == 404:
            try:
                code = msgspec.json.decode(body, type=_Refusal).error_code
            except msgspec.DecodeError:
                code = 0
            if 40401 <= code <= _UNKNOWN:  # no such subject, version or schema
                return
            self._no_registry(f"answers 404 for {path}")
        if status in (401, 403):
            raise ConnectorError(
                f"the schema registry at {self._url} refuses us with {status}: check "
                "schema_registry.username and its password"
            )
        raise ConnectorError(
            f"the schema registry at {self._url} answers {status} for {path}",
            retriable=status in _RETRIABLE,
        )

    def _silent(self, reason: str) -> NoReturn:
        raise ConnectorError(
            f"the schema registry at {self._url} does not answer: {reason}", retriable=True
        ) from None

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> ConnectorError:
        return ConnectorError(
            f"the schema registry at {self._url} is not trusted: {error.verify_message}; check "
            "schema_registry.ca_file"
        )

    def _no_registry(self, why: str) -> NoReturn:
        raise ConnectorError(
            f"what is at {self._url} is no schema registry, it {why}: check schema_registry.url "
            "and its path"
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the password to wherever it points."""

    def redirect_request(self, *_: Any) -> None:  # noqa: ANN401
        """Follow nothing: the redirect becomes an error."""


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"schema_registry.ca_file {ca_file} cannot be used: {reason}") from None
