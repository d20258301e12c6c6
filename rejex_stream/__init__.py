"""rejex-stream: streaming anomaly detection that knows when it does not know.

The straight line an event goes through::

    Source.poll ─► decode ─► features ─► score ─► window rank ─► band ─► Verdict ─► Sink.write
                             └──────── engine: per stream key, in event order ──────┘

Three verdicts: ``anomaly``, ``normal``, ``rejected``. Rejected means that the label would flip
under slightly different training data, so a person decides. How often that happens is known in
advance: :mod:`rejex_stream.rejection.bounds`.

References
----------
.. [1] L. Perini, J. Davis: Unsupervised Anomaly Detection with Rejection. NeurIPS 2023.

Examples
--------
>>> import rejex_stream as rs
>>> band = rs.rejection_band(2000, contamination=0.05, tolerance=8)
>>> round(rs.expected_rejection_rate(band), 3)
0.033
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rejex_stream.checks import check_detector
    from rejex_stream.config.assembly.in_python import Pipeline
    from rejex_stream.demo.datasets import load_dataset
    from rejex_stream.detectors import make_detector
    from rejex_stream.engine import Engine, EngineSpec, RefitSchedule
    from rejex_stream.facade import RejectingDetector
    from rejex_stream.features import Feature, FeatureSpec
    from rejex_stream.rejection import (
        RejectionBand,
        RejectionPolicy,
        ScoreWindow,
        Stability,
        cost_bound,
        cost_quantile,
        exact_rate_bound,
        expected_rejection_rate,
        min_window,
        paper_rate_bound,
        rejection_band,
        stability,
        theorem_interval,
        tolerance_for_rate,
        window_for_rate,
    )
    from rejex_stream.run.executors import InlineExecutor, ProcessFitExecutor, ThreadFitExecutor
    from rejex_stream.types import Label, Position, Reading, Reason, Verdict

__version__ = "0.1.0"

__all__ = [
    "Engine", "EngineSpec", "Feature", "FeatureSpec", "InlineExecutor", "Label", "Pipeline",
    "Position", "ProcessFitExecutor", "Reading", "Reason", "RefitSchedule", "RejectingDetector",
    "RejectionBand", "RejectionPolicy", "ScoreWindow", "Stability",
    "ThreadFitExecutor", "Verdict", "__version__", "check_detector", "cost_bound",
    "cost_quantile", "exact_rate_bound", "expected_rejection_rate", "load_dataset",
    "make_detector", "min_window", "paper_rate_bound", "rejection_band", "stability",
    "theorem_interval", "tolerance_for_rate", "window_for_rate",
]  # fmt: skip

# Loaded when first asked for: the command line should not wait for scikit-learn to say --help.
_HOMES = {
    "checks": ("check_detector",),
    "config.assembly.in_python": ("Pipeline",),
    "demo.datasets": ("load_dataset",),
    "detectors": ("make_detector",),
    "engine": ("Engine", "EngineSpec", "RefitSchedule"),
    "facade": ("RejectingDetector",),
    "features": ("Feature", "FeatureSpec"),
    "rejection": (
        "RejectionBand",
        "RejectionPolicy",
        "ScoreWindow",
        "Stability",
        "cost_bound",
        "cost_quantile",
        "exact_rate_bound",
        "expected_rejection_rate",
        "min_window",
        "paper_rate_bound",
        "rejection_band",
        "stability",
        "theorem_interval",
        "tolerance_for_rate",
        "window_for_rate",
    ),
    "run.executors": ("InlineExecutor", "ProcessFitExecutor", "ThreadFitExecutor"),
    "types": ("Label", "Position", "Reading", "Reason", "Verdict"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever lives there
    # A module wins over a function of the same name, as it would once it was imported.
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
