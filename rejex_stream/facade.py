"""The method in a notebook: a detector that is fitted on a table and may abstain.

In: a table. Out: a verdict for each row, by PyOD's codes; the rules are scikit-learn's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from rejex_stream.detectors import DEFAULT, as_detector
from rejex_stream.engine.refit import HOLDOUT_SHARE, FitJob
from rejex_stream.errors import ConfigError
from rejex_stream.features import FeatureSpec
from rejex_stream.protocols import BatchDetector
from rejex_stream.rejection.band import TOLERANCE, RejectionBand, require_reachable
from rejex_stream.rejection.exceed import stability
from rejex_stream.rejection.policy import CONTAMINATION, RejectionPolicy
from rejex_stream.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["REJECTED", "RejectingDetector"]

REJECTED = -2
"""PyOD's code for a row that a person should decide; 0 is normal, 1 an anomaly."""

_CODES = np.array([0, REJECTED, REJECTED, 1])  # by cell, see rejection.rank_edges


class RejectingDetector(BaseEstimator):  # type: ignore[misc]
    """A batch anomaly detector that can abstain: scikit-learn's rules, PyOD's names and codes.

    It is **not** an ``OutlierMixin``: scikit-learn's outlier detectors say -1 for an outlier and 1
    for an inlier, PyOD's say 1 and 0, and -2 for a rejected row. Here PyOD's hold, and scores are
    high for anomalies. Everything else is scikit-learn's: parameters, clones, pipelines, searches,
    names of columns.

    Parameters
    ----------
    detector
        A registry name (``"KNN"``), a dotted class name, a PyOD or scikit-learn detector (or a
        pipeline that ends in one; what it has learnt does not count), or anything else that
        :func:`rejex_stream.detectors.as_detector` takes and that is fitted on a table.
    contamination
        γ in (0, 0.5).
    tolerance
        T; the paper's value, 32, where neither it nor a rate is given. Larger rejects more.
    rate
        Instead of `tolerance`: the share of events that people can review.
    params
        Parameters of a detector that is given by name.
    calibration
        ``training``: the paper's, ranks among the training rows' own scores; not honest for
        detectors that fit their training rows closely (KDE, large mixtures). ``holdout``: fit on
        70 % of the rows, rank among the scores of the last 30 %.
    ties
        ``mid`` or ``paper``, see :class:`rejex_stream.rejection.policy.RejectionPolicy`.
    seed
        Of the fit.

    Attributes
    ----------
    decision_scores_
        Shape (n,), in the order of the rows: the scores by which the rows of fit are judged;
        ``nan`` where a row holds a value that is not finite.
    labels_
        Shape (n,): 0, 1 or -2 for every row of fit.
    reference_scores_
        Shape (m,), sorted: the scores that new ones are ranked among.
    band_
        The :class:`~rejex_stream.rejection.RejectionBand`; feed it to
        :mod:`rejex_stream.rejection.bounds`.
    threshold_
        λ, the r-th largest reference score.
    n_features_in_, feature_names_in_
        Columns seen by fit, and their names where X had any.

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
    [0, -2, 1]
    >>> model.band_.width / (model.band_.n + 1) < 0.05
    True
    """

    def __init__(
        self,
        detector: Any = DEFAULT,  # noqa: ANN401 - anything as_detector takes
        contamination: float = CONTAMINATION,
        tolerance: float | None = None,
        *,
        rate: float | None = None,
        params: Mapping[str, Any] | None = None,
        calibration: Literal["training", "holdout"] = "training",
        ties: Literal["mid", "paper"] = "mid",
        seed: int = 0,
    ) -> None:
        self.detector = detector
        self.contamination = contamination
        self.tolerance = tolerance
        self.rate = rate
        self.params = params
        self.calibration = calibration
        self.ties = ties
        self.seed = seed

    def fit(self, X: npt.ArrayLike, y: object = None) -> RejectingDetector:
        """Fit on X of shape (n, d) and find the rejection band.

        Rows that hold a value that is not finite are left out, with a warning, and are rejected.
        Warns where the band leaves no rank for a label, since then that label is never given.

        Raises
        ------
        ConfigError
            If an argument cannot be, or n γ < 1.
        DetectorError
            If the detector cannot be fitted on X.
        """
        rows = self._rows(X, reset=True, ensure_min_samples=2)
        recipe = as_detector(self.detector, self.params)
        if not isinstance(recipe, BatchDetector):
            raise ConfigError(
                f"{recipe.name} learns one row at a time: use rejex_stream.Pipeline, or a "
                "detector that is fitted on a table."
            )
        names = getattr(self, "feature_names_in_", None)
        if names is not None and hasattr(recipe, "for_features"):
            recipe = recipe.for_features(FeatureSpec(tuple(names)))
        if self.calibration not in ("training", "holdout"):
            raise ConfigError(
                f"calibration = {self.calibration!r} is unknown: use 'training' or 'holdout'."
            )
        tolerance = TOLERANCE if self.tolerance is None and self.rate is None else self.tolerance
        policy = RejectionPolicy(self.contamination, tolerance, self.rate, self.ties)
        readable = np.isfinite(rows).all(axis=1)
        if not readable.all():
            warnings.warn(
                f"{np.count_nonzero(~readable):,} of {len(rows):,} rows hold a value that is not "
                "finite: they are left out of the fit, and rejected.",
                stacklevel=2,
            )
        learnt = rows[readable]
        fitted = FitJob(recipe, learnt, self.seed, self.calibration, HOLDOUT_SHARE)()
        scores = fitted.calibration_scores
        self.scorer_ = fitted.scorer
        self.reference_scores_: FloatArray = np.sort(scores[np.isfinite(scores)])
        self.band_: RejectionBand = policy.band(len(self.reference_scores_))
        self.threshold_ = float(self.reference_scores_[-self.band_.n_anomalies])
        if self._says_nothing(np.zeros(1)).all():
            warnings.warn(
                f"every score of {recipe.name} on these rows is {self.threshold_:g}: it tells no "
                "row from another, and all are rejected. Scale the values (1e-300 is 0 to many), "
                "or take another detector.",
                stacklevel=2,
            )
        if self.calibration == "holdout":
            trained = learnt[: len(learnt) - len(scores)]
            own = getattr(fitted.scorer, "training_scores", None)
            scores = np.append(fitted.scorer.score(trained) if own is None else own, scores)
        self.decision_scores_: FloatArray = np.full(len(rows), np.nan)
        self.decision_scores_[readable] = scores
        self.labels_: npt.NDArray[np.int64] = self._labels(self.decision_scores_)
        try:
            require_reachable(self.band_)
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=2)
        return self

    def fit_predict(self, X: npt.ArrayLike, y: object = None) -> npt.NDArray[np.int64]:
        """Fit on X of shape (n, d) and return `labels_`, shape (n,)."""
        return self.fit(X, y).labels_

    def decision_function(self, X: npt.ArrayLike) -> FloatArray:
        """Return the scores of X of shape (m, d), shape (m,), high = anomalous.

        A row that holds a value that is not finite scores ``nan``.

        Raises
        ------
        ValueError
            If X has other columns than the table of fit, or the same in another order.
        """
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        readable = np.isfinite(rows).all(axis=1)
        if readable.all():
            return self.scorer_.score(rows)
        scores = np.full(len(rows), np.nan)
        if readable.any():
            scores[readable] = self.scorer_.score(rows[readable])
        return scores

    def rank(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the rank K of every row of X among the reference scores, shape (m,)."""
        return self._rank(self.decision_function(X))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return 0 (normal), 1 (anomaly) or -2 (rejected) for every row of X, shape (m,).

        A score that is not finite is rejected. O(log n) per row besides the detector.
        """
        return self._labels(self.decision_function(X))

    def predict_proba(self, X: npt.ArrayLike) -> FloatArray:
        """Return how probable each label is under re-drawn training data, shape (m, 2).

        The columns are normal and anomaly, as in PyOD; but where PyOD scales scores, this is the
        stability of the label [1]_ (Perini, Vercruyssen, Davis: ECML-PKDD 2020), which the band is
        made of. One half each where a score says nothing.
        """
        scores = self.decision_function(X)
        at = stability(self._rank(scores), self.band_.n, self.contamination)
        p_anomaly = np.where(self._says_nothing(scores), 0.5, at.p_anomaly)
        return np.column_stack([1.0 - p_anomaly, p_anomaly])

    def predict_confidence(self, X: npt.ArrayLike) -> FloatArray:
        """Return the probability of the likelier label for every row of X, in [1/2, 1], shape (m,).

        For an accepted row it is PyOD's ``predict_confidence``.
        """
        return (1.0 + self.confidence(X)) / 2.0

    def confidence(self, X: npt.ArrayLike) -> FloatArray:
        """Return ``|2 P - 1|`` in [0, 1] for every row of X, shape (m,), as verdicts hold it.

        P is the probability of an anomaly, see :meth:`predict_proba`.
        """
        scores = self.decision_function(X)
        at = stability(self._rank(scores), self.band_.n, self.contamination)
        return np.where(self._says_nothing(scores), 0.0, at.confidence)

    def plot(self, X: npt.ArrayLike | None = None, ax: Axes | None = None) -> Axes:
        """Draw the scores of X, or of the rows of fit, with their verdicts, λ and the band.

        Parameters
        ----------
        X
            Rows of shape (m, d), in the order in which they should stand.
        ax
            Where to draw; new axes by default. Needs matplotlib.
        """
        check_is_fitted(self)
        scores = self.decision_scores_ if X is None else self.decision_function(X)
        kinds = {0: "normal", 1: "anomaly", REJECTED: "rejected"}
        verdicts = [kinds[code] for code in self._labels(scores).tolist()]
        return _draw(scores, verdicts, self.reference_scores_, self.band_, ax)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn is untyped
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _rows(self, X: npt.ArrayLike, **how: Any) -> FloatArray:  # noqa: ANN401
        table: Any = X  # pyarrow's `columns` are the values
        columns = getattr(X, "column_names", getattr(X, "columns", ()))
        for name in columns:  # a time would be read as a count that only rises
            first = np.asarray(table[name][:1])
            if first.dtype.kind in "mM" and first.size:
                raise _no_number(name, str(first.ravel()[0]))
        try:
            rows: FloatArray = validate_data(
                self, X, dtype=np.float64, ensure_all_finite=False, **how
            )
        except (TypeError, ValueError):
            for name in columns:
                _require_numbers(name, np.asarray(table[name]).tolist())
            raise
        return rows

    def _rank(self, scores: FloatArray) -> npt.NDArray[np.int64]:
        at_or_below = np.searchsorted(self.reference_scores_, scores, side="right")
        if self.ties == "paper":
            return at_or_below
        return (np.searchsorted(self.reference_scores_, scores, side="left") + at_or_below) // 2

    def _says_nothing(self, scores: FloatArray) -> npt.NDArray[np.bool_]:
        if self.ties == "mid" and self.reference_scores_[0] == self.reference_scores_[-1]:
            return np.ones(len(scores), dtype=bool)  # one repeated score holds no information
        return ~np.isfinite(scores)

    def _labels(self, scores: FloatArray) -> npt.NDArray[np.int64]:
        labels: npt.NDArray[np.int64] = _CODES[self.band_.cells(self._rank(scores))]
        labels[self._says_nothing(scores)] = REJECTED
        return labels


def _require_numbers(name: object, values: Iterable[object]) -> None:
    for value in values:
        try:
            np.float64(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise _no_number(name, value) from None


def _no_number(name: object, value: object) -> ConfigError:
    return ConfigError(
        f"{name} is {value!r}: expected a number or nan. Leave {name} out, or make a number of it "
        "first: 1.0 of 'on', the seconds of a time."
    )


# ---------------------------------------------------------------------------- pictures
# Colour and shape both tell the verdicts apart: a quarter of the readers of print sees no colour.
_MARKS = {  # colour, shape, size
    "normal": ("#8a8f98", ".", 12),
    "rejected": ("#d98200", "D", 18),
    "anomaly": ("#c2262d", "^", 28),
}


def _draw(
    scores: FloatArray,
    verdicts: Sequence[str],
    reference: FloatArray,
    band: RejectionBand,
    ax: Axes | None,
) -> Axes:
    """Draw scores in their order, each with its verdict, on top of the band of ranks.

    A score that is not finite is counted in the legend alone.
    """
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigError(
                "plot() needs matplotlib, which is not installed: pip install matplotlib."
            ) from None
        ax = pyplot.figure(figsize=(9, 3.2), layout="constrained").add_subplot()
    places = np.clip(np.array(band.edges) - 1, 0, len(reference) - 1)
    low, threshold, high = reference[places].tolist()
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
    ax.set(xlabel="row", ylabel="score", xlim=(-0.5, max(len(scores), 1) - 0.5))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return ax
