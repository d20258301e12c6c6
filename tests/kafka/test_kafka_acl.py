"""A broker that grants rights one by one: the request that is refused names what is missing."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import TransactionalIdAuthorizationFailedError
from kafka_harness import (
    Feeder,
    Kafka,
    Workers,
    assert_exactly,
    feed,
    pipeline_toml,
    start_rejex,
    stop,
)
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSecurity, KafkaSettings
from rejex_connectors.kafka.refusals import Right, grant, transactional_right
from rejex_connectors.kafka.topic_admin import describe, missing_rights, worker_rights
from rejex_connectors.kafka.transactional_writer import TransactionalWriter
from test_kafka_delivery import CLIENTS, CONFLUENT, finish

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.errors import ConnectorError
from rejex_stream.types import Partition, Position, Record
from tests.soak_results import record
from tests.waiting import until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]

EVENTS = 1500
USERS = [f"u{i}" for i in range(60)]  # one for each test


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
        self.granted: set[Right] = set()
        name = f"acl-{uuid.uuid4().hex[:8]}"
        self.path = folder / "pipeline.toml"
        self.path.write_text(
            pipeline_toml(
                name, f"localhost:{port}", output={"audit_rate": 0.2},
                refit={"executor": "inline", "first_fit_events": 200},
                state={"snapshot_every_events": 500},
                kafka={
                    "client": client, "instance_id": "w0", "options": {"delivery.timeout.ms": 5000},
                    "security": {
                        "protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": self.user,
                        "password": f"secret of {self.user}",
                    },
                },
            )
        )  # fmt: skip
        self.settings = kafka_settings(load_config(self.path))
        topics = self.settings.topics
        names = {*topics.input, *topics.others} - {topics.state}
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
        self.needed = worker_rights(self.settings)

    def allow(self, *rights: Right) -> None:
        """Grant rights, and wait until the broker that is asked for them has heard of it."""
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
        self.granted.update(rights)
        until(lambda: self._n_known() == len(self.granted), lambda: f"{self._n_known()} known")

    def take_away(self, right: Right) -> None:
        kind = ResourceType[right.kind.replace(" ", "_").upper()]
        self.kafka.admin.delete_acls([self._mine(kind, right.name, right.operation)])
        self.granted.discard(right)
        until(lambda: self._n_known() == len(self.granted), lambda: f"{self._n_known()} known")

    def _mine(
        self, kind: ResourceType = ResourceType.ANY, name: str | None = None, operation: str = "ANY"
    ) -> ACLFilter:
        place = ResourcePatternFilter(kind, name, ACLResourcePatternType.ANY)
        return ACLFilter(
            principal=f"User:{self.user}", host=None, operation=ACLOperation[operation],
            permission_type=ACLPermissionType.ANY, resource_pattern=place,
        )  # fmt: skip

    def _n_known(self) -> int:
        known, _ = self.kafka.admin.describe_acls(self._mine())
        return len(known)

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
        names |= {"incidents": topics.incidents, "control": topics.control}
        names |= {"group": self.settings.group, "worker": f"{self.settings.group}-w0"}
        return Right(kind, names[role], operation)

    def start(self) -> subprocess.Popen[str]:
        return start_rejex("run", self.path, cwd=self.path.parent)

    @property
    def open(self) -> KafkaSettings:
        """The settings of somebody who may do everything."""
        return self.settings.replace(
            bootstrap_servers=self.kafka.bootstrap, security=KafkaSecurity()
        )

    def feed(self) -> None:
        topic = self.settings.topics.input[0]
        values = [b'{"flow": %d}' % (i * 7919 % 1009) for i in range(EVENTS)] + [b"{broken"]
        state = Position(str(self.settings.topics.state), 0, 0)
        self.kafka.fill(self.open, [Record(state, b"of somebody else", b"?")])
        self.kafka.fill(self.open, (Record(Position(topic, 0, 0), b"p", v) for v in values))


@pytest.fixture
def pipeline(kafka: Kafka, denying: broker.Cluster, tmp_path: Path, request: pytest.FixtureRequest):
    client = getattr(request, "param", "kafka-python")
    return Pipeline(kafka, denying.listeners["SASL_PLAINTEXT"], client, tmp_path)


def doctor(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict]]:
    status = main(["doctor", str(pipeline.path), "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


MISSING = [
    ("topic", "input", "READ"), ("topic", "verdicts", "WRITE"), ("topic", "review", "WRITE"),
    ("topic", "deadletter", "WRITE"), ("topic", "state", "READ"), ("topic", "state", "WRITE"),
    ("group", "group", "READ"), ("transactional id", "worker", "WRITE"),
]  # fmt: skip
# What each commit needs, so that who loses it while it runs learns of it there.
NEEDED_ALWAYS = [MISSING[0], MISSING[1], MISSING[2], MISSING[6], MISSING[7]]
# What a run does without as long as nobody speaks and nothing breaks.
RARELY_MISSING = [("topic", "incidents", "WRITE"), ("topic", "control", "READ")]
BOTH = pytest.mark.parametrize("pipeline", CLIENTS, indirect=True)


@pytest.mark.parametrize(("kind", "role", "operation"), [*MISSING, *RARELY_MISSING])
def test_the_doctor_names_the_one_right_that_is_missing(
    pipeline: Pipeline, capsys, kind: str, role: str, operation: str
) -> None:
    lacking = pipeline.right(kind, role, operation)
    pipeline.allow_all_but(lacking)
    if kind == "topic":
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
    assert len(topics) == 8
    assert all("may not be described" in c["message"] and "DESCRIBE" in c["fix"] for c in topics)
    # What may not be read is not called empty.
    assert {c["level"] for c in checks if c["name"] == "sample"} == {"skipped"}


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
        until(lambda: kafka.count(pipeline.open, verdicts) >= EVENTS)
        stop(process)
    assert kafka.count(pipeline.open, verdicts) == EVENTS


@BOTH
@pytest.mark.parametrize("looking", [
    pytest.param(False, id="not even look"),
    pytest.param(True, id="look but not do", marks=pytest.mark.long),
])  # fmt: skip
@pytest.mark.parametrize(("kind", "role", "operation"), MISSING)
def test_a_run_that_is_refused_ends_with_one_sentence_and_the_line_to_type(
    pipeline: Pipeline, monkeypatch, capsys, kind: str, role: str, operation: str, looking: bool
) -> None:
    monkeypatch.chdir(pipeline.path.parent)
    lacking = pipeline.right(kind, role, operation)
    pipeline.allow_all_but(lacking)
    if looking:
        pipeline.allow(lacking._replace(operation="DESCRIBE"))
    pipeline.feed()
    status = main(["run", str(pipeline.path)])
    err = capsys.readouterr().err
    assert status == 1, err
    assert "Traceback" not in err
    assert "unexpected" not in err
    (sentence,) = [line for line in err.splitlines() if line.startswith("rejex-stream: ")]
    assert f"does not allow {pipeline.user} to {lacking}" in sentence
    assert f"`{grant(lacking, pipeline.settings)}`" in sentence
    if role != "state":  # a snapshot comes after the commit
        partition = Partition(pipeline.open.topics.input[0], 0)
        assert pipeline.kafka.committed(pipeline.open).get(partition, 0) <= EVENTS


@pytest.mark.slow
@BOTH
def test_rights_that_are_taken_away_while_it_runs_end_it_and_nothing_is_lost(
    pipeline: Pipeline, kafka: Kafka, tmp_path: Path
) -> None:
    pipeline.allow_all_but()
    records, taken = feed(pipeline.open, 12_000, partitions=1), list[str]()
    slowly: dict[str, Any] = {"pause_s": 0.02, "max_poll_records": 20}
    with Workers(tmp_path) as workers, Feeder(kafka, pipeline.open, records, 60) as feeder:
        for kind, role, operation in NEEDED_ALWAYS:
            right, before = pipeline.right(kind, role, operation), kafka.committed(pipeline.open)
            worker = workers.start(pipeline.settings, **slowly)
            until(lambda: kafka.committed(pipeline.open) != before, lambda: worker.output)  # noqa: B023
            pipeline.take_away(right)
            until(lambda: not worker.alive, lambda: (right, worker.output[-3_000:]))  # noqa: B023
            assert "does not allow" in worker.output, (right, worker.output[-3_000:])
            assert str(right) in worker.output
            pipeline.allow(right)
            taken.append(f"{operation} on the {role}")
        worker = workers.start(pipeline.settings, **slowly)
        feeder.finish()
        finish(kafka, pipeline.open, records, said=lambda: worker.output)
        assert worker.terminate() == 0, worker.output
    assert_exactly(kafka, pipeline.open, records)
    record(
        f"rights that are taken away ({pipeline.settings.client})",
        size=f"{len(records):,} records, one partition",
        done_to_it=f"while it runs, one after the other: {', '.join(taken)}",
        outcome="each time it ended with the right that is missing; given back, and started again: "
        "verdicts, review items, dead letters: none differs, none lacks, none is doubled",
    )


@CONFLUENT
@pytest.mark.parametrize("pipeline", ["confluent"], indirect=True)
def test_a_refusal_that_comes_while_the_rest_is_still_being_written_is_told(
    pipeline: Pipeline,
) -> None:
    from rejex_connectors.kafka.confluent_client import FastProducer

    lacking = pipeline.right("topic", "review", "WRITE")
    pipeline.allow_all_but(lacking)
    pipeline.allow(lacking._replace(operation="DESCRIBE"))
    topics = pipeline.settings.topics
    verdicts = [Message(topics.verdicts, 0, b"k", b"v" * 50, [])] * 400_000
    producer = FastProducer(
        pipeline.settings.replace(
            options=pipeline.settings.options | {"delivery.timeout.ms": 60_000}
        ),
        "w0",
    )
    try:
        with pytest.raises(ConnectorError, match=f"does not allow {pipeline.user} to {lacking}"):
            producer.publish([Message(topics.review, 0, b"k", b"v", []), *verdicts], {}, None)
    finally:
        producer.close()


@pytest.mark.parametrize("looking", [False, pytest.param(True, marks=pytest.mark.long)])
def test_who_may_not_hear_people_says_so_and_goes_on(
    pipeline: Pipeline, kafka: Kafka, looking: bool
) -> None:
    lacking = pipeline.right("topic", "control", "READ")
    pipeline.allow_all_but(lacking)
    if looking:
        pipeline.allow(lacking._replace(operation="DESCRIBE"))
    pipeline.feed()
    verdicts = pipeline.settings.topics.verdicts
    with pipeline.start() as process:
        until(lambda: kafka.count(pipeline.open, verdicts) >= EVENTS)
        _, err = stop(process)
    assert "nobody can tell the pipeline anything, and it goes on" in err
    assert lacking.name in err
    assert f"`{grant(lacking, pipeline.settings)}`" in err


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
    nameless = pipeline.settings.replace(instance_id=None)
    line = grant(transactional_right(nameless), nameless)
    assert line.endswith(f"--transactional-id {nameless.group}- --resource-pattern-type prefixed")


def test_who_may_not_rekey_reads_the_name_of_its_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(producer: KafkaProducer) -> None:
        raise TransactionalIdAuthorizationFailedError

    monkeypatch.setattr(KafkaProducer, "init_transactions", refuse)
    monkeypatch.setattr(KafkaProducer, "__init__", lambda *_, **options: names.append(options))
    monkeypatch.setattr(KafkaProducer, "close", lambda *_, **__: None)
    names: list[dict[str, object]] = []
    settings = KafkaSettings(group="plant")
    with pytest.raises(ConnectorError, match="--transactional-id plant-rekey-in`"):
        TransactionalWriter(settings, "rekey-in", "copying x to in")
    assert [options["transactional_id"] for options in names] == ["plant-rekey-in"]
