"""False alarms per million events and detection delays of the monitors, beside common ones.

    python -m benchmarks.monitors [--fast] [--jobs N]

The monitor under test is the shipped `StreamMonitor`, fed with real `Verdict`s; only the scores and
their ranks are simulated. Writes benchmarks/results/monitors.json and monitors.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from msgspec import structs
from river.drift import ADWIN, KSWIN, PageHinkley
from scipy.stats import chi2

from benchmarks.harness import RESULTS, machine
from benchmarks.monitor_report import markdown
from benchmarks.monitor_streams import (
    BAND,
    CHANGES,
    CONTAMINATION,
    LENGTH,
    TABLE,
    TARGETS,
    TOLERANCE,
    UNSEEN,
    Events,
    Floats,
    N,
    base_scores,
    changed,
    null_stream,
    rejected,
    sliding,
    verdicts,
)
from rejex_stream.guarantees import exact_rate_bound, paper_rate_bound
from rejex_stream.monitor import MonitorBank, MonitorConfig, StreamMonitor
from rejex_stream.monitor.counts import RollingCounts
from rejex_stream.monitor.drift import DriftDetector
from rejex_stream.monitor.health import HealthDetector
from rejex_stream.monitor.practical import StuckRun
from rejex_stream.monitor.watch import Watch

H = paper_rate_bound(N, CONTAMINATION, TOLERANCE, 0.1)
BETA99 = exact_rate_bound(BAND, 0.01)
PLAIN = MonitorConfig(window=N, contamination=CONTAMINATION, tolerance=TOLERANCE)
CONFIG = MonitorConfig(window=N, contamination=CONTAMINATION, tolerance=TOLERANCE, adwin=True)
WITH_BUDGET = structs.replace(PLAIN, review_budget_per_day=10_000.0)
WARM = 30_000  # events before a change
AFTER = 10 * N  # events in which a change has to be found


# -------------------------------------------------------------------------------------- peers
def rolling_over(limit: float, length: int) -> Callable[[Events], list[int]]:
    def alarms(events: Events) -> list[int]:
        total = np.concatenate([[0], np.cumsum(rejected(events))])
        above = (total[length:] - total[:-length]) / length > limit
        rises = np.flatnonzero(above & ~np.concatenate([[False], above[:-1]]))
        return (rises + length - 1).tolist()

    return alarms


def river_on(make: Callable[[], Any], what: str) -> Callable[[Events], list[int]]:
    def alarms(events: Events) -> list[int]:
        values = events.scores if what == "scores" else rejected(events).astype(float)
        detector, found = make(), []
        for i, value in enumerate(values.tolist()):
            detector.update(value)
            if detector.drift_detected:
                found.append(i)
        return found

    return alarms


PEERS: dict[str, Callable[[Events], list[int]]] = {
    "rolling 200 > h": rolling_over(H, 200),
    "rolling 1000 > h": rolling_over(H, 1_000),
    "rolling 1000 > Beta .99": rolling_over(BETA99, 1_000),
    "River ADWIN, rejects": river_on(ADWIN, "rejects"),
    "River ADWIN, scores": river_on(ADWIN, "scores"),
    "River PageHinkley, rejects": river_on(PageHinkley, "rejects"),
    "River PageHinkley, scores": river_on(PageHinkley, "scores"),
}
KSWIN_NAME = "River KSWIN, scores"  # a quarter of a millisecond an event: fewer events
kswin = river_on(lambda: KSWIN(seed=1), "scores")
OURS = ("health", "rejection_rate", "collapse", "stuck", "drift")


# --------------------------------------------------------------------------------- false alarms
def null_task(task: tuple[str, int, int, int, int]) -> dict[str, Any]:
    """Run `count` null streams of one kind; the peers, which are slower, on the first few."""
    name, seed, count, peer_streams, kswin_events = task
    rng = np.random.default_rng([seed, *name.encode()])
    alarms: Counter[str] = Counter()
    words: Counter[str] = Counter()
    inflation: list[float] = []
    kswin_seen = crossings = 0
    for stream in range(count):
        events = null_stream(name, rng)
        monitor = StreamMonitor(CONFIG, "s")
        for verdict in verdicts(events):
            for alarm in monitor.observe(verdict):
                alarms[alarm.kind.value] += 1
        # Every crossing of L, also while the alarm before is still active.
        crossings += monitor.watch.health.crossings
        status = monitor.status()
        words[f"health: {status.health}"] += 1
        words[f"drift: {status.drift}"] += 1
        inflation.append(status.inflation or math.nan)
        if stream >= peer_streams:
            continue
        for peer, run in PEERS.items():
            alarms[peer] += len(run(events))
        if kswin_seen < kswin_events:
            part = Events(*(column[:kswin_events] for column in events))
            alarms[KSWIN_NAME] += len(kswin(part))
            kswin_seen += kswin_events
    alarms["health"] = crossings
    return {
        "stream": name,
        "events": count * LENGTH,
        "peer_events": min(count, peer_streams) * LENGTH,
        "kswin_events": kswin_seen,
        "alarms": dict(alarms),
        "status": dict(words),
        "inflation": inflation,
    }


def merge_nulls(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(part["stream"] for part in parts):
        same = [part for part in parts if part["stream"] == name]
        alarms = sum((Counter(part["alarms"]) for part in same), Counter())
        status = sum((Counter(part["status"]) for part in same), Counter())
        events = sum(part["events"] for part in same)
        peer_events = sum(part["peer_events"] for part in same)
        kswin_events = sum(part["kswin_events"] for part in same)
        per_million = {}
        for monitor in (*OURS, "adwin", *PEERS, KSWIN_NAME):
            seen = peer_events if monitor in PEERS else events
            seen = kswin_events if monitor == KSWIN_NAME else seen
            count, scale = alarms[monitor], 1e6 / max(seen, 1)
            low = chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
            high = chi2.ppf(0.975, 2 * count + 2) / 2
            per_million[monitor] = {
                "alarms": count,
                "per_million": count * scale,
                "interval95": [low * scale, high * scale],
            }
        rows.append(
            {
                "stream": name,
                "events": events,
                "peer_events": peer_events,
                "kswin_events": kswin_events,
                "median_inflation": statistics.median(
                    x for part in same for x in part["inflation"]
                ),
                "status": dict(status),
                "false_alarms": per_million,
            }
        )
    return rows


# --------------------------------------------------------------------------------------- delays
def delay_task(task: tuple[str, str, int, int, int]) -> dict[str, Any]:
    base, change, seed, reps, kswin_reps = task
    rng = np.random.default_rng([seed, *base.encode(), *change.encode()])
    after = 30 * N if "20n" in change else AFTER
    delays: dict[str, list[float]] = {name: [] for name in (*OURS, "adwin", *PEERS, KSWIN_NAME)}
    reasons: Counter[str] = Counter()
    snapshot: tuple[Floats, bytes] | None = None
    for rep in range(reps):
        if rep % 5 == 0:  # one warmed-up monitor serves five futures
            past = base_scores(base, N + WARM, rng)
            monitor = StreamMonitor(CONFIG, "s")
            before, _ = changed(base, change, past, rng, 10)
            for verdict in verdicts(before):
                monitor.observe(verdict)
            snapshot = (past, monitor.snapshot())
        assert snapshot is not None
        past, blob = snapshot
        # Only the last window of the past is ranked again; peers get 5 windows to settle.
        settled, events = changed(base, change, past[-6 * N :], rng, after)
        monitor = StreamMonitor(CONFIG, "s")
        monitor.restore(blob)
        active = {alarm.kind.value for alarm in monitor.status().active_alarms}
        crossings = monitor.watch.health.crossings
        found: dict[str, float] = {}
        for i, verdict in enumerate(verdicts(events, WARM), 1):
            raised = monitor.observe(verdict)
            if "health" in active and monitor.watch.health.crossings > crossings:
                found.setdefault("health", i)
            for alarm in raised:
                if alarm.kind.value not in found and alarm.kind.value == "health":
                    reasons[alarm.alternative.value] += 1
                found.setdefault(alarm.kind.value, i)
            if len(found) == len(OURS) + 1:
                break
        for name in (*OURS, "adwin"):
            delays[name].append(found.get(name, math.inf))
        both = Events(*(np.concatenate(pair) for pair in zip(settled, events, strict=True)))
        start = settled.scores.size
        for name, run in PEERS.items():
            later = [i - start + 1 for i in run(both) if i >= start]
            delays[name].append(min(later, default=math.inf))
        if rep < kswin_reps:
            part = Events(*(column[start - N : start + 2 * N] for column in both))
            later = [i - N + 1 for i in kswin(part) if i >= N]
            delays[KSWIN_NAME].append(min(later, default=math.inf))
    return {
        "base": base,
        "change": change,
        "events_after": after,
        "health_alternatives": dict(reasons),
        "delays": {
            name: {
                "runs": len(values),
                "found": sum(map(math.isfinite, values)) / max(len(values), 1),
                "median": _finite(statistics.median(values)) if values else None,
            }
            for name, values in delays.items()
        },
    }


# --------------------------------------------------------------------------------------- pooled
POOLED = ("iid", "AR(.9)", "AR(.99) in common")
STREAMS, POOLED_LENGTH = 20, 20_000


def pooled_task(task: tuple[str, int]) -> dict[str, Any]:
    """Twenty streams in turns: nothing wrong for 18,000 events of each, then +0.5 sd in all."""
    name, seed = task
    rng = np.random.default_rng([seed, *name.encode()])
    size, change = N + POOLED_LENGTH, N + POOLED_LENGTH - 2_000
    common = base_scores("AR(.99)", size, rng)
    feeds = []
    for i in range(STREAMS):
        scores = base_scores(name.split(" ")[0] if "common" not in name else "iid", size, rng)
        if "common" in name:
            scores = math.sqrt(0.7) * scores + math.sqrt(0.3) * common
        scores[change:] += 0.5
        feeds.append(verdicts(sliding(scores), stream_key=f"s{i}"))
    bank = MonitorBank(PLAIN)
    false = Counter()
    found = None
    for t, turn in enumerate(zip(*feeds, strict=True)):
        for alarm in bank.observe(turn):
            if t < change - N:
                false["pipeline" if alarm.stream_key is None else "streams", alarm.kind.value] += 1
            elif alarm.stream_key is None and alarm.kind.value == "health" and found is None:
                found = t - (change - N) + 1
    return {
        "streams": name,
        "events": STREAMS * (change - N),
        "false_alarms": {" ".join(key): count for key, count in false.items()},
        "pooled_inflation": bank.status().inflation,
        "delay_per_stream": found,
    }


def merge_pooled(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in POOLED:
        same = [part for part in parts if part["streams"] == name]
        events = sum(part["events"] for part in same)
        false = sum((Counter(part["false_alarms"]) for part in same), Counter())
        delays = [part["delay_per_stream"] or math.inf for part in same]
        rows.append(
            {
                "streams": name,
                "events": events,
                "false_alarms": dict(false),
                "median_pooled_inflation": statistics.median(p["pooled_inflation"] for p in same),
                "median_delay_events_per_stream": _finite(statistics.median(delays)),
                "found": sum(map(math.isfinite, delays)) / len(delays),
            }
        )
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ----------------------------------------------------------------------------------------- cost
def costs() -> dict[str, float]:
    """Median process time of one event in µs, and a plain call for scale."""
    events = sliding(base_scores("iid", N + 100_000, np.random.default_rng(1)))
    table = TABLE
    cells = [table.cell(rank) for rank in events.upto.tolist()]
    scores, ready = events.scores.tolist(), list(verdicts(events))

    def health() -> None:
        update = HealthDetector(PLAIN).update
        for cell in cells:
            update(table, cell)

    def counts() -> None:
        rolling = RollingCounts(PLAIN)
        rolling.switch(None, table)
        for cell in cells:
            rolling.update(table, cell)

    def drift() -> None:
        update = DriftDetector(PLAIN).update
        for score in scores:
            update(score)

    def stuck() -> None:
        update = StuckRun().update
        for score in scores:
            update(score, 0, N)

    def budget() -> None:
        count = Watch(WITH_BUDGET, None).count_review
        for verdict in ready:
            count(verdict)

    def everything() -> None:
        observe = StreamMonitor(PLAIN, "s").observe
        for verdict in ready:
            observe(verdict)

    def call() -> None:
        def nothing(_table: object, _cell: int) -> None:
            return None

        for cell in cells:
            nothing(table, cell)

    result = {}
    for name, run in (
        ("an empty Python call", call),
        ("health", health),
        ("rolling counts", counts),
        ("drift", drift),
        ("stuck sensor", stuck),
        ("review budget", budget),
        ("StreamMonitor.observe, all", everything),
    ):
        times = []
        for _ in range(5):
            start = time.process_time()
            run()
            times.append((time.process_time() - start) / len(cells) * 1e6)
        result[name] = round(statistics.median(times), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and delays of the monitors.")
    parser.add_argument("--fast", action="store_true", help="a tenth of the events or less")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    batches, targets, unseen, peers = (1, 2, 1, 1) if options.fast else (5, 8, 2, 2)
    reps, kswin_reps = (10, 2) if options.fast else (100, 10)
    null_tasks = [
        (name, seed, targets if name in TARGETS else unseen, peers, 10_000)
        for name in (*TARGETS, *UNSEEN)
        for seed in range(batches)
    ]
    delay_tasks = [(base, change, 0, reps, kswin_reps)
                   for base in ("iid", "AR(.9)")
                   for change in CHANGES
                   if base == "iid" or not isinstance(CHANGES[change], tuple)]  # fmt: skip
    with ProcessPoolExecutor(options.jobs) as pool:
        delays = pool.map(delay_task, delay_tasks)
        nulls = pool.map(null_task, null_tasks)
        pooled = pool.map(pooled_task, [(name, i) for name in POOLED for i in range(batches)])
        result: dict[str, Any] = {
            "delays": list(delays),
            "null": merge_nulls(list(nulls)),
            "pooled": merge_pooled(list(pooled)),
        }
    result["cost_us"] = costs()
    about = machine()
    used = ("numpy", "scipy", "river", "msgspec")
    result["machine"], result["h"] = about, H
    result["versions"] = f"Python {about['python']}, " + ", ".join(
        f"{name} {about['versions'][name]}" for name in used
    )
    result["fast"] = options.fast
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "monitors.json").write_text(json.dumps(result, indent=1) + "\n")
    page = markdown(result, [*OURS, *PEERS, KSWIN_NAME])
    (RESULTS / "monitors.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
