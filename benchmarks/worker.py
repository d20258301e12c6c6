"""What an event costs a whole worker without a broker: many sensors, few events each in a poll.

python -m benchmarks.worker [--sensors 1000] [--polls 20]

JSON bytes come in and the messages of a topic go out, keys and headers included; between them is
everything that a service does: decoding, judging, evidence, review items, monitors, metrics and
commits. Beside it, within the same run, bare work on a SortedList (as in `benchmarks.engine`): the
ratio travels, the microseconds say how busy the machine was. Each row once with Python alone and,
where it is built, once with the native core. A second table says which share of it fits take where
sensors are at any place between two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rejex_connectors.kafka.messages import OutcomeMessages

from benchmarks.engine import EVENTS, bare
from benchmarks.harness import write
from rejex_stream.config.assembly import kafka_settings
from rejex_stream.config.assembly.running import (
    engine_spec,
    make_engine,
    monitor_config,
    run_settings,
)
from rejex_stream.config.load import parse_config
from rejex_stream.decode import JsonDecoder
from rejex_stream.native_core import core
from rejex_stream.operate.run_metrics import RunMetrics
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.run.loop import run
from rejex_stream.run.partition import PartitionMonitor
from rejex_stream.types import Outcome, Partition, Position, Record
from tests.doubles import ListSource

N = 200
REFIT = 2 * N  # events from one refit to the next, as `[refit]` has it
CONFIG = """
[pipeline]
name = "worker"
[input]
kind = "kafka"
topics = ["feed"]
channels = ["temperature", "vibration", "power"]
sensor = "sensor"
time = "t"
[detector]
name = "{detector}"
[rejection]
contamination = 0.05
window = {n}
review_budget = {{ rate = 0.05 }}
[refit]
first_fit_events = {n}
buffer_events = {n}
calibration = "holdout"
executor = "inline"
[output]
form = "{form}"
"""


class Encoding:
    """A sink that makes the messages of a topic, and keeps their number and bytes."""

    def __init__(self, messages: OutcomeMessages) -> None:
        self._of = messages.of
        self.spent = 0.0
        self.verdicts = self.bytes = 0

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Make the messages, and count them."""
        began = time.thread_time()
        for message in self._of(outcomes):
            if message.topic.endswith("verdicts"):
                self.bytes += len(message.value or b"")
        self.spent += time.thread_time() - began
        self.verdicts += len(outcomes)

    def commit(self, next_offsets: Mapping[Partition, int]) -> None:
        """Do nothing: there is no broker."""

    def abort(self) -> None:
        """Never asked for."""

    def close(self) -> None:
        """Nothing is open."""


class Fits(InlineExecutor):
    """Fits in the loop itself, counted and timed."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.n, self.spent, self.most, self._before = 0, 0.0, 0, 0

    def judged(self) -> None:
        """Note that a poll is judged."""
        self.most, self._before = max(self.most, self.n - self._before), self.n

    def result(self, key: Hashable) -> Any:
        """Run the fit."""
        began = time.thread_time()
        try:
            return super().result(key)
        finally:
            self.spent += time.thread_time() - began
            self.n += 1


class Polls(ListSource):
    """Whole polls: first those that fill every window and every scale, then the timed ones."""

    def __init__(
        self,
        sensors: int,
        polls: int,
        each: int,
        at_last: Callable[[], object],
        at_end: Callable[[], object],
        spread: int,
    ) -> None:
        super().__init__([])
        self._at_last, self._at_end = at_last, at_end
        rng = np.random.default_rng(0)
        self._values = rng.normal(10, 1, (4001, 3)).round(3).tolist()
        self._offset = 0
        filling = [[s for s in range(at, min(at + 10, sensors))
                    for _ in range(2 * N + 20 + s * spread // sensors)]
                   for at in range(0, sensors, 10)]  # fmt: skip
        # What is polled while the partition is assigned belongs to the time before.
        self._filling: Iterator[list[int]] = iter([[], *filling])
        self._poll = [sensor for sensor in range(sensors) for _ in range(each)]
        self._left, self._n_timed = polls + 3, polls
        self.began = self.spent = 0.0
        self.beside: list[float] = []
        self.aside = 0.0
        self._ended = False

    def _records(self, sensors: Sequence[int], at: int) -> list[Record]:
        found = []
        for i, sensor in enumerate(sensors):
            names = ("temperature", "vibration", "power")
            body: dict[str, Any] = dict(zip(names, self._values[(at + 31 * i) % 4001], strict=True))
            body |= {"sensor": f"turbine-{sensor:04}", "t": 1_700_000_000_000 + self._offset}
            position = Position("input", 0, self._offset)
            value = json.dumps(body).encode()
            found.append(Record(position, b"turbine-%04d" % sensor, value, (), None))
            self._offset += 1
        return found

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return the next poll as it is, after a look at what bare work costs now."""
        filling = next(self._filling, None)
        if filling is not None:
            return self._records(filling, 0)
        aside = time.thread_time()
        records: Sequence[Record] = []
        if self._left == self._n_timed:  # by now all that filled the windows is written
            self.began, self.aside, self.beside = time.process_time(), 0.0, []
            self._at_last()
        if self._left:
            self._left -= 1
            records = self._records(self._poll, 10_000 + self._left)
            self.beside.append(bare(N, time.thread_time))
        elif not self._ended:  # what is torn down after it is no event's
            self._ended = True
            self.spent = time.process_time() - self.began - self.aside
            self._at_end()
        self.aside += time.thread_time() - aside
        return records

    @property
    def exhausted(self) -> bool:
        """Whether the last poll was asked for."""
        return self._ended


def cores() -> list[str]:
    """Return which cores there are to be measured."""
    use("native")
    return ["Python"] if core()[0] is None else ["Python", "native"]


def use(name: str) -> None:
    """Have one of the cores do what is begun from now on."""
    os.environ["REJEX_CORE"] = "python" if name == "Python" else ""
    core.cache_clear()


def row(
    detector: str,
    form: str,
    sensors: int,
    polls: int,
    each: int,
    at_last: Callable[[], object] = lambda: None,
    at_end: Callable[[], object] = lambda: None,
    spread: int = 0,
) -> list[object]:
    """Return one line of the table.

    `at_last` is called when the windows are full, `at_end` when the last timed poll is judged.
    `spread` is by how many events sensors are apart by then.
    """
    config, problems = parse_config(CONFIG.format(detector=detector, form=form, n=N))
    assert config is not None, problems
    sink = Encoding(OutcomeMessages(kafka_settings(config), lambda _: 1))
    fits = Fits()

    def begin() -> None:
        fits.begin()
        sink.spent, sink.verdicts, sink.bytes = 0.0, 0, 0
        at_last()

    def judged(_: Partition, readings: Sequence[object], seconds: float) -> None:
        fits.judged()
        metrics.scoring_duration.observe(seconds / len(readings))

    source = Polls(sensors, polls, each, begin, at_end, spread)
    metrics = RunMetrics("worker", engine_spec(config))
    make, monitors = make_engine(config), monitor_config(config)

    def monitor(partition: Partition) -> PartitionMonitor:
        made = PartitionMonitor(partition, monitors, lambda *_: None)
        metrics.watch(partition, made.bank)
        return made

    settings = run_settings(config).replace(commit_interval_s=0.0, commit_every_events=1)
    run(
        source, sink, None,
        make,
        JsonDecoder(config.input.mapping()),
        settings=settings, make_monitor=monitor, observers=[metrics], executor=fits,
        on_judged=judged,
    )  # fmt: skip
    events = sensors * each * polls
    ours, beside = 1e6 * source.spent / events, statistics.mean(source.beside)
    found: list[object] = [detector, form, sensors, each, ours, beside, ours / beside]
    found += [1e6 * sink.spent / sink.verdicts, sink.bytes / sink.verdicts]
    fitting = 1e6 * fits.spent / events
    found += [fits.n, fits.most, fitting, 100 * fitting / ours]
    print(found, flush=True)
    return found


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--polls", type=int, default=20, help="that are timed")
    asked = parser.parse_args()
    many, polls = asked.sensors, asked.polls
    rows, refits = [], []
    for sensors, each in ((many, 1), (8, many // 8)):
        for form in ("full", "lean"):
            for name in cores():
                use(name)
                rows.append([name, *row("HBOS", form, sensors, polls, each)])
    for sensors, each in ((many, 1), (8, many // 8)):
        for name in cores():
            use(name)
            refits.append([name, *row("HBOS", "full", sensors, 2 * polls, each, spread=REFIT)])
    columns = ["core", "detector", "output.form", "sensors", "events a sensor and poll",
               "µs/event", "bare SortedList µs/event", "ratio", "of it making messages, µs",
               "bytes of a verdict", "refits", "refits in a poll at most", "of it fitting, µs",
               "of it fitting, %"]  # fmt: skip
    write(
        "worker",
        "An event in a whole worker without a broker",
        [
            (
                f"JSON in, messages out, 3 channels, n = {N}, every window full; a commit a poll, "
                "no snapshots; refits as they come, in the loop and within its time. Bare: two "
                f"bisections, one score out and one in, on a SortedList of {N}, {EVENTS:,} times "
                "before each poll.",
                columns,
                rows,
            ),
            (
                f"The same where sensors are anywhere between two refits ({REFIT} events): what "
                "they take for good. A fit is asked for by count, and runs here when it "
                "is needed; executors of a service run one at a time, what is waited for first.",
                columns,
                refits,
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
