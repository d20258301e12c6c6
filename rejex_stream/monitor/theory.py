"""The theory display: what the rolling rejection rate is, and what the theory says it should be.

Facts, not tests: nothing here raises an alarm. The expected rate R and the exact bound hold for
exchangeable scores; the paper's bound h is shown beside them, corrected and as printed. "Rate above
bound" is no alarm by itself: on autocorrelated sensors it happens with nothing wrong, and a doubled
rate can stay below h.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec
from scipy.special import stdtrit

from rejex_stream.errors import ConfigError
from rejex_stream.guarantees import exact_rate_bound, expected_rejection_rate, paper_rate_bound
from rejex_stream.monitor.cells import CellTable
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.rejection import RejectionBand

__all__ = ["Limits", "Theory", "batch_means", "mean_theory", "theory_of"]

_BATCHES = 30


class Theory(msgspec.Struct, frozen=True):
    """What is known about the rejection rate before the first event.

    Attributes
    ----------
    expected_rate
        R = w / (n + 1).
    exact_bound
        Exceeded by the rate of a window with probability exactly δ.
    paper_bound, paper_bound_printed
        The paper's h, from the corrected t1 and as printed; ``None`` where it has no value.
    expected_anomaly_rate, expected_flagged_rate
        Share of accepted anomalies, (n - k_hi) / (n + 1), and of all flagged ranks, r / (n + 1).
    """

    expected_rate: float
    exact_bound: float
    paper_bound: float | None
    paper_bound_printed: float | None
    expected_anomaly_rate: float
    expected_flagged_rate: float


@lru_cache(maxsize=1_024)
def theory_of(table: CellTable, config: MonitorConfig) -> Theory:
    """Return the theory of one window length and band; about 0.1 ms, cached.

    Examples
    --------
    >>> from rejex_stream.monitor.cells import cell_table
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> theory = theory_of(cell_table(1000, 50, 882, 987), config)
    >>> round(theory.expected_rate, 4), round(theory.exact_bound, 4), round(theory.paper_bound, 3)
    (0.1059, 0.1185, 0.252)
    """
    band = RejectionBand(
        table.n,
        table.n_anomalies,
        table.lower,
        table.upper,
        config.contamination,
        config.tolerance,
    )
    return Theory(
        expected_rate=expected_rejection_rate(band),
        exact_bound=exact_rate_bound(band, config.delta),
        paper_bound=_paper_bound(table.n, config, printed=False),
        paper_bound_printed=_paper_bound(table.n, config, printed=True),
        expected_anomaly_rate=table.null[3],
        expected_flagged_rate=table.flagged_rate,
    )


def _paper_bound(n: int, config: MonitorConfig, *, printed: bool) -> float | None:
    try:
        return paper_rate_bound(n, config.contamination, config.tolerance, config.delta, printed)
    except ConfigError:  # the printed form has no real t1 below T = 4; a window too short for r = 1
        return None


def mean_theory(parts: list[tuple[Theory, int]]) -> Theory | None:
    """Return the event-weighted mean of several streams' theories; ``None`` without events.

    If every stream keeps to its own bound, the pipeline keeps to the mean of the bounds.

    Parameters
    ----------
    parts
        Pairs of a stream's theory and its number of recent events.
    """
    events = sum(weight for _, weight in parts)
    if not events:
        return None

    def mean(name: str) -> float:
        return math.fsum(getattr(theory, name) * weight for theory, weight in parts) / events

    def mean_or_none(name: str) -> float | None:
        missing = any(weight and getattr(theory, name) is None for theory, weight in parts)
        return None if missing else mean(name)

    return Theory(
        expected_rate=mean("expected_rate"),
        exact_bound=mean("exact_bound"),
        paper_bound=mean_or_none("paper_bound"),
        paper_bound_printed=mean_or_none("paper_bound_printed"),
        expected_anomaly_rate=mean("expected_anomaly_rate"),
        expected_flagged_rate=mean("expected_flagged_rate"),
    )


class Limits(msgspec.Struct, frozen=True):
    """Limits of a rate, in [0, 1]."""

    lower: float
    upper: float


def batch_means(cells: bytes, confidence: float) -> Limits | None:
    """Return two-sided limits of the rejection rate that allow for autocorrelation.

    The events are cut into 30 batches; the spread of their means takes the place of the binomial
    variance, and its t quantile (29 degrees of freedom) that of the normal one. Heuristic: batches
    must be longer than the correlation. Never narrower than the binomial variance would give.

    Parameters
    ----------
    cells
        Rank cells 0..3, one byte an event, oldest first.
    confidence
        Of the two limits together, in (0, 1).

    Returns
    -------
    Limits or None
        ``None`` below 60 events. O(number of events), some microseconds per thousand.

    Examples
    --------
    >>> cells = bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0] * 300)
    >>> limits = batch_means(cells, 0.99)
    >>> limits.lower < 0.2 < limits.upper
    True
    """
    length = len(cells) // _BATCHES
    if length < 2:
        return None
    used = cells[len(cells) - length * _BATCHES :]
    batches = [used[i : i + length] for i in range(0, len(used), length)]
    means = [(batch.count(1) + batch.count(2)) / length for batch in batches]
    rate = math.fsum(means) / _BATCHES
    spread = math.fsum((mean - rate) ** 2 for mean in means) / (_BATCHES - 1) / _BATCHES
    guess = (rate * len(used) + 1) / (len(used) + 2)  # so that "none so far" has a variance
    deviation = math.sqrt(max(spread, guess * (1 - guess) / len(used)))
    width = _t_quantile(confidence) * deviation
    return Limits(max(0.0, rate - width), min(1.0, rate + width))


@lru_cache(maxsize=64)
def _t_quantile(confidence: float) -> float:
    return float(stdtrit(_BATCHES - 1, (1 + confidence) / 2))
