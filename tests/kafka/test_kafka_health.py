"""Health of a worker while its broker is away: alive all along, ready only while it answers."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaError
from kafka_harness import Kafka, pipeline_toml, start_rejex
from test_kafka_delivery import CLIENTS, DEFAULT_CLIENT_FIRST

from rejex_stream.native_core import core
from rejex_stream.types import Position, Record
from tests.operate.alerting import Receiver
from tests.soak_results import record
from tests.waiting import PATIENCE_S, pass_time, until
from tools.kafka import broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("require_own_broker")]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(port: int, status: int) -> str:
    def reached() -> str:
        found, text = get(port, "/readyz?verbose")
        if found and found != status:
            assert get(port, "/livez") == (200, "ok\n")
        return text if found == status else ""

    return until(reached, f"/readyz answers {status}")


@pytest.mark.long
@pytest.mark.parametrize("client", DEFAULT_CLIENT_FIRST)
def test_a_quiet_worker_notices_that_its_broker_is_gone_and_lives_on(
    tmp_path: Path, client: str
) -> None:
    port = free_port()
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=1)
        topic = settings.topics.input[0]
        kafka.fill(settings, [Record(Position(topic, 0, 0), b"p", b'{"flow": 1}')])
        config = tmp_path / "pipeline.toml"
        (name, _, _) = topic.rpartition(".in")
        config.write_text(
            pipeline_toml(name, cluster.bootstrap, metrics={"port": port}, kafka={"client": client})
        )
        with (
            (tmp_path / "log").open("wb") as log,
            start_rejex("run", config, cwd=tmp_path, stderr=log) as process,
        ):
            try:
                assert "[+] edge: answers" in wait_for(port, 200)
                cluster.nodes[0].kill()  # and nothing is left to commit
                assert "[-] edge: Kafka" in wait_for(port, 503)
                assert get(port, "/livez") == (200, "ok\n")
                cluster.nodes[0].start()
                cluster.wait()
                assert "[+] edge: answers" in wait_for(port, 200)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=PATIENCE_S)
                finally:
                    process.kill()
        assert process.returncode == 0, (tmp_path / "log").read_text()
    if client == "kafka-python":
        assert_thinned((tmp_path / "log").read_text())


def assert_thinned(log: str) -> None:
    """What the client says again and again is in the log once a minute."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    first, last = (datetime.fromisoformat(lines[i]["ts"]) for i in (0, -1))
    minutes = (last - first) / timedelta(minutes=1)
    said = [line["message"] for line in lines if line["logger"].startswith("kafka.")]
    times = Counter(re.sub(r"0x[0-9a-f]+|\d+(\.\d+)*", "#", text) for text in said)
    assert max(times.values()) <= 2 * (1 + minutes), times
    assert any("ECONNREFUSED" in text for text in said), "why it fails is still told"


def start(folder: Path, config: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{config.stem}.log").open("wb") as log:
        return start_rejex("run", config, cwd=folder, stderr=log)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_a_worker_whose_broker_comes_late_waits_for_it_and_one_without_partitions_is_ready(
    tmp_path: Path, client: str
) -> None:
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=1)
        topic = settings.topics.input[0]
        kafka.fill(settings, [Record(Position(topic, 0, 0), b"p", b'{"flow": 1}')])
        (name, _, _) = topic.rpartition(".in")
        ports, running = [free_port(), free_port()], []
        cluster.nodes[0].kill()
        try:
            for number, port in enumerate(ports):
                config = tmp_path / f"worker-{number}.toml"
                config.write_text(
                    pipeline_toml(
                        name, cluster.bootstrap, metrics={"port": port},
                        kafka={"client": client, "options": {"delivery.timeout.ms": 3_000}},
                    )
                )  # fmt: skip
                running.append(start(tmp_path, config))
            log = tmp_path / "worker-0.log"
            until(lambda: "attempt 1 failed" in log.read_text(), log.read_text)
            assert get(ports[0], "/livez") == (200, "ok\n")
            cluster.nodes[0].start()
            cluster.wait()
            told = "".join(wait_for(port, 200) for port in ports)
            assert "[+] partitions: 1 owned" in told
            assert "[+] partitions: none owned, standing by in the group" in told
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            ended = [process.wait(PATIENCE_S) for process in running]
        assert ended == [0, 0]


# ------------------------------------------------------------------------ eight hours in minutes
CLEANED = {
    "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000",
}  # fmt: skip
ALIVE, LIFE_S, EVERY_S, SLICE_S = 24, 1_200, 10, 600


def shift(topic: str, number: int) -> list[Record]:
    """Ten minutes of sensors of which each lives for twenty, and is never seen again."""
    records = []
    for t in range(number * SLICE_S, (number + 1) * SLICE_S, EVERY_S):
        for place in range(ALIVE):
            began = (t + place * LIFE_S // ALIVE) // LIFE_S  # they do not all go at once
            name, draw = f"s{place}-{began}", random.Random(f"{place} {t}")
            event = {"sensor": name, "t": 1_700_000_000_000 + 1_000 * t, "flow": draw.gauss(0, 1)}
            records.append(
                Record(Position(topic, place % 4, 0), name.encode(), json.dumps(event).encode())
            )
    return records


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("client", CLIENTS)
def test_eight_hours_of_sensors_that_come_and_go_leave_nothing_behind(
    tmp_path: Path, client: str
) -> None:
    """Memory, descriptors, threads, metric series and the state topic: as after a quarter of it."""
    port = free_port()
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        settings = kafka.settings(partitions=4, config={"state": CLEANED})
        topics, (name, _, _) = settings.topics, settings.topics.input[0].rpartition(".in")
        (topic,) = topics.input
        config = tmp_path / "pipeline.toml"
        config.write_text(
            pipeline_toml(
                name, cluster.bootstrap, input={"sensor": "sensor", "time": "t"},
                rejection={"window": 100, "contamination": 0.1}, metrics={"port": port},
                state={"forget_after": 900, "snapshot_every_events": 1_000},
                kafka={"client": client},
            )
        )  # fmt: skip
        slices, seen, done = 8 * 3_600 // SLICE_S, list[dict[str, float]](), 0
        with (
            (tmp_path / "log").open("wb") as log,
            start_rejex("run", config, cwd=tmp_path, stderr=log) as process,
        ):
            try:
                for number in range(slices):
                    records = shift(topic, number)
                    kafka.fill(settings, records)
                    done += len(records)
                    assert process.poll() is None, (tmp_path / "log").read_text()
                    until(
                        lambda: sum(at for at in in_group(kafka, name).values()) == done,  # noqa: B023
                        lambda: (in_group(kafka, name), (tmp_path / "log").read_text()[-2_000:]),
                        every_s=0.1,
                    )
                    seen.append(looked_at(process.pid, port, kafka, topics.state or ""))
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
            finally:
                process.kill()
    half = {what: max(one[what] for one in seen[slices // 4 : slices // 2]) for what in seen[0]}
    last = {what: max(one[what] for one in seen[3 * slices // 4 :]) for what in seen[0]}
    told = "; ".join(f"{what} {half[what]:,.0f} → {last[what]:,.0f}" for what in half)
    assert last["resident MB"] <= 1.15 * half["resident MB"], told
    assert last["descriptors"] <= half["descriptors"] + 3, told
    assert last["threads"] <= half["threads"] + 2, told
    assert last["series"] <= 1.1 * half["series"], told
    assert last["state topic kB"] <= 1.5 * half["state topic kB"], told
    record(
        f"eight hours of sensors that come and go ({client})",
        size=f"{done:,} records of {ALIVE} sensors at a time, each seen for 20 minutes, so "
        f"{ALIVE * (8 * 3_600 // LIFE_S + 1):,} names; forgotten after 15 minutes",
        done_to_it="eight hours of event time as fast as they are judged",
        outcome=f"largest of the second and of the last quarter: {told}",
    )


def in_group(kafka: Kafka, group: str) -> dict[object, int]:
    with contextlib.suppress(KafkaError):
        found = kafka.admin.list_group_offsets(group).get(group, {})
        return {tp: place.offset for tp, place in found.items()}
    return {}


def looked_at(pid: int, port: int, kafka: Kafka, topic: str) -> dict[str, float]:
    """What a worker takes of the machine, shows, and keeps."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    _, text = get(port, "/metrics")
    (told,) = kafka.admin.describe_log_dirs([topic])
    return {
        "resident MB": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
        "series": sum(not line.startswith("#") for line in text.splitlines()),
        "state topic kB": sum(
            partition["partition_size"] / 1024
            for folder in told["log_dirs"]
            for found in folder["topics"]
            if found["name"] == topic
            for partition in found["partitions"]
        ),
    }


# ------------------------------------------------------------------------- a clock that jumps
LIBFAKETIME = "faketime/libfaketimeMT.so.1"
JUMPS_DAYS = (0.02, 3, -40, 400, -400, 0)
BELIEVED_DAYS = 1 / 24
"""A broker takes nothing that is further ahead of it (message.timestamp.after.max.ms)."""
REFUSED = "the broker refuses the times of what we write"
N_SENSORS, MINUTES = 8, 80  # each breaks at another time, and is told for itself


class Clock:
    """The wall clock of a process, under libfaketime; its monotonic clock is the machine's."""

    def __init__(self, folder: Path) -> None:
        found = list(Path("/usr/lib").glob("*/" + LIBFAKETIME))
        compiler = shutil.which("cc")
        if not found or compiler is None:
            pytest.skip("libfaketime or a C compiler is missing (Debian: libfaketime, gcc)")
        gaps, self._file = folder / "faketime_gaps.so", folder / "clock"
        source = Path(__file__).with_name("faketime_gaps.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", gaps, source], check=True)
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": f"{gaps} {found[0]}",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # as older versions call it
            "NO_FAKE_STAT": "1",
        }

    def jump(self, days: float) -> None:
        """Have it be wrong by so many days from the next second on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{86_400 * days:+.0f}s\n")
        new.rename(self._file)


def stretch(topic: str, number: int) -> list[Record]:
    """Eighty minutes of sensors, of which one is away in the middle and each has a fault once."""
    records = []
    for t in range(number * MINUTES, (number + 1) * MINUTES):
        for place in range(N_SENSORS):
            if place == N_SENSORS - 1 and number in (2, 3):
                continue
            draw = random.Random(f"{place} {t}")
            fault = 12.0 if 0 <= t - 200 - 20 * place < 40 else 0.0
            event = {
                "sensor": f"s{place}", "t": 1_700_000_000_000 + 60_000 * t,
                "flow": draw.gauss(0, 1) + fault,
            }  # fmt: skip
            records.append(
                Record(Position(topic, place % 4, 0), b"%d" % place, json.dumps(event).encode())
            )
    return records


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_clock_that_jumps_by_days_changes_no_record_and_no_alert(
    tmp_path: Path, client: str
) -> None:
    """A budget a day, sensors that are forgotten, incidents told: as under a clock that is right.

    Two workers of two pipelines read one input; the clock of one of them is set while it runs.
    """
    clock, receivers, workers = Clock(tmp_path), [Receiver(), Receiver()], list[Any]()
    with broker.start() as cluster, Kafka(cluster.bootstrap) as kafka:
        kinds = {"calm": kafka.settings(partitions=4), "jumping": kafka.settings(partitions=4)}
        (topic,) = kinds["calm"].topics.input
        names = {kind: s.topics.input[0].rpartition(".in")[0] for kind, s in kinds.items()}
        assert kafka.partitions(topic) == 4
        for (kind, name), receiver in zip(names.items(), receivers, strict=True):
            folder = tmp_path / kind
            folder.mkdir()
            (folder / "pipeline.toml").write_text(
                pipeline_toml(
                    name, cluster.bootstrap,
                    input={"topics": [topic], "sensor": "sensor", "time": "t"},
                    detector={"name": "Mahalanobis"},
                    rejection={"window": 100, "contamination": 0.1,
                               "review_budget": {"rate": 0.05, "per_day": 20}},
                    refit={"executor": "inline"},
                    hold={"recover_events": 10, "adopt_after_events": 0},
                    alerts={"alertmanager_url": receiver.url, "alertmanager_repeat_s": 2.0},
                    state={"forget_after": 3_600, "snapshot_every_events": 500},
                    kafka={"client": client},
                ).replace("tolerance = 4\n", "")
            )  # fmt: skip
            wrong = {"REJEX_CORE": "python"}
            if kind == "jumping":  # natively where the core is built
                wrong = {"REJEX_CORE": "", **clock.environment}
            with (folder / "log").open("wb") as log:
                workers.append(
                    start_rejex("run", "pipeline.toml", cwd=folder, stderr=log, environment=wrong)
                )

        def said() -> str:
            return "\n".join((tmp_path / kind / "log").read_text()[-3_000:] for kind in names)

        def refusals() -> int:
            return (tmp_path / "jumping" / "log").read_text().count(REFUSED)

        def committed(name: str) -> bool:
            ended = any(worker.poll() is not None for worker in workers)
            return ended or sum(in_group(kafka, name).values()) == done

        done = 0
        try:
            for number, days in enumerate(JUMPS_DAYS):
                records, before = stretch(topic, number), refusals()
                clock.jump(days)
                pass_time(1.5, because="libfaketime looks once a second")
                kafka.fill(kinds["calm"], records)
                done += len(records)
                if days > BELIEVED_DAYS:  # it says so, and goes on once its clock is right
                    until(lambda: refusals() > before, said)  # noqa: B023
                    clock.jump(0)
                for name in names.values():
                    until(lambda: committed(name), said, every_s=0.2)  # noqa: B023
                assert all(worker.poll() is None for worker in workers), said()
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0], said()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        counts, calm = {}, names["calm"].encode()
        for role in ("verdicts", "review", "incidents", "deadletter"):
            found = [
                {
                    partition: [
                        (r.key, (r.value or b"").replace(names["jumping"].encode(), calm))
                        for r in of_one
                    ]
                    for partition, of_one in kafka.read(s, getattr(s.topics, role)).items()
                }
                for s in kinds.values()
            ]
            assert found[0] == found[1], role
            counts[role] = sum(map(len, found[0].values()))
    for receiver in receivers:
        receiver.close()
    alerts = [posted(receiver) for receiver in receivers]
    assert counts["incidents"] >= N_SENSORS
    assert set(alerts[0]) == set(alerts[1])
    assert all(ends >= starts for told in alerts for starts, ends in told.values())
    record(
        f"a clock that jumps ({client})",
        size=f"{done:,} records of {N_SENSORS} sensors, 4 partitions; a budget a day, "
        "forgotten after an hour, alerts",
        done_to_it=f"libfaketime: wrong by {', '.join(f'{days:g}' for days in JUMPS_DAYS)} days "
        f"by turns, while it runs ({core()[1].split(' judge')[0]}); beside it Python",
        outcome=f"{counts['verdicts']:,} verdicts, {counts['review']:,} review items and "
        f"{counts['incidents']:,} records of incidents, none differs from those under a clock "
        f"that is right; {len(alerts[1])} alerts, the same ones; where it was days ahead the "
        "broker took nothing, which was said, until it was right again",
    )


def posted(receiver: Receiver) -> dict[tuple[str, ...], tuple[datetime, datetime]]:
    """When each alert began and ended, as an Alertmanager was told last."""
    return {
        (one["labels"]["alertname"], one["labels"].get("stream", "")): (
            datetime.fromisoformat(one["startsAt"]), datetime.fromisoformat(one["endsAt"]),
        )
        for body in receiver.taken
        for one in json.loads(body)
    }  # fmt: skip
