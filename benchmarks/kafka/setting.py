"""Broker, topics, events and configs; and a process on a core of its own."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rejex_connectors.kafka.kafka_settings import KafkaSettings, KafkaTopics
from rejex_connectors.kafka.topic_admin import create_topics, plan_topics

CLIENTS = ("kafka-python", "confluent")
PARTITIONS = 4
SENSORS = 8


class Load(NamedTuple):
    """Whose events they are, the window, and after how many events it is measured.

    By then every model is fitted and the fit processes run.
    """

    sensors: int = SENSORS
    window: int = 2_000
    warm: int = 40_000


FEW, MANY, MOST = Load(), Load(200, 200, 100_000), Load(1_000, 200, 500_000)
COMMIT_S = 0.5
CHANNELS = ("temperature", "vibration", "power")
DETECTORS = {"HBOS": "", "GMM": "params = { n_components = 3 }", "HalfSpaceTrees": ""}
EPOCH_MS = 1_700_000_000_000

CONFIG = """
[pipeline]
name = "{group}"
[input]
kind = "kafka"
topics = ["{topic}"]
channels = ["temperature", "vibration", "power"]
sensor = "sensor"
time = "t"
[detector]
name = "{detector}"
{params}
[rejection]
contamination = 0.02
window = {window}
review_budget = {{ rate = 0.02 }}
[refit]
refit_every_events = 4000
[output]
verdicts = "{group}.verdicts"
review = "{group}.review"
deadletter = "{group}.dead"
labels = "{group}.labels"
incidents = "{group}.incidents"
[state]
topic = "{group}.state"
snapshot_every_events = {snapshot_every}
[run]
commit_interval_s = {commit_s}
[kafka]
bootstrap_servers = "{bootstrap}"
client = "{client}"
[metrics]
port = 0
"""


# -------------------------------------------------------------------------------- broker, core
def cores() -> tuple[int, int]:
    """Return the core of broker and feed, and the core of the worker."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]


@contextlib.contextmanager
def broker(core: int) -> Iterator[str]:
    """Give the address of a broker that keeps to `core`, or of ``REJEX_TEST_KAFKA``."""
    yours = os.environ.get("REJEX_TEST_KAFKA")
    if yours:
        yield yours
        return
    from tools.kafka.broker import start

    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        cluster = start(quick=False)
    finally:
        os.sched_setaffinity(0, before)
    with cluster:
        yield cluster.bootstrap


class Pinned:
    """A call in a fresh process on one core, which its children share.

    What the call is given besides `arguments` is one end of a pipe.
    """

    def __init__(self, core: int, call: Callable[..., Any], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_pinned, args=(core, call, arguments, theirs))
        self._process.start()
        theirs.close()

    def result(self) -> Any:
        """Return what the call returned.

        Raises
        ------
        EOFError
            If it died; it has printed why.
        """
        try:
            return self.pipe.recv()
        finally:
            self._process.join()


def _pinned(core: int, call: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    import warnings

    os.sched_setaffinity(0, {core})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe.send(call(*arguments, pipe))


# ------------------------------------------------------------------------------ topics, events
def settings_of(bootstrap: str, client: str = "kafka-python", **fields: Any) -> KafkaSettings:
    """Create the topics of a new group; `topic` is the input, if it is there already."""
    group = f"bench-{uuid.uuid4().hex[:8]}"
    topics = KafkaTopics(
        input=(fields.pop("topic", f"{group}.in"),),
        verdicts=f"{group}.verdicts",
        review=f"{group}.review",
        labels=f"{group}.labels",
        deadletter=f"{group}.dead",
        incidents=f"{group}.incidents",
        control=f"{group}.control",
        state=f"{group}.state",
    )
    settings = KafkaSettings(
        bootstrap_servers=bootstrap, client=client, group=group, topics=topics, **fields
    )
    create_topics(settings, plan_topics(settings, partitions=PARTITIONS))
    return settings


def event(sensor: int, t: int, draw: random.Random) -> bytes:
    """One reading of about 200 bytes."""
    return json.dumps(
        {
            "sensor": f"turbine-{sensor:04d}",
            "t": t,
            "temperature": round(draw.gauss(60, 5), 3),
            "vibration": round(abs(draw.gauss(2, 0.5)), 4),
            "power": round(draw.uniform(200, 2000), 2),
            "site": "north field, row 7",
            "firmware": "4.11.2-rc1+g7f3a9c2",
        }
    ).encode()


class Feed:
    """Produces events with the fastest client there is."""

    def __init__(self, bootstrap: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,  # else a request that is sent again comes late
                "linger.ms": 5,
                "queue.buffering.max.messages": 2_000_000,
                "log_level": 3,
            }
        )

    def send(self, topic: str, sensor: int, value: bytes) -> None:
        """Hand over one event."""
        self._producer.produce(topic, value, f"turbine-{sensor:04d}", sensor % PARTITIONS)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all are acknowledged."""
        assert self._producer.flush(60) == 0


def fill(bootstrap: str, topic: str, n_events: int, sensors: int = SENSORS) -> None:
    """Produce events of `sensors` in turn."""
    draw = random.Random(0)
    feed = Feed(bootstrap)
    for i in range(n_events):
        sensor = i % sensors
        feed.send(topic, sensor, event(sensor, EPOCH_MS + 1000 * i, draw))
    feed.flush()


@contextlib.contextmanager
def config_file(
    settings: KafkaSettings,
    detector: str,
    *,
    window: int = 2000,
    snapshot_every: int = 50_000,
    commit_s: float = COMMIT_S,
) -> Iterator[Path]:
    """Write the service's config."""
    text = CONFIG.format(
        group=settings.group,
        topic=settings.topics.input[0],
        detector=detector,
        params=DETECTORS[detector],
        window=window,
        snapshot_every=snapshot_every,
        commit_s=commit_s,
        bootstrap=settings.bootstrap_servers,
        client=settings.client,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.toml"
        path.write_text(text)
        yield path
