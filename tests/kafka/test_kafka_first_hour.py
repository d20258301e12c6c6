"""The first hour with a topic: what is wrong with it is said, and what is said to do works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka_harness import Kafka, pipeline_toml, start_rejex, stop
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import bounds_of
from rejex_connectors.kafka.topic_admin import TopicPlan, create_topics, plan_topics
from rejex_connectors.kafka.topic_to_topic import key_partition

from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.encode import decode_verdict
from rejex_stream.types import Partition, Position, Record
from tests.program import here
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("place")]

ROOT = Path(__file__).resolve().parent.parent.parent
NOW_MS = int(time.time() * 1000) - 86_400_000


@pytest.fixture
def settings(bootstrap):
    return KafkaSettings(bootstrap_servers=bootstrap)


def make_topic(settings, partitions=4):
    name = f"plant-{uuid.uuid4().hex[:8]}"
    create_topics(
        settings, [TopicPlan(name=name, role="input", partitions=partitions, replication=1)]
    )
    return name


def keyless_feed(topic, n, partitions=4, sensors=3):
    """Nested JSON of several pumps, spread over the partitions as producers do without a key."""
    for i in range(n):
        value = {"meta": {"pump": f"pump-{i % sensors}"}, "t": NOW_MS + i, "v": i * 7919 % 1009}
        at = Position(topic, i // 7 % partitions, 0)
        yield Record(at, None, json.dumps(value).encode(), (("n", b"%d" % i),), NOW_MS + i)


def config(place, bootstrap, topic, **sections):
    path = place / f"{uuid.uuid4().hex[:8]}.toml"
    given = {"topics": [topic], "channels": ["v"], "time": "t", "sensor": "meta.pump"}
    sections["input"] = given | sections.get("input", {})
    path.write_text(pipeline_toml(path.stem, bootstrap, **sections))
    return path


def create_outputs(capsys, path):
    assert here(capsys, "topics", "create", path)[0] == 0


# ------------------------------------------------------------------------- topics without keys
def test_a_topic_without_keys_is_an_error_of_the_doctor_and_refused_by_a_run(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    kafka.fill(settings, keyless_feed(topic, 400))
    path = config(place, bootstrap, topic)
    create_outputs(capsys, path)
    status, out, _ = here(capsys, "doctor", path)
    assert status == 1
    assert f"200 of 200 records have no key, and {topic} has 4 partitions" in out
    assert f"rejex-stream topics rekey CONFIG --from {topic}" in out

    status, _, err = here(capsys, "run", path)
    assert status == 1
    said = err.splitlines()[-1]
    assert "records have no key" in said
    assert "topics rekey" in said
    assert 'input.partitioning = "trust"' in said
    assert kafka.count(settings, f"{path.stem}.verdicts") == 0, "nothing was judged"

    # Somebody who knows says so, and is believed.
    knowing = config(place, bootstrap, topic, input={"partitioning": "trust"})
    create_outputs(capsys, knowing)
    assert "have no key" not in here(capsys, "doctor", knowing)[1]
    status, out, _ = here(capsys, "run", knowing, "--dry-run", "--limit", "400")
    assert status == 0
    # And a single partition needs no keys.
    alone = make_topic(settings, partitions=1)
    kafka.fill(settings, keyless_feed(alone, 400, partitions=1))
    path = config(place, bootstrap, alone)
    create_outputs(capsys, path)
    assert here(capsys, "doctor", path)[0] == 0
    assert here(capsys, "run", path, "--dry-run", "--limit", "400")[0] == 0


def test_a_stray_record_without_a_key_ends_no_run(place, settings, bootstrap, capsys, kafka: Kafka):
    topic = make_topic(settings)
    feed = [record._replace(key=b"k") for record in keyless_feed(topic, 400)]
    kafka.fill(settings, [r._replace(key=None) if i < 9 else r for i, r in enumerate(feed)])
    path = config(place, bootstrap, topic, input={"sensor": "meta.pump"})
    create_outputs(capsys, path)
    assert here(capsys, "run", path, "--dry-run", "--limit", "400")[0] == 0


def test_a_sensor_in_several_partitions_is_an_error_whatever_its_key(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    kafka.fill(settings, [r._replace(key=b"%d" % i) for i, r in enumerate(keyless_feed(topic, 80))])
    path = config(place, bootstrap, topic)
    create_outputs(capsys, path)
    status, out, _ = here(capsys, "doctor", path)
    assert status == 1
    assert re.search(r"'pump-\d' stands in partitions 0, 1, 2, 3: it would be as many streams", out)


# -------------------------------------------------------------------------------------- rekey
def content(kafka, settings, topic):
    return {
        number: [(r.key, r.value, dict(r.headers)["n"], r.timestamp_ms) for r in records]
        for number, records in kafka.read(settings, topic).items()
    }


def expected_copy(feed, partitions=4):
    """By partition, every record once, in the order in which they were written."""
    wanted = defaultdict(list)
    for record in feed:
        key = json.loads(record.value)["meta"]["pump"].encode()
        row = key, record.value, dict(record.headers)["n"], record.timestamp_ms
        wanted[key_partition(key, partitions)].append(row)
    return {number: wanted[number] for number in range(partitions)}


def rekeying(path, topic, *words):
    return start_rejex("topics", "rekey", path, "--from", topic, *words, cwd=path.parent)


def end_of(settings, topic, partitions=4):
    bounds = bounds_of(settings, [Partition(topic, i) for i in range(partitions)])
    return sum(end for _, end in bounds.values())


@pytest.mark.long
def test_rekey_killed_at_any_moment_copies_every_record_once_and_in_order(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    feed = list(keyless_feed(topic, 20_000))
    kafka.fill(settings, feed)
    keyed = f"{topic}.keyed"
    path = config(place, bootstrap, keyed)
    for _ in range(2):
        before = end_of(settings, keyed) if kafka.has(keyed) else 0
        with rekeying(path, topic) as process:
            until(
                lambda process=process, before=before: (
                    process.poll() is not None
                    or (kafka.has(keyed) and end_of(settings, keyed) > before)
                )
            )
            process.send_signal(signal.SIGKILL)
    status, out, err = here(capsys, "topics", "rekey", path, "--from", topic)
    assert status == 0, err
    assert f"records of {topic} are in {keyed} now, keyed by sensor" in out
    assert kafka.partitions(keyed) == 4
    assert content(kafka, settings, keyed) == expected_copy(feed)

    # What came since is copied by the next one, and nothing again.
    more = [r._replace(timestamp_ms=r.timestamp_ms + 50_000) for r in keyless_feed(topic, 30)]
    kafka.fill(settings, more)
    assert here(capsys, "topics", "rekey", path, "--from", topic)[1].startswith("30 records")
    assert content(kafka, settings, keyed) == expected_copy([*feed, *more])
    create_outputs(capsys, path)
    assert "no key" not in here(capsys, "doctor", path)[1]


def test_rekey_follows_until_it_is_stopped(place, settings, bootstrap, kafka: Kafka):
    topic = make_topic(settings)
    feed = list(keyless_feed(topic, 300))
    kafka.fill(settings, feed[:100])
    path = config(place, bootstrap, f"{topic}.keyed")
    with rekeying(path, topic, "--follow", "--output", "json") as process:
        until(lambda: kafka.has(f"{topic}.keyed") and end_of(settings, f"{topic}.keyed") >= 100)
        kafka.fill(settings, feed[100:])
        until(lambda: kafka.count(settings, f"{topic}.keyed") == 300)
        out, _ = stop(process)
    assert json.loads(out) == {"copied": 300, "nameless": 0, "left_behind": 0}
    assert content(kafka, settings, f"{topic}.keyed") == expected_copy(feed)


def test_rekey_lays_siblings_in_one_partition_and_a_run_refuses_them_in_several(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic, detector = make_topic(settings), {"name": "Sensor"}
    kafka.fill(settings, keyless_feed(topic, 80))
    split = config(place, bootstrap, topic, input={"siblings": "*"}, detector=detector)
    create_outputs(capsys, split)
    assert f"run `rejex-stream topics rekey CONFIG --from {topic}`" in here(capsys, "run", split)[2]
    said = {"siblings": "*", "partitioning": "trust"}
    path = config(place, bootstrap, f"{topic}.keyed", input=said, detector=detector)
    assert "80 records" in here(capsys, "topics", "rekey", path, "--from", topic)[1]
    found = content(kafka, settings, f"{topic}.keyed")
    assert sorted(map(len, found.values())) == [0, 0, 0, 80]
    assert {key for records in found.values() for key, *_ in records} > {b"pump-1", b"pump-2"}
    create_outputs(capsys, path)
    assert here(capsys, "run", path, "--dry-run", "--limit", "80")[0] == 0


def test_rekey_loses_nothing_that_cannot_be_read_and_fills_no_foreign_topic(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    broken = Record(Position(topic, 2, 0), None, b"{broken", (("n", b"x"),), NOW_MS)
    kafka.fill(settings, [*keyless_feed(topic, 20), broken])
    path = config(place, bootstrap, f"{topic}.keyed")
    _, out, _ = here(capsys, "topics", "rekey", path, "--from", topic)
    assert "21 records of" in out
    assert "Of them 1 do not say who measured" in out
    assert (None, b"{broken", b"x", NOW_MS) in content(kafka, settings, f"{topic}.keyed")[2]

    other = config(place, bootstrap, f"{topic}.keyed")  # another pipeline: another group
    status, _, err = here(capsys, "topics", "rekey", other, "--from", topic)
    assert status == 2
    assert "nobody knows how many of them were copied" in err
    by_key = config(place, bootstrap, f"{topic}.k2", input={"sensor": "key"})
    by_key.write_text(by_key.read_text().replace('sensor = "meta.pump"\n', ""))
    assert "give input.sensor" in here(capsys, "topics", "rekey", by_key, "--from", topic)[2]
    assert "does not exist" in here(capsys, "topics", "rekey", path, "--from", "nowhere")[2]
    path = config(place, bootstrap, topic)
    assert "copied to itself" in here(capsys, "topics", "rekey", path, "--from", topic)[2]


# ----------------------------------------------------------------------------- missing topics
def test_a_misspelled_topic_is_never_made_and_ends_a_run_with_a_sentence(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    kafka.fill(settings, keyless_feed(topic, 20))
    wrong = topic.replace("plant", "plnat")
    path = config(place, bootstrap, wrong, run={"topic_wait_s": 0.1})
    said = f"'{wrong}' does not exist, but '{topic}' does: fix input.topics"
    status, _, err = here(capsys, "topics", "create", path, "--dry-run")
    assert status == 1
    assert said in err
    assert here(capsys, "topics", "create", path)[0] == 1
    status, out, _ = here(capsys, "doctor", path)
    assert status == 1
    assert f"{wrong} does not exist, but '{topic}' does" in out
    status, _, err = here(capsys, "run", path)
    assert status == 1
    assert said in err.splitlines()[-1]
    assert not kafka.has(wrong)


def test_outputs_get_the_partitions_of_the_input(place, settings, bootstrap, capsys, kafka: Kafka):
    topic = make_topic(settings, partitions=3)
    path = config(place, bootstrap, topic)
    status, out, _ = here(capsys, "topics", "create", path, "--output", "json")
    assert status == 0
    topics = kafka_settings(load_config(path)).topics
    outputs = [topics.verdicts, topics.review, topics.labels, topics.deadletter, topics.state]
    outputs.append(topics.incidents)
    assert json.loads(out)["created"] == sorted([*outputs, topics.control])
    assert {kafka.partitions(name) for name in outputs} == {3}


def started(path, place):
    return start_rejex("run", path, cwd=place)


def test_a_run_goes_on_once_the_topic_is_there(place, settings, bootstrap, kafka: Kafka):
    topic = f"late-{uuid.uuid4().hex[:8]}"
    path = config(place, bootstrap, topic, run={"topic_wait_s": PATIENCE_S})
    plans = plan_topics(kafka_settings(load_config(path)), partitions=1)
    create_topics(settings, [plan for plan in plans if plan.role != "input"])
    with started(path, place) as process:
        assert process.stderr is not None
        until(lambda: "waiting up to 120 s" in process.stderr.readline())
        plan = TopicPlan(name=topic, role="input", partitions=1, replication=1)
        create_topics(settings, [plan])
        kafka.fill(settings, keyless_feed(topic, 50, partitions=1))
        until(lambda: kafka.count(settings, f"{path.stem}.verdicts") == 50)
        stop(process)


# --------------------------------------------------- a budget of groups over several partitions
def budgeted(path, **budget):
    """Hold a budget of 5 % instead of the tolerance."""
    said = "".join(f", {name} = {json.dumps(value)}" for name, value in budget.items())
    text = path.read_text()
    assert "tolerance = 4\n" in text
    path.write_text(text.replace("tolerance = 4\n", f"review_budget = {{ rate = 0.05{said} }}\n"))
    return path


def keyed_feed(topic, n):
    """The feed above, keyed: sensors of one group lie in several partitions."""
    return [r._replace(key=b"%d" % r.position.partition) for r in keyless_feed(topic, n)]


@pytest.mark.parametrize(("section", "budget", "setting"), [
    ({"group": "meta.pump"}, {}, "input.group"),
    pytest.param(
        {}, {"owner": "group"}, 'rejection.review_budget.owner = "group"', marks=pytest.mark.long,
    ),
])  # fmt: skip
def test_a_budget_of_groups_that_may_lie_in_several_partitions_is_refused(
    place, settings, bootstrap, capsys, kafka: Kafka, section, budget, setting
):
    topic = make_topic(settings)
    kafka.fill(settings, keyed_feed(topic, 400))
    path = budgeted(config(place, bootstrap, topic, input=section), **budget)
    create_outputs(capsys, path)
    assert (
        f"{setting} with a budget that is held: input of several"
        in here(capsys, "validate", path)[1]
    )
    told = f"{setting} with a review budget that is held, and the input has 4 partitions ({topic} 4"
    status, out, _ = here(capsys, "doctor", path)
    assert status == 1
    assert told in out
    status, _, err = here(capsys, "run", path)
    assert status != 0
    assert told in err.splitlines()[-1]
    assert kafka.count(settings, f"{path.stem}.verdicts") == 0, "nothing was judged"

    # Whoever says that they do not is believed by a run, and corrected by the doctor.
    knowing = config(place, bootstrap, topic, input=section | {"partitioning": "trust"})
    create_outputs(capsys, budgeted(knowing, **budget))
    assert "with a budget that is held" not in here(capsys, "validate", knowing)[1]
    assert here(capsys, "run", knowing, "--dry-run", "--limit", "400")[0] == 0
    status, out, _ = here(capsys, "doctor", knowing)
    assert status == 1
    assert re.search(r"'pump-\d' stands in partitions 0, 1, 2, 3: the group would have", out)

    # A credit a partition, or none that is held, is what it says.
    for other in ({"owner": "partition"}, {"burst": "none"}):
        free = budgeted(config(place, bootstrap, topic, input=section), **other)
        create_outputs(capsys, free)
        assert here(capsys, "run", free, "--dry-run", "--limit", "400")[0] == 0


def test_a_budget_of_groups_by_tag_is_one_of_a_sensor(
    place, settings, bootstrap, capsys, kafka: Kafka
):
    topic = make_topic(settings)
    kafka.fill(settings, keyed_feed(topic, 400))
    path = config(place, bootstrap, topic, input={"tag": "t", "sensor": "key"})
    create_outputs(capsys, budgeted(path, owner="group"))
    assert "with a budget" not in here(capsys, "validate", path)[1]
    assert here(capsys, "run", path, "--dry-run", "--limit", "400")[0] == 0


def test_more_partitions_end_a_run_whose_budget_is_of_groups(
    place, settings, bootstrap, kafka: Kafka
):
    topic = make_topic(settings, partitions=1)
    kafka.fill(settings, keyless_feed(topic, 50, partitions=1))
    soon = {"session.timeout.ms": 3000, "metadata.max.age.ms": 1000}
    path = config(place, bootstrap, topic, input={"group": "meta.pump"}, kafka={"options": soon})
    budgeted(path)
    plans = plan_topics(kafka_settings(load_config(path)), partitions=1)
    create_topics(settings, [plan for plan in plans if plan.role != "input"])
    with started(path, place) as process:
        until(lambda: kafka.count(settings, f"{path.stem}.verdicts") == 50)
        kafka.admin.create_partitions({topic: 3})
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode not in (0, None)
    assert "Traceback" not in err
    assert "and the input has " in err.splitlines()[-1]


# --------------------------------------------------------------------------------------- init
def plant(topic, n, *, time, number, key, partitions=4, pumps=2):
    """What a plant sends: nested, extra fields, a switch; a few spikes."""
    for i in range(n):
        for k in range(pumps):
            spike = 90.0 if i % 173 == 172 else 0.0
            value = {
                "meta": {"pump": f"PUMP-{k}", "site": "north"},
                "data": {"temp": {"value": number(spike + 20 + i * 7919 % 1009 / 100)},
                         "vib": {"value": number(i * 31 % 17 / 10)}},
                "running": True, "note": None, "ts": time(i),
            }  # fmt: skip
            to = (i + k) % partitions if key is None else k % partitions
            yield Record(
                Position(topic, to, 0), None if key is None else key(k), json.dumps(value).encode(),
                (), NOW_MS + 1000 * i,
            )  # fmt: skip


def iso(i):
    return datetime.fromtimestamp(NOW_MS // 1000 + i, UTC).isoformat()


FEEDS = {
    "keyed, ms": (lambda i: NOW_MS + 1000 * i, float, lambda k: f"PUMP-{k}".encode()),
    "keyless, texts, s": (lambda i: NOW_MS // 1000 + i, str, None),
    "keyed by another, ISO": (iso, str, lambda k: b"site"),
}
*ORDINARY, ODD = FEEDS


@pytest.mark.parametrize("name", [*ORDINARY, pytest.param(ODD, marks=pytest.mark.long)])
def test_from_a_topic_to_right_verdicts_with_the_commands_that_init_names(
    name, place, settings, bootstrap, capsys, kafka: Kafka
):
    time_of, number, key = FEEDS[name]
    topic, n = make_topic(settings), 900
    kafka.fill(settings, plant(topic, n, time=time_of, number=number, key=key))
    status, out, err = here(capsys, "init", "--kafka", bootstrap, topic, "--detector", "HBOS")
    assert status == 0, err
    assert (place / f"{topic}.toml").exists()
    steps = [line.split()[1:] for line in out.partition("Next:")[2].splitlines() if line]
    assert ("rekey" in out) == (key is None)
    assert here(capsys, "validate", f"{topic}.toml")[0] == 0
    for step in steps[:-1]:
        status, out, err = here(capsys, *step)
        assert status == 0, (step, out, err)
    assert steps[-2] == ["doctor", f"{topic}.toml"]
    assert steps[-1] == ["run", f"{topic}.toml"]
    with start_rejex(*steps[-1], "--output", "json", cwd=place) as process:
        until(lambda: kafka.count(settings, f"{topic}.verdicts") == 2 * n)
        done, err = stop(process)
    summary = json.loads(done)
    assert (summary["events"], summary["invalid"]) == (2 * n, 0)
    of_topic = kafka.read(settings, f"{topic}.verdicts")
    verdicts = [decode_verdict(r.value) for records in of_topic.values() for r in records]
    by_sensor = defaultdict(list)
    for verdict in verdicts:
        by_sensor[verdict.sensor].append(verdict)
    # One stream a pump, its events in order: each warms up once, and no more.
    assert sorted(by_sensor) == ["PUMP-0", "PUMP-1"]
    window = load_config(place / f"{topic}.toml").rejection.window
    for found in by_sensor.values():
        assert sorted(v.seq for v in found) == list(range(n))
        assert [v.event_time_ms // 1000 - NOW_MS // 1000 for v in found] == list(range(n))
        warming = sum(v.reason == "warm_up" for v in found)
        assert warming < window, "models are of whole pumps"


def test_init_says_what_is_wrong_with_a_topic(settings, bootstrap, capsys, kafka: Kafka):
    topic = make_topic(settings)
    status, _, err = here(capsys, "init", "--kafka", bootstrap, topic)
    assert (status, f"topic '{topic}' is empty" in err) == (2, True)
    wrong = topic.replace("plant", "plnat")
    _, _, err = here(capsys, "init", "--kafka", bootstrap, wrong)
    assert f"'{wrong}' does not exist, but '{topic}' does" in err


# ----------------------------------------------------------------------------------- the tutorial
@pytest.mark.thorough
def test_the_first_hour_with_a_topic_works_from_top_to_bottom(
    place, settings, bootstrap, kafka: Kafka
):
    """Every command of the page as it stands, but for the address and for fewer events."""
    text = (ROOT / "docs" / "tutorials" / "topic.md").read_text(encoding="utf-8")
    fewer = {
        "localhost:9092": bootstrap, "--events 20000": "--events 3000",
        "--limit 10000": "--limit 2000", "deploy/feed.py": str(ROOT / "deploy" / "feed.py"),
    }  # fmt: skip
    for before, after in fewer.items():
        assert before in text, before
        text = text.replace(before, after)
    (toml,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    (place / "first-hour.toml").write_text(toml, encoding="utf-8")
    lines = re.findall(r"^\$ (.+)$", text, re.M)
    assert lines[0] == "make broker"  # runs already, on another port
    endless = "rejex-stream run first-hour.toml"
    assert lines.count(endless) == 1
    programs = {"python": [sys.executable], "rejex-stream": [sys.executable, "-m", "rejex_stream"]}
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"}

    def begin(line):
        program, *words = line.split()
        return subprocess.Popen(
            [*programs[program], *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=place, env=os.environ | path,
        )  # fmt: skip

    answers = {}
    for line in lines[1:]:
        if line == endless:
            continue
        with begin(line) as process:
            answers[line], _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (line, answers[line])
    (found,) = [answer for line, answer in answers.items() if line.endswith(" plant.batches")]
    shown = re.findall(r"^plant\.batches: (?:readings|select): .+$", text, re.M)
    assert len(shown) == 2
    assert set(shown) <= set(found.splitlines())
    assert len(lines) >= 6
    with begin(endless) as process:
        until(lambda: kafka.count(settings, "rejex.verdicts") == 3000)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
