"""The client of a schema registry against real HTTP servers: answers, refusals, silence."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from contextlib import suppress

import pytest
from rejex_connectors.kafka.kafka_settings import RegistrySettings
from rejex_connectors.kafka.schema_registry import HttpSchemaRegistry

from rejex_stream.decode.avro import avro_reader
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.decode.registry_decoder import RegistryDecoder
from rejex_stream.errors import ConfigError, ConnectorError
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Position, Reading, Record
from tests.servers import WebServer
from tests.strangers import stranger
from tests.waiting import pass_time

pytestmark = pytest.mark.thorough
PASSWORD = "correct horse"
NO_SUCH = (404, {"error_code": 40403, "message": "Schema not found"})


class Server(WebServer):
    """Answers as it is told, path by path; what it does not know is no such schema."""

    def __init__(self, context=None):
        self.answers, self.seen, self.length = {}, [], 0
        super().__init__(self._answer, context)
        self.url = self.address

    def _answer(self, method, path, headers, body):
        self.seen.append((path, headers.get("Authorization")))
        status, answer = self.answers.get(path, NO_SUCH)
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        more = {"Location": "/elsewhere"} if status == 302 else {}
        return status, {"Content-Length": str(self.length or len(raw))} | more, raw


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
    registry = client(server.url, username="ada", password=PASSWORD)
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
        url=server.url, username="ada", password=PASSWORD
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("status", "length", "said"),
    [(s, None, f"answers {s}") for s in (408, 429, 500, 501, 502, 503, 504, 507, 520, 529, 599)]
    + [(s, 100, "does not answer: IncompleteRead") for s in (200, 206, 404, 503)],
)
def test_a_registry_that_is_not_well_or_breaks_off_is_waited_for(server, status, length, said):
    server.answers["/schemas/ids/7"], server.length = (status, b"<html>"), length
    with pytest.raises(ConnectorError, match=said) as caught:
        client(server.url).schema(7)
    assert caught.value.retriable


@pytest.mark.parametrize(
    "answer", [(404, b"<html>"), (404, {"error_code": 404}), (200, b"<html>"), (200, {"id": 7})]
)
def test_what_is_no_registry_is_named(server, answer):
    server.answers["/schemas/ids/7"] = answer
    with pytest.raises(ConnectorError, match=r"no schema registry.*check schema_registry\.url"):
        client(server.url).schema(7)


def test_a_reference_that_is_gone_is_left_out_and_only_records_that_need_it_are_dead(server):
    gone = {"name": "water.Gone", "subject": "gone", "version": 1}
    tank = {"name": "water.Tank", "subject": "tank", "version": 1}
    fields = [{"name": "level", "type": "float"}]
    server.answers = {
        "/subjects/tank/versions/1": (
            200,
            {"schema": json.dumps({"type": "record", "name": "water.Tank", "fields": fields})},
        )
    }
    for schema_id, needed in ((7, "water.Tank"), (8, "water.Gone")):
        outer = {"type": "record", "name": "Top", "fields": [{"name": "tank", "type": needed}]}
        answer = {"schema": json.dumps(outer), "references": [gone, tank]}
        server.answers[f"/schemas/ids/{schema_id}"] = (200, answer)
    mapping = FieldMapping({"level": "tank.level"}, fixed_sensor="s")
    decoder = RegistryDecoder(mapping, client(server.url), "AVRO", avro_reader)
    at = Position("t", 0, 1)
    read = [
        decoder.decode(Record(at, None, bytes([0, 0, 0, 0, i]) + b"\0\0\0\x40", (), 5))
        for i in (7, 8)
    ]
    assert read[0] == Reading("s", "s", 5, (2.0,), at)
    assert read[1].reason == (
        "schema id 8 cannot be used: it refers to 'water.Gone', which the registry does not give"
    )


def test_a_schema_that_refers_to_ever_more_is_not_followed_for_ever(server, monkeypatch):
    for i in range(300):
        further = [{"name": f"r{i}", "subject": f"s{i}", "version": 1}]
        answer = (200, {"schema": f"t{i}", "references": further})
        server.answers[f"/subjects/s{i - 1}/versions/1" if i else "/schemas/ids/7"] = answer
    assert len(client(server.url).schema(7).references) == 256
    monkeypatch.setattr("rejex_connectors.kafka.schema_registry.SCHEMA_S", -1.0)
    with pytest.raises(ConnectorError, match="all it refers to takes more than") as caught:
        client(server.url).schema(7)
    assert caught.value.retriable


@pytest.mark.parametrize("whole", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n"])
def test_a_registry_that_drips_is_given_up_before_its_answer_is_whole(monkeypatch, whole):
    """Headers and body alike; every byte comes well before a time-out that begins again."""
    monkeypatch.setattr("rejex_connectors.kafka.schema_registry.TIMEOUT_S", 0.3)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b'{"schema": "x"}'.ljust(30)
    given_up = threading.Event()

    def drip(listening):
        talk, _ = listening.accept()
        with talk:
            talk.recv(65536)
            talk.sendall(whole)
            for byte in answer[len(whole) :]:
                if given_up.is_set():
                    return
                pass_time(0.1, because="a byte comes well before any time-out that begins again")
                with suppress(OSError):
                    talk.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=drip, args=(listening,))
        server.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(ConnectorError, match="does not answer: timed out") as caught:
                client(url).schema(7)
            assert caught.value.retriable
        finally:
            given_up.set()
            server.join()


def test_a_registry_that_is_not_there_or_does_not_speak_is_waited_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("rejex_connectors.kafka.schema_registry.TIMEOUT_S", 0.2)
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
