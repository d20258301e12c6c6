"""Four wind turbines, four channels each, one engine: who is in trouble, since when.

    python examples/turbine.py

The turbines are simulated, with known faults, so that the answers can be checked.
"""

from collections import Counter

import numpy as np

from rejex_stream.demo.turbine import CHANNELS, STEP_S, TURBINES, simulate
from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import ThreadFitExecutor
from rejex_stream.types import Position, Reading

WEEK = 7 * 86_400 // STEP_S

spec = EngineSpec(
    detector=make_detector("GMM", n_components=4),
    features=FeatureSpec(
        channels=CHANNELS,
        # A gearbox is warm from what it did: show the model the power of the last hour, too.
        features=(*(Feature("raw", name) for name in CHANNELS), Feature("mean", "power_kw", 6)),
        carry_forward_events=2,
    ),
    policy=RejectionPolicy(contamination=0.02, rate=4 / 144),  # four reviews a day and turbine
    window=WEEK,
    schedule=RefitSchedule(WEEK, refit_every_events=WEEK, refit_lag_events=36, buffer_events=2016),
)

farm = simulate(seed=0)
steps = len(farm.values[TURBINES[0]])
readings = [
    Reading(
        name, name, step * STEP_S * 1000, tuple(farm.values[name][step]), Position("farm", k, step)
    )
    for step in range(steps)
    for k, name in enumerate(TURBINES)
]

fits = ThreadFitExecutor(workers=2)
engine = Engine(spec, fits)
said: dict[str, list[str]] = {name: [] for name in TURBINES}
for start in range(0, len(readings), 500):  # batches of any size give the same verdicts
    for verdict in engine.process(readings[start : start + 500]):
        warm_up = verdict.reason == "warm_up"
        said[verdict.stream_key].append("learning" if warm_up else str(verdict.label))
fits.close()

for name in TURBINES:
    print(f"{name}: {dict(Counter(said[name]))}")

print()
for fault in farm.faults:
    during = said[fault.turbine][fault.first : fault.last + 1]
    flagged = np.flatnonzero(np.array(during) != "normal")
    first = f"first sign after {flagged[0] * STEP_S / 3600:.1f} h" if len(flagged) else "no sign"
    print(
        f"{fault.turbine} {fault.title:<26} {during.count('anomaly'):3} anomaly, "
        f"{during.count('rejected'):3} rejected of {len(during):3}; {first}"
    )
