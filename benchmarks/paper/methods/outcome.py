"""What every method returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.cell import Cell
from benchmarks.paper.costs import Counts, count

__all__ = ["ANY", "Outcome", "judge"]

ANY = "any"
"""Key of counts that do not depend on the costs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Test counts of one method on one cell.

    Attributes
    ----------
    counts
        By cost case, or under :data:`ANY` where the threshold does not depend on the costs.
    cpu_s
        CPU seconds to set the threshold, with what it needs beyond the detector's own fit.
    notes
        Thresholds and whatever else the report shows.
    """

    counts: Mapping[str, Counts]
    cpu_s: float
    notes: Mapping[str, Any] = field(default_factory=dict)


def judge(cell: Cell, labels: npt.NDArray[np.int64], reject: npt.NDArray[np.bool_]) -> Counts:
    """Count test labels of which some are rejected."""
    return count(np.where(reject, -1, labels), cell.fold.y_test)
