"""Which episodes get a second opinion: a draw by hash that everybody can repeat."""

from __future__ import annotations

import hashlib

__all__ = ["drawn_for_second_review"]


def drawn_for_second_review(root_id: str, ratio: float) -> bool:
    """Say whether an episode gets a second, independent reviewer; a share `ratio` of them do.

    A larger ratio keeps every smaller draw, and nobody can choose who is drawn.

    Examples
    --------
    >>> sum(drawn_for_second_review(f"E-{number}", 0.1) for number in range(10_000))
    989
    """
    digest = hashlib.sha256(f"second/{root_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < ratio * 2.0**64
