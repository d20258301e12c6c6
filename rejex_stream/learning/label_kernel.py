r"""A score that answers correct: label mass from neighbours over the prior of any detector.

The detector's severity s (-log10 of a tail probability) is a prior of one pseudo-answer; answers
nearby are weighed by how near they are:

.. math:: q(x) = \frac{p(s) + \sum_i w_i(x) y_i}{1 + \sum_i w_i(x)}, \quad
          p(s) = \frac{γ}{γ + 10^{-s}}, \quad w_i(x) = 2^{-\lVert x - x_i \rVert^2 / h_i^2}

y_i is 1 for an anomaly and 0 for a normal event, and h_i is the distance from x_i to its √n-th
neighbour among the n rows of the window, so an answer reaches far where events are rare and not
far where they are dense. Far from all answers q rises with s, and events are ordered as the
detector orders them. q is ranked in a window of its own, whose values are corrected by every new
answer too (each but by its own), so that they are comparable to those of events to come.

References
----------
.. [1] V. Vercruyssen et al.: Semi-supervised anomaly detection with an application to water
   analytics (SSDO). ICDM 2018. Labels that spread to neighbours with 2^-(d/η)².
.. [2] A. Gelman et al.: Bayesian Data Analysis, 3rd ed., 2.4. A Beta prior as pseudo-answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rejex_stream.errors import ConfigError
from rejex_stream.rejection.window import mid_rank
from rejex_stream.types import FloatArray

__all__ = ["LabelKernel"]

_HIGHEST = 300.0  # severities from here on are one float below p = 1
_NEAREST = 1e-12
_FARTHEST = 1e70  # beyond it squares would overflow, and what is infinite is no distance


class LabelKernel:
    """Corrected scores q in [0, 1], ranked among those of the last n events.

    Parameters
    ----------
    scale
        What one unit of each column is, shape (d,), positive: a standard deviation, say.
    contamination
        γ in (0, 0.5): the share of events at which the prior is even.
    window
        n, at least 2: events that a corrected score is ranked among.
    most
        So many answers teach, the newest ones.

    Notes
    -----
    Memory (n + most) d. An event costs O(n + most d), an answer O(n d). Equal calls give equal
    bits: nothing is random, and each event is computed by itself.
    """

    def __init__(
        self,
        scale: Sequence[float] | FloatArray,
        contamination: float,
        window: int,
        *,
        most: int = 500,
    ) -> None:
        units = np.asarray(scale, dtype=np.float64)
        if units.ndim != 1 or not np.all(np.isfinite(units)) or not np.all(units > 0):
            raise ConfigError(
                f"scale is {scale}: expected a positive number for each column. Give columns that "
                "do not vary a scale of 1."
            )
        if not 0.0 < contamination < 0.5:
            raise ConfigError(f"contamination is {contamination}: expected a share in (0, 0.5)")
        if window < 2 or most < 1:
            raise ConfigError(
                f"window is {window} and most is {most}: expected at least 2 events and 1 answer"
            )
        self._unit, self._gamma, self.window = 1.0 / units, contamination, window
        self._seen = 0
        self._rows = np.zeros((window, len(units)))
        # Of the events in the window: prior, what anomalies nearby say, what all answers weigh.
        self._prior, self._hits, self._mass = np.zeros((3, window))
        self._taught = 0
        self._answers = np.zeros((most, len(units)))
        self._anomalous, self._reach = np.zeros((2, most))

    @property
    def is_full(self) -> bool:
        """Whether the window has all its events."""
        return self._seen >= self.window

    @property
    def next_at(self) -> int:
        """The number of the event that is pushed next."""
        return self._seen

    def __len__(self) -> int:
        """How many events are in the window."""
        return min(self._seen, self.window)

    @property
    def n_answers(self) -> int:
        """How many answers teach."""
        return min(self._taught, len(self._answers))

    def scores(self) -> FloatArray:
        """Return q of the events in the window by all answers but their own, shape (n,)."""
        n = len(self)
        scores: FloatArray = (self._prior[:n] + self._hits[:n]) / (1.0 + self._mass[:n])
        return scores

    def prior(self, severity: float) -> float:
        """Return p(s), what the detector alone says."""
        return self._gamma / (self._gamma + math.pow(10.0, -min(severity, _HIGHEST)))

    def corrected(self, row: Sequence[float] | FloatArray, severity: float) -> float:
        """Return q for an event that is not in the window."""
        hits, mass = self._weigh(self._scaled(row))
        return (self.prior(severity) + hits) / (1.0 + mass)

    def push(self, row: Sequence[float] | FloatArray, severity: float) -> tuple[float, int]:
        """Let an event into the window; return its q, and its mid-rank among those before it."""
        at = self._seen % self.window
        scaled = self._scaled(row)
        prior = self.prior(severity)
        hits, mass = self._weigh(scaled)
        q = (prior + hits) / (1.0 + mass)
        scores = self.scores()
        rank = mid_rank(int(np.count_nonzero(scores < q)), int(np.count_nonzero(scores <= q)))
        self._rows[at], self._prior[at] = scaled, prior
        self._hits[at], self._mass[at] = hits, mass
        self._seen += 1
        return q, rank

    def teach(self, row: Sequence[float] | FloatArray, *, anomalous: bool, at: int) -> None:
        """Learn an answer about the event that was pushed as number `at` (from 0).

        Its own place in the window is not corrected by it. Before the window has two events it
        says nothing of what is near, and the answer is passed over.
        """
        n = len(self)
        if n < 2:
            return
        scaled = self._scaled(row)
        squared = np.square(self._rows[:n] - scaled).sum(axis=1)
        nearest = min(math.isqrt(n), n - 1)
        reach = max(float(np.partition(squared, nearest)[nearest]), _NEAREST)
        weights = np.exp2(-squared / reach)
        if self._seen - n <= at < self._seen:
            weights[at % self.window] = 0.0
        self._mass[:n] += weights
        if anomalous:
            self._hits[:n] += weights
        place = self._taught % len(self._answers)
        self._answers[place] = scaled
        self._anomalous[place], self._reach[place] = anomalous, reach
        self._taught += 1

    def state(self) -> dict[str, Any]:
        """Return what has changed since it was made: counts, and copies of arrays."""
        n, m = len(self), self.n_answers
        events = (self._rows[:n], self._prior[:n], self._hits[:n], self._mass[:n])
        answers = (self._answers[:m], self._anomalous[:m], self._reach[:m])
        return {
            "seen": self._seen,
            "taught": self._taught,
            "events": [one.copy() for one in events],
            "answers": [one.copy() for one in answers],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, in one that was made with equal arguments."""
        self._seen, self._taught = state["seen"], state["taught"]
        events = (self._rows, self._prior, self._hits, self._mass)
        answers = (self._answers, self._anomalous, self._reach)
        for kept, given in ((events, state["events"]), (answers, state["answers"])):
            for array, values in zip(kept, given, strict=True):
                array[: len(values)] = values

    def _scaled(self, row: Sequence[float] | FloatArray) -> FloatArray:
        scaled = np.asarray(row, dtype=np.float64) * self._unit
        return np.clip(scaled, -_FARTHEST, _FARTHEST)

    def _weigh(self, scaled: FloatArray) -> tuple[float, float]:
        m = self.n_answers
        if not m:
            return 0.0, 0.0
        squared = np.square(self._answers[:m] - scaled).sum(axis=1)
        weights = np.exp2(-squared / self._reach[:m])
        return float((weights * self._anomalous[:m]).sum()), float(weights.sum())
