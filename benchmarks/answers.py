"""Whether what answers prove is so: the certificate at every look, the estimates' intervals at one.

python -m benchmarks.answers [certificate] [patterns]

Each deployment judges events of which some are anomalies that were called normal; each is found by
an audit with the same probability, and somebody looks after every 25 audited events. A bound is
wrong if it was wrong at any look. The one-look limit is the largest k under which so few finds
have a probability of at least α (Clopper and Pearson, one side).

The estimates are those of the report: accepted events audited by coins, rejected ones judged in
episodes of six, an interval right if it holds the share among all events of its deployment.
In every group anomalies lie as the row says: alone, in bursts, in the excursions of a slow process,
or more and more.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.stats import beta, norm

from benchmarks.harness import write
from rejex_stream.rejection.audit_sampling import Stratum, fewest_missed, most_missed
from rejex_stream.review.queue.label_report import Group, estimate

DEPLOYMENTS, EVENTS, SHARE, ALPHA = 1_000, 200_000, 0.01, 0.05
RATES = (0.01, 0.001)
FOUND = (0, 1, 5, 20, 100)
Flags = npt.NDArray[np.bool_]


def anomalous(kind: str, rng: np.random.Generator, size: int, share: float) -> Flags:
    """Return which of `size` events in order of time are anomalies, for one deployment."""
    if kind == "iid":
        return rng.random(size) < share
    if kind.startswith("bursts"):
        length = min(100, max(2, size // 50))
        starts = rng.random(size) < -np.log1p(-share) / length  # bursts overlap
        return np.convolve(starts, np.ones(length))[:size] > 0
    if kind == "AR(.99)":
        level = lfilter([np.sqrt(1 - 0.99**2)], [1, -0.99], rng.normal(size=size + 500))[500:]
        return level > norm.isf(share)
    rising = np.linspace(0.0, 2 * share, size)  # drift: none at first, twice as many in the end
    return rng.random(size) < rising


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
    wrong, audited = anomalous(kind, rng, EVENTS, SHARE), rng.random(EVENTS) < rate
    looks = np.flatnonzero(audited)[24::25]
    total, found = np.cumsum(wrong)[looks], np.cumsum(wrong & audited)[looks]
    limits = np.array([bounds(int(h), rate) for h in found])
    failed = (total > limits[:, 1], total < limits[:, 0], total > limits[:, 2])
    end = max(1, int(total[-1]))
    upper, lower, once = (bool(np.any(one)) for one in failed)
    return upper, lower, once, limits[-1, 1] / end, limits[-1, 2] / end


WORK = ("ideal", "erring", "partial", "biased")
ESTIMATES = ("precision", "false_omission", "anomalous_rejected", "miss_rate", "contamination")
PATTERNS = ("iid", "bursts", "AR(.99)", "drift")
REPEATS, AUDIT, OVERLOOKED, FALSE_ALARMS = 300, 0.02, 0.05, 0.02
# Accepted anomalies, accepted normals, episodes of six rejected events; shares of true anomalies.
SIZES, SHARES, OF_SIX = (3_000, 94_000, 500), (0.8, 0.005, 0.4), 6


def work(kind: str, pattern: str, rng: np.random.Generator) -> tuple[list[Group], list[float]]:
    """Return what people say of one deployment, and the true shares of anomalies."""
    groups, truth = [], []
    for size, share, events in zip(SIZES, SHARES, (1, 1, OF_SIX), strict=True):
        wrong = anomalous(pattern, rng, size, share)
        truth.append(float(wrong.mean()))
        judged = rng.random(size) < (AUDIT if events == 1 else 1.0)
        if events > 1 and kind in ("partial", "biased"):
            likely = wrong + rng.normal(size=size)
            order = np.argsort(-likely) if kind == "biased" else rng.permutation(size)
            judged = np.isin(np.arange(size), order[: int(0.6 * size)])
        slips = np.where(wrong, OVERLOOKED, FALSE_ALARMS) * (kind == "erring")
        called = wrong ^ (rng.random(size) < slips)
        groups.append(
            Group(
                events=size * events,
                judged=int(judged.sum()) * events,
                anomalous=int((judged & called).sum()) * events,
                effective=float(judged.sum()),
            )
        )
    return groups, truth


def covered(kind: str, pattern: str, seed: int) -> list[tuple[float, float]]:
    """Return of each interval of a deployment whether it held the truth, and how wide it was."""
    name = [seed, WORK.index(kind), PATTERNS.index(pattern)]
    groups, p = work(kind, pattern, np.random.default_rng(name[: 2 + (pattern != "iid")]))
    weights = np.array([group.events for group in groups]) / sum(one.events for one in groups)
    every = float(weights @ p)
    truth = (p[0], p[1], p[2], weights[1] * p[1] / every, every)
    found = estimate(groups[0], groups[1], groups[2])
    told = []
    for name_, true in zip(ESTIMATES, truth, strict=True):
        one = getattr(found, name_)
        if one.low is None:
            told.append((np.nan, np.nan))
        else:
            told.append((one.low - 1e-12 <= true <= one.high + 1e-12, one.high - one.low))
    return told


def coverage(cell: tuple[str, str, int]) -> tuple[list[object], list[object]]:
    """Return a row of both tables, coverage and mean width, for (work, pattern, deployments)."""
    kind, pattern, repeats = cell
    found = np.array([covered(kind, pattern, seed) for seed in range(repeats)], dtype=float)
    rows = [
        ["–" if np.isnan(one) else round(float(one), digits) for one in found[:, :, k].mean(axis=0)]
        for k, digits in ((0, 3), (1, 4))
    ]
    name = [kind, pattern, repeats]
    return [*name, *rows[0]], [*name, *rows[1]]


IN_TIME = 100
"""Deployments in patterns, of each kind of work."""


def certificate() -> None:
    """Write what the certificate holds at every look, and the report's intervals."""
    rows = []
    for rate in RATES:
        for kind in ("iid", "bursts of 100", "AR(.99)", "drift"):
            found = np.array([deploy(kind, rate, seed) for seed in range(DEPLOYMENTS)], dtype=float)
            rows.append([rate, kind, *found.mean(axis=0).round(3).tolist()])
    widths = [
        [rate, *(round(bounds(found, rate)[1] / bounds(found, rate)[2], 2) for found in FOUND)]
        for rate in RATES
    ]
    held, wide = zip(*(coverage((kind, "iid", REPEATS)) for kind in WORK), strict=True)
    columns = ["work", "anomalies", "deployments", *(name.replace("_", " ") for name in ESTIMATES)]
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
                list(held),
            ),
            ("Mean width of these intervals", columns, list(wide)),
        ],
        note=f"{DEPLOYMENTS:,} deployments of {EVENTS:,} accepted events, {SHARE:.0%} of them "
        f"missed, α = {ALPHA}, a look after every 25 audited events. {_SETTING}",
    )  # fmt: skip


_SETTING = (
    f"The report: {REPEATS} deployments of {SIZES[0] + SIZES[1]:,} accepted events, "
    f"{AUDIT:.0%} audited, and {SIZES[2]} episodes; who errs overlooks {OVERLOOKED:.0%} and "
    f"calls {FALSE_ALARMS:.0%} of normals anomalies, and is believed; partial is 60 % of the "
    "episodes, biased the likelier anomalies of them first."
)


def patterns() -> None:
    """Write the report's intervals where anomalies come in patterns."""
    cells = [(kind, pattern, IN_TIME) for kind in WORK for pattern in PATTERNS]
    with ProcessPoolExecutor(2) as pool:
        held, wide = zip(*pool.map(coverage, cells), strict=True)
    columns = ["work", "anomalies", "deployments", *(name.replace("_", " ") for name in ESTIMATES)]
    write(
        "answers-patterns",
        "The report's intervals where anomalies come in patterns",
        [
            ("Share of deployments whose 95 % interval held the truth", columns, list(held)),
            ("Mean width of these intervals", columns, list(wide)),
        ],
        note=_SETTING.replace(f"{REPEATS} deployments", "Deployments", 1)
        + " A share of .95 is told to within .022 (one standard error) by 100 deployments.",
    )


def main() -> None:
    """Run what is named, or all of it, and write the tables."""
    parts = {"certificate": certificate, "patterns": patterns}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
