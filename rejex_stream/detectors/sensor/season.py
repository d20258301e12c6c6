"""What is usual at an hour, on a weekday or before a month's end, and how far rows are from it.

A season is a table of means by the slot of a day, a week or a month, as it was in the training
rows: its edges are as sharp as those of a nightly job, or smooth where that forecasts better.
How wide rows lie around it is a second table: by night a solar plant reads 0 and nothing else.
Each table joins where those of other turns say so much of each turn that at most nine tenths are
left of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, Self

import numpy as np

from rejex_stream.detectors.sensor.distance import Distance, SoftScale, fit_distance, fit_scale
from rejex_stream.detectors.sensor.recipes import Columns, Index, Layout, SensorRecipe
from rejex_stream.detectors.table import TableScorer
from rejex_stream.features import FeatureSpec
from rejex_stream.features.preset import PresetName
from rejex_stream.protocols import BatchDetector, Scorer
from rejex_stream.types import ColumnGroups, FloatArray

_CLOCKS: Final = {"day": (0, 288), "week": (1, 672), "month": (2, 31)}
"""Which phase of the calendar, and into how many slots it is cut."""
_LEFT = 0.9  # how much of the residual may be left where a season is believed
_LEAST_TURNS: Final = {"day": 1.5, "week": 3.0, "month": 6.0}  # that rows hold, at least
_LEAST_OF_SPREAD = 3.0  # of two turns none knows how early a machine may start
_FOLDS = 16  # of turns, so that many short ones cost no more than that
_LIKELY = 1.96
_LARGEST = 700.0  # whose exponential is a number


class Part(NamedTuple):
    """A table by a clock, each slot the mean of those within a reach."""

    clock: str
    reach: int


_MEANS: Final = (Part("day", 12), Part("day", 2), Part("day", 0), Part("week", 4), Part("week", 0))
_DAYS: Final = (Part("month", 0),)
_SPREADS: Final = (Part("day", 6), Part("week", 2), Part("month", 0))


class Season(NamedTuple):
    """Which tables rows have: of means, added up, and of the spread around them."""

    means: tuple[Part, ...] = ()
    spread: Part | None = None
    logs: tuple[int, ...] = ()  # numbers of the values that are taken as logarithms


_NONE: Final = Season()


@dataclass(frozen=True, slots=True)
class Table:
    """Values by the slot of a clock; shape (slots, t)."""

    clock: str
    values: FloatArray

    def at(self, phases: FloatArray) -> FloatArray:
        """Return the values at phases of shape (m, 2 k), sines and cosines; shape (m, t)."""
        return self.values[_slots(phases, self.clock)]


@dataclass(frozen=True, slots=True)
class Values:
    """Levels on one scale, some as logarithms: twice as much at a month's end, whatever the day."""

    scale: SoftScale
    logs: tuple[int, ...] = ()
    least: float | FloatArray = 0.0  # what counts as no less, shape (k,)

    @classmethod
    def of(cls, X: FloatArray, logs: tuple[int, ...] = ()) -> Self:
        """Measure levels X of shape (n, t), of which those to take as logarithms are positive."""
        if not logs:
            return cls(fit_scale(X))
        least = 1e-3 * X[:, logs].min(axis=0)
        return cls(fit_scale(_logarithms(X, logs, least)), logs, least)

    def apply(self, X: FloatArray) -> FloatArray:
        """Scale levels of shape (m, t); nan stays."""
        return self.scale.apply(_logarithms(X, self.logs, self.least) if self.logs else X)

    def back(self, Z: FloatArray) -> FloatArray:
        """Return the levels of scaled values of shape (m, t)."""
        X = Z * self.scale.spread + self.scale.centre
        if self.logs:
            X[:, self.logs] = _each(math.exp, np.minimum(X[:, self.logs], _LARGEST))
        return X


def _logarithms(X: FloatArray, logs: tuple[int, ...], least: float | FloatArray) -> FloatArray:
    X = X.copy()
    X[:, logs] = _each(math.log, np.maximum(X[:, logs], least))
    return X


def _each(of: Callable[[float], float], X: FloatArray) -> FloatArray:
    """Return a function of each value: a vectorised one has other bits in the rest of a batch."""
    return np.fromiter(map(of, X.ravel().tolist()), np.float64, X.size).reshape(X.shape)


@dataclass(frozen=True, slots=True)
class Residual:
    """Scores what the season leaves of the first columns; the others are phases."""

    values: Values
    means: tuple[Table, ...]
    spread: Table | None
    inner: Distance

    def score(self, X: FloatArray) -> FloatArray:
        return self.inner.score(self.left(X))

    def left(self, X: FloatArray) -> FloatArray:
        t = len(self.values.scale.centre)
        left = self.values.apply(X[:, :t])
        for table in self.means:
            left = left - table.at(X[:, t:])
        return left if self.spread is None else left / self.spread.at(X[:, t:])

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        return self.inner.score_without(self.left(X), groups)

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Return what the hour makes one expect of the first of each group, shape (m, g, 4)."""
        t = len(self.values.scale.centre)
        middle = sum((table.at(X[:, t:]) for table in self.means), np.zeros((len(X), t)))
        width = np.ones((len(X), t)) if self.spread is None else self.spread.at(X[:, t:])
        width = _LIKELY * width * self.inner.scale.spread
        ends = [self.values.back(one) for one in (middle, middle - width, middle + width)]
        return np.stack((*ends, np.ones_like(middle)), axis=2)[:, [group[0] for group in groups]]


@dataclass(frozen=True)
class SeasonalResidual(SensorRecipe):
    """Distance of a row's levels from what is ordinary at its hour, weekday or day of the month."""

    allow_nan: ClassVar[bool] = True
    name: str = "rejex:SeasonalResidual"
    preset: PresetName | None = "sensor_seasonal"
    season: Season | None = None  # ``None``: that of the rows it is fitted on

    def of_rows(self, X: FloatArray) -> Self | None:
        """Return the recipe with the season that rows X of shape (n, d) have; ``None``: none."""
        layout = self.layout
        if layout is None or not len(phases := layout.calendar()):
            return None
        found = season_of_levels(X[:, self._targets(layout, X)], X[:, phases])
        return replace(self, season=found) if found.means else None

    def expected(self, X: FloatArray, which: Index) -> FloatArray:
        """Return what other turns make one expect of some levels of rows X of shape (n, d)."""
        assert self.layout is not None  # as of what has a season
        assert self.season is not None
        levels = X[:, which]
        values = Values.of(levels)
        Z = values.apply(levels)
        left = _fit_means(Z, X[:, self.layout.calendar()], self.season.means)[1]
        return values.back(Z - left)

    def _targets(self, layout: Layout, X: FloatArray) -> Index:
        return np.flatnonzero(layout.measured(X, self.flags) & layout.level())

    def unseen(self, X: FloatArray) -> FloatArray:
        """Return scores of rows X of shape (n, d) by other turns; nan where there are none."""
        columns, left, known = self._fitted(X, self.layout or Layout.plain(X.shape[1]))
        assert isinstance(columns.inner, Residual)
        scores = np.full(len(X), np.nan)
        scores[known] = columns.inner.inner.score(left)
        return scores

    def _fit(self, X: FloatArray, layout: Layout, measured: Index, seed: int) -> Scorer:
        return self._fitted(X, layout)[0]

    def _fitted(self, X: FloatArray, layout: Layout) -> tuple[Columns, FloatArray, Index]:
        """Return what scores rows, and what is left of which of these by other turns."""
        targets, phases = self._targets(layout, X), layout.calendar()
        levels, P = X[:, targets], X[:, phases]
        season = self.season or season_of_levels(levels, P)
        values = Values.of(levels, season.logs)
        means, left = _fit_means(values.apply(levels), P, season.means)
        known, spread = np.flatnonzero(np.isfinite(left).all(axis=1)), None
        left, own = left[known], P[known]
        if season.spread is not None:
            spread, widths = _fit_spread(left, own, season.spread)
            left = left / widths
        fitted = Residual(values, means, spread, fit_distance(left))
        return Columns(np.concatenate((targets, phases)), fitted), left, known


@dataclass(frozen=True)
class ByHour:
    """A detector whose scores are large by what is usual at the hour, where it makes a difference.

    What scores high each night at two, as all that rolls over a nightly job, is usual then.
    """

    member: BatchDetector
    phases: tuple[int, ...] = ()
    season: Season = _NONE

    @property
    def name(self) -> str:
        """The name of the detector."""
        return self.member.name

    @property
    def allow_nan(self) -> bool:
        """Whether the detector scores rows some of whose columns are nan."""
        return bool(getattr(self.member, "allow_nan", False))

    def for_features(self, spec: FeatureSpec) -> ByHour:
        """Return the recipe for rows of these features."""
        member = self.member
        if hasattr(member, "for_features"):
            member = member.for_features(spec)
        return replace(self, member=member, phases=tuple(Layout.of(spec).calendar().tolist()))

    def of_rows(self, X: FloatArray) -> BatchDetector:
        """Return the recipe with the hours of rows X of shape (n, d), or the detector alone."""
        if not self.phases:
            return self.member
        logs = _logs(self.member.fit(X, seed=0).score(X))
        found = season_of(logs, X[:, self.phases])
        return replace(self, season=found) if found.means else self.member

    def fit(self, X: FloatArray, *, seed: int) -> TableScorer:
        """Fit on finite rows X of shape (n, d)."""
        fitted = self.member.fit(X, seed=seed)
        assert isinstance(fitted, TableScorer)
        logs, P = _logs(fitted.score(X)), X[:, self.phases]
        means, _ = _fit_means(logs - logs.mean(), P, self.season.means)
        factors = tuple(replace(table, values=np.exp(-table.values)) for table in means)
        return replace(fitted, inner=Scaled(fitted.inner, self.phases, factors))


@dataclass(frozen=True, slots=True)
class Scaled:
    """Scores rows, in units of what is usual at their hour."""

    inner: Scorer
    phases: tuple[int, ...]
    factors: tuple[Table, ...]

    def score(self, X: FloatArray) -> FloatArray:
        scores = self.inner.score(X)
        return self._scaled(scores[:, None], X)[:, 0]

    def _scaled(self, scores: FloatArray, X: FloatArray) -> FloatArray:
        for table in self.factors:
            scores = scores * table.at(X[:, self.phases])
        return scores

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        own = getattr(self.inner, "score_without", None)
        found = None if own is None else own(X, groups)
        return None if found is None else self._scaled(found, X)

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        own = getattr(self.inner, "given_others", None)
        return None if own is None else own(X, groups)


def season_of_levels(levels: FloatArray, phases: FloatArray) -> Season:
    """Return the season of levels of shape (n, t), some of them as logarithms."""
    season = season_of(Values.of(levels).apply(levels), phases)
    positive = tuple(np.flatnonzero((levels > 0).all(axis=0)).tolist())
    if not (season.means and positive):
        return season
    sizes = []
    for logs in ((), positive):
        values = Values.of(levels, logs)
        Z = values.apply(levels)
        usual = values.back(Z - _fit_means(Z, phases, season.means)[1])
        sizes.append(np.nanmean(np.abs(usual - levels), axis=0))
    logs = tuple(j for j in positive if sizes[1][j] < _LEFT * sizes[0][j])
    return season_of(Values.of(levels, logs).apply(levels), phases)._replace(logs=logs)


def season_of(Z: FloatArray, phases: FloatArray) -> Season:
    """Return the season of values Z of shape (n, t) at phases of shape (n, 2 k).

    Its table of means is the one that says most of each turn of its clock by the others; then the
    month's days, in what that leaves; then a table of the spread.
    """
    means, left = tuple[Part, ...](), Z
    for parts in (_MEANS, _DAYS):
        tried = {part: _share_left(left, phases, part) for part in parts}
        best = min(tried, key=tried.__getitem__)
        if tried[best] < _LEFT:
            means = (*means, best)
            left = _fit_means(Z, phases, means)[1]
    return Season(means, _spread_of(left, phases) if means else None)


def _share_left(Z: FloatArray, phases: FloatArray, part: Part) -> float:
    """Return the mean size of values around a table of the other turns, to that around their mean.

    Not the median: a pulse is in few rows. Infinite where too few turns are there to tell.
    """
    if not _may_be(phases, part.clock):
        return math.inf
    left = _fit_means(Z, phases, (part,))[1]
    fold = _turns(phases, part.clock) % _FOLDS
    known = np.isfinite(left).all(axis=1)
    if 2 * known.sum() < len(Z):
        return math.inf
    sums = np.stack([np.bincount(fold[known], z[known]) for z in Z.T], axis=1)
    counts = np.bincount(fold[known])[:, None]
    others = (sums.sum(axis=0) - sums) / np.maximum(counts.sum() - counts, 1)
    plain = float(np.mean(np.abs(Z[known] - others[fold[known]])))
    return float(np.mean(np.abs(left[known]))) / plain if plain else math.inf


def _spread_of(left: FloatArray, phases: FloatArray) -> Part | None:
    """Return the table of the spread by which what is left of other turns is likeliest, if any."""
    known = np.isfinite(left).all(axis=1)
    left, own = left[known], phases[known]
    usual = np.sqrt(np.mean(left * left, axis=0))
    usual = np.where(usual > 0, usual, 1.0)
    tried: dict[Part | None, float] = {None: _cost(left, usual) + math.log(_LEFT)}
    for part in _SPREADS:
        if _may_be(phases, part.clock, _LEAST_OF_SPREAD):
            tried[part] = _cost(left, _fit_spread(left, own, part)[1])
    return min(tried, key=tried.__getitem__)


def _cost(left: FloatArray, spread: FloatArray) -> float:
    """Return minus the mean log likelihood by the normal law: surprises cost most."""
    Z = left / spread
    return float(np.mean(np.log(spread) + 0.5 * Z * Z))


def _fit_means(
    Z: FloatArray, phases: FloatArray, parts: Sequence[Part]
) -> tuple[tuple[Table, ...], FloatArray]:
    """Return tables of means, and what the rows of other turns leave of each row; nan: unknown."""
    tables, left, rest = list[Table](), Z, Z
    for part in parts:
        slot, fold, counts, sums = _by_turn(rest, phases, part)
        total, count = sums.sum(axis=0), counts.sum(axis=0)
        shrink = _shrinking(rest, slot, total / np.maximum(count, 1), count)
        values = total / (count + shrink)
        others = (total - sums) / (count - counts + shrink)
        others[np.broadcast_to(count == counts, others.shape)] = np.nan
        tables.append(Table(part.clock, values))
        left, rest = left - others[fold, slot], rest - values[slot]
    # Where no other turn has shown a slot, nobody knows how wide rows lie there.
    return tuple(tables), left if np.isfinite(left).all(axis=1).any() else rest


def _shrinking(Z: FloatArray, slot: Index, means: FloatArray, count: FloatArray) -> FloatArray:
    """Return to how many rows at the mean of all a mean is drawn, by its error, shape (t,)."""
    own = means[slot]
    within = np.mean((Z - own) ** 2, axis=0)
    error = within / np.maximum(count[slot].mean(), 1.0)
    between = np.maximum(np.mean(own * own, axis=0) - error, 1e-6)
    shrink: FloatArray = np.maximum(within / between, 1e-6)
    return shrink


def _fit_spread(left: FloatArray, phases: FloatArray, part: Part) -> tuple[Table, FloatArray]:
    """Return root mean squares of what is left, and for each row that of the other turns.

    As if one more turn had shown that of all rows. `left` has the shape (n, t).
    """
    usual = np.mean(left * left, axis=0)
    usual = np.where(usual > 0, usual, 1.0)
    slot, fold, counts, sums = _by_turn(left * left, phases, part)
    total, count = sums.sum(axis=0), counts.sum(axis=0)
    one = np.maximum(count / (int(_turns(phases, part.clock).max()) + 1), 1e-9)
    others = (total - sums + one * usual) / (count - counts + one)
    table = Table(part.clock, np.sqrt((total + one * usual) / (count + one)))
    return table, np.sqrt(others[fold, slot])


def _by_turn(
    Z: FloatArray, phases: FloatArray, part: Part
) -> tuple[Index, Index, FloatArray, FloatArray]:
    """Return slots and turns of rows, and by turn and slot how many there are and their sums."""
    clock, reach = part
    slot, slots = _slots(phases, clock), _CLOCKS[clock][1]
    fold = _turns(phases, clock) % _FOLDS
    n, at = int(fold.max()) + 1, fold * slots + slot
    columns = (None, *Z.T)
    tables = [np.bincount(at, z, n * slots).reshape(n, slots) for z in columns]
    own, summed = np.stack(tables, axis=2).astype(np.float64), np.zeros((n, slots, len(tables)))
    for by in range(-reach, reach + 1):  # those of each slot and of those within reach
        summed += np.roll(own, by, axis=1)
    return slot, fold, summed[:, :, :1], summed[:, :, 1:]


def _may_be(phases: FloatArray, clock: str, least: float = 0.0) -> bool:
    which = _CLOCKS[clock][0]
    if phases.shape[1] <= 2 * which:
        return False
    steps = _steps(phases, which)
    return float(abs(steps.sum())) >= max(least, _LEAST_TURNS[clock])


def _steps(phases: FloatArray, which: int) -> FloatArray:
    """Return how far a phase goes from row to row, in turns, by less than half of one."""
    turn = np.arctan2(phases[:, 2 * which], phases[:, 2 * which + 1]) / (2 * np.pi)
    return np.mod(np.diff(turn) + 0.5, 1.0) - 0.5


def _turns(phases: FloatArray, clock: str) -> Index:
    """Return for each row in which turn of a clock it lies, shape (n,)."""
    steps = np.abs(np.cumsum(np.append(0.0, _steps(phases, _CLOCKS[clock][0]))))
    turns: Index = np.floor(steps + 1e-9).astype(np.intp)
    return turns


def _slots(phases: FloatArray, clock: str) -> Index:
    """Return the slots of phases of shape (m, 2 k), shape (m,)."""
    # One at a time: a vectorised arctangent may have other bits in the rest of a batch.
    which, slots = _CLOCKS[clock]
    pairs = phases[:, 2 * which : 2 * which + 2].tolist()
    turns = (math.atan2(sine, cosine) / (2 * math.pi) for sine, cosine in pairs)
    return np.fromiter((round(turn * slots) % slots for turn in turns), np.intp, len(pairs))


def _logs(scores: FloatArray) -> FloatArray:
    """Return the logarithms of scores as a column; shape (n, 1)."""
    least = max(1e-9 * float(np.max(scores, initial=0.0)), 1e-300)
    logs: FloatArray = np.log(np.maximum(scores, least))[:, None]
    return logs
