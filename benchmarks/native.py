"""What the native core gives: the engine with it and without, in turns, the same verdicts.

python -m benchmarks.native [--quick]

It has to be built (make native). Both cores are checked against each other verdict by verdict, and
then measured: processor time, in turns, beside bare work on a SortedList.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from benchmarks.harness import ratio, write
from benchmarks.scaling import Fleet, bare
from rejex_stream.engine.engine import core

N, CHANNELS = 2000, 8
DETECTORS, AIMS = ("GMM", "HBOS", "Sensor", "KNN"), {500: 0.7, 1000: 2.0}
"""The aims of engine work beside bare: in blocks of 500, and with an event of each of 1,000."""


def row(detector: str, keys: int, each: int, turns: int) -> list[object]:
    """Return one line: both cores judge the same events in turns."""
    fleets = {
        name: Fleet(detector, N, CHANNELS, keys, native=name == "native")
        for name in ("python", "native")
    }
    for count in (1, 7, each):
        said = [fleet.judged(count) for fleet in fleets.values()]
        if said[0] != said[1]:
            sys.exit(f"benchmarks.native: the cores differ, {detector}, {keys} x {count}")
    taken: dict[str, list[float]] = {"bare": [], "python": [], "native": []}
    for _ in range(turns):
        taken["bare"].append(bare(N))
        for name, fleet in fleets.items():
            taken[name].append(fleet.us(each))
    python, native = taken["python"], taken["native"]
    aim = AIMS.get(each if keys == 1 else keys, "-")
    found: list[object] = [detector, keys, each, statistics.median(python)]
    found += [statistics.median(native), ratio(python, native)]
    found += [ratio(python, taken["bare"]), ratio(native, taken["bare"]), aim]
    print(found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 keys, one turn, no results")
    quick = parser.parse_args().quick
    lane, why = core()
    if lane is None:
        sys.exit(f"benchmarks.native: {why}")
    many, turns = (50, 1) if quick else (1000, 5)
    detectors = DETECTORS[:2] if quick else DETECTORS
    rows = [row(name, 1, each, turns) for name in detectors for each in (500, 1)]
    rows.append(row(detectors[0], many, 1, turns))  # a fleet takes long to make
    if quick:
        print("the same verdicts")
        return
    write(
        "native",
        "The engine with the native core and without",
        [
            (
                f"n = {N:,}, {CHANNELS} channels, a model each, no refits; from the reading to the "
                "verdict.",
                ["detector", "keys", "events a key and poll", "Python µs/event", "native µs/event",
                 "Python / native", "Python beside bare", "native beside bare", "aim"],
                rows,
            )
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
