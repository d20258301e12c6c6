"""How often a warm-up is said to hold a fault: where nothing is wrong, and where one begins in it.

python -m benchmarks.warmup [--streams N]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from benchmarks.harness import write
from rejex_stream.incidents.thresholds import is_mixed
from rejex_stream.types import FloatArray

__all__ = ["NULLS", "SEASON_AS_LONG", "STEPS", "main"]

Make = Callable[[np.random.Generator, int], FloatArray]
LENGTHS = (250, 1000)
_BEGIN = 500  # events of an AR process before the first that is looked at


def ar(rng: np.random.Generator, n: int, phi: float) -> FloatArray:
    """Draw an AR(1) process of variance 1."""
    shocks = rng.standard_normal(n + _BEGIN) * math.sqrt(1 - phi * phi)
    found: FloatArray = lfilter([1.0], [1.0, -phi], shocks)[_BEGIN:]
    return found


def season(rng: np.random.Generator, n: int, length: int, phi: float) -> FloatArray:
    """Draw a sine of any phase over an AR process."""
    turns = np.arange(n) / length + rng.random()
    return np.sin(2 * math.pi * turns) + 0.7 * ar(rng, n, phi)


def step(rng: np.random.Generator, n: int, size: float, at: float, phi: float) -> FloatArray:
    """Draw an AR process that is raised from somewhere on."""
    return ar(rng, n, phi) + size * (np.arange(n) >= at * n)


NULLS: dict[str, Make] = {
    "independent": lambda rng, n: rng.standard_normal(n),
    "Student t, 3 degrees": lambda rng, n: rng.standard_t(3, n),
    "lognormal": lambda rng, n: np.exp(rng.standard_normal(n)),
    **{
        f"AR({str(phi)[1:]})": lambda rng, n, phi=phi: ar(rng, n, phi)
        for phi in (0.5, 0.9, 0.95, 0.99)
    },
    **{
        f"season of n/{turns}, AR({str(phi)[1:] if phi else 0})": (
            lambda rng, n, turns=turns, phi=phi: season(rng, n, n // turns, phi)
        )
        for turns in (40, 10, 4, 2)
        for phi in (0.0, 0.9)
    },
}
SEASON_AS_LONG: dict[str, Make] = {
    "season of n, AR(.9)": lambda rng, n: season(rng, n, n, 0.9),
    "season of 2 n, AR(.9)": lambda rng, n: season(rng, n, 2 * n, 0.9),
    "random walk": lambda rng, n: np.cumsum(rng.standard_normal(n)),
}
STEPS: dict[str, Make] = {
    f"{size} sd from {at:.0%} on, AR({str(phi)[1:] if phi else 0})": (
        lambda rng, n, size=size, at=at, phi=phi: step(rng, n, size, at, phi)
    )
    for phi in (0.0, 0.9, 0.95, 0.99)
    for size in (3, 8)
    for at in (0.5,)
}
_LATE: dict[str, Make] = {
    f"{size} sd from 80% on, AR({str(phi)[1:] if phi else 0})": (
        lambda rng, n, size=size, phi=phi: step(rng, n, size, 0.8, phi)
    )
    for phi in (0.0, 0.9, 0.95)
    for size in (3, 8)
}


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    streams = parser.parse_args().streams
    tables = []
    for caption, made in (
        ("Nothing is wrong: each of these is a false alarm.", NULLS),
        ("Nothing is wrong, and it changes too slowly to be told from a fault.", SEASON_AS_LONG),
        ("A fault begins in the warm-up.", STEPS | _LATE),
    ):
        rows = [[name, *(said(make, n, streams) for n in LENGTHS)] for name, make in made.items()]
        tables.append((caption, ["stream", *(f"said, n = {n:,}" for n in LENGTHS)], rows))
    write(
        "warmup",
        "A warm-up that holds a fault",
        tables,
        note=f"Share of {streams:,} streams of one channel whose first n rows (those of the first "
        "fit: half a window by default) are said to be of two kinds "
        "(`rejex_stream.incidents.thresholds`); each channel is tested.",
    )


def said(make: Make, n: int, streams: int) -> str:
    """Return in how many streams it is said."""
    rng = np.random.default_rng(n)
    return f"{sum(is_mixed(make(rng, n)[:, None]) for _ in range(streams)) / streams:.2%}"


if __name__ == "__main__":
    main()
