"""Any River pipeline that ends in an anomaly detector can learn to abstain.

    python examples/custom_river_pipeline.py

The pipeline below is ordinary River. `RejectingStream` wraps it and keeps River's own methods; the
same object also goes into an `EngineSpec` (`as_detector`), and a config file takes its dotted name.
"""

import random
from collections import Counter

from river import anomaly, compose, preprocessing

from rejex_stream.facade import RejectingStream

pipeline = compose.Pipeline(
    compose.Select("temperature", "pressure"),
    preprocessing.MinMaxScaler(),
    anomaly.HalfSpaceTrees(n_trees=25, height=8, window_size=250, seed=1),
)
model = RejectingStream(pipeline, contamination=0.05, tolerance=8, window=1000)

rng = random.Random(1)
said: dict[str, Counter[str]] = {"pump runs": Counter(), "pump leaks": Counter()}
for i in range(5_000):
    leaks = i % 100 == 99
    state = "pump leaks" if leaks else "pump runs"
    x = {
        "temperature": rng.gauss(60, 2) + 6 * leaks,
        "pressure": rng.gauss(4, 0.2) - 1.2 * leaks,
        "serial_number": 4711.0,  # the pipeline does not select it
    }
    if i >= 2_500:
        said[state][model.predict_one(x)] += 1
    model.learn_one(x)

for state, labels in said.items():
    print(f"{state}: {dict(labels)}")
