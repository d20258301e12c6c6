"""Data sets as the paper used them, cut into folds.

The paper's rule, found by comparing row counts and contaminations with its table: drop rows whose
features occurred before (first one kept, file order), then, if more than 20,000 rows are left,
take ``RandomState(331).permutation(n)[:20000]``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedKFold

__all__ = ["Dataset", "Fold", "PaperSet", "available", "folds", "load", "paper_rows", "paper_sets"]

_MAX_ROWS = 20_000
_SEED = 331


class PaperSet(NamedTuple):
    """What the paper's table says of one of its 34 sets, and how ADBench names the file."""

    name: str
    stem: str
    rows: int
    features: int
    gamma: float


@dataclass(frozen=True, slots=True)
class Dataset:
    """X of shape (n, d) and y of shape (n,) in {0, 1}; gamma is the share of anomalies."""

    name: str
    stem: str
    X: npt.NDArray[np.float64]
    y: npt.NDArray[np.int64]
    in_paper: bool

    @property
    def gamma(self) -> float:
        """Contamination, the set's own."""
        return float(self.y.mean())


@dataclass(frozen=True, slots=True)
class Fold:
    """One of the k cuts: training rows in random order, columns scaled to [0, 1] by them."""

    index: int
    X_train: npt.NDArray[np.float64]
    y_train: npt.NDArray[np.int64]
    X_test: npt.NDArray[np.float64]
    y_test: npt.NDArray[np.int64]


@lru_cache(maxsize=1)
def paper_sets() -> dict[str, PaperSet]:
    """Return the paper's 34 sets by the stem of their ADBench file, e.g. ``6_cardio``."""
    text = (Path(__file__).parent / "paper_tables.json").read_text("utf-8")
    return {row[1]: PaperSet(*row) for row in json.loads(text)["datasets"]}


def paper_rows(
    X: npt.NDArray[np.float64], y: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Apply the paper's rule: no repeated feature rows, at most 20,000 rows."""
    _, first = np.unique(X, axis=0, return_index=True)
    keep = np.sort(first)
    X, y = X[keep], y[keep]
    if len(X) > _MAX_ROWS:
        # The legacy generator is the paper's.
        chosen = np.random.RandomState(_SEED).permutation(len(X))[:_MAX_ROWS]
        X, y = X[chosen], y[chosen]
    return X, y


def available(folder: Path) -> dict[str, Path]:
    """Return the ADBench ``.npz`` files under `folder` by stem; stand-ins are left out."""
    files = sorted(folder.rglob("*.npz"))
    return {f.stem: f for f in files if f.stem.split("_")[0].isdigit()}


def load(path: Path) -> Dataset:
    """Read one ADBench file (``X``, ``y``) and apply the paper's rule."""
    with np.load(path, allow_pickle=False) as file:
        X = np.ascontiguousarray(file["X"], dtype=np.float64)
        y = np.asarray(file["y"]).astype(np.int64).ravel()
    X, y = paper_rows(X, y)
    known = paper_sets().get(path.stem)
    return Dataset(
        known.name if known else path.stem.split("_", 1)[1], path.stem, X, y, known is not None
    )


def folds(dataset: Dataset, k: int) -> Iterator[Fold]:
    """Cut into k stratified folds (80/20 at k = 5); equal arguments give equal folds.

    Columns are scaled by the minimum and range of the training rows, as ADBench's own loader
    does. The paper does not say; only so do its KDE and OCSVM figures come out (README.md).
    """
    seed = zlib.crc32(dataset.stem.encode()) % 2**31
    cutter = StratifiedKFold(n_splits=k, shuffle=True, random_state=seed)
    for i, (rows, test) in enumerate(cutter.split(dataset.X, dataset.y)):
        # A held-out reference is the last part of the rows: it must not be a class of its own.
        train = np.random.default_rng((seed, i)).permutation(rows)
        low, spread = dataset.X[train].min(axis=0), np.ptp(dataset.X[train], axis=0)
        spread[spread == 0] = 1.0
        X = (dataset.X - low) / spread
        yield Fold(i, X[train], dataset.y[train], X[test], dataset.y[test])
