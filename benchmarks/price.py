"""What an alarm costs: alerts a sensor and month where one is asked and nothing is wrong.

python -m benchmarks.price [--scale 1] [--families iid GARCH] [--steps "1 s" "1 min"]

Streams of three channels in which nothing is wrong, at four sampling intervals: chance of several
kinds, and what machines, rain, sun and bursts do every few days. What they do lasts as long in time
at each interval, and is given in hours. The detector is the default one.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from scipy.signal import lfilter

from benchmarks.harness import write
from benchmarks.incidents import MONTH, Floats, ar, engine
from rejex_stream.incidents.incident_settings import Alarms
from rejex_stream.types import Position, Reading

HOUR = 3_600_000
STEPS = {"1 s": 1_000, "1 min": 60_000, "10 min": 600_000, "1 h": HOUR}
MONTHS = {"1 s": 3, "1 min": 12, "10 min": 24, "1 h": 48}
WARM_UP = 4_000  # events: two windows
Make = Callable[[int, int, np.random.Generator], Floats]


def garch(n: int, rng: np.random.Generator) -> Floats:
    """Return GARCH(1, 1) with a persistence of .99, as wind and demand have bursts of variance."""
    z, X, variance = rng.standard_normal((n, 3)), np.empty((n, 3)), np.ones(3)
    for i in range(n):
        X[i] = np.sqrt(variance) * z[i]
        variance = 0.01 + 0.09 * X[i] ** 2 + 0.9 * variance
    return X


def stretches(n: int, every_h: float, hours: float, step_ms: int, rng: np.random.Generator) -> Any:
    """Return which rows lie in stretches that come by chance, and last about so many hours."""
    inside, at = np.zeros(n, dtype=bool), 0.0
    while True:
        at += rng.exponential(every_h * HOUR / step_ms)
        stop = at + hours * rng.lognormal(0, 0.3) * HOUR / step_ms
        if at >= n:
            return inside
        inside[int(at) : math.ceil(stop)] = True
        at = stop


def regimes(n: int, hours: float, step_ms: int, rng: np.random.Generator) -> Floats:
    """Return levels that stay for about so many hours."""
    X, at = ar(0.5, (n, 3), rng), 0
    while at < n:
        length = math.ceil(rng.exponential(hours * HOUR / step_ms))
        X[at : at + length] += rng.normal(0, 2, 3)
        at += length
    return X


def solar(n: int, step_ms: int, rng: np.random.Generator) -> Floats:
    """Return power, irradiance and temperature under clouds that last."""
    hours = np.arange(n) * step_ms / HOUR
    sun = np.maximum(0.0, np.sin(2 * np.pi * (hours % 24 - 6) / 24))
    clear = 1 / (1 + np.exp(-2 * ar(math.exp(-step_ms / HOUR / 3), (n, 1), rng)[:, 0]))
    light = 1000 * sun * (0.3 + 0.7 * clear)
    noise = rng.standard_normal((n, 2))
    heat = 20 + 8 * np.sin(2 * np.pi * (hours % 24 - 9) / 24) + 0.5 * noise[:, 1]
    return np.column_stack([0.2 * light * (1 + 0.01 * noise[:, 0]), light, heat])


def machine(n: int, step_ms: int, rng: np.random.Generator) -> Floats:
    """Return a machine that runs from about eight to five, five days in seven."""
    days = int(n * step_ms / 86_400_000) + 2
    begins, ends = 8 + 0.5 * rng.standard_normal(days), 17 + 0.5 * rng.standard_normal(days)
    hours = np.arange(n) * step_ms / HOUR
    day = (hours // 24).astype(int)
    runs = (hours % 24 >= begins[day]) & (hours % 24 < ends[day]) & (day % 7 < 5)
    return np.where(runs[:, None], 10.0, 0.0) + ar(0.5, (n, 3), rng)


FAMILIES: dict[str, Make] = {
    "iid": lambda n, step, rng: rng.standard_normal((n, 3)),
    "AR(.9)": lambda n, step, rng: ar(0.9, (n, 3), rng),
    "AR(.99)": lambda n, step, rng: ar(0.99, (n, 3), rng),
    "t(3) through AR(.9)": lambda n, step, rng: np.asarray(
        lfilter([1], [1, -0.9], rng.standard_t(3, (n, 3)), axis=0)
    ),
    "GARCH": lambda n, step, rng: garch(n, rng),
    "regimes of a day": lambda n, step, rng: regimes(n, 24, step, rng),
    "machine on and off": machine,
    "rain": lambda n, step, rng: (
        ar(0.5, (n, 3), rng) + 6 * stretches(n, 72, 3, step, rng)[:, None]
    ),
    "solar": solar,
    "bursts": lambda n, step, rng: (
        ar(0.5, (n, 3), rng) + 4 * stretches(n, 24, 0.5, step, rng)[:, None]
    ),
}  # fmt: skip


def price(family: str, step: str, scale: float, seed: int = 0) -> float:
    """Return alerts a month, without those of the first two windows. O(events)."""
    months, rng = MONTHS[step] * scale, np.random.default_rng([seed, 31])
    every_ms = STEPS[step]
    n = int(months * MONTH / every_ms) + WARM_UP
    X, judging = FAMILIES[family](n, every_ms, rng), engine("Sensor", alarms=Alarms())
    told = set()
    for start in range(0, n, 500):
        rows = enumerate(X[start : start + 500].tolist(), start)
        judging.process(
            [Reading("s", "s", every_ms * i, tuple(row), Position("t", 0, i)) for i, row in rows]
        )
        told |= {i.id for i in judging.take_incidents() if i.opened_seq >= WARM_UP}
    return len(told) / months


def main() -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.price", description=__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--scale", type=float, default=1.0, help="of how long each stream is")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    rows = []
    asked = [(family, step, given.scale) for family in given.families for step in given.steps]
    with ProcessPoolExecutor(given.jobs) as pool:
        cells = pool.map(price, *zip(*asked, strict=True))
        for family in given.families:
            rows.append([family, *itertools.islice(cells, len(given.steps))])
            print(rows[-1], flush=True)
    if given.families != list(FAMILIES) or given.steps != list(STEPS):
        return
    found = [cell for row in rows for cell in row[1:]]
    outside = sum(not 0.3 <= cell <= 3 for cell in found)
    lengths = ", ".join(f"{MONTHS[step] * given.scale:g} at {step}" for step in STEPS)
    write(
        "price", "What an alarm costs",
        [(
            "Alerts a sensor and month where one is asked and nothing is wrong; `Sensor`, three "
            f"channels, n = 2,000. Months of each stream: {lengths}. {outside} of {len(found)} "
            "cells lie outside of .3 to 3.",
            ["stream", *STEPS], rows,
        )],
    )  # fmt: skip


if __name__ == "__main__":
    main()
