"""A water meter: call a leak a leak, and ask a person when it is too close to call.

    python examples/water_leak.py

The data is two months of real, hourly flow from the river package. KNN compares each hour with the
hours before it; the review budget is one hour a day.
"""

from datetime import UTC, datetime

from river.datasets import WaterFlow

from rejex_stream.detectors import make_detector
from rejex_stream.engine import Engine, EngineSpec
from rejex_stream.engine.refit import RefitSchedule
from rejex_stream.features import Feature, FeatureSpec
from rejex_stream.rejection.policy import RejectionPolicy
from rejex_stream.run.executors import InlineExecutor
from rejex_stream.types import Position, Reading

spec = EngineSpec(
    detector=make_detector("KNN", n_neighbors=24),
    features=FeatureSpec(
        channels=("flow",),
        features=(
            Feature("raw", "flow"),
            Feature("difference", "flow", events=1),
            Feature("hour_of_day"),
        ),
    ),
    policy=RejectionPolicy(contamination=0.05, rate=1 / 24),
    window=336,  # two weeks of hours
    schedule=RefitSchedule(48, refit_every_events=336, refit_lag_events=4, buffer_events=336),
)

readings = [
    Reading("meter", "meter", int(x["Time"].timestamp() * 1000), (flow,), Position("water", 0, i))
    for i, (x, flow) in enumerate(WaterFlow())
]
verdicts = Engine(spec, InlineExecutor()).process(readings)

for reading, verdict in zip(readings, verdicts, strict=True):
    if verdict.label == "normal" or verdict.reason == "warm_up":
        continue
    when = datetime.fromtimestamp(reading.event_time_ms / 1000, UTC)
    print(
        f"{when:%d %b %H:%M}  {reading.values[0]:6.1f} l/s  {verdict.label:<8}  "
        f"rank {verdict.rank} of {verdict.window_len}, rejected from {verdict.band_lower} "
        f"to {verdict.band_upper}"
    )

ranked = [verdict for verdict in verdicts if verdict.band_lower is not None]
rejected = sum(verdict.label == "rejected" for verdict in ranked)
print(
    f"\n{rejected / len(ranked):.1%} of {len(ranked):,} hours went to review; "
    f"the theory expects {spec.band.width / (spec.window + 1):.1%}."
)
