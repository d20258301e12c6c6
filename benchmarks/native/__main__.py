"""What a native extension would give: the window in C, and all that an event goes through.

python -m benchmarks.native [--quick]

Both are compiled with the machine's C compiler, checked against the product score by score and
verdict by verdict, and then measured beside the product's engine: processor time, in turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import ratio, write
from benchmarks.scaling import EVENTS, Fleet, bare
from rejex_stream.detectors import make_detector
from rejex_stream.rejection import judge as verdict
from rejex_stream.rejection.window import ScoreWindow, WindowAhead
from rejex_stream.types import FloatArray, Reading, Reason, Verdict

N, CHANNELS = 2000, 8
LINES = [("GMM", 1, 500, 1.6), ("GMM", 1, 1, None), ("HBOS", 1, 1, None), ("GMM", 1000, 1, 8.0)]
"""Detector, keys, events of each in a poll, and the aim beside bare work."""


def compiled(folder: Path) -> Any:
    """Compile the prototype and import it.

    Raises
    ------
    SystemExit
        If there is no C compiler, or it cannot.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("benchmarks.native: there is no C compiler (cc, gcc or clang) on this machine.")
    made = folder / "hot.so"
    include = sysconfig.get_path("include")
    source = Path(__file__).with_name("hot.c")
    words = [compiler, "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{include}", str(source)]
    words += ["-o", str(made), "-lm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"benchmarks.native: {compiler} cannot compile hot.c:\n{done.stderr}")
    spec = importlib.util.spec_from_file_location("hot", made)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def window_of(module: Any) -> type:
    """Return a window in C that can stand where the product's stands."""

    class NativeWindow(module.Window):  # type: ignore[misc]
        def __init__(self, capacity: int, scores: Iterable[float] = ()) -> None:
            super().__init__(capacity)
            for score in scores:
                self.push(score)

        @property
        def is_constant(self) -> bool:
            return len(self) > 0 and self.order_statistic(1) == self.order_statistic(len(self))

        def in_order(self) -> FloatArray:
            return np.array(self.scores())

    return NativeWindow


class Streams:
    """Judges in C the streams of an engine, from readings to verdicts, as far as it has come.

    For a GMM of one component, full windows and what is not unusual: the input is not looked at, no
    rows are kept for refits, no incident opens, and nobody plans, mutes, commands or explains.
    """

    def __init__(self, module: Any, engine: Any, newest: Iterable[Verdict]) -> None:
        live = engine._live
        self._streams = {v.stream_key: _stream(module, live[v.stream_key], v) for v in newest}

    def process(self, readings: Sequence[Reading]) -> list[Verdict]:
        """Return the verdicts of readings."""
        streams = self._streams
        return [streams[reading[0]].judge(reading) for reading in readings]


def _stream(module: Any, state: Any, newest: Verdict) -> Any:
    """Return the stream as it stands; what does not change in its verdicts is as in the newest."""
    judge, watcher = state._judge, state._judge._watcher
    window = module.Window(judge.window.capacity)
    for score in judge.window.scores():
        window.push(score)
    full, tail = judge._look_up(), judge.tail
    return module.Stream(
        window,
        state.model._serving.fitted.scorer.inner._plain,
        full.band.edges,
        judge._policy.ties == "mid",
        (full.p_anomalies, full.confidences, full.severities),
        (tail.ordered, tail._of_ranks, tail._sigma, tail._shape, tail._start, tail._shade),
        (watcher.least, watcher.ordinary, watcher.most, watcher.limit),
        Verdict,
        tuple(map(full.band.label, (full.band.edges[0] - 1, *full.band.edges))),
        Reason.AMBIGUOUS,
        msgspec.structs.astuple(newest),
        state.seq,
    )


def whole(module: Any, detector: str, keys: int) -> Fleet:
    """Return a fleet that is judged in C."""
    fleet = Fleet(detector, N, CHANNELS, keys)
    fleet._engine = Streams(module, fleet._engine, fleet.judged(1))  # type: ignore[assignment]
    return fleet


@contextmanager
def in_place(window: type) -> Iterator[None]:
    """Have the engine use a window, event by event: a block of numpy's is slower than one in C."""
    kept = verdict.ScoreWindow, verdict.SHORTEST
    verdict.ScoreWindow, verdict.SHORTEST = window, 1 << 60  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        verdict.ScoreWindow, verdict.SHORTEST = kept  # type: ignore[misc]


def require_equal(window: type, events: int) -> None:
    """Refuse a window that differs from the product's, with ties and zeros of any sign."""
    draw = np.random.default_rng(1)
    scores = [*draw.normal(size=events).tolist(), *(draw.integers(-9, 9, events) / -4.0).tolist()]
    ours, native = ScoreWindow(N), window(N)
    for score in scores:
        assert ours.rank(score) == native.rank(score)
        assert ours.push(score) == native.push(score)
        k = 1 + hash(score) % len(ours)
        assert ours.order_statistic(k) == native.order_statistic(k)
    assert ours.scores() == native.scores()
    assert list(ours.largest(50)) == native.largest(50)
    assert ours.is_constant is native.is_constant is False
    fleet = Fleet("GMM", N, CHANNELS, 2)
    with in_place(window):
        other = Fleet("GMM", N, CHANNELS, 2)
    for each in (1, 7, 300):
        verdicts = fleet.judged(each)
        with in_place(window):
            assert other.judged(each) == verdicts


def require_equal_verdicts(module: Any, events: int) -> None:
    """Refuse streams in C that say other things than the product's engine."""
    fleet, native = Fleet("GMM", N, CHANNELS, 2), whole(module, "GMM", 2)
    fleet.judged(1)
    seen = set()
    for each in (1, 7, events):
        verdicts = fleet.judged(each)
        assert native.judged(each) == verdicts
        seen |= {verdict.label for verdict in verdicts}
    assert len(seen) == 3, seen


def windows(window: type, turns: int) -> list[list[Any]]:
    """Return what an event costs in each window alone, beside bare work."""
    draw = np.random.default_rng(0)
    first, scores = draw.random(N).tolist(), draw.random(EVENTS).tolist()

    def one_by_one(made: Any) -> float:
        rank, push = made.rank, made.push
        start = time.process_time()
        for score in scores:
            rank(score)
            push(score)
        return 1e6 * (time.process_time() - start) / EVENTS

    def ahead() -> float:
        made = ScoreWindow(N, first)
        start = time.process_time()
        for at in range(0, EVENTS, 500):
            block = WindowAhead(made, scores[at : at + 500], 100)
            for score in scores[at : at + 500]:
                block.push(score)
            block.settle()
        return 1e6 * (time.process_time() - start) / EVENTS

    ways = {
        "SortedList, bare": lambda: bare(N),
        "ScoreWindow, one by one": lambda: one_by_one(ScoreWindow(N, first)),
        "WindowAhead, blocks of 500": ahead,
        "in C, one by one": lambda: one_by_one(window(N, first)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            taken[name].append(way())
    beside = taken["SortedList, bare"]
    return [[name, statistics.median(us), ratio(us, beside)] for name, us in taken.items()]


def scoring(detector: str, each: int, turns: int) -> float:
    """Return µs a row of the scorer alone, in calls of so many rows."""
    rows = np.random.default_rng(0).normal(size=(EVENTS, CHANNELS))
    scorer, taken = make_detector(detector).fit(rows[:1000], seed=0), []
    by_row, kept = getattr(scorer, "by_row", None), rows.tolist()
    score_row = None if by_row is None else by_row()
    for _ in range(turns):
        start = time.process_time()
        if each == 1 and score_row is not None:  # as the engine does
            for row in kept:
                score_row(row)
        else:
            for at in range(0, EVENTS, each):
                scorer.score(rows[at : at + each])
        taken.append(1e6 * (time.process_time() - start) / EVENTS)
    return statistics.median(taken)


def lines(module: Any, window: type, keys: int | None, turns: int) -> list[list[Any]]:
    """Return the lines of the engine: as it is, with the window in C, and all of it in C."""
    found = []
    for detector, wanted, each, aim in LINES:
        many = wanted if keys is None else min(wanted, keys)
        ours = Fleet(detector, N, CHANNELS, many)
        with in_place(window):
            native = Fleet(detector, N, CHANNELS, many)
        fleets = {"as it is": ours, "with C": native}
        if detector == "GMM":
            fleets["all in C"] = whole(module, detector, many)
        beside: list[float] = []
        taken: dict[str, list[float]] = {name: [] for name in fleets}
        for _ in range(turns + 1):
            beside.append(bare(N))
            for name, fleet in fleets.items():
                with in_place(window) if fleet is native else nullcontext():
                    taken[name].append(fleet.us(each))
        for figures in (beside, *taken.values()):
            del figures[0]  # everything was cold
        alone, names = scoring(detector, each, turns), ("as it is", "with C", "all in C")
        found.append(
            [
                detector, many, each,
                *(statistics.median(taken[name]) if name in taken else "-" for name in names),
                alone,
                *(ratio(taken[name], beside) if name in taken else "-" for name in names),
                "-" if aim is None else aim,
            ]
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Compile, check, run and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 keys, few turns, no results")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        module = compiled(Path(folder))
        window = window_of(module)
        require_equal(window, 500 if quick else 20_000)
        require_equal_verdicts(module, 500 if quick else 2_000)
        turns = 2 if quick else 9
        alone = windows(window, turns)
        engine = lines(module, window, 100 if quick else None, turns)
    if quick:
        print("the same ranks, order statistics and verdicts")
        return
    write(
        "native",
        "The window in C, in the place of the product's, and all of an event in C",
        [
            (
                f"The window alone, n = {N:,}: rank, evict, insert.",
                ["window", "µs/event", "beside bare SortedList"],
                alone,
            ),
            (
                f"The engine, n = {N:,}, {CHANNELS} channels, a model each, no refits: as it is, "
                "with the window in C, and with all in C that an event goes through where nothing "
                "is unusual, from the reading to the same verdict (without a look at the input, "
                "rows kept for refits, incidents, plans, mutes); of the first two, what the "
                "scorer takes alone. Then beside bare SortedList work in the same turn, and the "
                "aim of that.",
                ["detector", "keys", "events a key and poll", "µs/event", "window in C", "all in C",
                 "scorer alone", "beside bare", "window in C, beside bare",
                 "all in C, beside bare", "aim"],
                engine,
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
