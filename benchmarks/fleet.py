"""What a thousand sensors cost the review console: a real server, processor time by the request.

python -m benchmarks.fleet

Every sensor has a week of hourly counts, minutes of its own, and ten open episodes; of some an
incident is open. First loads are of a console that was just started, refreshes what an open page
asks for again, in bytes as a browser takes them. Ten viewers ask what ten open pages ask, as often
as those do: once while nothing happens, and once while one of them gives a verdict every ten
seconds, upon which every open queue fetches its rows again.
"""

from __future__ import annotations

import gzip
import http.client
import statistics
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks.console import console, review_item
from benchmarks.harness import write
from rejex_stream.config.reviewing import Capacity, Review
from rejex_stream.encode import encode_incident
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import (
    ChannelEvidence,
    Incident,
    IncidentState,
    Label,
    Position,
    Reason,
    Verdict,
)

SENSORS, EPISODES, MINUTES, HOURS = 1_000, 10_000, 30, 168
INCIDENTS = 300
FIRST_MS, FIRST_KB, REFRESH_KB, REPEATS = 500, 150, 5, 9
# What a page is, and what it asks for again while it is open.
PAGES = {
    "now": ("/now", "/api/summary"),
    "queue": ("/queue", "/api/summary"),
    "fleet": ("/fleet", "/api/summary"),
    "incidents": ("/incidents", "/api/summary"),
    "audit": ("/audit", "/api/summary"),
    "an episode": ("", "/api/episodes/{}/series?from=0&to=0&px=10"),
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


def opened(sensor: int, last_ms: int) -> Incident:
    """Return an open incident of a sensor, ten minutes old."""
    at = 10**8 + sensor
    return Incident(
        position=Position("feed", sensor % 8, at), id=f"feed-{sensor % 8}-{at}", version=1,
        state=IncidentState.OPEN, stream_key=f"s{sensor:04}", sensors=(f"s{sensor:04}",),
        onset_ms=last_ms - 600_000, opened_ms=last_ms - 300_000, changed_ms=last_ms - 300_000,
        onset_seq=1, opened_seq=6, changed_seq=6, peak_severity=3.0 + sensor % 5,
        peak_ms=last_ms - 300_000, channels=(ChannelEvidence("power", 2.5, 0.1, Label.NORMAL),),
        n_events=6,
    )  # fmt: skip


def fill(path: Path) -> None:
    """Write the store."""
    draw = np.random.default_rng(7)
    now = int(time.time() * 1000)
    last = now - now % 60_000
    asked = Capacity(questions_per_day=240)
    store = ReviewStore(path, Review(settle_s=0, gap_events=0, capacity=asked))
    for minute in range(MINUTES):
        t_ms = last - 60_000 * (MINUTES - minute)
        labels = draw.random(SENSORS) < 0.1
        verdicts = [
            verdict(i, minute, t_ms, Label.REJECTED if labels[i] else Label.NORMAL)
            for i in range(SENSORS)
        ]
        store.add([], verdicts)
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
    store.ingest(
        "incidents", [encode_incident(opened(number, last)) for number in range(INCIDENTS)]
    )
    hour = last - last % 3_600_000
    with store.database.write() as connection:
        ids = [row[0] for row in connection.execute("SELECT sensor_id FROM sensor")]
        connection.executemany(
            "INSERT INTO hour (sensor_id, t_ms, normal, rejected, banded, ambiguous, expected) "
            "VALUES (?,?,54,6,60,6,6.0) ON CONFLICT DO NOTHING",
            [(one, hour - 3_600_000 * h) for one in ids for h in range(HOURS)],
        )
    store.close()


ETAGS: dict[str, str] = {}


def ask(port: int, server: psutil.Process, path: str) -> tuple[float, float, int]:
    """Return processor and wall time (ms), and bytes as they travel, of one request of a browser.

    What was asked before is asked for again by what it was.
    """
    etag = ETAGS.get(path, "")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    before, began = server.cpu_times(), time.perf_counter()
    connection.request("GET", path, headers={"accept-encoding": "gzip", "if-none-match": etag})
    response = connection.getresponse()
    size, ETAGS[path] = len(response.read()), response.headers.get("etag", "")
    wall = 1000 * (time.perf_counter() - began)
    after = server.cpu_times()
    assert response.status in (200, 304), (path, response.status)
    connection.close()
    return 1000 * (after.user + after.system - before.user - before.system), wall, size


WATCHED_S, IDLE_CORE, CORE = 60, 0.01, 0.25
OPEN = ("now", "now", "queue", "queue", "queue", "queue", "episode", "episode", "fleet",
        "incidents")  # fmt: skip
EVERY_S = {"now": 3, "queue": 4, "episode": 4, "fleet": 10, "incidents": 3}


class Viewer(threading.Thread):
    """One open page: asks again and again what its script asks, until it is told to stop."""

    def __init__(self, port: int, page: str, episode: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.page, self.episode, self.over = port, page, episode, over
        self.asked = self.n_bytes = 0
        self.etag, self.version = "", ""

    def get(self, path: str, *, body: bytes | None = None) -> bytes:
        """Ask as the page does."""
        headers = {"sec-fetch-site": "same-origin", "accept-encoding": "gzip"}
        if path.startswith("/api/summary"):
            headers["if-none-match"] = self.etag
        if body is not None:
            headers["content-type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        data = response.read()
        assert response.status in (200, 304), (path, response.status, data[:200])
        if path.startswith("/api/summary"):
            self.etag = response.headers.get("etag", self.etag)
        connection.close()
        self.asked, self.n_bytes = self.asked + 1, self.n_bytes + len(data)
        return gzip.decompress(data) if response.headers.get("content-encoding") else data

    def changed(self) -> bool:
        """Ask for the counts; says whether there is anything new."""
        found = self.get("/api/summary")
        version = msgspec.json.decode(found)["version"] if found else self.version
        new, self.version = version != self.version, version
        return new

    def run(self) -> None:
        """Ask until the end."""
        while not self.over.wait(EVERY_S[self.page]):
            if self.page == "queue":
                if self.changed():
                    self.get("/queue/rows")
            elif self.page == "episode":
                self.get(PAGES["an episode"][1].format(self.episode))
            elif self.changed() and self.page in ("incidents", "now"):
                self.get(f"/{self.page}")


def watched(path: Path, episode: str, *, idle: bool) -> list[object]:
    """Return what ten viewers cost: share of a core, requests a second, kB a second."""
    store = ReviewStore(path)
    with store.database.read() as connection:
        targets = connection.execute(
            "SELECT episode_id, n_events FROM episode WHERE episode_id <> ? LIMIT 100", (episode,)
        ).fetchall()
    store.close()
    over = threading.Event()
    with console(path) as base:
        port = int(base.rpartition(":")[2])
        (server,) = psutil.Process().children()
        viewers = [Viewer(port, page, episode, over) for page in OPEN]
        for viewer in viewers:  # templates, modules and first loads are no part of it
            viewer.get("/queue")
            viewer.changed()
        for viewer in viewers:
            viewer.start()
        before, began = server.cpu_times(), time.monotonic()
        while time.monotonic() - began < WATCHED_S:
            over.wait(10)
            if idle:
                continue
            number = len(targets) - 1
            row = targets.pop()
            target = {"id": row[0], "n_events": row[1], "status": "open"}
            wanted = {"request_id": f"b{number}", "verdict": "normal", "targets": [target]}
            viewers[-1].get("/api/labels", body=msgspec.json.encode(wanted))
        after, lasted = server.cpu_times(), time.monotonic() - began
        over.set()
        for viewer in viewers:
            viewer.join(30)
    cpu = after.user + after.system - before.user - before.system
    asked, n_bytes = sum(one.asked for one in viewers), sum(one.n_bytes for one in viewers)
    share = cpu / lasted
    return [
        f"{len(OPEN)}, {'idle' if idle else 'at work'}",
        round(share, 3),
        round(asked / lasted, 1),
        round(n_bytes / 1000 / lasted, 1),
        "yes" if share <= (IDLE_CORE if idle else CORE) else "no",
    ]


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
                often = [ask(port, server, again.format(one)) for _ in range(REPEATS)]
                refresh = statistics.mean(found[0] for found in often)
                held = (
                    cpu <= FIRST_MS
                    and n_bytes <= 1000 * FIRST_KB
                    and often[-1][2] <= 1000 * REFRESH_KB
                )
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
        team = [watched(path, one, idle=idle) for idle in (True, False)]
    write(
        "fleet",
        "A thousand sensors on the review console",
        [
            (
                f"{SENSORS:,} sensors, {EPISODES:,} open episodes, {INCIDENTS} open incidents, "
                f"{size / 1e6:.0f} MB of store; processor time of the server (ms) and bytes as "
                f"they travel; bounds of a first load {FIRST_MS} ms and {FIRST_KB} kB, of a "
                f"refresh {REFRESH_KB} kB.",
                ["page", "first load", "kB", f"refresh, mean of {REPEATS}", "kB", "held"],
                rows,
            ),
            (
                f"Viewers: {', '.join(OPEN)}; {WATCHED_S} s, bounds {IDLE_CORE} of a core while "
                f"nothing happens, {CORE} while one of them decides a case every ten seconds.",
                ["viewers", "of a core", "requests a second", "kB a second", "held"],
                team,
            ),
        ],
        note="An open page asks for its counts, and for its rows only where something changed: "
        "that costs what the first load does.",
    )


if __name__ == "__main__":
    main()
