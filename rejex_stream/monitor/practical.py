"""Practical alarms: limits on counts that a person can check by hand.

All of them are heuristics without a probability attached: they state facts ("twice the planned
share of the last n events was rejected") and matter whatever the cause.
"""

from __future__ import annotations

import math

import msgspec

__all__ = ["StuckRun", "collapse_limit", "doubling_limits"]

_COLLAPSE = 0.25  # of the expected rate


def doubling_limits(rate: float, events: int, nats: float) -> tuple[int, int]:
    """Return the counts above which "more than 2 R" is raised, and at or below which it clears.

    Where R is so small that chance alone doubles it now and then, the least count that independent
    events exceed with probability exp(-nats) at most (Chernoff's bound) takes the place of 2 R. It
    clears half-way back, so that it does not flicker.

    Parameters
    ----------
    rate
        R, the expected rejection rate.
    events
        Length of the window that is counted.
    nats
        How improbable chance has to be.

    Examples
    --------
    >>> doubling_limits(0.1059, 1000, nats=13.8), doubling_limits(0.005, 1000, nats=13.8)
    ((211, 158), (20, 12))
    """
    high = min(events, math.floor(2.0 * rate * events))
    while high < events and events * _divergence((high + 1) / events, rate) < nats:
        high += 1
    return high, math.floor((rate * events + high) / 2)


def collapse_limit(rate: float, events: int, inflation: float, nats: float) -> int:
    """Return the largest count of rejected events that shows a rate far below R; -1 if none can.

    The count shows it if a rate of R / 4 would give as few with probability exp(-nats) at most, by
    Chernoff's bound for the effective number of events, `events` / `inflation`.

    Examples
    --------
    >>> collapse_limit(0.1059, 1000, inflation=1.0, nats=13.8)
    4
    >>> collapse_limit(0.1059, 1000, inflation=46.0, nats=13.8)   # too autocorrelated to tell
    -1
    """
    quarter = _COLLAPSE * rate
    effective = events / inflation

    def shows(count: int) -> bool:
        share = count / events
        return share < quarter and effective * _divergence(share, quarter) >= nats

    if not shows(0):
        return -1
    low, high = 0, math.ceil(quarter * events) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shows(middle) else (low, middle)
    return low


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of Bernoulli(p) from Bernoulli(q), in nats."""
    if not 0.0 < q < 1.0:
        return 0.0
    inside = p * math.log(p / q) if p > 0.0 else 0.0
    return inside + ((1.0 - p) * math.log((1.0 - p) / (1.0 - q)) if p < 1.0 else 0.0)


class StuckRun(msgspec.Struct):
    """How long the score has not moved at all; heuristic.

    A run counts only if its value was rare in the reference when the run began, so a sensor that
    reads zero most of the time is not called stuck for reading zero.
    """

    score: float | None = None
    length: int = 0
    was_common: bool = False

    def update(self, score: float | None, ties: int, window_len: int) -> int:
        """Count one score; return the length of the run of equal, formerly rare scores.

        Examples
        --------
        >>> run = StuckRun()
        >>> [run.update(score, 0, 100) for score in (0.5, 0.7, 0.7, 0.7, 0.2)]
        [1, 1, 2, 3, 1]
        >>> [StuckRun().update(0.0, 90, 100), run.update(None, 0, 0)]
        [0, 0]
        """
        if score is not None and score == self.score:
            self.length += 1
        else:
            self.score = score
            self.length = 1
            self.was_common = 2 * ties > window_len
        return 0 if self.was_common or score is None else self.length
