"""The threshold on a confidence that costs least on labelled examples, found exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.paper.costs import Costs

__all__ = ["best_threshold"]


def best_threshold(
    confidence: npt.NDArray[np.float64],
    labels: npt.NDArray[np.int64],
    truth: npt.NDArray[np.int64],
    prices: Costs,
    *,
    most: float = np.inf,
) -> float:
    """Return t: rejecting iff ``confidence <= t`` costs least; -inf is to reject nothing.

    Of equal costs the one with the fewest rejections is taken. O(n log n).

    Parameters
    ----------
    confidence, labels, truth
        Shape (n,).
    prices
        The costs.
    most
        Confidences above this are never rejected.
    """
    order = np.argsort(confidence, kind="stable")
    confidence, labels, truth = confidence[order], labels[order], truth[order]
    loss = np.where(labels == truth, 0.0, np.where(labels == 1, prices.fp, prices.fn))
    change = np.concatenate(([0.0], np.cumsum(prices.r - loss)))  # after rejecting the first i
    last_of_tie = np.append(confidence[1:] > confidence[:-1], True)
    allowed = np.concatenate(([True], last_of_tie & (confidence <= most)))
    # A difference in the last bit is not a difference in cost.
    i = int(np.argmin(np.where(allowed, np.round(change, 9), np.inf)))
    return -np.inf if i == 0 else float(confidence[i - 1])
