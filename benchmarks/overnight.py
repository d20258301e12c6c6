"""A second fault while an incident is held, and a fault of eight hours by its sampling.

python -m benchmarks.overnight [--quick]

Three channels of AR(.7) noise, the default detector, n = 2,000. The first is 8 sd off for good,
nobody answers, and nothing is adopted. From 1,100 rows on an interim reference judges as well.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.harness import write
from benchmarks.incidents import MONTH, ar, engine
from rejex_stream.incidents.incident_settings import Alarms, Hold
from rejex_stream.types import Incident, Position, Reading

FIRST, HOUR = 6_000, 3_600_000
STEPS = {"1 min": (60_000, 1), "10 min": (600_000, 4), "1 h": (HOUR, 12)}  # and months
SAME, OTHER = 0, 2
SAMPLED = {"10 min": 600_000, "1 min": 60_000, "1 s": 1_000}


def told(
    n: int, step_ms: int, seed: int, *, phi: float, second: int, channel: int
) -> list[Incident]:
    """Return what is told after the first fault: incidents as they opened, and further channels."""
    X = ar(phi, (n, 3), np.random.default_rng([seed, 47]))
    X[FIRST:, 0] += 8
    if second:
        X[second:, channel] += 4
    hold, found = Hold(adopt_after_events=0), list[Incident]()
    judging = engine("Sensor", alarms=Alarms(), hold=hold, evidence=True)
    for start in range(0, n, 500):
        rows = enumerate(X[start : start + 500].tolist(), start)
        judging.process(
            [Reading("s", "s", step_ms * i, tuple(row), Position("t", 0, i)) for i, row in rows]
        )
        found += judging.take_incidents()
    return found


def false_seconds(step: str, seed: int) -> tuple[int, int, float]:
    """Return second incidents and further channels where there is none, and the months held."""
    step_ms, months = STEPS[step]
    n = FIRST + int(months * MONTH / step_ms)
    changes = told(n, step_ms, seed, phi=0.7, second=0, channel=SAME)
    seconds = {one.id for one in changes if one.within}
    spread = max((len(one.spread) for one in changes), default=0)
    return len(seconds), spread, months


def delay(seed: int, *, phi: float, channel: int, after: int) -> int | None:
    """Return after how many readings a second fault of 4 sd is told; `None`: never."""
    second = FIRST + after
    changes = told(second + 1_000, 60_000, seed, phi=phi, second=second, channel=channel)
    for one in changes:
        is_new = one.within is not None and bool(one.within) and one.opens
        since = (one.spread[0].since_ms if one.spread else -1) >= (second - 30) * 60_000
        if one.changed_seq >= second and (is_new or since):
            return one.changed_seq - second
    return None


def is_told_of(step_ms: int, sd: float, seed: int) -> bool:
    """Whether an incident opens in eight hours of a fault in one channel."""
    stop = FIRST + 8 * HOUR // step_ms
    X = ar(0.7, (stop, 3), np.random.default_rng([seed, 53]))
    X[FIRST:, 0] += sd
    judging = engine("Sensor", alarms=Alarms(), hold=Hold(), evidence=True)
    for start in range(0, stop, 500):
        rows = enumerate(X[start : start + 500].tolist(), start)
        judging.process(
            [Reading("s", "s", step_ms * i, tuple(row), Position("t", 0, i)) for i, row in rows]
        )
    return any(one.opens and one.changed_seq >= FIRST for one in judging.take_incidents())


def main() -> None:
    """Print and keep both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overnight", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 seeds, nothing is kept")
    seeds = range(4 if parser.parse_args().quick else 20)
    nulls = []
    for step in STEPS:
        counts = [false_seconds(step, seed) for seed in seeds]
        months = sum(one[2] for one in counts)
        nulls.append([step, months, *(sum(one[i] for one in counts) / months for i in (0, 1))])
        print(nulls[-1], flush=True)
    delays = []
    for name, channel, phi, after, within in (
        ("the same channel", SAME, 0.7, 1_200, 100),
        ("the same channel, later", SAME, 0.7, 2_500, 100),
        ("another channel", OTHER, 0.7, 700, 60),
        ("another channel, later", OTHER, 0.7, 2_500, 60),
        ("another channel, AR(.99)", OTHER, 0.99, 2_500, 60),
    ):
        found = [delay(seed, phi=phi, channel=channel, after=after) for seed in seeds]
        known = sorted(one for one in found if one is not None)
        share = f"{sum(one <= within for one in known)} of {len(found)}"
        delays.append([name, after, within, share, known[len(known) // 2] if known else None])
        print(delays[-1], flush=True)
    shifts = []
    for sd in (2, 3, 4):
        told_at = [sum(is_told_of(ms, sd, seed) for seed in seeds[:10]) for ms in SAMPLED.values()]
        shifts.append([f"{sd} sd", *told_at])
        print(shifts[-1], flush=True)
    if len(seeds) < 20:
        return
    write(
        "overnight", "A second fault while an incident is held",
        [
            (
                "Second incidents and further channels a month held, where one false alarm a month "
                f"is asked and there is no second fault; {len(seeds)} seeds.",
                ["step", "months", "second incidents", "further channels"], nulls,
            ),
            (
                "A second fault of 4 sd that stays, so many rows after the first.",
                ["in", "rows after", "within", "told so", "median"], delays,
            ),
            (
                "A fault of eight hours in one of three channels, at readings so far apart: told "
                "of how many of ten seeds.",
                ["fault", *SAMPLED], shifts,
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
