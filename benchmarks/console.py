"""How long does a reviewer wait? A real console on 500 open episodes, in a real Chromium.

python -m benchmarks.console
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Browser, Page, Request, sync_playwright

from benchmarks.harness import write
from rejex_stream.config.reviewing import Review
from rejex_stream.encode import encode_review
from rejex_stream.review.queue.review_store import ReviewStore
from rejex_stream.types import ContextPoint, Label, Position, Reason, ReviewItem, Verdict

EPISODES, SENSORS, CONTEXT = 500, 40, 60
CHANNELS = ("temperature", "vibration", "power", "speed")
FLEET = 200
LOADS, KEYS, PAGES = 20, 100, 30
PATIENCE_MS = 450  # of the console: `shell.js`
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# From the start of the navigation until the frame with the first row has been drawn.
FIRST_ROW = """(() => {
  const drawn = (then) => requestAnimationFrame(() => {
    const next = new MessageChannel();
    next.port1.onmessage = () => then(performance.now());
    next.port2.postMessage(0);
  });
  new MutationObserver((_, watch) => {
    if (!document.querySelector("#rows tr")) return;
    watch.disconnect();
    drawn((now) => { window.firstRow = now; });
  }).observe(document, {childList: true, subtree: true});
  const since = Number(sessionStorage.getItem("bench.key"));
  new MutationObserver((_, watch) => {
    if (!document.querySelector("#plots canvas")) return;
    watch.disconnect();
    drawn((now) => {
      window.plotsDrawn = performance.timeOrigin + now - since;
      window.plotsAt = now;
    });
  }).observe(document, {childList: true, subtree: true});
  // From the key itself until the frame after it has been drawn.
  window.taken = [];
  addEventListener("keydown", (event) => {
    sessionStorage.setItem("bench.key", performance.timeOrigin + event.timeStamp);
    const before = document.querySelector("#rows tr[aria-current]");
    drawn((now) => {
      const after = document.querySelector("#rows tr[aria-current]");
      window.taken.push([now - event.timeStamp, before !== after]);
    });
  }, {capture: true});
})()"""


def review_item(sensor: str, offset: int, t_ms: int, draw: np.random.Generator) -> ReviewItem:
    """Return a rejected event with readings before it."""
    walk = np.cumsum(draw.normal(0, 0.3, (CONTEXT + 1, len(CHANNELS))), axis=0) + 50
    readings = [tuple(float(v) for v in row) for row in walk]
    verdict = Verdict(
        position=Position("feed", 0, offset), stream_key=sensor, sensor=sensor,
        event_time_ms=t_ms, seq=offset, label=Label.REJECTED, reason=Reason.AMBIGUOUS, score=1.0,
        rank=960, window_len=1000, n_anomalies=50, band_lower=882, band_upper=987, psi=0.96,
        stability=0.9, confidence=0.5, threshold=1.1, score_lower=0.9, score_upper=1.3,
        model_epoch=0,
    )  # fmt: skip
    context = tuple(
        ContextPoint(t_ms - 1000 * (CONTEXT - k), values, 0.5, Label.NORMAL)
        for k, values in enumerate(readings[:-1])
    )
    return ReviewItem(verdict=verdict, channels=CHANNELS, values=readings[-1], context=context)


def fill(path: Path) -> None:
    """Write a store of open episodes of one event each, with readings around every event."""
    draw = np.random.default_rng(7)
    received = int(time.time() * 1000) - 3_600_000
    store = ReviewStore(path, Review(settle_s=0), clock_ms=lambda: received)
    times = [received - (EPISODES - i) * 600_000 for i in range(EPISODES)]
    store.add(
        [review_item(f"T{i % SENSORS:02}/nacelle", i, t_ms, draw) for i, t_ms in enumerate(times)]
    )
    store.close()


def fill_fleet(path: Path) -> str:
    """Write a store of many sensors with a day of verdicts, and one record of a megabyte.

    Returns the episode of that record.
    """
    last = int(time.time() * 1000)
    store = ReviewStore(path, Review(settle_s=0))
    line = encode_review(review_item("big", 0, last, np.random.default_rng(7)))
    store.ingest("review", [line[:-1] + b',"padding":"' + b"x" * 1_000_000 + b'"}'])
    with store.database.write() as connection:
        for sensor in range(10, 10 + FLEET):
            connection.execute(
                "INSERT INTO sensor (sensor_id, stream_key, sensor, grp, last_ms, window_len, "
                "n_anomalies) VALUES (?,?,?,?,?,1000,50)",
                (sensor, f"s{sensor}", f"s{sensor}", f"g{sensor % 8}", last),
            )
            connection.executemany(
                "INSERT INTO hour (sensor_id, t_ms, normal, rejected) VALUES (?,?,500,50)",
                [(sensor, last - last % 3_600_000 - 3_600_000 * h) for h in range(24)],
            )
        found = connection.execute("SELECT episode_id FROM episode").fetchone()[0]
    store.close()
    return str(found)


@contextmanager
def console(store: Path) -> Iterator[str]:
    """Serve a store with the command people use; yields its address."""
    words = ["review", "serve", "--store", str(store), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rejex_stream", *words],
        stdout=subprocess.PIPE,
        text=True,
        cwd=store.parent,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("review console: "):
                yield line.partition(": ")[2].strip().rstrip("/")
                return
        raise RuntimeError("the console did not start")
    finally:
        process.terminate()
        process.communicate()


def fresh(browser: Browser) -> Page:
    """Return a page of a new profile that takes times."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.add_init_script(FIRST_ROW)
    return context.new_page()


def settled(page: Page, expression: str) -> Any:
    """Return what an expression becomes once it is something."""
    while True:
        found = page.evaluate(expression)
        if found:
            return found
        time.sleep(0.01)


def keys(browser: Browser, base: str, key: str) -> tuple[list[float], list[float], float]:
    """Press a key in the queue again and again: until the next row is drawn, answers (ms)."""
    page = fresh(browser)
    page.goto(f"{base}/queue")
    settled(page, "window.firstRow")
    before = spent()
    for count in range(1, KEYS + 1):
        page.keyboard.press(key)
        settled(page, f"window.taken.length >= {count}")
    taken = page.evaluate("window.taken")
    assert all(moved for _, moved in taken), "every key went to the next row"
    answers = []
    if key == "2":
        query = (
            "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/labels'))"
        )
        settled(page, f"{query}.length >= {KEYS}")
        answers = page.evaluate(f"{query}.map(e => e.duration)")
    worked = between(before, spent()) / KEYS
    page.context.close()
    return [ms for ms, _ in taken], answers, worked


def pages(browser: Browser, base: str) -> tuple[list[float], float, list[float]]:
    """Decide episodes on their own screens: from the key until the next one's plots (ms).

    Also what a decision costs the network: requests, and bytes that were received.
    """
    page = fresh(browser)
    page.goto(f"{base}/queue")
    page.keyboard.press("Enter")
    page.wait_for_url("**/episode/*")
    ready = "document.body.dataset.keys === 'on' && document.querySelector('#plots canvas')"
    settled(page, f"!!({ready})")
    taken, before, sent = [], spent(), list[Request]()
    page.on("requestfinished", lambda one: sent.append(one))  # noqa: PLW0108 - it marks its handlers
    for _ in range(PAGES):
        was = page.url
        page.keyboard.press("1")
        settled(page, f"location.href !== '{was}' && !!({ready})")
        # A key counts only for what was seen for a while: so much later than the plots.
        taken.append(
            page.evaluate("performance.timeOrigin + performance.now()")
            - float(page.evaluate("sessionStorage.getItem('bench.key')"))
            - PATIENCE_MS
        )
    worked = between(before, spent()) / PAGES
    sizes = [one.sizes() for one in sent]
    received = sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes)
    page.context.close()
    return taken, worked, [len(sent) / PAGES, received / PAGES / 1000]


def spent() -> dict[int, float]:
    """Return the processor time of the console and of every process of the browser (ms)."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if not re.match("node|playwright", process.name()):
                times = process.cpu_times()
                found[process.pid] = 1000 * (times.user + times.system)
    return found


def between(before: dict[int, float], after: dict[int, float]) -> float:
    """Return what was spent from one time to another."""
    return sum(ms - before.get(pid, 0.0) for pid, ms in after.items())


def loads(browser: Browser, address: str, expression: str) -> tuple[list[float], float]:
    """Open a page in fresh profiles until an expression says when it was ready (ms)."""
    taken, worked = [], 0.0
    for _ in range(LOADS):
        page = fresh(browser)
        before = spent()
        page.goto(address)
        taken.append(float(settled(page, expression)))
        worked += between(before, spent())
        page.context.close()
    return taken, worked / LOADS


def row(
    name: str, taken: list[float], bound_ms: int | None, worked: float | None = None
) -> list[object]:
    """Return a line of the table."""
    held = "–" if bound_ms is None else ("yes" if np.percentile(taken, 95) < bound_ms else "no")
    return [
        name,
        len(taken),
        statistics.median(taken),
        float(np.percentile(taken, 95)),
        max(taken),
        "–" if bound_ms is None else f"< {bound_ms:,}",
        held,
        "–" if worked is None else worked,
    ]


def main() -> None:
    """Measure and write."""
    path = os.environ.get("REJEX_BROWSER") or shutil.which("chromium")
    if path is None:
        raise SystemExit("No Chromium on the path: install one, or set REJEX_BROWSER.")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        fill(folder / "review.db")
        big = fill_fleet(folder / "fleet.db")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        with console(folder / "review.db") as base:
            opened, worked = loads(browser, f"{base}/queue", "window.firstRow")
            rows = [row("open the queue, until its first row is drawn", opened, 1000, worked)]
            moved, _, worked = keys(browser, base, "j")
            rows.append(row("`j`, until the next row is marked", moved, 100, worked))
            decided, answers, worked = keys(browser, base, "2")
            rows.append(row("`2` (a verdict), until the next row is marked", decided, 100, worked))
            rows.append(row("the same verdict, until the console has stored it", answers, None))
            following, worked, cost = pages(browser, base)
            rows.append(
                row("`1` on an episode, until the plots of the next", following, None, worked)
            )
        with console(folder / "fleet.db") as base:
            done = "performance.getEntriesByType('navigation')[0].loadEventEnd"
            taken, worked = loads(browser, f"{base}/episode/{big}", "window.plotsAt")
            name = "open an episode with a record of 1 MB, until its plots"
            rows.append(row(name, taken, 1000, worked))
            taken, worked = loads(browser, f"{base}/now", done)
            name = f"open *Now* over {FLEET} sensors, until it is whole"
            rows.append(row(name, taken, 1000, worked))
        about = {
            "Chromium": browser.version,
            "playwright": version("playwright"),
            "starlette": version("starlette"),
            "uvicorn": version("uvicorn"),
            "msgspec": version("msgspec"),
        }
        browser.close()
    write(
        "console",
        "How long a reviewer waits",
        [
            (
                f"{EPISODES} open episodes, {SENSORS} sensors, {len(CHANNELS)} channels, "
                f"{CONTEXT} readings around each; fresh browser profiles, headless (ms, wall "
                "clock: p95 is held against the bound).",
                ["what", "times", "median", "p95", "worst", "bound", "held", "processor time each"],
                rows,
            ),
            (
                f"What a decision on the screen of an episode costs, of {PAGES} by keyboard one "
                "after the other: requests that were answered, and kB received",
                ["requests", "kB"],
                [cost],
            ),
        ],
        versions=about,
        note="Wall clock; the last column is what console and browser together worked for it, "
        "with the measuring. The rest was waiting, on a busy machine mostly for its neighbours.",
    )


if __name__ == "__main__":
    main()
