"""Which accepted events are audited: coins of known probability that nobody can foresee.

A coin is a keyed hash of the event's position. Without the key nobody can aim an event past the
audit, or say afterwards that the draw was arranged: the key's own hash, the *commitment*, is told
before the first event, and whoever is shown the key later repeats every draw.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.band import label_of, rank_edges
from rejex_stream.types import Label, Position, Verdict

__all__ = ["AuditDraw", "commitment"]

_MOST_KEY_BYTES = 64


def commitment(key: bytes) -> str:
    """Return what is told of a key beforehand: its SHA-256 in hexadecimal.

    Examples
    --------
    >>> commitment(b"sesame")[:12]
    'd0c04f4b1951'
    """
    return hashlib.sha256(key).hexdigest()


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

    def __post_init__(self) -> None:
        for name in ("rate", "near_rate", "anomaly_rate"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise ConfigError(f"audit {name} is {share}: expected a share from 0 to 1")
        if len(self.key) > _MOST_KEY_BYTES:
            raise ConfigError(
                f"the audit key has {len(self.key)} bytes: expected at most {_MOST_KEY_BYTES}, "
                "such as 32 random ones."
            )

    def probability(self, verdict: Verdict) -> float:
        """Return how probable it is that an accepted event is audited. O(1).

        None that is held or planned is: an incident asks one question, not one an event, and such
        events are in no rate that an audit is about.
        """
        if verdict.held or verdict.planned:
            return 0.0
        if verdict.label is Label.ANOMALY:
            return self.rate if self.anomaly_rate is None else self.anomaly_rate
        if self.near_rate is None or not _is_near(verdict):
            return self.rate
        return self.near_rate

    def draw(self, verdict: Verdict) -> float | None:
        """Return the probability with which an accepted event was drawn; ``None`` if it was not."""
        share = self.probability(verdict)
        return share if share and self.is_drawn(verdict.position, share) else None

    def is_drawn(self, position: Position, share: float) -> bool:
        """Toss the coin of a position; a smaller share draws a subset of a larger one. O(1)."""
        text = str(position).encode()
        digest = hashlib.blake2b(text, digest_size=8, person=b"rejex-audit", key=self.key).digest()
        return int.from_bytes(digest, "big") < share * 2.0**64


def _is_near(verdict: Verdict) -> bool:
    rank, lower, upper = verdict.rank, verdict.band_lower, verdict.band_upper
    if rank is None or lower is None or upper is None:
        return False
    upper = max(upper, lower - 1)  # where the band is empty, it is so at its place
    below = max(1, upper - lower + 1)
    wider = rank_edges(verdict.window_len, verdict.n_anomalies, lower - below, upper)
    return verdict.withheld or label_of(rank, wider) is not Label.NORMAL
