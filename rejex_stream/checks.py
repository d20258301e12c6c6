"""Laws that every detector must keep, yours included; run them in your own tests.

>>> from rejex_stream.detectors import make_detector
>>> check_detector(make_detector("ECOD"))

A law that is broken raises ``AssertionError`` with a sentence that says what was seen.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from rejex_stream import protocols
from rejex_stream.detectors import as_detector
from rejex_stream.errors import CheckpointError, ConfigError
from rejex_stream.types import FloatArray

__all__ = [
    "check_batch_invariance", "check_detector", "check_equal_seed_equal_scores",
    "check_fit_leaves_no_trace", "check_foreign_state_is_refused", "check_it_gives_a_scorer",
    "check_memory_is_bounded", "check_obvious_outlier_ranks_top", "check_recipe_has_an_identity",
    "check_recipe_is_picklable", "check_score_is_pure", "check_scorer_is_picklable",
    "check_scores_are_finite", "check_single_row_works", "check_state_round_trip",
    "check_training_scores_match_rows", "yield_checks",
]  # fmt: skip

Detector = protocols.BatchDetector | protocols.IncrementalDetector
Check = Callable[[Any], None]

_ROWS = 150
_COLUMNS = 3
_SEED = 7


def check_detector(detector: object) -> None:
    """Hold a detector, or whatever :func:`~rejex_stream.detectors.as_detector` takes, to every law.

    Raises
    ------
    AssertionError
        A law is broken; the message says which and how.
    DetectorError
        If it is no detector at all.
    """
    recipe = as_detector(detector)
    for check in yield_checks(recipe):
        try:
            check(recipe)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(
                f"{recipe.name} failed in {check.__name__}, {(check.__doc__ or '').split('.')[0]}: "
                f"{type(error).__name__}: {error}"
            ) from error


def yield_checks(detector: Detector) -> Iterator[Check]:
    """Yield the laws for a detector's kind, as functions of the detector.

    Examples
    --------
    >>> from rejex_stream.detectors import make_detector
    >>> [check.__name__ for check in yield_checks(make_detector("ECOD"))][:2]
    ['check_it_gives_a_scorer', 'check_recipe_is_picklable']
    """
    yield check_it_gives_a_scorer
    yield check_recipe_is_picklable
    yield check_recipe_has_an_identity
    yield check_equal_seed_equal_scores
    yield check_score_is_pure
    yield check_scores_are_finite
    yield check_obvious_outlier_ranks_top
    yield check_memory_is_bounded
    if isinstance(detector, protocols.BatchDetector):
        yield check_single_row_works
        yield check_batch_invariance
        yield check_fit_leaves_no_trace
        yield check_scorer_is_picklable
        yield check_training_scores_match_rows
    else:
        yield check_state_round_trip
        yield check_foreign_state_is_refused


# ------------------------------------------------------------------------------- both kinds
def check_it_gives_a_scorer(detector: Detector) -> None:
    """Require that a fit, or a start, gives an object with the methods of its protocol."""
    given: object
    if isinstance(detector, protocols.BatchDetector):
        given, call, protocol = _fit(detector), "fit(X, seed=...)", "Scorer"
        needed = ["score"]
    else:
        given, call = _learnt(detector, 0), "start(names, seed=...)"
        protocol, needed = "IncrementalScorer", ["score_one", "learn_one", "state"]
    lacks = [name for name in needed if not callable(getattr(given, name, None))]
    _require(
        not lacks,
        f"{call} of {detector.name} gave {type(given).__name__}, which has no "
        f"{' and no '.join(f'{name}()' for name in lacks)}; give an object that meets "
        f"rejex_stream.protocols.{protocol}.",
    )


def check_recipe_is_picklable(detector: Detector) -> None:
    """Require that a recipe travels to another process and keeps its name."""
    copy = pickle.loads(pickle.dumps(detector))
    _require(
        copy.name == detector.name,
        f"{detector.name} comes out of a pickle as {copy.name}; keep every attribute in it.",
    )


def check_recipe_has_an_identity(detector: Detector) -> None:
    """Require that equal recipes have an equal ``repr``, in this process and in any other.

    By it a snapshot knows whose state it holds.
    """
    try:
        protocols.require_identity(detector)
    except ConfigError as error:
        _require(False, str(error))
    ours = repr(detector)
    pickled = pickle.dumps(detector)
    for where, theirs in {
        "after a pickle": repr(pickle.loads(pickled)),
        "in another process": _repr_elsewhere(pickled),
    }.items():
        _require(
            theirs == ours,
            f"{detector.name} is {ours} here and {theirs} {where}; let __repr__ name the "
            f"parameters, in one order, and nothing that changes.",
        )


def check_equal_seed_equal_scores(detector: Detector) -> None:
    """Require that equal rows and an equal seed give equal scores, whatever was drawn before."""
    fresh = _rows(40, _COLUMNS, seed=2)
    runs = []
    for noise in (0, 1):
        random.seed(noise)
        np.random.seed(noise)  # noqa: NPY002 - a detector that leans on it must be caught
        runs.append(_fitted(detector)[0](fresh))
    _require(
        np.array_equal(runs[0], runs[1], equal_nan=True),
        f"{detector.name} scored {_first_difference(*runs)} after a second start from the same "
        f"rows and seed; draw random numbers from a generator made from `seed` alone.",
    )


def check_score_is_pure(detector: Detector) -> None:
    """Require that scoring changes neither the model nor the rows."""
    fresh = _rows(12, _COLUMNS, seed=3)
    unchanged = fresh.copy()
    score, knowledge = _fitted(detector)
    before = knowledge()
    first = score(fresh)
    _require(
        np.array_equal(fresh, unchanged),
        f"{detector.name} wrote into the rows it was given to score.",
    )
    score(_rows(30, _COLUMNS, seed=4) * 3)
    again = score(fresh)
    _require(
        np.array_equal(first, again, equal_nan=True),
        f"{detector.name} scored {_first_difference(first, again)} when asked again after other "
        f"rows were scored; scoring must not change the model.",
    )
    _require(
        isinstance(detector, protocols.BatchDetector) or before == knowledge(),
        f"{detector.name} changed its state by scoring; let learn_one do all learning.",
    )


def check_scores_are_finite(detector: Detector) -> None:
    """Require a finite float score for ordinary rows and for rows somewhat outside."""
    fresh = np.concatenate([_rows(20, _COLUMNS, seed=5), 4 * _rows(5, _COLUMNS, seed=6)])
    score, _ = _fitted(detector)
    scores = np.asarray(score(fresh))
    _require(
        scores.dtype == np.float64 and scores.shape == (len(fresh),),
        f"{detector.name} gave scores of type {scores.dtype} and shape {scores.shape} for "
        f"{len(fresh)} rows; give float64 of shape ({len(fresh)},).",
    )
    wrong = np.flatnonzero(~np.isfinite(scores))
    _require(
        len(wrong) == 0,
        f"{detector.name} gave {scores[wrong[:1]]} for the ordinary row {fresh[wrong[:1]]}.",
    )


def check_obvious_outlier_ranks_top(detector: Detector) -> None:
    """Require that a row twelve deviations out everywhere outscores 99 % of ordinary rows."""
    ordinary = _rows(100, _COLUMNS, seed=8)
    outlier = np.array([[12.0, -12.0, 12.0]])
    score, _ = _fitted(detector)
    top = float(score(outlier)[0])
    above = int(np.count_nonzero(score(ordinary) > top))
    _require(
        above <= 1,
        f"{detector.name} scored an obvious outlier {top!r}, and {above} of 100 ordinary rows "
        f"higher; high must mean anomalous (turn the sign?).",
    )


def check_memory_is_bounded(detector: Detector) -> None:
    """Require that what a model keeps does not grow with the events it has seen."""
    if isinstance(detector, protocols.BatchDetector):
        scorer = _fit(detector)
        sizes = []
        for seed in range(2):
            for _ in range(10):
                scorer.score(_rows(100, _COLUMNS, seed=seed))
            sizes.append(len(pickle.dumps(scorer)))
        events = 1000
    else:
        events = detector.warm_up_events + 500
        model = detector.start(_names(_COLUMNS), seed=_SEED)
        sizes = []
        for seed in range(2):
            for x in _rows(events, _COLUMNS, seed=seed):
                model.learn_one(x)
            sizes.append(len(model.state()))
    _require(
        sizes[1] <= 1.3 * sizes[0] + 1000,
        f"{detector.name} keeps {sizes[0]} bytes after {events} events and {sizes[1]} after "
        f"{2 * events}; forget old rows, or bound what is kept of them.",
    )


# ------------------------------------------------------------------------------------- batch
def check_single_row_works(detector: protocols.BatchDetector) -> None:
    """Require that one row can be scored, and none."""
    scorer = _fit(detector)
    single = np.asarray(scorer.score(_rows(1, _COLUMNS, seed=9)))
    _require(
        single.shape == (1,),
        f"{detector.name} gave an array of shape {single.shape} for a single row.",
    )
    none = np.asarray(scorer.score(np.empty((0, _COLUMNS))))
    _require(
        none.shape == (0,), f"{detector.name} gave an array of shape {none.shape} for no rows."
    )


def check_batch_invariance(detector: protocols.BatchDetector) -> None:
    """Require that no cut of a stream into batches changes a bit of a score."""
    for n_columns in (1, 2, 5, 17, 40):
        scorer = _fit(detector, n_columns)
        fresh = 1.5 * _rows(70, n_columns, seed=10)
        rng = np.random.default_rng(n_columns)
        alone = np.concatenate([scorer.score(x[None]) for x in fresh])
        for n_cuts in (0, 1, 3, 20):
            cuts = np.sort(rng.choice(np.arange(1, 70), n_cuts, replace=False))
            edges = [0, *cuts.tolist(), 70]
            joined = np.concatenate([scorer.score(fresh[a:b]) for a, b in pairwise(edges)])
            _require(
                np.array_equal(alone, joined, equal_nan=True),
                f"{detector.name} on {n_columns} columns scored "
                f"{_first_difference(alone, joined)} alone and in batches cut at {edges}; score "
                f"row by row, or keep sums over columns in one order.",
            )


def check_fit_leaves_no_trace(detector: protocols.BatchDetector) -> None:
    """Require that a fit leaves its rows and the global generators alone, and keeps copies."""
    rows = _rows(_ROWS, _COLUMNS)
    unchanged = rows.copy()
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    scorer = detector.fit(rows, seed=_SEED)
    drawn = np.random.random(), random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    _require(
        drawn == (np.random.random(), random.random()),  # noqa: NPY002
        f"{detector.name} drew from a global random generator; make one from `seed`.",
    )
    _require(
        np.array_equal(rows, unchanged), f"{detector.name} wrote into the rows it was fitted on."
    )
    fresh = _rows(10, _COLUMNS, seed=11)
    before = scorer.score(fresh)
    rows[:] = 0.0
    _require(
        np.array_equal(before, scorer.score(fresh), equal_nan=True),
        f"{detector.name} still reads the caller's training rows; copy what is needed.",
    )


def check_scorer_is_picklable(detector: protocols.BatchDetector) -> None:
    """Require that a model fitted in another process scores the same here."""
    scorer = _fit(detector)
    fresh = _rows(20, _COLUMNS, seed=12)
    copy = pickle.loads(pickle.dumps(scorer))
    _require(
        np.array_equal(scorer.score(fresh), copy.score(fresh), equal_nan=True),
        f"{detector.name} scores {_first_difference(scorer.score(fresh), copy.score(fresh))} "
        f"before and after a pickle.",
    )


def check_training_scores_match_rows(detector: protocols.BatchDetector) -> None:
    """Require of training scores, if any: one a row, on the scale of the scores."""
    scorer = _fit(detector)
    training = getattr(scorer, "training_scores", None)
    if training is None:
        return
    training = np.asarray(training)
    _require(
        training.shape == (_ROWS,),
        f"{detector.name} has training scores of shape {training.shape} for {_ROWS} rows.",
    )
    again = scorer.score(_rows(_ROWS, _COLUMNS))
    gap = abs(float(np.median(training)) - float(np.median(again)))
    spread = float(np.ptp(again))
    _require(
        gap <= spread,
        f"{detector.name} has training scores around {np.median(training)!r} but scores the same "
        f"rows around {np.median(again)!r}; put both on one scale.",
    )


# ------------------------------------------------------------------------------- incremental
def check_state_round_trip(detector: protocols.IncrementalDetector) -> None:
    """Require that a model restored at any event goes on as if nothing had happened."""
    names = _names(_COLUMNS)
    for events in (0, 1, detector.warm_up_events + 20):
        model = detector.start(names, seed=_SEED)
        for x in _rows(events, _COLUMNS):
            model.learn_one(x)
        copy = detector.restore(names, model.state())
        for x in _rows(25, _COLUMNS, seed=13):
            scores = model.score_one(x), copy.score_one(x)
            _require(
                scores[0] == scores[1] or bool(np.isnan(scores).all()),
                f"{detector.name}, restored after {events} events, scored {scores[1]!r} where the "
                f"original scored {scores[0]!r}; write all of the state.",
            )
            model.learn_one(x)
            copy.learn_one(x)


def check_foreign_state_is_refused(detector: protocols.IncrementalDetector) -> None:
    """Require a CheckpointError for bytes that are no undamaged state of this detector."""
    names = _names(_COLUMNS)
    state = _learnt(detector, detector.warm_up_events + 5).state()
    damaged = bytearray(state)
    damaged[len(state) // 2] ^= 1
    for kind, blob in {
        "foreign": b"\x80\x04not a state",
        "empty": b"",
        "cut": state[: len(state) // 2],
        "damaged": bytes(damaged),
    }.items():
        try:
            detector.restore(names, blob)
        except CheckpointError:
            continue
        except Exception as error:
            _require(
                False,
                f"{detector.name} raised {error!r} for a {kind} state; raise a CheckpointError.",
            )
        _require(False, f"{detector.name} took a {kind} state for its own; add a checksum.")


# ------------------------------------------------------------------------------------- tools
def _repr_elsewhere(pickled: bytes) -> str:
    """Return the ``repr`` of a recipe in a new process, where text has other hashes."""
    code = (
        "import pickle, sys\n"
        "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(repr(pickle.load(sys.stdin.buffer)).encode())"
    )
    hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(sys.path) + pickled,
        env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=False,
    )
    complaint = done.stderr.decode()
    fix = (
        "what is defined in a notebook or a script cannot be found from elsewhere: put it into a "
        "module of its own, and import it."
        if "module '__main__'" in complaint
        else complaint[-500:]
    )
    _require(done.returncode == 0, f"The recipe cannot be unpickled in another process: {fix}")
    return done.stdout.decode()


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _rows(n: int, n_columns: int, seed: int = 1) -> FloatArray:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 1))
    rows: FloatArray = 0.6 * shared + 0.8 * rng.normal(size=(n, n_columns))
    return rows


def _names(n_columns: int) -> list[str]:
    return [f"channel {j}" for j in range(n_columns)]


def _fit(detector: protocols.BatchDetector, n_columns: int = _COLUMNS) -> protocols.Scorer:
    return detector.fit(_rows(_ROWS, n_columns), seed=_SEED)


def _learnt(detector: protocols.IncrementalDetector, events: int) -> protocols.IncrementalScorer:
    model = detector.start(_names(_COLUMNS), seed=_SEED)
    for x in _rows(events, _COLUMNS):
        model.learn_one(x)
    return model


def _fitted(
    detector: Detector,
) -> tuple[Callable[[FloatArray], FloatArray], Callable[[], bytes | None]]:
    if isinstance(detector, protocols.BatchDetector):
        return _fit(detector).score, lambda: None
    model = _learnt(detector, detector.warm_up_events + 50)
    return lambda X: np.array([model.score_one(x) for x in X]), model.state


def _first_difference(a: FloatArray, b: FloatArray) -> str:
    if a.shape != b.shape:
        return f"{a.shape} and {b.shape} values"
    different = (a != b) & ~(np.isnan(a) & np.isnan(b))
    i = int(np.flatnonzero(different)[0]) if different.any() else 0
    return f"{a[i].item()!r} and {b[i].item()!r} (row {i})"
