"""How often a certificate of missed anomalies is wrong at some look, p = 0 and p = 1 included.

python -m benchmarks.certificate [--deployments 1000] [--looks 20]

Each deployment has misses at given probabilities to be drawn, p = 0 and p = 1 among them, and
300,000 accepted normals. Where there are two strata, an adversary who sees the coins feeds them:
the stratum whose coins were unluckiest so far first, or the luckiest. People overlook some
anomalies, or do not answer. A certificate is made at every look, and is wrong if either bound is.
The bounds are the product's own, remembered by their arguments.

The last rows are whole pipelines: 3,000 records of five sensors in two modes through the run's own
loop, with a held budget, planned work, a mute, sensors that are forgotten, and room for fewer
streams than there are. Each has a key of its own, and a truth that nobody sees.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaln

from rejex_stream.decode import JsonDecoder
from rejex_stream.decode.mapping import FieldMapping
from rejex_stream.encode import encode_command
from rejex_stream.engine import Engine
from rejex_stream.rejection.audit_sampling import Stratum
from rejex_stream.review import certificate
from rejex_stream.review.certificate import Tally, certify
from rejex_stream.run.loop import run
from rejex_stream.run.review_items import AuditDraw
from rejex_stream.run.run_settings import RunSettings
from rejex_stream.types import Command, CommandKind, Position, Record, could_be_missed, drawable
from tests.doubles import FakeClock, ListControl, ListSink, ListSource, MemorySnapshotStore
from tests.streams import spec

OUT = Path(__file__).parent / "results"
ACCEPTED = 300_000


@dataclass(frozen=True)
class Case:
    """What a deployment is like: how many misses at which probability, who feeds, who answers."""

    name: str
    misses: dict[float, int]  # by the probability to be drawn
    overlooked: float = 0.0
    unanswered: float = 0.0
    declared: float | None = None
    feeds: str = "evenly"  # or the `unluckiest` stratum first, or the `luckiest`

    @property
    def part(self) -> float:
        """How many of the deployments: fewer where counts seldom come again (20 ms a bound)."""
        return 0.3 if self.feeds != "evenly" else 1.0


ROUND = {0.01: 3_000, 1.0: 60, 0.0: 200}
CASES = (
    Case("p = .01, 3,000 misses", {0.01: 3_000}),
    Case("p = .05, 3,000 misses", {0.05: 3_000}),
    Case("p = .2, 2,000 misses", {0.2: 2_000}),
    Case("p = .01 and .1, unluckiest fed", {0.01: 2_000, 0.1: 1_000}, feeds="unluckiest"),
    Case("p = .01 and .1, luckiest fed", {0.01: 2_000, 0.1: 1_000}, feeds="luckiest"),
    Case("p = .01, s = .8 declared, 10 % unanswered", {0.01: 3_000},
         overlooked=0.2, unanswered=0.1, declared=0.8),
    Case("p = 0, .01 and 1", ROUND),
)  # fmt: skip


def remembered(bound: Callable[..., int]) -> Callable[..., int]:
    """Return a bound that knows what it said before: deployments meet the same counts again."""
    known = cache(lambda strata, alpha: bound(list(strata), alpha=alpha))

    def bounded(strata: Sequence[Stratum], *, alpha: float) -> int:
        return known(tuple(strata), alpha)

    return bounded


def fed(case: Case, drawn: dict[float, np.ndarray], looks: int) -> list[dict[float, int]]:
    """Return how many misses of each stratum have come at each look."""
    if case.feeds == "evenly":
        return [
            {p: n * look // looks for p, n in case.misses.items()} for look in range(1, looks + 1)
        ]
    luck = dict.fromkeys(case.misses, 0.0)
    at, found = dict.fromkeys(case.misses, 0), []
    total = sum(case.misses.values())
    for i in range(1, total + 1):
        left = [p for p, n in case.misses.items() if at[p] < n]
        best = (min if case.feeds == "unluckiest" else max)(left, key=luck.__getitem__)
        hit = drawn[best][at[best]]
        at[best] += 1
        luck[best] += hit / best - 1.0
        if i % (total // looks) == 0:
            found.append(dict(at))
    return found


def deployment(seed: int, case: Case, looks: int) -> tuple[bool, float]:
    """Return whether a bound was wrong at some look, and the upper one over the truth at the end.

    The upper one is that of events that could be drawn.
    """
    rng = np.random.default_rng(seed)
    coins = {p: rng.random(n) < p for p, n in case.misses.items()}
    seen = {p: rng.random(n) >= case.overlooked for p, n in case.misses.items()}
    waits = {p: rng.random(n) < case.unanswered for p, n in case.misses.items()}
    # Of the normals of each stratum: how many were drawn by each look.
    parts = [p for p in case.misses if 0.0 < p < 1.0]
    each = ACCEPTED // looks // len(parts)
    audits = {p: rng.binomial(each, p, looks).cumsum() for p in parts}
    wrong, ratio = False, 0.0
    for look, at in enumerate(fed(case, coins, looks)):
        tally = Tally()
        truth = sum(n for p, n in at.items() if p)
        for p, n in at.items():
            drawn, answered = coins[p][:n], ~waits[p][:n]
            found = int((drawn & answered & seen[p][:n]).sum())
            overlooked = int((drawn & answered & ~seen[p][:n]).sum())
            normals = int(audits[p][look]) if p in audits else 0
            accepted = each * (look + 1) if p in audits else 0
            audited = normals + int(drawn.sum())
            tally.count(0, p, "held" if not p else "", accepted + n, audited)
            if p:
                tally.answers[p, "anomaly"] += found
                tally.answers[p, "normal"] += overlooked + normals
        made = certify(tally, pipeline="p", sensitivity=case.declared)
        hidden = at.get(0.0, 0)
        wrong |= made.missed_at_most < truth + hidden or made.missed_at_least > truth
        ratio = made.missed_at_most_of_drawable / truth
    return wrong, ratio


# -------------------------------------------------------------------------- whole pipelines
RECORDS, WHOLE = 3_000, 0.3
PIPELINES = {
    "a pipeline with modes, a mute, planned work, sensors forgotten and turned away": 0.0,
    "the same; 10 % overlooked, declared": 0.1,
}  # fmt: skip

# After so many outcomes somebody says so, by event times in ms.
LATER: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (600, "mute", {"stream_key": "s1", "from_ms": 700_000, "until_ms": 2_400_000,
                   "box": {"x": (0.5, 9.0)}, "by": "ada", "note": "known"}),
    (800, "planned", {"stream_key": "s2", "from_ms": 1_000_000, "until_ms": 1_500_000}),
)  # fmt: skip


class Desk(ListSource):
    """The input, and people who give commands a while after it has become durable."""

    def __init__(self, script: list[bytes], sink: ListSink, control: ListControl) -> None:
        super().__init__(script)
        self.sink, self.control = sink, control
        self.later = list(LATER)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return what comes next; people speak first."""
        while self.later and len(self.sink.outcomes) >= self.later[0][0]:
            _, kind, fields = self.later.pop(0)
            self.say(kind, **fields)
        return super().poll(max_records, timeout_s)

    def say(self, kind: str, **fields: Any) -> None:
        """Give a command."""
        command = Command(id=f"c{len(self.control.lines)}", kind=CommandKind(kind), **fields)
        self.control.lines.append(encode_command(command))


def pipeline(seed: int, looks: int, overlooked: float) -> tuple[bool, float]:
    """Run a pipeline, and certify as in :func:`deployment`."""
    rng, key = np.random.default_rng(seed), b"key %d" % seed
    kind = rng.random(RECORDS)
    value = rng.standard_normal(RECORDS) + np.where(kind < 0.02, 8.0, np.where(kind < 0.1, 1.5, 0))
    anomalous = kind < 0.1  # most of them are not seen
    errs = rng.random(RECORDS) < np.where(anomalous, overlooked, 0.0)
    sensor, script = rng.integers(5, size=RECORDS), []
    sensor[(sensor == 4) & (np.arange(RECORDS) // 600 % 2 == 0)] = 0  # it comes and goes
    for i in range(RECORDS):
        mode = "ab"[i // 40 % 2]
        script.append(
            b'{"id": "s%d", "t": %d, "x": %.4f, "y": 0.5, "m": "%b"}'
            % (sensor[i], 1_000 * i, value[i], mode.encode())
        )
    control, sink = ListControl(), ListSink()
    desk = Desk(script, sink, control)
    says = {
        Position("input", 0, i): "anomaly" if anomalous[i] != errs[i] else "normal"
        for i in range(RECORDS)
    }
    recipe = spec(modes=True, every=400, rate=0.1, burst=8)
    clock = FakeClock(tick_s=0.01)
    run(
        desk, sink, MemorySnapshotStore(), lambda _, fits: Engine(recipe, fits),
        JsonDecoder(FieldMapping(["x", "y"], sensor="id", time="t", mode="m")),
        settings=RunSettings(
            audit=AuditDraw(rate=0.03, near_rate=0.2, key=key),
            commit_interval_s=0.03, max_poll_records=40, forget_after=300.0, max_keys=9,
        ),
        control=control, clock=clock, wait=clock.advance,
    )  # fmt: skip
    tally, truth, hidden, wrong, ratio, look = Tally(), 0, 0, False, 0.0, 0
    for done, outcome in enumerate(sink.outcomes, 1):
        verdict = outcome.verdict
        if verdict is not None and could_be_missed(verdict):
            p, why = drawable(verdict)
            drawn = bool(verdict.audit and verdict.audit.drawn)
            tally.count(verdict.event_time_ms, p, why, 1, drawn)
            truth += bool(p) and bool(anomalous[verdict.position.offset])
            hidden += not p and bool(anomalous[verdict.position.offset])
            if drawn:
                tally.answers[p, says[verdict.position]] += 1
        if done * looks // len(sink.outcomes) > look:
            look += 1
            if not tally.accepted:
                continue  # nobody could be drawn yet, and no certificate is made
            made = certify(tally, pipeline="p", sensitivity=1.0 - overlooked)
            wrong |= made.missed_at_most < truth + hidden or made.missed_at_least > truth
            wrong |= made.missed_at_most_of_drawable < truth
            ratio = made.missed_at_most_of_drawable / max(1, truth)
    return wrong, ratio


def share_at_most(count: int, n: int, *, alpha: float) -> float:
    """Return the largest share that `count` of `n` coins leave possible, at every look.

    The coins of a share q and the mixture of all shares (uniform) bet against each other: their
    ratio is a martingale under q, so by Ville's inequality it ever reaches 1/alpha with a
    probability of at most alpha.
    """
    low, high = count / n, 1.0
    while high - low > 1e-8:
        q = (low + high) / 2
        chance = count * math.log(q) + (n - count) * math.log1p(-q)
        evidence = float(betaln(1 + count, 1 + n - count)) - chance
        low, high = (q, high) if evidence < -math.log(alpha) else (low, q)
    return high


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificate", description=__doc__)
    parser.add_argument("--deployments", type=int, default=1_000)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--only", default="", help="only rows whose name has this")
    given = parser.parse_args()
    for name in ("most_missed", "fewest_missed"):
        setattr(certificate, name, remembered(getattr(certificate, name)))
    known = {row["case"]: row for row in json.loads((OUT / "certificate.json").read_text())}
    tried: list[tuple[str, float, Callable[[int], tuple[bool, float]]]] = [
        (case.name, case.part, partial(deployment, case=case, looks=given.looks)) for case in CASES
    ]
    for name, overlooked in PIPELINES.items():
        tried.append((name, WHOLE, partial(pipeline, looks=given.looks, overlooked=overlooked)))
    for name, part, of in tried:
        if given.only not in name:
            continue
        n = round(given.deployments * part)
        found = [of(seed) for seed in range(n)]
        wrong = sum(one for one, _ in found)
        known[name] = {
            "case": name,
            "deployments": n,
            "wrong at some look": wrong,
            "at most, 95 %": round(share_at_most(wrong, n, alpha=0.05), 3),
            "upper limit over the truth, median": round(
                float(np.median([ratio for _, ratio in found])), 2
            ),
        }
        print(known[name], flush=True)
    rows = [known[name] for name, _, _ in tried if name in known]
    lines = [
        "# Certificates: wrong at some look", "",
        f"Written by `python -m benchmarks.certificate`; {given.looks} looks each. The aim is 5 %.",
        "", "| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(map(str, row.values())) + " |" for row in rows), "",
    ]  # fmt: skip
    print("\n".join(lines))
    (OUT / "certificate.md").write_text("\n".join(lines))
    (OUT / "certificate.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
