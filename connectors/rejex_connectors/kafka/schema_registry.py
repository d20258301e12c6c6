"""A schema registry over HTTP: Confluent's API, which Karapace and Apicurio speak too."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from time import monotonic
from typing import NoReturn

import msgspec

from rejex_connectors.kafka.clients import within
from rejex_connectors.kafka.kafka_settings import RegistrySettings
from rejex_stream.addresses import NoRedirects
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema

TIMEOUT_S = 5.0  # an answer that is not whole by then is none, however steadily its bytes drip
SCHEMA_S = 30.0  # no further question is asked for one schema after so long, whatever it refers to
_MAX_BYTES = 16 << 20
_MAX_REFERENCES = 256
_UNKNOWN = 40403


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
    """Asks a registry for schemas; nothing is kept, a decoder remembers what it compiled."""

    def __init__(self, settings: RegistrySettings) -> None:
        if settings.url is None:
            raise ConfigError("schema_registry.url is missing: give the registry's address.")
        self._url = settings.url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.username is not None:
            pair = f"{settings.username}:{settings.reveal('password')}".encode()
            self._headers["Authorization"] = "Basic " + b64encode(pair).decode()
        handlers: list[urllib.request.BaseHandler] = [NoRedirects()]
        if settings.url.startswith("https"):
            handlers.append(urllib.request.HTTPSHandler(context=_tls(settings.ca_file)))
        self._open = urllib.request.build_opener(*handlers).open

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema with all it refers to, or ``None`` if the registry has no such id.

        What it refers to and the registry does not have is left out: whoever reads by the schema
        finds out whether it is needed.
        """
        until = monotonic() + SCHEMA_S
        body = self._get(f"/schemas/ids/{schema_id}")
        if body is None:
            return None
        answer = self._read(body)
        references: dict[str, str] = {}
        self._collect(answer, references, set(), until)
        return RegisteredSchema(answer.schema_type or "AVRO", answer.schema, references)

    def _collect(
        self, answer: _Answer, into: dict[str, str], asked: set[tuple[str, int]], until: float
    ) -> None:
        for reference in answer.references or ():
            key = (reference.subject, reference.version)
            if key in asked or len(asked) >= _MAX_REFERENCES:
                continue
            asked.add(key)
            if monotonic() > until:
                self._silent(f"a schema with all it refers to takes more than {SCHEMA_S:g} s")
            subject = urllib.parse.quote(reference.subject, safe="")
            body = self._get(f"/subjects/{subject}/versions/{reference.version}")
            if body is not None:
                inner = self._read(body)
                self._collect(inner, into, asked, until)
                into[reference.name] = inner.schema

    def _read(self, body: bytes) -> _Answer:
        try:
            return msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError:
            self._no_registry("answers something else")

    def _get(self, path: str) -> bytes | None:
        """Return the answer; ``None`` where the registry itself says that it has no such thing."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            status, answer = within(TIMEOUT_S, "the schema registry", self._whole, request)
        except ConnectorError:
            self._silent("timed out")
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
        if status == 200:
            return answer
        self._explain(path, status, answer)
        return None

    def _whole(self, request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            answer = self._open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            body: bytes = answer.read(_MAX_BYTES)
            # A short read is no error to the library; taken as it is, half a schema is none.
            if answer.length and len(body) < _MAX_BYTES:
                raise http.client.IncompleteRead(body, answer.length)
            return answer.code, body

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
            retriable=status >= 500 or status in (408, 429),
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


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"schema_registry.ca_file {ca_file} cannot be used: {reason}") from None
