"""When to abstain: RejEx's rejection band, as two integer ranks.

A label is accepted only if a re-drawn reference would contradict it with probability below
exp(-T), where T is the tolerance: the event is rejected iff |2 P1 - 1| <= 1 - 2 exp(-T), that is
iff log P1 >= -T and log P0 >= -T (P1, P0: see :mod:`rejex_stream.rejection.exceed`). Both tails are
monotone in the rank K, so the rejected ranks are one interval that depends on (n, r, T) alone:
a verdict is a rank and two integer comparisons, and nothing below runs once per event.

References
----------
.. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import scipy

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_number, decimal, round_up
from rejex_stream.rejection.exceed import anomaly_count, checked_count, log_p_anomaly, log_p_normal
from rejex_stream.types import Label

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

TOLERANCE = 32.0
"""T of the paper, where neither a tolerance nor a rate is given."""

_FAR = 1 << 40  # an end for searches that have none
_CLEAR = math.log(0.4)  # a tail below this is the smaller of the two
# By cell, see `rank_edges`: the rule "rejected iff k_lo <= K <= k_hi, else anomaly iff K > n - r".
_LABELS = (Label.NORMAL, Label.REJECTED, Label.REJECTED, Label.ANOMALY)


def rank_edges(n: int, n_anomalies: int, lower: int, upper: int) -> tuple[int, int, int]:
    """Return the first rank of each cell but the first, in order; this is the verdict rule.

    ====  =======================  ==========================
    cell  ranks                    verdict
    ====  =======================  ==========================
    0     ``[0, k_lo)``            normal
    1     ``[k_lo, n - r]``        rejected, label normal
    2     ``(n - r, k_hi]``        rejected, label anomaly
    3     ``(k_hi, n]``            anomaly
    ====  =======================  ==========================

    Of n >= 1 reference scores r = `n_anomalies` count as anomalies. The band is inclusive, empty
    where ``lower > upper``, and clipped to the ranks and to the threshold: no integers raise.

    Examples
    --------
    >>> edges = rank_edges(1000, 50, 882, 987)
    >>> edges, [cell_of(rank, edges) for rank in (881, 882, 950, 951, 987, 988)]
    ((882, 951, 988), [0, 1, 1, 2, 2, 3])
    """
    first_flagged = n - min(max(n_anomalies, 0), n) + 1
    if lower > upper:
        return first_flagged, first_flagged, first_flagged
    return (
        min(max(lower, 0), first_flagged),
        first_flagged,
        min(max(upper + 1, first_flagged), n + 1),
    )


def cell_of(value: float, edges: tuple[float, float, float]) -> int:
    """Return the cell 0..3 of a rank among :func:`rank_edges`, or a score among their scores."""
    return bisect_right(edges, value)


def label_of(value: float, edges: tuple[float, float, float]) -> Label:
    """Return the verdict for a rank among :func:`rank_edges`, or a score among their scores. O(1).

    Examples
    --------
    >>> str(label_of(950, (882, 951, 988))), str(label_of(2.5, (1.5, 1.9, 2.4)))
    ('rejected', 'anomaly')
    """
    return _LABELS[bisect_right(edges, value)]


@lru_cache(maxsize=64)
def label_table(band: RejectionBand) -> tuple[Label, ...]:
    """Return the label of every rank 0..n, for look-up by rank; O(n) once per band."""
    return tuple(map(band.label, range(band.n + 1)))


@dataclass(frozen=True, slots=True)
class RejectionBand:
    """The ranks at which the label could flip; made by :func:`rejection_band`.

    Examples
    --------
    >>> band = rejection_band(1000, 0.05)
    >>> band.lower, band.upper, band.width
    (882, 987, 106)
    >>> str(band.label(881)), str(band.label(882)), str(band.label(988))
    ('normal', 'rejected', 'anomaly')
    """

    n: int
    n_anomalies: int
    """Reference scores, and r = floor(n * contamination) of them that count as anomalies."""
    lower: int
    upper: int
    """First and last rejected rank, inclusive, in 0..n; the band is empty iff ``lower > upper``."""
    contamination: float
    tolerance: float
    """γ and T the band was made for."""
    edges: tuple[int, int, int] = field(init=False, repr=False, compare=False)
    """The three ranks at which the verdict changes, see :func:`rank_edges`."""

    def __post_init__(self) -> None:
        edges = rank_edges(self.n, self.n_anomalies, self.lower, self.upper)
        object.__setattr__(self, "edges", edges)

    @property
    def width(self) -> int:
        """How many of the n + 1 ranks are rejected."""
        return self.edges[2] - self.edges[0]

    @property
    def can_accept_anomaly(self) -> bool:
        """Whether at least the top rank is called an anomaly."""
        return self.edges[2] <= self.n

    @property
    def can_accept_normal(self) -> bool:
        """Whether at least the bottom rank is called normal."""
        return self.edges[0] > 0

    @property
    def can_accept_both(self) -> bool:
        """Whether a rank is left for either label."""
        return self.edges[0] > 0 and self.edges[2] <= self.n

    def label(self, rank: int) -> Label:
        """Return the verdict for a rank in 0..n, in O(1).

        The hard label comes from the rank itself, never from P1 > 1/2: on the first flagged
        rank P1 is slightly below one half.
        """
        return _LABELS[bisect_right(self.edges, rank)]

    def cells(self, ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the cell 0..3 of every rank, an array of the same shape; see :func:`rank_edges`.

        Examples
        --------
        >>> rejection_band(1000, 0.05).cells([881, 950, 951, 988]).tolist()
        [0, 1, 2, 3]
        """
        return np.searchsorted(self.edges, ranks, side="right")


def rejection_band(n: int, contamination: float, tolerance: float = TOLERANCE) -> RejectionBand:
    """Return the interval of ranks whose label could flip: RejEx as two integers.

    Parameters
    ----------
    n
        Reference scores, n >= 2, with floor(n γ) >= 1.
    contamination
        γ in (0, 0.5), read as the decimal that was typed.
    tolerance
        T > ln 2; a label is accepted only if the other one has probability below exp(-T).
        The paper's value is 32. Larger T rejects more.

    Notes
    -----
    A band that leaves no rank for a label is returned, not refused: see :func:`require_reachable`.
    Perini, Davis: NeurIPS 2023. ``1 - 2 exp(-T)`` is never formed: it rounds to 1.0 from
    T = 38.13 on and everything would be rejected. O(log n) once per (n, γ, T), then cached.

    Examples
    --------
    >>> band = rejection_band(2000, 0.05, tolerance=8)
    >>> band.lower, band.upper, band.can_accept_anomaly
    (1865, 1930, True)
    >>> rejection_band(100, 0.1).can_accept_anomaly   # the paper's T = 32 needs r >= 17
    False
    """
    check_number("tolerance", tolerance)
    r = checked_count(n, contamination, lambda: _enough_for(n, contamination, tolerance))
    return _band(int(n), r, float(contamination), float(tolerance))


def _enough_for(n: int, contamination: float, tolerance: float) -> str:
    """Say which window, or which contamination, leaves both labels at a tolerance: each tried."""
    advice = f"use a window of at least {min_window(contamination, tolerance):,}"
    counts = range(1, (n - 1) // 2 + 1)
    first = bisect_left(counts, True, key=lambda r: _flip_tolerance(n, n, r) > tolerance)
    if first < len(counts):
        advice += f", or a contamination of at least {round_up(Fraction(counts[first], n))}"
    return advice


def _first(holds: Callable[[int], bool], *, guess: int, last: int) -> int:
    """Return the first rank in 0..last at which a monotone predicate holds; it does at `last`."""
    # Gallops from `guess` to a bracket, then bisects: O(log of the guess's error).
    guess = min(max(guess, 0), last)
    step = 1
    if guess == last or holds(guess):
        low, high = guess - step, guess
        while low >= 0 and holds(low):
            step *= 2
            low, high = low - step, low
    else:
        low, high = guess, guess + step
        while high < last and not holds(high):
            step *= 2
            low, high = high, high + step
    low, high = max(low, -1), min(high, last)  # fails at low, holds at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@lru_cache(maxsize=65_536)
def _band(n: int, r: int, contamination: float, tolerance: float) -> RejectionBand:
    # The edges are a Clopper-Pearson interval around n - r, so the inverse incomplete beta function
    # guesses them, mostly to the rank; what counts is the integer search from there. It is never
    # trusted: it is off by a rank now and then, and not a number for large T.
    tail = math.exp(-tolerance)
    guess = float(scipy.special.betaincinv(n - r + 1, r, tail))
    # First rank with log P1 >= -T (or n + 1: none, as for r = 1 and T < 1); P1 grows with the rank.
    lower = _first(
        lambda rank: log_p_anomaly(rank, n, r) >= -tolerance,
        guess=math.ceil((n + 2) * guess - 1) if guess > 0 else n - r,
        last=n + 1,
    )
    guess = float(scipy.special.betaincinv(r, n - r + 1, tail))
    # First rank with log P0 < -T (or n + 1: none), one above the band; P0 falls with the rank.
    above = _first(
        lambda rank: log_p_normal(rank, n, r) < -tolerance,
        guess=math.floor(n + 2 - (n + 2) * guess) if guess > 0 else n - r + 1,
        last=n + 1,
    )
    if lower >= above:  # no rank is rejected: the empty band stands at the threshold
        lower = above = n - r + 1
    return RejectionBand(n, r, lower, above - 1, contamination, tolerance)


def max_tolerance(n: int, contamination: float) -> float:
    """Return the tolerance from which on some label is never accepted at this window.

    Any T below the result accepts the top rank as anomaly and the bottom rank as normal.

    Examples
    --------
    >>> round(max_tolerance(1000, 0.01), 2)
    16.06
    """
    r = checked_count(n, contamination)
    # The top rank flips first: P0 there is I(r, n - r + 1) at 1 / (n + 2), P1 at rank 0 is the same
    # with its arguments swapped, and smaller, since r < n / 2.
    return _flip_tolerance(n, n, r)


def _flip_tolerance(rank: int, n: int, r: int) -> float:
    """Return the tolerance from which on a rank is rejected: that of the smaller tail."""
    sides = (log_p_anomaly, log_p_normal) if rank <= n - r else (log_p_normal, log_p_anomaly)
    own = sides[0](rank, n, r)
    # The other one is the larger, and next to it near 1/2 only.
    return -own if own < _CLEAR else -min(own, sides[1](rank, n, r))


def min_window(contamination: float, tolerance: float) -> int:
    """Return the smallest window in which both labels can be accepted.

    At T = 32 even the most extreme score is rejected unless r = floor(n γ) >= 17.

    Examples
    --------
    >>> min_window(0.01, 32), min_window(0.05, 8)
    (1700, 140)
    """
    gamma = decimal(check_number("contamination", contamination))
    tolerance = check_number("tolerance", tolerance)

    def reachable(r: int) -> bool:
        shortest = max(2, math.ceil(r / gamma))
        return r >= 1 and max_tolerance(shortest, contamination) > tolerance

    r = _first(reachable, guess=math.ceil(tolerance / 2), last=_FAR)
    # For one r the shortest window is the easiest; close to γ = 1/2 normal is the bottleneck.
    n = max(2, math.ceil(r / gamma))
    while n > 2 and anomaly_count(n - 1, contamination) >= 1:
        if max_tolerance(n - 1, contamination) <= tolerance:
            break
        n -= 1
    return n


def _last_window(n: int, gamma: Fraction) -> int:
    return math.ceil((math.floor(n * gamma) + 1) / gamma) - 1


def require_reachable(band: RejectionBand) -> RejectionBand:
    """Return `band` if it leaves ranks for both labels, else refuse it with the ways out."""
    missing = [
        word
        for word, reachable in (
            ("an anomaly", band.can_accept_anomaly),
            ("normal", band.can_accept_normal),
        )
        if not reachable
    ]
    if not missing:
        return band
    window, gamma = min_window(band.contamination, band.tolerance), decimal(band.contamination)
    # Within one r the longest window is the hardest: a promise of "at least" begins where it works.
    while max_tolerance(last := _last_window(window, gamma), band.contamination) <= band.tolerance:
        window = last + 1
    limit = math.floor(max_tolerance(band.n, band.contamination) * 100) / 100
    fix = f"use a window of at least {window:,}"
    if limit > math.log(2):
        fix += f", or a tolerance of at most {limit:g}"
    raise ConfigError(
        f"With window n = {band.n:,} and contamination {band.contamination:g} "
        f"(r = {band.n_anomalies}) no score can ever be called {' or '.join(missing)} "
        f"at tolerance T = {band.tolerance:g}: {fix}."
    )


def tolerance_for_rate(
    rate: float, n: int, contamination: float, fix: Callable[[], str] | None = None
) -> float:
    """Return the tolerance whose band is the widest with an expected rejection rate <= `rate`.

    The rate is in [1 / (n + 1), 1); `fix` is what a refusal advises, where more than these
    arguments decides.

    Notes
    -----
    The expected rate is a step function of T; the result lies in the middle of its step, so it
    survives being printed and typed again. O(log n).

    Examples
    --------
    >>> tolerance = tolerance_for_rate(0.05, 2000, 0.05)
    >>> round(tolerance, 1), rejection_band(2000, 0.05, tolerance).width, int(0.05 * 2001)
    (15.7, 100, 100)
    """
    r = checked_count(n, contamination, fix)
    rate = check_number("rate", rate)
    width = math.floor(decimal(rate) * (n + 1))
    if width < 1:
        advice = (
            f"use a window of at least {math.ceil(1 / decimal(rate)) - 1:,}, or a rate of at least "
            f"{round_up(Fraction(1, n + 1))}"
        )
        raise ConfigError(
            f"A rejection rate of {rate:g} is less than one rank of a window of n = {n:,} "
            f"(1/{n + 1:,}): {fix() if fix else advice}."
        )

    while width >= 1:
        _, inside, outside = _easiest(n, r, width)
        if inside < outside:
            return _between(inside, outside)
        width -= 1  # two ranks flip at the very same tolerance: this width does not exist
    raise ConfigError(
        f"No tolerance gives a rejection rate of at most {rate:g} at window n = {n:,}: "
        f"{fix() if fix else 'use a larger rate or window'}."
    )


def _easiest(n: int, r: int, width: int) -> tuple[int, float, float]:
    """Return the first of the `width` >= 1 ranks that flip most easily, and two tolerances."""
    # From the first tolerance on all of them are rejected, below the second no other rank is.

    @cache
    def distance(rank: int) -> float:
        return _flip_tolerance(rank, n, r) if 0 <= rank <= n else math.inf

    # Slide an interval of `width` ranks to where its two ends are equally far from flipping. On the
    # scale of asin(√p), where a share's variance is the same everywhere (F. Anscombe: Biometrika
    # 35, 1948), it lies evenly around the threshold: a guess that is right to a rank or two.
    middle = math.asin(math.sqrt((n - r + 1) / (n + 2)))
    half = math.asin(min(1.0, width / ((n + 2) * math.sin(2 * middle)))) / 2
    low = _first(
        lambda rank: distance(rank) <= distance(rank + width),
        guess=round((n + 2) * math.sin(max(0.0, middle - half)) ** 2 - 1),
        last=n + 1 - width,
    )
    inside = max(distance(low), distance(low + width - 1), math.log(2))
    return low, inside, min(distance(low - 1), distance(low + width))


def is_top_left(n: int, r: int, width: int) -> bool:
    """Whether the top rank is not among the `width` that flip most easily. O(1)."""
    return width < 1 or (
        width <= n and _flip_tolerance(n - width, n, r) <= _flip_tolerance(n, n, r)
    )


def _between(inside: float, outside: float) -> float:
    return inside + 1.0 if math.isinf(outside) else (inside + outside) / 2


@lru_cache(maxsize=65_536)
def nested_band(n: int, contamination: float, width: int) -> RejectionBand:
    """Return the band of the first `width` ranks in the order in which they enter as T grows.

    Bands of growing T are nested, one rank more each: that order is what a budget cuts short.

    O(log n) the first time, then cached.
    """
    r = checked_count(n, contamination)
    if not 0 <= width <= n + 1:
        raise ConfigError(
            f"A band of {width:,} ranks cannot be at window n = {n:,}: give 0 to {n + 1:,}."
        )
    if width == 0:
        return RejectionBand(n, r, n - r + 1, n - r, float(contamination), math.log(2))
    low, inside, outside = _easiest(n, r, width)
    tolerance = _between(inside, outside)
    return RejectionBand(n, r, low, low + width - 1, float(contamination), tolerance)


def widest_band(n: int, contamination: float) -> int:
    """Return the width of the widest nested band that leaves a rank for both labels; O(log n)."""
    r = checked_count(n, contamination)
    most = math.nextafter(max_tolerance(n, contamination), 0.0)
    return _band(n, r, float(contamination), most).width


def window_for_rate(rate: float, contamination: float, tolerance: float) -> int:
    """Return the smallest window whose expected rejection rate at `tolerance` is at most `rate`.

    Both labels are reachable in it. The rate falls roughly with the square root of the window.
    O(log n) bands, and a few for each r among the last 1 / `rate` windows.

    Examples
    --------
    >>> window_for_rate(0.05, 0.05, 32)
    4419
    """
    gamma = decimal(check_number("contamination", contamination))
    rate, share = check_number("rate", rate), decimal(rate)
    n = min_window(contamination, check_number("tolerance", tolerance))

    def at(n: int) -> tuple[RejectionBand, tuple[int, int, int]]:
        """Return the band, and what it has in common with its neighbours: r and both edges."""
        band = rejection_band(n, contamination, tolerance)
        return band, (band.n_anomalies, n - band.lower, n - band.upper)

    def after(n: int, run: tuple[int, int, int]) -> int:
        """Return the first window above n that has something else."""
        return _first(lambda m: at(m)[1] != run, guess=n + 1, last=_last_window(n, gamma) + 1)

    while True:
        band, run = at(n)
        fitting = max(n, math.ceil(band.width / share) - 1)
        fits, run_there = at(fitting)
        if run_there == run and fits.can_accept_anomaly and fits.can_accept_normal:
            return fitting
        # Over windows the width grows, but for dips of one rank where an edge moves first.
        jump = math.ceil((band.width - 1) / share) - 1
        if jump <= n:
            jump = after(n, run)
        n = jump
