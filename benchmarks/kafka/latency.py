"""From an event's own time to the commit of its verdict, at several rates."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from rejex_connectors.kafka.kafka_settings import KafkaSettings

from benchmarks.kafka.loops import Watch
from benchmarks.kafka.setting import (
    EPOCH_MS,
    SENSORS,
    Feed,
    Pinned,
    config_file,
    event,
    fill,
    settings_of,
)
from rejex_stream.run.run_events import Committed, RunEvent
from rejex_stream.types import Outcome, Partition

COMMIT_S = 0.1
WARM = SENSORS * 1_600
COLUMNS = ["client", "load", "events/s", "p50", "p99"]


def latency(
    bootstrap: str, core: int, client: str, rates: dict[str, float], seconds: float
) -> list[list[object]]:
    """Return a row per rate; HBOS with full windows of 500."""
    settings = settings_of(bootstrap, client)
    topic = settings.topics.input[0]
    fill(bootstrap, topic, WARM)
    worker = Pinned(core, _work, settings)
    assert worker.pipe.recv() == "warm"
    rows: list[list[object]] = []
    for name, rate in rates.items():
        sent = _paced(bootstrap, topic, rate, seconds)
        worker.pipe.send(sent)
        taken = sorted(worker.pipe.recv())
        p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
        rows.append([client, name, round(rate), round(p50), round(p99)])
        print(rows[-1], flush=True)
    worker.pipe.send(None)
    worker.result()
    return rows


def _paced(bootstrap: str, topic: str, rate: float, seconds: float) -> int:
    """Produce at a rate, in steps of 5 ms; an event's time is when it was sent."""
    feed, draw = Feed(bootstrap), random.Random(1)
    values = [event(i % SENSORS, EPOCH_MS, draw) for i in range(1_000)]
    then = b"%d" % EPOCH_MS
    began, sent = time.time(), 0
    while (elapsed := time.time() - began) < seconds:
        while sent < elapsed * rate:
            now = b"%d" % int(time.time() * 1000)
            feed.send(topic, sent % SENSORS, values[sent % 1_000].replace(then, now))
            sent += 1
        time.sleep(0.005)
    feed.flush()
    return sent


# ---------------------------------------------------------------------------- in the worker
class _Ages(Watch):
    """Notes how old every event is when its verdict is durable: the broker has confirmed it."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(10**12)
        self._pipe = pipe
        self._waiting: list[int] = []
        self._ages: list[float] = []
        self._warming = True

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        """Hold the times of events until their commit."""
        self._waiting += [o.verdict.event_time_ms for o in outcomes if o.verdict is not None]

    def event(self, event: RunEvent) -> None:
        """Take a commit's ages; answer once as many events as were sent are committed."""
        if isinstance(event, Committed):
            now = 1000 * time.time()
            self._ages += [now - sent for sent in self._waiting]
            self._waiting.clear()
        if self._warming and len(self._ages) >= WARM:
            self._warming = False
            self._ages.clear()
            self._pipe.send("warm")

    def serve(self) -> None:
        """Answer every count of events with their ages, until told to stop."""
        while (sent := self._pipe.recv()) is not None:
            limit = time.monotonic() + 120
            while len(self._ages) < sent:
                assert time.monotonic() < limit, (len(self._ages), sent)
                time.sleep(0.05)
            self._pipe.send(list(self._ages))
            self._ages.clear()
        self.stop.set()


def _work(settings: KafkaSettings, pipe: Connection) -> None:
    import threading

    from rejex_stream.config import load_config
    from rejex_stream.config.assembly import run_pipeline

    ages = _Ages(pipe)
    threading.Thread(target=ages.serve, daemon=True).start()
    with config_file(settings, "HBOS", window=500, commit_s=COMMIT_S) as path:
        run_pipeline(load_config(path), observers=[ages], stop=ages.stop)
