"""A law that cannot be broken is no law: each is shown a detector that breaks it."""

import pickle
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from rejex_stream import checks
from rejex_stream.detectors import make_detector
from rejex_stream.errors import CheckpointError
from rejex_stream.protocols import BatchDetector, IncrementalDetector


# --------------------------------------------------------------- two that keep every law
@dataclass
class Distance:
    centre: np.ndarray
    training_scores: np.ndarray

    def score(self, X):
        return abs(X - self.centre).max(axis=1, initial=0.0)


@dataclass(frozen=True)
class Honest:
    name: str = "mine:Distance"

    def fit(self, X, *, seed):
        centre = X.mean(axis=0)
        return Distance(centre, abs(X - centre).max(axis=1))


@dataclass
class RunningMean:
    n: int = 0
    total: float = 0.0

    def score_one(self, x):
        return float(abs(x - self.total / max(self.n, 1)).max())

    def learn_one(self, x):
        self.n, self.total = self.n + 1, self.total + float(x.mean())

    def state(self):
        return f"mean {self.n} {self.total!r}".encode()


@dataclass(frozen=True)
class HonestIncremental:
    name: str = "mine:RunningMean"
    warm_up_events: int = 10

    def start(self, feature_names, *, seed):
        return RunningMean()

    def restore(self, feature_names, state):
        try:
            word, n, total = state.decode().split()
            if word != "mean" or abs(float(total)) > 1e3 * (int(n) + 1):
                raise ValueError(word)
            return RunningMean(int(n), float(total))
        except ValueError as error:
            raise CheckpointError(f"{state!r} is no state of a RunningMean.") from error


class Sealed(HonestIncremental):
    """With the whole state repeated, so that no flipped bit goes unseen."""

    def restore(self, feature_names, state):
        if state[: len(state) // 2] != state[len(state) // 2 :] or not state:
            raise CheckpointError(f"{state!r} is no state of a RunningMean.")
        return SealedMean(*vars(super().restore(feature_names, state[: len(state) // 2])).values())

    def start(self, feature_names, *, seed):
        return SealedMean()


class SealedMean(RunningMean):
    def state(self):
        return 2 * super().state()


@pytest.mark.thorough
def test_detectors_of_a_users_own_can_keep_every_law():
    assert isinstance(Honest(), BatchDetector)
    assert isinstance(Sealed(), IncrementalDetector)
    checks.check_detector(Honest())
    checks.check_detector(Sealed())


# ------------------------------------------------------------------ one broken for each law
@dataclass(frozen=True)
class Fitting(Honest):
    scorer: type[Distance] = Distance

    def fit(self, X, *, seed):
        return self.scorer(*vars(super().fit(X, seed=seed)).values())


@dataclass(frozen=True)
class Starting(Sealed):
    scorer: type = SealedMean

    def start(self, feature_names, *, seed):
        return self.scorer()


class Nameless(Honest):
    def __reduce__(self):
        return Honest, ("other",)


class Anonymous(Honest):
    __repr__ = object.__repr__


class Renumbered(Honest):
    def __repr__(self):
        return f"Renumbered({id(self)})"


class Unordered(Honest):
    def __repr__(self):
        return f"Unordered({ {'flow', 'level', 'power', 'speed', 'heat', 'torque'} })"


class Unseeded(Honest):
    def fit(self, X, *, seed):
        scorer = super().fit(X, seed=seed)
        scorer.centre = scorer.centre + random.random()
        return scorer


class Wandering(Distance):
    def score(self, X):
        scores = super().score(X)
        self.centre = self.centre + 0.01
        return scores


class Scribbler(Distance):
    def score(self, X):
        X -= self.centre
        return abs(X).max(axis=1, initial=0.0)


class Infinite(Distance):
    def score(self, X):
        scores = super().score(X)
        return np.where(scores > 3, np.inf, scores)


class Integers(Distance):
    def score(self, X):
        return super().score(X).astype(int)


class Inverted(Distance):
    def score(self, X):
        return -super().score(X)


@dataclass
class Hoarder(Distance):
    seen: list = field(default_factory=list)

    def score(self, X):
        self.seen.append(X.copy())
        return super().score(X)


class Scalar(Distance):
    def score(self, X):
        return np.squeeze(super().score(X))


class Relative(Distance):
    def score(self, X):
        return super().score(X) / (1.0 + 1e-16 * len(X) + X.mean() ** 2) if len(X) else np.empty(0)


class DrawsFromTheGlobal(Honest):
    def fit(self, X, *, seed):
        np.random.random()  # noqa: NPY002
        return super().fit(X, seed=seed)


class WritesIntoRows(Honest):
    def fit(self, X, *, seed):
        X -= X.mean(axis=0)
        return super().fit(X, seed=seed)


class View(Distance):
    def score(self, X):
        return abs(X - self.centre.mean(axis=0)).max(axis=1, initial=0.0)


class KeepsTheRows(Honest):
    def fit(self, X, *, seed):
        return View(X, np.zeros(len(X)))


class Amnesiac(Distance):
    def __getstate__(self):
        return {"centre": self.centre * 0 + 1, "training_scores": self.training_scores}


class ShortTraining(Honest):
    def fit(self, X, *, seed):
        return Distance(X.mean(axis=0), np.zeros(3))


class OtherScaleTraining(Honest):
    def fit(self, X, *, seed):
        return Distance(X.mean(axis=0), np.full(len(X), -1e6))


class LearnsWhenAsked(SealedMean):
    def score_one(self, x):
        score = super().score_one(x)
        self.learn_one(x)
        return score


class Counter(SealedMean):
    asked = 0

    def score_one(self, x):
        self.asked += 1
        return super().score_one(x)

    def state(self):
        return super().state() + bytes(self.asked % 7)


class Diary(SealedMean):
    def learn_one(self, x):
        super().learn_one(x)
        self.pages = [*getattr(self, "pages", []), x.tolist()]

    def state(self):
        return super().state() + pickle.dumps(getattr(self, "pages", []))


class HalfAState(Sealed):
    def restore(self, feature_names, state):
        scorer = super().restore(feature_names, state)
        scorer.total = 0.0
        return scorer


class Gullible(Sealed):
    def restore(self, feature_names, state):
        try:
            return super().restore(feature_names, state)
        except CheckpointError:
            return SealedMean()


class Crashing(Sealed):
    def restore(self, feature_names, state):
        if state and not state.startswith(b"mean"):
            raise KeyError("mean")
        return super().restore(feature_names, state)


class NoScorer(Honest):
    def fit(self, X, *, seed):
        return X.mean(axis=0)


BROKEN = [
    (checks.check_it_gives_a_scorer, NoScorer(), r"gave ndarray, which has no score\(\)"),
    (
        checks.check_it_gives_a_scorer,
        Starting(scorer=lambda: Distance(0.0, None)),
        r"no score_one\(\) and no learn_one\(\)",
    ),
    (checks.check_recipe_is_picklable, Nameless(), "out of a pickle as other"),
    (checks.check_recipe_has_an_identity, Anonymous(), "holds an address .*define __repr__"),
    (checks.check_recipe_has_an_identity, Renumbered(), "after a pickle; let __repr__ name"),
    (checks.check_recipe_has_an_identity, Unordered(), "in another process; let __repr__ name"),
    (checks.check_equal_seed_equal_scores, Unseeded(), "made from `seed` alone"),
    (checks.check_score_is_pure, Fitting(scorer=Wandering), "scoring must not change the model"),
    (
        checks.check_score_is_pure,
        Fitting(scorer=Scribbler),
        "wrote into the rows it was given to score",
    ),
    (
        checks.check_score_is_pure,
        Starting(scorer=LearnsWhenAsked),
        "scoring must not change the model",
    ),
    (checks.check_scores_are_finite, Fitting(scorer=Infinite), "gave .inf. for the ordinary row"),
    (checks.check_scores_are_finite, Fitting(scorer=Integers), "scores of type int64"),
    (checks.check_obvious_outlier_ranks_top, Fitting(scorer=Inverted), "turn the sign"),
    (checks.check_memory_is_bounded, Fitting(scorer=Hoarder), "forget old rows"),
    (checks.check_memory_is_bounded, Starting(scorer=Diary), "forget old rows"),
    (checks.check_single_row_works, Fitting(scorer=Scalar), r"shape \(\) for a single row"),
    (
        checks.check_batch_invariance,
        Fitting(scorer=Relative),
        "keep sums over columns in one order",
    ),
    (checks.check_fit_leaves_no_trace, DrawsFromTheGlobal(), "drew from a global"),
    (checks.check_fit_leaves_no_trace, WritesIntoRows(), "wrote into the rows it was fitted on"),
    (checks.check_fit_leaves_no_trace, KeepsTheRows(), "still reads the caller's"),
    (checks.check_scorer_is_picklable, Fitting(scorer=Amnesiac), "before and after a pickle"),
    (checks.check_training_scores_match_rows, ShortTraining(), r"shape \(3,\) for 150 rows"),
    (checks.check_training_scores_match_rows, OtherScaleTraining(), "put both on one scale"),
    (checks.check_state_round_trip, HalfAState(), "write all of the state"),
    (checks.check_foreign_state_is_refused, Gullible(), "took a foreign state for its own"),
    (checks.check_foreign_state_is_refused, Crashing(), "KeyError.* for a foreign state"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("law", "detector", "says"),
    BROKEN,
    ids=[
        f"{law.__name__}-{getattr(detector, 'scorer', type(detector)).__name__}"
        for law, detector, _ in BROKEN
    ],
)
def test_a_broken_law_is_noticed_and_said(law, detector, says):
    with pytest.raises(AssertionError, match=says):
        law(detector)


def test_a_state_that_changes_by_scoring_is_noticed_even_where_no_score_does():
    with pytest.raises(AssertionError, match="changed its state by scoring"):
        checks.check_score_is_pure(Starting(scorer=Counter))


def test_every_law_is_shown_broken():
    laws = {check.__name__ for check in checks.yield_checks(Honest())}
    laws |= {check.__name__ for check in checks.yield_checks(Sealed())}
    assert laws == {law.__name__ for law, _, _ in BROKEN}
    assert laws == {name for name in checks.__all__ if name.startswith("check_")} - {
        "check_detector"
    }


def test_the_laws_come_with_the_kind():
    batch = [check.__name__ for check in checks.yield_checks(make_detector("KNN"))]
    incremental = [check.__name__ for check in checks.yield_checks(make_detector("river:LODA"))]
    assert "check_batch_invariance" in batch
    assert "check_batch_invariance" not in incremental
    assert "check_state_round_trip" in incremental
    assert "check_state_round_trip" not in batch
