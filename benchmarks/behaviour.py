"""When a slow fault is found that shows against load and weather only.

python -m benchmarks.behaviour [--data FOLDER]

Simulated turbines of the demo (`rejex_stream.demo.turbine`), each with a bearing of the gearbox
that wears for four weeks until it gives off 8 K more at full load. Models are fitted once, on four
healthy weeks; the next four, healthy too, say what an alarm is for each detector alike: half the
events of a day beyond the .99 quantile of their scores. With FOLDER also some streams
whose operating channels are plain from their names, through the engine as in `benchmarks.streams`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from benchmarks.harness import write  # noqa: E402
from benchmarks.streams import prequential, sources  # noqa: E402
from benchmarks.streams.evaluate import evaluate_score  # noqa: E402
from rejex_stream.demo.turbine import CHANNELS as MEASURED  # noqa: E402
from rejex_stream.demo.turbine import STEP_S, Fault, simulate  # noqa: E402
from rejex_stream.detectors import make_detector  # noqa: E402
from rejex_stream.engine import Engine, EngineSpec  # noqa: E402
from rejex_stream.features import FeatureSpec  # noqa: E402
from rejex_stream.rejection.policy import RejectionPolicy  # noqa: E402
from rejex_stream.run.executors import InlineExecutor  # noqa: E402
from rejex_stream.types import FloatArray, Position, Reading  # noqa: E402

__all__ = ["ALARM_EVENTS", "CHANNELS", "HEALTHY", "OPERATING", "first_alarm", "main", "turbine"]

CHANNELS: Final = (*MEASURED, "ambient_c")
OPERATING: Final = ("power_kw", "rotor_rpm", "ambient_c")
ALARM_EVENTS: Final = 86_400 // STEP_S
HEALTHY: Final = 28 * ALARM_EVENTS
"""Events to fit on, and again to know ordinary scores by."""
_SHARE, _QUANTILE = 0.5, 0.99
_SEEDS = range(10, 20)

STREAMS: Final[dict[str, tuple[str, ...]]] = {
    "gecco2018": ("Tp", "Fm", "Fm_2"),
    "skab": ("Current", "Voltage", "Volume Flow RateRMS"),
    "leakdb_sim": ("F_",),
    "batadal": ("F_PU", "S_PU", "F_V2", "S_V2"),
}
"""By source, how the names of operating channels begin: weather, load, flow, switches. Written down
before the first run."""

RIVALS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Sensor": ("Sensor", {}),
    "SensorEnsemble": ("SensorEnsemble", {}),
    "NormalBehaviour": ("NormalBehaviour", {"operating": list(OPERATING)}),
    "NormalBehaviour, degree 1": (
        "NormalBehaviour", {"operating": list(OPERATING), "degree": 1}
    ),
}  # fmt: skip


def turbine(seed: int, days: int = 28) -> tuple[FloatArray, int]:
    """Return a turbine's readings, shape (events, 5), and when its bearing begins to wear."""
    onset, last = 2 * HEALTHY, 2 * HEALTHY + days * ALARM_EVENTS - 1
    fault = Fault("WT-01", "friction", onset, last, "bearing wears slowly")
    run = simulate(days=(last + 1) // ALARM_EVENTS, seed=seed, faults=(fault,))
    return np.column_stack([run.values["WT-01"], run.ambient_c]), onset


def scores(name: str, params: dict[str, Any], values: FloatArray) -> FloatArray:
    """Return scores of a model of the first healthy weeks; ``nan`` while columns fill."""
    policy = RejectionPolicy(0.02, rate=0.02)
    spec = EngineSpec(make_detector(name, **params), FeatureSpec(CHANNELS), policy)
    if spec.features.is_at_once:
        rows = spec.features.start_recent().extract(values.tolist())[0]
    else:
        sensor = spec.features.start()
        made = (sensor.extract(i * STEP_S * 1000, x) for i, x in enumerate(values.tolist()))
        rows = np.array([row for row in made if row is not None])
    filling = len(values) - len(rows)
    scorer = spec.detector.fit(rows[: HEALTHY - filling], seed=0)  # type: ignore[union-attr]
    return np.concatenate([np.full(filling, np.nan), scorer.score(rows)])


def first_alarm(name: str, params: dict[str, Any], values: FloatArray, onset: int) -> int | None:
    """Return after how many events of a fault a detector gives alarm; ``None``: never."""
    found = scores(name, params, values)
    beyond = found[onset:] > np.quantile(found[HEALTHY:onset], _QUANTILE)
    often = np.convolve(beyond, np.ones(ALARM_EVENTS), "valid")
    days = np.flatnonzero(often >= _SHARE * ALARM_EVENTS)
    return int(days[0]) + ALARM_EVENTS if len(days) else None


def simulated() -> list[list[Any]]:
    """Return by detector when each turbine's bearing gives alarm."""
    turbines = [turbine(seed) for seed in _SEEDS]
    table = []
    for label, (name, params) in RIVALS.items():
        found = [first_alarm(name, params, values, onset) for values, onset in turbines]
        days = sorted(28.0 if at is None else at / ALARM_EVENTS for at in found)
        never = sum(at is None for at in found)
        table.append([label, len(found), never, days[0], float(np.median(days)), days[-1]])
    return table


def on_stream(path: Path) -> list[Any] | None:
    """Return VUS-PR of scores through the engine, of `Sensor` and of `NormalBehaviour`."""
    stream = sources.capped(sources.load(path), 2000, 15_000)
    begins = STREAMS[stream.source]
    operating = tuple(name for name in stream.channels if name.startswith(begins))
    if not (stream.y[stream.warm_up :] == 1).any():
        return None
    plain = FeatureSpec(stream.channels, carry_forward_events=10)
    found: list[Any] = []
    spec = prequential.spec_for(stream, "Sensor")
    few = {"smooth_events": 12}  # the warm-ups are short
    made = make_detector("NormalBehaviour", operating=operating, **few)
    for tried in (spec, replace(spec, detector=made, features=plain)):
        score = engine_scores(stream, tried)
        found.append(evaluate_score(stream, score)["ranking"]["detector"]["vus_pr"])
    return [f"{stream.source}/{stream.name}", len(operating), *found]


def engine_scores(stream: sources.Stream, spec: EngineSpec) -> FloatArray:
    """Return the score of each event, guarded refits and all; 0 where there was none."""
    engine = Engine(spec, InlineExecutor())
    times, values = stream.times_ms.tolist(), stream.X.tolist()
    readings = [
        Reading(stream.name, stream.name, at, tuple(row), Position(stream.source, 0, i))
        for i, (at, row) in enumerate(zip(times, values, strict=True))
    ]
    return np.array([verdict.score or 0.0 for verdict in engine.process(readings)])


def main(arguments: list[str] | None = None) -> None:
    """Let bearings wear; with data, order the events of streams."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.behaviour", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of streams, <source>/<stream>.csv.gz")
    options = parser.parse_args(arguments)
    head = ["detector", "turbines", "never", "earliest day", "median day", "latest day"]
    tables = [("Days from the onset to an alarm; never counts as 28.", head, simulated())]
    if options.data is not None:
        paths = [p for source in STREAMS for p in sorted(options.data.rglob(f"{source}/*.csv.gz"))]
        rows = [row for path in paths if (row := on_stream(path)) is not None]
        columns = ["stream", "operating channels", "Sensor", "NormalBehaviour"]
        for source in STREAMS:
            own = [row[2:] for row in rows if row[0].startswith(f"{source}/")]
            if own:
                rows.append([f"mean of {source}", "", *np.mean(own, axis=0).tolist()])
        tables.append(("VUS-PR of the scores, 12 events smoothed.", columns, rows))
    write("behaviour", "Normal behaviour", tables, note="One process.")


if __name__ == "__main__":
    main()
