"""A broker that grants rights one by one: the doctor names what is missing, a run says it too."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from kafka_harness import Kafka
from rejex_connectors.kafka import KafkaSecurity, KafkaSettings
from rejex_connectors.kafka_access import Right, grant, missing_rights, needed_of_topics
from rejex_connectors.kafka_topics import describe
from test_kafka_delivery import DEFAULT_CLIENT_FIRST

from rejex_stream.build import kafka_settings
from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.types import Position, Record
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = """
[pipeline]
name = "{name}"
[input]
kind = "kafka"
topics = ["{name}.in"]
channels = ["flow"]
[detector]
name = "HBOS"
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
[run]
commit_interval_s = 0.1
[refit]
executor = "inline"
[kafka]
bootstrap_servers = "localhost:{port}"
client = "{client}"
instance_id = "w0"
commit_timeout_ms = 5000
[kafka.security]
protocol = "SASL_PLAINTEXT"
mechanism = "PLAIN"
username = "{user}"
password = "secret of {user}"
"""
EVENTS = 30
USERS = [f"u{i}" for i in range(40)]  # one for each test: rights are never taken back


@pytest.fixture(scope="module")
def denying() -> Iterator[broker.Cluster]:
    """A broker where nobody may do anything, except for us on the open listener."""
    users = " ".join(f'user_{user}="secret of {user}"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    with broker.start(
        listeners=("SASL_PLAINTEXT",),
        overrides={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        },
    ) as cluster:
        yield cluster


@pytest.fixture
def kafka(denying: broker.Cluster) -> Iterator[Kafka]:
    with Kafka(denying.bootstrap) as kafka:
        yield kafka


class Pipeline:
    """A config, its topics, and a user of its own who may do nothing yet."""

    def __init__(self, kafka: Kafka, port: int, client: str, folder: Path) -> None:
        self.kafka, self.user = kafka, USERS.pop()
        name = f"acl-{uuid.uuid4().hex[:8]}"
        self.path = folder / "pipeline.toml"
        self.path.write_text(CONFIG.format(name=name, port=port, client=client, user=self.user))
        self.settings = kafka_settings(load_config(self.path))
        topics = self.settings.topics
        names = (*topics.input, topics.verdicts, topics.review, topics.labels, topics.deadletter)
        kafka.admin.create_topics(
            {name: {"num_partitions": 1, "replication_factor": 1} for name in names}
            | {
                str(topics.state): {
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": {"cleanup.policy": "compact"},
                }
            },
            wait_for_metadata=True,
        )
        self.needed = [
            *needed_of_topics(self.settings),
            Right("group", self.settings.group, "READ"),
            Right("transactional id", f"{self.settings.group}-w0", "WRITE"),
        ]

    def allow(self, *rights: Right) -> None:
        self.kafka.admin.create_acls(
            [
                ACL(
                    principal=f"User:{self.user}",
                    host="*",
                    operation=ACLOperation[right.operation],
                    permission_type=ACLPermissionType.ALLOW,
                    resource_pattern=ResourcePattern(
                        ResourceType[right.kind.replace(" ", "_").upper()],
                        right.name,
                        ACLResourcePatternType.LITERAL,
                    ),
                )
                for right in rights
            ]
        )

    def allow_all_but(self, *kept_back: Right) -> None:
        self.allow(*(right for right in self.needed if right not in kept_back))

    def allow_looking_at_settings(self) -> None:
        names = {right.name for right in self.needed if right.kind == "topic"}
        names.add(self.settings.topics.labels)
        self.allow(*(Right("topic", name, "DESCRIBE_CONFIGS") for name in names))
        self.allow(Right("topic", self.settings.topics.labels, "DESCRIBE"))

    def right(self, kind: str, role: str, operation: str) -> Right:
        topics = self.settings.topics
        names = {"input": topics.input[0], "verdicts": topics.verdicts, "review": topics.review}
        names |= {"deadletter": topics.deadletter, "state": str(topics.state)}
        names |= {"group": self.settings.group, "worker": f"{self.settings.group}-w0"}
        return Right(kind, names[role], operation)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "rejex_stream", "run", str(self.path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.path.parent,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
        )  # fmt: skip

    @property
    def open(self) -> KafkaSettings:
        """The settings of somebody who may do everything."""
        return dataclasses.replace(
            self.settings, bootstrap_servers=self.kafka.bootstrap, security=KafkaSecurity()
        )

    def feed(self) -> None:
        topic = self.settings.topics.input[0]
        values = (b'{"flow": %d}' % i for i in range(EVENTS))
        self.kafka.fill(self.open, (Record(Position(topic, 0, 0), b"p", v) for v in values))


@pytest.fixture
def pipeline(kafka: Kafka, denying: broker.Cluster, tmp_path: Path, request: pytest.FixtureRequest):
    client = getattr(request, "param", "kafka-python")
    return Pipeline(kafka, denying.listeners["SASL_PLAINTEXT"], client, tmp_path)


def doctor(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict]]:
    status = main(["doctor", str(pipeline.path), "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


MISSING = [
    ("topic", "input", "READ"),
    ("topic", "verdicts", "WRITE"),
    ("topic", "review", "WRITE"),
    ("topic", "deadletter", "WRITE"),
    ("topic", "state", "READ"),
    ("topic", "state", "WRITE"),
    ("group", "group", "READ"),
    ("transactional id", "worker", "WRITE"),
]
BOTH = pytest.mark.parametrize("pipeline", DEFAULT_CLIENT_FIRST, indirect=True)


@pytest.mark.parametrize(("kind", "role", "operation"), MISSING)
def test_the_doctor_names_the_one_right_that_is_missing(
    pipeline: Pipeline, capsys, kind: str, role: str, operation: str
) -> None:
    lacking = pipeline.right(kind, role, operation)
    pipeline.allow_all_but(lacking)
    if kind != "topic":
        pipeline.allow(lacking._replace(operation="DESCRIBE"))  # may look, may not do
    status, checks = doctor(pipeline, capsys)
    assert status == 1
    (found,) = [c for c in checks if c["name"] == "access"]
    assert found["level"] == "error"
    assert found["message"] == f"{operation} on {kind} {lacking.name} is not allowed"
    assert f"--allow-principal User:{pipeline.user}" in found["fix"]
    assert f"--operation {operation.capitalize()}" in found["fix"]
    assert found["fix"].endswith(f"--{kind.replace(' ', '-')} {lacking.name}")


@BOTH
def test_who_may_do_nothing_is_told_of_everything(pipeline: Pipeline, capsys) -> None:
    status, checks = doctor(pipeline, capsys)
    assert status == 1
    told = [c["message"] for c in checks if c["name"] == "access"]
    assert told == [f"{right} is not allowed" for right in pipeline.needed]
    topics = [c for c in checks if c["name"] == "topics"]
    assert len(topics) == 6
    assert all("may not be described" in c["message"] and "DESCRIBE" in c["fix"] for c in topics)
    # What may not be read is not called empty.
    assert {c["level"] for c in checks if c["name"] in ("sample", "snapshots")} == {"skipped"}


@BOTH
def test_with_every_right_there_is_nothing_to_say_and_the_run_runs(
    pipeline: Pipeline, kafka: Kafka, capsys
) -> None:
    pipeline.allow_all_but()
    status, checks = doctor(pipeline, capsys)
    assert status == 0, checks
    warned = {c["message"] for c in checks if c["name"] == "topics" and c["level"] == "warning"}
    assert any("could not be looked at" in message for message in warned)
    pipeline.allow_looking_at_settings()
    status, checks = doctor(pipeline, capsys)
    assert status == 0
    assert [c for c in checks if c["level"] == "warning" and c["name"] == "topics"] == []
    (access,) = [c for c in checks if c["name"] == "access"]
    assert access["level"] == "ok"
    pipeline.feed()
    verdicts = pipeline.settings.topics.verdicts
    with pipeline.start() as process:
        end = time.monotonic() + 60
        while kafka.count(pipeline.open, verdicts) < EVENTS and time.monotonic() < end:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert kafka.count(pipeline.open, verdicts) == EVENTS


@BOTH
@pytest.mark.parametrize(("kind", "role", "operation"), MISSING)
def test_a_run_that_is_refused_ends_with_one_sentence(
    pipeline: Pipeline, kind: str, role: str, operation: str
) -> None:
    lacking = pipeline.right(kind, role, operation)
    pipeline.allow_all_but(lacking)
    pipeline.feed()
    with pipeline.start() as process:
        try:
            _, err = process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate()
    assert process.returncode == 1, err
    assert "Traceback" not in err
    assert "unexpected" not in err
    (sentence,) = [line for line in err.splitlines() if line.startswith("rejex-stream: ")]
    refused = f"to {lacking}: `rejex-stream doctor`" in sentence
    unasked = "Transactional" in sentence if role == "worker" else lacking.name in sentence
    assert refused or ("check kafka.security and the ACLs" in sentence and unasked), sentence


def test_the_doctor_changes_nothing(pipeline: Pipeline, kafka: Kafka) -> None:
    pipeline.allow_all_but()
    before = kafka.admin.list_groups()
    client = kafka.admin
    described = describe(client, pipeline.settings, pipeline.settings.topics.input)
    assert list(missing_rights(client, pipeline.settings, described)) == []
    assert kafka.admin.list_groups() == before
    found = [t.transactional_id for of in kafka.admin.list_transactions().values() for t in of]
    assert f"{pipeline.settings.group}-w0" not in found


def test_a_worker_without_a_name_needs_a_prefix(pipeline: Pipeline) -> None:
    nameless = dataclasses.replace(pipeline.settings, instance_id=None)
    line = grant(Right("transactional id", "whatever", "WRITE"), nameless)
    assert line.endswith(f"--transactional-id {nameless.group}- --resource-pattern-type prefixed")
