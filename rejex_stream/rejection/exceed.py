"""How sure a label is under re-drawn reference scores: ExCeeD's stability.

With n reference scores of which r = floor(n γ) count as anomalies, a score of rank
K = #{reference scores <= score} would be called an anomaly by a re-drawn reference with
probability

    P1(K) = P(Bin(n, (K + 1) / (n + 2)) >= n - r + 1) = I_p(n - r + 1, r),    P0(K) = 1 - P1(K).

Each tail is computed from its own side and kept as a logarithm: ``1 - cdf`` has lost every digit
where the decision is made (at T = 32 the tail is 1.3e-14).

References
----------
.. [1] L. Perini, V. Vercruyssen, J. Davis: Quantifying the Confidence of Anomaly Detectors in
   Their Example-Wise Predictions. ECML-PKDD 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import scipy  # which loads `special`, slow to load, at its first use

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.arguments import check_number, check_window, decimal, round_up
from rejex_stream.types import FloatArray

if TYPE_CHECKING:
    import numpy.typing as npt

# Below this, betainc is too close to the smallest float to carry full precision.
_DEEP_TAIL = 1e-280


@dataclass(frozen=True, slots=True)
class Stability:
    """How sure a label is under re-drawn reference scores; made by :func:`stability`.

    Every attribute is a float for a single rank, an array of the same shape for an array of ranks.
    """

    log_p_anomaly: float | FloatArray
    log_p_normal: float | FloatArray
    """Natural logarithms of P1 and P0, each computed from its own side."""
    p_anomaly: float | FloatArray
    """P1 in [0, 1]."""
    confidence: float | FloatArray
    """``|2 P1 - 1|`` in [0, 1]; prints as 1.0 from T = 37 on, so decide by the logarithms."""


@lru_cache(maxsize=4_096)  # a filling window asks for each length again and again
def anomaly_count(n: int, contamination: float) -> int:
    """Return r = floor(n γ) with γ read as the decimal that was typed.

    In binary floating point 100 * 0.29 is 28.999…; people mean 29.

    Examples
    --------
    >>> anomaly_count(100, 0.29), int(100 * 0.29)
    (29, 28)
    """
    return math.floor(n * decimal(contamination))


def checked_count(n: int, contamination: float, fix: Callable[[], str] | None = None) -> int:
    """Return r >= 1, or refuse the arguments with the smallest window that could work.

    `fix` is what to do about it where more than r decides; asked for only then.
    """
    n = check_window(n)
    share = check_number("contamination", contamination)
    gamma, r = decimal(share), anomaly_count(n, share)
    if r < 1:
        advice = f"use a window of at least {math.ceil(1 / gamma):,}"
        if n > 2:
            advice += f", or a contamination of at least {round_up(Fraction(1, n))}"
        raise ConfigError(
            f"With window n = {n:,} and contamination {contamination:g} not one reference score "
            f"counts as an anomaly (n * contamination = {float(n * gamma):.3g} < 1): "
            f"{fix() if fix else advice}."
        )
    return r


def _log_tail_fraction(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """Log I_x(a, b) far in the lower tail, by Lentz' continued fraction in log space."""
    tiny = 1e-300
    log_gamma = scipy.special.gammaln
    front = a * np.log(x) + b * np.log1p(-x) + log_gamma(a + b) - log_gamma(a + 1) - log_gamma(b)
    c = np.ones_like(x)
    d = 1.0 / np.maximum(np.abs(1.0 - (a + b) * x / (a + 1.0)), tiny)
    value = d.copy()
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 + step * d
            d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
            c = 1.0 + step / c
            c = np.where(np.abs(c) < tiny, tiny, c)
            factor = d * c
            value = value * factor
        if np.all(np.abs(factor - 1.0) < 1e-15):
            break
    result: FloatArray = front + np.log(value)
    return result


def _log_tails(rank: FloatArray, n: int, r: int) -> tuple[FloatArray, FloatArray]:
    high, low = float(n - r + 1), float(r)
    p1 = scipy.special.betainc(high, low, (rank + 1.0) / (n + 2.0))
    p0 = scipy.special.betainc(low, high, (n - rank + 1.0) / (n + 2.0))
    with np.errstate(divide="ignore"):
        log_p1 = np.where(p1 <= 0.5, np.log(p1), np.log1p(-p0))
        log_p0 = np.where(p0 <= 0.5, np.log(p0), np.log1p(-p1))
    for log_p, p, a, b, x in (
        (log_p1, p1, high, low, (rank + 1.0) / (n + 2.0)),
        (log_p0, p0, low, high, (n - rank + 1.0) / (n + 2.0)),
    ):
        deep = p < _DEEP_TAIL
        if deep.any():
            at = x[deep]
            log_p[deep] = _log_tail_fraction(np.full_like(at, a), np.full_like(at, b), at)
    return log_p1, log_p0


@lru_cache(maxsize=1)
def _betainc() -> Callable[[float, float, float], float]:
    from scipy.special import cython_special

    return cython_special.betainc  # type: ignore[no-any-return]  # of floats: a tenth of the time


def log_p_anomaly(rank: int, n: int, r: int) -> float:
    """Return log P1 for one rank, with full precision wherever P1 <= 1/2 (callers vouch for r)."""
    p = _betainc()(n - r + 1.0, float(r), (rank + 1) / (n + 2))
    return math.log(p) if p >= _DEEP_TAIL else float(_log_tails(np.array([1.0 * rank]), n, r)[0][0])


def log_p_normal(rank: int, n: int, r: int) -> float:
    """Return log P0 for one rank: P0 is P1 from the other end, of n - r + 1 anomalies."""
    return log_p_anomaly(n - rank, n, n - r + 1)


def stability(rank: int | npt.ArrayLike, n: int, contamination: float) -> Stability:
    """Return how sure the label at `rank` is: ExCeeD's P1 and P0 with their logarithms.

    Parameters
    ----------
    rank
        K in 0..n, one number or an array of any shape.
    n
        Reference scores, n >= 2, with floor(n γ) >= 1.
    contamination
        γ in (0, 0.5), read as the decimal that was typed.

    Notes
    -----
    Perini, Vercruyssen, Davis: ECML-PKDD 2020, equation for P(Ŷ = 1 | s). O(1) per rank.

    Examples
    --------
    >>> at = stability(950, 1000, 0.05)
    >>> round(at.p_anomaly, 3), round(at.confidence, 3)
    (0.428, 0.143)
    >>> stability([0, 500, 1000], 1000, 0.05).log_p_anomaly.round(1).tolist()
    [-6378.5, -500.4, -0.0]
    """
    r = checked_count(n, contamination)
    ranks = np.asarray(rank, dtype=np.float64)
    wrong = ~((ranks >= 0) & (ranks <= n) & (ranks == np.floor(ranks)))
    if wrong.any():
        value = ranks[wrong].flat[0] if ranks.ndim else float(ranks)
        raise ConfigError(
            f"rank = {value:g} is not a rank among n = {n} reference scores: "
            f"give a whole number from 0 to {n}."
        )
    log_p1, log_p0 = _log_tails(np.atleast_1d(ranks), n, r)
    p_anomaly = np.exp(log_p1)
    confidence = np.abs(np.expm1(math.log(2.0) + np.minimum(log_p1, log_p0)))
    found = log_p1, log_p0, p_anomaly, confidence
    return Stability(*(x.reshape(ranks.shape) if ranks.ndim else float(x[0]) for x in found))


def stability_at(rank: int, n: int, r: int) -> tuple[float, float]:
    """Return (P1, confidence) for one rank, quickly; callers vouch for the arguments. O(1)."""
    betainc = _betainc()
    p_anomaly: float = betainc(n - r + 1.0, float(r), (rank + 1) / (n + 2))
    p_normal: float = betainc(float(r), n - r + 1.0, (n - rank + 1) / (n + 2))
    return p_anomaly, 1.0 - 2.0 * min(p_anomaly, p_normal, 0.5)


@lru_cache(maxsize=64)
def stability_table(n: int, contamination: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (P1, confidence) for every rank 0..n, for look-up by rank.

    O(n) once per (n, γ); the engine asks for it when a window is full.
    """
    table = stability(np.arange(n + 1), n, contamination)
    p_anomaly, confidence = np.asarray(table.p_anomaly), np.asarray(table.confidence)
    return tuple(p_anomaly.tolist()), tuple(confidence.tolist())
