"""A coin for every event that nobody can foresee and anybody can toss again later.

A coin is a keyed hash of the event's position. Without the key nobody can aim an event past the
draw, or say afterwards that it was arranged: the key's own hash, the *commitment*, is told before
the first event, and whoever is shown the key later repeats every draw.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rejex_stream.errors import ConfigError
from rejex_stream.types import Position

__all__ = ["KeyedSampler", "commitment"]

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
class KeyedSampler:
    """Draws events by their positions.

    Parameters
    ----------
    key
        Secret, at most 64 bytes; empty: anybody can repeat the draw, and foresee it.

    Raises
    ------
    ConfigError
        If the key is too long.

    Examples
    --------
    >>> sum(KeyedSampler().is_drawn(Position("t", 0, i), 0.01) for i in range(100_000))
    1003
    """

    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if len(self.key) > _MOST_KEY_BYTES:
            raise ConfigError(
                f"the audit key has {len(self.key)} bytes: expected at most {_MOST_KEY_BYTES}, "
                "such as 32 random ones."
            )

    def is_drawn(self, position: Position, share: float) -> bool:
        """Toss the coin of a position; a smaller share draws a subset of a larger one. O(1)."""
        text = str(position).encode()
        digest = hashlib.blake2b(text, digest_size=8, person=b"rejex-audit", key=self.key).digest()
        return int.from_bytes(digest, "big") < share * 2.0**64
