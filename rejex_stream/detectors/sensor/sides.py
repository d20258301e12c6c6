"""Channels of which people ask for one side alone: a leak is a drop, and a rise is no fault.

A distance is joint, so which side a channel is on is known only given the others, and given its own
past: what comes back from a rise falls, too. So two explanations of a row are compared: readings of
the channel, now or before, are higher than they would have been, or they are lower, each by any
amount, which makes a cone of rows. Where people ask for drops and higher readings leave less of the
distance, the channel is put where the others make one expect it.

What a region leaves of a row, the least D(x - c) over its rows c, never grows where the row moves
along it. So a channel that rises from where it is expected, in whatever shape, is put aside, and
the score is that of the others: nothing explains more. One that is aside stays so however far its
levels rise: what the region of the other side leaves never shrinks then.

A. Kudô: *A multivariate analogue of the one-sided test*. Biometrika 50, 1963.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.rowwise import affine
from rejex_stream.detectors.sensor.distance import Distance, MaxDistance, fit_distance, once
from rejex_stream.errors import ConfigError
from rejex_stream.types import ColumnGroups, FloatArray

_MAX_SHIFTS = 8  # of a channel: all combinations of them are tried
_AT_ONCE = 256  # rows
_SINGULAR, _MAX = 1e10, 1e100
_MAX_PATTERNS = 64
_ROUNDING = 1e-9  # of two gains: a spread speaks for both sides, and a tie is not asked about
_RARE, _MAX_RISES, _ROUNDS = 0.98, 0.5, 8
"""A training row that scores beyond this quantile, but for a side, is left out: what nobody asks
about would make the distance wide, and what they ask about be lost in it."""


class OneSidedRegion(NamedTuple):
    """What readings on the side that nobody asks about do to a row, by how much each of them is."""

    columns: npt.NDArray[np.intp]  # of the channel
    shifts: FloatArray  # of all columns in their units, for each a reading or some; shape (d, k)
    other: FloatArray  # what the other side does: -1 times that, or 1, as to a spread; shape (k,)


def region_of(
    kinds: Sequence[tuple[str, int]], own: Sequence[int], sign: int, at_most: int | None = None
) -> OneSidedRegion:
    """Return the region of a channel.

    `kinds` are kind and span of all columns, `own` numbers those of the channel; `sign` is 1 where
    nobody asks about a rise, -1 for a fall; readings are those up to `at_most` events ago. Raises a
    :class:`ConfigError` where the columns know too many of them apart.
    """
    longest = max(kinds[j][1] for j in own)
    ages = range(1 + (longest if at_most is None else min(longest, at_most)))
    linear = np.array([[_effect(*kinds[j], age) for age in ages] for j in own])
    linear = np.unique(linear[:, linear.any(axis=0)], axis=1)
    # What is no sum of readings may go as far as it likes.
    free = [i for i, j in enumerate(own) if kinds[j][0] in ("std", "min", "max")]
    spreads = np.array([kinds[own[i]][0] == "std" for i in free], dtype=np.bool_)
    k = linear.shape[1] + len(free)
    if k > _MAX_SHIFTS:
        raise ConfigError(
            f"A side cannot be told by {len(own)} columns of a channel that know {k} of its "
            f"readings apart: at most {_MAX_SHIFTS} can be; leave out lags, or take "
            'features.preset = "sensor".'
        )
    shifts = np.zeros((len(kinds), k))
    shifts[own] = np.hstack([sign * linear, np.eye(len(own))[:, free] * np.where(spreads, 1, sign)])
    return OneSidedRegion(
        np.array(own), shifts, np.append(-np.ones(linear.shape[1]), 2.0 * spreads - 1.0)
    )


def _effect(kind: str, span: int, age: int) -> float:
    """Return what a column gains where the reading so many events ago is higher by 1."""
    now, then, mean = float(age == 0), float(age == span), float(age < span) / max(1, span)
    found = {"raw": now, "lag": then, "difference": now - then, "mean": mean}
    return now - mean if kind == "deviation" else found.get(kind, 0.0)


class _SideTest(NamedTuple):
    distance: Distance
    along: FloatArray  # of a centred row, how far it goes along each shift; shape (d, k)
    tried: FloatArray  # for each combination of shifts, the amounts; shape (k, k 2^k)
    other: FloatArray

    @classmethod
    def of(cls, distance: Distance, region: OneSidedRegion, there: Any = slice(None)) -> _SideTest:  # noqa: ANN401
        white = distance.root.T @ (region.shifts[there] / distance.scale.spread[:, None])
        length = np.sqrt((white * white).sum(axis=0))
        which = length > 0
        white, k = white[:, which] / length[which], int(which.sum())
        gram, tried = white.T @ white, np.zeros((2**k, k, k))
        for made, combination in zip(tried, product((False, True), repeat=k), strict=True):
            on = np.ix_(combination, combination)
            if any(combination) and np.linalg.cond(gram[on]) < _SINGULAR:
                made[on] = np.linalg.inv(gram[on])
        along = np.ascontiguousarray(distance.root @ white)
        return cls(distance, along, np.hstack([*tried]), region.other[which])

    def is_off_side(self, X: FloatArray) -> npt.NDArray[np.bool_]:
        """Return of which rows X of shape (m, d) what nobody asks about explains more, (m,)."""
        parts = [self._is_off_side_block(X[i : i + _AT_ONCE]) for i in range(0, len(X), _AT_ONCE)]
        return np.concatenate(parts)

    def _is_off_side_block(self, X: FloatArray) -> npt.NDArray[np.bool_]:
        k, scale = len(self.other), self.distance.scale
        if not k:
            return np.zeros(len(X), dtype=np.bool_)
        Z = np.clip((X - scale.centre) / scale.spread, -_MAX, _MAX) - self.distance.mean
        H = affine(Z, self.along, np.zeros(k))
        H /= np.maximum(np.abs(H).max(axis=1), 1.0 / _MAX)[:, None]
        # The best amounts of which none is below 0 are those of one combination of shifts.
        amounts = affine(H, self.tried, np.zeros(self.tried.shape[1])).reshape(len(X), -1, k)
        gain = np.zeros(amounts.shape[:2])
        for j in range(k):
            gain += amounts[:, :, j] * H[:, None, j]
        asked, not_asked = (
            np.where((amounts * side >= 0).all(axis=2), gain, 0.0).max(axis=1)
            for side in (self.other, 1.0)
        )
        aside: npt.NDArray[np.bool_] = not_asked >= asked * (1.0 - _ROUNDING)
        return aside


@dataclass(frozen=True, slots=True)
class Sided:
    """A distance in which some channels count on one side alone."""

    inner: Distance | MaxDistance
    regions: tuple[OneSidedRegion, ...]
    _side_tests: tuple[_SideTest, ...] = field(init=False, repr=False, compare=False)
    # by which channels are put aside, or which columns are there: what it takes, the newest few
    _known: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        side_tests = tuple(_SideTest.of(self.plain, region) for region in self.regions)
        object.__setattr__(self, "_side_tests", side_tests)

    @property
    def plain(self) -> Distance:
        """The distance of whole rows."""
        return self.inner.plain

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d² + k² 2^k) a row for k shifts of a channel."""
        return self.inner.score(self.without_off_side(X))

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Score rows as :class:`Distance` does; where columns are missing, one aside is, too."""
        if np.isfinite(X).all():
            return self.inner.score_without(self.without_off_side(X), groups)
        left, there = X[0].copy(), np.isfinite(X[0])
        side_tests = once(
            self._known, b"there" + there.tobytes(), lambda: self._partial(there), _MAX_PATTERNS
        )
        for region, side_test in zip(self.regions, side_tests, strict=True):
            if side_test.is_off_side(left[there][None])[0]:
                left[region.columns] = np.nan
        if not np.isfinite(left).any():  # of what anybody asks about: an ordinary row
            return np.zeros((1, len(groups)))
        return self.inner.score_without(left[None], groups)

    def _partial(self, there: npt.NDArray[np.bool_]) -> list[_SideTest]:
        part = self.plain.marginal(there)
        return [_SideTest.of(part, region, there) for region in self.regions]

    def without_off_side(self, X: FloatArray) -> FloatArray:
        """Return rows in which channels that are put aside are as the others make one expect."""
        aside = np.array([side_test.is_off_side(X) for side_test in self._side_tests]).T
        made, plain = X.copy(), self.plain
        for pattern in {*map(bytes, aside)} - {bytes(len(self.regions))}:
            rows = (aside == np.frombuffer(pattern, np.bool_)).all(axis=1)
            gone, others, weights = once(
                self._known, pattern, partial(self._expected, pattern), _MAX_PATTERNS
            )
            Z = plain.scale.apply(X[rows]) - plain.mean
            expected = affine(Z[:, others], weights, plain.mean[gone])
            made[np.ix_(rows, gone)] = (
                expected * plain.scale.spread[gone] + plain.scale.centre[gone]
            )
        quiet = self.inner.low_variance if isinstance(self.inner, MaxDistance) else None
        if quiet is not None:  # no side of a channel makes it quiet
            spreads, as_expected = X[:, quiet.logs], np.maximum(made[:, quiet.logs], quiet.near)
            made[:, quiet.logs] = np.where(spreads < quiet.near, spreads, as_expected)
        return made

    def _expected(self, pattern: bytes) -> tuple[Any, Any, FloatArray]:
        """Return which columns are put aside, the others, and what these make one expect."""
        gone = np.concatenate([region.columns for region in compress(self.regions, pattern)])
        others = np.setdiff1d(np.arange(len(self.plain.mean)), gone)
        unwhitened = np.linalg.inv(self.plain.root)
        covariance = unwhitened[:, others].T @ unwhitened
        weights = np.linalg.solve(covariance[:, others], covariance[:, gone])
        return gone, others, np.ascontiguousarray(weights)


def fit_sided(
    fit: Callable[[FloatArray], Distance | MaxDistance],
    X: FloatArray,
    regions: tuple[OneSidedRegion, ...],
) -> Distance | MaxDistance | Sided:
    """Fit on finite rows X of shape (n, d), without those that only a side makes ordinary."""
    if not regions:
        return fit(X)
    left = np.ones(len(X), dtype=np.bool_)
    for _ in range(_ROUNDS):
        made = Sided(fit_distance(X[left]), regions)
        scores, whole = made.score(X), made.inner.score(X)
        usual = np.quantile(scores[left], _RARE)
        rises = (whole > usual) & (scores <= usual)
        if not (rises & left).any() or rises.mean() > _MAX_RISES:
            break
        left = ~rises
    return Sided(fit(X[left]), regions)
