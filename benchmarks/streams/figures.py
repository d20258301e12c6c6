"""The figures of the stream report (Matplotlib, extra ``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streams.prequential import DETECTORS

__all__ = ["draw"]

_COLOURS = ("#D55E00", "#000000", "#999999", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#0072B2")


def draw(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    """Write the figures; returns their file names."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
    for colour, detector in zip(_COLOURS, DETECTORS, strict=True):
        group = [row for row in rows if row["detector"] == detector]
        known = [
            row
            for row in group
            if row["autocorrelation"] is not None and row["rate"]["measured_normal"] is not None
        ]
        if known:
            left.scatter(
                [row["autocorrelation"] for row in known],
                [row["rate"]["measured_normal"] / row["rate"]["expected"] for row in known],
                s=14, color=colour, label=detector, alpha=0.8,
            )  # fmt: skip
        costs = [(row["policies"]["NoReject"]["cost"]["1-1"],
                  row["policies"]["as shipped"]["cost"]["1-1"]) for row in group]  # fmt: skip
        if costs:
            right.scatter(*np.array(costs).T, s=14, color=colour, label=detector, alpha=0.8)
    left.axhline(1, color="black", linewidth=1)
    left.set_yscale("symlog", linthresh=0.25)
    left.set_ylim(bottom=-0.05)
    left.set_xlabel("lag-1 autocorrelation of the ranks of normal events")
    left.set_ylabel("rejection rate of normal events, measured / expected")
    top = max(row["policies"]["NoReject"]["cost"]["1-1"] for row in rows)
    right.plot([0, top], [0, top], color="black", linewidth=1)
    right.set_xlabel("cost per event without rejection, (1, 1, γ)")
    right.set_ylabel("cost per event as shipped")
    left.legend(frameon=False)
    figure.savefig(
        folder / "streams.png", dpi=110, bbox_inches="tight", metadata={"Software": None}
    )
    plt.close(figure)
    return ["streams.png"]
