"""Avro and Protobuf through a real broker and a real schema registry, by the command line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from rejex_connectors.kafka.topic_to_topic import list_dead_letters

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.decode.protobuf import descriptors
from rejex_stream.encode import decode_verdict
from rejex_stream.protocols import RegisteredSchema
from rejex_stream.types import Position, Record
from tests.soak_results import record
from tests.waiting import PATIENCE_S, until
from tools.kafka import registry as real_registry
from tools.kafka.broker import BrokerUnavailableError

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parent.parent.parent
START_MS = 1_700_000_000_000
AVRO = {
    "type": "record", "name": "Reading", "namespace": "water",
    "fields": [
        {"name": "meter", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "flow", "type": ["null", "double"]}, {"name": "tank", "type": "water.Tank"},
    ],
}  # fmt: skip
AVRO_TANK = {
    "type": "record", "name": "Tank", "namespace": "water",
    "fields": [{"name": "level", "type": "float"}],
}  # fmt: skip
PROTO_TANK = 'syntax = "proto3"; package water; message Tank { float level = 1; }'
PROTO = """syntax = "proto3";
package water;
import "tank.proto";
import "google/protobuf/timestamp.proto";
message Ping {}
message Reading {
  string meter = 1;
  google.protobuf.Timestamp at = 2;
  optional double flow = 3;
  Tank tank = 4;
}
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[real_registry.Registry]:
    try:
        running = real_registry.start()
    except BrokerUnavailableError as error:
        if os.environ.get("REJEX_REQUIRE_KAFKA"):
            pytest.fail(f"no schema registry to test against: {error}")
        pytest.skip(f"no schema registry to test against: {error}")
    with running:
        yield running


class Producer:
    """Registers a schema as its producers would, and writes records by it."""

    def __init__(self, url: str, kind: str, name: str) -> None:
        self.url, self.kind, self.name = url, kind, name
        tank = "tank.proto" if kind == "protobuf" else "water.Tank"
        self.references = [{"name": tank, "subject": f"{name}-tank", "version": 1}]
        tank_text = PROTO_TANK if kind == "protobuf" else json.dumps(AVRO_TANK)
        self.register(f"{name}-tank", tank_text, ())
        self.text = PROTO if kind == "protobuf" else json.dumps(AVRO)
        self.schema_id = self.register(f"{name}.in-value", self.text, self.references)
        if kind == "protobuf":
            schema = RegisteredSchema("PROTOBUF", PROTO, {"tank.proto": PROTO_TANK})
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors(schema)).file:
                pool.Add(file)
            found = pool.FindMessageTypeByName("water.Reading")
            self.message = message_factory.GetMessageClass(found)
        else:
            named: dict = {}
            fastavro.parse_schema(AVRO_TANK, named_schemas=named)
            self.parsed = fastavro.parse_schema(AVRO, named_schemas=named)

    def register(self, subject: str, text: str, references) -> int:
        body = {"schema": text, "references": list(references)}
        if self.kind == "protobuf":
            body["schemaType"] = "PROTOBUF"
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["id"]

    def value(self, i: int) -> bytes:
        """One reading in the wire format; every tenth has no flow."""
        flow = None if i % 10 == 9 else i * 7919 % 1009 / 100
        head = b"\0" + self.schema_id.to_bytes(4)
        if self.kind == "protobuf":
            message = self.message(meter=f"m-{i % 2}", flow=flow, tank={"level": 1.5})
            message.at.FromMilliseconds(START_MS + i)
            return head + b"\x02\x02" + message.SerializeToString()
        payload = io.BytesIO()
        row = {"meter": f"m-{i % 2}", "flow": flow, "tank": {"level": 1.5}}
        fastavro.schemaless_writer(payload, self.parsed, row | {"at": 1000 * (START_MS + i)})
        return head + payload.getvalue()


def prepared(tmp_path, bootstrap, url, kind, capsys) -> tuple[Path, Producer]:
    name = f"reg-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "pipeline.toml"
    path.write_text(
        pipeline_toml(
            name, bootstrap,
            input={
                "format": kind, "channels": {"flow": "flow", "level": "tank.level"}, "time": "at",
                "sensor": "meter",
            },
            detector={"name": "HalfSpaceTrees"}, schema_registry={"url": url},
        )
    )  # fmt: skip
    assert main(["topics", "create", str(path), "--with-input", "--partitions", "1"]) == 0
    capsys.readouterr()
    return path, Producer(url, kind, name)


def background(path: Path, stderr: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen:
    return start_rejex("run", path, "--output", "json", cwd=path.parent, stderr=stderr)


def wait_until(what, process):
    until(lambda: what() or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_records_of_a_registry_become_verdicts_and_poison_dead_letters(
    kafka: Kafka, registry, tmp_path, capsys, kind
):
    path, producer = prepared(tmp_path, kafka.bootstrap, registry.url, kind, capsys)
    settings = kafka_settings(load_config(path))
    (topic,) = settings.topics.input
    other = Producer(registry.url, "protobuf" if kind == "avro" else "avro", f"{producer.name}.o")
    good = [producer.value(i) for i in range(300)]
    poison = {
        producer.value(0)[:9]: "does not fit schema id",
        b"\0\xff\xff\xff\xff" + good[0][5:]: "schema id 4294967295 is not in the registry",
        b"\0\x7f\xff\xff\xff" + good[0][5:]: "schema id 2147483647 is not in the registry",
        other.value(0): f"but input.format is '{kind}'",
        b'{"meter": "m-0", "flow": 1.5}': "it looks like JSON",
        good[0][:5]: "does not fit schema id",
    }
    values = good[:150] + list(poison) + good[150:]
    kafka.fill(settings, (Record(Position(topic, 0, 0), b"k", v) for v in values))

    assert main(["doctor", str(path), "--output", "json"]) == 0
    checks = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in checks}
    assert (found["registry"]["level"], found["registry"]["message"]) == (
        "ok", f"{registry.url} answers",
    )  # fmt: skip
    assert any("2 sensor(s) can be read" in check["message"] for check in checks)

    with background(path) as process:
        wait_until(lambda: kafka.count(settings, settings.topics.verdicts) == 300, process)
        out, _ = stop(process)
    summary = json.loads(out)
    assert (summary["events"], summary["invalid"]) == (306, 6)
    verdicts = [
        decode_verdict(record.value) for record in kafka.read(settings, settings.topics.verdicts)[0]
    ]
    assert [v.sensor for v in verdicts] == [f"m-{i % 2}" for i in range(300)]
    assert [v.event_time_ms for v in verdicts] == [START_MS + i for i in range(300)]
    assert [v.reason for v in verdicts].count("unscorable") == 30, "a missing flow is missing"
    letters = list(list_dead_letters(settings))
    assert [letter.original.value for letter in letters] == list(poison)
    for letter, words in zip(letters, poison.values(), strict=True):
        assert words in letter.reason
        assert letter.stage == "decode"


@pytest.mark.long
def test_while_the_registry_is_silent_records_wait_and_nothing_is_lost(
    kafka: Kafka, registry, tmp_path, capsys
):
    path, producer = prepared(tmp_path, kafka.bootstrap, registry.url, "avro", capsys)
    settings = kafka_settings(load_config(path))
    (topic,) = settings.topics.input
    renewed = Producer(registry.url, "avro", f"{producer.name}.2")
    renewed.schema_id = renewed.register(
        f"{producer.name}.2-value", json.dumps(AVRO | {"doc": "renewed"}), producer.references
    )
    assert renewed.schema_id != producer.schema_id

    def send(who, numbers):
        values = (who.value(i) for i in numbers)
        kafka.fill(settings, (Record(Position(topic, 0, 0), b"k", v) for v in values))

    def judged():
        return kafka.count(settings, settings.topics.verdicts)

    send(producer, range(100))
    log = tmp_path / "log"
    with log.open("wb") as stderr, background(path, stderr) as process:
        wait_until(lambda: judged() == 100, process)
        registry.pause()
        try:
            send(producer, range(100, 120))  # a schema that is known needs nobody
            wait_until(lambda: judged() == 120, process)
            send(renewed, range(120, 200))
            until(lambda: "does not answer" in log.read_text(), "the outage is told")
            assert process.poll() is None
            assert judged() == 120
            assert kafka.count(settings, settings.topics.deadletter) == 0
            said = subprocess.run(
                [sys.executable, "-m", "rejex_stream", "doctor", str(path)],
                capture_output=True, text=True, check=False, cwd=path.parent,
                env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
            )  # fmt: skip
            assert said.returncode == 1
            assert "does not answer: timed out" in " ".join(said.stdout.split())
        finally:
            registry.resume()
        wait_until(lambda: judged() == 200, process)
        stop(process)
    assert kafka.count(settings, settings.topics.deadletter) == 0
    verdicts = kafka.read(settings, settings.topics.verdicts)[0]
    times = [decode_verdict(record.value).event_time_ms for record in verdicts]
    assert times == [START_MS + i for i in range(200)]


def zigzag(n: int) -> bytes:
    """Avro's way to write a whole number."""
    n, found = n << 1 if n >= 0 else (-n << 1) - 1, b""
    while n > 127:
        n, found = n >> 7, found + bytes([n & 127 | 128])
    return found + bytes([n])


def avro_bombs(producer: Producer) -> list[bytes]:
    """Short records that would take for ever, or all memory, if they were believed."""
    huge = zigzag(10**12)
    twice: list[dict] = [
        {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}
    ]
    for i in range(1, 30):
        inner = f"R{i - 1}"
        first = twice.pop() if i == 1 else twice[-1]
        twice = [{"type": "record", "name": f"R{i}", "fields": [
            {"name": "a", "type": first}, {"name": "b", "type": inner}]}]  # fmt: skip
    itself = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    kinds = [
        ({"type": "array", "items": "null"}, huge), ({"type": "map", "values": "null"}, huge),
        (twice[0], b""), (itself, b"\2" * 100_000),
    ]  # fmt: skip
    bombs = []
    for i, (kind, payload) in enumerate(kinds):
        schema = {"type": "record", "name": f"B{i}", "fields": [{"name": "flow", "type": kind}]}
        number = producer.register(f"{producer.name}-b{i}", json.dumps(schema), ())
        bombs.append(b"\0" + number.to_bytes(4) + payload)
    head = producer.value(0)[:5]
    return [*bombs, head + zigzag(2**61) + b"m", head + zigzag(-5), head + b"\xff" * 40]


def protobuf_bombs(producer: Producer) -> list[bytes]:
    text = (
        'syntax = "proto3"; package bomb; message N { string meter = 1; N n = 2; '
        "repeated double flow = 3; map<string, N> m = 4; }"
    )
    number = producer.register(f"{producer.name}-b", text, ())
    head, deep = b"\0" + number.to_bytes(4) + b"\0", b""
    for _ in range(2_000):
        size, prefix = len(deep), b""
        while size > 127:
            size, prefix = size >> 7, prefix + bytes([size & 127 | 128])
        deep = b"\x12" + prefix + bytes([size]) + deep
    lies = b"\x1a\xff\xff\xff\xff\x7f"  # 34 GB of doubles, says the length
    good = producer.value(0)[:7]
    return [head + deep, head + lies, head + b"\x13" * 50_000, good + lies, good + b"\xff" * 40]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_bombs_in_a_topic_cost_their_own_place_and_nothing_else(
    kafka: Kafka, registry, tmp_path, capsys, kind
):
    path, producer = prepared(tmp_path, kafka.bootstrap, registry.url, kind, capsys)
    settings = kafka_settings(load_config(path))
    (topic,) = settings.topics.input
    bombs = (avro_bombs if kind == "avro" else protobuf_bombs)(producer)
    values = []
    for i in range(200):
        values += [producer.value(i), *([bombs[i // 10]] if i % 10 == 5 and i // 10 < len(bombs)
                                        else [])]  # fmt: skip
    kafka.fill(settings, (Record(Position(topic, 0, 0), b"k", v) for v in values))
    with background(path) as process:
        wait_until(lambda: kafka.count(settings, settings.topics.verdicts) == 200, process)
        status = Path(f"/proc/{process.pid}/status").read_text()
        (peak_kb,) = (line.split()[1] for line in status.splitlines() if "VmHWM" in line)
        out, err = stop(process)
    summary = json.loads(out)
    assert (summary["events"], summary["invalid"]) == (200 + len(bombs), len(bombs)), err
    assert int(peak_kb) < 400_000
    letters = list(list_dead_letters(settings))
    assert [letter.original.value for letter in letters] == bombs
    assert {letter.stage for letter in letters} == {"decode"}
    record(
        f"bombs of {kind}",
        size=f"{len(bombs)} among 200 records",
        done_to_it="lengths that lie, schemas that double, records in records without end",
        outcome="each is a dead letter; every other record has its verdict; less than 400 MB held",
        marks="kafka",
    )
