"""A worker process for the tests: the real loop and connector, around an engine of choice."""

from __future__ import annotations

import faulthandler
import json
import logging
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kafka_harness import make_engine, reading_by
from rejex_connectors.kafka.kafka_settings import KafkaSettings
from rejex_connectors.kafka.partition_reader import KafkaControl
from rejex_connectors.kafka.sink import connect
from rejex_connectors.kafka.topic_snapshots import KafkaSnapshots

from rejex_stream.errors import RejexError
from rejex_stream.run.executors import ProcessFitExecutor
from rejex_stream.run.loop import run
from rejex_stream.run.run_events import Committed, RunEvent, SnapshotSaved
from rejex_stream.types import Outcome, Partition
from tests.waiting import pass_time


class Pace:
    """Prints what happens, and slows the run down so that a test can interfere."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        pass_time(self._pause_s, because="a test wants to interfere")

    def event(self, event: RunEvent) -> None:
        if not isinstance(event, Committed | SnapshotSaved):
            print(event, f"at {time.time()}", flush=True)


def main(path: str) -> int:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("rejex_connectors").setLevel(logging.INFO)
    config = json.loads(Path(path).read_text())
    settings = KafkaSettings(**config["settings"])
    memory = config["options"].pop("memory", None)
    if memory is not None:  # what it may hold beside what it holds now
        threading.stack_size(512 * 1024)  # 8 MB a thread count, whether it uses them or not
        held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + memory, held + memory))
    pause_s = config["options"].pop("pause_s", 0.0)
    engine = config["options"].pop("engine", {"kind": "chain"})
    door = config["options"].pop("door", False)
    select = config["options"].pop("select", None)
    modes = engine.get("modes", False)
    decoder, knobs = reading_by(modes=modes, door=door, select=select)
    obeys = engine.get("governed", False) or engine["kind"] == "obedient"
    executor = ProcessFitExecutor() if "fit_s" in engine else None
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        source, sink = connect(settings)
        store = KafkaSnapshots(settings, sink)
        source.is_decided = store.is_decided
        summary = run(
            source, sink, store, make_engine(**engine), decoder,
            control=KafkaControl(settings) if obeys else None,
            settings=knobs.replace(**config["options"]), observers=[Pace(pause_s)],
            executor=executor, stop=stop,
        )  # fmt: skip
    except RejexError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    finally:
        if executor is not None:
            executor.close()
    print(f"done: {summary}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
