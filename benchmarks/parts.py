"""Which part of an event's time costs what: a whole worker, and the engine alone.

python -m benchmarks.parts [--sensors 1000] [--polls 60]

A sampling profile: every millisecond a thread of ours looks where the others are, and gives what
each has had of the processor since the last look (by its own clock) to the part that it is in. So
nothing is slower for being called often, as with cProfile; but a look falls on calls and loops
only, so neighbouring parts blur by a call. What this thread takes itself is nobody's.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from types import FrameType

from benchmarks.engine import EVENTS, Fleet, bare
from benchmarks.harness import write
from benchmarks.worker import cores, use
from benchmarks.worker import row as worker

LOOK_S = 0.001
TURNS = 12

OWNERS = {
    "rejex_stream/decode/": "decoding",
    "rejex_stream/engine/explanation.py": "evidence",
    "rejex_stream/engine/refit.py": "fits",
    "rejex_stream/run/review_items.py": "review items",
    "rejex_stream/monitor/": "monitors",
    "rejex_stream/engine/sensor_registry.py": "who is heard of",
    "rejex_stream/operate/": "metrics",
    "rejex_stream/encode/": "encoding, messages",
    "rejex_connectors/": "encoding, messages",
}
"""Whatever is called from here belongs to it."""
PARTS = {
    "_rows_one_by_one": "features",
    "_rows_at_once": "features",
    "rejex_stream/features/": "features",
    "rejex_stream/detectors/": "scoring",
    "rejex_stream/rejection/window.py": "rank, window",
    "sortedcontainers/": "rank, window",
    "rejex_stream/rejection/": "judging: band, label, severity, verdict",
    "rejex_stream/engine/model.py": "row buffer",
    "rejex_stream/incidents/": "incidents, plans, mutes",
    "rejex_stream/engine/engine.py": "engine: the batch, by key",
    "rejex_stream/engine/stream_state.py": "engine: a stream",
    "rejex_stream/engine/": "engine: other",
    "rejex_stream/run/commit.py": "commits",
    "rejex_stream/run/": "loop, outcomes",
}
"""Of an engine and a loop: the innermost of these."""
ENGINE = "Engine.process"
ASIDE = "making readings"
NAMES = list(dict.fromkeys([*PARTS.values(), *OWNERS.values()]))


class Looks:
    """Processor time of other threads by part, from when it begins to when it ends."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = dict.fromkeys([*NAMES, ASIDE], 0.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._known: dict[object, str | None] = {}

    def begin(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._stop.set()

    def end(self) -> dict[str, float]:
        """Return the seconds of each part."""
        self.stop()
        self._thread.join()
        return self.spent

    def _look(self) -> None:
        before: dict[int, float] = {}
        while not self._stop.wait(LOOK_S):
            frames = sys._current_frames()
            frames.pop(threading.get_ident())
            for thread, frame in frames.items():
                now = time.clock_gettime(time.pthread_getcpuclockid(thread))
                self.spent[self._part(frame)] += now - before.get(thread, now)
                before[thread] = now

    def _part(self, frame: FrameType | None) -> str:
        innermost = ""
        owner = ""
        while frame is not None:
            code = frame.f_code
            if code not in self._known:
                self._known[code] = _named(code.co_filename, code.co_name)
            part = self._known[code]
            if part == ENGINE:  # whoever times it from outside does not own it
                return owner or innermost or PARTS["rejex_stream/engine/engine.py"]
            if part == ASIDE:
                return ASIDE
            if part in OWNERS.values():
                owner = part or owner
            elif part and not innermost:
                innermost = part
            frame = frame.f_back
        return owner or innermost or ASIDE


def _named(path: str, function: str) -> str | None:
    if function == "process" and path.endswith("rejex_stream/engine/engine.py"):
        return ENGINE
    for known in (OWNERS, PARTS):
        for name, part in known.items():
            if name in path or name == function:
                return part
    return ASIDE if path.endswith("benchmarks/worker.py") and function == "poll" else None


def of_worker(sensors: int, polls: int) -> tuple[dict[str, float], float]:
    """Return µs an event of each part of a whole worker, and of bare work in the same run."""
    looks = Looks()
    found = worker("HBOS", "full", sensors, polls, 1, looks.begin, looks.stop)
    spent = looks.end()
    return {part: 1e6 * spent[part] / (sensors * polls) for part in NAMES}, float(str(found[5]))


def of_engine(
    detector: str, keys: int, n: int, refit_every: int | None = None
) -> tuple[dict[str, float], float]:
    """Return the same of an engine alone, a reading of each key in a call; one refit, if any."""
    fleet = Fleet(detector, n, 4, keys, refit_every)
    fleet.us(1)
    polls = max(1, EVENTS // keys)
    turns = TURNS if refit_every is None else refit_every // polls
    looks = Looks()
    looks.begin()
    beside = 0.0
    for _ in range(turns):
        fleet.us(1)
        beside += bare(n) / turns
    spent = looks.end()
    return {part: 1e6 * spent[part] / (turns * polls * keys) for part in NAMES}, beside


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--polls", type=int, default=60, help="of the worker")
    asked = parser.parse_args()
    many = asked.sensors
    runs = {}
    for name in cores():
        use(name)
        runs[f"worker, {name} core, HBOS, {many:,} sensors"] = of_worker(many, asked.polls)
    use("Python")
    for keys in (many, 1):
        for detector in ("HBOS", "GMM", "Sensor"):
            runs[f"engine, {detector}, {keys:,} sensors"] = of_engine(detector, keys, 200)
    refitted = of_engine("Sensor", many, 200, refit_every=400)
    runs[f"engine, Sensor, {many:,} sensors, a refit every 400"] = refitted
    rows: list[list[object]] = [[part, *(run[part] for run, _ in runs.values())] for part in NAMES]
    rows.append(["all of it", *(sum(run.values()) for run, _ in runs.values())])
    rows.append(
        ["bare SortedList work in the same run", *(bare_us for _, bare_us in runs.values())]
    )
    write(
        "parts",
        "Which part of an event's time costs what",
        [
            (
                "µs an event, one event of each sensor in a poll, by a sampling profile; n = 200. "
                "The worker has 3 channels and everything on, without a broker; the engine alone, "
                "Python's, 4 channels and no evidence. What the native core does is its caller's, "
                "or that of what it calls next.",
                ["part", *runs],
                rows,
            )
        ],
    )


if __name__ == "__main__":
    main()
