"""Several detectors as one: what each of them says, on the one scale that all of them have.

Scores of different detectors do not compare; how rare a score is does. Each member's score is
turned into minus the decimal logarithm of its tail probability among scores that the member gave
to training rows it was not fitted on, and the ensemble's score is the mean of ``log1p`` of that, so
that no member shouts the others down. Beside a season one member that is sure suffices: it alone
sees what is ordinary at another hour. Beside siblings these alone suffice: a storm that they have,
too, is less unusual for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from rejex_stream.detectors.rowwise import one_by_one
from rejex_stream.detectors.sensor.recipes import GUARD_QUANTILE, Mahalanobis, Subsequence
from rejex_stream.detectors.sensor.season import ByHour, SeasonalResidual
from rejex_stream.detectors.sensor.siblings import SiblingResidual
from rejex_stream.detectors.sensor.states import States
from rejex_stream.detectors.table import TableScorer, training_table
from rejex_stream.errors import ConfigError, DetectorError
from rejex_stream.features import FeatureSpec
from rejex_stream.features.preset import PresetName
from rejex_stream.protocols import BatchDetector, IncrementalDetector, Scorer
from rejex_stream.types import ColumnGroups, FloatArray

_MIN_ROWS = 8
_TAIL = 0.98
_CHOOSY = ByHour | SeasonalResidual | SiblingResidual | States  # of use for some rows alone
_EARLY_OR_LATE = 0.001
"""Share of rows in another state than other turns are at their hour, up to which that tells it."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """How rare a score is, from the scores of ordinary rows: minus log10 of its tail probability.

    Beyond their .98 quantile the tail is taken as exponential (peaks over threshold), so that
    scores larger than all that were seen still have an order.
    """

    ordered: FloatArray  # the scores, sorted; shape (n,)
    start: float  # where the exponential tail begins, and its decades per unit of score
    slope: float

    @classmethod
    def of(cls, scores: FloatArray) -> LogTail:
        """Measure the tail of scores of shape (n,)."""
        ordered = np.sort(scores)
        start = float(ordered[int(_TAIL * (len(ordered) - 1))])
        excess = float(np.mean(ordered[ordered >= start] - start))
        least = max(1e-9 * float(ordered[-1] - ordered[0]), 1e-9 * abs(start), 1e-12)
        return cls(ordered, start, 1.0 / (np.log(10.0) * max(excess, least)))

    def __call__(self, scores: FloatArray) -> FloatArray:
        """Return the log tails of scores of shape (m,); O(log n) a score."""
        return one_by_one(self.of_one, scores)

    def of_one(self, score: float) -> float:
        n = len(self.ordered)
        at_or_above = n - int(self.ordered.searchsorted(min(score, self.start)))
        beyond = max(score - self.start, 0.0) * self.slope
        return beyond - math.log10((at_or_above + 1) / (n + 1))


@dataclass(frozen=True, slots=True)
class Members:
    """Fitted members, each with the tail of its scores."""

    scorers: tuple[Scorer, ...]
    tails: tuple[LogTail, ...]
    sure: int = 0  # of so many of the last, one suffices

    def score(self, X: FloatArray) -> FloatArray:
        tails = [
            tail(scorer.score(X)) for scorer, tail in zip(self.scorers, self.tails, strict=True)
        ]
        return _joint(tails, self.sure)

    def score_row(self, row: Sequence[float]) -> float:
        own = [cast("TableScorer", scorer).by_row()(row) for scorer in self.scorers]
        tails = [tail.of_one(score) for score, tail in zip(own, self.tails, strict=True)]
        return _joint_of_one(tails, self.sure)

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        """Return what the first member that knows expects of each group, given the others.

        A later one, the season, has the word where a reading is beyond its range: where several
        channels are at fault, what the others make one expect is at fault as well.
        """
        said = None
        for scorer in self.scorers:
            own = scorer.given_others(X, groups) if isinstance(scorer, TableScorer) else None
            if own is None:
                continue
            if said is None:
                said = own
                continue
            read = X[:, [group[0] for group in groups]]
            is_beyond = (read < own[:, :, 1]) | (read > own[:, :, 2])
            said = np.where(is_beyond[:, :, None], own, said)
        return said

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        tails = []
        for scorer, tail in zip(self.scorers, self.tails, strict=True):
            own = scorer.score_without(X, groups) if isinstance(scorer, TableScorer) else None
            if own is None:
                return None
            tails.append(tail(own))
        return _joint(tails, self.sure)


def _joint(tails: Sequence[FloatArray], sure: int) -> FloatArray:
    shape = tails[0].shape
    rows = zip(*(tail.ravel().tolist() for tail in tails), strict=True)
    return np.array([_joint_of_one(row, sure) for row in rows], np.float64).reshape(shape)


def _joint_of_one(tails: Sequence[float], sure: int) -> float:
    """Return the mean of ``log1p`` of the tails; or, if more, of the largest that suffices.

    The largest of k is as rare as k times its probability, whatever the others say (Bonferroni).
    """
    total = 0.0
    for tail in tails:
        total += math.log1p(tail)
    mean = total / len(tails)
    if not sure:
        return mean
    largest = max(0.0, *tails[len(tails) - sure :])
    return max(mean, math.log1p(max(largest - math.log10(len(tails)), 0.0)))


@dataclass(frozen=True, slots=True)
class WithStates:
    """What the nearest state says of a row, or what all others say together if they are surer.

    What rolls over a switch is absurd to a distance that trains on no such rows, since they score
    high, and yet it comes each day: the others are as sure as their joint score is rare.
    """

    others: Members
    tail: LogTail  # of the joint score of the others
    states: TableScorer
    tail_of_states: LogTail

    def score(self, X: FloatArray) -> FloatArray:
        return self._larger(self.others.score(X), self.states.score(X))

    def _larger(self, others: FloatArray, states: FloatArray) -> FloatArray:
        return one_by_one(math.log1p, np.maximum(self.tail(others), self.tail_of_states(states)))

    def given_others(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        return self.others.given_others(X, groups)

    def score_without(self, X: FloatArray, groups: ColumnGroups) -> FloatArray | None:
        others, states = (one.score_without(X, groups) for one in (self.others, self.states))
        return None if others is None or states is None else self._larger(others, states)


@dataclass(frozen=True)
class Ensemble:
    """Mean of the members' log tails; beside a season the largest, where that says more.

    Notes
    -----
    Fits every member three times: on either half of the rows, to score the other half, and on all;
    what knows a season scores each turn of it by the others, and what knows states either half of
    the rows of each.
    """

    guard_quantile: ClassVar[float] = GUARD_QUANTILE
    members: tuple[BatchDetector, ...]
    """Recipes that are fitted on a table; each takes its own columns of a row."""
    name: str = "rejex:Ensemble"
    """For metrics and snapshots."""
    preset: PresetName | None = "sensor_lags"
    """The columns where a pipeline names none: enough for every member."""

    @property
    def allow_nan(self) -> bool:
        """Whether every member scores rows some of whose columns are nan."""
        return all(getattr(member, "allow_nan", False) for member in self.members)

    def for_features(self, spec: FeatureSpec) -> Ensemble:
        """Return the recipe for rows of these features."""
        bound = tuple(
            member.for_features(spec) if hasattr(member, "for_features") else member
            for member in self.members
        )
        return replace(self, members=bound)

    def fit(self, X: FloatArray, *, seed: int) -> TableScorer:
        """Fit on finite rows X of shape (n, d), in their order; equal X and seed, equal scores."""
        X = training_table(self.name, X, _MIN_ROWS)
        scorers, tails, unseen = list[Scorer](), list[LogTail](), list[FloatArray]()
        members = _of_use(self.members, X)
        for member in members:
            scorers.append(member.fit(X, seed=seed))
            scores = None
            if type(member) is Mahalanobis and isinstance(members[-1], SiblingResidual):
                scores = member.halves(X, cast("TableScorer", scorers[-1]))
            scores = _unseen(member, X, seed) if scores is None else scores
            known = scores[np.isfinite(scores)]
            if not len(known):
                raise DetectorError(f"{member.name} of {self.name} gave no finite score.")
            tails.append(LogTail.of(known))
            unseen.append(tails[-1](scores))
        inner = _joined(members, scorers, tails, unseen)
        apart = [set(getattr(scorer, "resting", ())) for scorer in scorers]
        resting = tuple(sorted(set.intersection(*apart)))  # no member scores them
        return TableScorer(self.name, X.shape[1], None, inner, resting=resting)


def _joined(
    members: Sequence[BatchDetector],
    scorers: Sequence[Scorer],
    tails: Sequence[LogTail],
    unseen: Sequence[FloatArray],
) -> Members | WithStates:
    sure = len(members) if any(isinstance(one, SeasonalResidual) for one in members) else 0
    if isinstance(members[-1], SiblingResidual):
        sure = 1
    states = next((i for i, one in enumerate(members) if isinstance(one, States)), None)
    if states is None or len(members) == 1:
        return Members(tuple(scorers), tuple(tails), sure)
    which = [i for i in range(len(scorers)) if i != states]
    others = Members(tuple(scorers[i] for i in which), tuple(tails[i] for i in which), sure)
    joint = _joint([unseen[i] for i in which], sure)
    tail = LogTail.of(joint[np.isfinite(joint)])
    own = scorers[states]
    assert isinstance(own, TableScorer)  # as States makes them
    return WithStates(others, tail, own, tails[states])


def _of_use(members: Sequence[BatchDetector], X: FloatArray) -> Sequence[BatchDetector]:
    """Return the members that rows X of shape (n, d) accept.

    One for a season or for states is of use where they are, or where it is alone. A machine that
    is on by day, from one time or another, has states and no season: each row in which it is early
    or late would be absurd.
    """
    found = [one.of_rows(X) if isinstance(one, _CHOOSY) else one for one in members]
    states = next((one for one in found if isinstance(one, States)), None)
    season = next((one for one in found if isinstance(one, SeasonalResidual)), None)
    if states is not None and not (
        season is not None
        and states.share_elsewhere(X, season.expected(X, states.levels(X))) <= _EARLY_OR_LATE
    ):
        found = [one.member if isinstance(one, ByHour) else one for one in found if one != season]
    return [one for one in found if one is not None] or members


def _unseen(member: BatchDetector, X: FloatArray, seed: int) -> FloatArray:
    if isinstance(member, SeasonalResidual | States):
        return member.unseen(X)
    older, newer = X[: len(X) // 2], X[len(X) // 2 :]
    unseen = [
        np.asarray(member.fit(rows, seed=seed).score(others), dtype=np.float64)
        for rows, others in ((newer, older), (older, newer))
    ]
    return np.concatenate(unseen)


def beside_siblings(detector: BatchDetector | IncrementalDetector) -> Ensemble:
    """Return a detector for sensors with what siblings say as one more member."""
    if type(detector) is Mahalanobis:
        detector = Ensemble((detector,), detector.name, detector.preset)
    if not isinstance(detector, Ensemble):
        raise ConfigError(
            f"input.siblings, but {detector.name} judges no sensor beside others: take "
            'detector.name = "Sensor", or leave the siblings out.'
        )
    known = any(isinstance(member, SiblingResidual) for member in detector.members)
    return detector if known else replace(detector, members=(*detector.members, SiblingResidual()))


def sensor_ensemble(flags: str = "apart") -> Ensemble:
    """Return ``SensorEnsemble``: a row, and the last rows side by side."""
    members = Mahalanobis("rejex:Sensor", flags=flags), Subsequence(flags=flags)
    return Ensemble(members, "rejex:SensorEnsemble")


def seasonal_sensor(flags: str = "apart") -> Ensemble:
    """Return ``SeasonalSensor``: ``Sensor``, a season and states where there are any."""
    sensor = ByHour(Mahalanobis("rejex:Sensor", flags=flags))
    members = sensor, SeasonalResidual(flags=flags), States(flags=flags)
    return Ensemble(members, "rejex:SeasonalSensor", "sensor_seasonal")


def state_sensor(flags: str = "apart") -> Ensemble:
    """Return ``StateSensor``: ``Sensor``, and the nearest of some states where there are any."""
    members = Mahalanobis("rejex:Sensor", flags=flags), States(flags=flags)
    return Ensemble(members, "rejex:StateSensor", "sensor")


def ensemble(members: Sequence[BatchDetector | Any] = ()) -> Ensemble:
    """Return an ensemble of the given recipes."""
    if not members:
        raise ConfigError("members is empty: give detectors by name, e.g. ['Sensor', 'KNN'].")
    for member in members:
        if not isinstance(member, BatchDetector):
            raise ConfigError(
                f"{member.name} learns one row at a time: an ensemble's members are fitted on a "
                "table, as PyOD's detectors and those for sensors are."
            )
    return Ensemble(tuple(members))
