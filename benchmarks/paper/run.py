"""Run what is missing: cells in order of size, rows appended as they are made."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.paper import rows
from benchmarks.paper.cell import Cell
from benchmarks.paper.data import available, folds, load, paper_sets
from benchmarks.paper.effort import EFFORTS
from benchmarks.paper.methods import METHODS

__all__ = ["DETECTORS", "FAST_SETS", "Plan", "Task", "plan", "run"]

DETECTORS = (
    "HBOS", "COPOD", "ECOD", "IForest", "LODA", "KNN", "LOF", "GMM", "INNE", "KDE", "OCSVM", "AE",
)  # fmt: skip
"""The paper's twelve, in the order in which they are fitted."""

_FIXED = 2000.0  # rows that the part of a fold's work without rows amounts to
FAST_SETS = ("45_wine", "46_WPBC", "14_glass", "42_WBC", "43_WDBC", "40_vowels", "20_letter",
             "6_cardio", "12_fault", "7_Cardiotocography")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run covers; equal plans can share a folder.

    Attributes
    ----------
    data, out
        Folder of ADBench files; folder of rows and cache.
    datasets, detectors, methods
        Names; `datasets` are stems of files.
    ensemble
        Whom the consensus methods ask: all but AE, so that its absence changes no other cell.
    folds
        k; the first `fold_limit` of them are run.
    """

    data: Path
    out: Path
    datasets: tuple[str, ...]
    detectors: tuple[str, ...]
    methods: tuple[str, ...]
    ensemble: tuple[str, ...]
    folds: int
    fold_limit: int
    effort: str


@dataclass(frozen=True, slots=True)
class Task:
    """All detectors and methods of one fold."""

    plan: Plan
    dataset: str
    path: Path
    fold: int


def plan(
    data: Path,
    out: Path,
    *,
    datasets: Sequence[str] | None = None,
    detectors: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    k: int = 5,
    fast: bool = False,
) -> Plan:
    """Check the names and return the plan.

    Without `datasets`: the paper's sets that `data` holds. AE is left out where PyTorch is missing,
    and by `fast`.
    """
    files = available(data)
    if not files:
        raise SystemExit(f"{data} holds no ADBench .npz files: give the folder that does.")
    known = [stem for stem in files if stem in paper_sets()]
    has_torch = importlib.util.find_spec("torch") is not None
    able = tuple(d for d in DETECTORS if d != "AE" or (has_torch and not fast))
    wanted = _pick(datasets, list(files), "data set") or (
        [stem for stem in FAST_SETS if stem in files] if fast else known
    )
    chosen = _pick(detectors, list(DETECTORS), "detector") or list(able)
    if "AE" in chosen and "AE" not in able:
        print("AE is left out: it needs PyTorch (extra `deep`), and is not part of --fast.")
        chosen.remove("AE")
    return Plan(
        data,
        out,
        tuple(wanted),
        tuple(chosen),
        tuple(_pick(methods, list(METHODS), "method") or METHODS),
        tuple(d for d in DETECTORS if d != "AE"),
        k,
        2 if fast else k,
        "fast" if fast else "standard",
    )


def _pick(given: Sequence[str] | None, known: list[str], what: str) -> list[str]:
    """Return the known names that were asked for, in the order of `known`."""
    wanted = set()
    for text in given or ():
        fits = [name for name in known if text.lower() in (name.lower(), _bare(name))]
        if not fits:
            raise SystemExit(f"There is no {what} {text!r}: use one of {', '.join(known)}.")
        wanted.update(fits)
    return [name for name in known if name in wanted]


def _bare(name: str) -> str:
    number, _, rest = name.lower().partition("_")
    return rest if number.isdigit() else name.lower()


def run(plan: Plan, jobs: int = 1) -> None:
    """Compute every missing row of the plan; can be killed and called again at any time."""
    plan.out.mkdir(parents=True, exist_ok=True)
    _claim(plan)
    files = available(plan.data)
    done = rows.keys(rows.read(plan.out / "rows.jsonl"))
    size = {stem: _size(files[stem]) for stem in plan.datasets}
    tasks = [
        Task(plan, stem, files[stem], fold)
        for stem in plan.datasets
        for fold in range(plan.fold_limit)
        if any(True for _ in _missing(plan, stem, fold, done))
    ]
    # Small sets first, but the first fold of a large one before the second of a middling one: a
    # report on a run that was cut short covers as many sets as can be.
    tasks.sort(key=lambda task: (size[task.dataset] * (8 * task.fold + 1), task.dataset))
    total = len(plan.datasets) * plan.fold_limit * len(plan.detectors) * len(plan.methods)
    print(
        f"{total - sum(1 for _ in _all_missing(plan, done))} of {total} rows are there; "
        f"{len(tasks)} folds to do.",
        flush=True,
    )
    work = {id(task): size[task.dataset] + _FIXED for task in tasks}
    left = sum(work.values())
    started, finished_work = time.monotonic(), 0.0
    for number, task in enumerate(_finished(tasks, jobs), 1):
        finished_work += work[id(task)]
        spent = time.monotonic() - started
        eta = spent * (left - finished_work) / finished_work
        bar = "#" * round(30 * number / len(tasks))
        print(
            f"[{bar:<30}] {number}/{len(tasks)} folds  {task.dataset} fold {task.fold}  "
            f"{spent / 60:.1f} min, about {eta / 60:.0f} min to go",
            flush=True,
        )


def _finished(tasks: list[Task], jobs: int) -> Iterator[Task]:
    if jobs == 1:
        for task in tasks:
            do(task)
            yield task
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[Future[None], Task] = {pool.submit(do, task): task for task in tasks}
        for future in as_completed(running):
            future.result()
            yield running[future]


def do(task: Task) -> None:
    """Make the missing rows of one fold."""
    plan = task.plan
    out = plan.out / "rows.jsonl"
    missing = list(_missing(plan, task.dataset, task.fold, rows.keys(rows.read(out))))
    dataset = load(task.path)
    cells: dict[str, Cell] = {}
    fold = next(f for f in folds(dataset, plan.folds) if f.index == task.fold)
    effort = EFFORTS[plan.effort]
    for detector in dict.fromkeys((*plan.ensemble, *plan.detectors)):
        cells[detector] = Cell(
            dataset, fold, detector, plan.ensemble, effort, plan.out / "cache", cells
        )
    for detector, method in missing:
        cell = cells[detector]
        row: dict[str, Any] = {
            "dataset": dataset.stem,
            "name": dataset.name,
            "in_paper": dataset.in_paper,
            "detector": detector,
            "fold": fold.index,
            "method": method,
            "effort": plan.effort,
            "n": len(fold.X_train),
            "m": len(fold.X_test),
            "d": dataset.X.shape[1],
            "gamma": dataset.gamma,
        }
        try:
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcome = METHODS[method](cell)
        except Exception as error:  # one method on one cell must not end a run of hours
            traceback.print_exc(file=sys.stderr)
            row["absent"] = f"{type(error).__name__}: {error}"
        else:
            row["counts"] = {key: list(value) for key, value in outcome.counts.items()}
            row["cpu_ms_per_row"] = 1000 * outcome.cpu_s / len(fold.X_train)
            row["notes"] = dict(outcome.notes)
        rows.append(out, row)


def _missing(
    plan: Plan, stem: str, fold: int, done: set[tuple[str, str, int, str]]
) -> Iterator[tuple[str, str]]:
    for detector in plan.detectors:
        for method in plan.methods:
            if (stem, detector, fold, method) not in done:
                yield detector, method


def _all_missing(plan: Plan, done: set[tuple[str, str, int, str]]) -> Iterator[tuple[str, str]]:
    for stem in plan.datasets:
        for fold in range(plan.fold_limit):
            yield from _missing(plan, stem, fold, done)


def _size(path: Path) -> float:
    """Rows times a little for the columns: what a fold costs, roughly."""
    dataset = load(path)
    n, d = dataset.X.shape
    return float(n * (1 + d / 30))


def _claim(plan: Plan) -> None:
    """Write what the folder is for, or refuse rows of another kind beside those that are there."""
    path = plan.out / "setup.json"
    setup = {
        "effort": asdict(EFFORTS[plan.effort]),
        "folds": plan.folds,
        "ensemble": list(plan.ensemble),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("numpy", "scipy", "scikit-learn", "pyod", "optuna")
        },
        "python": platform.python_version(),
    }
    if not path.exists():
        path.write_text(json.dumps(setup, indent=1) + "\n", "utf-8")
        return
    there = json.loads(path.read_text("utf-8"))
    for key in ("effort", "folds", "ensemble"):
        if there[key] != setup[key]:
            raise SystemExit(
                f"{plan.out} holds rows made with {key} = {there[key]}, and this run has "
                f"{setup[key]}: give another --out, or the same options."
            )
