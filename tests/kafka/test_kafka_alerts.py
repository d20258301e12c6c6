"""Who is told of incidents by a worker that is killed: each state that is durable, and no other."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from kafka_harness import Kafka, make_pipeline, next_offsets
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from test_kafka_control import told
from test_kafka_delivery import DEFAULT_CLIENT_FIRST
from test_kafka_schemas import worker

from rejex_stream.types import Incident, Position, Record
from tests.operate.alerting import Receiver
from tests.waiting import PATIENCE_S, pass_time, until

pytestmark = pytest.mark.kafka

SENSORS = 6  # of which each breaks at another time: each incident is told for itself


def prepared(tmp_path: Path, kafka: Kafka, client: str, url: str) -> tuple[Path, KafkaSettings]:
    """Write a config whose sensors have an incident every few hundred events."""
    return make_pipeline(
        kafka, tmp_path, partitions=2, input={"sensor": "sensor", "time": "t"},
        detector={"name": "Mahalanobis"},
        rejection={"contamination": 0.05, "tolerance": 4, "window": 100},
        refit={"executor": "inline"}, hold={"recover_events": 10, "adopt_after_events": 0},
        state={"snapshot_every_events": 150}, alerts={"webhook_url": url},
        kafka={"client": client, "instance_id": "teller"},
    )  # fmt: skip


def faults(settings: KafkaSettings, n_events: int) -> list[Record]:
    draw, ends, found = random.Random(n_events), Counter[int](), []
    (topic,) = settings.topics.input
    for i in range(n_events):
        number = i % SENSORS
        at = i // SENSORS + 37 * number
        level = 12.0 if at > 200 and at % 160 < 40 else 0.0
        event = {"sensor": f"s{number}", "t": 1_000 * i, "flow": draw.gauss(level, 1)}
        place = Position(topic, number % 2, ends[number % 2])
        found.append(Record(place, b"%d" % number, json.dumps(event).encode()))
        ends[number % 2] += 1
    return found


def states(incidents: Sequence[Incident]) -> list[tuple[str, int, str]]:
    return [(one.id, one.version, one.state) for one in incidents]


def durable(kafka: Kafka, settings: KafkaSettings) -> list[tuple[str, int, str]]:
    return states([one for one in told(kafka, settings) if isinstance(one, Incident)])


def taken(receiver: Receiver) -> list[tuple[str, bytes, tuple[str, int, str]]]:
    """What was taken of incidents: id of the event, its record, and which state it tells of."""
    found = []
    for body in receiver.taken:
        event = json.loads(body)
        if event["type"].endswith(".incident.v1"):  # monitors raise alarms, too
            said = event["data"]
            # What channels read is of whoever tells: after a kill it may not know what was usual.
            record = {name: said[name] for name in said if name not in {"values", "summary"}}
            state = said["incident"], said["version"], said["state"]
            found.append((event["id"], json.dumps(record).encode(), state))
    return found


def states_taken(receiver: Receiver) -> list[tuple[str, int, str]]:
    return [state for _, _, state in taken(receiver)]


@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
@pytest.mark.long
def test_killed_now_and_then_people_are_told_of_each_state_and_of_no_other(
    kafka: Kafka, tmp_path: Path, client: str
) -> None:
    kills = 4
    with closing(Receiver()) as receiver:
        path, settings = prepared(tmp_path, kafka, client, receiver.url)
        records, draw = faults(settings, 1_800 + 700 * kills), random.Random(kills)
        log = tmp_path / "log"
        for n in range(kills):
            # Most have incidents of their own to tell, of both partitions; those before are there.
            upto = 1_800 + 700 * n
            ends = next_offsets(records[:upto])
            kafka.fill(settings, records[upto - 700 if n else 0 : upto])
            said = len(durable(kafka, settings))
            with worker(path) as process:
                until(
                    lambda: (
                        len(durable(kafka, settings)) > said  # noqa: B023
                        or kafka.committed(settings) == ends  # noqa: B023
                        or process.poll() is not None
                    ),
                    log.read_text,
                )
                pass_time(draw.uniform(0, 1.5), because="the moment of the kill is random")
                receiver.refusing = draw.random() < 0.7
                pass_time(draw.uniform(0, 1.5), because="some of it nobody takes")
                assert process.poll() is None, log.read_text()
                process.kill()
            receiver.refusing = False
        kafka.fill(settings, records[1_800 + 700 * (kills - 1) :])
        with worker(path) as process:
            until(
                lambda: kafka.committed(settings) == next_offsets(records), log.read_text,
                timeout_s=120 + len(records) / 100,
            )  # fmt: skip
            wanted = durable(kafka, settings)
            until(lambda: set(states_taken(receiver)) >= set(wanted), log.read_text)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()
        found = states_taken(receiver)
        assert len(wanted) == len(set(wanted)) > kills
        assert set(found) == set(wanted)
        told_as = {id_: body for id_, body, _ in taken(receiver)}
        assert len(told_as) == len(wanted), "one id for each state"
        assert all(told_as[id_] == body for id_, body, _ in taken(receiver))
        print(f"{kills} kills: {len(wanted)} states, {len(found) - len(wanted)} told again")
        # What a kill leaves in doubt is what was taken since the commit before it.
        assert len(found) - len(wanted) <= 3 * kills
        with worker(path) as process:
            lines = len(log.read_text().splitlines())
            until(lambda: "from the snapshot" in "".join(log.read_text().splitlines()[lines:]))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()
        assert states_taken(receiver) == found, "what is known as told is not told again"
