"""ExCeeD's confidence on a scale that does not saturate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rejex_stream.rejection.exceed import stability

__all__ = ["flip_tolerance"]


def flip_tolerance(
    scores: npt.NDArray[np.float64], reference: npt.NDArray[np.float64], gamma: float
) -> npt.NDArray[np.float64]:
    """Return -log of the probability that a label flips, per score of shape (m,).

    It is the T from which on RejEx rejects the score; 1 - 2 exp(-T) is ExCeeD's confidence, which
    in floats is 1.0 for most of the scores. `reference` must be sorted; ranks are the paper's.
    """
    n = len(reference)
    at = stability(np.arange(n + 1), n, gamma)
    by_rank = -np.minimum(np.asarray(at.log_p_anomaly), np.asarray(at.log_p_normal))
    result: npt.NDArray[np.float64] = by_rank[np.searchsorted(reference, scores, side="right")]
    return result
