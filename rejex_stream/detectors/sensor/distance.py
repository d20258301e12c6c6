"""The Mahalanobis distance by a shrunk covariance, for rows whose columns differ in unit.

O. Ledoit, M. Wolf: *A well-conditioned estimator for large-dimensional covariance matrices*.
Journal of Multivariate Analysis 88, 2004; scikit-learn's implementation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import lt

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.rowwise import affine, row_sum
from rejex_stream.types import FloatArray

__all__ = [
    "Distance", "Larger", "SoftScale", "fit_distance", "fit_larger", "fit_scale",
    "shrunk_covariance",
]  # fmt: skip

_LINEAR = 30.0
"""Deviations up to which a column counts in full; beyond, its logarithm is added, so that one wild
column orders events and drowns nothing."""
_TAIL = 0.98
_QUIET = 0.02
"""Share of its median that is added to a standard deviation before its logarithm is taken: what is
fifty times quieter than usual counts as silent."""
_FLOOR = 1e-9
"""Least eigenvalue, as a share of the largest."""
_MOST_ROOTS = 8
_SURELY = 1e-9  # more than a sum, a logarithm and an exponential are rounded by


@dataclass(frozen=True, slots=True)
class SoftScale:
    """Standard scores that grow like a logarithm where they are absurd."""

    centre: FloatArray  # mean and standard deviation of each column; shape (d,)
    spread: FloatArray

    def apply(self, X: FloatArray) -> FloatArray:
        """Scale finite rows X of shape (m, d)."""
        Z: FloatArray = X - self.centre
        Z /= self.spread
        size = np.abs(Z)
        if np.maximum.reduce(size, axis=None, initial=0.0) > _LINEAR:
            beyond = np.log1p(np.maximum(size - _LINEAR, 0.0))
            Z = np.sign(Z) * (np.minimum(size, _LINEAR) + np.minimum(beyond, _LINEAR))
        return Z


@dataclass(frozen=True, slots=True)
class Distance:
    """Squared distance from the mean of the training rows."""

    scale: SoftScale  # puts columns on one scale
    mean: FloatArray  # mean of the scaled rows; shape (d,)
    root: FloatArray  # whitens a scaled row; shape (d, d)
    # what does so for the columns that are there, by which they are; the newest few
    _roots: dict[bytes, FloatArray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d²) a row."""
        centred = self.scale.apply(X)
        centred -= self.mean
        white = affine(centred, self.root, np.zeros(self.root.shape[1]))
        white *= white
        return row_sum(white)

    def score_row(self, row: FloatArray) -> float:
        """Score one finite row of shape (d,) as :meth:`score` does, bit for bit: fewer calls."""
        z = row - self.scale.centre
        z /= self.scale.spread
        if not z.dot(z) < _LINEAR * _LINEAR:  # else no column is beyond it, however that is added
            z = self.scale.apply(row)
        z -= self.mean
        # Along the slow axis numpy adds one row after the other, as `affine` does.
        white = np.add.reduce(z[:, None] * self.root, axis=0)
        white *= white
        return float(np.add.accumulate(white)[-1])

    def score_partial(self, row: FloatArray) -> float:
        """Score a row of shape (d,) some of whose columns are nan: the distance of the others.

        It is that of the marginal distribution, a sum of as many squares as there are columns, put
        on the scale of all of them by Wilson's and Hilferty's cube root, under which such sums are
        nearly normal. O(d²) a row, O(d³) for the first of those that lack these columns.

        E. B. Wilson, M. M. Hilferty: *The distribution of chi-square*. Proceedings of the National
        Academy of Sciences 17, 1931.
        """
        there = np.isfinite(row)
        scale = SoftScale(self.scale.centre[there], self.scale.spread[there])
        z = scale.apply(row[there]) - self.mean[there]
        white = np.add.reduce(z[:, None] * self._marginal(there), axis=0)
        white *= white
        return _rescaled_sum(float(np.add.accumulate(white)[-1]), len(z), len(row))

    def _marginal(self, there: npt.NDArray[np.bool_]) -> FloatArray:
        """Return what whitens the columns that are there."""
        found = self._roots.get(there.tobytes())
        if found is None:
            if len(self._roots) >= _MOST_ROOTS:
                self._roots.clear()
            unwhitened = np.linalg.inv(self.root)[:, there]
            values, vectors = np.linalg.eigh(unwhitened.T @ unwhitened)
            found = vectors / np.sqrt(np.maximum(values, _FLOOR * values[-1]))
            self._roots[there.tobytes()] = found = np.ascontiguousarray(found)
        return found


def _rescaled_sum(squares: float, n: int, of: int) -> float:
    """Return the sum of `of` squares of normal deviates that is as rare as that of `n`."""
    few, all_ = 2.0 / (9.0 * n), 2.0 / (9.0 * of)
    deviate = (math.cbrt(squares / n) - (1.0 - few)) / math.sqrt(few)
    return float(of * max(0.0, 1.0 - all_ + deviate * math.sqrt(all_)) ** 3)


@dataclass(frozen=True, slots=True)
class Larger:
    """The larger of two distances: of the columns as they are, and with some of them as logarithms.

    A standard deviation ends at 0, so that no signal can be so quiet that it is far away; its
    logarithm has no such end. Each distance is rare by its own standard (min-p): the second one is
    put on the scale of the first by the median, the .98 quantile and the mean excess above it that
    either has among training rows of the half that it was not fitted on. It counts only where some
    standard deviation is lower than in nearly all training rows: a loud row is far by the second
    distance too, on a scale that was made for quiet ones. Where nothing is quiet the first counts,
    to the bit.
    """

    plain: Distance  # the two distances
    quiet: Distance
    logs: npt.NDArray[np.intp]  # which columns are taken as logarithms
    floors: FloatArray  # what is added to them before that, shape (k,)
    # the logarithms below which a column is quiet: their .02 quantile, shape (k,)
    usual: FloatArray
    # median and .98 quantile of either distance, and the two slopes from the second to the first
    knots: tuple[float, float, float, float, float, float]
    # standard deviations from which on no rounding makes a logarithm quiet
    _near: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        near = np.exp(self.usual) * (1.0 + _SURELY) - self.floors
        object.__setattr__(self, "_near", near.tolist())

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d²) a row."""
        scores, Y = self.plain.score(X), _with_logarithms(X, self.logs, self.floors)
        still = np.flatnonzero((Y[:, self.logs] < self.usual).any(axis=1))
        if len(still):
            scores[still] = np.maximum(scores[still], self._rescaled(self.quiet.score(Y[still])))
        return scores

    def score_row(self, row: FloatArray) -> float:
        """Score one finite row of shape (d,) as :meth:`score` does, bit for bit: fewer calls."""
        score = self.plain.score_row(row)
        if not any(map(lt, row[self.logs].tolist(), self._near)):
            return score
        y = _with_logarithms(row, self.logs, self.floors)
        if not (y[self.logs] < self.usual).any():
            return score
        return max(score, float(self._rescaled(self.quiet.score_row(y))))

    def score_partial(self, row: FloatArray) -> float:
        """Score a row of shape (d,) some of whose columns are nan, as :class:`Distance` does."""
        score, y = self.plain.score_partial(row), _with_logarithms(row, self.logs, self.floors)
        if not (y[self.logs] < self.usual).any():  # nan is not
            return score
        return max(score, float(self._rescaled(self.quiet.score_partial(y))))

    def _rescaled(self, quiet: FloatArray | float) -> FloatArray:
        """Put scores of the second distance on the scale of the first."""
        middle, start, middle_quiet, start_quiet, slope, slope_beyond = self.knots
        below = middle + (quiet - middle_quiet) * slope
        return np.where(quiet < start_quiet, below, start + (quiet - start_quiet) * slope_beyond)


def _with_logarithms(X: FloatArray, logs: npt.NDArray[np.intp], floors: FloatArray) -> FloatArray:
    """Return a copy with some columns as logarithms."""
    X = X.copy()
    # One value at a time: a vectorised logarithm has other bits in the rest of a batch.
    spreads = np.maximum(X[..., logs], 0.0) + floors
    X[..., logs] = np.array([*map(math.log, spreads.ravel().tolist())]).reshape(spreads.shape)
    return X


def fit_scale(X: FloatArray) -> SoftScale:
    """Measure the scale of finite rows X of shape (n, d)."""
    middle = np.median(X, axis=0)
    gap = X - middle
    reach = np.abs(gap).max(axis=0)
    shares = gap / np.where(reach > 0, reach, 1.0)  # within ±1, so that no square overflows
    spread = reach * shares.std(axis=0)
    # A column that never moved has no scale: leave its unit alone.
    return SoftScale(middle + reach * shares.mean(axis=0), np.where(spread > 0, spread, 1.0))


def fit_distance(X: FloatArray) -> Distance:
    """Fit on finite rows X of shape (n, d); O(n d² + d³)."""
    scale = fit_scale(X)
    Z = scale.apply(X)
    mean = Z.mean(axis=0)
    covariance = shrunk_covariance(Z - mean)
    values, vectors = np.linalg.eigh(covariance)
    if values[-1] <= 0:  # no column moved at all
        values, vectors = np.ones_like(values), np.eye(len(values))
    root = vectors / np.sqrt(np.maximum(values, _FLOOR * values[-1]))
    return Distance(scale, mean, np.ascontiguousarray(root))


def shrunk_covariance(X: FloatArray) -> FloatArray:
    """Return the covariance of centred rows X of shape (n, d), shrunk by Ledoit and Wolf's share.

    Bit for bit ``sklearn.covariance.ledoit_wolf(X, assume_centered=True)``, up to 1,000 columns; to
    import that costs a worker 66 MB. O(n d²).
    """
    n, d = X.shape
    if d == 1:
        return np.atleast_2d((X**2).mean())
    squares = X**2
    traces = np.sum(squares, axis=0) / n
    mu = np.sum(traces) / d
    off = np.sum(np.dot(X.T, X) ** 2) / n**2
    beta = 1.0 / (d * n) * (np.sum(np.dot(squares.T, squares)) / n - off)
    delta = (off - 2.0 * mu * traces.sum() + d * mu**2) / d
    beta = min(beta, delta)
    share = 0.0 if beta == 0 else beta / delta
    plain = np.dot(X.T, X) / n
    shrunk: FloatArray = (1.0 - share) * plain
    shrunk.flat[:: d + 1] += share * (np.sum(np.trace(plain)) / d)
    return shrunk


def fit_larger(X: FloatArray, spreads: npt.NDArray[np.bool_]) -> Distance | Larger:
    """Fit both distances on finite rows X of shape (n, d), or one where no column is a spread.

    `spreads` says which columns are standard deviations; one that is mostly 0 is quiet by nature.
    """
    plain = fit_distance(X)
    floors = _QUIET * np.median(X, axis=0)
    logs = np.flatnonzero(spreads & (floors > 0))
    if not len(logs):
        return plain
    Y = _with_logarithms(X, logs, floors[logs])
    quiet = fit_distance(Y)
    (middle, start, excess), (of_middle, of_start, of_excess) = _tail(X), _tail(Y)
    least = 1e-12 * max(1.0, of_start)
    slope = (start - middle) / max(of_start - of_middle, least)
    return Larger(
        plain,
        quiet,
        logs,
        floors[logs],
        np.quantile(Y[:, logs], 1 - _TAIL, axis=0),
        (middle, start, of_middle, of_start, slope, excess / max(of_excess, least)),
    )


def _tail(X: FloatArray) -> tuple[float, float, float]:
    """Return median, .98 quantile and mean excess of the distances of rows it was not fitted on."""
    half = len(X) // 2
    parts = (X[:half], X[half:]) if half > 1 else (X, X)
    scores = np.concatenate(
        [fit_distance(fitted).score(others) for fitted, others in (parts, parts[::-1])]
    )
    middle, start = (float(q) for q in np.quantile(scores, (0.5, _TAIL)))
    return middle, start, float(np.mean(scores[scores >= start] - start))
