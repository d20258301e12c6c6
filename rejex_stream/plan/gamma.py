"""Which γ: by what each does, not by an estimate of how many anomalies there are.

Nobody knows that share beforehand, and an interval for it helps nobody choose. What can be known is
how many events a γ flags a day, which people must be able to act on, and what it costs beside the
best of its neighbours if the share is small, middling or large: the regret. The γ whose largest
regret is least is safe whichever is true; too large a γ mostly costs where misses are cheap.

Costs are exact for independent scores: those of normal events are N(0, 1), of anomalies N(d, 1),
and a window of n of either kind ranks the next one. Once people have answered, their own answers
say which neighbour is cheaper: ranks, windows and widths stay, and only r is another.

References
----------
.. [1] L. J. Savage: The theory of statistical decision. Journal of the American Statistical
   Association, 1951. The regret whose maximum is made least.
.. [2] D. G. Horvitz, D. J. Thompson: A generalization of sampling without replacement from a finite
   universe. Journal of the American Statistical Association, 1952. Weights of the answers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import betainc, ndtr

from rejex_stream.errors import ConfigError
from rejex_stream.plan.promises import Costs
from rejex_stream.rejection.band import RejectionBand, nested_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import FloatArray, Label

__all__ = [
    "MIN_ANSWERS", "SHARES", "SHIFT", "Answered", "GammaChoice", "Neighbour",
    "cheaper_neighbours", "compare_gammas",
]  # fmt: skip

SHARES = (0.005, 0.02, 0.08)
"""True shares of anomalies for which a γ is tried: a few, some, many."""
SHIFT = 3.0
"""How far anomalies' scores lie from those of normal events, in standard deviations."""
_GRID = np.linspace(-8.0, 8.0 + 2 * SHIFT, 4_001)


class GammaChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What one γ does.

    Attributes
    ----------
    contamination
        γ.
    flagged, called
        Shares of events that lie above the threshold, and that are called anomalies: the rest of
        the flagged is rejected.
    costs, regrets
        Mean cost of an event for each true share, and how many times that of the best γ it is.
    worst
        The largest regret.
    """

    contamination: float
    flagged: float
    called: float
    costs: tuple[float, ...]
    regrets: tuple[float, ...]
    worst: float


def compare_gammas(
    gammas: Sequence[float], window: int, costs: Costs, *, rate: float | None = None,
    tolerance: float | None = None, shares: Sequence[float] = SHARES,
) -> tuple[GammaChoice, ...]:  # fmt: skip
    """Say what each γ does that a pipeline could run with; O(gammas · shares · 4,000).

    Raises
    ------
    ConfigError
        None of them can be used with this window and budget.

    Examples
    --------
    >>> found = compare_gammas([0.01, 0.02, 0.04], 2000, Costs(c_fn=10, c_r=0.005), rate=0.02)
    >>> [round(one.regrets[1], 2) for one in found]
    [1.43, 1.08, 1.0]
    """
    bands, problem = [], ""
    for gamma in gammas:
        try:
            policy = RejectionPolicy(gamma, tolerance, rate)
            policy.require(window)
        except ConfigError as error:
            problem = str(error)
            continue
        bands.append((gamma, policy.band(window)))
    if not bands:
        raise ConfigError(
            f"no γ among {', '.join(f'{each:g}' for each in gammas)} works: {problem}"
        )
    table = np.array([[_cost(band, share, costs) for share in shares] for _, band in bands])
    regrets = table / table.min(axis=0)
    return tuple(
        GammaChoice(
            contamination=gamma,
            flagged=band.n_anomalies / (window + 1),
            called=(window + 1 - band.edges[2]) / (window + 1),
            costs=tuple(row.tolist()),
            regrets=tuple(of_best.tolist()),
            worst=float(of_best.max()),
        )
        for (gamma, band), row, of_best in zip(bands, table, regrets, strict=True)
    )


def _cost(band: RejectionBand, share: float, costs: Costs) -> float:
    """Return the mean cost of an event, of which so many are anomalies."""
    below = (1.0 - share) * ndtr(_GRID) + share * ndtr(_GRID - SHIFT)

    def reaches(rank: int) -> FloatArray:
        tail: FloatArray = (
            np.ones_like(_GRID) if rank == 0 else betainc(rank, band.n - rank + 1, below)
        )
        return tail

    called = reaches(band.edges[2]) if band.edges[2] <= band.n else np.zeros_like(_GRID)
    accepted = 1.0 - reaches(band.edges[0])
    rejected = costs.c_r * (1.0 - accepted - called)
    normal, anomalous = (np.exp(-((_GRID - of) ** 2) / 2) for of in (0.0, SHIFT))
    of_normal = normal @ (costs.c_fp * called + rejected) / normal.sum()
    of_anomaly = anomalous @ (costs.c_fn * accepted + rejected) / anomalous.sum()
    return float((1.0 - share) * of_normal + share * of_anomaly)


# ----------------------------------------------------------------------------- by answers
MIN_ANSWERS = 50
"""Before so many nothing is said of a neighbour."""


class Answered(NamedTuple):
    """An event of which people said what it is, and how many events it stands for."""

    case: str
    rank: int
    window: int
    n_anomalies: int
    width: int  # how many ranks are rejected
    weight: float
    anomalous: bool


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What another γ would have saved an event, with its 95 % interval, by how many answers.

    Attributes
    ----------
    contamination, instead_of
        The other γ and the one that was used, each as r / n in the mean.
    saved, low, high
        Below zero: it would have cost more.
    answers
        Those of events that it would have labelled otherwise.
    """

    contamination: float
    instead_of: float
    saved: float
    low: float
    high: float
    answers: int


def cheaper_neighbours(
    answers: Sequence[Answered], events: int, costs: Costs
) -> tuple[Neighbour, ...]:
    """Say what half of γ and twice as much would have cost, by answers; O(answers).

    Each answer stands for `weight` of `events` events in all. Cases are independent draws: what one
    case says counts as one [2]_. Nothing is said by fewer than 50 answers.
    """
    neighbours = []
    for by in (0.5, 2.0) if len(answers) >= MIN_ANSWERS else ():
        saved, others, gammas = defaultdict[str, float](float), 0, list[float]()
        for answer in answers:
            wanted = (by * answer.n_anomalies + 0.5) / answer.window
            if not 1.0 / answer.window <= wanted < 0.5:
                continue
            gammas.append(math.floor(wanted * answer.window) / answer.window)
            mine, other = (
                nested_band(answer.window, gamma, answer.width).label(answer.rank)
                for gamma in ((answer.n_anomalies + 0.5) / answer.window, wanted)
            )
            if mine is not other:
                others += 1
                saved[answer.case] += answer.weight * (
                    _paid(mine, answer.anomalous, costs) - _paid(other, answer.anomalous, costs)
                )
        if not gammas:
            continue
        mean = sum(saved.values()) / events
        half = 1.96 * math.sqrt(sum(answer * answer for answer in saved.values())) / events
        used = [answer.n_anomalies / answer.window for answer in answers]
        neighbours.append(
            Neighbour(
                contamination=sum(gammas) / len(gammas),
                instead_of=sum(used) / len(used),
                saved=mean,
                low=mean - half,
                high=mean + half,
                answers=others,
            )
        )
    return tuple(neighbours)


def _paid(label: Label, anomalous: bool, costs: Costs) -> float:
    if label is Label.REJECTED:
        return costs.c_r
    if label is Label.ANOMALY:
        return 0.0 if anomalous else costs.c_fp
    return costs.c_fn if anomalous else 0.0
