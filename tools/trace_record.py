"""The way of one record through the code: which files it passes from bytes to a durable outcome.

    python tools/trace_record.py            how many files and moves, and the files in order
    python tools/trace_record.py --calls    every call

A pipeline from a file to a file goes on over a feed, each record polled, judged and committed by
itself. What fifty more of them add to a run is the way of each: what happens once a run, or now and
then (a fit, a snapshot, a line of progress), is left out, however slow the machine is. A move is a
call into another file than the call before it on the same thread.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CONNECTORS = ROOT / "connectors"
EVENTS = 1_500
CONFIG = """\
[pipeline]
name = "pump"
[input]
path = "feed.csv"
channels = ["flow"]
fixed_sensor = "p"
time = "t"
time_unit = "s"
[detector]
name = "HBOS"
[rejection]
contamination = 0.05
tolerance = 4
window = 200
"""
EVERYTHING = """\
[features]
columns = [{ kind = "raw", channel = "flow" }, { kind = "mean", channel = "flow", events = 5 }]
"""
ONE_BY_ONE = """\
[run]
max_poll_records = 1
commit_interval_s = 0.0
[refit]
executor = "inline"
[state]
snapshot_interval_s = 3600.0
"""
BY_THE_CLOCK = frozenset(("_Loop._report", "RunMetrics.refresh"))
"""What does more than return now and then, by time."""


class Call(NamedTuple):
    """A function that was entered: its file, as seen from the repository, and its name."""

    file: str
    function: str


class Trace:
    """Notes every call into the product while it is on, each thread by itself.

    Of what functions named in `aside` call, nothing is noted.
    """

    def __init__(self, aside: Collection[str] = ()) -> None:
        self.threads: dict[int, list[Call]] = defaultdict(list)
        self._known: dict[str, str | None] = {}
        self._aside, self._within = aside, dict[int, FrameType]()

    @property
    def calls(self) -> list[Call]:
        """All calls, one thread after the other."""
        return [call for calls in self.threads.values() for call in calls]

    @property
    def moves(self) -> int:
        """How often a call went into another file than the one before it on its thread."""
        return sum(
            one.file != other.file
            for calls in self.threads.values()
            for one, other in pairwise(calls)
        )

    def _file(self, name: str) -> str | None:
        if name not in self._known:
            path = Path(name)
            inside = path.is_relative_to(ROOT / "rejex_stream") or path.is_relative_to(CONNECTORS)
            self._known[name] = str(path.relative_to(ROOT)) if inside else None
        return self._known[name]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if event == "return" and self._within.get(thread) is frame:
            del self._within[thread]
        if event != "call" or thread in self._within:
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class is made
            return
        if (file := self._file(code.co_filename)) is not None:
            self.threads[thread].append(Call(file, code.co_qualname))
            if code.co_qualname in self._aside:
                self._within[thread] = frame

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Note calls meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type] # as the library documents it


def value(i: int) -> float:
    """Return the i-th value of the feed: noise, and a spike now and then."""
    return round((i * 7919 % 1009) / 1009 + (9.0 if i % 211 == 210 else 0.0), 3)


def lines(start: int, stop: int) -> str:
    """Return rows of the feed."""
    return "".join(f"{1_700_000_000 + i},{value(i)}\n" for i in range(start, stop))


@contextlib.contextmanager
def without_native() -> Iterator[None]:
    """Have Python judge meanwhile, whatever is installed: it is its way that is drawn."""
    from rejex_stream.native_core import core

    there = sys.modules.get("rejex_native")
    sys.modules["rejex_native"] = None  # type: ignore[assignment] # which no import gets past
    core.cache_clear()
    try:
        yield
    finally:  # what was imported meanwhile stays
        del sys.modules["rejex_native"]
        if there is not None:
            sys.modules["rejex_native"] = there
        core.cache_clear()


def run() -> None:
    """Run the pipeline in this folder, silently."""
    from rejex_stream.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["run", "pump.toml"])
    if status:
        raise SystemExit(said.getvalue())


@contextlib.contextmanager
def pipeline() -> Iterator[Path]:
    """Make a pipeline in a folder of its own, and go there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="rejex-trace-") as name:
        folder = Path(name)
        (folder / "pump.toml").write_text(CONFIG, encoding="utf-8")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


@without_native()
def of_a_run(events: int = EVENTS) -> list[Call]:
    """Return the calls of a whole run: fits, a fault that stays, columns with a state."""
    trace = Trace()
    with pipeline() as folder:  # so that nothing is imported while it is on
        (folder / "feed.csv").write_text("t,flow\n" + lines(0, events), encoding="utf-8")
        run()
    with pipeline() as folder:
        config = CONFIG.replace("HBOS", "KNN") + EVERYTHING  # which sees how far off a fault is
        (folder / "pump.toml").write_text(config, encoding="utf-8")
        stuck = "".join(f"{1_700_000_000 + events + i},{40 + i % 7}\n" for i in range(60))
        feed = "t,flow\n" + lines(0, events) + stuck
        (folder / "feed.csv").write_text(feed, encoding="utf-8")
        with trace.on():
            run()
    return trace.calls


class Way(NamedTuple):
    """What one more record costs: calls by function, in the order of the first, and moves."""

    calls: dict[Call, int]
    moves: int

    @property
    def files(self) -> list[str]:
        """The files it passes."""
        return list(dict.fromkeys(call.file for call in self.calls))


@without_native()
def of_one_record(events: int = EVENTS) -> Way:
    """Return the way of one record: what so many more of them add to a run, by their number."""
    few, many = 20, 70
    found: list[Trace] = []
    with pipeline() as folder:
        feed = folder / "feed.csv"
        feed.write_text("t,flow\n" + lines(0, events), encoding="utf-8")
        run()
        (folder / "pump.toml").write_text(CONFIG + ONE_BY_ONE, encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="rejex-trace-") as kept:
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            for more in (few, many):
                shutil.rmtree(folder)  # the state knows its files by their place
                shutil.copytree(kept, folder)
                os.chdir(folder)
                with feed.open("a", encoding="utf-8") as file:
                    file.write(lines(events, events + more))
                found.append(Trace(BY_THE_CLOCK))
                with found[-1].on():
                    run()
    before, after = (Counter(trace.calls) for trace in found)
    each = {call: round((n - before[call]) / (many - few)) for call, n in after.items()}
    calls = {call: n for call, n in each.items() if n > 0}
    return Way(calls, round((found[1].moves - found[0].moves) / (many - few)))


def main() -> int:
    """Print the way of one record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", action="store_true", help="every function, and how often")
    given = parser.parse_args()
    way = of_one_record()
    print(
        f"one record: {sum(way.calls.values())} calls, {len(way.calls)} functions, "
        f"{len(way.files)} files, {way.moves} moves"
    )
    if given.calls:
        for call, n in way.calls.items():
            print(f"  {n:>3} {call.file}: {call.function}")
    else:
        for file in way.files:
            print(f"  {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
