"""Does a severity happen as often as it says? On streams in which nothing is wrong.

python -m benchmarks.severity [--events 60000] [--streams 6] [--detectors Sensor GMM]

A severity of 2 should come once in 100 events, one of 3 once in 1,000: how many times that often
they come, over all events that later models judge with a full window, and under first models.
"""

from __future__ import annotations

import argparse
import statistics
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
    ratios: dict[tuple[bool, int], list[float]] = defaultdict(list)
    n_later = 0
    for seed in range(streams):
        X = STREAMS[stream]((events, 3), np.random.default_rng([seed, 17]))
        verdicts = play(engine(detector, hold=Hold(enabled=False)), readings(X)).verdicts
        known = [(v.severity, v.model_epoch == 0) for v in verdicts if v.severity is not None]
        for first in (False, True):
            said = [severity for severity, by_first in known if by_first is first]
            n_later += 0 if first else len(said)
            for level in (2, 3):
                reached = sum(severity >= level for severity in said)
                ratios[first, level].append(reached * 10**level / max(1, len(said)))
    later = [
        figure
        for level in (2, 3)
        for figure in (statistics.mean(ratios[False, level]), _error(ratios[False, level]))
    ]
    return [
        detector, stream, n_later, *later,
        *(statistics.mean(ratios[True, level]) for level in (2, 3)),
    ]  # fmt: skip


def _error(each: list[float]) -> float | str:
    """Return the standard error of the mean over streams, which are independent."""
    return statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else "-"


def main(arguments: list[str] | None = None) -> None:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.severity", description=__doc__)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--detectors", nargs="+", choices=DETECTORS, default=[*DETECTORS])
    parser.add_argument("--kinds", nargs="+", choices=STREAMS, default=[*STREAMS])
    parser.add_argument("--name", default="severity", help="of the result")
    options = parser.parse_args(arguments)
    rows = [
        often(detector, stream, options.events, options.streams)
        for detector in options.detectors
        for stream in options.kinds
    ]
    columns = [
        "detector", "stream", "events", ">= 2", "±", ">= 3", "± ", "first: >= 2", "first: >= 3",
    ]  # fmt: skip
    caption = (
        "How many times as often as it says a severity comes, three channels, n = 2,000, no hold: "
        "later models (with the standard error over streams) and the first one"
    )
    write(options.name, "Severity", [(caption, columns, rows)], note="Seeded.")


if __name__ == "__main__":
    main()
