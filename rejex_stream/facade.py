"""The same mathematics for notebooks: a scikit-learn style and a River style detector."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from river.base.anomaly_detector import AnomalyDetector
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_array, check_is_fitted

from rejex_stream.detectors import as_detector
from rejex_stream.errors import ConfigError
from rejex_stream.exceed import stability, stability_table
from rejex_stream.policy import RejectionPolicy
from rejex_stream.protocols import BatchDetector, IncrementalDetector, IncrementalScorer
from rejex_stream.refit import FitJob
from rejex_stream.rejection import RejectionBand, require_reachable
from rejex_stream.types import FloatArray, Label
from rejex_stream.window import ScoreWindow, mid_rank

__all__ = ["RejectingDetector", "RejectingStream"]


class RejectingDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """A batch anomaly detector that can abstain, with scikit-learn's conventions.

    Parameters
    ----------
    detector
        A registry name (``"KNN"``), an unfitted PyOD detector, a dotted class name, or anything
        :func:`rejex_stream.detectors.as_detector` takes and that is fitted on a table.
    contamination
        γ in (0, 0.5).
    tolerance
        T; the paper's value is 32. Larger rejects more.
    rate
        Instead of `tolerance` (then ``None``): the share of events that people can review.
    calibration
        ``training``: the paper's, ranks among the training rows' own scores; not honest for
        detectors that fit their training rows closely (KDE, large mixtures). ``holdout``: fit on
        70 % of the rows, rank among the scores of the last 30 %.
    ties
        ``mid`` or ``paper``, see :class:`rejex_stream.policy.RejectionPolicy`.
    seed
        Of the fit.

    Attributes
    ----------
    reference_scores_
        Shape (n,), sorted: the scores that new ones are ranked among.
    band_
        The :class:`~rejex_stream.rejection.RejectionBand`; feed it to
        :mod:`rejex_stream.guarantees`.
    threshold_
        λ, the r-th largest reference score.
    n_features_in_
        Columns seen by fit.

    References
    ----------
    .. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(size=(950, 2)), rng.normal(6, 1, size=(50, 2))])
    >>> model = RejectingDetector("KNN", contamination=0.05, tolerance=8).fit(X)
    >>> model.predict([[0.0, 0.0], [2.0, 2.0], [20.0, 20.0]]).tolist()
    [0, -1, 1]
    >>> model.band_.width / (model.band_.n + 1) < 0.05
    True
    """

    def __init__(
        self,
        detector: Any = "KNN",  # noqa: ANN401 - anything as_detector takes
        contamination: float = 0.1,
        tolerance: float | None = 32.0,
        *,
        rate: float | None = None,
        calibration: Literal["training", "holdout"] = "training",
        ties: Literal["mid", "paper"] = "mid",
        seed: int = 0,
    ) -> None:
        self.detector = detector
        self.contamination = contamination
        self.tolerance = tolerance
        self.rate = rate
        self.calibration = calibration
        self.ties = ties
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: object = None) -> RejectingDetector:
        """Fit on X of shape (n, d) and find the rejection band.

        Warns where the band leaves no rank for a label, since then that label is never given.

        Raises
        ------
        ConfigError
            If an argument cannot be, or n γ < 1.
        DetectorError
            If the detector cannot be fitted on X.
        """
        rows = check_array(X, dtype=np.float64)
        recipe = as_detector(self.detector)
        if not isinstance(recipe, BatchDetector):
            raise ConfigError(
                f"{recipe.name} learns one row at a time: use RejectingStream, or a detector that "
                "is fitted on a table."
            )
        if self.calibration not in ("training", "holdout"):
            raise ConfigError(
                f"calibration = {self.calibration!r} is unknown: use 'training' or 'holdout'."
            )
        policy = RejectionPolicy(self.contamination, self.tolerance, self.rate, self.ties)
        fitted = FitJob(recipe, rows, self.seed, self.calibration, holdout_share=0.3)()
        scores = fitted.calibration_scores
        self.scorer_ = fitted.scorer
        self.n_features_in_ = rows.shape[1]
        self.reference_scores_: FloatArray = np.sort(scores[np.isfinite(scores)])
        self.band_: RejectionBand = policy.band(len(self.reference_scores_))
        self.threshold_ = float(self.reference_scores_[-self.band_.n_anomalies])
        try:
            require_reachable(self.band_)
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=2)
        return self

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Return the scores of X of shape (m, d), shape (m,), high = anomalous."""
        check_is_fitted(self)
        rows = check_array(X, dtype=np.float64)
        if rows.shape[1] != self.n_features_in_:
            raise ConfigError(
                f"X has {rows.shape[1]} columns, the detector was fitted on "
                f"{self.n_features_in_}: give the same columns."
            )
        return self.scorer_.score(rows)

    def rank(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the rank K of every row of X among the reference scores, shape (m,)."""
        return self._rank(self.decision_function(X))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return 0 (normal), 1 (anomaly) or -1 (rejected) for every row of X, shape (m,).

        A score that is not finite is rejected. O(log n) per row besides the detector.
        """
        scores = self.decision_function(X)
        ranks, band = self._rank(scores), self.band_
        labels = (ranks > band.n - band.n_anomalies).astype(np.int64)
        unsure = (ranks >= band.lower) & (ranks <= band.upper)
        labels[unsure | ~np.isfinite(scores)] = -1
        if self.ties == "mid" and self.reference_scores_[0] == self.reference_scores_[-1]:
            labels[:] = -1  # one repeated score holds no information
        return labels

    def stability(self, X: npt.ArrayLike) -> FloatArray:
        """Return P(label = anomaly) under re-drawn training data for every row, shape (m,)."""
        at = stability(self.rank(X), self.band_.n, self.contamination)
        return np.asarray(at.p_anomaly)

    def confidence(self, X: npt.ArrayLike) -> FloatArray:
        """Return ``|2 P - 1|`` in [0, 1] for every row of X, shape (m,); P is the stability."""
        at = stability(self.rank(X), self.band_.n, self.contamination)
        return np.asarray(at.confidence)

    def _rank(self, scores: FloatArray) -> npt.NDArray[np.int64]:
        at_or_below = np.searchsorted(self.reference_scores_, scores, side="right")
        if self.ties == "paper":
            return at_or_below
        return (np.searchsorted(self.reference_scores_, scores, side="left") + at_or_below) // 2


class RejectingStream(AnomalyDetector):
    """An incremental anomaly detector that can abstain, with River's conventions.

    Parameters
    ----------
    detector
        A registry name (``"HalfSpaceTrees"``), a River anomaly detector or a pipeline that ends
        in one, or a dotted name.
    contamination, tolerance, rate
        As in :class:`RejectingDetector`.
    window
        n, how many of the last scores new ones are ranked among.
    seed
        Of the detector, where it takes one.

    Notes
    -----
    `learn_one` scores the event before it learns it, so the window is out of sample. `score_one`
    and `predict_one` change nothing.

    Examples
    --------
    >>> import random
    >>> rng = random.Random(0)
    >>> model = RejectingStream("GaussianScorer", contamination=0.1, tolerance=4, window=200)
    >>> for _ in range(400):
    ...     model.learn_one({"flow": rng.gauss(100, 1)})
    >>> [model.predict_one({"flow": flow}) for flow in (100.0, 101.7, 120.0)]
    ['normal', 'rejected', 'anomaly']
    """

    def __init__(
        self,
        detector: Any = "HalfSpaceTrees",  # noqa: ANN401 - anything as_detector takes
        contamination: float = 0.05,
        tolerance: float | None = 32.0,
        *,
        rate: float | None = None,
        window: int = 1000,
        seed: int = 0,
    ) -> None:
        self.detector = detector
        self.contamination = contamination
        self.tolerance = tolerance
        self.rate = rate
        self.window = window
        self.seed = seed
        recipe = as_detector(detector)
        if not isinstance(recipe, IncrementalDetector):
            raise ConfigError(
                f"{recipe.name} is fitted on a table: use RejectingDetector, or a detector that "
                "learns one row at a time."
            )
        self._recipe: IncrementalDetector = recipe
        self._policy = RejectionPolicy(contamination, tolerance, rate)
        self._policy.require(window)
        self._scores = ScoreWindow(window)
        self._scorer: IncrementalScorer | None = None
        self._names: tuple[Hashable, ...] = ()
        self._learnt = 0

    def learn_one(self, x: dict[Hashable, Any]) -> None:
        """Rank-to-be: score x, remember the score, then learn x."""
        row = self._row(x)
        assert self._scorer is not None  # made by _row
        score = self._scorer.score_one(row)
        self._scorer.learn_one(row)
        self._learnt += 1
        if self._learnt > self._recipe.warm_up_events and score - score == 0.0:
            self._scores.push(score)

    def score_one(self, x: dict[Hashable, Any]) -> float:
        """Return the score of x, high = anomalous."""
        row = self._row(x)
        assert self._scorer is not None  # made by _row
        return self._scorer.score_one(row)

    def rank_one(self, x: dict[Hashable, Any]) -> int:
        """Return the mid-rank of x among the window's scores, in 0..len."""
        return mid_rank(*self._scores.rank(self.score_one(x)))

    def predict_one(self, x: dict[Hashable, Any]) -> str:
        """Return ``normal``, ``anomaly`` or ``rejected``; while warming up always the latter."""
        n = len(self._scores)
        score = self.score_one(x)
        if n < self._policy.first_window or score - score != 0.0 or self._scores.is_constant:
            return str(Label.REJECTED)
        return str(self._policy.band(n).label(mid_rank(*self._scores.rank(score))))

    def confidence_one(self, x: dict[Hashable, Any]) -> float:
        """Return the confidence of the label of x in [0, 1]; 0 while warming up."""
        n = len(self._scores)
        if n < self._policy.first_window:
            return 0.0
        return stability_table(n, self.contamination)[1][self.rank_one(x)]

    def _row(self, x: dict[Hashable, Any]) -> FloatArray:
        if self._scorer is None:
            self._names = tuple(x)
            self._scorer = self._recipe.start([str(name) for name in self._names], seed=self.seed)
        try:
            return np.array([x[name] for name in self._names], dtype=np.float64)
        except KeyError as error:
            raise ConfigError(
                f"The event has no feature {error.args[0]!r}; the first one had "
                f"{', '.join(map(str, self._names))}: give the same features every time."
            ) from None
