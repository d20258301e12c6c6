"""Send a stream through the engine, event by event, and keep what it said.

Everything that decides a verdict is fixed before the first event and equal for all streams: γ, the
review budget, the features and the schedule, which is scaled to the warm-up and to nothing else.
The engine scores each event before it can learn from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.streams.sources import Stream
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

__all__ = ["CONTAMINATION", "DETECTORS", "RATE", "said", "spec_for", "window_for"]

CONTAMINATION: Final = 0.05
RATE: Final = 0.05
_SHORT, _LONG = 6, 24
_LONGEST = 32  # rows that no detector's features need more than, before they are there
_CARRY = 10
_BATCH = 512

DETECTORS: Final = {
    "Sensor": ("Sensor", {}),
    "SeasonalSensor": ("SeasonalSensor", {}),
    "SensorEnsemble": ("SensorEnsemble", {}),
    "HBOS": ("pyod:HBOS", {}),
    "GMM": ("pyod:GMM", {"scale": "standard"}),
    "KNN": ("pyod:KNN", {"scale": "standard"}),
    "IForest": ("pyod:IForest", {}),
    "HalfSpaceTrees": ("river:HalfSpaceTrees", {}),
}
"""Those made for sensors, four that are refitted and one that learns event by event."""


def spec_for(stream: Stream, detector: str) -> EngineSpec:
    """Return what decides the verdicts; the labels of the stream are not looked at."""
    name, params = DETECTORS[detector]
    made = make_detector(name, **params)
    own = () if getattr(made, "preset", None) else features(stream.channels)
    lag = min(100, stream.warm_up // 10)
    return EngineSpec(
        made,
        FeatureSpec(stream.channels, own, carry_forward_events=_CARRY),
        RejectionPolicy(CONTAMINATION, rate=RATE),
        window=window_for(stream),
        evidence=False,
        schedule=RefitSchedule(
            first_fit_events=min(2000, stream.warm_up - lag - _LONGEST),
            refit_every_events=4000,
            refit_lag_events=lag,
            buffer_events=2000,
        ),
        seed=0,
    )


def window_for(stream: Stream) -> int:
    """Return n of a full window: as long as the warm-up, from 200 to 2,000."""
    return max(200, min(2000, stream.warm_up))


def features(channels: tuple[str, ...]) -> tuple[Feature, ...]:
    """Return the channels as they are, and for up to three of them also their recent past."""
    raw = tuple(Feature("raw", channel) for channel in channels)
    if len(channels) > 3:
        return raw
    return raw + tuple(
        feature
        for channel in channels
        for feature in (
            Feature("difference", channel, events=1),
            Feature("std", channel, events=_SHORT),
            Feature("mean", channel, events=_LONG),
        )
    )


def said(stream: Stream, detector: str, cache: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Return per event what the engine said: score, severity, rank, window, threshold, label.

    ``label`` is 0, 1 or -1 as shipped; ``nan`` stands where the engine had no number.
    """
    path = cache / stream.source / f"{stream.name}-{len(stream.y)}-{detector}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    engine = Engine(spec_for(stream, detector), InlineExecutor())
    n = len(stream.y)
    result = {
        key: np.full(n, np.nan)
        for key in (
            "score",
            "severity",
            "rank",
            "window",
            "ties",
            "threshold",
            "label",
            "warm_up",
            "constant",
            "held",
            "epoch",
        )
    }
    code = {"normal": 0.0, "anomaly": 1.0, "rejected": -1.0}
    rows = stream.X.tolist()
    for start in range(0, n, _BATCH):
        readings = [
            Reading(
                stream.name,
                stream.name,
                int(stream.times_ms[i]),
                tuple(rows[i]),
                Position(stream.source, 0, i),
            )
            for i in range(start, min(n, start + _BATCH))
        ]
        for i, verdict in enumerate(engine.process(readings), start):
            result["label"][i] = code[str(verdict.label)]
            result["warm_up"][i] = str(verdict.reason) == "warm_up"
            result["constant"][i] = str(verdict.reason) == "constant_window"
            result["held"][i] = verdict.held
            result["window"][i] = verdict.window_len
            if verdict.model_epoch is not None:
                result["epoch"][i] = verdict.model_epoch
            if verdict.score is not None:
                result["score"][i] = verdict.score
            if verdict.severity is not None:
                result["severity"][i] = verdict.severity
            if verdict.rank is not None and verdict.threshold is not None:
                result["rank"][i] = verdict.rank
                result["ties"][i] = verdict.ties
                result["threshold"][i] = verdict.threshold
    failures = engine.take_failures()
    if failures:
        raise RuntimeError(f"{len(failures)} fits failed, the first: {failures[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    with unfinished.open("wb") as file:
        np.savez(file, **result)  # type: ignore[arg-type]
    unfinished.replace(path)
    return result
