"""The client of a schema registry against real HTTP servers: answers, refusals, silence."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rejex_connectors.kafka_settings import Secret
from rejex_connectors.schema_registry import HttpSchemaRegistry, RegistrySettings

from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema
from tests.strangers import stranger

PASSWORD = "correct horse"
NO_SUCH = (404, {"error_code": 40403, "message": "Schema not found"})


class Server:
    """Answers as it is told, path by path; what it does not know is no such schema."""

    def __init__(self, context=None):
        outer = self
        self.answers, self.seen, self.length = {}, [], 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Authorization")))
                status, body = outer.answers.get(self.path, NO_SUCH)
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(outer.length or len(raw)))
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"{self.scheme}://localhost:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


def client(url, **fields):
    return HttpSchemaRegistry(RegistrySettings(url=url, **fields))


def test_a_schema_comes_with_all_it_refers_to_those_first_that_are_needed(server):
    def refer(*names):
        return [{"name": f"{n}.proto", "subject": f"s/{n}", "version": 2} for n in names]

    server.answers = {
        "/base/schemas/ids/7": (
            200, {"schema": "top", "schemaType": "PROTOBUF", "references": refer("a", "b")}
        ),
        "/base/subjects/s%2Fa/versions/2": (
            200, {"id": 1, "subject": "s/a", "schema": "A", "references": refer("b")}
        ),
        "/base/subjects/s%2Fb/versions/2": (200, {"schema": "B", "references": None}),
        "/base/schemas/ids/8": (200, {"schema": '"long"'}),
    }  # fmt: skip
    registry = client(server.url + "/base/")
    schema = registry.schema(7)
    assert schema == RegisteredSchema("PROTOBUF", "top", {"b.proto": "B", "a.proto": "A"})
    assert list(schema.references) == ["b.proto", "a.proto"]
    assert registry.schema(8) == RegisteredSchema("AVRO", '"long"', {})
    assert registry.schema(9) is None


def test_a_login_is_sent_and_never_shown_and_never_follows_a_redirect(server):
    registry = client(server.url, username="ada", password=Secret(literal=PASSWORD))
    assert registry.schema(7) is None
    basic = "Basic " + b64encode(f"ada:{PASSWORD}".encode()).decode()
    assert server.seen == [("/schemas/ids/7", basic)]
    for status in (401, 403, 302):
        server.answers["/schemas/ids/7"] = (status, {})
        with pytest.raises(ConnectorError) as caught:
            registry.schema(7)
        assert not caught.value.retriable
        assert str(status) in str(caught.value)
        assert PASSWORD not in str(caught.value)
    assert {path for path, _ in server.seen} == {"/schemas/ids/7"}
    assert PASSWORD not in repr(RegistrySettings(
        url=server.url, username="ada", password=Secret(literal=PASSWORD)
    ))  # fmt: skip


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_registry_that_is_not_well_is_waited_for(server, status):
    server.answers["/schemas/ids/7"] = (status, b"<html>")
    with pytest.raises(ConnectorError, match=f"answers {status}") as caught:
        client(server.url).schema(7)
    assert caught.value.retriable


@pytest.mark.parametrize(
    "answer", [(404, b"<html>"), (404, {"error_code": 404}), (200, b"<html>"), (200, {"id": 7})]
)
def test_what_is_no_registry_is_named(server, answer):
    server.answers["/schemas/ids/7"] = answer
    with pytest.raises(ConnectorError, match=r"no schema registry.*check schema_registry\.url"):
        client(server.url).schema(7)


def test_a_reference_that_is_gone_stops_the_run(server):
    reference = {"name": "a", "subject": "a", "version": 1}
    server.answers["/schemas/ids/7"] = (200, {"schema": "x", "references": [reference]})
    with pytest.raises(ConnectorError, match="/subjects/a/versions/1, which a schema refers to"):
        client(server.url).schema(7)


def test_a_registry_that_is_not_there_or_does_not_speak_is_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("rejex_connectors.schema_registry.TIMEOUT_S", 0.2)
        with pytest.raises(ConnectorError, match=f"{url} does not answer: timed out") as caught:
            client(url).schema(7)
        assert caught.value.retriable
    with pytest.raises(ConnectorError, match=r"does not answer: .*refused") as caught:
        client(url).schema(7)
    assert caught.value.retriable


def test_what_does_not_speak_http_is_no_registry():
    with (
        stranger() as url,
        pytest.raises(ConnectorError, match="no schema registry, it does not speak HTTP") as caught,
    ):
        client(url).schema(7)
    assert not caught.value.retriable


def test_an_answer_that_breaks_off_is_waited_for(server):
    server.answers["/schemas/ids/7"] = (206, b"{")
    server.length = 100
    with pytest.raises(ConnectorError, match="does not answer: IncompleteRead") as caught:
        client(server.url).schema(7)
    assert caught.value.retriable


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates")
def test_a_registry_that_nobody_vouches_for_is_refused(tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", "key.pem", "-out", "ca.pem", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    server = Server(context)
    try:
        assert client(server.url, ca_file=str(tmp_path / "ca.pem")).schema(7) is None
        with pytest.raises(ConnectorError, match=r"not trusted.*schema_registry\.ca_file") as found:
            client(server.url).schema(7)
        assert not found.value.retriable
    finally:
        server.close()
    for missing in ("no-such.pem", "key.pem"):
        with pytest.raises(ConfigError, match=rf"ca_file .*{missing} cannot be used"):
            client(server.url, ca_file=str(tmp_path / missing))
