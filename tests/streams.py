"""Readings and small honest detectors for the tests of the engine."""

import math
import random
from array import array
from dataclasses import dataclass

import numpy as np

from rejex_stream.engine import EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.engine.stream_state import StreamSnapshot
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.incidents import Hold
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.types import Position, Reading


@dataclass(frozen=True)
class DistanceScorer:
    """Absolute distance from the training mean, with a seeded wobble that shows wrong seeds."""

    mean: np.ndarray
    wobble: float

    def score(self, X):
        return np.abs(X - self.mean).sum(axis=1) * (1 + self.wobble)


@dataclass(frozen=True)
class Distance:
    """A batch detector that costs nothing."""

    name: str = "test:Distance"

    def fit(self, X, *, seed):
        return DistanceScorer(X.mean(axis=0), np.random.default_rng(seed).random() * 1e-3)


@dataclass(frozen=True)
class FirstColumn:
    """Scores a row by its first number, whatever its sign: a test chooses the ranks."""

    name: str = "test:FirstColumn"

    def fit(self, X, *, seed):
        return self

    def score(self, X):
        return np.array(X)[:, 0]


@dataclass(frozen=True)
class FailsOn:
    """Fails for the epochs it is told, by their seeds."""

    seeds: tuple[int, ...]
    name: str = "test:FailsOn"

    def fit(self, X, *, seed):
        if seed in self.seeds:
            raise ValueError("singular matrix")
        return Distance().fit(X, seed=seed)


@dataclass(frozen=True)
class Holes:
    """Gives scores that are not finite now and then."""

    name: str = "test:Holes"

    def fit(self, X, *, seed):
        return HoleScorer(DistanceScorer(X.mean(axis=0), 0.0))


@dataclass(frozen=True)
class HoleScorer:
    inner: DistanceScorer

    def score(self, X):
        scores = self.inner.score(X)
        return np.where(X[:, 0] > 1.5, np.nan, scores)


def readings(events=600, keys=("a", "b"), channels=2, seed=0, missing=0.02, stuck=0):
    """Mixed keys, a drifting mean, missing channels, ties, spikes."""
    rng = random.Random(seed)
    made = []
    for i in range(events):
        key = rng.choice(keys)
        values = []
        for c in range(channels):
            value = rng.gauss(i / events, 1.0)
            if rng.random() < 0.3:
                value = round(value, 1)
            if rng.random() < 0.02:
                value += 8.0
            if rng.random() < missing:
                value = float("nan")
            if i < stuck:
                value = 5.0
            values.append(value + c)
        # Two sensors share every key, as when sensors are pooled.
        sensor = f"{key}-{i % 2}"
        made.append(Reading(key, sensor, 1000 * i, tuple(values), Position("t", 0, i)))
    return made


def of_rows(rows, key="s", step_ms=1000, first=0):
    return [
        Reading(key, key, step_ms * i, tuple(map(float, row)), Position("t", 0, i))
        for i, row in enumerate(rows, first)
    ]


def played(make, readings, sizes=100, restarts=lambda: False):
    """Return the verdicts and the incidents of readings in pieces, with restarts in between.

    `make` makes an engine, `sizes` is a number or draws one; where `restarts` says so after a
    piece, another engine goes on from a snapshot.
    """
    engine, verdicts, incidents = make(), [], []
    while (at := len(verdicts)) < len(readings):
        size = sizes() if callable(sizes) else sizes
        verdicts += engine.process(readings[at : at + size])
        incidents += engine.take_incidents()
        if restarts():
            kept, engine = engine.snapshot(), make()
            engine.restore(kept)
    return verdicts, incidents


def judged_alone(judge, scores, seq=0):
    readings, verdicts = of_rows([[0.0]] * len(scores), step_ms=1, first=seq), [None] * len(scores)
    judge.judge(readings, range(len(scores)), list(scores), verdicts, seq=seq, epoch=0)
    return verdicts


def spec(
    detector=None, *, calibration="shadow", lag=7, window=60, features=(), every=90, evidence=False,
    guard=None, guard_share=0.5, hold=None, modes=False, **policy,
):  # fmt: skip
    """A pipeline small enough to meet every boundary within a few hundred events."""
    return EngineSpec(
        detector or Distance(), FeatureSpec(("x", "y"), features, carry_forward_events=1),
        RejectionPolicy(0.2, **(policy or {"tolerance": 3.0})), window=window,
        schedule=RefitSchedule(
            first_fit_events=50, refit_every_events=every, refit_lag_events=lag, buffer_events=80,
            calibration=calibration, guard_quantile=guard, guard_share=guard_share,
        ),
        seed=3, evidence=evidence, hold=hold or Hold(), modes=modes,
    )  # fmt: skip


ROLLING = (
    Feature("raw", "x"), Feature("lag", "y", events=2), Feature("mean", "x", events=5),
    Feature("std", "x", seconds=9.0), Feature("max", "y", events=4), Feature("hour_of_day"),
)  # fmt: skip

EVERY_KIND = (
    Feature("raw", "x"), Feature("lag", "y", events=3), Feature("difference", "x", events=2),
    *(Feature(kind, "x", events=4) for kind in ("mean", "std", "min", "max")),
    *(Feature(kind, "y", seconds=12.0) for kind in ("mean", "std", "min", "max")),
    Feature("hour_of_day"), Feature("day_of_week"),
)  # fmt: skip


def stream_of(engine, key):
    view = engine.view(key)
    return StreamSnapshot(view.state(), view.model(), view.model_version)


def with_stream(engine, key, kept, *, head=None, **how):
    """Let an engine go on with one stream; return what is said of it."""
    return engine.restore_streams(head or engine.head(), {key: kept}, **how)


class PartsByVersion:
    """Streams as a run keeps them: of each the model part is written once a version."""

    def __init__(self):
        self._parts = {}

    def keep(self, engine):
        self._head = engine.head()
        for key in engine.streams():
            view, before = engine.view(key), self._parts.get(key)
            is_same = before is not None and before.model_version == view.model_version
            model = before.model if is_same else view.model()
            self._parts[key] = StreamSnapshot(view.state(), model, view.model_version)

    def restore(self, engine):
        engine.restore_streams(self._head, self._parts)
        return engine


def check_window(window):
    """Raise AssertionError unless both containers of a window tell the same story."""
    window._sorted._check()
    assert len(window._ring) == len(window._sorted) <= window.capacity
    assert list(window._sorted) == sorted(window._ring)
    assert all(map(math.isfinite, window._ring))
    # Plain numbers are what keeps the memory at 17 bytes a score.
    assert all(type(part) is array for part in window._parts)
    assert window._parts is window._sorted._lists
    assert len(window._parts) <= 1 or window.capacity > 8192
