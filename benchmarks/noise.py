"""A channel whose noise goes while its signal goes on: told after how many events, and how else.

python -m benchmarks.noise

A sine with noise of a tenth, the default detector, n = 2,000; seven stretches of 200 readings
without the noise. What else is told on the same streams is counted beside it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.harness import write
from benchmarks.incidents import engine
from rejex_stream.incidents.incident_settings import Alarms, Hold
from rejex_stream.types import Incident, Position, Reading

FIRST, EVERY, LONG, STRETCHES = 6_007, 2_613, 200, 7
PERIODS = (24, 50, 200)


def told(period: int) -> list[Incident]:
    """Return the incidents that opened."""
    n, rng = FIRST + STRETCHES * EVERY, np.random.default_rng([period, 59])
    noise = 0.1 * rng.standard_normal(n)
    for start in range(FIRST, n, EVERY):
        noise[start : start + LONG] = 0.0
    x, found = np.sin(2 * np.pi * np.arange(n) / period) + noise, list[Incident]()
    judging = engine("Sensor", channels=1, alarms=Alarms(), hold=Hold(), evidence=True)
    for start in range(0, n, 500):
        rows = enumerate(x[start : start + 500].tolist(), start)
        judging.process(
            [Reading("s", "s", 60_000 * i, (value,), Position("t", 0, i)) for i, value in rows]
        )
        found += judging.take_incidents()
    return [one for one in found if one.opens]


def main() -> None:
    """Print and keep the table."""
    rows = []
    for period in PERIODS:
        delays, by_noise, others = [], 0, 0
        seen = set[int]()
        for one in told(period):
            stretch, after = divmod(one.changed_seq - FIRST, EVERY)
            if after >= LONG or stretch < 0:
                others += 1
            elif stretch not in seen:
                seen.add(stretch)
                delays.append(after)
                by_noise += any(limit.quiet_events for limit in one.limits)
        delays.sort()
        span = f"{delays[0]} to {delays[-1]}" if delays else "-"
        rows.append([period, f"{len(delays)} of {STRETCHES}", by_noise, span, others])
        print(rows[-1], flush=True)
    write(
        "noise", "Noise that goes while the signal goes on",
        [(
            f"A sine with noise of a tenth; {STRETCHES} stretches of {LONG} readings without the "
            "noise; one false alarm a month is asked, a reading a minute.",
            ["period", "told", "by the law of noise", "after events", "told elsewhere"], rows,
        )],
    )  # fmt: skip


if __name__ == "__main__":
    main()
