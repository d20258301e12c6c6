"""Committed verdicts of seeded streams: what moves or speeds up the engine changes none of them.

A change that is meant is written with ``python -m tests.test_golden_verdicts``, and goes into the
changelog under *Verdict changes*.
"""

import gzip
import json
import math
from pathlib import Path

import msgspec
import pytest

from rejex_stream.detectors import make_detector
from rejex_stream.encode import encode_verdict
from rejex_stream.engine import Engine
from rejex_stream.engine.snapshot import environment
from rejex_stream.run.executors import InlineExecutor
from tests.streams import EVERY_KIND, readings, spec

GOLDEN = Path(__file__).parent / "golden" / "verdicts"
HBOS = make_detector("HBOS", n_bins=6)
HST = make_detector("HalfSpaceTrees", n_trees=3, height=4, window_size=20)
STREAMS = {
    "shadow": spec(HBOS, features=EVERY_KIND, evidence=True),
    "holdout": spec(HBOS, calibration="holdout", rate=0.15),
    "training": spec(HBOS, calibration="training", tolerance=3.0, ties="paper"),
    "held": spec(HBOS, rate=0.15, burst=4),
    "river": spec(HST, evidence=True),
}


def verdicts(name):
    """Return the encoded verdicts of one stream: gaps, ties, spikes and a stuck sensor."""
    feed = readings(480, missing=0.08) + [
        reading._replace(event_time_ms=time, position=reading.position._replace(offset=480 + i))
        for i, reading in enumerate(readings(160, missing=0, stuck=140))
        for time in [1000 * (480 + i)]
    ]
    return [encode_verdict(v) for v in Engine(STREAMS[name], InlineExecutor()).process(feed)]


def written(name):
    first, *lines = gzip.decompress((GOLDEN / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return json.loads(first), lines


def assert_close(found, wanted, where):
    """Equal, numbers up to rounding: another library or processor may move the last bit."""
    if isinstance(wanted, float) and isinstance(found, float):
        assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12), where
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key, value in wanted.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, value in enumerate(wanted):
            assert_close(found[i], value, f"{where}[{i}]")
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", STREAMS)
def test_the_verdicts_are_those_that_were_committed(name):
    made_with, wanted = written(name)
    found = verdicts(name)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        decoded = msgspec.json.decode(theirs)
        assert_close(msgspec.json.decode(ours), decoded, decoded["id"])
    if made_with == environment():
        assert found == wanted


@pytest.mark.parametrize("name", STREAMS)
def test_the_committed_verdicts_hold_every_label_and_reason(name):
    lines = [msgspec.json.decode(line) for line in written(name)[1]]
    assert {line["label"] for line in lines} == {"normal", "anomaly", "rejected"}
    reasons = {"ambiguous", "warm_up", "unscorable", None}
    if name != "river":  # which goes on learning: its scores of a stuck sensor move
        reasons.add("constant_window")
        assert len({line["model_epoch"] for line in lines}) > 3
    assert {line["reason"] for line in lines} == reasons


def write():
    GOLDEN.mkdir(exist_ok=True)
    for name in STREAMS:
        lines = [json.dumps(environment()).encode(), *verdicts(name)]
        packed = gzip.compress(b"\n".join(lines) + b"\n", mtime=0)
        (GOLDEN / f"{name}.jsonl.gz").write_bytes(packed)


if __name__ == "__main__":
    write()
