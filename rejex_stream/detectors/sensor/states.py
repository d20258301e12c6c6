"""States that nobody names: how many there are, and how far a row is from the nearest.

A pump that runs or rests, and never does half of it, has no single ellipsoid around it that says
anything of what lies between. Up to four are fitted on its levels by classification EM [1]_, each
row in the one under which it is most likely. Their number is that under which held-back blocks of
rows are most likely, as members of one state each [2]_. A state has to begin at once, to last, and
to have been there at least twice: what was seen once may be the fault.

References
----------
.. [1] G. Celeux, G. Govaert: *A classification EM algorithm for clustering and two stochastic
   versions*. Computational Statistics and Data Analysis 14, 1992.
.. [2] C. Biernacki, G. Celeux, G. Govaert: *Assessing a mixture model for clustering with the
   integrated completed likelihood*. IEEE Transactions on Pattern Analysis 22, 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

import numpy as np

from rejex_stream.detectors.sensor.distance import Distance, fit_distance
from rejex_stream.detectors.sensor.recipes import Columns, Index, Layout, SensorRecipe
from rejex_stream.protocols import Scorer
from rejex_stream.types import ColumnGroups, FloatArray

MOST: Final = 4
_MOST_ROWS = 2000  # that states are looked for in; of more, every second, third, ...
_LEAST_ROWS, _LEAST_SHARE = 20, 0.02  # of a state
_ROUNDS = 20
_BLOCKS = 32
"""Of which a half is held back: those whose number has an odd number of bits, as every other one
may be a night."""
_GAIN = 0.7
"""Nats a row by which held-back rows have to be likelier with states than without: a half of the
volume that they fill. What swings or wanders gains .3 at most, what switches at least one."""
_AS_GOOD = 0.05  # nats a row by which more states have to be better than fewer
_STRETCHES, _STRETCH = 2, 5  # that a state has to have been there, of so many rows at least
_STAYS = 0.9  # share of rows whose state is that of the row before
_SWITCH = 0.5  # of the way from one state to the other is gone from one row to the next
_RESOLUTION = 1e-3  # of a channel's deviation: what differs by less is in no state apart


@dataclass(frozen=True, slots=True)
class Nearest:
    """Scores a row by the nearest of some states."""

    states: tuple[Distance, ...]

    @property
    def plain(self) -> Nearest:
        """Itself, as of :class:`Distance`."""
        return self

    def score(self, X: FloatArray) -> FloatArray:
        """Score finite rows X of shape (m, d); O(d²) a row and state."""
        found: FloatArray = np.min([state.score(X) for state in self.states], axis=0)
        return found

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Score rows X of shape (m, d) as :class:`Distance` does, (m, g)."""
        found: FloatArray = np.min([one.score_without(X, groups) for one in self.states], axis=0)
        return found

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray:
        """Return what the others make one expect in the state that a row is nearest to."""
        expected = np.array([state.given_others(X, groups) for state in self.states])
        nearest = np.argmin([state.score(X) for state in self.states], axis=0)
        found: FloatArray = expected[nearest, np.arange(len(X))]
        return found


@dataclass(frozen=True)
class States(SensorRecipe):
    """Distance of the levels from the nearest of the states that a machine is in.

    Of the levels alone: means and differences over a switch are those of no state.
    """

    allow_nan: ClassVar[bool] = True
    name: str = "rejex:States"
    n_states: int = 0  # 0: as many as the rows show that it is fitted on

    def of_rows(self, X: FloatArray) -> Self | None:
        """Return the recipe with as many states as rows X of shape (n, d) have; ``None``: one."""
        n_states = find_states(X[:, self.levels(X)])
        return replace(self, n_states=n_states) if n_states > 1 else None

    def unseen(self, X: FloatArray) -> FloatArray:
        """Return scores of rows X of shape (n, d) by states that were not fitted on them."""
        levels = X[:, self.levels(X)]
        return unseen_by_states(levels, self.n_states or find_states(levels))

    def share_elsewhere(self, X: FloatArray, expected: FloatArray) -> float:
        """Return the share of rows X of shape (n, d) not in the state that one expects, of two.

        `expected` of shape (n, c) are levels, nan where nothing is known of a row.
        """
        levels = X[:, self.levels(X)]
        two, _ = _fit(levels, 2)
        known = np.isfinite(expected).all(axis=1)
        elsewhere = _members(two, levels[known]) != _members(two, expected[known])
        return float(np.mean(elsewhere)) if known.any() else 1.0

    def levels(self, X: FloatArray) -> Index:
        """Return the columns of rows X of shape (n, d) that have states."""
        layout = self.layout or Layout.plain(X.shape[1])
        which = layout.measured(X, self.flags) & layout.level()
        if layout.kinds:
            which &= np.array([kind == "raw" for kind, _ in layout.kinds])
        # A tank that fills has no level, and a machine that is on for half a day has two.
        for j in np.flatnonzero(which & layout.wandering(X)):
            which[j] = find_states(X[:, [j]]) > 1
        return np.flatnonzero(which)

    def _fit(self, X: FloatArray, layout: Layout, measured: Any, seed: int) -> Scorer:  # noqa: ANN401
        which = self.levels(X)
        levels = X[:, which]
        return Columns(which, fit_states(levels, self.n_states or find_states(levels)))


@dataclass(frozen=True, slots=True)
class _Fit:
    """States, and what makes a row a member of one: likelihood, not distance alone."""

    states: tuple[Distance, ...]
    offsets: FloatArray  # of each: its volume and how rare it is, shape (k,)

    @classmethod
    def on(cls, X: FloatArray, member: Index, least: FloatArray) -> _Fit:
        """Fit on rows X of shape (n, d) which are members of states 0..k - 1, shape (n,)."""
        parts = [X[member == i] for i in range(member.max() + 1)]
        states = tuple(fit_distance(part, least) for part in parts)
        shares = np.array([len(part) / len(X) for part in parts])
        volumes = [
            2.0 * (np.log(one.scale.spread).sum() - np.linalg.slogdet(one.root)[1])
            for one in states
        ]
        return cls(states, np.array(volumes) - 2.0 * np.log(shares))

    def costs(self, X: FloatArray) -> FloatArray:
        """Return twice minus the log likelihood of rows as members of each state, (k, m)."""
        scores = np.array([state.score(X) for state in self.states])
        found: FloatArray = scores + self.offsets[:, None]
        return found


def find_states(X: FloatArray) -> int:
    """Return how many states levels X of shape (n, d) have, in order of time; 1: none are found."""
    if not X.shape[1] or len(X) < 4 * _LEAST_ROWS:
        return 1
    X = _thinned(X)
    least = _least_spread(X)
    of_half = [i.bit_count() % 2 for i in range(_BLOCKS)]
    block = np.array(of_half)[np.arange(len(X)) * _BLOCKS // len(X)]
    costs = np.zeros(MOST)
    for held in (0, 1):
        for i, fitted in enumerate(_path(X[block != held], least)):
            costs[i] += float(fitted.costs(X[block == held]).min(axis=0).sum())
        costs[i + 1 :] = np.inf
    gains = (costs[0] - costs) / (2 * len(X))
    enough = [i for i in range(1, MOST) if gains[i] >= max(_GAIN, gains.max() - _AS_GOOD)]
    if not enough:
        return 1
    path = _path(X, least)
    members = [_members(fitted, X) for fitted in path]
    if len(path) == 1 or not _switches(X, members[1], path[0].states[0].scale.spread):
        return 1
    found = [i + 1 for i in enough if i < len(members) and _are_states(members[i])]
    return found[0] if found else 1


def fit_states(X: FloatArray, n_states: int) -> Nearest:
    """Fit so many states, or as many as there are, on finite rows X of shape (n, d)."""
    return Nearest(_fit(X, n_states)[0].states)


def unseen_by_states(X: FloatArray, n_states: int) -> FloatArray:
    """Return what rows X of shape (n, d) score by states that they were not fitted on, (n,).

    Either half of the rows of each state is scored by what is fitted on the other halves: in a half
    of all rows a state may be missing.
    """
    fitted, least = _fit(X, n_states)
    member, half, scores = _members(fitted, X), np.zeros(len(X), np.intp), np.empty(len(X))
    for i in range(member.max() + 1):
        own = np.flatnonzero(member == i)
        half[own[len(own) // 2 :]] = 1
    for held in (0, 1):
        others = half != held
        scores[~others] = Nearest(_Fit.on(X[others], member[others], least).states).score(
            X[~others]
        )
    return scores


def _fit(X: FloatArray, n_states: int) -> tuple[_Fit, FloatArray]:
    sample = _thinned(X)
    least = _least_spread(sample)
    *_, found = _path(sample, least, n_states)
    member = _members(found, X)
    sizes = np.bincount(member, minlength=len(found.states))
    return (_Fit.on(X, member, least) if sizes.min() >= 2 else found), least


def _thinned(X: FloatArray) -> FloatArray:
    return np.ascontiguousarray(X[:: -(-len(X) // _MOST_ROWS)])


def _least_spread(X: FloatArray) -> FloatArray:
    """Return what the deviation of a state is at least: of the channel, and of its rounding."""
    ordered = np.sort(X, axis=0)
    gaps = np.diff(ordered, axis=0)
    smallest = np.where(gaps > 0, gaps, np.inf).min(axis=0)
    rounded = np.where(np.isfinite(smallest), smallest, 0.0) / np.sqrt(12.0)
    least: FloatArray = np.maximum(_RESOLUTION * X.std(axis=0), rounded)
    return np.where(least > 0, least, 1.0)


def _path(X: FloatArray, least: FloatArray, most: int = MOST) -> list[_Fit]:
    """Return the fits of 1, 2, ... states: each begins with the best cut through one before."""
    member = np.zeros(len(X), np.intp)
    found = [_Fit.on(X, member, least)]
    fewest = max(_LEAST_ROWS, int(_LEAST_SHARE * len(X)))
    while len(found) < most:
        cut = _best_cut(found[0].states[0].scale.apply(X), member, fewest)
        if cut is None:
            break
        member = _settled(X, np.where(cut, len(found), member), least, fewest)
        if member is None:
            break
        found.append(_Fit.on(X, member, least))
    return found


def _settled(X: FloatArray, member: Index, least: FloatArray, fewest: int) -> Any:  # noqa: ANN401
    """Return in which state each row is once none changes; ``None``: too few are in one."""
    for _ in range(_ROUNDS):
        new = _members(_Fit.on(X, member, least), X)
        if np.bincount(new, minlength=member.max() + 1).min() < fewest:
            return None
        if (new == member).all():
            break
        member = new
    return member


def _members(fitted: _Fit, X: FloatArray) -> Index:
    found: Index = fitted.costs(X).argmin(axis=0)
    return found


def _best_cut(Z: FloatArray, member: Index, fewest: int) -> Any:  # noqa: ANN401
    """Return which rows lie above the cut that leaves the least variance of a state's channel.

    Either side keeps so many rows; ``None`` where no state can be cut.
    """
    best, found = np.inf, None
    for i in range(member.max() + 1):
        own = np.flatnonzero(member == i)
        if len(own) < 2 * fewest:
            continue
        for column in Z[own].T:
            order = np.argsort(column, kind="stable")
            left, at = _share_left(column[order], fewest)
            if left < best:
                above = np.zeros(len(Z), np.bool_)
                above[own[order[at:]]] = True
                best, found = left, above
    return found


def _share_left(ordered: FloatArray, fewest: int) -> tuple[float, int]:
    """Return which share of the variance the best cut of sorted values leaves, and where it is."""
    x = ordered - ordered.mean()
    total = float(x @ x)
    at = np.arange(fewest, len(x) - fewest + 1)
    apart = ordered[at] > ordered[at - 1] if len(at) else np.zeros(0, np.bool_)
    at = at[apart]
    if not len(at) or total <= 0:
        return np.inf, 0
    below = np.cumsum(x)[at - 1]
    between = below * below * len(x) / (at * (len(x) - at))
    best = int(np.argmax(between))
    return 1.0 - float(between[best]) / total, int(at[best])


def _switches(X: FloatArray, member: Index, spread: FloatArray) -> bool:
    """Whether two states follow each other at once: what swings by the day glides over."""
    Z = X / spread
    apart = Z[member == 1].mean(axis=0) - Z[member == 0].mean(axis=0)
    at = np.flatnonzero(np.diff(member))
    steps = np.abs((Z[at + 1] - Z[at]) @ apart) / float(apart @ apart)
    return bool(len(at)) and float(np.median(steps)) >= _SWITCH


def _are_states(member: Index) -> bool:
    """Whether all states last, and were there in separate stretches."""
    stays = float(np.mean(member[1:] == member[:-1]))
    return stays >= _STAYS and all(
        _stretches(np.flatnonzero(member == i)) >= _STRETCHES for i in range(member.max() + 1)
    )


def _stretches(rows: Index) -> int:
    """Return in how many stretches some rows lie, by their numbers."""
    parts: Sequence[Index] = np.split(rows, np.flatnonzero(np.diff(rows) > _STRETCH) + 1)
    return sum(len(part) >= _STRETCH for part in parts)
