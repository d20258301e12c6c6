"""Recipes for sensors: how far a row, a forecast's error or a stretch of rows is from ordinary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from rejex_stream.detectors.pyod import contained
from rejex_stream.detectors.rowwise import affine
from rejex_stream.detectors.sensor.distance import (
    Distance,
    MaxDistance,
    SoftScale,
    Steps,
    fit_distance,
    fit_max_distance,
    fit_scale,
    once,
)
from rejex_stream.detectors.sensor.sides import OneSidedRegion, fit_sided, region_of
from rejex_stream.detectors.table import TableScorer, training_table
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.features.preset import PresetName
from rejex_stream.features.spec import BESIDE
from rejex_stream.protocols import Scorer
from rejex_stream.types import ColumnGroups, FloatArray, RestingRange

Index = npt.NDArray[np.intp]
_CALENDAR, _DERIVED = -1, -1
_BESIDE = -2
_CHANGES, _LEVELS = ("difference", "deviation"), ("raw", "mean")
_PARTS, _WANDERS, _MIN_ROWS = 8, 0.6, 800
"""Share of the variance of ranks that lies between eighths of the rows, from which on a channel has
no level: of 2,000 rows 0 of AR(.97), one eighth of AR(.99), four fifths of a random walk."""
_KEEPS, _STAYS = 0.9, 0.3
"""Mean resultant length from which on an angle keeps to a part of the circle, some 25 degrees
either way, and that share of its variance up to which it stays there: what turns does so by chance
for a while, and a model that took it for a level would hold the next turn for a fault."""
GUARD_QUANTILE: Final = 0.95
"""Rows that score beyond this quantile of the reference scores train no later model: a covariance
follows whatever it is fitted on, and the rarest twentieth of ordinary rows is no loss to it."""
_MAX_PARTIAL = 400
"""Columns up to which a row without some of them is scored: it costs their cube, once a gap."""
FLAGS: Final = ("apart", "in")
_RIDGE = 1.0
_MAX_LAGS = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in a row to find what; hashable, so that it can be a part of a recipe."""

    channels: tuple[int, ...]  # for each column the number of its channel; -1 for the calendar
    # for each column how many events ago its value was read: 0 the level, -1 for what is derived
    lags: tuple[int, ...]
    # numbers of the columns that are standard deviations, whose low side ends at 0
    spreads: tuple[int, ...] = ()
    # numbers of the columns that are the level of a channel, or a mean of it, where there are
    # others that show its changes
    levels: tuple[int, ...] = ()
    # for each column its kind and span, where it is a channel's
    kinds: tuple[tuple[str, int], ...] = ()
    # for channels of which people ask for one side alone, the number and 1 where a rise is nothing,
    # -1 where a fall is; a part of the features' identity
    sides: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    # for each column what of its channel it is about, where some channel is an angle: the angle, or
    # how far it is behind another; a part of the features' identity
    about: tuple[tuple[int, str], ...] = field(default=(), repr=False)
    # of channels that are judged beside siblings, the column of the level, and the first of four
    # of what siblings say
    beside: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, spec: FeatureSpec) -> Layout:
        """Return the layout of the rows of a spec."""
        columns = [feature for feature in spec.columns for _ in feature.names]
        moving = {feature.channel for feature in columns if feature.kind in _CHANGES}
        number = {"": _CALENDAR} | {name: i for i, name in enumerate(spec.channels)}
        level, names = spec.level_of_channel, spec.names
        said = [feature for feature in spec.columns if feature.kind == BESIDE]
        return cls(
            tuple(_BESIDE if f.kind == BESIDE else number[f.channel] for f in columns),
            tuple({"raw": 0, "lag": f.events or 0}.get(f.kind, _DERIVED) for f in columns),
            tuple(j for j, f in enumerate(columns) if f.kind == "std"),
            tuple(j for j, f in enumerate(columns) if f.kind in _LEVELS and f.channel in moving),
            tuple(("angle" if f.is_on_circle else f.kind, f.events or 0) for f in columns),
            tuple((number[name], 1 if side == "low" else -1) for name, side in spec.sides),
            tuple((number[f.channel], f.behind) for f in columns if spec.angles),
            tuple((level[number[f.channel]], names.index(f.names[0])) for f in said),
        )

    @classmethod
    def plain(cls, n_columns: int) -> Layout:
        """Return the layout of rows that nobody described: every column the level of a channel."""
        return cls(tuple(range(n_columns)), (0,) * n_columns)

    def measured(self, X: FloatArray, flags: str) -> npt.NDArray[np.bool_]:
        """Return which columns are measured, shape (d,): all, or those that are no flag.

        A channel is a flag if its level takes at most two values in the training rows X of shape
        (n, d): a switch, a command, a constant. Where every channel is one, none is set apart.
        """
        channels = np.array(self.channels)
        used: npt.NDArray[np.bool_] = channels > _CALENDAR
        if flags == "in":
            return used
        for j in self._at_rest(X):
            used &= channels != self.channels[j]
        return used if used.any() else self.measured(X, "in")

    def _at_rest(self, X: FloatArray) -> list[int]:
        """Return the columns of levels that take at most two values in rows X of shape (n, d)."""
        own = [j for j, ago in enumerate(self.lags) if ago == 0 and not self._is_of_angle(j)]
        levels = X[:, own]
        moves = (levels != levels.min(axis=0)) & (levels != levels.max(axis=0))
        return [j for j, moved in zip(own, moves.any(axis=0), strict=True) if not moved]

    def _is_of_angle(self, j: int) -> bool:
        # The sine of an angle says nothing of a range of values, and it is in the distance always.
        return bool(self.about) and ("angle", 0) in {
            kind
            for kind, of in zip(self.kinds, self.about, strict=True)
            if of[0] == self.about[j][0]
        }

    def resting(self, X: FloatArray) -> tuple[RestingRange, ...]:
        """Return between which values channels rest that take at most two in rows X."""
        return tuple(
            RestingRange.of_values(self.channels[j], np.unique(X[:, j]).tolist())
            for j in self._at_rest(X)
            if self.kinds and self.kinds[j][0] == "raw"
        )

    def wandering(self, X: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which columns are levels of channels that have none, shape (d,).

        A channel has no level if the variance of its ranks lies mostly between stretches of the
        training rows X of shape (n, d), or so does that of the channels on average. An angle that
        turns has none either: what it has not shown yet is one more place on the circle.
        """
        without: npt.NDArray[np.bool_] = np.zeros(X.shape[1], dtype=np.bool_)
        about = self.about or self.channels
        now = [j for j in self.levels if self.lags[j] == 0]
        of_angles = [j for j in now if self.kinds[j][0] == "angle"]
        moves = {about[j]: 0.0 for j in now}
        if len(X) >= _MIN_ROWS:
            moves = {about[j]: _between(X[:, j]) for j in now if j not in of_angles}
        together = float(np.mean([*moves.values()])) if moves else 0.0
        moves = {which: max(moved, together) for which, moved in moves.items()}
        for sine, cosine in zip(of_angles[::2], of_angles[1::2], strict=True):
            length = math.hypot(X[:, sine].mean(), X[:, cosine].mean())
            moved = max(_between(X[:, sine]), _between(X[:, cosine]))
            moves[about[sine]] = 0.0 if length >= _KEEPS and moved <= _STAYS else 1.0
        for j in self.levels:
            without[j] = moves.get(about[j], together) > _WANDERS
        return without

    def steps(self, which: Index) -> Steps | None:
        """Return, of some of the columns, what is a channel's last change and what came before it.

        Before a change x - y the level was y, and means over k events that end with x are means
        over the k - 1 before it. ``None`` where no channel has a change and a past.
        """
        unit = dict(zip(which.tolist(), np.eye(len(which)), strict=True))
        about: tuple[object, ...] = self.about or self.channels
        at: dict[tuple[object, str, int], FloatArray] = {
            (about[j], *kind): unit[j]
            for j, (channel, kind) in enumerate(zip(self.channels, self.kinds, strict=False))
            if j in unit and channel != _CALENDAR
        }
        changes, before = [], []
        for channel in dict.fromkeys(about):
            change, level = at.get((channel, "difference", 1)), at.get((channel, "raw", 0))
            if change is None:
                continue
            changes.append(change)
            spans = [k for c, kind, k in at if c == channel and kind == "deviation"]
            before += [change - at[channel, "deviation", k] * k / (k - 1) for k in spans]
            if level is None:
                continue
            before.append(level - change)
            before += [
                (mean * k - level) / (k - 1)
                for (c, kind, k), mean in at.items()
                if c == channel and kind == "mean" and k > 1 and k not in spans
            ]
        return Steps(np.array(changes).T, np.array(before).T) if changes and before else None

    def regions(self, which: Index, wandering: npt.NDArray[np.bool_]) -> tuple[OneSidedRegion, ...]:
        """Return, of some of the columns, what the sides do to them that nobody asks about.

        Of a channel that has no level nobody knows whether what it was a while ago was a rise.
        """
        kinds, found = [self.kinds[j] for j in which if self.sides], []
        for channel, sign in self.sides:
            own = [i for i, j in enumerate(which) if self.channels[j] == channel]
            if own:
                moves = wandering[np.array(self.channels) == channel].any()
                found.append(region_of(kinds, own, sign, at_most=1 if moves else None))
        return tuple(found)

    def level(self) -> npt.NDArray[np.bool_]:
        """Return which columns are levels."""
        which: npt.NDArray[np.bool_] = np.array(self.lags) == 0
        return which

    def past(self, at_most: int | None = None) -> npt.NDArray[np.bool_]:
        """Return which columns are earlier levels, up to `at_most` events ago."""
        lags = np.array(self.lags)
        most = lags.max(initial=0) if at_most is None else at_most
        which: npt.NDArray[np.bool_] = (lags > 0) & (lags <= most)
        return which

    def calendar(self) -> Index:
        """Return the columns of the calendar: sine and cosine of each phase."""
        return np.flatnonzero(np.array(self.channels) == _CALENDAR)


def _between(x: FloatArray) -> float:
    """Return the share of the variance of ranks that lies between parts of a series, in [0, 1]."""
    length = len(x) // _PARTS
    ranks = np.searchsorted(np.sort(x), x[: length * _PARTS]).astype(np.float64)
    ranks -= ranks.mean()
    total = float(ranks @ ranks)
    means = ranks.reshape(_PARTS, length).mean(axis=1)
    return float(means @ means) * length / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Columns:
    """Scores some columns of a row."""

    which: Index
    inner: Scorer
    _known: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def score(self, X: FloatArray) -> FloatArray:
        return self.inner.score(X.take(self.which, axis=1))

    def score_row(self, row: Sequence[float]) -> float:
        x = np.array(row).take(self.which)
        own: Callable[[FloatArray], float] | None = getattr(self.inner, "score_row", None)
        return float(self.inner.score(x[None])[0]) if own is None else own(x)

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Score rows X of shape (m, d), of which all lack the same columns, without each group.

        Shape (m, g), nan where nothing is there; ``None`` where it cannot.
        """
        if not hasattr(self.inner, "score_without"):
            return None
        rows = X.take(self.which, axis=1)
        there = np.isfinite(rows[0])
        if not there.any() or (len(there) > _MAX_PARTIAL and not there.all()):
            return np.full((len(X), len(groups)), np.nan)
        own = self._own(groups)
        found: FloatArray = self.inner.score_without(rows, own)
        if there.all() and not all(map(len, own)):  # without flags a row is what it is
            found[:, [not len(group) for group in own]] = self.inner.score(rows)[:, None]
        return found

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Return what the others make one expect of the first column of each group, (m, g, 4)."""
        if not hasattr(self.inner, "score_without"):
            return None
        own, found = self._own(groups), np.full((len(X), len(groups), 4), np.nan)
        found[:, :, 3] = 0.0
        places = self.which.tolist()
        known = [i for i, at in enumerate(own) if len(at) and places[at[0]] == groups[i][0]]
        if known:
            rows = X.take(self.which, axis=1)
            plain: Any = getattr(self.inner, "plain", self.inner)
            said = plain.given_others(rows, [own[i] for i in known])
            found[:, known, : said.shape[2]] = said
        return found

    def _own(self, groups: ColumnGroups) -> list[Index]:
        def own() -> list[Index]:
            return [np.flatnonzero(np.isin(self.which, group)) for group in groups]

        return once(self._known, b"|".join(map(bytes, groups)), own)


@dataclass(frozen=True, slots=True)
class Residual:
    """Scores what a linear forecast leaves of the first columns, given the others."""

    scale: SoftScale  # of all columns: t targets, then p predictors
    weights: FloatArray  # minus the ridge coefficients; shape (p, t)
    inner: Distance  # scores the residual

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, t + p); O((t + p) t) a row."""
        return self.inner.score(self.residual(X))

    def residual(self, X: FloatArray) -> FloatArray:
        t = self.weights.shape[1]
        Z = self.scale.apply(X)
        return Z[:, :t] + affine(Z[:, t:], self.weights, np.zeros(t))


def fit_residual(X: FloatArray, targets: int) -> Residual:
    """Fit a forecast of the first columns of rows X of shape (n, targets + p) by the others."""
    scale = fit_scale(X)
    Z = scale.apply(X)
    now, given = Z[:, :targets], Z[:, targets:]
    gram = given.T @ given + _RIDGE * np.eye(given.shape[1])
    weights = -np.linalg.solve(gram, given.T @ now) if given.shape[1] else np.empty((0, targets))
    left = Z[:, :targets] + given @ weights
    return Residual(scale, np.ascontiguousarray(weights), fit_distance(left))


@dataclass(frozen=True)
class SensorRecipe:
    """What the recipes have in common."""

    guard_quantile: ClassVar[float] = GUARD_QUANTILE
    least_rows: ClassVar[int] = 1
    name: str
    """For metrics and snapshots."""
    preset: PresetName | None = None
    """The columns it wants where a pipeline names none."""
    flags: str = "apart"
    """``apart``: channels that take at most two values in the training rows (switches, commands,
    constants) are kept out of the distance; ``in``: every channel counts."""
    layout: Layout | None = None
    """Which column is what; without one, every column is the level of a channel."""

    def __post_init__(self) -> None:
        one_of(self.name, "flags", self.flags, FLAGS)

    def for_features(self, spec: FeatureSpec) -> Self:
        """Return the recipe for rows of these features."""
        return replace(self, layout=Layout.of(spec))

    def fit(self, X: FloatArray, *, seed: int) -> TableScorer:
        """Fit on finite rows X of shape (n, d); equal X and seed give equal scores."""
        X = training_table(self.name, X, self.least_rows)
        layout = self.layout or Layout.plain(X.shape[1])
        if len(layout.channels) != X.shape[1]:
            raise DetectorError(
                f"{self.name} was made for {len(layout.channels)} columns and got rows of shape "
                f"{X.shape}; make it for the features that are used."
            )
        with contained(seed):
            inner = self._fit(X, layout, layout.measured(X, self.flags), seed)
            return TableScorer(self.name, X.shape[1], None, inner, resting=layout.resting(X))

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        raise NotImplementedError


@dataclass(frozen=True)
class Mahalanobis(SensorRecipe):
    """Distance of a row from the training rows, by their shrunk covariance.

    On the columns of ``features.preset = "sensor"`` it is the detector ``Sensor``. Where standard
    deviations are among the columns, their logarithm counts as well
    (:class:`~rejex_stream.detectors.sensor.distance.LowVarianceDistance`): a signal that freezes or
    goes quiet is as far from ordinary as one that is wild. Where a channel's change is among them,
    so does the error of a forecast of it
    (:class:`~rejex_stream.detectors.sensor.distance.PredictionErrorDistance`). A channel that has
    no level in the training rows (a random walk, a stock, a tank that fills for days) is
    judged by its changes alone, and so is an angle that turns.
    """

    allow_nan: ClassVar[bool] = True
    takes_sides: ClassVar[bool] = True
    name: str = "rejex:Mahalanobis"

    def for_features(self, spec: FeatureSpec) -> Self:
        """Return the recipe for rows of these features."""
        layout = Layout.of(spec)
        layout.regions(np.arange(len(layout.channels)), np.zeros(len(layout.channels), np.bool_))
        return replace(self, layout=layout)

    def lacks_level(self, X: FloatArray) -> bool:
        """Whether a channel has no level in rows X of shape (n, d)."""
        return self.layout is not None and bool(self.layout.wandering(X).any())

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        wanders = layout.wandering(X)
        which = np.flatnonzero(measured & (np.array(layout.lags) <= 0) & ~wanders)
        spreads, steps = np.isin(which, layout.spreads), layout.steps(which)
        regions = layout.regions(which, wanders)
        fitted = fit_sided(
            lambda rows: fit_max_distance(rows, spreads, steps), X[:, which], regions
        )
        return Columns(which, fitted)

    def halves(self, X: FloatArray, fitted: TableScorer) -> FloatArray | None:
        """Return what each half of rows X scores by the other, on the scales of a model of all.

        ``None`` where such a model has none, or knows sides.
        """
        columns, layout = fitted.inner, self.layout
        if layout is None or not isinstance(columns, Columns):
            return None
        like, which = columns.inner, columns.which
        if not isinstance(like, MaxDistance):
            return None
        own, spreads, steps = X[:, which], np.isin(which, layout.spreads), layout.steps(which)
        half = len(X) // 2
        parts = [
            fit_max_distance(rows, spreads, steps, like).score(others)
            for rows, others in ((own[half:], own[:half]), (own[:half], own[half:]))
        ]
        return np.concatenate(parts)


@dataclass(frozen=True)
class Subsequence(SensorRecipe):
    """Distance of the last rows, side by side, from those of the training rows.

    Sees a shape that is wrong where every single value is ordinary; the length is that of the
    columns (preset ``lags``).
    """

    allow_nan: ClassVar[bool] = True
    name: str = "rejex:Subsequence"
    preset: PresetName | None = "lags"

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        which = np.flatnonzero(measured & (layout.level() | layout.past()))
        return Columns(which, fit_distance(X[:, which]))


@dataclass(frozen=True)
class VARResidual(SensorRecipe):
    """Distance of the error of a forecast: every channel by ridge on the past of all of them.

    A vector autoregression of up to eight events; sees a change at once, and a new level only until
    it is ordinary.
    """

    name: str = "rejex:VARResidual"
    preset: PresetName | None = "lags"

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        now = np.flatnonzero(measured & layout.level())
        past = np.flatnonzero(measured & layout.past(_MAX_LAGS))
        which = np.concatenate((now, past))
        return Columns(which, fit_residual(X[:, which], len(now)))


def one_of(name: str, key: str, value: str, known: tuple[str, ...]) -> None:
    """Raise a :class:`ConfigError` where a parameter's value is none of those known."""
    if value not in known:
        raise ConfigError(f"{key} = {value!r} is unknown to {name}: use one of {', '.join(known)}.")
