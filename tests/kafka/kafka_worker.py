"""A worker process for the tests: the real loop and connector, around an engine of choice."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka_harness import MAPPING, RUN, make_engine
from rejex_connectors.kafka import KafkaSecurity, KafkaSettings, KafkaTopics, Secret, connect
from rejex_connectors.kafka_snapshots import KafkaSnapshots

from rejex_stream.decode import JsonDecoder
from rejex_stream.errors import RejexError
from rejex_stream.progress import Committed, RunEvent, SnapshotSaved
from rejex_stream.runtime import run
from rejex_stream.types import Outcome, Partition


class Pace:
    """Prints what happens, and slows the run down so that a test can interfere."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def outcomes(
        self, partition: Partition, outcomes: Sequence[Outcome], *, replaying: bool
    ) -> None:
        time.sleep(self._pause_s)

    def event(self, event: RunEvent) -> None:
        if not isinstance(event, Committed | SnapshotSaved):
            print(event, flush=True)


def settings_from(fields: dict[str, Any]) -> KafkaSettings:
    """Settings as a test wrote them down."""
    topics, security = fields.pop("topics"), fields.pop("security")
    topics["input"] = tuple(topics["input"])
    fields["client_options"] = tuple(tuple(pair) for pair in fields["client_options"])
    if security["password"] is not None:
        security["password"] = Secret(literal=security["password"])
    return KafkaSettings(topics=KafkaTopics(**topics), security=KafkaSecurity(**security), **fields)


def main(path: str) -> int:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    config = json.loads(Path(path).read_text())
    settings = settings_from(config["settings"])
    pause_s = config["options"].pop("pause_s", 0.0)
    engine = config["options"].pop("engine", {"kind": "chain"})
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        source, sink = connect(settings)
        summary = run(
            source,
            sink,
            KafkaSnapshots(settings, sink),
            make_engine(**engine),
            JsonDecoder(MAPPING),
            settings=dataclasses.replace(RUN, **config["options"]),
            observers=[Pace(pause_s)],
            stop=stop,
        )
    except RejexError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    print(f"done: {summary}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
