"""The paper's bound on the cost of an event, and the cost that a window exceeds.

References
----------
.. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc, betaincinv

from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.bounds import DELTA
from rejex_stream.types import FloatArray

__all__ = ["cost_bound", "cost_quantile"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


def cost_bound(band: RejectionBand, c_fp: float, c_fn: float, c_r: float) -> float:
    """Return the paper's bound on the expected cost of an event.

    min(γ, A) c_fn + (1 - B) c_fp + (B - A) c_r, where A and B are the shares of reference scores
    that are accepted as normal, and accepted as normal or rejected.

    Parameters
    ----------
    band
        The rejection band.
    c_fp, c_fn, c_r
        Cost of a false alarm, of a missed anomaly and of a rejected event, in any one unit;
        c_r <= min((1 - γ) c_fp, γ c_fn).

    Notes
    -----
    A plug-in mean: 46-49 % of windows cost more than it. :func:`cost_quantile` says how much.
    It needs a true share of anomalies of at most γ. Perini, Davis: NeurIPS 2023, theorem 3.6.

    Examples
    --------
    >>> from rejex_stream.rejection import rejection_band
    >>> round(cost_bound(rejection_band(1000, 0.05), 1, 1, 0.05), 4)
    0.0683
    """
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

    Parameters
    ----------
    band, c_fp, c_fn, c_r
        As in :func:`cost_bound`.
    delta
        δ in (0, 1).

    Notes
    -----
    Found by quadrature over the rejected share and bisection on the cost, so the same arguments
    always give the same number; absolute error below 1e-6 of the largest cost. About 10 ms.

    Examples
    --------
    >>> from rejex_stream.rejection import rejection_band
    >>> round(cost_quantile(rejection_band(1000, 0.05), 1, 1, 0.05, delta=0.1), 3)
    0.073
    """
    low_ranks, w, high_ranks = band.lower, band.width, band.n - max(band.upper, band.lower - 1)
    if w == 0:
        rejected, weight = np.zeros(1), np.ones(1)
    elif low_ranks + high_ranks == 0:
        return c_r  # everything is rejected
    else:
        # Integrate over the rejected share by its own quantiles.
        rejected = betaincinv(w, low_ranks + high_ranks, (_NODES + 1) / 2)
        weight = _WEIGHTS / 2

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


def _share_below(
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
    result: FloatArray = betainc(low_ranks, high_ranks, u)
    return result
