"""Speed on a real broker: the bare client's loop beside the whole service, in one run.

``python -m benchmarks.kafka`` starts a broker on one core (or takes ``REJEX_TEST_KAFKA``), fills a
topic, and lets each loop work through the same events on another core; ``--quick`` with fewer of
them. Results go to ``benchmarks/results/kafka.md``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks import harness
from benchmarks.kafka import latency, throughput
from benchmarks.kafka.setting import (
    CLIENTS,
    COMMIT_S,
    FEW,
    MANY,
    MOST,
    PARTITIONS,
    SENSORS,
    broker,
    cores,
)

PARTS_CAPTION = (
    "Whose the processor time of an event is, HBOS, µs; differences of medians, so a rough guide. "
    "What the bare client takes for the same bytes is the bound: no service with it takes less. "
    "What the engine alone takes is in engine.md; the rest of all else is decoding, monitors, "
    "review context, metrics, and making messages."
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer events, one repeat")
    quick = parser.parse_args(argv).quick
    n_events, repeats = (80_000, 1) if quick else (240_000, 3)
    first, last = cores()
    os.sched_setaffinity(0, {first})  # the feed keeps off the worker's core
    with broker(first) as bootstrap:
        rows = throughput.throughput(bootstrap, last, n_events, repeats)
        n_many = max(n_events, MANY.warm + 60_000)
        fast = CLIENTS[-1:]  # the other is at its own limit with few sensors
        many = throughput.throughput(bootstrap, last, n_many, repeats, MANY, ["HBOS"], fast)
        n_most = MOST.warm + 60_000
        most = throughput.throughput(bootstrap, last, n_most, repeats, MOST, ["HBOS"], fast)
        waits = []
        for client in CLIENTS:
            full = next(
                row[2] for row in rows if row[:2] == [client, throughput.service_of("HBOS")]
            )
            rates = {f"{share:.0%}": share * full for share in (0.1, 0.5, 0.9)}
            waits += latency.latency(bootstrap, last, client, rates, 4.0 if quick else 12.0)
    title = (
        f"Kafka: kafka-python {version('kafka-python')}, confluent-kafka "
        f"{version('confluent-kafka')}, one broker on the same machine"
    )
    harness.write(
        "kafka",
        title,
        [
            (
                f"Throughput of one worker on one core, the broker on another: {n_events:,} events "
                f"of about 200 bytes, {PARTITIONS} partitions, {SENSORS} sensors, a commit every "
                f"{COMMIT_S} s or 20,000 events; measured after {FEW.warm:,} events; service with "
                f"n = {FEW.window:,}, refits, monitors, evidence, review records and snapshots. "
                f"Median of {repeats}. 'Events/s' is by the clock on the wall, on a machine that "
                "others use too; 'CPU' is of all threads and of the processes that fit, and "
                "'1 / CPU' what a core to itself could do. 'Core had' is the share of the wall "
                "time in which the loop was given a processor. Ratios are medians within a repeat.",
                throughput.COLUMNS,
                rows,
            ),
            (
                f"The same with {MANY.sensors} sensors, so few events of each in a poll: "
                f"{n_many:,} events, n = {MANY.window}, measured after {MANY.warm:,} events.",
                throughput.COLUMNS,
                many,
            ),
            (
                f"The same with {MOST.sensors:,} sensors: {n_most:,} events, measured after "
                f"{MOST.warm:,} events.",
                throughput.COLUMNS,
                most,
            ),
            (PARTS_CAPTION, throughput.PARTS, throughput.parts(rows)),
            (
                "Latency from an event's time to its durable verdict, ms; HBOS, n = 500, a commit "
                f"every {latency.COMMIT_S} s. Load is a share of the events/s above; feed and "
                "broker share the other core.",
                latency.COLUMNS,
                waits,
            ),
        ],
    )


if __name__ == "__main__":
    main()
