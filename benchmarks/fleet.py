"""What a thousand sensors cost the review console: a real server, processor time by the request.

python -m benchmarks.fleet

Every sensor has a week of hourly counts, minutes of its own, a monitor, and ten open episodes.
First loads are of a console that was just started, refreshes what an open page asks for again.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks.console import console, review_item
from benchmarks.harness import write
from rejex_stream.config.reviewing import Review
from rejex_stream.review.console.rates import PipelineWatch
from rejex_stream.review.queue.store import ReviewStore
from rejex_stream.types import Label, Position, Reason, Verdict

SENSORS, EPISODES, MINUTES, HOURS = 1_000, 10_000, 30, 168
FIRST_MS, REFRESH_MS, MOST_KB, REPEATS = 1_000, 50, 500, 9
PAGES = {
    "queue": ("/queue", "/api/summary"),
    "fleet": ("/fleet", "/fleet"),
    "live": ("/live", "/live/streams"),
    "incidents": ("/incidents", "/api/summary"),
    "an episode": ("", ""),
}


def verdict(sensor: int, seq: int, t_ms: int, label: Label) -> Verdict:
    """Return a verdict of a full band, as the monitors want it."""
    rejected = label is Label.REJECTED
    return Verdict(
        position=Position("feed", sensor % 8, seq * SENSORS + sensor), stream_key=f"s{sensor:04}",
        sensor=f"s{sensor:04}", event_time_ms=t_ms, seq=seq, label=label, score=0.5,
        reason=Reason.AMBIGUOUS if rejected else None, rank=950 if rejected else 500,
        window_len=1000, n_anomalies=50, band_lower=882, band_upper=987, psi=0.5, stability=0.1,
        confidence=0.8, threshold=1.1, score_lower=0.9, score_upper=1.3, model_epoch=0,
        tolerance=32.0,
    )  # fmt: skip


def fill(path: Path) -> None:
    """Write the store."""
    draw = np.random.default_rng(7)
    now = int(time.time() * 1000)
    last = now - now % 60_000
    store = ReviewStore(path, Review(settle_s=0, gap_s=0, gap_events=0))
    watch = PipelineWatch(store)
    for minute in range(MINUTES):
        t_ms = last - 60_000 * (MINUTES - minute)
        labels = draw.random(SENSORS) < 0.1
        verdicts = [
            verdict(i, minute, t_ms, Label.REJECTED if labels[i] else Label.NORMAL)
            for i in range(SENSORS)
        ]
        store.add([], verdicts)
        watch.observe(verdicts)
    watch.save()
    shown = review_item("", 0, 0, draw)
    items = []
    for number in range(EPISODES):
        sensor, at = number % SENSORS, number // SENSORS
        t_ms = last - 3_600_000 * (at + 1)
        context = tuple(
            one._replace(event_time_ms=t_ms - 8000 + 1000 * k)
            for k, one in enumerate(shown.context[:8])
        )
        name, place = f"s{sensor:04}", Position("feed", sensor % 8, 10**7 + number)
        rejected = msgspec.structs.replace(
            shown.verdict, position=place, event_time_ms=t_ms, stream_key=name, sensor=name
        )
        items.append(msgspec.structs.replace(shown, verdict=rejected, context=context))
    store.add(items)
    hour = last - last % 3_600_000
    with store.database.write() as connection:
        ids = [row[0] for row in connection.execute("SELECT sensor_id FROM sensor")]
        connection.executemany(
            "INSERT INTO hour (sensor_id, t_ms, normal, rejected, banded, ambiguous, expected) "
            "VALUES (?,?,54,6,60,6,6.0) ON CONFLICT DO NOTHING",
            [(one, hour - 3_600_000 * h) for one in ids for h in range(HOURS)],
        )
    store.close()


def ask(port: int, server: psutil.Process, path: str) -> tuple[float, float, int]:
    """Return processor and wall time (ms), and bytes, of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    before, began = server.cpu_times(), time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    size = len(response.read())
    wall = 1000 * (time.perf_counter() - began)
    after = server.cpu_times()
    assert response.status == 200, (path, response.status)
    connection.close()
    return 1000 * (after.user + after.system - before.user - before.system), wall, size


def main() -> None:
    """Measure and write."""
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "review.db"
        fill(path)
        size = path.stat().st_size
        store = ReviewStore(path)
        with store.database.read() as connection:
            one = connection.execute("SELECT min(episode_id) FROM episode").fetchone()[0]
        store.close()
        for name, (first, again) in PAGES.items():
            with console(path) as base:
                port = int(base.rpartition(":")[2])
                (server,) = psutil.Process().children()
                ask(port, server, "/help")  # templates and modules are no part of a page's cost
                address = first or f"/episode/{one}"
                cpu, _, n_bytes = ask(port, server, address)
                # The clock of processes counts in 10 ms: many refreshes, then their mean.
                often = [ask(port, server, again or address) for _ in range(REPEATS)]
                refresh = statistics.mean(found[0] for found in often)
                held = cpu <= FIRST_MS and refresh <= REFRESH_MS and n_bytes <= 1000 * MOST_KB
                rows.append(
                    [
                        name,
                        cpu,
                        n_bytes / 1000,
                        refresh,
                        often[-1][2] / 1000,
                        "yes" if held else "no",
                    ]
                )
    write(
        "fleet",
        "A thousand sensors on the review console",
        [
            (
                f"{SENSORS:,} sensors, {EPISODES:,} open episodes, {size / 1e6:.0f} MB of store; "
                f"processor time of the server (ms), bounds {FIRST_MS} and {REFRESH_MS} ms, "
                f"{MOST_KB} kB.",
                ["page", "first load", "kB", f"refresh, mean of {REPEATS}", "kB", "held"],
                rows,
            )
        ],
        note="Bytes before compression. An open queue asks for its counts, and for its rows where "
        "something changed alone: that costs what the first load does.",
    )


if __name__ == "__main__":
    main()
