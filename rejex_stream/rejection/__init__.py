"""All of the paper: scores in, labels out, and what is known about them in advance.

In: the score of an event, and n reference scores of the same model. Out: its rank, and by two
integer comparisons `normal`, `anomaly` or `rejected`.
:mod:`~rejex_stream.rejection.exceed` is how sure a label is, :mod:`~rejex_stream.rejection.band`
which ranks are rejected, :mod:`~rejex_stream.rejection.bounds` how often that happens and what it
costs, :mod:`~rejex_stream.rejection.window` the reference scores and how rare one is. Open `band`
first, then `judge`.
"""

from rejex_stream.rejection.band import (
    RejectionBand,
    label_of,
    max_tolerance,
    min_window,
    rank_edges,
    rejection_band,
    tolerance_for_rate,
    window_for_rate,
)
from rejex_stream.rejection.bounds import (
    cost_bound,
    cost_quantile,
    exact_rate_bound,
    expected_rejection_rate,
    paper_rate_bound,
    theorem_interval,
)
from rejex_stream.rejection.exceed import Stability, anomaly_count, stability
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.window import ScoreWindow, mid_rank

__all__ = [
    "RejectionBand", "RejectionPolicy", "ScoreWindow", "Stability", "anomaly_count", "cost_bound",
    "cost_quantile", "exact_rate_bound", "expected_rejection_rate", "label_of", "max_tolerance",
    "mid_rank", "min_window", "paper_rate_bound", "rank_edges", "rejection_band", "stability",
    "theorem_interval", "tolerance_for_rate", "window_for_rate",
]  # fmt: skip
