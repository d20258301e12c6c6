"""What a pipeline wants of its verdicts: γ, and a tolerance or a review budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_burst, check_number, decimal
from rejex_stream.rejection.band import (
    TOLERANCE,
    RejectionBand,
    min_window,
    rejection_band,
    require_reachable,
    tolerance_for_rate,
)
from rejex_stream.rejection.exceed import anomaly_count

__all__ = ["CONTAMINATION", "LEAST_BURST", "TOLERANCE", "WINDOW", "BudgetOwner", "RejectionPolicy"]

BudgetOwner: TypeAlias = Literal["stream", "group", "partition"]
"""Who has a budget: each stream, those whose names are the same up to the last slash, or all."""

CONTAMINATION = 0.05
"""γ where a notebook, or a question to the planner, gives none; a pipeline has to give its own."""
LEAST_BURST = 50
"""Events that a budget may be overdrawn by where nobody says how many, nor how long a day is."""

WINDOW = 2000
"""n of a full window where nothing else is said."""


@dataclass(frozen=True, slots=True)
class RejectionPolicy:
    """The band for every window length, from a tolerance or from a rejection rate.

    Parameters
    ----------
    contamination
        γ in (0, 0.5).
    tolerance, rate
        Exactly one: the paper's T, or the share of events that people can review. With a rate the
        tolerance follows the window, so that the budget holds while the window fills.
    ties
        ``mid``: decide by mid-rank. ``paper``: by #{<=}, for parity runs only.
    burst
        With a rate: how many events beyond it may be rejected at once. The rate then holds on any
        stream, see :mod:`rejex_stream.rejection.token_bucket`; ``None``: it is only expected.
    per_day
        With a burst: rejected events a day, by event time, instead of a share of the events; the
        rate goes on giving the band its width.
    owner
        With a burst: whose budget it is, see :data:`BudgetOwner`.

    Raises
    ------
    ConfigError
        If an argument cannot be, or both or neither of tolerance and rate are given.

    Examples
    --------
    >>> policy = RejectionPolicy(0.05, rate=0.05)
    >>> band = policy.band(2000)
    >>> band.width / 2001 <= 0.05, round(band.tolerance, 1)
    (True, 15.7)
    """

    contamination: float
    tolerance: float | None = None
    rate: float | None = None
    ties: Literal["mid", "paper"] = "mid"
    burst: int | None = None
    per_day: float | None = None
    owner: BudgetOwner = "stream"

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
        return _first_window(self)

    def require(self, n: int) -> RejectionBand:
        """Return the band for a full window of n, refusing one that can never say a label.

        Raises
        ------
        ConfigError
            Naming the smallest window and the largest tolerance or rate that can work.
        """
        band = self.band(n)
        if self.rate is None or (band.can_accept_anomaly and band.can_accept_normal):
            return require_reachable(band)
        low, high = 0.0, self.rate  # bisect for the largest rate that leaves both labels
        for _ in range(40):
            middle = (low + high) / 2
            if middle * (n + 1) < 1:
                break
            at = rejection_band(
                n, self.contamination, tolerance_for_rate(middle, n, self.contamination)
            )
            reachable = at.can_accept_anomaly and at.can_accept_normal
            low, high = (middle, high) if reachable else (low, middle)
        missing = "normal" if band.can_accept_anomaly else "an anomaly"
        most = math.floor(low * 1e4) / 1e4
        mend = "a larger contamination"
        if most * (n + 1) >= 1:
            mend = f"a rate of at most {most:g}, or {mend}"
        raise ConfigError(
            f"With window n = {n:,} and contamination {self.contamination:g} no score can ever be "
            f"called {missing} at a rejection rate of {self.rate:g}: everything flagged would be "
            f"rejected. Use {mend}."
        )


@lru_cache(maxsize=65_536)
def _band(policy: RejectionPolicy, n: int) -> RejectionBand:
    tolerance = policy.tolerance
    if tolerance is None:
        assert policy.rate is not None
        tolerance = tolerance_for_rate(policy.rate, n, policy.contamination)
    return rejection_band(n, policy.contamination, tolerance)


@lru_cache(maxsize=1024)
def _first_window(policy: RejectionPolicy) -> int:
    if policy.tolerance is not None:
        return min_window(policy.contamination, policy.tolerance)
    assert policy.rate is not None
    gamma = decimal(policy.contamination)
    n = max(2, math.ceil(1 / gamma), math.ceil(1 / decimal(policy.rate)) - 1)
    for _ in range(100_000):
        band = _band(policy, n)
        if band.can_accept_anomaly and band.can_accept_normal:
            return n
        # The same r in a longer window is no easier: go to the next r.
        n = max(n + 1, math.ceil((anomaly_count(n, policy.contamination) + 1) / gamma))
    raise ConfigError(
        f"At contamination {policy.contamination:g} and a rejection rate of {policy.rate:g} no "
        "window can call an anomaly: give a smaller rate."
    )
