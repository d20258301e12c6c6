"""What the native core gives: the engine with it and without, in turns, the same verdicts.

One stream, in blocks and one at a time; and many, of which each has one event in a poll.

python -m benchmarks.native [--quick]: the versions, and a line for each as it is measured.

It has to be built (make native). Both cores are checked against each other verdict by verdict, and
then measured: processor time, in turns, beside bare work on a SortedList.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from benchmarks.harness import machine, ratio, write
from benchmarks.scaling import Fleet, bare
from rejex_stream.engine.engine import core

N, CHANNELS = 2000, 8
DETECTORS = ("GMM", "HBOS", "Sensor", "KNN")
AIMS = {("GMM", 1, 500): 0.7, ("HBOS", 1, 500): 0.7, ("HBOS", 1000, 1): 2.0}
"""Of engine work beside bare, with a cheap detector, by streams and events of each in a poll."""
FLEETS = [("HBOS", 100), ("HBOS", 1000), ("Sensor", 100)]


def row(detector: str, keys: int, each: int, turns: int) -> list[object]:
    """Return one line: both cores judge the same events in turns."""
    fleets = {
        name: Fleet(detector, N, CHANNELS, keys, native=name == "native")
        for name in ("python", "native")
    }
    for count in {1, 7 if keys == 1 else 3, each}:
        said = [fleet.judged(count) for fleet in fleets.values()]
        if said[0] != said[1]:
            sys.exit(f"benchmarks.native: the cores differ, {detector}, {keys} x {count} events")
    taken: dict[str, list[float]] = {"bare": [], "each": [], "python": [], "native": []}
    for _ in range(turns):
        taken["bare"].append(bare(N))
        taken["each"].append(bare(N, lists=keys) if keys > 1 else taken["bare"][-1])
        for name, fleet in fleets.items():
            taken[name].append(fleet.us(each))
    python, native = taken["python"], taken["native"]
    aim = AIMS.get((detector, keys, each), "-")
    found: list[object] = [detector, keys, each, statistics.median(python)]
    found += [statistics.median(native), ratio(python, native)]
    found += [ratio(python, taken["bare"]), ratio(native, taken["bare"])]
    found += [ratio(taken["each"], taken["bare"]), aim]
    print(found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn, no results")
    quick = parser.parse_args().quick
    native, why = core()
    if native is None:
        sys.exit(f"benchmarks.native: {why}")
    turns = 1 if quick else 5
    detectors = DETECTORS[:3] if quick else DETECTORS
    about = machine()
    print(about["cpu"], f"Python {about['python']}", about["versions"], why, sep="; ")
    rows = [row(name, 1, each, turns) for name in detectors for each in (500, 1)]
    many = [row(name, keys, 1, turns) for name, keys in ([("HBOS", 20)] if quick else FLEETS)]
    if quick:
        print("the same verdicts")
        return
    columns = ["detector", "streams", "events of each in a poll", "Python µs/event",
               "native µs/event", "Python / native", "Python beside bare", "native beside bare",
               "bare on a list for each beside bare", "aim"]  # fmt: skip
    write(
        "native",
        "The engine with the native core and without",
        [
            (
                f"One stream, n = {N:,}, {CHANNELS} channels, no refits; from the reading to the "
                "verdict.",
                columns,
                rows,
            ),
            ("Many streams, each with a window and a model of its own.", columns, many),
        ],
    )


if __name__ == "__main__":
    main()
