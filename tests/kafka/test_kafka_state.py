"""``rejex-stream state`` on a real broker: dropped, moved to a topic or folder, gone on with."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter

import pytest
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from msgspec.structs import replace
from rejex_connectors.kafka.topic_to_topic import key_partition
from test_kafka_delivery import CONFLUENT

from rejex_stream import Pipeline
from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode import decode_verdict
from rejex_stream.types import Position, Reason, Record
from tests.soak_results import record
from tests.waiting import PATIENCE_S, pass_time, until

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() * 1000) - 3_600_000


@pytest.fixture
def pipelines(bootstrap, tmp_path):
    base = f"state-{uuid.uuid4().hex[:8]}"

    def make(which, kafka=(), **state):
        path = tmp_path / f"{which}.toml"
        name = f"{base}-{which}"
        source = {"time": "t", "topics": [f"{base}.in"]}
        store = {"snapshot_every_events": 500, "topic": f"{name}.state"} | state
        thread = {"executor": "thread"}
        path.write_text(
            pipeline_toml(name, bootstrap, input=source, state=store, refit=thread, kafka=kafka)
        )
        assert main(["topics", "create", str(path), "--with-input", "--partitions", "2"]) == 0
        return path

    return make


def fill(kafka, path, start, end):
    settings = kafka_settings(load_config(path))
    (topic,) = settings.topics.input
    kafka.fill(
        settings,
        (
            Record(
                Position(topic, i % 2, 0), f"pump-{i % 2}".encode(),
                json.dumps({"t": NOW_MS + i, "flow": i * 7919 % 1009 / 100}).encode(), (), None,
            )
            for i in range(start, end)
        ),
    )  # fmt: skip


def verdicts(kafka, path):
    settings = kafka_settings(load_config(path))
    found = kafka.read(settings, settings.topics.verdicts)
    return {
        partition: [decode_verdict(record.value) for record in records]
        for partition, records in found.items()
    }


def run_until(kafka, path, n):
    with start_rejex("run", path, cwd=path.parent) as process:
        until(lambda: sum(map(len, verdicts(kafka, path).values())) >= n)
        stop(process)


@pytest.mark.long
def test_dropped_and_moved_between_topics_and_folders_no_verdict_changes(
    pipelines, rejex, kafka: Kafka, tmp_path
):
    one, plain = pipelines("one"), pipelines("plain")
    two, three = pipelines("two"), pipelines("three", folder=str(tmp_path / "three"))
    assert "no snapshot" in rejex("state", "list", one)[1]
    fill(kafka, one, 0, 1200)
    run_until(kafka, one, 1200)
    first = verdicts(kafka, one)

    rows = json.loads(rejex("state", "list", one, "--output", "json")[1])["partitions"]
    assert [(row["committed"], row["next_offset"], row["sensors"]) for row in rows] == [
        (row["committed"], row["committed"], 1) for row in rows
    ]
    status, said, failed = rejex("state", "export", one, tmp_path / "moved")
    assert status == 0, failed
    assert said.count("exported") == 2
    for other in (two, three):
        status, said, failed = rejex("state", "import", other, tmp_path / "moved")
        assert (status, said.count("imported")) == (0, 2), failed

    names = [row["partition"] for row in rows]
    status, said, failed = rejex("state", "drop", one, "--partition", names[0])
    assert status == 0, failed
    assert "again, silently, and goes on" in said
    (gone, kept) = json.loads(rejex("state", "list", one, "--output", "json")[1])["partitions"]
    assert (gone["what"], "next_offset" in gone, "next_offset" in kept) == (
        "no snapshot", False, True,
    )  # fmt: skip

    fill(kafka, one, 1200, 1500)
    run_until(kafka, one, 1500)
    for path, n in ((plain, 1500), (two, 300), (three, 300)):
        run_until(kafka, path, n)
    expected = verdicts(kafka, plain)
    assert verdicts(kafka, one) == expected
    for other in (two, three):
        then = verdicts(kafka, other)
        assert {p: first[p] + then[p] for p in first} == expected


@pytest.mark.parametrize("client", ["kafka-python", pytest.param("confluent", marks=CONFLUENT)])
def test_under_another_group_nothing_is_written_twice(
    pipelines, rejex, kafka: Kafka, tmp_path, client
):
    """Every verdict was written again, and nothing said so: 3,540 records of 1,770 ids."""
    old, new = pipelines("one", kafka={"client": client}), tmp_path / "new.toml"
    new.write_text(old.read_text().replace("[kafka]", '[kafka]\ngroup = "another"'))
    fill(kafka, old, 0, 600)
    run_until(kafka, old, 600)
    fill(kafka, old, 600, 700)
    status, _, said = rejex("run", new)
    assert (status, "300 record(s) from offset 0 on would get a second verdict" in said) == (
        1,
        True,
    )
    assert sum(map(len, verdicts(kafka, old).values())) == 600

    until(lambda: kafka.is_empty(kafka_settings(load_config(new)).group), "the refused run left")
    moved = tmp_path / "moved.state"
    for command in (("export", old, moved), ("import", new, moved)):
        status, _, said = rejex("state", *command)
        assert status == 0, said
    run_until(kafka, new, 700)
    settings = kafka_settings(load_config(old))
    written = kafka.read(settings, settings.topics.verdicts)
    ids = [dict(record.headers)["ce_id"] for records in written.values() for record in records]
    assert len(ids) == len(set(ids)) == 700
    sequences = {p: [verdict.seq for verdict in found] for p, found in verdicts(kafka, old).items()}
    assert sequences == {p: list(range(350)) for p in (0, 1)}, "their models went on"


DEALT = {"client": "confluent", "group_protocol": "consumer"}  # by the broker


@pytest.mark.parametrize("protocol", [{}, pytest.param(DEALT, marks=CONFLUENT)])
def test_nothing_is_changed_while_a_worker_lives(
    pipelines, rejex, kafka: Kafka, tmp_path, protocol
):
    one = pipelines("one", kafka=protocol)
    fill(kafka, one, 0, 20)
    with start_rejex("run", one, cwd=one.parent, stderr=subprocess.DEVNULL) as process:
        until(lambda: sum(map(len, verdicts(kafka, one).values())) == 20)
        for command in (["drop", one, "--all"], ["export", one, tmp_path / "x"]):
            status, _, said = rejex("state", *command)
            assert (status, "(it is Stable): stop the workers first" in said) == (1, True), said
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0


PACE_S = 3.0
"""Of the load: a hundred records in so many seconds."""


def killed_or_done(draw: random.Random, *command: object) -> int | None:
    """Run one command of ours, sometimes only until it is killed; returns how it ended, if so."""
    with start_rejex(*command, stderr=subprocess.STDOUT) as process:
        if draw.random() < 0.4:
            pass_time(draw.uniform(0.5, 3.0), because="the moment of the kill is random")
            process.kill()
        process.wait(PATIENCE_S)
        return None if process.returncode == -signal.SIGKILL else process.returncode


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_state_moves_from_pipeline_to_pipeline_while_the_input_goes_on(
    pipelines, rejex, kafka: Kafka, tmp_path
):
    """Each takes over from one that was ended, in a topic or a folder; moves are killed as well."""
    draw, moves, n_events = random.Random(12), 3, 0
    plain, over = pipelines("plain"), threading.Event()
    paths = [
        pipelines(f"p{n}", **({"folder": str(tmp_path / f"p{n}")} if n % 2 else {}))
        for n in range(moves + 1)
    ]

    def load() -> None:
        nonlocal n_events
        while not over.wait(PACE_S) or n_events < 100:
            fill(kafka, plain, n_events, n_events + 100)
            n_events += 100

    ended: Counter[str] = Counter()
    feeding = threading.Thread(target=load)
    feeding.start()
    try:
        for number, (one, other) in enumerate(itertools.pairwise(paths)):
            how = draw.choice([signal.SIGKILL, signal.SIGTERM])
            with start_rejex("run", one, cwd=one.parent, stderr=subprocess.DEVNULL) as process:
                until(lambda: all(verdicts(kafka, one).values()), "both partitions are judged")  # noqa: B023
                pass_time(draw.uniform(0.0, 2.0), because="the moment of the end is random")
                process.send_signal(how)
                assert process.wait(PATIENCE_S) in (0, -signal.SIGKILL)
            ended[how.name] += 1
            files = (tmp_path / f"{number}-{again}" for again in itertools.count())
            moved = until(lambda: exported(draw, one, next(files), ended), every_s=0.5)  # noqa: B023
            until(lambda: imported(draw, other, moved, ended), every_s=0.5)  # noqa: B023
    finally:
        over.set()
        feeding.join()
    settings = kafka_settings(load_config(paths[-1]))

    def left() -> bool:
        committed = kafka.committed(settings)
        return sum(committed.values()) < n_events

    with start_rejex("run", paths[-1], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: not left(), lambda: kafka.committed(settings), timeout_s=300)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    run_until(kafka, plain, n_events)
    expected, found = verdicts(kafka, plain), [verdicts(kafka, path) for path in paths]
    for partition, wanted in expected.items():
        assert [verdict for of_one in found for verdict in of_one[partition]] == wanted
    record(
        "export and import of state under load",
        size=f"{n_events:,} records of 2 partitions, which kept coming",
        done_to_it=f"{moves} moves between {moves + 1} pipelines, state in a topic and a folder by "
        f"turns; {', '.join(f'{n} {what}' for what, n in sorted(ended.items()))}",
        outcome=f"{n_events:,} verdicts, none differs, none lacks, none is doubled",
    )


def exported(draw, path, file, ended):
    status = killed_or_done(draw, "state", "export", path, file)
    ended["exports killed"] += status is None
    return file if status == 0 else None


def imported(draw, path, file, ended):
    status = killed_or_done(draw, "state", "import", path, file)
    ended["imports killed"] += status is None
    return status == 0


def test_a_history_warms_each_partition_with_the_sensors_whose_keys_are_in_it(
    bootstrap, rejex, kafka: Kafka, tmp_path
):
    name, path, history = (
        f"warm-{uuid.uuid4().hex[:8]}", tmp_path / "warm.toml", tmp_path / "h.jsonl",
    )  # fmt: skip
    source = {"time": "t", "sensor": "id", "topics": [f"{name}.in"]}
    path.write_text(pipeline_toml(name, bootstrap, input=source))
    assert rejex("topics", "create", path, "--with-input", "--partitions", "2")[0] == 0

    def value(i):
        return {"t": NOW_MS + i, "id": f"pump-{i % 5}", "flow": i * 7919 % 1009 / 100}

    history.write_text("".join(json.dumps(value(i)) + "\n" for i in range(2000)))
    status, said, failed = rejex("warm", path, "--from", history)
    assert status == 0, failed
    assert "5 of 5 sensors are ranked" in said
    settings = kafka_settings(load_config(path))
    live = [value(i) for i in range(2000, 2600)]
    kafka.fill(
        settings,
        (
            Record(
                Position(f"{name}.in", key_partition(one["id"].encode(), 2), 0),
                one["id"].encode(), json.dumps(one).encode(), (), None,
            )
            for one in live
        ),
    )  # fmt: skip
    run_until(kafka, path, len(live))
    found = {(v.sensor, v.seq): v for each in verdicts(kafka, path).values() for v in each}
    whole = Pipeline(
        input={"channels": ["flow"], "time": "t", "sensor": "id"}, detector={"name": "HBOS"},
        rejection={"contamination": 0.05, "tolerance": 4, "window": 200},
    )  # fmt: skip
    expected = [outcome.verdict for outcome in whole.process(map(value, range(2600)))][2000:]
    assert [replace(found[v.sensor, v.seq], position=v.position) for v in expected] == expected
    assert {verdict.reason for verdict in expected} <= {None, Reason.AMBIGUOUS}
    assert "state drop" in rejex("warm", path, "--from", history)[2]
