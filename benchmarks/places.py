"""Whether faults hide faults: the same one again and again, with places for the extreme or not.

python -m benchmarks.places

One channel through the default detector with shipped refits, incidents not opened, so that the
window alone is seen. On each kind of stream without a fault: how many events are flagged. With a
fault of 60 events every 3,000, eight standard deviations high: how many of its events are
anomalies, and of those from the second fault on.
"""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np

from benchmarks.harness import write
from rejex_stream.detectors import DEFAULT, make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.incidents import Hold
from rejex_stream.rejection import judge
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import FloatArray, Label, Position, Reading, Verdict

__all__ = ["KINDS", "main", "stream"]

EVENTS, EVERY, LONG, HIGH = 60_000, 3000, 60, 8.0
KINDS = ("independent", "AR(.97)", "season", "t(3)")


def stream(kind: str, seed: int = 0, events: int = EVENTS) -> FloatArray:
    """Return values of unit variance, about, shape (events,)."""
    draw = np.random.default_rng(seed)
    noise = draw.normal(size=events)
    if kind == "independent":
        return noise
    if kind == "t(3)":
        return draw.standard_t(3, size=events) / math.sqrt(3)
    if kind == "season":
        daily: FloatArray = np.sin(np.arange(events) * 2 * np.pi / 288) + 0.3 * noise
        return daily
    values = np.empty(events)
    level = 0.0
    for i, step in enumerate(noise.tolist()):
        values[i] = level = 0.97 * level + math.sqrt(1 - 0.97**2) * step
    return values


def faulty(values: FloatArray) -> FloatArray:
    """Return a copy with the fault in it."""
    found = values.copy()
    for start in range(EVERY, len(found) - LONG, EVERY):
        found[start : start + LONG] += HIGH
    return found


def verdicts(values: FloatArray, extreme: float) -> list[Verdict]:
    """Judge a stream; a severity of `extreme` and more has to find a place."""
    spec = EngineSpec(
        make_detector(DEFAULT), FeatureSpec(("x",)), RejectionPolicy(0.02, rate=0.02),
        hold=Hold(enabled=False), evidence=False,
    )  # fmt: skip
    readings = [
        Reading("s", "s", 1000 * i, (value,), Position("t", 0, i))
        for i, value in enumerate(values.tolist())
    ]
    engine, found = Engine(spec, InlineExecutor()), list[Verdict]()
    with patch.object(judge, "EXTREME", extreme):
        for start in range(0, len(readings), 500):
            found += engine.process(readings[start : start + 500])
    return found


def share(found: list[Verdict]) -> float:
    """Return the share of anomalies."""
    return sum(verdict.label is Label.ANOMALY for verdict in found) / len(found)


def main() -> None:
    """Run and write."""
    rows: list[list[object]] = []
    for kind in KINDS:
        values, row = stream(kind), list[object]([kind])
        for feed in (values, faulty(values)):
            with_places, without = (verdicts(feed, least) for least in (judge.EXTREME, math.inf))
            if feed is values:
                differ = sum(a.label != b.label for a, b in zip(with_places, without, strict=True))
                row += [share(without), share(with_places), differ]
                continue
            for least in (0, 2 * EVERY):
                row += [
                    share([v for v in found if v.seq >= max(least, EVERY) and v.seq % EVERY < LONG])
                    for found in (without, with_places)
                ]
        rows.append(row)
    write(
        "places",
        "Places for the extreme",
        [
            (
                f"{EVENTS:,} events, gamma = .02, the default detector, refits; the fault is "
                f"{LONG} events every {EVERY:,}, {HIGH:g} standard deviations high.",
                [
                    "stream",
                    "flagged, no fault, without",
                    "with",
                    "verdicts that differ",
                    "fault anomaly, without",
                    "with",
                    "from the second fault on, without",
                    "with",
                ],
                rows,
            )
        ],
    )


if __name__ == "__main__":
    main()
