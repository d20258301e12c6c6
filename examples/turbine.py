"""Four wind turbines, five channels each, one config: who is in trouble, since when.

    python examples/turbine.py

The turbines are simulated, with known faults, so that the answers can be checked. The config is the
one that `rejex-stream demo` runs; here it is read from Python.
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from rejex_stream import Pipeline
from rejex_stream.demo.datasets import prepare

with TemporaryDirectory() as folder:
    _, farm = prepare(Path(folder))  # a feed of five weeks, and its config
    pipeline = Pipeline(farm.config_path)
    verdicts = [outcome.verdict for outcome in pipeline.process_file() if outcome.verdict]

said = Counter((verdict.sensor, str(verdict.reason or verdict.label)) for verdict in verdicts)
for sensor in sorted({sensor for sensor, _ in said}):
    print(f"{sensor}: { ({label: n for (name, label), n in said.items() if name == sensor}) }")

print()
for fault in farm.faults:
    during = [
        verdict
        for verdict in verdicts
        if verdict.sensor == fault.sensor
        and fault.first_ms <= verdict.event_time_ms <= fault.last_ms
    ]
    labels = Counter(str(verdict.label) for verdict in during)
    signs = [verdict.event_time_ms for verdict in during if verdict.label != "normal"]
    first = f"first sign after {(signs[0] - fault.first_ms) / 3.6e6:.1f} h" if signs else "no sign"
    print(
        f"{fault.sensor} {fault.title:<26} {labels['anomaly']:3} anomaly, "
        f"{labels['rejected']:3} rejected of {len(during):3}; {first}"
    )
