"""What a verdict costs: beside bare SortedList operations, PyOD's reject layer, bare numpy.

python -m benchmarks.verdict
"""

from __future__ import annotations

import statistics
import time
import warnings

import numpy as np
from pyod.models.base import BaseDetector
from scipy.stats import binom
from sortedcontainers import SortedList

from benchmarks.harness import paired, ratio, write
from rejex_stream.rejection import rejection_band
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.rejection.token_bucket import TokenBucket
from rejex_stream.rejection.window import ScoreWindow

EVENTS = 20_000
GAMMA, TOLERANCE = 0.1, 32.0


class Identity(BaseDetector):
    """PyOD's reject layer without a detector: the score of a row is its only feature."""

    def __init__(self, contamination: float = 0.1) -> None:
        super().__init__(contamination=contamination)

    def fit(self, X, y=None):
        """Take the rows as scores."""
        self._set_n_classes(y)
        self.decision_scores_ = X[:, 0]
        self._process_decision_scores()
        return self

    def decision_function(self, X):
        """Return the rows as scores."""
        return X[:, 0]


def window_rows() -> list[list[object]]:
    rows = []
    for n in (1000, 2000, 5000, 10_000, 50_000):
        scores = np.random.default_rng(n).normal(size=n + EVENTS).tolist()
        band = rejection_band(n, GAMMA, TOLERANCE)

        def ours(n=n, scores=scores, band=band):
            window = ScoreWindow(n, scores[:n])
            rank, push, label = window.rank, window.push, band.label
            for score in scores[n:]:
                below, at_or_below = rank(score)
                label((below + at_or_below) // 2)
                push(score)

        def bare(n=n, scores=scores):
            ordered = SortedList(scores[:n])
            left, right = ordered.bisect_left, ordered.bisect_right
            remove, add = ordered.remove, ordered.add
            for i, score in enumerate(scores[n:]):
                left(score)
                right(score)
                remove(scores[i])
                add(score)

        taken = paired({"ours": ours, "bare": bare}, repeats=9)
        micro = {name: statistics.median(times) / EVENTS * 1e6 for name, times in taken.items()}
        rows.append([n, micro["ours"], micro["bare"], ratio(taken["ours"], taken["bare"])])
    return rows


def reject_layer_rows() -> list[list[object]]:
    rows = []
    for n in (1000, 10_000):
        rng = np.random.default_rng(n)
        reference = rng.normal(size=n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pyod = Identity(contamination=GAMMA).fit(reference[:, None])
        ordered, band = np.sort(reference), rejection_band(n, GAMMA, TOLERANCE)
        window = ScoreWindow(n, reference.tolist())
        r = band.n_anomalies
        for batch in (1, 1000):
            fresh = rng.normal(size=batch)
            rounds = 200 if batch == 1 else 3

            def theirs(pyod=pyod, fresh=fresh, rounds=rounds):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    for _ in range(rounds):
                        pyod.predict_with_rejection(fresh[:, None], T=TOLERANCE)

            def numpy_binom(ordered=ordered, fresh=fresh, n=n, r=r, rounds=rounds):
                for _ in range(rounds):
                    k = np.searchsorted(ordered, fresh, side="right")
                    p = 1 - binom.cdf(n - r, n, (1 + k) / (n + 2))
                    np.abs(2 * p - 1) <= 1 - 2 * np.exp(-TOLERANCE)  # noqa: B015 - the work itself

            def band_numpy(ordered=ordered, fresh=fresh, band=band, rounds=rounds):
                for _ in range(rounds):
                    k = np.searchsorted(ordered, fresh, side="right")
                    band.cells(k)

            def streaming(window=window, fresh=fresh, band=band, rounds=rounds):
                fresh = fresh.tolist()
                for _ in range(rounds):
                    for score in fresh:
                        below, at_or_below = window.rank(score)
                        band.label((below + at_or_below) // 2)
                        window.push(score)

            taken = paired(
                {"pyod": theirs, "numpy": numpy_binom, "band": band_numpy, "stream": streaming},
                repeats=5,
            )
            per = {
                name: statistics.median(times) / rounds / batch * 1e6
                for name, times in taken.items()
            }
            rows.append(
                [n, batch, per["pyod"], per["numpy"], per["band"], per["stream"]]
                + [ratio(taken[name], taken["stream"]) for name in ("pyod", "numpy")]
            )
    return rows


def filling_rows() -> list[list[object]]:
    """Return µs a length of a window that fills, of policies that nobody has met before."""
    rows: list[list[object]] = []
    for n in (500, 2000, 10_000):
        own, allowed = [], []
        for turn in range(5):
            policy = RejectionPolicy(round(0.05 + 1e-6 * turn, 6), rate=0.05, burst=72)
            lengths = range(policy.first_window, n + 1)
            start = time.process_time()
            for length in lengths:
                policy.band(length)
            middle = time.process_time()
            governor = TokenBucket(policy)
            for length in lengths:
                if governor.allow(length, "s", 0).width and length % 20 == 0:
                    governor.spend()
            own.append(1e6 * (middle - start) / len(lengths))
            allowed.append(1e6 * (time.process_time() - middle) / len(lengths))
        rows.append([n, len(lengths), statistics.median(own), statistics.median(allowed)])
    return rows


def main() -> None:
    """Run and write."""
    write(
        "verdict",
        "Cost of a verdict",
        [
            (
                "While a window fills, every length has a band of its own, which is looked up the "
                "first time and then kept for all streams (µs a length).",
                ["n", "lengths", "the policy's band", "and the band that a budget allows"],
                filling_rows(),
            ),
            (
                "Push, evict, rank and verdict together, beside the bare SortedList operations "
                "they need (µs an event).",
                ["n", "ScoreWindow + band", "bare SortedList", "ratio"],
                window_rows(),
            ),
            (
                "The same verdict by PyOD's `predict_with_rejection` (identity detector), by one "
                "vectorised searchsorted + binom.cdf, by searchsorted + band against a frozen "
                "reference, and by the sliding window with push and eviction (µs a score).",
                ["n", "batch", "PyOD", "numpy + binom", "numpy + band", "sliding window",
                 "PyOD / sliding", "numpy + binom / sliding"],
                reject_layer_rows(),
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
