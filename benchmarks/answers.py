"""Whether what answers prove is so: the certificate at every look, the estimates' intervals at one.

python -m benchmarks.answers

Each deployment judges events of which some are anomalies that were called normal; each is found by
an audit with the same probability, and somebody looks after every 25 audited events. A bound is
wrong if it was wrong at any look. The one-look limit is the largest k under which so few finds
have a probability of at least α (Clopper and Pearson, one side).

The estimates are those of the report: accepted events audited by coins, rejected ones judged in
episodes of six, an interval right if it holds the share among all events of its deployment.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from benchmarks.harness import write
from rejex_stream.plan.promises import Costs
from rejex_stream.rejection.misses import Stratum, fewest_missed, most_missed
from rejex_stream.review.queue.quality import Group, estimate

DEPLOYMENTS, EVENTS, SHARE, ALPHA = 1_000, 200_000, 0.01, 0.05
RATES = (0.01, 0.001)
FOUND = (0, 1, 5, 20, 100)
Flags = npt.NDArray[np.bool_]


def missed(kind: str, rng: np.random.Generator) -> Flags:
    """Return which accepted events were anomalies, for one deployment."""
    if kind == "iid":
        return rng.random(EVENTS) < SHARE
    if kind == "bursts of 100":
        starts = rng.random(EVENTS) < SHARE / 100
        return np.convolve(starts, np.ones(100))[:EVENTS] > 0
    if kind == "AR(.99)":
        from scipy.signal import lfilter

        level = lfilter([np.sqrt(1 - 0.99**2)], [1, -0.99], rng.normal(size=EVENTS))
        return level > 2.326
    rising = np.linspace(0.0, 2 * SHARE, EVENTS)  # drift: none at first, twice as many in the end
    return rng.random(EVENTS) < rising


@cache
def bounds(found: int, rate: float) -> tuple[int, int, float]:
    """Return lower, upper and one-look upper limit."""
    one = [Stratum(found, rate)]
    # The binomial tail over k is a beta's: the largest k is where it falls to α.
    low, high = float(found), (found + 20) / rate * 10
    while high - low > 0.5:
        middle = (low + high) / 2
        tail = beta.sf(rate, found + 1, middle - found) if middle > found else 1.0
        low, high = (middle, high) if tail >= ALPHA else (low, middle)
    return fewest_missed(one, alpha=ALPHA), most_missed(one, alpha=ALPHA), low


def deploy(kind: str, rate: float, seed: int) -> tuple[bool, bool, bool, float, float]:
    """Return which limits were wrong at some look (upper, lower, one-look), and their widths."""
    rng = np.random.default_rng([seed, round(1e6 * rate)])
    wrong, audited = missed(kind, rng), rng.random(EVENTS) < rate
    looks = np.flatnonzero(audited)[24::25]
    total, found = np.cumsum(wrong)[looks], np.cumsum(wrong & audited)[looks]
    limits = np.array([bounds(int(h), rate) for h in found])
    failed = (total > limits[:, 1], total < limits[:, 0], total > limits[:, 2])
    end = max(1, int(total[-1]))
    upper, lower, once = (bool(np.any(one)) for one in failed)
    return upper, lower, once, limits[-1, 1] / end, limits[-1, 2] / end


WORK = ("ideal", "erring", "erring, believed", "partial", "biased")
ESTIMATES = ("precision", "false_omission", "anomalous_rejected", "miss_rate", "contamination",
             "cost_per_event")  # fmt: skip
REPEATS, AUDIT, OVERLOOKED, FALSE_ALARMS, TWICE = 300, 0.02, 0.05, 0.02, 0.2
# Accepted anomalies, accepted normals, episodes of six rejected events; shares of true anomalies.
SIZES, SHARES, OF_SIX = (3_000, 94_000, 500), (0.8, 0.005, 0.4), 6


def work(kind: str, rng: np.random.Generator) -> tuple[list[Group], list[float]]:
    """Return what people say of one deployment, and the true share of anomalies of each group."""
    groups, truth = [], []
    for size, share, events in zip(SIZES, SHARES, (1, 1, OF_SIX), strict=True):
        wrong = rng.random(size) < share
        truth.append(float(wrong.mean()))
        judged = rng.random(size) < (AUDIT if events == 1 else 1.0)
        if events > 1 and kind in ("partial", "biased"):
            likely = wrong + rng.normal(size=size)
            order = np.argsort(-likely) if kind == "biased" else rng.permutation(size)
            judged = np.isin(np.arange(size), order[: int(0.6 * size)])
        errs = kind.startswith("erring")
        slips = np.where(wrong, OVERLOOKED, FALSE_ALARMS) * errs
        first, second = (wrong ^ (rng.random(size) < slips) for _ in range(2))
        double = judged & (rng.random(size) < TWICE) & errs
        said = judged & ~(double & (first != second))
        both = first.astype(int) + second
        twice = [int((double & (both == k)).sum()) for k in (2, 1, 0)]
        groups.append(
            Group(
                events=size * events,
                judged=int(said.sum()) * events,
                anomalous=int((said & first).sum()) * events,
                effective=float(said.sum()),
                twice=(0, 0, 0) if kind == "erring, believed" else (twice[0], twice[1], twice[2]),
            )
        )
    return groups, truth


def covered(kind: str, seed: int) -> tuple[list[bool], list[float]]:
    """Return which intervals of a deployment held the truth, and how wide they were."""
    groups, p = work(kind, np.random.default_rng([seed, WORK.index(kind)]))
    weights = np.array([group.events for group in groups]) / sum(one.events for one in groups)
    costs = Costs(1, 1, 0.05)
    every = float(weights @ p)
    cost = weights[0] * (1 - p[0]) + weights[1] * p[1] + costs.c_r * weights[2]
    truth = (p[0], p[1], p[2], weights[1] * p[1] / every, every, cost)
    found = estimate(groups[0], groups[1], groups[2], costs)
    intervals = [getattr(found, name) for name in ESTIMATES]
    held = [
        one.low - 1e-12 <= true <= one.high + 1e-12
        for one, true in zip(intervals, truth, strict=True)
    ]
    return held, [one.high - one.low for one in intervals]


def coverage() -> tuple[list[list[object]], list[list[object]]]:
    """Return the rows of both tables: coverage, and mean widths."""
    held: list[list[object]] = []
    wide: list[list[object]] = []
    for kind in WORK:
        found = [covered(kind, seed) for seed in range(REPEATS)]
        held.append([kind, *np.mean([one[0] for one in found], axis=0).round(3).tolist()])
        wide.append([kind, *np.mean([one[1] for one in found], axis=0).round(4).tolist()])
    return held, wide


def main() -> None:
    """Run all deployments and write the tables."""
    kinds = ("iid", "bursts of 100", "AR(.99)", "drift")
    rows = []
    for rate in RATES:
        for kind in kinds:
            found = np.array([deploy(kind, rate, seed) for seed in range(DEPLOYMENTS)], dtype=float)
            rows.append([rate, kind, *found.mean(axis=0).round(3).tolist()])
    widths = [
        [rate, *(round(bounds(found, rate)[1] / bounds(found, rate)[2], 2) for found in FOUND)]
        for rate in RATES
    ]
    held, wide = coverage()
    columns = ["work", *(name.replace("_", " ") for name in ESTIMATES)]
    write(
        "answers",
        "The certificate of missed anomalies, and the report's intervals",
        [
            (
                "Share of deployments in which a limit was wrong at some look; limit over the "
                "truth at the end, in the mean",
                ["audit rate", "misses", "upper wrong", "lower wrong", "one-look limit wrong",
                 "upper / truth", "one-look / truth"],
                rows,
            ),
            (
                "Upper limit over the one-look limit, by how many were found",
                ["audit rate", *map(str, FOUND)],
                widths,
            ),
            (
                "Share of deployments whose 95 % interval of the report held the truth",
                columns,
                held,
            ),
            ("Mean width of these intervals", columns, wide),
        ],
        note=f"{DEPLOYMENTS:,} deployments of {EVENTS:,} accepted events, {SHARE:.0%} of them "
        f"missed, α = {ALPHA}, a look after every 25 audited events. "
        f"The report: {REPEATS} deployments of {SIZES[0] + SIZES[1]:,} accepted events, "
        f"{AUDIT:.0%} audited, and {SIZES[2]} episodes; who errs overlooks {OVERLOOKED:.0%} and "
        f"calls {FALSE_ALARMS:.0%} of normals anomalies, {TWICE:.0%} are judged twice "
        "(believed: as if none were); partial is 60 % of the episodes, "
        "biased the likelier anomalies of them first.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
