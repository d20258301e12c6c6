"""Pictures of scores with their verdicts; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.band import RejectionBand
from rejex_stream.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

# Colour and shape both tell the verdicts apart: a quarter of the readers of print sees no colour.
_MARKS = {  # colour, shape, size
    "normal": ("#8a8f98", ".", 12),
    "rejected": ("#d98200", "D", 18),
    "anomaly": ("#c2262d", "^", 28),
}


def draw(
    scores: FloatArray,
    verdicts: Sequence[str],
    reference: FloatArray,
    band: RejectionBand,
    *,
    along: str,
    ax: Axes | None,
) -> Axes:
    """Draw scores in their order, each with its verdict, on top of the band.

    Parameters
    ----------
    scores, verdicts
        Shape (m,); a score that is not finite is not drawn, and counted in the legend.
    reference, band
        The sorted reference scores, shape (n,), and the band of ranks among them.
    along
        What the horizontal axis counts.
    ax
        Where to draw; new axes by default.

    Raises
    ------
    ConfigError
        Without matplotlib.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigError(
                "plot() needs matplotlib, which is not installed: pip install matplotlib."
            ) from None
        ax = pyplot.figure(figsize=(9, 3.2), layout="constrained").add_subplot()
    first, flagged, last = band.edges
    low, threshold, high = (_score_at(reference, rank) for rank in (first, flagged, last))
    if band.width:
        ax.axhspan(low, high, color="#d98200", alpha=0.15, lw=0, label="rejection band")
    ax.axhline(threshold, color="#444444", lw=1, ls="--", label="threshold λ")
    at, kinds = np.arange(len(scores)), np.array(verdicts)
    for kind, (colour, marker, size) in _MARKS.items():
        mine = kinds == kind
        hidden = np.count_nonzero(mine & ~np.isfinite(scores))
        label = f"{kind} ({np.count_nonzero(mine):,}"
        label += f", {hidden:,} without a score)" if hidden else ")"
        ax.scatter(
            at[mine], scores[mine], c=colour, marker=marker, s=size, label=label, lw=0, zorder=3
        )
    ax.set(xlabel=along, ylabel="score", xlim=(-0.5, max(len(scores), 1) - 0.5))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax


def _score_at(reference: FloatArray, rank: int) -> float:
    """Return the score from which on a new one has this rank."""
    return float(reference[min(max(rank - 1, 0), len(reference) - 1)])
