"""Events a second: bare clients and service in turn over the same filled topic."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import harness, worker
from benchmarks.kafka.loops import Pace, bare, service
from benchmarks.kafka.setting import CLIENTS, DETECTORS, FEW, Load, Pinned, fill, settings_of

PASS_THROUGH = "bare, transactions, value passed through"
SAME_BYTES = "bare, transactions, what the service writes"
COLUMNS = [
    "client",
    "loop",
    "events/s",
    "core had",
    "CPU µs/event",
    "1 / CPU, events/s",
    "events/s of pass-through",
    "events/s of same bytes",
    "1 / CPU of pass-through",
    "1 / CPU of same bytes",
]


def throughput(
    bootstrap: str,
    core: int,
    n_events: int,
    repeats: int,
    load: Load = FEW,
    detectors: Sequence[str] = tuple(DETECTORS),
    clients: Sequence[str] = CLIENTS,
) -> list[list[Any]]:
    """Return a row per client and loop; ratios are medians of those within a repeat.

    The service's loops come once with each core of :func:`benchmarks.worker.cores`.
    """
    topic = settings_of(bootstrap).topics.input[0]
    fill(bootstrap, topic, n_events, load.sensors)
    loops: dict[str, tuple[Any, Any, str]] = {
        "bare, plain, value passed through": (bare, False, "at_least_once"),
        PASS_THROUGH: (bare, False, "exactly_once"),
        SAME_BYTES: (bare, True, "exactly_once"),
    }
    for detector in detectors:
        for name in worker.cores():
            loops[service_of(detector, name)] = (service, detector, "exactly_once")
    rows: list[list[Any]] = []
    paces: dict[tuple[str, str], list[Pace]] = {}
    for _ in range(repeats):
        for client in clients:
            for name, (loop, what, delivery) in loops.items():
                worker.use(
                    "native" if name.endswith("native core") else "Python"
                )  # of who is begun
                settings = settings_of(bootstrap, client, topic=topic, delivery=delivery)
                pace = Pinned(core, loop, settings, n_events, load, what).result()
                paces.setdefault((client, name), []).append(pace)
                print(f"{client}: {name}: {pace.per_s:,.0f}/s, {pace.cpu_us:.1f} µs", flush=True)
    for (client, name), taken in paces.items():
        rates, costs = [p.per_s for p in taken], [p.cpu_us for p in taken]
        cost = statistics.median(costs)
        bases = [paces[client, base] for base in (PASS_THROUGH, SAME_BYTES)]
        rows.append(
            [
                client,
                name,
                round(statistics.median(rates)),
                round(statistics.median(p.core_share for p in taken), 2),
                round(cost, 1),
                round(1e6 / cost),
                *(round(harness.ratio(rates, [p.per_s for p in base]), 2) for base in bases),
                *(round(harness.ratio([p.cpu_us for p in base], costs), 2) for base in bases),
            ]
        )
    return rows


def service_of(detector: str, core: str = "Python") -> str:
    """Name the loop of the service, which is Python's where it names no core."""
    return f"service, {detector}" + ("" if core == "Python" else f", {core} core")


PARTS = [
    "client",
    "passing a value through",
    "what the service writes instead",
    "all else, Python's core",
    "all else, native core",
    "client's share of the service, Python's core",
    "client's share of the service, native core",
]


def parts(rows: list[list[Any]]) -> list[list[Any]]:
    """Return whose the processor time of an event is, from the rows of HBOS; µs, and shares."""
    cost = {(row[0], row[1]): row[4] for row in rows}
    found: list[list[Any]] = []
    for client in CLIENTS:
        through, same = cost[client, PASS_THROUGH], cost[client, SAME_BYTES]
        named = [service_of("HBOS", core) for core in ("Python", "native")]
        whole = [cost.get((client, name)) for name in named]
        found.append(
            [
                client,
                round(through, 1),
                round(same - through, 1),
                *(service and round(service - same, 1) for service in whole),
                *(service and f"{same / service:.0%}" for service in whole),
            ]
        )
    return found
