"""Rank cells: where the theory says how often, and what each alternative would say instead.

For exchangeable scores without ties the rank of a new score is uniform on 0..n. The band cuts these
ranks into four cells, and their probabilities are known exactly:

====  =======================  ==========================
cell  ranks                    verdict
====  =======================  ==========================
0     ``[0, k_lo)``            normal
1     ``[k_lo, n - r]``        rejected, label normal
2     ``(n - r, k_hi]``        rejected, label anomaly
3     ``(k_hi, n]``            anomaly
====  =======================  ==========================
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache

from rejex_stream.monitor.alarm import Alternative
from rejex_stream.types import Position

__all__ = ["ALTERNATIVES", "CellTable", "cell_table", "randomised_rank"]

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
class CellTable:
    """The null law of the four cells and the log-likelihood ratios of the alternatives.

    Attributes
    ----------
    n, n_anomalies, lower, upper
        Window, r and the rejection band.
    null
        Probability of each cell.
    rejection_rate
        R, the probability of cells 1 and 2.
    flagged_rate
        Probability of cells 2 and 3: r / (n + 1).
    log_ratios
        ``log_ratios[cell][j]`` of alternative j; 0 where the null says "never".
    doubling_information
        Nats an event is expected to give when rejections have doubled.
    """

    n: int
    n_anomalies: int
    lower: int
    upper: int
    null: tuple[float, float, float, float]
    rejection_rate: float
    flagged_rate: float
    log_ratios: tuple[tuple[float, ...], ...]
    doubling_information: float

    @property
    def key(self) -> tuple[int, int, int, int]:
        """The four integers everything else follows from."""
        return self.n, self.n_anomalies, self.lower, self.upper

    def same_law(self, other: CellTable) -> bool:
        """Whether both tables say the same."""
        return self.key == other.key

    def cell(self, rank: int) -> int:
        """Return the cell of a rank, in O(1)."""
        if rank < self.lower:
            return 0
        if rank <= self.n - self.n_anomalies:
            return 1
        return 2 if rank <= self.upper else 3


@lru_cache(maxsize=8_192)
def cell_table(n: int, n_anomalies: int, lower: int, upper: int) -> CellTable:
    """Return the table for one window length and band; O(1), cached.

    Parameters
    ----------
    n, n_anomalies
        Reference scores n >= 1, and r of them that count as anomalies.
    lower, upper
        Inclusive ranks of the rejection band; ``lower > upper`` where it is empty. The band is
        clipped to the ranks and to the threshold, so no combination of integers raises.

    Examples
    --------
    >>> table = cell_table(1000, 50, 882, 987)
    >>> [round(p, 4) for p in table.null], round(table.rejection_rate, 4)
    ([0.8811, 0.0689, 0.037, 0.013], 0.1059)
    """
    r = min(max(n_anomalies, 0), n)
    first_flagged = n - r + 1
    if lower > upper:
        lower, upper = first_flagged, first_flagged - 1
    lower = min(max(lower, 0), first_flagged)
    upper = min(max(upper, first_flagged - 1), n)
    counts = (lower, first_flagged - lower, upper - first_flagged + 1, n - upper)
    null = tuple(count / (n + 1) for count in counts)
    columns = [_column(null, cells, factor) for _, cells, factor in ALTERNATIVES]
    doubled = columns[_DOUBLING]
    return CellTable(
        n=n,
        n_anomalies=r,
        lower=lower,
        upper=upper,
        null=(null[0], null[1], null[2], null[3]),
        rejection_rate=(counts[1] + counts[2]) / (n + 1),
        flagged_rate=(counts[2] + counts[3]) / (n + 1),
        log_ratios=tuple(tuple(column[cell] for column in columns) for cell in range(4)),
        doubling_information=sum(
            p * math.exp(log_ratio) * log_ratio for p, log_ratio in zip(null, doubled, strict=True)
        ),
    )


def _column(null: tuple[float, ...], cells: frozenset[int], factor: float) -> tuple[float, ...]:
    """Return log(alternative / null) of each cell, for one alternative."""
    inside = sum(null[cell] for cell in cells)
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

    Parameters
    ----------
    below
        Reference scores strictly below the new score.
    ties
        Reference scores equal to it.
    position
        Identity of the event.

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
    z = (position.offset * 0x9E3779B97F4A7C15 + _salt(position.topic, position.partition)) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return below + (((z ^ (z >> 31)) >> 32) * (ties + 1) >> 32)


_MASK = (1 << 64) - 1


@lru_cache(maxsize=4_096)
def _salt(topic: str, partition: int) -> int:
    return zlib.crc32(f"{partition}:{topic}".encode("utf-8", "surrogatepass")) * 0xD6E8FEB86659FD93
