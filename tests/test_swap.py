"""What a swap of models does to the truth: right after it, an overfitting detector is the test."""

from dataclasses import dataclass

import numpy as np
import pytest

from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading, Reason

WINDOW, AFTER, CHANNELS, SEED = 100, 60, 10, 7


@dataclass(frozen=True)
class Mahalanobis:
    """Distance under the covariance of few rows, which scores its own rows too low.

    Every fit has a unit of its own, as PyOD's IForest has: scores of two models do not compare.
    """

    name: str = "test:Mahalanobis"

    def fit(self, X, *, seed):
        unit = 1.0 + 0.5 * np.random.default_rng(seed).random()
        return MahalanobisScorer(X.mean(axis=0), np.linalg.inv(np.cov(X.T)), unit)


@dataclass(frozen=True)
class MahalanobisScorer:
    mean: np.ndarray
    precision: np.ndarray
    unit: float

    def score(self, X):
        centred = X - self.mean
        return self.unit * np.einsum("ij,jk,ik->i", centred, self.precision, centred)


def after_swaps(calibration, swaps):
    """Return (share rejected / expected share, ranks in (0, 1)) within 60 events of each swap."""
    spec = EngineSpec(
        Mahalanobis(), FeatureSpec(tuple(f"c{i}" for i in range(CHANNELS))),
        RejectionPolicy(0.1, tolerance=3.0), window=WINDOW,
        schedule=RefitSchedule(
            first_fit_events=100, refit_every_events=WINDOW + AFTER, refit_lag_events=5,
            buffer_events=90, calibration=calibration,
        ),
    )  # fmt: skip
    events = 100 + (swaps + 1) * (WINDOW + AFTER) + AFTER + 5
    rng = np.random.default_rng(SEED)
    rows = rng.normal(size=(events, CHANNELS)).tolist()
    verdicts = Engine(spec, InlineExecutor()).process(
        [Reading("k", "k", i, tuple(row), Position("t", 0, i)) for i, row in enumerate(rows)]
    )
    began, near = {}, []
    for verdict in verdicts:
        epoch = verdict.model_epoch
        # The first model, of the same kind under `holdout` and `shadow`, is left out.
        if epoch and verdict.seq < began.setdefault(epoch, verdict.seq) + AFTER:
            near.append(verdict)
    assert len(began) >= swaps
    judged = [v for v in near if v.reason is not Reason.WARM_UP]
    rejected = sum(v.reason is Reason.AMBIGUOUS for v in judged)
    expected = sum((v.band_upper - v.band_lower + 1) / (v.window_len + 1) for v in judged)
    ranks = [(v.rank + rng.random()) / (v.window_len + 1) for v in near]
    return rejected / expected, np.array(ranks)


def tenths(ranks):
    """Return the share of ranks in every tenth, times ten: 1 where they are uniform."""
    return np.histogram(ranks, bins=np.linspace(0, 1, 11))[0] / len(ranks) * 10


@pytest.mark.thorough
@pytest.mark.parametrize("calibration", ["shadow", "holdout"])
def test_out_of_sample_scores_keep_the_rate_and_uniform_ranks_from_the_first_event(calibration):
    # 36,000 events, 60 to a window: over eight seeds the ratio had a standard deviation of .022 and
    # a tenth one of .014, so .03 is narrow; the seed is fixed, and a kept window shows far more.
    ratio, ranks = after_swaps(calibration, 600)
    assert abs(ratio - 1) <= 0.03
    assert np.abs(tenths(ranks) - 1).max() <= 0.06


@pytest.mark.thorough
def test_in_sample_scores_reject_and_flag_too_many():
    ratio, ranks = after_swaps("training", 300)
    assert 1.2 <= ratio <= 1.5
    assert tenths(ranks)[-1] > 1.4
