"""When to abstain: RejEx's rejection band, as two integer ranks.

A label is accepted only if a re-drawn reference would contradict it with probability below
exp(-T), where T is the tolerance: the event is rejected iff |2 P1 - 1| <= 1 - 2 exp(-T), that is
iff log P1 >= -T and log P0 >= -T (P1, P0: see :mod:`rejex_stream.exceed`). Both tails are
monotone in the rank K, so the rejected ranks are one interval that depends on (n, r, T) alone:
a verdict is a rank and two integer comparisons, and nothing below runs once per event.

References
----------
.. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from scipy.special import betaincinv

from rejex_stream.arguments import check_contamination, check_rate, check_tolerance, decimal
from rejex_stream.errors import ConfigError
from rejex_stream.exceed import (
    Stability,
    anomaly_count,
    checked_count,
    log_p_anomaly,
    log_p_normal,
    stability,
)
from rejex_stream.types import Label

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "RejectionBand",
    "Stability",
    "anomaly_count",
    "max_tolerance",
    "min_window",
    "rejection_band",
    "require_reachable",
    "stability",
    "tolerance_for_rate",
    "window_for_rate",
]

_FAR = 1 << 40  # an end for searches that have none
_NORMAL, _ANOMALY, _REJECTED = Label.NORMAL, Label.ANOMALY, Label.REJECTED  # look-up is not free


@dataclass(frozen=True, slots=True)
class RejectionBand:
    """The ranks at which the label could flip; made by :func:`rejection_band`.

    Attributes
    ----------
    n, n_anomalies
        Reference scores, and r = floor(n * contamination) of them that count as anomalies.
    lower, upper
        First and last rejected rank, inclusive, in 0..n; the band is empty iff ``lower > upper``.
    contamination, tolerance
        γ and T the band was made for.

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
    lower: int
    upper: int
    contamination: float
    tolerance: float

    @property
    def width(self) -> int:
        """How many of the n + 1 ranks are rejected."""
        return max(0, self.upper - self.lower + 1)

    @property
    def can_accept_anomaly(self) -> bool:
        """Whether at least the top rank is called an anomaly."""
        return self.upper < self.n

    @property
    def can_accept_normal(self) -> bool:
        """Whether at least the bottom rank is called normal."""
        return self.lower > 0

    def label(self, rank: int) -> Label:
        """Return the verdict for a rank in 0..n, in O(1).

        The hard label comes from the rank itself, never from P1 > 1/2: on the first flagged
        rank P1 is slightly below one half.
        """
        if self.lower <= rank <= self.upper:
            return _REJECTED
        return _ANOMALY if rank > self.n - self.n_anomalies else _NORMAL


def rejection_band(n: int, contamination: float, tolerance: float = 32.0) -> RejectionBand:
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

    Raises
    ------
    ConfigError
        If an argument cannot be; the message holds value, limit and mend. A band that leaves no
        rank for a label is returned, not refused: see :func:`require_reachable`.

    Notes
    -----
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
    r = checked_count(n, contamination)
    return _band(int(n), r, float(contamination), check_tolerance(tolerance))


def _first(holds: Callable[[int], bool], *, guess: int, last: int) -> int:
    """Return the first rank in 0..last at which a monotone predicate holds; it does at `last`.

    Gallops from `guess` to a bracket, then bisects: O(log of the guess's error).
    """
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
    guess = float(betaincinv(n - r + 1, r, tail))
    # First rank with log P1 >= -T (or n + 1: none, as for r = 1 and T < 1); P1 grows with the rank.
    lower = _first(
        lambda rank: log_p_anomaly(rank, n, r) >= -tolerance,
        guess=math.ceil((n + 2) * guess - 1) if guess > 0 else n - r,
        last=n + 1,
    )
    guess = float(betaincinv(r, n - r + 1, tail))
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
    return min(_flip_tolerance(n, n, r), _flip_tolerance(0, n, r))


def _flip_tolerance(rank: int, n: int, r: int) -> float:
    """Return the tolerance from which on a rank is rejected."""
    return -min(log_p_anomaly(rank, n, r), log_p_normal(rank, n, r))


def min_window(contamination: float, tolerance: float) -> int:
    """Return the smallest window in which both labels can be accepted.

    At T = 32 even the most extreme score is rejected unless r = floor(n γ) >= 17.

    Examples
    --------
    >>> min_window(0.01, 32), min_window(0.05, 8)
    (1700, 140)
    """
    gamma = decimal(check_contamination(contamination))
    tolerance = check_tolerance(tolerance)

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


def require_reachable(band: RejectionBand) -> RejectionBand:
    """Return `band` if it leaves ranks for both labels, else refuse it with the ways out.

    Raises
    ------
    ConfigError
        Naming the smallest window and the largest tolerance that can work.

    Examples
    --------
    >>> require_reachable(rejection_band(1000, 0.01))
    Traceback (most recent call last):
    rejex_stream.errors.ConfigError: With window n = 1,000 and contamination 0.01 (r = 10) no \
score can ever be called an anomaly at tolerance T = 32: use a window of at least 1,700, or a \
tolerance of at most 16.06.
    """
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
    window = min_window(band.contamination, band.tolerance)
    limit = math.floor(max_tolerance(band.n, band.contamination) * 100) / 100
    mend = f"use a window of at least {window:,}"
    if limit > math.log(2):
        mend += f", or a tolerance of at most {limit:g}"
    raise ConfigError(
        f"With window n = {band.n:,} and contamination {band.contamination:g} "
        f"(r = {band.n_anomalies}) no score can ever be called {' or '.join(missing)} "
        f"at tolerance T = {band.tolerance:g}: {mend}."
    )


def tolerance_for_rate(rate: float, n: int, contamination: float) -> float:
    """Return the tolerance whose band is the widest with an expected rejection rate <= `rate`.

    Parameters
    ----------
    rate
        Wanted share of rejected events, in [1 / (n + 1), 1).
    n, contamination
        As in :func:`rejection_band`.

    Raises
    ------
    ConfigError
        Also when `rate` is below one rank in n + 1, with the smallest window that could.

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
    r = checked_count(n, contamination)
    rate = check_rate(rate)
    width = math.floor(decimal(rate) * (n + 1))
    if width < 1:
        window = math.ceil(1 / decimal(rate)) - 1
        raise ConfigError(
            f"A rejection rate of {rate:g} is less than one rank of a window of n = {n:,} "
            f"(1/{n + 1:,}): use a window of at least {window:,}, or a rate of at least "
            f"{1 / (n + 1):.2g}."
        )

    def distance(rank: int) -> float:
        return _flip_tolerance(rank, n, r) if 0 <= rank <= n else math.inf

    while width >= 1:
        # Slide an interval of `width` ranks to where its two ends are equally far from flipping.
        low, high = 0, n + 1 - width
        while low < high:
            middle = (low + high) // 2
            if distance(middle) > distance(middle + width):
                low = middle + 1
            else:
                high = middle
        inside = max(distance(low), distance(low + width - 1), math.log(2))
        outside = min(distance(low - 1), distance(low + width))
        if inside < outside:
            return inside + 1.0 if math.isinf(outside) else (inside + outside) / 2
        width -= 1  # two ranks flip at the very same tolerance: this width does not exist
    raise ConfigError(
        f"No tolerance gives a rejection rate of at most {rate:g} at window n = {n:,}: "
        "use a larger rate or window."
    )


def window_for_rate(rate: float, contamination: float, tolerance: float) -> int:
    """Return the smallest window whose expected rejection rate at `tolerance` is at most `rate`.

    Both labels are reachable in it. The rate falls roughly with the square root of the window.

    Examples
    --------
    >>> window_for_rate(0.05, 0.05, 32)
    4419
    """
    gamma = decimal(check_contamination(contamination))
    rate = check_rate(rate)
    smallest = min_window(contamination, check_tolerance(tolerance))

    def fits(n: int) -> bool:
        return rejection_band(n, contamination, tolerance).width <= rate * (n + 1)

    if fits(smallest):
        return smallest

    def last(r: int) -> int:
        """Return the largest window with this r: within one r the rate falls with the window."""
        return math.ceil((r + 1) / gamma) - 1

    at_least = anomaly_count(smallest, contamination)
    r = _first(lambda r: r > at_least and fits(last(r)), guess=at_least + 1, last=_FAR)
    first, fitting = max(smallest, last(r - 1) + 1), last(r)
    while first < fitting:
        middle = (first + fitting) // 2
        first, fitting = (first, middle) if fits(middle) else (middle + 1, fitting)
    while fitting > smallest and fits(fitting - 1):
        fitting -= 1
    return fitting
