"""How much work the baselines are allowed, in one place: part of every row."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EFFORTS", "Effort"]


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes of the Monte-Carlo parts.

    Attributes
    ----------
    name
        Stands in every row; rows of two efforts never mix in one folder.
    subspaces
        Goix's draws of 5 features where there are more than 8 (his own number is 50).
    volume_points
        Uniform points per draw that measure a volume.
    refits
        Detectors fitted on 25-75 % of the rows for the ranking stability (its authors: 500).
    metric_rows
        Training rows on which a metric is evaluated, and from which refits draw, at most.
    repen_steps
        Batches of 256 triplets (30 epochs of 50 in REPEN's own code).
    """

    name: str
    subspaces: int
    volume_points: int
    refits: int
    metric_rows: int
    repen_steps: int


EFFORTS = {
    "standard": Effort("standard", 3, 3000, 8, 1000, 1000),
    "fast": Effort("fast", 1, 1000, 3, 400, 200),
}
