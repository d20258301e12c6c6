"""Streams that wander, and nobody answers: how long they are held, how much of them is flagged.

python -m benchmarks.wander [--events 60000] [--streams 3] [--detectors Sensor GMM]

A random walk has no level to come back to; regimes jump to another every 3,000 events on average;
after a recovery to another level a stream never was at, nothing is wrong any more. By the hour a
window of 2,000 is a season of the year: an office has days, weeks and winters, and burns gas by
the temperature outside.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.harness import write
from benchmarks.incidents import ar, engine, play, readings
from rejex_stream.types import IncidentState, Label

Floats = np.ndarray[Any, np.dtype[np.float64]]
AT, YEAR = 12_000, 8_766


def _walk(n: int, rng: np.random.Generator) -> Floats:
    steps = 0.1 * rng.standard_normal((n, 3))
    return np.asarray(np.cumsum(steps, axis=0) + 0.3 * rng.standard_normal((n, 3)))


def _regimes(n: int, rng: np.random.Generator) -> Floats:
    X, start = ar(0.5, (n, 3), rng), 0
    while start < n:
        length = 200 + int(rng.exponential(3000))
        X[start : start + length] += rng.normal(0, 5, 3)
        start += length
    return X


def _amplitude(n: int, rng: np.random.Generator) -> Floats:
    waves = np.sin(2 * np.pi * np.arange(n)[:, None] / [50, 70, 90])
    drift = 1 + 0.5 * ar(0.9995, (n, 3), rng)
    return np.asarray(waves * drift + 0.1 * rng.standard_normal((n, 3)))


def _another(n: int, rng: np.random.Generator) -> Floats:
    """Raise a channel by 8 sd for 1,000 events; it comes back to 3 sd."""
    X = ar(0.9, (n, 3), rng)
    X[AT:, 0] += 3.0
    X[AT : AT + 1_000, 0] += 5.0
    return X


def _office(n: int, rng: np.random.Generator) -> Floats:
    t = np.arange(n)
    day = 25 * np.sin(2 * np.pi * (t / 24 - 0.3)) * (t // 24 % 7 < 5)
    power = 40 + day + 8 * np.cos(2 * np.pi * t / YEAR) + 3 * rng.standard_normal(n)
    return np.asarray(power[:, None])


def _gas(n: int, rng: np.random.Generator) -> Floats:
    t = np.arange(n)
    year, day = np.cos(2 * np.pi * t / YEAR), np.sin(2 * np.pi * (t / 24 - 0.4))
    outside = 10 - 10 * year + 4 * day + 3 * ar(0.98, (n, 1), rng)[:, 0]
    gas = np.maximum(0, 17 - outside) * 1.2 * rng.lognormal(0, 0.15, n)
    return np.column_stack([gas + 0.3 * (t % 24 > 6) * rng.gamma(1, size=n), outside])


STREAMS = {
    "random walk + noise": _walk,
    "AR(.999)": lambda n, rng: ar(0.999, (n, 3), rng),
    "regimes": _regimes,
    "drifting amplitude": _amplitude,
    "back at another level": _another,
    "office by the hour": _office,
    "gas and outside temperature by the hour": _gas,
}
HOURLY = {_office, _gas}


def wanders(detector: str, stream: str, events: int, seeds: int) -> list[Any]:
    """Return one row: shares of the events that have a rank, and incidents per 100,000."""
    flagged, held, rejected, opened, left = [], [], [], 0, 0
    events = 3 * YEAR if STREAMS[stream] in HOURLY else events
    for seed in range(seeds):
        X = STREAMS[stream](events, np.random.default_rng([seed, 5]))
        played = play(engine(detector, channels=X.shape[1]), readings(X))
        ranked = [v for v in played.verdicts if v.rank is not None]
        flagged.append(np.mean([v.label is Label.ANOMALY for v in ranked]))
        rejected.append(np.mean([v.label is Label.REJECTED for v in ranked]))
        held.append(np.mean([v.held for v in ranked]))
        last = {incident.id: incident for incident in played.incidents}
        opened += len(last)
        left += sum(i.state is not IncidentState.CLOSED for i in last.values())
    shares = [float(np.mean(each)) for each in (flagged, rejected, held)]
    return [detector, stream, *shares, 1e5 * opened / events / seeds, left]


def main(arguments: list[str] | None = None) -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wander", description=__doc__)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--detectors", nargs="+", default=["Sensor", "GMM"])
    parser.add_argument("--name", default="wander", help="of the result")
    options = parser.parse_args(arguments)
    rows = [
        wanders(detector, stream, options.events, options.streams)
        for detector in options.detectors
        for stream in STREAMS
    ]
    columns = ["detector", "stream", "flagged", "rejected", "held", "incidents", "open at the end"]
    caption = (
        "Shares of the events, incidents per 100,000, three channels (by the hour one and two, "
        "three years), n = 2,000, γ = .02, nobody answers"
    )
    write(options.name, "Streams that wander", [(caption, columns, rows)], note="Seeded.")


if __name__ == "__main__":
    main()
