"""False alarms per million events and detection delays of the monitors, beside common ones.

    python -m benchmarks.monitors [--fast] [--jobs N] [--only refits|limits|costs]

The monitor under test is the shipped `StreamMonitor`, fed with real `Verdict`s; only the scores and
their ranks are simulated. Writes benchmarks/results/monitors.json and monitors.md;
with `--only` a part of them is measured again and the rest kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec
import numpy as np
from river.drift import ADWIN, KSWIN, PageHinkley
from scipy.stats import chi2
from sortedcontainers import SortedList

from benchmarks.harness import RESULTS, machine
from benchmarks.monitor_report import markdown
from benchmarks.monitor_streams import (
    BAND,
    CHANGES,
    CONTAMINATION,
    LAW,
    LENGTH,
    TARGETS,
    TOLERANCE,
    UNSEEN,
    Events,
    Floats,
    N,
    base_scores,
    changed,
    null_stream,
    null_stream_with_refits,
    ramped,
    rejected,
    sliding,
    verdicts,
)
from rejex_stream.monitor import MonitorBank, MonitorConfig, StreamMonitor
from rejex_stream.monitor.bank import Note, StuckRun
from rejex_stream.monitor.config import CONFIDENCE
from rejex_stream.monitor.drift import DriftDetector
from rejex_stream.monitor.health import HealthDetector
from rejex_stream.monitor.rate import BatchMeans, RejectionRate, batch_means, rate_limits
from rejex_stream.monitor.theory import rank_law
from rejex_stream.native_core import native
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.bounds import exact_rate_bound, paper_rate_bound
from rejex_stream.types import Verdict

H = paper_rate_bound(N, CONTAMINATION, TOLERANCE, 0.1)
BETA99 = exact_rate_bound(BAND, 0.01)
PLAIN = MonitorConfig(window=N, contamination=CONTAMINATION, tolerance=TOLERANCE)
CONFIG = MonitorConfig(window=N, contamination=CONTAMINATION, tolerance=TOLERANCE)
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
        crossings += monitor.ranks.health.crossings
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
        for monitor in (*OURS, *PEERS, KSWIN_NAME):
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


# --------------------------------------------------------------------------------------- refits
AGREEMENTS = (1.0, 0.7)  # of two models in a row about one row's score


def refit_null_task(task: tuple[str, float, int, int]) -> dict[str, Any]:
    """Count false alarms on one kind of null stream, with a new model every two windows."""
    name, agreement, seed, count = task
    rng = np.random.default_rng([seed, *name.encode()])
    alarms: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for _ in range(count):
        monitor = StreamMonitor(CONFIG, "s")
        for verdict in verdicts(null_stream_with_refits(name, agreement, rng)):
            for alarm in monitor.observe(verdict):
                alarms[alarm.kind.value] += 1
        alarms["crossings"] += monitor.ranks.health.crossings
        words[monitor.status().drift] += 1
    alarms["health"] = alarms.pop("crossings")
    return {
        "stream": name,
        "agreement": agreement,
        "events": count * LENGTH,
        "alarms": dict(alarms),
        "drift": dict(words),
    }


def ramp_task(task: tuple[str, str, int, int]) -> dict[str, Any]:
    """Measure delays of a ramp of one sd, without refits and with models that agree or not."""
    base, refits, over, reps = task
    agreement = None if refits == "none" else float(refits)
    delays = []
    for rep in range(reps):
        events = ramped(base, agreement, over, WARM, 2 * over * N, np.random.default_rng([rep, 1]))
        monitor, delay = StreamMonitor(CONFIG, "s"), math.inf
        for i, verdict in enumerate(verdicts(events)):
            raised = {alarm.kind.value for alarm in monitor.observe(verdict)}
            if "drift" in raised and i >= WARM:
                delay = i - WARM + 1
                break
        delays.append(delay)
    return {
        "base": base,
        "refits": refits,
        "over_windows": over,
        "runs": reps,
        "found": sum(map(math.isfinite, delays)) / reps,
        "median": _finite(statistics.median(delays)),
    }


def refit_part(pool: ProcessPoolExecutor, *, fast: bool) -> dict[str, Any]:
    """Measure what needs refits."""
    count, reps = (1, 5) if fast else (10, 40)
    nulls = [
        (name, agreement, 1, count)
        for name in (*TARGETS, *UNSEEN)
        for agreement in (AGREEMENTS[:1] if name.startswith("frozen") else AGREEMENTS)
    ]
    ramps = [("iid", refits, over, reps)
             for over in (10, 20) for refits in ("none", "1.0", "0.7")]  # fmt: skip
    found = pool.map(ramp_task, ramps)
    return {"null": list(pool.map(refit_null_task, nulls)), "ramps": list(found)}


# --------------------------------------------------------------------------------------- limits
LIMITED = ("iid", "AR(.5)", "AR(.9)", "AR(.97)", "AR(.99)", "AR(.995)")
POLICIES = ((1_000, 0.05, 32.0), (2_000, 0.02, 8.0))


def ranks_among(scores: Floats, n: int) -> list[int]:
    """Rank scores[n:] among the n before each, in O(log n)."""
    values = scores.tolist()
    window, ranks = SortedList(values[:n]), []
    for old, new in zip(values, values[n:], strict=False):
        ranks.append(window.bisect_left(new))
        window.remove(old)
        window.add(new)
    return ranks


def limits_task(task: tuple[tuple[int, float, float], str, int]) -> dict[str, Any]:
    """Count how often limits of the rolling rate hold the long-run rate; how wide they are."""
    (n, contamination, tolerance), name, streams = task
    config = MonitorConfig(window=n, contamination=contamination, tolerance=tolerance)
    band = rejection_band(n, contamination, tolerance)
    law = rank_law(n, band.n_anomalies, band.lower, band.upper)
    seen: list[tuple[float, BatchMeans, BatchMeans]] = []
    rejects = events = 0
    for seed in range(streams):
        scores = base_scores(name, n + LENGTH, np.random.default_rng([seed, *name.encode()]))
        cells = bytes(law.cell(rank) for rank in ranks_among(scores, n))
        rejects, events = rejects + cells.count(1) + cells.count(2), events + len(cells)
        health = HealthDetector(config)
        for i, cell in enumerate(cells, 1):
            health.update(law, cell)
            if i < 20 * n or i % config.rolling:
                continue
            part = cells[i - config.rolling : i]
            means = batch_means(part, CONFIDENCE)
            rate = (part.count(1) + part.count(2)) / len(part)
            limits = rate_limits(
                rate, len(part), law=law, inflation=health.inflation or 1.0, confidence=CONFIDENCE
            )
            assert means is not None
            seen.append((rate, means, limits))
    truth = rejects / events

    def about(which: Sequence[BatchMeans]) -> dict[str, float]:
        return {
            "covered": sum(x.lower <= truth <= x.upper for x in which) / len(which),
            "half_width": statistics.fmean((x.upper - x.lower) / 2 for x in which),
        }

    return {
        "window": n,
        "contamination": contamination,
        "tolerance": tolerance,
        "stream": name,
        "samples": len(seen),
        "expected_rate": law.rejection_rate,
        "long_run_rate": truth,
        "batch_means": about([means for _, means, _ in seen]),
        "shipped": about([limits for _, _, limits in seen]),
    }


def limits_part(pool: ProcessPoolExecutor, *, fast: bool) -> dict[str, Any]:
    """Measure the limits before (batch means) and after."""
    tasks = [(policy, name, 1 if fast else 8) for policy in POLICIES for name in LIMITED]
    return {"rows": list(pool.map(limits_task, tasks))}


# --------------------------------------------------------------------------------------- delays
def delay_task(task: tuple[str, str, int, int, int]) -> dict[str, Any]:
    base, change, seed, reps, kswin_reps = task
    rng = np.random.default_rng([seed, *base.encode(), *change.encode()])
    after = 30 * N if "20n" in change else AFTER
    delays: dict[str, list[float]] = {name: [] for name in (*OURS, *PEERS, KSWIN_NAME)}
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
        crossings = monitor.ranks.health.crossings
        found: dict[str, float] = {}
        for i, verdict in enumerate(verdicts(events, WARM), 1):
            raised = monitor.observe(verdict)
            if "health" in active and monitor.ranks.health.crossings > crossings:
                found.setdefault("health", i)
            for alarm in raised:
                if alarm.kind.value not in found and alarm.kind.value == "health":
                    reasons[alarm.alternative.value] += 1
                found.setdefault(alarm.kind.value, i)
            if len(found) == len(OURS):
                break
        for name in OURS:
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
    law = LAW
    cells = [law.cell(rank) for rank in events.upto.tolist()]
    scores, ready = events.scores.tolist(), list(verdicts(events))

    def health() -> None:
        update = HealthDetector(PLAIN).update
        for cell in cells:
            update(law, cell)

    def counts() -> None:
        rolling = RejectionRate(PLAIN)
        rolling.switch(None, law)
        for cell in cells:
            rolling.update(law, cell)

    def drift() -> None:
        sums = DriftDetector(PLAIN)
        for rank in events.upto.tolist():
            sums.excess += rank / N - 0.5
            sums.left -= 1
            if not sums.left:
                sums.close_block()

    def stuck() -> None:
        update = StuckRun().update
        for score in scores:
            update(score, 0, N)

    def everything() -> None:
        observe = StreamMonitor(PLAIN, "s").observe
        for verdict in ready:
            observe(verdict)

    in_turn = [
        msgspec.structs.replace(verdict, stream_key=f"s{i % STREAMS}")
        for i, verdict in enumerate(ready)
    ]

    def bank(known: list[Verdict], note: Note | None) -> Callable[[], None]:
        def run() -> None:
            observe = MonitorBank(PLAIN, note).observe
            for at in range(0, len(known), 500):
                observe(known[at : at + 500])

        return run

    def call() -> None:
        def nothing(_table: object, _cell: int) -> None:
            return None

        for cell in cells:
            nothing(law, cell)

    rows = [
        ("an empty Python call", call),
        ("health", health),
        ("rolling counts", counts),
        ("drift", drift),
        ("stuck sensor", stuck),
        ("StreamMonitor.observe, all", everything),
    ]
    for core, note in (("Python", None), ("native core", native("note"))):
        if note is not None or core == "Python":
            rows.append((f"MonitorBank, one stream, {core}", bank(ready, note)))
            rows.append((f"MonitorBank, {STREAMS} streams in turn, {core}", bank(in_turn, note)))
    result = {}
    for name, run in rows:
        times = []
        for _ in range(5):
            start = time.process_time()
            run()
            times.append((time.process_time() - start) / len(cells) * 1e6)
        result[name] = round(statistics.median(times), 3)
    return result


def full(pool: ProcessPoolExecutor, *, fast: bool) -> dict[str, Any]:
    """Measure what needs one model alone."""
    batches, targets, unseen, peers = (1, 2, 1, 1) if fast else (5, 8, 2, 2)
    reps, kswin_reps = (10, 2) if fast else (100, 10)
    null_tasks = [
        (name, seed, targets if name in TARGETS else unseen, peers, 10_000)
        for name in (*TARGETS, *UNSEEN)
        for seed in range(batches)
    ]
    delay_tasks = [(base, change, 0, reps, kswin_reps)
                   for base in ("iid", "AR(.9)")
                   for change in CHANGES
                   if base == "iid" or not isinstance(CHANGES[change], tuple)]  # fmt: skip
    delays = pool.map(delay_task, delay_tasks)
    nulls = pool.map(null_task, null_tasks)
    pooled = pool.map(pooled_task, [(name, i) for name in POOLED for i in range(batches)])
    return {
        "delays": list(delays),
        "null": merge_nulls(list(nulls)),
        "pooled": merge_pooled(list(pooled)),
    }


def about() -> dict[str, Any]:
    """Say what all of it ran on."""
    ran_on = machine()
    used = ("numpy", "scipy", "river", "msgspec")
    versions = ", ".join(f"{name} {ran_on['versions'][name]}" for name in used)
    return {"machine": ran_on, "versions": f"Python {ran_on['python']}, {versions}"}


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and delays of the monitors.")
    parser.add_argument("--fast", action="store_true", help="a tenth of the events or less")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--only", choices=("refits", "limits", "costs"), help="measure this part alone"
    )
    options = parser.parse_args()
    fast, only = options.fast, options.only
    RESULTS.mkdir(exist_ok=True)
    data = RESULTS / "monitors.json"
    result: dict[str, Any] = json.loads(data.read_text()) if only else {}
    with ProcessPoolExecutor(options.jobs) as pool:
        if only is None:
            result |= full(pool, fast=fast) | about() | {"fast": fast, "h": H}
        if only in (None, "refits"):
            result["refits"] = refit_part(pool, fast=fast) | {"fast": fast}
        if only in (None, "limits"):
            result["limits"] = limits_part(pool, fast=fast) | {"fast": fast}
    if only in (None, "costs"):
        result["cost_us"] = costs()
    data.write_text(json.dumps(result, indent=1) + "\n")
    page = markdown(result, [*OURS, *PEERS, KSWIN_NAME])
    (RESULTS / "monitors.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
