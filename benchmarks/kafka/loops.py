"""The loops that are compared: either client bare, and the service.

Each works through a filled topic and returns its :class:`Pace`. All commit every 0.5 s or 20,000
events, read committed records only, and wait for every acknowledgement.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from rejex_connectors.kafka.clients import Message
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.messages import OutcomeMessages

from benchmarks.kafka.setting import (
    CHANNELS,
    COMMIT_S,
    EPOCH_MS,
    PARTITIONS,
    Load,
    config_file,
    event,
)
from rejex_stream.decode import JsonDecoder
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.partition import PartitionState
from rejex_stream.run.review_items import ReviewItems
from rejex_stream.run.run_events import Committed, Retrying, RunEvent
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Partition, Position, Record

COMMIT_EVENTS = RunSettings().commit_every_events
SAMPLE = 8_000
"""Of so many events the bare loop has what the service writes, and begins again then."""


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
    ours = psutil.Process().cpu_times()
    total = time.process_time() + ours.children_user + ours.children_system
    # Known to us: to look for them among all processes would cost what is measured here.
    for child in multiprocessing.active_children():
        try:
            times = psutil.Process(child.pid).cpu_times()
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

    `contract`: write what the service writes of such events; else pass the value through.
    """
    loop = _bare_confluent if settings.client == "confluent" else _bare_python
    return loop(settings, n_events, load.warm, written(settings, load) if contract else [])


def written(settings: KafkaSettings, load: Load, sample: int = SAMPLE) -> list[list[Message]]:
    """Return what the service writes of each event: verdict and review record, with headers.

    Of the `sample` events with which it is measured; HBOS, fits in line.
    """
    from rejex_stream.config import load_config
    from rejex_stream.config.assembly import kafka_settings
    from rejex_stream.config.assembly.running import make_engine, run_settings

    with config_file(settings, "HBOS", window=load.window) as path:
        config = load_config(path)
    of_run, draw, (topic,) = run_settings(config), random.Random(0), settings.topics.input
    state = PartitionState(
        Partition(topic, 0),
        decoder=JsonDecoder(config.input.mapping()),
        engine=make_engine(config)(Partition(topic, 0), InlineExecutor()),
        context=ReviewItems(
            CHANNELS, points=of_run.review_context_events, reasons=of_run.review_reasons
        ),
    )
    records = [
        Record(Position(topic, 0, i), None, event(i % load.sensors, EPOCH_MS + 1000 * i, draw))
        for i in range(load.warm + sample)
    ]
    for start in range(0, load.warm, 1_000):
        state.process(records[start : min(start + 1_000, load.warm)])
    messages = OutcomeMessages(kafka_settings(config), lambda _: PARTITIONS)
    return [list(messages.of([outcome])) for outcome in state.process(records[load.warm :])]


def _bare_confluent(
    settings: KafkaSettings, n_events: int, warm: int, messages: list[list[Message]]
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
    pace, done, topic, nth = Pace(warm), 0, settings.topics.verdicts, 0
    while done < n_events:
        if transactional:
            producer.begin_transaction()
        began, sent = time.perf_counter(), 0
        at: dict[tuple[str, int], int] = {}
        while _open(began, sent) and done + sent < n_events:
            for m in consumer.consume(2_000, 0.1):
                source, partition = m.topic(), m.partition()
                at[source, partition] = m.offset() + 1
                sent += 1
                if not messages:
                    producer.produce(topic, m.value(), m.key(), partition)
                    continue
                for to, _, _, value, headers in messages[nth % len(messages)]:
                    producer.produce(to, value, m.key(), partition, headers=headers)
                nth += 1
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
    settings: KafkaSettings, n_events: int, warm: int, messages: list[list[Message]]
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
    pace, done, topic, nth = Pace(warm), 0, settings.topics.verdicts, 0
    while done < n_events:
        if transactional:
            producer.begin_transaction()
        began, sent = time.perf_counter(), 0
        offsets = {}
        while _open(began, sent) and done + sent < n_events:
            for tp, found in consumer.poll(timeout_ms=100, max_records=2_000).items():
                for r in found:
                    if not messages:
                        producer.send(topic, r.value, r.key, partition=tp.partition)
                        continue
                    for to, _, _, value, headers in messages[nth % len(messages)]:
                        producer.send(to, value, r.key, headers, tp.partition)
                    nth += 1
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
