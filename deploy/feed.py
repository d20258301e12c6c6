"""Simulated feeds for docker-compose.yml: four wind turbines, and a water branch that leaks.

The readings are those of the demo's simulator, four weeks of them, over and over, with event times
that go on from now at ten minutes a reading and turbine.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import time
from collections.abc import Iterator

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from rejex_stream.demo.turbine import CHANNELS, STEP_S, simulate

Message = tuple[str, str, dict[str, object]]


def turbines(start_ms: int) -> Iterator[Message]:
    """Yield one reading of every turbine per step; nan becomes null."""
    step = 0
    for seed in itertools.count():
        run = simulate(seed=seed)
        for row in zip(*run.values.values(), strict=True):
            for name, values in zip(run.values, row, strict=True):
                channels = {
                    channel: None if math.isnan(value) else float(value)
                    for channel, value in zip(CHANNELS, values, strict=True)
                }
                at_ms = start_ms + step * STEP_S * 1000
                yield "turbine.readings", name, {"turbine": name, "time_ms": at_ms, **channels}
            step += 1


def leaks(start_ms: int, seed: int = 0) -> Iterator[Message]:
    """Yield flow and pressure of a branch every fifteen minutes; now and then it leaks."""
    rng = random.Random(seed)
    leak_left, leak = 0, 0.0
    for step in itertools.count():
        at_ms = start_ms + step * 900_000
        day = math.sin(2 * math.pi * (at_ms % 86_400_000 / 86_400_000 - 0.3))
        if leak_left == 0 and rng.random() < 0.001:
            leak_left, leak = rng.randrange(8, 40), rng.uniform(3, 12)
        lost = leak if leak_left else 0.0
        leak_left = max(0, leak_left - 1)
        flow = 42 + 9 * day + lost + rng.gauss(0, 0.7)
        pressure = 5.2 - 0.018 * (flow - 42) - 0.02 * lost + rng.gauss(0, 0.03)
        yield "leak.readings", "branch-1", {
            "branch": "branch-1", "time_ms": at_ms,
            "flow_l_s": round(flow, 2), "pressure_bar": round(pressure, 3),
        }  # fmt: skip


def batches(start_ms: int, seed: int = 0) -> Iterator[Message]:
    """Yield records of three readings each, a second apart, of three machines."""
    rng = random.Random(seed)
    for step in itertools.count():
        for machine in ("m0", "m1", "m2"):
            readings = [
                {"ts": start_ms + 3_000 * step + 1_000 * k, "temp": round(rng.gauss(60, 1), 2),
                 "press": round(rng.gauss(5, 0.1), 3)} for k in range(3)
            ]  # fmt: skip
            yield "plant.batches", machine, {"machine": machine, "readings": readings}


def create(bootstrap: str, topic: str) -> None:
    """Create a topic of four partitions where there is none."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    with contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics({topic: {"num_partitions": 4}}, wait_for_metadata=True)
    admin.close()


def main() -> None:
    """Produce until stopped, or until `--events` have been sent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:29092")
    parser.add_argument("--per-second", type=float, default=200.0)
    parser.add_argument("--events", type=int, default=None)
    parser.add_argument("--topic", default=None, help="only this one",
                        choices=("turbine.readings", "leak.readings", "plant.batches"))  # fmt: skip
    asked = parser.parse_args()
    start_ms = int(time.time() * 1000)
    feeds = (turbines(start_ms), leaks(start_ms))
    producer = KafkaProducer(bootstrap_servers=asked.bootstrap, linger_ms=20)
    mixed = (next(feed) for feed in itertools.cycle((feeds[0],) * 4 + (feeds[1],)))
    if asked.topic == "plant.batches":
        create(asked.bootstrap, asked.topic)
        mixed = batches(start_ms)
    elif asked.topic is not None:
        mixed = (message for message in mixed if message[0] == asked.topic)
    began = time.monotonic()
    for sent, (topic, key, value) in enumerate(itertools.islice(mixed, asked.events)):
        producer.send(topic, key=key.encode(), value=json.dumps(value).encode())
        ahead_s = sent / asked.per_second - (time.monotonic() - began)
        if ahead_s > 0.01:
            time.sleep(ahead_s)
    producer.flush()
    producer.close()


if __name__ == "__main__":
    main()
