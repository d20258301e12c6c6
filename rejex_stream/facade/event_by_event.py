"""A detector that learns event by event and may abstain: River's conventions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from river.base.anomaly_detector import AnomalyDetector

from rejex_stream.detectors import as_detector
from rejex_stream.errors import ConfigError
from rejex_stream.facade.batch import draw, require_numbers
from rejex_stream.protocols import IncrementalDetector, IncrementalScorer
from rejex_stream.rejection.exceed import stability_table
from rejex_stream.rejection.policy import CONTAMINATION, TOLERANCE, WINDOW, RejectionPolicy
from rejex_stream.rejection.window import ScoreWindow, mid_rank
from rejex_stream.types import FloatArray, Label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["RejectingStream"]


class RejectingStream(AnomalyDetector):
    """An incremental anomaly detector that can abstain, with River's conventions.

    Parameters
    ----------
    detector
        A registry name (``"HalfSpaceTrees"``), a River anomaly detector or a pipeline that ends
        in one, or a dotted name.
    contamination, tolerance, rate, params
        As in :class:`~rejex_stream.facade.RejectingDetector`.
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
        contamination: float = CONTAMINATION,
        tolerance: float | None = None,
        *,
        rate: float | None = None,
        params: Mapping[str, Any] | None = None,
        window: int = WINDOW,
        seed: int = 0,
    ) -> None:
        self.detector = detector
        self.contamination = contamination
        self.tolerance = tolerance
        self.rate = rate
        self.params = params
        self.window = window
        self.seed = seed
        recipe = as_detector(detector, params)
        if not isinstance(recipe, IncrementalDetector):
            raise ConfigError(
                f"{recipe.name} is fitted on a table: use RejectingDetector, or a detector that "
                "learns one row at a time."
            )
        self._recipe: IncrementalDetector = recipe
        paper = tolerance is None and rate is None
        self._policy = RejectionPolicy(contamination, TOLERANCE if paper else tolerance, rate)
        self._policy.require(window)
        self._scores = ScoreWindow(window)
        self._scorer: IncrementalScorer | None = None
        self._names: tuple[Hashable, ...] = ()
        self._learnt = 0

    def learn_one(self, x: dict[Hashable, Any]) -> None:
        """Score x, add the score to the window, then learn x."""
        row = self._row(x)
        assert self._scorer is not None  # made by _row
        score = self._scorer.score_one(row)
        self._scorer.learn_one(row)
        self._learnt += 1
        if self._learnt > self._recipe.warm_up_events and score - score == 0.0:
            self._scores.push(score)

    def learn_many(self, X: Any) -> None:  # noqa: ANN401 - a table of any library
        """Learn the rows of a table in their order, as `learn_one` would one by one.

        Parameters
        ----------
        X
            A table of pandas, polars or pyarrow, a mapping of columns, or dicts.

        Examples
        --------
        >>> model = RejectingStream("GaussianScorer", contamination=0.1, tolerance=4, window=200)
        >>> model.learn_many({"flow": [99.0, 100.0, 101.0] * 100})
        >>> model.predict_one({"flow": 400.0})
        'anomaly'
        """
        for x in _events(X):
            self.learn_one(x)

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

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the window's scores with the verdicts that each would get now, λ and the band.

        Parameters
        ----------
        ax
            Where to draw; new axes by default. Needs matplotlib.
        """
        n = len(self._scores)
        if n < self._policy.first_window:
            raise ConfigError(
                f"There are {n} scores yet, and no band below {self._policy.first_window}: learn "
                "more events before you plot."
            )
        scores, band = np.array(self._scores.scores()), self._policy.band(n)
        verdicts = [
            str(Label.REJECTED if self._scores.is_constant else band.label(mid_rank(*ranks)))
            for ranks in map(self._scores.rank, scores.tolist())
        ]
        return draw(scores, verdicts, np.sort(scores), band, along="event of the window", ax=ax)

    def _row(self, x: dict[Hashable, Any]) -> FloatArray:
        if self._scorer is not None and len(x) > len(self._names):
            new = next(name for name in x if name not in self._names)
            raise ConfigError(
                f"The event has a feature {new!r} that the first one had not, which had "
                f"{', '.join(map(str, self._names))}: give the same features every time, one "
                "without a value as nan, or let river.compose.Select choose them."
            )
        names = self._names if self._scorer is not None else tuple(x)
        try:
            row = np.array([x[name] for name in names], dtype=np.float64)
        except KeyError as error:
            raise ConfigError(
                f"The event has no feature {error.args[0]!r}; the first one had "
                f"{', '.join(map(str, names))}: give the same features every time, one without a "
                "value as nan."
            ) from None
        except (TypeError, ValueError):
            for name in names:
                require_numbers(name, [x[name]])
            raise
        if self._scorer is None:
            self._names = names
            self._scorer = self._recipe.start([str(name) for name in names], seed=self.seed)
        return row


def _events(X: Any) -> Iterable[dict[Hashable, Any]]:  # noqa: ANN401
    names = list(X) if isinstance(X, Mapping) else getattr(X, "columns", None)
    columns = getattr(X, "column_names", names)  # pyarrow's `columns` are the values
    if columns is None:
        return map(dict, X)
    rows = zip(*(np.asarray(X[name]).tolist() for name in columns), strict=True)
    return (dict(zip(columns, row, strict=True)) for row in rows)
