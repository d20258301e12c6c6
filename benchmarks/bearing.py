"""When a slow fault is found that shows against load and weather only.

python -m benchmarks.bearing [--farms 10]

Simulated farms of the demo (`rejex_stream.demo.turbine`), four turbines under one wind. A bearing
of the first one's gearbox wears for four weeks until it gives off 8 K more at full load. Models are
fitted once, on four healthy weeks; the next four, healthy too, say what an alarm is for each
detector alike: half the events of a day beyond the .99 quantile of their scores.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402

from benchmarks.harness import write  # noqa: E402
from rejex_stream.demo.turbine import AMBIENT, STEP_S, TURBINES, Fault, Run, simulate  # noqa: E402
from rejex_stream.demo.turbine import CHANNELS as MEASURED  # noqa: E402
from rejex_stream.detectors import make_detector  # noqa: E402
from rejex_stream.engine import EngineSpec  # noqa: E402
from rejex_stream.engine.siblings import Siblings  # noqa: E402
from rejex_stream.features import FeatureSpec  # noqa: E402
from rejex_stream.rejection.policy import RejectionPolicy  # noqa: E402
from rejex_stream.types import FloatArray, Position, Reading  # noqa: E402

CHANNELS: Final = (*MEASURED, AMBIENT)
ILL: Final = TURBINES[0]
DAY: Final = 86_400 // STEP_S
HEALTHY: Final = 28 * DAY
"""Events to fit on, and again to know ordinary scores by."""
_SHARE, _QUANTILE = 0.5, 0.99
_FIRST_SEED = 10

RIVALS: Final[dict[str, tuple[str, str]]] = {
    "Sensor": ("Sensor", ""),
    "SensorEnsemble": ("SensorEnsemble", ""),
    "Sensor, siblings": ("Sensor", "*"),
}
"""Names of detectors, and who are siblings."""


def farm(seed: int, days: int = 28) -> Run:
    """Let a farm run: twice healthy, then with a bearing that wears."""
    first, steps = 2 * HEALTHY, 2 * HEALTHY + days * DAY
    fault = Fault(ILL, "friction", first, steps - 1, "bearing wears slowly")
    return simulate(days=steps // DAY, seed=seed, faults=(fault,))


def rows_of(spec: EngineSpec, run: Run) -> FloatArray:
    """Return the rows of the turbine whose bearing wears, beside the others where asked."""
    siblings, sensor = Siblings(spec.features, modes=False), spec.features.start()
    rows = []
    for i, air in enumerate(run.ambient_c.tolist()):
        beside: list[float] = []
        for name in TURBINES if siblings.any else (ILL,):
            values = (*run.values[name][i].tolist(), air)
            reading = Reading(name, name, i * STEP_S * 1000, values, Position("farm", 0, i))
            said = siblings.beside([reading])[0].tolist() if siblings.any else []
            beside = said if name == ILL else beside
        values = (*run.values[ILL][i].tolist(), air)
        if (row := sensor.extract(i * STEP_S * 1000, values)) is not None:
            rows.append([*row, *beside])
    return np.array(rows)


def first_alarm(name: str, siblings: str, run: Run) -> float | None:
    """Return after how many days of a fault a detector gives alarm; ``None``: never."""
    policy, features = RejectionPolicy(0.02, rate=0.02), FeatureSpec(CHANNELS, siblings=siblings)
    spec = EngineSpec(make_detector(name), features, policy)
    rows, total = rows_of(spec, run), len(run.ambient_c)
    filling = total - len(rows)
    scorer = spec.detector.fit(rows[: HEALTHY - filling], seed=0)  # type: ignore[union-attr]
    scores, onset = scorer.score(rows), 2 * HEALTHY - filling
    beyond = scores[onset:] > np.quantile(scores[HEALTHY - filling : onset], _QUANTILE)
    often = np.convolve(beyond, np.ones(DAY), "valid")
    days = np.flatnonzero(often >= _SHARE * DAY)
    return float(days[0] / DAY + 1) if len(days) else None


def main(arguments: list[str] | None = None) -> None:
    """Let bearings wear."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bearing", description=__doc__)
    parser.add_argument("--farms", type=int, default=10)
    options = parser.parse_args(arguments)
    runs = [farm(_FIRST_SEED + i) for i in range(options.farms)]
    table: list[list[Any]] = []
    for label, (name, siblings) in RIVALS.items():
        found = [first_alarm(name, siblings, run) for run in runs]
        days = sorted(28.0 if at is None else at for at in found)
        never = sum(at is None for at in found)
        table.append([label, len(found), never, days[0], float(np.median(days)), days[-1]])
        print(*table[-1], sep=" | ", flush=True)
    head = ["detector", "farms", "never", "earliest day", "median day", "latest day"]
    caption = "Days from the onset to an alarm; never counts as 28."
    write("bearing", "A bearing that wears", [(caption, head, table)], note="One process.")


if __name__ == "__main__":
    main()
