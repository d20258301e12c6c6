"""Stability and rejected ranks in whole numbers, from the definition; for small windows."""

import math
from decimal import Decimal
from functools import cache


@cache
def log_tails(rank, n, r):
    """Log P(Bin(n, p) >= n-r+1) and of its complement, p = (rank+1)/(n+2), in whole numbers."""
    ways = [math.comb(n, j) * (rank + 1) ** j * (n - rank + 1) ** (n - j) for j in range(n + 1)]
    high, low = sum(ways[n - r + 1 :]), sum(ways[: n - r + 1])
    return math.log(high) - math.log(high + low), math.log(low) - math.log(high + low)


@cache
def band(policy, n):
    """Return (r, first rejected rank, last rejected rank, T)."""
    r, tolerance = math.floor(n * Decimal(repr(policy.contamination))), policy.tolerance
    flips = [-min(log_tails(rank, n, r)) for rank in range(n + 1)] if r else []
    if tolerance is None:  # the middle of the step of T whose band is the widest within the rate
        steps, width = [*sorted(flips), math.inf], math.floor(Decimal(repr(policy.rate)) * (n + 1))
        while width and r and not max(steps[width - 1], math.log(2)) < steps[width]:
            width -= 1
        tolerance = (max(steps[width - 1], math.log(2)) + steps[width]) / 2 if width and r else None
    rejected = [rank for rank, flip in enumerate(flips) if tolerance and flip <= tolerance]
    if not rejected:
        return r, n - r + 1, n - r, tolerance
    return r, rejected[0], rejected[-1], tolerance


@cache
def ranks_in_order(policy, n):
    """Return the ranks in the order in which they enter as T grows, and where each of them does."""
    r = math.floor(n * Decimal(repr(policy.contamination)))
    flips = {rank: -min(log_tails(rank, n, r)) for rank in range(n + 1)}
    order = sorted(flips, key=flips.get)
    return order, [flips[rank] for rank in order]


@cache
def allowed(policy, n, credit):
    """Return (first, last rank, T) of the band that a credit in events leaves of a budget."""
    r, lower, upper, _ = band(policy, n)
    order, flips = ranks_in_order(policy, n)
    widest = min(order.index(0), order.index(n))
    width = math.floor(min(2 * (upper - lower + 1), widest) * credit / policy.burst)
    if credit < 1 or width == 0:
        return n - r + 1, n - r, math.log(2)
    outside = flips[width] if width <= n else flips[-1] + 2
    return min(order[:width]), max(order[:width]), (flips[width - 1] + outside) / 2
