"""Which accepted events are audited, and with which probability.

The coins are those of :mod:`rejex_stream.rejection.audit`: nobody can foresee them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.audit import KeyedSampler, commitment
from rejex_stream.rejection.band import label_of, rank_edges
from rejex_stream.types import Audit, Label, Position, Verdict

__all__ = ["AuditDraw", "commitment", "committed"]


def committed(key: bytes) -> str | None:
    """Return what a verdict says of the draw's key: enough of its SHA-256 to hold it to one key."""
    return commitment(key)[:16] if key else None


@dataclass(frozen=True)
class AuditDraw:
    """The share of each kind of accepted events that is audited, and the coin.

    Parameters
    ----------
    rate
        Share of accepted normals, in [0, 1].
    near_rate
        Share of those near the band: within its own width below it, or withheld by a budget. By
        default `rate`.
    anomaly_rate
        Share of accepted anomalies; by default `rate`.
    differ_rate
        At least this share of those on which champion and challenger differ, where answers teach a
        challenger.
    key
        Secret of the coin, at most 64 bytes; empty: anybody can repeat the draw, and foresee it.

    Raises
    ------
    ConfigError
        If a share is none, or the key is too long.

    Examples
    --------
    >>> drawn = [AuditDraw(0.01).is_drawn(Position("t", 0, i), 0.01) for i in range(100_000)]
    >>> sum(drawn)
    1003
    """

    rate: float = 0.0
    near_rate: float | None = None
    anomaly_rate: float | None = None
    key: bytes = field(default=b"", repr=False)
    differ_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "near_rate", "anomaly_rate", "differ_rate"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ConfigError(f"audit {name} is {share}: expected a share from 0 to 1")
        KeyedSampler(self.key)  # refuses a key that is too long

    @property
    def coin(self) -> KeyedSampler:
        """The coin of all its draws."""
        return KeyedSampler(self.key)

    def probability(self, verdict: Verdict) -> float:
        """Return how probable it is that an accepted or muted event is audited. O(1).

        None that is held or planned is: an incident asks one question, not one an event, and such
        events are in no rate that an audit is about. A muted one is all the same, whatever its
        label: but for the draw nobody is asked about it, and the certificate has to speak of it.
        """
        if (verdict.held or verdict.planned) and not verdict.muted:
            return 0.0
        share = self.rate
        if verdict.muted:
            share = max(share, self.near_rate or 0.0)
        elif verdict.label is Label.ANOMALY:
            share = share if self.anomaly_rate is None else self.anomaly_rate
        elif self.near_rate is not None and _is_near(verdict):
            share = self.near_rate
        if verdict.learning and verdict.learning.other not in (None, verdict.label):
            return max(share, self.differ_rate)
        return share

    def audit(self, verdict: Verdict) -> Audit | None:
        """Return how probable it was that an event is drawn, and whether; ``None``: not at all."""
        share = self.probability(verdict)
        if not share:
            return None
        return _audit(share, self.is_drawn(verdict.position, share), self.key)

    def is_drawn(self, position: Position, share: float) -> bool:
        """Toss the coin of a position; a smaller share draws a subset of a larger one. O(1)."""
        return self.coin.is_drawn(position, share)


def _is_near(verdict: Verdict) -> bool:
    rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
    if rank is None or lower is None or upper is None:
        return False
    upper = max(upper, lower - 1)  # where the band is empty, it is so at its place
    below = max(1, upper - lower + 1)
    wider = rank_edges(verdict.window_len, verdict.n_anomalies, lower - below, upper)
    return verdict.withheld or label_of(rank, wider) is not Label.NORMAL


@lru_cache(maxsize=64)
def _audit(share: float, drawn: bool, key: bytes) -> Audit:
    """Return what a verdict says of its draw: there are only a few."""
    return Audit(share, drawn, committed(key))
