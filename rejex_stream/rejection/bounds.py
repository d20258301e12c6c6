"""What is known before the first event: the rejection rate, what an event costs, their bounds.

Given exchangeable scores without ties, the rank of a new score is uniform on 0..n. With w
rejected ranks the expected rejection rate is therefore exactly w / (n + 1), and the rate that one
given window will show is distributed as Beta(w, n + 1 - w). The paper's own bound (its theorem
3.5) is kept beside it; it is 1.5 to 4 times wider at T = 32.

References
----------
.. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_number
from rejex_stream.rejection.band import RejectionBand
from rejex_stream.rejection.exceed import checked_count
from rejex_stream.types import FloatArray

DELTA = 0.1
"""δ, with which a bound may fail, where nothing else is said."""


def expected_rejection_rate(band: RejectionBand) -> float:
    """Return R = w / (n + 1), the exact mean of the rejection rate for exchangeable scores.

    The paper's estimate is w / n; the difference is below one event in n.

    Examples
    --------
    >>> from rejex_stream.rejection.band import rejection_band
    >>> round(expected_rejection_rate(rejection_band(1000, 0.05)), 4)
    0.1059
    """
    return band.width / (band.n + 1)


def exact_rate_bound(band: RejectionBand, delta: float = DELTA) -> float:
    """Return the rate that a window exceeds with probability exactly `delta`.

    The 1 - δ quantile of Beta(w, n + 1 - w): given its window, the rejection rate has that law
    for exchangeable scores without ties, even where the band touches rank 0 or n.

    Examples
    --------
    >>> from rejex_stream.rejection.band import rejection_band
    >>> round(exact_rate_bound(rejection_band(1000, 0.05), delta=0.1), 4)
    0.1185
    """
    delta = check_number("delta", delta)
    w, n = band.width, band.n
    if w == 0:
        return 0.0
    if w == n + 1:
        return 1.0
    return float(scipy.special.betainccinv(w, n + 1 - w, delta))


def theorem_interval(
    n: int, contamination: float, tolerance: float, printed: bool = False
) -> tuple[float, float]:
    """Return the paper's (t1, t2), not clipped: a rejected event has ψ = K / n inside them.

    As `printed` in the paper, t1 carries an algebra slip (n + 1 for n + 2 in A1, and a B1 that is
    not the discriminant), which makes the claim false at T = 4 now and then; the default solves the
    paper's inequality, with γ := r / n.

    Notes
    -----
    The theorem is printed in the wrong direction; what its proof gives, and what the bound needs,
    is the converse: rejected implies ψ in [t1, t2]. Perini, Davis: NeurIPS 2023, theorem 3.1.

    Examples
    --------
    >>> t1, t2 = theorem_interval(1000, 0.05, 32)
    >>> round(t1, 3), round(t2, 3)
    (0.825, 1.078)
    """
    r = checked_count(n, contamination)
    tolerance = check_number("tolerance", tolerance)
    gamma = check_number("contamination", contamination) if printed else r / n
    b2 = tolerance * (n + 2) ** 2 / (2 * n**3)
    a2 = ((2 + n) * (1 - gamma) - 1) / n
    t2 = a2 + math.sqrt(b2)
    if not printed:
        a1 = (2 + n * (n + 2) * (1 - gamma)) / n**2
        return a1 - math.sqrt(b2), t2
    a1 = (2 + n * (n + 1) * (1 - gamma)) / n**2
    b1 = (
        2 * n * (-3 * gamma**2 - 2 * n * (1 - gamma) ** 2 + 4 * gamma - 3)
        + tolerance * (n + 2) ** 2
        - 8
    ) / (2 * n**3)
    if b1 < 0:
        raise ConfigError(
            f"The printed form of the theorem has no real t1 at tolerance = {tolerance:g}: give a "
            "tolerance of at least 4, or use the corrected form (printed=False)."
        )
    return a1 - math.sqrt(b1), t2


def paper_rate_bound(
    n: int, contamination: float, tolerance: float, delta: float = DELTA, printed: bool = False
) -> float:
    """Return the paper's h, which the rejection rate exceeds with probability at most `delta`.

    h = t2 - t1 + 2 sqrt(ln(2 / δ) / (2 n)), with t1, t2 of :func:`theorem_interval` and the result
    clipped to [0, 1].

    Notes
    -----
    Perini, Davis: NeurIPS 2023, theorem 3.5. Valid, but 1.5 to 4 times wider than
    :func:`exact_rate_bound` at T = 32: a doubled rejection rate can stay below it.

    Examples
    --------
    >>> round(paper_rate_bound(1000, 0.05, 32, delta=0.1, printed=True), 3)
    0.246
    """
    delta = check_number("delta", delta)
    t1, t2 = theorem_interval(n, contamination, tolerance, printed)
    width = min(1.0, t2) - max(0.0, t1)
    return min(1.0, max(0.0, width + 2 * math.sqrt(math.log(2 / delta) / (2 * n))))


def cost_bound(band: RejectionBand, c_fp: float, c_fn: float, c_r: float) -> float:
    """Return the paper's bound on the expected cost of an event.

    min(γ, A) c_fn + (1 - B) c_fp + (B - A) c_r, where A and B are the shares of reference scores
    that are accepted as normal, and accepted as normal or rejected. The costs are those of a false
    alarm, of a missed anomaly and of a rejected event, in any one unit; c_r is at most
    min((1 - γ) c_fp, γ c_fn), else never looking would be cheaper than rejecting.

    Notes
    -----
    A plug-in mean: 46-49 % of windows cost more than it. :func:`cost_quantile` says how much.
    It needs a true share of anomalies of at most γ. Perini, Davis: NeurIPS 2023, theorem 3.6.

    Examples
    --------
    >>> from rejex_stream.rejection.band import rejection_band
    >>> round(cost_bound(rejection_band(1000, 0.05), 1, 1, 0.05), 4)
    0.0683
    """
    c_fp, c_fn, c_r = _checked_costs(band, c_fp, c_fn, c_r)
    # Of the n reference scores themselves, those of rank below `lower`, and up to `upper`.
    a = max(0, band.lower - 1) / band.n
    b = band.upper / band.n
    return min(band.contamination, a) * c_fn + (1 - b) * c_fp + (b - a) * c_r


def cost_quantile(
    band: RejectionBand, c_fp: float, c_fn: float, c_r: float, delta: float = DELTA
) -> float:
    """Return the cost of an event that a window exceeds with probability `delta`.

    The same sum as :func:`cost_bound`, with the shares (accepted normal, rejected, accepted
    anomaly) drawn as Dirichlet(k_lo, w, n - k_hi), their exact law given a window.

    Notes
    -----
    Found by quadrature over the rejected share and bisection on the cost, so the same arguments
    always give the same number; absolute error below 1e-6 of the largest cost. About 10 ms.

    Examples
    --------
    >>> from rejex_stream.rejection.band import rejection_band
    >>> round(cost_quantile(rejection_band(1000, 0.05), 1, 1, 0.05, delta=0.1), 3)
    0.073
    """
    c_fp, c_fn, c_r = _checked_costs(band, c_fp, c_fn, c_r)
    delta = check_number("delta", delta)
    low_ranks, w, high_ranks = band.lower, band.width, band.n - max(band.upper, band.lower - 1)
    if w == 0:
        rejected, weight = np.zeros(1), np.ones(1)
    elif low_ranks + high_ranks == 0:
        return c_r  # everything is rejected
    else:
        # Integrate over the rejected share by its own quantiles.
        nodes, weights = _nodes()
        rejected = scipy.special.betaincinv(w, low_ranks + high_ranks, (nodes + 1) / 2)
        weight = weights / 2

    def probability(cost: float) -> float:
        # Given the rejected share, u ~ Beta is accepted normal's part of the accepted rest; the
        # cost is linear in u on either side of the kink where accepted normal reaches γ.
        rest = 1.0 - rejected
        kink = np.minimum(1.0, band.contamination / np.maximum(rest, 1e-300))
        at_zero = rest * c_fp + rejected * c_r
        at_kink = np.minimum(band.contamination, rest) * c_fn
        at_kink = at_kink + rest * (1 - kink) * c_fp + rejected * c_r
        at_one = np.minimum(band.contamination, rest) * c_fn + rejected * c_r
        zero, one = np.zeros_like(kink), np.ones_like(kink)
        below = _share_below(cost, at_zero, at_kink, zero, kink, low_ranks, high_ranks)
        below = below + _share_below(cost, at_kink, at_one, kink, one, low_ranks, high_ranks)
        return float(weight @ below)

    low, high = 0.0, max(c_fp, c_fn, c_r) * 2 + 1e-300
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < 1 - delta else (low, middle)
    return high


@lru_cache(maxsize=1)
def _nodes() -> tuple[FloatArray, FloatArray]:
    return np.polynomial.legendre.leggauss(128)


def _share_below(  # noqa: PLR0917
    cost: float,
    start_cost: FloatArray,
    end_cost: FloatArray,
    start: FloatArray,
    end: FloatArray,
    low_ranks: int,
    high_ranks: int,
) -> FloatArray:
    """P(start < u <= end and cost(u) <= cost), the cost linear in u, u ~ Beta(low, high)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is the cost itself: all of it
        part = np.nan_to_num((cost - start_cost) / (end_cost - start_cost), nan=1.0)
    cut = start + np.clip(part, 0.0, 1.0) * (end - start)
    first, last = np.where(end_cost < start_cost, (cut, end), (start, cut))
    share = _beta_cdf(last, low_ranks, high_ranks) - _beta_cdf(first, low_ranks, high_ranks)
    return np.maximum(share, 0.0)


def _beta_cdf(u: FloatArray, low_ranks: int, high_ranks: int) -> FloatArray:
    """P(Beta(low, high) <= u), with the degenerate laws at 0 and 1."""
    if high_ranks == 0:  # no anomaly is ever accepted: u = 1
        return np.where(u >= 1.0, 1.0, 0.0)
    if low_ranks == 0:  # no normal is ever accepted: u = 0, counted by the piece that starts there
        return np.where(u > 0.0, 1.0, 0.0)
    result: FloatArray = scipy.special.betainc(low_ranks, high_ranks, u)
    return result


def _checked_costs(
    band: RejectionBand, c_fp: float, c_fn: float, c_r: float
) -> tuple[float, float, float]:
    c_fp, c_fn, c_r = (
        check_number("c_fp", c_fp),
        check_number("c_fn", c_fn),
        check_number("c_r", c_r),
    )
    gamma = band.contamination
    limit = min((1 - gamma) * c_fp, gamma * c_fn)
    if c_r > limit * (1 + 1e-9):
        raise ConfigError(
            f"c_r = {c_r:g} is above its limit min((1 - γ) c_fp, γ c_fn) = {limit:g}: at that "
            "price rejecting never pays. Give a smaller c_r, or a larger c_fp and c_fn."
        )
    return c_fp, c_fn, c_r
