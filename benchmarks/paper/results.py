"""Rows as numbers: costs, rates and ranks, averaged within data sets first."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper import rows as rows_file
from benchmarks.paper.costs import Counts, cost, costs
from benchmarks.paper.inference import ranks
from benchmarks.paper.methods import ANY, METHODS, PROBABLE, READINGS

__all__ = ["Results", "counts_of", "paper_numbers"]

Row = dict[str, Any]
Array = npt.NDArray[np.float64]


@lru_cache(maxsize=1)
def paper_numbers() -> dict[str, Any]:
    """Return the tables that the paper prints."""
    path = Path(__file__).parent / "paper_tables.json"
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return result


def counts_of(row: Row, case: str) -> Counts:
    """Return the counts of a row under a cost case."""
    return Counts(*row["counts"].get(case, row["counts"].get(ANY)))


@dataclass(frozen=True)
class Results:
    """All rows of a run.

    Only experiments (data set, detector, fold) in which every method has its row are compared, of
    folds that every usual detector has seen; `absent` holds the rows that say why a cell is not
    there.
    """

    rows: dict[tuple[str, str, int], dict[str, Row]]
    absent: list[Row]
    setup: dict[str, Any]
    incomplete: int

    @classmethod
    def load(
        cls, folder: Path, *, in_paper: bool = True, methods: Iterable[str] | None = None
    ) -> Results:
        """Read the rows of a folder; with `in_paper`, those of the paper's data sets.

        An experiment is whole if it has `methods`; by default all but other readings.
        """
        needed = METHODS.keys() - READINGS.keys() - PROBABLE.keys()
        if methods is not None:
            needed = set(methods)
        found: dict[tuple[str, str, int], dict[str, Row]] = defaultdict(dict)
        absent = []
        for row in rows_file.read(folder / "rows.jsonl"):
            if row["in_paper"] != in_paper:
                continue
            if "absent" in row:
                absent.append(row)
            else:
                found[row["dataset"], row["detector"], row["fold"]][row["method"]] = row
        whole = {key: by for key, by in found.items() if needed <= by.keys()}
        # A fold that was cut short lacks some detectors: means would be over different sets.
        per_fold = Counter((dataset, fold) for dataset, _, fold in whole)
        usual = {
            detector
            for _, detector, _ in whole
            if 2 * sum(name == detector for _, name, _ in whole) > len(per_fold)
        }
        for dataset, fold in per_fold:
            there = {name for d, name, f in whole if (d, f) == (dataset, fold)}
            if not usual <= there:
                for name in there:
                    del whole[dataset, name, fold]
        setup = json.loads((folder / "setup.json").read_text("utf-8")) if whole else {}
        return cls(dict(sorted(whole.items())), absent, setup, len(found) - len(whole))

    def having(self, methods: Iterable[str]) -> Results:
        """Return the experiments that have these methods too."""
        wanted = set(methods)
        rows = {key: by for key, by in self.rows.items() if wanted <= by.keys()}
        return replace(self, rows=rows)

    # ------------------------------------------------------------------------ coverage
    @property
    def detectors(self) -> list[str]:
        """Detectors with at least one whole experiment, in the paper's order."""
        there = {detector for _, detector, _ in self.rows}
        return [name for name in paper_numbers()["cost"]["1-1"] if name in there]

    @property
    def common(self) -> list[str]:
        """Detectors that have seen every data set: those over which means are taken."""
        every = set(self.datasets)
        return [
            detector
            for detector in self.detectors
            if {d for d, name, _ in self.rows if name == detector} == every
        ]

    @property
    def datasets(self) -> list[str]:
        """Data sets, small first."""
        size = {key[0]: next(iter(by.values()))["n"] for key, by in self.rows.items()}
        return sorted(size, key=lambda stem: (size[stem], stem))

    def name(self, dataset: str) -> str:
        """Return the paper's name of a data set."""
        key = next(key for key in self.rows if key[0] == dataset)
        return str(next(iter(self.rows[key].values()))["name"])

    def experiments(
        self, detector: str | None = None, dataset: str | None = None
    ) -> list[dict[str, Row]]:
        """Return the whole experiments of a detector, a data set, or both."""
        return [
            by
            for (d, name, _), by in self.rows.items()
            if detector in (None, name) and dataset in (None, d)
        ]

    # --------------------------------------------------------------------------- values
    def per_dataset(
        self, value: Callable[[dict[str, Row]], float], detector: str | None = None
    ) -> Array:
        """Average `value` within each data set (over folds and detectors); shape (data sets,)."""
        groups: dict[str, list[float]] = defaultdict(list)
        for (dataset, name, _), by in self.rows.items():
            if detector in (None, name):
                groups[dataset].append(value(by))
        return np.array([np.mean(groups[dataset]) for dataset in self.datasets if groups[dataset]])

    def spread(self, value: Callable[[dict[str, Row]], float], detector: str) -> float:
        """Return the standard deviation over experiments, as the paper's tables give it."""
        return float(np.std([value(by) for by in self.experiments(detector)]))

    def cost_matrix(self, case: str, methods: Iterable[str], detector: str) -> Array:
        """Return costs (experiments, methods) of a detector."""
        methods = list(methods)
        return np.array(
            [
                [self.cost(by, method, case) for method in methods]
                for by in self.experiments(detector)
            ]
        )

    def dataset_costs(self, case: str, methods: Iterable[str], detector: str) -> Array:
        """Return costs (data sets, methods), averaged over folds."""
        columns = [
            self.per_dataset(lambda by, m=method: self.cost(by, m, case), detector)  # type: ignore[misc]
            for method in methods
        ]
        return np.stack(columns, axis=1)

    def mean_ranks(self, case: str, methods: Iterable[str], detector: str) -> tuple[Array, Array]:
        """Return (mean, standard deviation) of the ranks; a data set counts once."""
        place = ranks(self.cost_matrix(case, methods, detector))
        keys = [d for d, name, _ in self.rows if name == detector]
        weight = np.array([1 / keys.count(key) for key in keys])
        mean = weight @ place / weight.sum()
        return mean, np.sqrt(weight @ (place - mean) ** 2 / weight.sum())

    @staticmethod
    def cost(by: dict[str, Row], method: str, case: str) -> float:
        """Return the joint cost per example of one experiment."""
        row = by[method]
        return cost(counts_of(row, case), costs(case, row["gamma"]))

    @staticmethod
    def rate(by: dict[str, Row], method: str, case: str = "1-1") -> float:
        """Return the share of rejected test examples of one experiment."""
        counts = counts_of(by[method], case)
        return counts.rejected / counts.n
