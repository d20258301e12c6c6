"""How long a history takes to be judged again, and where the time of it goes.

python -m benchmarks.replay            3 days of 20 sensors, with either core, in stages

Programs are charged their processor time, starts included; the stages are
timed in this process, batch by batch. On a machine that is shared, wall time says how busy the
others were. Results go to ``benchmarks/results/replay.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from benchmarks.harness import write
from benchmarks.scale import CONFIG, charged, feed
from benchmarks.worker import cores, use
from rejex_stream.cli.commands.replay import _BATCH
from rejex_stream.config import load_config
from rejex_stream.config.assembly import (
    DecodedBefore,
    Judging,
    file_decoder,
    open_source,
    records_of,
)
from rejex_stream.decode import decode_records
from rejex_stream.threads import one_thread, seldom_collecting
from rejex_stream.types import OutcomeCounts

COLUMNS = [
    "core", "configs", "events", "events/s", "processor µs/event", "wall s", "load",
]  # fmt: skip
STAGES = ["core", "rows of the file", "readings", "judging, and what people are shown", "counting"]


def stages(config: Path) -> list[object]:
    """Return the microseconds an event of each stage, of one config that is judged whole."""
    asked = load_config(config)
    source = open_source(asked)
    decoder, records = file_decoder(asked, source), records_of(source)
    read = DecodedBefore(decoder.channels)
    state, found = Judging(asked).state(source.partition, read), OutcomeCounts()
    spent = [0.0, 0.0, 0.0, 0.0]
    with one_thread(), seldom_collecting():
        while True:
            at = [time.thread_time()]
            batch = list(islice(records, _BATCH))
            if not batch:
                break
            at.append(time.thread_time())
            batch, items = decode_records(decoder, batch)
            at.append(time.thread_time())
            read.items = {one.position: item for one, item in zip(batch, items, strict=True)}
            outcomes = state.process(batch)
            at.append(time.thread_time())
            found.add(outcomes)
            at.append(time.thread_time())
            spent = [a + end - begin for a, begin, end in zip(spent, at, at[1:], strict=False)]
    return [1e6 * one / found.n_events for one in spent]


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--detector", default="HBOS")
    asked = parser.parse_args()
    sensors, days = 20, 3
    rows, of_stages = [], []
    with tempfile.TemporaryDirectory(prefix="rejex-replay-") as name:
        folder = Path(name)
        events = feed(folder / "feed.csv", sensors, days * 1_440)
        text = CONFIG.format(
            feed=folder / "feed.csv", out=folder, detector=asked.detector, monitor="false"
        )
        old, new = folder / "old.toml", folder / "new.toml"
        old.write_text(text)
        new.write_text(text.replace("contamination = 0.02", "contamination = 0.05"))
        replay = [sys.executable, "-m", "rejex_stream", "replay", str(old)]
        for core in cores():
            use(core)
            for more in ([], ["--config", str(new)]):
                load = os.getloadavg()[0]
                wall, used = charged([*replay, *more])
                each = [events / wall, 1e6 * used / events, wall, load]
                rows.append([core, 1 + bool(more), events, *each])
                print(rows[-1], flush=True)
            of_stages.append([core, *stages(old)])
            print(of_stages[-1], flush=True)
    tables = [
        (
            f"{days} days of {sensors} sensors, an event a minute each, two channels as CSV, "
            f"{asked.detector}, window 1000. Two configs: another contamination, so that both are "
            "judged. In few days the start, 4 s, is most of it.",
            COLUMNS,
            rows,
        ),
        (f"One config judged whole: microseconds an event, {_BATCH:,} at once.", STAGES, of_stages),
    ]
    write(
        "replay",
        "A history judged again",
        tables,
        note="Processor time with the start included; load is that before it began."
        " The machine was shared.",
    )


if __name__ == "__main__":
    main()
