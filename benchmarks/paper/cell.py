"""One (data set, detector, fold): its fit, and everything that is computed once for it.

Arrays go to ``cache/`` beside the rows with the CPU time they took, so that a resumed run starts
where it stopped, a threshold search costs milliseconds, and a method is still charged for what
it needs (table Q3).
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.paper.data import Dataset, Fold
from benchmarks.paper.effort import Effort
from benchmarks.paper.metrics import point_instability
from benchmarks.paper.unify import Unifier
from rejex_stream.detectors import make_detector
from rejex_stream.facade import RejectingDetector
from rejex_stream.protocols import BatchDetector, Scorer
from rejex_stream.rejection import anomaly_count

__all__ = ["TOLERANCE", "Cell", "Part", "Space"]

TOLERANCE = 32.0
_FEW_FEATURES = 8
_SUBSPACE = 5

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """Arrays by name, and the CPU seconds that making them took."""

    arrays: Mapping[str, npt.NDArray[np.float64]]
    cpu_s: float

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


@dataclass(frozen=True, slots=True)
class Space:
    """Columns in which volumes are measured.

    Attributes
    ----------
    columns
        Which; ``None`` for all of them.
    seed
        Of the detector that is fitted on them.
    rows, points
        The metric rows (rows, columns) and uniform points in a box around the data.
    """

    columns: npt.NDArray[np.int64] | None
    seed: int
    rows: Array
    points: Array


@dataclass
class Cell:
    """A detector on one fold of a data set.

    Attributes
    ----------
    dataset, fold, detector
        What is fitted on what; `detector` is a name of the registry.
    ensemble
        The detectors whose opinions the consensus methods ask, besides this one's own.
    effort
        Sizes of the Monte-Carlo parts.
    cache
        Folder of the arrays.
    peers
        The other cells of this fold, by detector.
    """

    dataset: Dataset
    fold: Fold
    detector: str
    ensemble: tuple[str, ...]
    effort: Effort
    cache: Path
    peers: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def gamma(self) -> float:
        """Contamination of the data set."""
        return self.dataset.gamma

    @property
    def seed(self) -> int:
        """Equal for equal (data set, detector, fold)."""
        text = f"{self.dataset.stem}\x1f{self.detector}\x1f{self.fold.index}"
        return zlib.crc32(text.encode()) >> 1

    # ------------------------------------------------------------------------- the fit
    @cached_property
    def fit(self) -> Part:
        """``train`` (n,), ``test`` (m,) scores and the facade's own ``verdicts`` (m,)."""

        def make() -> dict[str, Array]:
            model = self._facade(calibration="training")
            self.scorer = model.scorer_
            test = self.fold.X_test
            return {
                "train": np.asarray(model.scorer_.training_scores),  # type: ignore[attr-defined]
                "test": model.decision_function(test),
                "verdicts": np.maximum(model.predict(test), -1.0),  # rejected is -1 here
            }

        return self._part("fit", make)

    @cached_property
    def holdout(self) -> Part:
        """``reference`` (0.3 n,) and ``test`` (m,) scores of a model fitted on 70 % of the rows."""

        def make() -> dict[str, Array]:
            model = self._facade(calibration="holdout")
            return {
                "reference": model.reference_scores_,
                "test": model.decision_function(self.fold.X_test),
            }

        return self._part("holdout", make)

    def _facade(self, calibration: str) -> RejectingDetector:
        with warnings.catch_warnings():
            # Small sets cannot call an anomaly at T = 32; the report counts them.
            warnings.filterwarnings("ignore", message=".*can ever be called.*")
            model = RejectingDetector(
                self._recipe,
                contamination=self.gamma,
                tolerance=TOLERANCE,
                calibration=calibration,  # type: ignore[arg-type]
                ties="paper",
                seed=self.seed,
            )
            return model.fit(self.fold.X_train)

    @cached_property
    def _recipe(self) -> BatchDetector:
        recipe = make_detector(f"pyod:{self.detector}")
        assert isinstance(recipe, BatchDetector)
        return recipe

    @cached_property
    def scorer(self) -> Scorer:
        """The fitted detector; made again (bit for bit) where the scores came from the cache."""
        return self._recipe.fit(self.fold.X_train, seed=self.seed)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """Labels of the test rows without rejection: 1 iff the score reaches λ."""
        return (self.fit["test"] >= self.threshold).astype(np.int64)

    @cached_property
    def train_labels(self) -> npt.NDArray[np.int64]:
        """Labels of the training rows: the r largest scores (more under ties) are anomalies."""
        return (self.fit["train"] >= self.threshold).astype(np.int64)

    @cached_property
    def threshold(self) -> float:
        """λ, the r-th largest training score."""
        train = np.sort(self.fit["train"])
        return float(train[-anomaly_count(len(train), self.gamma)])

    # --------------------------------------------------------------- parts of the metrics
    @cached_property
    def metric_rows(self) -> npt.NDArray[np.int64]:
        """Training rows on which metrics are evaluated: equal for all detectors of a fold."""
        n, most = len(self.fold.X_train), self.effort.metric_rows
        if n <= most:
            return np.arange(n)
        seed = zlib.crc32(f"{self.dataset.stem}{self.fold.index}".encode())
        return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))

    @cached_property
    def unifier(self) -> Unifier:
        """Scores as probabilities."""
        return Unifier.fit(self.fit["train"])

    @cached_property
    def metric_margin(self) -> Array:
        """Margin of the metric rows."""
        return self.unifier.margin(self.fit["train"][self.metric_rows])

    @cached_property
    def spaces(self) -> tuple[Space, ...]:
        """Where volumes are measured: the whole space, or draws of 5 features."""
        rng = np.random.default_rng(self.seed)
        X, rows = self.fold.X_train, self.metric_rows
        d, points = X.shape[1], self.effort.volume_points
        if d <= _FEW_FEATURES:
            uniform = rng.uniform(X.min(axis=0), X.max(axis=0), size=(points, d))
            return (Space(None, 0, X[rows], uniform),)
        moving = np.flatnonzero(np.ptp(X[rows], axis=0) > 0)
        spaces = []
        for _ in range(self.effort.subspaces):
            columns = np.sort(rng.choice(moving, min(_SUBSPACE, len(moving)), replace=False))
            part = X[np.ix_(rows, columns)]
            seed = int(rng.integers(2**31))
            box = (part.min(axis=0), part.max(axis=0))
            spaces.append(
                Space(columns, seed, part, rng.uniform(*box, size=(points, len(columns))))
            )
        return tuple(spaces)

    def space_scorer(self, space: Space) -> Scorer:
        """Return the detector that judges a space: the one fitted, or one fitted on its columns."""
        if space.columns is None:
            return self.scorer
        if space.seed not in self._space_scorers:
            self._space_scorers[space.seed] = self._recipe.fit(space.rows, seed=space.seed)
        return self._space_scorers[space.seed]

    @cached_property
    def _space_scorers(self) -> dict[int, Scorer]:
        return {}

    @cached_property
    def volume(self) -> Part:
        """Scores of the metric rows and of uniform points, per subspace.

        ``scores`` (k, rows) and ``uniform`` (k, points). Up to 8 features k = 1 and the detector
        is the one fitted; beyond that volumes vanish, and as Goix proposes the detector is
        fitted again on draws of 5 features.
        """

        def make() -> dict[str, Array]:
            spaces = self.spaces
            if spaces[0].columns is None:
                scores = [self.fit["train"][self.metric_rows]]
            else:
                scores = [self.space_scorer(space).score(space.rows) for space in spaces]
            uniform = [self.space_scorer(space).score(space.points) for space in spaces]
            return {"scores": np.stack(scores), "uniform": np.stack(uniform)}

        return self._part("volume", make)

    @cached_property
    def instability(self) -> Part:
        """``points`` (rows,): instability of the rank of each metric row under refits."""

        def make() -> dict[str, Array]:
            rng = np.random.default_rng(self.seed + 1)
            rows = self.fold.X_train[self.metric_rows]
            m = len(rows)
            ranks = np.empty((m, self.effort.refits))
            for i in range(self.effort.refits):
                size = int(rng.integers(max(int(0.25 * m), 2), max(int(0.75 * m), 3)))
                some = rows[rng.choice(m, size, replace=False)]
                scores = self._recipe.fit(some, seed=int(rng.integers(2**31))).score(rows)
                ranks[np.argsort(scores, kind="stable"), i] = np.arange(1, m + 1)
            return {"points": point_instability(ranks, self.gamma)}

        return self._part("instability", make)

    @cached_property
    def others(self) -> tuple[Cell, ...]:
        """The rest of the ensemble."""
        return tuple(self.peers[name] for name in self.ensemble if name != self.detector)

    @cached_property
    def ensemble_cpu_s(self) -> float:
        """CPU seconds that asking the other detectors takes."""
        return sum(peer.fit.cpu_s for peer in self.others)

    # ----------------------------------------------------------------------------- cache
    def _part(self, name: str, make: Callable[[], dict[str, Array]]) -> Part:
        path = self.cache / self.dataset.stem / f"{self.fold.index}-{self.detector}-{name}.npz"
        if path.exists():
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            return Part(arrays, float(arrays.pop("cpu_s")))
        started = time.process_time()
        with np.errstate(all="ignore"):
            arrays = make()
        spent = time.process_time() - started
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        with unfinished.open("wb") as file:
            np.savez(file, cpu_s=np.array(spent), **arrays)  # type: ignore[arg-type]
        unfinished.replace(path)  # whole or not at all
        return Part(arrays, spent)
