"""What a pipeline wants of its verdicts: γ, and a tolerance or a review budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal, TypeAlias, get_args

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import (
    check_burst,
    check_number,
    decimal,
    round_down,
    round_up,
)
from rejex_stream.rejection.band import (
    RejectionBand,
    is_top_left,
    min_window,
    rejection_band,
    require_reachable,
    tolerance_for_rate,
    widest_band,
)
from rejex_stream.rejection.exceed import anomaly_count

BudgetOwner: TypeAlias = Literal["stream", "group", "partition"]
"""Who has a budget: each stream, those whose names are the same up to the last slash, or all."""

CONTAMINATION = 0.05
"""γ where a notebook, or a question to the planner, gives none; a pipeline has to give its own."""
MIN_BURST = 50
"""Events that a budget may be overdrawn by where nobody says how many, nor how long a day is."""

WINDOW = 2000
"""n of a full window where nothing else is said."""


@dataclass(frozen=True, slots=True)
class RejectionPolicy:
    """The band for every window length, from a tolerance or from a rejection rate.

    Examples
    --------
    >>> policy = RejectionPolicy(0.05, rate=0.05)
    >>> band = policy.band(2000)
    >>> band.width / 2001 <= 0.05, round(band.tolerance, 1)
    (True, 15.7)
    """

    contamination: float
    """γ in (0, 0.5)."""
    tolerance: float | None = None
    rate: float | None = None
    """Exactly one: the paper's T, or the share of events that people can review. With a rate the
    tolerance follows the window, so that the budget holds while the window fills."""
    ties: Literal["mid", "paper"] = "mid"
    """``mid``: decide by mid-rank. ``paper``: by #{<=}, for parity runs only."""
    burst: int | None = None
    """With a rate: how many events beyond it may be rejected at once. The rate then holds on any
    stream, see :mod:`rejex_stream.rejection.token_bucket`; ``None``: it is only expected."""
    per_day: float | None = None
    """With a burst: rejected events a day, by event time, instead of a share of the events; the
    rate goes on giving the band its width."""
    owner: BudgetOwner = "stream"
    """With a burst: whose budget it is, see :data:`BudgetOwner`."""

    def __post_init__(self) -> None:
        check_number("contamination", self.contamination)
        if (self.tolerance is None) == (self.rate is None):
            raise ConfigError(
                f"tolerance = {self.tolerance} and rate = {self.rate}: give exactly one of them, "
                "a tolerance (the paper's is 32) or the share of events that people can review."
            )
        if self.tolerance is not None:
            check_number("tolerance", self.tolerance)
        if self.rate is not None:
            check_number("rate", self.rate)
        if self.ties not in ("mid", "paper"):
            raise ConfigError(f"ties = {self.ties!r} is unknown: use 'mid' or 'paper'.")
        if self.burst is not None:
            check_burst(self.burst)
            if self.rate is None:
                raise ConfigError(
                    f"burst = {self.burst} belongs to a budget: give a rate instead of the "
                    "tolerance, or leave the burst out."
                )
        if self.per_day is not None:
            check_number("per_day", self.per_day)
            if self.burst is None:
                raise ConfigError(
                    f"per_day = {self.per_day:g} is a budget that holds only with a burst: give "
                    "one, e.g. the same number of events."
                )

        if self.owner not in get_args(BudgetOwner):
            raise ConfigError(
                f"owner = {self.owner!r} is unknown: use {', '.join(get_args(BudgetOwner))}."
            )
        if self.owner != "stream" and self.burst is None:
            raise ConfigError(
                f"owner = {self.owner!r} belongs to a budget that holds: give a burst, or leave "
                "the owner out."
            )

    @property
    def unbudgeted(self) -> RejectionPolicy:
        """The same without a budget that holds: whoever judges by it spends no credit."""
        return replace(self, burst=None, per_day=None, owner="stream")

    def shared_by(self, stream_key: str) -> str | None:
        """Return the name of the owner whose credit a stream shares; ``None`` if it has its own.

        Examples
        --------
        >>> policy = RejectionPolicy(0.05, rate=0.05, burst=72, owner="group")
        >>> policy.shared_by("plant-1/pump-7/flow"), policy.shared_by("flow")
        ('plant-1/pump-7', None)
        """
        if self.owner == "partition":
            return ""
        group, slash, _ = stream_key.rpartition("/")
        return group if slash and self.owner == "group" else None

    def band(self, n: int) -> RejectionBand:
        """Return the band for n reference scores; cached, O(log n) the first time."""
        return _band(self, n)

    @property
    def first_window(self) -> int:
        """The smallest window in which both labels can be accepted: below it lies warm-up."""
        first = _next_window(self, 2)
        if first is not None:
            return first
        fix = "give a smaller rate, or a larger contamination"
        matching = _next_window(replace(self, rate=self.contamination), 2)
        if matching is not None:
            fix = (
                f"use a rate of {self.contamination:g}, with which a window of {matching:,} works, "
                "or a larger contamination"
            )
        raise ConfigError(
            f"At contamination {self.contamination:g} and a rejection rate of {self.rate:g} no "
            f"window can call an anomaly: {fix}."
        )

    def works(self, n: int) -> bool:
        """Whether both labels can be accepted in a full window of n."""
        return _works(self.contamination, self.tolerance, self.rate, n)

    def require(self, n: int) -> RejectionBand:
        """Return the band for a full window of n, refusing one in which a label is impossible.

        The refusal names a window, a tolerance or rate, and a contamination that work.
        """
        band = self.band(n)
        if self.rate is None:
            return require_reachable(band)
        if band.can_accept_both:
            return band
        missing = "normal" if band.can_accept_anomaly else "an anomaly"
        raise ConfigError(
            f"With window n = {n:,} and contamination {self.contamination:g} no score can ever be "
            f"called {missing} at a rejection rate of {self.rate:g}: {_advice(self, n)}."
        )


def _works(contamination: float, tolerance: float | None, rate: float | None, n: int) -> bool:
    try:
        if tolerance is None:
            assert rate is not None
            tolerance = tolerance_for_rate(rate, n, contamination)
        return rejection_band(n, contamination, tolerance).can_accept_both
    except ConfigError:
        return False


@lru_cache(maxsize=65_536)
def _band(policy: RejectionPolicy, n: int) -> RejectionBand:
    tolerance = policy.tolerance
    if tolerance is None:
        assert policy.rate is not None
        gamma, advice = policy.contamination, partial(_advice, policy, n)
        tolerance = tolerance_for_rate(policy.rate, n, gamma, advice)
    return rejection_band(n, policy.contamination, tolerance)


_MAX_WINDOW = 10**9
"""No machine holds more scores of each stream: the search for a window ends here."""
_SMALL_COUNT = 64
"""Up to so many anomalies in the window a rank more or less decides, and each count is tried."""


@lru_cache(maxsize=1024)
def _next_window(policy: RejectionPolicy, at_least: int) -> int | None:
    """Return the smallest window from one on in which both labels can be accepted, if there is one.

    O(log n), some 100 bands.
    """
    if policy.rate is None:
        assert policy.tolerance is not None
        return min_window(policy.contamination, policy.tolerance)
    gamma, rate = decimal(policy.contamination), decimal(policy.rate)
    at_least = max(at_least, math.ceil(1 / gamma), math.ceil(1 / rate) - 1)

    def shortest(count: int) -> int:
        """Return the window that is easiest of those with so many anomalies: the shortest."""
        return max(at_least, math.ceil(count / gamma))

    def leaves_anomaly(count: int, spare: int) -> bool:
        n = shortest(count)
        return is_top_left(n, count, math.floor(rate * (n + 1)) - spare)

    count, last = math.floor(at_least * gamma), math.floor(_MAX_WINDOW * gamma)
    while count <= last:
        # A width may be missing, so that the band is a rank narrower than the rate allows.
        if leaves_anomaly(count, spare=1) and policy.works(shortest(count)):
            return shortest(count)
        count += 1
        if count >= _SMALL_COUNT:  # it grows easier with the count, but for a rank or two
            left = partial(leaves_anomaly, spare=2)
            count += bisect_left(range(count, last + 1), True, key=left)
    return None


def _advice(policy: RejectionPolicy, n: int) -> str:
    """Return what makes a rate work that does not at n; each way was tried. O(log n) bands."""
    assert policy.rate is not None
    gamma, rate, ways = policy.contamination, policy.rate, []
    width = math.floor(decimal(rate) * (n + 1))
    if (window := _next_window(policy, n)) is not None:
        ways.append(f"a window of {window:,}")
    if width < 1:
        larger = round_up(Fraction(1, n + 1))
        if _works(gamma, None, float(larger), n):
            ways.append(f"a rate of at least {larger}")
    elif anomaly_count(n, gamma) >= 1:
        smaller = round_down(Fraction(widest_band(n, gamma) + 1, n + 1))
        if smaller > 0 and _works(gamma, None, smaller, n):
            ways.append(f"a rate of at most {smaller:g}")
    counts = range(anomaly_count(n, gamma) + 1, (n - 1) // 2 + 1 if width >= 1 else 0)
    first = bisect_left(counts, True, key=lambda count: _works(count / n, None, rate, n))
    if first < len(counts):
        share = round_up(Fraction(counts[first], n))
        if float(share) < 0.5 and _works(float(share), None, rate, n):
            ways.append(f"a contamination of at least {share}")
    return "use " + (", or ".join(ways) or "a larger window and a larger contamination")
