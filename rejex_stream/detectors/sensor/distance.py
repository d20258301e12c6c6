"""The Mahalanobis distance by a shrunk covariance, for rows whose columns differ in unit.

O. Ledoit, M. Wolf: *A well-conditioned estimator for large-dimensional covariance matrices*.
Journal of Multivariate Analysis 88, 2004; scikit-learn's implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.rowwise import affine, one_by_one, row_sum
from rejex_stream.types import ColumnGroups, FloatArray

_LINEAR = 30.0
"""Deviations up to which a column counts in full; beyond, its logarithm is added, so that one wild
column orders events and drowns nothing."""
_TAIL, _RARE = 0.98, 0.995
_WILD = 6.0  # errors of a forecast beyond it count by their logarithm: sensors jump
_QUIET = 0.02
"""Share of its median that is added to a standard deviation before its logarithm is taken: what is
fifty times quieter than usual counts as silent."""
_FLOOR = 1e-9
"""Least eigenvalue, as a share of the largest."""
_MIN_ERROR = 1e-6
"""Least variance of a forecast's error, as a share of that of the changes it forecasts."""
_RIDGE = 1.0
_SAFE = 300.0
"""Size of the logarithm of a deviation up to which no sum of squares overflows or loses digits."""
_FOLDS = 5  # so that what is fitted without one has seen nearly as many rows as what speaks
_STRETCHES = 8
"""Of which each fold is made, so that no regime of a stream lies in one fold alone: its rows would
be absurd to what has not seen it, and a second distance would be put on their scale."""
_NARROW = 0.5  # deviations that are left of a channel given the others, where these explain it
_LIKELY = 1.96
_ENOUGH = 200  # rows by which a median is known nearly
_MIN_ROWS = 10  # rows by which a mean excess is known
_MAX_KNOWN = 8
_SURELY = 1e-9  # more than a sum, a logarithm and an exponential are rounded by
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SoftScale:
    """Standard scores that grow like a logarithm where they are absurd."""

    centre: FloatArray  # mean and standard deviation of each column; shape (d,)
    spread: FloatArray

    def apply(self, X: FloatArray) -> FloatArray:
        """Scale finite rows X of shape (m, d)."""
        Z: FloatArray = X - self.centre
        Z /= self.spread
        if not -_LINEAR <= Z.min(initial=0.0) <= Z.max(initial=0.0) <= _LINEAR:
            size = np.abs(Z)
            beyond = np.log1p(np.maximum(size - _LINEAR, 0.0))
            Z = np.sign(Z) * (np.minimum(size, _LINEAR) + np.minimum(beyond, _LINEAR))
        return Z

    def apply_row(self, x: FloatArray) -> FloatArray:
        """Scale one row, bit for bit as :meth:`apply` does, in fewer calls."""
        z: FloatArray = x - self.centre
        z /= self.spread
        # Else no column is beyond it, however that is added.
        return z if z.dot(z) < _LINEAR * _LINEAR else self.apply(x)


@dataclass(frozen=True, slots=True)
class Distance:
    """Squared distance from the mean of the training rows."""

    scale: SoftScale  # puts columns on one scale
    mean: FloatArray  # mean of the scaled rows; shape (d,)
    root: FloatArray  # whitens a scaled row; shape (d, d)
    shrunk: tuple[float, float] = (0.0, 0.0)  # by which share, and to what variance times that
    # the distance of the columns that are there, by which they are, and along what a whitened row
    # is apart for groups of columns
    _known: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def plain(self) -> Distance:
        """Itself, as of :class:`MaxDistance`."""
        return self

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d²) a row."""
        white = self.turned(X, self.root)
        white *= white
        return row_sum(white)

    def score_row(self, x: FloatArray) -> float:
        """Score one finite row of shape (d,) as :meth:`score` does, bit for bit."""
        white = self.turned_row(x, self.root)
        white *= white
        return float(white.cumsum()[-1])

    def turned(self, X: FloatArray, root: FloatArray) -> FloatArray:
        """Return scaled and centred rows times a matrix of shape (d, k)."""
        if len(X) == 1 < root.shape[1]:
            return self.turned_row(X[0], root)[None]
        centred = self.scale.apply(X)
        centred -= self.mean
        return affine(centred, root, np.zeros(root.shape[1]))

    def turned_row(self, x: FloatArray, root: FloatArray) -> FloatArray:
        """Return the same of one row as :meth:`turned` does, bit for bit."""
        z = self.scale.apply_row(x)
        z -= self.mean
        # Along the slow axis numpy adds one row after the other, as `affine` does.
        turned: FloatArray = np.add.reduce(z[:, None] * root)
        return turned

    def score_without(self, X: FloatArray, groups: ColumnGroups, of: int = 0) -> FloatArray:
        """Score rows X of shape (m, d) by the columns that are there, without a group; (m, g).

        All rows lack the same columns (nan), or none; an empty group takes away nothing. It is the
        distance of the marginal distribution, a sum of as many squares as there are columns, put on
        the scale of all (or `of` so many) of them by Wilson's and Hilferty's cube root [1]_, under
        which such sums are nearly normal. A group adds to a distance what lies along its own rows
        of the root: the square of its residual given all others [2]_. O(d²) a row, O(d³) for the
        first of those that lack these columns.

        References
        ----------
        .. [1] E. B. Wilson, M. M. Hilferty: *The distribution of chi-square*. Proceedings of the
           National Academy of Sciences 17, 1931.
        .. [2] R. Mason, N. Tracy, J. Young: *Decomposition of T² for multivariate control chart
           interpretation*. Journal of Quality Technology 27, 1995.
        """
        of, there = of or X.shape[1], np.isfinite(X[0])
        if not there.all():
            part = once(self._known, there.tobytes(), lambda: self.marginal(there))
            place = there.cumsum() - 1
            return part.score_without(X[:, there], [place[g[there[g]]] for g in groups], of)
        key = b"|".join(map(bytes, groups))
        joint, whose, left = once(self._known, key, lambda: self._apart(groups))
        squares = self.turned(X, joint)
        squares *= squares
        sums = np.maximum(affine(squares, whose, np.zeros(len(left))), 0.0).tolist()
        return np.array([[*map(_rescaled_sum, row, left, repeat(of))] for row in sums])

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Return what all other columns make one expect of the first of each group, (m, g, 3).

        The value, and the ends of the range of nineteen in twenty, for rows X of shape (m, d); nan
        where that is not half as wide as without the others, and in rows that are not whole. It is
        the first column less its residual [2]_ (:meth:`score_without`). O(d g) a row.
        """
        key = b"given" + b"|".join(map(bytes, groups))
        firsts, along, sure = once(self._known, key, lambda: self._others_explain(groups))
        Z = self.scale.apply(X)
        value = Z[:, firsts] - affine(Z - self.mean, along, np.zeros(len(groups)))
        ends = np.stack([value, value - sure, value + sure], axis=2)
        made: FloatArray = ends * self.scale.spread[firsts, None] + self.scale.centre[firsts, None]
        return made

    def _others_explain(self, groups: ColumnGroups) -> tuple[Any, FloatArray, FloatArray]:
        """Return the first columns, their residuals along a centred row, and how far these go."""
        rows = [self.root[group] for group in groups]
        white = np.array([np.linalg.solve(of @ of.T, np.eye(len(of))[0]) @ of for of in rows]).T
        along = np.ascontiguousarray(self.root @ white)
        # What a shrunk covariance makes of a small variance is too much of it.
        share, added = self.shrunk
        variances = (white * white).sum(axis=0) - added * (along * along).sum(axis=0)
        # Where nothing is left of how they go together, none explains another.
        deviations = np.sqrt(np.maximum(variances, 0.0) / (1.0 - share) if share < 1.0 else 1.0)
        sure = np.where(deviations <= _NARROW, _LIKELY * deviations, np.nan)
        return [group[0] for group in groups], along, sure

    def _apart(self, groups: ColumnGroups) -> tuple[FloatArray, FloatArray, list[int]]:
        """Return what whitens a row, all of it and apart for groups, and what of that each leaves.

        As signs of squares, shape (d + all of groups, g), and as a number of columns.
        """
        along = [self.root @ np.linalg.qr(self.root[group].T)[0] for group in groups]
        taken = np.repeat(np.eye(len(groups)), [*map(len, groups)], axis=0)
        whose = np.vstack([np.ones((len(self.mean), len(groups))), -taken])
        left = [len(self.mean) - len(group) for group in groups]
        return np.ascontiguousarray(np.hstack([self.root, *along])), whose, left

    def marginal(self, there: npt.NDArray[np.bool_]) -> Distance:
        """Return the distance of the columns that are there."""
        unwhitened = np.linalg.inv(self.root)[:, there]
        values, vectors = np.linalg.eigh(unwhitened.T @ unwhitened)
        root = vectors / np.sqrt(np.maximum(values, _FLOOR * values[-1]))
        scale = SoftScale(self.scale.centre[there], self.scale.spread[there])
        return Distance(scale, self.mean[there], np.ascontiguousarray(root))


def once(
    known: dict[bytes, Any], key: bytes, make: Callable[[], _T], max_known: int = _MAX_KNOWN
) -> _T:
    """Return what is known under a key, made where it is not; the newest few are kept."""
    if key not in known:
        if len(known) >= max_known:
            del known[next(iter(known))]
        known[key] = make()
    value: _T = known[key]
    return value


def _rescaled_sum(squares: float, n: int, of: int) -> float:
    """Return the sum of `of` squares of normal deviates that is as rare as that of `n`."""
    if n in (0, of):
        return squares if n else 0.0
    few, all_ = 2.0 / (9.0 * n), 2.0 / (9.0 * of)
    deviate = (math.cbrt(squares / n) - (1.0 - few)) / math.sqrt(few)
    return float(of * max(0.0, 1.0 - all_ + deviate * math.sqrt(all_)) ** 3)


class Steps(NamedTuple):
    """Which sums of columns are a channel's last change, and which know only what was before it."""

    changes: FloatArray  # weights, shape (d, c)
    before: FloatArray  # shape (d, p)


class Knots(NamedTuple):
    """What puts a second distance on the scale of the first, so that each is rare by its own.

    By the median, a high quantile and the mean excess above it that either has among training rows
    that it was not fitted on: the .98 quantile, but for a second one that is to cost the first
    little, which has to be rarer.
    """

    middle: float
    start: float
    middle_second: float
    start_second: float
    slope: float
    slope_beyond: float

    @classmethod
    def of(cls, first: FloatArray, second: FloatArray, rare: float = _TAIL) -> Self:
        """Return them, of scores of shape (n,) of either."""
        middle, start, excess = _tail(first, _TAIL)
        of_middle, of_start, of_excess = _tail(second, rare)
        least = 1e-12 * max(1.0, of_start)
        slope = (start - middle) / max(of_start - of_middle, least)
        return cls(middle, start, of_middle, of_start, slope, excess / max(of_excess, least))

    def rescaled(self, second: FloatArray | float) -> FloatArray:
        """Return scores of the second distance as the first would give them."""
        below = self.middle + (second - self.middle_second) * self.slope
        beyond = self.start + (second - self.start_second) * self.slope_beyond
        return np.where(second < self.start_second, below, beyond)


@dataclass(frozen=True, slots=True)
class LowVarianceDistance:
    """The distance with standard deviations as logarithms, for rows in which one is low.

    A standard deviation ends at 0, so that no signal can be so quiet that it is far away; its
    logarithm has no such end. It counts only where some standard deviation is lower than in nearly
    all training rows: a loud row is far by this distance too, on a scale made for quiet ones.
    """

    inner: Distance
    logs: npt.NDArray[np.intp]  # which columns are taken as logarithms
    floors: FloatArray  # what is added to them before that, shape (k,)
    usual: FloatArray  # the logarithms below which one is quiet: their .02 quantile, shape (k,)
    knots: Knots
    # standard deviations from which on no rounding makes a logarithm quiet
    near: FloatArray = field(init=False, repr=False, compare=False)
    # which logarithms are left without each of some groups, by these
    _known: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        near = np.exp(self.usual) * (1.0 + _SURELY) - self.floors
        object.__setattr__(self, "near", near)

    def max_with(self, scores: FloatArray, X: FloatArray) -> FloatArray:
        """Return the larger of some scores and its own of rows X of shape (m, d)."""
        low = np.flatnonzero((X[:, self.logs] < self.near).any(axis=1))
        if not len(low):
            return scores
        Y = _with_logarithms(X[low], self.logs, self.floors)
        quiet = (Y[:, self.logs] < self.usual).any(axis=1)
        if quiet.any():
            still = low[quiet]
            own = self.knots.rescaled(self.inner.score(Y[quiet]))
            scores[still] = np.maximum(scores[still], own)
        return scores

    def max_with_row(self, score: float, x: FloatArray) -> float:
        if not (x[self.logs] < self.near).any():
            return score
        y = _with_logarithms(x, self.logs, self.floors)
        if not (y[self.logs] < self.usual).any():
            return score
        return max(score, float(self.knots.rescaled(self.inner.score(y[None])[0])))

    def max_without(self, scores: FloatArray, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Return the same of scores without each group, (m, g), where a column left is quiet."""
        low = np.flatnonzero((X[:, self.logs] < self.near).any(axis=1))  # nan is not
        if not len(low):
            return scores
        Y = _with_logarithms(X[low], self.logs, self.floors)
        quiet = Y[:, self.logs] < self.usual
        key = b"|".join(map(bytes, groups))
        left = once(self._known, key, lambda: ~np.array([np.isin(self.logs, g) for g in groups]))
        counts = (quiet[:, None] & left).any(axis=2)
        if counts.any():
            own = self.knots.rescaled(self.inner.score_without(Y, groups))
            scores[low] = np.where(counts, np.maximum(scores[low], own), scores[low])
        return scores


@dataclass(frozen=True, slots=True)
class PredictionErrorDistance:
    """The largest error of a forecast of one step, squared, in those it usually has.

    Each channel's change is forecast by ridge from what was before it, in all channels; its error
    is what the errors of the others do not explain (a column of the inverse covariance, scaled to a
    variance of 1). Among the d columns of a distance one such error is lost where a stream is
    autocorrelated, and so is one channel among many. It counts beyond its .995 quantile.
    """

    root: FloatArray  # of a scaled row that the plain distance has centred; shape (d, c)
    knots: Knots | None = None

    def squared(self, errors: FloatArray) -> FloatArray:
        """Return the score of errors of shape (m, c)."""
        size = np.abs(errors)
        if size.max(initial=0.0) > _WILD:
            size = np.minimum(size, _WILD) + np.log1p(np.maximum(size - _WILD, 0.0))
        largest: FloatArray = size.max(axis=-1)
        return largest * largest

    def max_with(self, scores: FloatArray, errors: FloatArray) -> FloatArray:
        """Return the larger of some scores and its own of rows with errors of shape (m, c)."""
        assert self.knots is not None  # as those that are made have
        own = self.squared(errors)
        counts = own > self.knots.start_second
        if counts.any():
            scores[counts] = np.maximum(scores[counts], self.knots.rescaled(own[counts]))
        return scores

    def max_with_row(self, score: float, errors: FloatArray) -> float:
        """Return the same of one row with errors of shape (c,), bit for bit."""
        assert self.knots is not None  # as above
        largest = max(map(abs, errors.tolist()))
        if largest <= _WILD and largest * largest <= self.knots.start_second:
            return score
        return float(self.max_with(np.array([score]), errors[None])[0])


@dataclass(frozen=True, slots=True)
class MaxDistance:
    """The largest of distances, each of them rare by its own standard (min-p).

    Where nothing is quiet and no channel does what nobody would have forecast, the first counts, to
    the bit.
    """

    plain: Distance
    low_variance: LowVarianceDistance | None = None
    prediction_error: PredictionErrorDistance | None = None
    # whitens a scaled row, and forecasts it; shape (d, d + c): the others' roots are views of it
    _joint: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        joint, d = self.plain.root, len(self.plain.root)
        if self.prediction_error is not None:
            joint = np.ascontiguousarray(np.hstack([joint, self.prediction_error.root]))
            forecast = replace(self.prediction_error, root=joint[:, d:])
            object.__setattr__(self, "prediction_error", forecast)
            object.__setattr__(self, "plain", replace(self.plain, root=joint[:, :d]))
        object.__setattr__(self, "_joint", joint)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        # A copy of a view is no view.
        return type(self), (self.plain, self.low_variance, self.prediction_error)

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d (d + c)) a row."""
        made, d = self.plain.turned(X, self._joint), X.shape[1]
        white, errors = made[:, :d], made[:, d:]
        scores = row_sum(white * white)
        if self.low_variance is not None:
            scores = self.low_variance.max_with(scores, X)
        if self.prediction_error is not None:
            scores = self.prediction_error.max_with(scores, errors)
        return scores

    def score_row(self, x: FloatArray) -> float:
        """Score one finite row of shape (d,) as :meth:`score` does, bit for bit: fewer calls."""
        turned = self.plain.turned_row(x, self._joint)
        white = turned[: len(x)] * turned[: len(x)]
        score = float(white.cumsum()[-1])
        if self.low_variance is not None:
            score = self.low_variance.max_with_row(score, x)
        if self.prediction_error is not None:
            score = self.prediction_error.max_with_row(score, turned[len(x) :])
        return score

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Score rows as :class:`Distance` does: of parts of rows there is no forecast."""
        scores = self.plain.score_without(X, groups)
        if self.low_variance is not None:
            scores = self.low_variance.max_without(scores, X, groups)
        return scores


def _with_logarithms(X: FloatArray, logs: npt.NDArray[np.intp], floors: FloatArray) -> FloatArray:
    X = X.copy()
    X[..., logs] = one_by_one(math.log, np.maximum(X[..., logs], 0.0) + floors)
    return X


def fit_scale(X: FloatArray) -> SoftScale:
    """Measure the scale of finite rows X of shape (n, d), from near their medians."""
    n, middle = len(X), _near(X)
    gap = X - middle
    reach = np.maximum(gap.max(axis=0), -gap.min(axis=0))
    gap /= np.where(reach > 0, reach, 1.0)  # within ±1, so that no square overflows
    mean = gap.sum(axis=0) / n
    gap -= mean
    gap *= gap
    spread = reach * np.sqrt(gap.sum(axis=0) / n)
    # A column that never moved has no scale: leave its unit alone.
    return SoftScale(middle + reach * mean, np.where(spread > 0, spread, 1.0))


def _near(X: FloatArray) -> FloatArray:
    """Return a value near the median of each column."""
    few = np.sort(X[:: max(1, len(X) // _ENOUGH)], axis=0)
    middle: FloatArray = few[len(few) // 2]
    return middle


def fit_distance(X: FloatArray, least: FloatArray | float = 0.0) -> Distance:
    """Fit on finite rows X of shape (n, d); O(n d² + d³).

    With `least` of shape (d,) the deviation of a column is no less than that.
    """
    none = np.empty(0, np.intp)
    return _Moments(_Folds(X, X[:, none], none, 1), least=least).distance(0)


def _root(covariance: FloatArray, share: float) -> FloatArray:
    """Return a matrix that whitens; of two that do, the cheaper where it is shrunk by a share."""
    if share > len(covariance) * _FLOOR:  # so that no eigenvalue is below the floor
        triangular: FloatArray = np.linalg.inv(np.linalg.cholesky(covariance)).T
        return triangular
    values, vectors = np.linalg.eigh(covariance)
    if values[-1] <= 0:  # no column moved at all
        values, vectors = np.ones_like(values), np.eye(len(values))
    root = vectors / np.sqrt(np.maximum(values, _FLOOR * values[-1]))
    return np.ascontiguousarray(root)


def fit_max_distance(
    X: FloatArray,
    spreads: npt.NDArray[np.bool_],
    steps: Steps | None = None,
    like: MaxDistance | None = None,
) -> Distance | MaxDistance:
    """Fit all that are of use on finite rows X of shape (n, d).

    `spreads` says which columns are standard deviations; one that is mostly 0 is quiet by nature.
    What is quiet, and the scales, may be those of another that is `like` it: most of the time goes
    into these.
    """
    logs = np.flatnonzero(spreads)
    floors = _QUIET * np.median(X[:, logs], axis=0)
    logs, floors = logs[floors > 0], floors[floors > 0]
    if like is not None:
        known = like.low_variance
        logs, floors = (logs[:0], floors[:0]) if known is None else (known.logs, known.floors)
    if not len(logs) and steps is None:
        return fit_distance(X)
    Y = np.log(np.maximum(X[:, logs], 0.0) + floors)
    folds = _Folds(X, Y, logs, _FOLDS if like is None else 1)
    fitted, of_quiet, of_errors, quiet, surprise = _Moments(folds), None, None, None, None
    if like is None:
        first, second, errors = folds.unseen(steps)
        of_quiet = Knots.of(first, second) if len(logs) else None
        of_errors = Knots.of(first, errors, _RARE) if steps is not None else None
    else:
        of_quiet = None if known is None else known.knots
        of_errors = None if like.prediction_error is None else like.prediction_error.knots
    if of_quiet is not None:
        usual = np.quantile(Y, 1 - _TAIL, axis=0)
        quiet = LowVarianceDistance(fitted.distance(1), logs, floors, usual, of_quiet)
    if steps is not None:
        surprise = PredictionErrorDistance(fitted.forecast(steps)[0], of_errors)
    return MaxDistance(fitted.distance(0), quiet, surprise)


class _Folds:
    """Rows in folds of which one can be left out, with other values in some of the columns.

    Sums and products are made once a fold. Those of all others but one are sums of these, so that
    nothing is subtracted.
    """

    @np.errstate(all="ignore")  # where a square has no digits left, no sum of it is used
    def __init__(
        self, X: FloatArray, Y: FloatArray, which: npt.NDArray[np.intp], n_folds: int
    ) -> None:
        fold_of = np.arange(len(X)) // max(1, len(X) // (_FOLDS * _STRETCHES)) % n_folds
        self.order, d = np.argsort(fold_of, kind="stable"), X.shape[1]
        self.ends = np.searchsorted(fold_of[self.order], np.arange(fold_of.max() + 2)).tolist()
        # What has other values comes first and these last: so the columns of X lie side by side,
        # and so do those with other values.
        k, rest = len(which), np.delete(np.arange(d), which)
        own = np.append(which, rest)
        self.columns = (own, slice(d)), (np.append(rest, which), slice(k, None))
        self.rows = rows = np.hstack([X.take(own, axis=1), Y]).take(self.order, axis=0)
        self.near = _near(rows)
        rows -= self.near
        self.reach = np.maximum(rows.max(axis=0), -rows.min(axis=0))
        self.squares = rows * rows
        parts = [rows[start:stop] for start, stop in pairwise(self.ends)]
        self.sums = np.array([part.sum(axis=0) for part in parts])
        self.products = np.array([part.T @ part for part in parts])

    def unseen(self, steps: Steps | None) -> FloatArray:
        """Return what the rows of each fold score by what is fitted on the others, shape (3, n).

        By the distance, by that with other values, and by the forecast.
        """
        found = np.zeros((3, len(self.rows)))
        for fold, (start, stop) in enumerate(pairwise(self.ends)):
            fitted = _Moments(self, fold if len(self.sums) > 1 else None)
            out, part = self.order[start:stop], slice(start, stop)
            for i in range(1 + (self.rows.shape[1] > len(self.columns[0][0]))):
                found[i, out] = fitted.scores(i, part)
            if steps is not None:
                root, errors = fitted.forecast(steps)
                found[2, out] = PredictionErrorDistance(root).squared(errors[part])
        return found


class _Moments:
    """What all rows have in common, or all but those of a fold."""

    @np.errstate(all="ignore")
    def __init__(
        self, folds: _Folds, fold: int | None = None, least: FloatArray | float = 0.0
    ) -> None:
        self._columns, self._rows, self._squares = folds.columns, folds.rows, folds.squares
        self._out = slice(0, 0) if fold is None else slice(*folds.ends[fold : fold + 2])
        self._n = n = len(folds.rows) - (self._out.stop - self._out.start)
        kept = [i for i in range(len(folds.sums)) if i != fold]
        centre, products = folds.sums[kept].sum(axis=0) / n, folds.products[kept].sum(axis=0) / n
        spread = np.sqrt(np.maximum(products.diagonal() - centre * centre, 0.0))
        spread, moves = np.maximum(spread, least), folds.reach > 0
        plain = (folds.reach + np.abs(centre) <= _LINEAR * spread) & (abs(np.log(spread)) < _SAFE)
        # A column that never moved has no scale: leave its unit alone.
        self._within = scale = SoftScale(centre, np.where(spread > 0, spread, 1.0))
        self._mean = np.zeros(len(centre))
        if not plain[moves].all():
            # To these some row may be absurd, so that its logarithm counts.
            scale = fit_scale(np.delete(self._rows, self._out, axis=0))
            spread = np.where(moves, np.maximum(scale.spread, least), self._within.spread)
            scale = SoftScale(scale.centre, spread)
            self._rows = scale.apply(self._rows)
            self._squares = self._rows * self._rows
            seen = np.delete(self._rows, self._out, axis=0)
            self._mean = centre = seen.mean(axis=0)
            self._within, products = SoftScale(centre, np.ones(len(centre))), seen.T @ seen / n
        self._scale = SoftScale(folds.near + scale.centre, scale.spread)
        covariance, spread = products - np.outer(centre, centre), self._within.spread
        self._covariance = covariance / np.outer(spread, spread)

    def _whitening(self, which: int) -> tuple[FloatArray, tuple[float, float]]:
        """Return what whitens scaled and centred columns, and how it is shrunk."""
        at = self._columns[which][1]
        centre, spread = self._within.centre[at], self._within.spread[at]
        weights, plain = spread**-2.0, self._covariance[at, at]
        lengths = self._squares[:, at] @ weights - self._rows[:, at] @ (2.0 * weights * centre)
        lengths = np.delete(lengths + (weights * centre) @ centre, self._out)
        covariance, share = self._shrunk(plain, lengths)
        return _root(covariance, share), (share, share * float(np.trace(plain)) / len(plain))

    def _shrunk(self, plain: FloatArray, lengths: FloatArray) -> tuple[FloatArray, float]:
        """Return a covariance, shrunk by the squared lengths of its rows, and by which share."""
        d, off, fourth = len(plain), float(np.sum(plain * plain)), float(lengths @ lengths)
        mu = float(np.trace(plain)) / d  # not by scikit-learn: to import that takes 66 MB
        beta = (fourth / self._n - off) / (d * self._n)
        delta = off / d - mu * mu
        share = 0.0 if d == 1 or delta <= 0 else max(0.0, min(beta / delta, 1.0))
        shrunk = (1.0 - share) * plain
        shrunk.flat[:: d + 1] += share * mu
        return shrunk, share

    def scores(self, which: int, part: slice) -> FloatArray:
        """Return what some of the rows score by either distance."""
        at = self._columns[which][1]
        root = self._whitening(which)[0] / self._within.spread[at, None]
        white = self._rows[part, at] @ root
        white -= self._within.centre[at] @ root
        white *= white
        scores: FloatArray = white.sum(axis=1)
        return scores

    def distance(self, which: int) -> Distance:
        """Return either distance."""
        (order, at), (root, shrunk) = self._columns[which], self._whitening(which)
        back = np.argsort(order)
        scale = SoftScale(self._scale.centre[at][back], self._scale.spread[at][back])
        return Distance(scale, self._mean[at][back], root.take(back, axis=0), shrunk)

    def forecast(self, steps: Steps) -> tuple[FloatArray, FloatArray]:
        """Return the root of forecasts of scaled and centred rows, and their errors for all."""
        own, at = self._columns[0]
        second, within = self._covariance[at, at], self._within
        # Of scaled columns: a sum of columns in their own units is one of these, and a number.
        changes, before = (weights[own] * self._scale.spread[at, None] for weights in steps)
        before /= _lengths(before, second)
        size, along = _lengths(changes, second), second @ before
        ridge = _RIDGE * np.eye(before.shape[1])
        weights = np.linalg.solve(self._n * (before.T @ along) + ridge, self._n * along.T @ changes)
        # Of rows with a mean of 0, so that the forecast has no constant.
        made = (changes - before @ weights) / size
        by_row = made / within.spread[at, None]
        errors = self._rows[:, at] @ by_row - within.centre[at] @ by_row
        lengths = np.delete((errors * errors).sum(axis=1), self._out)
        covariance = self._shrunk(made.T @ second @ made, lengths)[0]
        inverse = np.linalg.inv(covariance + _MIN_ERROR * np.eye(len(covariance)))
        white = inverse / np.sqrt(np.diag(inverse))
        return (made @ white).take(np.argsort(own), axis=0), errors @ white


def _lengths(weights: FloatArray, second: FloatArray) -> FloatArray:
    """Return the deviations of sums of columns, or 1 where one does not move."""
    unit = np.abs(weights).max(axis=0)  # so that no square overflows
    weights = weights / np.where(unit > 0, unit, 1.0)
    found = unit * np.sqrt(np.maximum((weights * (second @ weights)).sum(axis=0), 0.0))
    return np.where(found > 0, found, 1.0)


def _tail(scores: FloatArray, high: float) -> tuple[float, float, float]:
    """Return median, a high quantile and the mean excess above it, or of the ten largest."""
    middle, start = (float(q) for q in np.quantile(scores, (0.5, high)))
    largest = np.sort(scores)[-max(_MIN_ROWS, int(np.sum(scores >= start))) :]
    return middle, start, float(np.mean(largest - min(largest[0], start)))
