"""What is known before the first event: the rejection rate and its bounds.

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

from scipy.special import betainccinv

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_number
from rejex_stream.rejection.band import RejectionBand
from rejex_stream.rejection.exceed import checked_count

__all__ = [
    "DELTA", "exact_rate_bound", "expected_rejection_rate", "paper_rate_bound", "theorem_interval",
]  # fmt: skip

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

    Parameters
    ----------
    band
        The rejection band.
    delta
        δ in (0, 1), the probability that the bound fails.

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
    return float(betainccinv(w, n + 1 - w, delta))


def theorem_interval(
    n: int, contamination: float, tolerance: float, printed: bool = False
) -> tuple[float, float]:
    """Return the paper's (t1, t2): a rejected event has ψ = K / n inside them.

    Parameters
    ----------
    n, contamination, tolerance
        Window, γ and T.
    printed
        The formulas as the paper prints them. Its t1 carries an algebra slip (n + 1 for n + 2 in
        A1, and a B1 that is not the discriminant), which makes the claim false at T = 4 now and
        then; the default solves the paper's inequality, with γ := r / n.

    Returns
    -------
    tuple of float
        Not clipped: t1 may be below 0 and t2 above 1.

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

    h = t2 - t1 + 2 sqrt(ln(2 / δ) / (2 n)), with t1, t2 and the result clipped to [0, 1].

    Parameters
    ----------
    n, contamination, tolerance, printed
        As in :func:`theorem_interval`.
    delta
        δ in (0, 1).

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
