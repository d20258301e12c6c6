"""What the Kafka tests share: topics of their own, a feed, and an engine that forgets nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError
from rejex_connectors.kafka.kafka_settings import KafkaSettings, KafkaTopics
from rejex_connectors.kafka.messages import OutcomeMessages
from rejex_connectors.kafka.partition_reader import PartitionReader, admin
from rejex_connectors.kafka.sink import KafkaSink, connect, open_clients
from rejex_connectors.kafka.source import KafkaSource
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics
from rejex_connectors.kafka.topic_snapshots import KafkaSnapshots

from rejex_stream.cli import main
from rejex_stream.config import load_config
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.decode import Decoder, JsonDecoder
from rejex_stream.decode.mapping import FieldMapping, Quality
from rejex_stream.decode.reorder_buffer import ReorderRules
from rejex_stream.decode.select import SelectingDecoder, Selector
from rejex_stream.encode import decode_verdict
from rejex_stream.engine.engine import Decision, Restored
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.snapshot import seal, unseal
from rejex_stream.engine.stream_state import StreamSnapshot, StreamView
from rejex_stream.protocols import BatchDetector, FitExecutor, Scorer
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.loop import RunSettings, run
from rejex_stream.run.run_events import Committed, RunEvent, SnapshotSaved
from rejex_stream.types import (
    Command,
    CommandReply,
    FloatArray,
    Incident,
    Label,
    Outcome,
    Partition,
    Position,
    Reading,
    Reason,
    Record,
    Verdict,
)
from tests.doubles import ListSink, ListSource
from tests.obedient import Obedient
from tests.waiting import PATIENCE_S, pass_time, until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MAPPING = FieldMapping(["v"], sensor="sensor", time="t")
IN_MODES = FieldMapping(["v"], sensor="sensor", time="t", mode="m")
DOOR = FieldMapping(
    {"temp": "v", "press": "v"}, sensor="m", time="t", tag="tag",
    quality=Quality({"temp": "q", "press": "q"}, ("good",)),
)  # fmt: skip
DOOR_PROGRAM = ".m as $m | .readings[] | . + {m: $m}"
DOOR_RULES = ReorderRules(step_ms=1_000, reorder_ms=2_500, max_age_ms=9_000)
SCHEDULE = RefitSchedule(first_fit_events=100, refit_every_events=150)
RUN = RunSettings(
    commit_interval_s=0.1, snapshot_every_events=300, poll_timeout_s=0.1, review_context_events=3,
    retry_first_s=0.2, retry_longest_s=1.0, invalid_limit=1.0,
)  # fmt: skip


def start_rejex(
    *words: object, cwd: Path | None = None, stderr: int | IO[Any] = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:  # fmt: skip
    piped = stderr in (subprocess.PIPE, subprocess.STDOUT)
    return subprocess.Popen(
        [sys.executable, "-m", "rejex_stream", *map(str, words)], cwd=cwd,
        stdout=subprocess.PIPE if piped else subprocess.DEVNULL, stderr=stderr, text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"} | (environment or {}),
    )  # fmt: skip


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Have a process stop by itself; return its output and its log."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out, err


def reading_by(
    *, modes: bool = False, door: bool = False, select: str | None = None
) -> tuple[Decoder, RunSettings]:
    """Return what reads records, and the settings of a run; by the `door`, all that it can do.

    Arrays of readings by a program, one quantity each, with a quality, joined, and put in order.
    """
    if door:
        decoder = SelectingDecoder(Selector(DOOR_PROGRAM), JsonDecoder(DOOR))
        return decoder, RUN.replace(reorder=DOOR_RULES)
    plain = JsonDecoder(IN_MODES if modes else MAPPING)
    return plain if select is None else SelectingDecoder(Selector(select), plain), RUN


def pipeline_toml(name: str, bootstrap: str, **sections: Mapping[str, Any]) -> str:
    """The config of a small pipeline on Kafka; what a test needs otherwise is merged into it."""
    usual: dict[str, dict[str, Any]] = {
        "pipeline": {"name": name},
        "input": {
            "kind": "kafka", "topics": [f"{name}.in"], "channels": ["flow"],
            "control": f"{name}.control",
        },
        "detector": {"name": "HBOS"},
        "rejection": {"contamination": 0.05, "tolerance": 4, "window": 200},
        "output": {
            "verdicts": f"{name}.verdicts", "review": f"{name}.review",
            "deadletter": f"{name}.dead", "labels": f"{name}.labels",
            "incidents": f"{name}.incidents",
        },
        "state": {"topic": f"{name}.state"}, "run": {"commit_interval_s": 0.1},
        "kafka": {
            "bootstrap_servers": bootstrap, "client": "kafka-python",
            "options": {"session.timeout.ms": 3000},
        },
    }  # fmt: skip
    merged = {key: usual.get(key, {}) | dict(sections.get(key, {})) for key in usual | sections}
    return "".join(
        f"[{key}]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in section.items())
        for key, section in merged.items()
    )


def make_pipeline(
    kafka: Kafka, folder: Path, /, *, partitions: int = 1, **sections: Mapping[str, Any]
) -> tuple[Path, KafkaSettings]:
    """Write the config of a small pipeline whose topics, of a name of its own, are there."""
    path = folder / "pipeline.toml"
    path.write_text(pipeline_toml(f"made-{kafka.name}", kafka.bootstrap, **sections))
    words = ["topics", "create", str(path), "--with-input", "--partitions", str(partitions)]
    assert main(words) == 0
    return path, kafka_settings(load_config(path))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items())
            + " }"
        )
    return json.dumps(value)


class Kafka:
    """A broker, seen by one test: fresh topics, a way to fill them and to read them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = uuid.uuid4().hex[:8]
        self._created: list[KafkaSettings] = []
        self._counted: dict[str, tuple[list[int], int]] = {}
        ours = KafkaSettings(bootstrap_servers=bootstrap)
        self.admin, self._reader = admin(ours), PartitionReader(ours)

    def settings(
        self, *, partitions: int = 4, replication: int = 1,
        config: Mapping[str, Mapping[str, str]] | None = None, **fields: Any,
    ) -> KafkaSettings:  # fmt: skip
        """Settings with topics that exist and are empty; `config` is by role."""
        run = f"{self.name}-{len(self._created)}"
        topics = KafkaTopics(
            input=(f"{run}.in",), verdicts=f"{run}.verdicts", review=f"{run}.review",
            labels=f"{run}.labels", deadletter=f"{run}.dead", incidents=f"{run}.incidents",
            control=f"{run}.control", state=f"{run}.state",
        )  # fmt: skip
        usual: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "group": run,
            "topics": topics,
            "client": "kafka-python",  # the one that needs fixes
        }
        options = {
            "session.timeout.ms": 3_000, "max.poll.interval.ms": 60_000,
            "transaction.timeout.ms": 10_000, "delivery.timeout.ms": 10_000,
        }  # fmt: skip
        fields["options"] = options | fields.get("options", {})
        settings = KafkaSettings(**{**usual, **fields})
        plans = [
            dataclasses.replace(plan, config={**plan.config, **(config or {}).get(plan.role, {})})
            for plan in plan_topics(settings, partitions=partitions, replication=replication)
        ]
        create_topics(settings, plans)
        self._created.append(settings)
        return settings

    def fill(self, settings: KafkaSettings, records: Iterable[Record]) -> None:
        """Produce records into the input, in order."""
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, linger_ms=20, max_request_size=16_000_000,
            metrics_enabled=False,
        )  # fmt: skip
        futures = []
        for record in records:
            topic, partition = record.position[:2]
            headers = [(name, value or b"") for name, value in record.headers]
            value, key = record.value, record.key
            futures.append(
                producer.send(topic, value, key, headers, partition, record.timestamp_ms)
            )
        producer.flush(60)
        for future in futures:
            future.get(1)
        producer.close()

    def fill_in_transactions(
        self, settings: KafkaSettings, records: Sequence[Record], draw: random.Random
    ) -> list[Record]:
        """Produce records in transactions, every fourth of them given up and tried again.

        Returns what is committed, with its places: between them lie markers and what was given up.
        """
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=self.name, metrics_enabled=False
        )
        producer.init_transactions()
        for some in batches(records, 40):
            while True:
                producer.begin_transaction()
                for record in some:
                    to = record.position
                    producer.send(to.topic, record.value, record.key, [], to.partition)
                if draw.random() >= 0.25:
                    break
                producer.flush(60)
                producer.abort_transaction()
            producer.commit_transaction()
        producer.close()
        (topic,) = settings.topics.input
        return [record for found in self.read(settings, topic).values() for record in found]

    def read(self, settings: KafkaSettings, topic: str) -> dict[int, list[Record]]:
        return {
            p: list(self._reader.read(Partition(topic, p), settle_s=15))
            for p in range(self.partitions(topic))
        }

    def count(self, settings: KafkaSettings, topic: str) -> int:
        """How many committed records a topic holds; it is read again where it has grown since."""
        every = {TopicPartition(topic, p): OffsetSpec.LATEST for p in range(self.partitions(topic))}
        ends = [found.offset for found in self.admin.list_partition_offsets(every).values()]
        if ends != self._counted.get(topic, ([], 0))[0]:
            self._counted[topic] = ends, sum(map(len, self.read(settings, topic).values()))
        return self._counted[topic][1]

    def partitions(self, topic: str) -> int:
        def known() -> int:
            return len(self.admin.describe_topics([topic])[0]["partitions"])

        return until(known, f"the broker knows {topic}")

    def has(self, topic: str) -> bool:
        return topic in self.admin.list_topics()

    def committed(self, settings: KafkaSettings) -> dict[Partition, int]:
        try:
            found = self.admin.list_group_offsets(settings.group)
        except KafkaError:  # no coordinator yet, or a broker that a test has killed
            self.admin.close()  # it may ask the dead broker for ever
            self.admin = admin(KafkaSettings(bootstrap_servers=self.bootstrap))
            return {}
        offsets = found.get(settings.group, {})
        return {Partition(*tp): o.offset for tp, o in offsets.items()}

    def set_back(self, settings: KafkaSettings, partition: Partition, offset: int) -> None:
        """Reset the group's offset of a partition, as an operator would; nobody may be running."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=settings.group, enable_auto_commit=False,
            metrics_enabled=False,
        )  # fmt: skip
        tp = TopicPartition(*partition)
        until(lambda: self.is_empty(settings.group), "the group is empty")
        consumer.assign([tp])
        consumer.commit({tp: OffsetAndMetadata(offset, "", -1)})
        consumer.close(autocommit=False)

    def is_empty(self, group: str) -> bool:
        """Whether nobody is in a group."""
        return self.admin.describe_groups([group])[group]["group_state"] == "Empty"

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None:
        topics: list[str] = []
        for s in self._created:
            t = s.topics
            topics += [*t.input, *t.others]
        with contextlib.suppress(KafkaError):
            self.admin.delete_topics(topics)
        self._reader.close()
        self.admin.close()


def feed(
    settings: KafkaSettings, n_events: int, *, sensors: int = 12, partitions: int = 4,
    seed: int = 0, poison_share: float = 0.01, flood_share: float = 0.0, modes: Sequence[str] = (),
    weather: float = 0.0,
) -> list[Record]:  # fmt: skip
    """Make a feed in the order it is produced; a sensor stays in one partition.

    An event of the flood has a sensor of its own; one with a mode is as large as the mode is late.
    Under a `weather` all go up and down together.
    """
    draw = random.Random(seed)
    (topic,) = settings.topics.input
    offsets: dict[int, int] = defaultdict(int)
    records = []
    for i in range(n_events):
        number = draw.randrange(sensors)
        if flood_share and draw.random() < flood_share:
            number = sensors + i
        sensor, partition = f"sensor-{number}", number % partitions
        if draw.random() < poison_share:
            value = draw.choice([b"\xff\xfe", b'{"sensor": "s', b"[1,2]", b"", b'{"v": 1}'])
        else:
            level = draw.gauss(0, 1) + weather * math.sin(i / 100)
            event = {"sensor": sensor, "t": 1_000 * i, "v": level}
            if modes:
                number = draw.randrange(len(modes))
                event |= {"m": modes[number], "v": level + 50 * number}
            value = json.dumps(event).encode()
        position = Position(topic, partition, offsets[partition])
        offsets[partition] += 1
        trace = (("traceparent", b"00-%032x-%016x-01" % (i + 1, i + 1)),)
        records.append(Record(position, sensor.encode(), value, trace if i % 3 == 0 else ()))
    return records


def door_feed(
    settings: KafkaSettings, n_records: int, *, machines: int = 12, partitions: int = 4, seed: int
) -> list[Record]:
    """Make a feed that needs all of :func:`reading_by`'s door.

    Up to six readings a record, in any order, up to three seconds late, some of bad quality;
    records without a reading, and some that cannot be read.
    """
    draw = random.Random(seed)
    (topic,) = settings.topics.input
    offsets: dict[int, int] = defaultdict(int)
    records = []
    for i in range(n_records):
        number = draw.randrange(machines)
        readings = [
            {
                "t": 1_700_000_000_000 + 500 * i - draw.randrange(3_000),
                "tag": draw.choice(["temp", "press", "mode"]),
                "v": draw.choice([round(draw.gauss(0, 1), 3), None]),
                "q": draw.choice(["good", "good", "bad"]),
            }
            for _ in range(draw.randrange(7))
        ]
        value = json.dumps({"m": f"m{number}", "readings": readings}).encode()
        if draw.random() < 0.02:
            value = draw.choice([b"\xff\xfe", b'{"m": "m', b'{"m": 1}', b'{"readings": [7]}'])
        position = Position(topic, number % partitions, offsets[number % partitions])
        offsets[number % partitions] += 1
        records.append(Record(position, f"m{number}".encode(), value, ()))
    return records


class ChainEngine:
    """Scores each event by a checksum over all events of its sensor so far.

    A lost, repeated or reordered event changes every later score, so equal outputs prove equal
    histories. A reading of `deadly` kills the process.
    `slow_s` makes every so manieth event take long, as a late refit would.
    """

    failures = changes = ()

    def __init__(
        self, slow_s: float = 0.0, slow_every: int = 1000, deadly: float | None = None
    ) -> None:
        self._deadly = deadly
        self._chains: dict[str, tuple[int, int]] = {}
        self._slow_s, self._slow_every = slow_s, slow_every

    def ready(self, readings: Sequence[Reading]) -> int:
        return len(readings)

    def process(self, readings: Sequence[Reading]) -> list[Verdict]:
        return [self._verdict(reading) for reading in readings]

    def _verdict(self, reading: Reading) -> Verdict:
        if self._deadly is not None and reading.values[0] == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        seq, chain = self._chains.get(reading.stream_key, (0, 0))
        chain = zlib.crc32(repr(reading.values).encode(), chain)
        self._chains[reading.stream_key] = (seq + 1, chain)
        if self._slow_s and seq % self._slow_every == self._slow_every - 1:
            pass_time(self._slow_s, because="a fit takes long")
        share = chain / 2**32
        label = Label.NORMAL if share < 0.8 else Label.ANOMALY if share < 0.9 else Label.REJECTED
        return Verdict(
            position=reading.position, stream_key=reading.stream_key, sensor=reading.sensor,
            event_time_ms=reading.event_time_ms, seq=seq, label=label,
            reason=Reason.AMBIGUOUS if label is Label.REJECTED else None, score=share,
        )  # fmt: skip

    def streams(self) -> list[str]:
        return list(self._chains)

    def head(self) -> bytes:
        return b""

    def view(self, stream_key: str) -> StreamView:
        chain = self._chains[stream_key]
        return StreamView(lambda: seal("chain", 1, chain), lambda: b"", 0)

    def restore_streams(
        self, head: bytes, streams: Mapping[str, StreamSnapshot], *, accept_environment: bool
    ) -> Restored:
        for key, kept in streams.items():
            self._chains[key] = tuple(unseal("chain", 1, kept.state))
        decision = Decision(RejectionPolicy(0.1, tolerance=4), evidence=False)
        return Restored(decision, decision, ())

    def restore(self, blob: bytes, *, accept_environment: bool) -> Restored:
        raise AssertionError("no earlier version wrote this")

    def decide(self, decision: Decision) -> None:
        pass

    def take_failures(self) -> list[Any]:
        return []

    def take_incidents(self) -> list[Incident]:
        return []

    def streams_of(self, command: Command) -> list[str]:
        return []

    def command(self, command: Command) -> CommandReply | None:
        return None


@dataclasses.dataclass(frozen=True)
class Slow:
    """A detector whose fits take so long, and are those of another."""

    detector: BatchDetector
    fit_s: float

    @property
    def name(self) -> str:
        return self.detector.name

    def __repr__(self) -> str:
        return repr(self.detector)  # no verdict depends on how long it takes

    def fit(self, X: FloatArray, *, seed: int) -> Scorer:
        pass_time(self.fit_s, because="fits take long")
        return self.detector.fit(X, seed=seed)


BUDGET = RejectionPolicy(0.1, rate=0.04, burst=6)
"""Of a governed engine: what people are asked at most."""


def make_engine(
    kind: str, *, fit_s: float = 0.0, tolerance: int = 4, modes: bool = False,
    governed: bool = False, channels: Sequence[str] = ("v",), **options: Any,
) -> Callable[[Partition, FitExecutor], Any]:  # fmt: skip
    """``chain``, or the real engine with the detector of that name and fits that take `fit_s`.

    ``siblings`` is ``Sensor`` beside all others of the partition.

    It is under a budget that is held where it is `governed`.
    """
    if kind == "chain":
        return lambda partition, fits: ChainEngine(**options)
    if kind == "obedient":
        return lambda partition, fits: Obedient(**options)
    from rejex_stream.detectors import make_detector
    from rejex_stream.engine import Engine, EngineSpec
    from rejex_stream.features import FeatureSpec

    siblings = "*" * (kind == "siblings")
    detector = make_detector("Sensor" if siblings else kind)
    if fit_s:
        assert isinstance(detector, BatchDetector)
        detector = Slow(detector, fit_s)
    spec = EngineSpec(
        detector,
        FeatureSpec(
            tuple(channels), carry_forward_events=0 if channels == ("v",) else 20, siblings=siblings
        ),
        BUDGET if governed else RejectionPolicy(0.1, tolerance=tolerance), window=100,
        schedule=SCHEDULE, modes=modes,
    )  # fmt: skip
    return lambda partition, fits: Engine(spec, fits)


def expected(
    settings: KafkaSettings, records: Sequence[Record], kind: str = "chain", **read: Any
) -> dict[str, dict[int, list[Any]]]:
    """What an uninterrupted run writes: topic → partition → (key, value, headers)."""
    partitions = 1 + max(record.position.partition for record in records)
    sink, (decoder, knobs) = ListSink(), reading_by(**read)
    make = make_engine(kind, modes=read.get("modes", False))
    run(ListSource(by_partition(records)), sink, None, make, decoder, settings=knobs)
    return messages_of(settings, sink.outcomes, partitions=partitions)


def messages_of(
    settings: KafkaSettings, outcomes: Sequence[Outcome], *, partitions: int
) -> dict[str, dict[int, list[Any]]]:
    """What is written of outcomes: topic → partition → (key, value, headers)."""
    found: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    messages = OutcomeMessages(settings, lambda _: partitions)
    for m in messages.of(outcomes):
        found[m.topic][m.partition].append((m.key, m.value, stable(m.headers)))
    return found


def stable(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Headers without the name of the worker, which is the one thing that may differ."""
    return [(name, value) for name, value in headers if not name.endswith("task.id")]


def assert_exactly(
    kafka: Kafka, settings: KafkaSettings, records: Sequence[Record], kind: str = "chain",
    may_repeat: bool = False, **read: Any,
) -> None:  # fmt: skip
    """The three output topics hold what an uninterrupted run writes, record for record.

    Where records `may_repeat`, each counts where it was written first.
    """
    wanted = expected(settings, records, kind, **read)
    assert_holds(kafka, settings, wanted, may_repeat=may_repeat)


def assert_holds(
    kafka: Kafka, settings: KafkaSettings, wanted: Mapping[str, Mapping[int, list[Any]]],
    topics: Sequence[str] = (), *, may_repeat: bool = False,
) -> int:  # fmt: skip
    """The output topics hold `wanted`, record for record; returns how many records they hold."""
    ours = settings.topics
    assert sum(len(of_one) for of_one in wanted[ours.verdicts].values()) > 0
    written = 0
    for topic in topics or (ours.verdicts, ours.review, ours.deadletter):
        for partition, found in kafka.read(settings, topic).items():
            got = [(r.key, r.value, stable(r.headers)) for r in found]
            if may_repeat:
                got = [record for i, record in enumerate(got) if record not in got[:i]]
            want = wanted[topic][partition]
            pairs = enumerate(zip(got, want, strict=False))
            at = next((i for i, (one, other) in pairs if one != other), min(len(got), len(want)))
            assert got == want, (
                f"{topic}-{partition}: {len(got)} records, {len(set(map(repr, got)))} of them "
                f"different, wanted {len(want)}; the first that differs is {at}:\n"
                f"{got[at : at + 1]}\n{want[at : at + 1]}"
            )
            written += len(got)
    return written


def verdicts_of(kafka: Kafka, settings: KafkaSettings) -> dict[int, list[Verdict]]:
    found = kafka.read(settings, settings.topics.verdicts).items()
    return {number: [decode_verdict(r.value or b"") for r in records] for number, records in found}


# ------------------------------------------------------------------------------ real processes
@dataclasses.dataclass
class Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Send SIGTERM as soon as it is listened to, and return the exit code."""
        until(lambda: not self.alive or self._hears(signal.SIGTERM), "it hears a signal")
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def _hears(self, number: int) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def owned(self) -> list[int]:
        owned: set[int] = set()
        for line in self.output.splitlines():
            found = re.match(
                r"Partition(Opened|Closed)\(partition=Partition\(.*?partition=(\d+)\)", line
            )
            if found:
                (owned.add if found[1] == "Opened" else owned.discard)(int(found[2]))
        return sorted(owned)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Workers:
    """Starts worker processes and makes sure that none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Worker] = []

    def start(
        self, settings: KafkaSettings, name: str | None = None, *,
        environment: Mapping[str, str] | None = None, **options: Any,
    ) -> Worker:  # fmt: skip
        if name is not None:
            settings = settings.replace(instance_id=name)
        number = len(self._started)
        config = self._folder / f"worker-{number}.json"
        config.write_text(
            json.dumps(
                {"settings": settings.model_dump(), "options": options},
                default=lambda secret: secret.get_secret_value(),
            )
        )
        log = self._folder / f"worker-{number}.log"
        own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}:{HERE}"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "kafka_worker.py"), str(config)], stdout=output,
                stderr=output, env={**os.environ, **own, **(environment or {})},
            )  # fmt: skip
        worker = Worker(process, log)
        self._started.append(worker)
        return worker

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for worker in self._started:
            if worker.alive:
                if failed is not None:
                    worker.process.send_signal(signal.SIGUSR1)  # prints where it stands
                    pass_time(0.5, because="it prints where it stands")
                worker.kill()


class Feeder:
    """Produces a feed in the background, evenly over about `seconds`, or at once at the end."""

    def __init__(
        self, kafka: Kafka, settings: KafkaSettings, records: Sequence[Record], seconds: float = 5.0
    ) -> None:
        self._thread = threading.Thread(target=self._run)
        self._hurry = threading.Event()
        self._kafka, self._settings, self._records = kafka, settings, records
        self._pause_s = seconds / 40

    def _run(self) -> None:
        size = max(1, len(self._records) // 40)
        for some in batches(self._records, size):
            self._kafka.fill(self._settings, some)
            self._hurry.wait(self._pause_s)

    def finish(self) -> None:
        self._hurry.set()
        self._thread.join()

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


@contextlib.contextmanager
def edges(settings: KafkaSettings) -> Iterator[tuple[KafkaSource, KafkaSink]]:
    """Both ends of a run, which are closed in the end."""
    source, sink = connect(settings)
    try:
        yield source, sink
    finally:
        source.close()
        sink.close()


@contextlib.contextmanager
def member(settings: KafkaSettings) -> Iterator[Any]:
    consumer = open_clients(settings, settings.instance_id or "w")[0]()
    try:
        yield consumer
    finally:
        consumer.close()


def owns(source: KafkaSource, *partitions: Partition) -> bool:
    """Poll once: the group's dealing, and a rewind, take polls to come through."""
    source.poll(10, 0.05)
    source.changes()
    return source.joined and {*partitions} <= {*source.owned}


def by_partition(records: Iterable[Record]) -> dict[Partition, list[Record]]:
    scripts: dict[Partition, list[Record]] = defaultdict(list)
    for record in records:
        scripts[Partition(*record.position[:2])].append(record)
    return dict(scripts)


def next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    scripts = by_partition(records)
    return {at: 1 + max(r.position.offset for r in found) for at, found in scripts.items()}


def batches(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    for i in range(0, len(records), size):
        yield records[i : i + size]


class StopAt:
    """Ends a run once everything is committed; or, with `kept`, once there is a snapshot of it."""

    def __init__(self, ends: dict[Partition, int], *, kept: bool = False) -> None:
        self.stop = threading.Event()
        self.events: list[RunEvent] = []
        self._left, self._kept = dict(ends), kept

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        pass

    def event(self, event: RunEvent) -> None:
        self.events.append(event)
        reached: Mapping[Partition, int] = {}
        if self._kept and isinstance(event, SnapshotSaved):
            reached = {event.partition: event.next_offset}
        elif not self._kept and isinstance(event, Committed):
            reached = event.next_offsets
        for partition, offset in reached.items():
            if self._left.get(partition, -1) <= offset:
                self._left.pop(partition, None)
        if not self._left:
            self.stop.set()


def run_here(
    settings: KafkaSettings, ends: dict[Partition, int], *, kind: str = "chain", kept: bool = False,
    timeout_s: float = PATIENCE_S, **options: Any,
) -> StopAt:  # fmt: skip
    """Run the service in this process until `ends` are committed, or `kept` in a snapshot."""
    watch = StopAt(ends, kept=kept)
    timer = threading.Timer(timeout_s, watch.stop.set)
    timer.start()
    try:
        source, sink = connect(settings)
        run(
            source, sink, KafkaSnapshots(settings, sink), make_engine(kind), JsonDecoder(MAPPING),
            settings=RUN.replace(**options), observers=[watch], stop=watch.stop,
        )  # fmt: skip
    finally:
        timer.cancel()
    assert not watch._left, f"not committed within {timeout_s} s: {watch._left}"
    return watch
