"""What the theory says: the law of the ranks, and from it the expected rates and their bounds.

For exchangeable scores without ties the rank of a new score is uniform on 0..n. The band cuts these
ranks into four cells (:func:`rejex_stream.rejection.rank_edges`): accepted as normal, rejected
below and above the threshold, accepted as anomaly. Their probabilities are known exactly, and so is
what each alternative would say instead.

The rates and bounds are facts, not tests: nothing here raises an alarm. The expected rate R and the
frozen bound hold for exchangeable scores, the bound for the rate of one frozen window; the paper's
bound h is shown beside them, corrected and as printed. "Rate above bound" is no alarm by itself: a
rolling rate has another law, on autocorrelated sensors it happens with nothing wrong, and a doubled
rate can stay below h.
"""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from rejex_stream.errors import ConfigError
from rejex_stream.monitor.alarm import Alternative
from rejex_stream.monitor.config import MonitorConfig
from rejex_stream.rejection import RejectionBand
from rejex_stream.rejection.band import cell_of, rank_edges
from rejex_stream.rejection.bounds import (
    exact_rate_bound,
    expected_rejection_rate,
    paper_rate_bound,
)
from rejex_stream.types import Position

# (what is said, cells whose probability is multiplied, factor); the other cells shrink in
# proportion. One factor per order of effect: the evidence of a neighbour loses little.
ALTERNATIVES: tuple[tuple[Alternative, frozenset[int], float], ...] = (
    (Alternative.FEWER_REJECTS, frozenset({1, 2}), 0.5),
    (Alternative.MORE_REJECTS, frozenset({1, 2}), 1.5),
    (Alternative.MORE_REJECTS, frozenset({1, 2}), 2.0),
    (Alternative.MORE_REJECTS, frozenset({1, 2}), 3.0),
    (Alternative.FEWER_ANOMALIES, frozenset({2, 3}), 0.4),
    (Alternative.MORE_ANOMALIES, frozenset({2, 3}), 2.0),
    (Alternative.MORE_ANOMALIES, frozenset({2, 3}), 4.0),
)
_DOUBLING = 2  # index of "reject x2", the change that sensitivity is quoted for


@dataclass(frozen=True, slots=True, eq=False)
class RankLaw:
    """The null law of the four cells and the log-likelihood ratios of the alternatives.

    `edges` are the first ranks of each cell but the first, `key` what all else follows from.
    `null` has the probability of each cell; `rejection_rate` is that of cells 1 and 2,
    `flagged_rate` = r / (n + 1) that of cells 2 and 3. ``log_ratios[cell][j]`` is of alternative j,
    0 where the null says "never". `doubling_information` is the nats an event is expected to give
    when rejections have doubled.
    """

    n: int
    n_anomalies: int
    edges: tuple[int, int, int]
    key: tuple[int, int, int, int]
    null: tuple[float, float, float, float]
    rejection_rate: float
    flagged_rate: float
    log_ratios: tuple[tuple[float, ...], ...]
    doubling_information: float

    def cell(self, rank: int) -> int:
        """Return the cell of a rank, in O(1)."""
        return cell_of(rank, self.edges)


@lru_cache(maxsize=8_192)
def rank_law(n: int, n_anomalies: int, lower: int, upper: int) -> RankLaw:
    """Return the law for one window length and band; O(1), cached; no integers raise.

    Examples
    --------
    >>> law = rank_law(1000, 50, 882, 987)
    >>> [round(p, 4) for p in law.null], round(law.rejection_rate, 4)
    ([0.8811, 0.0689, 0.037, 0.013], 0.1059)
    """
    r = min(max(n_anomalies, 0), n)
    edges = rank_edges(n, r, lower, upper)
    counts = (edges[0], edges[1] - edges[0], edges[2] - edges[1], n + 1 - edges[2])
    null = tuple(count / (n + 1) for count in counts)
    columns = [_column(null, cells, factor) for _, cells, factor in ALTERNATIVES]
    doubled = columns[_DOUBLING]
    return RankLaw(
        n=n,
        n_anomalies=r,
        edges=edges,
        key=(n, r, edges[0], edges[2] - 1),
        null=(null[0], null[1], null[2], null[3]),
        rejection_rate=(counts[1] + counts[2]) / (n + 1),
        flagged_rate=(counts[2] + counts[3]) / (n + 1),
        log_ratios=tuple(tuple(column[cell] for column in columns) for cell in range(4)),
        doubling_information=math.fsum(
            p * math.exp(log_ratio) * log_ratio for p, log_ratio in zip(null, doubled, strict=True)
        ),
    )


def _column(null: tuple[float, ...], cells: frozenset[int], factor: float) -> tuple[float, ...]:
    inside = math.fsum(null[cell] for cell in cells)
    if not 0.0 < inside < 1.0:
        return (0.0,) * 4
    # A factor that leaves no room for the other cells is cut half-way to certainty.
    target = min(factor * inside, (1.0 + inside) / 2)
    raised, lowered = math.log(target / inside), math.log((1.0 - target) / (1.0 - inside))
    return tuple(raised if cell in cells else lowered for cell in range(4))


def randomised_rank(below: int, ties: int, position: Position) -> int:
    """Return a rank drawn uniformly from ``below..below + ties``, seeded by the position.

    Of exchangeable scores it is exactly uniform on 0..n, whatever the ties; the same event always
    gives the same draw. For the monitor alone: verdicts use the mid-rank.

    Examples
    --------
    >>> randomised_rank(40, 0, Position("t", 0, 7))
    40
    >>> draws = [randomised_rank(40, 9, Position("t", 0, offset)) for offset in range(10_000)]
    >>> min(draws), max(draws), round(sum(draws) / 10_000, 1)
    (40, 49, 44.5)
    """
    if ties <= 0:
        return below
    # The finaliser of SplitMix64: a stable hash, unlike hash(), and cheap without a C extension.
    z = position.offset * 0x9E3779B97F4A7C15 + _salt(position.topic, position.partition)
    z = (z + position.reading * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return below + (((z ^ (z >> 31)) >> 32) * (ties + 1) >> 32)


_MASK = (1 << 64) - 1


@lru_cache(maxsize=4_096)
def _salt(topic: str, partition: int) -> int:
    return zlib.crc32(f"{partition}:{topic}".encode("utf-8", "surrogatepass")) * 0xD6E8FEB86659FD93


class Theory(msgspec.Struct, frozen=True):
    """What is known about the rejection rate before the first event."""

    expected_rate: float  # R = w / (n + 1)
    # exceeded with probability exactly δ by the share of future scores that one *frozen* window
    # rejects. It is not the law of a rolling rate: of the last n/2 it is exceeded more often, of
    # many windows hardly ever
    frozen_bound: float
    paper_bound: float | None  # the paper's h, from the corrected t1, where it has a value
    expected_anomaly_rate: float  # share of accepted anomalies, (n - k_hi) / (n + 1)


@lru_cache(maxsize=8_192)
def theory_of(law: RankLaw, config: MonitorConfig) -> Theory:
    """Return the theory of one window length and band; about 0.1 ms, cached.

    Examples
    --------
    >>> config = MonitorConfig(window=1000, contamination=0.05, tolerance=32)
    >>> theory = theory_of(rank_law(1000, 50, 882, 987), config)
    >>> round(theory.expected_rate, 4), round(theory.frozen_bound, 4), round(theory.paper_bound, 3)
    (0.1059, 0.1185, 0.252)
    """
    band = RejectionBand(*law.key, config.contamination, config.tolerance)
    paper_bound = None
    with suppress(ConfigError):  # a window too short for r = 1
        paper_bound = paper_rate_bound(law.n, config.contamination, config.tolerance, config.delta)
    return Theory(
        expected_rate=expected_rejection_rate(band),
        frozen_bound=exact_rate_bound(band, config.delta),
        paper_bound=paper_bound,
        expected_anomaly_rate=law.null[3],
    )


def mean_theory(parts: list[tuple[Theory, int]]) -> Theory | None:
    """Return the event-weighted mean of several streams' theories; ``None`` without events.

    If every stream keeps to its own bound, the pipeline keeps to the mean of the bounds. `parts`
    are pairs of a stream's theory and its number of recent events.
    """
    events = sum(weight for _, weight in parts)
    if not events:
        return None

    def mean(name: str) -> Any:  # noqa: ANN401 - a bound may be None
        values = [(getattr(theory, name), weight) for theory, weight in parts if weight]
        if any(value is None for value, _ in values):
            return None
        return math.fsum(value * weight for value, weight in values) / events

    return Theory(*map(mean, Theory.__struct_fields__))
