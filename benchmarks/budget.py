"""Whether a rejection budget holds where streams drift, and what holding it costs.

python -m benchmarks.budget --data FOLDER

Every stream goes through the engine once (HBOS, default refits). A budget changes no rank, so each
rule is then played over the same ranks; that the engine says the same is a test
(``tests/test_governor.py``). Rates are shares of ranked events. "Worst day" is the worst stretch of
1,440 events. A cost counts 1 for a false alarm or a missed anomaly and γ for a rejected event.
"""

from __future__ import annotations

import argparse
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.harness import write
from benchmarks.streams.sources import Stream, find, load
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.band import nested_band, widest_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import TokenBucket
from rejex_stream.rejection.window import ScoreWindow, mid_rank
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, Reason

GAMMA = RATE = 0.05
WINDOW, DAY, LEAST = 1000, 1440, 8_000
BURSTS = (None, 36, 50, 72, 144)
SYNTHETIC = (0.0, 0.97, 0.99, 0.995, 0.999)
Ranks = npt.NDArray[np.int64]


def ranks_of(stream: Stream) -> tuple[Ranks, Ranks]:
    """Return rank and truth (-1: not known) of every ranked event with a full window."""
    spec = EngineSpec(
        make_detector("HBOS"),
        FeatureSpec(stream.channels, carry_forward_events=10),
        RejectionPolicy(GAMMA, rate=RATE),
        window=WINDOW,
        evidence=False,
    )
    engine, rows = Engine(spec, InlineExecutor()), stream.X.tolist()
    feed = [
        Reading("s", "s", int(time), tuple(row), Position("s", 0, i))
        for i, (time, row) in enumerate(zip(stream.times_ms, rows, strict=True))
    ]
    found = [
        (verdict.rank, truth)
        for verdict, truth in zip(engine.process(feed), stream.y.tolist(), strict=True)
        if verdict.reason in (None, Reason.AMBIGUOUS) and verdict.window_len == WINDOW
    ]
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def simulated(phi: float, events: int = 200_000) -> tuple[Ranks, Ranks]:
    """Return ranks and truths where scores are AR(φ) and the truth is a noisy threshold of them."""
    from scipy.signal import lfilter

    rng = np.random.default_rng(round(phi * 1000))
    noise = rng.normal(size=events + WINDOW)
    scores = lfilter([np.sqrt(1 - phi**2)], [1, -phi], noise)
    noisy = scores + 0.25 * rng.normal(size=len(scores))
    truth = (noisy > np.quantile(noisy, 1 - GAMMA)).astype(np.int64)
    window, ranks = ScoreWindow(WINDOW, scores[:WINDOW].tolist()), []
    for score in scores[WINDOW:].tolist():
        ranks.append(mid_rank(*window.rank(score)))
        window.push(score)
    return np.array(ranks), truth[WINDOW:]


def play(ranks: Ranks, burst: int | None) -> tuple[Ranks, float, Ranks]:
    """Return labels (0, 1, or -1 rejected), the share withheld of the own band, and widths."""
    policy = RejectionPolicy(GAMMA, rate=RATE, burst=burst)
    own = policy.band(WINDOW)
    if burst is None:
        cells = own.cells(ranks)
        return np.array([0, -1, -1, 1])[cells], 0.0, np.full(len(ranks), own.width)
    governor, labels, widths = TokenBucket(policy), [], []
    code = {"normal": 0, "anomaly": 1, "rejected": -1}
    withheld = inside = 0
    for rank in ranks.tolist():
        band = governor.allow(WINDOW, "s", 0)
        label, in_own = code[band.label(rank)], own.label(rank) == "rejected"
        inside += in_own
        if label < 0:
            governor.spend()
        else:
            withheld += in_own
        labels.append(label)
        widths.append(band.width)
    return np.array(labels), withheld / max(1, inside), np.array(widths)


def cost(labels: Ranks, truth: Ranks) -> float:
    """Return the mean cost of the events whose truth is known."""
    known = truth >= 0
    labels, truth = labels[known], truth[known]
    paid = np.where(labels < 0, GAMMA, labels != truth)
    return float(paid.mean()) if len(paid) else float("nan")


def worst(rejected: npt.NDArray[np.bool_], length: int) -> float:
    """Return the largest rate of any stretch of `length` events."""
    total = np.concatenate([[0], np.cumsum(rejected)])
    length = min(length, len(rejected))
    return float((total[length:] - total[:-length]).max() / length)


def most_overspent(rejected: npt.NDArray[np.bool_]) -> float:
    """Return the largest excess of rejections over ρL, over all stretches, exactly."""
    most = now = 0
    rate = Fraction(repr(RATE))
    for spent in rejected.tolist():
        now = max(now, 0) + (rate.denominator if spent else 0) - rate.numerator
        most = max(most, now)
    return most / rate.denominator


def row(name: str, burst: int | None, streams: list[tuple[Ranks, Ranks]]) -> list[object]:
    """Play one rule over streams; costs are relative to the fixed band, stream by stream."""
    rates, days, costs, held, over = [], [], [], [], []
    for ranks, truth in streams:
        labels, withheld, _ = play(ranks, burst)
        rejected = labels < 0
        rates.append(rejected.mean() / RATE)
        days.append(worst(rejected, DAY) / RATE)
        held.append(withheld)
        over.append(most_overspent(rejected))
        fixed = cost(play(ranks, None)[0], truth)
        if fixed > 0:
            costs.append(cost(labels, truth) / fixed)
    if burst is not None and max(over) > burst:
        raise RuntimeError(f"{name}: a stretch has {max(over)} more than its share")
    return [
        name,
        float(np.mean(rates)),
        max(rates),
        float(np.mean(days)),
        max(days),
        float(np.mean(costs)),
        float(np.mean(held)),
        max(held),
        max(over),
    ]


def main() -> None:
    """Play all rules over all streams, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with sensors/*/*.csv.gz")
    folder = parser.parse_args().data / "sensors"
    by_source: dict[str, list[tuple[Ranks, Ranks]]] = {}
    for path in find(folder):
        stream = load(path)
        if len(stream.y) < LEAST:
            continue
        ranks, truth = ranks_of(stream)
        if len(ranks) >= LEAST // 2:
            by_source.setdefault(stream.source, []).append((ranks, truth))
    streams = [one for some in by_source.values() for one in some]
    columns = ["rule", "rate / plan: mean", "max", "worst day / plan: mean", "max"]
    columns += ["cost / fixed T", "withheld: mean", "max", "most above ρL, events"]
    names = {None: "fixed T"} | {b: f"held, B = {b}" for b in BURSTS if b is not None}
    rules = [row(names[burst], burst, streams) for burst in BURSTS]
    sources = [
        [source, len(some), *(row("", burst, some)[i] for burst in (None, 50) for i in (1, 2, 4))]
        for source, some in sorted(by_source.items())
    ]
    made = []
    for phi in SYNTHETIC:
        one = [simulated(phi)]
        free, held = row("", None, one), row("", 72, one)
        absolute = [cost(play(one[0][0], burst)[0], one[0][1]) for burst in (None, 72)]
        made.append([phi, free[1], free[4], held[1], held[4], *absolute, held[5]])
    by_rule = ["source", "streams", "fixed: rate / plan", "max", "worst day"]
    by_rule += ["held: rate / plan", "max", "worst day"]
    by_phi = ["φ", "fixed: rate / plan", "worst day", "held: rate / plan", "worst day"]
    by_phi += ["cost, fixed", "cost, held", "held / fixed"]
    n_events = sum(len(ranks) for ranks, _ in streams)
    held_widths = np.concatenate([play(ranks, 50)[2] for ranks, _ in streams])
    policy = RejectionPolicy(GAMMA, rate=RATE)
    tolerances = np.array([nested_band(WINDOW, GAMMA, int(w)).tolerance for w in held_widths])
    shares = [*np.quantile(tolerances, [0.05, 0.5, 0.95]).tolist(), float((tolerances < 4).mean())]
    write(
        "budget",
        "A rejection budget on streams that drift",
        [
            (
                f"{len(streams)} streams of at least {LEAST:,} events ({n_events:,} ranked), HBOS, "
                f"n = {WINDOW:,}, γ = ρ = {RATE:g}, costs (1, 1, γ)",
                columns,
                rules,
            ),
            ("By source: fixed T, then held with B = 50 (the default)", by_rule, sources),
            ("Synthetic: AR(φ) scores, 200,000 events, B = 72", by_phi, made),
            (
                f"T that the credit allowed, B = 50 (the policy's: "
                f"{policy.band(WINDOW).tolerance:.3g}; widest useful band "
                f"{widest_band(WINDOW, GAMMA)} ranks)",
                ["5 %", "median", "95 %", "share below 4"],
                [shares],
            ),
        ],
        note="Rates above 1 on short streams are the initial credit.",
    )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
