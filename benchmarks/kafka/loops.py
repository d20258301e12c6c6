"""The loops that are compared: either client bare, and the service.

Each works through a filled topic and returns its :class:`Pace`. All commit every 0.5 s or 20,000
events, read committed records only, and wait for every acknowledgement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from rejex_connectors.kafka import KafkaSettings

from benchmarks.kafka.setting import COMMIT_S, Load, config_file
from rejex_stream.run.run_events import Committed, Retrying, RunEvent
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Outcome, Partition

COMMIT_EVENTS = RunSettings().commit_every_events
VALUE = b"x" * 600
HEADERS = [
    ("ce_specversion", b"1.0"),
    ("ce_type", b"io.rejex.verdict.v1"),
    ("ce_source", b"/rejex-stream/bench"),
    ("content-type", b"application/json"),
    ("ce_id", b"bench-0a1b2c3d.in-3-123456@1"),
    ("ce_time", b"2023-11-14T22:13:20.042Z"),
    ("ce_subject", b"turbine-0004"),
]
"""As many bytes as a verdict has, and its headers."""


@dataclass
class Pace:
    """Events and times from the first commit after `skip` events to the last commit.

    Connecting, joining the group, and the start of the processes that fit are not what is
    compared.
    """

    skip: int = 0
    events: int = 0
    began: float = 0.0
    cpu_began: float = 0.0
    ended: float = 0.0
    cpu_ended: float = 0.0

    def committed(self, n_events: int) -> None:
        """Note a commit."""
        now, cpu = time.perf_counter(), _processor_s()
        if not self.began:
            self.skip -= n_events
            if self.skip <= 0:
                self.began, self.cpu_began = now, cpu
            return
        self.events += n_events
        self.ended, self.cpu_ended = now, cpu

    @property
    def per_s(self) -> float:
        """Events a second, by the clock on the wall."""
        return self.events / (self.ended - self.began)

    @property
    def cpu_us(self) -> float:
        """Processor time per event in microseconds, of all threads and child processes."""
        return 1e6 * (self.cpu_ended - self.cpu_began) / self.events

    @property
    def core_share(self) -> float:
        """Share of the wall time in which this process and its children had a processor."""
        return (self.cpu_ended - self.cpu_began) / (self.ended - self.began)


def _processor_s() -> float:
    """Return the processor time of this process and of its children, living or ended."""
    me = psutil.Process()
    ours = me.cpu_times()
    total = time.process_time() + ours.children_user + ours.children_system
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return float(total)


# ------------------------------------------------------------------------------- bare clients
def _open(began: float, sent: int) -> bool:
    """Whether the service would not commit yet."""
    return sent < COMMIT_EVENTS and time.perf_counter() - began < COMMIT_S


def bare(
    settings: KafkaSettings, n_events: int, load: Load, contract: bool, _: object = None
) -> Pace:
    """Consume and produce one to one with nothing but the client library.

    `contract`: write as many bytes and headers as a verdict has; else pass the value through.
    """
    loop = _bare_confluent if settings.client == "confluent" else _bare_python
    return loop(
        settings, n_events, load.warm, VALUE if contract else None, HEADERS if contract else []
    )


def _bare_confluent(
    settings: KafkaSettings,
    n_events: int,
    warm: int,
    value: bytes | None,
    headers: list[tuple[str, bytes]],
) -> Pace:
    import confluent_kafka as ck

    transactional = settings.delivery == "exactly_once"
    common: dict[str, Any] = {"bootstrap.servers": settings.bootstrap_servers, "log_level": 3}
    consumer = ck.Consumer(
        common
        | {
            "group.id": settings.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.max.bytes": settings.fetch_max_bytes,
            "queued.max.messages.kbytes": settings.fetch_max_bytes // 1024,
        }
    )
    consumer.subscribe(list(settings.topics.input))
    producer = ck.Producer(
        common
        | {
            "enable.idempotence": True,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "queue.buffering.max.messages": 200_000,
            "delivery.report.only.error": True,
            **({"transactional.id": settings.group} if transactional else {}),
        }
    )
    if transactional:
        producer.init_transactions()
    pace, done, topic = Pace(warm), 0, settings.topics.verdicts
    while done < n_events:
        if transactional:
            producer.begin_transaction()
        began, sent = time.perf_counter(), 0
        at: dict[tuple[str, int], int] = {}
        while _open(began, sent) and done + sent < n_events:
            for m in consumer.consume(2_000, 0.1):
                source, partition = m.topic(), m.partition()
                at[source, partition] = m.offset() + 1
                producer.produce(
                    topic,
                    m.value() if value is None else value,
                    m.key(),
                    partition,
                    headers=headers,
                )
                sent += 1
        offsets = [ck.TopicPartition(*tp, offset) for tp, offset in at.items()]
        if transactional:
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            producer.commit_transaction()
        else:
            producer.flush()
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        done += sent
        if sent:
            pace.committed(sent)
    consumer.close()
    return pace


def _bare_python(
    settings: KafkaSettings,
    n_events: int,
    warm: int,
    value: bytes | None,
    headers: list[tuple[str, bytes]],
) -> Pace:
    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata

    transactional = settings.delivery == "exactly_once"
    common: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers,
        "metrics_enabled": False,
    }
    consumer = KafkaConsumer(
        *settings.topics.input,
        **common,
        group_id=settings.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=settings.fetch_max_bytes,
    )
    producer = KafkaProducer(
        **common,
        acks="all",
        enable_idempotence=True,
        linger_ms=settings.linger_ms,
        batch_size=settings.batch_bytes,
        **({"transactional_id": settings.group} if transactional else {}),
    )
    if transactional:
        producer.init_transactions()
    pace, done, topic = Pace(warm), 0, settings.topics.verdicts
    while done < n_events:
        if transactional:
            producer.begin_transaction()
        began, sent = time.perf_counter(), 0
        offsets = {}
        while _open(began, sent) and done + sent < n_events:
            for tp, found in consumer.poll(timeout_ms=100, max_records=2_000).items():
                for r in found:
                    what = r.value if value is None else value
                    producer.send(topic, what, r.key, headers, tp.partition)
                offsets[tp] = OffsetAndMetadata(found[-1].offset + 1, "", -1)
                sent += len(found)
        producer.flush()
        if transactional:
            if offsets:
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()
        elif offsets:
            consumer.commit(offsets)
        done += sent
        if sent:
            pace.committed(sent)
    producer.close()
    consumer.close()
    return pace


# ------------------------------------------------------------------------------------ service
class Watch:
    """Counts commits of a run, and ends it after so many events."""

    def __init__(
        self, n_events: int, on_commit: Callable[[int], object] | None = None, warm: int = 0
    ) -> None:
        self.pace = Pace(warm)
        self.stop = threading.Event()
        self._on_commit = on_commit
        self._left = n_events

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Only commits count."""

    def event(self, event: RunEvent) -> None:
        """Note an event; stop at the last commit."""
        if isinstance(event, Retrying):
            print(f"a commit was taken again, so the figure says little: {event.error}", flush=True)
        if isinstance(event, Committed):
            self.pace.committed(event.n_events)
            self._left -= event.n_events
            if self._on_commit is not None:
                self._on_commit(event.n_events)
            if self._left <= 0:
                self.stop.set()


def service(
    settings: KafkaSettings, n_events: int, load: Load, detector: str, _: object = None
) -> Pace:
    """Run the service as ``rejex-stream run`` does."""
    from rejex_stream.config import load_config
    from rejex_stream.config.assembly import run_pipeline

    watch = Watch(n_events, warm=load.warm)
    with config_file(settings, detector, window=load.window) as path:
        run_pipeline(load_config(path), observers=[watch], stop=watch.stop)
    return watch.pace
