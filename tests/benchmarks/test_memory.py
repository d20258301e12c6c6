"""What a key holds beside its rows, where it has most: just before a new model is swapped in."""

from __future__ import annotations

import pickle

import numpy as np

from benchmarks.memory import N, filled, parts_of, size_of
from rejex_stream.rejection.window import Tail


def test_what_comes_with_every_event_costs_a_key_a_number_and_no_object():
    engine, _ = filled("Sensor", 1, N, 3, True)
    shadow = engine._live["sensor-0"].model._shadow
    assert len(shadow.shadow_scores) > 0.9 * N
    parts = parts_of(engine, "sensor-0", beside="first")
    assert parts["scores of the next model"] < 10 * N
    assert parts["alarm"] < 20 * 256
    tail = Tail(np.random.default_rng(0).exponential(size=N - 3).tolist(), 2.75)
    assert size_of(tail, set()) < 20 * N  # its scores and their severities, as doubles
    fitted = engine._live["sensor-0"].model._serving.fitted
    assert parts["fitted model"] < 20_000
    assert size_of(pickle.loads(pickle.dumps(fitted)), set()) < 24_000  # from another process
    guard = engine._live["sensor-0"].model._guard
    assert size_of(guard, set()) < 8_000
