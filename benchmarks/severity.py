"""Does a severity happen as often as it says? On streams in which nothing is wrong.

python -m benchmarks.severity [--events 60000] [--streams 3] [--detectors Sensor GMM]

A severity of 2 should come once in 100 events, one of 3 once in 1,000: how many times that often
they come, over all events that later models judge with a full window, and under first models.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.harness import write
from benchmarks.incidents import ar, engine, play, readings
from rejex_stream.incidents import Hold

Floats = np.ndarray[Any, np.dtype[np.float64]]
DETECTORS = ("Sensor", "SensorEnsemble", "GMM", "KNN")
DAY = 288


def _season(shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    phase = 2 * np.pi * np.arange(shape[0])[:, None] / DAY
    return np.asarray(np.sin(phase + rng.uniform(0, 6, shape[1])) + 0.3 * ar(0.5, shape, rng))


STREAMS = {
    "iid": lambda shape, rng: rng.standard_normal(shape),
    "AR(.97)": lambda shape, rng: ar(0.97, shape, rng),
    "t(3)": lambda shape, rng: rng.standard_t(3, shape),
    "season": _season,
}


def often(detector: str, stream: str, events: int, streams: int) -> list[Any]:
    """Return one row: frequencies over what they say, of later models and of first ones."""
    hits: dict[tuple[bool, int], int] = defaultdict(int)
    seen: dict[bool, int] = defaultdict(int)
    for seed in range(streams):
        X = STREAMS[stream]((events, 3), np.random.default_rng([seed, 17]))
        for verdict in play(engine(detector, hold=Hold(enabled=False)), readings(X)).verdicts:
            if verdict.severity is None:
                continue
            first = verdict.model_epoch == 0
            seen[first] += 1
            for level in (2, 3):
                hits[first, level] += verdict.severity >= level
    return [detector, stream, seen[False]] + [
        hits[first, level] * 10**level / max(1, seen[first])
        for first in (False, True)
        for level in (2, 3)
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.severity", description=__doc__)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--detectors", nargs="+", choices=DETECTORS, default=[*DETECTORS])
    parser.add_argument("--kinds", nargs="+", choices=STREAMS, default=[*STREAMS])
    parser.add_argument("--name", default="severity", help="of the result")
    options = parser.parse_args(arguments)
    rows = [
        often(detector, stream, options.events, options.streams)
        for detector in options.detectors
        for stream in options.kinds
    ]
    columns = ["detector", "stream", "events", ">= 2", ">= 3", "first: >= 2", "first: >= 3"]
    caption = (
        "How many times as often as it says a severity comes, three channels, n = 2,000, no hold: "
        "later models and the first one"
    )
    write(options.name, "Severity", [(caption, columns, rows)], note="Seeded.")


if __name__ == "__main__":
    main()
