"""Scores smoothed over the rows before: a mean by weights that fall exponentially, and end.

What lasts adds up and what is noise does not, so a weak fault stands out that no single row shows;
a fault of one row is drowned, and every fault is seen a little later.

S. W. Roberts: *Control Chart Tests Based on Geometric Moving Averages*. Technometrics 1, 1959.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, log
from operator import mul
from typing import Final

__all__ = ["Ewma", "reach_of", "reach_of_ewma"]

_LEFT_OUT: Final = 0.01
"""Share of the weights of an average without end that is older than its last row here."""


class Ewma:
    """The newest scores of a model, and the means that end at the next ones.

    The average of span s weighs the score of k rows ago by (1 - a)^k, a = 2 / (s + 1). It ends
    after so many rows that those beyond would weigh less than a hundredth: a mean is the same
    function of the same number of rows wherever a model began, so those that calibrate are made as
    those that are judged.

    Parameters
    ----------
    span_events
        s; at 1 scores stay what they are.

    Attributes
    ----------
    reach
        How many rows before its own a mean looks back at.
    weight
        What a row's own score counts for in its mean.

    Notes
    -----
    O(reach) a score, rounded once (``fsum``), so that no cut of the input changes a bit.

    Examples
    --------
    >>> ewma = Ewma(10)
    >>> ewma.reach, round(ewma.weight, 2)
    (22, 0.18)
    >>> len(ewma.begin([1.0] * 30))
    8
    >>> [round(mean, 2) for mean in ewma.means([1.0, 6.0, 1.0])]
    [1.0, 1.92, 1.75]
    """

    __slots__ = ("_weights", "reach", "recent", "weight")

    def __init__(self, span_events: int) -> None:
        self.reach = reach_of_ewma(span_events)
        kept = 1.0 - 2.0 / (span_events + 1)
        falling = [kept**k for k in range(self.reach, -1, -1)]
        whole = fsum(falling)
        self._weights = [weight / whole for weight in falling]
        self.weight = self._weights[-1]
        self.recent: list[float] = []
        """The newest finite scores, oldest first, at most `reach`."""

    def means(self, scores: list[float]) -> list[float]:
        """Return the means that end at the next scores, and remember none of them.

        A score that is not finite stays as it is and is part of no mean. Before there are `reach`
        others, a mean is one of those that there are.
        """
        if not self.reach:
            return scores
        past, n, made = self.recent.copy(), self.reach + 1, []
        for score in scores:
            if score - score != 0.0:
                made.append(score)
                continue
            past.append(score)
            if len(past) >= n:
                made.append(fsum(map(mul, self._weights, past[-n:])))
                continue
            weights = self._weights[-len(past) :]
            made.append(fsum(map(mul, weights, past)) / fsum(weights))
        return made

    def remember(self, scores: Sequence[float]) -> None:
        """Take in the next scores."""
        if self.reach:
            newest = [score for score in scores if score - score == 0.0]
            self.recent = [*self.recent, *newest][-self.reach :]

    def begin(self, scores: list[float]) -> list[float]:
        """Begin again with the scores of another model; return the means that are whole."""
        if not self.reach:
            return scores
        self.recent = []
        means = self.means([score for score in scores if score - score == 0.0])
        self.remember(scores)
        return means[self.reach :]


def reach_of(detector: object) -> int:
    """Return how many rows before its own a detector's score looks back at in a pipeline."""
    return reach_of_ewma(getattr(detector, "ewma_events", 1))


def reach_of_ewma(span_events: int) -> int:
    """Return how many rows before its own a mean of a span looks back at."""
    if span_events == 1:
        return 0
    return ceil(log(_LEFT_OUT) / log(1.0 - 2.0 / (span_events + 1))) - 1
