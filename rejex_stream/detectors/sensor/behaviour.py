"""What the operating channels explain of all others, and how far a row is from that.

A bearing's temperature says little by itself: it is high where load and wind are. What a model of
normal behaviour leaves of it is small as long as nothing is wrong, and a slow fault stands in that
remainder for weeks before it stands in the temperature.

A. Zaher, S. D. J. McArthur, D. G. Infield, Y. Patel: *Online wind turbine fault detection through
automated SCADA data analysis*. Wind Energy 12, 2009. M. Schlechtingen, I. F. Santos: *Comparative
analysis of neural network and regression based condition monitoring approaches for wind turbine
fault detection*. Mechanical Systems and Signal Processing 25, 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, ClassVar, Self

import numpy as np

from rejex_stream.detectors.rowwise import affine, row_sum
from rejex_stream.detectors.sensor.distance import Distance, SoftScale, fit_distance, fit_scale
from rejex_stream.detectors.sensor.recipes import Index, Layout, SensorRecipe
from rejex_stream.errors import ConfigError
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.protocols import Scorer
from rejex_stream.types import FloatArray

_FOLDS = 5
_MAX_DEGREE = 3
_MIN_SMOOTH = 2  # of one event there is no deviation
_PURGED = 10  # at most this part of the rows is left out beside a fold


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A linear model of products of columns.

    Beyond the rows it was fitted on only single columns go on: half a degree more of air is half a
    degree more of oil, but the parabola through a power curve is nonsense a little further on.
    """

    low: FloatArray  # where the rows it was fitted on lay; shape (p,)
    high: FloatArray
    terms: tuple[tuple[int, ...], ...]  # the columns that each term multiplies
    weights: FloatArray  # shapes (len(terms), t) and (t,)
    offset: FloatArray
    # of the terms, and what makes their distance from it the variance of a forecast, in those of
    # the remainder; shapes (len(terms),) and (len(terms), len(terms))
    middle: FloatArray
    root: FloatArray

    def remainder(self, now: FloatArray, given: FloatArray) -> FloatArray:
        """Return what is left, as a share of how sure a forecast is; O(len(terms)²) a row."""
        products = _products(given, np.clip(given, self.low, self.high), self.terms)
        left = now - affine(products, self.weights, self.offset)
        products -= self.middle
        unsure = affine(products, self.root, np.zeros(len(self.terms)))
        unsure *= unsure
        sure: FloatArray = left / np.sqrt(1.0 + row_sum(unsure))[:, None]
        return sure


@dataclass(frozen=True, slots=True)
class Remainder:
    """Scores what is left of the targets."""

    which: Index  # targets, then the columns that explain them
    scale: SoftScale  # of these columns
    expected: Polynomial | None  # the model; ``None`` where no column explains another
    inner: Distance  # scores the remainder

    def score(self, X: FloatArray) -> FloatArray:
        Z = self.scale.apply(X.take(self.which, axis=1))
        targets = len(self.inner.mean)
        left = Z[:, :targets]
        if self.expected is not None:
            left = self.expected.remainder(left, np.ascontiguousarray(Z[:, targets:]))
        return self.inner.score(left)


@dataclass(frozen=True)
class NormalBehaviour(SensorRecipe):
    """Distance of all other channels from what the operating channels make one expect of them.

    Raises
    ------
    ConfigError
        If `operating` names no channel, one that is not there, or all of them.

    Notes
    -----
    What a model leaves of the rows it was fitted on is too little, the more so the better it bends.
    The distance is therefore measured on rows that it was not fitted on: five stretches in a row,
    without the rows next to them that share events with them. Six fits, O(n (t + p²)²) each for
    ridge of degree 2. In a table whose columns nobody named, the first so many are the operating
    ones.

    Examples
    --------
    >>> wind = np.random.default_rng(0).uniform(0, 1, (500, 1))
    >>> X = np.hstack([wind, 60 * wind**2 + np.random.default_rng(1).normal(size=(500, 1))])
    >>> scorer = NormalBehaviour(operating=("wind",)).fit(X, seed=0)
    >>> windy, calm = scorer.score(np.array([[1.0, 60.0], [0.2, 60.0]]))
    >>> bool(windy < 9 < 100 < calm)
    True
    """

    least_rows: ClassVar[int] = 20
    name: str = "rejex:NormalBehaviour"
    operating: tuple[str, ...] = ()
    """Names of the channels that drive the others: wind, load, speed, the weather."""
    degree: int = 2
    """Of the polynomial that explains them (ridge regression), 1 to 3."""
    smooth_events: int = 72
    """Where a pipeline names no columns: rows are means over so many events (72 of ten minutes are
    twelve hours), with what the operating channels did within them. So the remainder is smoothed,
    and a sudden fault is seen later than by other detectors."""
    explaining: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.operating, str) or not self.operating:
            raise ConfigError(
                f"operating = {self.operating!r} names no channel: {self.name} needs a list of "
                "those that drive the others, e.g. ['wind', 'power']."
            )
        object.__setattr__(self, "operating", tuple(self.operating))  # a config has lists
        for key, lowest, highest in (
            ("degree", 1, _MAX_DEGREE),
            ("smooth_events", _MIN_SMOOTH, None),
        ):
            value = getattr(self, key)
            if (
                type(value) is not int
                or value < lowest
                or (highest is not None and value > highest)
            ):
                reach = f"from {lowest} to {highest}" if highest else f"of at least {lowest}"
                raise ConfigError(f"{key} = {value!r} of {self.name}: give a whole number {reach}.")

    def columns_of(self, channels: Sequence[str]) -> tuple[Feature, ...]:
        """Return the columns it wants where a pipeline names none.

        What is warm now was heated before the span began: a heat that lags makes a difference in
        proportion to how much its cause changed over the span. And the mean of a square is known
        by mean and deviation: a mean of gusts is not the mean of a steady wind.
        """
        self._check(channels)
        means = tuple(Feature("mean", channel, self.smooth_events) for channel in channels)
        within = (
            Feature(kind, channel, self.smooth_events)
            for kind in ("difference", "std")
            for channel in self.operating
        )
        return (*means, *within)

    def for_features(self, spec: FeatureSpec) -> Self:
        """Return the recipe for rows of these features."""
        self._check(spec.channels)
        numbers = tuple(sorted(spec.channels.index(name) for name in self.operating))
        made = replace(self, layout=Layout.of(spec), explaining=numbers)
        if not set(made.layout.channels) - {-1, *numbers}:  # type: ignore[union-attr] # just made
            raise ConfigError(
                f"Every column is made of an operating channel ({', '.join(self.operating)}): "
                f"{self.name} has nothing to explain; add columns of another channel."
            )
        return made

    def _check(self, channels: Sequence[str]) -> None:
        unknown = [name for name in self.operating if name not in channels]
        if unknown:
            raise ConfigError(
                f"operating names {unknown[0]!r}, which is no channel: use some of "
                f"{', '.join(channels)}."
            )
        if not set(channels) - set(self.operating):
            raise ConfigError(
                f"operating names every channel ({', '.join(channels)}): leave those out that "
                "should be explained by the others."
            )

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        channels = np.array(layout.channels)
        numbers = self.explaining
        if numbers is None:  # nobody named the columns: the first ones, and one is left
            numbers = tuple(range(min(len(self.operating), X.shape[1] - 1)))
        explains = np.isin(channels, numbers) | (channels < 0)
        targets, given = np.flatnonzero(measured & ~explains), np.flatnonzero(explains)
        if not len(targets):  # those that are to be explained are switches, one and all
            targets = np.flatnonzero(~explains)
        which = np.concatenate((targets, given))
        scale = fit_scale(X[:, which])
        Z = scale.apply(X[:, which])
        now, causes = Z[:, : len(targets)], np.ascontiguousarray(Z[:, len(targets) :])
        if not len(given):
            return Remainder(which, scale, None, fit_distance(now))
        left = np.empty_like(now)
        # Rows that share events tell less than their number: as much as one in `smooth_events`.
        how = self.degree, float(self.smooth_events)
        for fold, others in _folds(len(X), self.smooth_events):
            model = _fit_polynomial(now[others], causes[others], *how)
            left[fold] = model.remainder(now[fold], causes[fold])
        return Remainder(which, scale, _fit_polynomial(now, causes, *how), fit_distance(left))


def _folds(n: int, smooth_events: int) -> list[tuple[Index, Index]]:
    """Return stretches of rows, and for each the others without its neighbours."""
    purged, rows = min(smooth_events, n // _PURGED), np.arange(n)
    return [
        (fold, rows[(rows < fold[0] - purged) | (rows > fold[-1] + purged)])
        for fold in np.array_split(rows, _FOLDS)
    ]


def _products(Z: FloatArray, known: FloatArray, terms: Sequence[tuple[int, ...]]) -> FloatArray:
    """Return the terms of rows Z of shape (m, p), those of several columns from rows `known`."""
    # A product at a time, so that no batch changes a bit.
    made = np.empty((len(Z), len(terms)))
    for j, (first, *others) in enumerate(terms):
        made[:, j] = known[:, first] if others else Z[:, first]
        for column in others:
            made[:, j] *= known[:, column]
    return made


def _fit_polynomial(now: FloatArray, given: FloatArray, degree: int, ridge: float) -> Polynomial:
    columns = range(given.shape[1])
    terms = tuple(
        term
        for power in range(1, degree + 1)
        for term in combinations_with_replacement(columns, power)
    )
    products = _products(given, given, terms)
    middle, mean = products.mean(axis=0), now.mean(axis=0)
    products -= middle
    gram = products.T @ products + ridge * np.eye(len(terms))
    weights = np.linalg.solve(gram, products.T @ (now - mean))
    low, high = given.min(axis=0), given.max(axis=0)
    # Variance of a forecast in those of the remainder: x' (X'X / repeats + I)⁻¹ x.
    values, vectors = np.linalg.eigh(gram / ridge)
    return Polynomial(
        low, high, terms, np.ascontiguousarray(weights), mean - middle @ weights, middle,
        np.ascontiguousarray(vectors / np.sqrt(values)),
    )  # fmt: skip
