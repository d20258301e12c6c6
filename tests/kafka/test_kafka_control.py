"""Commands on a real broker: heard by every worker, obeyed at the same event after any kill."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka_harness import (
    Kafka,
    Workers,
    assert_holds,
    batches,
    by_partition,
    make_engine,
    make_pipeline,
    messages_of,
    next_offsets,
    reading_by,
)
from rejex_connectors.kafka import partition_reader, unassigned_partitions
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import KafkaControl, topic_ids
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from test_kafka_delivery import CLIENTS, DEFAULT_CLIENT_FIRST, chaos
from test_kafka_schemas import worker

from rejex_stream.cli import main
from rejex_stream.encode import decode_incidents, encode_command
from rejex_stream.errors import ConnectorError
from rejex_stream.protocols import ControlRecords
from rejex_stream.run import command_journal
from rejex_stream.run.loop import run
from rejex_stream.types import (
    Command,
    CommandKind,
    CommandReply,
    Incident,
    Partition,
    Position,
    Record,
)
from tests.doubles import ListControl, ListSink, ListSource, MemorySnapshotStore
from tests.obedient import as_decided
from tests.soak_results import record
from tests.waiting import PATIENCE_S, pass_time, until

pytestmark = pytest.mark.kafka


def say(kafka: Kafka, settings: KafkaSettings, *values: bytes) -> None:
    kafka.fill(settings, [Record(Position(settings.topics.control, 0, 0), None, v) for v in values])


def plan(id_: str, until_ms: int = 5) -> bytes:
    return encode_command(Command(id=id_, kind=CommandKind.PLANNED, from_ms=0, until_ms=until_ms))


# --------------------------------------------------------------------------------- the log
def test_who_listens_or_looks_goes_on_when_descriptors_ran_out(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either thread ended with the error: nobody was heard, and no partition asked for, again."""
    settings, listened, looked = kafka.settings(partitions=1), list[int](), list[int]()

    def follow(log: KafkaControl) -> None:
        listened.append(1)
        if len(listened) == 1:
            raise OSError(24, "Too many open files")
        log._end.wait()

    def ownerless(_: KafkaSettings) -> set[Partition]:
        looked.append(1)
        if len(looked) == 1:
            raise OSError(24, "Too many open files")
        return set()

    monkeypatch.setattr(KafkaControl, "_follow", follow)
    monkeypatch.setattr(partition_reader, "_LISTEN_AGAIN_S", 0.01)
    monkeypatch.setattr(unassigned_partitions, "ownerless", ownerless)
    monkeypatch.setattr(unassigned_partitions, "LOOK_EVERY_S", 0.01)
    log, repair = KafkaControl(settings), unassigned_partitions.SeatRepair(settings)
    until(lambda: (len(listened), len(looked)) == (2, 2))
    log.close()
    repair.close()


def heard(log: KafkaControl, start: int, n: int) -> tuple[list[bytes | None], ControlRecords]:
    found: list[bytes | None] = []
    last = ControlRecords((), start)

    def enough() -> bool:
        nonlocal last
        last = log.read(last.next_offset)
        found.extend(record.value for record in last.records)
        return len(found) >= n

    until(enough, f"{n} records of the control log")
    return found, last


def test_the_log_is_read_from_anywhere_and_as_it_grows(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=2)
    with closing(KafkaControl(settings)) as log:
        assert log.inputs == settings.topics.input
        say(kafka, settings, b"one", b"two")
        found, last = heard(log, 0, 2)
        assert (found, last.next_offset) == ([b"one", b"two"], 2)
        assert heard(log, 1, 1)[0] == [b"two"], "a partition that was somebody else's reads again"
        say(kafka, settings, b"three")
        assert heard(log, 2, 1)[0] == [b"three"]
        assert log.read(3)[:2] == ([], 3)


def test_a_topic_that_is_missing_is_said_and_heard_once_it_is_there(kafka: Kafka) -> None:
    settings = kafka.settings(partitions=1)
    say(kafka, settings, *[b"old"] * 5)
    with closing(KafkaControl(settings)) as log:
        last = heard(log, 0, 5)[1]
    before = last.log
    assert (last.next_offset, bool(before)) == (5, True)
    kafka.admin.delete_topics([settings.topics.control])
    with closing(KafkaControl(settings)) as log:

        def why() -> str:
            try:
                log.read(5)
            except ConnectorError as error:
                return str(error)
            return ""

        until(lambda: "does not exist" in why(), "it says that the topic is not there")
        create_topics(settings, plan_topics(settings, partitions=1))
        say(kafka, settings, b"new")
        until(lambda: not why() and log.read(5).log not in (b"", before), "it is another log")
        assert heard(log, 0, 1)[0] == [b"new"]


def make_anew(kafka: Kafka, settings: KafkaSettings) -> None:
    control = settings.topics.control
    kafka.admin.delete_topics([control])
    until(lambda: control not in kafka.admin.list_topics(), "it is gone")
    create_topics(settings, [p for p in plan_topics(settings, partitions=2) if p.role == "control"])


@pytest.mark.parametrize("runs", [
    pytest.param(True, id="while it runs"),
    pytest.param(False, id="while stopped", marks=pytest.mark.long),
])  # fmt: skip
def test_a_log_that_was_made_anew_and_is_longer_loses_no_command(
    kafka: Kafka, tmp_path: Path, runs: bool
) -> None:
    """As many as the old one had were never read: an offset was taken for the log's identity."""
    settings = kafka.settings(partitions=2)
    feed, engine = batches(readings(settings, 24_000), 40), {"kind": "obedient"}

    def replied() -> set[str]:
        return {one[1].command for one in told(kafka, settings) if not isinstance(one, Incident)}

    def obeyed(ids: set[str]) -> bool:
        kafka.fill(settings, next(feed))  # a command holds from an event on
        return ids <= replied()

    with Workers(tmp_path) as workers:
        worker = workers.start(settings, "one", engine=engine)
        old, new = {"a1", "a2", "a3"}, {f"b{n}" for n in range(1, 7)}
        say(kafka, settings, *map(plan, sorted(old)))
        until(lambda: obeyed(old), lambda: worker.output, every_s=0.3)
        if not runs:
            assert worker.terminate() == 0, worker.output
        make_anew(kafka, settings)
        say(kafka, settings, *map(plan, sorted(new)))
        if not runs:
            worker = workers.start(settings, "one", engine=engine)
        until(lambda: obeyed({"b6"}), lambda: worker.output, every_s=0.3)
        until(lambda: obeyed(new), lambda: f"{replied()} of {new}", every_s=0.3)
        assert worker.terminate() == 0, worker.output
        worker = workers.start(settings, "one", engine=engine)  # it is the log from now on
        say(kafka, settings, plan("b7"))
        until(lambda: obeyed({"b7"}), lambda: worker.output, every_s=0.3)
        assert worker.terminate() == 0, worker.output
    replies = [one[1] for one in told(kafka, settings) if not isinstance(one, Incident)]
    assert {reply.command for reply in replies if reply.accepted} == old | new | {"b7"}
    # What a running worker read of the new log before it saw that it is another is read twice.
    again = {reply.command for reply in replies if "given before" in (reply.said or "")}
    assert again <= ({"b4", "b5", "b6"} if runs else set())


def test_a_broker_without_topic_ids_tells_logs_by_their_first_records(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka 2.8 no topic has an id."""
    settings = kafka.settings(partitions=1)
    log = Partition(settings.topics.control, 0)
    with_id = topic_ids(settings)(log)
    options = partition_reader.client_options
    monkeypatch.setattr(
        partition_reader, "client_options", lambda *of: options(*of) | {"api_version": (2, 7)}
    )
    assert topic_ids(settings)(log) == b"", "nothing stands in it"
    say(kafka, settings, b"one", b"two")
    first = topic_ids(settings)(log)
    assert len(first) > 30
    assert first != with_id
    say(kafka, settings, b"three")
    assert topic_ids(settings)(log) == first
    make_anew(kafka, settings)
    say(kafka, settings, b"one", b"two", b"three", b"four")
    until(lambda: topic_ids(settings)(log) not in (b"", first), "it is another log")


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_who_types_a_command_sees_the_reply(
    kafka: Kafka, tmp_path: Path, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, settings = make_pipeline(
        kafka, tmp_path, input={"fixed_sensor": "s"}, detector={"name": "HalfSpaceTrees"},
        kafka={"client": client},
    )  # fmt: skip
    stop = threading.Event()
    (topic,) = settings.topics.input

    def feed() -> None:
        while not stop.is_set():
            kafka.fill(settings, [Record(Position(topic, 0, 0), b"k", b'{"flow": 1.5}')] * 20)
            pass_time(0.2, because="a plant sends now and then")

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        with worker(path) as process:
            until(
                lambda: kafka.count(settings, settings.topics.verdicts) or process.poll(),
                "the pipeline runs",
            )
            capsys.readouterr()
            times = ["--from", "2024-01-01T00:00Z", "--until", "2024-01-02T00:00Z"]
            words = [*times, "--wait", str(PATIENCE_S), "--output", "json"]
            main(["control", "plan", str(path), *words])
            said = json.loads(capsys.readouterr().out)
    finally:
        stop.set()
        feeding.join(PATIENCE_S)
    (reply,) = said["replies"]
    assert reply["command"] == said["command"]["id"]
    assert main(["control", "list", str(path), "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["commands"] == [said]


# ------------------------------------------------------------------- killed at any moment
def readings(settings: KafkaSettings, n_events: int) -> list[Record]:
    (topic,) = settings.topics.input
    at: dict[int, int] = defaultdict(int)
    found = []
    for i in range(n_events):
        number = i % 6
        event = {"sensor": f"s{number}", "t": 1_000 * i, "v": i * 7919 % 1009}
        value = b"broken" if i % 97 == 96 else json.dumps(event).encode()
        found.append(Record(Position(topic, number % 2, at[number % 2]), b"%d" % number, value))
        at[number % 2] += 1
    return found


class Person:
    """Answers what was opened last, or plans work; now and then writes nonsense, or repeats it."""

    def __init__(self, kafka: Kafka, settings: KafkaSettings, seed: int) -> None:
        self._kafka, self._settings, self._draw = kafka, settings, random.Random(seed)
        self._n = 0

    def speak(self) -> None:
        self._n += 1
        opened = [item for item in told(self._kafka, self._settings) if isinstance(item, Incident)]
        if opened and self._draw.random() < 0.8:
            one = self._draw.choice(opened[-6:])
            kind = self._draw.choice([CommandKind.FAULT, CommandKind.NEW_NORMAL])
            said = encode_command(
                Command(id=f"c{self._n}", kind=kind, incident=one.id, version=one.version)
            )
        else:
            said = self._draw.choice([plan(f"p{self._n}"), b"nonsense"])
        say(self._kafka, self._settings, *[said] * self._draw.choice([1, 1, 2]))


def told(kafka: Kafka, settings: KafkaSettings) -> list[Incident | tuple[Position, CommandReply]]:
    found = kafka.read(settings, settings.topics.incidents)
    return [decode_incidents(r.value or b"") for records in found.values() for r in records]


def as_answered(
    kafka: Kafka, settings: KafkaSettings, records: Sequence[Record], engine: Mapping[str, Any], *,
    door: bool = False,
) -> Mapping[str, Mapping[int, Any]]:  # fmt: skip
    """What a run writes that nothing disturbs, with the commands at the same offsets."""
    scripts, inputs = by_partition(records), settings.topics.input
    (said,) = kafka.read(settings, settings.topics.control).values()
    answers = [item for item in told(kafka, settings) if not isinstance(item, Incident)]
    store, sink = MemorySnapshotStore(), ListSink()
    for partition, script in scripts.items():
        replies = [(at.offset, reply.command) for at, reply in answers if at[:2] == partition]
        end = script[-1].position.offset + 1
        store.journals[partition] = as_decided(partition, inputs, said, replies, end)
    decoder, knobs = reading_by(door=door)
    run(
        ListSource(scripts), sink, store, make_engine(**engine), decoder,
        control=ListControl(inputs), settings=knobs,
    )  # fmt: skip
    return messages_of(settings, sink.outcomes, partitions=len(scripts))


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_killed_between_answers_and_their_effect_nothing_shows(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    """Two workers, of which one is killed again and again while a person speaks."""
    kills, settings = 4, kafka.settings(partitions=2, client=client)
    draw, records = random.Random(kills), readings(settings, 1_000 * kills)
    person = Person(kafka, settings, kills)

    def speak() -> None:
        for _ in range(draw.choice([1, 2, 3])):
            person.speak()

    chaos(
        kafka, settings, tmp_path, records, draw, kills=kills, feed_s=2.5 * kills, before=speak,
        max_poll_records=40, snapshot_every_events=100, engine={"kind": "obedient", "waits": 2},
    )  # fmt: skip
    assert kafka.committed(settings) == next_offsets(records)
    answers = [item for item in told(kafka, settings) if not isinstance(item, Incident)]
    assert len(answers) > kills
    assert {reply.accepted for _, reply in answers} == {True, False}
    wanted, topics = as_answered(kafka, settings, records, {"kind": "obedient"}), settings.topics
    assert_holds(kafka, settings, wanted, (topics.verdicts, topics.incidents, topics.deadletter))


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_hundred_thousand_commands_that_wait_are_all_answered_in_their_order(
    kafka: Kafka, tmp_path: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them has ended. The journal holds 1,000; snapshots are due by nothing else."""
    n, settings = 100_000, kafka.settings(partitions=2, client=client)
    cancel = CommandKind.CANCEL
    waiting = [encode_command(Command(id=f"c{i}", kind=cancel, cancels="x")) for i in range(n)]
    say(kafka, settings, *waiting, plan("last", until_ms=10**12))
    records = readings(settings, 40_000)
    kafka.fill(settings, records)
    with Workers(tmp_path) as workers:
        worker = workers.start(
            settings, "a", pause_s=0.1, max_poll_records=20, snapshot_every_events=10**9,
            engine={"kind": "obedient"},
        )  # fmt: skip
        ends = next_offsets(records)
        until(lambda: kafka.committed(settings) == ends, lambda: worker.output, timeout_s=900)
        assert worker.terminate() == 0, worker.output
    found = kafka.read(settings, settings.topics.incidents)
    lines = [r for of_one in found.values() for r in of_one if b'"last"' in (r.value or b"")]
    times = [r.timestamp_ms or 0 for r in [found[0][0], *lines]]
    answers = [item for item in told(kafka, settings) if not isinstance(item, Incident)]
    for number in range(2):
        of_one = [reply.command for at, reply in answers if at.partition == number]
        assert of_one == [*(f"c{i}" for i in range(n)), "last"]
    monkeypatch.setattr(command_journal, "MAX_ENTRIES", 2 * n)  # of the run that is compared
    wanted, topics = as_answered(kafka, settings, records, {"kind": "obedient"}), settings.topics
    assert_holds(kafka, settings, wanted, (topics.verdicts, topics.incidents, topics.deadletter))
    record(
        f"a hundred thousand waiting commands ({client})",
        size=f"{n:,} commands that still hold, {len(records):,} records, 2 partitions",
        done_to_it="they wait when the worker starts; a plan is given after them",
        outcome=f"all are answered by both partitions, in their order and once; the plan held "
        f"{(max(times) - times[0]) / 1000:.0f} s after the first answer; verdicts, incidents, dead "
        "letters: none differs",
    )


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_command_that_was_obeyed_behind_an_open_transaction_is_obeyed_again(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    """Two deaths: the first leaves a transaction open, the second comes before it is aborted.

    What the worker in between decided cannot be read as long; its outcomes are written.
    """
    settings = kafka.settings(partitions=2, client=client)
    records = readings(settings, 600)
    topics, engine = settings.topics, {"kind": "obedient"}
    dead = KafkaProducer(
        bootstrap_servers=kafka.bootstrap,
        transactional_id=f"{kafka.name}-dead",
        transaction_timeout_ms=60_000,
    )
    dead.init_transactions()
    try:
        with Workers(tmp_path) as workers:
            kafka.fill(settings, records[:200])
            between = workers.start(settings, "between", engine=engine)
            until(
                lambda: kafka.committed(settings) == next_offsets(records[:200]),
                lambda: between.output,
            )
            dead.begin_transaction()
            for partition in (0, 1):
                dead.send(topics.state, key=b"x", value=b"", partition=partition).get(PATIENCE_S)
            say(kafka, settings, plan("p1"))
            kafka.fill(settings, records[200:400])
            until(
                lambda: (
                    kafka.committed(settings) == next_offsets(records[:400])
                    and len(told(kafka, settings)) > 2
                ),
                lambda: between.output,
            )
            between.kill()
            after = workers.start(settings, "after", engine=engine)
            kafka.fill(settings, records[400:])
            until(lambda: members(kafka, settings) == {"after"}, lambda: after.output)
            pass_time(7.0, because="its reader used to wait for 5 s")
            assert not after.owned, "it took a state over that cannot be read"
            dead.abort_transaction()
            until(lambda: kafka.committed(settings) == next_offsets(records), lambda: after.output)
            assert after.terminate() == 0, after.output
    finally:
        dead.close()
    wanted = as_answered(kafka, settings, records, engine)
    assert_holds(kafka, settings, wanted, (topics.verdicts, topics.incidents))


def members(kafka: Kafka, settings: KafkaSettings) -> set[str]:
    group = kafka.admin.describe_groups([settings.group])[settings.group]
    stable_now = group["group_state"] == "Stable"
    return {one["group_instance_id"] for one in group["members"]} if stable_now else set()
