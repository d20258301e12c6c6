"""The figures of the report, drawn from the rows alone (Matplotlib, extra ``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.beyond import mean_curve
from benchmarks.paper.costs import CASES
from benchmarks.paper.inference import block_bootstrap
from benchmarks.paper.methods import BEYOND, PAPER
from benchmarks.paper.results import Results
from benchmarks.paper.sections import TITLES

__all__ = ["draw"]

METHODS = list(PAPER)
# Okabe and Ito's colours, told apart by colour-blind readers; RejEx is black.
COLOURS = dict(
    zip(
        METHODS,
        ("#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
        strict=True,
    )
)


def draw(results: Results, folder: Path) -> list[str]:
    """Write the figures; returns their file names."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    made = []
    for name, make in (
        ("q1.png", _q1), ("q2.png", _q2), ("q4.png", _q4), ("beyond.png", _beyond),
        ("coverage.png", _coverage),
    ):  # fmt: skip
        figure = make(results, plt)
        figure.savefig(folder / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        made.append(name)
    return made


def _dots(axes: Any, results: Results, values: dict[str, np.ndarray], label: str) -> None:
    x = np.arange(len(results.detectors))
    for i, method in enumerate(METHODS):
        axes.scatter(
            x + (i - 3.5) * 0.08, values[method], s=42 if i == 0 else 20, color=COLOURS[method],
            marker="D" if i == 0 else "o", label=method, zorder=3, edgecolors="#444",
            linewidths=0.3,
        )  # fmt: skip
    axes.set_xticks(x, results.detectors, rotation=45, ha="right")
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3)


def _costs(results: Results, case: str) -> dict[str, np.ndarray]:
    table = [results.dataset_costs(case, METHODS, d).mean(axis=0) for d in results.detectors]
    return dict(zip(METHODS, np.array(table).T, strict=True))


def _q1(results: Results, plt: Any) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4))
    _dots(left, results, _costs(results, "1-1"), "cost per example")
    place = [results.mean_ranks("1-1", METHODS, d)[0] for d in results.detectors]
    _dots(right, results, dict(zip(METHODS, np.array(place).T, strict=True)), "mean rank, 1 = best")
    left.set_title(TITLES["1-1"])
    right.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _q2(results: Results, plt: Any) -> Any:
    figure, panels = plt.subplots(1, 3, figsize=(15, 4))
    for axes, case in zip(panels, CASES[1:], strict=True):
        _dots(axes, results, _costs(results, case), "cost per example")
        axes.set_title(TITLES[case], fontsize=9)
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def _q4(results: Results, plt: Any) -> Any:
    def note(key: str) -> np.ndarray:
        return results.per_dataset(lambda by: by["RejEx"]["notes"][key])

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.5))
    x = np.arange(len(results.datasets))
    cost = results.per_dataset(lambda by: results.cost(by, "RejEx", "1-1"))
    bound = results.per_dataset(lambda by: by["RejEx"]["notes"]["cost_bounds"]["1-1"]["mean"])
    left.plot(x, bound, color="black", drawstyle="steps-mid", label="bound (theorem 3.6)")
    left.scatter(x, cost, color="#0072B2", zorder=3, label="measured")
    left.set_ylabel("cost per example")
    right.plot(x, note("rate_bound_paper"), color="black", drawstyle="steps-mid",
               label="paper's bound, δ = .1")  # fmt: skip
    right.plot(x, note("rate_bound_exact"), color="#0072B2", drawstyle="steps-mid",
               label="exact bound, δ = .1")  # fmt: skip
    right.scatter(x, note("rate_expected"), marker="*", s=70, color="#E69F00", zorder=3,
                  label="exact expectation")  # fmt: skip
    rate = results.per_dataset(lambda by: results.rate(by, "RejEx"))
    right.scatter(x, rate, color="#D55E00", s=22, zorder=4, label="measured")
    right.set_ylabel("rejection rate")
    names = [results.name(dataset) for dataset in results.datasets]
    for axes in (left, right):
        axes.set_xticks(x, names, rotation=60, ha="right")
        axes.legend(frameon=False)
        axes.grid(axis="y", alpha=0.3)
    return figure


def _beyond(results: Results, plt: Any) -> Any:
    methods = ["NoReject", "Oracle", *BEYOND]
    figure, panels = plt.subplots(1, 4, figsize=(15, 4.5), sharey=True)
    y = np.arange(len(methods))[::-1]
    for axes, case in zip(panels, CASES, strict=True):
        own = results.per_dataset(lambda by, c=case: results.cost(by, "RejEx", c))  # type: ignore[misc]
        for at, method in zip(y, methods, strict=True):
            other = results.per_dataset(lambda by, m=method, c=case: results.cost(by, m, c))  # type: ignore[misc]
            low, high = block_bootstrap(other - own)
            axes.plot([low, high], [at, at], color="#777")
            axes.scatter([float(np.mean(other - own))], [at], color="black", s=16, zorder=3)
        axes.axvline(0, color="#D55E00", linewidth=1)
        axes.set_yticks(y, methods)
        axes.set_title(TITLES[case], fontsize=8)
        axes.set_xlabel("cost minus RejEx's")
        axes.grid(axis="x", alpha=0.3)
    return figure


def _coverage(results: Results, plt: Any) -> Any:
    figure, axes = plt.subplots(figsize=(5.5, 4))
    styles = {"rejex": "black", "margin": "#0072B2", "random": "#999999", "best": "#009E73"}
    texts = {"rejex": "by stability (RejEx)", "margin": "by score margin", "random": "random",
             "best": "by the truth"}  # fmt: skip
    for key, colour in styles.items():
        axes.plot(np.linspace(0, 1, 41)[1:], mean_curve(results, key)[1:], color=colour,
                  label=texts[key])  # fmt: skip
    axes.set_xlabel("coverage: share of accepted examples")
    axes.set_ylabel("share of wrong labels among them")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure
